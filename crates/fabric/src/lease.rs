//! Handles at a peer that are given back when nobody needs them any more.
//!
//! A handle keeps what it stands for in the peer's memory, also after that was removed. A thread gives it back, so that nobody waits.
//! One that is kept for later use can be *lent* before: the peer may then take it back when it likes.

use crate::{Endpoint, FabricError};
use hinterland_types::Handle;
use hinterland_types::limits::HANDLES_MAX;
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// How long a peer may take to answer, and how long one that did not is asked nothing at first.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many times its first pause a peer is asked nothing at most that goes on being silent: who asks in vain holds up all others.
const PAUSES_MAX: u32 = 16;
/// Messages that wait for a peer to answer again: one that lends and one that gives back, for each handle of a session.
const UNSAID_MAX: usize = 2 * HANDLES_MAX as usize;

type Closing = (Arc<dyn Endpoint>, Vec<u8>);

/// Gives handles back.
pub struct Closer {
    message: fn(Handle) -> Vec<u8>,
    process: u32,
    patience: Duration,
    queue: OnceLock<Sender<Closing>>,
}

impl Closer {
    /// One that says to a peer by `message` that a handle is not needed any more.
    pub fn new(message: fn(Handle) -> Vec<u8>) -> Arc<Self> {
        Self::with_patience(message, PATIENCE)
    }

    fn with_patience(message: fn(Handle) -> Vec<u8>, patience: Duration) -> Arc<Self> {
        Arc::new(Self { message, process: std::process::id(), patience, queue: OnceLock::new() })
    }

    /// Makes a handle that a peer has given one that is given back.
    pub fn lease(self: &Arc<Self>, endpoint: Arc<dyn Endpoint>, handle: Handle) -> Arc<Lease> {
        Arc::new(Lease { closer: Arc::clone(self), endpoint, handle })
    }

    /// Says something about a handle to the peer that has given it, soon, and before that it is given back. Nobody waits for it.
    fn say(&self, endpoint: &Arc<dyn Endpoint>, message: Vec<u8>) {
        // A forked child has neither the thread nor a right to the connection.
        if std::process::id() != self.process {
            return;
        }
        let queue = self.queue.get_or_init(|| {
            let (sender, receiver) = channel();
            let patience = self.patience;
            let run = move || say_all(&receiver, patience);
            // Without a thread handles stay until the connection ends.
            let _ = std::thread::Builder::new().name("handles".to_owned()).spawn(run);
            sender
        });
        // As above, if there is nobody at the other end.
        let _ = queue.send((Arc::clone(endpoint), message));
    }
}

/// A handle at a peer, given back when this is dropped.
pub struct Lease {
    closer: Arc<Closer>,
    endpoint: Arc<dyn Endpoint>,
    handle: Handle,
}

impl Lease {
    /// Says something about the handle to the peer, soon, and before it is given back.
    pub fn say(&self, message: fn(Handle) -> Vec<u8>) {
        self.closer.say(&self.endpoint, message(self.handle));
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.say(self.closer.message);
    }
}

/// A peer that did not answer, and what it is still to be told: else it would keep those handles as long as the session.
struct Silent {
    /// Weak: once nobody else needs the connection it is closed, and the peer has nothing to keep any more.
    peer: Weak<dyn Endpoint>,
    unsaid: VecDeque<Vec<u8>>,
    pause: Duration,
    until: Instant,
}

fn say_all(closings: &Receiver<Closing>, patience: Duration) {
    let mut silent: Vec<Silent> = Vec::new();
    loop {
        silent.retain_mut(|peer| peer.until > Instant::now() || !peer.is_told(patience));
        let next = match silent.iter().map(|peer| peer.until).min() {
            Some(until) => closings.recv_timeout(until.saturating_duration_since(Instant::now())),
            None => closings.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let (endpoint, message) = match next {
            Ok(closing) => closing,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let known =
            silent.iter_mut().find(|peer| std::ptr::addr_eq(peer.peer.as_ptr(), Arc::as_ptr(&endpoint)));
        match known {
            Some(peer) if peer.unsaid.len() < UNSAID_MAX => peer.unsaid.push_back(message),
            Some(_) => {}
            None if is_said(&*endpoint, &message, patience) => {}
            None => silent.push(Silent {
                peer: Arc::downgrade(&endpoint),
                unsaid: VecDeque::from([message]),
                pause: patience,
                until: Instant::now() + patience,
            }),
        }
    }
}

impl Silent {
    /// Says what is unsaid; `false` if the peer is silent still.
    fn is_told(&mut self, patience: Duration) -> bool {
        let Some(endpoint) = self.peer.upgrade() else { return true };
        while let Some(message) = self.unsaid.front() {
            if !is_said(&*endpoint, message, patience) {
                self.pause = (2 * self.pause).min(PAUSES_MAX * patience);
                self.until = Instant::now() + self.pause;
                return false;
            }
            self.unsaid.pop_front();
        }
        true
    }
}

/// Whether a peer has heard a message, or has nothing to hear any more: one that refuses has not got the handle, and a session that is
/// over has none. What was heard and not answered is said again, which does no harm.
fn is_said(endpoint: &dyn Endpoint, message: &[u8], patience: Duration) -> bool {
    match endpoint.call_within(message, patience) {
        Ok(_) | Err(FabricError::SessionLost { .. }) => true,
        Err(error) => !error.is_connection_lost(),
    }
}
