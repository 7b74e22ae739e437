//! What stands in front of a value in its block. All numbers are little-endian.
//!
//! | offset | bytes | contents |
//! | --- | --- | --- |
//! | 0 | 4 | magic `HLV1` |
//! | 4 | 1 | form: 1 the value follows, 2 it lies in parts |
//! | 5 | 3 | zero |
//! | 8 | 8 | when the key ends, in milliseconds since 1970; 0 never |
//! | 16 | 8 | length of the value |
//! | 24 | 4 | length of the key, which follows the head; 0 if the block's key is the key itself |
//! | 28 | 4 | zero |
//! | 32 | 24 | generation of the parts, which no other value ever had; zero without parts |
//! | 56 | 8 | zero |
//!
//! Then the key, if it has a length, and the value, if it follows. Part N of a generation is the block whose key is the
//! generation and N as 4 bytes, in a namespace of its own.

use hinterland_proto::control::KvKey;

/// Bytes of a head.
pub const HEAD_BYTES: usize = 64;
/// Bytes of the largest block.
pub const BLOCK_BYTES_MAX: usize = 4 << 20;
/// Longest key: it is kept in the head's block when it is longer than a block's key.
pub const KEY_BYTES_MAX: usize = 64 << 10;
/// Longest value, as Redis has it.
pub const VALUE_BYTES_MAX: usize = 512 << 20;

const MAGIC: [u8; 4] = *b"HLV1";
const FOLLOWS: u8 = 1;
const IN_PARTS: u8 = 2;

/// What marks the parts of one value.
pub type Generation = [u8; 24];

/// Where a value lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Behind the head.
    Follows,
    /// In blocks of its own.
    InParts(Generation),
}

/// The head of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// When the key ends.
    pub ends_ms: Option<u64>,
    /// Length of the value.
    pub value_bytes: usize,
    /// Length of the key behind the head, or 0.
    pub key_bytes: usize,
    /// Where the value lies.
    pub form: Form,
}

impl Head {
    /// The bytes of the head.
    pub fn to_bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.ends_ms.unwrap_or(0).to_le_bytes());
        bytes[16..24].copy_from_slice(&(self.value_bytes as u64).to_le_bytes());
        // At most 64 KiB: the cast loses nothing.
        bytes[24..28].copy_from_slice(&(self.key_bytes as u32).to_le_bytes());
        match self.form {
            Form::Follows => bytes[4] = FOLLOWS,
            Form::InParts(generation) => {
                bytes[4] = IN_PARTS;
                bytes[32..56].copy_from_slice(&generation);
            }
        }
        bytes
    }

    /// Reads the head of a block of `block_bytes` bytes; `None` if it is none, or does not fit the block.
    pub fn parse(bytes: &[u8; HEAD_BYTES], block_bytes: usize) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let ends_ms = Some(word(8)?).filter(|ends| *ends != 0);
        let value_bytes = usize::try_from(word(16)?).ok().filter(|bytes| *bytes <= VALUE_BYTES_MAX)?;
        let key_bytes = usize::try_from(word(24)?).ok().filter(|bytes| *bytes <= KEY_BYTES_MAX)?;
        let form = match bytes[4] {
            FOLLOWS if bytes[32..56] == [0; 24] => Form::Follows,
            IN_PARTS if value_bytes > 0 => Form::InParts(bytes[32..56].try_into().ok()?),
            _ => return None,
        };
        let head = Self { ends_ms, value_bytes, key_bytes, form };
        let zeros = [&bytes[5..8], &bytes[28..32], &bytes[56..64]];
        let is_clear = zeros.iter().all(|part| part.iter().all(|byte| *byte == 0));
        (bytes[..4] == MAGIC && is_clear && head.block_bytes() == block_bytes).then_some(head)
    }

    /// Whether the key has ended.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.ends_ms.is_some_and(|ends| ends <= now_ms)
    }

    /// The keys of its parts and their lengths.
    pub fn parts(&self) -> impl Iterator<Item = (KvKey, usize)> + use<> {
        let value_bytes = self.value_bytes;
        let generation = match self.form {
            Form::Follows => None,
            Form::InParts(generation) => Some(generation),
        };
        generation.into_iter().flat_map(move |generation| {
            (0..value_bytes.div_ceil(BLOCK_BYTES_MAX)).map(move |number| {
                // At most 128: the cast loses nothing.
                let key = [&generation[..], &(number as u32).to_le_bytes()].concat();
                (key, BLOCK_BYTES_MAX.min(value_bytes - number * BLOCK_BYTES_MAX))
            })
        })
    }

    /// Bytes of the block that it stands in.
    fn block_bytes(&self) -> usize {
        let value_bytes = if self.form == Form::Follows { self.value_bytes } else { 0 };
        HEAD_BYTES + self.key_bytes + value_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn head() -> impl Strategy<Value = Head> {
        let form = prop_oneof![Just(Form::Follows), any::<Generation>().prop_map(Form::InParts)];
        (any::<u64>(), 1..=VALUE_BYTES_MAX, 0..=KEY_BYTES_MAX, form).prop_map(
            |(ends, value_bytes, key_bytes, form)| Head {
                ends_ms: Some(ends).filter(|ends| *ends > 0),
                value_bytes,
                key_bytes,
                form,
            },
        )
    }

    proptest! {
        #[test]
        fn a_head_comes_back_from_its_bytes_and_fits_no_other_block(head in head(), other in 0..(1_usize << 30)) {
            let bytes = head.to_bytes();
            prop_assert_eq!(Head::parse(&bytes, head.block_bytes()), Some(head));
            prop_assume!(other != head.block_bytes());
            prop_assert_eq!(Head::parse(&bytes, other), None);
        }

        #[test]
        fn bytes_that_are_no_head_are_none(mut bytes in any::<[u8; HEAD_BYTES]>(), length in 0..(4_usize << 20), magic in any::<bool>()) {
            if magic {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[5..8].fill(0);
            }
            if let Some(head) = Head::parse(&bytes, length) {
                prop_assert_eq!(head.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn parts_cover_the_value() {
        let head =
            Head { ends_ms: None, value_bytes: (9 << 20) + 5, key_bytes: 0, form: Form::InParts([7; 24]) };
        let parts: Vec<_> = head.parts().collect();
        assert_eq!(
            parts.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>(),
            [4 << 20, 4 << 20, (1 << 20) + 5]
        );
        assert_eq!((parts[2].0.len(), parts[2].0[24]), (28, 2));
        assert_eq!(Head { form: Form::Follows, ..head }.parts().count(), 0);
    }
}
