//! Batches that worker threads see to, with an event descriptor that is readable while answers wait.

use super::read::streams;
use super::runs::{Gather, Run, Scatter};
use super::{EINVAL, KvCache, block_key};
use crate::waiting::{LOOK_EVERY, look};
use crate::{PoolError, Stored};
use hinterland_kv::BlockKey;
use hinterland_os::poll::EventCounter;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

const EIO: i32 = 5;
const EAGAIN: i32 = 11;
const ECANCELED: i32 = 125;
/// Most answers that wait to be drained before batches are refused: a program with more has stopped to listen.
const ANSWERS_MAX: usize = 1 << 16;

/// What a full queue does with one more batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenFull {
    /// It is refused with `EAGAIN`.
    #[default]
    Refuse,
    /// The caller waits until a batch is done.
    Wait,
}

/// How a queue works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueOptions {
    /// Threads, 1 to 64, each with a session of its own.
    pub workers: usize,
    /// Batches that wait or are seen to, 1 to 65536. Beside them 65536 answers may wait to be drained before a batch is
    /// refused.
    pub depth: usize,
    /// What happens to one more.
    pub when_full: WhenFull,
}

impl QueueOptions {
    /// Most threads of a queue: more than this copy no faster.
    pub const WORKERS_MAX: usize = 64;
    /// Most batches of a queue at once.
    pub const DEPTH_MAX: usize = 1 << 16;
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self { workers: 2, depth: 1024, when_full: WhenFull::Refuse }
    }
}

/// Keys, and for puts and gets the runs of fragments of each: three lists, however many blocks and fragments there are.
#[derive(Clone, Default, Debug)]
pub struct Batch {
    keys: Vec<BlockKey>,
    runs: Vec<Run>,
    /// For each key, where its runs end.
    ends: Vec<usize>,
}

impl Batch {
    /// A batch with room for as many keys and runs.
    pub fn with_capacity(keys: usize, runs: usize) -> Self {
        let (keys, runs, ends) =
            (Vec::with_capacity(keys), Vec::with_capacity(runs), Vec::with_capacity(keys));
        Self { keys, runs, ends }
    }

    /// Adds a block; its runs have addresses as starts, and are none where keys are enough.
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a key of no or more than 64 bytes.
    pub fn push(&mut self, key: &[u8], runs: impl IntoIterator<Item = Run>) -> Result<(), PoolError> {
        self.keys.push(block_key(key)?);
        self.runs.extend(runs);
        self.ends.push(self.runs.len());
        Ok(())
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = (&BlockKey, &[Run])> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let runs = starts.zip(&self.ends).map(|(start, &end)| &self.runs[start..end]);
        self.keys.iter().zip(runs)
    }
}

/// What became of a batch.
#[derive(Debug)]
pub struct Completion<K> {
    /// What submitting it gave.
    pub id: u64,
    /// For each key: it is stored, its bytes are in place, or what [`KeyOperation`] says. Empty after an error.
    pub outcome: Result<Vec<bool>, PoolError>,
    /// What was to be kept alive until the batch was done.
    pub kept: K,
}

/// A batch that was not taken.
#[derive(Debug)]
pub struct Refusal<K> {
    /// Why not.
    pub error: PoolError,
    /// What was to be kept.
    pub kept: K,
}

/// What can be done by keys alone, and what its answers mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyOperation {
    /// Looking: true for those that are there.
    Exists,
    /// Looking from the first key on: true for those before the first that is not there.
    MatchPrefix,
    /// The same, counting blocks of other racks too ([`KvCache::match_prefix_everywhere`]).
    MatchPrefixEverywhere,
    /// Bringing blocks of other racks and of the disk into this host's memory: true for those that are there then.
    Fetch,
    /// Keeping blocks from being evicted, until they are unpinned as often or the queue is dropped: true for those that are.
    Pin,
    /// Taking back pins of this queue: true where there was one.
    Unpin,
    /// Removing blocks from the memory and the disk of this host: true for those that were in memory.
    Remove,
    /// Removing all blocks of the namespace from this host; the batch has no keys, and there are no answers.
    Clear,
}

