//! The node's side: who holds which slot, and all that is written into the books.

mod ahead;
mod replace;
mod restore;
mod sums;

pub use ahead::Departing;
pub use replace::{Expects, Seen, Swapped};
pub use restore::{Restored, Restoring};
pub use sums::{Summer, ToSum};

use crate::chunks::{BLOCK_BYTES_MAX, Chunks, chunk_bytes, class_bytes, slot_numbers};
use crate::events::{Event, Events, Journal};
use crate::family::{Family, Kin};
use crate::header::{self, Content};
use crate::index;
use crate::key::{BlockKey, Namespace};
use crate::layout::Geometry;
use crate::order::{Group, Orders};
use crate::waiting::Waiting;
use crate::words::Words;
use foldhash::HashMap;
use hinterland_os::fault_point::reach;
use hinterland_policy::EvictionKind;
use std::collections::VecDeque;

/// Writers from this number on are threads of the node: they end with it.
pub const NODE_WRITER_FIRST: u64 = 1 << 62;
/// Generations of one node.
const LIFE_BITS: u32 = 40;
/// Bits of the number by which a session is known to a node that comes later.
const MARK_BITS: u32 = 32;
/// How a thread of the node is known.
const NODE_MARK: u64 = u64::MAX;

/// Blocks that the index has room for: as many as there are of this size.
const EXPECTED_BLOCK_BYTES: u64 = 2048;

/// A block that a session wants to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    /// Whose.
    pub namespace: Namespace,
    /// Its key.
    pub key: BlockKey,
    /// Its length in bytes.
    pub bytes: u64,
    /// The block without which this one is of no use, the one before it in a prefix: it does not leave before this one.
    pub parent: Option<BlockKey>,
}

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
    /// The key is there already, or has a block of before that is not checked.
    Exists,
    /// Another session writes it now.
    Busy,
    /// Everything is reserved or pinned, or the namespace's quota is.
    NoRoom,
}

/// Why a request makes no sense.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum StoreError {
    /// A block of no bytes, or of more than fit.
    #[error("a block has 1 to {BLOCK_BYTES_MAX} bytes, not {0} (hint: split what is longer)")]
    Bytes(u64),
    /// The session has not reserved this slot.
    #[error("slot {0} is not reserved by this session (hint: publish what reserve gave, once)")]
    NotReserved(u32),
    /// A block does not fit the slot that was taken for it.
    #[error(
        "a block of {bytes} bytes does not fit its slot of {slot_bytes} (hint: take one as long as the block)"
    )]
    Longer {
        /// Bytes of the block.
        bytes: u64,
        /// Bytes of the slot.
        slot_bytes: u64,
    },
}

/// How much of the memory a namespace may have, and who gives first when room is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most bytes of slots; none is all of them.
    pub quota_bytes: Option<u64>,
    /// Blocks of a lower priority leave before any of a higher one.
    pub priority: u8,
}

impl Limits {
    /// The priority of a namespace of which nobody has said anything.
    pub const PRIORITY: u8 = 100;

    const fn group(self, namespace: Namespace) -> Group {
        match self.quota_bytes {
            Some(_) => Group::Own(self.priority, namespace.0),
            None => Group::Shared(self.priority),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { quota_bytes: None, priority: Self::PRIORITY }
    }
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
    /// Of them, those that nobody waited for.
    pub evictions_ahead: u64,
    /// Bytes of slots whose blocks are pinned.
    pub pinned_bytes: u64,
    /// Bytes of all slots that are in use.
    pub slot_bytes: u64,
    /// Blocks of before a restart whose bytes are not checked yet: nobody finds them.
    pub unchecked: u64,
    /// Blocks that were dropped because their bytes are not those that were published.
    pub damaged: u64,
}

/// What a namespace holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceStatus {
    /// Published blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of slots, also of those that are being written.
    pub slot_bytes: u64,
    /// Blocks of it that were evicted.
    pub evictions: u64,
    /// What was set for it.
    pub limits: Limits,
}

