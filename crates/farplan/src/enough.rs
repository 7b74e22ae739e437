//! How much more room a program would have needed: told by how much was filled between the leaving of memory and its return.
//!
//! What came back after so many bytes had been filled would have been found here with as much more room, as long as what has been here longest leaves first.
//! With more room less is filled, so the answer is rather too high than too low; it is never above what is far.

use crate::refault::Clock;

/// Hundredths of the returns that are to be spared.
pub const SPARED_PERCENT: u64 = 90;
/// Fewer returns say nothing.
const RETURNS_MIN: u64 = 1000;
/// From so many on, older ones count half: a program goes on to something else.
const RETURNS_MAX: u64 = 1 << 16;
/// Distances are told apart by a quarter of a power of two.
const PARTS: usize = 4;
const BINS: usize = 64 * PARTS;

/// Returns that somebody waited for, by how much was filled while they were away.
#[derive(Clone, Debug)]
pub struct Enough {
    bins: [u32; BINS],
    /// Those of which it is not known when they left: long ago.
    unknown: u64,
    returns: u64,
}

impl Default for Enough {
    fn default() -> Self {
        Self { bins: [0; BINS], unknown: 0, returns: 0 }
    }
}

impl Enough {
    /// Somebody waited for memory that was away while so many bytes were filled, if that is known.
    pub fn came(&mut self, away: Option<Clock>) {
        match away {
            Some(away) => self.bins[bin(away)] += 1,
            None => self.unknown += 1,
        }
        self.returns += 1;
        if self.returns >= RETURNS_MAX {
            self.bins.iter_mut().for_each(|count| *count /= 2);
            self.unknown /= 2;
            self.returns = self.unknown + self.bins.iter().map(|count| u64::from(*count)).sum::<u64>();
        }
    }

    /// Bytes of more room with which [`SPARED_PERCENT`] of the returns of late would not have been, for a program that has so many bytes far;
    /// `None` as long as there were few.
    pub fn more_bytes(&self, far_bytes: u64) -> Option<u64> {
        if self.returns < RETURNS_MIN {
            return None;
        }
        let mut spared = 0;
        let enough = self.bins.iter().position(|count| {
            spared += u64::from(*count);
            spared * 100 >= self.returns * SPARED_PERCENT
        });
        Some(enough.map_or(far_bytes, |bin| end(bin).min(far_bytes)))
    }
}

/// The part of a power of two that a distance lies in.
const fn bin(away: Clock) -> usize {
    let away = if away < PARTS as u64 { PARTS as u64 } else { away };
    let power = away.ilog2() as usize;
    // The two bits behind the first one.
    power * PARTS + (away >> (power - 2)) as usize % PARTS
}

/// One past the last distance of a part.
const fn end(bin: usize) -> u64 {
    let (power, part) = (bin / PARTS, bin % PARTS);
    if power < 2 {
        return PARTS as u64;
    }
    if power >= 62 {
        return u64::MAX;
    }
    (PARTS as u64 + part as u64 + 1) << (power - 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    #[test]
    fn each_distance_lies_in_a_part_that_ends_a_fifth_or_less_behind_it() {
        for away in (0..61).flat_map(|power| [1u64 << power, (1 << power) + 1, (7 << power) / 4]) {
            let end = end(bin(away));
            assert!(end > away && end <= away.max(4) / 4 * 5 + 5, "{away}: {end}");
        }
        assert_eq!(end(bin(u64::MAX)), u64::MAX);
    }

    /// What a program that touches units in this order needs beyond its room, where what came first leaves first: what is told, and what it is.
    fn told(units: u64, room: u64, touches: impl Iterator<Item = u64>) -> (u64, u64) {
        let (mut enough, mut here, mut left) =
            (Enough::default(), VecDeque::new(), vec![None::<Clock>; units as usize]);
        let mut clock = 0u64;
        for unit in touches {
            if here.contains(&unit) {
                continue;
            }
            if let Some(then) = left[unit as usize] {
                enough.came(Some(clock - then));
            }
            here.push_back(unit);
            clock += 1;
            if here.len() as u64 > room {
                let gone: u64 = here.pop_front().unwrap();
                left[gone as usize] = Some(clock);
            }
        }
        (enough.more_bytes(units - room).unwrap(), units - room)
    }

    #[test]
    fn a_program_that_goes_round_is_told_all_that_is_missing_and_one_at_random_most_of_it() {
        let (more, missing) = told(100, 60, (0..20_000).map(|step| step % 100));
        assert_eq!(more, missing);
        let mut state = 1u64;
        let random = (0..20_000).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % 100
        });
        let (more, missing) = told(100, 60, random);
        assert!(more >= missing * 9 / 10 && more <= missing, "{more} of {missing}");
    }

    #[test]
    fn what_is_hardly_touched_is_not_asked_for() {
        // 70 units go round, in a room for 60; 930 others are far and are touched once in a hundred times.
        let touches =
            (0..40_000u64).map(|step| if step % 100 == 99 { 70 + step / 100 % 930 } else { step % 70 });
        let (more, missing) = told(1000, 60, touches);
        assert!((10..=20).contains(&more), "{more} of {missing}");
    }

    #[test]
    fn few_returns_say_nothing_and_old_ones_are_forgotten() {
        let mut enough = Enough::default();
        (0..999).for_each(|_| enough.came(Some(5)));
        assert_eq!(enough.more_bytes(1 << 30), None);
        enough.came(None);
        assert_eq!(enough.more_bytes(1 << 30), Some(6));
        (0..1_000_000).for_each(|_| enough.came(Some(1 << 20)));
        assert_eq!(enough.more_bytes(1 << 30), Some(5 << 18));
        (0..1_000_000).for_each(|_| enough.came(None));
        assert_eq!(enough.more_bytes(1 << 30), Some(1 << 30));
    }
}
