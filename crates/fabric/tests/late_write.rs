//! A write that its peer has given up while the node was stopped or starved: it must not be done on top of what was written since.
#![allow(clippy::unwrap_used)]

use hinterland_fabric::tcp::{ClientOptions, Server, ServerOptions, TcpEndpoint, Tls};
use hinterland_fabric::{Endpoint, FabricError, MemoryService, Service, Slice};
use hinterland_proto::{PeerHello, Refusal, RemoteError};
use hinterland_types::{ByteRange, Handle, Rights, SessionId};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[path = "certificates/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod certificates;

const HANDLE: Handle = MemoryService::HANDLE;

/// Where another file has these tests as a module of its own, they run under TLS.
fn tls() -> Option<Tls> {
    let made = || Tls::open(&certificates::Authority::fresh().folder()).unwrap();
    module_path!().contains("::").then(made)
}

/// Memory of which the first access for writing is held up until somebody says so, as by a machine that has no time for its thread.
struct HeldUp {
    memory: MemoryService,
    held: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    closed: Sender<()>,
}

impl Service for HeldUp {
    fn opened(&self, peer: &PeerHello) -> Result<SessionId, Refusal> {
        self.memory.opened(peer)
    }

    fn closed(&self, session: SessionId) {
        self.memory.closed(session);
        self.closed.send(()).unwrap();
    }

    fn resolve(
        &self,
        session: SessionId,
        handle: Handle,
        range: ByteRange,
        needed: Rights,
    ) -> Result<Slice, RemoteError> {
        let slice = self.memory.resolve(session, handle, range, needed);
        let held = needed.allows(Rights::WRITE).then(|| self.held.lock().unwrap().take()).flatten();
        if let Some((came, goes_on)) = held {
            came.send(()).unwrap();
            goes_on.recv().unwrap();
        }
        slice
    }

    fn call(&self, session: SessionId, body: &[u8]) -> Result<Vec<u8>, RemoteError> {
        self.memory.call(session, body)
    }
}

/// Gives `late` up while the node is held up with it, does `newer` over another connection, and lets the node go on; the first word then.
fn word_after(
    memory: Slice,
    late: impl FnOnce(&TcpEndpoint) -> FabricError,
    newer: impl FnOnce(&TcpEndpoint),
) -> u64 {
    let (came, comes) = channel();
    let (go_on, goes_on) = channel();
    let (closed, closes) = channel();
    let memory = MemoryService::new(memory, Rights::ALL);
    let service = Arc::new(HeldUp { memory, held: Mutex::new(Some((came, goes_on))), closed });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let tls = tls();
    let options = ServerOptions { tls: tls.clone(), ..ServerOptions::default() };
    let server = Server::start(listener, service.clone(), options).unwrap();
    let connect = |timeout| {
        let options = ClientOptions { streams: 1, timeout, tls: tls.clone(), ..ClientOptions::default() };
        TcpEndpoint::connect(server.address(), options).unwrap()
    };
    let first = connect(Duration::from_secs(2));
    let error = late(&first);
    assert!(matches!(error, FabricError::Timeout { .. }), "{error}");
    comes.recv().unwrap();
    let second = connect(Duration::from_secs(60));
    newer(&second);
    go_on.send(()).unwrap();
    // The session of what was given up ends behind whatever is done of it.
    closes.recv().unwrap();
    let mut word = [0; 8];
    service.memory.memory().copy_out(0, &mut word);
    u64::from_le_bytes(word)
}

#[test]
fn what_was_given_up_is_not_done_on_top_of_what_was_written_since() {
    // With a checksum, and long ones, of both kinds of memory: of those not all may have been received when they are resolved.
    std::thread::scope(|scope| {
        for (bytes, is_changing) in [8, 64 << 10, 200 << 10].into_iter().flat_map(|b| [(b, false), (b, true)])
        {
            scope.spawn(move || {
                let memory = Slice::zeroed(1 << 20);
                let memory = if is_changing { memory.changing() } else { memory };
                let run = [ByteRange::new(0, bytes).unwrap()];
                let write =
                    |endpoint: &TcpEndpoint, byte| endpoint.write(HANDLE, &run, &vec![byte; bytes as usize]);
                let late = |endpoint: &TcpEndpoint| write(endpoint, 1).unwrap_err();
                let newer = |endpoint: &TcpEndpoint| write(endpoint, 2).unwrap();
                let word = word_after(memory, late, newer);
                assert_eq!(word, 0x0202_0202_0202_0202, "{bytes} bytes, {is_changing}");
            });
        }
    });
}

#[test]
fn a_swap_and_an_addition_that_were_given_up_are_not_done_later() {
    let newer =
        |endpoint: &TcpEndpoint| endpoint.write(HANDLE, &[ByteRange::new(8, 8).unwrap()], &[2; 8]).unwrap();
    let swap = |endpoint: &TcpEndpoint| endpoint.compare_and_swap(HANDLE, 0, 0, 5).unwrap_err();
    assert_eq!(word_after(Slice::zeroed(64), swap, newer), 0);
    let add = |endpoint: &TcpEndpoint| endpoint.fetch_and_add(HANDLE, 0, 5).unwrap_err();
    assert_eq!(word_after(Slice::zeroed(64), add, newer), 0);
}
