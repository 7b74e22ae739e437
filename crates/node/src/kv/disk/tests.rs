//! The tier over a real file whose transfers fail, or whose bytes change, when a test says so.

use super::*;
use crate::kv::start::Plan;
use crate::kv::{KvFolders, UserStore};
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
    /// Nothing is answered.
    holds: AtomicBool,
    /// What was read is handed out when this ends.
    reads_late: AtomicBool,
    /// How many reads wait for that.
    late: AtomicUsize,
    /// Of the next transfers that are made at once nothing arrives of the first, and nothing is answered any more: the node is killed.
    dies: AtomicBool,
    is_dead: AtomicBool,
    /// A record was written at once with the first of its region.
    is_early: AtomicBool,
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
        while self.trouble.holds.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.trouble.fails.load(Ordering::Relaxed) {
            return transfers.iter().map(|_| Err(io::Error::from_raw_os_error(5))).collect();
        }
        let begins = |transfer: &Transfer<'_>| match transfer {
            Transfer::Write(_, bytes) => Record::load(bytes).is_ok_and(|record| record.begins_region()),
            Transfer::Read(..) => false,
        };
        let is_early = transfers.split_last().is_some_and(|(_, before)| before.iter().any(begins));
        self.trouble.is_early.fetch_or(is_early, Ordering::Relaxed);
        if self.trouble.dies.load(Ordering::Relaxed) && transfers.len() > 1 {
            self.file.transfer(&mut transfers[1..]);
            self.trouble.is_dead.store(true, Ordering::Relaxed);
            loop {
                std::thread::park();
            }
        }
        self.trouble.batches.fetch_add(1, Ordering::Relaxed);
        let results = self.file.transfer(transfers);
        if matches!(transfers.first(), Some(Transfer::Read(..))) {
            self.trouble.late.fetch_add(1, Ordering::Relaxed);
            while self.trouble.reads_late.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.trouble.late.fetch_sub(1, Ordering::Relaxed);
        }
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
        let world = Self::reading(path, false);
        world.until(|status| status.state == "working");
        world
    }

    /// What the disk holds is not known yet, and not before a test lets it be read if `is_held`.
    fn reading(path: PathBuf, is_held: bool) -> Self {
        let trouble = Arc::new(Trouble { holds: AtomicBool::new(is_held), ..Trouble::default() });
        let file = DirectFile::open(&path, 128 * MIB).unwrap();
        let media = Troubled { file, trouble: Arc::clone(&trouble) };
        let tier = DiskTier::over(path.clone(), Box::new(media), 128 * MIB).unwrap();
        let (store, _) = UserStore::new(0, &plan(None)).unwrap();
        let namespace = store.namespace(FINGERPRINT, "model").unwrap().namespace;
        tier.know(namespace.0, FINGERPRINT);
        let (keeper, view) = (Arc::clone(&tier), Arc::clone(&store.view));
        store.lock().store.set_keeper(Box::new(move |leaving| keeper.stage(&view, leaving)));
        Self { store, tier, trouble, path, namespace }
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
        self.put_content(number, &content_of(number, bytes));
    }

    fn put_content(&self, number: u32, content: &[u8]) {
        self.put_from(number, content, false);
    }

    /// The same, and whether it comes from another node.
    fn put_from(&self, number: u32, content: &[u8], is_fetched: bool) {
        let bytes = content.len() as u64;
        let wish = Wish { namespace: self.namespace, key: key(number), bytes, parent: None };
        let reserved = self.store.lock().store.reserve(1, &wish, &mut |_| false).unwrap();
        let Reserved::Slot { slot, offset } = reserved else { panic!("{reserved:?}") };
        let sum = self.store.view.write(offset, bytes, &[content]).unwrap().unwrap();
        self.store.lock().store.sum_of_written(1, slot, Some(sum)).unwrap();
        if is_fetched {
            self.store.lock().store.fetched(1, slot).unwrap();
        }
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
        self.until(|_| self.tier.lock().is_idle());
    }

    fn stop(self) -> PathBuf {
        self.tier.stop(&self.store.view, &[]);
        self.path.clone()
    }

    fn restart(self) -> Self {
        Self::on(self.stop())
    }

    /// Removes a block, and checks that it stays away when the file is read again, and another one does not.
    fn removal_outlives_a_restart(self, removed: u32, other: u32) {
        self.tier.removed(self.namespace.0, &key(removed));
        self.settle();
        let world = self.restart();
        assert!(world.get(removed).is_none() && world.get(other).is_some());
        world.end();
    }

    fn fail(&self) {
        self.trouble.fails.store(true, Ordering::Relaxed);
    }

    /// The disk works again, and its rest is over.
    fn mend(&self) {
        self.trouble.fails.store(false, Ordering::Relaxed);
        self.tier.lock().rests_until = None;
        self.tier.changed.notify_all();
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

fn plan(disk: Option<KvDisk>) -> Plan {
    Plan {
        capacity_bytes: 8 * MIB,
        order: EvictionKind::Lru,
        disk,
        coherence: Coherence::Hardware,
        // Nothing is to be kept, and none of it can be made.
        folders: KvFolders { blocks: Vec::new(), books: PathBuf::from("/proc/hinterland") },
        keeps: false,
        verifies: false,
        writers_sum: true,
        watermarks: None,
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
fn what_is_removed_while_the_disk_is_read_stays_away() {
    let world = World::new("reading");
    (0..30).for_each(|number| world.put(number));
    world.settle();
    let world = World::reading(world.stop(), true);
    assert!(!world.tier.removed(world.namespace.0, &key(3)), "nobody knows yet");
    world.tier.removed(world.namespace.0, &key(5));
    world.put_content(5, &content(1005));
    world.trouble.holds.store(false, Ordering::Relaxed);
    world.until(|status| status.state == "working");
    assert!(world.get(3).is_none() && world.get(4).is_some());
    (100..120).for_each(|number| world.put(number));
    world.settle();
    assert!(!world.is_in_memory(5));
    assert_eq!(world.get(5).unwrap(), content(1005));
    let world = world.restart();
    assert!(world.get(3).is_none() && world.get(4).is_some());
    assert_eq!(world.get(5).unwrap(), content(1005));
    let world = World::reading(world.stop(), true);
    world.tier.cleared(world.namespace.0);
    world.trouble.holds.store(false, Ordering::Relaxed);
    world.until(|status| status.state == "working");
    world.settle();
    assert_eq!(world.tier.status().blocks, 0);
    let world = world.restart();
    assert_eq!(world.tier.status().blocks, 0);
    world.end();
}

#[test]
fn a_fetched_block_that_is_removed_while_the_disk_is_not_known_stays_away() {
    let world = World::new("fetched-unknown");
    for number in 0..20 {
        world.put_from(number, &content(number), number < 2);
    }
    world.settle();
    let world = World::reading(world.stop(), true);
    // Nobody can say yet what is there.
    world.tier.removed_if_fetched(FINGERPRINT, &key(1));
    world.trouble.holds.store(false, Ordering::Relaxed);
    world.until(|status| status.state == "working");
    assert!(!world.tier.removed_if_fetched(FINGERPRINT, &key(2)), "it was put here");
    assert_eq!([0, 1, 2].map(|number| world.get(number)), [Some(content(0)), None, Some(content(2))]);
    world.settle();
    let world = world.restart();
    assert_eq!([0, 1, 2].map(|number| world.get(number)), [Some(content(0)), None, Some(content(2))]);
    world.end();
}

#[test]
fn a_block_that_is_removed_while_it_is_read_stays_away_also_if_the_log_has_gone_round_meanwhile() {
    for is_fetched in [false, true] {
        stays_away_if_the_log_has_gone_round(is_fetched);
    }
}

fn stays_away_if_the_log_has_gone_round(is_fetched: bool) {
    let world = World::new("read-late");
    (0..20).for_each(|number| world.put_from(number, &content(number), is_fetched));
    world.settle();
    std::thread::scope(|scope| {
        world.trouble.reads_late.store(true, Ordering::Relaxed);
        let reader = scope.spawn(|| [3, 4].map(|number| world.get(number)));
        let deadline = Instant::now() + Duration::from_secs(60);
        while world.trouble.late.load(Ordering::Relaxed) == 0 {
            assert!(Instant::now() < deadline, "nothing is read");
            std::thread::sleep(Duration::from_millis(1));
        }
        for number in 100.. {
            if world.tier.length(&FINGERPRINT, &key(3)).is_none() {
                break;
            }
            world.put(number);
            world.settle();
        }
        let was_here = if is_fetched {
            world.tier.removed_if_fetched(FINGERPRINT, &key(3))
        } else {
            world.tier.removed(world.namespace.0, &key(3))
        };
        assert!(!was_here, "the disk has it no more");
        world.trouble.reads_late.store(false, Ordering::Relaxed);
        let [removed, _] = reader.join().unwrap();
        assert!(removed.is_none(), "who has removed it was answered");
    });
    world.end();
}

#[test]
fn a_block_that_leaves_while_the_node_stops_is_not_written_with_the_bytes_of_the_next_one() {
    let world = World::new("stop");
    for number in [1, 2] {
        world.put(number);
    }
    let mut blocks = Vec::new();
    // As where writers take no checksums: nothing else would tell.
    world.store.lock().store.each_block(&mut |block| {
        blocks.push(Departing { leaving: Leaving { sum: None, ..block.leaving }, ..*block });
    });
    // As what is fetched until the very end does, that nobody waits for.
    assert!(world.store.lock().store.remove(world.namespace, &key(1)));
    world.put(3);
    let slot = |number| world.store.lock().store.inspect(world.namespace, &key(number)).unwrap().slot;
    assert!(blocks.iter().any(|block| block.leaving.key == key(1) && block.slot == slot(3)));
    world.tier.stop(&world.store.view, &blocks);
    let world = World::on(world.path.clone());
    assert_eq!([1, 2].map(|number| world.get(number)), [None, Some(content(2))]);
    world.end();
}

#[test]
fn a_block_that_is_staged_comes_back_whatever_else_is_removed() {
    let world = World::new("staged-removals");
    world.trouble.holds.store(true, Ordering::Relaxed);
    (0..12).for_each(|number| world.put(number));
    assert!(!world.is_in_memory(1));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                world.tier.removed(world.namespace.0, &key(1000));
            }
        });
        let get = |number| {
            world.store.lock().store.remove(world.namespace, &key(number));
            world.get(number) == Some(content(number))
        };
        let found = (0..60).filter(|number| get(number % 3)).count();
        stop.store(true, Ordering::Relaxed);
        assert_eq!(found, 60);
    });
    world.trouble.holds.store(false, Ordering::Relaxed);
    world.end();
}

