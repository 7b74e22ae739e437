//! A session kept coherent by software in memory that two ends map by themselves: here two mappings of one file, in the lab two
//! guests whose machines share the memory of a device.
//!
//! The lab names the memory in `HINTERLAND_TEST_MEMORY` and the end in `HINTERLAND_TEST_END`. Two guests on one host are still
//! coherent, so this shows that two kernels and their programs understand each other through such memory, and that the
//! instructions that move lines run there; that none is missing is shown by `coherence.rs`.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hinterland_os::{Coherence, MapOptions, MemoryFile, PageKind, SharedSlice};
use hinterland_ring::{BODY_BYTES, Body, Requester, Responder, RingError, Session, WakeBy, session_bytes};

const SLOTS: u32 = 8;
const MESSAGES: u64 = 2_000;
const LONG: Duration = Duration::from_secs(100);

fn mapped(file: &MemoryFile) -> SharedSlice {
    let bytes = session_bytes(SLOTS).unwrap().next_multiple_of(4096);
    Arc::new(file.map(0, bytes, MapOptions { write: true, ..MapOptions::default() }).unwrap()).slice()
}

fn body(number: u64) -> Body {
    let mut body = [0; BODY_BYTES];
    for (index, bytes) in body.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *bytes = (number * 31 + index as u64).to_le_bytes();
    }
    body
}

/// Answers each message with the one behind it, in crowds as they come.
fn answer(memory: SharedSlice) {
    let session = Session::format_with(memory, SLOTS, Coherence::Software).unwrap();
    let mut responder = Responder::new(session);
    let begun = Instant::now();
    let mut taken = 0;
    while taken < MESSAGES {
        assert!(begun.elapsed() < LONG, "{taken} messages came");
        let Some(request) = responder.take() else {
            responder.wait(Duration::from_millis(100));
            continue;
        };
        assert_eq!(request.body, body(taken), "message {taken}");
        responder.respond(request.tag, &body(taken + 1)).unwrap();
        responder.flush();
        taken += 1;
    }
}

/// Asks with several messages under way, as many as there is room for.
fn ask(memory: SharedSlice) {
    let begun = Instant::now();
    let session = loop {
        match Session::attach_with(memory.clone(), SLOTS, Coherence::Software) {
            Ok(session) => break session,
            Err(RingError::Foreign { .. }) if begun.elapsed() < LONG => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => panic!("{error}"),
        }
    };
    let mut requester = Requester::new(session, WakeBy::Futex);
    let (mut sent, mut answered) = (0, 0);
    while answered < MESSAGES {
        assert!(begun.elapsed() < LONG, "{sent} messages were sent and {answered} answered");
        while sent < MESSAGES && requester.outstanding() < SLOTS {
            requester.submit(&body(sent)).unwrap();
            sent += 1;
        }
        requester.flush();
        match requester.poll().unwrap() {
            Some(response) => {
                answered += 1;
                assert_eq!(response.body, body(answered), "the answer to message {}", answered - 1);
            }
            None => drop(requester.wait(Duration::from_millis(100)).unwrap()),
        }
    }
}

#[test]
fn messages_between_two_mappings_arrive_whole_and_in_order() {
    match (std::env::var_os("HINTERLAND_TEST_MEMORY"), std::env::var("HINTERLAND_TEST_END").as_deref()) {
        (Some(path), Ok("answer")) => answer(mapped(&MemoryFile::open(Path::new(&path), true).unwrap())),
        (Some(path), Ok("ask")) => ask(mapped(&MemoryFile::open(Path::new(&path), true).unwrap())),
        _ => {
            let file = MemoryFile::anonymous("two-hosts", 1 << 16, PageKind::Base4K).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| answer(mapped(&file)));
                ask(mapped(&file));
            });
        }
    }
}
