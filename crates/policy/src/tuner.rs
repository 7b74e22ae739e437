//! Chooses the fault unit of an object from its trace.
//!
//! The right unit depends on how an object is read, and paper 000 (section 7) leaves finding it to trial.
//! Two observations suffice. *Faults* say whether neighbours are read: long sequences waste time on small
//! units. *Evictions* say which part of a unit had been used: units of which little is used waste bytes and
//! room. The unit of a mapping is fixed while it lives, so a recommendation is for the next one, and each
//! moves it by a bounded step; objects that are mapped again and again converge.
//!
//! The first row that fits a window of faults decides, and the last window is the one that counts:
//!
//! | observed in a window of faults | recommendation |
//! | --- | --- |
//! | evicted units were used by less than half | as large as the used part, at least 1/4 of the unit, not below 64 KiB |
//! | three of four faults continue a sequence | 2 x larger, up to 16 MiB |
//! | three of four faults are jumps, and one of four is in a unit that had left | 2 x smaller, not below 256 KiB: which part is used is not known |
//! | anything else | as it is |
//!
//! The used part is not always known: a huge page is touched as a whole. What was measured in one window holds in the next ones,
//! until as much has been measured again or faults continue sequences: on a busy machine most windows measure too little. A fault continues a sequence if everything
//! between it and the end of an earlier fault's unit is here, as it is after fetching ahead. Few units leave few
//! places for a jump to land on, so the sequences that are told apart are fewer in an object of few units.
//!
//! An object that is read now one way and now the other would change its unit for ever, and each change costs what its
//! cache file holds. So the direction turns a few times at most; then the unit stays.

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
    /// Size of the object in bytes.
    object_bytes: u64,
    /// Where recent faults would continue, in bytes, youngest first.
    ends: VecDeque<u64>,
    window: Window,
    /// What was measured of evictions since the last judgement that had enough of it.
    measured: Evictions,
    /// What the last such judgement had.
    known: Option<Evictions>,
    /// Whether the last change made units larger, and how often the next one was the other way.
    grew: Option<bool>,
    turns: u32,
}

/// What one window of faults showed.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    faults: u32,
    sequential: u32,
    refaults: u32,
}

/// Evictions of which the used part is known.
#[derive(Clone, Copy, Debug, Default)]
struct Evictions {
    count: u32,
    evicted_bytes: u64,
    used_bytes: u64,
}

/// Sequences that are told apart: as many threads as commonly read one object in parallel.
const SEQUENCES_MAX: usize = 16;
/// Units for each sequence that is told apart: with fewer, jumps would often land behind one by chance.
const UNITS_PER_SEQUENCE: u64 = 16;
/// Units that a sequence may skip and still be one: prefetched units do not fault.
const SKIPPED_UNITS_MAX: u64 = 32;
/// How often a unit that grew may shrink again, or the other way, before it stays as it is.
const TURNS_MAX: u32 = 4;
/// Measured evictions that a judgement needs.
const MEASURED_MIN: u32 = 8;
/// The smallest unit that is recommended without knowing which part of units is used.
const UNMEASURED_BYTES_MIN: u64 = 256 << 10;

impl Tuner {
    /// A tuner of an object of `object_bytes` that has not been seen before.
    pub fn new(config: TunerConfig, object_bytes: u64) -> Self {
        let (current, recommended) = (config.start, config.start);
        Self {
            config,
            current,
            recommended,
            object_bytes,
            ends: VecDeque::new(),
            window: Window::default(),
            measured: Evictions::default(),
            known: None,
            grew: None,
            turns: 0,
        }
    }

    /// The unit for the next mapping of the object.
    pub fn recommend(&self) -> UnitBytes {
        if self.config.enabled { self.recommended } else { self.config.start }
    }

    /// The object is mapped with a unit that was recommended or is the user's: observations from now on are of that unit.
    pub fn begin_generation(&mut self, unit: UnitBytes) {
        if unit != self.current && unit == self.recommended {
            let grows = unit > self.current;
            self.turns += u32::from(self.grew.is_some_and(|grew| grew != grows));
            self.grew = Some(grows);
        }
        self.current = unit;
        self.recommended = unit;
        self.ends.clear();
        self.window = Window::default();
        self.measured = Evictions::default();
        self.known = None;
    }

