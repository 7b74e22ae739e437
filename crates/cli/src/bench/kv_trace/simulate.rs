//! The trace without bytes: which share of its blocks each order of eviction finds, in a second or so.

use super::content::key;
use super::requests::Trace;
use hinterland_kv::{
    BlockKey, CHUNK_BYTES_MIN, Geometry, Namespace, Plain, Reserved, Store, Wish, header, index,
};
use hinterland_policy::{Eviction, EvictionKind, UnitKey};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Something that keeps some blocks.
pub trait Cache {
    /// Whether a block is there.
    fn holds(&self, block: u32) -> bool;
    /// A block that is there was read.
    fn read(&mut self, block: u32);
    /// A block that is not there was put, after its parent.
    fn put(&mut self, block: u32, parent: Option<u32>);
    /// What goes on with a request begins.
    fn begin(&mut self, _blocks: &[u32]) {}
}

/// How many blocks of a trace were there, from the first of each request on.
pub fn replay(trace: &Trace, cache: &mut dyn Cache) -> u64 {
    let mut found = 0;
    for request in &trace.requests {
        let blocks = &request.blocks;
        cache.begin(blocks);
        let there = blocks.iter().take_while(|block| cache.holds(**block)).count();
        blocks[..there].iter().for_each(|block| cache.read(*block));
        let mut parent = there.checked_sub(1).map(|last| blocks[last]);
        for &block in &blocks[there..] {
            if !cache.holds(block) {
                cache.put(block, parent);
            }
            parent = Some(block);
        }
        found += there as u64;
    }
    found
}

/// A policy that sees every touch, and knows nothing of prefixes.
pub struct Seeing {
    policy: Box<dyn Eviction>,
    room: u64,
}

impl Seeing {
    /// An empty cache for `room` blocks.
    pub fn new(order: EvictionKind, room: u64) -> Self {
        Self { policy: order.build(), room }
    }
}

impl Cache for Seeing {
    fn holds(&self, block: u32) -> bool {
        self.policy.contains(unit(block))
    }

    fn read(&mut self, block: u32) {
        self.policy.touch(unit(block));
    }

    fn put(&mut self, block: u32, _parent: Option<u32>) {
        let too_many = (self.policy.bytes() + 1).saturating_sub(self.room);
        self.policy.victims(too_many, &mut |_| true, &mut Vec::new());
        self.policy.insert(unit(block), 1);
    }
}

/// The node's own store, with small blocks and nobody's bytes: it hears of touches when it asks.
pub struct Stored {
    store: Store<Plain>,
    books: Plain,
    geometry: Geometry,
    touched: HashSet<u32>,
    room: u64,
}

/// Bytes of a block: so few that the books are small, and so many that the index has room for all.
const SLOT_BYTES: u64 = 16 << 10;
const NAMESPACE: Namespace = Namespace(0);
const WRITER: u64 = 1;

impl Stored {
    /// An empty store for about `room` blocks: it has whole chunks, and one at least.
    pub fn new(order: EvictionKind, room: u64) -> Self {
        let chunks = (room * SLOT_BYTES + CHUNK_BYTES_MIN / 2) / CHUNK_BYTES_MIN;
        let geometry = Store::<Plain>::geometry_for(chunks.max(1) * CHUNK_BYTES_MIN);
        let books = Plain::new(&geometry);
        let store = Store::new(books.clone(), geometry, order);
        Self { store, books, geometry, touched: HashSet::new(), room: geometry.blocks_bytes() / SLOT_BYTES }
    }

    /// Blocks that fit.
    pub const fn room(&self) -> u64 {
        self.room
    }

    fn slot(&self, block: u32) -> Option<u32> {
        let key = BlockKey::new(&key(block)).ok()?;
        index::find(&self.books, &self.geometry, key.hash(NAMESPACE), |slot| {
            header::read(&self.books, &self.geometry, slot, NAMESPACE, &key).is_some()
        })
    }
}

impl Cache for Stored {
    fn holds(&self, block: u32) -> bool {
        self.slot(block).is_some()
    }

    fn read(&mut self, block: u32) {
        self.touched.extend(self.slot(block));
    }

    fn put(&mut self, block: u32, parent: Option<u32>) {
        let Ok(name) = BlockKey::new(&key(block)) else { return };
        let parent = parent.and_then(|parent| BlockKey::new(&key(parent)).ok());
        let wish = Wish { namespace: NAMESPACE, key: name, bytes: SLOT_BYTES, parent };
        let Self { store, touched, .. } = self;
        let mut was_touched = |slot| touched.remove(&slot);
        if let Ok(Reserved::Slot { slot, .. }) = store.reserve(WRITER, &wish, &mut was_touched) {
            was_touched(slot);
            // It was reserved just now; without a place in the index it is as if evicted.
            let _ = store.publish(WRITER, slot, &mut was_touched);
        }
    }
}

