//! Parts of values that are read without the rest of them.

use super::{KeyError, Keyspace, READS_MAX};
use crate::head::{Form, HEAD_BYTES};
use std::ops::Range;

impl Keyspace {
    /// Some bytes of the value of a key, and how many it has in all; `None` if there is none. `wanted` is told the length and says which bytes,
    /// all of them within it; it may be asked again where the value was replaced meanwhile.
    ///
    /// # Errors
    /// [`KeyError`], and what `wanted` says.
    pub fn part<E: From<KeyError>>(
        &mut self,
        key: &[u8],
        now_ms: u64,
        mut wanted: impl FnMut(usize) -> Result<Range<usize>, E>,
    ) -> Result<Option<(usize, Vec<u8>)>, E> {
        for _ in 0..READS_MAX {
            let Some(entry) = self.entry_of(key, now_ms)? else { return Ok(None) };
            let length = entry.head.value_bytes;
            let Range { start, end } = wanted(length)?;
            let (start, end) = (start.min(length), end.min(length));
            let mut bytes = vec![0; end.saturating_sub(start)];
            if entry.head.form != Form::Follows {
                if self.parts.read_range(&entry.head, start, &mut bytes)? {
                    return Ok(Some((length, bytes)));
                }
                // As where all of it is read: a lost part is a miss, unless the value was replaced.
                if self.forget(key, &entry)? {
                    return Ok(None);
                }
                continue;
            }
            // A block has at most 4 MiB: the cast loses nothing.
            let from = (HEAD_BYTES + entry.head.key_bytes + start) as u32;
            if self.values.read_from(&entry.found, from, &mut bytes) {
                return Ok(Some((length, bytes)));
            }
        }
        Err(KeyError::Contended.into())
    }
}
