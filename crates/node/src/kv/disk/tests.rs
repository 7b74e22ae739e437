//! The tier over a real file whose transfers fail, or whose bytes change, when a test says so.

use super::*;
use crate::kv::UserStore;
use crate::kv::start::Plan;
use hinterland_kv::{Namespace, Reserved, Wish};
use hinterland_os::{Coherence, DirectBuffer};
use hinterland_policy::EvictionKind;
use std::sync::atomic::{AtomicBool, AtomicUsize};

const MIB: u64 = 1 << 20;
const FINGERPRINT: [u8; 32] = [7; 32];

/// What goes wrong.
#[derive(Default)]
struct Trouble {
    fails: AtomicBool,
    /// Reads change this byte of their record.
    flips: AtomicUsize,
    /// How often the file was asked.
    batches: AtomicUsize,
}

struct Troubled {
    file: DirectFile,
    trouble: Arc<Trouble>,
}

impl Media for Troubled {
    fn transfer(&self, transfers: &mut [Transfer<'_>]) -> Vec<io::Result<()>> {
        if self.trouble.fails.load(Ordering::Relaxed) {
            return transfers.iter().map(|_| Err(io::Error::from_raw_os_error(5))).collect();
        }
        self.trouble.batches.fetch_add(1, Ordering::Relaxed);
        let results = self.file.transfer(transfers);
        let flip = self.trouble.flips.load(Ordering::Relaxed);
        for transfer in transfers {
            if let Transfer::Read(_, bytes) = transfer
                && flip > 0
                && bytes.len() > flip
            {
                bytes[flip] ^= 1;
            }
        }
        results
    }
}

struct World {
    store: UserStore,
    tier: Arc<DiskTier>,
    trouble: Arc<Trouble>,
    path: PathBuf,
    namespace: Namespace,
}

impl World {
    /// Eight blocks of 1 MiB in memory, about a hundred on the disk.
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("hl-tier-{name}-{}", std::process::id()));
        Self::on(path)
    }

    fn on(path: PathBuf) -> Self {
        let trouble = Arc::new(Trouble::default());
        let file = DirectFile::open(&path, 128 * MIB).unwrap();
        let media = Troubled { file, trouble: Arc::clone(&trouble) };
        let tier = DiskTier::over(path.clone(), Box::new(media), 128 * MIB).unwrap();
        let plan = Plan {
            capacity_bytes: 8 * MIB,
            order: EvictionKind::Lru,
            disk: None,
            coherence: Coherence::Hardware,
            folders: None,
            verifies: false,
            writers_sum: true,
            watermarks: None,
        };
        let (store, _) = UserStore::new(0, &plan).unwrap();
        let (namespace, _) = store.namespace(FINGERPRINT, "model").unwrap();
        tier.know(namespace.0, FINGERPRINT);
        let (keeper, view) = (Arc::clone(&tier), Arc::clone(&store.view));
        store.lock().store.set_keeper(Box::new(move |leaving| keeper.stage(&view, leaving)));
        let world = Self { store, tier, trouble, path, namespace };
        world.until(|status| status.state == "working");
        world
    }

    fn until(&self, is_so: impl Fn(&KvDiskStatus) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(90);
        while !is_so(&self.tier.status()) {
            assert!(Instant::now() < deadline, "{:?}", self.tier.status());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn put(&self, number: u32) {
        self.put_bytes(number, MIB);
    }

    /// A block of the first bytes of what it has otherwise.
    fn put_bytes(&self, number: u32, bytes: u64) {
        let wish = Wish { namespace: self.namespace, key: key(number), bytes, parent: None };
        let reserved = self.store.lock().store.reserve(1, &wish, &mut |_| false).unwrap();
        let Reserved::Slot { slot, offset } = reserved else { panic!("{reserved:?}") };
        let sum = self.store.view.write(offset, bytes, &[&content_of(number, bytes)]).unwrap().unwrap();
        self.store.lock().store.sum_of_written(1, slot, sum).unwrap();
        assert!(self.store.lock().store.publish(1, slot, &mut |_| false).unwrap());
    }

    /// Brings a block back and reads it.
    fn get(&self, number: u32) -> Option<Vec<u8>> {
        let keys = [key(number)];
        self.store.bring_from(&self.tier, self.namespace, &keys);
        let found = self.store.view.find(self.namespace, &keys[0])?;
        let mut bytes = vec![0; MIB as usize];
        assert!(self.store.view.read(&found, &mut [&mut bytes]));
        Some(bytes)
    }

    fn is_in_memory(&self, number: u32) -> bool {
        self.store.view.find(self.namespace, &key(number)).is_some()
    }

    fn settle(&self) {
        self.until(|status| status.staged_bytes == 0 && self.tier.lock().staged.is_empty());
    }

    fn restart(self) -> Self {
        self.tier.stop(&self.store.view, &[]);
        let path = self.path.clone();
        drop(self);
        Self::on(path)
    }

    fn end(self) {
        self.tier.stop(&self.store.view, &[]);
        std::fs::remove_file(&self.path).unwrap();
    }
}

impl UserStore {
    fn bring_from(&self, tier: &DiskTier, namespace: Namespace, keys: &[BlockKey]) {
        tier.bring(self, namespace, &FINGERPRINT, keys);
    }
}

fn key(number: u32) -> BlockKey {
    BlockKey::new(&number.to_le_bytes()).unwrap()
}

fn content(number: u32) -> Vec<u8> {
    content_of(number, MIB)
}

fn content_of(number: u32, bytes: u64) -> Vec<u8> {
    (0..bytes as u32).map(|index| (index.wrapping_mul(31).wrapping_add(number) % 253) as u8).collect()
}

#[test]
fn what_leaves_the_memory_comes_back_also_after_a_restart() {
    let world = World::new("back");
    (0..40).for_each(|number| world.put(number));
    assert!(!world.is_in_memory(0));
    assert_eq!(world.get(0).unwrap(), content(0), "it may be staged still");
    world.settle();
    (0..40).for_each(|number| assert_eq!(world.get(number).unwrap(), content(number), "{number}"));
    let status = world.tier.status();
    assert_eq!((status.lost_blocks, status.failures, status.checksum_failures), (0, 0, 0));
    assert!(world.get(1000).is_none());
    world.settle();
    let world = world.restart();
    let there = (0..32).filter(|&number| world.get(number).is_some_and(|bytes| bytes == content(number)));
    assert_eq!(there.count(), 32, "all that had left the memory");
    world.end();
}

#[test]
fn many_headers_of_each_region_are_read_at_once_at_the_start() {
    // Three regions of a thousand blocks that are equally long, then some of two lengths in turn: none is known ahead.
    for (name, lengths, batches_max) in [("equal", [4000, 4000], 40), ("mixed", [4000, 20_000], 1500)] {
        let world = World::new(name);
        for number in 0..6000 {
            world.put_bytes(number, lengths[number as usize % 2]);
            if number % 1000 == 0 {
                world.settle();
            }
        }
        world.settle();
        let before = world.tier.status().blocks;
        assert!(before > 3000, "{before}");
        let world = world.restart();
        assert_eq!(world.tier.status().blocks, before);
        let batches = world.trouble.batches.load(Ordering::Relaxed);
        assert!(batches <= batches_max, "{name}: the file was asked {batches} times for {before} headers");
        let wanted: Vec<BlockKey> = (50..100).map(key).collect();
        world.store.bring_from(&world.tier, world.namespace, &wanted);
        let found = world.store.view.find(world.namespace, &wanted[27]).unwrap();
        let mut bytes = vec![0; found.bytes() as usize];
        assert!(world.store.view.read(&found, &mut [&mut bytes]));
        assert_eq!(bytes, content_of(77, u64::from(found.bytes())));
        world.end();
    }
}

#[test]
fn the_log_goes_round_and_never_gives_the_bytes_of_another_block() {
    let world = World::new("round");
    for number in 0..400 {
        world.put(number);
        if number % 8 == 0 {
            world.settle();
        }
        if number % 5 == 0 {
            let earlier = number / 2;
            assert!(world.get(earlier).is_none_or(|bytes| bytes == content(earlier)), "{earlier}");
        }
    }
    world.settle();
    assert!(world.get(0).is_none(), "it was written over");
    assert_eq!(world.get(380).unwrap(), content(380));
    let world = world.restart();
    for number in 0..400 {
        assert!(world.get(number).is_none_or(|bytes| bytes == content(number)), "{number}");
    }
    assert!(world.tier.status().blocks > 80, "{:?}", world.tier.status());
    world.end();
}

#[test]
fn what_was_removed_stays_away_after_a_restart_too() {
    let world = World::new("removed");
    (0..30).for_each(|number| world.put(number));
    world.settle();
    world.tier.removed(world.namespace.0, &key(3));
    assert!(world.get(3).is_none());
    (100..120).for_each(|number| world.put(number));
    // Some of these are staged at this moment.
    world.tier.removed(world.namespace.0, &key(100));
    world.settle();
    assert!(world.get(100).is_none() && world.get(4).is_some());
    let world = world.restart();
    assert!(world.get(3).is_none() && world.get(100).is_none() && world.get(4).is_some());
    world.tier.cleared(world.namespace.0);
    world.settle();
    assert_eq!(world.tier.status().blocks, 0);
    let world = world.restart();
    assert_eq!(world.tier.status().blocks, 0);
    world.end();
}

#[test]
fn any_changed_byte_is_noticed_and_counted_and_the_block_is_a_miss() {
    let world = World::new("flip");
    (0..20).for_each(|number| world.put(number));
    world.settle();
    for (number, flip) in [(0, 1), (1, 70), (2, 255), (3, 256), (4, 700_000), (5, 256 + MIB as usize - 1)] {
        world.trouble.flips.store(flip, Ordering::Relaxed);
        assert!(world.get(number).is_none(), "byte {flip}");
    }
    world.trouble.flips.store(0, Ordering::Relaxed);
    assert_eq!(world.tier.status().checksum_failures, 6);
    assert!(world.get(0).is_none(), "it is not asked for again");
    assert_eq!(world.get(6).unwrap(), content(6));
    world.end();
}

#[test]
fn a_block_whose_bytes_have_changed_in_memory_is_not_written() {
    let world = World::new("changed");
    (0..4).for_each(|number| world.put(number));
    let found = world.store.view.find(world.namespace, &key(2)).unwrap();
    let memory = world.store.view.blocks(found.block().offset, MIB).unwrap();
    memory.write_at(123_456, &[!content(2)[123_456]]).unwrap();
    (10..30).for_each(|number| world.put(number));
    world.settle();
    let there: Vec<u32> = (0..4).filter(|&number| world.get(number).is_some()).collect();
    assert_eq!(there, [0, 1, 3]);
    assert_eq!(world.tier.status().lost_blocks, 1);
    world.end();
}

#[test]
fn a_disk_that_fails_turns_hits_into_misses_and_stops_nobody() {
    let world = World::new("fails");
    (0..20).for_each(|number| world.put(number));
    world.settle();
    world.trouble.fails.store(true, Ordering::Relaxed);
    assert!(world.get(0).is_none());
    (100..140).for_each(|number| world.put(number));
    world.until(|status| status.state == "resting after failures");
    // However slow this machine is: whoever waited for the end of its rest would wait for an hour.
    world.tier.lock().rests_until = Some(Instant::now() + Duration::from_secs(3600));
    assert!(world.get(1).is_none() && !world.is_in_memory(1));
    (200..300).for_each(|number| world.put(number));
    assert!(world.tier.status().lost_blocks > 0 && world.tier.status().last_error.is_some());
    world.trouble.fails.store(false, Ordering::Relaxed);
    world.tier.lock().rests_until = None;
    assert_eq!(world.get(2).unwrap(), content(2), "what it held before is there when it works again");
    world.end();
}

#[test]
fn bytes_of_anything_in_the_file_are_no_blocks() {
    let path = std::env::temp_dir().join(format!("hl-tier-garbage-{}", std::process::id()));
    let file = DirectFile::open(&path, 128 * MIB).unwrap();
    let mut garbage = DirectBuffer::new(8 << 20).unwrap();
    let mut word = 1_u64;
    for bytes in garbage.bytes_mut().as_chunks_mut::<8>().0 {
        word = word.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29) ^ 5;
        *bytes = word.to_le_bytes();
    }
    for offset in 0..16 {
        let results = file.transfer(&mut [Transfer::Write(offset * 8 * MIB, garbage.bytes())]);
        assert!(results.iter().all(Result::is_ok));
    }
    drop(file);
    let world = World::on(path);
    assert_eq!(world.tier.status().blocks, 0);
    (0..20).for_each(|number| world.put(number));
    world.settle();
    assert_eq!(world.get(0).unwrap(), content(0));
    world.end();
}
