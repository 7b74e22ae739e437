//! Calls that may take long, between a client and the node of its host: many at once, answered in any order.
//!
//! Both sides are many threads without a thread in between. At the node, threads take turns at waiting for requests:
//! who got one lets the next wait, and serves its own. At the client, one of the callers waits for all and hands out what came.

use super::client::LOOK_PAUSE;
use super::{os_failed, ring_failed};
use crate::error::FabricError;
use crate::service::Service;
use hinterland_os::{MapOptions, MemoryFile, PageKind, Seals, SharedSlice};
use hinterland_proto::RemoteError;
use hinterland_ring::two_layer::{Answerer, Asker, Layers, Taker, Verdict};
use hinterland_ring::{RingError, Ticket};
use hinterland_types::{NodeId, SessionId};
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Calls of a session that may be out at once.
pub const FAR_SLOTS: u32 = 256;
/// Room for their messages and answers: 4 KiB each if all are out.
pub const FAR_DATA_BYTES: usize = 1 << 20;
/// How often a waiting thread looks whether it should end.
const PAUSE: Duration = Duration::from_millis(200);

/// The node's side of one session's two-layer ring, shared by the threads that serve it.
pub struct FarServer {
    taker: Mutex<Taker>,
    answerer: Mutex<Answerer>,
    /// Threads that wait for a request, or for their turn.
    idle: AtomicUsize,
    is_broken: AtomicBool,
}

impl FarServer {
    /// Makes a ring; the descriptor is for the other side.
    ///
    /// # Errors
    /// [`FabricError::System`] without memory or descriptors.
    pub fn new() -> Result<(Self, OwnedFd), FabricError> {
        let bytes = Layers::bytes(FAR_SLOTS, FAR_DATA_BYTES).map_err(|error| ring_failed(&error))?;
        let file = MemoryFile::anonymous("hinterland-far-ring", bytes as u64, PageKind::Base4K)
            .map_err(os_failed)?;
        // As for the other ring: the client can cut nothing off, and pages are there before they are touched.
        file.add_seals(Seals::FIXED_LENGTH).map_err(os_failed)?;
        file.allocate(0, bytes as u64).map_err(os_failed)?;
        let memory = map(&file, bytes)?;
        let layers =
            Layers::format(&memory, FAR_SLOTS, FAR_DATA_BYTES).map_err(|error| ring_failed(&error))?;
        let (taker, answerer) = layers.answering();
        let server = Self {
            taker: Mutex::new(taker),
            answerer: Mutex::new(answerer),
            idle: AtomicUsize::new(0),
            is_broken: AtomicBool::new(false),
        };
        Ok((server, file.duplicate().map_err(os_failed)?))
    }

    /// Serves until `ended` says so or the peer cannot be believed; for any number of threads. `took` hears of every request
    /// before it is served, with the number of threads that are left to wait for the next.
    pub fn serve_until(
        &self,
        service: &dyn Service,
        session: SessionId,
        ended: impl Fn() -> bool,
        took: impl Fn(usize),
    ) {
        let mut body = Vec::new();
        // Relaxed, here and below: a flag and a count that order nothing; a stale look costs a turn or a thread.
        while !ended() && !self.is_broken.load(Ordering::Relaxed) {
            self.idle.fetch_add(1, Ordering::Relaxed);
            let mut turn = self.taker.lock().unwrap_or_else(PoisonError::into_inner);
            turn.wait(PAUSE);
            let taken = turn.take(&mut body);
            drop(turn);
            // Relaxed: as above.
            let left = self.idle.fetch_sub(1, Ordering::Relaxed) - 1;
            let errand = match taken {
                Ok(Some(errand)) => errand,
                Ok(None) => continue,
                Err(_) => return self.give_up(),
            };
            took(left);
            let (bytes, has_failed) = match service.call(session, &body) {
                Ok(reply) => (reply, false),
                Err(error) => (error.to_body(), true),
            };
            let mut answerer = self.answerer.lock().unwrap_or_else(PoisonError::into_inner);
            if answerer.answer(errand, &bytes, has_failed).is_err() {
                return self.give_up();
            }
        }
    }

    /// No thread serves a peer that cannot be believed.
    fn give_up(&self) {
        // Relaxed: a flag that orders nothing.
        self.is_broken.store(true, Ordering::Relaxed);
    }
}

/// The client's side; calls may be made by any number of threads at once, and none waits for another's answer.
pub struct FarEndpoint {
    peer: NodeId,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether a call has found that the node is gone.
    is_over: AtomicBool,
}

struct State {
    asker: Asker,
    /// What came for others than who took it.
    answers: HashMap<Ticket, Result<Vec<u8>, FabricError>>,
    /// Calls whose time was over: nobody takes their answers.
    abandoned: HashSet<Ticket>,
    /// Whether some caller waits for all.
    is_listening: bool,
    body: Vec<u8>,
}

impl FarEndpoint {
    /// Takes the two-layer ring that a node has made for this session, with the numbers that it told.
    ///
    /// # Errors
    /// [`FabricError::System`] if it is no such ring.
    pub fn open(peer: NodeId, descriptor: OwnedFd, slots: u32, data_bytes: u32) -> Result<Self, FabricError> {
        let bytes = Layers::bytes(slots, data_bytes as usize).map_err(|error| ring_failed(&error))?;
        let file = MemoryFile::from_descriptor(descriptor).map_err(os_failed)?;
        let memory = map(&file, bytes)?;
        let layers =
            Layers::attach(&memory, slots, data_bytes as usize).map_err(|error| ring_failed(&error))?;
        let state = State {
            asker: Asker::new(layers),
            answers: HashMap::new(),
            abandoned: HashSet::new(),
            is_listening: false,
            body: Vec::new(),
        };
        let is_over = AtomicBool::new(false);
        Ok(Self { peer, state: Mutex::new(state), changed: Condvar::new(), is_over })
    }

