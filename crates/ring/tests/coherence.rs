//! A ring between two hosts whose caches do not see each other: messages arrive whole and in order, and each place where a
//! line is moved by hand is needed.
#![cfg(not(loom))]

use hinterland_os::checking::{Disorder, Participant, segment};
use hinterland_ring::lines::Lines;
use hinterland_ring::ring::{Inlet, Outlet};
use hinterland_ring::{BODY_BYTES, Body};
use std::sync::Arc;

const LINE_BYTES: usize = 64;
const SLOTS: usize = 4;
/// Messages of the first session: so few that what stays in the slots has the sequences that the second one waits for.
const FIRST_MESSAGES: u32 = 3;
const MESSAGES: u32 = 60;
/// Far more turns than messages need.
const TURNS_MAX: usize = 20_000;

/// Where a line is moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    /// The session is new: its zeros are written back.
    Formatted,
    /// The other end begins: its copies from an earlier use are dropped.
    Attached,
    /// A message was written.
    Pushed,
    /// A message is looked for.
    Looked,
}

/// One host's side of one ring.
struct Ring {
    memory: Participant,
    first: usize,
    left_out: Option<Move>,
}

impl Ring {
    fn at(&self, place: usize) -> usize {
        (self.first + place) * LINE_BYTES
    }
}

impl Lines for Ring {
    const BY_HAND: bool = true;

    fn slots(&self) -> usize {
        SLOTS
    }

    fn publish(&self, place: usize, sequence: u32, tag: u32, body: &Body) {
        assert!(self.memory.write(self.at(place) + 8, body));
        let head = u64::from(tag) << 32 | u64::from(sequence);
        assert!(self.memory.write(self.at(place), &head.to_le_bytes()));
    }

    fn take(&self, place: usize, sequence: u32) -> Option<(u32, Body)> {
        let (mut head, mut body) = ([0; 8], [0; BODY_BYTES]);
        assert!(self.memory.read(self.at(place), &mut head));
        let head = u64::from_le_bytes(head);
        (head as u32 == sequence).then(|| {
            assert!(self.memory.read(self.at(place) + 8, &mut body));
            ((head >> 32) as u32, body)
        })
    }

    fn holds(&self, place: usize, sequence: u32) -> bool {
        self.take(place, sequence).is_some()
    }

    fn write_back(&self, place: usize) {
        if self.left_out != Some(Move::Pushed) {
            self.memory.write_back(self.at(place), LINE_BYTES);
        }
    }

    fn refresh(&self, place: usize, count: usize) {
        if self.left_out != Some(Move::Looked) {
            for place in place..place + count {
                self.memory.refresh(self.at(place % SLOTS), LINE_BYTES);
            }
        }
    }
}

/// A host with its ends of both rings.
struct Host {
    memory: Participant,
    out: (Ring, Outlet),
    into: (Ring, Inlet),
}

fn host(memory: &Participant, out: usize, into: usize, left_out: Option<Move>) -> Host {
    let ring = |first| Ring { memory: memory.clone(), first, left_out };
    Host { memory: memory.clone(), out: (ring(out), Outlet::default()), into: (ring(into), Inlet::default()) }
}

fn body(session: u32, number: u32) -> Body {
    let mut body = [session as u8; BODY_BYTES];
    body[..4].copy_from_slice(&number.to_le_bytes());
    body[BODY_BYTES - 4..].copy_from_slice(&number.to_le_bytes());
    body
}

/// What goes wrong under a seed, in two sessions one after the other in the same memory.
fn run(seed: u64, disorder: Disorder, left_out: Option<Move>) -> Result<(), String> {
    let hosts = segment(2 * SLOTS * LINE_BYTES, 2, Disorder { seed, ..disorder }, Arc::new(|| {}));
    let mut chance = seed | 1;
    let mut chance = || {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        chance >> 40
    };
    for (session, messages) in [(1, FIRST_MESSAGES), (2, MESSAGES)] {
        let mut asks = host(&hosts[0], 0, SLOTS, left_out);
        let mut answers = host(&hosts[1], SLOTS, 0, left_out);
        assert!(asks.memory.write(0, &[0; 2 * SLOTS * LINE_BYTES]));
        if left_out != Some(Move::Formatted) {
            asks.memory.write_back(0, 2 * SLOTS * LINE_BYTES);
            asks.memory.fence();
        }
        if left_out != Some(Move::Attached) {
            answers.memory.refresh(0, 2 * SLOTS * LINE_BYTES);
        }
        let (mut sent, mut answered, mut got) = (0, 0, 0);
        for _ in 0..TURNS_MAX {
            if got == messages {
                break;
            }
            match chance() % 4 {
                0 if sent < messages && sent - got < SLOTS as u32 => {
                    asks.out.1.push(&asks.out.0, sent, &body(session, sent));
                    sent += 1;
                }
                1 => {
                    // As `Requester::wait` and `Responder::wait` do before they look.
                    asks.memory.fence();
                    if let Some(message) = asks.into.1.take(&asks.into.0) {
                        check(message, got, &body(session, got + 1000))?;
                        got += 1;
                    }
                }
                2 => {
                    answers.memory.fence();
                    if let Some(message) = answers.into.1.take(&answers.into.0) {
                        check(message, answered, &body(session, answered))?;
                        answers.out.1.push(&answers.out.0, answered, &body(session, answered + 1000));
                        answered += 1;
                    }
                }
                _ => {
                    let _ = asks.into.1.has_next(&asks.into.0) | answers.into.1.has_next(&answers.into.0);
                }
            }
        }
        if got < messages {
            return Err(format!("session {session} is stuck after {got} of {messages} answers"));
        }
    }
    Ok(())
}

fn check(message: (u32, Body), tag: u32, body: &Body) -> Result<(), String> {
    if message == (tag, *body) {
        return Ok(());
    }
    Err(format!("message {tag} is {message:?}"))
}

const RESTLESS: Disorder = Disorder { seed: 0, calls: 7, garbage: true };

#[test]
fn messages_arrive_whole_and_in_order_whatever_caches_do_on_their_own() {
    for seed in 0..200 {
        for disorder in [Disorder::NONE, RESTLESS] {
            run(seed, disorder, None).unwrap_or_else(|wrong| panic!("seed {seed}, {disorder:?}: {wrong}"));
        }
    }
}

#[test]
fn each_move_of_a_line_is_needed() {
    for left_out in [Move::Formatted, Move::Attached, Move::Pushed, Move::Looked] {
        let mut runs = (0..200).flat_map(|seed| [(seed, Disorder::NONE), (seed, RESTLESS)]);
        let wrong = runs.find_map(|(seed, disorder)| run(seed, disorder, Some(left_out)).err());
        assert!(wrong.is_some(), "nothing goes wrong without {left_out:?}");
    }
}
