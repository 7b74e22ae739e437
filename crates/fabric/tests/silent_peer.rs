//! A peer that takes connections and says nothing, as one that was stopped does.
#![allow(clippy::unwrap_used)]

use hinterland_fabric::tcp::{ClientOptions, Server, ServerOptions, TcpEndpoint};
use hinterland_fabric::{Endpoint, MemoryService, Slice};
use hinterland_types::Rights;
use std::io::copy;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Where one connection leads to a server, until it is cut, and all others lead nowhere.
struct Front {
    address: SocketAddr,
    first: TcpStream,
    connections: Arc<AtomicUsize>,
}

impl Front {
    /// Takes connections for a server; gives itself with the endpoint whose connection was the first.
    fn of(server: SocketAddr, options: ClientOptions) -> (Self, TcpEndpoint) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connecting = std::thread::spawn(move || TcpEndpoint::connect(address, options).unwrap());
        let (first, behind) = (listener.accept().unwrap().0, TcpStream::connect(server).unwrap());
        for (mut from, mut to) in [(&first, &behind), (&behind, &first)]
            .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
        {
            std::thread::spawn(move || copy(&mut from, &mut to));
        }
        let endpoint = connecting.join().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            while let Ok((stream, _)) = listener.accept() {
                counted.fetch_add(1, Ordering::SeqCst);
                kept.push(stream);
            }
        });
        (Self { address, first, connections }, endpoint)
    }
}

#[test]
fn threads_that_wait_for_one_stream_wait_together_for_a_peer_that_does_not_answer() {
    const THREADS: usize = 8;
    let memory = MemoryService::new(Slice::copied(&[0; 64]), Rights::READ);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(listener, Arc::new(memory), ServerOptions::default()).unwrap();
    let options = ClientOptions { streams: 1, timeout: Duration::from_secs(2), ..ClientOptions::default() };
    let (front, endpoint) = Front::of(server.address(), options);
    endpoint.call(b"one").unwrap();
    front.first.shutdown(Shutdown::Both).unwrap();
    endpoint.call(b"two").unwrap_err();
    let together = Barrier::new(THREADS);
    let errors: Vec<String> = std::thread::scope(|scope| {
        let ask = || {
            together.wait();
            endpoint.call_within(b"three", Duration::from_secs(60)).unwrap_err().to_string()
        };
        let asking: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
        asking.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let tried = front.connections.load(Ordering::SeqCst);
    assert!(tried < THREADS / 2, "{tried} connections to {}, one after the other", front.address);
    assert!(errors.iter().all(|error| error.contains("no answer to the handshake in time")), "{errors:?}");
}
