//! Putting an object: reserve, write every chunk to every home, seal there, commit at the directory.
//!
//! Order of the promises: a home acknowledges a seal with the digest of what it holds; the directory
//! commits when every home has the writer's digest; the user hears `Done` only when that commit is
//! durable. A put that fails is undone at the directory first, and at the homes only when the directory
//! has said that it is undone: before that, a commit whose answer was lost may have made it visible.

mod message;
#[cfg(test)]
mod tests;

pub use message::{Put, PutAction, PutError, PutEvent, PutFailure, PutHome, PutLimits, PutOutcome, PutStep};

use hinterland_types::limits::FRAME_BODY_BYTES_MAX;
use hinterland_types::{ByteRange, NodeId, ObjectId};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Request {
    Reserve,
    Grow,
    Commit,
    Abort,
    /// At the home of this index; for a write, with the chunk's offset.
    Open(usize),
    Write(usize, u64),
    SealHome(usize),
    AbortHome(usize),
}

struct Pending {
    deadline_ms: u64,
    sent: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Reserving,
    Writing,
    Sealing,
    Committing,
    /// Waiting for the directory to undo the put.
    Aborting,
    /// The user has been told; a few homes may still be told to let go.
    Over,
}

struct HomeState {
    home: PutHome,
    opened: bool,
    /// Offset of the next chunk to send there.
    next: u64,
    /// Chunks under way: offset to length.
    under_way: BTreeMap<u64, u64>,
    sealed: bool,
}

/// Puts one object; see the module for how it is driven.
pub struct PutMachine {
    limits: PutLimits,
    phase: Phase,
    object: ObjectId,
    homes: Vec<HomeState>,
    /// Bytes that the directory has granted room for.
    room: u64,
    available: u64,
    released: u64,
    digest: Option<[u8; 32]>,
    pending: BTreeMap<Request, Pending>,
    actions: VecDeque<PutAction>,
    failure: Option<PutFailure>,
    commit_sent: bool,
    now_ms: u64,
}

impl PutMachine {
    /// Begins a put; the first action is ready at once.
    ///
    /// # Errors
    /// [`PutError`] if the limits make no sense.
    pub fn new(put: Put, limits: PutLimits, now_ms: u64) -> Result<Self, PutError> {
        let chunk_ok = limits.chunk_bytes > 0 && limits.chunk_bytes <= u64::from(FRAME_BODY_BYTES_MAX);
        let some = limits.window > 0 && limits.timeout_ms > 0 && limits.tries > 0 && limits.grow_bytes > 0;
        if !chunk_ok || !some {
            return Err(PutError::Limits { limits });
        }
        let mut machine = Self {
            limits,
            phase: Phase::Reserving,
            object: ObjectId(0),
            homes: Vec::new(),
            room: put.size.unwrap_or(0),
            available: 0,
            released: 0,
            digest: None,
            pending: BTreeMap::new(),
            actions: VecDeque::new(),
            failure: None,
            commit_sent: false,
            now_ms,
        };
        machine.send(Request::Reserve);
        Ok(machine)
    }

    /// What to do next; `None` until something happens.
    pub fn poll_action(&mut self) -> Option<PutAction> {
        self.actions.pop_front()
    }

    /// When to hand in a [`PutEvent::Timeout`]; `None` while only the source is waited for, or at the end.
    pub fn deadline_ms(&self) -> Option<u64> {
        self.pending.values().map(|pending| pending.deadline_ms).min()
    }

    /// How far the source may read ahead, in bytes from the start: behind it lies what no window holds.
    pub fn data_end_max(&self) -> u64 {
        self.released.saturating_add(self.limits.chunk_bytes.saturating_mul(self.limits.window))
    }

