//! What only devices can show: keys of other sessions, revocation, failing pairs, counts. They run where `HINTERLAND_TEST_RDMA` is
//! set, as the lab does in a guest with soft-RoCE; elsewhere each says that it is skipped.

use super::abi;
use super::link::{Fate, Order};
use super::links::Links;
use super::{Counts, Host, HostOptions, RdmaEndpoint, RdmaOptions};
use crate::endpoint::Endpoint;
use crate::error::FabricError;
use crate::memory_service::MemoryService;
use crate::slice::Slice;
use crate::tcp::{ClientOptions, Server, ServerOptions, TcpEndpoint};
use hinterland_proto::control::encode;
use hinterland_proto::verbs::{VERBS_VERSION, VerbsReply, VerbsRequest};
use hinterland_types::{ByteRange, Handle, Rights};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const HANDLE: Handle = MemoryService::HANDLE;

/// Whether there is a device to test with.
fn skipped() -> bool {
    let skipped = std::env::var_os("HINTERLAND_TEST_RDMA").is_none();
    if skipped {
        eprintln!("skipped: no HINTERLAND_TEST_RDMA (hint: lab/lab tests lab/tests/test_rdma.py)");
    }
    skipped
}

fn run(offset: u64, bytes: u64) -> ByteRange {
    ByteRange::new(offset, bytes).unwrap()
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes()[7]).collect()
}

struct Bench {
    server: Server,
    service: Arc<MemoryService>,
    host: Arc<Host>,
}

