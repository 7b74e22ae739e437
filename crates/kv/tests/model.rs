//! The store against a plain map, under operations at random, in coherent memory and in such as is not.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod checked;

use checked::Checked;
use hinterland_kv::{
    BlockKey, CHUNK_BYTES_MIN, Expects, Geometry, Inspected, Limits, Namespace, Plain, Point, Reserved,
    Restoring, Seen, Store, StoreError, Swapped, ToSum, Wish, Words, header, lookup,
};
use hinterland_os::Coherence;
use hinterland_os::checking::{Disorder, segment};
use hinterland_policy::EvictionKind;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;

/// The books as one of their sides sees them.
#[derive(Clone)]
struct Books(Rc<dyn Words>);

impl Words for Books {
    fn load(&self, word: usize) -> u64 {
        self.0.load(word)
    }

    fn store(&self, word: usize, value: u64) {
        self.0.store(word, value);
    }

    fn write_back(&self, word: usize, words: usize, point: Point) {
        self.0.write_back(word, words, point);
    }

    fn fence(&self, point: Point) {
        self.0.fence(point);
    }

    fn refresh(&self, word: usize, words: usize, point: Point) {
        self.0.refresh(word, words, point);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Reserve {
        writer: u64,
        key: u8,
        bytes: u64,
        parent: Option<u8>,
    },
    Publish {
        index: usize,
    },
    Abort {
        index: usize,
    },
    Remove {
        key: u8,
    },
    Release {
        writer: u64,
    },
    Clear {
        namespace: u64,
    },
    Pin {
        session: u64,
        key: u8,
    },
    Unpin {
        session: u64,
        key: u8,
    },
    Limit {
        namespace: u64,
        quota: Option<u64>,
        priority: u8,
    },
    Take {
        writer: u64,
        namespace: u64,
        bytes: u64,
    },
    Swap {
        index: usize,
        key: u8,
        parent: Option<u8>,
        expects: Hope,
    },
    RemoveSeen {
        key: u8,
        right: bool,
    },
    List {
        limit: usize,
    },
    /// Blocks leave ahead.
    Leave {
        count: usize,
    },
    /// Blocks get checksums.
    Sum {
        share: u64,
    },
    /// The node ends and another one takes its books; of one writer it is not known whether it still writes, and bits of one
    /// block have flipped.
    Restart {
        held: u64,
        damaged: u8,
    },
    /// The writers of before have ended.
    End,
}

/// Of 256 restarts that are drawn, those that happen.
const RESTARTS: u8 = 48;

/// What a swap expects: anything, nothing, what is there, what never was, or none as long as what is there, or as something else.
#[derive(Clone, Copy, Debug)]
enum Hope {
    Anything,
    Nothing,
    Present,
    Wrong,
    NoneAsLong,
    NoneLonger,
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![Just(700_u64), Just(65_536), Just(1_179_648), 1_u64..(4 << 20)]
}

fn hope() -> impl Strategy<Value = Hope> {
    let others = [Hope::Nothing, Hope::Present, Hope::Wrong, Hope::NoneAsLong, Hope::NoneLonger];
    prop_oneof![3 => Just(Hope::Anything), 5 => proptest::sample::select(others.to_vec())]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..3_u64, any::<u8>(), size(), prop::option::of(any::<u8>()))
            .prop_map(|(writer, key, bytes, parent)| Step::Reserve { writer, key, bytes, parent }),
        8 => any::<usize>().prop_map(|index| Step::Publish { index }),
        1 => any::<usize>().prop_map(|index| Step::Abort { index }),
        2 => any::<u8>().prop_map(|key| Step::Remove { key }),
        1 => (0..3_u64).prop_map(|writer| Step::Release { writer }),
        1 => (0..2_u64).prop_map(|namespace| Step::Clear { namespace }),
        1 => (0..3_u64, any::<u8>()).prop_map(|(session, key)| Step::Pin { session, key }),
        1 => (0..3_u64, any::<u8>()).prop_map(|(session, key)| Step::Unpin { session, key }),
        1 => (0..2_u64, prop::option::of(0_u64..(16 << 20)), 99..102_u8)
            .prop_map(|(namespace, quota, priority)| Step::Limit { namespace, quota, priority }),
        6 => (0..3_u64, 0..2_u64, size())
            .prop_map(|(writer, namespace, bytes)| Step::Take { writer, namespace, bytes }),
        8 => (any::<usize>(), any::<u8>(), prop::option::of(any::<u8>()), hope())
            .prop_map(|(index, key, parent, expects)| Step::Swap { index, key, parent, expects }),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(key, right)| Step::RemoveSeen { key, right }),
        1 => (1..100_usize).prop_map(|limit| Step::List { limit }),
        1 => (1..4_usize).prop_map(|count| Step::Leave { count }),
        2 => (1..9_u64).prop_map(|share| Step::Sum { share }),
        1 => (0..4_u64, any::<u8>()).prop_map(|(held, damaged)| Step::Restart { held, damaged }),
        1 => Just(Step::End),
    ]
}

