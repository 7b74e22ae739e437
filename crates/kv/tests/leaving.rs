//! What leaves when room is wanted: children first, low priorities first, never what is pinned, and within a quota.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_kv::{
    BlockKey, CHUNK_BYTES_MIN, Event, Expects, Geometry, Limits, Namespace, Plain, Reserved, Store,
    StoreError, Swapped, Wish,
};
use hinterland_policy::EvictionKind;
use std::collections::HashSet;

const MIB: u64 = 1 << 20;
const ONE: Namespace = Namespace(1);
const TWO: Namespace = Namespace(2);

struct World {
    store: Store<Plain>,
    touched: HashSet<u32>,
}

impl World {
    /// A store of so many blocks of 1 MiB, four a chunk.
    fn new(blocks: u64, order: EvictionKind) -> Self {
        let geometry: Geometry = Store::<Plain>::geometry_for(blocks * MIB);
        assert_eq!(geometry.blocks_bytes() % CHUNK_BYTES_MIN, 0);
        let books = Plain::new(&geometry);
        Self { store: Store::new(books, geometry, order), touched: HashSet::new() }
    }

    fn put(&mut self, namespace: Namespace, name: &str, parent: Option<&str>) -> bool {
        self.put_bytes(namespace, name, parent, MIB)
    }

    fn put_bytes(&mut self, namespace: Namespace, name: &str, parent: Option<&str>, bytes: u64) -> bool {
        let touched = &mut self.touched;
        let mut was_touched = |slot: u32| touched.remove(&slot);
        let wish = Wish { namespace, key: key(name), bytes, parent: parent.map(key) };
        match self.store.reserve(9, &wish, &mut was_touched).unwrap() {
            Reserved::Slot { slot, .. } => self.store.publish(9, slot, &mut was_touched).unwrap(),
            Reserved::NoRoom => false,
            other => panic!("{other:?}"),
        }
    }

    /// Puts a prefix of blocks `NAME0`, `NAME1`, ...
    fn put_prefix(&mut self, namespace: Namespace, name: &str, blocks: usize) {
        for number in 0..blocks {
            let parent = number.checked_sub(1).map(|before| format!("{name}{before}"));
            assert!(self.put(namespace, &format!("{name}{number}"), parent.as_deref()));
        }
    }

    /// Reads the first blocks of a prefix.
    fn read_prefix(&mut self, namespace: Namespace, name: &str, blocks: usize) {
        for number in 0..blocks {
            let block = self.store.inspect(namespace, &key(&format!("{name}{number}"))).unwrap();
            self.touched.insert(block.slot);
        }
    }

    fn has(&self, namespace: Namespace, name: &str) -> bool {
        self.store.inspect(namespace, &key(name)).is_some()
    }

    /// How many blocks of a prefix are there, from the first on; none may be there behind a gap.
    fn prefix(&self, namespace: Namespace, name: &str) -> usize {
        let there: Vec<bool> =
            (0..40).map(|number| self.has(namespace, &format!("{name}{number}"))).collect();
        let length = there.iter().take_while(|&&is_there| is_there).count();
        assert!(!there[length..].contains(&true), "{name}: {there:?}");
        length
    }
}

fn key(name: &str) -> BlockKey {
    BlockKey::new(name.as_bytes()).unwrap()
}

#[test]
fn the_oldest_prefix_leaves_from_its_end() {
    for order in EvictionKind::ALL {
        let mut world = World::new(16, order);
        world.put_prefix(ONE, "a", 8);
        world.put_prefix(ONE, "b", 8);
        world.put_prefix(ONE, "c", 5);
        assert_eq!(
            (world.prefix(ONE, "a"), world.prefix(ONE, "b"), world.prefix(ONE, "c")),
            (3, 8, 5),
            "{order}"
        );
        assert_eq!(world.store.status().evictions, 5);
    }
}

