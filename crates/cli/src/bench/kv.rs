//! `kv-get`, `kv-batch`, `kv-scatter`, `kv-lookup`: KV blocks of this rack, beside plain copies and Redis.

use super::case::Case;
use super::ground::{BenchNode, Ground, NodePlan};
use super::mooncake;
use super::redis::Redis;
use super::report::{Better, Row};
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_os::Mapping;
use hinterland_pool::{KvCache, Stored};
use std::cell::RefCell;
use std::time::Instant;

/// Bytes of blocks that are read at random: far beyond the processor's caches.
const SET_BYTES: usize = 192 << 20;
/// What engines call themselves here.
const FINGERPRINT: &str = "bench";
/// Blocks of a batch.
const BATCH: usize = 128;

/// Single blocks.
pub struct KvGet;

/// Batches.
pub struct KvBatch;

/// One block into many pieces.
pub struct KvScatter;

/// Keys that are only looked up.
pub struct KvLookup;

/// A node, a writer and a reader with a session each, and memory to compare with.
struct Scene {
    _node: BenchNode,
    writer: KvCache,
    reader: KvCache,
    memory: Memory,
    chance: RefCell<u64>,
}

/// Plain memory of as many bytes as the blocks take.
struct Memory(std::sync::Arc<Mapping>);

impl Memory {
    fn new() -> Result<Self, Failure> {
        let memory = std::sync::Arc::new(Mapping::anonymous(SET_BYTES, true)?);
        memory.slice().fill(0, SET_BYTES, 1)?;
        Ok(Self(memory))
    }

    fn copy(&self, place: usize, into: &mut [u8]) -> Result<(), Failure> {
        Ok(self.0.slice().read_at(place * into.len(), into)?)
    }
}

impl Scene {
    fn new(ground: &Ground) -> Result<Self, Failure> {
        let node = ground.node(NodePlan {
            name: "bench",
            capacity_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            more: &["--kv-capacity", "512M"],
            ..NodePlan::default()
        })?;
        let (writer, reader) = (node.pool()?.kv(FINGERPRINT)?, node.pool()?.kv(FINGERPRINT)?);
        Ok(Self { _node: node, writer, reader, memory: Memory::new()?, chance: RefCell::new(1) })
    }

    /// Fills the set with blocks of a size; returns how many.
    fn fill(&self, bytes: usize) -> Result<usize, Failure> {
        self.writer.clear()?;
        let count = SET_BYTES / bytes;
        let block = vec![7; bytes];
        let names: Vec<[u8; 32]> = (0..count).map(key).collect();
        for names in names.chunks(BATCH) {
            let pieces = [&block[..]];
            let blocks: Vec<(&[u8], &[&[u8]])> = names.iter().map(|name| (&name[..], &pieces[..])).collect();
            written(&self.writer.put(&blocks)?)?;
        }
        Ok(count)
    }

    fn below(&self, limit: usize) -> usize {
        let mut chance = self.chance.borrow_mut();
        *chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*chance >> 33) as usize % limit
    }

    /// Microseconds of one of `count` runs of `work`, which is given a random number below `limit`.
    fn time(
        &self,
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

    fn get(&self, number: usize, into: &mut [&mut [u8]]) -> Result<(), Failure> {
        match self.reader.get(&key(number), into)? {
            Some(_) => Ok(()),
            None => Err(Failure::new(format!("block {number} is not there"), "report this")),
        }
    }
}

