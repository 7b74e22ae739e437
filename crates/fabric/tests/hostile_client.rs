//! A server among peers that lie, stall, flood and vanish: they are cut off, and nobody else notices.
#![allow(clippy::unwrap_used)]

use hinterland_fabric::tcp::{ClientOptions, Server, ServerOptions, TcpEndpoint};
use hinterland_fabric::{Endpoint, FabricError, MemoryService, Slice};
use hinterland_proto::checksum::crc32c;
use hinterland_proto::{
    ClientHandshake, ClientIdentity, ClientStep, Established, Features, FrameHeader, FrameKind, FrameSender,
    HandshakeError, PoolId, PoolKey, RefusalCode, Role, encode_runs,
};
use hinterland_types::{ByteRange, NodeId, Rights};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Barrier};
use std::time::Duration;

const MEMORY_BYTES: usize = 8 << 20;

fn serve(options: ServerOptions) -> (Server, Arc<MemoryService>) {
    let service = Arc::new(MemoryService::new(Slice::zeroed(MEMORY_BYTES), Rights::ALL));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (Server::start(listener, service.clone(), options).unwrap(), service)
}

fn impatient() -> ServerOptions {
    let short = Duration::from_millis(300);
    ServerOptions { handshake_timeout: short, stall_timeout: short, ..ServerOptions::default() }
}

/// A peer that got through the handshake and does what it likes from there on.
struct Peer {
    stream: TcpStream,
    established: Established,
    sender: FrameSender,
}

impl Peer {
    fn connect(server: &Server) -> Self {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let identity = ClientIdentity {
            role: Role::Client,
            node: NodeId(0),
            pool: PoolId::ANY,
            key: None,
            features: Features(0),
            join: None,
        };
        let (mut machine, hello) = ClientHandshake::new(identity, [7; 32]);
        stream.write_all(&hello).unwrap();
        let mut buffer = [0; 1024];
        loop {
            let received = stream.read(&mut buffer).unwrap();
            assert!(received > 0, "the server closed during the handshake");
            let mut input = &buffer[..received];
            while !input.is_empty() {
                let (taken, step) = machine.receive(input).unwrap();
                input = &input[taken..];
                match step {
                    ClientStep::Wait => {}
                    ClientStep::Send(bytes) => stream.write_all(&bytes).unwrap(),
                    ClientStep::Done(established) => {
                        let sender = FrameSender::new(established.send_sequence);
                        return Self { stream, established, sender };
                    }
                }
            }
        }
    }

    /// A good request for `bytes` bytes.
    fn read_frame(&mut self, bytes: u64) -> Vec<u8> {
        let mut table = Vec::new();
        encode_runs(&[ByteRange::new(0, bytes).unwrap()], &mut table).unwrap();
        let mut header = FrameHeader::new(FrameKind::Read, 1, table.len() as u32);
        header.handle = MemoryService::HANDLE;
        header.argument = 1;
        header.body_crc = Some(crc32c(&table));
        [&self.sender.seal(header)[..], &table].concat()
    }

