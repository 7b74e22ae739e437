//! Under which key of a block a key of any length lies.

use super::KeyError;
use crate::head::{HEAD_BYTES, KEY_BYTES_MAX};

/// Longest key of a block.
const BLOCK_KEY_BYTES_MAX: usize = 64;
/// What is hashed for what: no other program hashes the same way.
const CONTEXT: &str = "hinterland 2026-11-22 keys of Redis clients";
/// What a hash begins with; a key of 64 bytes that begins so is hashed too, so that no key is the hash of another.
const HASH_MARK: &[u8; 8] = b"\xffhlhash\xff";

/// The place of a key.
#[derive(Clone, Copy, Debug)]
pub struct Place<'key>(Kind<'key>);

#[derive(Clone, Copy, Debug)]
enum Kind<'key> {
    /// The key itself.
    Own(&'key [u8]),
    /// Its hash, and its length.
    Hash([u8; BLOCK_KEY_BYTES_MAX], usize),
}

impl<'key> Place<'key> {
    /// The place of a key.
    ///
    /// # Errors
    /// [`KeyError::Key`].
    pub fn of(key: &'key [u8]) -> Result<Self, KeyError> {
        match key.len() {
            1..=BLOCK_KEY_BYTES_MAX if !Self::is_hash(key) => Ok(Self(Kind::Own(key))),
            0..=KEY_BYTES_MAX => {
                let mut hash = [0; BLOCK_KEY_BYTES_MAX];
                blake3::Hasher::new_derive_key(CONTEXT).update(key).finalize_xof().fill(&mut hash);
                hash[..HASH_MARK.len()].copy_from_slice(HASH_MARK);
                Ok(Self(Kind::Hash(hash, key.len())))
            }
            more => Err(KeyError::Key(more)),
        }
    }

    /// Whether a block's key is a hash.
    pub fn is_hash(block_key: &[u8]) -> bool {
        block_key.len() == BLOCK_KEY_BYTES_MAX && block_key.starts_with(HASH_MARK)
    }

    /// The block's key.
    pub const fn block_key(&self) -> &[u8] {
        match &self.0 {
            Kind::Own(key) => key,
            Kind::Hash(hash, _) => hash,
        }
    }

    /// Bytes of the key that stand in the block.
    pub const fn kept(&self) -> usize {
        match self.0 {
            Kind::Own(_) => 0,
            Kind::Hash(_, bytes) => bytes,
        }
    }

    /// Bytes of the block of a value in parts; of the others only an empty one has as few.
    pub const fn parted_bytes(&self) -> u32 {
        // A key has at most 64 KiB: the cast loses nothing.
        (HEAD_BYTES + self.kept()) as u32
    }

    /// Whether the key that stands in a block is this one.
    pub fn is(&self, name: &[u8], key: &[u8]) -> bool {
        match self.0 {
            Kind::Own(_) => name.is_empty(),
            Kind::Hash(..) => name == key,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_keys_are_their_own_place_and_others_have_a_hash() {
        for key in [&b"a"[..], &[0xff; 64]] {
            let place = Place::of(key).unwrap();
            assert_eq!((place.block_key(), place.kept()), (key, 0));
            assert!(place.is(b"", key) && !place.is(key, key));
        }
        for key in [&b""[..], &[1; 65], &[1; KEY_BYTES_MAX]] {
            let place = Place::of(key).unwrap();
            assert!(Place::is_hash(place.block_key()) && place.kept() == key.len());
            assert!(place.is(key, key) && !place.is(b"x", key));
        }
        assert!(matches!(Place::of(&[0; KEY_BYTES_MAX + 1]), Err(KeyError::Key(_))));
    }

    #[test]
    fn a_key_that_looks_like_the_hash_of_another_has_a_place_of_its_own() {
        let long = [7; 100];
        let hash = Place::of(&long).unwrap().block_key().to_vec();
        let place = Place::of(&hash).unwrap();
        assert_ne!(place.block_key(), hash);
        assert_eq!(place.kept(), hash.len());
    }
}
