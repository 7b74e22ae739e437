//! A client or node of another host that lies over TCP: refused in words, and everybody else is served.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "other tests use the rest")]
mod ground;

use ground::{Ground, Random};
use hinterland_directory::{Command, Departure, DirectoryError};
use hinterland_fabric::Endpoint;
use hinterland_fabric::tcp::{ClientOptions, TcpEndpoint};
use hinterland_pool::Session;
use hinterland_proto::checksum::{BlockChecksums, digest};
use hinterland_proto::control::{
    AllocationKind, LockMode, PeerReply, PeerRequest, Placement, PutStarted, Reply, Request, decode, encode,
};
use hinterland_proto::{FrameHeader, FrameKind, Role, encode_runs};
use hinterland_types::{ByteRange, Epoch, GlobalAddress, Handle, NodeId, ObjectId, Rights};

fn connect(ground: &Ground, role: Role) -> TcpEndpoint {
    let pool = ground.session().pool();
    let options = ClientOptions { streams: 1, role, node: NodeId(77), pool, ..ClientOptions::default() };
    TcpEndpoint::connect(ground.address(), options).unwrap()
}

fn ask(endpoint: &TcpEndpoint, request: &Request) -> Reply {
    decode(&endpoint.call(&encode(request).unwrap()).unwrap()).unwrap()
}

fn refusal(reply: &Reply) -> &str {
    match reply {
        Reply::Error { text, .. } => text,
        other => panic!("it should have been refused: {other:?}"),
    }
}

#[test]
fn a_client_of_another_host_gets_nothing_that_only_the_own_host_may() {
    let ground = Ground::new("remote-client");
    let pool = ground.pool();
    ground.put(&pool, "held", 100_000);
    let client = connect(&ground, Role::Client);
    let opened = ask(&client, &Request::Open { name: ground::name("held"), rights: Rights::ALL });
    let Reply::Opened(opened) = opened else { panic!("{opened:?}") };
    assert_eq!(opened.rights, Rights::READ);
    let handle = opened.handle;
    let address = GlobalAddress::new(1 << 30).unwrap();
    for request in [
        Request::Map { handle },
        Request::Register { handle, pointer: 4096, offset: 0, bytes: 4096 },
        Request::Watch,
        Request::OpenRing,
        Request::OpenFarRing,
        Request::PutBegin { name: ground::name("new"), bytes: None, copies: 1, placement: Placement::Policy },
        Request::PutAttach { object: opened.info.object, ticket: [0; 16] },
        Request::PutSeal { object: opened.info.object, bytes: 1, digest: [0; 32] },
        Request::Lock { address, mode: LockMode::Write, wait_ms: u32::MAX },
    ] {
        let reply = ask(&client, &request);
        assert!(!refusal(&reply).is_empty(), "{request:?}");
    }
    let whole = ByteRange::new(0, 100_000).unwrap();
    let behind = ByteRange::new(99_999, 2).unwrap();
    assert!(client.read(handle, &[behind], &mut [0; 2]).is_err());
    assert!(client.write(handle, &[ByteRange::new(0, 4).unwrap()], b"mine").is_err());
    assert!(client.read(Handle(handle.0 + 1), &[whole], &mut vec![0; 100_000]).is_err());
    let mut bytes = vec![0; 100_000];
    client.read(handle, &[whole], &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 1));
    drop(client);
    ground.settles(&pool, 1);
}

