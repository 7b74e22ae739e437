//! Tuning while a program runs: how far to fetch ahead, learnt from the faults that come.
//!
//! Faults show where runs of addresses begin and how far they go, because whatever is fetched ahead ends in a fault when the
//! program reaches its end. From the lengths of late runs the depth is chosen that would have cost least.

use std::collections::VecDeque;

/// Runs that are remembered.
const RUNS: usize = 64;
/// Runs before anything is changed.
const RUNS_MIN: usize = 16;
/// New runs between two choices.
const RUNS_BETWEEN: usize = 8;
/// Sequences at once, as the engine tells apart.
const SEQUENCES: usize = 8;
/// How much better another depth must be: changes cost calm.
const GAIN_MIN: f64 = 0.05;

/// What decides between depths, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// A fault.
    pub fault_ns: f64,
    /// A KiB that is brought for nothing: its way in, and that of others out.
    pub waste_kib_ns: f64,
}

impl Default for Prices {
    /// About what 64 KiB units of compressed memory cost; their ratio is what matters.
    fn default() -> Self {
        Self { fault_ns: 30_000.0, waste_kib_ns: 600.0 }
    }
}

/// Learns from faults.
#[derive(Clone, Debug)]
pub struct Tuner {
    prices: Prices,
    depth_bytes: u64,
    depth_bytes_max: u64,
    unit_bytes: u64,
    open: Vec<Run>,
    runs: VecDeque<u64>,
    since: usize,
    changes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    space: u64,
    start: u64,
    end: u64,
    /// One past the last byte that was fetched ahead of it.
    fetched: u64,
}

impl Tuner {
    /// A tuner of an engine with this unit that fetches up to so much ahead.
    pub fn new(unit_bytes: u64, depth_bytes_max: u64, prices: Prices) -> Self {
        Self {
            prices,
            depth_bytes: depth_bytes_max,
            depth_bytes_max,
            unit_bytes: unit_bytes.max(1),
            open: Vec::new(),
            runs: VecDeque::new(),
            since: 0,
            changes: 0,
        }
    }

    /// A fault in the unit `start..end`, behind which the engine would fetch `wanted` bytes: how many it should.
    pub fn fault(&mut self, space: u64, start: u64, end: u64, wanted: u64) -> u64 {
        let bytes = wanted.min(self.depth_bytes) / self.unit_bytes * self.unit_bytes;
        let fetched = end.saturating_add(bytes);
        let continues = |run: &Run| run.space == space && (run.end..=run.fetched).contains(&start);
        if let Some(place) = self.open.iter().position(continues) {
            let run = self.open.remove(place);
            self.open.push(Run { end, fetched, ..run });
        } else {
            if self.open.len() == SEQUENCES {
                let ended = self.open.remove(0);
                self.finish(ended);
            }
            self.open.push(Run { space, start, end, fetched });
        }
        bytes
    }

    /// How far is fetched ahead at most.
    pub const fn depth_bytes(&self) -> u64 {
        self.depth_bytes
    }

    /// How often that was changed.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    fn finish(&mut self, run: Run) {
        self.runs.push_back(run.end - run.start);
        if self.runs.len() > RUNS {
            self.runs.pop_front();
        }
        self.since += 1;
        if self.runs.len() >= RUNS_MIN && self.since >= RUNS_BETWEEN {
            self.since = 0;
            self.choose();
        }
    }

    fn choose(&mut self) {
        let mut best = (self.depth_bytes, self.price(self.depth_bytes) * (1.0 - GAIN_MIN));
        let mut depth = 0;
        while depth <= self.depth_bytes_max {
            let price = self.price(depth);
            if price < best.1 {
                best = (depth, price);
            }
            depth = if depth == 0 { self.unit_bytes } else { depth * 2 };
        }
        self.changes += u64::from(best.0 != self.depth_bytes);
        self.depth_bytes = best.0;
    }

    /// What the runs that are remembered would have cost with a depth.
    fn price(&self, depth: u64) -> f64 {
        let of = |length: &u64| {
            let (faults, waste) = self.walk(*length, depth);
            faults as f64 * self.prices.fault_ns + waste as f64 / 1024.0 * self.prices.waste_kib_ns
        };
        self.runs.iter().map(of).sum()
    }

    /// Faults of a run, and bytes fetched behind its end, when what is fetched doubles up to `depth` as in [`crate::stride`].
    fn walk(&self, length: u64, depth: u64) -> (u64, u64) {
        let unit = self.unit_bytes;
        let (mut at, mut faults, mut ahead) = (0u64, 0u64, 0u64);
        while at < length {
            faults += 1;
            let wanted = if faults == 1 { 0 } else { (ahead * 2).max(unit).min(depth) };
            ahead = wanted;
            at += unit + wanted;
        }
        (faults, at.saturating_sub(length.next_multiple_of(unit)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNIT: u64 = 64 << 10;
    const MOST: u64 = 2 << 20;

    /// Has a program read runs of so many units at far places, as the engine would see it.
    fn after(runs: &[u64]) -> Tuner {
        let mut tuner = Tuner::new(UNIT, MOST, Prices::default());
        for (index, units) in runs.iter().enumerate() {
            let base = index as u64 * (1 << 32);
            let mut ahead = crate::stride::Sequences::new(MOST);
            let mut at = base;
            while at < base + units * UNIT {
                let (sequence, wanted) = ahead.fault(at, at + UNIT, false);
                let bytes = tuner.fault(0, at, at + UNIT, wanted);
                ahead.fetched(sequence, at + UNIT + bytes);
                at += UNIT + bytes;
            }
        }
        tuner
    }

    #[test]
    fn long_runs_keep_the_whole_depth() {
        let tuner = after(&[4000; 40]);
        assert_eq!((tuner.depth_bytes(), tuner.changes()), (MOST, 0));
    }

    #[test]
    fn runs_that_always_stop_early_are_fetched_less_ahead_of() {
        let tuner = after(&[3; 200]);
        assert!(tuner.depth_bytes() <= UNIT, "{}", tuner.depth_bytes());
        assert!(tuner.changes() >= 1);
    }

    #[test]
    fn a_program_that_changes_its_mind_is_followed() {
        let mut runs = vec![3; 200];
        runs.extend([4000; 200]);
        assert!(after(&runs).depth_bytes() >= 1 << 20, "{}", after(&runs).depth_bytes());
    }

    proptest! {
        #[test]
        fn never_more_than_wanted_and_whole_units(
            faults in proptest::collection::vec((0u64..64, 0u64..64), 0..500),
        ) {
            let mut tuner = Tuner::new(UNIT, MOST, Prices::default());
            for (place, wanted) in faults {
                let start = place * UNIT;
                let bytes = tuner.fault(0, start, start + UNIT, wanted * UNIT);
                prop_assert!(bytes <= wanted * UNIT && bytes <= MOST && bytes.is_multiple_of(UNIT));
                prop_assert!(tuner.depth_bytes() <= MOST);
            }
        }
    }
}
