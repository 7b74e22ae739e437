//! `kv-racks`: KV blocks of another rack over TCP, found, fetched, checked and scattered, beside a bare socket.

use super::case::Case;
use super::ground::{BenchNode, Ground, NodePlan};
use super::link::Link;
use super::report::{Better, Row};
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_pool::{KvCache, Stored};
use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// Bytes of the blocks that lie in the other rack; all of them fit here too.
const SET_BYTES: usize = 192 << 20;
/// Most blocks of a batch.
const BATCH: usize = 32;
/// Looking for the other node takes no longer, on a machine that does nothing else.
const PATIENCE: Duration = Duration::from_secs(20);
/// The rate of the link between racks that stands beside the loopback: see `scan`.
const LINK_GIGABITS: u32 = 10;
/// Blocks in words, their pieces and the bytes of each.
const SHAPES: [(&str, usize, usize); 2] = [("256x4KiB", 256, 4 << 10), ("128x20KiB", 128, 20 << 10)];

/// The bench.
pub struct KvRacks;

/// Two racks, a program in each, and a bare socket.
struct Scene {
    _home: BenchNode,
    _near: BenchNode,
    writer: KvCache,
    reader: KvCache,
    wire: RefCell<Worker>,
    /// Blocks that the other rack has, and the first that was not fetched yet.
    blocks: Cell<usize>,
    next: Cell<usize>,
}

/// Where a block's bytes go: pieces with as much room between them.
struct Pieces {
    memory: Vec<u8>,
    piece_bytes: usize,
}

impl Bench for KvRacks {
    fn name(&self) -> &'static str {
        "kv-racks"
    }

    fn subject(&self) -> &'static str {
        "KV blocks of another rack over TCP, into many pieces"
    }

    fn switches(&self) -> &'static [&'static str] {
        &["HINTERLAND_NO_STREAMING=1"]
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = Ground::new(setting, 3 << 29)?;
        let scene = Scene::new(&ground, None)?;
        let mut rows = Vec::new();
        for (name, pieces, piece_bytes) in SHAPES {
            let bytes = pieces * piece_bytes;
            scene.fill(bytes)?;
            (setting.say)(&format!("kv-racks: {name}"));
            let mut into = Pieces { memory: vec![0; BATCH * 2 * bytes], piece_bytes };
            for (tail, is_matched) in [("", false), ("-matched", true)] {
                let case = format!("{name}{tail}");
                rows.push(scene.single_row(setting, case, &mut into, is_matched));
            }
            rows.push(scene.batch_row(setting, format!("{name}-batch"), &mut into));
        }
        (setting.say)("kv-racks: nothing there");
        let count = if setting.quick { 50 } else { 1000 };
        for keys in [1, 64] {
            let case =
                Case::new(format!("none-{keys}-keys"), "us", Better::Lower, || scene.none(count, keys))
                    .limit("bare TCP socket, both ends sleeping, 64 B", || {
                        scene.wire.borrow_mut().figure(&format!("latency 64 {count} 0 0"))
                    });
            rows.push(case.measure(setting.rounds));
        }
        drop(scene);
        (setting.say)(&format!("kv-racks: over a link of {LINK_GIGABITS} Gbit/s"));
        rows.extend(over_link(setting, &ground));
        Ok(rows)
    }
}

/// Blocks and batches over a link of a known rate.
fn over_link(setting: &Setting, ground: &Ground) -> Vec<Row> {
    let made =
        Link::new(LINK_GIGABITS).and_then(|link| Scene::new(ground, Some(&link)).map(|scene| (scene, link)));
    let mut rows = Vec::new();
    for (name, pieces, piece_bytes) in SHAPES {
        let bytes = pieces * piece_bytes;
        let [single, batch] = ["", "-batch"].map(|tail| format!("{LINK_GIGABITS}gbit-{name}{tail}"));
        let scene = made.as_ref().map(|(scene, _)| scene).map_err(Failure::clone);
        match scene.and_then(|scene| scene.fill(bytes).map(|()| scene)) {
            Ok(scene) => {
                let mut into = Pieces { memory: vec![0; BATCH * 2 * bytes], piece_bytes };
                rows.push(scene.single_row(setting, single, &mut into, false));
                rows.push(scene.batch_row(setting, batch, &mut into));
            }
            Err(failure) => {
                rows.push(Row::absent(single, "us", Better::Lower, failure.text.clone()));
                rows.push(Row::absent(batch, "GB/s", Better::Higher, failure.text));
            }
        }
    }
    rows
}

