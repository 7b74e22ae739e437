//! The asking side of a ring session, as an [`Endpoint`].

use super::{Area, CELL_BYTES, INLINE_BYTES, SLOTS, ring_failed};
use crate::endpoint::{Capabilities, Completion, Endpoint, Outcome, Queue};
use crate::error::FabricError;
use crate::part::{Destination, Part, Source, copy_parts};
use crate::slice::{Slice, lost};
use hinterland_os::copying::{load_words, store_words};
use hinterland_proto::{ErrorCode, RUNS_MAX, RemoteError};
use hinterland_ring::{Requester, Ticket, WakeBy};
use hinterland_types::{ByteRange, Handle, NodeId};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How long a call may take if nothing else is said.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How often a call without a time of its own looks whether the node is still there.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// A node of the same host.
pub struct ShmEndpoint {
    shared: Arc<Shared>,
}

struct Shared {
    peer: NodeId,
    memory: RwLock<HashMap<Handle, Slice>>,
    calls: Mutex<Calls>,
}

/// The ring and what is out on it.
struct Calls {
    area: Area,
    requester: Requester,
    /// Cells that belong to no request.
    cells: Vec<u16>,
    /// Cell, and who waits, for each request that is out.
    out: HashMap<Ticket, (u16, Waiter)>,
    /// Answers that nobody has taken yet, and who waits for each.
    answers: Vec<(Waiter, Result<Vec<u8>, FabricError>)>,
    body: Vec<u8>,
    /// The number of the next queue.
    queue_next: u64,
    /// Whether a call has found that the node is gone.
    is_over: bool,
}

/// Who waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiter {
    /// The plain call that has the lock.
    Plain,
    /// A queue, for the call that it posted under this tag. Queues choose tags without knowing of each other.
    Queue { number: u64, tag: u64 },
    /// Whoever asked has given up.
    Nobody,
}

impl Waiter {
    fn is_of(self, queue: u64) -> bool {
        matches!(self, Self::Queue { number, .. } if number == queue)
    }
}

impl ShmEndpoint {
    /// Takes the ring that a node has made for this session.
    ///
    /// # Errors
    /// [`FabricError::System`] if it is no ring.
    pub fn open(peer: NodeId, descriptor: OwnedFd) -> Result<Self, FabricError> {
        let area = Area::open(descriptor)?;
        let requester = Requester::new(area.session(false)?, WakeBy::Futex);
        let calls = Calls {
            area,
            requester,
            // A ring has far fewer slots than 2^16: the cast loses nothing.
            cells: (0..SLOTS as u16).rev().collect(),
            out: HashMap::with_capacity(SLOTS as usize),
            answers: Vec::new(),
            body: Vec::new(),
            queue_next: 0,
            is_over: false,
        };
        let shared = Shared { peer, memory: RwLock::default(), calls: Mutex::new(calls) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Asks, and waits for the answer as long as `is_there` says that the node is. Calls of several threads are made one after
    /// the other.
    ///
    /// # Errors
    /// [`FabricError::Closed`] once the node is gone, for all calls from there on; else as for any call.
    pub fn call_while(&self, body: &[u8], is_there: &dyn Fn() -> bool) -> Result<Vec<u8>, FabricError> {
        let shared = &self.shared;
        let gone = || FabricError::Closed { peer: shared.peer, during: "a call" };
        let mut calls = shared.calls();
        if calls.is_over {
            return Err(gone());
        }
        calls.submit(shared, Waiter::Plain, body)?;
        loop {
            let came = calls.wait_plain(shared, LOOK_PAUSE)?;
            if let Some(answer) = came {
                return answer;
            }
            if !is_there() {
                calls.is_over = true;
                return Err(gone());
            }
        }
    }

    /// Lets reads, writes and atomics of a handle reach memory that is mapped here.
    pub fn attach(&self, handle: Handle, memory: Slice) {
        self.shared.memory.write().unwrap_or_else(PoisonError::into_inner).insert(handle, memory);
    }
}

impl Endpoint for ShmEndpoint {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            one_sided: true,
            atomic_bytes: 8,
            inline_bytes: INLINE_BYTES as u32,
            message_bytes_max: CELL_BYTES as u32,
            gather_runs_max: RUNS_MAX as u32,
            gpu_memory: false,
        }
    }

