//! KV blocks: put, found and read in batches, and queues whose answers a descriptor announces.

use crate::failure::{Failure, guarded};
use crate::pool::PoolHandle;
use crate::text::{fingerprint, place, values};
use hinterland_os::notice::Notice;
use hinterland_pool::{
    Batch, Completion, Gather, KeyOperation, KvCache, KvQueue, QueueOptions, Refusal, Run, Scatter, Stored,
    WhenFull,
};
use std::ffi::{c_char, c_int, c_void};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long the first use of a node may take until people are told why.
const NOTICE: Duration = Duration::from_secs(2);

/// Copies blocks out.
pub const HL_KV_GET: c_int = 1;
/// Copies blocks in.
pub const HL_KV_PUT: c_int = 2;
/// Looks for blocks.
pub const HL_KV_EXISTS: c_int = 3;
/// Removes blocks.
pub const HL_KV_REMOVE: c_int = 4;
/// Looks for blocks from the first on, in this host's memory.
pub const HL_KV_MATCH_PREFIX: c_int = 5;
/// The same, also in other racks.
pub const HL_KV_MATCH_PREFIX_EVERYWHERE: c_int = 6;
/// Brings blocks of other racks here.
pub const HL_KV_FETCH: c_int = 7;
/// Keeps blocks from being evicted.
pub const HL_KV_PIN: c_int = 8;
/// Takes pins of the queue back.
pub const HL_KV_UNPIN: c_int = 9;
/// Removes all blocks of the namespace from this host.
pub const HL_KV_CLEAR: c_int = 10;

/// Fragments of equal length at equal distances: `hl_run` in C.
#[repr(C)]
pub struct RunRecord {
    /// Where the first one starts.
    pub start: *mut c_void,
    /// Bytes of each.
    pub bytes: usize,
    /// From the start of one to the start of the next, in bytes.
    pub stride: isize,
    /// Fragments.
    pub count: usize,
}

/// A key, and the memory of its block: `hl_block` in C.
#[repr(C)]
pub struct BlockRecord {
    /// 1 to 64 bytes.
    pub key: *const c_void,
    /// How many.
    pub key_bytes: usize,
    /// Where its bytes are or go to; not looked at where no bytes move.
    pub runs: *const RunRecord,
    /// How many.
    pub run_count: usize,
}

/// What became of a batch of a queue: `hl_completion` in C.
#[repr(C)]
pub struct CompletionRecord {
    /// What submitting it gave.
    pub batch: u64,
    /// 0 or a negative `errno`.
    pub status: c_int,
    /// 0.
    pub reserved: u32,
}

/// A namespace of KV blocks: `hl_kv` in C.
pub struct KvHandle {
    cache: KvCache,
    owner: Owner,
}

/// A queue over a namespace: `hl_kv_queue` in C.
pub struct QueueHandle {
    queue: KvQueue<Answers>,
    /// What was taken from the queue and did not fit into what the program had room for.
    left: Mutex<Vec<Completion<Answers>>>,
    owner: Owner,
}

/// Where the answers for the keys of a batch go, if the program wants them.
#[derive(Clone, Copy)]
pub struct Answers(usize);

/// The process that opened something.
pub(crate) struct Owner(u32);

impl Owner {
    /// This process.
    pub(crate) fn new() -> Self {
        Self(std::process::id())
    }

    /// That it is this one.
    ///
    /// # Errors
    /// [`Failure`] in a child.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.0 == std::process::id() {
            return Ok(());
        }
        let text = "this was opened before fork() and belongs to the parent (hint: call hl_open and hl_kv_open in the child)";
        Err(Failure::new(libc::ENOTCONN, text))
    }
}

/// A block's key.
///
/// # Safety
/// The record's key is null or valid for reads of its length.
pub(crate) unsafe fn key<'a>(block: &BlockRecord) -> Result<&'a [u8], Failure> {
    // SAFETY: the caller promises it.
    unsafe { values("a key", block.key.cast::<u8>(), block.key_bytes) }
}

/// A block's runs.
///
/// # Safety
/// The record's runs are null or valid for reads of their number.
pub(crate) unsafe fn runs(block: &BlockRecord) -> Result<Vec<Run>, Failure> {
    // SAFETY: the caller promises it.
    let records = unsafe { values("a list of runs", block.runs, block.run_count) }?;
    let run = |record: &RunRecord| {
        if record.start.is_null() && record.bytes > 0 && record.count > 0 {
            return Err(Failure::argument("a run starts at NULL (hint: pass memory)"));
        }
        let RunRecord { start, bytes, stride, count } = *record;
        Ok(Run { start: start.expose_provenance(), bytes, stride, count })
    };
    records.iter().map(run).collect()
}

