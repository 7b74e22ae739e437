//! A client that got through the handshake on the unix socket and then lies, floods or vanishes: it is refused or cut
//! off, others are served meanwhile, and what it held is given back.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "other tests use the rest")]
mod ground;

use ground::{Ground, Random};
use hinterland_fabric::Endpoint;
use hinterland_os::userfault::Features;
use hinterland_os::{MapOptions, MemoryFile, PageKind, Userfault};
use hinterland_pool::{PoolError, PutOptions, Session};
use hinterland_proto::checksum::{BlockChecksums, digest};
use hinterland_proto::control::{
    Advice, AllocationKind, LockMode, Placement, PutStarted, Reply, Request, encode,
};
use hinterland_proto::{FrameHeader, FrameKind, encode_runs};
use hinterland_types::limits::OBJECT_BYTES_MAX;
use hinterland_types::{ByteRange, GlobalAddress, Handle, ObjectId, Rights};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

const MEBIBYTE: u64 = 1 << 20;

fn begin(session: &Session, name: &str, bytes: Option<u64>) -> Result<PutStarted, PoolError> {
    let name = ground::name(name);
    match session.call(&Request::PutBegin { name, bytes, copies: 1, placement: Placement::Policy })? {
        Reply::PutStarted(started) => Ok(started),
        other => panic!("{other:?}"),
    }
}

fn open(session: &Session, name: &str) -> Handle {
    match session.call(&Request::Open { name: ground::name(name), rights: Rights::READ }).unwrap() {
        Reply::Opened(opened) => opened.handle,
        other => panic!("{other:?}"),
    }
}

fn refused(result: Result<impl std::fmt::Debug, PoolError>) -> String {
    match result {
        Err(PoolError::Refused { text, .. }) => text,
        other => panic!("it should have been refused: {other:?}"),
    }
}

fn a_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = std::io::pipe().unwrap();
    (reader.into(), writer.into())
}

#[test]
fn frames_of_garbage_end_their_session_and_no_other() {
    let ground = Ground::new("garbage");
    let other = ground.pool();
    let mut random = Random(1);
    for round in 0..60u64 {
        let mut peer = ground.peer();
        let mut bytes = peer.sealed(FrameHeader::new(FrameKind::Call, 0, 16));
        bytes.extend(std::iter::repeat_with(|| random.next() as u8).take(16));
        match round % 4 {
            0 => bytes = std::iter::repeat_with(|| random.next() as u8).take(300).collect(),
            1 => {
                let place = random.below(64) as usize;
                bytes[place] ^= 1 << random.below(8);
            }
            2 => bytes.truncate(random.below(80) as usize),
            _ => {}
        }
        peer.send(&bytes, &[]);
        if round % 2 == 0 {
            peer.finish();
            peer.drain();
        }
        if round % 50 == 0 {
            assert_eq!(other.list("").unwrap(), []);
        }
    }
    ground.settles(&other, 0);
}

#[test]
fn requests_with_flipped_bytes_change_nothing_that_is_not_the_sessions() {
    let ground = Ground::new("flipped");
    let other = ground.pool();
    ground.put(&other, "kept", 300_000);
    let mut random = Random(2);
    let requests = [
        Request::Open { name: ground::name("kept"), rights: Rights::READ },
        Request::PutBegin {
            name: ground::name("mine"),
            bytes: Some(70_000),
            copies: 1,
            placement: Placement::Policy,
        },
        Request::PutSeal { object: ObjectId(1), bytes: 300_000, digest: [3; 32] },
        Request::PutGrow { object: ObjectId(2), bytes: 1 << 40 },
        Request::Advise {
            handle: Handle(0),
            range: ByteRange::new(0, 1 << 20).unwrap(),
            advice: Advice::WillNeed,
        },
        Request::Allocate { bytes: 64, kind: AllocationKind::Session },
        Request::Prefer { budget_bytes: Some(1), unit_bytes: Some(65_536) },
        Request::Stat { name: ground::name("kept") },
        Request::OpenObject { object: ObjectId(1), rights: Rights::WRITE },
        Request::List { prefix: "k".to_owned(), after: None, limit: 10 },
    ];
    let mut peer = ground.peer();
    for round in 0..3000 {
        let mut body = encode(&requests[round % requests.len()]).unwrap();
        for _ in 0..random.below(3) {
            // The kind of request stays: a removal would be a request that anybody may make.
            let place = 1 + random.below(body.len() as u64 - 1) as usize;
            body[place] = random.next() as u8;
        }
        if !peer.call(&body) {
            peer = ground.peer();
        }
    }
    drop(peer);
    ground.settles(&other, 1);
    let verified = other.verify(&ground::name("kept")).unwrap();
    assert_eq!(verified.bad, []);
}