#[derive(Clone, Copy)]
enum Operation {
    Get,
    Put,
    Keys(KeyOperation),
}

struct Job<K> {
    id: u64,
    operation: Operation,
    batch: Batch,
    kept: K,
}

struct State<K> {
    waiting: VecDeque<Job<K>>,
    done: Vec<Completion<K>>,
    running: usize,
    next: u64,
    closed: bool,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    /// There is a batch, or the queue is closed.
    work: Condvar,
    /// A batch is done, or the queue is closed.
    room: Condvar,
    event: EventCounter,
    options: QueueOptions,
    /// Pins belong to a session, and workers have one each: those of the queue are all of this one.
    pins: KvCache,
    /// The queue is closed: its sessions do not wait for a node that is stopped.
    is_leaving: Arc<AtomicBool>,
}

/// Batches of one namespace that worker threads see to. `K` is what must live until a batch is done, such as its buffers;
/// it comes back with the answer, so that the thread that drains drops it.
///
/// Batches may finish in any order. Dropping the queue waits for those that are being seen to and gives up the others.
pub struct KvQueue<K: Send + 'static> {
    shared: Arc<Shared<K>>,
    workers: Vec<JoinHandle<()>>,
}

impl<K: Send + 'static> KvQueue<K> {
    /// A queue over the namespace of `cache`, with sessions of its own.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `EINVAL` for options out of range; [`PoolError`] if the node does not answer, or the system has no thread or descriptor left.
    pub fn open(cache: &KvCache, options: QueueOptions) -> Result<Self, PoolError> {
        for (what, number, most) in [
            ("workers", options.workers, QueueOptions::WORKERS_MAX),
            ("batches at once", options.depth, QueueOptions::DEPTH_MAX),
        ] {
            if !(1..=most).contains(&number) {
                let text = format!("a queue of {number} {what} (hint: 1 to {most} are possible)");
                return Err(refused(EINVAL, text));
            }
        }
        let state = State { waiting: VecDeque::new(), done: Vec::new(), running: 0, next: 1, closed: false };
        let is_leaving = Arc::new(AtomicBool::new(false));
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            event: EventCounter::new()?,
            options,
            // Who asks a queue waits for answers in its own way.
            pins: cache.again_until(&is_leaving)?,
            is_leaving,
        });
        // Dropped at the first failure, it ends the workers that there are.
        let mut queue = Self { shared, workers: Vec::with_capacity(options.workers) };
        for _ in 0..options.workers {
            let (cache, shared) = (cache.again_until(&queue.shared.is_leaving)?, Arc::clone(&queue.shared));
            let worker = std::thread::Builder::new()
                .name("hinterland-kv".to_owned())
                .spawn(move || shared.serve(&cache))
                .map_err(|source| PoolError::Stream { what: "starting a thread".to_owned(), source })?;
            queue.workers.push(worker);
        }
        Ok(queue)
    }

    /// Readable while answers wait. It is not read from: [`drain`](Self::drain) does that.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }

    /// Has blocks written. Answers are true for those that are there then.
    ///
    /// # Errors
    /// [`Refusal`] with `EAGAIN` from a full queue, with `ECANCELED` from a closed one.
    ///
    /// # Safety
    /// The runs' fragments may be read until the answer is drained or the queue is dropped: usually because `kept` owns
    /// them.
    pub unsafe fn submit_put(&self, batch: Batch, kept: K) -> Result<u64, Box<Refusal<K>>> {
        self.submit(Operation::Put, batch, kept)
    }

    /// Has blocks copied into place. Answers are true for those that were there; a block of another length than its runs
    /// fails the batch.
    ///
    /// # Errors
    /// As [`submit_put`](Self::submit_put).
    ///
    /// # Safety
    /// The runs' fragments may be written, and nobody else uses them, until the answer is drained or the queue is dropped.
    pub unsafe fn submit_get(&self, batch: Batch, kept: K) -> Result<u64, Box<Refusal<K>>> {
        self.submit(Operation::Get, batch, kept)
    }

    /// Has something done by keys alone.
    ///
    /// # Errors
    /// As [`submit_put`](Self::submit_put).
    pub fn submit_keys(
        &self,
        operation: KeyOperation,
        batch: Batch,
        kept: K,
    ) -> Result<u64, Box<Refusal<K>>> {
        self.submit(Operation::Keys(operation), batch, kept)
    }

    /// The answers that wait, in the order in which the batches were done.
    pub fn drain(&self) -> Vec<Completion<K>> {
        let mut state = self.shared.lock();
        // Under the lock, so that an answer that comes now raises it again.
        self.shared.event.take();
        std::mem::take(&mut state.done)
    }

    /// Makes the descriptor readable, for a program that has drained more than it can use at once. The next drain takes that
    /// back.
    pub fn announce(&self) {
        self.shared.event.raise();
    }

    /// Ends the queue: waits for batches that are being seen to, and gives up those that wait with `ECANCELED`. All
    /// answers stay to be drained; whoever submits after this is refused. A node that is stopped is not waited for, nor is one that
    /// has not answered for half a minute: batches that it has to see to fail with [`PoolError::Silent`].
    pub fn close(&self) {
        // Release: pairs with the Acquire of the sessions' patience.
        self.shared.is_leaving.store(true, Ordering::Release);
        let mut state = self.shared.lock();
        state.closed = true;
        for job in std::mem::take(&mut state.waiting) {
            let text = "the queue was closed before this batch was begun (hint: submit it again to another)";
            let outcome = Err(refused(ECANCELED, text));
            state.done.push(Completion { id: job.id, outcome, kept: job.kept });
            self.shared.event.raise();
        }
        self.shared.work.notify_all();
        self.shared.room.notify_all();
        while state.running > 0 {
            state = self.shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn submit(&self, operation: Operation, batch: Batch, kept: K) -> Result<u64, Box<Refusal<K>>> {
        let depth = self.shared.options.depth;
        let mut state = self.shared.lock();
        loop {
            if state.closed {
                let error = refused(ECANCELED, "the queue is closed (hint: open another)");
                return Err(Box::new(Refusal { error, kept }));
            }
            if state.done.len() >= ANSWERS_MAX {
                let text = format!("{ANSWERS_MAX} answers wait in the queue (hint: drain them)");
                return Err(Box::new(Refusal { error: refused(EAGAIN, text), kept }));
            }
            if state.waiting.len() + state.running < depth {
                break;
            }
            if self.shared.options.when_full == WhenFull::Refuse {
                let text = format!(
                    "{depth} batches are in the queue (hint: submit it again when answers have come)"
                );
                return Err(Box::new(Refusal { error: refused(EAGAIN, text), kept }));
            }
            let (woken, waited) =
                self.shared.room.wait_timeout(state, LOOK_EVERY).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            if waited.timed_out() {
                // Whoever drains may hold what it takes to look.
                drop(state);
                if let Err(error) = look("waiting for room in a queue") {
                    return Err(Box::new(Refusal { error, kept }));
                }
                state = self.shared.lock();
            }
        }
        let id = state.next;
        state.next += 1;
        state.waiting.push_back(Job { id, operation, batch, kept });
        drop(state);
        self.shared.work.notify_one();
        Ok(id)
    }
}

impl<K: Send + 'static> Drop for KvQueue<K> {
    fn drop(&mut self) {
        self.close();
        for worker in self.workers.drain(..) {
            // It catches its panics.
            let _ = worker.join();
        }
    }
}

