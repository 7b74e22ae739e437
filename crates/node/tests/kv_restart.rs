//! A node that takes the KV blocks of the one before it, while programs of before still write.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_kv::View;
use hinterland_node::{BackingChoice, KvDisk, Node, NodeOptions};
use hinterland_os::{MemoryFile, PageKind};
use hinterland_pool::{KvCache, Pool, PoolError, Session, Stored};
use hinterland_proto::checksum::crc32c;
use hinterland_proto::control::{
    KvBlock, KvKeptStatus, KvParent, KvReply, KvRequest, KvSlot, KvStatus, Reply, Request,
};
use hinterland_types::{Handle, RackName};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

struct Ground {
    root: PathBuf,
    node: Option<Node>,
    /// Whether its nodes have a disk for blocks.
    has_disk: bool,
    /// Whether their blocks outlive them in memory.
    keeps: bool,
    capacity_bytes: u64,
}

impl Ground {
    fn new(name: &str) -> Self {
        Self::with(name, false)
    }

    fn with(name: &str, has_disk: bool) -> Self {
        Self::that_keeps(name, has_disk, true)
    }

    fn that_keeps(name: &str, has_disk: bool, keeps: bool) -> Self {
        let root = std::env::temp_dir().join(format!("hl-kv-restart-{name}-{}", std::process::id()));
        let mut ground = Self { node: None, root, has_disk, keeps, capacity_bytes: 16 << 20 };
        ground.start();
        ground
    }

    fn restart(&mut self) {
        self.stop();
        self.start();
    }

    fn stop(&mut self) {
        self.node.take().unwrap().stop();
    }

    fn start(&mut self) {
        let disk = KvDisk { folder: self.disk(), bytes: 64 << 20 };
        let disk = self.has_disk.then_some(disk);
        self.node = Some(start(&self.root, self.capacity_bytes, disk, self.keeps));
    }

    /// Where its node lists the namespaces.
    fn list(&self) -> PathBuf {
        let identifier = std::fs::read_to_string(self.root.join("state/node.id")).unwrap();
        // The user of this process is the owner of what it has made.
        let user = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&self.root).unwrap());
        PathBuf::from(format!("/dev/shm/hinterland-{}/kv-{user}.spaces", identifier.trim()))
    }

    fn disk(&self) -> PathBuf {
        self.root.join("disk")
    }

    fn pool(&self) -> Pool {
        Pool::connect(Some(&self.root.join("socket"))).unwrap()
    }

    fn status(&self) -> KvStatus {
        self.pool().kv_status().unwrap().remove(0)
    }

    fn until(&self, is_so: impl Fn(&KvKeptStatus, u64) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let status = self.status();
            if is_so(&status.kept, status.reserved) {
                return;
            }
            assert!(Instant::now() < deadline, "{status:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let identifier = std::fs::read_to_string(self.root.join("state/node.id")).unwrap();
        if let Some(node) = self.node.take() {
            node.stop();
        }
        // What outlives the node ends here.
        let _ = std::fs::remove_dir_all(format!("/dev/shm/hinterland-{}", identifier.trim()));
        let _ = std::fs::remove_dir_all(format!("/dev/shm/memory-{}", identifier.trim()));
        std::fs::remove_dir_all(&self.root).unwrap();
    }
}

fn start(root: &std::path::Path, capacity_bytes: u64, disk: Option<KvDisk>, keeps: bool) -> Node {
    let rack = RackName::parse("one").unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let mut options =
        NodeOptions::new("one".parse().unwrap(), rack, root.join("socket"), root.join("state"), address);
    options.capacity_bytes = 16 << 20;
    options.kv_capacity_bytes = capacity_bytes;
    options.kv_disk = disk;
    options.kv_keep = keeps;
    options.backing = BackingChoice::Pages(PageKind::Base4K);
    Node::start(options).unwrap()
}

/// A program in the middle of a put: it has a slot and has not asked to publish it.
struct Writer {
    view: View,
    handle: Handle,
    slot: u32,
    offset: u64,
    // Its node ends the session; the program goes on.
    session: Session,
}

impl Writer {
    fn begin(ground: &Ground) -> Self {
        let session = Session::connect(Some(&ground.root.join("socket"))).unwrap();
        let open = Request::Kv(KvRequest::Open { fingerprint: [7; 32], label: "another".to_owned() });
        let (reply, files) = session.call_with(&open, &[]).unwrap();
        let Reply::Kv(KvReply::Opened { handle, .. }) = reply else { panic!("{reply:?}") };
        let files: Vec<_> =
            files.into_iter().map(|file| MemoryFile::from_descriptor(file).unwrap()).collect();
        let view = View::map(&files[0], &files[1], &files[2]).unwrap();
        let blocks = vec![KvBlock { key: b"half".to_vec(), bytes: MIB as u64, parent: KvParent::None }];
        let reserve = Request::Kv(KvRequest::Reserve { handle, blocks });
        let (reply, _) = session.call_with(&reserve, &[]).unwrap();
        let Reply::Kv(KvReply::Slots(slots)) = reply else { panic!("{reply:?}") };
        let KvSlot::Reserved { slot, offset } = slots[0] else { panic!("{slots:?}") };
        Self { view, handle, slot, offset, session }
    }

