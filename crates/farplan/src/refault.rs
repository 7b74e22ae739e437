//! What left and came back: some of it stays longer the next time.
//!
//! Nobody tells when memory is read that is here, so what has been here longest leaves, needed or not. Two kinds of returns say that something
//! else should have left in its place:
//!
//! - *At once.* A unit that comes back before as much was filled as there is room for would have been found here: each such return
//!   doubles for how long it stays.
//! - *Round after round.* A program that goes round in more than there is room for finds nothing of it here if what has been here longest
//!   leaves, whatever the room. Where units come back, but never at once, a fixed part of them stays, as much as fits, and the rest passes
//!   through: each round finds that part.

use std::collections::BTreeMap;

/// Bytes filled since the beginning, which is what time is measured in here.
pub type Clock = u64;

const LEVEL_MAX: u8 = 4;
/// Units that time jumps by where something comes back at once and there is no room for it to stay: perhaps the program went on to something
/// else, and what stays is in its way.
const JUMP_UNITS: u64 = 7;
/// Of the room, in hundredths, what may stay longer: after returns at once, and after late ones. The rest passes through.
const STAYING_PERCENT: (u64, u64) = (90, 75);
/// Rooms for which a part of rounds stays: what a program that goes on to something else pays at most.
const KEPT_ROOMS: u64 = STAYS_MAX - 1;
/// Rooms after which a return is no round any more.
const ROUND_ROOMS_MAX: u64 = 8;
/// Parts of a room by which the ends of stays are told apart, about.
const PARTS: u64 = 8;
/// A neighbourhood goes round if so many units of it came back late, more than this many times those that came back at once. Parts of units count as parts.
const SURE: u64 = 8;
const AT_ONCE_WEIGHT: u64 = 2;
const SCORE_MAX: u64 = 32;
/// A neighbourhood is so many bytes and units at least; and how many of them are told apart: those of larger programs share.
const NEAR_BYTES_MIN: u64 = 1 << 20;
const NEAR_UNITS_MIN: u64 = 2 * SURE;
const NEIGHBOURHOODS: usize = 4096;
/// A unit stays for less than so many rooms of filled bytes beyond its time.
pub const STAYS_MAX: u64 = 1 << LEVEL_MAX;
/// Units that are remembered, at least and at most.
const ENTRIES: (usize, usize) = (1 << 10, 1 << 20);
/// Places for each unit that there is room for: it has to be found after as many others have left.
const SPREAD: usize = 4;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Number of the unit and 1; 0 for none.
    unit: u64,
    left: Clock,
    level: u8,
}

/// For what comes back, in bytes of the clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stay {
    /// For how long it is to stay beyond what others do.
    pub longer: Clock,
    /// What the clock is to go forward by: what stays longer leaves so much sooner.
    pub jump: Clock,
}

/// Units that have left, those of late: a later one takes the place of an earlier one.
#[derive(Clone, Debug)]
pub struct Refaults {
    entries: Vec<Entry>,
    unit_bytes: u64,
    /// Bytes of what is told apart: a unit or less.
    part_bytes: u64,
    /// By neighbourhood: above 0, more parts came back late than at once.
    rounds: Vec<i32>,
    /// Bytes that were let stay longer, by when that ends; and all of them.
    ends: BTreeMap<Clock, u64>,
    staying_bytes: u64,
}

impl Refaults {
    /// For units of so many bytes, of which parts of so many may leave alone.
    pub fn new(unit_bytes: u64, part_bytes: u64) -> Self {
        Self {
            entries: Vec::new(),
            unit_bytes,
            part_bytes,
            rounds: vec![0; NEIGHBOURHOODS],
            ends: BTreeMap::new(),
            staying_bytes: 0,
        }
    }

    /// A unit has left, of a program that there is so much room for.
    pub fn left(&mut self, address: u64, now: Clock, room_bytes: u64) {
        self.grow(room_bytes);
        let unit = self.number(address);
        if let Some(entry) = self.place(unit) {
            let level = if entry.unit == unit { entry.level } else { 0 };
            *entry = Entry { unit, left: now, level };
        }
    }

