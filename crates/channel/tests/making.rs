//! Who may have a channel gets one, everybody else a clear refusal, and nobody hangs.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod ground;
#[path = "../../proto/tests/mutate/mod.rs"]
#[allow(dead_code, reason = "other targets use the rest")]
mod mutate;

use ground::{Folder, LONG, client, meet, node, send, take, tcp_listener};
use hinterland_channel::{Address, Channel, ChannelError, ChannelOptions, Listener, Peer, Rings, connect};
use hinterland_proto::{
    ClientHandshake, ClientIdentity, HandshakeError, PoolKey, RefusalCode, ServerHandshake, ServerIdentity,
    ServerStep,
};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Options under which nobody waits long.
fn brief() -> ChannelOptions {
    ChannelOptions { greeting_max: Duration::from_millis(400), ..ChannelOptions::default() }
}

fn key(byte: u8) -> Option<PoolKey> {
    Some(PoolKey([byte; 32]))
}

/// What both sides say when this client comes to this node over TCP.
fn both(
    server: ServerIdentity,
    client: &ClientIdentity,
) -> (Result<Channel, ChannelError>, Result<(Channel, Peer), ChannelError>) {
    let listener = Listener::bind(&"tcp:127.0.0.1:0".parse().unwrap(), server, brief()).unwrap();
    std::thread::scope(|scope| {
        let admitted = scope.spawn(|| listener.accept(LONG).unwrap().unwrap().admit());
        (connect(&listener.address(), client, brief()), admitted.join().unwrap())
    })
}

fn talk(ours: Channel, theirs: Channel) {
    let ((mut ask, mut hear), (mut answer, mut listen)) = (ours.split().unwrap(), theirs.split().unwrap());
    send(&mut ask, 1, b"question").unwrap();
    assert_eq!(take(&mut listen).unwrap(), (1, b"question".to_vec()));
    send(&mut answer, 2, b"answer").unwrap();
    assert_eq!(take(&mut hear).unwrap(), (2, b"answer".to_vec()));
}

#[test]
fn within_a_host_the_channel_is_in_shared_memory() {
    let folder = Folder::new("within");
    let options = ChannelOptions { rings: Rings { ring_bytes: 1 << 20, body_bytes_max: 5000 }, ..brief() };
    let listener = Listener::bind(&folder.address(), node(None), options).unwrap();
    let (ours, theirs) = meet(&listener, &listener.address(), ChannelOptions::default());
    assert!(ours.is_shared() && theirs.is_shared());
    let (ours, theirs) = (ours.split().unwrap(), theirs.split().unwrap());
    assert_eq!((ours.0.body_max(), theirs.1.body_max()), (5000, 5000), "the node chooses");
    drop((ours, theirs));
    let (ours, theirs) = meet(&listener, &listener.address(), ChannelOptions::default());
    talk(ours, theirs);
}

#[test]
fn over_tcp_the_node_chooses_the_longest_body() {
    let options = ChannelOptions { rings: Rings { ring_bytes: 64 << 10, body_bytes_max: 30_000 }, ..brief() };
    let listener = tcp_listener(options);
    let (ours, theirs) = meet(&listener, &listener.address(), ChannelOptions::default());
    assert!(!ours.is_shared());
    let (ours, theirs) = (ours.split().unwrap(), theirs.split().unwrap());
    assert_eq!((ours.0.body_max(), theirs.1.body_max()), (30_000, 30_000));
    drop((ours, theirs));
    let large = Rings { ring_bytes: 16 << 20, body_bytes_max: 4 << 20 };
    let listener = tcp_listener(ChannelOptions { rings: large, ..brief() });
    let (ours, theirs) = meet(&listener, &listener.address(), brief());
    let ((mut sender, _hear), (_answer, mut receiver)) = (ours.split().unwrap(), theirs.split().unwrap());
    let taker = std::thread::spawn(move || (take(&mut receiver).unwrap(), _answer));
    let longest = ground::body(1, sender.body_max());
    send(&mut sender, 1, &longest).unwrap();
    assert!(taker.join().unwrap().0 == (1, longest), "the client's ring grows as needed");
}

