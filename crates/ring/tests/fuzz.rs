//! A peer that writes anything anywhere in the shared memory at any time: counts stay bounded and nobody panics.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../../proto/tests/mutate/mod.rs"]
#[allow(dead_code, reason = "other targets use the rest")]
mod mutate;

use hinterland_os::{Mapping, SharedSlice};
use hinterland_ring::two_layer::{Asker, Layers};
use hinterland_ring::{BODY_BYTES, Requester, Responder, Session, WakeBy, session_bytes};
use mutate::{Random, rounds};
use std::sync::Arc;
use std::time::Duration;

const SLOTS: u32 = 8;

fn memory() -> SharedSlice {
    Arc::new(Mapping::anonymous(session_bytes(SLOTS).unwrap(), false).unwrap()).slice()
}

/// Overwrites a few places, with numbers that were there elsewhere more often than with any.
fn scribble(random: &mut Random, memory: &SharedSlice) {
    for _ in 0..=random.below(4) {
        let place = random.below(memory.len() - 8) & !3;
        let mut bytes = [0; 4];
        match random.below(3) {
            0 => bytes = (random.number() as u32).to_le_bytes(),
            1 => memory.read_at(random.below(memory.len() - 4) & !3, &mut bytes).unwrap(),
            _ => bytes = (random.below(40) as u32).to_le_bytes(),
        }
        memory.write_at(place, &bytes).unwrap();
    }
}

#[test]
fn fuzz_a_responder_survives_its_requester() {
    rounds(|random, _| {
        let memory = memory();
        let session = Session::format(memory.clone(), SLOTS).unwrap();
        let mut honest = Requester::new(session.clone(), WakeBy::Futex);
        let mut responder = Responder::new(session);
        let mut requests = Vec::new();
        for _ in 0..200 {
            match random.below(6) {
                0 | 1 => scribble(random, &memory),
                // Full or broken: both are answers.
                2 => drop(honest.submit(&[random.number() as u8; BODY_BYTES])),
                3 => {
                    let taken = responder.drain(&mut requests, random.below(12));
                    assert!(taken <= SLOTS as usize);
                }
                4 if !requests.is_empty() => {
                    let request = requests.swap_remove(random.below(requests.len()));
                    drop(responder.respond(request.tag, &request.body));
                    responder.flush();
                }
                _ => drop(responder.respond(random.number() as u32, &[0; BODY_BYTES])),
            }
            assert!(responder.unanswered() <= responder.capacity());
        }
        assert!(requests.len() <= 200 * SLOTS as usize);
    });
}

#[test]
fn fuzz_a_requester_survives_its_responder() {
    rounds(|random, _| {
        let memory = memory();
        let session = Session::format(memory.clone(), SLOTS).unwrap();
        let mut requester = Requester::new(session.clone(), WakeBy::Futex);
        let mut honest = Responder::new(session);
        let mut responses = Vec::new();
        for _ in 0..200 {
            match random.below(6) {
                0 | 1 => scribble(random, &memory),
                2 => drop(requester.submit(&[random.number() as u8; BODY_BYTES])),
                3 => drop(requester.poll_all(&mut responses)),
                4 => {
                    if let Some(request) = honest.take() {
                        drop(honest.respond(request.tag, &request.body));
                    }
                }
                _ => drop(requester.wait(Duration::ZERO)),
            }
            assert!(requester.outstanding() <= requester.capacity());
        }
        assert!(responses.len() <= 200 * SLOTS as usize);
    });
}

#[test]
fn fuzz_memory_that_was_never_a_session_is_refused_or_harmless() {
    rounds(|random, _| {
        let memory = memory();
        if random.below(2) == 0 {
            drop(Session::format(memory.clone(), SLOTS).unwrap());
        }
        for _ in 0..random.below(6) {
            scribble(random, &memory);
        }
        let slots = [SLOTS, 0, 1, 7, 16, u32::MAX][random.below(6)];
        if let Ok(session) = Session::attach(memory, slots) {
            let mut responder = Responder::new(session);
            let mut requests = Vec::new();
            assert!(responder.drain(&mut requests, 100) <= responder.capacity() as usize);
        }
    });
}

#[test]
fn fuzz_both_ends_of_two_layers_survive_a_peer_that_writes_anywhere() {
    const DATA: usize = 4096;
    rounds(|random, _| {
        let bytes = Layers::bytes(SLOTS, DATA).unwrap();
        let memory = Arc::new(Mapping::anonymous(bytes, false).unwrap()).slice();
        let layers = Layers::format(&memory, SLOTS, DATA).unwrap();
        // Messages are only copied: what can go wrong is decided by the rings before them.
        let rings = memory.sub(0, session_bytes(SLOTS).unwrap()).unwrap();
        let mut asker = Asker::new(layers.clone());
        let (mut taker, mut answerer) = layers.answering();
        let (mut body, mut errands) = (Vec::new(), Vec::new());
        for _ in 0..150 {
            match random.below(7) {
                0 | 1 => scribble(random, &rings),
                // Full, too long or broken: all are answers.
                2 => drop(asker.submit(&vec![1; random.below(300)], random.below(2000))),
                3 | 4 => {
                    if let Ok(Some(errand)) = taker.take(&mut body) {
                        errands.push(errand);
                    }
                    assert!(errands.len() <= SLOTS as usize);
                }
                5 if !errands.is_empty() => {
                    let errand = errands.swap_remove(random.below(errands.len()));
                    answerer.answer(errand, &vec![2; random.below(2500)], random.below(2) == 0).unwrap();
                }
                _ => drop(asker.poll(&mut body)),
            }
            assert!(asker.outstanding() <= SLOTS && body.len() <= DATA);
        }
    });
}