    /// Goes on with its copy; the checksum of it.
    fn write(&self) -> Option<u32> {
        self.view.write(self.offset, MIB as u64, &[&[0xEE; MIB]]).unwrap()
    }

    fn publish(&self, sums: Vec<u32>) -> Result<Vec<bool>, PoolError> {
        let (handle, slots) = (self.handle, vec![self.slot]);
        match self.session.call(&Request::Kv(KvRequest::Publish { handle, slots, sums }))? {
            Reply::Kv(KvReply::Published(answers)) => Ok(answers),
            other => panic!("{other:?}"),
        }
    }
}

fn put(kv: &KvCache, number: u8) -> Stored {
    kv.put(&[(&[number], &[&[number; MIB]])]).unwrap()[0]
}

fn right(kv: &KvCache) -> usize {
    let mut into = vec![0; MIB];
    let is_there = |number: &u8| {
        let is_there = kv.get(&[*number], &mut [&mut into]).unwrap().is_some();
        assert!(!is_there || into.iter().all(|byte| byte == number), "{number}");
        is_there
    };
    (0..100).filter(is_there).count()
}

#[test]
fn a_slot_that_a_program_of_before_may_still_write_is_left_alone_until_that_ends() {
    let mut ground = Ground::new("writer");
    let kv = ground.pool().kv("model").unwrap();
    assert_eq!(put(&kv, 1), Stored::Written);
    let writer = Writer::begin(&ground);
    ground.until(|kept, reserved| kept.unsummed_blocks == 0 && reserved == 1);
    drop(kv);
    for _ in 0..3 {
        ground.restart();
        ground
            .until(|kept, reserved| kept.unchecked_blocks == 0 && kept.abandoned_slots == 1 && reserved == 1);
        let kv = ground.pool().kv("model").unwrap();
        // As many as there is room for, and more; the writer of before goes on all the while.
        for number in 10..60 {
            assert_eq!(put(&kv, number), Stored::Written);
            writer.write();
            assert!(right(&kv) > 0);
        }
        ground.until(|kept, _| kept.unsummed_blocks == 0);
    }
    drop(writer);
    ground.until(|kept, reserved| kept.abandoned_slots == 0 && reserved == 0);
    let kv = ground.pool().kv("model").unwrap();
    kv.clear().unwrap();
    assert_eq!((0..16).filter(|&number| put(&kv, number) == Stored::Written).count(), 16);
    assert_eq!(right(&kv), 16, "the slot is used again");
}

#[test]
fn a_writer_that_gives_a_wrong_checksum_hurts_his_own_block() {
    let mut ground = Ground::new("wrong-sum");
    let kv = ground.pool().kv("model").unwrap();
    assert_eq!(put(&kv, 1), Stored::Written);
    let writer = Writer::begin(&ground);
    let sum = writer.write().expect("writers are to take checksums");
    assert_eq!(sum, crc32c(&[0xEE; MIB]));
    let refused = writer.publish(vec![sum, sum]).unwrap_err();
    assert!(matches!(refused, PoolError::Refused { code: 22, .. }), "{refused}");
    assert_eq!(writer.publish(vec![!sum]).unwrap(), [true]);
    drop(writer);
    assert_eq!(ground.status().blocks, 2);
    assert_eq!(ground.status().kept.unsummed_blocks, 0, "who publishes has summed up");
    ground.restart();
    ground.until(|kept, _| kept.unchecked_blocks == 0);
    assert_eq!((ground.status().blocks, ground.status().kept.damaged_blocks), (1, 1));
    assert_eq!(right(&ground.pool().kv("model").unwrap()), 1);
}

#[test]
fn a_reader_of_before_gets_the_block_that_it_found_or_a_miss() {
    let mut ground = Ground::new("reader");
    let kv = ground.pool().kv("model").unwrap();
    for number in 0..16 {
        put(&kv, number);
    }
    ground.until(|kept, _| kept.unsummed_blocks == 0);
    for round in 0..4 {
        ground.restart();
        ground.until(|kept, _| kept.unchecked_blocks == 0);
        assert_eq!(right(&kv), 16, "round {round}");
        let other = ground.pool().kv("model").unwrap();
        std::thread::scope(|scope| {
            // Blocks are evicted and their slots written anew under a reader that was there first.
            scope.spawn(|| (0..200).for_each(|number| _ = put(&other, number % 100)));
            for _ in 0..20 {
                right(&kv);
            }
        });
        other.clear().unwrap();
        for number in 0..16 {
            put(&other, number);
        }
        ground.until(|kept, _| kept.unsummed_blocks == 0);
    }
}