fn serve(memory: Slice, options: HostOptions) -> Bench {
    let service = Arc::new(MemoryService::new(memory, Rights::ALL));
    let host = Arc::new(Host::open(options).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options = ServerOptions { rdma: Some(Arc::clone(&host)), ..ServerOptions::default() };
    let server = Server::start(listener, service.clone(), options).unwrap();
    Bench { server, service, host }
}

fn writable() -> HostOptions {
    HostOptions { writes: true, ..HostOptions::default() }
}

fn connect(bench: &Bench, rdma: RdmaOptions) -> RdmaEndpoint {
    let options = ClientOptions { timeout: Duration::from_secs(20), ..ClientOptions::default() };
    let endpoint = RdmaEndpoint::connect(bench.server.address(), options, rdma).unwrap();
    assert!(endpoint.capabilities().one_sided, "{:?}", endpoint.why_not());
    endpoint
}

fn links(bench: &Bench) -> Arc<Links> {
    let options = ClientOptions { rdma: true, ..ClientOptions::default() };
    let tcp = TcpEndpoint::connect(bench.server.address(), options).unwrap();
    let links = Arc::new(Links::new(tcp, RdmaOptions::default()));
    // Nothing is granted before there is a port to reach it through.
    assert!(!links.healthy().is_empty(), "{:?}", links.why_not());
    links
}

#[test]
fn reads_and_writes_ask_nobody_and_ring_once_for_many_runs() {
    if skipped() {
        return;
    }
    let bytes = pattern(1 << 20);
    let bench = serve(Slice::copied(&bytes), writable());
    let endpoint = connect(&bench, RdmaOptions::default());
    let runs: Vec<ByteRange> = (0..16).map(|index| run(index * 5000, 64)).collect();
    let mut into = vec![0; 1024];
    endpoint.read(HANDLE, &runs, &mut into).unwrap();
    for (run, piece) in runs.iter().zip(into.chunks(64)) {
        assert_eq!(piece, &bytes[run.offset() as usize..][..64]);
    }
    let counts = endpoint.counts();
    let expected = Counts { links: counts.links, one_sided: 1, requests: 16, ..Counts::default() };
    assert_eq!(counts, expected);
    endpoint.write(HANDLE, &[run(77, 5)], b"hello").unwrap();
    endpoint.write(HANDLE, &[run(4096, 200_000)], &pattern(200_000)).unwrap();
    assert_eq!(bench.service.memory().sub(77, 5).unwrap().to_vec(), b"hello");
    assert!(bench.service.memory().sub(4096, 200_000).unwrap().to_vec() == pattern(200_000));
    let counts = endpoint.counts();
    assert_eq!((counts.one_sided, counts.requests, counts.by_message), (6, 21, 0));
    assert_eq!((bench.host.counts().grants, bench.host.counts().registered_bytes), (2, 2 << 20));
}

#[test]
fn a_key_of_another_session_opens_nothing() {
    if skipped() {
        return;
    }
    let bench = serve(Slice::copied(&pattern(1 << 16)), writable());
    let (ours, theirs) = (links(&bench), links(&bench));
    let granted = theirs.grant(HANDLE, run(0, 4096), true).unwrap();
    let fate = |links: &Links, operation| {
        let link = &links.healthy()[0];
        let slot = link.reserve().unwrap();
        let key = granted.key(link).unwrap();
        let order =
            Order { operation, remote: key.address, key: key.key, offset: 0, bytes: 8, operands: [0; 2] };
        link.begin(slot, &[order]);
        for _ in 0..20_000 {
            link.poll();
            if let Some(fate) = link.take(slot) {
                return fate;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("neither done nor failed");
    };
    assert_eq!(fate(&theirs, abi::RDMA_READ), Fate::Done);
    assert_eq!(fate(&ours, abi::RDMA_WRITE), Fate::Failed { refused: true });
    assert!(bench.service.memory().to_vec() == pattern(1 << 16));
}

#[test]
fn what_lies_beyond_a_grant_cannot_be_reached() {
    if skipped() {
        return;
    }
    let bench = serve(Slice::copied(&pattern(8192)), HostOptions::default());
    for (operation, beyond) in [(abi::RDMA_READ, 8192), (abi::RDMA_WRITE, 0), (abi::FETCH_ADD, 0)] {
        let links = links(&bench);
        assert!(links.grant(HANDLE, run(0, 8), true).is_none(), "writing was granted");
        let granted = links.grant(HANDLE, run(0, 8), false).unwrap();
        let healthy = links.healthy();
        let link = &healthy[0];
        let slot = link.reserve().unwrap();
        let key = granted.key(link).unwrap();
        let remote = key.address + beyond;
        link.begin(slot, &[Order { operation, remote, key: key.key, offset: 0, bytes: 8, operands: [1, 0] }]);
        let mut fate = std::iter::repeat_with(|| {
            std::thread::sleep(Duration::from_millis(1));
            link.poll();
            link.take(slot)
        });
        let fate = fate.by_ref().take(20_000).flatten().next().unwrap();
        assert!(matches!(fate, Fate::Failed { .. }), "{operation}: {fate:?}");
    }
    assert!(bench.service.memory().to_vec() == pattern(8192));
}

#[test]
fn what_is_revoked_is_closed_to_the_device_when_the_call_returns() {
    if skipped() {
        return;
    }
    for calls in [false, true] {
        let bench = serve(Slice::copied(&pattern(1 << 16)), writable());
        let endpoint = connect(&bench, RdmaOptions { calls, ..RdmaOptions::default() });
        endpoint.read(HANDLE, &[run(0, 64)], &mut [0; 64]).unwrap();
        assert_eq!(bench.host.counts().registered_bytes, 1 << 16);
        bench.service.revoke();
        endpoint.call(b"anything").unwrap();
        let after = bench.host.counts();
        assert_eq!((after.revoked, after.registered_bytes, after.calls), (1, 0, u64::from(calls)));
        // The device refuses; what comes is what the service answers to a message.
        let mut into = [0; 64];
        endpoint.read(HANDLE, &[run(0, 64)], &mut into).unwrap();
        assert_eq!(into[..], pattern(64)[..]);
        assert_eq!(endpoint.counts().by_message, 1);
        assert_eq!(endpoint.call(b"and again").unwrap(), b"and again");
    }
}

#[test]
fn calls_travel_as_messages_and_long_ones_arrive_whole() {
    if skipped() {
        return;
    }
    let bench = serve(Slice::zeroed(4096), writable());
    let endpoint = connect(&bench, RdmaOptions::default());
    for size in [0usize, 1, 200, 4096, 8144, 8145, 100_000] {
        assert!(endpoint.call(&pattern(size)).unwrap() == pattern(size), "{size}");
    }
    assert_eq!((endpoint.counts().calls, bench.host.counts().calls), (5, 5));
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let endpoint = &endpoint;
            scope.spawn(move || {
                for turn in 0..25 {
                    let body = vec![thread * 50 + turn; 300];
                    assert_eq!(endpoint.call(&body).unwrap(), body);
                }
            });
        }
    });
}

