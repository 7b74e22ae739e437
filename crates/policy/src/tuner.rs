//! Chooses the fault unit of an object from its trace.
//!
//! The right unit depends on how an object is read, and paper 000 (section 7) leaves finding it to trial.
//! Two observations suffice. *Faults* say whether neighbours are read: long sequences waste time on small
//! units. *Evictions* say which part of a unit had been used: units of which little is used waste bytes and
//! room. The unit of a mapping is fixed while it lives, so a recommendation is for the next one, and each
//! moves it by a bounded step; objects that are mapped again and again converge.
//!
//! | observed in a window of faults | recommendation |
//! | --- | --- |
//! | three of four faults continue a sequence | 2 x larger, up to 16 MiB |
//! | evicted units were used by less than half | as large as the used part, at least 1/4 of the unit, not below 64 KiB |
//! | nine of ten faults are jumps, and units come back after eviction | 2 x smaller, not below 256 KiB: which part is used is not known |
//! | anything else | as it is |

use crate::unit::UnitBytes;
use std::collections::VecDeque;

#[cfg(test)]
mod tests;

/// Switch and limits of a [`Tuner`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunerConfig {
    /// Whether anything but `start` is ever recommended.
    pub enabled: bool,
    /// The unit of objects of which nothing is known.
    pub start: UnitBytes,
    /// Smallest recommendation.
    pub smallest: UnitBytes,
    /// Largest recommendation.
    pub largest: UnitBytes,
    /// Faults after which a window is judged.
    pub window_faults: u32,
}

impl Default for TunerConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            start: UnitBytes::DEFAULT,
            smallest: UnitBytes::MIN,
            largest: UnitBytes::holding(16 << 20),
            window_faults: 64,
        }
    }
}

/// Learns from the faults and evictions of one object.
#[derive(Clone, Debug)]
pub struct Tuner {
    config: TunerConfig,
    /// The unit of the mapping that is observed.
    current: UnitBytes,
    recommended: UnitBytes,
    /// Where recent faults would continue, in bytes, youngest first.
    ends: VecDeque<u64>,
    window: Window,
}

/// What one window of faults showed.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    faults: u32,
    sequential: u32,
    refaults: u32,
    evicted_bytes: u64,
    used_bytes: u64,
    /// Evictions of which the used part is known.
    measured: u32,
}

/// Sequences that are told apart: as many threads as commonly read one object in parallel.
const SEQUENCES_MAX: usize = 16;
/// Units that a sequence may skip and still be one: prefetched units do not fault.
const SKIPPED_UNITS_MAX: u64 = 32;
/// Measured evictions that a judgement needs.
const MEASURED_MIN: u32 = 8;
/// The smallest unit that is recommended without knowing which part of units is used.
const UNMEASURED_BYTES_MIN: u64 = 256 << 10;

impl Tuner {
    /// A tuner of an object that has not been seen before.
    pub fn new(config: TunerConfig) -> Self {
        let (current, recommended) = (config.start, config.start);
        Self { config, current, recommended, ends: VecDeque::new(), window: Window::default() }
    }

    /// The unit for the next mapping of the object.
    pub fn recommend(&self) -> UnitBytes {
        if self.config.enabled { self.recommended } else { self.config.start }
    }

    /// The object is mapped with a unit: observations from now on are of that unit.
    pub fn begin_generation(&mut self, unit: UnitBytes) {
        self.current = unit;
        self.recommended = unit;
        self.ends.clear();
        self.window = Window::default();
    }

    /// A fault at a byte of the object. `is_refault`: its unit had been evicted not long ago.
    pub fn observe_fault(&mut self, offset: u64, is_refault: bool) {
        let unit = self.current.get();
        let start = offset - offset % unit;
        let reach = unit * SKIPPED_UNITS_MAX;
        let continued = self.ends.iter().position(|&end| start >= end && start - end <= reach);
        self.window.faults += 1;
        self.window.refaults += u32::from(is_refault);
        match continued {
            Some(at) => {
                self.window.sequential += 1;
                self.ends.remove(at);
            }
            None => self.ends.truncate(SEQUENCES_MAX - 1),
        }
        self.ends.push_front(start.saturating_add(unit));
        if self.window.faults >= self.config.window_faults {
            self.judge();
        }
    }

    /// A unit of `unit_bytes` was evicted; `used_bytes` of it had been touched, if that is known.
    pub fn observe_eviction(&mut self, unit_bytes: u64, used_bytes: Option<u64>) {
        if let Some(used) = used_bytes {
            self.window.evicted_bytes = self.window.evicted_bytes.saturating_add(unit_bytes);
            self.window.used_bytes = self.window.used_bytes.saturating_add(used.min(unit_bytes));
            self.window.measured += 1;
        }
    }

    /// Ends a window and moves the recommendation by one step from the unit that was observed.
    fn judge(&mut self) {
        let window = std::mem::take(&mut self.window);
        let unit = self.current.get();
        let is_share = |part: u32, numerator: u32, denominator: u32| {
            u64::from(part) * u64::from(denominator) >= u64::from(window.faults) * u64::from(numerator)
        };
        let bytes = if window.measured >= MEASURED_MIN && window.used_bytes < window.evicted_bytes / 2 {
            let used = u128::from(unit) * u128::from(window.used_bytes) / u128::from(window.evicted_bytes);
            // At most half a unit: the cast loses nothing.
            UnitBytes::holding((used as u64).max(unit / 4)).get()
        } else if is_share(window.sequential, 3, 4) {
            unit * 2
        } else if window.measured < MEASURED_MIN
            && is_share(window.faults - window.sequential, 9, 10)
            && is_share(window.refaults, 1, 4)
        {
            (unit / 2).max(UNMEASURED_BYTES_MIN.min(unit))
        } else {
            unit
        };
        if bytes == unit {
            self.recommended = self.current;
        } else {
            let bounded = bytes.max(self.config.smallest.get()).min(self.config.largest.get());
            self.recommended = UnitBytes::holding(bounded).min(self.config.largest);
        }
    }
}