#[test]
fn handles_and_objects_of_others_are_refused() {
    let ground = Ground::new("others");
    let (owner, thief) = (ground.session(), ground.session());
    let started = begin(&owner, "theirs", Some(MEBIBYTE)).unwrap();
    let (object, handle) = (started.object, started.targets[0].handle.unwrap());
    for request in [
        Request::PutSeal { object, bytes: 0, digest: [0; 32] },
        Request::PutGrow { object, bytes: 2 * MEBIBYTE },
        Request::PutAbort { object },
    ] {
        assert!(refused(thief.call(&request)).contains("this session has no put"), "{request:?}");
    }
    refused(thief.call(&Request::PutAttach { object, ticket: [0; 16] }));
    refused(thief.call(&Request::OpenObject { object, rights: Rights::READ }));
    refused(thief.write(handle, 0, b"mine"));
    refused(thief.read(handle, 0, &mut [0; 4]));
    owner.write(handle, 0, b"theirs").unwrap();
    // Who writes may read what it has written, and nobody else.
    let mut back = [0; 6];
    owner.read(handle, 0, &mut back).unwrap();
    assert_eq!(&back, b"theirs");
    refused(thief.read(handle, 0, &mut back));
    let allocated = owner.call(&Request::Allocate { bytes: 64, kind: AllocationKind::Session }).unwrap();
    let Reply::Allocated { address, .. } = allocated else { panic!("{allocated:?}") };
    refused(thief.call(&Request::Free { address }));
    owner.call(&Request::Lock { address, mode: LockMode::Write, wait_ms: 0 }).unwrap();
    refused(thief.call(&Request::Unlock { address }));
}

#[test]
fn ranges_outside_are_refused() {
    let ground = Ground::new("ranges");
    let pool = ground.pool();
    ground.put(&pool, "small", 100_000);
    let session = ground.session();
    let handle = open(&session, "small");
    for (offset, bytes) in [(100_000, 1), (99_999, 2), (u64::MAX - 1, 1), (1 << 62, 4096)] {
        assert!(session.read(handle, offset, &mut vec![0; bytes]).is_err(), "{offset} {bytes}");
    }
    let mut last = [0; 1];
    session.read(handle, 99_999, &mut last).unwrap();
    let started = begin(&session, "growing", None).unwrap();
    let writer = started.targets[0].handle.unwrap();
    assert!(session.write(writer, 1 << 40, b"far").is_err());
    for bytes in [u64::MAX, u64::MAX - (1 << 21), 1 << 62, 1 << 43, 1 << 40] {
        refused(session.call(&Request::PutGrow { object: started.object, bytes }));
        refused(begin(&session, "huge", Some(bytes)));
    }
    for bytes in [u64::MAX, 1 << 40, 5 * MEBIBYTE] {
        let again = begin(&session, "sealed early", None).unwrap();
        refused(session.call(&Request::PutSeal { object: again.object, bytes, digest: [0; 32] }));
    }
    for (rights, range) in
        [(Rights::WRITE, (0, 10)), (Rights::READ, (99_999, 2)), (Rights::READ, (1 << 50, 1))]
    {
        let range = ByteRange::new(range.0, range.1).unwrap();
        let diminished = session.call(&Request::Diminish { handle, rights, range });
        if let Ok(Reply::Granted { handle }) = diminished {
            assert!(session.read(handle, 0, &mut [0; 4]).is_err());
            assert!(session.write(handle, 0, &[0; 4]).is_err());
        }
    }
}

#[test]
fn descriptors_that_are_no_userfaultfd_are_refused() {
    let ground = Ground::new("descriptors");
    let session = ground.session();
    let handle = Handle(0);
    let register = Request::Register { handle, pointer: 1 << 30, offset: 0, bytes: 4096 };
    let (reader, writer) = a_pipe();
    let file = MemoryFile::anonymous("other", 1 << 20, PageKind::Base4K).unwrap().duplicate().unwrap();
    for descriptor in [reader.as_fd(), writer.as_fd(), file.as_fd()] {
        assert!(refused(session.call_with(&register, &[descriptor])).contains("no userfaultfd"));
    }
    assert!(refused(session.call(&register)).contains("without a userfaultfd"));
    // Descriptors beside a request that wants none, and as many as one message carries.
    session.call_with(&Request::Ping, &[reader.as_fd(); 16]).unwrap();
    session.call(&Request::Ping).unwrap();
}