/// One block, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inspected {
    /// Its slot.
    pub slot: u32,
    /// Where its bytes start in the blocks file.
    pub offset: u64,
    /// How many there are.
    pub bytes: u32,
    /// Bytes of the slot.
    pub slot_bytes: u64,
    /// The slot's generation.
    pub generation: u64,
    /// Pins.
    pub pins: u32,
    /// The block before it in its prefix, if that is there.
    pub parent: Option<BlockKey>,
    /// Blocks that follow on it.
    pub children: Vec<BlockKey>,
}

/// A block that is evicted as soon as whoever is told of it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaving {
    /// Whose.
    pub namespace: Namespace,
    /// Its key.
    pub key: BlockKey,
    /// The block that it follows on, if that is there.
    pub parent: Option<BlockKey>,
    /// Where its bytes start in the blocks file.
    pub offset: u64,
    /// How many there are.
    pub bytes: u32,
    /// Their crc32c, if it is known: whoever keeps other bytes would take them for right.
    pub sum: Option<u32>,
    /// It came from another node.
    pub is_fetched: bool,
}

/// What is told of blocks that leave.
pub type Keeper = Box<dyn FnMut(&Leaving) + Send>;

/// What lies in a slot that is in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) namespace: Namespace,
    pub(crate) key: BlockKey,
    pub(crate) hash: u64,
    pub(crate) bytes: u32,
    /// The session that writes it; none once it is published.
    pub(crate) writer: Option<u64>,
    /// crc32c of the bytes, if it was taken before they are published.
    pub(crate) sum: Option<u32>,
    pub(crate) pins: u32,
    /// It came from another node, in this life of the node.
    pub(crate) is_fetched: bool,
    pub(crate) family: Family,
}

