//! Reads, writes, swaps and calls over real sockets, against a plain buffer.

use hinterland_fabric::tcp::{ClientOptions, Mode, Server, ServerOptions, TcpEndpoint};
use hinterland_fabric::{Endpoint, FabricError, MemoryService, Slice};
use hinterland_proto::ErrorCode;
use hinterland_types::{ByteRange, Handle, Rights};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

const HANDLE: Handle = MemoryService::HANDLE;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[7]).collect()
}

fn serve(memory: Slice, rights: Rights) -> (Server, Arc<MemoryService>) {
    let service = Arc::new(MemoryService::new(memory, rights));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = ServerOptions { spin: Duration::from_micros(20), ..ServerOptions::default() };
    (Server::start(listener, service.clone(), options).unwrap(), service)
}

fn connect(server: &Server, streams: usize, mode: Mode) -> TcpEndpoint {
    TcpEndpoint::connect(server.address(), ClientOptions { streams, mode, ..ClientOptions::default() })
        .unwrap()
}

fn run(offset: u64, bytes: u64) -> ByteRange {
    ByteRange::new(offset, bytes).unwrap()
}

/// Waits for what other threads do soon; fails after five seconds.
fn eventually(what: &str, condition: impl Fn() -> bool) {
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
    for (streams, mode) in [(1, Mode::Blocking), (3, Mode::Blocking), (1, Mode::Polling), (4, Mode::Polling)]
    {
        let endpoint = connect(&server, streams, mode);
        for size in [0usize, 1, 64, 4095, 4096, 4097, 70_000, 524_289, 1 << 20, (4 << 20) + 5, 8 << 20] {
            for offset in [0usize, 1, 777_777] {
                let mut into = vec![0xAA; size];
                endpoint.read(HANDLE, &[run(offset as u64, size as u64)], &mut into).unwrap();
                assert!(into == bytes[offset..offset + size], "{size} bytes at {offset}, {streams} {mode:?}");
            }
        }
    }
}

#[test]
fn a_gather_of_many_runs_keeps_their_order() {
    let bytes = pattern(4 << 20);
    let (server, _) = serve(Slice::copied(&bytes), Rights::READ);
    let endpoint = connect(&server, 2, Mode::Blocking);
    for (count, size) in [(2usize, 3usize), (256, 4096), (3000, 100), (7, 400_000)] {
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
    let endpoint = connect(&server, 4, Mode::Blocking);
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
