//! The barrier that a sleeper makes for both sides, on real processors: no frame is missed by both of them.
//!
//! The model checker knows no such barrier, so this races the two sides for a second. Without the sleeper's barrier it
//! finds a frame that both missed in some tens of thousands of rounds, of which a release build on two free processors
//! does many more: `cargo test --release -p hinterland-channel --test barrier`.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_channel::lane::{Inlet, LaneWords, Outlet};
use hinterland_os::{Mapping, barrier};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const RING_BYTES: u64 = 1 << 16;

/// Waits until the other side has come to this round, too.
fn meet(own: &AtomicU64, other: &AtomicU64, round: u64) {
    own.store(round, Ordering::SeqCst);
    let mut looks = 0u32;
    while other.load(Ordering::SeqCst) < round {
        looks += 1;
        if looks.is_multiple_of(10_000) { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

#[test]
fn no_frame_is_missed_by_the_sleeper_and_its_bell_by_the_ringer() {
    if !barrier::register() {
        eprintln!("skipped: this kernel makes no barriers for others");
        return;
    }
    let memory = Arc::new(Mapping::anonymous(4096, false).unwrap()).slice();
    // SAFETY: a page of zeroes, mapped as long as the slice lives, is a lane in which nothing was sent.
    let words: &LaneWords = unsafe { &*memory.as_ptr().cast() };
    words.receiver().promise_barriers();
    let (ringer_round, sleeper_round) = (AtomicU64::new(0), AtomicU64::new(0));
    let (rung, last) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let missed = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut outlet = Outlet::new(RING_BYTES);
            let mut round = 0;
            while round < last.load(Ordering::SeqCst) {
                round += 1;
                assert!(outlet.has_room(words, 8).unwrap());
                meet(&ringer_round, &sleeper_round, 2 * round - 1);
                // At another moment of the sleeper's each time.
                (0..round % 256).for_each(|step| _ = std::hint::black_box(step));
                outlet.publish(words, 8);
                let must_wake = words.receiver().must_wake(true);
                rung.store(u64::from(must_wake), Ordering::SeqCst);
                meet(&ringer_round, &sleeper_round, 2 * round);
            }
        });
        let mut inlet = Inlet::new(RING_BYTES);
        let start = Instant::now();
        let mut missed = 0;
        let mut round = 0;
        while round < last.load(Ordering::SeqCst) {
            round += 1;
            if start.elapsed() > Duration::from_secs(1) {
                last.store(round, Ordering::SeqCst);
            }
            meet(&sleeper_round, &ringer_round, 2 * round - 1);
            words.receiver().announce(|| assert!(barrier::all_processors()));
            let seen = inlet.look(words).unwrap();
            meet(&sleeper_round, &ringer_round, 2 * round);
            missed += u64::from(seen == 0 && rung.load(Ordering::SeqCst) == 0);
            words.receiver().bell.retract();
            inlet.look(words).unwrap();
            let _ = inlet.release(words, 8);
        }
        missed
    });
    assert_eq!(missed, 0, "frames that nobody would have been told of");
}
