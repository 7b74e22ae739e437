//! What left and came back at once: it stays longer the next time.
//!
//! Nobody tells when memory is read that is here, so what has been here longest leaves, needed or not. A unit that comes back
//! before as much was filled as there is room for would have been found here, had something else left in its place: each such
//! return doubles for how long it stays. What a program passes over once, and what it goes round in that is much larger than the room,
//! never gets there, and leaves as before.

/// Bytes filled since the beginning, which is what time is measured in here.
pub type Clock = u64;

const LEVEL_MAX: u8 = 4;
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

/// Units that have left, those of late: a later one takes the place of an earlier one.
#[derive(Clone, Debug, Default)]
pub struct Refaults {
    entries: Vec<Entry>,
    unit_bytes: u64,
}

impl Refaults {
    /// For units of so many bytes.
    pub const fn new(unit_bytes: u64) -> Self {
        Self { entries: Vec::new(), unit_bytes }
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

    /// A unit comes back. Gives for how long it is to stay beyond what others do, in bytes of the clock. `is_wanted`: somebody waits for it;
    /// else it is filled because what lies before it was, and that it comes says nothing.
    pub fn came(&mut self, address: u64, now: Clock, room_bytes: u64, is_wanted: bool) -> u64 {
        let unit = self.number(address);
        let Some(entry) = self.place(unit).filter(|entry| entry.unit == unit) else { return 0 };
        if now.saturating_sub(entry.left) > room_bytes {
            entry.level = 0;
        } else if is_wanted {
            entry.level = (entry.level + 1).min(LEVEL_MAX);
        }
        ((1 << entry.level) - 1) * room_bytes
    }

    fn number(&self, address: u64) -> u64 {
        address / self.unit_bytes.max(1) + 1
    }

    fn place(&mut self, unit: u64) -> Option<&mut Entry> {
        // Fibonacci hashing: neighbours and strides are spread alike.
        let hash = unit.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let mask = self.entries.len().checked_sub(1)?;
        self.entries.get_mut(hash as usize & mask)
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

    const UNIT: u64 = 4096;
    const ROOM: u64 = 100 * UNIT;

    #[test]
    fn what_comes_back_at_once_stays_twice_as_long_each_time() {
        let mut refaults = Refaults::new(UNIT);
        let mut stays = Vec::new();
        for round in 0..6 {
            refaults.left(7 * UNIT, round * ROOM, ROOM);
            stays.push(refaults.came(7 * UNIT + 5, round * ROOM + ROOM / 2, ROOM, true) / ROOM);
        }
        assert_eq!(stays, [1, 3, 7, 15, 15, 15]);
    }

    #[test]
    fn what_comes_back_late_or_was_never_here_or_is_filled_ahead_stays_as_others_do() {
        let mut refaults = Refaults::new(UNIT);
        assert_eq!(refaults.came(0, 0, ROOM, true), 0);
        refaults.left(0, 0, ROOM);
        assert_eq!(refaults.came(UNIT, 1, ROOM, true), 0, "another unit");
        assert_eq!(refaults.came(0, 1, ROOM, false), 0, "filled ahead");
        assert_eq!(refaults.came(0, ROOM, ROOM, true), ROOM);
        refaults.left(0, 2 * ROOM, ROOM);
        assert_eq!(refaults.came(0, 2 * ROOM + 1, ROOM, false), ROOM, "what was known of it counts on");
        refaults.left(0, 2 * ROOM, ROOM);
        assert_eq!(refaults.came(0, 3 * ROOM + 1, ROOM, true), 0, "too late");
        refaults.left(0, 4 * ROOM, ROOM);
        assert_eq!(refaults.came(0, 4 * ROOM, ROOM, true), ROOM, "from the beginning");
    }

    #[test]
    fn a_loop_a_little_larger_than_the_room_is_noticed_and_what_is_known_outlives_growth() {
        let mut refaults = Refaults::new(UNIT);
        for unit in 0..100 {
            refaults.left(unit * UNIT, unit, ROOM);
        }
        refaults.left(1 << 40, 100, 1000 * ROOM);
        let back = (0..100).filter(|unit| refaults.came(unit * UNIT, 200, ROOM, true) > 0).count();
        assert!(back > 95, "{back} of 100 are known");
    }
}
