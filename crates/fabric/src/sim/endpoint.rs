//! An endpoint to a service in the same process, which fails as a real one can.

use super::random::SimRandom;
use crate::endpoint::{Capabilities, Completion, Endpoint, Found, Outcome, Queue};
use crate::error::FabricError;
use crate::part::{Destination, Part, Source, copy_parts};
use crate::service::Service;
use crate::slice::Slice;
use hinterland_os::copying::{load_words, store_words};
use hinterland_proto::{ErrorCode, Features, PeerHello, PoolId, RemoteError, Role};
use hinterland_types::limits::{CONTROL_BYTES_MAX, FRAME_BODY_BYTES_MAX};
use hinterland_types::{ByteRange, Handle, NodeId, Rights, SessionId};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What an operation takes in virtual time.
const OPERATION: Duration = Duration::from_micros(10);
/// How long an answer is waited for in virtual time, unless the caller says.
const PATIENCE: Duration = Duration::from_secs(1);
/// Largest number of runs in one request; there is nothing to split.
const RUNS_MAX: u32 = 1024;

/// What goes wrong with operations. Chances are per million.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EndpointFaults {
    /// Operations that do nothing and time out.
    pub lost_request_per_million: u32,
    /// Operations that are done, but whose answer is lost, so that they time out.
    pub lost_answer_per_million: u32,
    /// Writes that stop somewhere in the middle and time out.
    pub torn_write_per_million: u32,
}

/// A peer without a network. The same seed and the same operations give the same failures.
pub struct SimEndpoint {
    shared: Arc<Shared>,
}

struct Shared {
    service: Arc<dyn Service>,
    session: SessionId,
    peer: NodeId,
    state: Mutex<State>,
}

struct State {
    random: SimRandom,
    faults: EndpointFaults,
    down: bool,
    elapsed: Duration,
}

/// What chance has in store for one operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Good,
    RequestLost,
    AnswerLost,
    /// Stops after this fraction of 2^64 of its bytes.
    Torn(u64),
}

impl SimEndpoint {
    /// Opens a session with `service`, as the client of a node called `peer`.
    ///
    /// # Errors
    /// [`FabricError::SessionLost`] with the text of the refusal, if the service refuses.
    pub fn open(
        peer: NodeId,
        service: Arc<dyn Service>,
        seed: u64,
        faults: EndpointFaults,
    ) -> Result<Self, FabricError> {
        let hello = PeerHello {
            role: Role::Client,
            node: NodeId(0),
            pool: PoolId::ANY,
            keyed: false,
            features: Features(0),
            join: None,
        };
        let session = service
            .opened(&hello)
            .map_err(|refusal| FabricError::SessionLost { peer, reason: refusal.text })?;
        let state =
            Mutex::new(State { random: SimRandom::new(seed), faults, down: false, elapsed: Duration::ZERO });
        Ok(Self { shared: Arc::new(Shared { service, session, peer, state }) })
    }

    /// Changes what goes wrong from now on.
    pub fn set_faults(&self, faults: EndpointFaults) {
        self.shared.state().faults = faults;
    }

    /// Virtual time since it was opened: what the operations took, and the waits for what was lost.
    pub fn elapsed(&self) -> Duration {
        self.shared.state().elapsed
    }

