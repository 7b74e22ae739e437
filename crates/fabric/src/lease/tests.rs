//! Handles that go back to peers which do not answer for a while.

use super::*;
use crate::endpoint::{Capabilities, Queue};
use crate::part::{Destination, Source};
use hinterland_types::{ByteRange, NodeId};
use std::sync::atomic::{AtomicBool, Ordering};

/// Long enough for any machine: nothing is measured.
const LONG: Duration = Duration::from_secs(30);

#[derive(PartialEq, Eq, Debug)]
enum Event {
    Ignored(Vec<u8>),
    Heard(Vec<u8>),
    Gone,
}

/// A peer that hears nothing while it is silent.
struct Peer {
    is_silent: Arc<AtomicBool>,
    events: Sender<Event>,
}

impl Peer {
    fn silent() -> (Arc<dyn Endpoint>, Arc<AtomicBool>, Receiver<Event>) {
        let (is_silent, (events, heard)) = (Arc::new(AtomicBool::new(true)), channel());
        (Arc::new(Self { is_silent: Arc::clone(&is_silent), events }), is_silent, heard)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.events.send(Event::Gone);
    }
}

const NONE: FabricError = FabricError::Unsupported { what: "do anything but calls" };

impl Endpoint for Peer {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            one_sided: false,
            atomic_bytes: 0,
            inline_bytes: 0,
            message_bytes_max: 0,
            gather_runs_max: 0,
            gpu_memory: false,
        }
    }

    fn read_to(&self, _: Handle, _: &[ByteRange], _: Destination<'_>) -> Result<(), FabricError> {
        Err(NONE)
    }

    fn write_from(&self, _: Handle, _: &[ByteRange], _: Source<'_>) -> Result<(), FabricError> {
        Err(NONE)
    }

    fn compare_and_swap(&self, _: Handle, _: u64, _: u64, _: u64) -> Result<u64, FabricError> {
        Err(NONE)
    }

    fn fetch_and_add(&self, _: Handle, _: u64, _: u64) -> Result<u64, FabricError> {
        Err(NONE)
    }

    fn call_within(&self, body: &[u8], within: Duration) -> Result<Vec<u8>, FabricError> {
        if self.is_silent.load(Ordering::Acquire) {
            let _ = self.events.send(Event::Ignored(body.to_vec()));
            return Err(FabricError::Timeout { peer: NodeId(1), during: "a call", after: within });
        }
        let _ = self.events.send(Event::Heard(body.to_vec()));
        Ok(Vec::new())
    }

    fn call(&self, body: &[u8]) -> Result<Vec<u8>, FabricError> {
        self.call_within(body, LONG)
    }

    fn queue(&self, _: usize) -> Result<Box<dyn Queue>, FabricError> {
        Err(NONE)
    }
}

fn closer() -> Arc<Closer> {
    Closer::with_patience(|handle| handle.0.to_le_bytes().to_vec(), Duration::from_millis(1))
}

fn message(handle: u32) -> Vec<u8> {
    handle.to_le_bytes().to_vec()
}

#[test]
fn what_a_silent_peer_was_not_told_is_said_once_it_answers_again() {
    let closer = closer();
    let (endpoint, is_silent, events) = Peer::silent();
    let leases: Vec<_> = (0..5).map(|handle| closer.lease(Arc::clone(&endpoint), Handle(handle))).collect();
    drop(leases);
    assert_eq!(events.recv_timeout(LONG), Ok(Event::Ignored(message(0))));
    is_silent.store(false, Ordering::Release);
    let mut heard = Vec::new();
    while heard.len() < 5 {
        match events.recv_timeout(LONG).unwrap() {
            Event::Heard(body) => heard.push(body),
            other => assert_eq!(other, Event::Ignored(message(0))),
        }
    }
    assert_eq!(heard, Vec::from_iter((0..5).map(message)));
}

#[test]
fn the_connection_to_a_silent_peer_is_let_go_of_with_its_last_handle() {
    let closer = closer();
    let (endpoint, _, events) = Peer::silent();
    drop(closer.lease(endpoint, Handle(7)));
    // It may be asked again before the last of its handles is seen to be gone.
    while let Event::Ignored(body) = events.recv_timeout(LONG).unwrap() {
        assert_eq!(body, message(7));
    }
}

#[test]
fn a_silent_peer_keeps_no_other_from_being_told() {
    let closer = closer();
    let ((silent, _, ignored), (other, is_silent, heard)) = (Peer::silent(), Peer::silent());
    is_silent.store(false, Ordering::Release);
    for handle in 0..20 {
        drop(closer.lease(Arc::clone(&silent), Handle(handle)));
        drop(closer.lease(Arc::clone(&other), Handle(handle)));
        assert_eq!(heard.recv_timeout(LONG), Ok(Event::Heard(message(handle))));
    }
    // What it heard first comes first, however often it was asked.
    assert!(ignored.try_iter().all(|event| event == Event::Ignored(message(0))));
}