#[test]
fn a_node_that_speaks_first_is_heard() {
    let listener = tcp_listener(brief());
    let address = listener.address();
    let server = std::thread::spawn(move || {
        let (mut sender, receiver) =
            listener.accept(LONG).unwrap().unwrap().admit().unwrap().0.split().unwrap();
        send(&mut sender, 9, b"first").unwrap();
        sender.flush().unwrap();
        (sender, receiver)
    });
    let (_sender, mut receiver) = connect(&address, &client(None), brief()).unwrap().split().unwrap();
    assert_eq!(take(&mut receiver).unwrap(), (9, b"first".to_vec()));
    drop(server.join().unwrap());
}

#[test]
fn with_the_same_key_a_client_is_admitted_and_else_told_what_is_missing() {
    let (ours, theirs) = both(node(key(1)), &client(key(1)));
    let (theirs, peer) = theirs.unwrap();
    assert!(peer.hello.keyed && peer.address.is_some() && peer.credentials.is_none());
    talk(ours.unwrap(), theirs);
    for (server, client, code) in [
        (node(key(1)), client(None), Some(RefusalCode::KeyNeeded)),
        (node(None), client(key(1)), Some(RefusalCode::KeyUnknown)),
        (node(key(1)), client(key(2)), None),
    ] {
        let (ours, theirs) = both(server, &client);
        match (ours.unwrap_err(), code) {
            (ChannelError::Handshake { source: HandshakeError::Refused(refusal), .. }, Some(code)) => {
                assert_eq!(refusal.code, code);
            }
            // The client finds out first that the node has another key.
            (ChannelError::Handshake { source: HandshakeError::WrongKey { .. }, .. }, None) => {}
            (error, code) => panic!("{code:?}: {error}"),
        }
        assert!(matches!(theirs, Err(ChannelError::NotAdmitted { .. })));
    }
}

#[test]
fn within_a_host_the_user_is_known_without_a_key() {
    let folder = Folder::new("known");
    let listener = Listener::bind(&folder.address(), node(key(4)), brief()).unwrap();
    for own in [None, key(5)] {
        let (ours, theirs) = std::thread::scope(|scope| {
            let admitted = scope.spawn(|| listener.accept(LONG).unwrap().unwrap().admit().unwrap());
            let ours = connect(&listener.address(), &client(own), brief()).unwrap();
            (ours, admitted.join().unwrap())
        });
        let own_process = std::process::id() as i32;
        assert_eq!(theirs.1.credentials.map(|credentials| credentials.process), Some(own_process));
        talk(ours, theirs.0);
    }
}

/// Runs in a thread that is another user to the system, where this process may become one.
fn as_nobody<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
    const NOBODY: libc::uid_t = 65_534;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: plain values. The bare system call changes this thread only, which ends with the work.
            let result = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) };
            (result == 0).then(work)
        });
        thread.join().unwrap()
    })
}

#[test]
fn another_user_of_the_host_needs_the_key() {
    use std::os::unix::fs::PermissionsExt as _;
    for (name, server, own, admitted) in [
        ("stranger", None, None, false),
        ("unkeyed", key(6), None, false),
        ("wrong", key(6), key(7), false),
        ("keyed", key(6), key(6), true),
    ] {
        let folder = Folder::new(name);
        let listener = Listener::bind(&folder.address(), node(server), brief()).unwrap();
        let open_to_all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&folder.0, open_to_all.clone()).unwrap();
        std::fs::set_permissions(folder.0.join("gpu.sock"), open_to_all).unwrap();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                listener.accept(Some(Duration::from_secs(5))).unwrap().map(|caller| caller.admit())
            });
            let ours = as_nobody(|| connect(&listener.address(), &client(own), brief()));
            let theirs = server.join().unwrap();
            let (Some(ours), Some(theirs)) = (ours, theirs) else {
                eprintln!("skipped: only root may become another user");
                return;
            };
            if admitted {
                let (theirs, peer) = theirs.unwrap();
                assert!(peer.hello.keyed);
                talk(ours.unwrap(), theirs);
            } else {
                let error = ours.unwrap_err();
                assert!(matches!(error, ChannelError::Handshake { .. }), "{name}: {error}");
                assert!(matches!(theirs, Err(ChannelError::NotAdmitted { .. })), "{name}");
            }
        });
    }
}