    /// Takes the peer down or up: while it is down every operation fails as closed.
    pub fn set_down(&self, down: bool) {
        self.shared.state().down = down;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.service.closed(self.session);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fate(&self, during: &'static str, write: bool) -> Result<Fate, FabricError> {
        let mut state = self.state();
        if state.down {
            return Err(FabricError::Closed { peer: self.peer, during });
        }
        state.elapsed += OPERATION;
        let faults = state.faults;
        let lost_request = state.random.chance(faults.lost_request_per_million);
        let lost_answer = state.random.chance(faults.lost_answer_per_million);
        let torn = state.random.chance(faults.torn_write_per_million);
        let place = state.random.next_u64();
        Ok(match (lost_request, lost_answer, torn && write) {
            (true, _, _) => Fate::RequestLost,
            (_, _, true) => Fate::Torn(place),
            (_, true, _) => Fate::AnswerLost,
            _ => Fate::Good,
        })
    }

    fn timeout(&self, during: &'static str) -> FabricError {
        self.timeout_after(during, PATIENCE)
    }

    fn timeout_after(&self, during: &'static str, after: Duration) -> FabricError {
        // The operation was a part of it.
        self.state().elapsed += after.saturating_sub(OPERATION);
        FabricError::Timeout { peer: self.peer, during, after }
    }

    fn remote(&self, error: RemoteError) -> FabricError {
        FabricError::Remote { peer: self.peer, error }
    }

    /// Resolves all runs before a byte moves, as a node does.
    fn resolve(
        &self,
        handle: Handle,
        runs: &[ByteRange],
        needed: Rights,
        buffer_bytes: u64,
    ) -> Result<Vec<Slice>, FabricError> {
        let runs_bytes = runs.iter().fold(0u64, |sum, run| sum.saturating_add(run.bytes()));
        if runs_bytes != buffer_bytes {
            return Err(FabricError::Lengths { runs_bytes, buffer_bytes });
        }
        let resolve = |run: &ByteRange| {
            let slice = self.service.resolve(self.session, handle, *run, needed)?;
            if slice.len() as u64 == run.bytes() {
                Ok(slice)
            } else {
                Err(RemoteError::new(ErrorCode::INTERNAL, "the service gave another length"))
            }
        };
        let used = runs.iter().filter(|run| run.bytes() > 0);
        used.map(resolve).collect::<Result<_, _>>().map_err(|error| self.remote(error))
    }

    fn read(&self, handle: Handle, runs: &[ByteRange], into: Destination<'_>) -> Result<(), FabricError> {
        let fate = self.fate("a read", false)?;
        if fate == Fate::RequestLost {
            return Err(self.timeout("a read"));
        }
        let slices = self.resolve(handle, runs, Rights::READ, into.len())?;
        let from: Vec<Part> = slices.iter().map(Part::of_slice).collect();
        // SAFETY: the slices keep their memory alive; `into` is borrowed exclusively and so lies apart.
        unsafe { copy_parts(&from, into.parts(), u64::MAX, load_words) };
        if fate == Fate::AnswerLost { Err(self.timeout("a read")) } else { Ok(()) }
    }

    fn write(&self, handle: Handle, runs: &[ByteRange], from: Source<'_>) -> Result<(), FabricError> {
        let fate = self.fate("a write", true)?;
        if fate == Fate::RequestLost {
            return Err(self.timeout("a write"));
        }
        let slices = self.resolve(handle, runs, Rights::WRITE, from.len())?;
        let into: Vec<Part> = slices.iter().map(Part::of_slice).collect();
        let bytes = match fate {
            Fate::Torn(place) => ((u128::from(place) * u128::from(from.len())) >> 64) as u64,
            _ => u64::MAX,
        };
        // SAFETY: the slices keep their memory alive and are writable; `from` is private memory and so lies apart.
        unsafe { copy_parts(from.parts(), &into, bytes, store_words) };
        if fate == Fate::Good { Ok(()) } else { Err(self.timeout("a write")) }
    }

    fn atomic(
        &self,
        handle: Handle,
        offset: u64,
        operation: impl FnOnce(&Slice) -> Option<u64>,
    ) -> Result<u64, FabricError> {
        let fate = self.fate("an atomic operation", false)?;
        if fate == Fate::RequestLost {
            return Err(self.timeout("an atomic operation"));
        }
        let range = ByteRange::new(offset, 8)
            .map_err(|error| self.remote(RemoteError::new(ErrorCode::RANGE, error.to_string())))?;
        let slices = self.resolve(handle, &[range], Rights::READ | Rights::WRITE, 8)?;
        let word = slices.first().and_then(operation).ok_or_else(|| {
            self.remote(RemoteError::new(ErrorCode::MALFORMED, "the word is not aligned to 8 bytes"))
        })?;
        if fate == Fate::AnswerLost { Err(self.timeout("an atomic operation")) } else { Ok(word) }
    }

    /// As a node does: what fits into an answer and into the buffer comes with it.
    fn fetch(&self, question: &[u8], into: &mut [u8]) -> Result<Found, FabricError> {
        let fate = self.fate("a fetch", false)?;
        if fate == Fate::RequestLost {
            return Err(self.timeout("a fetch"));
        }
        let (handle, slice) =
            self.service.fetch(self.session, question).map_err(|error| self.remote(error))?;
        let placed = slice.len().min(into.len()).min(FRAME_BODY_BYTES_MAX as usize);
        if let Some(from) = slice.sub(0, placed) {
            // SAFETY: the slice keeps its memory alive; `into` is borrowed exclusively and so lies apart.
            unsafe {
                copy_parts(
                    &[Part::of_slice(&from)],
                    &[Part::of_mut(&mut into[..placed])],
                    u64::MAX,
                    load_words,
                )
            };
        }
        if fate == Fate::AnswerLost {
            return Err(self.timeout("a fetch"));
        }
        Ok(Found { handle: (handle != Handle(0)).then_some(handle), bytes: slice.len() as u64, placed })
    }

    fn call(&self, body: &[u8], within: Duration) -> Result<Vec<u8>, FabricError> {
        let (value, limit) = (body.len() as u64, u64::from(CONTROL_BYTES_MAX));
        if value > limit {
            return Err(FabricError::Limit { what: "call", value, limit });
        }
        let fate = self.fate("a call", false)?;
        if fate == Fate::RequestLost {
            return Err(self.timeout_after("a call", within));
        }
        let reply = self.service.call(self.session, body);
        if fate == Fate::AnswerLost {
            return Err(self.timeout_after("a call", within));
        }
        reply.map_err(|error| self.remote(error))
    }
}

impl Endpoint for SimEndpoint {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            one_sided: true,
            atomic_bytes: 8,
            inline_bytes: 0,
            message_bytes_max: CONTROL_BYTES_MAX,
            gather_runs_max: RUNS_MAX,
            gpu_memory: false,
        }
    }

    fn read_to(&self, handle: Handle, runs: &[ByteRange], into: Destination<'_>) -> Result<(), FabricError> {
        self.shared.read(handle, runs, into)
    }

    fn write_from(&self, handle: Handle, runs: &[ByteRange], from: Source<'_>) -> Result<(), FabricError> {
        self.shared.write(handle, runs, from)
    }

    fn compare_and_swap(
        &self,
        handle: Handle,
        offset: u64,
        expected: u64,
        desired: u64,
    ) -> Result<u64, FabricError> {
        self.shared.atomic(handle, offset, |word| word.compare_swap(expected, desired))
    }

    fn fetch_and_add(&self, handle: Handle, offset: u64, addend: u64) -> Result<u64, FabricError> {
        self.shared.atomic(handle, offset, |word| word.fetch_add(addend))
    }

    fn call_within(&self, body: &[u8], within: Duration) -> Result<Vec<u8>, FabricError> {
        self.shared.call(body, within)
    }

    fn call(&self, body: &[u8]) -> Result<Vec<u8>, FabricError> {
        self.shared.call(body, PATIENCE)
    }

    fn fetch(&self, question: &[u8], into: &mut [u8]) -> Result<Found, FabricError> {
        self.shared.fetch(question, into)
    }

    fn queue(&self, _streams: usize) -> Result<Box<dyn Queue>, FabricError> {
        Ok(Box::new(SimQueue { shared: Arc::clone(&self.shared), completed: Vec::new() }))
    }
}

