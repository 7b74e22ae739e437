//! Calls that must not wait behind others, over real sockets.
#![allow(clippy::unwrap_used)]

use hinterland_fabric::tcp::{ClientOptions, Server, ServerOptions, TcpEndpoint};
use hinterland_fabric::{Endpoint, FabricError, MemoryService, Service, Slice};
use hinterland_proto::{PeerHello, Refusal, RemoteError};
use hinterland_types::{ByteRange, Handle, Rights, SessionId};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Answers what is called `slow` when it is let go, and all else at once.
struct Slow {
    memory: MemoryService,
    waiting: AtomicUsize,
    is_let_go: Mutex<bool>,
    changed: Condvar,
}

impl Service for Slow {
    fn opened(&self, peer: &PeerHello) -> Result<SessionId, Refusal> {
        self.memory.opened(peer)
    }

    fn closed(&self, session: SessionId) {
        self.memory.closed(session);
    }

    fn resolve(
        &self,
        session: SessionId,
        handle: Handle,
        range: ByteRange,
        needed: Rights,
    ) -> Result<Slice, RemoteError> {
        self.memory.resolve(session, handle, range, needed)
    }

    fn call(&self, session: SessionId, body: &[u8]) -> Result<Vec<u8>, RemoteError> {
        if body == b"slow" {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let is_let_go = self.is_let_go.lock().unwrap();
            drop(self.changed.wait_while(is_let_go, |is_let_go| !*is_let_go).unwrap());
        }
        self.memory.call(session, body)
    }
}

const STREAMS: usize = 3;

fn connected(urgent: bool) -> (Arc<Slow>, Server, Arc<TcpEndpoint>) {
    let service = Arc::new(Slow {
        memory: MemoryService::new(Slice::copied(&[0; 64]), Rights::READ),
        waiting: AtomicUsize::new(0),
        is_let_go: Mutex::new(false),
        changed: Condvar::new(),
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(listener, service.clone(), ServerOptions::default()).unwrap();
    let options = ClientOptions { streams: STREAMS, urgent, ..ClientOptions::default() };
    let endpoint = Arc::new(TcpEndpoint::connect(server.address(), options).unwrap());
    (service, server, endpoint)
}

/// As many slow calls as there are streams, and then one more.
fn call_behind_slow_ones(urgent: bool) -> bool {
    let (service, _server, endpoint) = connected(urgent);
    std::thread::scope(|scope| {
        for _ in 0..STREAMS {
            scope.spawn(|| endpoint.call_within(b"slow", Duration::from_secs(60)).unwrap());
        }
        while service.waiting.load(Ordering::SeqCst) < STREAMS {
            std::thread::sleep(Duration::from_millis(1));
        }
        let call = scope.spawn(|| endpoint.call_urgent_within(b"now", Duration::from_secs(60)).unwrap());
        let mut is_answered = false;
        for _ in 0..if urgent { 20_000 } else { 100 } {
            is_answered = call.is_finished();
            if is_answered {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        *service.is_let_go.lock().unwrap() = true;
        service.changed.notify_all();
        assert_eq!(call.join().unwrap(), b"now");
        is_answered
    })
}

#[test]
fn an_urgent_call_does_not_wait_for_calls_that_take_all_streams() {
    assert!(call_behind_slow_ones(true));
    assert!(!call_behind_slow_ones(false), "without the stream it would, or this shows nothing");
}

#[test]
fn a_call_waits_for_a_stream_no_longer_than_it_may() {
    let (service, _server, endpoint) = connected(false);
    let endpoint = &endpoint;
    let short = Duration::from_millis(50);
    std::thread::scope(|scope| {
        for _ in 0..STREAMS {
            scope.spawn(|| endpoint.call_within(b"slow", Duration::from_secs(60)).unwrap());
        }
        while service.waiting.load(Ordering::SeqCst) < STREAMS {
            std::thread::sleep(Duration::from_millis(1));
        }
        let calls = [
            scope.spawn(move || endpoint.call_within(b"now", short)),
            scope.spawn(move || endpoint.call_urgent_within(b"now", short)),
            scope.spawn(move || endpoint.call_while(b"now", Duration::from_secs(60), &|| false)),
        ];
        // Less than after which the slow calls give up, and leave their streams to others.
        for _ in 0..20_000 {
            if calls.iter().all(|call| call.is_finished()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let are_over = calls.iter().all(|call| call.is_finished());
        *service.is_let_go.lock().unwrap() = true;
        service.changed.notify_all();
        assert!(are_over, "they wait for the slow ones");
        for call in calls {
            let error = call.join().unwrap().unwrap_err();
            assert!(matches!(error, FabricError::Timeout { during: "waiting for a stream", .. }), "{error}");
        }
    });
    assert_eq!(endpoint.call(b"now").unwrap(), b"now");
}

#[test]
fn all_of_many_calls_find_a_stream() {
    let (_service, _server, endpoint) = connected(false);
    std::thread::scope(|scope| {
        for number in 0..32_u32 {
            let endpoint = &endpoint;
            scope.spawn(move || {
                for round in 0..200_u32 {
                    let body = [number.to_le_bytes(), round.to_le_bytes()].concat();
                    assert_eq!(endpoint.call(&body).unwrap(), body);
                }
            });
        }
    });
}
