//! Who is let in under TLS, what is seen on the wire, and all tests of reads, writes and calls over TCP once more under it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]
#![allow(
    clippy::duplicate_mod,
    reason = "each of the other files makes certificates, as it is a test by itself"
)]

#[path = "late_write.rs"]
mod late_write;
/// All of it under TLS.
#[path = "tcp.rs"]
mod tcp;

use hinterland_fabric::tcp::{ClientOptions, Server, ServerOptions, TcpEndpoint, Tls};
use hinterland_fabric::{Endpoint, FabricError, MemoryService, Slice};
use hinterland_os::{MapOptions, MemoryFile, PageKind};
use hinterland_types::{ByteRange, Rights};
use rcgen::ExtendedKeyUsagePurpose;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tcp::certificates::{Authority, new_folder};

fn tls(folder: &Path) -> Option<Tls> {
    Some(Tls::open(folder).unwrap())
}

fn serve(tls: Option<Tls>) -> Server {
    let service = Arc::new(MemoryService::new(Slice::copied(&[7; 1 << 20]), Rights::READ | Rights::WRITE));
    let options = ServerOptions { tls, ..ServerOptions::default() };
    Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), service, options).unwrap()
}

fn connect(address: SocketAddr, tls: Option<Tls>) -> Result<TcpEndpoint, FabricError> {
    let timeout = Duration::from_secs(5);
    TcpEndpoint::connect(address, ClientOptions { tls, streams: 1, timeout, ..ClientOptions::default() })
}

/// What is said to who is not let in; the server is none the worse for it.
fn refusal(server: &Server, tls: Option<Tls>) -> String {
    let error = connect(server.address(), tls).err().unwrap().to_string();
    assert_eq!(server.sessions(), 0, "{error}");
    error
}

fn read_some(endpoint: &TcpEndpoint) -> Result<Vec<u8>, FabricError> {
    let mut bytes = vec![0; 5000];
    let run = ByteRange::new(100, 5000).unwrap();
    endpoint.read(MemoryService::HANDLE, &[run], &mut bytes)?;
    Ok(bytes)
}

#[test]
fn sides_of_one_authority_come_together_and_others_are_told_why_not() {
    let (ours, theirs) = (Authority::fresh(), Authority::fresh());
    let server = serve(tls(&ours.folder()));
    let endpoint = connect(server.address(), tls(&ours.folder())).unwrap();
    assert_eq!(read_some(&endpoint).unwrap(), vec![7; 5000]);
    drop(endpoint);
    tcp::eventually("the end of the session", || server.sessions() == 0);
    let plain = refusal(&server, None);
    assert!(plain.contains("speaks TLS alone (hint: give --tls"), "{plain}");
    let foreign = refusal(&server, tls(&theirs.folder()));
    assert!(foreign.contains("the other side's certificate is not of this side's ca.crt"), "{foreign}");
    // A client that believes the server, and has a certificate of nobody.
    let mixed = new_folder();
    let mut files = theirs.files(2099);
    files[0] = ours.files(2099).into_iter().next().unwrap();
    files.iter().for_each(|(name, text)| std::fs::write(mixed.join(name), text).unwrap());
    let unknown = refusal(&server, tls(&mixed));
    assert!(unknown.contains("does not know the authority of this side's certificate"), "{unknown}");
    let bare = refusal(&serve(None), tls(&ours.folder()));
    assert!(bare.contains("does not speak TLS: give --tls to all nodes of the pool or to none"), "{bare}");
}

#[test]
fn a_node_that_is_full_says_so_also_before_tls_has_begun() {
    let files = tls(&Authority::fresh().folder());
    let service = Arc::new(MemoryService::new(Slice::copied(&[7; 1 << 20]), Rights::READ));
    let options = ServerOptions { tls: files.clone(), connections_max: 1, ..ServerOptions::default() };
    let server = Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), service, options).unwrap();
    let endpoint = connect(server.address(), files.clone()).unwrap();
    let error = connect(server.address(), files).err().unwrap();
    assert!(error.is_full() && error.to_string().contains("1 connections open"), "{error}");
    assert_eq!(read_some(&endpoint).unwrap(), vec![7; 5000]);
}

