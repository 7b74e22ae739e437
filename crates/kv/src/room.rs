//! Room: what leaves when some is wanted, and what may not.

use crate::chunks::Chunks;
use crate::events::Event;
use crate::header;
use crate::index;
use crate::key::{BlockKey, Namespace};
use crate::order::Group;
use crate::store::{Store, Used};
use crate::words::Words;
use hinterland_os::fault_point::reach;
use std::collections::HashSet;

/// Blocks that leave for one of another size before it goes into a slot of any larger size, or else a chunk is emptied.
const EVICTIONS_MAX: usize = 64;
/// A slot so much larger than a block serves before more blocks leave.
const LARGER_SLOT: u64 = 8;
/// Pinned slots may have this part of all bytes: the rest is for those who write.
const PINNED_SHARE: u64 = 2;

impl<W: Words> Store<W> {
    /// Keeps a block from leaving until the session unpins it or ends; false if it is not there, or half of the memory is
    /// pinned. Pins count.
    pub fn pin(&mut self, session: u64, namespace: Namespace, key: &BlockKey) -> bool {
        let Some(slot) = self.find(namespace, key) else { return false };
        let class = self.chunks.class(slot);
        let room = self.status.capacity_bytes / PINNED_SHARE;
        let Some(used) = self.chunks.get_mut(slot) else { return false };
        if used.pins == 0 {
            if self.status.pinned_bytes + class > room {
                return false;
            }
            self.status.pinned_bytes += class;
        }
        used.pins += 1;
        *self.pins.entry(session).or_default().entry(slot).or_default() += 1;
        true
    }

    /// Takes one pin of the session back; false if it has none on this block.
    pub fn unpin(&mut self, session: u64, namespace: Namespace, key: &BlockKey) -> bool {
        let Some(slot) = self.find(namespace, key) else { return false };
        let Some(its) = self.pins.get_mut(&session) else { return false };
        let Some(count) = its.get_mut(&slot) else { return false };
        *count -= 1;
        if *count == 0 {
            its.remove(&slot);
        }
        self.unpin_slot(slot, 1);
        true
    }

    pub(crate) fn unpin_slot(&mut self, slot: u32, count: u32) {
        let class = self.chunks.class(slot);
        if let Some(used) = self.chunks.get_mut(slot) {
            used.pins -= count;
            if used.pins == 0 {
                self.status.pinned_bytes -= class;
            }
        }
    }

    pub(crate) fn is_pinned(&self, slot: u32) -> bool {
        self.chunks.get(slot).is_some_and(|used| used.pins > 0)
    }

    /// Evicts of a namespace until `class` more bytes are within its quota; false if that cannot be.
    pub(crate) fn make_room_in_quota(
        &mut self,
        namespace: Namespace,
        class: u64,
        was_touched: &mut dyn FnMut(u32) -> bool,
    ) -> bool {
        loop {
            let space = self.space(namespace);
            let Some(quota) = space.limits.quota_bytes else { return true };
            if space.slot_bytes + class <= quota {
                return true;
            }
            if class > quota || !self.evict_in(self.group(namespace), was_touched) {
                return false;
            }
        }
    }

    /// Evicts until the index has room for one more block; false if that cannot be. Blocks that are small enough fill it
    /// before they fill the memory.
    fn make_room_in_index(&mut self, was_touched: &mut dyn FnMut(u32) -> bool) -> bool {
        while self.status.blocks + self.status.reserved >= self.geometry.blocks_max() {
            if !self.evict_one(was_touched) {
                return false;
            }
        }
        true
    }

    /// Takes a slot of a class; blocks leave for it if they must.
    pub(crate) fn take(
        &mut self,
        class: u64,
        used: Used,
        was_touched: &mut dyn FnMut(u32) -> bool,
    ) -> Option<u32> {
        if !self.make_room_in_index(was_touched) {
            return None;
        }
        let quota_left = self.quota_left(used.namespace);
        for _ in 0..EVICTIONS_MAX {
            let slot = self.chunks.take(class, used);
            if slot.is_some() {
                return slot;
            }
            // Where there are more sizes than chunks, a size that is rare has none.
            let larger = self.chunks.take_larger(class, (LARGER_SLOT * class).min(quota_left), used);
            if larger.is_some() {
                return larger;
            }
            if !self.evict_one(was_touched) {
                break;
            }
        }
        let slot = self.chunks.take(class, used);
        slot.or_else(|| self.chunks.take_larger(class, quota_left, used)).or_else(|| {
            self.empty_a_chunk(class);
            self.chunks.take(class, used)
        })
    }

    /// Bytes that a namespace may have beside what it has.
    fn quota_left(&self, namespace: Namespace) -> u64 {
        let space = self.space(namespace);
        space.limits.quota_bytes.map_or(u64::MAX, |quota| quota.saturating_sub(space.slot_bytes))
    }

    /// Evicts the block whose turn it is; false if there is none.
    fn evict_one(&mut self, was_touched: &mut dyn FnMut(u32) -> bool) -> bool {
        self.orders.givers().into_iter().any(|group| self.evict_in(group, was_touched))
    }