    /// A fault at a byte of the object. `is_refault`: its unit had been evicted. `is_here` says of an offset in another
    /// unit whether that one is here or on its way.
    pub fn observe_fault(&mut self, offset: u64, is_refault: bool, is_here: &mut dyn FnMut(u64) -> bool) {
        let unit = self.current.get();
        let start = offset - offset % unit;
        let continued = self.continued(start, is_here);
        self.window.faults += 1;
        self.window.refaults += u32::from(is_refault);
        match continued {
            Some(at) => {
                self.window.sequential += 1;
                self.ends.remove(at);
            }
            // At most `SEQUENCES_MAX`: the cast loses nothing.
            None => self.ends.truncate(self.sequences_max() as usize - 1),
        }
        self.ends.push_front(start.saturating_add(unit));
        if self.window.faults >= self.config.window_faults {
            self.judge();
        }
    }

    /// The sequence that a fault in the unit from `start` on continues.
    fn continued(&self, start: u64, is_here: &mut dyn FnMut(u64) -> bool) -> Option<usize> {
        let unit = self.current.get();
        let mut end = start;
        for _ in 0..=SKIPPED_UNITS_MAX {
            if let Some(at) = self.ends.iter().position(|&known| known == end) {
                return Some(at);
            }
            end = end.checked_sub(unit)?;
            if !is_here(end) {
                return None;
            }
        }
        None
    }

    /// Sequences that are told apart, one at least.
    fn sequences_max(&self) -> u64 {
        let units = self.object_bytes.div_ceil(self.current.get());
        (units / UNITS_PER_SEQUENCE).clamp(1, SEQUENCES_MAX as u64)
    }

    /// A unit of `unit_bytes` was evicted; `used_bytes` of it had been touched, if that is known.
    pub fn observe_eviction(&mut self, unit_bytes: u64, used_bytes: Option<u64>) {
        if let Some(used) = used_bytes {
            let measured = &mut self.measured;
            measured.evicted_bytes = measured.evicted_bytes.saturating_add(unit_bytes);
            measured.used_bytes = measured.used_bytes.saturating_add(used.min(unit_bytes));
            measured.count = measured.count.saturating_add(1);
        }
    }

    /// Ends a window and moves the recommendation by one step from the unit that was observed.
    fn judge(&mut self) {
        let window = std::mem::take(&mut self.window);
        let unit = self.current.get();
        let is_share = |part: u32, numerator: u32, denominator: u32| {
            u64::from(part) * u64::from(denominator) >= u64::from(window.faults) * u64::from(numerator)
        };
        let is_sequential = is_share(window.sequential, 3, 4);
        if self.measured.count >= MEASURED_MIN {
            self.known = Some(std::mem::take(&mut self.measured));
        } else if is_sequential {
            (self.measured, self.known) = (Evictions::default(), None);
        }
        let bytes = match self.known {
            Some(known) if known.used_bytes < known.evicted_bytes / 2 => {
                let used = u128::from(unit) * u128::from(known.used_bytes) / u128::from(known.evicted_bytes);
                // At most half a unit: the cast loses nothing.
                UnitBytes::holding((used as u64).max(unit / 4)).get()
            }
            _ if is_sequential => unit * 2,
            None if is_share(window.faults - window.sequential, 3, 4) && is_share(window.refaults, 1, 4) => {
                (unit / 2).max(UNMEASURED_BYTES_MIN.min(unit))
            }
            _ => unit,
        };
        let bounded = bytes.max(self.config.smallest.get()).min(self.config.largest.get());
        let turns = self.grew.is_some_and(|grew| grew != (bounded > unit));
        if bytes == unit || (turns && self.turns >= TURNS_MAX) {
            self.recommended = self.current;
        } else {
            self.recommended = UnitBytes::holding(bounded).min(self.config.largest);
        }
    }
}