#[test]
fn sizes_that_no_object_has_are_refused_from_other_nodes_too() {
    let ground = Ground::new("remote-sizes");
    let pool = ground.pool();
    ground.put(&pool, "held", 100_000);
    let used = pool.status().unwrap().used_bytes;
    let node = connect(&ground, Role::Node);
    let ask = |request: &PeerRequest| -> PeerReply {
        decode(&node.call(&encode(request).unwrap()).unwrap()).unwrap()
    };
    let (epoch, ticket) = (Epoch(1), [1; 16]);
    for (number, bytes) in [u64::MAX, u64::MAX - 4095, 1 << 63, 1 << 50, 1 << 40].into_iter().enumerate() {
        let object = ObjectId(1000 + number as u64);
        let name = ground::name("large");
        let request =
            PeerRequest::HomeCreate { object, epoch, name: name.clone(), bytes: Some(bytes), ticket };
        assert!(matches!(ask(&request), PeerReply::Error { .. }), "{bytes}");
        let request = PeerRequest::HomeRegion { object, epoch, name: name.clone(), bytes };
        assert!(matches!(ask(&request), PeerReply::Error { .. }), "{bytes}");
        assert!(matches!(
            ask(&PeerRequest::HomeCreate { object, epoch, name, bytes: Some(10), ticket }),
            PeerReply::Done
        ));
        assert!(matches!(ask(&PeerRequest::HomeGrow { object, bytes }), PeerReply::Error { .. }), "{bytes}");
        assert!(matches!(ask(&PeerRequest::HomeSeal { object, bytes }), PeerReply::Error { .. }), "{bytes}");
        assert!(matches!(ask(&PeerRequest::Attach { object }), PeerReply::Error { .. }));
        assert!(matches!(
            ask(&PeerRequest::Checksums { object, first: u64::MAX }),
            PeerReply::Checksums { .. }
        ));
        assert!(matches!(ask(&PeerRequest::HomeDrop { object }), PeerReply::Done));
    }
    assert_eq!(pool.status().unwrap().used_bytes, used);
    assert_eq!(pool.verify(&ground::name("held")).unwrap().bad, []);
}

#[test]
fn what_a_home_makes_for_another_node_may_be_asked_for_twice() {
    let ground = Ground::new("remote-twice");
    let pool = ground.pool();
    let node = connect(&ground, Role::Node);
    let ask = |request: &PeerRequest| -> PeerReply {
        decode(&node.call(&encode(request).unwrap()).unwrap()).unwrap()
    };
    let (object, name, bytes) = (ObjectId(1000), ground::name("new"), 4096);
    let region =
        |epoch, bytes| PeerRequest::HomeRegion { object, epoch: Epoch(epoch), name: name.clone(), bytes };
    let room = |ticket| {
        let (object, epoch) = (ObjectId(1001), Epoch(1));
        PeerRequest::HomeCreate {
            object,
            epoch,
            name: name.clone(),
            bytes: Some(bytes),
            ticket: [ticket; 16],
        }
    };
    // A connection may end with the answer on its way.
    for _ in 0..2 {
        assert!(matches!(ask(&region(1, bytes)), PeerReply::Done));
        assert!(matches!(ask(&room(1)), PeerReply::Done));
    }
    assert_eq!(pool.status().unwrap().used_bytes, 2 * bytes);
    for other in [region(2, bytes), region(1, bytes + 1), room(2)] {
        assert!(matches!(ask(&other), PeerReply::Error { .. }), "{other:?}");
    }
}

#[test]
fn bodies_with_flipped_bytes_are_answered_or_refused() {
    let ground = Ground::new("remote-flipped");
    let pool = ground.pool();
    ground.put(&pool, "held", 100_000);
    let (client, node) = (connect(&ground, Role::Client), connect(&ground, Role::Node));
    let object = ObjectId(5000);
    let command =
        encode(&Command::Leave { node: NodeId(77), incarnation: 3, departure: Departure::ComesBack });
    let peer_seeds = [
        PeerRequest::Directory(command.unwrap()),
        PeerRequest::HomeGrow { object, bytes: 1 << 20 },
        PeerRequest::Checksums { object, first: 0 },
        PeerRequest::HomeVerify { object },
    ];
    let seeds = [
        Request::Stat { name: ground::name("held") },
        Request::List { prefix: String::new(), after: None, limit: 5 },
        Request::Allocate { bytes: 100, kind: AllocationKind::Session },
        Request::Diminish { handle: Handle(0), rights: Rights::ALL, range: ByteRange::new(0, 5).unwrap() },
    ];
    let mut random = Random(3);
    for round in 0..2000 {
        let (endpoint, mut body) = if round % 2 == 0 {
            (&client, encode(&seeds[round / 2 % seeds.len()]).unwrap())
        } else {
            (&node, encode(&peer_seeds[round / 2 % peer_seeds.len()]).unwrap())
        };
        for _ in 0..random.below(4) {
            // The first byte is the kind: a node may drop its copies, which is no lie.
            let place = 1 + random.below(body.len() as u64 - 1) as usize;
            body[place] = random.next() as u8;
        }
        // An answer, or a refusal in an error frame: the connection stays in both cases.
        if let Err(error) = endpoint.call(&body) {
            assert!(!error.is_connection_lost(), "{error}");
        }
    }
    drop((client, node));
    ground.settles(&pool, 1);
    assert_eq!(pool.verify(&ground::name("held")).unwrap().bad, []);
}

