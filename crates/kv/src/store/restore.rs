//! What a node finds in the books of the one before it: blocks that count, and slots that somebody may still write.
//!
//! See `docs/decisions/2026-11-22-kv-restart.md`.

use super::{NODE_MARK, Store, Used};
use crate::family::Family;
use crate::header::{self, Content, Left};
use crate::index;
use crate::key::{BlockKey, Namespace};
use crate::layout::{BUCKET_WORDS, Geometry};
use crate::store::Limits;
use crate::words::{Point, Words};
use hinterland_os::fault_point::reach;
use hinterland_policy::EvictionKind;
use std::collections::HashMap;

/// The writer of slots that writers of before may still write: no session has this number.
const ABANDONED: u64 = super::NODE_WRITER_FIRST - 1;

/// What is known beside the books.
pub struct Restoring<'node> {
    /// Namespaces that blocks may have, and what is set for each.
    pub namespaces: &'node HashMap<Namespace, Limits>,
    /// Whether somebody may still write slots that were given to the writer with this mark; see [`Store::mark`].
    pub is_held: &'node mut dyn FnMut(u64) -> bool,
}

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Restored {
    /// Blocks that can be found as soon as their bytes are checked.
    pub blocks: u64,
    /// Headers that said to be of a block and were not, or had no checksum yet.
    pub dropped: u64,
    /// Slots that writers of before may still write.
    pub abandoned: u64,
}

/// A block of before.
struct Found {
    slot: u32,
    generation: u64,
    content: Content,
    parent: Option<(u32, u32)>,
}

impl<W: Words> Store<W> {
    /// The store whose books a node of before has left; its [`Geometry`] must [fit](Geometry::fits). Blocks are not in the index
    /// before they are [`checked`](Self::checked).
    pub fn restore(
        words: W,
        geometry: Geometry,
        order: EvictionKind,
        restoring: &mut Restoring<'_>,
    ) -> (Self, Restored) {
        let life = geometry.begin_life(&words);
        let mut store = Self::of_life(words, geometry, order, life);
        let mut restored = Restored::default();
        let mut found = Vec::new();
        for chunk in 0..store.chunks.count() {
            store.read_chunk(chunk, restoring, &mut restored, &mut found);
        }
        // Each in the place of what it was, the oldest first.
        found.sort_unstable_by_key(|found| (found.content.serial, found.slot));
        let found = store.one_a_key(found, &mut restored);
        reach("kv-restore-read");
        store.clear_index();
        reach("kv-restore-cleared");
        for found in &found {
            store.take_back(found);
        }
        for chunk in 0..store.chunks.count() {
            store.end_chunk(chunk);
        }
        for found in &found {
            store.relate(found);
        }
        for found in &found {
            store.order(found.slot, found.generation);
        }
        store.serial = found.last().map_or(0, |found| found.content.serial);
        restored.blocks = store.status.blocks;
        let all = store.geometry.books_bytes() as usize / 8;
        store.words.write_back(0, all, Point::NewBooks);
        store.words.fence(Point::NewBooks);
        (store, restored)
    }