fn key(number: u8) -> (Namespace, BlockKey) {
    (Namespace(u64::from(number) & 1), BlockKey::new(&[number, 1, 2]).unwrap())
}

fn wish(namespace: Namespace, key: BlockKey, bytes: u64) -> Wish {
    Wish { namespace, key, bytes, parent: None }
}

/// The checksum of a block's bytes, which the model does not have.
const fn sum(block: &ToSum) -> u32 {
    // The low halves.
    (block.offset as u32).wrapping_mul(31) ^ block.bytes
}

struct World {
    /// As the node sees them.
    owner: Books,
    order: EvictionKind,
    /// Slots that writers of before may still write, with their places and the marks of their writers.
    abandoned: Vec<(u32, std::ops::Range<u64>, u64)>,
    /// Of the stores before restarts.
    evictions: u64,
    /// Every generation under which a slot was published: none comes twice.
    given: HashSet<(u32, u64)>,
    /// As a reader sees them.
    books: Books,
    geometry: Geometry,
    store: Store<Books>,
    /// Slots that are being written: writer, slot, key, place.
    writing: Vec<(u64, u32, u8, std::ops::Range<u64>)>,
    /// Slots that were taken without a key: writer, slot, namespace, place.
    taken: Vec<(u64, u32, u64, std::ops::Range<u64>)>,
    /// Keys that were published and not removed; they may have been evicted since.
    known: HashMap<u8, (u32, u64)>,
    /// For each key that is being written, the parent that it is to have.
    wanted: HashMap<u8, u8>,
    /// For each block that was published after its parent, that parent, until one of the two is removed.
    parents: HashMap<u8, u8>,
    /// Of these, the blocks that were published before their parent: the next node does not know what they follow on.
    late: HashSet<u8>,
    /// Pins: session and key.
    pins: Vec<(u64, u8)>,
    limits: [Limits; 2],
    /// Whether a block was read since the store asked last.
    was_touched: Box<dyn FnMut(u32) -> bool>,
}

impl World {
    fn new(chunks: u64, order: EvictionKind) -> Self {
        let geometry = Store::<Books>::geometry_for(chunks * CHUNK_BYTES_MIN + 5);
        let books = Books(Rc::new(Plain::new(&geometry)));
        Self::over(books.clone(), books, geometry, order)
    }

    /// In memory whose lines move only when they are told to, and by chance.
    fn checked(chunks: u64, order: EvictionKind, seed: u64) -> Self {
        let geometry =
            Store::<Books>::geometry_for(chunks * CHUNK_BYTES_MIN + 5).with_coherence(Coherence::Software);
        let disorder = Disorder { seed, calls: 30, garbage: false };
        let sides = segment(geometry.books_bytes() as usize, 2, disorder, Arc::new(|| ()));
        let [reader, owner] = [0, 1].map(|number: usize| {
            Books(Rc::new(Checked { memory: sides[number].clone(), owner: number == 1, skip: None }))
        });
        Self::over(owner, reader, geometry, order)
    }