    fn read_to(&self, handle: Handle, runs: &[ByteRange], into: Destination<'_>) -> Result<(), FabricError> {
        let slices = self.shared.pieces(handle, runs, into.len())?;
        let from: Vec<Part> = slices.iter().map(Part::of_slice).collect();
        // SAFETY: the slices keep their memory alive; `into` is borrowed exclusively and so lies apart.
        unsafe { copy_parts(&from, into.parts(), u64::MAX, load_words) };
        self.shared.still_there(&slices)
    }

    fn write_from(&self, handle: Handle, runs: &[ByteRange], from: Source<'_>) -> Result<(), FabricError> {
        let slices = self.shared.pieces(handle, runs, from.len())?;
        if slices.iter().any(|slice| !slice.is_writable()) {
            return Err(self.shared.remote(ErrorCode::RIGHTS, "the memory is mapped read-only"));
        }
        let into: Vec<Part> = slices.iter().map(Part::of_slice).collect();
        // SAFETY: the slices keep their memory alive and are writable; `from` is private memory and so lies apart.
        unsafe { copy_parts(from.parts(), &into, u64::MAX, store_words) };
        self.shared.still_there(&slices)
    }

    fn compare_and_swap(
        &self,
        handle: Handle,
        offset: u64,
        expected: u64,
        desired: u64,
    ) -> Result<u64, FabricError> {
        self.shared.word(handle, offset, |word| word.compare_swap(expected, desired))
    }

    fn fetch_and_add(&self, handle: Handle, offset: u64, addend: u64) -> Result<u64, FabricError> {
        self.shared.word(handle, offset, |word| word.fetch_add(addend))
    }

    fn call_within(&self, body: &[u8], within: Duration) -> Result<Vec<u8>, FabricError> {
        let deadline = Instant::now() + within;
        let mut calls = self.shared.calls();
        calls.submit(&self.shared, Waiter::Plain, body)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if let Some(answer) = calls.wait_plain(&self.shared, left)? {
                return answer;
            }
            if Instant::now() >= deadline {
                calls.give_up(|waiter| waiter == Waiter::Plain);
                return Err(FabricError::Timeout { peer: self.shared.peer, during: "a call", after: within });
            }
        }
    }

    fn call(&self, body: &[u8]) -> Result<Vec<u8>, FabricError> {
        self.call_within(body, TIMEOUT)
    }

    fn queue(&self, _streams: usize) -> Result<Box<dyn Queue>, FabricError> {
        let mut calls = self.shared.calls();
        calls.queue_next += 1;
        let number = calls.queue_next;
        drop(calls);
        Ok(Box::new(ShmQueue { shared: Arc::clone(&self.shared), number, done: Vec::new(), out: 0 }))
    }
}

impl Shared {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remote(&self, code: ErrorCode, text: impl Into<String>) -> FabricError {
        FabricError::Remote { peer: self.peer, error: RemoteError::new(code, text) }
    }

    fn wrong(&self, during: &'static str) -> FabricError {
        FabricError::WrongAnswer { peer: self.peer, during, what: "it makes no sense" }
    }