/// The key of a block: as long as a SHA-256.
fn key(number: usize) -> [u8; 32] {
    let mut key = [0x5a; 32];
    key[..8].copy_from_slice(&(number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key
}

fn written(outcomes: &[Stored]) -> Result<(), Failure> {
    match outcomes.iter().find(|outcome| **outcome != Stored::Written) {
        None => Ok(()),
        Some(outcome) => Err(Failure::new(format!("a block was not written: {outcome:?}"), "report this")),
    }
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

impl Bench for KvGet {
    fn name(&self) -> &'static str {
        "kv-get"
    }

    fn subject(&self) -> &'static str {
        "single KV blocks of this rack, at random"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = ground(setting)?;
        let scene = Scene::new(&ground)?;
        let redis = Redis::start(&ground);
        let connection = redis.as_ref().map_err(Clone::clone).and_then(Redis::over_unix).map(RefCell::new);
        let mut peer = Peer::start(&ground);
        let mut rows = Vec::new();
        for (name, bytes) in [("4KiB", 4 << 10), ("64KiB", 64 << 10), ("1MiB", 1 << 20)] {
            (setting.say)(&format!("kv-get: {name}"));
            let blocks = scene.fill(bytes)?;
            if let Ok(connection) = &connection {
                connection.borrow_mut().prepare(bytes)?;
            }
            let count = (if setting.quick { 8 << 20 } else { 512 << 20 } / bytes).min(50_000);
            let (mut into, mut plain) = (vec![0; bytes], vec![0; bytes]);
            peer.fill(bytes, blocks);
            let into = RefCell::new(&mut into);
            let ours = || {
                let mut into = into.borrow_mut();
                scene.time(count, blocks, |number| scene.get(number, &mut [&mut into[..]]))
            };
            let case = Case::new(name, "us", Better::Lower, ours)
                .limit("plain copy at random places", || {
                    scene.time(count, blocks, |place| scene.memory.copy(place, &mut plain))
                })
                .peer_or_why(MOONCAKE, peer.ask(format!("get {bytes} {}", count / 500 + 20)));
            rows.push(case.measure(setting.rounds));
            let case = Case::new(format!("{name}-redis"), "us", Better::Lower, ours).peer_or_why(
                "Redis GET, unix socket",
                connection
                    .as_ref()
                    .map(|connection| || connection.borrow_mut().read(bytes, count / 50 + 100)),
            );
            rows.push(case.measure(setting.rounds));
        }
        Ok(rows)
    }
}

impl Bench for KvBatch {
    fn name(&self) -> &'static str {
        "kv-batch"
    }

    fn subject(&self) -> &'static str {
        "128 KV blocks of 64 KiB of this rack at once, read and written"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let bytes = 64 << 10;
        let ground = ground(setting)?;
        let scene = Scene::new(&ground)?;
        let blocks = scene.fill(bytes)?;
        let mut peer = Peer::start(&ground);
        peer.fill(bytes, blocks);
        let batches = if setting.quick { 4 } else { 40 };
        let rate = |microseconds: f64| (BATCH * bytes) as f64 / microseconds / 1e3;
        let (mut into, mut plain) = (vec![0; BATCH * bytes], vec![0; BATCH * bytes]);
        let from = vec![3; BATCH * bytes];
        (setting.say)("kv-batch: get");
        let get = Case::new("get", "GB/s", Better::Higher, || {
            let took = scene.time(batches, blocks - BATCH, |first| {
                into.chunks_mut(bytes)
                    .enumerate()
                    .try_for_each(|(index, piece)| scene.get(first + index, &mut [piece]))
            })?;
            Ok(rate(took))
        })
        .limit("plain copies", || {
            let took = scene.time(batches, blocks - BATCH, |first| {
                plain
                    .chunks_mut(bytes)
                    .enumerate()
                    .try_for_each(|(index, piece)| scene.memory.copy(first + index, piece))
            })?;
            Ok(rate(took))
        })
        .peer_or_why(MOONCAKE, peer.ask(format!("batch {bytes} {BATCH} {batches}")))
        .measure(setting.rounds);
        (setting.say)("kv-batch: put");
        let next = RefCell::new(1_usize << 40);
        let put = Case::new("put", "GB/s", Better::Higher, || {
            let took = scene.time(batches, 1, |_| {
                let first = next.replace_with(|first| *first + BATCH);
                let names: Vec<[u8; 32]> = (first..first + BATCH).map(key).collect();
                let pieces: Vec<[&[u8]; 1]> = from.chunks(bytes).map(|piece| [piece]).collect();
                let blocks: Vec<(&[u8], &[&[u8]])> =
                    names.iter().zip(&pieces).map(|(name, piece)| (&name[..], &piece[..])).collect();
                written(&scene.writer.put(&blocks)?)
            })?;
            Ok(rate(took))
        })
        .limit("plain copies", || {
            let slice = scene.memory.0.slice();
            let took = scene.time(batches, blocks - BATCH, |first| {
                from.chunks(bytes)
                    .enumerate()
                    .try_for_each(|(index, piece)| Ok(slice.write_at((first + index) * bytes, piece)?))
            })?;
            Ok(rate(took))
        })
        .peer_or_why(MOONCAKE, peer.ask(format!("put {bytes} {BATCH} {}", batches / 8 + 1)))
        .measure(setting.rounds);
        Ok(vec![get, put])
    }
}

