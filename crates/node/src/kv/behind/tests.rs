//! What is said of blocks that the node of before has left, while the thread has not looked at them.

use super::super::disk::DiskTier;
use super::super::files::KvFolders;
use super::super::start::Plan;
use super::super::{KvDisk, KvElsewhere, KvRacks, KvRemote, UserStore};
use crate::directory_link::DirectoryLink;
use crate::peers::{PeerIdentity, Peers};
use hinterland_fabric::rdma::RdmaOptions;
use hinterland_kv::{BlockKey, Namespace};
use hinterland_os::Coherence;
use hinterland_policy::EvictionKind;
use hinterland_proto::PoolId;
use hinterland_proto::control::{KvBlock, KvExpects, KvHeld, KvParent, KvPlace, KvSlot, KvSwap, KvSwapped};
use hinterland_types::{NodeId, SessionId};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SESSION: SessionId = SessionId(1);
const BYTES: u64 = 1000;

/// Files that outlive a store.
struct Ground(PathBuf);

impl Ground {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/dev/shm/hl-kv-behind-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A store whose thread is not started.
    fn store(&self, disk: Option<KvDisk>) -> (UserStore, Namespace) {
        let plan = Plan {
            capacity_bytes: 8 << 20,
            order: EvictionKind::Lru,
            disk,
            coherence: Coherence::Hardware,
            folders: KvFolders { blocks: vec![self.0.clone()], books: self.0.clone() },
            keeps: true,
            verifies: false,
            writers_sum: true,
            watermarks: None,
        };
        let (store, messages) = UserStore::new(0, &plan).unwrap();
        let namespace = store.namespace([7; 32], "model").unwrap().namespace;
        assert!(store.files.are_kept, "{messages:?}");
        (store, namespace)
    }

    /// A store with two blocks of before, of which `wrong` has other bytes than it was published with.
    fn with_two(&self) -> (UserStore, Namespace) {
        self.with_two_and(None)
    }

