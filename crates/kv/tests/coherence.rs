//! Memory that is not coherent: with every flush no reader is ever wrong, and without any one of them one is.
//!
//! Two clients and the node have a cache each. A seed decides who goes on at which step, what their caches do on their own, and
//! what the clients want.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod baton;
mod checked;
mod history;

use baton::Baton;
use checked::{Checked, Part, SOFTWARE, Skip};
use hinterland_kv::{
    BlockKey, CHUNK_BYTES_MIN, Client, Counts, Expects, Geometry, Namespace, Point, Reserved, Store, Swapped,
    Wish, Words, header, index, settle, take_touch,
};
use hinterland_os::checking::{Disorder, Participant, segment};
use hinterland_policy::EvictionKind;
use history::{History, Place, bytes_of};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

const SPACE: Namespace = Namespace(3);
/// Slots that the books have room for.
const SLOTS: u64 = 64;
/// The same for two chunks, whose slots have numbers far apart.
const SLOTS_OF_TWO: u64 = CHUNK_BYTES_MIN / 1024 + 8;
/// Buckets are four: keys share them.
const EXPECTED: u64 = 16;
/// The start of the blocks that is used.
const USED_BYTES: usize = 32 << 10;
/// Keys that clients put, get and remove.
const KEYS: u8 = 4;
const CLIENTS: usize = 2;
const CALLS: usize = 60;
/// More steps than a reader needs.
const STEPS_MAX: u64 = 64;
/// Seeds with which nothing may go wrong.
const SOUND_SEEDS: u64 = 100;
/// Seeds of which one must show what is left out.
const SEEDS_MAX: u64 = STEPS_MAX * STEPS_MAX;

/// The node: its store, and its own view of its books, which is the truth.
struct Node {
    store: Store<Checked>,
    books: Participant,
    geometry: Geometry,
}

/// The node's copies as they are, read without any effect.
struct Quiet<'node>(&'node Participant);

impl Words for Quiet<'_> {
    fn load(&self, word: usize) -> u64 {
        self.0.peek(word * 8)
    }

    fn store(&self, _: usize, _: u64) {
        unreachable!("it is only read");
    }
}

impl Node {
    /// Where the block of a key is published.
    fn place(&self, number: u8) -> Option<Place> {
        let (words, key, mut found) = (Quiet(&self.books), key(number), None);
        index::find(&words, &self.geometry, key.hash(SPACE), |slot| {
            found = header::read(&words, &self.geometry, slot, SPACE, &key);
            found.is_some()
        });
        found.map(|block| (block.slot, block.generation))
    }
}

/// The keys of the test, all of one bucket: some that stay and fill it, and those that come and go beside it.
fn key(number: u8) -> BlockKey {
    let bucket = |key: &BlockKey| key.hash(SPACE) & 3;
    let mut keys = (0..u64::MAX).map(|text| BlockKey::new(&text.to_le_bytes()).unwrap());
    keys.by_ref().filter(|key| bucket(key) == 1).nth(number as usize).unwrap()
}

struct World {
    baton: Arc<Baton>,
    node: Mutex<Node>,
    clients: Vec<Client<Checked>>,
    keys: Vec<BlockKey>,
    history: Mutex<History>,
}

