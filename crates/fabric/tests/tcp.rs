//! Reads, writes, swaps and calls over real sockets, against a plain buffer.
#![allow(clippy::unwrap_used)]

use hinterland_fabric::rdma::{Host, HostOptions, RdmaEndpoint, RdmaOptions};
use hinterland_fabric::tcp::{ClientOptions, Mode, Server, ServerOptions, TcpEndpoint, Tls};
use hinterland_fabric::{Destination, Endpoint, FabricError, Intake, MemoryService, Outcome, Slice, Source};
use hinterland_os::{MapOptions, MemoryFile, PageKind};
use hinterland_proto::ErrorCode;
use hinterland_types::{ByteRange, Handle, Rights};
use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut};
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

#[path = "certificates/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
pub mod certificates;

const HANDLE: Handle = MemoryService::HANDLE;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[7]).collect()
}

/// With this variable, which the lab sets where there is an RDMA device, the same tests run over RDMA.
fn by_rdma() -> bool {
    std::env::var_os("HINTERLAND_TEST_RDMA").is_some()
}

/// Where another file has these tests as a module of its own, they run under TLS.
fn tls() -> Option<Tls> {
    static FILES: OnceLock<Tls> = OnceLock::new();
    let made = || Tls::open(&certificates::Authority::fresh().folder()).unwrap();
    module_path!().contains("::").then(|| FILES.get_or_init(made).clone())
}

fn plain_or_tls() -> ClientOptions {
    ClientOptions { tls: tls(), ..ClientOptions::default() }
}

fn serve(memory: Slice, rights: Rights) -> (Server, Arc<MemoryService>) {
    let service = Arc::new(MemoryService::new(memory, rights));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = || Arc::new(Host::open(HostOptions { writes: true, ..HostOptions::default() }).unwrap());
    let rdma = by_rdma().then(host);
    let spin = Duration::from_micros(20);
    let options = ServerOptions { spin, rdma, tls: tls(), ..ServerOptions::default() };
    (Server::start(listener, service.clone(), options).unwrap(), service)
}

fn connect(server: &Server, streams: usize, mode: Mode) -> Arc<dyn Endpoint> {
    let options = ClientOptions { streams, mode, ..plain_or_tls() };
    if by_rdma() {
        let endpoint = RdmaEndpoint::connect(server.address(), options, RdmaOptions::default()).unwrap();
        assert!(endpoint.capabilities().one_sided, "{:?}", endpoint.why_not());
        return Arc::new(endpoint);
    }
    Arc::new(TcpEndpoint::connect(server.address(), options).unwrap())
}

/// For what is only true of TCP.
fn connect_tcp(server: &Server, streams: usize) -> TcpEndpoint {
    TcpEndpoint::connect(server.address(), ClientOptions { streams, ..plain_or_tls() }).unwrap()
}

fn run(offset: u64, bytes: u64) -> ByteRange {
    ByteRange::new(offset, bytes).unwrap()
}

/// Waits for what other threads do soon; fails after five seconds.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..5000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what} did not happen");
}

#[test]
fn reads_of_every_size_return_the_bytes_of_the_peer() {
    let bytes = pattern(9 << 20);
    let (server, _) = serve(Slice::copied(&bytes), Rights::READ);
    let (changing, _) = serve(Slice::copied(&bytes).changing(), Rights::READ);
    for (server, streams, mode) in [
        (&server, 1, Mode::Blocking),
        (&server, 3, Mode::Blocking),
        (&server, 1, Mode::Polling),
        (&server, 4, Mode::Polling),
        (&changing, 1, Mode::Blocking),
        (&changing, 3, Mode::Polling),
    ] {
        let endpoint = connect(server, streams, mode);
        for size in [0usize, 1, 64, 4095, 4096, 4097, 70_000, 524_289, 1 << 20, (4 << 20) + 5, 8 << 20] {
            for offset in [0usize, 1, 777_777] {
                let mut into = vec![0xAA; size];
                endpoint.read(HANDLE, &[run(offset as u64, size as u64)], &mut into).unwrap();
                assert!(into == bytes[offset..offset + size], "{size} bytes at {offset}, {streams} {mode:?}");
            }
        }
    }
}