/// The keys of blocks.
///
/// # Safety
/// `blocks` is null or valid for reads of `count` records, whose keys are as [`key`] wants them.
unsafe fn keys<'a>(blocks: *const BlockRecord, count: usize) -> Result<Vec<&'a [u8]>, Failure> {
    // SAFETY: the caller promises both.
    unsafe { values("the blocks", blocks, count)?.iter().map(|block| key(block)).collect() }
}

/// Hands answers to the program, unless it wants none.
///
/// # Safety
/// `into` is null or valid for writes of as many bytes.
pub(crate) unsafe fn answer(into: *mut u8, answers: impl Iterator<Item = bool>) {
    if !into.is_null() {
        for (index, is_so) in answers.enumerate() {
            // SAFETY: the caller promises room for all.
            unsafe { into.add(index).write(u8::from(is_so)) };
        }
    }
}

impl KvHandle {
    pub(crate) const fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// The namespace behind a handle of this process.
    ///
    /// # Safety
    /// `pointer` is null or came from [`hl_kv_open`] and was not closed.
    pub(crate) unsafe fn of<'a>(pointer: *mut Self) -> Result<&'a Self, Failure> {
        // SAFETY: the caller promises a namespace, which came from a box.
        let handle = unsafe { pointer.as_ref() };
        let handle =
            handle.ok_or_else(|| Failure::argument("the namespace is NULL (hint: call hl_kv_open first)"))?;
        handle.owner.check()?;
        Ok(handle)
    }
}

impl QueueHandle {
    /// The queue behind a handle of this process.
    ///
    /// # Safety
    /// `pointer` is null or came from [`hl_kv_queue_open`] and was not closed.
    unsafe fn of<'a>(pointer: *mut Self) -> Result<&'a Self, Failure> {
        // SAFETY: the caller promises a queue, which came from a box.
        let handle = unsafe { pointer.as_ref() };
        let handle = handle
            .ok_or_else(|| Failure::argument("the queue is NULL (hint: call hl_kv_queue_open first)"))?;
        handle.owner.check()?;
        Ok(handle)
    }
}

/// Opens the KV blocks of engines that agree on everything in the fingerprint.
///
/// # Safety
/// `pool` came from `hl_open`; `fingerprint_text` is null or a string; `kv` is null or takes a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_open(
    pool: *mut PoolHandle,
    fingerprint_text: *const c_char,
    kv: *mut *mut KvHandle,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises all.
        let (handle, place) = unsafe { (PoolHandle::of(pool)?, place("the namespace", kv)?) };
        // SAFETY: as above.
        let name = unsafe { fingerprint(fingerprint_text) }?;
        let notice = Notice::begin(NOTICE, || {
            // Nothing else is there to say it with, and without it the wait is the same.
            let _ = writeln!(
                std::io::stderr().lock(),
                "hinterland: waiting for the node: it makes its memory for KV blocks at their first use, up to some seconds for each GiB"
            );
        });
        let cache = handle.pool().kv(name)?;
        drop(notice);
        place.fill(Box::into_raw(Box::new(KvHandle { cache, owner: Owner(std::process::id()) })));
        Ok(())
    })
}

/// Gives a namespace back. Null is nothing to close.
///
/// # Safety
/// `kv` is null or came from [`hl_kv_open`] and was not closed; no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_close(kv: *mut KvHandle) -> c_int {
    guarded(|| {
        if !kv.is_null() {
            // SAFETY: the caller promises a namespace, which came from a box, and that this is its last use.
            let handle = unsafe { Box::from_raw(kv) };
            if handle.owner.check().is_err() {
                // Its session is the parent's.
                std::mem::forget(handle);
            }
        }
        Ok(())
    })
}

/// Writes blocks; for each, whether it is there then.
///
/// # Safety
/// `kv` came from [`hl_kv_open`]; the records and what they name may be read; `stored` is null or takes `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_put(
    kv: *mut KvHandle,
    blocks: *const BlockRecord,
    count: usize,
    stored: *mut u8,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, records) = unsafe { (KvHandle::of(kv)?, values("the blocks", blocks, count)?) };
        // SAFETY: the caller promises what the records name.
        let lists: Vec<Vec<Run>> =
            records.iter().map(|block| unsafe { runs(block) }).collect::<Result<_, _>>()?;
        // SAFETY: as above, and that the fragments may be read.
        let batch = records
            .iter()
            .zip(&lists)
            .map(|(block, list)| unsafe { Ok((key(block)?, Gather::of_addresses(list)?)) });
        let outcomes = handle.cache.put_runs(&batch.collect::<Result<Vec<_>, Failure>>()?)?;
        // SAFETY: the caller promises room for all.
        unsafe { answer(stored, outcomes.iter().map(|outcome| *outcome != Stored::NoRoom)) };
        Ok(())
    })
}

