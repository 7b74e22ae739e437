//! Finding the block of a key while blocks are replaced, evicted and written.

use crate::header::{self, Block};
use crate::index;
use crate::key::{BlockKey, Namespace};
use crate::layout::Geometry;
use crate::words::Words;

/// How often a reader looks again that came upon a slot which was being replaced: each time costs another swap of the
/// same key within a fraction of a microsecond.
const LOOKS_MAX: usize = 16;

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
    let hash = key.hash(namespace);
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