#[test]
fn a_certificate_that_has_ended_is_refused_on_both_sides() {
    let authority = Authority::fresh();
    let ended = new_folder();
    authority.files(2021).iter().for_each(|(name, text)| std::fs::write(ended.join(name), text).unwrap());
    let server = serve(tls(&authority.folder()));
    let own = refusal(&server, tls(&ended));
    assert!(own.contains("this side's certificate has ended: make a new tls.crt"), "{own}");
    let others = refusal(&serve(tls(&ended)), tls(&authority.folder()));
    assert!(others.contains("the other side's certificate has ended"), "{others}");
}

/// As many authorities make them where nobody asks for more.
#[test]
fn a_certificate_for_one_side_alone_is_refused_with_what_it_lacks() {
    let authority = Authority::fresh();
    let folder_for = |purpose| {
        let folder = new_folder();
        let files = authority.files_for(2099, vec![purpose]);
        files.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
        folder
    };
    let of_servers = folder_for(ExtendedKeyUsagePurpose::ServerAuth);
    let own = refusal(&serve(tls(&authority.folder())), tls(&of_servers));
    assert!(own.contains("this side's certificate must be for clients and servers"), "{own}");
    let of_clients = folder_for(ExtendedKeyUsagePurpose::ClientAuth);
    let others = refusal(&serve(tls(&of_clients)), tls(&authority.folder()));
    assert!(others.contains("the other side's certificate must be for clients and servers"), "{others}");
}

#[test]
fn files_that_cannot_be_used_are_named_with_what_to_do() {
    let authority = Authority::fresh();
    let folder = authority.folder();
    let said = || Tls::open(&folder).unwrap_err().to_string();
    std::fs::write(folder.join("tls.key"), &authority.files(2099)[2].1).unwrap();
    assert!(said().contains("tls.key must be the key of the first certificate in tls.crt"), "{}", said());
    std::fs::write(folder.join("tls.key"), "nothing").unwrap();
    assert!(said().contains("tls.key: ") && said().contains("in PEM"), "{}", said());
    std::fs::write(folder.join("tls.crt"), "").unwrap();
    assert!(said().contains("tls.crt: there is no certificate in it"), "{}", said());
    std::fs::remove_file(folder.join("ca.crt")).unwrap();
    assert!(said().contains("ca.crt: ") && said().contains(&folder.display().to_string()), "{}", said());
}

