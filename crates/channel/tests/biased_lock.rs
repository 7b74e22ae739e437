//! The lock with a usual thread, on the processors of this machine: threads that come between it in every way, and a sum that tells.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_channel::BiasedLock;
use hinterland_channel::bias::Bias;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Turns without the bias after which a thread has it, with some to spare.
const MANY: u64 = 2_000;

/// Numbers that are equal whenever nobody is inside.
#[derive(Default)]
struct Pair {
    one: u64,
    other: u64,
}

impl Pair {
    fn add(&mut self) {
        assert_eq!(self.one, self.other, "somebody else is inside");
        self.one += 1;
        // Long enough inside that others come meanwhile.
        for _ in 0..self.one % 8 {
            std::hint::spin_loop();
        }
        self.other += 1;
    }
}

#[test]
fn threads_that_come_between_find_nobody_inside() {
    let lock = BiasedLock::new(Pair::default(), true);
    let done = AtomicBool::new(false);
    let sum = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (lock, done, sum) = (&lock, &done, &sum);
            scope.spawn(move || {
                let (mut count, mut random) = (0, thread + 1);
                // Relaxed: a flag and counts alone.
                while !done.load(Ordering::Relaxed) {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    // Runs that are long enough for the bias and runs that only disturb, in turn.
                    let run = if random >> 60 == 0 { MANY } else { 1 + (random >> 58) };
                    for _ in 0..run {
                        lock.lock().add();
                        count += 1;
                    }
                    std::thread::sleep(Duration::from_micros(random >> 56));
                }
                sum.fetch_add(count, Ordering::Relaxed);
            });
        }
        let end = Instant::now() + Duration::from_secs(3);
        // Until the bias has gone to and fro often enough to have met everything.
        while Instant::now() < end || (lock.biases().1 < 20 && Instant::now() < end + Duration::from_secs(60))
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        done.store(true, Ordering::Relaxed);
    });
    let pair = lock.lock();
    assert_eq!((pair.one, pair.other), (sum.load(Ordering::Relaxed), sum.load(Ordering::Relaxed)));
    drop(pair);
    let (given, taken_back) = lock.biases();
    println!("{given} biases given, {taken_back} taken back");
    assert!(taken_back <= given);
}

#[test]
fn the_usual_thread_has_the_bias_and_every_visitor_is_let_in() {
    let lock = BiasedLock::new(Pair::default(), true);
    let visits = AtomicU64::new(0);
    let mut own = 0;
    std::thread::scope(|scope| {
        let visitor = scope.spawn(|| {
            for _ in 0..20 {
                // Each visit meets a thread that has, or is about to have, the bias.
                std::thread::sleep(Duration::from_millis(3));
                lock.lock().add();
                // Relaxed: a count alone.
                visits.fetch_add(1, Ordering::Relaxed);
            }
        });
        while !visitor.is_finished() {
            lock.lock().add();
            own += 1;
        }
    });
    assert_eq!(lock.lock().one, own + visits.load(Ordering::Relaxed));
    let (given, taken_back) = lock.biases();
    if hinterland_os::barrier::register_own() {
        assert!(given >= 1, "the usual thread got the bias");
    }
    assert!(taken_back <= 21, "only visitors take it back");
}

#[test]
fn a_visitor_waits_for_a_thread_that_stays_inside_with_the_bias() {
    let lock = BiasedLock::new(Pair::default(), true);
    for _ in 0..MANY {
        lock.lock().add();
    }
    let mut inside = lock.lock();
    inside.one += 1;
    std::thread::scope(|scope| {
        let visitor = scope.spawn(|| lock.lock().add());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!visitor.is_finished());
        inside.other += 1;
        drop(inside);
        visitor.join().unwrap();
    });
    assert_eq!(lock.lock().other, MANY + 2);
}

#[test]
fn more_threads_than_there_are_seats_still_take_turns() {
    let lock = BiasedLock::new(Pair::default(), true);
    for _ in 0..20 {
        std::thread::scope(|scope| {
            scope.spawn(|| (0..MANY).for_each(|_| lock.lock().add()));
        });
    }
    assert_eq!(lock.lock().one, 20 * MANY);
    assert!(lock.biases().0 <= 8, "threads that may have the bias are few");
}

#[test]
fn without_a_bias_it_is_an_ordinary_lock() {
    let lock = BiasedLock::new(Pair::default(), false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..20_000).for_each(|_| lock.lock().add()));
        }
    });
    assert_eq!(lock.lock().one, 60_000);
    assert_eq!(lock.biases(), (0, 0));
}

/// An owner and a visitor that do nothing but meet: how often both were inside, in so many visits.
fn collisions(visits: u64, heavy_fence: impl Fn() + Sync) -> u64 {
    let (bias, turn) = (Bias::default(), Mutex::new(()));
    let inside = AtomicU64::new(0);
    let traffic: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
    let (done, collisions) = (AtomicBool::new(false), AtomicU64::new(0));
    // Relaxed throughout: what is shared is looked at by the lock's order alone, which is the question here.
    let work = || {
        if inside.fetch_add(1, Ordering::Relaxed) != 0 {
            collisions.fetch_add(1, Ordering::Relaxed);
        }
        inside.fetch_sub(1, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !done.load(Ordering::Relaxed) {
                // Stores to lines that the visitor reads keep those of the lock waiting.
                number += 1;
                traffic.iter().step_by(8).for_each(|word| word.store(number, Ordering::Relaxed));
                match bias.enter(1) {
                    Some(seat) => {
                        work();
                        seat.leave();
                    }
                    None => {
                        let _turn = turn.lock().unwrap();
                        bias.take_back(&heavy_fence, std::thread::yield_now);
                        work();
                        assert!(bias.give(1));
                    }
                }
            }
        });
        for _ in 0..visits {
            std::hint::black_box(
                traffic.iter().step_by(8).map(|word| word.load(Ordering::Relaxed)).sum::<u64>(),
            );
            let _turn = turn.lock().unwrap();
            if bias.take_back(&heavy_fence, std::thread::yield_now) {
                work();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    collisions.into_inner()
}

#[test]
fn the_barrier_of_all_threads_keeps_a_visitor_out_while_stores_wait() {
    if hinterland_os::barrier::register_own() {
        assert_eq!(collisions(100_000, hinterland_os::barrier::own_threads), 0);
    }
}

/// Shows that the test above can fail: `cargo test --release -- --ignored`.
#[test]
#[ignore = "a demonstration: it needs two processors that are idle"]
fn without_the_barrier_both_are_inside_at_times() {
    assert!(collisions(3_000_000, || ()) > 0);
}
