//! `kv-gpu`: KV blocks to and from a GPU, beside a call for each fragment, a bounce buffer, and one large copy.

use super::case::Case;
use super::ground::{BenchNode, Ground, NodePlan};
use super::report::{Better, Row};
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_gpu::{Copier, DeviceMemory, Direction, Plain, Registered, Stream};
use hinterland_os::{Mapping, SharedSlice};
use hinterland_pool::{GpuOptions, KvCache, KvGpu, Run, Stored};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;

/// Fragments of a block, and the bytes of each: those of a paper's model.
const FRAGMENTS: usize = 128;
const FRAGMENT_BYTES: usize = 20 << 10;
const BLOCK_BYTES: usize = FRAGMENTS * FRAGMENT_BYTES;
/// Blocks that lie on the host, far beyond its caches.
const BLOCKS: usize = 96;
/// Blocks of a large batch.
const BATCH: usize = 16;
/// Fragments that are compared byte by byte: words of 16 bytes, of 4 and of 1, with heads and tails, backwards, tiny.
const SHAPES: [Run; 8] = [
    Run { start: 0, bytes: FRAGMENT_BYTES, stride: 2 * FRAGMENT_BYTES as isize, count: FRAGMENTS },
    Run { start: 5, bytes: 4099, stride: 8196, count: 100 },
    Run { start: 4, bytes: 8191, stride: 8192, count: 50 },
    Run { start: 1, bytes: 160, stride: 321, count: 1024 },
    Run { start: 64, bytes: 160, stride: 320, count: 1024 },
    Run { start: 3, bytes: 1, stride: 2, count: 5000 },
    Run { start: 1 << 20, bytes: 4096, stride: -8192, count: 100 },
    Run { start: 7, bytes: 300_001, stride: 0, count: 1 },
];
/// What figures of the stand-in are worth.
const STAND_IN: &str = "stand-in: what stands in for a GPU in tests was driven, and no figure of it says anything (hint: run it on a machine with a GPU, without HINTERLAND_CUDA)";

/// The bench.
pub struct KvGpuBench;

/// A node with blocks, memory of both sides, and what copies between them.
struct Scene {
    _node: BenchNode,
    cache: KvCache,
    gpu: KvGpu,
    copier: Arc<Copier>,
    stream: Arc<Stream>,
    /// An engine's cache: fragments of a batch, with as much room between them.
    device: Arc<DeviceMemory>,
    /// Bytes of a batch without gaps, on the GPU and on the host.
    bounce: DeviceMemory,
    pinned: Registered,
    /// As many bytes as the blocks on the host, in memory that the driver knows nothing of.
    plain: SharedSlice,
    next: Cell<usize>,
}

/// What is measured: which way, and how many blocks at once.
#[derive(Clone, Copy)]
struct Work {
    direction: Direction,
    blocks: usize,
    rounds: usize,
}

impl Bench for KvGpuBench {
    fn name(&self) -> &'static str {
        "kv-gpu"
    }

    fn subject(&self) -> &'static str {
        "KV blocks of 128 x 20 KiB to and from a GPU"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = Ground::new(setting, 1 << 30)?;
        let scene = Scene::new(&ground)?;
        let gpu = scene.gpu.gpu();
        (setting.say)(&format!("kv-gpu: {}, driver of CUDA {}", gpu.name(), gpu.driver_version()));
        scene.check()?;
        let mut rows = Vec::new();
        for (name, direction) in [("get", Direction::Scatter), ("put", Direction::Gather)] {
            for blocks in [1, BATCH] {
                let rounds = if setting.quick { 2 } else { 256 / blocks };
                let work = Work { direction, blocks, rounds };
                let case = format!("{name}-{blocks}x128x20KiB");
                (setting.say)(&format!("kv-gpu: {case}"));
                rows.extend(scene.rows(&case, work, setting.rounds));
            }
        }
        if gpu.is_stand_in() {
            // It was driven all the same, so that a bench that does not work is noticed.
            return Ok(rows.into_iter().map(without_figures).collect());
        }
        Ok(rows)
    }
}

