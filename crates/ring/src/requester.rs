//! The end of a session that asks.

use std::time::Duration;

use crate::RingError;
use crate::layout::{Session, wait_until};
use crate::responder::WakeBy;
use crate::ring::{Inlet, Outlet};
use crate::slot::Body;
use hinterland_os::SpinBudget;

/// Names a request that is out; its response carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u32);

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Of the request that it answers.
    pub ticket: Ticket,
    /// What the responder said, not looked at yet.
    pub body: Body,
}

/// Waits for a response while its requester submits more, maybe from another thread.
#[derive(Debug)]
pub struct Listener {
    session: Session,
    inlet: Inlet,
    budget: SpinBudget,
}

impl Listener {
    /// Waits until the next response is there: spins, yields, then sleeps. `false` when the time is over first.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let (session, inlet) = (&self.session, &self.inlet);
        let ready = || session.has_response(inlet);
        wait_until(ready, session.audible(session.requester_bell()), &mut self.budget, timeout)
    }
}

/// Submits requests and takes their responses. For one thread; nothing here allocates after [`new`](Self::new).
#[derive(Debug)]
pub struct Requester {
    session: Session,
    outlet: Outlet,
    inlet: Inlet,
    /// For each number below the number of slots: the tag of the request that is out under it, or none.
    out: Vec<Option<u32>>,
    /// Numbers that no request is out under.
    free: Vec<u32>,
    /// Added to the tag of each request, so that an answer to an older one is not taken for the present one's.
    generation: u32,
    wake_by: WakeBy,
    budget: SpinBudget,
    broken: Option<&'static str>,
}

impl Requester {
    /// Takes the asking end of a session that has just been formatted. `wake_by` says how a sleeping responder wants to
    /// be woken.
    pub fn new(session: Session, wake_by: WakeBy) -> Self {
        let slots = session.slots();
        Self {
            out: vec![None; slots as usize],
            free: (0..slots).rev().collect(),
            generation: 0,
            session,
            outlet: Outlet::default(),
            inlet: Inlet::default(),
            wake_by,
            budget: SpinBudget::new(hinterland_os::affinity::online_core_count()),
            broken: None,
        }
    }

    /// Requests without a response so far.
    #[inline]
    pub fn outstanding(&self) -> u32 {
        self.session.slots() - self.free.len() as u32
    }

    /// Requests that may be out at once.
    #[inline]
    pub fn capacity(&self) -> u32 {
        self.session.slots()
    }

    /// Writes a request. A responder that is awake sees it at once; call [`flush`](Self::flush) after a batch for one that
    /// sleeps.
    ///
    /// # Errors
    /// [`RingError::Full`], [`RingError::Broken`].
    #[inline]
    pub fn submit(&mut self, body: &Body) -> Result<Ticket, RingError> {
        self.check()?;
        let Some(number) = self.free.pop() else {
            return Err(RingError::Full { slots: self.session.slots() });
        };
        self.generation = self.generation.wrapping_add(self.session.slots());
        // The number is below the number of slots, a power of two that divides the generation.
        let tag = self.generation | number;
        self.out[number as usize] = Some(tag);
        self.session.push_request(&mut self.outlet, tag, body);
        Ok(Ticket(tag))
    }

    /// Makes requests arrive, and wakes the responder if it sleeps. Without it a request may wait until the responder looks by itself.
    #[inline]
    pub fn flush(&self) {
        let bell = self.session.responder_bell();
        if self.session.must_wake(bell) {
            self.wake_by.wake(bell);
        }
    }

    /// Takes the next response, if one is there. Never waits.
    ///
    /// # Errors
    /// [`RingError::Broken`], for ever from the first response that answers no request.
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Response>, RingError> {
        self.check()?;
        let Some((tag, body)) = self.session.take_response(&mut self.inlet) else { return Ok(None) };
        let number = tag & (self.session.slots() - 1);
        let entry = &mut self.out[number as usize];
        if *entry != Some(tag) {
            return Err(self.break_off("a response answers no request that is out"));
        }
        *entry = None;
        self.free.push(number);
        Ok(Some(Response { ticket: Ticket(tag), body }))
    }

    /// Appends the responses that are there, at most as many as there are slots; returns how many.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    pub fn poll_all(&mut self, responses: &mut Vec<Response>) -> Result<usize, RingError> {
        let mut count = 0;
        while count < self.session.slots() as usize {
            let Some(response) = self.poll()? else { break };
            responses.push(response);
            count += 1;
        }
        Ok(count)
    }

    /// Waits until a response is there: spins, yields, then sleeps. `false` when the time is over first. Flushes before.
    ///
    /// # Errors
    /// [`RingError::Broken`].
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, RingError> {
        self.check()?;
        self.flush();
        let (session, inlet) = (&self.session, &self.inlet);
        let ready = || session.has_response(inlet);
        Ok(wait_until(ready, session.audible(session.requester_bell()), &mut self.budget, timeout))
    }

    /// Submits one request and waits for its response. For use while no other request is out.
    ///
    /// # Errors
    /// [`RingError::TimedOut`], after which the session should be closed, since the answer may still come;
    /// [`RingError::Full`] if another request is out; [`RingError::Broken`].
    #[inline]
    pub fn call(&mut self, body: &Body, timeout: Duration) -> Result<Body, RingError> {
        if self.outstanding() > 0 {
            return Err(RingError::Full { slots: self.outstanding() });
        }
        self.submit(body)?;
        if !self.wait(timeout)? {
            let waited_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            return Err(RingError::TimedOut { waited_ms });
        }
        match self.poll()? {
            Some(response) => Ok(response.body),
            None => Err(self.break_off("a response vanished")),
        }
    }

    /// Waits in the place of this end, as it is: for the response that it takes next. It may sleep on while this end takes
    /// responses, so nobody should.
    pub fn listener(&self) -> Listener {
        Listener { session: self.session.clone(), inlet: self.inlet.clone(), budget: self.budget }
    }

    /// Takes over what a listener learned about waiting.
    pub fn learn_from(&mut self, listener: &Listener) {
        self.budget = listener.budget;
    }

    /// The number, below the number of slots, that a request is out under.
    pub(crate) fn number_of(&self, ticket: Ticket) -> usize {
        (ticket.0 & (self.session.slots() - 1)) as usize
    }

    #[inline]
    fn check(&self) -> Result<(), RingError> {
        match self.broken {
            None => Ok(()),
            Some(reason) => Err(RingError::Broken { reason }),
        }
    }

    #[cold]
    pub(crate) fn break_off(&mut self, reason: &'static str) -> RingError {
        self.broken = Some(reason);
        RingError::Broken { reason }
    }
}
