//! Which block follows on which: a child is of no use without its parent, so it leaves first.

use crate::store::{Store, Used};
use crate::words::Words;
use std::collections::HashSet;

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
        self.waiting.add(namespace, key, kin);
        // Somebody else may have put a copy.
        if let Some(there) = self.find(namespace, &key) {
            self.join_waiting(there);
        }
    }

    /// Puts blocks that were waiting for this one behind it. In its header such a block stays the first of its prefix: a node that is killed
    /// in the middle of a change there would lose it.
    pub(crate) fn join_waiting(&mut self, slot: u32) {
        let Some(&used) = self.chunks.get(slot) else { return };
        let children = self.waiting.take(used.namespace, used.key);
        let above = self.above(slot, &children);
        for child in children.into_iter().filter(|child| !above.contains(&child.slot)) {
            if self.published_kin(child).is_some_and(|child| child.family.parent.is_none()) {
                self.change(child.slot, |child| child.family.parent = Some(used.family.kin(slot)));
                self.follow(child.slot);
            }
        }
    }

    /// Slots of those of some blocks that this one follows on, with any number of blocks in between, and its own. A prefix may be very long:
    /// it is walked along once for all of them, and not at all if nothing follows on any.
    fn above(&self, slot: u32, some: &[Kin]) -> HashSet<u32> {
        let is_followed =
            |at: &u32| *at == slot || self.chunks.get(*at).is_some_and(|used| used.family.has_child());
        let some: HashSet<u32> = some.iter().map(|kin| kin.slot).filter(is_followed).collect();
        if some.is_empty() {
            return some;
        }
        std::iter::successors(Some(slot), |&at| self.parent_of(at)).filter(|at| some.contains(at)).collect()
    }

    /// The block of a key is not going to be published by who was writing it: nothing waits for that any more.
    pub(crate) fn wait_no_longer(&mut self, used: &Used) {
        self.waiting.take(used.namespace, used.key);
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
        #[cfg(test)]
        tests::STEPS.set(tests::STEPS.get() + 1);
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

#[cfg(test)]
mod tests {
    use crate::waiting::ALL_MAX;
    use crate::{BlockKey, Expects, Namespace, Plain, Reserved, Store, Swapped, Wish};
    use hinterland_policy::EvictionKind;
    use std::cell::Cell;

    std::thread_local! {
        /// Steps from a block to its parent.
        pub(super) static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    const ONE: Namespace = Namespace(1);
    const BYTES: u64 = 2048;
    /// Who writes what others wait for.
    const SLOW: u64 = 8;

    struct World(Store<Plain>);

    impl World {
        fn new() -> Self {
            let geometry = Store::<Plain>::geometry_for(64 << 20);
            Self(Store::new(Plain::new(&geometry), geometry, EvictionKind::Lru))
        }

        fn reserve(&mut self, writer: u64, number: u64, parent: Option<u64>) -> u32 {
            let wish = Wish { namespace: ONE, key: key(number), bytes: BYTES, parent: parent.map(key) };
            match self.0.reserve(writer, &wish, &mut |_| false).unwrap() {
                Reserved::Slot { slot, .. } => slot,
                other => panic!("{other:?}"),
            }
        }

        fn publish(&mut self, writer: u64, slot: u32) {
            assert_eq!(self.0.publish(writer, slot, &mut |_| false), Ok(true));
        }

        fn put(&mut self, number: u64, parent: Option<u64>) {
            let slot = self.reserve(9, number, parent);
            self.publish(9, slot);
        }

        fn swap_in(&mut self, number: u64, parent: u64) {
            let (slot, _) = self.0.take_slot(9, ONE, BYTES, &mut |_| false).unwrap().unwrap();
            let wish = Wish { namespace: ONE, key: key(number), bytes: BYTES, parent: Some(key(parent)) };
            assert_eq!(self.0.swap(9, slot, &wish, Expects::Nothing), Ok(Swapped::Done));
        }

        fn parent(&self, number: u64) -> Option<BlockKey> {
            self.0.parent(ONE, &key(number))
        }
    }

    fn key(number: u64) -> BlockKey {
        BlockKey::new(&number.to_le_bytes()).unwrap()
    }

    #[test]
    fn what_waits_behind_a_long_prefix_is_joined_in_one_walk_along_it() {
        let (mut world, depth, waiting) = (World::new(), 1000, 200);
        for number in 0..depth {
            world.put(number, number.checked_sub(1));
        }
        let late = world.reserve(SLOW, depth, Some(depth - 1));
        for number in (0..waiting).map(|number| 10_000 + 2 * number) {
            world.put(number, Some(depth));
            world.put(number + 1, Some(number));
        }
        STEPS.set(0);
        world.publish(SLOW, late);
        assert!(STEPS.get() < 2 * depth, "{} steps", STEPS.get());
        assert_eq!(world.0.inspect(ONE, &key(depth)).unwrap().children.len() as u64, waiting);
    }

    #[test]
    fn of_those_that_wait_all_follow_but_those_that_the_block_follows_on_itself() {
        let mut world = World::new();
        let late = world.reserve(SLOW, 1, None);
        for number in [2, 3, 4] {
            world.put(number, Some(1));
            world.put(10 * number, Some(number));
        }
        world.swap_in(1, 30);
        assert_eq!(
            [1, 2, 3, 4].map(|number| world.parent(number)),
            [Some(key(30)), Some(key(1)), None, Some(key(1))]
        );
        assert_eq!(world.0.publish(SLOW, late, &mut |_| false), Ok(false));
    }

    #[test]
    fn blocks_that_were_removed_while_they_waited_take_only_so_much_memory_until_their_parent_is_given_up() {
        let mut world = World::new();
        let parents = 1_000_000..1_000_000 + 2 * ALL_MAX as u64 / 1024;
        let slots: Vec<u32> = parents.clone().map(|parent| world.reserve(SLOW, parent, None)).collect();
        for parent in parents {
            for _ in 0..1024 {
                world.put(1, Some(parent));
                assert!(world.0.remove(ONE, &key(1)));
            }
        }
        assert_eq!(world.0.waiting.count(), ALL_MAX);
        for slot in slots {
            world.0.abort(SLOW, slot).unwrap();
        }
        assert_eq!(world.0.waiting.count(), 0);
        let late = world.reserve(SLOW, 1, None);
        world.put(2, Some(1));
        world.publish(SLOW, late);
        assert_eq!(world.parent(2), Some(key(1)), "others wait again");
    }
}