#[test]
fn a_block_that_is_removed_while_it_is_copied_ahead_stays_away() {
    let folder = std::env::temp_dir().join(format!("hl-tier-ahead-{}", std::process::id()));
    let disk = KvDisk { folder: folder.clone(), bytes: 128 * MIB };
    let path = disk.file(0);
    let (store, _) = UserStore::new(0, &plan(Some(disk))).unwrap();
    let namespace = store.namespace(FINGERPRINT, "model").unwrap().namespace;
    let tier = Arc::clone(store.disk.as_ref().unwrap());
    let world = World { store, tier, trouble: Arc::default(), path, namespace };
    world.until(|status| status.state == "working");
    for (number, is_removed, is_written_again) in [(1, false, false), (2, true, false), (3, true, true)] {
        world.put(number);
        let mut departing = world.store.lock().store.next_to_leave(&mut |_| false).unwrap();
        // As where no checksum was taken yet, which would tell.
        departing.leaving.sum = None;
        if is_removed {
            assert_eq!(world.store.remove(namespace, &[key(number).to_vec()]).unwrap(), 1);
        }
        if is_written_again {
            world.put(4);
            let block = world.store.lock().store.inspect(namespace, &key(4)).unwrap();
            assert_eq!(block.slot, departing.slot);
        }
        world.tier.stage_patiently(&world.store.view, &departing);
        assert_eq!(world.tier.length(&FINGERPRINT, &key(number)).is_some(), !is_removed);
        assert_eq!(world.store.depart(&departing), !is_removed);
        assert_eq!(world.tier.length(&FINGERPRINT, &key(number)).is_some(), !is_removed);
    }
    world.end();
    std::fs::remove_dir(folder).unwrap();
}