#[test]
fn swaps_by_a_device_lose_nothing() {
    if skipped() {
        return;
    }
    let bench = serve(Slice::zeroed(64), writable());
    let options = RdmaOptions { device_atomics: true, ..RdmaOptions::default() };
    let endpoints = [connect(&bench, options.clone()), connect(&bench, options)];
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let endpoint = &endpoints[thread % 2];
            scope.spawn(move || {
                for _ in 0..50 {
                    endpoint.fetch_and_add(HANDLE, 8, 3).unwrap();
                }
            });
        }
    });
    assert_eq!(endpoints[0].compare_and_swap(HANDLE, 8, 1, 2).unwrap(), 600);
    assert_eq!(endpoints[1].compare_and_swap(HANDLE, 8, 600, 5).unwrap(), 600);
    assert_eq!(endpoints[0].fetch_and_add(HANDLE, 8, 0).unwrap(), 5);
    assert!(matches!(endpoints[0].fetch_and_add(HANDLE, 12, 1), Err(FabricError::Unsupported { .. })));
}

#[test]
fn a_pair_that_fails_costs_nobody_a_byte_and_is_made_again() {
    if skipped() {
        return;
    }
    let bytes = pattern(3 << 20);
    let bench = serve(Slice::copied(&bytes), writable());
    let endpoint = Arc::new(connect(&bench, RdmaOptions::default()));
    let reader = {
        let (endpoint, bytes) = (Arc::clone(&endpoint), bytes.clone());
        std::thread::spawn(move || {
            for _ in 0..8 {
                let mut into = vec![0; 3 << 20];
                endpoint.read(HANDLE, &[run(0, 3 << 20)], &mut into).unwrap();
                assert!(into == bytes);
            }
        })
    };
    // From the other end, in the middle of it.
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(60));
        endpoint.inside_for_test().healthy().iter().for_each(|link| link.fail());
    }
    reader.join().unwrap();
    let before = endpoint.counts();
    assert!(before.failed >= 1, "{before:?}");
    std::thread::sleep(Duration::from_millis(1100));
    endpoint.read(HANDLE, &[run(0, 64)], &mut [0; 64]).unwrap();
    assert!(endpoint.counts().one_sided > before.one_sided && endpoint.counts().links > 0);
}

#[test]
fn a_link_that_fails_beside_others_is_made_again_and_they_go_on() {
    if skipped() {
        return;
    }
    let bytes = pattern(1 << 20);
    let bench = serve(Slice::copied(&bytes), writable());
    let endpoint = connect(&bench, RdmaOptions::default());
    let whole = |words: &str| {
        let mut into = vec![0; 1 << 20];
        endpoint.read(HANDLE, &[run(0, 1 << 20)], &mut into).unwrap();
        assert!(into == bytes, "{words}");
        endpoint.read(HANDLE, &[run(4096, 64)], &mut into[..64]).unwrap();
        assert!(into[..64] == bytes[4096..4160], "{words}");
    };
    let first = endpoint.inside_for_test().healthy();
    assert!(first.len() >= 2, "the lab has two devices");
    // Each in turn: what carries bytes then is what was made again.
    for lost in first.iter() {
        let stays: Vec<_> = endpoint
            .inside_for_test()
            .healthy()
            .iter()
            .filter(|link| !Arc::ptr_eq(link, lost))
            .cloned()
            .collect();
        // Somebody is making links, and nobody waits for that.
        let setup = endpoint.inside_for_test().setup_for_test();
        lost.fail();
        assert_eq!(endpoint.inside_for_test().healthy().len(), first.len() - 1);
        whole("with one link less");
        drop(setup);
        let again = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            whole("until there is another");
            endpoint.counts().links == first.len() as u64
        });
        assert!(again, "{:?}", endpoint.counts());
        let links = endpoint.inside_for_test().healthy();
        assert!(
            stays.iter().all(|link| links.iter().any(|other| Arc::ptr_eq(link, other))),
            "others were made anew"
        );
    }
    let links = endpoint.inside_for_test().healthy();
    assert!(!first.iter().any(|old| links.iter().any(|link| Arc::ptr_eq(old, link))));
    whole("at the end");
    let counts = endpoint.counts();
    assert_eq!((counts.by_message, counts.failed), (0, first.len() as u64), "{counts:?}");
    assert_eq!((bench.host.counts().links, bench.host.counts().grants), (2 * first.len() as u64, 1));
}

