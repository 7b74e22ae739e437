//! A service that panics over a request: whoever asked hears of it, and nothing of the connection is left.
#![allow(clippy::unwrap_used)]

use hinterland_fabric::tcp::{ClientOptions, Server, ServerOptions, TcpEndpoint};
use hinterland_fabric::{Endpoint, FabricError, Service, Slice};
use hinterland_proto::{PeerHello, Refusal, RemoteError};
use hinterland_types::{ByteRange, Handle, Rights, SessionId};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Panics over what is said to it, or over whoever comes.
#[derive(Default)]
struct Nervous {
    sessions: AtomicU64,
    fears_sessions_from: u64,
}

impl Service for Nervous {
    fn opened(&self, _: &PeerHello) -> Result<SessionId, Refusal> {
        let number = self.sessions.fetch_add(1, Ordering::SeqCst);
        assert!(number < self.fears_sessions_from, "a defect of the service");
        Ok(SessionId(number + 1))
    }

    fn closed(&self, _: SessionId) {}

    fn resolve(&self, _: SessionId, _: Handle, _: ByteRange, _: Rights) -> Result<Slice, RemoteError> {
        panic!("a defect of the service")
    }

    fn call(&self, _: SessionId, body: &[u8]) -> Result<Vec<u8>, RemoteError> {
        assert!(body != b"boo", "a defect of the service");
        Ok(body.to_vec())
    }
}

fn start(fears_sessions_from: u64, options: ServerOptions) -> Server {
    let service = Nervous { fears_sessions_from, ..Nervous::default() };
    Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), Arc::new(service), options).unwrap()
}

fn until_none_is_open(server: &Server) {
    let until = Instant::now() + Duration::from_secs(20);
    while server.connections() > 0 {
        assert!(Instant::now() < until, "{} connections are left", server.connections());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_request_over_which_the_service_panics_ends_its_connection_at_once_and_no_other() {
    let server = start(u64::MAX, ServerOptions::default());
    let connect = || TcpEndpoint::connect(server.address(), ClientOptions::default()).unwrap();
    let (other, endpoint) = (connect(), connect());
    let failed = endpoint.call(b"boo").unwrap_err();
    assert!(matches!(failed, FabricError::Closed { .. }), "{failed}");
    let failed = connect().read(Handle(1), &[ByteRange::new(0, 8).unwrap()], &mut [0; 8]).unwrap_err();
    assert!(matches!(failed, FabricError::Closed { .. }), "{failed}");
    assert_eq!(other.call(b"hello").unwrap(), b"hello");
    drop((endpoint, other));
    until_none_is_open(&server);
    assert_eq!(server.sessions(), 0);
}

#[test]
fn peers_over_which_the_service_panics_do_not_keep_others_out() {
    let options = ServerOptions { handshakes_max: 4, connections_max: 4, ..ServerOptions::default() };
    let server = start(0, options);
    for _ in 0..8 {
        let failed = TcpEndpoint::connect(server.address(), ClientOptions::default()).err().unwrap();
        let words = failed.to_string();
        assert!(!words.contains("connections open") && !words.contains("others that have"), "{words}");
        until_none_is_open(&server);
    }
}
