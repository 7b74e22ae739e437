//! Whole sessions between two threads: order, depth, sleeping, and a peer that writes garbage.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hinterland_os::poll::{EventCounter, wait_readable};
use hinterland_os::{Coherence, LineMover, MapOptions, Mapping, MemoryFile, PageKind, SharedSlice};
use hinterland_ring::{
    BODY_BYTES, Body, Request, Requester, Responder, RingError, Session, WakeBy, session_bytes,
};

const LONG: Duration = Duration::from_secs(20);

fn memory(slots: u32) -> SharedSlice {
    Arc::new(Mapping::anonymous(session_bytes(slots).unwrap(), false).unwrap()).slice()
}

fn ends(slots: u32) -> (Requester, Responder) {
    let session = Session::format(memory(slots), slots).unwrap();
    (Requester::new(session.clone(), WakeBy::Futex), Responder::new(session))
}

fn body(number: u64) -> Body {
    let mut body = [0; BODY_BYTES];
    for (index, bytes) in body.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = (number * 31 + index as u64).to_le_bytes();
    }
    body
}

#[test]
fn requests_beyond_the_depth_are_refused_until_a_response_is_taken() {
    let (mut requester, mut responder) = ends(4);
    for number in 0..4 {
        requester.submit(&body(number)).unwrap();
    }
    assert!(matches!(requester.submit(&body(9)), Err(RingError::Full { slots: 4 })));
    let first = responder.take().unwrap();
    assert_eq!(first.body, body(0));
    responder.respond(first.tag, &body(100)).unwrap();
    assert!(matches!(responder.respond(first.tag, &body(0)), Err(RingError::NothingToAnswer { .. })));
    assert!(matches!(requester.submit(&body(9)), Err(RingError::Full { .. })));
    assert_eq!(requester.poll().unwrap().unwrap().body, body(100));
    assert!(requester.submit(&body(4)).is_ok());
    assert_eq!((requester.outstanding(), responder.unanswered()), (4, 0));
}

#[test]
fn responses_in_any_order_find_their_requests_over_many_laps() {
    let (mut requester, mut responder) = ends(8);
    let (mut requests, mut responses) = (Vec::new(), Vec::new());
    let mut expected = std::collections::HashMap::new();
    let mut seed = 12345u64;
    let mut submitted = 0u64;
    for _ in 0..20_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        for _ in 0..seed >> 60 {
            if let Ok(ticket) = requester.submit(&body(submitted)) {
                assert!(expected.insert(ticket, submitted).is_none());
                submitted += 1;
            }
        }
        responder.drain(&mut requests, (seed >> 50) as usize % 8);
        for _ in 0..(seed >> 40) % 8 {
            if requests.is_empty() {
                break;
            }
            let request: Request = requests.swap_remove((seed >> 30) as usize % requests.len());
            responder.respond(request.tag, &request.body).unwrap();
        }
        responses.clear();
        requester.poll_all(&mut responses).unwrap();
        for response in &responses {
            assert_eq!(response.body, body(expected.remove(&response.ticket).unwrap()));
        }
        assert_eq!(expected.len() as u32, requester.outstanding());
    }
    assert!(submitted > 20_000);
}

#[test]
fn sides_that_sleep_between_messages_are_woken_through_two_mappings() {
    let bytes = session_bytes(16).unwrap();
    let file = MemoryFile::anonymous("session", 8192, PageKind::Base4K).unwrap();
    let options = MapOptions { write: true, ..MapOptions::default() };
    let map = || Arc::new(file.map(0, bytes, options).unwrap()).slice();
    let formatted = Session::format(map(), 16).unwrap();
    let mut responder = Responder::new(Session::attach(map(), 16).unwrap());
    let answering = std::thread::spawn(move || {
        for _ in 0..200 {
            assert!(responder.wait(LONG));
            let request = responder.take().unwrap();
            if request.tag.is_multiple_of(7) {
                std::thread::sleep(Duration::from_micros(200));
            }
            responder.respond(request.tag, &request.body).unwrap();
            responder.flush();
        }
    });
    let mut requester = Requester::new(formatted, WakeBy::Futex);
    for number in 0..200 {
        if number % 5 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
        assert_eq!(requester.call(&body(number), LONG).unwrap(), body(number));
    }
    answering.join().unwrap();
}

#[test]
fn a_responder_with_a_descriptor_is_woken_through_it() {
    let session = Session::format(memory(8), 8).unwrap();
    let counter = Arc::new(EventCounter::new().unwrap());
    let mut requester = Requester::new(session.clone(), WakeBy::Event(Arc::clone(&counter)));
    let mut responder = Responder::new(session);
    let answering = std::thread::spawn(move || {
        let mut answered = 0;
        while answered < 50 {
            if responder.prepare_to_sleep() {
                assert!(wait_readable(&*counter, Some(LONG)).unwrap());
                counter.take();
            }
            responder.stay_awake();
            while let Some(request) = responder.take() {
                responder.respond(request.tag, &request.body).unwrap();
                answered += 1;
            }
            responder.flush();
        }
    });
    for number in 0..50 {
        assert_eq!(requester.call(&body(number), LONG).unwrap(), body(number));
    }
    answering.join().unwrap();
}

#[test]
fn a_call_without_an_answer_ends_in_time() {
    let (mut requester, mut responder) = ends(2);
    let late = requester.call(&body(1), Duration::from_millis(3));
    assert!(matches!(late, Err(RingError::TimedOut { waited_ms: 3 })));
    assert!(matches!(requester.call(&body(1), LONG), Err(RingError::Full { .. })));
    assert!(responder.take().is_some());
    assert!(!responder.wait(Duration::from_millis(3)));
}