#[test]
fn a_port_that_registers_nothing_leaves_the_others_theirs() {
    if skipped() {
        return;
    }
    let bytes = pattern(1 << 20);
    for refusing in 0..2 {
        let bench = serve(Slice::copied(&bytes), writable());
        bench.host.refusing.store(refusing, Ordering::Relaxed);
        let endpoint = connect(&bench, RdmaOptions::default());
        let mut into = vec![0; 1 << 20];
        for _ in 0..4 {
            endpoint.read(HANDLE, &[run(0, 1 << 20)], &mut into).unwrap();
            assert!(into == bytes);
            endpoint.read(HANDLE, &[run(77, 5)], &mut into[..5]).unwrap();
            assert_eq!(into[..5], bytes[77..82]);
        }
        let counts = endpoint.counts();
        assert_eq!((counts.links, counts.failed, counts.by_message, counts.one_sided), (2, 0, 0, 4 * 17));
        assert_eq!((bench.host.counts().grants, bench.host.counts().registered_bytes), (1, 1 << 20));
        // It registers again: a question for the ports gives every port its key.
        bench.host.refusing.store(u64::MAX, Ordering::Relaxed);
        endpoint.inside_for_test().healthy()[0].fail();
        let again = (0..1000).any(|_| {
            endpoint.read(HANDLE, &[run(0, 64)], &mut into[..64]).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            endpoint.counts().links == 2
        });
        let links = endpoint.inside_for_test().healthy();
        let granted = endpoint.inside_for_test().grant(HANDLE, run(0, 64), false).unwrap();
        assert!(again && links.iter().all(|link| granted.key(link).is_some()));
    }
}

/// Reads in every way while completions are lost.
#[test]
fn completions_that_are_lost_end_by_the_deadline_and_no_chunk_is_used_again() {
    if skipped() {
        return;
    }
    let bytes = pattern(1 << 20);
    let bench = serve(Slice::copied(&bytes), writable());
    let options = ClientOptions { timeout: Duration::from_secs(2), ..ClientOptions::default() };
    let endpoint = RdmaEndpoint::connect(bench.server.address(), options, RdmaOptions::default()).unwrap();
    for way in ["short", "long", "queue"] {
        // Links are made again a while after the last were given up.
        let lost = (0..500).find_map(|_| {
            std::thread::sleep(Duration::from_millis(20));
            Some(endpoint.inside_for_test().healthy()).filter(|links| !links.is_empty())
        });
        let lost = lost.unwrap_or_else(|| panic!("no link for {way}: {:?}", endpoint.why_not()));
        let length = if way == "short" { 4096 } else { 1 << 20 };
        // Granted first: this is not about grants.
        let mut into = vec![0; length];
        endpoint.read(HANDLE, &[run(0, length as u64)], &mut into).unwrap();
        assert!(into == bytes[..length], "{way}");
        lost.iter().for_each(|link| link.swallows.store(true, Ordering::Relaxed));
        let before = endpoint.counts();
        into.fill(0);
        if way == "queue" {
            let memory = Slice::zeroed(length);
            let mut queue = endpoint.queue(1).unwrap();
            queue.post_read(7, HANDLE, &[run(0, length as u64)], std::slice::from_ref(&memory)).unwrap();
            let mut completions = Vec::new();
            while completions.is_empty() {
                queue.poll(&mut completions, Duration::from_secs(1)).unwrap();
            }
            // It was done again, by message.
            assert!(completions[0].result.is_ok() && memory.to_vec() == bytes, "{way}");
            assert!(endpoint.counts().by_message > before.by_message, "{way}");
        } else {
            let error = endpoint.read(HANDLE, &[run(0, length as u64)], &mut into).unwrap_err();
            assert!(matches!(error, FabricError::Timeout { .. }), "{way}: {error}");
            // The device had written the bytes; those that nobody was told of reached only the link's memory.
            assert!(into.iter().all(|byte| *byte == 0), "{way}");
        }
        assert!(endpoint.counts().one_sided > before.one_sided, "{way} used no device");
        let used: Vec<_> = lost.iter().filter(|link| link.has_failed()).collect();
        assert!(!used.is_empty(), "{way}: no link was given up");
        assert!(used.iter().all(|link| link.reserve().is_none()), "{way}: a chunk was given out again");
        // Those that were not used lose what they are told, too.
        lost.iter().for_each(|link| link.fail());
        assert!(
            endpoint
                .inside_for_test()
                .healthy()
                .iter()
                .all(|link| !lost.iter().any(|old| Arc::ptr_eq(old, link)))
        );
        assert!(endpoint.counts().failed >= before.failed + lost.len() as u64, "{way}");
        // Meanwhile by message, and right.
        let before = endpoint.counts();
        endpoint.read(HANDLE, &[run(0, length as u64)], &mut into).unwrap();
        assert!(into == bytes[..length], "{way}");
        assert!(endpoint.counts().one_sided > before.one_sided || before.links == 0, "{way}");
    }
}

