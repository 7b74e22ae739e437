//! Finding the block of a key while blocks are replaced, evicted and written.

use crate::header::{self, Block};
use crate::index;
use crate::key::{BlockKey, Namespace};
use crate::layout::Geometry;
use crate::words::Words;

/// How often a reader looks again that came upon a slot which was being replaced: each time costs another swap of the
/// same key within a fraction of a microsecond.
const LOOKS_MAX: usize = 16;

/// Keys whose lines are asked for together: about as many as a core waits for at a time.
pub const LOOKUPS_AT_ONCE: usize = 16;

/// The block of a key, if it is there now.
///
/// Between the load of an entry and that of its header the block may be replaced: the header is another's then, and the
/// entry names the new slot. So who found a fitting entry with an unfitting header looks again, and a key that is only
/// replaced is never missed.
#[inline]
pub fn lookup(
    words: &impl Words,
    geometry: &Geometry,
    namespace: Namespace,
    key: &BlockKey,
) -> Option<Block> {
    lookup_hashed(words, geometry, namespace, key, key.hash(namespace))
}

/// [`lookup`] of many keys at once, until `take` has enough: it is given what was found for one key after the other.
///
/// A lookup waits for memory twice, for the bucket and for the header; here it waits once for those of
/// [`LOOKUPS_AT_ONCE`] keys. Nothing is believed that was loaded to know what to ask for.
#[inline]
pub fn lookup_many(
    words: &impl Words,
    geometry: &Geometry,
    namespace: Namespace,
    keys: &[BlockKey],
    mut take: impl FnMut(Option<Block>) -> bool,
) {
    for keys in keys.chunks(LOOKUPS_AT_ONCE) {
        let hashes = prefetch(words, geometry, namespace, keys);
        for (key, hash) in keys.iter().zip(hashes) {
            if !take(lookup_hashed(words, geometry, namespace, key, hash)) {
                return;
            }
        }
    }
}

/// Asks for the buckets and headers of the first [`LOOKUPS_AT_ONCE`] keys; their hashes.
#[inline]
pub fn prefetch(
    words: &impl Words,
    geometry: &Geometry,
    namespace: Namespace,
    keys: &[BlockKey],
) -> [u64; LOOKUPS_AT_ONCE] {
    let mut hashes = [0; LOOKUPS_AT_ONCE];
    for (hash, key) in hashes.iter_mut().zip(keys) {
        *hash = key.hash(namespace);
        index::prefetch(words, geometry, *hash);
    }
    for (&hash, _) in hashes.iter().zip(keys) {
        if let Some(slot) = index::guess(words, geometry, hash) {
            header::prefetch(words, geometry, slot);
        }
    }
    hashes
}

#[inline]
fn lookup_hashed(
    words: &impl Words,
    geometry: &Geometry,
    namespace: Namespace,
    key: &BlockKey,
    hash: u64,
) -> Option<Block> {
    for _ in 0..LOOKS_MAX {
        let (mut found, mut unfitting) = (None, false);
        index::find(words, geometry, hash, |slot| {
            found = header::read(words, geometry, slot, namespace, key);
            unfitting |= found.is_none();
            found.is_some()
        });
        if found.is_some() || !unfitting {
            return found;
        }
    }
    None
}