    /// What has been filled since the unit at an address left, if that is known.
    pub fn away(&self, address: u64, now: Clock) -> Option<Clock> {
        let unit = self.number(address);
        let entry = self.entries.get(self.index(unit)?).filter(|entry| entry.unit == unit)?;
        Some(now.saturating_sub(entry.left))
    }

    /// A unit comes back, or so many bytes of it that left together. `is_wanted`: somebody waits for it; else it is filled because what lies before it was, and that it comes at once says
    /// nothing.
    pub fn came(
        &mut self,
        (address, bytes): (u64, u64),
        now: Clock,
        room_bytes: u64,
        is_wanted: bool,
    ) -> Stay {
        let unit = self.number(address);
        let Some(entry) = self.place(unit).filter(|entry| entry.unit == unit) else { return Stay::default() };
        let away = now.saturating_sub(entry.left);
        if away > room_bytes {
            entry.level = 0;
            return Stay { longer: self.came_late((address, bytes), away, now, room_bytes), jump: 0 };
        }
        if is_wanted {
            entry.level = (entry.level + 1).min(LEVEL_MAX);
        }
        let stays = ((1 << entry.level) - 1) * room_bytes;
        if is_wanted {
            self.count(address, -self.weight(AT_ONCE_WEIGHT * bytes));
        }
        let longer = self.grant(bytes, stays, now, room_bytes, STAYING_PERCENT.0);
        let jump = if is_wanted && longer == 0 { JUMP_UNITS * bytes } else { 0 };
        Stay { longer, jump }
    }

    /// A unit comes back late: perhaps because the program goes round.
    fn came_late(&mut self, (address, bytes): (u64, u64), away: Clock, now: Clock, room_bytes: u64) -> u64 {
        if away > ROUND_ROOMS_MAX.saturating_mul(room_bytes) {
            return 0;
        }
        if self.count(address, self.weight(bytes)) < self.weight(SURE * self.unit_bytes) {
            return 0;
        }
        self.grant(bytes, KEPT_ROOMS * room_bytes, now, room_bytes, STAYING_PERCENT.1)
    }

    /// So long, or not at all if too much stays already.
    fn grant(&mut self, bytes: u64, stays: u64, now: Clock, room_bytes: u64, percent: u64) -> u64 {
        self.expire(now);
        if stays == 0 || self.staying_bytes + bytes > room_bytes / 100 * percent {
            return 0;
        }
        // A room may change: what is noted must not depend on it.
        let ends = (now + stays).next_multiple_of((room_bytes / PARTS).max(1).next_power_of_two());
        *self.ends.entry(ends).or_default() += bytes;
        self.staying_bytes += bytes;
        stays
    }

    fn expire(&mut self, now: Clock) {
        while let Some(first) = self.ends.first_entry()
            && *first.key() < now
        {
            self.staying_bytes -= first.remove();
        }
    }

    fn number(&self, address: u64) -> u64 {
        address / self.part_bytes.max(1) + 1
    }

    /// How many parts bytes are: few, of units of at most 2 MiB.
    const fn weight(&self, bytes: u64) -> i32 {
        bytes.div_ceil(self.part_bytes) as i32
    }

    /// Adds to what is known of the neighbourhood of an address, and gives it.
    fn count(&mut self, address: u64, change: i32) -> i32 {
        let near = address / NEAR_BYTES_MIN.max(NEAR_UNITS_MIN * self.unit_bytes);
        let most = self.weight(SCORE_MAX * self.unit_bytes);
        let score = &mut self.rounds[near as usize % NEIGHBOURHOODS];
        *score = (*score + change).clamp(-most, most);
        *score
    }

    fn place(&mut self, unit: u64) -> Option<&mut Entry> {
        let index = self.index(unit)?;
        self.entries.get_mut(index)
    }

