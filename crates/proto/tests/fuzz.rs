//! Whatever bytes come, decoding them ends in a value or an error: never a panic, never a value that is none.
//!
//! `HINTERLAND_FUZZ_SECONDS=60 cargo test --release -p hinterland-proto --test fuzz` runs each target for a minute.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

mod mutate;

use hinterland_proto::checksum::crc32c;
use hinterland_proto::control::{
    Notice, NoticeReply, PeerReply, PeerRequest, Placement, RenameTarget, Reply, Request, decode, encode,
};
use hinterland_proto::object_header::{HeaderContent, OBJECT_HEADER_BYTES, ObjectHeader};
use hinterland_proto::ring_message::{RingRequest, RingResponse};
use hinterland_proto::{
    ClientHandshake, ClientIdentity, ClientStep, Features, Frame, FrameDecoder, FrameError, FrameHeader,
    FrameKind, FrameSender, HEADER_BYTES, PeerLimits, PoolId, PoolKey, RemoteError, Role, RunTable,
    ServerHandshake, ServerIdentity, ServerStep, encode_runs,
};
use hinterland_types::limits::FRAME_BODY_BYTES_MAX;
use hinterland_types::{ByteRange, Epoch, Handle, NodeId, ObjectId, ObjectName, Rights, SessionId};
use mutate::{Random, fuzz, mutate};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

fn frames() -> Vec<Vec<u8>> {
    let mut table = Vec::new();
    encode_runs(&[ByteRange::new(0, 10).unwrap(), ByteRange::new(1 << 40, 6).unwrap()], &mut table).unwrap();
    let write = [table.clone(), vec![7; 16]].concat();
    let kinds = [
        (FrameKind::Call, vec![1, 2, 3], 0),
        (FrameKind::Read, table, 2),
        (FrameKind::Write, write, 2),
        (FrameKind::CompareSwap, vec![9; 16], 8),
        (FrameKind::FetchAdd, vec![9; 8], 16),
        (FrameKind::Error, vec![0; 9], 0),
        (FrameKind::Close, Vec::new(), 0),
    ];
    let mut sender = FrameSender::new(5);
    let mut whole = Vec::new();
    for (kind, body, argument) in kinds {
        let mut header = FrameHeader::new(kind, 3, body.len() as u32);
        header.argument = argument;
        header.body_crc = Some(crc32c(&body));
        whole.extend(sender.seal(header));
        whole.extend(body);
    }
    let mut sender = FrameSender::new(5);
    let single = sender.seal(FrameHeader::new(FrameKind::WriteReply, 1, 0)).to_vec();
    vec![whole, single]
}

/// Makes the checksum of some header right again, so that what lies behind the check is reached.
fn reseal(random: &mut Random, bytes: &mut [u8]) {
    let starts: Vec<usize> =
        bytes.windows(4).enumerate().filter(|(_, four)| four == b"HNTL").map(|(at, _)| at).collect();
    for at in starts {
        if random.below(4) > 0
            && let Some(header) = bytes.get_mut(at..at + HEADER_BYTES)
        {
            let crc = crc32c(&header[..HEADER_BYTES - 4]);
            header[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        }
    }
}

fn decode_all(bytes: &[u8], cuts: &mut dyn FnMut(usize) -> usize) -> (Vec<Frame>, Option<FrameError>) {
    let mut decoder = FrameDecoder::new(5);
    let (mut frames, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (mut now, later) = rest.split_at(cuts(rest.len()).clamp(1, rest.len()));
        while !now.is_empty() {
            match decoder.decode(&mut now) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => {}
                Err(error) => return (frames, Some(error)),
            }
        }
        rest = later;
    }
    (frames, None)
}

#[test]
fn fuzz_frames_are_the_same_however_they_are_cut() {
    fuzz(&frames(), |random, mut bytes| {
        reseal(random, &mut bytes);
        let whole = decode_all(&bytes, &mut |rest| rest);
        let cut = decode_all(&bytes, &mut |rest| 1 + random.below(rest.min(80)));
        assert_eq!(whole, cut);
        let mut again = Vec::new();
        for frame in &whole.0 {
            again.extend(frame.header.to_bytes());
            again.extend(&frame.body);
        }
        assert!(bytes.starts_with(&again), "a frame is another one than its bytes");
    });
}

