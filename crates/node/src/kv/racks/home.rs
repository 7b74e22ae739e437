//! What this node tells others about its KV blocks: where they lie, and whether what was read of them counts.

use super::checksum::whole;
use crate::kv::{UserStore, key};
use crate::refused::{Refused, errno};
use hinterland_fabric::Slice;
use hinterland_kv::{BlockKey, Namespace, ToSum, header::Block};
use hinterland_os::Coherence;
use hinterland_proto::control::{KV_KEYS_MAX, KvHeld, KvPlace};
use hinterland_types::ByteRange;
use std::sync::atomic::Ordering;

/// Where blocks lie in memory, and the lengths of those on the disk.
pub type Places = (Vec<Option<KvPlace>>, Vec<Option<u32>>);

impl UserStore {
    /// Where blocks lie in memory, one answer each; for those that do not, and for those of before that are not checked, how long they are if they
    /// are on the disk, and nothing if none is.
    ///
    /// # Errors
    /// [`Refused`] for a key that no block can have, or too many.
    pub fn places(&self, fingerprint: &[u8; 32], keys: &[Vec<u8>]) -> Result<Places, Refused> {
        check_count(keys.len())?;
        let keys = keys.iter().map(|bytes| key(bytes)).collect::<Result<Vec<_>, _>>()?;
        let Some(namespace) = self.namespace_of(fingerprint) else {
            return Ok((vec![None; keys.len()], Vec::new()));
        };
        let (places, are_sure): (Vec<_>, Vec<_>) =
            self.places_in_memory(namespace, &keys).into_iter().unzip();
        let on_disk = match &self.disk {
            Some(disk) if are_sure.contains(&false) => {
                let unsure = keys.iter().zip(are_sure).map(|(key, is_sure)| (!is_sure).then_some(key));
                disk.lengths(fingerprint, unsure)
            }
            _ => Vec::new(),
        };
        let is_some = on_disk.iter().any(Option::is_some);
        Ok((places, if is_some { on_disk } else { Vec::new() }))
    }

    /// Those of before that are not checked are there too: they are checked before their checksums are told. With each stands whether it is
    /// one that was checked.
    fn places_in_memory(&self, namespace: Namespace, keys: &[BlockKey]) -> Vec<(Option<KvPlace>, bool)> {
        let state = self.lock();
        let parent = |key| state.store.parent(namespace, key).map(|parent| parent.to_vec());
        let place = |key| {
            if let Some(found) = self.view.find(namespace, key) {
                let &Block { slot, generation, offset, bytes } = found.block();
                return (Some(KvPlace { slot, generation, offset, bytes, parent: parent(key) }), true);
            }
            let unchecked = state.store.unchecked_block(namespace, key);
            let place = unchecked.map(|ToSum { slot, generation, offset, bytes, .. }| KvPlace {
                slot,
                generation,
                offset,
                bytes,
                parent: parent(key),
            });
            (place, false)
        };
        keys.iter().map(place).collect()
    }

    /// Checksums of blocks that another node has read: those that were taken when they were published, or are taken now if there
    /// was no time yet; none for each that has left its slot by now. To be called after the bytes were copied out of this memory.
    ///
    /// # Errors
    /// As [`places`](Self::places).
    pub fn sums(&self, fingerprint: &[u8; 32], blocks: &[KvHeld]) -> Result<Vec<Option<u32>>, Refused> {
        check_count(blocks.len())?;
        let keys = blocks.iter().map(|held| key(&held.key)).collect::<Result<Vec<_>, _>>()?;
        let Some(namespace) = self.namespace_of(fingerprint) else { return Ok(vec![None; keys.len()]) };
        self.check_those_of_before(namespace, &keys);
        let sum = |key, held: &KvHeld| {
            let found = self.view.find(namespace, key)?;
            let block = found.block();
            if (block.slot, block.generation) != (held.slot, held.generation) {
                return None;
            }
            let of_bytes = self.view.known_sum(&found).or_else(|| self.sum(block.offset, block.bytes))?;
            let sum = whole(fingerprint, key, block.bytes, of_bytes);
            // The bytes left before this: if nothing has changed up to here, both are of this block.
            if !self.view.is_still(&found) {
                return None;
            }
            // Relaxed: counters that nothing is ordered by.
            self.tally.sent_blocks.fetch_add(1, Ordering::Relaxed);
            self.tally.sent_bytes.fetch_add(u64::from(block.bytes), Ordering::Relaxed);
            Some(sum)
        };
        Ok(keys.iter().zip(blocks).map(|(key, held)| sum(key, held)).collect())
    }

    /// The memory behind a range of the blocks file, for one-sided reads.
    ///
    /// # Errors
    /// [`Refused`] outside the file.
    pub fn block_bytes(&self, range: ByteRange) -> Result<Slice, Refused> {
        Ok(Slice::from(self.view.blocks(range.offset(), range.bytes())?))
    }

    /// Whether who reads or writes blocks moves lines of caches by hand. [`block_bytes`](Self::block_bytes) has dropped those of this host.
    pub fn is_moved_by_hand(&self) -> bool {
        self.view.geometry().coherence() == Coherence::Software
    }

    /// Length of the blocks file.
    pub fn blocks_bytes(&self) -> u64 {
        self.view.geometry().blocks_bytes()
    }

    /// The namespace that was opened here under a fingerprint; all of it counts, not only what stands in headers.
    pub(in crate::kv) fn namespace_of(&self, fingerprint: &[u8; 32]) -> Option<Namespace> {
        let number = Namespace::of(fingerprint);
        let state = self.lock();
        let known = state.namespaces.get(&number.0)?;
        (known.fingerprint == *fingerprint).then_some(number)
    }
}

/// Refuses more keys than one request may have.
pub(in crate::kv) fn check_count(count: usize) -> Result<(), Refused> {
    if count <= KV_KEYS_MAX {
        return Ok(());
    }
    let text = format!("{count} keys are over the limit of {KV_KEYS_MAX} (hint: ask in several requests)");
    Err(Refused::new(errno::EINVAL, text))
}
