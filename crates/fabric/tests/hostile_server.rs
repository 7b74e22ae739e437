//! A client whose server lies, stalls or vanishes: it gets an error in time, and no byte outside its buffer changes.
#![allow(clippy::unwrap_used)]

use hinterland_fabric::tcp::{ClientOptions, Mode, TcpEndpoint};
use hinterland_fabric::{Endpoint, FabricError};
use hinterland_proto::{
    Features, FrameHeader, FrameKind, FrameSender, HEADER_BYTES, PeerLimits, PoolId, RUN_BYTES,
    ServerHandshake, ServerIdentity, ServerStep,
};
use hinterland_types::{ByteRange, Handle, NodeId, SessionId};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

/// Answers one handshake, reads one request and hands the stream to `misbehave`, which keeps it as long as it likes.
fn lie(
    misbehave: impl FnOnce(&mut TcpStream, &mut FrameSender, FrameHeader) + Send + 'static,
) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let limits = PeerLimits { body_bytes_max: 4 << 20, runs_max: 1024, streams_max: 1 };
        let (node, pool) = (NodeId(1), PoolId::ANY);
        let identity = ServerIdentity { node, pool, key: None, features: Features(0), limits };
        let mut machine = ServerHandshake::new(identity, [5; 32]);
        let mut buffer = [0; 1024];
        let mut sender = loop {
            let received = stream.read(&mut buffer).unwrap();
            match machine.receive(&buffer[..received]).1 {
                ServerStep::Send(bytes) => stream.write_all(&bytes).unwrap(),
                ServerStep::Authenticated(_) => {
                    let (bytes, established) = machine.ready(SessionId(1), [6; 32]);
                    stream.write_all(&bytes).unwrap();
                    break FrameSender::new(established.send_sequence);
                }
                other => panic!("{other:?}"),
            }
        };
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).unwrap();
        let request = FrameHeader::parse(&header).unwrap();
        let mut table = [0; RUN_BYTES];
        stream.read_exact(&mut table[..request.body_bytes.min(16) as usize]).unwrap();
        misbehave(&mut stream, &mut sender, request);
    });
    (address, thread)
}

/// Reads into the middle of a larger buffer; returns the error, after checking that its edges are as they were.
fn read_from(address: SocketAddr, mode: Mode, bytes: usize) -> Result<Vec<u8>, FabricError> {
    const EDGE: usize = 8192;
    let timeout = Duration::from_millis(400);
    let options = ClientOptions { streams: 1, mode, timeout, ..ClientOptions::default() };
    let endpoint = TcpEndpoint::connect(address, options).unwrap();
    let mut memory = vec![0xEE; bytes + 2 * EDGE];
    let run = [ByteRange::new(0, bytes as u64).unwrap()];
    let result = endpoint.read(Handle(1), &run, &mut memory[EDGE..EDGE + bytes]);
    assert!(memory[..EDGE].iter().chain(&memory[EDGE + bytes..]).all(|byte| *byte == 0xEE));
    result.map(|()| memory[EDGE..EDGE + bytes].to_vec())
}

/// Runs one lie against every way of receiving: staged and direct, blocking and polling.
fn expect(
    what: &str,
    misbehave: impl Fn(&mut TcpStream, &mut FrameSender, FrameHeader, u32) + Send + Clone + 'static,
    good: impl Fn(&FabricError) -> bool,
) {
    for mode in [Mode::Blocking, Mode::Polling] {
        for bytes in [64usize, 100_000] {
            let misbehave = misbehave.clone();
            let (address, thread) = lie(move |stream, sender, request| {
                misbehave(stream, sender, request, bytes as u32);
            });
            let error = read_from(address, mode, bytes).unwrap_err();
            assert!(good(&error), "{what}, {mode:?}, {bytes} bytes: {error:?}");
            assert!(error.is_connection_lost());
            thread.join().unwrap();
        }
    }
}

fn reply(request: FrameHeader, bytes: u32) -> FrameHeader {
    FrameHeader::new(FrameKind::ReadReply, request.request, bytes)
}

/// Sends as much as the client takes, and waits until it closes.
fn send(stream: &mut TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let _ = stream.read(&mut [0; 1]);
}

