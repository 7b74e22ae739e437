//! The longest text that two values have in common, in its order and with anything in between, as `LCS` finds it.

use crate::number;
use crate::options::OptionError;
use std::ops::RangeInclusive;

/// Options of `LCS`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LcsOptions {
    /// Whether its length is the answer.
    pub length: bool,
    /// Whether the places of its pieces are the answer.
    pub places: bool,
    /// Pieces that are shorter are not told.
    pub piece_bytes_min: i64,
    /// Whether the length of each piece is told.
    pub with_lengths: bool,
}

impl LcsOptions {
    /// Reads the words behind the keys.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn parse<'word>(mut words: impl Iterator<Item = &'word [u8]>) -> Result<Self, OptionError> {
        let mut options = Self::default();
        while let Some(word) = words.next() {
            match word.to_ascii_uppercase().as_slice() {
                b"IDX" => options.places = true,
                b"LEN" => options.length = true,
                b"WITHMATCHLEN" => options.with_lengths = true,
                b"MINMATCHLEN" => {
                    let bytes = words.next().ok_or(OptionError::Syntax)?;
                    options.piece_bytes_min = number::parse(bytes).ok_or(OptionError::Integer)?;
                }
                _ => return Err(OptionError::Syntax),
            }
        }
        if options.places && options.length {
            return Err(OptionError::Together(
                "If you want both the length and indexes, please just use IDX.",
            ));
        }
        Ok(options)
    }
}

/// A piece that is whole in both: where it lies in the first one and in the second.
pub type Piece = (RangeInclusive<usize>, RangeInclusive<usize>);

/// What two values have in common.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Common {
    /// All of it.
    pub text: Vec<u8>,
    /// Its pieces, the last one first.
    pub pieces: Vec<Piece>,
}

/// Bytes of memory that finding out takes; `None` if they are more than an address can say.
pub fn table_bytes(one: &[u8], two: &[u8]) -> Option<usize> {
    (one.len() + 1).checked_mul(two.len() + 1)?.checked_mul(size_of::<u32>())
}

/// What two values have in common: of several texts of the same length, and of places of one text, those that Redis chooses.
/// Takes [`table_bytes`] of memory, and a step for each number in it.
pub fn common(one: &[u8], two: &[u8]) -> Common {
    let width = two.len() + 1;
    // Lengths of what the first so many bytes of the one and of the other have in common.
    let mut lengths = vec![0_u32; (one.len() + 1) * width];
    for (i, a) in one.iter().enumerate() {
        let (before, row) = lengths[i * width..].split_at_mut(width);
        for (j, b) in two.iter().enumerate() {
            row[j + 1] = if a == b { before[j] + 1 } else { before[j + 1].max(row[j]) };
        }
    }
    let (mut text, mut pieces): (Vec<u8>, Vec<Piece>) = (Vec::new(), Vec::new());
    // Whether the last piece goes on to the front.
    let mut is_open = false;
    let (mut i, mut j) = (one.len(), two.len());
    while i > 0 && j > 0 {
        if one[i - 1] != two[j - 1] {
            if lengths[(i - 1) * width + j] > lengths[i * width + j - 1] {
                i -= 1
            } else {
                j -= 1
            }
            is_open = false;
            continue;
        }
        (i, j) = (i - 1, j - 1);
        text.push(one[i]);
        match pieces.last_mut().filter(|_| is_open) {
            Some((first, second)) => (*first, *second) = (i..=*first.end(), j..=*second.end()),
            None => pieces.push((i..=i, j..=j)),
        }
        is_open = true;
    }
    text.reverse();
    Common { text, pieces }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Whether bytes are in others, in their order.
    fn is_in(bytes: &[u8], others: &[u8]) -> bool {
        let mut others = others.iter();
        bytes.iter().all(|byte| others.any(|other| other == byte))
    }

    /// The length of the longest text in common, by trying all.
    fn longest(one: &[u8], two: &[u8]) -> u32 {
        let parts = (0..1_u32 << one.len()).filter(|set| {
            let part: Vec<u8> = (0..one.len()).filter(|at| set >> at & 1 == 1).map(|at| one[at]).collect();
            is_in(&part, two)
        });
        parts.map(u32::count_ones).max().unwrap_or(0)
    }

    #[test]
    fn what_the_documentation_of_redis_shows_comes_out() {
        let found = common(b"ohmytext", b"mynewtext");
        assert_eq!(found, Common { text: b"mytext".to_vec(), pieces: vec![(4..=7, 5..=8), (2..=3, 0..=1)] });
        assert_eq!(common(b"", b"x"), Common { text: Vec::new(), pieces: Vec::new() });
        assert_eq!(table_bytes(b"ab", b"abc"), Some(48));
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        let parse = |words: &str| LcsOptions::parse(words.split_whitespace().map(str::as_bytes));
        let all = LcsOptions { places: true, piece_bytes_min: -4, with_lengths: true, length: false };
        assert_eq!(parse("idx MinMatchLen -4 withmatchlen"), Ok(all));
        assert!(matches!(parse("IDX LEN"), Err(OptionError::Together(_))));
        assert_eq!(parse("MINMATCHLEN"), Err(OptionError::Syntax));
        assert_eq!(parse("MINMATCHLEN x what"), Err(OptionError::Integer));
        assert_eq!(parse("LENGTH"), Err(OptionError::Syntax));
    }

    proptest! {
        #[test]
        fn what_is_in_common_is_in_both_and_nothing_longer_is(one in "[abc]{0,9}", two in "[abc]{0,9}") {
            let (one, two) = (one.as_bytes(), two.as_bytes());
            let found = common(one, two);
            prop_assert!(is_in(&found.text, one) && is_in(&found.text, two));
            prop_assert_eq!(found.text.len() as u32, longest(one, two));
            let mut text = Vec::new();
            for (first, second) in found.pieces.iter().rev() {
                prop_assert_eq!(&one[first.clone()], &two[second.clone()]);
                text.extend_from_slice(&one[first.clone()]);
            }
            prop_assert_eq!(text, found.text);
        }
    }
}
