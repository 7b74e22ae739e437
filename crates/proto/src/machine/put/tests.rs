//! Puts against homes and a directory that fail, repeat themselves and come late.

use super::*;
use hinterland_types::Epoch;
use proptest::prelude::*;
use std::collections::BTreeSet;

const DIGEST: [u8; 32] = [7; 32];

fn limits() -> PutLimits {
    PutLimits { chunk_bytes: 10, window: 2, timeout_ms: 100, tries: 2, grow_bytes: 25 }
}

fn home(node: u64) -> PutHome {
    PutHome { node: NodeId(node), epoch: Epoch(node + 100) }
}

fn actions(machine: &mut PutMachine) -> Vec<PutAction> {
    std::iter::from_fn(|| machine.poll_action()).collect()
}

fn reserved(nodes: &[u64]) -> PutEvent {
    PutEvent::Reserved { object: ObjectId(3), homes: nodes.iter().map(|node| home(*node)).collect() }
}

/// A put of `size` bytes to these homes, reserved and opened, all bytes at hand.
fn writing(size: u64, nodes: &[u64]) -> PutMachine {
    let mut machine = PutMachine::new(Put { size: Some(size) }, limits(), 0).unwrap();
    assert_eq!(actions(&mut machine), [PutAction::Reserve]);
    machine.handle(0, reserved(nodes));
    nodes.iter().for_each(|node| machine.handle(0, PutEvent::Opened { node: NodeId(*node) }));
    actions(&mut machine);
    machine.handle(0, PutEvent::Data { end: size });
    machine.handle(0, PutEvent::Finish { digest: DIGEST });
    machine
}

/// The same, with all chunks written.
fn sealing(nodes: &[u64]) -> PutMachine {
    let mut machine = writing(10, nodes);
    nodes.iter().for_each(|node| machine.handle(0, PutEvent::Wrote { node: NodeId(*node), offset: 0 }));
    actions(&mut machine);
    machine
}

fn committing(nodes: &[u64]) -> PutMachine {
    let mut machine = sealing(nodes);
    for node in nodes {
        machine.handle(0, PutEvent::HomeSealed { node: NodeId(*node), digest: DIGEST });
    }
    let homes = nodes.iter().map(|node| NodeId(*node)).collect();
    let commit = PutAction::Commit { object: ObjectId(3), size: 10, digest: DIGEST, homes };
    assert_eq!(actions(&mut machine), [commit]);
    machine
}

fn writes(actions: &[PutAction]) -> Vec<(u64, u64, u64)> {
    let write = |action: &PutAction| match action {
        PutAction::Write { home, chunk, .. } => Some((home.node.0, chunk.offset(), chunk.bytes())),
        _ => None,
    };
    actions.iter().filter_map(write).collect()
}

#[test]
fn every_chunk_goes_to_every_home_within_the_window() {
    let mut machine = writing(35, &[1, 2]);
    assert_eq!(writes(&actions(&mut machine)), [(1, 0, 10), (1, 10, 10), (2, 0, 10), (2, 10, 10)]);
    machine.handle(0, PutEvent::Wrote { node: NodeId(1), offset: 0 });
    assert_eq!(actions(&mut machine), [], "the slower home holds the window back");
    machine.handle(0, PutEvent::Wrote { node: NodeId(2), offset: 0 });
    let next = actions(&mut machine);
    assert!(next.contains(&PutAction::Release { end: 10 }));
    assert_eq!(writes(&next), [(1, 20, 10), (2, 20, 10)]);
    for offset in [10, 20] {
        machine.handle(0, PutEvent::Wrote { node: NodeId(1), offset });
        machine.handle(0, PutEvent::Wrote { node: NodeId(2), offset });
    }
    assert_eq!(writes(&actions(&mut machine)), [(1, 30, 5), (2, 30, 5)]);
}

#[test]
fn the_user_hears_of_it_only_when_the_commit_is_durable() {
    let mut machine = committing(&[1, 2]);
    assert_eq!(actions(&mut machine), []);
    machine.handle(1, PutEvent::Committed);
    let last = actions(&mut machine).pop().unwrap();
    assert_eq!(last, PutAction::Done { object: ObjectId(3), size: 10 });
    assert!(machine.is_over());
    machine.handle(2, PutEvent::Committed);
    machine.handle(900, PutEvent::Cancel { reason: "late".to_owned() });
    assert_eq!(actions(&mut machine), []);
}