    /// The memory of all runs, checked against its length before a byte moves.
    fn pieces(
        &self,
        handle: Handle,
        runs: &[ByteRange],
        buffer_bytes: u64,
    ) -> Result<Vec<Slice>, FabricError> {
        let runs_bytes = runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.bytes()));
        if runs_bytes != buffer_bytes {
            return Err(FabricError::Lengths { runs_bytes, buffer_bytes });
        }
        let memory = self.memory.read().unwrap_or_else(PoisonError::into_inner);
        let whole = memory.get(&handle).ok_or_else(|| {
            self.remote(ErrorCode::UNKNOWN_HANDLE, format!("{handle} is not mapped here (hint: attach it)"))
        })?;
        self.still_there(std::slice::from_ref(whole))?;
        runs.iter()
            .map(|run| {
                whole.sub(run.offset() as usize, run.bytes() as usize).ok_or_else(|| {
                    let text = format!("{} bytes at {} lie outside {handle}", run.bytes(), run.offset());
                    self.remote(ErrorCode::RANGE, text)
                })
            })
            .collect()
    }

    fn word(
        &self,
        handle: Handle,
        offset: u64,
        operation: impl FnOnce(&Slice) -> Option<u64>,
    ) -> Result<u64, FabricError> {
        let range =
            ByteRange::new(offset, 8).map_err(|error| self.remote(ErrorCode::RANGE, error.to_string()))?;
        let slices = self.pieces(handle, &[range], 8)?;
        let before = slices.first().and_then(operation);
        self.still_there(&slices)?;
        before.ok_or_else(|| {
            self.remote(ErrorCode::MALFORMED, "the word is read-only or not aligned to 8 bytes")
        })
    }

    /// Asked after a copy: what was read of memory that is lost are zeros, and what was written there is gone.
    fn still_there(&self, slices: &[Slice]) -> Result<(), FabricError> {
        match slices.iter().any(Slice::is_lost) {
            true => Err(FabricError::Remote { peer: self.peer, error: lost() }),
            false => Ok(()),
        }
    }
}

impl Calls {
    fn submit(&mut self, shared: &Shared, waiter: Waiter, body: &[u8]) -> Result<(), FabricError> {
        let limit = CELL_BYTES as u64;
        let too_long = FabricError::Limit { what: "call", value: body.len() as u64, limit };
        let slots = u64::from(SLOTS);
        let full = FabricError::Limit { what: "calls under way", value: slots + 1, limit: slots };
        if self.cells.is_empty() {
            self.take_answers(shared)?;
        }
        let cell = self.cells.pop().ok_or(full)?;
        let Some(request) = self.area.put(cell, body, false) else {
            self.cells.push(cell);
            return Err(too_long);
        };
        let ticket = self.requester.submit(&request).map_err(|error| ring_failed(&error))?;
        self.out.insert(ticket, (cell, waiter));
        Ok(())
    }

    /// Waits for the answer to the plain call that is out; `None` if it has not come in this time.
    fn wait_plain(
        &mut self,
        shared: &Shared,
        timeout: Duration,
    ) -> Result<Option<Result<Vec<u8>, FabricError>>, FabricError> {
        let until = Instant::now() + timeout;
        loop {
            // While the ring is locked, only this call waits so.
            if let Some(place) = self.answers.iter().position(|(waiter, _)| *waiter == Waiter::Plain) {
                return Ok(Some(self.answers.swap_remove(place).1));
            }
            let left = until.saturating_duration_since(Instant::now());
            if !self.requester.wait(left).map_err(|error| ring_failed(&error))? {
                return Ok(None);
            }
            self.take_answers(shared)?;
        }
    }

    fn take_answers(&mut self, shared: &Shared) -> Result<(), FabricError> {
        while let Some(response) = self.requester.poll().map_err(|error| ring_failed(&error))? {
            let Some((cell, waiter)) = self.out.remove(&response.ticket) else { continue };
            let taken = self.area.take(&response.body, &mut self.body);
            self.cells.push(cell);
            if waiter == Waiter::Nobody {
                continue;
            }
            let result = match taken {
                Some((_, false)) => Ok(std::mem::take(&mut self.body)),
                Some((_, true)) => {
                    Err(FabricError::Remote { peer: shared.peer, error: RemoteError::from_body(&self.body) })
                }
                None => Err(shared.wrong("a call")),
            };
            self.answers.push((waiter, result));
        }
        Ok(())
    }

