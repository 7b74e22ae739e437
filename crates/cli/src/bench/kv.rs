//! `kv-get`, `kv-batch`, `kv-scatter`, `kv-sparse`, `kv-lookup`: KV blocks of this rack, beside plain copies, Mooncake and Redis.
//!
//! | module | subject |
//! | --- | --- |
//! | [`get`], [`batch`], [`scatter`], [`lookup`] | a bench each, or two that differ in sizes |
//! | [`evicting`] | reads while others put and blocks leave |
//! | [`reader`] | reads by a process of their own |

mod batch;
mod evicting;
mod get;
mod lookup;
mod reader;
mod scatter;

pub use batch::KvBatch;
pub use get::KvGet;
pub use lookup::KvLookup;
pub use reader::KvReader;
pub use scatter::{KvScatter, KvSparse};

use super::Setting;
use super::ground::{BenchNode, Ground, NodePlan};
use super::mooncake;
use super::worker::Worker;
use crate::failure::Failure;
use hinterland_os::Mapping;
use hinterland_pool::{KvCache, Stored};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of blocks that are read at random: far beyond the processor's caches.
const SET_BYTES: usize = 192 << 20;
/// Bytes that the node has for blocks, as its option says it.
const CAPACITY: &str = "512M";
/// What engines call themselves here.
const FINGERPRINT: &str = "bench";
/// Blocks of a batch.
const BATCH: usize = 128;
/// Blocks that nobody reads have numbers from here on.
const OTHERS: usize = 1 << 40;

/// A node, a writer and a reader with a session each, a reader of its own process, and memory to compare with.
struct Scene {
    node: BenchNode,
    writer: KvCache,
    reader: KvCache,
    process: RefCell<Worker>,
    memory: Memory,
    chance: RefCell<Chance>,
}

/// Plain memory of as many bytes as the blocks take.
struct Memory(Arc<Mapping>);

impl Memory {
    fn new() -> Result<Self, Failure> {
        let memory = Arc::new(Mapping::anonymous(SET_BYTES, true)?);
        memory.slice().fill(0, SET_BYTES, 1)?;
        Ok(Self(memory))
    }

    fn copy(&self, place: usize, into: &mut [u8]) -> Result<(), Failure> {
        Ok(self.0.slice().read_at(place * into.len(), into)?)
    }
}

/// Numbers at random, the same in each run.
struct Chance(u64);

impl Chance {
    const fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    /// Microseconds of one of `count` runs of `work`, which is given a random number below `limit`.
    fn time(
        &mut self,
        count: usize,
        limit: usize,
        mut work: impl FnMut(usize) -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        let begin = Instant::now();
        for _ in 0..count {
            work(self.below(limit))?;
        }
        Ok(begin.elapsed().as_secs_f64() * 1e6 / count as f64)
    }
}

impl Scene {
    fn new(setting: &Setting, ground: &Ground) -> Result<Self, Failure> {
        let node = ground.node(NodePlan {
            name: "bench",
            capacity_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            more: &["--kv-capacity", CAPACITY],
            ..NodePlan::default()
        })?;
        let (writer, reader) = (node.pool()?.kv(FINGERPRINT)?, node.pool()?.kv(FINGERPRINT)?);
        let process = RefCell::new(reader::start(setting, &node)?);
        let (memory, chance) = (Memory::new()?, RefCell::new(Chance(1)));
        Ok(Self { node, writer, reader, process, memory, chance })
    }

    /// Fills the set with blocks of a size; returns how many.
    fn fill(&self, bytes: usize) -> Result<usize, Failure> {
        self.writer.clear()?;
        let count = SET_BYTES / bytes;
        let stored = put(&self.writer, 0..count, &vec![7; bytes])?;
        if stored == count {
            return Ok(count);
        }
        Err(Failure::new(format!("{stored} of {count} blocks were written"), "report this"))
    }

    /// As [`Chance::time`].
    fn time(
        &self,
        count: usize,
        limit: usize,
        work: impl FnMut(usize) -> Result<(), Failure>,
    ) -> Result<f64, Failure> {
        self.chance.borrow_mut().time(count, limit, work)
    }

    fn get(&self, number: usize, into: &mut [&mut [u8]]) -> Result<(), Failure> {
        match self.reader.get(&key(number), into)? {
            Some(_) => Ok(()),
            None => Err(Failure::new(format!("block {number} is not there"), "report this")),
        }
    }
}

/// Puts blocks of these numbers and bytes, in batches; how many were not there before.
fn put(writer: &KvCache, numbers: std::ops::Range<usize>, block: &[u8]) -> Result<usize, Failure> {
    let names: Vec<[u8; 32]> = numbers.map(key).collect();
    let pieces = [block];
    let mut written = 0;
    for names in names.chunks(BATCH) {
        let blocks: Vec<(&[u8], &[&[u8]])> = names.iter().map(|name| (&name[..], &pieces[..])).collect();
        let outcomes = writer.put(&blocks)?;
        if outcomes.contains(&Stored::NoRoom) {
            return Err(Failure::new("the node has no room for a block", "report this"));
        }
        written += outcomes.iter().filter(|outcome| **outcome == Stored::Written).count();
    }
    Ok(written)
}

/// The key of a block: as long as a SHA-256.
fn key(number: usize) -> [u8; 32] {
    let mut key = [0x5a; 32];
    key[..8].copy_from_slice(&(number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key
}

/// Mooncake, if it is prepared.
struct Peer(Result<RefCell<Worker>, Failure>);

impl Peer {
    fn start(ground: &Ground) -> Self {
        Self(mooncake::start(ground).map(RefCell::new))
    }

    /// Fills its store with as many objects of a size as ours has blocks.
    fn fill(&mut self, bytes: usize, count: usize) {
        let filled = self.0.as_mut().map(|worker| worker.get_mut().figure(&format!("fill {bytes} {count}")));
        if let Ok(Err(failure)) = filled {
            self.0 = Err(failure);
        }
    }

    /// The figure of a line.
    fn ask(&self, line: String) -> Result<impl FnMut() -> Result<f64, Failure>, &Failure> {
        self.0.as_ref().map(move |worker| move || worker.borrow_mut().figure(&line))
    }
}

/// What the peer is called.
const MOONCAKE: &str = "Mooncake store, shared memory of the same host";

fn ground(setting: &Setting) -> Result<Ground, Failure> {
    Ground::new(setting, 1 << 30)
}