/// Reads what still comes of a request until its stream ends, which must not be all of it.
fn assert_cut(stream: &mut TcpStream, request: FrameHeader) {
    let mut bytes = vec![0; 1 << 20];
    let mut body = RUN_BYTES as u64;
    while let Ok(received @ 1..) = stream.read(&mut bytes) {
        body += received as u64;
    }
    let whole = u64::from(request.body_bytes);
    assert!(body < whole, "{body} bytes of a frame of {whole} came, and it would be done");
}

#[test]
fn an_honest_answer_is_taken() {
    let (address, thread) = lie(|stream, sender, request| {
        let mut bytes = sender.seal(reply(request, 5000)).to_vec();
        bytes.resize(HEADER_BYTES + 5000, 7);
        send(stream, &bytes);
    });
    assert_eq!(read_from(address, Mode::Blocking, 5000).unwrap(), vec![7; 5000]);
    thread.join().unwrap();
}

#[test]
fn garbage_is_no_answer() {
    expect(
        "garbage",
        |stream, _, _, _| send(stream, &[0x5A; 200_000]),
        |error| matches!(error, FabricError::Frame { .. }),
    );
}

#[test]
fn a_longer_or_shorter_answer_is_refused() {
    for difference in [-1i64, 1, 5000] {
        expect(
            "another length",
            move |stream, sender, request, bytes| {
                let wrong = (i64::from(bytes) + difference) as u32;
                let mut frame = sender.seal(reply(request, wrong)).to_vec();
                frame.resize(HEADER_BYTES + wrong as usize, 1);
                send(stream, &frame);
            },
            |error| matches!(error, FabricError::WrongAnswer { .. }),
        );
    }
}

#[test]
fn an_answer_to_another_request_or_of_another_kind_is_refused() {
    expect(
        "another request",
        |stream, sender, mut request, bytes| {
            request.request += 1;
            let mut frame = sender.seal(reply(request, bytes)).to_vec();
            frame.resize(HEADER_BYTES + bytes as usize, 1);
            send(stream, &frame);
        },
        |error| matches!(error, FabricError::WrongAnswer { .. }),
    );
    expect(
        "another kind",
        |stream, sender, request, _| {
            let header = FrameHeader::new(FrameKind::WriteReply, request.request, 0);
            send(stream, &sender.seal(header));
        },
        |error| matches!(error, FabricError::WrongAnswer { .. }),
    );
}

#[test]
fn a_wrong_checksum_is_refused() {
    expect(
        "a wrong checksum",
        |stream, sender, request, bytes| {
            let mut header = reply(request, bytes);
            header.body_crc = Some(1);
            let mut frame = sender.seal(header).to_vec();
            frame.resize(HEADER_BYTES + bytes as usize, 1);
            send(stream, &frame);
        },
        |error| matches!(error, FabricError::Frame { .. }),
    );
}

#[test]
fn a_server_that_closes_midway_is_an_error() {
    expect("closing before the answer", |_, _, _, _| {}, |error| matches!(error, FabricError::Closed { .. }));
    expect(
        "closing in the header",
        |stream, sender, request, bytes| {
            stream.write_all(&sender.seal(reply(request, bytes))[..20]).unwrap();
        },
        |error| matches!(error, FabricError::Closed { .. }),
    );
    expect(
        "closing in the body",
        |stream, sender, request, bytes| {
            let mut frame = sender.seal(reply(request, bytes)).to_vec();
            frame.resize(HEADER_BYTES + bytes as usize - 1, 1);
            stream.write_all(&frame).unwrap();
        },
        |error| matches!(error, FabricError::Closed { .. }),
    );
}

#[test]
fn a_server_that_never_answers_is_an_error_in_time() {
    expect(
        "silence",
        |stream, _, _, _| send(stream, &[]),
        |error| matches!(error, FabricError::Timeout { .. }),
    );
    expect(
        "half an answer",
        |stream, sender, request, bytes| {
            let mut frame = sender.seal(reply(request, bytes)).to_vec();
            frame.resize(HEADER_BYTES + bytes as usize / 2, 1);
            send(stream, &frame);
        },
        |error| matches!(error, FabricError::Timeout { .. }),
    );
}