#[test]
fn what_is_removed_while_the_disk_fails_stays_away() {
    for is_cleared in [false, true] {
        let world = World::new(if is_cleared { "failing-clear" } else { "failing-remove" });
        (0..20).for_each(|number| world.put(number));
        world.settle();
        world.fail();
        if is_cleared {
            world.tier.cleared(world.namespace.0);
        } else {
            world.tier.removed(world.namespace.0, &key(3));
        }
        world.until(|status| status.state == "resting after failures");
        world.mend();
        world.settle();
        let world = world.restart();
        assert!(world.get(3).is_none());
        assert_eq!(world.get(4).is_none(), is_cleared);
        world.end();
    }
}

#[test]
fn a_node_that_stops_tells_a_resting_disk_what_was_removed() {
    let world = World::new("failing-stop");
    (0..20).for_each(|number| world.put(number));
    world.settle();
    world.fail();
    world.tier.removed(world.namespace.0, &key(3));
    world.until(|status| status.state == "resting after failures");
    world.trouble.fails.store(false, Ordering::Relaxed);
    let world = world.restart();
    assert!(world.get(3).is_none() && world.get(4).is_some());
    world.end();
}

#[test]
fn what_is_removed_behind_a_block_that_was_not_written_stays_away() {
    let world = World::new("gap");
    (0..20).for_each(|number| world.put(number));
    world.settle();
    world.fail();
    (100..110).for_each(|number| world.put(number));
    world.until(|status| status.failures > 0);
    world.until(|status| status.staged_bytes == 0);
    world.mend();
    world.removal_outlives_a_restart(3, 4);
}

