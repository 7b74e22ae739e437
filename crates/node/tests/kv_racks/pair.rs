//! Two nodes of one pool in this process, each its own rack, and blocks whose bytes follow from their keys.

use hinterland_node::{BackingChoice, Node, NodeOptions};
use hinterland_os::PageKind;
use hinterland_pool::{KvCache, Pool, PutOptions, Stored};
use hinterland_proto::control::KvRacksStatus;
use hinterland_types::{ObjectName, RackName};
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Two nodes; the first hosts the directory.
pub struct Pair {
    pub a: Member,
    pub b: Member,
    _folder: Folder,
}

/// One node.
pub struct Member {
    options: NodeOptions,
    node: Option<Node>,
}

struct Folder(PathBuf);

impl Pair {
    /// Both with stores of this many bytes.
    pub fn new(name: &str, kv_capacity_bytes: u64) -> Self {
        Self::with(name, kv_capacity_bytes, |_| {})
    }

    /// The same, with options of each.
    pub fn with(name: &str, kv_capacity_bytes: u64, change: impl Fn(&mut NodeOptions)) -> Self {
        let folder = Folder(std::env::temp_dir().join(format!("hl-kvr-{name}-{}", std::process::id())));
        let member = |name: &str, join: Option<String>| {
            let rack = RackName::parse(name).unwrap();
            let root = folder.0.join(name);
            let listen = "127.0.0.1:0".parse().unwrap();
            let mut options = NodeOptions::new(
                name.parse().unwrap(),
                rack,
                root.join("socket"),
                root.join("state"),
                listen,
            );
            options.capacity_bytes = 16 << 20;
            options.kv_capacity_bytes = kv_capacity_bytes;
            options.backing = BackingChoice::Pages(PageKind::Base4K);
            options.join = join;
            options.lease = Duration::from_secs(60);
            // The machine may be busy with other things: only tests of silence want to see it soon.
            options.kv_remote.find_within = Duration::from_secs(10);
            options.kv_remote.stall_after = Duration::from_secs(10);
            // Members come and go in a test; what is tested does not depend on how soon that is seen.
            options.kv_remote.refresh = Duration::from_millis(20);
            change(&mut options);
            let mut member = Member { options, node: None };
            member.start();
            member
        };
        let a = member("a", None);
        let b = member("b", Some(a.address()));
        let pair = Self { a, b, _folder: folder };
        for member in [&pair.a, &pair.b] {
            let kv = member.kv("to see each other");
            let others = u32::from(member.options.kv_remote.is_on);
            until("nodes see each other", || member.racks().nodes == others);
            drop(kv);
        }
        pair
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.b.stop();
        self.a.stop();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        for name in ["a", "b"] {
            let number = std::fs::read_to_string(self.0.join(name).join("state/node.id")).unwrap_or_default();
            // Whatever is left of it is of no use to anybody.
            for kind in ["hinterland", "memory"] {
                let _ = std::fs::remove_dir_all(format!("/dev/shm/{kind}-{}", number.trim()));
            }
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Member {
    /// Starts it, on the state of its last life.
    pub fn start(&mut self) {
        let node = Node::start(self.options.clone()).unwrap();
        // Others know it by this.
        self.options.listen = node.core_address().parse().unwrap();
        self.node = Some(node);
    }

    /// Stops it, if it runs.
    pub fn stop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop();
        }
    }

    /// Where others reach it.
    pub fn address(&self) -> String {
        self.node.as_ref().unwrap().core_address()
    }

    /// A session with it.
    pub fn pool(&self) -> Pool {
        Pool::connect(Some(&self.options.socket)).unwrap()
    }

    /// KV blocks of an engine.
    pub fn kv(&self, fingerprint: &str) -> KvCache {
        self.pool().kv(fingerprint).unwrap()
    }

    /// What it has had to do with others.
    pub fn racks(&self) -> KvRacksStatus {
        self.pool().kv_status().unwrap()[0].racks
    }

    /// Slots that are being written.
    pub fn reserved(&self) -> u64 {
        self.pool().kv_status().unwrap()[0].reserved
    }
}

/// Waits until something is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A key.
pub fn key(number: u64) -> Vec<u8> {
    let mut key = vec![0x5a; 8 + (number % 57) as usize];
    key[..8].copy_from_slice(&number.to_le_bytes());
    key
}

/// Several keys.
pub fn keys(numbers: Range<u64>) -> Vec<Vec<u8>> {
    numbers.map(key).collect()
}

/// The bytes of a key's block.
pub fn block(key: &[u8], bytes: usize) -> Vec<u8> {
    let seed =
        key.iter().fold(bytes as u64, |sum, &byte| sum.wrapping_mul(257).wrapping_add(u64::from(byte)));
    let mut random = Random(seed);
    let mut block = Vec::with_capacity(bytes + 8);
    while block.len() < bytes {
        block.extend_from_slice(&random.next().to_le_bytes());
    }
    block.truncate(bytes);
    block
}

/// Puts an object of known bytes.
pub fn put_object(pool: &Pool, name: &str, bytes: usize) {
    let data: Vec<u8> = (0..bytes).map(|at| (at * 31 % 251) as u8).collect();
    pool.put(&mut &data[..], &ObjectName::parse(name).unwrap(), &PutOptions::default(), &mut |_| {}).unwrap();
}

/// Reads an object through the cache of the host and closes it.
pub fn read_object(pool: &Pool, name: &str, bytes: usize) {
    let object = pool.open_object(&ObjectName::parse(name).unwrap()).unwrap();
    let mut into = vec![0; bytes];
    object.read_cached(0, &mut into).unwrap();
    assert!(into.iter().enumerate().all(|(at, &byte)| byte == (at * 31 % 251) as u8), "{name}");
}

/// Puts one block.
pub fn put(kv: &KvCache, key: &[u8], bytes: &[u8]) -> Stored {
    kv.put(&[(key, &[bytes])]).unwrap()[0]
}

/// Reads one block.
pub fn get(kv: &KvCache, key: &[u8]) -> Option<Vec<u8>> {
    let mut into = vec![0; kv.length(key).unwrap()? as usize];
    let read = kv.get(key, &mut [&mut into]).unwrap()?;
    // Between the two it may have been replaced by one of another length.
    (read as usize == into.len()).then_some(into)
}

/// Numbers that look random and are the same in every run.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 29
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 16) % end
    }
}
