//! Fetches over real sockets: bytes that the service finds, in each of the three ways, with the round trips counted.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_fabric::adaptive::{Adaptive, Way};
use hinterland_fabric::tcp::{ClientOptions, Mode, Server, ServerOptions, TcpEndpoint};
use hinterland_fabric::{Endpoint, FabricError, MemoryService, Slice};
use hinterland_types::{ByteRange, Rights};
use std::net::TcpListener;
use std::sync::Arc;

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[7]).collect()
}

fn serve(memory: Slice) -> Server {
    let service = Arc::new(MemoryService::new(memory, Rights::READ));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Server::start(listener, service, ServerOptions::default()).unwrap()
}

fn connect(server: &Server, mode: Mode) -> TcpEndpoint {
    let options = ClientOptions { streams: 1, mode, ..ClientOptions::default() };
    TcpEndpoint::connect(server.address(), options).unwrap()
}

fn run(offset: u64, bytes: u64) -> ByteRange {
    ByteRange::new(offset, bytes).unwrap()
}

fn question(bytes: usize) -> [u8; 8] {
    (bytes as u64).to_le_bytes()
}

#[test]
fn a_fetch_places_as_many_bytes_as_there_are_and_fit() {
    let bytes = pattern(5 << 20);
    let server = serve(Slice::copied(&bytes));
    for mode in [Mode::Blocking, Mode::Polling] {
        let endpoint = connect(&server, mode);
        for there in [0usize, 1, 64, 4095, 4096, 4097, 70_000, 1 << 20, 5 << 20] {
            for room in [0usize, 1, 512, 4096, 4097, 1 << 20, (4 << 20) + 7] {
                let mut into = vec![0xAA; room];
                let found = endpoint.fetch(&question(there), &mut into).unwrap();
                let placed = there.min(room).min(4 << 20);
                assert_eq!((found.bytes, found.placed), (there as u64, placed), "{there} into {room}");
                assert!(into[..placed] == bytes[..placed], "{there} into {room}");
                assert!(into[placed..].iter().all(|&byte| byte == 0xAA), "{there} into {room}");
                let mut all = vec![0; there];
                endpoint.read(found.handle.unwrap(), &[run(0, there as u64)], &mut all).unwrap();
                assert!(all == bytes[..there]);
            }
        }
        let refused = endpoint.fetch(&question((5 << 20) + 1), &mut [0; 8]);
        assert!(matches!(refused, Err(FabricError::Remote { .. })), "{refused:?}");
        assert!(endpoint.fetch(b"what?", &mut vec![0; 70_000]).is_err());
        assert!(matches!(endpoint.fetch(&[0; 5000], &mut []), Err(FabricError::Limit { .. })));
        // The stream is as it was.
        assert_eq!(endpoint.call(b"still here").unwrap(), b"still here");
    }
}

#[test]
fn each_way_of_fetching_takes_the_round_trips_that_it_should() {
    let bytes = pattern(1 << 20);
    let server = serve(Slice::copied(&bytes));
    let endpoint: Arc<dyn Endpoint> = Arc::new(connect(&server, Mode::Blocking));
    for (way, questions, reads) in
        [(Some(Way::Message), 1, 0), (Some(Way::Read), 1, 1), (Some(Way::Direct), 1, 0), (None, 1, 0)]
    {
        for there in [64usize, 4096, 1 << 20] {
            let adaptive = Adaptive::new(Arc::clone(&endpoint), way);
            // What several streams can carry is read.
            let reads = if way.is_none() && there >= endpoint.parallel_from() { 1 } else { reads };
            let mut into = vec![0; there];
            adaptive.fetch_into(&question(there), &mut into).unwrap();
            assert!(into == bytes[..there], "{way:?} {there}");
            let counts = adaptive.counts();
            assert_eq!((counts.questions, counts.reads), (questions, reads), "{way:?} {there}");
            // The address is learned: the next one is a read and asks nothing.
            adaptive.fetch_into(&question(there), &mut into).unwrap();
            let counts = adaptive.counts();
            assert_eq!(
                (counts.questions, counts.reads, counts.learned),
                (1, reads + 1, 1),
                "{way:?} {there}"
            );
        }
    }
}

#[test]
fn bytes_of_unknown_number_come_whole_and_a_limit_is_kept() {
    let bytes = pattern(1 << 20);
    let server = serve(Slice::copied(&bytes));
    let endpoint: Arc<dyn Endpoint> = Arc::new(connect(&server, Mode::Blocking));
    for way in [None, Some(Way::Message), Some(Way::Read), Some(Way::Direct)] {
        let adaptive = Adaptive::calibrated(Arc::clone(&endpoint), way, b"ping").unwrap();
        let guess = adaptive.calibration().unwrap().guess_bytes;
        assert!((512..=256 << 10).contains(&guess) && guess.is_power_of_two(), "{guess}");
        for there in [0, 1, guess, guess + 1, 1 << 20] {
            assert!(adaptive.fetch(&question(there), 1 << 20).unwrap() == bytes[..there], "{way:?} {there}");
            // From what was learned.
            assert!(adaptive.fetch(&question(there), 1 << 20).unwrap() == bytes[..there], "{way:?} {there}");
        }
        let limited = adaptive.fetch(&question(1000), 999);
        assert!(matches!(limited, Err(FabricError::Limit { .. })), "{limited:?}");
        let wrong = adaptive.fetch_into(&question(1000), &mut [0; 999]);
        assert!(matches!(wrong, Err(FabricError::Lengths { .. })), "{wrong:?}");
    }
}