    /// Sends a message to the node and returns its answer of up to `room` bytes, waiting at most `within`.
    ///
    /// # Errors
    /// [`FabricError::Limit`] if message or answer are too long; [`FabricError::Timeout`]; [`FabricError::Remote`] with the
    /// node's words; [`FabricError::System`] once the ring cannot be believed.
    pub fn call_within(&self, body: &[u8], room: usize, within: Duration) -> Result<Vec<u8>, FabricError> {
        let deadline = Instant::now() + within;
        let timeout = || FabricError::Timeout { peer: self.peer, during: "a call", after: within };
        self.call_until(body, room, &|| if Instant::now() < deadline { Ok(deadline) } else { Err(timeout()) })
    }

    /// The same, waiting as long as `is_there` says that the node is.
    ///
    /// # Errors
    /// [`FabricError::Closed`] once the node is gone, for all calls from there on; else as [`call_within`](Self::call_within).
    pub fn call_while(
        &self,
        body: &[u8],
        room: usize,
        is_there: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, FabricError> {
        let gone = || FabricError::Closed { peer: self.peer, during: "a call" };
        // Relaxed, both: a flag that orders nothing; a late look costs a look at the node.
        if self.is_over.load(Ordering::Relaxed) {
            return Err(gone());
        }
        let next_look = Cell::new(Instant::now() + LOOK_PAUSE);
        self.call_until(body, room, &|| {
            let now = Instant::now();
            if now >= next_look.get() {
                if !is_there() {
                    // Relaxed: as above.
                    self.is_over.store(true, Ordering::Relaxed);
                    return Err(gone());
                }
                next_look.set(now + LOOK_PAUSE);
            }
            Ok(next_look.get())
        })
    }

    /// Calls, and asks `patience` again and again until when to wait before it is asked again.
    fn call_until(
        &self,
        body: &[u8],
        room: usize,
        patience: &dyn Fn() -> Result<Instant, FabricError>,
    ) -> Result<Vec<u8>, FabricError> {
        let mut state = self.lock();
        let ticket = loop {
            match state.asker.submit(body, room) {
                Ok(ticket) => break ticket,
                Err(RingError::Full { .. }) => state = self.listen(state, patience()?)?,
                Err(RingError::TooLong { bytes, limit }) => {
                    let (value, limit) = (bytes as u64, limit as u64);
                    return Err(FabricError::Limit { what: "call", value, limit });
                }
                Err(error) => return Err(ring_failed(&error)),
            }
        };
        state.asker.flush();
        loop {
            if let Some(answer) = state.answers.remove(&ticket) {
                return answer;
            }
            match patience() {
                Ok(until) => state = self.listen(state, until)?,
                Err(error) => {
                    state.abandoned.insert(ticket);
                    return Err(error);
                }
            }
        }
    }

    /// Calls under way.
    pub fn outstanding(&self) -> u32 {
        self.lock().asker.outstanding()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something came, for anybody: itself, or until the one who does says so.
    fn listen<'state>(
        &'state self,
        mut state: MutexGuard<'state, State>,
        deadline: Instant,
    ) -> Result<MutexGuard<'state, State>, FabricError> {
        let left = deadline.saturating_duration_since(Instant::now()).min(PAUSE);
        if state.is_listening {
            let waited = self.changed.wait_timeout(state, left);
            return Ok(waited.unwrap_or_else(PoisonError::into_inner).0);
        }
        // Only who listens takes answers, so that the place where it waits is the right one.
        state.is_listening = true;
        let mut listener = state.asker.listener();
        drop(state);
        listener.wait(left);
        let mut state = self.lock();
        state.is_listening = false;
        state.asker.learn_from(&listener);
        let taken = state.take_answers(self.peer);
        self.changed.notify_all();
        taken.map(|()| state)
    }
}

impl State {
    fn take_answers(&mut self, peer: NodeId) -> Result<(), FabricError> {
        let mut body = std::mem::take(&mut self.body);
        while let Some((ticket, verdict)) = self.asker.poll(&mut body).map_err(|error| ring_failed(&error))? {
            if self.abandoned.remove(&ticket) {
                continue;
            }
            let answer = match verdict {
                Verdict::Answered => Ok(body.clone()),
                Verdict::Failed => Err(FabricError::Remote { peer, error: RemoteError::from_body(&body) }),
                Verdict::TooLong { bytes, room } => {
                    let (value, limit) = (u64::from(bytes), room as u64);
                    Err(FabricError::Limit { what: "answer to a call", value, limit })
                }
            };
            self.answers.insert(ticket, answer);
        }
        self.body = body;
        Ok(())
    }
}

fn map(file: &MemoryFile, bytes: usize) -> Result<SharedSlice, FabricError> {
    let options = MapOptions { write: true, ..MapOptions::default() };
    Ok(Arc::new(file.map(0, bytes, options).map_err(os_failed)?).slice())
}