#[test]
fn a_prefix_that_is_read_stays_and_what_follows_on_it_unread_leaves() {
    let mut world = World::new(16, EvictionKind::Lru);
    world.put_prefix(ONE, "a", 8);
    world.put_prefix(ONE, "b", 8);
    world.read_prefix(ONE, "a", 5);
    world.put_prefix(ONE, "c", 3);
    assert_eq!((world.prefix(ONE, "a"), world.prefix(ONE, "b")), (5, 8), "what was not read of the oldest");
    world.put_prefix(ONE, "d", 8);
    assert_eq!(
        (world.prefix(ONE, "a"), world.prefix(ONE, "b")),
        (5, 0),
        "then what is older than the reading"
    );
    world.put_prefix(ONE, "e", 4);
    assert!(world.prefix(ONE, "a") >= 1, "and a reading counts once for all that it read");
    world.put_prefix(ONE, "f", 16);
    assert_eq!(world.prefix(ONE, "a"), 0);
}

#[test]
fn a_parent_with_another_child_stays() {
    let mut world = World::new(8, EvictionKind::Lru);
    world.put_prefix(ONE, "a", 3);
    assert!(world.put(ONE, "x", Some("a0")));
    world.put_prefix(ONE, "b", 6);
    assert!(world.has(ONE, "a0") && world.has(ONE, "x") && !world.has(ONE, "a1"));
    let parent = world.store.inspect(ONE, &key("a0")).unwrap();
    assert_eq!((parent.children, parent.parent), (vec![key("x")], None));
    assert_eq!(world.store.inspect(ONE, &key("x")).unwrap().parent, Some(key("a0")));
}

#[test]
fn what_is_pinned_stays_until_its_session_ends_and_half_of_the_memory_is_the_most() {
    let mut world = World::new(8, EvictionKind::Lru);
    world.put_prefix(ONE, "a", 4);
    assert!(world.store.pin(1, ONE, &key("a3")) && world.store.pin(1, ONE, &key("a3")));
    assert!(!world.store.pin(1, ONE, &key("absent")));
    world.put_prefix(ONE, "b", 4);
    world.put_prefix(ONE, "c", 4);
    assert_eq!(
        (world.prefix(ONE, "a"), world.prefix(ONE, "b")),
        (4, 0),
        "the end of the prefix holds all of it"
    );
    assert!(!world.store.remove(ONE, &key("a3")));
    assert_eq!(world.store.clear(ONE), 7);
    assert!(world.store.unpin(1, ONE, &key("a3")) && !world.store.unpin(2, ONE, &key("a3")));
    assert!(!world.store.remove(ONE, &key("a3")), "it is pinned once more");
    world.store.release(1);
    assert_eq!(world.store.status().pinned_bytes, 0);
    assert!(world.store.remove(ONE, &key("a3")));
    world.put_prefix(ONE, "d", 8);
    let pinned = (0..8).filter(|number| world.store.pin(1, ONE, &key(&format!("d{number}")))).count();
    assert_eq!((pinned, world.store.status().pinned_bytes), (4, 4 * MIB));
    assert!(world.put(ONE, "more", None), "there is room for those who write");
}

#[test]
fn a_namespace_over_its_quota_gives_its_own_blocks() {
    let mut world = World::new(16, EvictionKind::Lru);
    world.put_prefix(ONE, "a", 4);
    world.store.set_limits(TWO, Limits { quota_bytes: Some(3 * MIB), ..Limits::default() });
    world.put_prefix(TWO, "b", 3);
    world.put_prefix(TWO, "c", 2);
    assert_eq!((world.prefix(ONE, "a"), world.prefix(TWO, "b"), world.prefix(TWO, "c")), (4, 1, 2));
    assert_eq!(world.store.space(TWO).slot_bytes, 3 * MIB);
    assert!(!world.put_bytes(TWO, "large", None, 4 * MIB), "larger than the quota");
    assert_eq!(world.store.space(TWO).blocks, 3, "and nothing left for it");
    world.store.set_limits(TWO, Limits { quota_bytes: Some(MIB), ..Limits::default() });
    assert!(world.put(TWO, "d", None));
    assert_eq!(world.store.space(TWO).slot_bytes, MIB);
    world.store.set_limits(TWO, Limits::default());
    world.put_prefix(TWO, "e", 12);
    assert_eq!(world.store.status().blocks, 16);
}