    /// Whether the server answered nothing more and closed.
    fn is_cut_off(&mut self) -> bool {
        let mut buffer = [0; 4096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

/// Fails unless an honest client is served as if nobody else were there.
fn assert_unharmed(server: &Server) {
    let endpoint = TcpEndpoint::connect(server.address(), ClientOptions::default()).unwrap();
    let mut into = vec![1; 100_000];
    endpoint.read(MemoryService::HANDLE, &[ByteRange::new(5, 100_000).unwrap()], &mut into).unwrap();
    assert!(into.iter().all(|byte| *byte == 0));
    assert_eq!(endpoint.call(b"ping").unwrap(), b"ping");
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..5000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what} did not happen");
}

/// Sends bytes as a peer behind the handshake; it must be cut off, its session closed and the others unharmed.
fn cut_off_after(make: impl Fn(&mut Peer) -> Vec<u8>) {
    let (server, service) = serve(impatient());
    let mut peer = Peer::connect(&server);
    let bytes = make(&mut peer);
    // The server may close before all is sent.
    let _ = peer.stream.write_all(&bytes);
    assert!(peer.is_cut_off());
    eventually("the end of the session", || service.open_sessions() == 0 && server.connections() == 0);
    assert_unharmed(&server);
}

#[test]
fn garbage_is_cut_off() {
    cut_off_after(|_| (0..10_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect());
}

#[test]
fn a_flipped_bit_is_cut_off() {
    for place in [0usize, 5, 6, 9, 20, 30, 40, 47, 48, 60] {
        cut_off_after(|peer| {
            let mut frame = peer.read_frame(64);
            frame[place] ^= 0x10;
            frame
        });
    }
}

#[test]
fn a_truncated_frame_is_cut_off_when_patience_ends() {
    cut_off_after(|peer| peer.read_frame(64)[..60].to_vec());
    cut_off_after(|peer| peer.read_frame(64)[..10].to_vec());
}

#[test]
fn an_oversized_frame_is_cut_off_at_its_header() {
    cut_off_after(|peer| peer.sender.seal(FrameHeader::new(FrameKind::Call, 1, u32::MAX)).to_vec());
}

#[test]
fn a_replayed_frame_is_cut_off() {
    cut_off_after(|peer| {
        let frame = peer.read_frame(64);
        [frame.clone(), frame].concat()
    });
}

#[test]
fn a_frame_of_another_connection_is_cut_off() {
    let (server, _) = serve(impatient());
    let mut recorded = Peer::connect(&server);
    let frame = recorded.read_frame(64);
    let mut peer = Peer::connect(&server);
    assert_ne!(recorded.established.send_sequence, peer.established.send_sequence);
    peer.stream.write_all(&frame).unwrap();
    assert!(peer.is_cut_off());
    recorded.stream.write_all(&frame).unwrap();
    assert!(recorded.stream.read(&mut [0; 64]).unwrap() > 0);
}

#[test]
fn an_answer_from_a_client_is_cut_off() {
    for kind in [FrameKind::Reply, FrameKind::WriteReply] {
        cut_off_after(|peer| peer.sender.seal(FrameHeader::new(kind, 1, 0)).to_vec());
    }
}

#[test]
fn a_write_whose_runs_and_bytes_differ_is_cut_off() {
    cut_off_after(|peer| {
        let mut table = Vec::new();
        encode_runs(&[ByteRange::new(0, 5000).unwrap()], &mut table).unwrap();
        let mut header = FrameHeader::new(FrameKind::Write, 1, table.len() as u32 + 4999);
        header.handle = MemoryService::HANDLE;
        header.argument = 1;
        [&peer.sender.seal(header)[..], &table, &[1; 4999]].concat()
    });
}

#[test]
fn a_write_that_claims_more_than_it_sends_is_cut_off_and_holds_up_nobody() {
    let (server, _) = serve(impatient());
    let mut peer = Peer::connect(&server);
    let mut table = Vec::new();
    encode_runs(&[ByteRange::new(0, 4 << 20).unwrap()], &mut table).unwrap();
    let mut header = FrameHeader::new(FrameKind::Write, 1, table.len() as u32 + (4 << 20));
    header.handle = MemoryService::HANDLE;
    header.argument = 1;
    let sealed = peer.sender.seal(header);
    peer.stream.write_all(&[&sealed[..], &table, &[0; 1000]].concat()).unwrap();
    assert_unharmed(&server);
    assert!(peer.is_cut_off());
    assert_unharmed(&server);
}

#[test]
fn a_peer_that_never_reads_is_cut_off_and_holds_up_nobody() {
    let (server, service) = serve(impatient());
    let mut peer = Peer::connect(&server);
    for _ in 0..16 {
        let frame = peer.read_frame(4 << 20);
        peer.stream.write_all(&frame).unwrap();
    }
    assert_unharmed(&server);
    eventually("the end of the session", || service.open_sessions() == 0);
    assert_unharmed(&server);
}

#[test]
fn a_peer_that_closes_midway_leaves_nothing_behind() {
    let (server, service) = serve(ServerOptions::default());
    for length in [0usize, 1, 48, 63, 64] {
        let mut peer = Peer::connect(&server);
        let frame = peer.read_frame(4 << 20);
        peer.stream.write_all(&frame[..length]).unwrap();
        drop(peer);
    }
    eventually("the end of all sessions", || service.open_sessions() == 0 && server.connections() == 0);
    assert_unharmed(&server);
}

#[test]
fn a_peer_that_says_nothing_is_sent_away() {
    let (server, service) = serve(impatient());
    let mut silent = TcpStream::connect(server.address()).unwrap();
    let mut slow = TcpStream::connect(server.address()).unwrap();
    slow.write_all(b"HNTL").unwrap();
    for stream in [&mut silent, &mut slow] {
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        let text = String::from_utf8_lossy(&said).into_owned();
        assert!(text.contains("took too long"), "{text:?}");
    }
    assert_eq!(service.open_sessions(), 0);
}

#[test]
fn more_silent_peers_than_allowed_are_refused_and_room_comes_back() {
    let (server, _) = serve(ServerOptions { handshakes_max: 3, ..impatient() });
    let silent: Vec<_> = (0..3).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
    eventually("the silent connections", || server.connections() == 3);
    let error = TcpEndpoint::connect(server.address(), ClientOptions::default()).err().unwrap();
    assert!(error.to_string().contains("waits for 3 others"), "{error}");
    eventually("the end of the silent connections", || server.connections() == 0);
    assert_unharmed(&server);
    drop(silent);
}

#[test]
fn clients_that_come_all_at_once_are_all_let_in() {
    const CLIENTS: usize = 100;
    let (server, _) = serve(ServerOptions { handshakes_max: 4, ..ServerOptions::default() });
    let together = Barrier::new(CLIENTS);
    let options = ClientOptions { streams: 1, ..ClientOptions::default() };
    std::thread::scope(|scope| {
        let connect = || {
            together.wait();
            TcpEndpoint::connect(server.address(), options.clone()).map(drop)
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(connect)).collect();
        for client in clients {
            client.join().unwrap().unwrap();
        }
    });
}

#[test]
fn more_connections_than_allowed_are_refused() {
    let (server, _) = serve(ServerOptions { connections_max: 2, ..ServerOptions::default() });
    let one = ClientOptions { streams: 1, ..ClientOptions::default() };
    let kept: Vec<_> = (0..2).map(|_| TcpEndpoint::connect(server.address(), one.clone()).unwrap()).collect();
    match TcpEndpoint::connect(server.address(), one.clone()).err().unwrap() {
        FabricError::Handshake { source: HandshakeError::Refused(refusal), .. } => {
            assert_eq!(refusal.code, RefusalCode::Full);
        }
        other => panic!("{other}"),
    }
    drop(kept);
    eventually("the end of the connections", || server.connections() == 0);
    assert!(TcpEndpoint::connect(server.address(), one).is_ok());
}

#[test]
fn an_http_client_is_told_what_this_port_is() {
    let (server, _) = serve(ServerOptions::default());
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let request = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(3000));
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 400") && answer.contains("Hinterland protocol"), "{answer}");
}

#[test]
fn a_guessed_ticket_opens_no_session() {
    let (server, service) = serve(ServerOptions::default());
    let honest = Peer::connect(&server);
    let mut identity = ClientIdentity {
        role: Role::Client,
        node: NodeId(0),
        pool: PoolId::ANY,
        key: None,
        features: Features(0),
        join: Some(honest.established.ticket.clone()),
    };
    if let Some(ticket) = identity.join.as_mut() {
        ticket.secret[31] ^= 1;
    }
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let (mut machine, hello) = ClientHandshake::new(identity, [3; 32]);
    stream.write_all(&hello).unwrap();
    let mut buffer = [0; 1024];
    let error = loop {
        let received = stream.read(&mut buffer).unwrap();
        match machine.receive(&buffer[..received]) {
            Ok((_, ClientStep::Send(bytes))) => stream.write_all(&bytes).unwrap(),
            Ok((_, ClientStep::Wait)) => {}
            Ok((_, ClientStep::Done(_))) => panic!("the ticket was taken"),
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, HandshakeError::Refused(r) if r.code == RefusalCode::Ticket), "{error}");
    assert_eq!((server.sessions(), service.open_sessions()), (1, 1));
}

#[test]
fn only_the_key_of_the_pool_opens_a_keyed_server() {
    let key = |byte| Some(PoolKey([byte; 32]));
    let (server, service) = serve(ServerOptions { key: key(1), ..ServerOptions::default() });
    let connect =
        |key| TcpEndpoint::connect(server.address(), ClientOptions { key, ..ClientOptions::default() });
    let keyless = connect(None).err().unwrap().to_string();
    assert!(keyless.contains("--key FILE") && keyless.contains("HINTERLAND_KEY_FILE"), "{keyless}");
    let wrong = connect(key(2)).err().unwrap().to_string();
    assert!(wrong.contains("nodes by --key,") && wrong.contains("HINTERLAND_KEY_FILE"), "{wrong}");
    assert_eq!(service.open_sessions(), 0);
    let endpoint = connect(key(1)).unwrap();
    let mut into = vec![1; 3 << 20];
    endpoint.read(MemoryService::HANDLE, &[ByteRange::new(0, 3 << 20).unwrap()], &mut into).unwrap();
}

#[test]
fn a_disconnected_session_is_over_for_good() {
    let (server, service) = serve(ServerOptions::default());
    let endpoint = TcpEndpoint::connect(server.address(), ClientOptions::default()).unwrap();
    endpoint.call(b"x").unwrap();
    server.disconnect(endpoint.session());
    eventually("the end of the session", || service.open_sessions() == 0);
    assert!(endpoint.call(b"x").unwrap_err().is_connection_lost());
    let error = endpoint.call(b"x").unwrap_err();
    assert!(matches!(error, FabricError::SessionLost { .. }), "{error}");
}