#[test]
fn a_response_to_nothing_ends_the_session() {
    let (mut requester, mut responder) = ends(4);
    requester.submit(&body(1)).unwrap();
    let request = responder.take().unwrap();
    responder.respond(request.tag ^ 4, &body(2)).unwrap();
    assert!(matches!(requester.poll(), Err(RingError::Broken { .. })));
    assert!(matches!(requester.submit(&body(2)), Err(RingError::Broken { .. })));
    assert!(matches!(requester.wait(LONG), Err(RingError::Broken { .. })));
}

#[test]
fn memory_that_is_no_session_is_refused() {
    assert!(matches!(session_bytes(0), Err(RingError::BadSlots { .. })));
    assert!(matches!(session_bytes(3), Err(RingError::BadSlots { .. })));
    assert!(matches!(session_bytes(8192), Err(RingError::BadSlots { .. })));
    assert!(matches!(Session::attach(memory(4), 4), Err(RingError::Foreign { .. })));
    assert!(matches!(Session::format(memory(4).sub(0, 512).unwrap(), 4), Err(RingError::Memory { .. })));
    assert!(matches!(Session::format(memory(8).sub(8, 1024).unwrap(), 4), Err(RingError::Memory { .. })));
    let formatted = memory(4);
    Session::format(formatted.clone(), 4).unwrap();
    assert!(Session::attach(formatted.clone(), 4).is_ok());
    assert!(matches!(Session::attach(formatted, 2), Err(RingError::Foreign { found: 4, .. })));
}

/// A peer that floods the request ring without taking responses is heard up to the depth and no further.
#[test]
fn a_flooding_peer_is_held_at_the_depth() {
    let shared = memory(4);
    let session = Session::format(shared.clone(), 4).unwrap();
    let mut responder = Responder::new(session);
    let mut requests = Vec::new();
    for lap in 0..10u64 {
        for slot in 0..4u64 {
            shared.store_u64(512 + slot as usize * 64, lap * 4 + slot + 1).unwrap();
        }
        responder.drain(&mut requests, 1000);
    }
    assert_eq!((requests.len(), responder.unanswered()), (4, 4));
    assert!(!responder.has_work());
}

/// The other process writes random bytes over the whole session all the time. Nothing may panic, hang or loop for ever.
#[test]
fn a_peer_that_scribbles_over_everything_does_no_harm() {
    let shared = memory(16);
    let stop = Arc::new(AtomicBool::new(false));
    let scribbler = {
        let (shared, stop) = (shared.clone(), Arc::clone(&stop));
        std::thread::spawn(move || scribble(&shared, &stop))
    };
    let end = Instant::now() + Duration::from_millis(1500);
    let (mut sessions, mut broken, mut taken) = (0u64, 0u64, 0u64);
    // On a busy machine the other thread may not have run by then.
    while Instant::now() < end || (broken == 0 && Instant::now() < end + Duration::from_secs(60)) {
        let Ok(session) = Session::format(shared.clone(), 16) else { panic!("the memory is large enough") };
        let mut requester = Requester::new(session.clone(), WakeBy::Futex);
        let mut responder = Responder::new(session);
        sessions += 1;
        for number in 0..200 {
            let _ = requester.submit(&body(number));
            let mut requests = Vec::new();
            assert!(responder.drain(&mut requests, 1000) <= 16);
            taken += requests.len() as u64;
            for request in requests {
                responder.respond(request.tag, &request.body).unwrap();
            }
            responder.wait(Duration::from_micros(20));
            let mut responses = Vec::new();
            match requester.poll_all(&mut responses).and_then(|_| requester.wait(Duration::from_micros(20))) {
                Ok(_) => assert!(responses.len() <= 16 && requester.outstanding() <= 16),
                Err(RingError::Broken { .. }) => {
                    broken += 1;
                    break;
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
    // Relaxed: only ends the loop.
    stop.store(true, Ordering::Relaxed);
    scribbler.join().unwrap();
    assert!(sessions > 1 && taken > 0 && broken > 0, "{sessions} sessions, {taken} taken, {broken} broken");
}

/// Random words everywhere; often small ones at the heads of slots, which look like sequences.
fn scribble(shared: &SharedSlice, stop: &AtomicBool) {
    let mut seed = 99u64;
    let words = shared.len() / 8;
    // Relaxed: only ends the loop.
    while !stop.load(Ordering::Relaxed) {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = seed >> 20;
        let word = (random as usize) % words;
        let value = if word.is_multiple_of(8) { random >> 24 & 0x1F } else { seed };
        shared.store_u64(word * 8, value).unwrap();
    }
}

#[test]
fn ends_of_two_hosts_ask_and_answer_and_wait_without_a_bell() {
    if LineMover::detect().is_err() {
        return;
    }
    let memory = memory(8);
    let session = Session::format_with(memory.clone(), 8, Coherence::Software).unwrap();
    let other = Session::attach_with(memory, 8, Coherence::Software).unwrap();
    let mut requester = Requester::new(session, WakeBy::Futex);
    let answering = std::thread::spawn(move || {
        let mut responder = Responder::new(other);
        assert!(!responder.prepare_to_sleep(), "nobody could wake it");
        for number in 0..500 {
            assert!(responder.wait(LONG));
            let request = responder.take().unwrap();
            assert_eq!(request.body, body(number));
            // Long enough for the requester to pause between its looks.
            if number % 100 == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            responder.respond(request.tag, &body(number + 1)).unwrap();
            responder.flush();
        }
        assert!(!responder.wait(Duration::from_millis(3)));
    });
    for number in 0..500 {
        assert_eq!(requester.call(&body(number), LONG).unwrap(), body(number + 1));
    }
    answering.join().unwrap();
}
