//! A range of bytes that cannot overflow.

use serde::{Deserialize, Serialize};

/// `bytes` bytes from `offset`; the end always fits in a `u64`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, Default)]
#[serde(try_from = "Unchecked")]
pub struct ByteRange {
    offset: u64,
    bytes: u64,
}

/// A range as a message says it: two numbers of which nothing is known.
#[derive(Deserialize)]
struct Unchecked {
    offset: u64,
    bytes: u64,
}

impl TryFrom<Unchecked> for ByteRange {
    type Error = RangeError;
    fn try_from(said: Unchecked) -> Result<Self, RangeError> {
        Self::new(said.offset, said.bytes)
    }
}

/// Why a range is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
pub enum RangeError {
    /// `offset + bytes` does not fit in 64 bits.
    #[error("range of {bytes} bytes at {offset} overflows (hint: offsets are those of the whole object)")]
    Overflow {
        /// First byte.
        offset: u64,
        /// Length.
        bytes: u64,
    },
    /// The range ends behind what it is a range of.
    #[error("range of {bytes} bytes at {offset} ends behind {limit} (hint: ask `stat` for the size)")]
    OutOfBounds {
        /// First byte.
        offset: u64,
        /// Length.
        bytes: u64,
        /// Size of the whole.
        limit: u64,
    },
}

impl ByteRange {
    /// Makes a range.
    ///
    /// # Errors
    /// [`RangeError::Overflow`] if the end does not fit in 64 bits.
    pub const fn new(offset: u64, bytes: u64) -> Result<Self, RangeError> {
        match offset.checked_add(bytes) {
            Some(_) => Ok(Self { offset, bytes }),
            None => Err(RangeError::Overflow { offset, bytes }),
        }
    }

    /// Makes a range that lies within `limit` bytes.
    ///
    /// # Errors
    /// [`RangeError`] if it overflows or ends behind the limit.
    pub const fn within(offset: u64, bytes: u64, limit: u64) -> Result<Self, RangeError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= limit => Ok(Self { offset, bytes }),
            Some(_) => Err(RangeError::OutOfBounds { offset, bytes, limit }),
            None => Err(RangeError::Overflow { offset, bytes }),
        }
    }

    /// First byte.
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Length in bytes.
    pub const fn bytes(self) -> u64 {
        self.bytes
    }

    /// One past the last byte.
    pub const fn end(self) -> u64 {
        self.offset + self.bytes
    }

    /// Whether the other range lies wholly inside this one.
    pub const fn contains(self, other: Self) -> bool {
        other.offset >= self.offset && other.end() <= self.end()
    }

    /// Whether the two share a byte.
    pub const fn overlaps(self, other: Self) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }
}

/// How many of at most `bytes` bytes go first of those that are left of an access, from its byte `start` to its end: between two
/// messages there is no cut through a word of 8 bytes, which others may read or write between them. None if they all lie in one word
/// that does not end there.
pub const fn whole_words(start: u64, end: u64, bytes: u64) -> u64 {
    const WORD_BYTES: u64 = 8;
    if end - start <= bytes { end - start } else { bytes.saturating_sub((start + bytes) % WORD_BYTES) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_that_overflows_cannot_be_made() {
        assert!(ByteRange::new(u64::MAX, 1).is_err());
        assert!(ByteRange::within(u64::MAX, 2, u64::MAX).is_err());
    }

    #[test]
    fn a_range_past_the_limit_is_refused_with_its_values() {
        let wrong = ByteRange::within(10, 5, 14);
        assert_eq!(wrong, Err(RangeError::OutOfBounds { offset: 10, bytes: 5, limit: 14 }));
        assert!(ByteRange::within(10, 5, 15).is_ok());
    }

    #[test]
    fn neighbours_do_not_overlap() {
        let a = ByteRange::new(0, 10).unwrap();
        let b = ByteRange::new(10, 10).unwrap();
        assert!(!a.overlaps(b));
        assert!(a.overlaps(ByteRange::new(9, 1).unwrap()));
        assert!(a.contains(ByteRange::new(2, 8).unwrap()));
        assert!(!a.contains(ByteRange::new(2, 9).unwrap()));
    }

    #[test]
    fn an_access_is_cut_between_words_only_and_whole() {
        for (start, end) in (0..20).flat_map(|start| (start..start + 100).map(move |end| (start, end))) {
            for most in 8..40 {
                let mut at = start;
                while at < end {
                    let bytes = whole_words(at, end, most);
                    assert!((1..=most).contains(&bytes), "{start} {end} {most}");
                    at += bytes;
                    assert!(at == end || at.is_multiple_of(8), "{start} {end} {most}");
                }
                assert_eq!(at, end);
            }
        }
        assert_eq!((whole_words(3, 9, 4), whole_words(3, 7, 4), whole_words(3, 9, 0)), (0, 4, 0));
    }
}