#[test]
fn a_write_that_was_given_up_does_not_arrive_later() {
    for mode in [Mode::Blocking, Mode::Polling] {
        let (given_up, wait) = std::sync::mpsc::channel();
        let (address, thread) = lie(move |stream, _, request| {
            // The client tries elsewhere, or says that it failed; from then on nothing of it may be done.
            wait.recv().unwrap();
            assert_cut(stream, request);
        });
        let timeout = Duration::from_millis(400);
        let options = ClientOptions { streams: 1, mode, timeout, ..ClientOptions::default() };
        let endpoint = TcpEndpoint::connect(address, options).unwrap();
        let run = [ByteRange::new(0, 1 << 20).unwrap()];
        let error = endpoint.write(Handle(1), &run, &vec![7; 1 << 20]).unwrap_err();
        assert!(matches!(error, FabricError::Timeout { .. }), "{error}");
        given_up.send(()).unwrap();
        thread.join().unwrap();
    }
}

/// Where [`writes_until_it_is_killed`] writes to.
const KILLED_WRITES_TO: &str = "KILLED_WRITES_TO";

#[test]
fn a_write_of_a_killed_process_does_not_arrive_later() {
    let (killed, wait) = std::sync::mpsc::channel();
    let (began, writing) = std::sync::mpsc::channel();
    let (address, thread) = lie(move |stream, _, request| {
        began.send(()).unwrap();
        // Others write to the same place once the process is gone; from then on nothing of it may be done.
        wait.recv().unwrap();
        assert_cut(stream, request);
    });
    let mut process = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "writes_until_it_is_killed"])
        .env(KILLED_WRITES_TO, address.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    writing.recv().unwrap();
    // Until it has given the kernel all that the kernel takes.
    std::thread::sleep(Duration::from_millis(200));
    process.kill().unwrap();
    process.wait().unwrap();
    killed.send(()).unwrap();
    thread.join().unwrap();
}

#[test]
#[ignore = "a test starts it as a process of its own"]
fn writes_until_it_is_killed() {
    let Ok(address) = std::env::var(KILLED_WRITES_TO) else { return };
    let options = ClientOptions { streams: 1, timeout: Duration::from_secs(60), ..ClientOptions::default() };
    let endpoint = TcpEndpoint::connect(address.parse::<SocketAddr>().unwrap(), options).unwrap();
    let run = [ByteRange::new(0, 1 << 20).unwrap()];
    let ended = endpoint.write(Handle(1), &run, &vec![7; 1 << 20]);
    panic!("it should have been killed, and ended with {ended:?}");
}

#[test]
fn an_error_in_the_place_of_a_long_answer_is_read_whole() {
    for mode in [Mode::Blocking, Mode::Polling] {
        let (address, thread) = lie(|stream, sender, request| {
            let text = "x".repeat(1000);
            let body = [&9999u32.to_le_bytes()[..], text.as_bytes()].concat();
            let header = FrameHeader::new(FrameKind::Error, request.request, body.len() as u32);
            send(stream, &[&sender.seal(header)[..], &body].concat());
        });
        match read_from(address, mode, 100_000).unwrap_err() {
            FabricError::Remote { error, .. } => assert_eq!((error.code.0, error.text.len()), (9999, 1000)),
            other => panic!("{other}"),
        }
        thread.join().unwrap();
    }
}

#[test]
fn a_server_that_is_no_node_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail.example ESMTP ready\r\n").unwrap();
        stream.read(&mut [0; 1024]).unwrap()
    });
    let error = TcpEndpoint::connect(address, ClientOptions::default()).err().unwrap();
    assert!(error.to_string().contains("220 mail.example ESMTP"), "{error}");
    thread.join().unwrap();
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_an_error_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let timeout = Duration::from_millis(300);
    let options = ClientOptions { timeout, ..ClientOptions::default() };
    let error = TcpEndpoint::connect(listener.local_addr().unwrap(), options).err().unwrap();
    assert!(matches!(error, FabricError::Connect { .. }), "{error}");
}

#[test]
fn no_server_at_all_is_an_error_with_its_address() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = TcpEndpoint::connect(address, ClientOptions::default()).err().unwrap();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}
