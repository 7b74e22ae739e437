//! The two-layer ring: answers in any order, messages of any length, many threads, and peers that lie.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_os::{Mapping, SharedSlice};
use hinterland_ring::two_layer::{Answerer, Asker, Layers, MESSAGE_BYTES_MAX, Taker, Verdict};
use hinterland_ring::{BODY_BYTES, Requester, RingError, Session, Ticket, WakeBy};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SLOTS: u32 = 8;
const DATA: usize = 64 << 10;

fn memory(slots: u32, data: usize) -> SharedSlice {
    Arc::new(Mapping::anonymous(Layers::bytes(slots, data).unwrap(), false).unwrap()).slice()
}

fn ends(slots: u32, data: usize) -> (Asker, Taker, Answerer) {
    let memory = memory(slots, data);
    let layers = Layers::format(&memory, slots, data).unwrap();
    let (taker, answerer) = layers.answering();
    (Asker::new(Layers::attach(&memory, slots, data).unwrap()), taker, answerer)
}

#[test]
fn answers_come_in_the_order_in_which_they_are_given() {
    let (mut asker, mut taker, mut answerer) = ends(SLOTS, DATA);
    let tickets: Vec<Ticket> = (0..4u8).map(|n| asker.submit(&[n; 100], 200).unwrap()).collect();
    let (mut body, mut errands) = (Vec::new(), Vec::new());
    while let Some(errand) = taker.take(&mut body).unwrap() {
        assert_eq!(body, [errands.len() as u8; 100]);
        errands.push(errand);
    }
    assert_eq!(errands.len(), 4);
    for (number, errand) in errands.into_iter().enumerate().rev() {
        answerer.answer(errand, &vec![number as u8 + 10; 50 * number], number == 2).unwrap();
    }
    for number in (0..4).rev() {
        let (ticket, verdict) = asker.poll(&mut body).unwrap().unwrap();
        assert_eq!(ticket, tickets[number]);
        assert_eq!(verdict, if number == 2 { Verdict::Failed } else { Verdict::Answered });
        assert_eq!(body, vec![number as u8 + 10; 50 * number]);
    }
    assert_eq!(asker.poll(&mut body).unwrap(), None);
    assert_eq!(asker.outstanding(), 0);
}

#[test]
fn an_answer_that_does_not_fit_says_what_it_needs() {
    let (mut asker, mut taker, mut answerer) = ends(SLOTS, DATA);
    let ticket = asker.submit(b"how long?", 64).unwrap();
    let mut body = Vec::new();
    let errand = taker.take(&mut body).unwrap().unwrap();
    answerer.answer(errand, &[1; 65], false).unwrap();
    assert_eq!(asker.poll(&mut body).unwrap(), Some((ticket, Verdict::TooLong { bytes: 65, room: 64 })));
    assert!(body.is_empty());
}

#[test]
fn a_full_ring_and_a_full_buffer_say_so_and_go_on_after_an_answer() {
    let (mut asker, mut taker, mut answerer) = ends(SLOTS, DATA);
    for _ in 0..SLOTS {
        asker.submit(&[], 0).unwrap();
    }
    assert!(matches!(asker.submit(&[], 0), Err(RingError::Full { .. })));
    let mut body = Vec::new();
    let errand = taker.take(&mut body).unwrap().unwrap();
    answerer.answer(errand, &[], false).unwrap();
    asker.poll(&mut body).unwrap().unwrap();
    assert!(matches!(asker.submit(&[], DATA), Err(RingError::Full { .. })));
    asker.submit(&[7; 5000], 6000).unwrap();
    assert!(matches!(asker.submit(&[], DATA + 1), Err(RingError::TooLong { .. })));
    let (mut asker, ..) = ends(SLOTS, 1 << 20);
    assert!(matches!(asker.submit(&vec![0; MESSAGE_BYTES_MAX + 1], 0), Err(RingError::TooLong { .. })));
}

