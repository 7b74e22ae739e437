//! The end of a session that answers.

use std::sync::Arc;
use std::time::Duration;

use hinterland_os::poll::EventCounter;

use crate::RingError;
use crate::doorbell::Doorbell;
use crate::layout::{Session, wait_until};
use crate::ring::{Inlet, Outlet};
use crate::slot::Body;
use hinterland_os::SpinBudget;

/// How a sleeping responder is woken.
#[derive(Clone, Debug)]
pub enum WakeBy {
    /// It sleeps in [`Responder::wait`], on the word in the shared memory.
    Futex,
    /// It waits for this descriptor, together with those of other sessions.
    Event(Arc<EventCounter>),
}

impl WakeBy {
    #[cold]
    pub(crate) fn wake(&self, bell: &Doorbell) {
        match self {
            Self::Futex => bell.wake(),
            Self::Event(counter) => counter.raise(),
        }
    }
}

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// To be given to [`Responder::respond`]. Chosen by the peer: it names nothing on this side.
    pub tag: u32,
    /// What the peer asks, not looked at yet.
    pub body: Body,
}

/// Takes requests and answers them, each once and in any order. For one thread; nothing here allocates.
#[derive(Debug)]
pub struct Responder {
    session: Session,
    outlet: Outlet,
    inlet: Inlet,
    unanswered: u32,
    budget: SpinBudget,
}

impl Responder {
    /// Takes the answering end of a session that has just been formatted.
    pub fn new(session: Session) -> Self {
        Self {
            session,
            outlet: Outlet::default(),
            inlet: Inlet::default(),
            unanswered: 0,
            budget: SpinBudget::new(hinterland_os::affinity::online_core_count()),
        }
    }

    /// Requests taken and not answered.
    #[inline]
    pub fn unanswered(&self) -> u32 {
        self.unanswered
    }

    /// Requests that may be unanswered at once; a peer that sends more is not heard until some are answered.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.session.slots()
    }

    /// Takes the next request, if one is there. Never waits.
    #[inline]
    pub fn take(&mut self) -> Option<Request> {
        if self.unanswered == self.session.slots() {
            return None;
        }
        let (tag, body) = self.session.take_request(&mut self.inlet)?;
        self.unanswered += 1;
        Some(Request { tag, body })
    }

    /// Appends the requests that are there, at most `limit`; returns how many. The vector should have the capacity.
    pub fn drain(&mut self, requests: &mut Vec<Request>, limit: usize) -> usize {
        let mut count = 0;
        while count < limit {
            let Some(request) = self.take() else { break };
            requests.push(request);
            count += 1;
        }
        count
    }

    /// Answers the request with this tag. A requester that is awake sees it at once; call [`flush`](Self::flush) after a
    /// batch for one that sleeps.
    ///
    /// # Errors
    /// [`RingError::NothingToAnswer`] if every request has been answered.
    #[inline]
    pub fn respond(&mut self, tag: u32, body: &Body) -> Result<(), RingError> {
        self.unanswered = self.unanswered.checked_sub(1).ok_or(RingError::NothingToAnswer { tag })?;
        self.session.push_response(&mut self.outlet, tag, body);
        Ok(())
    }

    /// Makes responses arrive, and wakes the requester if it sleeps. Without it a response may wait until the requester looks by itself.
    #[inline]
    pub fn flush(&self) {
        let bell = self.session.requester_bell();
        if self.session.must_wake(bell) {
            bell.wake();
        }
    }

    /// Whether a request is there that may be taken.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.unanswered < self.session.slots() && self.session.has_request(&self.inlet)
    }

    /// Waits until a request is there: spins, yields, then sleeps. `false` when the time is over first. For peers that
    /// wake by [`WakeBy::Futex`]. Flushes before.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        self.flush();
        let (session, inlet) = (&self.session, &self.inlet);
        let full = self.unanswered == session.slots();
        let ready = || !full && session.has_request(inlet);
        wait_until(ready, session.audible(session.responder_bell()), &mut self.budget, timeout)
    }

    /// Announces that this side is about to wait for the descriptor of [`WakeBy::Event`]. `false` if a request is there
    /// already; then do not wait. Flushes before. After the wait call [`stay_awake`](Self::stay_awake). For sessions of one
    /// host: in any other nobody can wake this side, so it is `false` always.
    pub fn prepare_to_sleep(&self) -> bool {
        self.flush();
        if self.session.audible(self.session.responder_bell()).is_none() {
            return false;
        }
        let bell = self.session.responder_bell();
        bell.announce();
        let found = self.has_work();
        if found {
            bell.retract();
        }
        !found
    }

    /// Takes the announcement back, so that the peer spares itself the system call.
    pub fn stay_awake(&self) {
        self.session.responder_bell().retract();
    }
}