/// Runs whose beginnings, ends and cuts lie anywhere in words, and what puts the next answer anywhere in the kernel's pages.
const LENGTHS: [u64; 9] = [1, 100, 1001, 4096, 5003, 70_000, 262_145, 300_001, 1 << 20];

#[test]
fn no_half_of_a_word_is_read_or_written() {
    const BYTES: usize = 2 << 20;
    let (server, service) = serve(Slice::zeroed(BYTES).changing(), Rights::ALL);
    let endpoint = connect(&server, 2, Mode::Blocking);
    let (done, is_writing) = (AtomicBool::new(false), AtomicBool::new(false));
    let is_torn =
        |word: &[u8; 8]| !(word.iter().all(|byte| *byte == 0) || word.iter().all(|byte| *byte == 0xff));
    let whole = |first: u64, bytes: u64| (first.next_multiple_of(8), (first + bytes) / 8 * 8);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let (mut room, mut torn) = (vec![0xff; BYTES], Vec::new());
            while !done.load(Ordering::SeqCst) {
                if is_writing.load(Ordering::SeqCst) {
                    service.memory().copy_out(0, &mut room);
                    // The test writes whole words only.
                    torn.extend(room.as_chunks().0.iter().position(is_torn));
                } else {
                    let byte = !room[0];
                    room.fill(byte);
                    service.memory().copy_in(0, &room);
                }
            }
            torn
        });
        let mut torn = Vec::new();
        for (round, bytes) in (0..60).flat_map(|round| LENGTHS.map(|bytes| (round, bytes))) {
            let first = round * 3;
            let mut into = vec![0; bytes as usize];
            endpoint.read(HANDLE, &[run(first, bytes)], &mut into).unwrap();
            let (start, end) = whole(first, bytes);
            let words = into.get((start - first) as usize..end.max(start).saturating_sub(first) as usize);
            let words = words.unwrap_or_default().as_chunks().0;
            torn.extend(words.iter().position(is_torn).map(|word| (bytes, first, word)));
        }
        is_writing.store(true, Ordering::SeqCst);
        for (round, bytes) in (0..60).flat_map(|round| LENGTHS.map(|bytes| (round, bytes))) {
            // Something of an odd length first, then whole words.
            endpoint.read(HANDLE, &[run(0, 3)], &mut [0; 3]).unwrap();
            let (start, end) = whole(round * 3, bytes);
            let from = vec![(round % 2) as u8 * 0xff; end.saturating_sub(start) as usize];
            endpoint.write(HANDLE, &[run(start, from.len() as u64)], &from).unwrap();
        }
        done.store(true, Ordering::SeqCst);
        assert_eq!(torn, [], "bytes read, at, word in halves");
        assert_eq!(other.join().unwrap(), [], "words seen in halves while they were written");
    });
}

#[test]
fn a_gather_of_many_runs_keeps_their_order() {
    let bytes = pattern(4 << 20);
    let servers =
        [Slice::copied(&bytes), Slice::copied(&bytes).changing()].map(|slice| serve(slice, Rights::READ));
    let shapes = [(2_usize, 3_usize), (256, 4096), (3000, 100), (7, 400_000)];
    for ((server, _), (count, size)) in servers.iter().flat_map(|server| shapes.map(|shape| (server, shape)))
    {
        let endpoint = connect(server, 2, Mode::Blocking);
        let runs: Vec<_> =
            (0..count).map(|i| run(((i * 7919 * 64) % ((4 << 20) - size)) as u64, size as u64)).collect();
        let mut into = vec![0; count * size];
        endpoint.read(HANDLE, &runs, &mut into).unwrap();
        for (run, piece) in runs.iter().zip(into.chunks(size)) {
            let start = run.offset() as usize;
            assert!(piece == &bytes[start..start + size], "run {run:?} of {count}");
        }
    }
}

#[test]
fn what_is_written_can_be_read_back() {
    let (server, service) = serve(Slice::zeroed(9 << 20), Rights::ALL);
    for (streams, mode) in [(1, Mode::Blocking), (4, Mode::Blocking), (2, Mode::Polling)] {
        let endpoint = connect(&server, streams, mode);
        for size in [1usize, 64, 4096, 4097, 1 << 20, (4 << 20) + 1, 8 << 20] {
            let bytes = pattern(size);
            endpoint.write(HANDLE, &[run(100, size as u64)], &bytes).unwrap();
            assert!(service.memory().sub(100, size).unwrap().to_vec() == bytes, "{size} bytes");
            let mut back = vec![0; size];
            endpoint.read(HANDLE, &[run(100, size as u64)], &mut back).unwrap();
            assert!(back == bytes);
        }
    }
}

