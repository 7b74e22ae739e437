//! Loops: an object that is read in order again and again, with a budget smaller than itself.
//!
//! A dense model is read from end to end for every token. Least recently used then evicts every unit just
//! before it is needed and keeps nothing; what is best is to keep any fixed part and let the rest pass
//! through. Two signs tell a loop from other patterns: fills follow each other in the object, and nearly all
//! of them are of units that were here before. While both last, what was filled most recently leaves first,
//! but for a window that protects what was fetched ahead and not used yet.

use std::collections::VecDeque;

/// Fills that a judgement rests on.
const WINDOW_FILLS: usize = 48;
/// Share of fills that must follow an earlier one closely, in percent.
const IN_ORDER_PERCENT: usize = 60;
/// Share of fills that must be of units that were here before, in percent.
const AGAIN_PERCENT: usize = 80;
/// How far a fill may lie from one of the last few and still follow it: parallel fills overtake each other.
const NEAR_UNITS: u32 = 8;
/// Last fills that a new one is compared with.
const NEIGHBOURS: usize = 4;

/// Watches the fills of one object.
#[derive(Debug)]
pub struct LoopWatch {
    /// Whether each unit has ever been filled.
    seen: Vec<bool>,
    /// Fills in order, the latest last; units that have left are skipped by whoever reads it.
    order: VecDeque<u32>,
    /// For each of the last fills: whether it followed, whether it came again.
    signs: VecDeque<(bool, bool)>,
    enabled: bool,
}

impl LoopWatch {
    /// Watches an object of `units` units; never sees a loop if it is not enabled.
    pub fn new(units: u32, enabled: bool) -> Self {
        Self { seen: vec![false; units as usize], order: VecDeque::new(), signs: VecDeque::new(), enabled }
    }

    /// A unit was filled.
    pub fn filled(&mut self, unit: u32) {
        let Some(seen) = self.seen.get_mut(unit as usize) else { return };
        let again = std::mem::replace(seen, true);
        let follows = self
            .order
            .iter()
            .rev()
            .take(NEIGHBOURS)
            .any(|&before| before != unit && before.abs_diff(unit) <= NEAR_UNITS);
        if self.signs.len() == WINDOW_FILLS {
            self.signs.pop_front();
        }
        self.signs.push_back((follows, again));
        self.order.push_back(unit);
        // Units that left long ago are forgotten, so that the list stays as long as the object.
        while self.order.len() > self.seen.len() + NEIGHBOURS {
            self.order.pop_front();
        }
    }

    /// Whether the object is being read in a loop.
    pub fn is_looping(&self) -> bool {
        let full = self.enabled && self.signs.len() == WINDOW_FILLS;
        let count = |which: fn(&(bool, bool)) -> bool| self.signs.iter().filter(|sign| which(sign)).count();
        full && count(|sign| sign.0) * 100 >= WINDOW_FILLS * IN_ORDER_PERCENT
            && count(|sign| sign.1) * 100 >= WINDOW_FILLS * AGAIN_PERCENT
    }

    /// The units that leave first in a loop: the most recently filled, without the last `protected` ones.
    pub fn latest(&self, protected: usize) -> impl Iterator<Item = u32> + '_ {
        self.order.iter().rev().skip(protected).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `units` units in order `passes` times with room for `room`; returns the fills of the last pass.
    fn loop_with(room: usize, units: u32, passes: u32, enabled: bool) -> usize {
        let mut watch = LoopWatch::new(units, enabled);
        let mut resident: VecDeque<u32> = VecDeque::new();
        let mut fills = 0;
        for _ in 0..passes {
            fills = 0;
            for unit in 0..units {
                if resident.contains(&unit) {
                    continue;
                }
                fills += 1;
                if resident.len() == room {
                    let latest = watch.latest(4).find(|unit| resident.contains(unit));
                    match latest.filter(|_| watch.is_looping()) {
                        Some(victim) => resident.retain(|&other| other != victim),
                        None => drop(resident.pop_front()),
                    }
                }
                resident.push_back(unit);
                watch.filled(unit);
            }
        }
        fills
    }

    #[test]
    fn a_loop_keeps_a_part_and_lets_the_rest_pass() {
        assert_eq!(loop_with(64, 100, 8, false), 100);
        let fills = loop_with(64, 100, 8, true);
        assert!(fills <= 45, "{fills} of 100 units filled in a pass");
    }

    #[test]
    fn reading_in_order_once_is_no_loop() {
        let mut watch = LoopWatch::new(1000, true);
        (0..1000).for_each(|unit| watch.filled(unit));
        assert!(!watch.is_looping());
    }

    #[test]
    fn touching_at_random_is_no_loop() {
        let mut watch = LoopWatch::new(4000, true);
        let mut random = 7u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            watch.filled((random >> 33) as u32 % 4000);
        }
        assert!(!watch.is_looping());
    }

    #[test]
    fn a_unit_that_does_not_exist_is_ignored() {
        let mut watch = LoopWatch::new(1, true);
        watch.filled(5);
        assert_eq!(watch.latest(0).count(), 0);
    }
}