#[test]
fn registrations_are_limited_and_what_is_beyond_goes_by_message() {
    if skipped() {
        return;
    }
    let bytes = pattern(1 << 20);
    let limited = HostOptions { registered_bytes_max: 1 << 19, ..writable() };
    let bench = serve(Slice::copied(&bytes), limited);
    let endpoint = connect(&bench, RdmaOptions::default());
    let mut into = vec![0; 1 << 20];
    endpoint.read(HANDLE, &[run(0, 1 << 20)], &mut into).unwrap();
    assert!(into == bytes);
    assert_eq!((endpoint.counts().one_sided, endpoint.counts().by_message), (0, 1));
}

#[test]
fn a_session_that_ends_leaves_nothing_registered() {
    if skipped() {
        return;
    }
    let bench = serve(Slice::zeroed(1 << 20), writable());
    for _ in 0..5 {
        let endpoint = connect(&bench, RdmaOptions::default());
        endpoint.read(HANDLE, &[run(0, 4096)], &mut [0; 4096]).unwrap();
        assert_eq!(endpoint.call(b"x").unwrap(), b"x");
    }
    for _ in 0..5000 {
        if bench.service.open_sessions() == 0 && bench.host.counts().registered_bytes == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{:?}", bench.host.counts());
}

#[test]
fn questions_that_make_no_sense_are_refused_and_the_session_goes_on() {
    if skipped() {
        return;
    }
    let bench = serve(Slice::copied(&pattern(4096)), writable());
    let options = ClientOptions { rdma: true, ..ClientOptions::default() };
    let tcp = TcpEndpoint::connect(bench.server.address(), options).unwrap();
    let mut state = 0x1234_5678_9abc_def1_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let good = encode(&VerbsRequest::Grant { handle: HANDLE, range: run(0, 8), write: true }).unwrap();
    for turn in 0..400 {
        let mut body = if turn % 2 == 0 { good.clone() } else { vec![0; (random() % 90) as usize] };
        for byte in &mut body {
            if turn % 2 == 1 || random() % 4 == 0 {
                *byte = random() as u8;
            }
        }
        // Refused or answered: never the end of the session.
        match tcp.verbs(&body) {
            Ok(_) | Err(FabricError::Remote { .. }) => {}
            Err(error) => panic!("{error} after {body:?}"),
        }
    }
    // A peer of another version is told ours, and no ports.
    let asked = encode(&VerbsRequest::Ports { version: VERBS_VERSION + 1 }).unwrap();
    let told: VerbsReply = hinterland_proto::control::decode(&tcp.verbs(&asked).unwrap()).unwrap();
    assert_eq!(told, VerbsReply::Ports { version: VERBS_VERSION, ports: Vec::new() });
    assert_eq!(tcp.call(b"still here").unwrap(), b"still here");
}
