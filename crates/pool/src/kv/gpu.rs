//! Blocks copied straight to and from memory of a GPU, all fragments of a batch in one launch on a stream of the program.
//!
//! See `docs/decisions/2026-11-22-kv-gpu.md` for why no wrong byte can come of it.

use super::queue::Batch;
use super::runs::{Gather, Run, checked};
use super::{EINVAL, KvCache};
use crate::{PoolError, Stored};
use hinterland_gpu::{
    Copier, DeviceMemory, Direction, Gpu, GpuError, Launch, Piece, Registered, Stream, StreamHandle,
};
use hinterland_kv::{BLOCK_BYTES_MAX, BlockKey, Found};
use hinterland_os::Coherence;
use std::any::Any;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const EAGAIN: i32 = 11;
const ENOTSUP: i32 = 95;
/// Bytes of a put that are gathered by one launch: the host publishes one part while the GPU gathers the next.
const PART_BYTES: usize = 16 << 20;
/// Most parts that are under way: memory of the host that cannot be moved.
const PARTS_MAX: usize = 32;
/// Most buffers that wait for the next put.
const SPARE_MAX: usize = 4;

/// Which GPU, and how its kernel is compiled.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GpuOptions {
    /// Its number; by default that of the context that is current on this thread, else 0.
    pub device: Option<usize>,
    /// The driver's library, if not the machine's, and unless the environment names it.
    pub driver: Option<PathBuf>,
    /// Where NVRTC's library is tried first, unless the environment names it.
    pub compiler: Option<PathBuf>,
}

/// The blocks of a namespace, reached by a GPU. It has a session of its own; any thread may use it.
pub struct KvGpu(Arc<Shared>);

struct Shared {
    cache: KvCache,
    copier: Arc<Copier>,
    /// The file of blocks, as the GPU sees it.
    blocks: Registered,
    buffers: Mutex<Buffers>,
}

/// What puts are gathered into.
#[derive(Default)]
struct Buffers {
    spare: Vec<Registered>,
    /// How many parts are under way.
    taken: usize,
}

/// What lives until a launch is done: the registered blocks, and what the program wants to live.
type Kept = (Arc<Shared>, Arc<dyn Any + Send + Sync>);

/// A batch that is on its way to or from a GPU. Dropping it waits for the GPU, and nothing is published.
#[must_use = "nothing counts before `wait` has answered"]
pub struct KvTransfer {
    shared: Arc<Shared>,
    work: Work,
}

enum Work {
    Get { launch: Launch<Kept>, found: Vec<Option<Found>> },
    Put { parts: Vec<Part>, chain: Chain },
}

/// Whether blocks follow on each other, the first one on this, if on anything.
enum Chain {
    None,
    After(Option<Vec<u8>>),
}

/// Blocks of a put that one launch gathers into one buffer.
struct Part {
    launch: Launch<(Taken, Kept)>,
    keys: Vec<Vec<u8>>,
    /// For each key, the bytes of its block.
    lengths: Vec<usize>,
}

/// A buffer, back among the spare ones on drop.
struct Taken {
    shared: Arc<Shared>,
    buffer: Option<Registered>,
}

impl KvCache {
    /// Lets a GPU reach the blocks: loads the driver and the kernel, and registers the memory of all blocks, which takes some
    /// time, once.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `ENODEV` without a driver, a GPU or NVRTC, `ENOMEM` if the memory cannot be registered, and
    /// `ENOTSUP` if the node's memory is not coherent.
    pub fn gpu(&self, options: &GpuOptions) -> Result<KvGpu, PoolError> {
        if self.view.geometry().coherence() != Coherence::Hardware {
            let text = "the memory of this node is not coherent, and a GPU cannot flush its lines (hint: start the node with --coherence hardware, or copy through memory of the program)";
            return Err(PoolError::Refused { code: ENOTSUP, text: text.to_owned() });
        }
        let gpu = Gpu::open(options.device, options.driver.as_deref()).map_err(refused)?;
        let copier = Copier::new(&gpu, options.compiler.as_deref()).map_err(refused)?;
        let cache = self.again()?;
        let memory = cache.view.blocks(0, cache.view.geometry().blocks_bytes())?;
        let blocks = Registered::new(&gpu, memory).map_err(refused)?;
        let buffers = Mutex::default();
        Ok(KvGpu(Arc::new(Shared { cache, copier, blocks, buffers })))
    }
}