#[test]
fn a_block_that_was_to_leave_and_was_read_leaves_later_whatever_else_of_its_quota_has_gone() {
    for order in EvictionKind::ALL {
        let mut world = World::new(16, order);
        world.store.set_limits(ONE, Limits { quota_bytes: Some(2 * MIB), ..Limits::default() });
        assert!(world.put(ONE, "a", None) && world.put(ONE, "b", None));
        let departing = world.store.next_to_leave(&mut |_| false).unwrap();
        let other = if departing.leaving.key == key("a") { "b" } else { "a" };
        assert!(world.store.remove(ONE, &key(other)), "the last one in the order");
        assert!(!world.store.depart(&departing, &mut |_| true), "it was read meanwhile");
        assert!(world.put_bytes(ONE, "c", None, 2 * MIB), "{order}: it can leave now");
    }
}

#[test]
fn a_slot_that_was_reserved_is_not_swapped_in_and_one_without_a_key_is_not_published() {
    let mut world = World::new(4, EvictionKind::Lru);
    assert!(world.put(ONE, "a", None) && world.put(ONE, "c", None));
    let wish = Wish { namespace: ONE, key: key("b"), bytes: MIB, parent: Some(key("a")) };
    let Reserved::Slot { slot: reserved, .. } = world.store.reserve(9, &wish, &mut |_| false).unwrap() else {
        panic!("there is room")
    };
    let (taken, _) = world.store.take_slot(9, ONE, MIB, &mut |_| false).unwrap().unwrap();
    let other = Wish { parent: Some(key("c")), ..wish };
    let swapped = world.store.swap(9, reserved, &other, Expects::Anything);
    assert_eq!(swapped, Err(StoreError::NotReserved(reserved)));
    assert_eq!(world.store.publish(9, taken, &mut |_| false), Err(StoreError::NotReserved(taken)));
    world.store.release(9);
    assert_eq!(world.store.status().reserved, 0);
    world.put_prefix(ONE, "d", 4);
    assert_eq!(world.prefix(ONE, "d"), 4, "all that was there can leave");
}

/// A slot for a block of 1 MiB that somebody begins to write.
fn begin(world: &mut World, writer: u64, name: &str, parent: Option<&str>) -> u32 {
    let wish = Wish { namespace: ONE, key: key(name), bytes: MIB, parent: parent.map(key) };
    match world.store.reserve(writer, &wish, &mut |_| false).unwrap() {
        Reserved::Slot { slot, .. } => slot,
        other => panic!("{other:?}"),
    }
}

/// Swaps a block in where there is none.
fn put_copy(world: &mut World, name: &str, parent: Option<&str>) {
    let (slot, _) = world.store.take_slot(9, ONE, MIB, &mut |_| false).unwrap().unwrap();
    let wish = Wish { namespace: ONE, key: key(name), bytes: MIB, parent: parent.map(key) };
    assert_eq!(world.store.swap(9, slot, &wish, Expects::Nothing), Ok(Swapped::Done));
}

#[test]
fn a_block_that_is_there_before_the_one_that_it_follows_on_leaves_before_it_all_the_same() {
    for has_copy in [false, true] {
        let mut world = World::new(4, EvictionKind::Lru);
        let slot = begin(&mut world, 8, "b", None);
        let other = begin(&mut world, 9, "d", Some("b"));
        assert!(world.put(ONE, "c", Some("b")));
        assert_eq!(world.store.inspect(ONE, &key("c")).unwrap().parent, None, "that is not there");
        if has_copy {
            put_copy(&mut world, "b", None);
        }
        assert_eq!(world.store.publish(9, other, &mut |_| false), Ok(true));
        assert_eq!(world.store.publish(8, slot, &mut |_| false), Ok(!has_copy));
        let children: HashSet<BlockKey> =
            world.store.inspect(ONE, &key("b")).unwrap().children.into_iter().collect();
        assert_eq!(children, HashSet::from([key("c"), key("d")]), "{has_copy}");
        for name in ["c", "d"] {
            let block = world.store.inspect(ONE, &key(name)).unwrap();
            assert_eq!(block.parent, Some(key("b")));
            world.touched.insert(block.slot);
        }
        // Those that were read get another round, and what they follow on is not asked.
        world.put_prefix(ONE, "x", 2);
        assert!(world.has(ONE, "b"), "{has_copy}");
        world.put_prefix(ONE, "y", 4);
        assert_eq!(world.prefix(ONE, "y"), 4, "all of them can leave");
    }
}

