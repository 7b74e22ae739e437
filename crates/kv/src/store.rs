//! The node's side: who holds which slot, what leaves when room is wanted, and all that is written into the books.

use crate::chunks::{BLOCK_BYTES_MAX, Chunks, chunk_bytes, class_bytes, slot_numbers};
use crate::header::{self, Content};
use crate::index;
use crate::key::{BlockKey, Namespace};
use crate::layout::Geometry;
use crate::words::Words;
use hinterland_policy::eviction::UnitKey;
use hinterland_policy::{Eviction, EvictionKind};
use std::collections::{HashMap, HashSet};

/// Blocks that the index has room for: as many as there are of this size.
const EXPECTED_BLOCK_BYTES: u64 = 4096;
/// Blocks that leave for one of another size before a chunk is emptied instead.
const EVICTIONS_MAX: usize = 64;

/// Why a block has no slot, or what it got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reserved {
    /// Write there, then publish.
    Slot {
        /// The slot.
        slot: u32,
        /// Where its bytes start in the blocks file.
        offset: u64,
    },
    /// The key is there already.
    Exists,
    /// Another session writes it now.
    Busy,
    /// Everything is reserved or pinned.
    NoRoom,
}

/// Why a request makes no sense.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum StoreError {
    /// A block of no bytes, or of more than fit.
    #[error("a block has 1 to {BLOCK_BYTES_MAX} bytes, not {0} (hint: split it)")]
    Bytes(u64),
    /// The session has not reserved this slot.
    #[error("slot {0} is not reserved by this session (hint: publish what reserve gave, once)")]
    NotReserved(u32),
}

/// What a store holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreStatus {
    /// Bytes for blocks.
    pub capacity_bytes: u64,
    /// Published blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Slots that are being written.
    pub reserved: u64,
    /// Blocks that were evicted.
    pub evictions: u64,
}

/// What lies in a slot that is in use.
#[derive(Clone, Copy, Debug)]
struct Used {
    namespace: Namespace,
    key: BlockKey,
    bytes: u32,
    /// The session that writes it; none once it is published.
    writer: Option<u64>,
}

/// A store: books that it alone writes, over slots that clients write.
pub struct Store<W> {
    words: W,
    geometry: Geometry,
    chunks: Chunks<Used>,
    writing: HashSet<(Namespace, BlockKey)>,
    /// How many slots each session writes.
    writers: HashMap<u64, u64>,
    policy: Box<dyn Eviction>,
    status: StoreStatus,
}

impl<W: Words> Store<W> {
    /// The geometry of a store for `capacity_bytes` bytes of blocks, which is rounded down to chunks.
    pub fn geometry_for(capacity_bytes: u64) -> Geometry {
        let blocks_bytes = capacity_bytes / chunk_bytes(capacity_bytes) * chunk_bytes(capacity_bytes);
        Geometry::new(slot_numbers(blocks_bytes), blocks_bytes / EXPECTED_BLOCK_BYTES, blocks_bytes)
    }

    /// An empty store in books of zeros that are at least [`Geometry::books_bytes`] long.
    pub fn new(words: W, geometry: Geometry, order: EvictionKind) -> Self {
        geometry.store(&words);
        let status = StoreStatus { capacity_bytes: geometry.blocks_bytes(), ..StoreStatus::default() };
        Self {
            words,
            geometry,
            chunks: Chunks::new(geometry.blocks_bytes()),
            writing: HashSet::new(),
            writers: HashMap::new(),
            policy: order.build(),
            status,
        }
    }