#[test]
fn addresses_that_no_mapping_can_have_are_refused() {
    let ground = Ground::new("addresses");
    let Ok(fault) = Userfault::open(Features::default()) else {
        eprintln!("no userfaultfd on this machine: nothing to check");
        return;
    };
    let pool = ground.pool();
    ground.put(&pool, "held", 10_000);
    let session = ground.session();
    let handle = open(&session, "held");
    for pointer in [u64::MAX, u64::MAX - 4095, 1 << 63, (1 << 57) - 4096 + 1, 4097] {
        let register = Request::Register { handle, pointer, offset: 0, bytes: 8192 };
        assert!(
            refused(session.call_with(&register, &[fault.as_fd()])).contains("no address"),
            "{pointer:#x}"
        );
    }
    let register = Request::Register { handle, pointer: 4096, offset: 0, bytes: 8192 };
    assert!(refused(session.call_with(&register, &[fault.as_fd()])).contains("before Map"));
}

#[test]
fn floods_end_at_a_limit_and_are_forgotten_with_the_session() {
    let ground = Ground::new("floods");
    let other = ground.pool();
    ground.put(&other, "wanted", 100);
    let session = ground.session();
    let opened = (0..100_000)
        .map(|_| session.call(&Request::Open { name: ground::name("wanted"), rights: Rights::READ }))
        .position(|answer| answer.is_err())
        .unwrap();
    assert_eq!(opened, 1 << 16);
    let rings = (0..1000).map(|_| session.call(&Request::OpenRing)).position(|answer| answer.is_err());
    assert_eq!(rings, Some(16));
    let room = (0..100_000)
        .map(|_| session.call(&Request::Allocate { bytes: 1 << 20, kind: AllocationKind::Session }))
        .position(|answer| answer.is_err())
        .unwrap();
    assert!(room < 64);
    // The table of handles is full, so every put is refused and must leave nothing.
    for number in 0..50 {
        refused(begin(&session, &format!("flood/{number}"), Some(100)));
    }
    other.stat(&ground::name("wanted")).unwrap();
    drop(session);
    ground.settles(&other, 1);
    assert!(other.allocate(60 << 20, AllocationKind::Session).is_ok());
}

#[test]
fn an_allocation_that_does_not_fit_says_what_to_do() {
    let ground = Ground::new("segment");
    let pool = ground.pool();
    let (whole, _) = pool.allocate(64 << 20, AllocationKind::Session).unwrap();
    for bytes in [1, 1 << 30] {
        let refused = pool.allocate(bytes, AllocationKind::Session).unwrap_err().to_string();
        assert!(refused.contains("of 67108864 bytes"), "{refused}");
        assert!(refused.contains("hint: free something, or make a region"), "{refused}");
    }
    pool.free(whole).unwrap();
    pool.allocate(1, AllocationKind::Session).unwrap();
}

#[test]
fn who_does_not_read_its_answers_holds_nobody_up() {
    let ground = Ground::new("unread");
    let other = ground.pool();
    ground.put(&other, "large", 2 * MEBIBYTE as usize);
    let mut peer = ground.peer();
    let body = encode(&Request::Open { name: ground::name("large"), rights: Rights::READ }).unwrap();
    assert!(peer.call(&body));
    let mut table = Vec::new();
    encode_runs(&[ByteRange::new(0, 2 * MEBIBYTE).unwrap()], &mut table).unwrap();
    for _ in 0..64 {
        let mut header = FrameHeader::new(FrameKind::Read, 0, table.len() as u32);
        header.argument = 1;
        let bytes = [peer.sealed(header), table.clone()].concat();
        peer.send(&bytes, &[]);
    }
    let started = Instant::now();
    for number in 0..20 {
        ground.put(&other, &format!("meanwhile/{number}"), 1000);
    }
    assert!(started.elapsed() < Duration::from_secs(8), "others waited for it");
    drop(peer);
    ground.settles(&other, 21);
}

#[test]
fn a_client_that_dies_at_any_step_of_a_put_leaves_nothing() {
    let ground = Ground::new("steps");
    let other = ground.pool();
    for step in 0..8 {
        for waits in [true, false] {
            let session = ground.session();
            let mut peer = ground.peer();
            // The same requests twice: with an answer to each, and with the last one unanswered at the death.
            if waits {
                put_up_to(&session, step);
            } else {
                let name = ground::name("half");
                let bytes = Some(MEBIBYTE);
                let request = Request::PutBegin { name, bytes, copies: 1, placement: Placement::Policy };
                let body = encode(&request).unwrap();
                let header = FrameHeader::new(FrameKind::Call, 0, body.len() as u32);
                let bytes = [peer.sealed(header), body].concat();
                peer.send(&bytes[..bytes.len() * (step + 1) / 8], &[]);
            }
            drop(peer);
            drop(session);
            ground.settles(&other, 0);
            ground.put(&other, "half", 5000);
            other.remove(&ground::name("half")).unwrap();
        }
    }
}

