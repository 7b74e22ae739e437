//! What shows that somebody may read a sealed object, to others who may read it too.

use crate::handshake::{PoolId, PoolKey};
use hinterland_types::ObjectId;

/// What the hash is of, and of nothing else.
const PURPOSE: &str = "hinterland 2026-11-22 right to read an object";

/// 32 bytes that follow from the object, its bytes and the pool's key. Every node of the pool finds the same ones, and tells them to who may read the
/// object. Without a key they follow from the object's digest alone, which is as hard to guess as the bytes are.
#[must_use]
pub fn right_to_read(key: Option<&PoolKey>, pool: PoolId, object: ObjectId, digest: &[u8; 32]) -> [u8; 32] {
    let secret = key.map_or([0; 32], |key| key.0);
    let mut hasher = blake3::Hasher::new_keyed(&blake3::derive_key(PURPOSE, &secret));
    hasher.update(&pool.0.to_le_bytes()).update(&object.0.to_le_bytes()).update(digest);
    *hasher.finalize().as_bytes()
}

/// Compares two of them in a time that does not depend on where they differ.
#[must_use]
pub fn is_same_right(a: &[u8; 32], b: &[u8; 32]) -> bool {
    blake3::Hash::from_bytes(*a) == blake3::Hash::from_bytes(*b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_right_is_of_one_object_of_one_pool_and_needs_its_key() {
        let right = |key: u8, pool: u128, object: u64, digest: u8| {
            right_to_read(Some(&PoolKey([key; 32])), PoolId(pool), ObjectId(object), &[digest; 32])
        };
        let one = right(1, 2, 3, 4);
        assert!(is_same_right(&one, &right(1, 2, 3, 4)));
        let open = right_to_read(None, PoolId(2), ObjectId(3), &[4; 32]);
        for other in [right(9, 2, 3, 4), right(1, 9, 3, 4), right(1, 2, 9, 4), right(1, 2, 3, 9), open] {
            assert!(!is_same_right(&one, &other));
        }
    }
}
