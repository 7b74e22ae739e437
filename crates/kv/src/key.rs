//! Keys, namespaces and their hash.

use crate::words::Words;

/// Longest key in bytes: a hash of 512 bits.
pub const KEY_BYTES_MAX: usize = 64;

/// A namespace, by the number of its fingerprint. Engines that disagree about the model have different
/// ones and never meet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Namespace(pub u64);

impl Namespace {
    /// That of a fingerprint, the BLAKE3 hash of all that engines must agree on: its first 8 bytes.
    pub const fn of(fingerprint: &[u8; 32]) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *fingerprint;
        Self(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// Why bytes are no key.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
#[error("a key has 1 to {KEY_BYTES_MAX} bytes, not {0} (hint: hash longer keys)")]
pub struct KeyError(pub usize);

/// The key of a block: 1 to 64 bytes, usually the engine's chained hash of a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct BlockKey {
    words: [u64; KEY_BYTES_MAX / 8],
    bytes: u8,
}

impl BlockKey {
    /// No key: that of a slot which has none yet.
    #[cfg(not(loom))]
    pub(crate) const NONE: Self = Self { words: [0; KEY_BYTES_MAX / 8], bytes: 0 };

    /// Takes 1 to 64 bytes.
    ///
    /// # Errors
    /// [`KeyError`] for none or more.
    pub fn new(bytes: &[u8]) -> Result<Self, KeyError> {
        if bytes.is_empty() || bytes.len() > KEY_BYTES_MAX {
            return Err(KeyError(bytes.len()));
        }
        let mut words = [0; KEY_BYTES_MAX / 8];
        for (word, piece) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..piece.len()].copy_from_slice(piece);
            *word = u64::from_le_bytes(whole);
        }
        // At most 64: the cast loses nothing.
        Ok(Self { words, bytes: bytes.len() as u8 })
    }

    /// Length in bytes.
    pub const fn len(&self) -> usize {
        self.bytes as usize
    }

    /// That of a slot which has none yet; a block's key has a byte at least.
    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(self.len());
        bytes
    }

    /// The hash that places it in the index: XXH3 of the bytes, seeded with the namespace.
    pub fn hash(&self, namespace: Namespace) -> u64 {
        let mut bytes = [0; KEY_BYTES_MAX];
        for (piece, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.words) {
            *piece = word.to_le_bytes();
        }
        xxhash_rust::xxh3::xxh3_64_with_seed(&bytes[..self.len()], namespace.0)
    }

    /// Stores the key's words from `word` on.
    pub(crate) fn store(&self, words: &impl Words, word: usize) {
        for (index, value) in self.words.into_iter().enumerate() {
            words.store(word + index, value);
        }
    }

    /// The key of `bytes` bytes whose words are those from `word` on; `None` if no key has that length.
    pub(crate) fn load(words: &impl Words, word: usize, bytes: u64) -> Option<Self> {
        let bytes = u8::try_from(bytes).ok().filter(|bytes| (1..=KEY_BYTES_MAX as u8).contains(bytes))?;
        let mut key = Self { words: [0; KEY_BYTES_MAX / 8], bytes };
        for (index, value) in key.words.iter_mut().enumerate() {
            *value = words.load(word + index);
        }
        Some(key)
    }

    /// Whether the words from `word` on are the key's.
    pub(crate) fn is_at(&self, words: &impl Words, word: usize) -> bool {
        self.words.iter().enumerate().all(|(index, value)| words.load(word + index) == *value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_1_to_64_bytes_and_keeps_them() {
        assert_eq!(BlockKey::new(b""), Err(KeyError(0)));
        assert_eq!(BlockKey::new(&[1; 65]), Err(KeyError(65)));
        for length in [1, 7, 8, 9, 32, 64] {
            let bytes: Vec<u8> = (0..length).collect();
            assert_eq!(BlockKey::new(&bytes).unwrap().to_vec(), bytes);
        }
    }

    #[test]
    fn a_namespace_has_the_first_bytes_of_its_fingerprint_the_lowest_first() {
        let mut fingerprint = [0xff; 32];
        fingerprint[..8].copy_from_slice(&[8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(Namespace::of(&fingerprint), Namespace(0x0102_0304_0506_0708));
    }

    #[test]
    fn keys_that_differ_by_a_zero_at_the_end_differ() {
        let (short, long) = (BlockKey::new(b"a").unwrap(), BlockKey::new(b"a\0").unwrap());
        assert_ne!(short, long);
        assert_ne!(short.hash(Namespace(1)), long.hash(Namespace(1)));
        assert_ne!(short.hash(Namespace(1)), short.hash(Namespace(2)));
    }
}