#[test]
fn nobody_at_the_address_is_an_error_that_names_it() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for address in [
        format!("tcp:{free}"),
        "unix:/nonexistent/gpu.sock".to_owned(),
        "tcp:no.such.host.invalid:1".to_owned(),
    ] {
        let error = connect(&address.parse().unwrap(), &client(None), brief()).unwrap_err();
        assert!(
            matches!(error, ChannelError::Connect { .. }) && error.to_string().contains(&address),
            "{error}"
        );
    }
}

/// Sends bytes to a listener and returns what it answers before it closes.
fn say(address: &Address, bytes: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    match address {
        Address::Tcp(place) => {
            let mut stream = TcpStream::connect(place).unwrap();
            stream.set_read_timeout(LONG).unwrap();
            // The node may close while we still speak.
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut answer);
        }
        Address::Unix(path) => {
            let mut stream = UnixStream::connect(path).unwrap();
            stream.set_read_timeout(LONG).unwrap();
            let _ = stream.write_all(bytes);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_end(&mut answer);
        }
    }
    answer
}

#[test]
fn fuzz_garbage_and_damaged_hellos_are_refused_and_hang_nobody() {
    let folder = Folder::new("garbage");
    let hello = ClientHandshake::new(client(None), [8; 32]).1;
    for address in [folder.address(), "tcp:127.0.0.1:0".parse().unwrap()] {
        let listener = Listener::bind(&address, node(None), brief()).unwrap();
        let address = listener.address();
        let seeds = vec![hello.clone(), b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0; 2000], Vec::new()];
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                while told.recv().is_ok() {
                    let admitted = listener.accept(LONG).unwrap().unwrap().admit();
                    assert!(matches!(admitted, Err(ChannelError::NotAdmitted { .. })), "{admitted:?}");
                }
            });
            tell.send(()).unwrap();
            let answer = String::from_utf8_lossy(&say(&address, b"GET / HTTP/1.1\r\n\r\n")).into_owned();
            assert!(answer.starts_with("HTTP/1.0 400") && answer.contains("hint:"), "{answer}");
            mutate::fuzz(&seeds, |_, bytes| {
                tell.send(()).unwrap();
                say(&address, &bytes);
            });
        });
    }
}