#[test]
fn a_home_with_other_bytes_ends_the_put() {
    let mut machine = sealing(&[1, 2]);
    machine.handle(0, PutEvent::HomeSealed { node: NodeId(1), digest: DIGEST });
    machine.handle(0, PutEvent::HomeSealed { node: NodeId(2), digest: [8; 32] });
    assert_eq!(actions(&mut machine), [PutAction::Abort { object: ObjectId(3) }]);
    machine.handle(1, PutEvent::Aborted);
    let [PutAction::Fail(failure), PutAction::AbortHome { .. }, PutAction::AbortHome { .. }] =
        &actions(&mut machine)[..]
    else {
        panic!()
    };
    assert_eq!((failure.step, failure.node), (PutStep::SealHome, Some(NodeId(2))));
    assert_eq!(failure.outcome, PutOutcome::Undone);
}

#[test]
fn a_commit_whose_answer_was_lost_is_found_out_by_the_abort() {
    let mut machine = committing(&[1]);
    machine.handle(100, PutEvent::Timeout);
    assert!(matches!(actions(&mut machine)[..], [PutAction::Commit { .. }]));
    machine.handle(200, PutEvent::Timeout);
    assert_eq!(actions(&mut machine), [PutAction::Abort { object: ObjectId(3) }]);
    machine.handle(201, PutEvent::AlreadySealed);
    assert!(matches!(actions(&mut machine)[..], [PutAction::CommitHome { .. }, PutAction::Done { .. }]));
}

#[test]
fn no_home_is_told_to_let_go_of_what_may_be_committed() {
    let mut machine = committing(&[1]);
    for time in [100, 200, 300, 400, 500] {
        machine.handle(time, PutEvent::Timeout);
    }
    let all = actions(&mut machine);
    assert!(!all.iter().any(|action| matches!(action, PutAction::AbortHome { .. })), "{all:?}");
    let Some(PutAction::Fail(failure)) = all.last() else { panic!("{all:?}") };
    assert_eq!(failure.outcome, PutOutcome::Unknown);
}

#[test]
fn a_late_answer_that_grants_nothing_new_does_not_keep_a_put_from_its_end() {
    let mut machine = PutMachine::new(Put { size: None }, limits(), 0).unwrap();
    machine.handle(0, reserved(&[1]));
    machine.handle(0, PutEvent::Opened { node: NodeId(1) });
    machine.handle(0, PutEvent::Data { end: 5 });
    machine.handle(0, PutEvent::Grown { bytes: 25 });
    machine.handle(0, PutEvent::Wrote { node: NodeId(1), offset: 0 });
    machine.handle(0, PutEvent::Data { end: 30 });
    for now_ms in 1..1_000 {
        machine.handle(now_ms, PutEvent::Grown { bytes: 25 });
    }
    let failed = actions(&mut machine).into_iter().find_map(|action| match action {
        PutAction::Fail(failure) => Some(failure),
        _ => None,
    });
    assert_eq!(failed.map(|failure| failure.step), Some(PutStep::Grow));
}

#[test]
fn a_refused_reservation_leaves_nothing_to_undo() {
    let mut machine = PutMachine::new(Put { size: Some(1) }, limits(), 0).unwrap();
    assert_eq!(actions(&mut machine), [PutAction::Reserve]);
    machine.handle(0, PutEvent::Refused { step: PutStep::Reserve, reason: "no room".to_owned() });
    let [PutAction::Fail(failure)] = &actions(&mut machine)[..] else { panic!() };
    assert!(failure.to_string().contains("no room"), "{failure}");
    assert!(machine.is_over());
}

#[test]
fn a_reservation_without_a_home_is_no_reservation() {
    let mut machine = PutMachine::new(Put { size: Some(1) }, limits(), 0).unwrap();
    actions(&mut machine);
    machine.handle(0, reserved(&[]));
    assert_eq!(actions(&mut machine), [PutAction::Abort { object: ObjectId(3) }]);
}