impl Scene {
    /// On the loopback, or over a link.
    fn new(ground: &Ground, link: Option<&Link>) -> Result<Self, Failure> {
        let plan = NodePlan {
            capacity_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            more: &["--kv-capacity", "512M", "--kv-remote-wait", "10000"],
            ..NodePlan::default()
        };
        let [far, here] = [0, 1].map(|end| link.map(|link| link.end(end)));
        let names = if link.is_some() { ["far", "here"] } else { ["home", "near"] };
        let home = ground.node(NodePlan { name: names[0], end: far, ..plan })?;
        let near = ground.node(NodePlan { name: names[1], join: Some(&home.address), end: here, ..plan })?;
        let (writer, reader) = (home.pool()?.kv("bench")?, near.pool()?.kv("bench")?);
        let begun = Instant::now();
        while near.pool()?.kv_status()?.iter().all(|store| store.racks.nodes == 0) {
            if begun.elapsed() > PATIENCE {
                return Err(Failure::new("the nodes do not find each other", "report this"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut wire = here.map_or_else(|| ground.machine(), |end| ground.machine_at(end))?;
        let words = far.map(|end| end.words()).unwrap_or_default();
        wire.ask(&format!("serve {SET_BYTES} {words}"))?;
        let wire = RefCell::new(wire);
        let (blocks, next) = (Cell::new(0), Cell::new(0));
        Ok(Self { _home: home, _near: near, writer, reader, wire, blocks, next })
    }

    /// Fills the other rack with blocks of a size.
    fn fill(&self, bytes: usize) -> Result<(), Failure> {
        self.writer.clear()?;
        self.reader.clear()?;
        let block = vec![7; bytes];
        self.blocks.set(SET_BYTES / bytes);
        self.next.set(0);
        for number in 0..self.blocks.get() {
            let outcome = self.writer.put(&[(&key(number), &[&block])])?;
            if outcome != [Stored::Written] {
                return Err(Failure::new(format!("a block was not written: {outcome:?}"), "report this"));
            }
        }
        Ok(())
    }

    /// Keys of the next blocks, none of which is here.
    fn unread(&self, count: usize) -> Result<Vec<[u8; 32]>, Failure> {
        if self.next.get() + count > self.blocks.get() {
            self.reader.clear()?;
            self.next.set(0);
        }
        let first = self.next.replace(self.next.get() + count);
        Ok((first..first + count).map(key).collect())
    }

    /// Asks where blocks are.
    fn find(&self, keys: &[&[u8]]) -> Result<(), Failure> {
        match self.reader.match_prefix_everywhere(keys)? {
            found if found == keys.len() => Ok(()),
            found => Err(Failure::new(format!("{found} of {} blocks were found", keys.len()), "report this")),
        }
    }

    /// Fetches blocks and reads them into their pieces.
    fn bring(&self, keys: &[&[u8]], into: &mut Pieces) -> Result<(), Failure> {
        let each = into.memory.len() / BATCH;
        let rooms = into.memory.chunks_mut(each).take(keys.len());
        let mut pieces: Vec<Vec<&mut [u8]>> = rooms
            .map(|room| {
                room.chunks_mut(2 * into.piece_bytes).map(|pair| &mut pair[..into.piece_bytes]).collect()
            })
            .collect();
        let named = keys.iter().zip(&mut pieces);
        let mut blocks: Vec<(&[u8], &mut [&mut [u8]])> =
            named.map(|(key, pieces)| (*key, &mut pieces[..])).collect();
        if self.reader.get_everywhere(&mut blocks)?.iter().all(Option::is_some) {
            return Ok(());
        }
        Err(Failure::new("a block of the other rack did not come", "report this"))
    }

    /// The median of `count` single blocks, in microseconds; with `is_matched` it was asked before where they are.
    fn one(&self, count: usize, into: &mut Pieces, is_matched: bool) -> Result<f64, Failure> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let keys = self.unread(1)?;
            if is_matched {
                self.find(&[&keys[0]])?;
            }
            let begin = Instant::now();
            self.bring(&[&keys[0]], into)?;
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_by(f64::total_cmp);
        Ok(times[count / 2])
    }

    /// Single blocks beside a bare socket; with `is_matched` it was asked before where they are.
    fn single_row(&self, setting: &Setting, case: String, into: &mut Pieces, is_matched: bool) -> Row {
        let count = if setting.quick { 8 } else { 60 };
        let bytes = into.memory.len() / (2 * BATCH);
        Case::new(case, "us", Better::Lower, || self.one(count, into, is_matched))
            .limit("bare TCP socket, both ends sleeping, in one piece", || {
                self.wire.borrow_mut().figure(&format!("latency {bytes} {count} 0 0"))
            })
            .measure(setting.rounds)
    }

    /// Batches beside a bare transfer of as many bytes.
    fn batch_row(&self, setting: &Setting, case: String, into: &mut Pieces) -> Row {
        let batches = if setting.quick { 1 } else { 2 };
        let total = batches * into.memory.len() / 2;
        Case::new(case, "GB/s", Better::Higher, || self.batches(batches, into))
            .limit("bare TCP, 1 stream, memory to memory", || {
                self.wire.borrow_mut().figure(&format!("stream 1 {total} 0"))
            })
            .measure(setting.rounds)
    }

    /// The rate of batches, in bytes a nanosecond.
    fn batches(&self, count: usize, into: &mut Pieces) -> Result<f64, Failure> {
        let (mut bytes, mut took) = (0, Duration::ZERO);
        for _ in 0..count {
            let keys = self.unread(BATCH)?;
            let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
            let begin = Instant::now();
            self.bring(&keys, into)?;
            took += begin.elapsed();
            bytes += into.memory.len() / 2;
        }
        Ok(bytes as f64 / took.as_secs_f64() / 1e9)
    }

    /// Microseconds of one question for keys that nobody has.
    fn none(&self, count: usize, keys: usize) -> Result<f64, Failure> {
        let keys: Vec<[u8; 32]> = (1 << 40..(1 << 40) + keys).map(key).collect();
        let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
        let begin = Instant::now();
        for _ in 0..count {
            if self.reader.match_prefix_everywhere(&keys)? > 0 {
                return Err(Failure::new("a block was found that nobody has put", "report this"));
            }
        }
        Ok(begin.elapsed().as_secs_f64() * 1e6 / count as f64)
    }
}

/// The key of a block: as long as a SHA-256.
fn key(number: usize) -> [u8; 32] {
    let mut key = [0x5a; 32];
    key[..8].copy_from_slice(&(number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key
}