#[test]
fn a_refused_request_says_why_and_leaves_the_connection_good() {
    let (server, _) = serve(Slice::copied(&pattern(1 << 20)), Rights::READ);
    let endpoint = connect(&server, 1, Mode::Blocking);
    let mut into = vec![0; 600_000];
    let code = |result: Result<(), FabricError>| match result {
        Err(FabricError::Remote { error, .. }) => error.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(endpoint.read(Handle(1), &[run(0, 600_000)], &mut into)), ErrorCode::UNKNOWN_HANDLE);
    assert_eq!(code(endpoint.read(HANDLE, &[run(1 << 20, 8)], &mut into[..8])), ErrorCode::RANGE);
    assert_eq!(code(endpoint.write(HANDLE, &[run(0, 8)], &[1; 8])), ErrorCode::RIGHTS);
    assert_eq!(code(endpoint.write(HANDLE, &[run(0, 600_000)], &into)), ErrorCode::RIGHTS);
    endpoint.read(HANDLE, &[run(5, 600_000)], &mut into).unwrap();
    assert!(into == pattern(1 << 20)[5..600_005]);
}

#[test]
fn a_part_that_fails_fails_the_striped_read_and_no_other() {
    let (server, _) = serve(Slice::copied(&pattern(8 << 20)), Rights::READ);
    let endpoint = connect(&server, 4, Mode::Blocking);
    let mut into = vec![0; 9 << 20];
    let result = endpoint.read(HANDLE, &[run(0, 9 << 20)], &mut into);
    assert!(matches!(result, Err(FabricError::Remote { .. })), "{result:?}");
    endpoint.read(HANDLE, &[run(0, 8 << 20)], &mut into[..8 << 20]).unwrap();
    assert!(into[..8 << 20] == pattern(8 << 20));
}

#[test]
fn atomics_from_many_threads_lose_nothing() {
    let (server, service) = serve(Slice::zeroed(64), Rights::ALL);
    let endpoint = connect(&server, 4, Mode::Blocking);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    endpoint.fetch_and_add(HANDLE, 8, 3).unwrap();
                }
            });
        }
    });
    assert_eq!(service.memory().to_vec()[8..16], 1200u64.to_le_bytes());
    assert_eq!(endpoint.compare_and_swap(HANDLE, 8, 1, 2).unwrap(), 1200);
    assert_eq!(endpoint.compare_and_swap(HANDLE, 8, 1200, 5).unwrap(), 1200);
    assert_eq!(endpoint.fetch_and_add(HANDLE, 8, 0).unwrap(), 5);
    assert!(matches!(endpoint.fetch_and_add(HANDLE, 12, 1), Err(FabricError::Unsupported { .. })));
}

#[test]
fn calls_return_what_the_service_answers() {
    let (server, _) = serve(Slice::zeroed(8), Rights::ALL);
    let endpoint = connect(&server, 1, Mode::Blocking);
    for size in [0usize, 1, 4096, 100_000, 1 << 20] {
        assert!(endpoint.call(&pattern(size)).unwrap() == pattern(size));
    }
    assert!(matches!(endpoint.call(&vec![0; (1 << 20) + 1]), Err(FabricError::Limit { .. })));
}

#[test]
fn the_last_stream_closes_the_session() {
    let (server, service) = serve(Slice::zeroed(4 << 20), Rights::ALL);
    let endpoint = connect_tcp(&server, 4);
    endpoint.read(HANDLE, &[run(0, 4 << 20)], &mut vec![0; 4 << 20]).unwrap();
    assert_eq!((server.sessions(), service.open_sessions()), (1, 1));
    assert_eq!(server.connections(), 4);
    drop(endpoint);
    eventually("the end of the session", || service.open_sessions() == 0 && server.connections() == 0);
}