impl KvGpu {
    /// The GPU.
    pub fn gpu(&self) -> &Arc<Gpu> {
        self.0.copier.gpu()
    }

    /// Puts copies of blocks into memory of the GPU on a stream, and does not wait. Nothing of it counts before
    /// [`KvTransfer::wait`] has answered, also for what is behind it on the stream: a block may be evicted while it is copied.
    ///
    /// Blocks that are not here are not copied. No message to anybody.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `EINVAL` for a block of another length than its runs, `EFAULT` for addresses that the GPU
    /// does not reach, `EIO` if the driver fails. Nothing is under way then.
    ///
    /// # Safety
    /// Until the transfer is waited for or dropped, the GPU may write the runs' fragments, which nobody else uses: usually
    /// because `kept` owns them. The stream is one of the GPU's context, and lives as long.
    pub unsafe fn get(
        &self,
        batch: &Batch,
        stream: StreamHandle,
        kept: Arc<dyn Any + Send + Sync>,
    ) -> Result<KvTransfer, PoolError> {
        let shared = &self.0;
        let (mut found, mut pieces) = (Vec::new(), Vec::new());
        for (key, runs) in batch.blocks() {
            let block = shared.cache.find(key);
            match &block {
                Some(block) => {
                    let (bytes, given) = (block.bytes(), checked(runs, isize::MAX as usize)?);
                    if u64::from(bytes) != given {
                        let text = format!(
                            "a block of {bytes} bytes does not fit a buffer of {given} (hint: engines of another layout need another fingerprint)"
                        );
                        return Err(PoolError::Refused { code: EINVAL, text });
                    }
                    // Both fit: the block was found inside of the mapped file.
                    let place = block.block().offset as usize;
                    let from = shared.blocks.address(place, bytes as usize).map_err(refused)?;
                    add_pieces(&mut pieces, from, runs);
                }
                None => drop(shared.cache.count_get(None)),
            }
            found.push(block);
        }
        shared.check_addresses(&pieces)?;
        let kept = (Arc::clone(shared), kept);
        // SAFETY: the blocks stay registered as long as `kept`; the caller promises the fragments and the stream.
        let launch = unsafe { shared.copier.copy(Direction::Scatter, &pieces, stream, kept) };
        let work = Work::Get { launch: launch.map_err(refused)?, found };
        Ok(KvTransfer { shared: Arc::clone(shared), work })
    }

    /// Has blocks gathered from memory of the GPU on a stream, and does not wait. They are there when [`KvTransfer::wait`] has
    /// answered, and not before; the GPU's memory may be used again by what is behind it on the stream.
    ///
    /// # Errors
    /// As [`get`](Self::get); `EINVAL` for a block of none or more than 4 MiB; `EAGAIN` if 512 MiB are under way. Nothing is
    /// under way then.
    ///
    /// # Safety
    /// As [`get`](Self::get), but the fragments are read.
    pub unsafe fn put(
        &self,
        batch: &Batch,
        stream: StreamHandle,
        kept: Arc<dyn Any + Send + Sync>,
    ) -> Result<KvTransfer, PoolError> {
        // SAFETY: the caller promises the same.
        unsafe { self.put_as(batch, Chain::None, stream, kept) }
    }

    /// As [`put`](Self::put), for blocks each of which follows on the one before it, and the first on `after`, if it has one:
    /// see [`KvCache::put_prefix`].
    ///
    /// # Errors
    /// As [`put`](Self::put).
    ///
    /// # Safety
    /// As [`put`](Self::put).
    pub unsafe fn put_prefix(
        &self,
        batch: &Batch,
        after: Option<&[u8]>,
        stream: StreamHandle,
        kept: Arc<dyn Any + Send + Sync>,
    ) -> Result<KvTransfer, PoolError> {
        let chain = Chain::After(after.map(<[u8]>::to_vec));
        // SAFETY: the caller promises the same.
        unsafe { self.put_as(batch, chain, stream, kept) }
    }