impl World {
    /// A store of one chunk over memory that held anything before, mapped by the clients; what is wrong already, if anything.
    fn new(seed: u64, skip: Skip) -> Result<Self, String> {
        let baton = Baton::new(CLIENTS, seed);
        let hook = Arc::clone(&baton);
        let on_step = Arc::new(move || hook.step());
        let disorder = |number| Disorder { seed: seed * 4 + number, calls: 12, garbage: true };
        let geometry = Geometry::new(SLOTS, EXPECTED, CHUNK_BYTES_MIN).with_coherence(SOFTWARE);
        let lengths =
            [geometry.books_bytes() as usize, CHUNK_BYTES_MIN as usize, geometry.touches_bytes() as usize];
        let files: Vec<Vec<Participant>> = (0..)
            .zip(lengths)
            .map(|(number, bytes)| segment(bytes, CLIENTS + 1, disorder(number), on_step.clone()))
            .collect();
        let side = |file: usize, number: usize| Checked {
            memory: files[file][number].clone(),
            owner: number == CLIENTS,
            skip,
        };
        // Clients have old copies of some lines.
        for client in &files[0][..CLIENTS] {
            client.read(0, &mut [0; 8192]);
        }
        for (file, bytes) in [lengths[0], USED_BYTES, lengths[2]].into_iter().enumerate() {
            files[file][CLIENTS].write(0, &vec![0; bytes]);
        }
        let store = Store::new(side(0, CLIENTS), geometry, EvictionKind::Lru);
        settle(&side(1, CLIENTS), Point::NewBlocks);
        settle(&side(2, CLIENTS), Point::NewTouches);
        let mut node = Node { store, books: files[0][CLIENTS].clone(), geometry };
        // Entries that fill the bucket.
        for number in KEYS..KEYS + 7 {
            let wish = Wish { namespace: SPACE, key: key(number), bytes: 1, parent: None };
            let Ok(Reserved::Slot { slot, .. }) = node.store.reserve(9, &wish, &mut |_| false) else {
                panic!("there is room");
            };
            assert!(node.store.publish(9, slot, &mut |_| false).unwrap());
        }
        let client = |number| Client::new(side(0, number), side(1, number), side(2, number));
        let clients =
            (0..CLIENTS).map(client).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        let keys = (0..KEYS).map(key).collect();
        Ok(Self { baton, node: Mutex::new(node), clients, keys, history: Mutex::default() })
    }

    fn node(&self) -> MutexGuard<'_, Node> {
        loop {
            match self.node.try_lock() {
                Ok(node) => return node,
                Err(TryLockError::WouldBlock) => self.baton.yield_now(),
                Err(TryLockError::Poisoned(_)) => panic!("the other client has failed"),
            }
        }
    }

    /// Lets the node do something, and notes what became of each key by it.
    fn ask<T>(&self, takes_away: bool, work: impl FnOnce(&mut Node) -> T) -> T {
        let mut node = self.node();
        let begin = self.history().tick();
        {
            let mut history = self.history();
            (history.node_works, history.node_is_asked) = (takes_away, true);
        }
        let outcome = work(&mut node);
        let mut history = self.history();
        (history.node_works, history.node_is_asked) = (false, false);
        let end = history.tick();
        for number in 0..KEYS {
            history.note(number, node.place(number), [begin, end]);
        }
        outcome
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap()
    }

    fn put(&self, client: usize, number: u8, aborts: bool) {
        let id = self.history().tick();
        let bytes = bytes_of(id, number);
        let wish = Wish {
            namespace: SPACE,
            key: self.keys[number as usize],
            bytes: bytes.len() as u64,
            parent: None,
        };
        let writer = client as u64;
        let reserved = self.ask(true, |node| node.store.reserve(writer, &wish, &mut |_| false).unwrap());
        let Reserved::Slot { slot, offset } = reserved else { return };
        let cut = if aborts { bytes.len() / 2 } else { bytes.len() };
        let (one, other) = bytes[..cut].split_at(cut / 3);
        self.clients[client].write_pieces(offset, cut as u64, [one, other]).unwrap();
        if aborts {
            self.ask(true, |node| node.store.abort(writer, slot).unwrap());
            return;
        }
        self.ask(true, |node| {
            self.history().publishing(number, id);
            // Another may have put its block there by a swap.
            if node.store.publish(writer, slot, &mut |_| false).unwrap() {
                self.history().published(number, node.place(number).unwrap());
            } else {
                self.history().given_up(number);
            }
        });
    }

    /// Puts a block in place of the one that the key has, which no reader may miss.
    fn swap(&self, client: usize, number: u8) {
        let id = self.history().tick();
        let (bytes, writer) = (bytes_of(id, number), client as u64);
        let taken = self.ask(true, |node| node.store.take_slot(writer, SPACE, 1024, &mut |_| false).unwrap());
        let (slot, offset) = taken.unwrap();
        self.clients[client].write_pieces(offset, bytes.len() as u64, [&bytes[..]]).unwrap();
        let key = self.keys[number as usize];
        let wish = Wish { namespace: SPACE, key, bytes: bytes.len() as u64, parent: None };
        self.ask(false, |node| {
            self.history().publishing(number, id);
            let swapped = node.store.swap(writer, slot, &wish, Expects::Anything).unwrap();
            assert_eq!(swapped, Swapped::Done);
            self.history().published(number, node.place(number).unwrap());
        });
    }

    fn get(&self, client: usize, number: u8, looks_only: bool) -> Result<(), String> {
        let begin = self.history().tick();
        let side = &self.clients[client];
        let found = side.find(SPACE, &self.keys[number as usize]);
        let mut into = vec![0; 1024];
        let mut read = None;
        if let Some(found) = found.filter(|_| !looks_only) {
            let length = (found.bytes() as usize).min(into.len());
            if side.read(&found, &mut [&mut into[..length]]) {
                read = Some(&into[..length]);
            }
        }
        let mut history = self.history();
        let end = history.tick();
        match (found, read) {
            (Some(found), None) if looks_only => history.check_length(number, found.bytes(), [begin, end]),
            (_, Some(bytes)) => history.check_bytes(number, bytes, [begin, end]),
            (Some(_), None) => history.check_interrupted(number, [begin, end]),
            (None, None) => history.check_miss(number, [begin, end]),
        }
    }

    /// What one client does.
    fn run(&self, client: usize) -> Result<(), String> {
        for _ in 0..CALLS {
            let number = self.baton.below(u64::from(KEYS)) as u8;
            match self.baton.below(16) {
                0..3 => self.put(client, number, false),
                3 => self.put(client, number, true),
                4..6 => self.swap(client, number),
                6..8 => {
                    self.ask(true, |node| node.store.remove(SPACE, &self.keys[number as usize]));
                }
                8..10 => self.get(client, number, true)?,
                _ => self.get(client, number, false)?,
            }
        }
        Ok(())
    }
}

