//! Blocks that are replaced: a slot is taken without a key, and swapped in for whatever its key has.

use super::{Store, StoreError, Used, Wish};
use crate::chunks::{BLOCK_BYTES_MAX, class_bytes};
use crate::events::Event;
use crate::family::Family;
use crate::header;
use crate::index;
use crate::key::{BlockKey, Namespace};
use crate::lookup;
use crate::words::Words;
use hinterland_os::fault_point::reach;
use std::hint::black_box;

/// Buckets that one listing walks at most: a megabyte of the index, so that nobody waits long for the books.
const LIST_BUCKETS_MAX: u64 = 16_384;

/// What must be true of a key for a swap to happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expects {
    /// Nothing in particular.
    Anything,
    /// It has no block.
    Nothing,
    /// It still has the block that was seen.
    Block(Seen),
    /// Readers find no block of so many bytes.
    NoneOf(u32),
}

/// A block as a reader saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its slot.
    pub slot: u32,
    /// The slot's generation then.
    pub generation: u64,
}

/// What came of a swap. The slot is given back unless it is `Done`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swapped {
    /// The key has the new block.
    Done,
    /// The key is not as was expected.
    Changed,
    /// The index has no room near the key's hash, or the key's block is pinned.
    NoRoom,
}

impl<W: Words> Store<W> {
    /// A slot for `bytes` bytes whose key `writer` will name when it is written; its number and where it starts. `None` if
    /// everything is being written or pinned, or the namespace's quota is.
    ///
    /// # Errors
    /// [`StoreError::Bytes`].
    pub fn take_slot(
        &mut self,
        writer: u64,
        namespace: Namespace,
        bytes: u64,
        was_touched: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Option<(u32, u64)>, StoreError> {
        if bytes == 0 || bytes > BLOCK_BYTES_MAX {
            return Err(StoreError::Bytes(bytes));
        }
        let class = class_bytes(bytes);
        if !self.make_room_in_quota(namespace, class, was_touched) {
            return Ok(None);
        }
        self.serial += 1;
        let used = Used {
            namespace,
            key: BlockKey::NONE,
            hash: 0,
            bytes: 0,
            writer: Some(writer),
            sum: None,
            pins: 0,
            is_fetched: false,
            family: Family::new(self.serial, None),
        };
        let Some(slot) = self.take(class, used, was_touched) else { return Ok(None) };
        self.begin_writing(writer, slot, namespace);
        Ok(Some((slot, self.chunks.offset(slot))))
    }

    /// Makes what was written into a slot the block of a key, in place of the one that the key has. A reader finds one of
    /// the two at any moment: the entry of the index is overwritten by one store. What followed on the old one follows on nothing.
    ///
    /// # Errors
    /// [`StoreError::NotReserved`], also for a slot that was taken for another namespace, or reserved for a key; [`StoreError::Bytes`] or
    /// [`StoreError::Longer`] for a length that the slot cannot have. The slot is still the writer's then.
    pub fn swap(
        &mut self,
        writer: u64,
        slot: u32,
        wish: &Wish,
        expects: Expects,
    ) -> Result<Swapped, StoreError> {
        let &Wish { namespace, key, bytes, parent } = wish;
        if bytes == 0 || bytes > BLOCK_BYTES_MAX {
            return Err(StoreError::Bytes(bytes));
        }
        // What was reserved for a key may follow on a block, which waits for it.
        let is_its =
            |used: &Used| used.writer == Some(writer) && used.namespace == namespace && used.key.is_empty();
        if !self.chunks.get(slot).is_some_and(is_its) {
            return Err(StoreError::NotReserved(slot));
        }
        let class = self.chunks.class(slot);
        if bytes > class {
            return Err(StoreError::Longer { bytes, slot_bytes: class });
        }
        let used = self.end_writing(writer, slot)?;
        let old = self.find(namespace, &key);
        let is_as_expected = self.is_so(old, expects);
        if !is_as_expected {
            self.give(slot);
            return Ok(Swapped::Changed);
        }
        let parent = parent.and_then(|parent| self.expect_child(namespace, &parent));
        // At most 4 MiB: the cast loses nothing.
        let mut used = Used { key, hash: key.hash(namespace), bytes: bytes as u32, writer: None, ..used };
        if parent.is_some() {
            // A child is younger than its parent, which may have come after the slot was taken.
            self.serial += 1;
            used.family = Family::new(self.serial, parent);
        }
        if !self.put_in(slot, old, used) {
            self.expect_no_child(parent);
            self.give(slot);
            return Ok(Swapped::NoRoom);
        }
        let parent = self.adopt(slot);
        self.join_waiting(slot);
        let space = self.spaces.entry(namespace).or_default();
        space.blocks += 1;
        space.bytes += bytes;
        self.status.blocks += 1;
        self.status.bytes += bytes;
        self.journal.add(|| Event::Stored { namespace, key, parent, bytes: used.bytes });
        Ok(Swapped::Done)
    }

    /// Loads what swaps of the first [`LOOKUPS_AT_ONCE`](crate::LOOKUPS_AT_ONCE) keys are going to look at, in the books and in what is known beside
    /// them, so that they wait for memory once.
    pub fn prefetch(&self, namespace: Namespace, keys: &[BlockKey]) {
        let hashes = lookup::prefetch(&self.words, &self.geometry, namespace, keys);
        let group = self.group(namespace);
        let mut loaded = 0;
        for (&hash, _) in hashes.iter().zip(keys) {
            loaded ^= self.orders.load(group, hash);
            let old = index::guess(&self.words, &self.geometry, hash).and_then(|old| self.chunks.get(old));
            // They lie in different lines.
            loaded ^=
                old.map_or(0, |old| u64::from(old.bytes) ^ old.hash ^ old.namespace.0 ^ old.family.serial());
        }
        // Nobody needs the sum, and without it nothing would be loaded.
        black_box(loaded);
    }

    /// Whether a swap that expects this would find it so.
    pub fn is_as_expected(&self, namespace: Namespace, key: &BlockKey, expects: Expects) -> bool {
        self.is_so(self.find(namespace, key), expects)
    }

    fn is_so(&self, old: Option<u32>, expects: Expects) -> bool {
        match expects {
            Expects::Anything => true,
            Expects::Nothing => old.is_none(),
            Expects::Block(seen) => old.is_some_and(|old| self.seen(old) == seen),
            Expects::NoneOf(bytes) => {
                let is_of = |old| self.chunks.get(old).is_some_and(|used: &Used| used.bytes == bytes);
                // One of before a restart is found by nobody, who could look what it is.
                old.is_none_or(|old| self.is_unchecked(old) || !is_of(old))
            }
        }
    }

    /// Puts a written slot into books and order, in place of another one; false if there is no place for it.
    fn put_in(&mut self, slot: u32, mut old: Option<u32>, used: Used) -> bool {
        if old.is_some_and(|old| self.is_pinned(old)) {
            return false;
        }
        if let Some(unchecked) = old.filter(|&old| self.is_unchecked(old)) {
            // Nobody can find it, so there is nothing to swap.
            self.forget(unchecked);
            old = None;
        }
        let (group, class) = (self.group(used.namespace), self.chunks.class(slot));
        if !self.orders.put(group, used.hash, slot, class, old) {
            return false;
        }
        let content = self.content(slot, &used);
        if let Some(place) = self.chunks.get_mut(slot) {
            *place = used;
        }
        header::publish(&self.words, &self.geometry, slot, &content);
        reach("kv-swap-published");
        let is_in = match old {
            Some(old) => index::swap(&self.words, &self.geometry, used.hash, old, slot),
            None => index::insert(&self.words, &self.geometry, used.hash, slot),
        };
        if !is_in {
            header::retire(&self.words, &self.geometry, slot);
            self.orders.remove(group, used.hash, slot);
            return false;
        }
        reach("kv-swap-entered");
        self.is_published(slot, content.sum);
        if let Some(old) = old {
            self.retire(old);
        }
        true
    }

    /// Removes the block of a key if it is still the one that was seen; whether it was. One that is pinned stays.
    pub fn remove_seen(&mut self, namespace: Namespace, key: &BlockKey, seen: Seen) -> bool {
        match self.find(namespace, key) {
            Some(slot) if self.seen(slot) == seen => self.remove(namespace, key),
            _ => false,
        }
    }

    /// Keys of a namespace from bucket `cursor` of the index on, and the bucket to go on with; `None` at the end. About
    /// `limit` of them, or fewer, even none. Entries never move and a swap keeps its entry, so whoever goes on to the end
    /// has been given every key that was there all the time.
    pub fn list(&self, namespace: Namespace, cursor: u64, limit: usize) -> (Vec<BlockKey>, Option<u64>) {
        let end = self.geometry.buckets();
        let stop = end.min(cursor.saturating_add(LIST_BUCKETS_MAX));
        let mut keys = Vec::new();
        let mut bucket = cursor.min(end);
        while bucket < stop && keys.len() < limit {
            for slot in index::slots(&self.words, &self.geometry, bucket) {
                let its = self.chunks.get(slot).filter(|used| used.namespace == namespace);
                keys.extend(its.map(|used| used.key));
            }
            bucket += 1;
        }
        (keys, (bucket < end).then_some(bucket))
    }

    fn seen(&self, slot: u32) -> Seen {
        Seen { slot, generation: header::generation(&self.words, &self.geometry, slot) }
    }
}