    fn index(&self, unit: u64) -> Option<usize> {
        let bits = self.entries.len().checked_ilog2()?;
        // Fibonacci hashing: neighbours and strides are spread alike, by the highest bits and by no others.
        let hash = unit.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - bits);
        Some(hash as usize)
    }

    /// Makes place for as many units as there is room for.
    fn grow(&mut self, room_bytes: u64) {
        let wanted = (room_bytes / self.unit_bytes.max(1)) as usize * SPREAD;
        let wanted = wanted.clamp(ENTRIES.0, ENTRIES.1).next_power_of_two();
        if wanted <= self.entries.len() {
            return;
        }
        let before = std::mem::replace(&mut self.entries, vec![Entry::default(); wanted]);
        for entry in before.into_iter().filter(|entry| entry.unit != 0) {
            if let Some(place) = self.place(entry.unit) {
                *place = entry;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hand::Hand;
    use crate::table::{State, Table};

    /// Units of 64 KiB that are touched one after the other, with room for so many: how many were missing, of the second half.
    fn missing(touches: &[u64], room_units: u64, learns: bool) -> usize {
        const UNIT: u64 = 64 << 10;
        let room = room_units * UNIT;
        let mut table = Table::<()>::new(UNIT);
        table.add(0, UNIT * (touches.iter().max().unwrap() + 1));
        let (mut hand, mut refaults, mut now, mut count) = (Hand::default(), Refaults::new(UNIT, UNIT), 0, 0);
        for (index, touch) in touches.iter().enumerate() {
            let start = touch * UNIT;
            if matches!(table.state(start), Some(State::Resident { .. })) {
                continue;
            }
            count += usize::from(index >= touches.len() / 2);
            while table.resident_bytes() + UNIT > room {
                for (victim, _) in hand.next(&table, now, 8 * UNIT, UNIT) {
                    table.set(victim, State::Untouched);
                    refaults.left(victim, now, room);
                }
            }
            let stay = if learns { refaults.came((start, UNIT), now, room, true) } else { Stay::default() };
            table.set(start, State::Resident { clean: None, stamp: now + stay.longer });
            now += UNIT + stay.jump;
        }
        count
    }

    /// Numbers that look random, always the same.
    fn random() -> impl FnMut(u64) -> u64 {
        let mut state = 1u64;
        move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }

    #[test]
    fn of_rounds_that_are_too_long_a_part_is_found_every_time() {
        // Hundredths of the touches that miss: all of them, if what has been here longest leaves.
        for (length, most) in [(1050, 25), (1200, 35), (1500, 50), (2000, 65), (3000, 80), (5000, 90)] {
            let touches: Vec<u64> = (0..20 * length).map(|touch| touch % length).collect();
            let all = touches.len() / 2;
            assert_eq!(missing(&touches, 1000, false), all);
            let with = missing(&touches, 1000, true);
            assert!(with * 100 < all * most, "{length}: {with} of {all}");
        }
    }

    #[test]
    fn a_program_that_goes_on_to_something_else_soon_has_all_of_the_room() {
        let mut random = random();
        for rounds in [1050, 1500, 3000] {
            let first: Vec<u64> = (0..20 * rounds).map(|touch| touch % rounds).collect();
            let count = first.len();
            // What is counted is the second half.
            let then: Vec<u64> = (0..count).map(|_| 10_000 + random(900)).collect();
            let touches: Vec<u64> = first.into_iter().chain(then).collect();
            let (without, with) = (missing(&touches, 1000, false), missing(&touches, 1000, true));
            assert!(without == 900 && with < 4000, "{rounds}: {with} instead of {without}");
        }
    }

    #[test]
    fn what_is_touched_more_often_is_found_more_often_and_pure_chance_costs_nothing() {
        let mut random = random();
        for size in [1500, 2000, 4000] {
            let skewed = |random: &mut dyn FnMut(u64) -> u64| (0..3).map(|_| random(size)).min().unwrap();
            let touches: Vec<u64> = (0..40_000).map(|_| skewed(&mut random)).collect();
            let (without, with) = (missing(&touches, 1000, false), missing(&touches, 1000, true));
            assert!(with * 100 < without * 95, "{size}: {with} instead of {without}");
            let touches: Vec<u64> = (0..40_000).map(|_| random(size)).collect();
            let (without, with) = (missing(&touches, 1000, false), missing(&touches, 1000, true));
            assert!(with * 100 < without * 103, "{size}: {with} instead of {without}");
        }
    }

    #[test]
    fn a_scan_beside_what_is_in_use_takes_no_more_of_the_room_than_before() {
        let mut random = random();
        for size in [700, 1000, 2000] {
            let other = |step: u64, round: u64| 10_000 + if round == 0 { step } else { step % round };
            for (round, most) in [(0, 101), (1500, 95)] {
                let touches: Vec<u64> =
                    (0..20_000).flat_map(|step| [other(step, round), random(size)]).collect();
                let (without, with) = (missing(&touches, 1000, false), missing(&touches, 1000, true));
                assert!(with * 100 <= without * most, "{size}, {round}: {with} instead of {without}");
            }
        }
    }

    const UNIT: u64 = 4096;
    const ROOM: u64 = 100 * UNIT;

    #[test]
    fn what_comes_back_at_once_stays_twice_as_long_each_time() {
        let mut refaults = Refaults::new(UNIT, UNIT);
        let mut stays = Vec::new();
        for round in 0..6 {
            refaults.left(7 * UNIT, round * ROOM, ROOM);
            stays
                .push(refaults.came((7 * UNIT + 5, UNIT), round * ROOM + ROOM / 2, ROOM, true).longer / ROOM);
        }
        assert_eq!(stays, [1, 3, 7, 15, 15, 15]);
    }

    #[test]
    fn what_left_last_at_a_place_tells_how_long_it_is_away() {
        let mut refaults = Refaults::new(UNIT, UNIT);
        assert_eq!(refaults.away(7 * UNIT, ROOM), None, "nothing has left");
        refaults.left(7 * UNIT, ROOM, ROOM);
        assert_eq!(refaults.away(7 * UNIT + 5, 3 * ROOM), Some(2 * ROOM));
        assert_eq!(refaults.away(8 * UNIT, 3 * ROOM), None);
    }

    #[test]
    fn of_units_in_a_row_none_takes_the_place_of_another_while_there_is_place() {
        let mut refaults = Refaults::new(UNIT, UNIT);
        let begin = 0x7f12_3456_7000;
        for unit in 0..2 * ROOM / UNIT * 64 {
            refaults.left(begin + unit * UNIT, unit, 64 * ROOM);
        }
        let known = (0..2 * ROOM / UNIT * 64).filter(|unit| {
            refaults.came((begin + unit * UNIT, UNIT), 1 + 2 * ROOM / UNIT * 64, 64 * ROOM, true)
                != Stay::default()
        });
        assert_eq!(known.count() as u64, 2 * ROOM / UNIT * 64);
    }

    #[test]
    fn what_comes_back_late_or_was_never_here_or_is_filled_ahead_stays_as_others_do() {
        let mut refaults = Refaults::new(UNIT, UNIT);
        assert_eq!(refaults.came((0, UNIT), 0, ROOM, true).longer, 0);
        refaults.left(0, 0, ROOM);
        assert_eq!(refaults.came((UNIT, UNIT), 1, ROOM, true).longer, 0, "another unit");
        assert_eq!(refaults.came((0, UNIT), 1, ROOM, false).longer, 0, "filled ahead");
        assert_eq!(refaults.came((0, UNIT), ROOM, ROOM, true).longer, ROOM);
        refaults.left(0, 2 * ROOM, ROOM);
        assert_eq!(
            refaults.came((0, UNIT), 2 * ROOM + 1, ROOM, false).longer,
            ROOM,
            "what was known of it counts on"
        );
        refaults.left(0, 2 * ROOM, ROOM);
        assert_eq!(refaults.came((0, UNIT), 3 * ROOM + 1, ROOM, true).longer, 0, "too late");
        refaults.left(0, 4 * ROOM, ROOM);
        assert_eq!(refaults.came((0, UNIT), 4 * ROOM, ROOM, true).longer, ROOM, "from the beginning");
    }

    #[test]
    fn a_loop_a_little_larger_than_the_room_is_noticed_and_what_is_known_outlives_growth() {
        let mut refaults = Refaults::new(UNIT, UNIT);
        for unit in 0..100 {
            refaults.left(unit * UNIT, unit, ROOM);
        }
        refaults.left(1 << 40, 100, 1000 * ROOM);
        let back = (0..100)
            .filter(|unit| refaults.came((unit * UNIT, UNIT), 200, 1000 * ROOM, true).longer > 0)
            .count();
        assert!(back > 95, "{back} of 100 are known");
    }
}