#[test]
fn a_server_that_stops_fails_the_client_and_does_not_hang_it() {
    let (mut server, service) = serve(Slice::zeroed(8 << 20), Rights::ALL);
    let endpoint = connect(&server, 2, Mode::Blocking);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut into = vec![0; 8 << 20];
            loop {
                if let Err(error) = endpoint.read(HANDLE, &[run(0, 8 << 20)], &mut into) {
                    return error;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        server.stop();
        assert!(reader.join().unwrap().is_connection_lost());
    });
    assert!(endpoint.call(b"still there?").unwrap_err().is_connection_lost());
    assert_eq!(service.open_sessions(), 0);
}

#[test]
fn threads_that_share_an_endpoint_each_get_their_own_bytes() {
    let bytes = pattern(3 << 20);
    let (server, _) = serve(Slice::copied(&bytes), Rights::READ);
    for mode in [Mode::Blocking, Mode::Polling] {
        let endpoint = connect(&server, 3, mode);
        std::thread::scope(|scope| {
            for thread in 0..6u64 {
                let (endpoint, bytes) = (&*endpoint, &bytes);
                scope.spawn(move || {
                    let mut state = thread + 1;
                    for _ in 0..60 {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(thread);
                        let size = 1 + (state >> 33) as usize % (1 << (state >> 60).min(20));
                        let offset = (state >> 20) as usize % (bytes.len() - size);
                        let mut into = vec![0; size];
                        endpoint.read(HANDLE, &[run(offset as u64, size as u64)], &mut into).unwrap();
                        assert!(into == bytes[offset..offset + size], "{size} bytes at {offset}");
                    }
                });
            }
        });
    }
}

#[test]
fn pieces_of_memory_are_filled_one_after_the_other() {
    let bytes = pattern(1 << 20);
    let (server, service) = serve(Slice::copied(&bytes), Rights::ALL);
    let endpoint = connect(&server, 1, Mode::Blocking);
    for sizes in [vec![5usize, 0, 7, 1], vec![5000, 1, 20_000], vec![3; 2000]] {
        let total: usize = sizes.iter().sum();
        let mut memory: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
        let mut pieces: Vec<_> = memory.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
        let runs = [run(11, 3), run(50_000, total as u64 - 3)];
        endpoint.read_to(HANDLE, &runs, Destination::scattered(&mut pieces)).unwrap();
        let expected = [&bytes[11..14], &bytes[50_000..50_000 + total - 3]].concat();
        assert!(memory.concat() == expected, "{sizes:?}");
        let sources: Vec<_> = memory.iter().map(|piece| IoSlice::new(piece)).collect();
        endpoint.write_from(HANDLE, &[run(0, total as u64)], Source::gathered(&sources)).unwrap();
        assert!(service.memory().sub(0, total).unwrap().to_vec() == expected);
        service.memory().copy_in(0, &bytes);
    }
}

#[test]
fn a_buffer_of_another_length_than_the_runs_is_refused_before_anything_moves() {
    let (server, _) = serve(Slice::zeroed(64), Rights::ALL);
    let endpoint = connect(&server, 1, Mode::Blocking);
    let error = endpoint.read(HANDLE, &[run(0, 8), run(8, 8)], &mut [0; 15]).unwrap_err();
    assert_eq!(error, FabricError::Lengths { runs_bytes: 16, buffer_bytes: 15 });
    let endless = [run(0, u64::MAX), run(0, u64::MAX)];
    assert!(endpoint.write(HANDLE, &endless, &[0; 15]).is_err());
}