    /// The same, and both as they were published are on a disk, if there is one.
    fn with_two_and(&self, disk: Option<KvDisk>) -> (UserStore, Namespace) {
        let (store, namespace) = self.store(disk.clone());
        let slots = store.reserve(SESSION, namespace, &[block("right"), block("wrong")]).unwrap();
        let places: Vec<(u32, u64)> = slots.into_iter().map(place).collect();
        let write = |&(_, offset): &(u32, u64), byte: u8| {
            store.view.write(offset, BYTES, &[&[byte; BYTES as usize]]).unwrap().unwrap()
        };
        let sums: Vec<u32> = places.iter().map(|place| write(place, 1)).collect();
        let slots: Vec<u32> = places.iter().map(|(slot, _)| *slot).collect();
        assert_eq!(store.publish(SESSION, &slots, &sums).unwrap(), [true, true]);
        stop_disk(&store);
        write(&places[1], 2);
        drop(store);
        let (store, namespace) = self.store(disk);
        let status = store.lock().store.status();
        assert_eq!((status.blocks, status.unchecked), (2, 2));
        assert!(!is_found(&store, namespace, "right"), "nobody has looked at it");
        (store, namespace)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn until_it_works(disk: &DiskTier) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while disk.status().state != "working" {
        assert!(Instant::now() < deadline, "{:?}", disk.status());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes all blocks to the disk, if there is one, and ends it.
fn stop_disk(store: &UserStore) {
    let Some(disk) = &store.disk else { return };
    until_it_works(disk);
    let mut blocks = Vec::new();
    store.lock().store.each_block(&mut |block| blocks.push(*block));
    assert!(disk.stop(&store.view, &blocks));
}

fn block(key: &str) -> KvBlock {
    KvBlock { key: key.into(), bytes: BYTES, parent: KvParent::None }
}

fn place(slot: KvSlot) -> (u32, u64) {
    let KvSlot::Reserved { slot, offset } = slot else { panic!("{slot:?}") };
    (slot, offset)
}

fn is_found(store: &UserStore, namespace: Namespace, key: &str) -> bool {
    store.view.find(namespace, &BlockKey::new(key.as_bytes()).unwrap()).is_some()
}

#[test]
fn who_puts_a_block_of_before_is_told_that_it_is_there_only_if_it_is() {
    let ground = Ground::new("put");
    let (store, namespace) = ground.with_two();
    let slots = store.reserve(SESSION, namespace, &[block("right"), block("wrong")]).unwrap();
    assert_eq!(slots[0], KvSlot::Exists);
    assert!(is_found(&store, namespace, "right"), "who was told so finds it");
    assert!(matches!(slots[1], KvSlot::Reserved { .. }), "{:?}", slots[1]);
    let status = store.lock().store.status();
    assert_eq!((status.unchecked, status.damaged), (0, 1));
}

#[test]
fn a_block_of_before_is_pinned_only_if_it_is_there() {
    let ground = Ground::new("pin");
    let (store, namespace) = ground.with_two();
    let keys: Vec<Vec<u8>> = vec!["right".into(), "wrong".into(), "none".into()];
    assert_eq!(store.pin(SESSION, namespace, &keys).unwrap(), [true, false, false]);
    assert!(is_found(&store, namespace, "right"));
}

#[test]
fn a_write_that_expects_no_block_takes_the_place_of_a_damaged_one_of_before_alone() {
    for together in [false, true] {
        let ground = Ground::new(if together { "swap-all" } else { "swap" });
        let (store, namespace) = ground.with_two();
        let (_, slots) = store.swap(SESSION, namespace, &[], (&[], &[BYTES; 2]), false).unwrap();
        let slots: Vec<u32> = slots.into_iter().map(|slot| place(slot).0).collect();
        let swap = |slot, key: &str| {
            let swap = KvSwap {
                slot,
                key: key.into(),
                bytes: BYTES,
                parent: None,
                expects: KvExpects::Nothing,
                sum: None,
            };
            if together {
                store.swap_all(SESSION, namespace, &[swap], (&[], false)).unwrap()
            } else {
                store.swap(SESSION, namespace, &[swap], (&[], &[]), false).unwrap().0
            }
        };
        assert_eq!(swap(slots[0], "right"), [KvSwapped::Changed]);
        assert!(is_found(&store, namespace, "right"), "who looks again sees what has changed");
        assert_eq!(swap(slots[1], "wrong"), [KvSwapped::Done]);
        assert!(is_found(&store, namespace, "wrong"));
    }
}

/// The way to other nodes, of which there are none.
fn elsewhere() -> KvElsewhere {
    let identity = PeerIdentity {
        node: NodeId(1),
        pool: PoolId(7),
        credentials: crate::credentials::Credentials::default(),
        streams: 1,
        timeout: Duration::from_secs(1),
        rdma: RdmaOptions { enabled: false, ..RdmaOptions::default() },
    };
    let peers = Arc::new(Peers::new(identity.clone()));
    let directory = Arc::new(DirectoryLink::Remote { peers, address: "127.0.0.1:1".to_owned() });
    let options = KvRemote { is_on: false, ..KvRemote::default() };
    KvElsewhere::new(Arc::new(KvRacks::new(options, identity, directory)))
}

fn three_keys() -> Vec<Vec<u8>> {
    vec!["right".into(), "wrong".into(), "none".into()]
}

#[test]
fn who_fetches_a_block_of_before_gets_it_if_it_is_right() {
    let ground = Ground::new("fetch");
    let (store, namespace) = ground.with_two();
    let (elsewhere, keys) = (elsewhere(), three_keys());
    let length = Some(BYTES as u32);
    assert_eq!(elsewhere.lengths(&store, namespace, &keys).unwrap(), [length, length, None]);
    assert_eq!(
        store.lock().store.status().unchecked,
        2,
        "who only asks how long they are waits for no check"
    );
    assert_eq!(elsewhere.fetch(&store, namespace, &keys).unwrap(), [true, false, false]);
    assert_eq!(elsewhere.lengths(&store, namespace, &keys).unwrap(), [length, None, None]);
}

#[test]
fn another_node_that_reads_a_block_of_before_is_given_its_checksum_if_it_is_right() {
    let ground = Ground::new("home");
    let (store, _) = ground.with_two();
    let keys = three_keys();
    let (places, _) = store.places(&[7; 32], &keys).unwrap();
    assert_eq!(places.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
    let held = |(key, place): (&Vec<u8>, &Option<KvPlace>)| {
        let place = place.as_ref()?;
        Some(KvHeld { key: key.clone(), slot: place.slot, generation: place.generation })
    };
    let held: Vec<KvHeld> = keys.iter().zip(&places).filter_map(held).collect();
    let sums = store.sums(&[7; 32], &held).unwrap();
    assert_eq!(sums.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
    assert_eq!(store.places(&[7; 32], &keys).unwrap().0[1], None, "it is gone");
}

#[test]
fn another_node_is_told_what_the_disk_has_of_a_block_of_before_that_may_be_damaged() {
    let ground = Ground::new("home-disk");
    let disk = KvDisk { folder: ground.0.join("disk"), bytes: 64 << 20 };
    let (store, namespace) = ground.with_two_and(Some(disk));
    until_it_works(store.disk.as_ref().unwrap());
    let (keys, length) = (three_keys(), Some(BYTES as u32));
    let (places, on_disk) = store.places(&[7; 32], &keys).unwrap();
    assert_eq!(places.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(on_disk, [length, length, None]);
    elsewhere().stage(&store, &[7; 32], &keys).unwrap();
    let (places, on_disk) = store.places(&[7; 32], &keys).unwrap();
    assert_eq!(places.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
    assert!(on_disk.is_empty(), "what is checked is in memory, and is right");
    let found = store.view.find(namespace, &BlockKey::new(b"wrong").unwrap()).unwrap();
    let mut bytes = vec![0; BYTES as usize];
    assert!(store.view.read(&found, &mut [&mut bytes]) && bytes == [1; BYTES as usize]);
    stop_disk(&store);
}

#[test]
fn a_block_of_before_that_another_node_wants_brought_into_memory_is_checked() {
    let ground = Ground::new("stage");
    let (store, namespace) = ground.with_two();
    elsewhere().stage(&store, &[7; 32], &three_keys()).unwrap();
    assert!(is_found(&store, namespace, "right"));
    assert_eq!(store.lock().store.status().unchecked, 0);
}