#[test]
fn a_client_that_says_nothing_is_refused_in_time() {
    let folder = Folder::new("silent");
    for address in [folder.address(), "tcp:127.0.0.1:0".parse().unwrap()] {
        let listener = Listener::bind(&address, node(None), brief()).unwrap();
        let (silent_tcp, silent_unix);
        match listener.address() {
            Address::Tcp(place) => {
                silent_tcp = TcpStream::connect(place).unwrap();
                (&silent_tcp).write_all(b"HNT").unwrap();
            }
            Address::Unix(path) => {
                silent_unix = UnixStream::connect(path).unwrap();
                (&silent_unix).write_all(b"HNT").unwrap();
            }
        }
        let start = Instant::now();
        let error = listener.accept(LONG).unwrap().unwrap().admit().unwrap_err();
        assert!(matches!(&error, ChannelError::NotAdmitted { .. }) && error.to_string().contains("too long"));
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn a_node_that_says_nothing_or_something_else_is_left_in_time() {
    let folder = Folder::new("mute");
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = tcp.local_addr().unwrap();
    let unix = UnixListener::bind(folder.0.join("gpu.sock")).unwrap();
    for address in [format!("tcp:{place}").parse().unwrap(), folder.address()] {
        let start = Instant::now();
        let error = connect(&address, &client(None), brief()).unwrap_err();
        assert!(error.to_string().contains("does not answer"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    drop(unix);
    let other = std::thread::spawn(move || {
        // The first connection is the one that was left.
        drop(tcp.accept().unwrap());
        for answer in ["SSH-2.0-OpenSSH_9.2\r\n", "HTTP/1.1 404 Not Found\r\n\r\n", ""] {
            let (mut stream, _) = tcp.accept().unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    for expected in ["SSH-2.0", "HTTP/1.1", "broke off"] {
        let error = connect(&format!("tcp:{place}").parse().unwrap(), &client(None), brief()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    other.join().unwrap();
}

/// A handshake with a peer that is of this project, but speaks no channel.
#[test]
fn a_memory_node_and_its_clients_are_told_apart_from_a_gpu_node() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = tcp.local_addr().unwrap();
    let memory_node = std::thread::spawn(move || {
        let (mut stream, _) = tcp.accept().unwrap();
        let mut machine = Some(ServerHandshake::new(node(None), [5; 32]));
        let mut buffer = [0; 1024];
        while let Some(mut current) = machine.take() {
            let received = stream.read(&mut buffer).unwrap();
            match current.receive(&buffer[..received]).1 {
                ServerStep::Wait => machine = Some(current),
                ServerStep::Send(bytes) => {
                    stream.write_all(&bytes).unwrap();
                    machine = Some(current);
                }
                ServerStep::Authenticated(_) => {
                    stream.write_all(&current.ready(hinterland_types::SessionId(1), [0; 32]).0).unwrap();
                }
                ServerStep::Refuse { refusal, .. } => panic!("{refusal}"),
            }
        }
        stream
    });
    let error = connect(&format!("tcp:{place}").parse().unwrap(), &client(None), brief()).unwrap_err();
    assert!(error.to_string().contains("memory node"), "{error}");
    drop(memory_node.join().unwrap());

    let listener = tcp_listener(brief());
    let Address::Tcp(place) = listener.address() else { panic!("a TCP listener has a TCP address") };
    let pool_client = std::thread::spawn(move || {
        let (mut machine, hello) = ClientHandshake::new(client(None), [6; 32]);
        let mut stream = TcpStream::connect(place).unwrap();
        stream.write_all(&hello).unwrap();
        let mut buffer = [0; 1024];
        loop {
            let received = stream.read(&mut buffer).unwrap();
            assert!(received > 0, "closed without a word");
            match machine.receive(&buffer[..received]) {
                Ok((_, hinterland_proto::ClientStep::Send(bytes))) => stream.write_all(&bytes).unwrap(),
                Ok(_) => {}
                Err(error) => return error,
            }
        }
    });
    assert!(matches!(listener.accept(LONG).unwrap().unwrap().admit(), Err(ChannelError::NotAdmitted { .. })));
    let error = pool_client.join().unwrap();
    assert!(
        matches!(&error, HandshakeError::Refused(refusal) if refusal.code == RefusalCode::Version),
        "{error}"
    );
}

#[test]
fn options_that_no_channel_can_have_are_refused() {
    for rings in [
        Rings { ring_bytes: 0, body_bytes_max: 1 },
        Rings { ring_bytes: 100_000, body_bytes_max: 1 },
        Rings { ring_bytes: 2 << 30, body_bytes_max: 1 },
        Rings { ring_bytes: 64 << 10, body_bytes_max: 0 },
        Rings { ring_bytes: 64 << 10, body_bytes_max: 32 << 10 },
        Rings { ring_bytes: 1 << 30, body_bytes_max: usize::MAX },
    ] {
        let options = ChannelOptions { rings, ..brief() };
        assert!(matches!(hinterland_channel::pair(rings), Err(ChannelError::BadOption { .. })), "{rings:?}");
        let bound = Listener::bind(&"tcp:127.0.0.1:0".parse().unwrap(), node(None), options);
        assert!(matches!(bound, Err(ChannelError::BadOption { .. })), "{rings:?}");
    }
    let longer = Rings { ring_bytes: 64 << 20, body_bytes_max: (4 << 20) + 1 };
    assert!(matches!(hinterland_channel::pair(longer), Err(ChannelError::BadOption { .. })));
}