#[test]
fn fuzz_runs_stay_below_what_a_frame_may_carry() {
    let mut table = Vec::new();
    encode_runs(&[ByteRange::new(7, 10).unwrap(); 3], &mut table).unwrap();
    fuzz(&[table], |_, bytes| {
        let Ok(runs) = RunTable::parse(&bytes) else { return };
        assert!(runs.total_bytes() <= FRAME_BODY_BYTES_MAX);
        let sum: u64 = runs.iter().map(|run| run.bytes()).sum();
        assert_eq!((sum, runs.iter().count()), (u64::from(runs.total_bytes()), runs.count()));
        let mut again = Vec::new();
        encode_runs(&runs.iter().collect::<Vec<_>>(), &mut again).unwrap();
        assert_eq!(again, bytes);
    });
}

fn client(key: Option<PoolKey>) -> (ClientHandshake, Vec<u8>) {
    let identity = ClientIdentity {
        role: Role::Client,
        node: NodeId(0),
        pool: PoolId::ANY,
        key,
        features: Features(0),
        join: None,
    };
    ClientHandshake::new(identity, [7; 32])
}

fn server(key: Option<PoolKey>) -> ServerHandshake {
    let limits = PeerLimits { body_bytes_max: 1 << 20, runs_max: 16, streams_max: 4 };
    let identity = ServerIdentity { node: NodeId(9), pool: PoolId(3), key, features: Features(0), limits };
    ServerHandshake::new(identity, [8; 32])
}

/// Makes the checksum of a handshake message that fills the bytes right again.
fn reseal_message(bytes: &mut [u8]) {
    if bytes.len() >= 16 {
        let length = (bytes.len().min(1024) as u16).to_le_bytes();
        bytes[6..8].copy_from_slice(&length);
        let crc = crc32c(&[&bytes[..12], &bytes[16..]].concat());
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
}

#[test]
fn fuzz_a_handshake_lets_nobody_in_without_the_key() {
    let key = || Some(PoolKey([1; 32]));
    let (mut honest, hello) = client(key());
    let (_, ServerStep::Send(welcome)) = server(key()).receive(&hello) else { panic!("no welcome") };
    let (_, ClientStep::Send(confirm)) = honest.receive(&welcome).unwrap() else { panic!("no confirm") };
    let (_, stranger) = client(Some(PoolKey([2; 32])));
    let seeds = [hello, stranger, welcome, confirm.clone()];
    fuzz(&seeds, |random, mut bytes| {
        if random.below(3) > 0 {
            reseal_message(&mut bytes);
        }
        let mut machine = server(key());
        let mut input = bytes.clone();
        for _ in 0..3 {
            let (taken, step) = machine.receive(&input);
            assert!(taken <= input.len());
            input.drain(..taken);
            match step {
                // A confirm belongs to one hello and one welcome: made up, repeated or changed it opens nothing.
                ServerStep::Authenticated(peer) => panic!("let in without the key: {peer:?}"),
                ServerStep::Send(_) => input.extend(&confirm[..random.below(confirm.len())]),
                ServerStep::Wait | ServerStep::Refuse { .. } => break,
            }
        }
        let (mut asking, _) = client(key());
        if let Ok((taken, step)) = asking.receive(&bytes) {
            assert!(taken <= bytes.len());
            assert!(!matches!(step, ClientStep::Done(_)), "a server without the key was believed");
        }
    });
}

#[test]
fn fuzz_an_open_handshake_ends_in_a_session_or_a_refusal() {
    let (mut honest, hello) = client(None);
    let mut answering = server(None);
    let (_, ServerStep::Send(welcome)) = answering.receive(&hello) else { panic!("no welcome") };
    let (_, ClientStep::Send(confirm)) = honest.receive(&welcome).unwrap() else { panic!("no confirm") };
    let (_, ServerStep::Authenticated(_)) = answering.receive(&confirm) else { panic!("not let in") };
    let (ready, _) = answering.ready(SessionId(5), [6; 32]);
    fuzz(&[hello, welcome, confirm, ready], |random, mut bytes| {
        if random.below(3) > 0 {
            reseal_message(&mut bytes);
        }
        let (taken, _) = server(None).receive(&bytes);
        assert!(taken <= bytes.len());
        let (mut asking, _) = client(None);
        let mut rest = &bytes[..];
        while let Ok((taken, step)) = asking.receive(rest) {
            rest = &rest[taken..];
            if taken == 0 || matches!(step, ClientStep::Done(_) | ClientStep::Wait) {
                break;
            }
        }
    });
}

fn same_again<M: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) {
    if let Ok(message) = decode::<M>(bytes) {
        // What was decoded may be longer than its shortest form, but it means the same.
        let again = encode(&message).unwrap();
        assert_eq!(decode::<M>(&again).unwrap(), message);
    }
}