#[test]
fn files_that_were_replaced_are_used_for_what_connects_afterwards() {
    let (before, after) = (Authority::fresh(), Authority::fresh());
    let folder = before.folder();
    let files = Tls::open(&folder).unwrap();
    let server = serve(Some(files.clone()));
    let old = connect(server.address(), tls(&before.folder())).unwrap();
    for (name, text) in after.files(2099) {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let new = tls(&after.folder());
    tcp::eventually("the new files", || connect(server.address(), new.clone()).is_ok());
    assert!(connect(server.address(), tls(&before.folder())).is_err());
    assert_eq!(read_some(&old).unwrap(), vec![7; 5000], "who is in stays in");
    assert_eq!(files.problem(), None);
    std::fs::write(folder.join("tls.crt"), "nothing").unwrap();
    tcp::eventually("a problem", || files.problem().is_some_and(|text| text.contains("tls.crt: ")));
    connect(server.address(), new).unwrap();
}

/// Passes bytes on in both directions and keeps them; the first `spoilt` byte that the server sends after so many is changed.
fn between(server: SocketAddr, spoilt: usize) -> (SocketAddr, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(server).unwrap());
            let (mut back, mut from) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let keep = |bytes: &[u8], kept: &Mutex<Vec<u8>>| kept.lock().unwrap().extend_from_slice(bytes);
            let (one, other) = (Arc::clone(&kept), Arc::clone(&kept));
            std::thread::spawn(move || {
                let (mut buffer, mut passed) = (vec![0; 16 << 10], 0);
                while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                    keep(&buffer[..bytes], &one);
                    if (passed..passed + bytes).contains(&spoilt) {
                        buffer[spoilt - passed] ^= 1;
                    }
                    passed += bytes;
                    if back.write_all(&buffer[..bytes]).is_err() {
                        break;
                    }
                }
                let _ = back.shutdown(std::net::Shutdown::Both);
            });
            std::thread::spawn(move || {
                let mut buffer = vec![0; 16 << 10];
                while let Ok(bytes @ 1..) = client.read(&mut buffer) {
                    keep(&buffer[..bytes], &other);
                    if server.write_all(&buffer[..bytes]).is_err() {
                        break;
                    }
                }
                let _ = server.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    (address, seen)
}

/// Another request may be the first to miss the pages: from then on the memory is zeros, of which a slow peer must get none.
#[test]
fn a_slow_peer_gets_no_zeros_of_memory_that_is_cut_off_meanwhile() {
    for files in [None, tls(&Authority::fresh().folder())] {
        read_slowly_what_is_cut_off(files);
    }
}

fn read_slowly_what_is_cut_off(files: Option<Tls>) {
    const BYTES: usize = 4 << 20;
    let mut file = MemoryFile::anonymous("cut", BYTES as u64, PageKind::Base4K).unwrap();
    let options = MapOptions { write: true, guarded: true, ..MapOptions::default() };
    let memory = Arc::new(file.map(0, BYTES, options).unwrap()).slice();
    memory.fill(0, BYTES, 7).unwrap();
    let service = Arc::new(MemoryService::new(Slice::from(memory.clone()), Rights::READ));
    let options =
        ServerOptions { tls: files.clone(), buffer_bytes: Some(64 << 10), ..ServerOptions::default() };
    let server = Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), service, options).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let ((stopped, stops), (go_on, goes_on)) = (channel(), channel());
    let behind = server.address();
    std::thread::spawn(move || {
        let (client, server) = (listener.accept().unwrap().0, TcpStream::connect(behind).unwrap());
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        // The handshakes, and the beginning of the answer.
        std::io::copy(&mut (&server).take(100_000), &mut &client).unwrap();
        // Until what lies between is full: else the answer itself may be the first to miss the pages.
        std::thread::sleep(Duration::from_millis(300));
        stopped.send(()).unwrap();
        goes_on.recv().unwrap();
        let _ = std::io::copy(&mut &server, &mut &client);
        let _ = client.shutdown(std::net::Shutdown::Both);
    });
    let options =
        ClientOptions { tls: files, streams: 1, chunk_bytes: BYTES as u32, ..ClientOptions::default() };
    let endpoint = TcpEndpoint::connect(address, options).unwrap();
    let read = std::thread::spawn(move || {
        let run = ByteRange::new(0, BYTES as u64).unwrap();
        endpoint.read(MemoryService::HANDLE, &[run], &mut vec![0; BYTES])
    });
    stops.recv().unwrap();
    file.resize(0).unwrap();
    assert!(memory.read_at(BYTES - 8, &mut [0; 8]).is_err());
    go_on.send(()).unwrap();
    let error = read.join().unwrap().expect_err("zeros came");
    assert!(error.is_connection_lost(), "{error}");
}