#[test]
fn who_gives_a_block_up_leaves_nobody_waiting_and_no_block_follows_on_itself() {
    let mut world = World::new(4, EvictionKind::Lru);
    let slot = begin(&mut world, 8, "b", None);
    assert!(world.put(ONE, "c", Some("b")));
    world.store.abort(8, slot).unwrap();
    assert!(world.put(ONE, "b", None));
    assert_eq!(world.store.inspect(ONE, &key("c")).unwrap().parent, None, "it is another one");
    assert!(world.store.remove(ONE, &key("b")));
    let slot = begin(&mut world, 8, "b", None);
    assert!(world.put(ONE, "d", Some("b")));
    put_copy(&mut world, "b", Some("d"));
    assert_eq!(world.store.inspect(ONE, &key("b")).unwrap().parent, Some(key("d")));
    assert_eq!(world.store.inspect(ONE, &key("d")).unwrap().parent, None);
    assert_eq!(world.store.publish(8, slot, &mut |_| false), Ok(false));
    world.put_prefix(ONE, "x", 4);
    assert_eq!(world.prefix(ONE, "x"), 4, "all of them can leave");
}

#[test]
fn low_priorities_leave_first_whenever_they_were_read() {
    let mut world = World::new(8, EvictionKind::Lru);
    world.store.set_limits(ONE, Limits { quota_bytes: None, priority: 200 });
    world.put_prefix(ONE, "a", 4);
    world.put_prefix(TWO, "b", 4);
    world.read_prefix(TWO, "b", 4);
    world.put_prefix(ONE, "c", 3);
    assert_eq!((world.prefix(ONE, "a"), world.prefix(TWO, "b"), world.prefix(ONE, "c")), (4, 1, 3));
    world.put_prefix(ONE, "d", 4);
    assert_eq!((world.prefix(ONE, "a"), world.prefix(TWO, "b")), (1, 0), "then its own oldest");
}

#[test]
fn a_chunk_that_is_emptied_takes_what_follows_on_it_along() {
    let mut world = World::new(8, EvictionKind::Lru);
    // A parent of 1 MiB, with a child in a chunk of another size.
    assert!(world.put(ONE, "a", None));
    assert!(world.put_bytes(ONE, "b", Some("a"), 4 * MIB));
    assert!(world.store.pin(1, ONE, &key("b")) && !world.put_bytes(ONE, "c", None, 3 * MIB));
    world.store.release(1);
    assert!(world.put_bytes(ONE, "c", None, 3 * MIB));
    assert!(!world.has(ONE, "b") || world.has(ONE, "a"), "a child without its parent is of no use");
}

#[test]
fn a_chain_that_fills_every_chunk_gives_from_its_far_end_for_a_block_of_another_size() {
    // Small blocks, so that more leave than one look allows; the block that is put follows on one near the start.
    for (bytes, blocks) in [(MIB, 16), (16 << 10, 1024)] {
        let mut world = World::new(16, EvictionKind::Lru);
        for number in 0..blocks {
            let parent = u32::checked_sub(number, 1).map(|before| format!("a{before}"));
            assert!(world.put_bytes(ONE, &format!("a{number}"), parent.as_deref(), bytes));
        }
        assert_eq!(world.store.status().evictions, 0, "all chunks are full");
        let near = blocks / 8;
        assert!(world.put_bytes(ONE, "b", Some(&format!("a{near}")), 3 * MIB));
        assert!((0..=near).all(|number| world.has(ONE, &format!("a{number}"))), "what it follows on stays");
        assert!(world.has(ONE, "b") && !world.has(ONE, &format!("a{}", blocks - 1)));
    }
}