/// The row without its figures, if it has any.
fn without_figures(row: Row) -> Row {
    let why = row.why.unwrap_or_else(|| STAND_IN.to_owned());
    Row::absent(row.case, row.unit, row.better, why)
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
        let cache = node.pool()?.kv("bench")?;
        for number in 0..BLOCKS {
            let block = pattern(number, BLOCK_BYTES);
            if cache.put(&[(&key(number), &[&block])])? != [Stored::Written] {
                return Err(Failure::new("the node has no room for a block", "report this"));
            }
        }
        let begun = Instant::now();
        let gpu = cache.gpu(&GpuOptions::default())?;
        tracing::info!(seconds = begun.elapsed().as_secs_f64(), "the blocks are registered");
        let device = gpu.gpu();
        let plain = Arc::new(Mapping::anonymous(BLOCKS * BLOCK_BYTES, true)?).slice();
        plain.fill(0, plain.len(), 1)?;
        Ok(Self {
            copier: Copier::new(device, None)?,
            stream: Arc::new(Stream::new(device)?),
            device: Arc::new(DeviceMemory::new(device, 2 * BATCH * BLOCK_BYTES)?),
            bounce: DeviceMemory::new(device, BATCH * BLOCK_BYTES)?,
            pinned: Registered::anonymous(device, BATCH * BLOCK_BYTES)?,
            plain,
            _node: node,
            cache,
            gpu,
            next: Cell::new(0),
        })
    }

    /// Compares every byte, for blocks of this bench and for fragments of other lengths and alignments: a GPU that has run
    /// this has been tested.
    fn check(&self) -> Result<(), Failure> {
        let wrong = |what: &str| {
            Failure::new(format!("the GPU {what}: wrong bytes"), "report this with the GPU's name")
        };
        for (index, runs) in SHAPES.iter().map(std::slice::from_ref).enumerate() {
            let [Run { start, bytes, stride, count }] = *runs else { continue };
            let block = pattern(BLOCKS + index, bytes * count);
            let (name, again) = ([b'c', index as u8], [b'd', index as u8]);
            self.cache.put(&[(&name, &[&block])])?;
            let before = vec![0xa5; 2 * BLOCK_BYTES];
            self.device.write(0, &before)?;
            let mut expected = before;
            for (fragment, bytes_of) in block.chunks(bytes).enumerate() {
                let at = start.wrapping_add_signed(stride * fragment as isize);
                expected[at..at + bytes].copy_from_slice(bytes_of);
            }
            let get = self.gpu.get_into(&[(&name, runs)], &self.device, &self.stream)?;
            let mut got = vec![0; 2 * BLOCK_BYTES];
            if get.wait()? != [true] {
                return Err(Failure::new("a block is not there", "report this"));
            }
            self.device.read(0, &mut got)?;
            if got != expected {
                return Err(wrong(&format!("scatters {count} x {bytes} bytes, {stride} apart")));
            }
            let put = self.gpu.put_from(&[(&again, runs)], &self.device, &self.stream)?.wait()?;
            let mut back = vec![0; block.len()];
            if put != [true] || self.cache.get(&again, &mut [&mut back])?.is_none() || back != block {
                return Err(wrong(&format!("gathers {count} x {bytes} bytes, {stride} apart")));
            }
            self.cache.remove(&[&name, &again])?;
        }
        Ok(())
    }

    /// A row for each way that programs have without us.
    fn rows(&self, case: &str, work: Work, rounds: usize) -> [Row; 2] {
        let bytes = (work.blocks * BLOCK_BYTES * work.rounds) as f64;
        let rate = move |seconds: f64| bytes / seconds / 1e9;
        let ours = || self.ours(work).map(rate);
        let limit = || self.timed(work, |_| self.one_copy(work)).map(rate);
        let limit_name = "one cudaMemcpyAsync of all bytes, registered memory";
        let each = Case::new(format!("{case}-each"), "GB/s", Better::Higher, ours)
            .limit(limit_name, limit)
            .peer("a cudaMemcpyAsync for each fragment", || self.timed(work, |_| self.each(work)).map(rate));
        let bounce = Case::new(format!("{case}-bounce"), "GB/s", Better::Higher, ours)
            .limit(limit_name, limit)
            .peer("memcpy through a registered buffer, one copy, and a kernel on the GPU", || {
                self.timed(work, |first| self.through(work, first)).map(rate)
            });
        [each.measure(rounds), bounce.measure(rounds)]
    }

    /// Seconds of our batches. What makes room again is not counted.
    fn ours(&self, work: Work) -> Result<f64, Failure> {
        let mut seconds = 0.0;
        for _ in 0..work.rounds {
            let first = self.advance(work.blocks);
            // Blocks that are put have names that nobody else has.
            let base = if work.direction == Direction::Scatter { first } else { BLOCKS };
            let keys: Vec<[u8; 32]> = (base..base + work.blocks).map(key).collect();
            let runs: Vec<[Run; 1]> = (0..work.blocks).map(runs).collect();
            let blocks: Vec<(&[u8], &[Run])> =
                keys.iter().zip(&runs).map(|(key, runs)| (&key[..], &runs[..])).collect();
            let begin = Instant::now();
            let transfer = match work.direction {
                Direction::Scatter => self.gpu.get_into(&blocks, &self.device, &self.stream)?,
                Direction::Gather => self.gpu.put_from(&blocks, &self.device, &self.stream)?,
            };
            let answers = transfer.wait()?;
            seconds += begin.elapsed().as_secs_f64();
            if answers.contains(&false) {
                return Err(Failure::new("a block was not copied", "report this"));
            }
            if work.direction == Direction::Gather {
                self.cache.remove(&keys.iter().map(|key| &key[..]).collect::<Vec<_>>())?;
            }
        }
        Ok(seconds)
    }

    /// Seconds of as many batches of another way, each told its first block.
    fn timed(&self, work: Work, mut copy: impl FnMut(usize) -> Result<(), Failure>) -> Result<f64, Failure> {
        let begin = Instant::now();
        for _ in 0..work.rounds {
            copy(self.advance(work.blocks))?;
        }
        Ok(begin.elapsed().as_secs_f64())
    }

    fn calls(&self) -> Plain<'_> {
        Plain { host: &self.pinned, device: &self.device, stream: &self.stream }
    }

    fn one_copy(&self, work: Work) -> Result<(), Failure> {
        Ok(self.calls().copy_each(work.direction, [(0, 0, work.blocks * BLOCK_BYTES)])?)
    }

    fn each(&self, work: Work) -> Result<(), Failure> {
        let fragment = |number: usize| (number * FRAGMENT_BYTES, 2 * number * FRAGMENT_BYTES, FRAGMENT_BYTES);
        Ok(self.calls().copy_each(work.direction, (0..work.blocks * FRAGMENTS).map(fragment))?)
    }

    fn through(&self, work: Work, first: usize) -> Result<(), Failure> {
        let bytes = work.blocks * BLOCK_BYTES;
        let place = first * BLOCK_BYTES;
        if work.direction == Direction::Scatter {
            self.plain.copy_to(place, self.pinned.memory(), 0, bytes)?;
        }
        let fragments = (FRAGMENT_BYTES, 2 * FRAGMENT_BYTES, work.blocks * FRAGMENTS);
        self.calls().copy_through(&self.copier, work.direction, &self.bounce, fragments)?;
        if work.direction == Direction::Gather {
            self.pinned.memory().copy_to(0, &self.plain, place, bytes)?;
        }
        Ok(())
    }

    /// The first of the next blocks, around and around.
    fn advance(&self, blocks: usize) -> usize {
        let first = if self.next.get() + blocks > BLOCKS { 0 } else { self.next.get() };
        self.next.set(first + blocks);
        first
    }
}

/// Bytes that differ from block to block and from place to place.
fn pattern(number: usize, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at.wrapping_mul(0x9e37_79b1).wrapping_add(number * 0x85eb_ca6b) >> 13) as u8)
        .collect()
}

/// Where a block of a batch lies in the engine's cache.
fn runs(place: usize) -> [Run; 1] {
    let (bytes, stride) = (FRAGMENT_BYTES, 2 * FRAGMENT_BYTES as isize);
    [Run { start: 2 * place * BLOCK_BYTES, bytes, stride, count: FRAGMENTS }]
}

/// The key of a block: as long as a SHA-256.
fn key(number: usize) -> [u8; 32] {
    let mut key = [0x5a; 32];
    key[..8].copy_from_slice(&(number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_the_stand_in_has_no_figure_and_says_why() {
        let row = Case::new("get", "GB/s", Better::Higher, || Ok(2.0)).limit("one", || Ok(3.0)).measure(3);
        let row = without_figures(row);
        assert_eq!((row.ours, row.limit, row.peer, row.spread), (None, None, None, None));
        assert!(row.why.is_some_and(|why| why.starts_with("stand-in")));
    }
}
