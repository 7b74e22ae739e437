//! Fetches against replicas that fail in every way.

use super::*;
use crate::checksum::crc32c;
use hinterland_types::ObjectId;
use proptest::prelude::*;

const BLOCK: u64 = CHECKSUM_BLOCK_BYTES;

fn content(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|place| (place * 7 + place / 251) as u8).collect()
}

fn fetch(object: &[u8], range: ByteRange, replicas: &[u64]) -> Fetch {
    let slice = &object[range.offset() as usize..range.end() as usize];
    Fetch {
        object: ObjectId(5),
        object_bytes: object.len() as u64,
        range,
        replicas: replicas.iter().map(|node| NodeId(*node)).collect(),
        checksums: slice.chunks(BLOCK as usize).map(crc32c).collect(),
        checksum: crc32c,
    }
}

fn limits() -> FetchLimits {
    FetchLimits { piece_bytes: BLOCK, window: 2, timeout_ms: 100, rounds: 2 }
}

fn all(bytes: u64) -> ByteRange {
    ByteRange::new(0, bytes).unwrap()
}

fn actions(machine: &mut FetchMachine) -> Vec<FetchAction> {
    std::iter::from_fn(|| machine.poll_action()).collect()
}

fn sent(machine: &mut FetchMachine) -> Vec<(u32, u64, u64)> {
    let send = |action| match action {
        FetchAction::Send { attempt, node, range } => (attempt, node.0, range.offset()),
        other => panic!("{other:?}"),
    };
    actions(machine).into_iter().map(send).collect()
}

fn part(object: &[u8], offset: u64) -> &[u8] {
    &object[offset as usize..(offset + BLOCK).min(object.len() as u64) as usize]
}

#[test]
fn pieces_come_from_the_preferred_replica_within_the_window() {
    let object = content(2 * BLOCK + 10);
    let mut machine = FetchMachine::new(fetch(&object, all(2 * BLOCK + 10), &[1, 2]), limits(), 0).unwrap();
    assert_eq!(sent(&mut machine), [(0, 1, 0), (1, 1, BLOCK)]);
    machine.handle(1, FetchEvent::Reply { attempt: 1, body: Body::Bytes(part(&object, BLOCK)) });
    assert_eq!(sent(&mut machine), [(2, 1, 2 * BLOCK)]);
    machine.handle(2, FetchEvent::Reply { attempt: 2, body: Body::Bytes(part(&object, 2 * BLOCK)) });
    let sums = [crc32c(part(&object, 0))];
    machine.handle(2, FetchEvent::Reply { attempt: 0, body: Body::Sums { bytes: BLOCK, sums: &sums } });
    assert_eq!(actions(&mut machine), [FetchAction::Done]);
    assert_eq!(machine.deadline_ms(), None);
}

#[test]
fn a_wrong_checksum_is_fetched_from_another_replica_and_reported() {
    let object = content(BLOCK);
    let mut machine = FetchMachine::new(fetch(&object, all(BLOCK), &[1, 2]), limits(), 0).unwrap();
    sent(&mut machine);
    let mut flipped = object.clone();
    flipped[77] ^= 1;
    machine.handle(1, FetchEvent::Reply { attempt: 0, body: Body::Bytes(&flipped) });
    let expected = [
        FetchAction::Suspect { node: NodeId(1), block: 0 },
        FetchAction::Send { attempt: 1, node: NodeId(2), range: all(BLOCK) },
    ];
    assert_eq!(actions(&mut machine), expected);
    machine.handle(2, FetchEvent::Reply { attempt: 1, body: Body::Bytes(&object) });
    assert_eq!(actions(&mut machine), [FetchAction::Done]);
}

#[test]
fn the_answer_to_an_attempt_that_timed_out_is_ignored() {
    let object = content(BLOCK);
    let mut machine = FetchMachine::new(fetch(&object, all(BLOCK), &[1, 2]), limits(), 0).unwrap();
    sent(&mut machine);
    assert_eq!(machine.deadline_ms(), Some(100));
    machine.handle(99, FetchEvent::Timeout);
    assert_eq!(actions(&mut machine), []);
    machine.handle(100, FetchEvent::Timeout);
    assert_eq!(sent(&mut machine), [(1, 2, 0)]);
    assert_eq!(machine.expects(0), None);
    machine.handle(101, FetchEvent::Reply { attempt: 0, body: Body::Bytes(&object) });
    machine.handle(101, FetchEvent::Refused { attempt: 0, reason: "late".to_owned() });
    assert_eq!(actions(&mut machine), []);
    assert_eq!(machine.expects(1), Some(all(BLOCK)));
}

#[test]
fn short_and_long_answers_are_refused() {
    let object = content(BLOCK);
    let mut machine = FetchMachine::new(fetch(&object, all(BLOCK), &[1]), limits(), 0).unwrap();
    sent(&mut machine);
    machine.handle(0, FetchEvent::Reply { attempt: 0, body: Body::Bytes(&object[1..]) });
    assert_eq!(sent(&mut machine), [(1, 1, 0)]);
    machine.handle(0, FetchEvent::Reply { attempt: 1, body: Body::Sums { bytes: BLOCK, sums: &[1, 2] } });
    let [FetchAction::Fail(failure)] = &actions(&mut machine)[..] else { panic!() };
    assert_eq!(failure.tried[0].failures, 2);
}