/// Knows what comes: the block that is needed last leaves. No order can find more, but for what prefixes lose.
pub struct Clairvoyant {
    room: u64,
    /// When each block is needed, the next time last.
    uses: HashMap<u32, Vec<u32>>,
    held: HashMap<u32, u32>,
    by_next_use: BTreeSet<(u32, u32)>,
}

impl Clairvoyant {
    /// An empty cache for `room` blocks of a trace.
    pub fn new(trace: &Trace, room: u64) -> Self {
        let mut uses: HashMap<u32, Vec<u32>> = HashMap::new();
        for (at, request) in (0..).zip(&trace.requests) {
            request.blocks.iter().for_each(|block| uses.entry(*block).or_default().push(at));
        }
        uses.values_mut().for_each(|times| times.reverse());
        Self { room, uses, held: HashMap::new(), by_next_use: BTreeSet::new() }
    }

    fn next_use(&self, block: u32) -> u32 {
        self.uses.get(&block).and_then(|uses| uses.last()).copied().unwrap_or(u32::MAX)
    }
}

impl Cache for Clairvoyant {
    fn begin(&mut self, blocks: &[u32]) {
        for block in blocks {
            self.uses.get_mut(block).and_then(Vec::pop);
        }
    }

    fn holds(&self, block: u32) -> bool {
        self.held.contains_key(&block)
    }

    fn read(&mut self, block: u32) {
        let next = self.next_use(block);
        if let Some(before) = self.held.insert(block, next) {
            self.by_next_use.remove(&(before, block));
            self.by_next_use.insert((next, block));
        }
    }

    fn put(&mut self, block: u32, _parent: Option<u32>) {
        let next = self.next_use(block);
        self.held.insert(block, next);
        self.by_next_use.insert((next, block));
        if self.held.len() as u64 > self.room
            && let Some((_, last)) = self.by_next_use.pop_last()
        {
            self.held.remove(&last);
        }
    }
}

const fn unit(block: u32) -> UnitKey {
    UnitKey { object: 0, unit: block }
}

#[cfg(test)]
mod tests {
    use super::super::requests::Request;
    use super::super::synthetic;
    use super::*;

    /// Fails as soon as a block is there without its parent.
    struct Watched(Stored, HashMap<u32, u32>);

    impl Cache for Watched {
        fn holds(&self, block: u32) -> bool {
            self.0.holds(block)
        }

        fn read(&mut self, block: u32) {
            self.0.read(block);
        }

        fn put(&mut self, block: u32, parent: Option<u32>) {
            self.0.put(block, parent);
            self.1.extend(parent.map(|parent| (block, parent)));
            if !self.1.len().is_multiple_of(16) {
                return;
            }
            let orphan = self.1.iter().find(|(child, parent)| self.holds(**child) && !self.holds(**parent));
            assert_eq!(orphan, None);
        }
    }

    #[test]
    fn with_room_for_all_every_order_finds_what_an_unlimited_cache_does() {
        let trace = synthetic::trace(300, 3);
        let room = trace.unique();
        let unlimited = trace.found_by_unlimited();
        for order in EvictionKind::ALL {
            assert_eq!(replay(&trace, &mut Seeing::new(order, room)), unlimited, "{order}");
            assert_eq!(replay(&trace, &mut Stored::new(order, room + 256)), unlimited, "{order}");
        }
        assert_eq!(replay(&trace, &mut Clairvoyant::new(&trace, room)), unlimited);
    }

    #[test]
    fn nobody_finds_more_than_who_knows_what_comes() {
        let trace = synthetic::trace(500, 5);
        for order in EvictionKind::ALL {
            let mut stored = Stored::new(order, trace.unique() / 8);
            let room = stored.room();
            assert!(room.abs_diff(trace.unique() / 8) <= 128, "{room} of {}", trace.unique());
            let best = replay(&trace, &mut Clairvoyant::new(&trace, room));
            for found in [replay(&trace, &mut Seeing::new(order, room)), replay(&trace, &mut stored)] {
                assert!(found > best / 8 && found < best, "{order}: {found} of {best}");
            }
        }
    }

    #[test]
    fn the_store_keeps_no_block_without_its_parent() {
        let trace = synthetic::trace(120, 7);
        for order in EvictionKind::ALL {
            replay(&trace, &mut Watched(Stored::new(order, 256), HashMap::new()));
        }
    }

    #[test]
    fn the_least_recently_read_leaves() {
        let request = |blocks: &[u32]| Request { at_ms: 0, blocks: blocks.to_vec() };
        let requests = [&[1][..], &[2], &[1], &[3], &[1], &[2]].map(request).to_vec();
        let trace = Trace { requests };
        assert_eq!(replay(&trace, &mut Seeing::new(EvictionKind::Lru, 2)), 2);
        assert_eq!(replay(&trace, &mut Seeing::new(EvictionKind::Fifo, 2)), 1);
    }
}