    /// [`get`](Self::get) into memory of this library, on a stream of it; starts of runs are offsets in the memory.
    ///
    /// # Errors
    /// As there, and [`PoolError::Refused`] for runs that reach beyond the memory.
    pub fn get_into(
        &self,
        blocks: &[(&[u8], &[Run])],
        memory: &Arc<DeviceMemory>,
        stream: &Arc<Stream>,
    ) -> Result<KvTransfer, PoolError> {
        let batch = within(blocks, memory)?;
        // SAFETY: the runs lie in the memory, which is kept with the stream; whoever uses it meanwhile gets a mixture.
        unsafe { self.get(&batch, stream.handle(), Arc::new((Arc::clone(memory), Arc::clone(stream)))) }
    }

    /// [`put`](Self::put) from memory of this library, on a stream of it; starts of runs are offsets in the memory.
    ///
    /// # Errors
    /// As [`get_into`](Self::get_into).
    pub fn put_from(
        &self,
        blocks: &[(&[u8], &[Run])],
        memory: &Arc<DeviceMemory>,
        stream: &Arc<Stream>,
    ) -> Result<KvTransfer, PoolError> {
        let batch = within(blocks, memory)?;
        // SAFETY: as in `get_into`.
        unsafe { self.put(&batch, stream.handle(), Arc::new((Arc::clone(memory), Arc::clone(stream)))) }
    }

    /// [`put_prefix`](Self::put_prefix) from memory of this library, as [`put_from`](Self::put_from).
    ///
    /// # Errors
    /// As [`get_into`](Self::get_into).
    pub fn put_prefix_from(
        &self,
        blocks: &[(&[u8], &[Run])],
        after: Option<&[u8]>,
        memory: &Arc<DeviceMemory>,
        stream: &Arc<Stream>,
    ) -> Result<KvTransfer, PoolError> {
        let batch = within(blocks, memory)?;
        let kept = Arc::new((Arc::clone(memory), Arc::clone(stream)));
        // SAFETY: as in `get_into`.
        unsafe { self.put_prefix(&batch, after, stream.handle(), kept) }
    }

    /// # Safety
    /// As [`put`](Self::put).
    unsafe fn put_as(
        &self,
        batch: &Batch,
        chain: Chain,
        stream: StreamHandle,
        kept: Arc<dyn Any + Send + Sync>,
    ) -> Result<KvTransfer, PoolError> {
        let shared = &self.0;
        let planned = plan(batch)?;
        let mut taken = shared.take(planned.len())?;
        // All are checked before the first is launched.
        for planned in &planned {
            let mut pieces = Vec::new();
            planned.blocks.iter().for_each(|(_, runs, _)| add_pieces(&mut pieces, 0, runs));
            shared.check_addresses(&pieces)?;
        }
        let mut parts = Vec::with_capacity(planned.len());
        for planned in planned {
            // As many were taken as there are parts.
            let Some(buffer) = taken.pop() else { break };
            let (mut pieces, mut at) = (Vec::new(), buffer.address()?);
            for (_, runs, bytes) in &planned.blocks {
                add_pieces(&mut pieces, at, runs);
                at += *bytes as u64;
            }
            let kept = (buffer, (Arc::clone(shared), Arc::clone(&kept)));
            // SAFETY: the buffer is this launch's alone and has room for the part; the caller promises the rest. If this one
            // fails, dropping the earlier ones waits for them.
            let launch = unsafe { shared.copier.copy(Direction::Gather, &pieces, stream, kept) };
            let keys = planned.blocks.iter().map(|(key, _, _)| key.to_vec()).collect();
            let lengths = planned.blocks.iter().map(|(_, _, bytes)| *bytes).collect();
            parts.push(Part { launch: launch.map_err(refused)?, keys, lengths });
        }
        Ok(KvTransfer { shared: Arc::clone(shared), work: Work::Put { parts, chain } })
    }
}

