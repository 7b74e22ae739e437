//! Which block follows on which: a child is of no use without its parent, so it leaves first.

use crate::store::{Store, Used};
use crate::words::Words;

/// Blocks that wait for one parent: more than follow on one block anywhere.
const WAITING_MAX: usize = 1024;

/// A block at a moment: another one in the same slot has another serial number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kin {
    slot: u32,
    serial: u64,
}

impl Kin {
    pub(crate) const fn slot(self) -> u32 {
        self.slot
    }
}

/// The relations of one block. Children are a list through their slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    serial: u64,
    /// While the block is written, the parent that it is going to have.
    parent: Option<Kin>,
    first_child: Option<u32>,
    next: Option<u32>,
    previous: Option<u32>,
    /// Children that are being written.
    pub(crate) expected: u32,
}

impl Family {
    pub(crate) const fn new(serial: u64, parent: Option<Kin>) -> Self {
        Self { serial, parent, first_child: None, next: None, previous: None, expected: 0 }
    }

    pub(crate) const fn kin(&self, slot: u32) -> Kin {
        Kin { slot, serial: self.serial }
    }

    pub(crate) const fn parent(&self) -> Option<Kin> {
        self.parent
    }

    /// A number that grows with each block that is reserved.
    pub(crate) const fn serial(&self) -> u64 {
        self.serial
    }

    pub(crate) const fn has_child(&self) -> bool {
        self.first_child.is_some()
    }
}

impl<W: Words> Store<W> {
    /// Makes a block that was just published the child of the parent that it was to have; the parent's key. Without
    /// one, or if it has gone meanwhile, the block is the first of its prefix. If it is not there yet, the block waits for it.
    pub(crate) fn adopt(&mut self, slot: u32) -> Option<crate::BlockKey> {
        let kin = self.chunks.get(slot)?.family.parent?;
        self.expect_no_child(Some(kin));
        if self.published_kin(kin).is_some() {
            return self.follow(slot);
        }
        self.change(slot, |used| used.family.parent = None);
        self.wait_for(kin, slot);
        self.parent_of(slot).and_then(|parent| self.chunks.get(parent)).map(|parent| parent.key)
    }

    /// A block that was published before its parent, if that is still being written, follows on nothing until the parent's key has a block.
    fn wait_for(&mut self, parent: Kin, slot: u32) {
        let Some(&mut Used { namespace, key, .. }) = self.kin_mut(parent) else { return };
        let Some(kin) = self.chunks.get(slot).map(|used| used.family.kin(slot)) else { return };
        let waiting = self.waiting.entry((namespace, key)).or_default();
        if waiting.len() < WAITING_MAX {
            waiting.push(kin);
        }
        // Somebody else may have put a copy.
        if let Some(there) = self.find(namespace, &key) {
            self.join_waiting(there);
        }
    }

    /// Puts blocks that were waiting for this one behind it. In its header such a block stays the first of its prefix: a node that is killed
    /// in the middle of a change there would lose it.
    pub(crate) fn join_waiting(&mut self, slot: u32) {
        let Some(&used) = self.chunks.get(slot) else { return };
        for child in self.waiting.remove(&(used.namespace, used.key)).unwrap_or_default() {
            let is_there = self.published_kin(child).is_some_and(|child| child.family.parent.is_none());
            if is_there && !self.follows_on(slot, child.slot) {
                self.change(child.slot, |child| child.family.parent = Some(used.family.kin(slot)));
                self.follow(child.slot);
            }
        }
    }

    /// Whether a block follows on another one, or is that, with any number of blocks in between.
    fn follows_on(&self, slot: u32, ancestor: u32) -> bool {
        std::iter::successors(Some(slot), |&at| self.parent_of(at)).any(|at| at == ancestor)
    }

    /// The block of a key is not going to be published by who was writing it: nothing waits for that any more.
    pub(crate) fn wait_no_longer(&mut self, used: &Used) {
        if !self.waiting.is_empty() {
            self.waiting.remove(&(used.namespace, used.key));
        }
    }

