//! Programs that read or write in order: how much to fetch ahead of them, and whether they will write it.

use crate::trend::{Trend, Trends};

/// Most bytes that are read ahead of a sequence.
pub const AHEAD_BYTES_MAX: u64 = 8 << 20;
/// Most bytes that are filled ahead with one fault: 1 ms of copying, during which other faults wait.
pub const FILL_BYTES_MAX: u64 = 2 << 20;
/// Most bytes that are passed over because they are here already, without the sequence being given up.
pub const PASSED_BYTES_MAX: u64 = 2 << 20;

/// Sequences that a program may go through at once and that are told apart.
const SEQUENCES: usize = 16;
/// Faults after which a sequence that did not go on gives way to any other.
const FAULTS_MAX: u64 = 1024;
/// Windows that are filled open to writing after the last write that was seen.
const OPEN_WINDOWS: u8 = 2;

/// What to fetch with a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// So many bytes behind it, for this sequence; none if it begins one.
    Window {
        /// Number of the sequence.
        sequence: usize,
        /// Bytes.
        bytes: u64,
    },
    /// What lies along the steps of its thread.
    Along(Trend),
    /// Nothing is known of what follows.
    Nothing,
}

/// A fault: whose, in which page, of which unit.
#[derive(Clone, Copy, Debug)]
pub struct Touch {
    /// The thread.
    pub thread: u32,
    /// Address of the page.
    pub page: u64,
    /// First byte of the unit that came back with it.
    pub start: u64,
    /// One past its last byte.
    pub end: u64,
    /// Whether it was a write.
    pub writes: bool,
}

/// What to fetch with a fault that may go on in order, or in steps if these are told apart.
pub fn next(sequences: &mut Sequences, trends: Option<&mut Trends>, touch: Touch) -> Next {
    let Touch { thread, page, start, end, writes } = touch;
    let Some(trends) = trends else {
        let (sequence, bytes) = sequences.fault(start, end, writes);
        return Next::Window { sequence, bytes };
    };
    // Who goes through memory in order touches the first page of a unit first; who steps over it does not need all of what follows.
    let window = (page == start).then(|| sequences.fault(start, end, writes));
    match window {
        Some((sequence, bytes @ 1..)) => Next::Window { sequence, bytes },
        _ => match (trends.fault(thread, page), window) {
            (Some(trend), _) => Next::Along(trend),
            (None, Some((sequence, bytes))) => Next::Window { sequence, bytes },
            (None, None) => Next::Nothing,
        },
    }
}

/// One sequence: what is fetched doubles with each fault that continues it.
#[derive(Clone, Copy, Debug)]
struct Sequence {
    /// The last fault, and where the next one is expected if nothing in between leaves before.
    last: u64,
    expected: u64,
    bytes: u64,
    /// Number of the last fault of all that belonged to it.
    used: u64,
    /// Windows that will be filled open to writing.
    open: u8,
}

impl Sequence {
    const fn goes_on(&self, start: u64) -> bool {
        self.last < start && start <= self.expected && self.expected != u64::MAX
    }
}

/// The sequences of a program.
#[derive(Clone, Debug)]
pub struct Sequences {
    list: [Sequence; SEQUENCES],
    faults: u64,
    bytes_max: u64,
}

impl Sequences {
    /// Fetches at most `bytes_max` bytes at once.
    pub const fn new(bytes_max: u64) -> Self {
        let none = Sequence { last: u64::MAX, expected: u64::MAX, bytes: 0, used: 0, open: 0 };
        Self { list: [none; SEQUENCES], faults: 0, bytes_max }
    }

    /// A fault in the unit `start..end`, of a write or not: to which sequence it belongs, and how many bytes behind `end` to fetch as
    /// well. It begins a new one if it continues none.
    pub fn fault(&mut self, start: u64, end: u64, writes: bool) -> (usize, u64) {
        self.faults += 1;
        let unit = end.saturating_sub(start);
        let known = self.list.iter().position(|one| one.goes_on(start));
        let index = known.unwrap_or_else(|| self.oldest());
        let one = &mut self.list[index];
        (one.bytes, one.open) = match known {
            Some(_) => ((one.bytes * 2).max(unit).min(self.bytes_max), one.open.saturating_sub(1)),
            None => (0, 0),
        };
        if writes {
            one.open = OPEN_WINDOWS;
        }
        (one.last, one.expected, one.used) = (start, end, self.faults);
        (index, one.bytes)
    }

    /// About how many bytes would be fetched beside with a fault at an address.
    pub fn outlook(&self, address: u64) -> u64 {
        let known = self.list.iter().find(|one| one.goes_on(address));
        known.map_or(0, |one| (one.bytes * 2).min(self.bytes_max))
    }

    /// What was fetched, or was there, reaches to `end`: the next fault of the sequence is there.
    pub const fn fetched(&mut self, index: usize, end: u64) {
        self.list[index].expected = end;
    }

    /// Whether what is fetched for a sequence is likely to be written.
    pub const fn writes(&self, index: usize) -> bool {
        self.list[index].open > 0
    }