/// Copies blocks into memory of their length; for each, whether it was there.
///
/// # Safety
/// `kv` came from [`hl_kv_open`]; the records may be read, and their fragments written by nobody else; `found` is null or takes
/// `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_get(
    kv: *mut KvHandle,
    blocks: *const BlockRecord,
    count: usize,
    found: *mut u8,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, records) = unsafe { (KvHandle::of(kv)?, values("the blocks", blocks, count)?) };
        for (index, block) in records.iter().enumerate() {
            // SAFETY: the caller promises what the record names.
            let (key, list) = unsafe { (key(block)?, runs(block)?) };
            // SAFETY: the caller promises fragments that may be written.
            let mut into = unsafe { Scatter::of_addresses(&list) }?;
            let bytes = handle.cache.get_runs(key, 0, &mut into)?;
            if bytes.is_some_and(|bytes| u64::from(bytes) != into.bytes()) {
                let text = format!(
                    "block {index} has {} bytes and its runs {} (hint: engines of another layout need another fingerprint)",
                    bytes.unwrap_or_default(),
                    into.bytes()
                );
                return Err(Failure::argument(text));
            }
            if !found.is_null() {
                // SAFETY: the caller promises room for all.
                unsafe { found.add(index).write(u8::from(bytes.is_some())) };
            }
        }
        Ok(())
    })
}

/// For each block, whether it is there.
///
/// # Safety
/// `kv` came from [`hl_kv_open`]; the records and their keys may be read; `found` is null or takes `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_exists(
    kv: *mut KvHandle,
    blocks: *const BlockRecord,
    count: usize,
    found: *mut u8,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, keys) = unsafe { (KvHandle::of(kv)?, keys(blocks, count)?) };
        let answers = handle.cache.exists(&keys)?;
        // SAFETY: the caller promises room for all.
        unsafe { answer(found, answers.into_iter()) };
        Ok(())
    })
}

/// How many blocks are there, from the first on.
///
/// # Safety
/// `kv` came from [`hl_kv_open`]; the records and their keys may be read; `found` is null or takes a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_match_prefix(
    kv: *mut KvHandle,
    blocks: *const BlockRecord,
    count: usize,
    found: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises all.
        let (handle, keys) = unsafe { (KvHandle::of(kv)?, keys(blocks, count)?) };
        // SAFETY: as above.
        let place = unsafe { place("the number", found) }?;
        place.fill(handle.cache.match_prefix(&keys)?);
        Ok(())
    })
}

/// Removes blocks.
///
/// # Safety
/// `kv` came from [`hl_kv_open`]; the records and their keys may be read; `removed` is null or takes a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_remove(
    kv: *mut KvHandle,
    blocks: *const BlockRecord,
    count: usize,
    removed: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, keys) = unsafe { (KvHandle::of(kv)?, keys(blocks, count)?) };
        let number = handle.cache.remove(&keys)?;
        if !removed.is_null() {
            // SAFETY: the caller promises room for a number.
            unsafe { removed.write(number) };
        }
        Ok(())
    })
}

/// Opens a queue over a namespace; it has sessions of its own and may outlive the handle of the namespace.
///
/// # Safety
/// `kv` came from [`hl_kv_open`]; `queue` is null or takes a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_queue_open(
    kv: *mut KvHandle,
    workers: u32,
    depth: u32,
    queue: *mut *mut QueueHandle,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, place) = unsafe { (KvHandle::of(kv)?, place("the queue", queue)?) };
        let usual = QueueOptions::default();
        let or = |given: u32, usual: usize| if given == 0 { usual } else { given as usize };
        let options = QueueOptions {
            workers: or(workers, usual.workers),
            depth: or(depth, usual.depth),
            when_full: WhenFull::Refuse,
        };
        let queue = KvQueue::open(&handle.cache, options)?;
        let opened = QueueHandle { queue, left: Mutex::default(), owner: Owner(std::process::id()) };
        place.fill(Box::into_raw(Box::new(opened)));
        Ok(())
    })
}

/// The descriptor that is readable while answers wait.
///
/// # Safety
/// `queue` came from [`hl_kv_queue_open`]; `descriptor` is null or takes a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_queue_fd(queue: *mut QueueHandle, descriptor: *mut c_int) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, place) = unsafe { (QueueHandle::of(queue)?, place("the descriptor", descriptor)?) };
        place.fill(handle.queue.event().as_raw_fd());
        Ok(())
    })
}