#[test]
fn a_fetch_gives_bytes_of_sealed_objects_that_are_here_and_nothing_else() {
    let ground = Ground::new("fetching-client");
    let pool = ground.pool();
    ground.put(&pool, "held", 100_000);
    let region = pool.create_region(&ground::name("region"), 1 << 20, None).unwrap();
    let held = pool.stat(&ground::name("held")).unwrap().object;
    let client = connect(&ground, Role::Client);
    let fetch = |object, offset, bytes, keep, into: &mut [u8]| {
        client.fetch(&encode(&Request::FetchObject { object, offset, bytes, keep }).unwrap(), into)
    };
    let mut into = vec![0; 100_000];
    let found = fetch(held, 0, 100_000, true, &mut into).unwrap();
    assert!(into.iter().all(|&byte| byte == 1) && found.placed == into.len());
    // What was granted reaches the object and no byte behind its file.
    let handle = found.handle.unwrap();
    client.read(handle, &[ByteRange::new(99_999, 1).unwrap()], &mut [0]).unwrap();
    assert!(client.read(handle, &[ByteRange::new(1 << 30, 1).unwrap()], &mut [0]).is_err());
    assert!(client.write(handle, &[ByteRange::new(0, 1).unwrap()], &[0]).is_err());
    assert_eq!(fetch(held, 5, 7, false, &mut into).unwrap().handle, None);
    for (object, offset, bytes) in [
        (held, 0, u64::MAX),
        (held, u64::MAX, 2),
        (held, 1 << 40, 1),
        (ObjectId(held.0 + 77), 0, 1),
        (region.object, 0, 8),
    ] {
        assert!(fetch(object, offset, bytes, true, &mut into).is_err(), "{object} {offset} {bytes}");
    }
    let checksums = |handle, first| ask(&client, &Request::Checksums { handle, first });
    assert!(matches!(checksums(handle, 1), Reply::Checksums { blocks } if blocks.len() == 1));
    assert!(matches!(checksums(handle, u64::MAX), Reply::Checksums { blocks } if blocks.is_empty()));
    assert!(matches!(checksums(Handle(handle.0 + 7), 0), Reply::Error { .. }));
    let range = ByteRange::new(0, 65_536).unwrap();
    let Reply::Granted { handle: part } =
        ask(&client, &Request::Diminish { handle, rights: Rights::READ, range })
    else {
        panic!("a part is granted");
    };
    assert!(
        matches!(checksums(part, 0), Reply::Error { .. }),
        "they tell of bytes that the handle does not reach"
    );
    assert!(client.fetch(&encode(&Request::Ping).unwrap(), &mut []).is_err());
    assert!(client.fetch(&[0xff; 30], &mut []).is_err());
    let node = connect(&ground, Role::Node);
    assert!(node.fetch(&encode(&Request::Ping).unwrap(), &mut []).is_err());
}

#[test]
fn a_late_word_that_a_copy_is_wrong_drops_none_that_was_made_since() {
    let ground = Ground::new("late-distrust");
    let pool = ground.pool();
    ground.put(&pool, "held", 100_000);
    let object = pool.stat(&ground::name("held")).unwrap().object;
    let node = connect(&ground, Role::Node);
    let ask = |request: &PeerRequest| -> PeerReply {
        decode(&node.call(&encode(request).unwrap()).unwrap()).unwrap()
    };
    let lookup = encode(&Command::LookupObject { object }).unwrap();
    let PeerReply::Directory(answer) = ask(&PeerRequest::Directory(lookup)) else { panic!("no answer") };
    let found: Result<hinterland_directory::Reply, DirectoryError> = decode(&answer).unwrap();
    let Ok(hinterland_directory::Reply::Object(found)) = found else { panic!("{found:?}") };
    let epoch = found.homes[0].epoch;
    for (told, is_kept) in [(Epoch(epoch.0 + 1), true), (epoch, false)] {
        assert_eq!(ask(&PeerRequest::HomeDistrust { object, epoch: told }), PeerReply::Done);
        assert_eq!(!pool.stat(&ground::name("held")).unwrap().homes.is_empty(), is_kept);
    }
}

