//! Values that say whose they are, so that a driver sees each one that is not right.
//!
//! | from | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | number of the record |
//! | 8 | 8 | stamp: which driver wrote it in the lowest 8 bits, above them a number that grows with each value that it writes |
//! | 16 | | 8 bytes of a hash of both, again and again |
//!
//! Of the values that one driver writes to a record nobody may read an earlier one after a later one.

use crate::drive::DriveError;
use std::time::{SystemTime, UNIX_EPOCH};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of the shortest value.
pub const VALUE_BYTES_MIN: usize = 16;
/// As many drivers as a stamp can tell apart.
pub const PARTS_MAX: u64 = 256;

/// The values that a driver writes, and what it knows of those of others.
#[derive(Debug)]
pub struct Values {
    /// Which driver of how many.
    pub part: (u64, u64),
    next: u64,
    value: Vec<u8>,
    /// The latest number of each record and driver that was read or written here.
    seen: Vec<u64>,
}

impl Values {
    /// Values of `bytes` bytes of one of at most [`PARTS_MAX`] drivers; their numbers begin above those of drivers that ended before.
    pub fn new(bytes: usize, part: (u64, u64)) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let value = vec![0; bytes.max(VALUE_BYTES_MIN)];
        Self { part, next: since.as_micros() as u64, value, seen: Vec::new() }
    }

    /// The next value of a record.
    pub fn next(&mut self, number: u64) -> &[u8] {
        self.next += 1;
        let (part, written) = (self.part.0, self.next);
        *self.latest(number, part) = written;
        let stamp = written << 8 | part;
        self.value[..8].copy_from_slice(&number.to_le_bytes());
        self.value[8..16].copy_from_slice(&stamp.to_le_bytes());
        let rest = rest(number, stamp);
        for piece in self.value[16..].chunks_mut(8) {
            piece.copy_from_slice(&rest[..piece.len()]);
        }
        &self.value
    }

    /// Looks at a value that was read.
    ///
    /// # Errors
    /// [`DriveError::Wrong`].
    pub fn check(&mut self, number: u64, value: &[u8]) -> Result<(), DriveError> {
        let word = |at: usize| {
            let bytes = value.get(at..at + 8)?.first_chunk::<8>()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let (Some(named), Some(stamp)) = (word(0), word(8)) else { return Err(DriveError::Wrong(number)) };
        let rest = rest(named, stamp);
        let is_whole = value.len() == self.value.len()
            && named == number
            && value[16..].chunks(8).all(|piece| *piece == rest[..piece.len()]);
        let (part, written) = (stamp & 0xff, stamp >> 8);
        if !is_whole || part >= self.part.1 || written < *self.latest(number, part) {
            return Err(DriveError::Wrong(number));
        }
        *self.latest(number, part) = written;
        Ok(())
    }

    fn latest(&mut self, number: u64, part: u64) -> &mut u64 {
        let at = (number * self.part.1 + part) as usize;
        if at >= self.seen.len() {
            self.seen.resize((at + 1).next_power_of_two(), 0);
        }
        &mut self.seen[at]
    }
}

fn rest(number: u64, stamp: u64) -> [u8; 8] {
    let mut both = [0; 16];
    both[..8].copy_from_slice(&number.to_le_bytes());
    both[8..].copy_from_slice(&stamp.to_le_bytes());
    xxh3_64(&both).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_another_record_a_torn_one_and_an_old_one_are_wrong() {
        let (mut one, mut other) = (Values::new(60, (0, 2)), Values::new(60, (1, 2)));
        let first = one.next(7).to_vec();
        let second = one.next(7).to_vec();
        assert_eq!(second.len(), 60);
        assert!(
            other.check(7, &first).is_ok()
                && other.check(7, &second).is_ok()
                && other.check(7, &second).is_ok()
        );
        assert!(other.check(7, &first).is_err(), "an old one");
        assert!(one.check(7, &first).is_err(), "older than what it wrote itself");
        assert!(other.check(8, &second).is_err(), "of another record");
        let torn = [&second[..32], &first[32..]].concat();
        assert!(other.check(7, &torn).is_err() && other.check(7, &second[..59]).is_err());
    }
}