    fn over(owner: Books, books: Books, geometry: Geometry, order: EvictionKind) -> Self {
        let mut store = Store::new(owner.clone(), geometry, order);
        store.sum_behind();
        assert_eq!(Geometry::load(&books, geometry.books_bytes()), Some(geometry));
        Self {
            owner,
            order,
            abandoned: Vec::new(),
            evictions: 0,
            given: HashSet::new(),
            books,
            geometry,
            store,
            writing: Vec::new(),
            taken: Vec::new(),
            known: HashMap::new(),
            wanted: HashMap::new(),
            parents: HashMap::new(),
            late: HashSet::new(),
            pins: Vec::new(),
            limits: [Limits::default(); 2],
            was_touched: Box::new(|_| false),
        }
    }

    fn lookup(&self, number: u8) -> Option<header::Block> {
        let (namespace, key) = key(number);
        lookup(&self.books, &self.geometry, namespace, &key)
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Reserve { writer, key: number, bytes, parent } => {
                let (namespace, key) = key(number);
                // One of another namespace is none: keys of a number have the namespace of its lowest bit.
                let parent = parent.filter(|parent| parent & 1 == number & 1 && *parent != number);
                let was_there = self.lookup(number).is_some();
                let is_written = self.writing.iter().any(|(_, _, other, _)| *other == number);
                let wish =
                    Wish { parent: parent.map(|parent| crate::key(parent).1), ..wish(namespace, key, bytes) };
                let reserved = self.store.reserve(writer, &wish, &mut self.was_touched);
                match reserved.unwrap() {
                    Reserved::Slot { slot, offset } => {
                        assert!(!was_there && !is_written);
                        self.writing.push((writer, slot, number, offset..offset + bytes));
                        self.wanted.remove(&number);
                        let there = parent.filter(|&parent| self.is_there_or_written(parent));
                        self.wanted.extend(there.map(|parent| (number, parent)));
                    }
                    Reserved::Exists => assert!(was_there),
                    Reserved::Busy => assert!(is_written),
                    Reserved::NoRoom => {
                        let is_held = self.is_any_held();
                        let quota = self.limits[usize::from(number & 1)].quota_bytes;
                        // What it follows on stays, and so does the chunk that this lies in.
                        let follows = parent.is_some_and(|parent| self.is_there_or_written(parent));
                        assert!(
                            is_held || quota.is_some() || follows,
                            "only what is written or pinned cannot leave"
                        )
                    }
                }
            }
            Step::Publish { index } if !self.writing.is_empty() => self.publish(index),
            Step::Abort { index } if !self.writing.is_empty() => {
                let (writer, slot, ..) = self.writing.swap_remove(index % self.writing.len());
                self.store.abort(writer, slot).unwrap();
            }
            Step::Remove { key: number } => {
                let (namespace, key) = key(number);
                let may_go = self.lookup(number).is_some() && !self.is_pinned(number);
                assert_eq!(self.store.remove(namespace, &key), may_go);
                if may_go {
                    self.forget(number);
                    assert!(self.lookup(number).is_none());
                }
            }
            Step::Release { writer } => {
                self.store.release(writer);
                self.writing.retain(|(other, ..)| *other != writer);
                self.taken.retain(|(other, ..)| *other != writer);
                self.pins.retain(|(other, _)| *other != writer);
            }
            Step::Clear { namespace } => self.clear(namespace),
            Step::Pin { .. } | Step::Unpin { .. } | Step::Limit { .. } => self.hold(step),
            Step::Publish { .. } | Step::Abort { .. } => {}
            Step::Leave { .. } | Step::Sum { .. } | Step::Restart { .. } | Step::End => self.node_alone(step),
            _ => self.replace(step),
        }
    }

    fn publish(&mut self, index: usize) {
        let (writer, slot, number, place) = self.writing.swap_remove(index % self.writing.len());
        assert!(self.store.publish(writer + 1, slot, &mut self.was_touched).is_err(), "it is another's");
        let was_there = self.lookup(number).is_some();
        if was_there {
            assert!(!self.store.publish(writer, slot, &mut self.was_touched).unwrap(), "it was swapped in");
        } else if self.store.publish(writer, slot, &mut self.was_touched).unwrap() {
            let block = self.lookup(number).unwrap();
            assert_eq!(
                (block.slot, block.offset, u64::from(block.bytes)),
                (slot, place.start, place.end - place.start)
            );
            assert!(self.given.insert((slot, block.generation)), "a generation is given once");
            self.known.insert(number, (slot, place.end - place.start));
            self.parents.remove(&number);
            self.late.remove(&number);
            let parent = self.wanted.remove(&number).filter(|&parent| self.lookup(parent).is_some());
            let linked = self.inspect(number).parent;
            assert!(linked.is_none() || linked == parent.map(|parent| crate::key(parent).1));
            self.parents.extend(parent.filter(|_| linked.is_some()).map(|parent| (number, parent)));
            self.joined(number);
        }
        assert!(self.store.publish(writer, slot, &mut self.was_touched).is_err(), "it is published once");
    }

    /// Blocks follow on one that has just come which were published before it.
    fn joined(&mut self, number: u8) {
        let (namespace, key) = key(number);
        for child in self.inspect(number).children {
            assert_eq!(self.store.parent(namespace, &child), Some(key));
            let others = (0..=u8::MAX).filter(|other| crate::key(*other) == (namespace, child));
            for other in others {
                self.parents.insert(other, number);
                self.late.insert(other);
            }
        }
    }

    /// Another node takes the books: what had a checksum is there again, but for what is damaged, and everything else is gone.
    fn restart(&mut self, held: u64, damaged: u8) {
        for number in 0..=u8::MAX {
            let Some(block) = self.lookup(number) else { continue };
            if header::sum(&self.books, &self.geometry, block.slot).is_none() {
                self.forget(number);
            }
        }
        let there: Vec<u8> = (0..=u8::MAX).filter(|number| self.lookup(*number).is_some()).collect();
        let there: Vec<u8> = there.into_iter().filter(|number| self.known.contains_key(number)).collect();
        let writing = self.writing.drain(..).map(|(writer, slot, _, place)| (writer, slot, place));
        let taken = self.taken.drain(..).map(|(writer, slot, _, place)| (writer, slot, place));
        let of_held = writing.chain(taken).filter(|(writer, ..)| *writer == held);
        let mark = self.store.mark(held);
        let earlier: HashSet<u64> = self.abandoned.iter().map(|(.., mark)| *mark).collect();
        // Those of earlier restarts may have ended.
        self.abandoned.retain(|_| held < 3);
        self.abandoned.extend(of_held.map(|(_, slot, place)| (slot, place, mark)));
        self.pins.clear();
        self.wanted.clear();
        for late in self.late.drain() {
            self.parents.remove(&late);
        }
        let namespaces = [0, 1].map(|number| (Namespace(number), self.limits[number as usize])).into();
        let mut is_held = |asked: u64| asked == mark || (held < 3 && earlier.contains(&asked));
        let mut restoring = Restoring { namespaces: &namespaces, is_held: &mut is_held };
        self.evictions += self.store.status().evictions;
        let owner = self.owner.clone();
        let (store, restored) = Store::restore(owner, self.geometry, self.order, &mut restoring);
        self.store = store;
        self.store.sum_behind();
        assert_eq!(restored.blocks, there.len() as u64);
        assert!((0..=u8::MAX).all(|number| self.lookup(number).is_none()), "nothing is found unchecked");
        for block in self.store.to_check(u64::MAX) {
            let is_damaged = there.iter().find(|number| self.known[number].0 == block.slot) == Some(&damaged);
            self.store.checked(&block, Some(sum(&block) ^ u32::from(is_damaged)));
        }
        for number in there {
            let is_there = self.lookup(number).is_some();
            assert_eq!(is_there, number != damaged, "{number}");
            if number == damaged {
                self.forget(number);
            }
        }
        assert_eq!(self.store.status().unchecked, 0);
    }

    /// Steps of the node that nobody has asked for.
    fn node_alone(&mut self, step: &Step) {
        match *step {
            Step::Leave { count } => {
                let mut next = || self.store.next_to_leave(&mut self.was_touched);
                let departing: Vec<_> = (0..count).map_while(|_| next()).collect();
                for departing in departing {
                    self.store.depart(&departing, &mut self.was_touched);
                }
            }
            Step::Sum { share } => {
                for block in self.store.to_sum(share << 20) {
                    self.store.summed(&block, Some(sum(&block)));
                }
            }
            // Rarely, so that memory fills up between two of them.
            Step::Restart { held, damaged } if damaged < RESTARTS => self.restart(held, damaged),
            Step::Restart { .. } => {}
            Step::End => {
                assert_eq!(self.store.free_abandoned(&mut |_| false), 0);
                self.abandoned.clear();
            }
            _ => panic!("{step:?} is no such step"),
        }
    }

    /// Steps of those who replace blocks.
    fn replace(&mut self, step: &Step) {
        match *step {
            Step::Take { writer, namespace, bytes } => self.take(writer, namespace, bytes),
            Step::Swap { index, key: number, parent, expects } if !self.taken.is_empty() => {
                self.swap(index, number, parent, expects)
            }
            Step::RemoveSeen { key: number, right } => self.remove_seen(number, right),
            Step::List { limit } => self.list(limit),
            Step::Swap { .. } => {}
            _ => panic!("{step:?} is no such step"),
        }
    }

    fn take(&mut self, writer: u64, namespace: u64, bytes: u64) {
        match self.store.take_slot(writer, Namespace(namespace), bytes, &mut self.was_touched).unwrap() {
            Some((slot, offset)) => self.taken.push((writer, slot, namespace, offset..offset + bytes)),
            None => {
                let quota = self.limits[namespace as usize].quota_bytes;
                assert!(self.is_any_held() || quota.is_some(), "only what is held cannot leave");
            }
        }
    }

    fn swap(&mut self, index: usize, number: u8, parent: Option<u8>, hope: Hope) {
        let (writer, slot, namespace, place) = self.taken.swap_remove(index % self.taken.len());
        let number = number & !1 | namespace as u8;
        let bytes = place.end - place.start;
        let old = self.lookup(number);
        let (length, seen) = (
            old.map_or(1, |old| old.bytes),
            old.map(|old| Seen { slot: old.slot, generation: old.generation }),
        );
        let (expects, holds) = match (hope, seen) {
            (Hope::NoneAsLong, seen) => (Expects::NoneOf(length), seen.is_none()),
            (Hope::NoneLonger, _) => (Expects::NoneOf(length + 1), true),
            (Hope::Anything, _) => (Expects::Anything, true),
            (Hope::Nothing, seen) => (Expects::Nothing, seen.is_none()),
            (Hope::Present, Some(seen)) => (Expects::Block(seen), true),
            (Hope::Present, None) => (Expects::Block(Seen { slot, generation: 1 }), false),
            (Hope::Wrong, seen) => {
                let Seen { slot, generation } = seen.unwrap_or(Seen { slot, generation: 1 });
                (Expects::Block(Seen { slot, generation: generation + 2 }), false)
            }
        };
        // One of another namespace is none.
        let parent = parent.filter(|parent| parent & 1 == number & 1 && *parent != number);
        let (other_namespace, other_key) = key(number ^ 1);
        let key = key(number);
        let wish = Wish { parent: parent.map(|parent| crate::key(parent).1), ..wish(key.0, key.1, bytes) };
        let of_another = Wish { namespace: other_namespace, key: other_key, ..wish };
        let is_pinned = self.is_pinned(number);
        assert_eq!(self.store.swap(writer + 1, slot, &wish, expects), Err(StoreError::NotReserved(slot)));
        assert_eq!(self.store.swap(writer, slot, &of_another, expects), Err(StoreError::NotReserved(slot)));
        self.store.prefetch(key.0, &[key.1]);
        let class = self.store.slot_bytes(slot);
        let longer = self.store.swap(writer, slot, &Wish { bytes: class + 1, ..wish }, expects);
        assert!(longer.is_err(), "{longer:?}");
        assert_eq!(self.store.is_as_expected(key.0, &key.1, expects), holds);
        let swapped = self.store.swap(writer, slot, &wish, expects).unwrap();
        assert_eq!(swapped == Swapped::Changed, !holds);
        assert!(!is_pinned || swapped != Swapped::Done);
        if swapped == Swapped::Done {
            self.forget(number);
            self.known.insert(number, (slot, bytes));
            let block = self.lookup(number).unwrap();
            assert!(self.given.insert((slot, block.generation)), "a generation is given once");
            let parent = parent.filter(|&parent| self.lookup(parent).is_some());
            assert_eq!(self.inspect(number).parent, parent.map(|parent| crate::key(parent).1));
            self.parents.extend(parent.map(|parent| (number, parent)));
            self.joined(number);
        }
        assert_eq!(self.store.swap(writer, slot, &wish, expects), Err(StoreError::NotReserved(slot)));
    }

    fn remove_seen(&mut self, number: u8, right: bool) {
        let (namespace, key) = key(number);
        let Some(block) = self.lookup(number) else { return };
        let seen = Seen { slot: block.slot, generation: block.generation + if right { 0 } else { 2 } };
        let may_go = right && !self.is_pinned(number);
        assert_eq!(self.store.remove_seen(namespace, &key, seen), may_go);
        assert_eq!(self.lookup(number).is_none(), may_go);
        if may_go {
            self.forget(number);
        }
    }

    /// Every key that is there, once each, whatever the limit.
    fn list(&self, limit: usize) {
        let mut listed = HashSet::new();
        for namespace in 0..2 {
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                let (keys, next) = self.store.list(Namespace(namespace), from, limit);
                assert!(keys.len() < limit + 7 && next.is_none_or(|next| next > from));
                for key in keys {
                    assert!(listed.insert((namespace, key)));
                }
                cursor = next;
            }
        }
        let there = (0..=u8::MAX).filter(|number| self.lookup(*number).is_some());
        assert_eq!(listed, there.map(|number| (key(number).0.0, key(number).1)).collect());
    }

    fn is_any_held(&self) -> bool {
        let is_any_written = !self.writing.is_empty() || !self.taken.is_empty() || !self.abandoned.is_empty();
        is_any_written || !self.pins.is_empty()
    }

    fn clear(&mut self, namespace: u64) {
        self.store.clear(Namespace(namespace));
        for number in (0..=u8::MAX).filter(|&number| u64::from(number) & 1 == namespace) {
            if self.is_pinned(number) {
                assert!(self.lookup(number).is_some());
            } else {
                assert!(self.lookup(number).is_none());
                self.forget(number);
            }
        }
    }

    /// Steps that say what may leave.
    fn hold(&mut self, step: &Step) {
        match *step {
            Step::Pin { session, key: number } => {
                let (namespace, key) = key(number);
                if self.store.pin(session, namespace, &key) {
                    assert!(self.lookup(number).is_some());
                    self.pins.push((session, number));
                }
            }
            Step::Unpin { session, key: number } => {
                let (namespace, key) = key(number);
                let at = self.pins.iter().position(|pin| *pin == (session, number));
                assert_eq!(self.store.unpin(session, namespace, &key), at.is_some());
                at.map(|at| self.pins.swap_remove(at));
            }
            Step::Limit { namespace, quota, priority } => {
                let limits = Limits { quota_bytes: quota, priority };
                self.store.set_limits(Namespace(namespace), limits);
                self.limits[namespace as usize] = limits;
            }
            _ => panic!("{step:?} is no such step"),
        }
    }

    fn is_there_or_written(&self, number: u8) -> bool {
        self.lookup(number).is_some() || self.writing.iter().any(|(_, _, other, _)| *other == number)
    }

    fn is_pinned(&self, number: u8) -> bool {
        self.pins.iter().any(|(_, other)| *other == number)
    }

    fn inspect(&self, number: u8) -> Inspected {
        let (namespace, key) = key(number);
        self.store.inspect(namespace, &key).unwrap()
    }

    /// Somebody removed it: that children stay without it is right.
    fn forget(&mut self, number: u8) {
        self.known.remove(&number);
        self.late.remove(&number);
        self.parents.remove(&number);
        self.parents.retain(|_, parent| *parent != number);
    }

    /// What must be true after every step; returns how many blocks are there.
    fn check(&self) -> u64 {
        let mut ranges: Vec<_> = self.writing.iter().map(|(_, _, _, place)| place.clone()).collect();
        let mut slots: HashSet<u32> = self.writing.iter().map(|(_, slot, ..)| *slot).collect();
        slots.extend(self.taken.iter().map(|(_, slot, ..)| *slot));
        ranges.extend(self.taken.iter().map(|(.., place)| place.clone()));
        slots.extend(self.abandoned.iter().map(|(slot, ..)| *slot));
        ranges.extend(self.abandoned.iter().map(|(_, place, _)| place.clone()));
        let (mut blocks, mut bytes) = (0, 0);
        for number in 0..=u8::MAX {
            let Some(block) = self.lookup(number) else { continue };
            assert_eq!(self.known.get(&number), Some(&(block.slot, u64::from(block.bytes))), "it was put so");
            assert!(slots.insert(block.slot), "a slot has one use");
            ranges.push(block.offset..block.offset + u64::from(block.bytes));
            blocks += 1;
            bytes += u64::from(block.bytes);
        }
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{ranges:?}");
        assert!(ranges.last().is_none_or(|last| last.end <= self.geometry.blocks_bytes()));
        for (child, parent) in &self.parents {
            let is_right = self.lookup(*child).is_none() || self.lookup(*parent).is_some();
            assert!(is_right, "{parent} was evicted before {child}");
        }
        assert!(self.pins.iter().all(|(_, number)| self.lookup(*number).is_some()), "what is pinned stays");
        let held: u64 = [0, 1].map(|number| self.store.space(Namespace(number)).slot_bytes).iter().sum();
        assert_eq!(held, slots.iter().map(|&slot| self.store.slot_bytes(slot)).sum::<u64>());
        let status = self.store.status();
        assert_eq!(
            (status.blocks, status.bytes, status.reserved),
            (blocks, bytes, (self.writing.len() + self.taken.len() + self.abandoned.len()) as u64)
        );
        blocks
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn in_memory_that_is_not_coherent_every_block_is_what_was_put_or_a_miss(
        steps in prop::collection::vec(step(), 1..200),
        seed in any::<u64>(),
    ) {
        for chunks in [3, 100] {
            let mut world = World::checked(chunks, EvictionKind::S3Fifo, seed);
            for step in &steps {
                world.run(step);
                world.check();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn in_little_memory_every_block_is_what_was_put_or_a_miss(steps in prop::collection::vec(step(), 1..400)) {
        let mut world = World::new(3, EvictionKind::S3Fifo);
        for step in &steps {
            world.run(step);
            world.check();
        }
    }

    #[test]
    fn in_memory_for_all_nothing_is_lost(steps in prop::collection::vec(step(), 1..300)) {
        let mut world = World::new(300, EvictionKind::S3Fifo);
        // The index of so much memory takes long to list, and what is listed does not depend on it.
        for step in steps.iter().filter(|step| !matches!(step, Step::List { .. } | Step::Leave { .. })) {
            world.run(step);
        }
        let quotas = steps.iter().any(|step| matches!(step, Step::Limit { quota: Some(_), .. }));
        let there = world.check();
        prop_assert!(quotas || there == world.known.len() as u64);
        prop_assert!(quotas || world.evictions + world.store.status().evictions == 0);
    }
}

#[test]
fn a_store_that_is_full_of_small_blocks_makes_room_for_large_ones() {
    fill_with_small_then_large(World::new(4, EvictionKind::Lru));
    fill_with_small_then_large(World::checked(4, EvictionKind::Lru, 4));
}

fn fill_with_small_then_large(mut world: World) {
    let mut not_touched = |_| false;
    let mut put = |world: &mut World, number: u32, bytes| {
        let key = BlockKey::new(&number.to_le_bytes()).unwrap();
        match world.store.reserve(1, &wish(Namespace(0), key, bytes), &mut not_touched).unwrap() {
            Reserved::Slot { slot, .. } => world.store.publish(1, slot, &mut not_touched).unwrap(),
            other => panic!("{other:?}"),
        }
    };
    let small = (0..10_000).filter(|&number| put(&mut world, number, 4096)).count();
    assert!(small > 9_000);
    assert!(world.store.status().blocks > 3_500);
    for number in 20_000..20_020 {
        assert!(put(&mut world, number, 4 << 20));
    }
    for number in 30_000..34_000 {
        put(&mut world, number, 4096);
    }
    assert!(world.store.status().blocks > 3_000);
}

#[test]
fn what_was_read_stays_when_something_must_leave() {
    read_then_make_room(World::new(1, EvictionKind::Lru));
    read_then_make_room(World::checked(1, EvictionKind::Lru, 5));
}

fn read_then_make_room(mut world: World) {
    let key = |number: u8| BlockKey::new(&[number]).unwrap();
    let is_read = RefCell::new(HashSet::new());
    let mut touched = |slot| is_read.borrow_mut().remove(&slot);
    for number in 0..4 {
        let reserved =
            world.store.reserve(1, &wish(Namespace(0), key(number), 1 << 20), &mut touched).unwrap();
        let Reserved::Slot { slot, .. } = reserved else { panic!("{reserved:?}") };
        world.store.publish(1, slot, &mut touched).unwrap();
        if number == 0 {
            is_read.borrow_mut().insert(slot);
        }
    }
    for number in 4..6 {
        let reserved =
            world.store.reserve(1, &wish(Namespace(0), key(number), 1 << 20), &mut touched).unwrap();
        let Reserved::Slot { slot, .. } = reserved else { panic!("{reserved:?}") };
        world.store.publish(1, slot, &mut touched).unwrap();
    }
    assert!(world.store.remove(Namespace(0), &key(0)), "it was read");
    assert!(!world.store.remove(Namespace(0), &key(1)), "it was not");
}

/// Steps of the soak, over all worlds.
const SOAK_STEPS: u64 = 10_000_000;
/// Steps in one world; the next has another size and order.
const SOAK_WORLD_STEPS: u64 = 100_000;
/// Steps between two looks at everything: each is 256 look-ups.
const SOAK_CHECK_STEPS: u64 = 16;

/// Says which world and step it was, if a step fails.
struct Place(u64, u64);

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in step {} of world {}", self.1, self.0);
        }
    }
}

#[test]
#[ignore = "minutes; ./check --full runs it"]
fn soak_of_ten_million_operations_against_a_plain_map() {
    let (mut evictions, mut most) = (0, 0);
    let steps = step();
    for number in 0..SOAK_STEPS / SOAK_WORLD_STEPS {
        let mut place = Place(number, 0);
        // At most 100 worlds: the cast loses nothing.
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[number as u8; 32]);
        let mut runner = TestRunner::new_with_rng(Config::default(), rng);
        let order = EvictionKind::ALL[number as usize % EvictionKind::ALL.len()];
        let mut world = World::new(1 + number % 7, order);
        let mut chance = number;
        world.was_touched = Box::new(move |_| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            chance >> 62 == 0
        });
        for step in 0..SOAK_WORLD_STEPS {
            place.1 = step;
            world.run(&steps.new_tree(&mut runner).unwrap().current());
            if step % SOAK_CHECK_STEPS == 0 {
                most = most.max(world.check());
            }
        }
        world.check();
        evictions += world.evictions + world.store.status().evictions;
    }
    assert!(evictions > SOAK_STEPS / 100 && most > 20, "{evictions} evictions, {most} blocks at most");
}