#[test]
fn a_queue_completes_every_operation_with_its_own_bytes() {
    let bytes = pattern(6 << 20);
    let (server, _) = serve(Slice::copied(&bytes), Rights::ALL);
    for (streams, mode) in [(1, Mode::Blocking), (3, Mode::Blocking), (2, Mode::Polling)] {
        let endpoint = connect(&server, streams, mode);
        let mut queue = endpoint.queue(0).unwrap();
        let mut expected = HashMap::new();
        for tag in 0..200u64 {
            let size = [0, 8, 4096, 5000, 100_000, 1_200_000][tag as usize % 6];
            let offset = (tag * 12_345) as usize;
            let into = Slice::zeroed(size);
            queue
                .post_read(tag, HANDLE, &[run(offset as u64, size as u64)], std::slice::from_ref(&into))
                .unwrap();
            expected.insert(tag, (into, offset..offset + size));
            if tag % 10 == 0 {
                queue.post_call(1000 + tag, &tag.to_le_bytes()).unwrap();
            }
        }
        queue.post_read(5000, HANDLE, &[run(6 << 20, 1)], &[Slice::zeroed(1)]).unwrap();
        let (mut completions, mut calls) = (Vec::new(), 0);
        while queue.in_flight() > 0 || !expected.is_empty() {
            queue.poll(&mut completions, Duration::from_secs(5)).unwrap();
            for completion in completions.drain(..) {
                match (completion.tag, completion.result) {
                    (5000, result) => assert!(matches!(result, Err(FabricError::Remote { .. }))),
                    (tag, Ok(Outcome::Reply(body))) => {
                        calls += 1;
                        assert_eq!(body, (tag - 1000).to_le_bytes());
                    }
                    (tag, result) => {
                        assert_eq!(result, Ok(Outcome::Done));
                        let (into, place) = expected.remove(&tag).unwrap();
                        assert!(into.to_vec() == bytes[place]);
                    }
                }
            }
        }
        assert_eq!(calls, 20);
    }
}

#[test]
fn an_intake_reads_from_two_peers_at_once_and_starts_anew_after_one_has_gone() {
    let (first, second) = (pattern(4 << 20), pattern(3 << 20));
    let (mut gone, _) = serve(Slice::copied(&first), Rights::ALL);
    let (stays, _) = serve(Slice::copied(&second), Rights::ALL);
    let endpoints: [Arc<dyn Endpoint>; 2] =
        [connect(&gone, 2, Mode::Blocking), connect(&stays, 2, Mode::Blocking)];
    let mut intake = Intake::new(4 << 20, 1).unwrap();
    let mut completions = Vec::new();
    for tag in 0..16u64 {
        let at = tag << 18;
        let range = run((tag << 17) + 1, 1 << 18);
        intake.post(&endpoints[tag as usize % 2], tag, HANDLE, range, at as usize).unwrap();
    }
    while intake.in_flight() > 0 {
        intake.poll(&mut completions, Duration::from_secs(5)).unwrap();
    }
    assert_eq!(completions.len(), 16);
    for completion in completions.drain(..) {
        assert_eq!(completion.result, Ok(Outcome::Done));
        let from = ((completion.tag << 17) + 1) as usize;
        let expected = if completion.tag % 2 == 0 { &first } else { &second };
        let found = intake.bytes((completion.tag << 18) as usize, 1 << 18);
        assert!(found == &expected[from..from + (1 << 18)]);
    }
    let outside = intake.post(&endpoints[1], 1, HANDLE, run(0, 2), (4 << 20) - 1);
    assert!(matches!(outside, Err(FabricError::Limit { .. })));
    intake.zero(5, 10);
    assert_eq!(intake.bytes(5, 10), [0; 10]);
    gone.stop();
    // Posting may fail at once or later in the completion.
    if intake.post(&endpoints[0], 77, HANDLE, run(0, 1 << 20), 0).is_ok() {
        while intake.poll(&mut completions, Duration::from_secs(5)).unwrap() == 0 {}
        assert!(completions.drain(..).all(|completion| completion.result.is_err()));
    }
    intake.forget(&endpoints[0]);
    intake.post(&endpoints[1], 78, HANDLE, run(0, 1 << 20), 0).unwrap();
    intake.abandon();
    assert_eq!(intake.in_flight(), 0);
    intake.post(&endpoints[1], 79, HANDLE, run(1, 1 << 20), 0).unwrap();
    while intake.poll(&mut completions, Duration::from_secs(5)).unwrap() == 0 {}
    assert!(completions.len() == 1 && completions[0].tag == 79 && completions[0].result.is_ok());
    assert!(intake.bytes(0, 1 << 20) == &second[1..=1 << 20]);
}