/// Does every operation when it is posted, and tells of some of them at a time in an order that chance chooses.
struct SimQueue {
    shared: Arc<Shared>,
    completed: Vec<Completion>,
}

impl SimQueue {
    fn complete(&mut self, tag: u64, result: Result<Outcome, FabricError>) {
        let place = self.shared.state().random.below(self.completed.len() as u64 + 1);
        self.completed.insert(usize::try_from(place).unwrap_or(0), Completion { tag, result });
    }
}

impl Queue for SimQueue {
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
        // SAFETY: the slices are writable and borrowed until the operation is done.
        let result = self.shared.read(handle, runs, unsafe { Destination::from_parts(&parts) });
        self.complete(tag, result.map(|()| Outcome::Done));
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
        // SAFETY: the slices are borrowed until the operation is done.
        let result = self.shared.write(handle, runs, unsafe { Source::from_parts(&parts) });
        self.complete(tag, result.map(|()| Outcome::Done));
        Ok(())
    }

    fn post_call(&mut self, tag: u64, body: &[u8]) -> Result<(), FabricError> {
        let result = self.shared.call(body, PATIENCE);
        self.complete(tag, result.map(Outcome::Reply));
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>, _wait: Duration) -> Result<usize, FabricError> {
        let all = self.completed.len();
        let count = self.shared.state().random.between(1, all as u64) as usize; // of a count
        let told = self.completed.drain(..count.min(all));
        completions.extend(told);
        Ok(count.min(all))
    }

    fn in_flight(&self) -> usize {
        self.completed.len()
    }
}