    /// Appends the answers for a queue that are there; returns how many.
    fn hand_out(&mut self, queue: u64, completions: &mut Vec<Completion>) -> usize {
        let before = completions.len();
        let own = self.answers.extract_if(.., |(waiter, _)| waiter.is_of(queue));
        completions.extend(own.filter_map(|(waiter, result)| match waiter {
            Waiter::Queue { tag, .. } => Some(Completion { tag, result: result.map(Outcome::Reply) }),
            Waiter::Plain | Waiter::Nobody => None,
        }));
        completions.len() - before
    }

    /// Nobody waits for these answers any more, come or not; the cells of those that have not come back with them.
    fn give_up(&mut self, is_given_up: impl Fn(Waiter) -> bool) {
        self.answers.retain(|(waiter, _)| !is_given_up(*waiter));
        self.out.values_mut().filter(|out| is_given_up(out.1)).for_each(|out| out.1 = Waiter::Nobody);
    }
}

/// Reads and writes are done when they are posted; calls are out on the ring together.
struct ShmQueue {
    shared: Arc<Shared>,
    number: u64,
    done: Vec<Completion>,
    out: usize,
}

impl ShmQueue {
    fn endpoint(&self) -> ShmEndpoint {
        ShmEndpoint { shared: Arc::clone(&self.shared) }
    }

    fn finish(&mut self, tag: u64, result: Result<(), FabricError>) {
        self.done.push(Completion { tag, result: result.map(|()| Outcome::Done) });
    }
}

impl Queue for ShmQueue {
    fn post_read(
        &mut self,
        tag: u64,
        handle: Handle,
        runs: &[ByteRange],
        into: &[Slice],
    ) -> Result<(), FabricError> {
        if into.iter().any(|slice| !slice.is_writable()) {
            return Err(FabricError::Unsupported { what: "read into memory that is not writable" });
        }
        let parts: Vec<Part> = into.iter().map(Part::of_slice).collect();
        // SAFETY: the slices are writable and keep their memory alive through the call.
        let result = self.endpoint().read_to(handle, runs, unsafe { Destination::from_parts(&parts) });
        self.finish(tag, result);
        Ok(())
    }

    fn post_write(
        &mut self,
        tag: u64,
        handle: Handle,
        runs: &[ByteRange],
        from: &[Slice],
    ) -> Result<(), FabricError> {
        let parts: Vec<Part> = from.iter().map(Part::of_slice).collect();
        // SAFETY: the slices keep their memory alive through the call.
        let result = self.endpoint().write_from(handle, runs, unsafe { Source::from_parts(&parts) });
        self.finish(tag, result);
        Ok(())
    }

    fn post_call(&mut self, tag: u64, body: &[u8]) -> Result<(), FabricError> {
        let waiter = Waiter::Queue { number: self.number, tag };
        self.shared.calls().submit(&self.shared, waiter, body)?;
        self.out += 1;
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>, wait: Duration) -> Result<usize, FabricError> {
        let before = completions.len();
        completions.append(&mut self.done);
        if self.out > 0 {
            let begun = Instant::now();
            let mut calls = self.shared.calls();
            calls.requester.flush();
            calls.take_answers(&self.shared)?;
            self.out -= calls.hand_out(self.number, completions);
            while completions.len() == before {
                let left = wait.saturating_sub(begun.elapsed());
                // What comes may be for another queue.
                if left.is_zero() || !calls.requester.wait(left).map_err(|error| ring_failed(&error))? {
                    break;
                }
                calls.take_answers(&self.shared)?;
                self.out -= calls.hand_out(self.number, completions);
            }
        }
        Ok(completions.len() - before)
    }

    fn in_flight(&self) -> usize {
        self.out + self.done.len()
    }
}

impl Drop for ShmQueue {
    fn drop(&mut self) {
        if self.out > 0 {
            let number = self.number;
            self.shared.calls().give_up(|waiter| waiter.is_of(number));
        }
    }
}