/// The first steps of a put of 1 MiB under the name `half`, whose seal is refused at the last one.
fn put_up_to(session: &Session, step: usize) {
    let mut started = None;
    for number in 0..=step {
        match (number, &started) {
            (0, _) => started = Some(begin(session, "half", None).unwrap()),
            (1 | 3 | 5, Some(PutStarted { object, .. })) => {
                let bytes = number as u64 * MEBIBYTE;
                session.call(&Request::PutGrow { object: *object, bytes }).map(drop).unwrap();
            }
            (2 | 4 | 6, Some(PutStarted { targets, .. })) => {
                session.write(targets[0].handle.unwrap(), 0, &vec![7; 500_000]).unwrap();
            }
            (_, Some(PutStarted { object, .. })) => {
                let object = *object;
                refused(session.call(&Request::PutSeal { object, bytes: 500_000, digest: [1; 32] }));
            }
            (_, None) => unreachable!("a put begins with its first step"),
        }
    }
}

#[test]
fn what_a_dead_client_held_is_free_within_a_second_even_while_it_waited() {
    let ground = Ground::new("locks");
    let (holder, other) = (ground.session(), ground.pool());
    let (address, _) = other.allocate(64, AllocationKind::Session).unwrap();
    let second = GlobalAddress::new(address.raw() + 8).unwrap();
    holder.call(&Request::Lock { address, mode: LockMode::Write, wait_ms: 0 }).unwrap();
    let mut peer = ground.peer();
    let take = |address, wait_ms| encode(&Request::Lock { address, mode: LockMode::Write, wait_ms }).unwrap();
    assert!(peer.call(&take(second, 0)));
    assert!(
        peer.call(&encode(&Request::Allocate { bytes: 1 << 20, kind: AllocationKind::Session }).unwrap())
    );
    // It waits for seven weeks for a lock that somebody else has, and dies.
    let body = take(address, u32::MAX);
    let bytes = [peer.sealed(FrameHeader::new(FrameKind::Call, 0, body.len() as u32)), body].concat();
    peer.send(&bytes, &[]);
    std::thread::sleep(Duration::from_millis(50));
    drop(peer);
    other.lock(second, LockMode::Write, 1000).unwrap();
    other.unlock(second).unwrap();
    drop(holder);
    other.lock(address, LockMode::Write, 1000).unwrap();
}

#[test]
fn two_writers_of_one_name_take_turns() {
    let ground = Ground::new("writers");
    let (one, two) = (ground.session(), ground.session());
    let first = begin(&one, "name", Some(100)).unwrap();
    let text = refused(begin(&two, "name", Some(100)));
    assert!(text.contains("name") && text.contains("hint:"), "{text}");
    one.call(&Request::PutAbort { object: first.object }).unwrap();
    let second = begin(&two, "name", Some(100)).unwrap();
    assert_ne!(first.object, second.object);
    assert!(refused(begin(&one, "name", Some(100))).contains("hint:"));
    drop((one, two));
    let pool = ground.pool();
    ground.settles(&pool, 0);
    pool.put(&mut &b"bytes"[..], &ground::name("name"), &PutOptions::default(), &mut |_| {}).unwrap();
}

#[test]
fn a_lock_that_is_taken_over_a_ring_while_the_session_ends_is_given_back() {
    let ground = Ground::new("ring-race");
    let other = ground.pool();
    let (first, _) = other.allocate(1 << 20, AllocationKind::Session).unwrap();
    for round in 0..60u64 {
        let dying = ground.pool();
        let ring = dying.ring().unwrap();
        let addresses: Vec<_> =
            (0..8).map(|place| GlobalAddress::new(first.raw() + round * 512 + place * 64).unwrap()).collect();
        let taken = addresses.clone();
        let taking = std::thread::spawn(move || {
            for address in taken {
                let lock = Request::Lock { address, mode: LockMode::Write, wait_ms: 0 };
                // The node may have ended the ring already.
                if ring.call_within(&encode(&lock).unwrap(), Duration::from_millis(20)).is_err() {
                    return;
                }
            }
        });
        std::thread::sleep(Duration::from_micros(round * 7 % 300));
        drop(dying);
        taking.join().unwrap();
        for address in addresses {
            other.lock(address, LockMode::Write, 1000).unwrap();
        }
    }
}