#[test]
fn nobody_between_sees_what_is_said_and_plain_tcp_shows_it() {
    let authority = Authority::fresh();
    let secret = b"what nobody between the two may ever read".repeat(300);
    let run = ByteRange::new(0, secret.len() as u64).unwrap();
    for (files, is_seen) in [(None, true), (tls(&authority.folder()), false)] {
        let server = serve(files.clone());
        let (address, seen) = between(server.address(), usize::MAX);
        let endpoint = connect(address, files).unwrap();
        endpoint.write(MemoryService::HANDLE, &[run], &secret).unwrap();
        let mut back = vec![0; secret.len()];
        endpoint.read(MemoryService::HANDLE, &[run], &mut back).unwrap();
        assert_eq!(back, secret);
        let seen = seen.lock().unwrap();
        assert!(seen.len() > 2 * secret.len());
        let shows = seen.windows(20).any(|window| window == &secret[..20]);
        assert_eq!(shows, is_seen);
    }
}

#[test]
fn a_byte_that_somebody_between_changes_ends_the_connection() {
    let authority = Authority::fresh();
    let files = tls(&authority.folder());
    let server = serve(files.clone());
    // Behind the handshake, inside the bytes of a read without a checksum of its own.
    let (address, _) = between(server.address(), 100_000);
    let endpoint = connect(address, files).unwrap();
    let mut bytes = vec![0; 1 << 20];
    let run = ByteRange::new(0, 1 << 20).unwrap();
    let error =
        endpoint.read(MemoryService::HANDLE, &[run], &mut bytes).expect_err("changed bytes were believed");
    assert!(error.is_connection_lost(), "{error}");
    assert!(error.to_string().contains("TLS"), "{error}");
}

#[test]
fn peers_that_begin_tls_and_say_something_else_or_nothing_keep_nobody_out() {
    let authority = Authority::fresh();
    let files = tls(&authority.folder());
    let service = Arc::new(MemoryService::new(Slice::copied(&[7; 1 << 20]), Rights::READ));
    let handshake_timeout = Duration::from_millis(300);
    let options = ServerOptions { tls: files.clone(), handshake_timeout, ..ServerOptions::default() };
    let server = Server::start(TcpListener::bind("127.0.0.1:0").unwrap(), service, options).unwrap();
    let mut open = Vec::new();
    // Nothing, the first byte alone, a record that never ends, one of the largest length, and records that are no handshake.
    for bytes in [
        &[][..],
        &[0x16],
        &[0x16, 3, 1, 2, 0, 1, 0],
        &[0x16, 3, 3, 0xff, 0xff],
        &[0x16; 4000],
        &[0x16, 3, 3, 0, 1, 0xff],
    ] {
        let mut peer = TcpStream::connect(server.address()).unwrap();
        let _ = peer.write_all(bytes);
        open.push(peer);
    }
    // Byte by byte, which must gain no time.
    let mut slow = TcpStream::connect(server.address()).unwrap();
    let slow = std::thread::spawn(move || {
        let hello = [[0x16, 3, 1, 2, 0].as_slice(), &[0; 60]].concat();
        for byte in hello {
            std::thread::sleep(Duration::from_millis(20));
            if slow.write_all(&[byte]).is_err() {
                break;
            }
        }
        let mut rest = Vec::new();
        let _ = slow.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = slow.read_to_end(&mut rest);
    });
    let endpoint = connect(server.address(), files).unwrap();
    assert_eq!(read_some(&endpoint).unwrap(), vec![7; 5000]);
    tcp::eventually("the end of those that were no clients", || server.connections() == 1);
    assert_eq!(read_some(&endpoint).unwrap(), vec![7; 5000]);
    slow.join().unwrap();
}

#[test]
fn a_handshake_that_is_spoilt_on_the_way_ends_on_both_sides() {
    let authority = Authority::fresh();
    let files = tls(&authority.folder());
    let server = serve(files.clone());
    let (address, _) = between(server.address(), 0);
    // The first byte that the server sends is another one.
    let error = connect(address, files.clone()).err().unwrap();
    assert!(error.to_string().contains("hint: "), "{error}");
    tcp::eventually("the end of the connection", || server.connections() == 0);
    assert_eq!(server.sessions(), 0);
    assert!(connect(server.address(), files).is_ok());
}