impl KvTransfer {
    /// Whether the GPU is done, so that [`wait`](Self::wait) does not wait for it. Nothing counts yet.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `EIO` if the GPU failed.
    pub fn is_arrived(&mut self) -> Result<bool, PoolError> {
        match &mut self.work {
            Work::Get { launch, .. } => launch.is_done().map_err(refused),
            // They are on one stream, so the last one is done last.
            Work::Put { parts, .. } => {
                parts.last_mut().map_or(Ok(true), |part| part.launch.is_done()).map_err(refused)
            }
        }
    }

    /// Waits for the GPU. Of a get, for each block whether its bytes are in place: if not, what is there is of no use. Of a
    /// put, for each whether it is there now: it is copied and published here, 16 MiB at a time.
    ///
    /// # Errors
    /// As [`is_arrived`](Self::is_arrived); [`PoolError`] if the node does not answer.
    pub fn wait(self) -> Result<Vec<bool>, PoolError> {
        let Self { shared, work } = self;
        match work {
            Work::Get { launch, found } => {
                launch.wait().map_err(refused)?;
                // The GPU has read everything, so a generation that is still the same was the same all the while.
                let is_right = |block: &Option<Found>| {
                    let Some(block) = block else { return false };
                    let is_right = shared.is_right(block);
                    shared.cache.count_get(is_right.then(|| block.bytes())).is_some()
                };
                Ok(found.iter().map(is_right).collect())
            }
            Work::Put { parts, mut chain } => {
                let mut stored = Vec::new();
                for part in parts {
                    stored.extend(shared.publish(part, &mut chain)?);
                }
                Ok(stored)
            }
        }
    }
}

impl Shared {
    /// Waits for a part, copies it into slots and publishes it.
    ///
    /// The GPU never writes into slots: nobody knows when it stops to after its program was killed, and the slots are another
    /// program's by then.
    fn publish(&self, part: Part, chain: &mut Chain) -> Result<Vec<bool>, PoolError> {
        let Part { launch, keys, lengths } = part;
        let (taken, _kept) = launch.wait().map_err(refused)?;
        let mut start = taken.start();
        let mut runs = Vec::with_capacity(keys.len());
        for &bytes in &lengths {
            runs.push([Run::single(start, bytes)]);
            start += bytes;
        }
        let gather = |(key, run)| -> Result<_, PoolError> {
            let (key, run): (&Vec<u8>, &[Run; 1]) = (key, run);
            // SAFETY: the blocks lie in the buffer one after the other; the GPU is done with it, and it is given back later.
            Ok((&key[..], unsafe { Gather::of_addresses(run) }?))
        };
        let blocks = keys.iter().zip(&runs).map(gather).collect::<Result<Vec<_>, _>>()?;
        let stored = match chain {
            Chain::None => self.cache.put_runs(&blocks)?,
            Chain::After(after) => self.cache.put_runs_prefix(&blocks, after.as_deref())?,
        };
        if let Chain::After(after) = chain {
            *after = keys.last().cloned();
        }
        Ok(stored.into_iter().map(|stored| stored != Stored::NoRoom).collect())
    }

    /// Whether what the GPU has read is the block that was found. If the node wants every read checked, the host reads the
    /// block once more: memory that was damaged before the GPU's read still is.
    fn is_right(&self, block: &Found) -> bool {
        let view = &self.cache.view;
        if !view.geometry().verify() {
            return view.is_still(block);
        }
        let mut bytes = vec![0; block.bytes() as usize];
        self.cache.counts(view.read(block, &mut [&mut bytes]))
    }

    /// Whether the GPU reaches the fragments of all pieces: asked of the first byte of each run, and of the last.
    fn check_addresses(&self, pieces: &[Piece]) -> Result<(), PoolError> {
        let ends = pieces.iter().flat_map(|piece| {
            let steps = piece.stride.wrapping_mul(piece.count.saturating_sub(1) as i64);
            let last = piece.start.wrapping_add_signed(steps);
            [piece.start.min(last), piece.start.max(last).wrapping_add(piece.bytes - 1)]
        });
        self.copier.gpu().check_addresses(ends).map_err(refused)
    }