impl Bench for KvScatter {
    fn name(&self) -> &'static str {
        "kv-scatter"
    }

    fn subject(&self) -> &'static str {
        "one KV block of this rack into many pieces"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = ground(setting)?;
        let scene = Scene::new(&ground)?;
        let mut peer = Peer::start(&ground);
        let mut rows = Vec::new();
        for (name, pieces, piece) in
            [("256x4KiB", 256, 4 << 10), ("128x20KiB", 128, 20 << 10), ("1024x160B", 1024, 160)]
        {
            (setting.say)(&format!("kv-scatter: {name}"));
            let bytes = pieces * piece;
            let blocks = scene.fill(bytes)?;
            peer.fill(bytes, blocks);
            let count = if setting.quick { 8 } else { 200 };
            // Every other piece, as the blocks of an engine lie.
            let (mut into, mut plain) = (vec![0; 2 * bytes], vec![0; 2 * bytes]);
            let case = Case::new(name, "us", Better::Lower, || {
                scene.time(count, blocks, |number| {
                    let mut parts: Vec<&mut [u8]> =
                        into.chunks_mut(2 * piece).map(|pair| &mut pair[..piece]).collect();
                    scene.get(number, &mut parts)
                })
            })
            .limit("plain copies of the pieces", || {
                scene.time(count, blocks, |place| {
                    let slice = scene.memory.0.slice();
                    for (index, pair) in plain.chunks_mut(2 * piece).enumerate() {
                        slice.read_at(place * bytes + index * piece, &mut pair[..piece])?;
                    }
                    Ok(())
                })
            })
            .peer_or_why(MOONCAKE, peer.ask(format!("scatter {pieces} {piece} {}", count / 8 + 1)));
            rows.push(case.measure(setting.rounds));
        }
        Ok(rows)
    }
}

impl Bench for KvLookup {
    fn name(&self) -> &'static str {
        "kv-lookup"
    }

    fn subject(&self) -> &'static str {
        "keys of KV blocks of this rack that are looked up, no byte read"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = ground(setting)?;
        let scene = Scene::new(&ground)?;
        let blocks = scene.fill(4 << 10)?;
        let mut peer = Peer::start(&ground);
        peer.fill(4 << 10, blocks);
        let mut rows = Vec::new();
        for keys in [1, 64, 1000] {
            let count = (if setting.quick { 10_000 } else { 1_000_000 }) / keys;
            let case = Case::new(format!("{keys}-keys"), "us", Better::Lower, || {
                scene.time(count, blocks - keys, |first| {
                    let names: Vec<[u8; 32]> = (first..first + keys).map(key).collect();
                    let names: Vec<&[u8]> = names.iter().map(|name| &name[..]).collect();
                    match scene.reader.match_prefix(&names)? {
                        found if found == keys => Ok(()),
                        found => {
                            Err(Failure::new(format!("{found} of {keys} keys are there"), "report this"))
                        }
                    }
                })
            })
            .peer_or_why(MOONCAKE, peer.ask(format!("lookup {keys} {}", count / 500 + 20)));
            rows.push(case.measure(setting.rounds));
        }
        Ok(rows)
    }
}
