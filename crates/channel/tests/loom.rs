//! Every interleaving of publishing, releasing and sleeping in one direction, explored by a model checker.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p hinterland-channel --release --test loom --target-dir target/loom`
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_channel::bias::Bias;
use hinterland_channel::lane::{Inlet, LaneWords, Outlet};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// A ring of two frames of 8 bytes, whose accesses the checker watches: a read of what is being written is an error.
const RING_BYTES: u64 = 16;
const FRAME_BYTES: u64 = 8;

struct Shared {
    words: LaneWords,
    ring: Vec<UnsafeCell<u32>>,
    registered: bool,
}

// SAFETY: not needed for soundness of anything real: the checker reports accesses that are not ordered.
unsafe impl Sync for Shared {}

impl Shared {
    fn fresh(barriers: bool) -> Arc<Self> {
        let words = LaneWords::fresh();
        if barriers {
            words.receiver().promise_barriers();
            words.sender().promise_barriers();
        }
        Arc::new(Self { words, ring: (0..2).map(|_| UnsafeCell::new(0)).collect(), registered: barriers })
    }
}

fn try_send(shared: &Shared, outlet: &mut Outlet, number: u32) -> bool {
    if !outlet.has_room(&shared.words, FRAME_BYTES).unwrap() {
        return false;
    }
    let place = outlet.offset() / FRAME_BYTES as usize;
    // SAFETY: the ring has two places; the checker watches that nobody else reaches this one meanwhile.
    shared.ring[place].with_mut(|cell| unsafe { *cell = number });
    outlet.publish(&shared.words, FRAME_BYTES);
    if shared.words.receiver().must_wake(shared.registered) {
        shared.words.receiver().bell.wake();
    }
    true
}

/// As `Sender::wait_room` does when its spin is over: announce, look, sleep.
fn send_asleep(shared: &Shared, outlet: &mut Outlet, number: u32) {
    while !try_send(shared, outlet, number) {
        let sender = shared.words.sender();
        sender.announce(|| {});
        if !outlet.has_room(&shared.words, FRAME_BYTES).unwrap() {
            sender.bell.sleep(None);
        }
        sender.bell.retract();
    }
}

/// As `Receiver::wait` does when its spin is over: announce, look, sleep.
fn take_asleep(shared: &Shared, inlet: &mut Inlet) -> u32 {
    loop {
        if inlet.seen() == 0 {
            inlet.look(&shared.words).unwrap();
        }
        if inlet.seen() > 0 {
            let place = inlet.offset() / FRAME_BYTES as usize;
            // SAFETY: as in try_send.
            let number = shared.ring[place].with(|cell| unsafe { *cell });
            if inlet.release(&shared.words, FRAME_BYTES) && shared.words.sender().must_wake(shared.registered)
            {
                shared.words.sender().bell.wake();
            }
            return number;
        }
        let receiver = shared.words.receiver();
        receiver.announce(|| {});
        if inlet.look(&shared.words).unwrap() == 0 {
            receiver.bell.sleep(None);
        }
        receiver.bell.retract();
    }
}

fn all_arrive(frames: u32, barriers: bool, preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let shared = Shared::fresh(barriers);
        let receiver = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let mut inlet = Inlet::new(RING_BYTES);
                for number in 1..=frames {
                    assert_eq!(take_asleep(&shared, &mut inlet), number);
                }
            })
        };
        let mut outlet = Outlet::new(RING_BYTES);
        for number in 1..=frames {
            send_asleep(&shared, &mut outlet, number);
        }
        receiver.join().unwrap();
    });
}

#[test]
fn frames_arrive_and_no_sleeper_is_left_asleep() {
    all_arrive(2, false, 4);
}

#[test]
fn a_sleeper_that_makes_the_barrier_for_both_is_not_left_asleep() {
    all_arrive(2, true, 4);
}

#[test]
fn a_full_ring_is_used_again_only_after_it_was_read_and_wakes_its_writer() {
    all_arrive(4, false, 3);
}

/// Two threads of which the first has the bias, as `BiasedLock` does it: one number, which the checker watches.
struct Biased {
    bias: Bias,
    turn: Mutex<()>,
    value: UnsafeCell<u32>,
}

// SAFETY: not needed for soundness of anything real: the checker reports accesses that are not ordered.
unsafe impl Sync for Biased {}

impl Biased {
    fn add(&self, me: u64, gives: bool) {
        // SAFETY: the checker watches that nobody else is inside.
        let work = || self.value.with_mut(|value| unsafe { *value += 1 });
        if let Some(seat) = self.bias.enter(me) {
            work();
            seat.leave();
            return;
        }
        let _turn = self.turn.lock().unwrap();
        self.bias
            .take_back(|| loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst), thread::yield_now);
        if gives {
            self.bias.give(me);
        }
        work();
    }
}

fn biased(
    first: impl Fn(&Biased) + Sync + Send + Copy + 'static,
    second: impl Fn(&Biased) + Sync + Send + Copy + 'static,
    sum: u32,
) {
    loom::model(move || {
        let shared =
            Arc::new(Biased { bias: Bias::default(), turn: Mutex::new(()), value: UnsafeCell::new(0) });
        let other = shared.clone();
        let other = thread::spawn(move || second(&other));
        first(&shared);
        other.join().unwrap();
        // SAFETY: both threads are done.
        assert_eq!(shared.value.with(|value| unsafe { *value }), sum);
    });
}

#[test]
fn nobody_is_inside_with_the_thread_that_has_the_bias() {
    let usual = |shared: &Biased| {
        shared.add(1, true);
        shared.add(1, false);
    };
    biased(usual, |shared| shared.add(2, false), 3);
}

#[test]
fn a_bias_that_goes_to_another_thread_leaves_nobody_inside() {
    let usual = |shared: &Biased| {
        shared.add(1, true);
        shared.add(1, false);
    };
    let other = |shared: &Biased| {
        shared.add(2, true);
        shared.add(2, false);
    };
    biased(usual, other, 4);
}