#[test]
fn sizes_that_make_no_ring_are_refused() {
    for (slots, data) in [(7, DATA), (0, DATA), (8, 0), (8, 63), (8, 65 << 20)] {
        assert!(Layers::bytes(slots, data).is_err(), "{slots} {data}");
    }
    let small = memory(SLOTS, 64);
    assert!(matches!(Layers::format(&small, SLOTS, DATA), Err(RingError::Memory { .. })));
    assert!(matches!(Layers::attach(&memory(SLOTS, DATA), SLOTS, DATA), Err(RingError::Foreign { .. })));
}

#[test]
fn threads_that_take_turns_answer_every_request_once() {
    const REQUESTS: u32 = 20_000;
    let (mut asker, taker, answerer) = ends(64, 256 << 10);
    let (taker, answerer) = (Mutex::new(taker), Mutex::new(answerer));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut body = Vec::new();
                loop {
                    let mut turn = taker.lock().unwrap();
                    turn.wait(Duration::from_millis(50));
                    let Some(errand) = turn.take(&mut body).unwrap() else { continue };
                    drop(turn);
                    if body.is_empty() {
                        return answerer.lock().unwrap().answer(errand, &[], false).unwrap();
                    }
                    body.reverse();
                    answerer.lock().unwrap().answer(errand, &body, false).unwrap();
                }
            });
        }
        let (mut sent, mut seen, mut body) = (0, 0, Vec::new());
        let mut out: HashMap<Ticket, Vec<u8>> = HashMap::new();
        while seen < REQUESTS {
            while sent < REQUESTS {
                let message: Vec<u8> = (0..=sent % 3000).map(|byte| (byte ^ sent) as u8).collect();
                let Ok(ticket) = asker.submit(&message, 0) else { break };
                out.insert(ticket, message);
                sent += 1;
            }
            assert!(asker.wait(Duration::from_secs(20)).unwrap());
            while let Some((ticket, verdict)) = asker.poll(&mut body).unwrap() {
                assert_eq!(verdict, Verdict::Answered);
                body.reverse();
                assert_eq!(out.remove(&ticket).unwrap(), body);
                seen += 1;
            }
        }
        for _ in 0..4 {
            asker.submit(&[], 0).unwrap();
        }
        asker.flush();
    });
}

#[test]
fn a_listener_hears_of_an_answer_to_a_later_request() {
    let (mut asker, mut taker, mut answerer) = ends(SLOTS, DATA);
    asker.submit(b"slow", 0).unwrap();
    let mut listener = asker.listener();
    assert!(!listener.wait(Duration::ZERO));
    let quick = asker.submit(b"quick", 0).unwrap();
    let mut body = Vec::new();
    taker.take(&mut body).unwrap().unwrap();
    let errand = taker.take(&mut body).unwrap().unwrap();
    answerer.answer(errand, b"done", false).unwrap();
    assert!(listener.wait(Duration::ZERO));
    asker.learn_from(&listener);
    assert_eq!(asker.poll(&mut body).unwrap(), Some((quick, Verdict::Answered)));
}

/// Entries of a peer that lies in every field, written by hand.
#[test]
fn requests_that_point_outside_the_data_end_the_session() {
    for (offset, length, room) in [
        (0, 1, 0),
        (DATA, 0, 1),
        (DATA + 1, 0, 0),
        (0, 0, DATA + 1),
        (1, DATA, DATA),
        (u32::MAX as usize, 8, 8),
        (8, u32::MAX as usize, u32::MAX as usize),
    ] {
        let memory = memory(SLOTS, DATA);
        let (mut taker, _) = Layers::format(&memory, SLOTS, DATA).unwrap().answering();
        let mut liar = Requester::new(Session::attach(memory, SLOTS).unwrap(), WakeBy::Futex);
        let mut body = [0; BODY_BYTES];
        body[0] = 1;
        for (place, number) in [(4, offset), (8, length), (12, room)] {
            body[place..place + 4].copy_from_slice(&(number as u32).to_le_bytes());
        }
        liar.submit(&body).unwrap();
        let taken = taker.take(&mut Vec::new());
        assert!(matches!(taken, Err(RingError::Broken { .. })), "{offset} {length} {room}: {taken:?}");
    }
}