/// A store: books that it alone writes, over slots that clients write.
pub struct Store<W> {
    pub(crate) words: W,
    pub(crate) geometry: Geometry,
    pub(crate) chunks: Chunks<Used>,
    pub(crate) orders: Orders,
    pub(crate) spaces: HashMap<Namespace, SpaceStatus>,
    pub(crate) status: StoreStatus,
    /// Pins of each session: how many of each slot.
    pub(crate) pins: HashMap<u64, HashMap<u32, u32>>,
    pub(crate) journal: Journal,
    pub(crate) keeper: Option<Keeper>,
    /// The node's number among those that have written these books.
    life: u64,
    /// Whether blocks that are published are to be given checksums.
    is_summed: bool,
    /// What takes checksums before blocks are published, if that is wanted.
    summer: Option<Summer>,
    /// Slots and generations of blocks that have no checksum yet, the oldest first.
    to_sum: VecDeque<(u32, u64)>,
    /// How many of them are being summed up.
    summing: usize,
    /// Blocks of before that are in no index, because their bytes are not checked.
    unchecked: HashMap<(Namespace, BlockKey), u32>,
    /// Their slots and generations, the youngest last.
    to_check: Vec<(u32, u64)>,
    /// Slots that writers of before may still write, with their marks.
    abandoned: Vec<(u32, u64)>,
    /// Blocks that were chosen to leave, while they are copied.
    departing: HashMap<u32, u64>,
    writing: HashMap<(Namespace, BlockKey), u32>,
    /// Blocks that were published before the one that they follow on, while that is being written.
    pub(crate) waiting: Waiting,
    /// How many slots each session writes.
    writers: HashMap<u64, u64>,
    serial: u64,
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
        Self::of_life(words, geometry, order, 1)
    }

    fn of_life(words: W, geometry: Geometry, order: EvictionKind, life: u64) -> Self {
        let status = StoreStatus { capacity_bytes: geometry.blocks_bytes(), ..StoreStatus::default() };
        Self {
            words,
            geometry,
            chunks: Chunks::new(geometry.blocks_bytes()),
            orders: Orders::new(order),
            spaces: HashMap::default(),
            status,
            pins: HashMap::default(),
            journal: Journal::of_life(life),
            keeper: None,
            life,
            is_summed: false,
            summer: None,
            to_sum: VecDeque::new(),
            summing: 0,
            unchecked: HashMap::default(),
            to_check: Vec::new(),
            abandoned: Vec::new(),
            departing: HashMap::default(),
            writing: HashMap::default(),
            waiting: Waiting::default(),
            writers: HashMap::default(),
            serial: 0,
        }
    }

    /// From now on `keeper` is told of each block that is evicted, before its slot is given to another. Blocks that are
    /// removed are not told of.
    pub fn set_keeper(&mut self, keeper: Keeper) {
        self.keeper = Some(keeper);
    }

    /// Tells `visit` of every published block. It stays, and may leave or be removed as soon as this returns.
    pub fn each_block(&self, visit: &mut dyn FnMut(&Departing)) {
        for (slot, used) in self.chunks.used() {
            if used.writer.is_some() || self.is_unchecked(slot) {
                continue;
            }
            let generation = header::generation(&self.words, &self.geometry, slot);
            visit(&Departing { leaving: self.leaving(slot, used), slot, generation });
        }
    }

    /// What is told of a block if it leaves.
    pub(crate) fn leaving(&self, slot: u32, used: &Used) -> Leaving {
        let parent = self.parent_of(slot).and_then(|parent| self.chunks.get(parent)).map(|used| used.key);
        let offset = self.chunks.offset(slot);
        let sum = header::sum(&self.words, &self.geometry, slot);
        let &Used { namespace, key, bytes, is_fetched, .. } = used;
        Leaving { namespace, key, parent, offset, bytes, sum, is_fetched }
    }

    /// A slot for a block that `writer` is about to write. `was_touched` tells, and forgets, whether a block was read since
    /// it was asked last.
    ///
    /// # Errors
    /// [`StoreError::Bytes`].
    pub fn reserve(
        &mut self,
        writer: u64,
        wish: &Wish,
        was_touched: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Reserved, StoreError> {
        let &Wish { namespace, key, bytes, parent } = wish;
        if bytes == 0 || bytes > BLOCK_BYTES_MAX {
            return Err(StoreError::Bytes(bytes));
        }
        if self.find(namespace, &key).is_some() {
            return Ok(Reserved::Exists);
        }
        if self.writing.contains_key(&(namespace, key)) {
            return Ok(Reserved::Busy);
        }
        // It must not leave while room is made for its child.
        let parent = parent.and_then(|parent| self.expect_child(namespace, &parent));
        self.serial += 1;
        let used = Used {
            namespace,
            key,
            hash: key.hash(namespace),
            // At most 4 MiB: the cast loses nothing.
            bytes: bytes as u32,
            writer: Some(writer),
            sum: None,
            pins: 0,
            is_fetched: false,
            family: Family::new(self.serial, parent),
        };
        let class = class_bytes(bytes);
        let room = self.make_room_in_quota(namespace, class, was_touched);
        let Some(slot) = room.then(|| self.take(class, used, was_touched)).flatten() else {
            self.expect_no_child(parent);
            return Ok(Reserved::NoRoom);
        };
        self.writing.insert((namespace, key), slot);
        self.begin_writing(writer, slot, namespace);
        Ok(Reserved::Slot { slot, offset: self.chunks.offset(slot) })
    }

    /// Makes a block visible that its writer has written whole. False if the index has no room near its hash, or the key was
    /// swapped in meanwhile: the block is given up, as if it had been evicted at once.
    ///
    /// # Errors
    /// [`StoreError::NotReserved`], also for a slot that was taken without a key; it is still the writer's then.
    pub fn publish(
        &mut self,
        writer: u64,
        slot: u32,
        was_touched: &mut dyn FnMut(u32) -> bool,
    ) -> Result<bool, StoreError> {
        if self.chunks.get(slot).is_some_and(|used| used.key.is_empty()) {
            return Err(StoreError::NotReserved(slot));
        }
        let used = self.end_writing(writer, slot)?;
        if self.find(used.namespace, &used.key).is_some() {
            self.give_up(slot, &used);
            return Ok(false);
        }
        let content = self.content(slot, &used);
        let (group, class) = (self.group(used.namespace), self.chunks.class(slot));
        if !self.orders.insert(group, used.hash, slot, class) {
            self.give_up(slot, &used);
            return Ok(false);
        }
        header::publish(&self.words, &self.geometry, slot, &content);
        reach("kv-header-published");
        if !index::insert(&self.words, &self.geometry, used.hash, slot) {
            header::retire(&self.words, &self.geometry, slot);
            self.orders.remove(group, used.hash, slot);
            self.give_up(slot, &used);
            return Ok(false);
        }
        reach("kv-index-entered");
        self.is_published(slot, content.sum);
        let parent = self.adopt(slot);
        self.join_waiting(slot);
        self.forget_touches_above(slot, was_touched);
        let space = self.spaces.entry(used.namespace).or_default();
        space.blocks += 1;
        space.bytes += u64::from(used.bytes);
        self.status.blocks += 1;
        self.status.bytes += u64::from(used.bytes);
        let bytes = used.bytes;
        self.journal.add(|| Event::Stored { namespace: used.namespace, key: used.key, parent, bytes });
        Ok(true)
    }

    /// Notes that what `writer` writes comes from another node: see [`is_fetched`](Self::is_fetched).
    ///
    /// # Errors
    /// [`StoreError::NotReserved`].
    pub fn fetched(&mut self, writer: u64, slot: u32) -> Result<(), StoreError> {
        let its = self.chunks.get_mut(slot).filter(|used| used.writer == Some(writer));
        its.ok_or(StoreError::NotReserved(slot))?.is_fetched = true;
        Ok(())
    }

    /// Whether the block of a key came from another node: nobody has put it or swapped it in here.
    pub fn is_fetched(&self, namespace: Namespace, key: &BlockKey) -> bool {
        let used = self.find(namespace, key).and_then(|slot| self.chunks.get(slot));
        used.is_some_and(|used| used.is_fetched)
    }

    /// Gives a reserved slot back unwritten.
    ///
    /// # Errors
    /// [`StoreError::NotReserved`].
    pub fn abort(&mut self, writer: u64, slot: u32) -> Result<(), StoreError> {
        let used = self.end_writing(writer, slot)?;
        self.give_up(slot, &used);
        Ok(())
    }

    /// Gives back all that a session has reserved or pinned; it has ended.
    pub fn release(&mut self, session: u64) {
        for (slot, count) in self.pins.remove(&session).unwrap_or_default() {
            self.unpin_slot(slot, count);
        }
        if self.writers.remove(&session).is_none_or(|count| count == 0) {
            return;
        }
        let its = self.chunks.used().filter(|(_, used)| used.writer == Some(session));
        let slots: Vec<u32> = its.map(|(slot, _)| slot).collect();
        for slot in slots {
            // It is the session's, by the line above.
            let _ = self.abort(session, slot);
        }
        self.writers.remove(&session);
    }

    /// Removes a block; whether it was there. One that is pinned stays.
    pub fn remove(&mut self, namespace: Namespace, key: &BlockKey) -> bool {
        let slot = self.find(namespace, key).filter(|&slot| !self.is_pinned(slot));
        if let Some(slot) = slot {
            self.forget(slot);
        }
        slot.is_some()
    }

    /// Removes all blocks of a namespace but those that are pinned; returns how many.
    pub fn clear(&mut self, namespace: Namespace) -> u64 {
        let slots: Vec<u32> =
            self.published(namespace).filter(|(_, used)| used.pins == 0).map(|(slot, _)| slot).collect();
        for &slot in &slots {
            self.forget(slot);
        }
        slots.len() as u64
    }

    /// Sets what a namespace may have. What is over a new quota leaves when the namespace next wants room.
    pub fn set_limits(&mut self, namespace: Namespace, limits: Limits) {
        let before = self.group(namespace);
        self.spaces.entry(namespace).or_default().limits = limits;
        let after = self.group(namespace);
        if before == after {
            return;
        }
        let childless = self.published(namespace).filter(|(_, used)| !used.family.has_child());
        let moved: Vec<(u32, u64)> = childless.map(|(slot, used)| (slot, used.hash)).collect();
        for (slot, hash) in moved {
            self.orders.remove(before, hash, slot);
            if !self.orders.insert(after, hash, slot, self.chunks.class(slot)) {
                self.forget(slot);
            }
        }
    }

    /// What it holds.
    pub const fn status(&self) -> StoreStatus {
        self.status
    }

    /// How it is laid out.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// What a namespace holds.
    pub fn space(&self, namespace: Namespace) -> SpaceStatus {
        self.spaces.get(&namespace).copied().unwrap_or_default()
    }

    /// The length of a block, if it is there, also of one of before that is not checked.
    pub fn length(&self, namespace: Namespace, key: &BlockKey) -> Option<u32> {
        self.chunks.get(self.find(namespace, key)?).map(|used| used.bytes)
    }

    /// The block that one follows on, if both are there.
    pub fn parent(&self, namespace: Namespace, key: &BlockKey) -> Option<BlockKey> {
        let parent = self.parent_of(self.find(namespace, key)?)?;
        self.chunks.get(parent).map(|used| used.key)
    }

    /// One block, if it is there.
    pub fn inspect(&self, namespace: Namespace, key: &BlockKey) -> Option<Inspected> {
        let slot = self.find(namespace, key)?;
        let used = self.chunks.get(slot)?;
        let key_of = |slot: u32| self.chunks.get(slot).map(|used| used.key);
        let block = header::read(&self.words, &self.geometry, slot, namespace, key)?;
        Some(Inspected {
            slot,
            offset: block.offset,
            bytes: block.bytes,
            slot_bytes: self.chunks.class(slot),
            generation: block.generation,
            pins: used.pins,
            parent: self.parent_of(slot).and_then(key_of),
            children: self.children_of(slot).into_iter().filter_map(key_of).collect(),
        })
    }

    /// Bytes of a slot in use.
    pub fn slot_bytes(&self, slot: u32) -> u64 {
        self.chunks.class(slot)
    }

    /// What was stored and removed after the event of number `after`, `limit` at most. The first call starts the record.
    pub fn events(&mut self, after: u64, limit: usize) -> Events {
        self.journal.after(after, limit)
    }

    pub(crate) fn find(&self, namespace: Namespace, key: &BlockKey) -> Option<u32> {
        let found = index::find(&self.words, &self.geometry, key.hash(namespace), |slot| {
            header::read(&self.words, &self.geometry, slot, namespace, key).is_some()
        });
        found.or_else(|| self.unchecked.get(&(namespace, *key)).copied())
    }

    pub(crate) fn group(&self, namespace: Namespace) -> Group {
        self.space(namespace).limits.group(namespace)
    }

    fn published(&self, namespace: Namespace) -> impl Iterator<Item = (u32, &Used)> {
        self.chunks.used().filter(move |(_, used)| used.namespace == namespace && used.writer.is_none())
    }

    /// Counts a child that is going to be written on a block, published or being written itself.
    pub(crate) fn expect_child(&mut self, namespace: Namespace, parent: &BlockKey) -> Option<Kin> {
        let written = self.writing.get(&(namespace, *parent)).copied();
        let slot = self.find(namespace, parent).or(written)?;
        let used = self.chunks.get_mut(slot)?;
        used.family.expected += 1;
        Some(used.family.kin(slot))
    }

    /// The child is not going to be written after all, or is there.
    pub(crate) fn expect_no_child(&mut self, parent: Option<Kin>) {
        if let Some(used) = parent.and_then(|kin| self.kin_mut(kin)) {
            used.family.expected -= 1;
        }
    }

    /// The slot is written from now on, and the books say so.
    fn begin_writing(&mut self, writer: u64, slot: u32, namespace: Namespace) {
        let class = self.chunks.class(slot);
        *self.writers.entry(writer).or_default() += 1;
        self.spaces.entry(namespace).or_default().slot_bytes += class;
        self.status.slot_bytes += class;
        self.status.reserved += 1;
        let chunk = self.chunks.chunk_of(slot);
        let word = self.geometry.chunk(chunk);
        if self.words.load(word) != class {
            self.words.store(word, class);
        }
        reach("kv-chunk-noted");
        header::reserve(&self.words, &self.geometry, slot, self.mark(writer), self.floor());
        reach("kv-reserved");
    }

    /// The number by which a node that comes later knows a writer: who may still be writing holds the lock of this number on
    /// the blocks file. That of threads of the node is the largest there is.
    pub const fn mark(&self, writer: u64) -> u64 {
        if writer >= NODE_WRITER_FIRST {
            return NODE_MARK;
        }
        // A node that has more sessions takes locks again: then a slot waits for the wrong one.
        self.life << MARK_BITS | (writer & ((1 << MARK_BITS) - 1))
    }

    /// No generation below this is given.
    const fn floor(&self) -> u64 {
        self.life << LIFE_BITS
    }

    /// What is published of a slot.
    fn content(&mut self, slot: u32, used: &Used) -> Content {
        let offset = self.chunks.offset(slot);
        let mut sum = used.sum;
        if sum.is_none()
            && let Some(summer) = &mut self.summer
        {
            sum = summer(offset, used.bytes);
        }
        let parent = used.family.parent().filter(|kin| self.published_kin(*kin).is_some());
        let parent = parent.map(|kin| {
            let slot = kin.slot();
            (slot, header::generation(&self.words, &self.geometry, slot))
        });
        Content {
            namespace: used.namespace,
            key: used.key,
            offset,
            bytes: used.bytes,
            sum,
            parent,
            serial: used.family.serial(),
            floor: self.floor(),
        }
    }

    /// The slot is no longer written; what lies in it now.
    fn end_writing(&mut self, writer: u64, slot: u32) -> Result<Used, StoreError> {
        let its = self.chunks.get_mut(slot).filter(|used| used.writer == Some(writer));
        let used = its.ok_or(StoreError::NotReserved(slot))?;
        used.writer = None;
        let used = *used;
        if !used.key.is_empty() {
            self.writing.remove(&(used.namespace, used.key));
        }
        if let Some(count) = self.writers.get_mut(&writer) {
            *count -= 1;
        }
        self.status.reserved -= 1;
        Ok(used)
    }

    /// Frees a slot that was written, or was to be, and is not going to be published.
    fn give_up(&mut self, slot: u32, used: &Used) {
        self.wait_no_longer(used);
        self.expect_no_child(used.family.parent());
        self.give(slot);
    }

    /// Frees a slot that is not in the books.
    pub(crate) fn give(&mut self, slot: u32) {
        let class = self.chunks.class(slot);
        let chunk = self.chunks.chunk_of(slot);
        if let Some(used) = self.chunks.give(slot) {
            self.spaces.entry(used.namespace).or_default().slot_bytes -= class;
            self.status.slot_bytes -= class;
            header::release(&self.words, &self.geometry, slot);
            if self.chunks.class_of_chunk(chunk) == 0 {
                self.words.store(self.geometry.chunk(chunk), 0);
            }
        }
    }
}
