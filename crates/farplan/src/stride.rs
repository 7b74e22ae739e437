//! How much to fetch ahead of a program that reads in order.

/// Most bytes that are read ahead of a sequence.
pub const AHEAD_BYTES_MAX: u64 = 8 << 20;
/// Most bytes that are filled ahead with one fault: 1 ms of copying, during which other faults wait.
pub const FILL_BYTES_MAX: u64 = 2 << 20;

/// Doubles with each fault that continues the one before, and starts over at any other.
#[derive(Clone, Debug)]
pub struct Ahead {
    expected: u64,
    bytes: u64,
    bytes_max: u64,
}

impl Ahead {
    /// Fetches at most `bytes_max` bytes at once.
    pub const fn new(bytes_max: u64) -> Self {
        Self { expected: u64::MAX, bytes: 0, bytes_max }
    }

    /// A fault in the unit `start..end`: how many bytes behind `end` to fetch as well.
    pub fn fault(&mut self, start: u64, end: u64) -> u64 {
        let unit = end.saturating_sub(start);
        self.bytes = if start == self.expected { (self.bytes * 2).max(unit).min(self.bytes_max) } else { 0 };
        self.expected = end;
        self.bytes
    }

    /// Whether a fault there would continue the sequence.
    pub const fn expects(&self, start: u64) -> bool {
        self.expected == start
    }

    /// What was fetched reaches to `end`: the next fault of the sequence is there.
    pub fn fetched(&mut self, end: u64) {
        self.expected = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_doubles_up_to_the_limit_and_a_jump_starts_over() {
        let mut ahead = Ahead::new(4 << 16);
        let unit = 1u64 << 16;
        assert_eq!(ahead.fault(0, unit), 0);
        assert_eq!(ahead.fault(unit, 2 * unit), unit);
        ahead.fetched(3 * unit);
        assert_eq!(ahead.fault(3 * unit, 4 * unit), 2 * unit);
        ahead.fetched(6 * unit);
        assert_eq!(ahead.fault(6 * unit, 7 * unit), 4 * unit);
        ahead.fetched(11 * unit);
        assert_eq!(ahead.fault(11 * unit, 12 * unit), 4 * unit);
        assert_eq!(ahead.fault(99 * unit, 100 * unit), 0);
        assert_eq!(ahead.fault(u64::MAX - 1, u64::MAX), 0);
    }
}