#[test]
fn a_swap_of_before_is_whole_and_what_was_replaced_never_comes_back() {
    let mut ground = Ground::new("swap");
    let mut values = ground.pool().kv_values("values").unwrap();
    for round in 0..5_u8 {
        for number in 0..8_u8 {
            let bytes = [round * 16 + number; 5000];
            let pieces: [&[u8]; 1] = [&bytes];
            let block = hinterland_pool::Replacement {
                key: &[number],
                pieces: &pieces,
                expects: hinterland_pool::Expects::Anything,
            };
            values.replace(&[block]).unwrap();
        }
        ground.until(|kept, _| kept.unsummed_blocks == 0);
        ground.restart();
        ground.until(|kept, _| kept.unchecked_blocks == 0);
        values = ground.pool().kv_values("values").unwrap();
        for number in 0..8_u8 {
            let found = values.find(&[number]).unwrap().unwrap();
            let mut into = [0; 5000];
            assert!(values.read(&found, &mut [&mut into]));
            assert_eq!(into, [round * 16 + number; 5000]);
        }
    }
}

/// Blocks of before that were replaced and then removed, by a node that was killed before its disk had noted it.
fn replaced_and_killed(name: &str) -> Ground {
    replaced_and_killed_by(name, true)
}

/// The same by one whose blocks outlive it in memory, or do not.
fn replaced_and_killed_by(name: &str, keeps: bool) -> Ground {
    let mut ground = Ground::that_keeps(name, true, keeps);
    assert_eq!(put(&ground.pool().kv("model").unwrap(), 1), Stored::Written);
    // A node that stops writes what is in memory to its disk.
    ground.stop();
    let copied: Vec<(PathBuf, Vec<u8>)> = std::fs::read_dir(ground.disk())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect();
    assert!(!copied.is_empty());
    ground.start();
    // Of a store that has no block a node that stops leaves no files.
    assert_eq!(put(&ground.pool().kv("another").unwrap(), 2), Stored::Written);
    let mut values = ground.pool().kv_values("model").unwrap();
    let block = hinterland_pool::Replacement {
        key: &[1],
        pieces: &[&[2; MIB]],
        expects: hinterland_pool::Expects::Anything,
    };
    assert_eq!(values.replace(&[block]).unwrap(), [hinterland_pool::Replaced::Done]);
    assert_eq!(values.remove(&[&[1]]).unwrap(), 1);
    let (list, listed) = (ground.list(), std::fs::read(ground.list()).unwrap());
    ground.stop();
    // What is left of disk and memory if it is killed instead.
    copied.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    std::fs::create_dir_all(list.parent().unwrap()).unwrap();
    std::fs::write(list, listed).unwrap();
    ground
}

fn is_away(ground: &Ground) {
    let kv = ground.pool().kv("model").unwrap();
    while ground.status().disk.unwrap().state != "working" {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(kv.fetch(&[&[1]]).unwrap(), [false], "it was replaced and removed");
}

#[test]
fn what_was_replaced_and_removed_does_not_come_back_from_a_disk_that_had_not_noted_it() {
    let mut ground = replaced_and_killed("noted");
    ground.start();
    is_away(&ground);
}

#[test]
fn nor_where_the_next_node_can_use_none_of_the_memory() {
    let mut ground = replaced_and_killed("unfit");
    ground.capacity_bytes = 24 << 20;
    ground.start();
    is_away(&ground);
    // It is known for good, and the rest is forgotten.
    assert_eq!(put(&ground.pool().kv("another").unwrap(), 3), Stored::Written);
    ground.restart();
    is_away(&ground);
}

#[test]
fn nor_where_the_next_node_keeps_no_memory() {
    let mut ground = replaced_and_killed("unkept");
    ground.keeps = false;
    ground.start();
    is_away(&ground);
    ground.stop();
    assert!(!ground.list().exists(), "the disk knows it");
    ground.start();
    is_away(&ground);
}

#[test]
fn nor_where_no_node_keeps_memory_or_one_has_no_disk_to_tell() {
    let mut ground = replaced_and_killed_by("never-kept", false);
    // Its folder is in the way of the disk: nothing is told.
    let (disk, aside) = (ground.disk(), ground.root.join("aside"));
    std::fs::rename(&disk, &aside).unwrap();
    std::fs::write(&disk, "").unwrap();
    ground.start();
    assert_eq!(ground.pool().kv("model").unwrap().fetch(&[&[1]]).unwrap(), [false]);
    ground.stop();
    std::fs::remove_file(&disk).unwrap();
    std::fs::rename(&aside, &disk).unwrap();
    ground.start();
    is_away(&ground);
    ground.stop();
    assert!(!ground.list().exists(), "the disk knows it");
}