#[test]
fn cancelling_before_the_reservation_is_answered_undoes_it_when_it_is() {
    let mut machine = PutMachine::new(Put { size: Some(1) }, limits(), 0).unwrap();
    actions(&mut machine);
    machine.handle(0, PutEvent::Cancel { reason: "interrupted".to_owned() });
    assert_eq!(actions(&mut machine), []);
    machine.handle(1, reserved(&[1]));
    assert_eq!(actions(&mut machine), [PutAction::Abort { object: ObjectId(3) }]);
}

#[test]
fn cancelling_before_the_reservation_is_refused_ends_the_put() {
    let mut machine = PutMachine::new(Put { size: Some(1) }, limits(), 0).unwrap();
    actions(&mut machine);
    machine.handle(0, PutEvent::Cancel { reason: "interrupted".to_owned() });
    machine.handle(1, PutEvent::Refused { step: PutStep::Reserve, reason: "no room".to_owned() });
    let [PutAction::Fail(failure)] = &actions(&mut machine)[..] else { panic!() };
    assert_eq!((failure.step, failure.outcome), (PutStep::Cancel, PutOutcome::Undone));
    assert!(machine.is_over());
}

#[test]
fn a_stream_asks_for_room_before_it_writes() {
    let mut machine = PutMachine::new(Put { size: None }, limits(), 0).unwrap();
    machine.handle(0, reserved(&[1]));
    machine.handle(0, PutEvent::Opened { node: NodeId(1) });
    actions(&mut machine);
    machine.handle(0, PutEvent::Data { end: 12 });
    assert_eq!(actions(&mut machine), [PutAction::Grow { object: ObjectId(3), bytes: 25 }]);
    machine.handle(0, PutEvent::Grown { bytes: 25 });
    assert_eq!(writes(&actions(&mut machine)), [(1, 0, 10)]);
    machine.handle(0, PutEvent::Finish { digest: DIGEST });
    assert_eq!(writes(&actions(&mut machine)), [(1, 10, 2)]);
}

#[test]
fn an_empty_object_is_sealed_without_a_write() {
    let mut machine = writing(0, &[1]);
    assert!(matches!(actions(&mut machine)[..], [PutAction::SealHome { size: 0, .. }]));
}

#[test]
fn a_silent_home_ends_the_put_after_the_last_try() {
    let mut machine = writing(10, &[1, 2]);
    machine.handle(0, PutEvent::Wrote { node: NodeId(1), offset: 0 });
    actions(&mut machine);
    machine.handle(100, PutEvent::Timeout);
    assert_eq!(writes(&actions(&mut machine)), [(2, 0, 10)]);
    machine.handle(200, PutEvent::Timeout);
    assert_eq!(actions(&mut machine), [PutAction::Abort { object: ObjectId(3) }]);
    machine.handle(201, PutEvent::Aborted);
    let Some(PutAction::Fail(failure)) = actions(&mut machine).into_iter().next() else { panic!() };
    assert_eq!(failure.node, Some(NodeId(2)));
}

#[test]
fn impossible_limits_are_refused() {
    for bad in [PutLimits { chunk_bytes: 0, ..limits() }, PutLimits { tries: 0, ..limits() }] {
        assert!(PutMachine::new(Put { size: None }, bad, 0).is_err());
    }
}

/// What the world around a put does, and what it has seen of it.
#[derive(Default)]
struct World {
    written: BTreeSet<(u64, u64)>,
    sealed: BTreeSet<u64>,
    commits: u32,
    committed: bool,
    aborted: bool,
    let_go: BTreeSet<u64>,
    full: bool,
    answers: Vec<PutEvent>,
    last: Option<PutAction>,
}