impl<K> Shared<K> {
    /// The life of a worker.
    fn serve(&self, cache: &KvCache) {
        let mut state = self.lock();
        loop {
            if let Some(Job { id, operation, batch, kept }) = state.waiting.pop_front() {
                state.running += 1;
                drop(state);
                let outcome = catch_unwind(AssertUnwindSafe(|| self.perform(cache, operation, &batch)));
                let outcome = outcome.unwrap_or_else(|_| {
                    Err(refused(EIO, "a worker of the queue failed (hint: report the words on stderr)"))
                });
                state = self.lock();
                state.running -= 1;
                state.done.push(Completion { id, outcome, kept });
                self.event.raise();
                self.room.notify_all();
            } else if state.closed {
                return;
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn perform(&self, cache: &KvCache, operation: Operation, batch: &Batch) -> Result<Vec<bool>, PoolError> {
        match operation {
            Operation::Get => get(cache, batch),
            Operation::Put => put(cache, batch),
            Operation::Keys(operation) => by_keys(cache, &self.pins, operation, batch),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn by_keys(
    cache: &KvCache,
    pins: &KvCache,
    operation: KeyOperation,
    batch: &Batch,
) -> Result<Vec<bool>, PoolError> {
    let owned: Vec<Vec<u8>> = batch.keys.iter().map(BlockKey::to_vec).collect();
    let keys: Vec<&[u8]> = owned.iter().map(|key| &key[..]).collect();
    let first = |count: usize| (0..keys.len()).map(|place| place < count).collect();
    match operation {
        KeyOperation::Exists => cache.exists(&keys),
        KeyOperation::MatchPrefix => cache.match_prefix(&keys).map(first),
        KeyOperation::MatchPrefixEverywhere => cache.match_prefix_everywhere(&keys).map(first),
        KeyOperation::Fetch => cache.fetch(&keys),
        KeyOperation::Pin => pins.pin(&keys),
        KeyOperation::Unpin => pins.unpin(&keys),
        KeyOperation::Remove => remove(cache, &keys),
        KeyOperation::Clear if keys.is_empty() => cache.clear().map(|_| Vec::new()),
        KeyOperation::Clear => {
            Err(refused(EINVAL, "all blocks are cleared, not some (hint: submit a batch without keys)"))
        }
    }
}

fn get(cache: &KvCache, batch: &Batch) -> Result<Vec<bool>, PoolError> {
    let mut found = Vec::with_capacity(batch.keys.len());
    let wanted =
        batch.blocks().flat_map(|(_, runs)| runs).map(|run| run.bytes.saturating_mul(run.count) as u64);
    let streams = streams(wanted.fold(0, u64::saturating_add));
    for (key, runs) in batch.blocks() {
        // SAFETY: `submit_get` was promised fragments that are this batch's to write until its answer is drained.
        let mut into = unsafe { Scatter::of_addresses(runs) }?;
        match cache.copy(key, 0, streams, &mut into) {
            Some(bytes) if u64::from(bytes) != into.bytes() => {
                return Err(refused(
                    EINVAL,
                    format!(
                        "a block of {bytes} bytes does not fit a buffer of {} (hint: engines of another layout need another fingerprint)",
                        into.bytes()
                    ),
                ));
            }
            answer => found.push(answer.is_some()),
        }
    }
    Ok(found)
}

fn put(cache: &KvCache, batch: &Batch) -> Result<Vec<bool>, PoolError> {
    let keys: Vec<Vec<u8>> = batch.keys.iter().map(BlockKey::to_vec).collect();
    let blocks = keys.iter().zip(batch.blocks()).map(|(key, (_, runs))| {
        // SAFETY: `submit_put` was promised fragments that may be read until the batch's answer is drained.
        Ok((&key[..], unsafe { Gather::of_addresses(runs) }?))
    });
    let stored = cache.put_runs(&blocks.collect::<Result<Vec<_>, PoolError>>()?)?;
    Ok(stored.into_iter().map(|stored| stored != Stored::NoRoom).collect())
}

/// One message, also about those that are not in memory: the node's disk may have them.
fn remove(cache: &KvCache, keys: &[&[u8]]) -> Result<Vec<bool>, PoolError> {
    let found = cache.exists(keys)?;
    if !keys.is_empty() {
        cache.remove(keys)?;
    }
    Ok(found)
}

fn refused(code: i32, text: impl Into<String>) -> PoolError {
    PoolError::Refused { code, text: text.into() }
}