    /// Puts a block behind its parent, if that is there and published; the parent's key.
    pub(crate) fn follow(&mut self, slot: u32) -> Option<crate::BlockKey> {
        let kin = self.chunks.get(slot)?.family.parent?;
        let parent = self.published_kin(kin)?;
        let first = parent.family.first_child;
        if first.is_none() {
            let group = self.group(parent.namespace);
            self.orders.remove(group, parent.hash, kin.slot);
        }
        self.change(kin.slot, |parent| parent.family.first_child = Some(slot));
        self.change(slot, |used| used.family.next = first);
        if let Some(first) = first {
            self.change(first, |sibling| sibling.family.previous = Some(slot));
        }
        Some(parent.key)
    }

    /// The block at that moment, if it is still there, and published.
    pub(crate) fn published_kin(&self, kin: Kin) -> Option<Used> {
        let is_it = |used: &&Used| used.family.serial == kin.serial && used.writer.is_none();
        self.chunks.get(kin.slot).filter(is_it).copied()
    }

    /// Makes a block that was restored one that is going to [`follow`](Self::follow) on the block of another slot.
    pub(crate) fn link_restored(&mut self, slot: u32, parent: u32) {
        if let Some(kin) = self.chunks.get(parent).map(|used| used.family.kin(parent)) {
            self.change(slot, |used| used.family.parent = Some(kin));
        }
    }

    /// Takes a block out of its family. Returns its parent if that has no child any more.
    pub(crate) fn leave_family(&mut self, slot: u32) -> Option<u32> {
        for child in self.children_of(slot) {
            self.change(child, |used| {
                used.family.parent = None;
                used.family.next = None;
                used.family.previous = None;
            });
        }
        let family = self.chunks.get(slot)?.family;
        self.change(slot, |used| used.family.first_child = None);
        let parent = self.parent_of(slot)?;
        if let Some(next) = family.next {
            self.change(next, |used| used.family.previous = family.previous);
        }
        match family.previous {
            Some(previous) => self.change(previous, |used| used.family.next = family.next),
            None => self.change(parent, |used| used.family.first_child = family.next),
        }
        self.chunks.get(parent).filter(|used| !used.family.has_child()).map(|_| parent)
    }

    /// The block before this one in its prefix.
    pub(crate) fn parent_of(&self, slot: u32) -> Option<u32> {
        let kin = self.chunks.get(slot)?.family.parent?;
        self.chunks.get(kin.slot).filter(|used| used.family.serial == kin.serial).map(|_| kin.slot)
    }

    /// Blocks that follow on this one.
    pub(crate) fn children_of(&self, slot: u32) -> Vec<u32> {
        let first = self.chunks.get(slot).and_then(|used| used.family.first_child);
        std::iter::successors(first, |&child| self.chunks.get(child).and_then(|used| used.family.next))
            .collect()
    }

    /// The block, and all that follow on it.
    pub(crate) fn descent_of(&self, slot: u32) -> Vec<u32> {
        let mut all = vec![slot];
        let mut at = 0;
        while at < all.len() {
            all.extend(self.children_of(all[at]));
            at += 1;
        }
        all
    }

    /// Forgets that the blocks before this one in its prefix were read: who read or wrote this one read them on the way.
    /// Where one was not read, those before it were not either, or by others, which counts.
    pub(crate) fn forget_touches_above(&self, slot: u32, was_touched: &mut dyn FnMut(u32) -> bool) {
        let mut at = slot;
        while let Some(parent) = self.parent_of(at) {
            if !was_touched(parent) {
                return;
            }
            at = parent;
        }
    }

    pub(crate) fn kin_mut(&mut self, kin: Kin) -> Option<&mut Used> {
        self.chunks.get_mut(kin.slot).filter(|used| used.family.serial == kin.serial)
    }

    fn change(&mut self, slot: u32, change: impl FnOnce(&mut Used)) {
        if let Some(used) = self.chunks.get_mut(slot) {
            change(used);
        }
    }
}