impl World {
    fn act(&mut self, action: PutAction, size: u64, broken_home: bool) {
        assert!(
            self.last.is_none() || matches!(action, PutAction::AbortHome { .. }),
            "{action:?} after the end {:?}",
            self.last
        );
        let node_of = |home: &PutHome| home.node;
        let answer = match &action {
            PutAction::Reserve if self.full => {
                PutEvent::Refused { step: PutStep::Reserve, reason: String::new() }
            }
            PutAction::Reserve => reserved(&[1, 2]),
            PutAction::Grow { bytes, .. } => PutEvent::Grown { bytes: *bytes },
            PutAction::Open { home, .. } => PutEvent::Opened { node: node_of(home) },
            PutAction::Write { home, chunk, .. } => {
                self.written.extend((chunk.offset()..chunk.end()).map(|byte| (home.node.0, byte)));
                PutEvent::Wrote { node: node_of(home), offset: chunk.offset() }
            }
            PutAction::SealHome { home, .. } => {
                let whole = (0..size).all(|byte| self.written.contains(&(home.node.0, byte)));
                let right = whole && !(broken_home && home.node.0 == 2);
                self.sealed.extend(right.then_some(home.node.0));
                PutEvent::HomeSealed { node: node_of(home), digest: if right { DIGEST } else { [0; 32] } }
            }
            PutAction::Commit { homes, .. } => {
                assert!(homes.iter().all(|node| self.sealed.contains(&node.0)), "a home is not sealed");
                self.commits += 1;
                self.committed |= !self.aborted;
                if self.committed {
                    PutEvent::Committed
                } else {
                    PutEvent::Refused { step: PutStep::Commit, reason: String::new() }
                }
            }
            PutAction::Abort { .. } => {
                self.aborted |= !self.committed;
                if self.committed { PutEvent::AlreadySealed } else { PutEvent::Aborted }
            }
            PutAction::AbortHome { home, .. } => {
                assert!(!self.committed, "a home lets go of a committed object");
                self.let_go.insert(home.node.0);
                PutEvent::HomeAborted { node: node_of(home) }
            }
            PutAction::Release { end } => {
                let held = |node| (0..*end).all(|byte| self.written.contains(&(node, byte)));
                assert!(held(1) && held(2), "released what a home does not hold");
                return;
            }
            PutAction::CommitHome { .. } => return,
            PutAction::Done { .. } | PutAction::Fail(_) => {
                self.last = Some(action);
                return;
            }
        };
        self.answers.push(answer);
    }
}

proptest! {
    /// Requests and answers are lost, repeated and late; the put ends, and what it says is true.
    #[test]
    fn a_put_ends_and_what_it_says_is_true(
        size in 0u64..60,
        stream in any::<bool>(),
        broken_home in prop::bool::weighted(0.1),
        full in prop::bool::weighted(0.1),
        cancel_after in prop::option::weighted(0.3, 0u32..20),
        luck in prop::collection::vec((0u8..20, any::<prop::sample::Index>()), 1..300),
    ) {
        let put = Put { size: (!stream).then_some(size) };
        let mut machine = PutMachine::new(put, limits(), 0).unwrap();
        let mut world = World { full, ..World::default() };
        let mut steps = 0;
        let mut luck = luck.into_iter().cycle();
        let mut now_ms = 0;
        let mut given = 0;
        while !machine.is_over() {
            let (chance, index) = luck.next().unwrap();
            // Time goes on whatever the luck: the same answer again and again must not keep a put from its end.
            now_ms += 1 + u64::from(chance);
            let mut event = PutEvent::Timeout;
            steps += 1;
            prop_assert!(steps < 10_000, "{:?} waits for {:?}", machine.phase, machine.pending.keys());
            if cancel_after == Some(steps) {
                event = PutEvent::Cancel { reason: String::new() };
            } else if given < size && given < machine.data_end_max() {
                given = size.min(given + 7);
                event = PutEvent::Data { end: given };
            } else if given == size {
                given += 1;
                event = PutEvent::Finish { digest: DIGEST };
            } else if !world.answers.is_empty() && chance < 17 {
                // Answers stay, so that they come again and late.
                event = world.answers[index.index(world.answers.len())].clone();
            }
            machine.handle(now_ms, event);
            while let Some(action) = machine.poll_action() {
                let final_word = matches!(action, PutAction::Done { .. } | PutAction::Fail(_));
                let lost = luck.next().unwrap().0 == 0;
                if final_word || !lost {
                    world.act(action, size, broken_home);
                }
            }
        }
        match world.last {
            Some(PutAction::Done { size: told, .. }) => {
                prop_assert!(world.committed);
                prop_assert_eq!(told, size);
            }
            Some(PutAction::Fail(failure)) => {
                prop_assert!(failure.outcome == PutOutcome::Unknown || !world.committed);
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
}