/// What goes wrong under a seed, if anything.
fn run(seed: u64, skip: Skip) -> Result<(), String> {
    let world = World::new(seed, skip)?;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn({
                    let world = &world;
                    move || world.baton.turn(client, || world.run(client))
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

/// What goes wrong with touches under a seed: other blocks leave than with touches that nobody can lose.
fn run_touches(seed: u64, skip: Skip) -> Result<(), String> {
    // Two chunks: touches of their slots lie in lines of their own.
    let geometry = Geometry::new(SLOTS_OF_TWO, EXPECTED, 2 * CHUNK_BYTES_MIN).with_coherence(SOFTWARE);
    let sides = |bytes: u64, garbage: bool| {
        segment(bytes as usize, 3, Disorder { seed, calls: 20, garbage }, Arc::new(|| ()))
    };
    let books = sides(geometry.books_bytes(), false);
    let (blocks, touches) = (sides(2 * CHUNK_BYTES_MIN, true), sides(geometry.touches_bytes(), true));
    let side = |file: &[Participant], number: usize| Checked {
        memory: file[number].clone(),
        owner: number == 1,
        skip,
    };
    let node_touches = side(&touches, 1);
    touches[1].write(0, &vec![0; geometry.touches_bytes() as usize]);
    let mut store = Store::new(side(&books, 1), geometry, EvictionKind::Lru);
    settle(&node_touches, Point::NewTouches);
    let client = |number| Client::new(side(&books, number), side(&blocks, number), side(&touches, number));
    let (client, other) =
        (client(0).map_err(|error| error.to_string())?, client(2).map_err(|error| error.to_string())?);
    let mut counts = Counts::default();
    let plain = Checked { memory: sides(geometry.books_bytes(), false)[1].clone(), owner: true, skip: None };
    let mut right = Store::new(plain, geometry, EvictionKind::Lru);
    let mut touched = HashSet::new();
    let baton = Baton::new(1, seed);
    for number in 0..40 {
        // Eight blocks fit, and one leaves for each from then on.
        let wish = Wish { namespace: SPACE, key: key(number), bytes: 1 << 20, parent: None };
        let Reserved::Slot { slot, .. } =
            store.reserve(1, &wish, &mut |slot| take_touch(&node_touches, slot)).unwrap()
        else {
            return Err("no room".to_owned());
        };
        store.publish(1, slot, &mut |slot| take_touch(&node_touches, slot)).unwrap();
        let Reserved::Slot { slot, .. } = right.reserve(1, &wish, &mut |slot| touched.remove(&slot)).unwrap()
        else {
            return Err("no room".to_owned());
        };
        right.publish(1, slot, &mut |slot| touched.remove(&slot)).unwrap();
        let mut there = Vec::new();
        for other in 0..=number {
            let (found, expected) = (client.find(SPACE, &key(other)), right.inspect(SPACE, &key(other)));
            if found.is_some() != expected.is_some() {
                return Err(format!("block {other} after {number}: {found:?}, not {expected:?}"));
            }
            there.extend(found.zip(expected));
        }
        for _ in 0..2 {
            let (found, expected) = &there[baton.below(there.len() as u64) as usize];
            assert!(client.read(found, &mut [&mut [0; 8]]));
            touched.insert(expected.slot);
            counts.gets += 1;
            client.count(5, Counts { gets: 1, ..Counts::default() });
            // The touch, and what is counted, arrive before long.
            touches[0].fence();
        }
        // Another host counts too, and so the one before must look again.
        counts.asked += 1;
        other.count(5, Counts { asked: 1, ..Counts::default() });
        touches[2].fence();
        let counted = Counts::load(&node_touches, &geometry, 5);
        if counted != counts {
            return Err(format!("{counted:?} is told of {counts:?}"));
        }
    }
    Ok(())
}

/// What goes wrong when a key is looked up that was removed: it is looked for again and again.
fn run_removed(_: u64, skip: Skip) -> Result<(), String> {
    let steps = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&steps);
    let on_step = Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let geometry = Geometry::new(SLOTS, EXPECTED, CHUNK_BYTES_MIN).with_coherence(SOFTWARE);
    let lengths = [geometry.books_bytes(), CHUNK_BYTES_MIN, geometry.touches_bytes()];
    let files = lengths.map(|bytes| segment(bytes as usize, 2, Disorder::NONE, on_step.clone()));
    let side = |file: usize, number: usize| Checked {
        memory: files[file][number].clone(),
        owner: number == 1,
        skip,
    };
    let mut store = Store::new(side(0, 1), geometry, EvictionKind::Lru);
    let client = Client::new(side(0, 0), side(1, 0), side(2, 0)).map_err(|error| error.to_string())?;
    let wish = Wish { namespace: SPACE, key: key(0), bytes: 1, parent: None };
    let Reserved::Slot { slot, .. } = store.reserve(1, &wish, &mut |_| false).unwrap() else {
        return Err("no room".to_owned());
    };
    store.publish(1, slot, &mut |_| false).unwrap();
    store.remove(SPACE, &key(0));
    steps.store(0, Ordering::SeqCst);
    assert!(client.find(SPACE, &key(0)).is_none());
    match steps.load(Ordering::SeqCst) {
        0..20 => Ok(()),
        steps => Err(format!("a miss takes {steps} steps")),
    }
}

/// What goes wrong when, at two given steps of a reader of key 0, its block is replaced by one of key 1 in the same slot, and
/// that one by another of key 0.
fn run_replaced(steps: u64, skip: Skip) -> Result<(), String> {
    let at = [steps % STEPS_MAX, steps / STEPS_MAX];
    if at[1] < at[0] {
        return Ok(());
    }
    let (passed, replace) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(Mutex::new(None::<Replace>)));
    let on_step = {
        let (passed, replace) = (Arc::clone(&passed), Arc::clone(&replace));
        // Steps of what is done meanwhile find it locked, and those before the reader begins are not counted.
        Arc::new(move || {
            if let Ok(mut replace) = replace.try_lock()
                && let Some(replace) = replace.as_mut()
            {
                let step = passed.fetch_add(1, Ordering::SeqCst);
                (0..2).filter(|&number| at[number] == step).for_each(replace);
            }
        })
    };
    let geometry = Geometry::new(SLOTS, EXPECTED, CHUNK_BYTES_MIN).with_coherence(SOFTWARE);
    let lengths =
        [geometry.books_bytes() as usize, CHUNK_BYTES_MIN as usize, geometry.touches_bytes() as usize];
    let files = lengths.map(|bytes| segment(bytes, 3, Disorder::NONE, on_step.clone()));
    let side = |file: usize, number: usize| Checked {
        memory: files[file][number].clone(),
        owner: number == 2,
        skip,
    };
    let client = |number| Client::new(side(0, number), side(1, number), side(2, number));
    let mut store = Store::new(side(0, 2), geometry, EvictionKind::Lru);
    let (reader, writer) = (client(0).unwrap(), client(1).unwrap());
    let mut put = move |number: u8, byte: u8, bytes: usize| {
        store.remove(SPACE, &key(1 - number));
        let wish = Wish { namespace: SPACE, key: key(number), bytes: bytes as u64, parent: None };
        let reserved = store.reserve(1, &wish, &mut |_| false).unwrap();
        let Reserved::Slot { slot, offset } = reserved else { panic!("{reserved:?}") };
        writer.write_pieces(offset, bytes as u64, [&vec![byte; bytes][..]]).unwrap();
        store.publish(1, slot, &mut |_| false).unwrap();
    };
    put(0, 10, 300);
    *replace.lock().unwrap() = Some(Box::new(move |number| match number {
        0 => put(1, 20, 200),
        _ => put(0, 11, 300),
    }));
    passed.store(0, Ordering::SeqCst);
    let Some(found) = reader.find(SPACE, &key(0)) else { return Ok(()) };
    let mut into = [0; 300];
    match found.bytes() {
        300 if !reader.read(&found, &mut [&mut into]) => Ok(()),
        300 if [[10; 300], [11; 300]].contains(&into) => Ok(()),
        300 => Err(format!("bytes of another block, replaced at {at:?}")),
        length => Err(format!("the length of another block, {length}, replaced at {at:?}")),
    }
}

type Replace = Box<dyn FnMut(usize) + Send>;

/// The run that shows best what is left out.
const fn way(point: Point) -> fn(u64, Skip) -> Result<(), String> {
    match point {
        Point::NewTouches | Point::TouchToLook | Point::Touched | Point::TouchToTake | Point::TouchTaken => {
            run_touches
        }
        Point::RemovedEntry => run_removed,
        Point::CountToAdd | Point::Counted | Point::CountsToRead => run_touches,
        Point::HeaderFound | Point::HeaderCopied => run_replaced,
        _ => run,
    }
}

#[test]
fn with_every_flush_no_reader_is_ever_wrong() {
    assert_eq!(run_removed(0, None), Ok(()));
    for seed in 0..SOUND_SEEDS {
        assert_eq!(run(seed, None), Ok(()), "seed {seed}");
        assert_eq!(run_touches(seed, None), Ok(()), "seed {seed}");
    }
    for steps in 0..STEPS_MAX * STEPS_MAX {
        assert_eq!(run_replaced(steps, None), Ok(()));
    }
}

#[test]
fn without_any_one_flush_a_reader_is_wrong() {
    let mut left_out: Vec<(Point, Part)> = Point::ALL.into_iter().map(|point| (point, Part::Whole)).collect();
    for point in [Point::HeaderToRead, Point::BytesToRead, Point::WrittenBytes] {
        left_out.extend([(point, Part::FirstLine), (point, Part::LastLine)]);
    }
    for point in [Point::RetiredHeader, Point::PublishedEntry, Point::WrittenBytes] {
        left_out.push((point, Part::Fence));
    }
    let mut unseen = Vec::new();
    for (point, part) in left_out {
        let skip = Some((point, part));
        match (0..SEEDS_MAX).find_map(|seed| Some((seed, way(point)(seed, skip).err()?))) {
            Some((seed, wrong)) => println!("without {point:?} ({part:?}), seed {seed}: {wrong}"),
            None => unseen.push((point, part)),
        }
    }
    assert!(unseen.is_empty(), "nothing goes wrong without {unseen:?}");
}
