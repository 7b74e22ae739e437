//! Single bits of a value as Redis counts them: bit 0 is the highest of the first byte.

use std::ops::RangeInclusive;

/// What start and end of a range count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Measure {
    /// Bytes.
    #[default]
    Bytes,
    /// Bits.
    Bits,
}

impl Measure {
    /// Reads the word behind a range.
    pub fn parse(word: &[u8]) -> Option<Self> {
        if word.eq_ignore_ascii_case(b"BIT") {
            Some(Self::Bits)
        } else {
            word.eq_ignore_ascii_case(b"BYTE").then_some(Self::Bytes)
        }
    }

    /// The bits of a value of `bytes` bytes from `start` to `end`, both among them and counted from its end if they are
    /// negative; `None` if there are none.
    pub fn range(self, start: i64, end: i64, bytes: usize) -> Option<RangeInclusive<usize>> {
        // At most 512 MiB: the casts lose nothing, nor do those below.
        let (bytes, each) = (bytes as i64, if self == Self::Bits { 1 } else { 8 });
        let count = bytes * 8 / each;
        let from_end = |place: i64| if place < 0 { place.saturating_add(count).max(0) } else { place };
        let (start, end) = (from_end(start), from_end(end).min(count - 1));
        (start <= end).then(|| (start * each) as usize..=(end * each + each - 1) as usize)
    }
}

/// How bits of values are put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Set where they are set in all.
    And,
    /// Set where they are set in one.
    Or,
    /// Set where they are set in an odd number.
    Xor,
    /// Set where they are not, in the only value.
    Not,
}

impl Operation {
    /// Reads its name.
    pub fn parse(word: &[u8]) -> Option<Self> {
        match word.to_ascii_uppercase().as_slice() {
            b"AND" => Some(Self::And),
            b"OR" => Some(Self::Or),
            b"XOR" => Some(Self::Xor),
            b"NOT" => Some(Self::Not),
            _ => None,
        }
    }

    /// Puts one value more to those before; `None` before the first one. A shorter one goes on with zeros.
    pub fn join(self, before: Option<Vec<u8>>, value: Vec<u8>) -> Vec<u8> {
        let Some(before) = before else {
            return if self == Self::Not { value.into_iter().map(|byte| !byte).collect() } else { value };
        };
        let (mut long, short) = if before.len() >= value.len() { (before, value) } else { (value, before) };
        let rest = short.iter().chain(std::iter::repeat(&0));
        for (byte, other) in long.iter_mut().zip(rest) {
            match self {
                Self::And => *byte &= other,
                Self::Or => *byte |= other,
                Self::Xor | Self::Not => *byte ^= other,
            }
        }
        long
    }
}

/// Whether a bit of a value is set; bits behind its end are not.
pub fn is_set(value: &[u8], bit: usize) -> bool {
    value.get(bit / 8).is_some_and(|byte| byte & mask(bit) != 0)
}

/// Sets or clears a bit of a value, which is long enough.
pub fn set(value: &mut [u8], bit: usize, on: bool) {
    if let Some(byte) = value.get_mut(bit / 8) {
        *byte = if on { *byte | mask(bit) } else { *byte & !mask(bit) };
    }
}

/// How many of the bits in a range are set.
pub fn count(value: &[u8], range: RangeInclusive<usize>) -> u64 {
    bytes(value, range, true).map(|(_, byte)| u64::from(byte.count_ones())).sum()
}

/// The first bit in a range that is as asked for.
pub fn first(value: &[u8], range: RangeInclusive<usize>, on: bool) -> Option<usize> {
    let (index, byte) = bytes(value, range, on).find(|(_, byte)| *byte != 0)?;
    Some(index * 8 + byte.leading_zeros() as usize)
}

const fn mask(bit: usize) -> u8 {
    0x80 >> (bit % 8)
}

/// The bytes of a range with their numbers: ones where a bit is in the range and as asked for.
fn bytes(value: &[u8], range: RangeInclusive<usize>, on: bool) -> impl Iterator<Item = (usize, u8)> {
    let (start, end) = (*range.start(), *range.end());
    let whole =
        value.get(start / 8..).unwrap_or_default().iter().take((end / 8 + 1).saturating_sub(start / 8));
    whole.enumerate().map(move |(index, byte)| {
        let index = start / 8 + index;
        let mut byte = if on { *byte } else { !*byte };
        if index == start / 8 {
            byte &= 0xff >> (start % 8);
        }
        if index == end / 8 {
            byte &= 0xff << (7 - end % 8);
        }
        (index, byte)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_are_of_bytes_or_bits_and_from_either_end() {
        assert_eq!(Measure::Bytes.range(0, -1, 3), Some(0..=23));
        assert_eq!(Measure::Bytes.range(-2, 9, 3), Some(8..=23));
        assert_eq!(Measure::Bits.range(-2, -1, 3), Some(22..=23));
        assert_eq!(Measure::Bits.range(5, 4, 3), None);
        assert_eq!(Measure::Bytes.range(i64::MIN, i64::MAX, 0), None);
        assert_eq!(Measure::Bits.range(i64::MIN, i64::MIN, 1), Some(0..=0));
        assert_eq!(Measure::Bytes.range(i64::MAX, i64::MAX, 1), None);
        assert_eq!(Measure::parse(b"bIt"), Some(Measure::Bits));
        assert_eq!(Measure::parse(b"bits"), None);
    }

    proptest! {
        #[test]
        fn bits_are_those_that_are_looked_at_one_by_one(
            value in prop::collection::vec(prop_oneof![Just(0_u8), Just(0xff), any::<u8>()], 1..20),
            one in 0..160_usize, two in 0..160_usize, on in any::<bool>(),
        ) {
            let last = value.len() * 8 - 1;
            let (start, end) = (one.min(two).min(last), one.max(two).min(last));
            let mut those = (start..=end).filter(|bit| is_set(&value, *bit) == on);
            prop_assert_eq!(first(&value, start..=end, on), those.next());
            let set_bits = (start..=end).filter(|bit| is_set(&value, *bit)).count();
            prop_assert_eq!(count(&value, start..=end), set_bits as u64);
            let mut changed = value.clone();
            set(&mut changed, start, on);
            prop_assert_eq!(is_set(&changed, start), on);
            set(&mut changed, start, is_set(&value, start));
            prop_assert_eq!(changed, value);
        }
    }
}