    /// A slot for a block that `writer` is about to write. `was_touched` tells, and forgets, whether a block was read since
    /// it was asked last.
    ///
    /// # Errors
    /// [`StoreError::Bytes`].
    pub fn reserve(
        &mut self,
        writer: u64,
        namespace: Namespace,
        key: BlockKey,
        bytes: u64,
        was_touched: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Reserved, StoreError> {
        if bytes == 0 || bytes > BLOCK_BYTES_MAX {
            return Err(StoreError::Bytes(bytes));
        }
        if self.find(namespace, &key).is_some() {
            return Ok(Reserved::Exists);
        }
        if self.writing.contains(&(namespace, key)) {
            return Ok(Reserved::Busy);
        }
        // At most 4 MiB: the cast loses nothing.
        let used = Used { namespace, key, bytes: bytes as u32, writer: Some(writer) };
        let Some(slot) = self.take(class_bytes(bytes), used, was_touched) else {
            return Ok(Reserved::NoRoom);
        };
        self.writing.insert((namespace, key));
        *self.writers.entry(writer).or_default() += 1;
        self.status.reserved += 1;
        Ok(Reserved::Slot { slot, offset: self.chunks.offset(slot) })
    }

    /// Makes a block visible that its writer has written whole. False if the index has no room near its hash: the block is
    /// given up, as if it had been evicted at once.
    ///
    /// # Errors
    /// [`StoreError::NotReserved`].
    pub fn publish(&mut self, writer: u64, slot: u32) -> Result<bool, StoreError> {
        let used = self.end_writing(writer, slot)?;
        let content = Content {
            namespace: used.namespace,
            key: used.key,
            offset: self.chunks.offset(slot),
            bytes: used.bytes,
        };
        header::publish(&self.words, &self.geometry, slot, &content);
        if !index::insert(&self.words, &self.geometry, used.key.hash(used.namespace), slot) {
            header::retire(&self.words, &self.geometry, slot);
            self.chunks.give(slot);
            return Ok(false);
        }
        self.policy.insert(unit(slot), self.chunks.class(slot));
        self.status.blocks += 1;
        self.status.bytes += u64::from(used.bytes);
        Ok(true)
    }

    /// Gives a reserved slot back unwritten.
    ///
    /// # Errors
    /// [`StoreError::NotReserved`].
    pub fn abort(&mut self, writer: u64, slot: u32) -> Result<(), StoreError> {
        self.end_writing(writer, slot)?;
        self.chunks.give(slot);
        Ok(())
    }

    /// Gives back all that a session has reserved; it has ended.
    pub fn release(&mut self, writer: u64) {
        if self.writers.remove(&writer).is_none_or(|count| count == 0) {
            return;
        }
        let its = self.chunks.used().filter(|(_, used)| used.writer == Some(writer));
        let slots: Vec<u32> = its.map(|(slot, _)| slot).collect();
        for slot in slots {
            if let Some(used) = self.chunks.give(slot) {
                self.writing.remove(&(used.namespace, used.key));
                self.status.reserved -= 1;
            }
        }
    }

    /// Removes a block; whether it was there.
    pub fn remove(&mut self, namespace: Namespace, key: &BlockKey) -> bool {
        let Some(slot) = self.find(namespace, key) else { return false };
        self.policy.remove(unit(slot));
        self.forget(slot);
        true
    }

    /// Removes all blocks of a namespace; returns how many.
    pub fn clear(&mut self, namespace: Namespace) -> u64 {
        let slots: Vec<u32> = self.published(namespace).map(|(slot, _)| slot).collect();
        for &slot in &slots {
            self.policy.remove(unit(slot));
            self.forget(slot);
        }
        slots.len() as u64
    }

    /// What it holds.
    pub const fn status(&self) -> StoreStatus {
        self.status
    }

    /// Published blocks of a namespace and their bytes.
    pub fn count(&self, namespace: Namespace) -> (u64, u64) {
        let add = |(blocks, bytes), (_, used): (u32, &Used)| (blocks + 1, bytes + u64::from(used.bytes));
        self.published(namespace).fold((0, 0), add)
    }

    fn find(&self, namespace: Namespace, key: &BlockKey) -> Option<u32> {
        index::find(&self.words, &self.geometry, key.hash(namespace), |slot| {
            header::read(&self.words, &self.geometry, slot, namespace, key).is_some()
        })
    }

    fn published(&self, namespace: Namespace) -> impl Iterator<Item = (u32, &Used)> {
        self.chunks.used().filter(move |(_, used)| used.namespace == namespace && used.writer.is_none())
    }

    /// The slot is no longer written; what lies in it now.
    fn end_writing(&mut self, writer: u64, slot: u32) -> Result<Used, StoreError> {
        let its = self.chunks.get_mut(slot).filter(|used| used.writer == Some(writer));
        let used = its.ok_or(StoreError::NotReserved(slot))?;
        used.writer = None;
        let used = *used;
        self.writing.remove(&(used.namespace, used.key));
        if let Some(count) = self.writers.get_mut(&writer) {
            *count -= 1;
        }
        self.status.reserved -= 1;
        Ok(used)
    }

    /// Takes a slot of a class; blocks leave for it if they must.
    fn take(&mut self, class: u64, used: Used, was_touched: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        for _ in 0..EVICTIONS_MAX {
            let slot = self.chunks.take(class, used);
            if slot.is_some() {
                return slot;
            }
            if !self.evict_one(was_touched) {
                break;
            }
        }
        self.chunks.take(class, used).or_else(|| {
            self.empty_a_chunk(class);
            self.chunks.take(class, used)
        })
    }

    /// Evicts the block whose turn it is; false if there is none. What was touched gets another round, and each touch
    /// counts once, so this ends.
    fn evict_one(&mut self, was_touched: &mut dyn FnMut(u32) -> bool) -> bool {
        let mut victims = Vec::with_capacity(1);
        loop {
            victims.clear();
            self.policy.victims(1, &mut |_| true, &mut victims);
            let Some(victim) = victims.first() else { return false };
            if was_touched(victim.unit) {
                self.policy.insert(*victim, self.chunks.class(victim.unit));
                self.policy.touch(*victim);
                continue;
            }
            self.forget(victim.unit);
            self.status.evictions += 1;
            return true;
        }
    }

    /// Empties the chunk of another class that holds least and has no slot being written.
    fn empty_a_chunk(&mut self, class: u64) {
        for number in self.chunks.others_by_use(class) {
            if self.chunks.used_of(number).any(|(_, used)| used.writer.is_some()) {
                continue;
            }
            let slots: Vec<u32> = self.chunks.used_of(number).map(|(slot, _)| slot).collect();
            for slot in slots {
                self.policy.remove(unit(slot));
                self.forget(slot);
                self.status.evictions += 1;
            }
            return;
        }
    }

    /// Takes a published block out of the books; the policy has been told.
    fn forget(&mut self, slot: u32) {
        let Some(used) = self.chunks.get(slot).copied() else { return };
        index::remove(&self.words, &self.geometry, used.key.hash(used.namespace), slot);
        header::retire(&self.words, &self.geometry, slot);
        self.status.blocks -= 1;
        self.status.bytes -= u64::from(used.bytes);
        self.chunks.give(slot);
    }
}

const fn unit(slot: u32) -> UnitKey {
    UnitKey { object: 0, unit: slot }
}