    /// Whether nothing more will happen.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over && self.pending.is_empty() && self.actions.is_empty()
    }

    /// Takes what happened.
    pub fn handle(&mut self, now_ms: u64, event: PutEvent) {
        self.now_ms = self.now_ms.max(now_ms);
        match event {
            PutEvent::Reserved { object, homes } => self.reserved(object, homes),
            // No more room than there is: a late answer to an earlier request. Taken for an answer, it would
            // have the request begin anew each time that it comes, and no try would be the last.
            PutEvent::Grown { bytes } if bytes > self.room => {
                if self.answered(Request::Grow) {
                    self.room = bytes;
                }
            }
            PutEvent::Data { end } if self.digest.is_none() => self.available = self.available.max(end),
            PutEvent::Finish { digest } if self.digest.is_none() => self.digest = Some(digest),
            PutEvent::Grown { .. } | PutEvent::Data { .. } | PutEvent::Finish { .. } | PutEvent::Timeout => {}
            PutEvent::Opened { node } => self.opened(node),
            PutEvent::Wrote { node, offset } => self.wrote(node, offset),
            PutEvent::HomeSealed { node, digest } => self.home_sealed(node, digest),
            PutEvent::HomeAborted { node } => {
                if let Some(home) = self.home(node) {
                    self.answered(Request::AbortHome(home));
                }
            }
            PutEvent::HomeRefused { node, reason } => self.home_refused(node, reason),
            PutEvent::Refused { step, reason } => self.refused(step, reason),
            PutEvent::Committed => {
                if self.answered(Request::Commit) {
                    self.done();
                }
            }
            PutEvent::Aborted => {
                if self.answered(Request::Abort) {
                    self.undone();
                }
            }
            PutEvent::AlreadySealed => {
                if self.answered(Request::Abort) {
                    self.done();
                }
            }
            PutEvent::Cancel { reason } => self.fail(PutStep::Cancel, None, reason),
        }
        self.time_out();
        self.advance();
    }

    fn reserved(&mut self, object: ObjectId, homes: Vec<PutHome>) {
        if !self.answered(Request::Reserve) {
            return;
        }
        self.object = object;
        let state =
            |home| HomeState { home, opened: false, next: 0, under_way: BTreeMap::new(), sealed: false };
        self.homes = homes.into_iter().map(state).collect();
        if self.failure.is_some() {
            // The source gave up in the meantime.
            self.phase = Phase::Aborting;
            return self.send(Request::Abort);
        }
        self.phase = Phase::Writing;
        if self.homes.is_empty() {
            return self.fail(PutStep::Reserve, None, "the directory named no home".to_owned());
        }
        (0..self.homes.len()).for_each(|home| self.send(Request::Open(home)));
    }

    fn opened(&mut self, node: NodeId) {
        if let Some(home) = self.home(node)
            && self.answered(Request::Open(home))
        {
            self.homes[home].opened = true;
        }
    }

    fn wrote(&mut self, node: NodeId, offset: u64) {
        if let Some(home) = self.home(node)
            && self.answered(Request::Write(home, offset))
        {
            self.homes[home].under_way.remove(&offset);
        }
    }

    fn home_sealed(&mut self, node: NodeId, digest: [u8; 32]) {
        let Some(home) = self.home(node) else { return };
        if !self.answered(Request::SealHome(home)) {
            return;
        }
        if self.digest == Some(digest) {
            self.homes[home].sealed = true;
        } else {
            let reason = "the home does not hold the bytes that were sent".to_owned();
            self.fail(PutStep::SealHome, Some(node), reason);
        }
    }

    fn home_refused(&mut self, node: NodeId, reason: String) {
        let Some(home) = self.home(node) else { return };
        self.pending.remove(&Request::AbortHome(home));
        // Once every home has sealed, a home's trouble is for the directory to judge.
        if self.phase == Phase::Writing || self.phase == Phase::Sealing {
            let of_home = |request: &&Request| match request {
                Request::Open(other) | Request::Write(other, _) | Request::SealHome(other) => *other == home,
                _ => false,
            };
            let step = self.pending.keys().find(of_home).map_or(PutStep::Write, |request| step_of(*request));
            self.fail(step, Some(node), reason);
        }
    }

    fn refused(&mut self, step: PutStep, reason: String) {
        let request = match step {
            PutStep::Reserve => Request::Reserve,
            PutStep::Grow => Request::Grow,
            PutStep::Commit => Request::Commit,
            PutStep::Abort => Request::Abort,
            PutStep::Open | PutStep::Write | PutStep::SealHome | PutStep::Cancel => return,
        };
        if !self.answered(request) {
            return;
        }
        match request {
            // A refused abort says nothing about the object: as if there had been no answer.
            Request::Abort => self.lost_touch(),
            _ => self.fail(step, None, reason),
        }
    }

    /// Stops what is going on and undoes it.
    fn fail(&mut self, step: PutStep, node: Option<NodeId>, reason: String) {
        let failing = self.failure.is_some();
        if self.phase == Phase::Over || (failing && self.phase != Phase::Reserving) {
            return;
        }
        self.failure.get_or_insert(PutFailure { step, node, reason, outcome: PutOutcome::Undone });
        match self.phase {
            // The object is not known yet: its reservation must be answered before it can be undone.
            Phase::Reserving if self.pending.contains_key(&Request::Reserve) => {}
            Phase::Reserving => self.tell_failure(PutOutcome::Undone),
            _ => {
                self.phase = Phase::Aborting;
                self.pending.clear();
                self.actions.clear();
                self.send(Request::Abort);
            }
        }
    }

    fn done(&mut self) {
        self.phase = Phase::Over;
        self.pending.clear();
        self.actions.clear();
        for state in &self.homes {
            self.actions.push_back(PutAction::CommitHome { object: self.object, home: state.home });
        }
        self.actions.push_back(PutAction::Done { object: self.object, size: self.available });
    }

    /// The directory says that nothing is visible: the homes may let go.
    fn undone(&mut self) {
        self.tell_failure(PutOutcome::Undone);
        (0..self.homes.len()).for_each(|home| self.send(Request::AbortHome(home)));
    }

    /// The directory does not answer. What it may have committed must not be deleted anywhere.
    fn lost_touch(&mut self) {
        if self.commit_sent {
            self.tell_failure(PutOutcome::Unknown);
        } else {
            self.undone();
        }
    }

    fn tell_failure(&mut self, outcome: PutOutcome) {
        self.phase = Phase::Over;
        self.pending.clear();
        self.actions.clear();
        let failure = self.failure.take();
        self.actions.extend(failure.map(|failure| PutAction::Fail(PutFailure { outcome, ..failure })));
    }

    fn time_out(&mut self) {
        let late = self.pending.iter().filter(|(_, pending)| pending.deadline_ms <= self.now_ms);
        let late: Vec<_> = late.map(|(request, pending)| (*request, pending.sent)).collect();
        for (request, sent) in late {
            if !self.pending.contains_key(&request) {
                continue; // what went before in this list has ended the put
            }
            if sent < self.limits.tries {
                self.send(request);
            } else {
                self.pending.remove(&request);
                self.unanswered(request);
            }
        }
    }

    fn unanswered(&mut self, request: Request) {
        let waited_ms = self.limits.timeout_ms * u64::from(self.limits.tries);
        let reason = format!("no answer within {waited_ms} ms");
        match request {
            // Whether the name was taken is not known. The node tells the directory that it does not go on.
            Request::Reserve => {
                let failure =
                    PutFailure { step: PutStep::Reserve, node: None, reason, outcome: PutOutcome::Unknown };
                self.failure.get_or_insert(failure);
                self.tell_failure(PutOutcome::Unknown);
            }
            Request::Grow | Request::Commit => self.fail(step_of(request), None, reason),
            Request::Abort => self.lost_touch(),
            Request::Open(home) | Request::Write(home, _) | Request::SealHome(home) => {
                let node = self.homes[home].home.node;
                self.fail(step_of(request), Some(node), reason);
            }
            // The directory tells the home with its next heartbeat.
            Request::AbortHome(_) => {}
        }
    }

    fn advance(&mut self) {
        if self.phase == Phase::Writing {
            self.write();
        }
        if self.phase == Phase::Writing && self.digest.is_some() && self.released == self.available {
            let opened = self.homes.iter().all(|state| state.opened);
            if opened {
                self.phase = Phase::Sealing;
                (0..self.homes.len()).for_each(|home| self.send(Request::SealHome(home)));
            }
        }
        if self.phase == Phase::Sealing && self.homes.iter().all(|state| state.sealed) {
            self.phase = Phase::Committing;
            self.commit_sent = true;
            self.send(Request::Commit);
        }
    }

    fn write(&mut self) {
        if self.available > self.room && !self.pending.contains_key(&Request::Grow) {
            self.send(Request::Grow);
        }
        let end_max = self.data_end_max();
        for home in 0..self.homes.len() {
            while let Some(chunk) = self.next_chunk(home, end_max) {
                self.homes[home].under_way.insert(chunk.offset(), chunk.bytes());
                self.homes[home].next = chunk.end();
                self.send(Request::Write(home, chunk.offset()));
            }
        }
        let first_missing = |state: &HomeState| state.under_way.keys().next().copied().unwrap_or(state.next);
        let held = self.homes.iter().map(first_missing).min().unwrap_or(0);
        if held > self.released {
            self.released = held;
            self.actions.push_back(PutAction::Release { end: held });
            self.write(); // the window has moved
        }
    }

    /// The next chunk for a home: whole, or the last of a source that has ended.
    fn next_chunk(&self, home: usize, end_max: u64) -> Option<ByteRange> {
        let state = &self.homes[home];
        let left = self.available.min(self.room) - state.next.min(self.available.min(self.room));
        let bytes = left.min(self.limits.chunk_bytes);
        let last = self.digest.is_some() && state.next + bytes == self.available;
        let whole = bytes == self.limits.chunk_bytes || last;
        let fits = state.next + bytes <= end_max && (state.under_way.len() as u64) < self.limits.window;
        if !state.opened || bytes == 0 || !whole || !fits {
            return None;
        }
        ByteRange::new(state.next, bytes).ok()
    }

    /// Sends a request for the first time or again.
    fn send(&mut self, request: Request) {
        let sent = self.pending.get(&request).map_or(0, |pending| pending.sent) + 1;
        let deadline_ms = self.now_ms.saturating_add(self.limits.timeout_ms);
        self.pending.insert(request, Pending { deadline_ms, sent });
        let object = self.object;
        let action = match request {
            Request::Reserve => PutAction::Reserve,
            Request::Grow => {
                let steps = self.available.div_ceil(self.limits.grow_bytes);
                PutAction::Grow { object, bytes: steps.saturating_mul(self.limits.grow_bytes) }
            }
            Request::Open(home) => PutAction::Open { object, home: self.homes[home].home },
            Request::Write(home, offset) => {
                let state = &self.homes[home];
                let bytes = state.under_way.get(&offset).copied().unwrap_or(0);
                let Ok(chunk) = ByteRange::new(offset, bytes) else { return };
                PutAction::Write { object, home: state.home, chunk }
            }
            Request::SealHome(home) => {
                PutAction::SealHome { object, home: self.homes[home].home, size: self.available }
            }
            Request::Commit => PutAction::Commit {
                object,
                size: self.available,
                digest: self.digest.unwrap_or_default(),
                homes: self.homes.iter().map(|state| state.home.node).collect(),
            },
            Request::Abort => PutAction::Abort { object },
            Request::AbortHome(home) => PutAction::AbortHome { object, home: self.homes[home].home },
        };
        self.actions.push_back(action);
    }

    /// Whether the request was waited for; it no longer is.
    fn answered(&mut self, request: Request) -> bool {
        self.pending.remove(&request).is_some()
    }

    fn home(&self, node: NodeId) -> Option<usize> {
        self.homes.iter().position(|state| state.home.node == node)
    }
}

fn step_of(request: Request) -> PutStep {
    match request {
        Request::Reserve => PutStep::Reserve,
        Request::Grow => PutStep::Grow,
        Request::Open(_) => PutStep::Open,
        Request::Write(..) => PutStep::Write,
        Request::SealHome(_) => PutStep::SealHome,
        Request::Commit => PutStep::Commit,
        Request::Abort | Request::AbortHome(_) => PutStep::Abort,
    }
}