#[test]
fn fuzz_control_messages_mean_what_they_meant() {
    let name = ObjectName::parse("models/a").unwrap();
    let requests = [
        Request::Open { name: name.clone(), rights: Rights::READ },
        Request::PutBegin { name: name.clone(), bytes: Some(9), copies: 2, placement: Placement::Policy },
        Request::PutSeal { object: ObjectId(7), bytes: 3, digest: [5; 32] },
        Request::Rename { from: name.clone(), to: name.clone(), target: RenameTarget::Exchange },
        Request::RemoveObject { name: name.clone(), object: ObjectId(7) },
        Request::RenameObject {
            object: ObjectId(7),
            from: name.clone(),
            to: name.clone(),
            target: RenameTarget::Replace,
        },
        Request::PutPublish { object: ObjectId(7), bytes: 3, digest: [5; 32], name: name.clone() },
        Request::List { prefix: "m".to_owned(), after: Some(name.clone()), limit: 3 },
        Request::Register { handle: Handle(1), pointer: 1 << 40, offset: 0, bytes: 1 << 21 },
    ];
    let mut seeds: Vec<_> = requests.iter().map(|request| encode(request).unwrap()).collect();
    let peer =
        PeerRequest::HomeCreate { object: ObjectId(1), epoch: Epoch(2), name, bytes: None, ticket: [3; 16] };
    seeds.push(encode(&peer).unwrap());
    seeds.push(encode(&PeerReply::Checksums { blocks: vec![1, 2, u32::MAX] }).unwrap());
    seeds.push(encode(&Reply::Error { code: 5, text: "no".to_owned() }).unwrap());
    seeds.push(encode(&Notice::Lost { text: "gone".to_owned() }).unwrap());
    seeds.push(encode(&NoticeReply::Touched { id: 1, touched: vec![true, false] }).unwrap());
    fuzz(&seeds, |_, bytes| {
        same_again::<Request>(&bytes);
        same_again::<Reply>(&bytes);
        same_again::<PeerRequest>(&bytes);
        same_again::<PeerReply>(&bytes);
        same_again::<Notice>(&bytes);
        same_again::<NoticeReply>(&bytes);
        let error = RemoteError::from_body(&bytes);
        assert!(error.to_body().len() <= 4 + hinterland_proto::ERROR_TEXT_BYTES_MAX);
    });
}

#[test]
fn fuzz_object_headers_are_what_was_written_or_refused() {
    let name = ObjectName::parse("a/b").unwrap();
    let blocks = vec![1, 2, 3];
    let contents = [
        (150_000, HeaderContent::Sealed { blocks }),
        (0, HeaderContent::Sealed { blocks: Vec::new() }),
        (4096, HeaderContent::Region),
    ];
    let seeds: Vec<Vec<u8>> = contents
        .into_iter()
        .map(|(bytes, content)| {
            let (object, epoch) = (ObjectId(3), Epoch(9));
            ObjectHeader { object, epoch, name: name.clone(), bytes, content }.to_bytes()
        })
        .collect();
    fuzz(&seeds, |random, mut bytes| {
        if random.below(3) > 0 && bytes.len() >= OBJECT_HEADER_BYTES {
            let tail = crc32c(&bytes[OBJECT_HEADER_BYTES..]);
            bytes[72..76].copy_from_slice(&tail.to_le_bytes());
            let head = crc32c(&bytes[..76]);
            bytes[76..80].copy_from_slice(&head.to_le_bytes());
        }
        if let Ok(header) = ObjectHeader::parse(&bytes) {
            assert_eq!(header.to_bytes(), bytes);
        }
    });
}

#[test]
fn fuzz_ring_messages_of_any_bytes_are_understood_or_not() {
    mutate::rounds(|random, _| {
        let mut bytes = vec![0; 200];
        bytes[0] = random.below(9) as u8;
        mutate(random, &mut bytes);
        bytes.resize(200, 0);
        let Some((body, _)) = bytes.split_first_chunk() else { return };
        if let Some(request) = RingRequest::parse(body) {
            assert_eq!(RingRequest::parse(&request.to_body()), Some(request));
        }
        let response = RingResponse::parse(body);
        assert_eq!(RingResponse::parse(&response.to_body(body[0])), response);
    });
}