#[test]
fn an_intake_keeps_no_peer_that_has_gone_when_it_reads_from_another() {
    let (mut gone, _) = serve(Slice::zeroed(1 << 20), Rights::ALL);
    let (stays, _) = serve(Slice::zeroed(1 << 20), Rights::ALL);
    let (first, second) = (connect(&gone, 2, Mode::Blocking), connect(&stays, 2, Mode::Blocking));
    let mut intake = Intake::new(1 << 20, 2).unwrap();
    let mut completions = Vec::new();
    let mut read = |endpoint: &Arc<dyn Endpoint>| {
        intake.post(endpoint, 1, HANDLE, run(0, 1 << 20), 0).unwrap();
        while intake.poll(&mut completions, Duration::from_secs(5)).unwrap() == 0 {}
        assert_eq!(completions.pop().unwrap().result, Ok(Outcome::Done));
    };
    read(&first);
    assert!(!first.has_ended());
    gone.stop();
    eventually("the peer is seen to have gone", || first.has_ended());
    assert_eq!(Arc::strong_count(&first), 2, "or this shows nothing");
    read(&second);
    assert_eq!(Arc::strong_count(&first), 1);
    assert!(!second.has_ended());
}

#[test]
fn where_a_session_has_as_many_streams_as_it_may_reads_go_over_those_that_there_are() {
    let bytes = pattern(1 << 20);
    let (server, _) = serve(Slice::copied(&bytes), Rights::ALL);
    let endpoint: Arc<dyn Endpoint> = Arc::new(connect_tcp(&server, 8));
    let (mut queues, mut completions) = (Vec::new(), Vec::new());
    // One of the endpoint, eight of each queue, and of the last one seven.
    for tag in 0..4 {
        let mut queue = endpoint.queue(0).unwrap();
        let into = Slice::zeroed(1 << 20);
        queue.post_read(tag, HANDLE, &[run(0, 1 << 20)], std::slice::from_ref(&into)).unwrap();
        while queue.in_flight() > 0 {
            queue.poll(&mut completions, Duration::from_secs(5)).unwrap();
        }
        assert_eq!(completions.pop().unwrap().result, Ok(Outcome::Done));
        assert!(into.to_vec() == bytes);
        queues.push(queue);
    }
    assert!(endpoint.queue(1).is_err_and(|error| error.is_full()), "or this shows nothing");
    let mut intake = Intake::new(1 << 20, 1).unwrap();
    intake.post(&endpoint, 7, HANDLE, run(0, 1 << 20), 0).unwrap();
    assert_eq!((intake.in_flight(), intake.poll(&mut completions, Duration::ZERO)), (1, Ok(1)));
    assert_eq!(completions.pop().map(|done| (done.tag, done.result)), Some((7, Ok(Outcome::Done))));
    assert!(intake.bytes(0, 1 << 20) == bytes);
    // What was not waited for is not told to whoever reads next.
    intake.post(&endpoint, 8, HANDLE, run(0, 1), 0).unwrap();
    intake.abandon();
    intake.post(&endpoint, 9, HANDLE, run(0, 1), 0).unwrap();
    intake.forget(&endpoint);
    assert_eq!((intake.in_flight(), intake.poll(&mut completions, Duration::ZERO)), (0, Ok(0)));
    // A place that is free again is taken.
    queues.pop();
    eventually("the places of a queue are free", || endpoint.queue(1).is_ok());
}

#[test]
fn posted_writes_and_reads_on_full_sockets_do_not_block_each_other() {
    let (server, service) = serve(Slice::zeroed(16 << 20), Rights::ALL);
    let endpoint = connect(&server, 1, Mode::Blocking);
    let mut queue = endpoint.queue(0).unwrap();
    let from = Slice::copied(&pattern(8 << 20));
    let into = Slice::zeroed(8 << 20);
    for piece in 0..8u64 {
        let at = (piece << 20) as usize;
        let (from, into) = (from.sub(at, 1 << 20).unwrap(), into.sub(at, 1 << 20).unwrap());
        queue.post_write(piece, HANDLE, &[run(piece << 20, 1 << 20)], &[from]).unwrap();
        queue.post_read(100 + piece, HANDLE, &[run((8 + piece) << 20, 1 << 20)], &[into]).unwrap();
    }
    let mut completions = Vec::new();
    while queue.in_flight() > 0 {
        queue.poll(&mut completions, Duration::from_secs(5)).unwrap();
    }
    assert_eq!(completions.iter().filter(|completion| completion.result.is_ok()).count(), 16);
    assert!(service.memory().sub(0, 8 << 20).unwrap().to_vec() == pattern(8 << 20));
}