    /// The first write to what was filled for reading, in the unit at `start`: up to where the rest of a window will be written too.
    pub fn written(&mut self, start: u64) -> Option<u64> {
        let holds = |one: &&mut Sequence| {
            one.bytes > 0 && one.last <= start && start < one.expected && one.expected != u64::MAX
        };
        let one = self.list.iter_mut().find(holds)?;
        one.open = OPEN_WINDOWS;
        Some(one.expected)
    }

    /// The sequence that gives way: those that have gone on of late stay.
    fn oldest(&self) -> usize {
        let rank = |one: &Sequence| (one.bytes > 0 && one.used + FAULTS_MAX > self.faults, one.used);
        (0..SEQUENCES).min_by_key(|index| rank(&self.list[*index])).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;

    const UNIT: u64 = 1 << 16;

    /// A read fault in a unit.
    fn read(sequences: &mut Sequences, unit: u64) -> (usize, u64) {
        let (index, bytes) = sequences.fault(unit * UNIT, (unit + 1) * UNIT, false);
        (index, bytes / UNIT)
    }

    #[test]
    fn a_sequence_doubles_up_to_the_limit_and_a_jump_starts_over() {
        let mut ahead = Sequences::new(4 * UNIT);
        let (index, bytes) = read(&mut ahead, 0);
        assert_eq!(bytes, 0);
        for (unit, bytes) in [(1, 1), (3, 2), (6, 4), (11, 4)] {
            assert!(bytes == 1 || ahead.outlook(unit * UNIT) == bytes * UNIT);
            assert_eq!(read(&mut ahead, unit), (index, bytes));
            ahead.fetched(index, (unit + 1 + bytes) * UNIT);
        }
        // What was fetched left again before it was used.
        assert_eq!(read(&mut ahead, 14), (index, 4));
        assert_ne!(read(&mut ahead, 99).0, index);
        assert_eq!(read(&mut ahead, 98).1, 0, "backwards");
        assert_eq!(ahead.fault(u64::MAX - 1, u64::MAX, false).1, 0);
    }

    #[test]
    fn who_steps_over_the_beginning_of_units_goes_in_steps_and_not_in_order() {
        let (mut sequences, mut trends) = (Sequences::new(4 * UNIT), Trends::default());
        let mut told = Vec::new();
        // In the third page of every unit, one unit after the other.
        for number in 0..8 {
            let (start, end) = (number * UNIT, (number + 1) * UNIT);
            let touch = Touch { thread: 1, page: start + 2 * PAGE, start, end, writes: false };
            told.push(next(&mut sequences, Some(&mut trends), touch));
        }
        assert_eq!(told[..5], [Next::Nothing; 5]);
        assert!(matches!(told[5], Next::Along(Trend { step, .. }) if step == UNIT as i64), "{told:?}");
        let first = Touch { thread: 1, page: 100 * UNIT, start: 100 * UNIT, end: 101 * UNIT, writes: false };
        assert!(matches!(next(&mut sequences, Some(&mut trends), first), Next::Window { bytes: 0, .. }));
        let second = Touch { page: 101 * UNIT, start: 101 * UNIT, end: 102 * UNIT, ..first };
        assert!(matches!(next(&mut sequences, Some(&mut trends), second), Next::Window { bytes: UNIT, .. }));
        let third = Touch { page: 102 * UNIT + PAGE, start: 102 * UNIT, end: 103 * UNIT, ..first };
        assert_eq!(next(&mut sequences, Some(&mut trends), third), Next::Nothing);
        assert!(matches!(next(&mut sequences, None, third), Next::Window { .. }), "without trends");
    }

    #[test]
    fn faults_here_and_there_do_not_end_a_sequence_unless_it_has_ended_long_ago() {
        let mut ahead = Sequences::new(4 * UNIT);
        let (index, _) = read(&mut ahead, 1);
        assert_eq!(read(&mut ahead, 2), (index, 1));
        ahead.fetched(index, 4 * UNIT);
        let others = |ahead: &mut Sequences, count: u64| {
            (0..count).for_each(|number| assert_eq!(read(ahead, 1000 + number * 7919).1, 0));
        };
        others(&mut ahead, 500);
        assert_eq!(read(&mut ahead, 4), (index, 2));
        others(&mut ahead, 2000);
        assert_eq!(read(&mut ahead, 5).1, 0);
    }

    #[test]
    fn what_follows_writes_is_open_and_reads_close_it_again() {
        let mut ahead = Sequences::new(4 * UNIT);
        read(&mut ahead, 1);
        let (index, _) = read(&mut ahead, 2);
        assert!(!ahead.writes(index));
        ahead.fetched(index, 4 * UNIT);
        assert_eq!(ahead.written(9 * UNIT), None);
        assert_eq!(ahead.written(2 * UNIT), Some(4 * UNIT));
        let mut open = Vec::new();
        for unit in [4, 5, 6] {
            open.push((read(&mut ahead, unit).0, ahead.writes(index)));
        }
        assert_eq!(open, [(index, true), (index, false), (index, false)]);
        ahead.fault(7 * UNIT, 8 * UNIT, true);
        assert!(ahead.writes(index));
    }
}