#[test]
fn giving_up_says_what_was_tried() {
    let object = content(BLOCK);
    let mut machine = FetchMachine::new(fetch(&object, all(BLOCK), &[1, 2, 3]), limits(), 0).unwrap();
    machine.handle(0, FetchEvent::Down { node: NodeId(2), reason: "connection reset".to_owned() });
    machine.handle(1, FetchEvent::Refused { attempt: 0, reason: "no such object".to_owned() });
    for time in [200, 400, 600] {
        machine.handle(time, FetchEvent::Timeout);
    }
    let Some(FetchAction::Fail(failure)) = actions(&mut machine).pop() else { panic!() };
    let text = failure.to_string();
    assert!(text.contains("node-1: no answer within 100 ms (2 failed)"), "{text}");
    assert!(text.contains("node-2: down: connection reset (0 failed)"), "{text}");
    assert!(text.contains("node-3: no answer within 100 ms (2 failed)"), "{text}");
    machine.handle(700, FetchEvent::Timeout);
    assert_eq!(actions(&mut machine), []);
}

#[test]
fn pieces_that_come_after_a_failure_avoid_the_replica_that_failed() {
    let object = content(4 * BLOCK);
    let mut machine = FetchMachine::new(fetch(&object, all(4 * BLOCK), &[1, 2]), limits(), 0).unwrap();
    assert_eq!(sent(&mut machine), [(0, 1, 0), (1, 1, BLOCK)]);
    machine.handle(0, FetchEvent::Down { node: NodeId(1), reason: "gone".to_owned() });
    assert_eq!(sent(&mut machine).iter().map(|(_, node, _)| *node).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn an_empty_range_is_done_at_once() {
    let mut machine = FetchMachine::new(fetch(&[], all(0), &[1]), limits(), 0).unwrap();
    assert_eq!(actions(&mut machine), [FetchAction::Done]);
}

#[test]
fn what_cannot_be_fetched_is_refused_at_once() {
    let object = content(3 * BLOCK);
    let whole = fetch(&object, all(3 * BLOCK), &[1]);
    let crooked = Fetch { range: ByteRange::new(1, BLOCK).unwrap(), ..whole.clone() };
    assert!(matches!(FetchMachine::new(crooked, limits(), 0), Err(FetchError::NotWholeBlocks { .. })));
    let behind = Fetch { range: ByteRange::new(3 * BLOCK, BLOCK).unwrap(), ..whole.clone() };
    assert!(matches!(FetchMachine::new(behind, limits(), 0), Err(FetchError::NotWholeBlocks { .. })));
    let fewer = Fetch { checksums: vec![1], ..whole.clone() };
    assert!(matches!(FetchMachine::new(fewer, limits(), 0), Err(FetchError::ChecksumCount { .. })));
    for replicas in [vec![], vec![NodeId(1), NodeId(1)]] {
        let fetch = Fetch { replicas, ..whole.clone() };
        assert!(matches!(FetchMachine::new(fetch, limits(), 0), Err(FetchError::Replicas { .. })));
    }
    let limits = FetchLimits { piece_bytes: 100, ..limits() };
    assert!(matches!(FetchMachine::new(whole, limits, 0), Err(FetchError::Limits { .. })));
}

proptest! {
    #[test]
    fn whole_blocks_hold_the_range(offset in 0u64..1 << 20, bytes in 0u64..1 << 20) {
        let object_bytes = offset + bytes;
        let range = ByteRange::new(offset, bytes).unwrap();
        let whole = Fetch::whole_blocks(range, object_bytes);
        prop_assert!(whole.contains(range));
        prop_assert_eq!(whole.offset() % BLOCK, 0);
        prop_assert!(whole.end() == object_bytes || whole.end().is_multiple_of(BLOCK));
    }

    /// Whatever the replicas do, the fetch ends: with bytes that are right, or when all were tried.
    #[test]
    fn a_fetch_ends_and_never_with_wrong_bytes(
        blocks in 1u64..6,
        replicas in 1u64..4,
        fates in prop::collection::vec((0u8..7, 0u64..60), 1..200),
    ) {
        let object = content(blocks * BLOCK - 3);
        let nodes: Vec<_> = (1..=replicas).collect();
        let mut machine = FetchMachine::new(fetch(&object, all(blocks * BLOCK - 3), &nodes), limits(), 0).unwrap();
        let mut got = vec![0; object.len()];
        let mut asked: Vec<(u32, ByteRange, NodeId)> = Vec::new();
        let mut fates = fates.into_iter().cycle();
        let mut now_ms = 0;
        let end = loop {
            let mut end = None;
            for action in actions(&mut machine) {
                match action {
                    FetchAction::Send { attempt, node, range } => asked.push((attempt, range, node)),
                    FetchAction::Suspect { .. } => {}
                    last => end = Some(last),
                }
            }
            if let Some(end) = end {
                break end;
            }
            let (fate, wait) = fates.next().unwrap();
            // Time goes on whatever the fates are: with the same late answer again and again, the attempts run out of time.
            now_ms += 1 + wait;
            let (attempt, range, node) = asked[wait as usize % asked.len()];
            let mut bytes = object[range.offset() as usize..range.end() as usize].to_vec();
            if fate == 1 {
                bytes[wait as usize] ^= 4;
            }
            let right = fate == 0 || fate == 5;
            if right && machine.expects(attempt) == Some(range) {
                got[range.offset() as usize..range.end() as usize].copy_from_slice(&bytes);
            }
            let event = match fate {
                0 | 1 | 5 => FetchEvent::Reply { attempt, body: Body::Bytes(&bytes) },
                2 => FetchEvent::Refused { attempt, reason: String::new() },
                3 if wait < 5 => FetchEvent::Down { node, reason: String::new() },
                _ => FetchEvent::Timeout,
            };
            machine.handle(now_ms, event);
        };
        match end {
            FetchAction::Done => prop_assert!(got == object),
            FetchAction::Fail(failure) => prop_assert_eq!(failure.tried.len(), nodes.len()),
            other => prop_assert!(false, "{other:?}"),
        }
        prop_assert_eq!(machine.poll_action(), None);
    }
}