    /// Evicts the block of a group whose turn it is. One that was read gets another round; each reading counts once, so this
    /// ends.
    fn evict_in(&mut self, group: Group, was_touched: &mut dyn FnMut(u32) -> bool) -> bool {
        match self.victim(group, was_touched) {
            Some(slot) => {
                self.evict(group, slot);
                true
            }
            None => false,
        }
    }

    /// Takes the block of a group whose turn it is out of its order.
    pub(crate) fn victim(&mut self, group: Group, was_touched: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        loop {
            let chunks = &self.chunks;
            let mut is_free =
                |slot| chunks.get(slot).is_some_and(|used| used.pins == 0 && used.family.expected == 0);
            let slot = self.orders.victim(group, &mut is_free)?;
            if !was_touched(slot) {
                return Some(slot);
            }
            self.forget_touches_above(slot, was_touched);
            if let Some(used) = self.chunks.get(slot) {
                self.orders.again(group, used.hash, slot, self.chunks.class(slot));
            }
        }
    }

    /// Evicts a block that its order has given; its parent is next, if it was the last child and nobody reads that.
    fn evict(&mut self, group: Group, slot: u32) {
        self.tell_eviction(slot);
        self.leave(group, slot);
    }

    /// The same for one that was told of.
    pub(crate) fn leave(&mut self, group: Group, slot: u32) {
        let parent = self.parent_of(slot).and_then(|parent| self.chunks.get(parent)).map(|used| used.hash);
        self.forget(slot);
        if let Some(hash) = parent {
            self.orders.is_next(group, hash);
        }
    }

    /// Empties the chunk of another class that holds least and has nothing that must stay.
    fn empty_a_chunk(&mut self, class: u64) {
        for number in self.chunks.others_by_use(class) {
            let Some(slots) = self.all_that_would_leave(number) else { continue };
            for slot in slots {
                self.tell_eviction(slot);
                self.forget(slot);
            }
            return;
        }
    }

    /// What a chunk holds and what follows on it; `None` if some of it is pinned or being written.
    fn all_that_would_leave(&self, number: u32) -> Option<HashSet<u32>> {
        let of_chunk: Vec<u32> = self.chunks.used_of(number).map(|(slot, _)| slot).collect();
        let mut all = HashSet::new();
        for slot in of_chunk {
            if !all.contains(&slot) {
                all.extend(self.descent_of(slot));
            }
        }
        let must_stay = |used: &Used| used.writer.is_some() || used.pins > 0 || used.family.expected > 0;
        let is_free = |slot: &u32| Chunks::get(&self.chunks, *slot).is_some_and(|used| !must_stay(used));
        all.iter().all(is_free).then_some(all)
    }

    /// Counts a block that is about to be evicted; whoever keeps it elsewhere can still copy it.
    fn tell_eviction(&mut self, slot: u32) {
        self.count_eviction(slot);
        let Some(used) = self.chunks.get(slot).copied() else { return };
        if self.is_unchecked(slot) {
            // Its bytes may be wrong, and whoever kept them would take them for right.
            return;
        }
        let leaving = self.leaving(slot, &used);
        if let Some(keep) = &mut self.keeper {
            keep(&leaving);
        }
    }

    pub(crate) fn count_eviction(&mut self, slot: u32) {
        self.status.evictions += 1;
        if let Some(namespace) = self.chunks.get(slot).map(|used| used.namespace) {
            self.spaces.entry(namespace).or_default().evictions += 1;
        }
    }

    /// Takes a published block out of the books and the order, and frees its slot.
    pub(crate) fn forget(&mut self, slot: u32) {
        let Some(used) = self.chunks.get(slot).copied() else { return };
        index::remove(&self.words, &self.geometry, used.hash, slot);
        reach("kv-index-left");
        self.retire(slot);
    }

    /// Frees the slot of a published block that is out of the index.
    pub(crate) fn retire(&mut self, slot: u32) {
        let Some(used) = self.chunks.get(slot).copied() else { return };
        header::retire(&self.words, &self.geometry, slot);
        reach("kv-header-retired");
        self.is_checked_or_gone(slot, &used);
        let group = self.group(used.namespace);
        self.orders.remove(group, used.hash, slot);
        if let Some(parent) = self.leave_family(slot)
            && let Some(hash) = self.chunks.get(parent).map(|used| used.hash)
            && !self.orders.insert(group, hash, parent, self.chunks.class(parent))
        {
            // Another block has its hash, and one of the two must be able to leave.
            self.forget(parent);
        }
        let space = self.spaces.entry(used.namespace).or_default();
        space.blocks -= 1;
        space.bytes -= u64::from(used.bytes);
        self.status.blocks -= 1;
        self.status.bytes -= u64::from(used.bytes);
        self.journal.add(|| Event::Removed { namespace: used.namespace, key: used.key });
        self.give(slot);
    }
}
