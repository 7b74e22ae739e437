//! Every interleaving of the hand-off of slots and of the doorbell, explored by a model checker.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p hinterland-ring --release --test loom --target-dir target/loom`
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_ring::Body;
use hinterland_ring::doorbell::Doorbell;
use hinterland_ring::ring::{Inlet, Outlet};
use hinterland_ring::slot::Slot;
use loom::sync::Arc;
use loom::thread;

struct Shared {
    requests: Vec<Slot>,
    responses: Vec<Slot>,
    requester_bell: Doorbell,
    responder_bell: Doorbell,
}

impl Shared {
    fn new(slots: usize) -> Arc<Self> {
        let ring = || (0..slots).map(|_| Slot::empty()).collect();
        Arc::new(Self {
            requests: ring(),
            responses: ring(),
            requester_bell: Doorbell::silent(),
            responder_bell: Doorbell::silent(),
        })
    }
}

fn body(number: u32) -> Body {
    u64::from(number * 0x1010 + 7).to_le_bytes()
}

/// Takes a message as `wait_until` does when its spin is over: announce, look, sleep.
fn take_asleep(inlet: &mut Inlet, slots: &[Slot], bell: &Doorbell) -> (u32, Body) {
    loop {
        bell.announce();
        if let Some(message) = inlet.take(slots) {
            bell.retract();
            return message;
        }
        bell.sleep(None);
    }
}

fn take_spinning(inlet: &mut Inlet, slots: &[Slot]) -> (u32, Body) {
    loop {
        if let Some(message) = inlet.take(slots) {
            return message;
        }
        thread::yield_now();
    }
}

fn push_and_ring(outlet: &mut Outlet, slots: &[Slot], tag: u32, bell: &Doorbell) {
    outlet.push(slots, tag, &body(tag));
    if bell.must_wake() {
        bell.wake();
    }
}

#[test]
fn a_message_is_seen_whole_and_in_order() {
    loom::model(|| {
        let shared = Shared::new(2);
        let writer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut outlet = Outlet::default();
                outlet.push(&shared.requests[..], 1, &body(1));
                outlet.push(&shared.requests[..], 2, &body(2));
            })
        };
        let mut inlet = Inlet::default();
        for tag in 1..=2 {
            assert_eq!(take_spinning(&mut inlet, &shared.requests), (tag, body(tag)));
        }
        assert!(inlet.take(&shared.requests[..]).is_none());
        writer.join().unwrap();
    });
}

#[test]
fn a_slot_is_used_again_only_after_its_message_was_taken() {
    loom::model(|| {
        let shared = Shared::new(1);
        let responder = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (mut inlet, mut outlet) = (Inlet::default(), Outlet::default());
                for expected in 1..=3 {
                    let (tag, found) = take_spinning(&mut inlet, &shared.requests);
                    assert_eq!((tag, found), (expected, body(expected)));
                    outlet.push(&shared.responses[..], tag, &body(tag + 100));
                }
            })
        };
        let (mut inlet, mut outlet) = (Inlet::default(), Outlet::default());
        for tag in 1..=3 {
            outlet.push(&shared.requests[..], tag, &body(tag));
            assert_eq!(take_spinning(&mut inlet, &shared.responses), (tag, body(tag + 100)));
        }
        responder.join().unwrap();
    });
}

#[test]
fn a_sleeper_is_never_left_asleep_with_a_message() {
    loom::model(|| {
        let shared = Shared::new(2);
        let sleeper = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut inlet = Inlet::default();
                for tag in 1..=2 {
                    let found = take_asleep(&mut inlet, &shared.requests, &shared.responder_bell);
                    assert_eq!(found, (tag, body(tag)));
                }
            })
        };
        let mut outlet = Outlet::default();
        for tag in 1..=2 {
            push_and_ring(&mut outlet, &shared.requests, tag, &shared.responder_bell);
        }
        sleeper.join().unwrap();
    });
}

/// All interleavings with up to three preemptions: without a bound this one takes hours.
#[test]
fn both_sides_may_sleep_in_turn() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Shared::new(1);
        let responder = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (mut inlet, mut outlet) = (Inlet::default(), Outlet::default());
                for _ in 0..2 {
                    let (tag, _) = take_asleep(&mut inlet, &shared.requests, &shared.responder_bell);
                    push_and_ring(&mut outlet, &shared.responses, tag, &shared.requester_bell);
                }
            })
        };
        let (mut inlet, mut outlet) = (Inlet::default(), Outlet::default());
        for tag in 1..=2 {
            push_and_ring(&mut outlet, &shared.requests, tag, &shared.responder_bell);
            let found = take_asleep(&mut inlet, &shared.responses, &shared.requester_bell);
            assert_eq!(found, (tag, body(tag)));
        }
        responder.join().unwrap();
    });
}

/// A request of the two-layer ring: words of data that its entry stands for, and two threads that take turns.
struct TwoLayer {
    shared: Arc<Shared>,
    data: Vec<loom::sync::atomic::AtomicU64>,
    taker: loom::sync::Mutex<Inlet>,
    answerer: loom::sync::Mutex<Outlet>,
}

/// All interleavings with up to two preemptions: three threads and two locks have too many without a bound.
#[test]
fn threads_that_take_turns_see_the_data_of_what_they_took() {
    // Relaxed everywhere: the point is that the entries order the data.
    use loom::sync::atomic::Ordering::Relaxed;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let two = Arc::new(TwoLayer {
            shared: Shared::new(2),
            data: (0..2).map(|_| loom::sync::atomic::AtomicU64::new(0)).collect(),
            taker: loom::sync::Mutex::new(Inlet::default()),
            answerer: loom::sync::Mutex::new(Outlet::default()),
        });
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let two = Arc::clone(&two);
                thread::spawn(move || {
                    let taken = take_spinning(&mut two.taker.lock().unwrap(), &two.shared.requests);
                    let place = &two.data[taken.0 as usize];
                    let asked = place.load(Relaxed);
                    assert_eq!(asked, u64::from(taken.0) + 10);
                    place.store(asked + 100, Relaxed);
                    two.answerer.lock().unwrap().push(&two.shared.responses[..], taken.0, &body(taken.0));
                })
            })
            .collect();
        let (mut inlet, mut outlet) = (Inlet::default(), Outlet::default());
        for tag in 0..2 {
            two.data[tag as usize].store(u64::from(tag) + 10, Relaxed);
            outlet.push(&two.shared.requests[..], tag, &body(tag));
        }
        for _ in 0..2 {
            let (tag, _) = take_spinning(&mut inlet, &two.shared.responses);
            assert_eq!(two.data[tag as usize].load(Relaxed), u64::from(tag) + 110);
        }
        for worker in workers {
            worker.join().unwrap();
        }
    });
}