    /// Frees slots that nobody writes any more; how many are left.
    pub fn free_abandoned(&mut self, is_held: &mut dyn FnMut(u64) -> bool) -> usize {
        let (held, free): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.abandoned).into_iter().partition(|&(_, mark)| is_held(mark));
        self.abandoned = held;
        for (slot, _) in free {
            self.status.reserved -= 1;
            self.give(slot);
        }
        self.abandoned.len()
    }

    /// Slots that writers of before may still write.
    pub const fn abandoned(&self) -> usize {
        self.abandoned.len()
    }

    /// Reads the headers of one chunk.
    fn read_chunk(
        &mut self,
        chunk: u32,
        restoring: &mut Restoring<'_>,
        restored: &mut Restored,
        found: &mut Vec<Found>,
    ) {
        let class = self.words.load(self.geometry.chunk(chunk));
        let Some(slots) = self.chunks.restore(chunk, class) else { return };
        for slot in slots {
            match header::left(&self.words, &self.geometry, slot) {
                Left::Nothing => {}
                Left::Writing(mark) if mark != NODE_MARK && (restoring.is_held)(mark) => {
                    self.abandon(slot, mark);
                    restored.abandoned += 1;
                }
                Left::Writing(_) => header::release(&self.words, &self.geometry, slot),
                Left::Block { generation, content, parent }
                    if content.offset == self.chunks.offset(slot)
                        && (1..=class).contains(&u64::from(content.bytes))
                        && restoring.namespaces.contains_key(&content.namespace) =>
                {
                    let limits = restoring.namespaces[&content.namespace];
                    self.spaces.entry(content.namespace).or_default().limits = limits;
                    found.push(Found { slot, generation, content, parent });
                }
                Left::Block { .. } | Left::Damaged => {
                    header::renew(&self.words, &self.geometry, slot, self.floor());
                    restored.dropped += 1;
                }
            }
        }
    }

    /// Leaves a slot alone that somebody may still write.
    fn abandon(&mut self, slot: u32, mark: u64) {
        let used = Used {
            namespace: Namespace(0),
            key: BlockKey::NONE,
            hash: 0,
            bytes: 0,
            writer: Some(ABANDONED),
            sum: None,
            pins: 0,
            is_fetched: false,
            family: Family::new(0, None),
        };
        self.chunks.restore_slot(slot, used);
        let class = self.chunks.class(slot);
        self.spaces.entry(Namespace(0)).or_default().slot_bytes += class;
        self.status.slot_bytes += class;
        self.status.reserved += 1;
        self.abandoned.push((slot, mark));
    }

    /// Of two blocks of one key, which a swap that was cut short leaves, the one that readers found, else the later one.
    fn one_a_key(&mut self, found: Vec<Found>, restored: &mut Restored) -> Vec<Found> {
        let mut by_key: HashMap<(Namespace, BlockKey), usize> = HashMap::new();
        let mut is_kept = vec![true; found.len()];
        for (index, later) in found.iter().enumerate() {
            let key = (later.content.namespace, later.content.key);
            let Some(earlier) = by_key.insert(key, index) else { continue };
            let hash = key.1.hash(key.0);
            let slots = [found[earlier].slot, later.slot];
            let named = index::find(&self.words, &self.geometry, hash, |slot| slots.contains(&slot));
            let goes = if named == Some(slots[0]) {
                by_key.insert(key, earlier);
                index
            } else {
                earlier
            };
            is_kept[goes] = false;
            header::renew(&self.words, &self.geometry, found[goes].slot, self.floor());
            restored.dropped += 1;
        }
        found.into_iter().zip(is_kept).filter_map(|(found, is_kept)| is_kept.then_some(found)).collect()
    }

    /// What stands in it may name any slot.
    fn clear_index(&self) {
        for bucket in 0..self.geometry.buckets() {
            let first = self.geometry.bucket(bucket);
            for word in (first..first + BUCKET_WORDS).filter(|&word| self.words.load(word) != 0) {
                self.words.store(word, 0);
            }
        }
    }

    /// Puts a block into its slot again.
    fn take_back(&mut self, found: &Found) {
        let Content { namespace, key, bytes, serial, .. } = found.content;
        let hash = key.hash(namespace);
        let family = Family::new(serial, None);
        let used =
            Used { namespace, key, hash, bytes, writer: None, sum: None, pins: 0, is_fetched: false, family };
        self.chunks.restore_slot(found.slot, used);
        let class = self.chunks.class(found.slot);
        let space = self.spaces.entry(namespace).or_default();
        space.blocks += 1;
        space.bytes += u64::from(bytes);
        space.slot_bytes += class;
        self.status.slot_bytes += class;
        self.status.blocks += 1;
        self.status.bytes += u64::from(bytes);
        self.status.unchecked += 1;
        self.unchecked.insert((namespace, key), found.slot);
    }

    /// Puts a block behind its parent, if that is what it was.
    fn relate(&mut self, found: &Found) {
        let Some((parent, generation)) = found.parent else { return };
        let is_there = self
            .chunks
            .get(parent)
            .is_some_and(|used| used.writer.is_none() && used.family.serial() < found.content.serial);
        // The low half.
        let now = header::generation(&self.words, &self.geometry, parent) as u32;
        if is_there && now == generation {
            self.link_restored(found.slot, parent);
            self.follow(found.slot);
        }
    }

    /// Puts a block into the order in which it may leave.
    fn order(&mut self, slot: u32, generation: u64) {
        let Some(used) = self.chunks.get(slot).copied() else { return };
        let class = self.chunks.class(slot);
        let group = self.group(used.namespace);
        if !used.family.has_child() && !self.orders.insert(group, used.hash, slot, class) {
            // Another block has its hash, and one of the two must be able to leave.
            self.forget(slot);
        } else {
            self.to_check.push((slot, generation));
        }
    }

    /// A chunk is as it was.
    fn end_chunk(&mut self, chunk: u32) {
        let had_class = self.words.load(self.geometry.chunk(chunk)) != 0;
        let has_class = self.chunks.class_of_chunk(chunk) != 0 && self.chunks.restored(chunk);
        if had_class && !has_class {
            self.words.store(self.geometry.chunk(chunk), 0);
        }
    }
}
