//! Handles at a peer that are given back when nobody needs them any more.
//!
//! A handle keeps what it stands for in the peer's memory, also after that was removed. A thread gives it back, so that nobody waits.
//! One that is kept for later use can be *lent* before: the peer may then take it back when it likes.

use crate::Endpoint;
use hinterland_types::Handle;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a peer may take to answer, and how long one that did not is asked nothing.
const PATIENCE: Duration = Duration::from_secs(5);

type Closing = (Arc<dyn Endpoint>, Vec<u8>);

/// Gives handles back.
pub struct Closer {
    message: fn(Handle) -> Vec<u8>,
    process: u32,
    queue: OnceLock<Sender<Closing>>,
}

impl Closer {
    /// One that says to a peer by `message` that a handle is not needed any more.
    pub fn new(message: fn(Handle) -> Vec<u8>) -> Arc<Self> {
        Arc::new(Self { message, process: std::process::id(), queue: OnceLock::new() })
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
            let run = move || say_all(&receiver);
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

fn say_all(closings: &Receiver<Closing>) {
    let mut silent: Option<(Arc<dyn Endpoint>, Instant)> = None;
    for (endpoint, message) in closings {
        let is_silent = silent
            .as_ref()
            .is_some_and(|(peer, since)| Arc::ptr_eq(peer, &endpoint) && since.elapsed() < PATIENCE);
        if is_silent {
            continue;
        }
        // A peer that refuses has it no more.
        let answer = endpoint.call_within(&message, PATIENCE);
        if answer.is_err_and(|error| error.is_connection_lost()) {
            silent = Some((endpoint, Instant::now()));
        }
    }
}