/// A put whose first half a client of another host has sent, in one write that is not at its end.
struct HalfWritten {
    writer: ground::Peer,
    started: PutStarted,
    bytes: Vec<u8>,
}

impl HalfWritten {
    fn new(ground: &Ground, owner: &Session, object: &str) -> Self {
        const BYTES: u64 = 1 << 20;
        let begin = Request::PutBegin {
            name: ground::name(object),
            bytes: Some(BYTES),
            copies: 1,
            placement: Placement::Policy,
        };
        let Reply::PutStarted(started) = owner.call(&begin).unwrap() else { panic!("no put") };
        let mut writer = ground.distant_peer();
        let attach = Request::PutAttach { object: started.object, ticket: started.targets[0].ticket };
        let granted = writer.ask(&encode(&attach).unwrap());
        let Some(Reply::Granted { handle }) = granted else { panic!("{granted:?}") };
        let bytes = vec![9; BYTES as usize];
        let mut table = Vec::new();
        encode_runs(&[ByteRange::new(0, BYTES).unwrap()], &mut table).unwrap();
        let mut header = FrameHeader::new(FrameKind::Write, 1, (table.len() + bytes.len()) as u32);
        (header.handle, header.argument) = (handle, 1);
        let header = writer.sealed(header);
        writer.send(&[&header, &table, &bytes[..bytes.len() / 2]].concat(), &[]);
        let mut first = [0];
        while first != [9] {
            owner.read(started.targets[0].handle.unwrap(), 0, &mut first).unwrap();
        }
        Self { writer, started, bytes }
    }

    fn sealing(&self) -> Request {
        let mut sums = BlockChecksums::default();
        sums.update(&self.bytes);
        let bytes = self.bytes.len() as u64;
        Request::PutSeal { object: self.started.object, bytes, digest: digest(bytes, &sums.finish()) }
    }
}

#[test]
fn a_seal_waits_for_writes_on_their_way_and_refuses_those_behind_it() {
    let ground = Ground::new("late-write");
    let (pool, owner, third) = (ground.pool(), ground.session(), ground.session());
    let half = HalfWritten::new(&ground, &owner, "late");
    let attach = Request::PutAttach { object: half.started.object, ticket: half.started.targets[0].ticket };
    let Reply::Granted { handle } = third.call(&attach).unwrap() else { panic!("no handle") };
    third.write(handle, 0, &[9]).unwrap();
    let sealing = half.sealing();
    std::thread::scope(|scope| {
        let sealed = scope.spawn(|| owner.call(&sealing));
        // From when the seal has begun, no write is taken.
        while third.write(handle, 0, &[9]).is_ok() {
            std::thread::yield_now();
        }
        half.writer.send(&half.bytes[half.bytes.len() / 2..], &[]);
        let reply = sealed.join().unwrap();
        assert!(matches!(reply, Ok(Reply::Object(_))), "{reply:?}");
    });
    assert_eq!(pool.verify(&ground::name("late")).unwrap().bad, []);
    assert!(third.write(handle, 0, &[8]).unwrap_err().to_string().contains("is sealed"));
}

#[test]
fn a_write_that_never_ends_costs_its_put_and_nobody_else() {
    let ground = Ground::new("endless-write");
    let (pool, owner) = (ground.pool(), ground.session());
    let half = HalfWritten::new(&ground, &owner, "endless");
    let refused = owner.call(&half.sealing()).unwrap_err();
    assert_eq!(refused.code(), 16, "{refused}");
    assert!(refused.to_string().contains("a write of it has been on its way"), "{refused}");
    assert!(pool.stat(&ground::name("endless")).is_err(), "nobody sees it");
    ground.put(&pool, "endless", 100_000);
}