#[test]
fn a_queue_whose_server_stops_completes_everything_with_an_error() {
    let (mut server, _) = serve(Slice::zeroed(4 << 20), Rights::ALL);
    let endpoint = connect(&server, 2, Mode::Blocking);
    let mut queue = endpoint.queue(0).unwrap();
    server.stop();
    for tag in 0..20 {
        // Posting may fail at once or later in the completion.
        let _ = queue.post_read(tag, HANDLE, &[run(0, 4 << 20)], &[Slice::zeroed(4 << 20)]);
    }
    let mut completions = Vec::new();
    while queue.in_flight() > 0 {
        queue.poll(&mut completions, Duration::from_secs(5)).unwrap();
    }
    assert!(completions.iter().all(|completion| completion.result.is_err()));
}

#[test]
fn checksums_of_long_bodies_travel_both_ways() {
    let bytes = pattern(2 << 20);
    let (server, service) = serve(Slice::copied(&bytes), Rights::ALL);
    let options = ClientOptions { checksums: true, streams: 2, ..plain_or_tls() };
    let endpoint = TcpEndpoint::connect(server.address(), options).unwrap();
    let mut into = vec![0; 2 << 20];
    endpoint.read(HANDLE, &[run(0, 2 << 20)], &mut into).unwrap();
    assert!(into == bytes);
    into.reverse();
    endpoint.write(HANDLE, &[run(0, 2 << 20)], &into).unwrap();
    assert!(service.memory().to_vec() == into);
}

#[test]
fn very_long_transfers_move_the_same_bytes_with_and_without_helpers() {
    let bytes = pattern((40 << 20) + 3);
    let size = bytes.len() as u64;
    let (server, service) = serve(Slice::copied(&bytes), Rights::ALL);
    for helpers in [true, false] {
        let options = ClientOptions { streams: 3, helpers, ..plain_or_tls() };
        let endpoint = TcpEndpoint::connect(server.address(), options).unwrap();
        let mut into = vec![0; bytes.len()];
        endpoint.read(HANDLE, &[run(0, size)], &mut into).unwrap();
        assert!(into == bytes);
        into.rotate_left(12_345);
        endpoint.write(HANDLE, &[run(0, size)], &into).unwrap();
        assert!(service.memory().to_vec() == into);
        service.memory().copy_in(0, &bytes);
        let beyond = [run(0, size - 1), run(size, 1)];
        assert!(matches!(endpoint.read(HANDLE, &beyond, &mut into), Err(FabricError::Remote { .. })));
        endpoint.read(HANDLE, &[run(0, size)], &mut into).unwrap();
        assert!(into == bytes);
    }
}

#[test]
fn memory_whose_file_is_cut_off_is_refused_and_the_server_lives() {
    const BYTES: usize = 4 << 20;
    for (size, checked) in [(64usize, false), (100_000, false), (1 << 20, false), (1 << 20, true)] {
        let mut file = MemoryFile::anonymous("cut", BYTES as u64, PageKind::Base4K).unwrap();
        let options = MapOptions { write: true, guarded: true, ..MapOptions::default() };
        let memory = Arc::new(file.map(0, BYTES, options).unwrap()).slice();
        memory.fill(0, BYTES, 7).unwrap();
        let (server, _) = serve(Slice::from(memory), Rights::ALL);
        let endpoint =
            TcpEndpoint::connect(server.address(), ClientOptions { checksums: checked, ..plain_or_tls() })
                .unwrap();
        let place = run(3 << 20, size as u64);
        let mut into = vec![0; size];
        endpoint.read(HANDLE, &[place], &mut into).unwrap();
        assert!(into.iter().all(|&byte| byte == 7));
        file.resize(1 << 20).unwrap();
        // The kernel may be the first to miss the pages, in the middle of an answer: then the connection is what ends.
        let _ = endpoint.read(HANDLE, &[place], &mut into).unwrap_err();
        let again = connect_tcp(&server, 1);
        let error = again.read(HANDLE, &[run(0, 8)], &mut [0; 8]).unwrap_err();
        assert!(error.to_string().contains("cut off"), "{error}");
        assert!(again.write(HANDLE, &[run(0, 8)], &[1; 8]).is_err());
        assert!(again.fetch_and_add(HANDLE, 0, 1).is_err());
        assert_eq!(again.call(b"alive").unwrap(), b"alive");
    }
}