    /// Buffers for parts of a put.
    fn take(self: &Arc<Self>, count: usize) -> Result<Vec<Taken>, PoolError> {
        let mut buffers = self.buffers();
        if buffers.taken + count > PARTS_MAX {
            let text = format!(
                "{} MiB of puts are under way, and {} more are too many (hint: wait for earlier ones, or put fewer blocks at once)",
                buffers.taken * (PART_BYTES >> 20),
                count * (PART_BYTES >> 20)
            );
            return Err(PoolError::Refused { code: EAGAIN, text });
        }
        buffers.taken += count;
        let at = buffers.spare.len().saturating_sub(count);
        let mut spare = buffers.spare.split_off(at);
        drop(buffers);
        // Made first: each that is dropped counts itself back.
        let mut all: Vec<Taken> =
            (0..count).map(|_| Taken { shared: Arc::clone(self), buffer: spare.pop() }).collect();
        for taken in all.iter_mut().filter(|taken| taken.buffer.is_none()) {
            taken.buffer = Some(Registered::anonymous(self.copier.gpu(), PART_BYTES).map_err(refused)?);
        }
        Ok(all)
    }

    fn buffers(&self) -> MutexGuard<'_, Buffers> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// The GPU's address of the buffer.
    fn address(&self) -> Result<u64, PoolError> {
        let buffer = self.buffer.as_ref().expect("it is taken away only on drop");
        buffer.address(0, PART_BYTES).map_err(refused)
    }

    /// The host's address of it.
    fn start(&self) -> usize {
        let buffer = self.buffer.as_ref().expect("it is taken away only on drop");
        buffer.memory().as_ptr().expose_provenance()
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut buffers = self.shared.buffers();
        buffers.taken -= 1;
        if buffers.spare.len() < SPARE_MAX {
            buffers.spare.extend(self.buffer.take());
        }
    }
}

/// Blocks of one part: key, runs, and bytes.
#[derive(Default)]
struct Planned<'batch> {
    blocks: Vec<(&'batch BlockKey, &'batch [Run], usize)>,
    bytes: usize,
}

/// The parts of a put.
fn plan(batch: &Batch) -> Result<Vec<Planned<'_>>, PoolError> {
    let mut parts: Vec<Planned<'_>> = Vec::new();
    for (key, runs) in batch.blocks() {
        let bytes = checked(runs, isize::MAX as usize)?;
        if !(1..=BLOCK_BYTES_MAX).contains(&bytes) {
            let text = hinterland_kv::StoreError::Bytes(bytes).to_string();
            return Err(PoolError::Refused { code: EINVAL, text });
        }
        // At most 4 MiB.
        let bytes = bytes as usize;
        match parts.last_mut() {
            Some(part) if part.bytes + bytes <= PART_BYTES => {
                part.blocks.push((key, runs, bytes));
                part.bytes += bytes;
            }
            _ => parts.push(Planned { blocks: vec![(key, runs, bytes)], bytes }),
        }
    }
    Ok(parts)
}

/// Adds the runs of a block, whose bytes lie without gaps from `linear` on.
fn add_pieces(pieces: &mut Vec<Piece>, mut linear: u64, runs: &[Run]) {
    for run in runs.iter().filter(|run| run.bytes > 0 && run.count > 0) {
        let (start, bytes, count) = (run.start as u64, run.bytes as u64, run.count as u64);
        pieces.push(Piece { linear, start, stride: run.stride as i64, bytes, count });
        linear = linear.wrapping_add(bytes.wrapping_mul(count));
    }
}

/// A batch of runs whose starts are offsets in memory of a GPU.
fn within(blocks: &[(&[u8], &[Run])], memory: &DeviceMemory) -> Result<Batch, PoolError> {
    // An address of a GPU fits: the machine has 64 bits.
    let first = memory.address(0, memory.len()).map_err(refused)? as usize;
    let mut batch = Batch::with_capacity(blocks.len(), blocks.len());
    for (key, runs) in blocks {
        checked(runs, memory.len())?;
        batch.push(key, runs.iter().map(|run| Run { start: first + run.start, ..*run }))?;
    }
    Ok(batch)
}

fn refused(error: GpuError) -> PoolError {
    PoolError::Refused { code: error.code(), text: error.to_string() }
}