#[test]
fn who_cuts_off_the_file_of_a_region_loses_that_region_and_ends_nobody() {
    let ground = Ground::new("cut");
    let (pool, hostile) = (ground.pool(), ground.session());
    for name in ["cut", "kept"] {
        pool.create_region(&ground::name(name), 4 * MEBIBYTE, None).unwrap();
    }
    let open = |session: &Session, name: &str| {
        let rights = Rights::READ | Rights::WRITE;
        match session.call(&Request::Open { name: ground::name(name), rights }).unwrap() {
            Reply::Opened(opened) => opened.handle,
            other => panic!("{other:?}"),
        }
    };
    let (honest, kept) = (open(pool.session(), "cut"), open(pool.session(), "kept"));
    pool.session().write(honest, 3 * MEBIBYTE, b"here").unwrap();
    pool.session().write(kept, 3 * MEBIBYTE, b"kept").unwrap();
    let handle = open(&hostile, "cut");
    let (reply, mut descriptors) = hostile.call_with(&Request::Map { handle }, &[]).unwrap();
    assert!(matches!(reply, Reply::Mapped(_)), "{reply:?}");
    MemoryFile::from_descriptor(descriptors.remove(0)).unwrap().resize(4096).unwrap();
    let mut bytes = [0; 4];
    for _ in 0..2 {
        let text = refused(pool.session().read(honest, 3 * MEBIBYTE, &mut bytes));
        assert!(text.contains("cut its file off") && text.contains("hint:"), "{text}");
        refused(pool.session().write(honest, 0, b"lost"));
    }
    pool.session().read(kept, 3 * MEBIBYTE, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");
    pool.remove(&ground::name("cut")).unwrap();
    pool.create_region(&ground::name("cut"), 4 * MEBIBYTE, None).unwrap();
}

#[test]
fn who_has_the_file_of_a_put_for_writing_cannot_have_it_sealed() {
    let ground = Ground::new("lent");
    let (pool, hostile) = (ground.pool(), ground.session());
    let bytes = vec![7; 100_000];
    let sealing = |started: &PutStarted| {
        let mut sums = BlockChecksums::default();
        sums.update(&bytes);
        let digest = digest(bytes.len() as u64, &sums.finish());
        Request::PutSeal { object: started.object, bytes: bytes.len() as u64, digest }
    };
    let started = begin(&hostile, "lent", Some(100_000)).unwrap();
    let handle = started.targets[0].handle.unwrap();
    let (reply, mut descriptors) = hostile.call_with(&Request::Map { handle }, &[]).unwrap();
    assert!(matches!(&reply, Reply::Mapped(mapped) if mapped.writable), "{reply:?}");
    let file = MemoryFile::from_descriptor(descriptors.remove(0)).unwrap();
    let options = MapOptions { write: true, ..MapOptions::default() };
    let memory = Arc::new(file.map(0, 100_000, options).unwrap()).slice();
    memory.write_at(0, &bytes).unwrap();
    // A descriptor that was closed may have left a mapping.
    drop(file);
    let text = refused(hostile.call(&sealing(&started)));
    assert!(text.contains("lent") && text.contains("hint:"), "{text}");
    memory.write_at(0, b"changed").unwrap();
    assert!(pool.stat(&ground::name("lent")).is_err(), "nobody sees it");
    assert_eq!(pool.list("lent").unwrap(), []);
    // The name is free, and who has the file for reading may seal what it writes by requests.
    let started = begin(&hostile, "lent", Some(100_000)).unwrap();
    let handle = started.targets[0].handle.unwrap();
    hostile.write(handle, 0, &bytes).unwrap();
    let range = ByteRange::new(0, OBJECT_BYTES_MAX).unwrap();
    let reading = hostile.call(&Request::Diminish { handle, rights: Rights::READ, range }).unwrap();
    let Reply::Granted { handle: reading } = reading else { panic!("{reading:?}") };
    let (reply, _file) = hostile.call_with(&Request::Map { handle: reading }, &[]).unwrap();
    assert!(matches!(&reply, Reply::Mapped(mapped) if !mapped.writable), "{reply:?}");
    hostile.call(&sealing(&started)).unwrap();
    assert_eq!(pool.verify(&ground::name("lent")).unwrap().bad, []);
    // Behind the seal its writer gets the file as everybody does.
    let handle = open(&hostile, "lent");
    let (reply, mut descriptors) = hostile.call_with(&Request::Map { handle }, &[]).unwrap();
    assert!(matches!(&reply, Reply::Mapped(mapped) if !mapped.writable), "{reply:?}");
    let file = MemoryFile::from_descriptor(descriptors.remove(0)).unwrap();
    assert!(file.map(0, 4096, options).is_err());
}