#[test]
fn a_block_is_refused_whose_own_prefix_is_in_every_chunk() {
    // Each chunk has a block without which the one that is put would be of no use: whichever left, it would go too.
    let mut world = World::new(16, EvictionKind::Lru);
    world.put_prefix(ONE, "a", 16);
    assert!(!world.put_bytes(ONE, "b", Some("a15"), 3 * MIB));
    assert_eq!(
        (world.prefix(ONE, "a"), world.store.status().reserved),
        (16, 0),
        "nothing was lost for nothing"
    );
    assert!(world.put_bytes(ONE, "b", None, 3 * MIB), "without that prefix there is room");
}

#[test]
fn routers_hear_of_each_block_that_comes_and_goes() {
    let mut world = World::new(4, EvictionKind::Lru);
    assert!(world.store.events(0, 10).events.is_empty());
    world.put_prefix(ONE, "a", 2);
    world.put_prefix(TWO, "b", 3);
    let told = world.store.events(0, 100);
    assert!(!told.lost);
    let stored = |namespace, name: &str, parent: Option<&str>| Event::Stored {
        namespace,
        key: key(name),
        parent: parent.map(key),
        bytes: MIB as u32,
    };
    assert_eq!(
        told.events,
        [
            stored(ONE, "a0", None),
            stored(ONE, "a1", Some("a0")),
            stored(TWO, "b0", None),
            stored(TWO, "b1", Some("b0")),
            Event::Removed { namespace: ONE, key: key("a1") },
            stored(TWO, "b2", Some("b1")),
        ]
    );
}

#[test]
fn blocks_so_small_that_the_index_is_full_before_the_memory_leave_too() {
    for order in EvictionKind::ALL {
        let mut world = World::new(32, order);
        let count = world.store.geometry().slots() + 10_000;
        for number in 0..count {
            assert!(
                world.put_bytes(ONE, &format!("small{number}"), None, 100),
                "{order}: {number} of {count}"
            );
        }
        assert!(world.has(ONE, &format!("small{}", count - 1)), "{order}");
        assert!(world.store.status().blocks > world.store.geometry().slots() / 2, "{order}");
        world.put_prefix(ONE, "large", 8);
        assert_eq!(world.prefix(ONE, "large"), 8, "{order}");
    }
}

/// Puts so many blocks of 1 to `most` bytes, or of just `most`, and reads some of them meanwhile; how many found no room.
fn put_sizes(world: &mut World, name: &str, blocks: u64, most: u64, seed: u64) -> u64 {
    let mut random = seed;
    let mut refused = 0;
    for number in 0..blocks {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let bytes = if seed == 0 { most } else { 1 + random % most };
        refused += u64::from(!world.put_bytes(ONE, &format!("{name}{number}"), None, bytes));
        let read = key(&format!("{name}{}", random % (number + 1)));
        if let Some(block) = world.store.inspect(ONE, &read).filter(|_| random.is_multiple_of(3)) {
            world.touched.insert(block.slot);
        }
    }
    refused
}

#[test]
fn more_sizes_than_chunks_share_them() {
    for (order, seed) in EvictionKind::ALL.into_iter().zip([88_172_645_463_325_252, 7_777_777, 31, 5]) {
        for (mib, most) in [(64, 51 << 10), (64, 300 << 10), (64, 4 << 10), (256, 51 << 10)] {
            let mut world = World::new(mib, order);
            assert_eq!(put_sizes(&mut world, "a", 5 * mib * MIB / most, most, seed), 0);
            let bytes = world.store.status().bytes;
            // A quarter to four fifths; a fiftieth where each rare size emptied a chunk.
            assert!(bytes > mib * MIB / 5, "{order}, {mib} MiB, sizes up to {most}: {bytes} bytes");
        }
    }
}

#[test]
fn blocks_of_another_size_have_the_memory_once_the_others_are_gone() {
    for (before, after) in [(30 << 10, 20 << 10), (20 << 10, 30 << 10)] {
        let mut world = World::new(64, EvictionKind::Lru);
        assert_eq!(put_sizes(&mut world, "a", 4 * 64 * MIB / before, before, 0), 0);
        assert_eq!(put_sizes(&mut world, "b", 4 * 64 * MIB / after, after, 0), 0);
        let bytes = world.store.status().bytes;
        assert!(bytes > 60 * MIB, "{before} to {after}: {bytes} bytes");
    }
}