#[test]
fn what_is_kept_in_memory_does_not_come_back_also_if_a_killed_node_has_not_noted_that() {
    let world = World::new("forbidden");
    (0..4).for_each(|number| world.put(number));
    world.settle();
    let number = world.namespace.0;
    let path = world.stop();
    // As a node starts that knows by its list of namespaces that this one is kept in memory.
    let file = DirectFile::open(&path, 128 * MIB).unwrap();
    let tier = DiskTier::over(path.clone(), Box::new(file), 128 * MIB).unwrap();
    tier.forbid(number, FINGERPRINT);
    let deadline = Instant::now() + Duration::from_secs(90);
    while tier.status().state != "working" {
        assert!(Instant::now() < deadline, "{:?}", tier.status());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!((0..4).all(|number| tier.length(&FINGERPRINT, &key(number)).is_none()));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn what_is_removed_while_a_part_of_the_disk_cannot_be_read_stays_away() {
    let world = World::new("unread");
    (0..30).for_each(|number| world.put(number));
    world.settle();
    let world = World::reading(world.stop(), true);
    world.fail();
    world.trouble.holds.store(false, Ordering::Relaxed);
    world.until(|status| status.state == "resting after failures");
    world.mend();
    assert_eq!(world.tier.status().blocks, 0);
    // Not of the first region, which is begun anew.
    world.removal_outlives_a_restart(10, 11);
}

#[test]
fn nothing_of_a_region_is_written_before_its_first_record() {
    let world = World::new("first");
    for burst in 0..4 {
        world.trouble.holds.store(true, Ordering::Relaxed);
        // Of lengths in turn, so that regions begin anywhere in what is written at once.
        (0..40)
            .for_each(|number| world.put_bytes(burst * 40 + number, MIB - u64::from(number % 3) * 100_000));
        world.trouble.holds.store(false, Ordering::Relaxed);
        world.settle();
    }
    assert!(!world.trouble.is_early.load(Ordering::Relaxed));
    let status = world.tier.status();
    assert_eq!((status.failures, status.lost_blocks), (0, 0));
    world.end();
}

#[test]
fn what_a_killed_node_wrote_behind_a_lost_block_stays_away() {
    let world = World::new("killed");
    (0..16).for_each(|number| world.put(number));
    world.settle();
    world.trouble.holds.store(true, Ordering::Relaxed);
    // Few enough for one region.
    (100..104).for_each(|number| world.put(number));
    world.trouble.dies.store(true, Ordering::Relaxed);
    world.trouble.holds.store(false, Ordering::Relaxed);
    world.until(|_| world.trouble.is_dead.load(Ordering::Relaxed));
    let path = world.path.clone();
    std::mem::forget(world);
    let world = World::on(path);
    let lost: Vec<u32> = (8..12).filter(|number| world.get(*number).is_none()).collect();
    assert!(lost.len() > 1, "{lost:?}");
    for number in &lost {
        assert!(!world.tier.removed(world.namespace.0, &key(*number)), "{number}");
    }
    // What is written next takes the place of the lost one.
    (200..209).for_each(|number| world.put(number));
    world.settle();
    let world = world.restart();
    for number in lost {
        assert!(world.get(number).is_none(), "{number} was removed");
    }
    world.end();
}

#[test]
fn a_block_that_was_once_read_wrong_and_is_removed_stays_away() {
    let world = World::new("flip-removed");
    (0..20).for_each(|number| world.put(number));
    world.settle();
    world.trouble.flips.store(700_000, Ordering::Relaxed);
    assert!(world.get(3).is_none());
    world.trouble.flips.store(0, Ordering::Relaxed);
    world.removal_outlives_a_restart(3, 4);
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

#[test]
fn what_is_cleared_while_it_is_copied_for_the_disk_does_not_come_back() {
    const BLOCKS: u32 = 2000;
    let folder = std::env::temp_dir().join(format!("hl-tier-clear-{}", std::process::id()));
    let disk = KvDisk { folder: folder.clone(), bytes: 128 * MIB };
    let (store, _) = UserStore::new(0, &plan(Some(disk))).unwrap();
    let tier = Arc::clone(store.disk.as_ref().unwrap());
    let namespace = store.namespace(FINGERPRINT, "model").unwrap().namespace;
    assert!(tier.waits_until_known());
    for round in 0..40 {
        for number in 0..BLOCKS {
            let wish = Wish { namespace, key: key(number), bytes: 512, parent: None };
            let reserved = store.lock().store.reserve(1, &wish, &mut |_| false).unwrap();
            let Reserved::Slot { slot, offset } = reserved else { panic!("{reserved:?}") };
            store.view.write(offset, 512, &[&[7; 512]]).unwrap();
            assert!(store.lock().store.publish(1, slot, &mut |_| false).unwrap());
        }
        let next = || store.lock().store.next_to_leave(&mut |_| false).unwrap();
        // The last one is also the last that is cleared.
        let mut departing = next();
        (1..BLOCKS).for_each(|_| departing = next());
        let has_begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !has_begun.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                tier.stage_patiently(&store.view, &departing);
            });
            has_begun.store(true, Ordering::Release);
            assert_eq!(store.clear(namespace), u64::from(BLOCKS));
        });
        assert_eq!(tier.length(&FINGERPRINT, &departing.leaving.key), None, "round {round}");
        assert!(!store.depart(&departing));
    }
    tier.stop(&store.view, &[]);
    std::fs::remove_dir_all(folder).unwrap();
}

impl DiskTier {
    fn waits_until_known(&self) -> bool {
        let mut state = self.lock();
        while !state.is_known {
            state = self.changed.wait(state).unwrap();
        }
        true
    }
}