/// What a number of the header does by keys alone.
const fn key_operation(number: c_int) -> Option<KeyOperation> {
    Some(match number {
        HL_KV_EXISTS => KeyOperation::Exists,
        HL_KV_REMOVE => KeyOperation::Remove,
        HL_KV_MATCH_PREFIX => KeyOperation::MatchPrefix,
        HL_KV_MATCH_PREFIX_EVERYWHERE => KeyOperation::MatchPrefixEverywhere,
        HL_KV_FETCH => KeyOperation::Fetch,
        HL_KV_PIN => KeyOperation::Pin,
        HL_KV_UNPIN => KeyOperation::Unpin,
        HL_KV_CLEAR => KeyOperation::Clear,
        _ => return None,
    })
}

/// Hands a batch to a queue.
///
/// # Safety
/// `queue` came from [`hl_kv_queue_open`]; the records may be read now, and the fragments and `answers` are the queue's until
/// the batch is drained or the queue closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_submit(
    queue: *mut QueueHandle,
    operation: c_int,
    blocks: *const BlockRecord,
    count: usize,
    answers: *mut u8,
    batch: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises all.
        let (handle, records) = unsafe { (QueueHandle::of(queue)?, values("the blocks", blocks, count)?) };
        // SAFETY: as above.
        let place = unsafe { place("the batch", batch) }?;
        let moves_bytes = matches!(operation, HL_KV_GET | HL_KV_PUT);
        let mut taken = Batch::with_capacity(count, if moves_bytes { count } else { 0 });
        for block in records {
            // SAFETY: the caller promises what the record names.
            let (key, list) = unsafe { (key(block)?, if moves_bytes { runs(block)? } else { Vec::new() }) };
            taken.push(key, list)?;
        }
        let kept = Answers(answers.expose_provenance());
        let submitted: Result<u64, Box<Refusal<Answers>>> = match operation {
            // SAFETY: the caller promises fragments that nobody else uses until the batch is drained.
            HL_KV_GET => unsafe { handle.queue.submit_get(taken, kept) },
            // SAFETY: the caller promises fragments that may be read until the batch is drained.
            HL_KV_PUT => unsafe { handle.queue.submit_put(taken, kept) },
            other => {
                let unknown =
                    || Failure::argument(format!("operation {other} is unknown (hint: use HL_KV_*)"));
                handle.queue.submit_keys(key_operation(other).ok_or_else(unknown)?, taken, kept)
            }
        };
        place.fill(submitted.map_err(|refusal| refusal.error)?);
        Ok(())
    })
}

/// Takes answers that wait, at most `room`; those of the keys of each batch are written to where it wanted them.
///
/// # Safety
/// `queue` came from [`hl_kv_queue_open`]; `completions` takes `room` records; `count` takes a number; the places for answers
/// of the batches that are drained are still there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_drain(
    queue: *mut QueueHandle,
    completions: *mut CompletionRecord,
    room: usize,
    count: *mut usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, place) = unsafe { (QueueHandle::of(queue)?, place("the number", count)?) };
        if completions.is_null() && room > 0 {
            return Err(Failure::argument("the place for completions is NULL (hint: pass an array)"));
        }
        let mut left = handle.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.extend(handle.queue.drain());
        let taken = left.len().min(room);
        for (index, completion) in left.drain(..taken).enumerate() {
            let (status, outcomes) = match completion.outcome {
                Ok(outcomes) => (0, outcomes),
                Err(error) => (-Failure::from(error).number(), Vec::new()),
            };
            // SAFETY: the caller promises that the batch's place for answers is still there.
            unsafe {
                answer(std::ptr::with_exposed_provenance_mut(completion.kept.0), outcomes.into_iter());
            }
            let record = CompletionRecord { batch: completion.id, status, reserved: 0 };
            // SAFETY: the caller promises room for that many records.
            unsafe { completions.add(index).write(record) };
        }
        place.fill(taken);
        if !left.is_empty() {
            // The descriptor stays readable for what had no room.
            handle.queue.announce();
        }
        Ok(())
    })
}

/// Ends a queue: waits for what is being seen to, gives the rest up. Null is nothing to close.
///
/// # Safety
/// `queue` is null or came from [`hl_kv_queue_open`] and was not closed; no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_kv_queue_close(queue: *mut QueueHandle) -> c_int {
    guarded(|| {
        if !queue.is_null() {
            // SAFETY: the caller promises a queue, which came from a box, and that this is its last use.
            let handle = unsafe { Box::from_raw(queue) };
            if handle.owner.check().is_err() {
                // Its threads and sessions are the parent's.
                std::mem::forget(handle);
            }
        }
        Ok(())
    })
}
