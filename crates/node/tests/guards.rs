//! Guards over ranges of regions, near and far: what they read and write, what happens when they are lost, and what others see.

#![allow(clippy::unwrap_used)] // a test says by its panic where it failed

#[allow(dead_code, reason = "other tests use the rest")]
mod nodes;

use hinterland_pool::{GuardOptions, Pool, PoolError, WriteGuard};
use hinterland_proto::control::Request;
use hinterland_types::GlobalAddress;
use nodes::{Nodes, PAGE, name};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);
const EDEADLK: i32 = 35;
const EINVAL: i32 = 22;
const EOWNERDEAD: i32 = 130;
const ETIMEDOUT: i32 = 110;

/// Two nodes, each its own rack; the first hosts the directory.
fn pair(name: &str, lease: Duration) -> Nodes {
    Nodes::with(&format!("guards-{name}"), 2, 16, |options| {
        options.lease = lease;
        options.heat = None;
    })
}

fn code<T: std::fmt::Debug>(result: Result<T, PoolError>) -> i32 {
    result.unwrap_err().code()
}

fn plain() -> GuardOptions {
    GuardOptions { wait: LONG, write_buffer: false, read_cache: false }
}

fn all() -> GuardOptions {
    GuardOptions { wait: LONG, write_buffer: true, read_cache: true }
}

fn read(pool: &Pool, address: GlobalAddress, bytes: usize) -> Vec<u8> {
    let mut into = vec![0; bytes];
    pool.read(address, &mut into).unwrap();
    into
}

#[test]
fn what_is_written_under_a_guard_is_read_under_the_next_wherever_the_pages_are() {
    let pair = pair("next", LONG);
    for home in [0, 1] {
        let address = pair.region(home, 2);
        for options in [plain(), all()] {
            for (writer, reader) in [(0, 1), (1, 0)] {
                let (writer, reader) = (pair.pool(writer), pair.pool(reader));
                let guard = writer.wlock(address, 2 * PAGE, &options).unwrap();
                // Short, long, over a page's end, and longer than a message.
                for (offset, bytes) in [(0, 8), (100, 256), (200, 300), (PAGE - 3, 7), (5000, 700 << 10)] {
                    guard.write(offset, &vec![offset as u8 + 1; bytes]).unwrap();
                    let mut own = vec![0; bytes];
                    guard.read(offset, &mut own).unwrap();
                    assert!(own.iter().all(|byte| *byte == offset as u8 + 1), "own write at {offset}");
                }
                guard.unlock().unwrap();
                let guard = reader.rlock(address, 2 * PAGE, &options).unwrap();
                for (offset, bytes, byte) in
                    [(0, 8, 1u8), (100, 100, 101), (200, 300, 201), (PAGE - 3, 7, 254)]
                {
                    let mut seen = vec![0; bytes];
                    guard.read(offset, &mut seen).unwrap();
                    assert!(seen.iter().all(|seen| *seen == byte), "{offset}: {seen:?}");
                }
                let mut long = vec![0; 700 << 10];
                guard.read(5000, &mut long).unwrap();
                assert!(long.iter().all(|byte| *byte == 5000u64 as u8 + 1));
                guard.unlock().unwrap();
            }
        }
    }
}

#[test]
fn random_writes_of_any_length_end_as_in_plain_memory() {
    let pair = pair("random", LONG);
    let address = pair.region(1, 2);
    let pool = pair.pool(0);
    let bytes = 6000;
    let mut plain = vec![0; bytes];
    let mut seed = 7u64;
    let mut below = |most: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % most
    };
    // Over the end of a page, so that two messages go to the home at once.
    let start = address.checked_add(PAGE - 3000).unwrap();
    for round in 0..6 {
        let guard = pool.wlock(start, bytes as u64, &all()).unwrap();
        for number in 0..400u64 {
            let longest = if below(8) == 0 { 2000 } else { 80 };
            let len = (1 + below(longest)) as usize;
            let offset = below((bytes - len) as u64 + 1) as usize;
            let from: Vec<u8> = (0..len).map(|at| (number + at as u64 + round) as u8).collect();
            guard.write(offset as u64, &from).unwrap();
            plain[offset..offset + len].copy_from_slice(&from);
            if number % 7 == 0 {
                let (offset, len) = (below(5000) as usize, 1 + below(900) as usize);
                let mut seen = vec![0; len];
                guard.read(offset as u64, &mut seen).unwrap();
                assert_eq!(seen, plain[offset..offset + len], "round {round}, write {number}");
            }
            if number % 90 == 0 {
                guard.flush().unwrap();
            }
        }
        guard.unlock().unwrap();
        assert_eq!(read(&pair.pool(1), start, bytes), plain, "round {round}");
    }
}

#[test]
fn buffered_writes_are_not_seen_before_a_flush_and_all_are_after_it() {
    let pair = pair("flush", LONG);
    let address = pair.region(1, 2);
    let (far, near) = (pair.pool(0), pair.pool(1));
    let guard = far.wlock(address, 4096, &all()).unwrap();
    guard.write(8, &[1; 8]).unwrap();
    assert_eq!(read(&near, address, 16), [0; 16], "it is buffered");
    guard.flush().unwrap();
    assert_eq!(read(&near, address, 16)[8..], [1; 8]);
    guard.write(0, &[2; 8]).unwrap();
    drop(guard);
    assert_eq!(read(&near, address, 8), [2; 8], "dropping a guard writes what it had");
}

#[test]
fn what_is_buffered_survives_that_the_page_moves_here() {
    let pair = pair("moves", LONG);
    let address = pair.region(1, 2);
    let far = pair.pool(0);
    let guard = far.wlock(address, 4096, &all()).unwrap();
    guard.write(0, &[1; 16]).unwrap();
    pair.pool(0).pull_page(address).unwrap();
    // It lies here and is stored to at once; the older bytes must not come over it later.
    guard.write(8, &[2; 16]).unwrap();
    let mut seen = [0; 24];
    guard.read(0, &mut seen).unwrap();
    assert_eq!((&seen[..8], &seen[8..]), (&[1; 8][..], &[2; 16][..]));
    guard.unlock().unwrap();
    assert_eq!(read(&pair.pool(1), address, 24), seen);
}

#[test]
fn a_cache_keeps_what_was_read_until_somebody_writes_under_the_lock() {
    let pair = pair("cache", LONG);
    let address = pair.region(1, 2);
    let (far, near) = (pair.pool(0), pair.pool(1));
    let see = |offset| {
        let guard = far.rlock(address, 8192, &all()).unwrap();
        let mut seen = [9; 4];
        guard.read(offset, &mut seen).unwrap();
        guard.unlock().unwrap();
        seen
    };
    assert_eq!(see(16), [0; 4]);
    // Not under the lock: nobody can tell the reader.
    near.write(address, &[5; 64]).unwrap();
    assert_eq!(see(16), [0; 4], "it was kept beyond the guard");
    let guard = near.wlock(address, 8192, &all()).unwrap();
    guard.write(18, &[7; 2]).unwrap();
    guard.unlock().unwrap();
    assert_eq!(see(16), [5, 5, 7, 7]);
}

fn has_waiter(pool: &Pool) -> bool {
    pool.locks().unwrap().locks.iter().any(|lock| !lock.waiters.is_empty())
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_read_guard_becomes_a_write_guard_and_one_that_does_not_still_reads() {
    let pair = pair("upgrade", LONG);
    let address = pair.region(1, 2);
    let (a, b) = (pair.pool(0), pair.pool(1));
    let first = a.rlock(address, 64, &all()).unwrap();
    let second = b.rlock(address, 64, &all()).unwrap();
    let refused = first.upgrade(Duration::from_millis(50)).unwrap_err();
    assert_eq!(refused.error.code(), ETIMEDOUT);
    let first = *refused.guard;
    first.read(0, &mut [0; 8]).unwrap();
    assert!(!has_waiter(&b), "the lock's home has taken the upgrade back");
    let waits = std::thread::spawn(move || first.upgrade(LONG).unwrap());
    until("somebody waits for the upgrade", || has_waiter(&b));
    let refused = second.upgrade(LONG).unwrap_err();
    assert_eq!(refused.error.code(), EDEADLK);
    refused.guard.unlock().unwrap();
    let guard = waits.join().unwrap();
    guard.write(0, &[3; 8]).unwrap();
    assert!(b.try_rlock(address, 64).unwrap().is_none());
    guard.unlock().unwrap();
    // The lock's home, which is the node of `b`, hears of it a moment later.
    let guard = b.wlock(address, 64, &all()).unwrap();
    let mut seen = [0; 8];
    guard.read(0, &mut seen).unwrap();
    assert_eq!(seen, [3; 8]);
}

#[test]
fn an_upgrade_that_ends_as_it_is_granted_is_a_write_guard_or_a_read_guard_as_before() {
    let pair = pair("ends", LONG);
    let address = pair.region(1, 2);
    let (a, b) = (pair.pool(0), pair.pool(1));
    let (mut upgraded, mut kept) = (0, 0);
    for round in 0..240u64 {
        let first = a.rlock(address, 64, &plain()).unwrap();
        let second = b.rlock(address, 64, &plain()).unwrap();
        let wait = Duration::from_millis(4);
        // The other reader leaves about when the wait is over, at another moment each time.
        let leaves = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(3600 + round % 60 * 30));
            second.unlock().unwrap();
        });
        let outcome = first.upgrade(wait);
        leaves.join().unwrap();
        match outcome {
            Ok(guard) => {
                upgraded += 1;
                guard.write(0, &round.to_le_bytes()).unwrap();
                guard.unlock().unwrap();
            }
            Err(refused) => {
                kept += 1;
                assert_eq!(refused.error.code(), ETIMEDOUT, "{refused}");
                // Whatever comes late has come when somebody else has asked the lock's home, and this node has asked it again.
                b.rlock(address, 64, &plain()).unwrap().unlock().unwrap();
                a.rlock(address, 64, &plain()).unwrap().unlock().unwrap();
                refused.guard.read(0, &mut [0; 8]).unwrap();
                refused.guard.unlock().unwrap();
            }
        }
    }
    println!("{upgraded} upgraded, {kept} kept");
}

#[test]
fn an_upgrade_whose_lock_home_is_gone_ends_within_a_lease_and_says_what_is_not_known() {
    let mut pair = pair("gone", Duration::from_secs(1));
    let address = pair.region(1, 2);
    let a = pair.pool(0);
    // The page comes here; its lock is kept where it was.
    a.pull_page(address).unwrap();
    let guard = a.rlock(address, 64, &all()).unwrap();
    let other = pair.pool(1).rlock(address, 64, &all()).unwrap();
    pair.all[1].stop();
    let refused = guard.upgrade(Duration::from_millis(100)).unwrap_err();
    assert!([ETIMEDOUT, EOWNERDEAD].contains(&refused.error.code()), "{refused}");
    assert!(
        refused.to_string().contains("its next use says") || refused.to_string().contains("hint:"),
        "{refused}"
    );
    let lost = refused.guard.read(0, &mut [0; 8]).unwrap_err();
    assert_eq!(lost.code(), EOWNERDEAD, "{lost}");
    drop((refused, other));
}

#[test]
fn threads_of_one_pool_wait_for_each_other() {
    let pair = pair("threads", LONG);
    let address = pair.region(1, 2);
    let pool = pair.pool(0);
    let each = 25;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..each {
                    let guard = pool.wlock(address, 8, &all()).unwrap();
                    let mut word = [0; 8];
                    guard.read(0, &mut word).unwrap();
                    guard.write(0, &(u64::from_le_bytes(word) + 1).to_le_bytes()).unwrap();
                    guard.unlock().unwrap();
                }
            });
        }
    });
    let word = read(&pool, address, 8);
    assert_eq!(u64::from_le_bytes(word.try_into().unwrap()), 4 * each);
}

#[test]
fn what_a_guard_does_not_cover_is_refused_with_what_it_covers() {
    let pair = pair("range", LONG);
    let address = pair.region(1, 2);
    let pool = pair.pool(0);
    let guard = pool.wlock(address, 100, &all()).unwrap();
    for (offset, bytes) in [(93, 8), (100, 1), (u64::MAX, 8)] {
        let refused = guard.write(offset, &vec![1; bytes]).unwrap_err();
        assert_eq!(refused.code(), EINVAL);
        assert!(refused.to_string().contains("100 bytes of the guard"), "{refused}");
        assert_eq!(code(guard.read(offset, &mut vec![1; bytes])), EINVAL);
    }
    guard.write(92, &[1; 8]).unwrap();
    guard.unlock().unwrap();
    for bytes in [0, 2 * PAGE + 1, u64::MAX] {
        let refused = pool.rlock(address, bytes, &all()).unwrap_err();
        assert!(refused.code() == EINVAL && refused.to_string().contains("hint:"), "{refused}");
    }
}

/// A guard that its node does not hear of, as if its program had been stopped for a lease.
fn lose(guard: &WriteGuard, address: GlobalAddress) {
    let deadline = Instant::now() + LONG;
    while guard.write(0, &[0xee]).is_ok() && guard.flush().is_ok() {
        assert!(Instant::now() < deadline, "the guard on {address} is not lost");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_guard_whose_lock_home_starts_again_is_refused_and_says_why() {
    let mut pair = pair("again", Duration::from_secs(1));
    let address = pair.region(1, 2);
    let far = pair.pool(0);
    let guard = far.wlock(address, 64, &all()).unwrap();
    guard.write(0, &[1; 8]).unwrap();
    guard.flush().unwrap();
    guard.write(8, &[2; 8]).unwrap();
    pair.all[1].stop();
    pair.all[1].start();
    lose(&guard, address);
    let told = guard.unlock().unwrap_err();
    assert!(told.to_string().contains("hint:"), "{told}");
    let next = far.wlock(address, 64, &all()).unwrap();
    let mut seen = [0; 16];
    next.read(0, &mut seen).unwrap();
    assert_eq!(seen[1..8], [1; 7], "what was flushed is there");
    next.write(0, &[4; 16]).unwrap();
    next.unlock().unwrap();
    assert_eq!(read(&pair.pool(1), address, 16), [4; 16]);
}

#[test]
fn a_program_that_does_not_keep_its_guard_loses_it_and_its_node_says_why() {
    let pair = pair("silent", Duration::from_millis(800));
    let address = pair.region(0, 2);
    let silent = pair.pool(0);
    let mode = hinterland_proto::control::LockMode::Write;
    // As a program that was stopped right after it got the lock.
    let lock = Request::GuardLock { address, bytes: 8, mode, upgrade: false, queue: true, wait_ms: 1000 };
    silent.session().call(&lock).unwrap();
    let started = Instant::now();
    let next = pair.pool(1).wlock(address, 8, &all()).unwrap();
    assert!(started.elapsed() >= Duration::from_millis(600), "it counted for a lease");
    let refused = silent.session().call(&Request::LockState { address }).unwrap_err();
    assert_eq!(refused.code(), EOWNERDEAD);
    assert!(refused.to_string().contains("was not heard of for a lease"), "{refused}");
    assert_eq!(code(silent.session().call(&Request::Unlock { address })), EOWNERDEAD);
    next.unlock().unwrap();
    // A plain lock is the session's for as long as that lives.
    let (holder, other) = (pair.pool(0), pair.pool(1));
    holder.lock(address, mode, 1000).unwrap();
    std::thread::sleep(Duration::from_millis(1200));
    assert!(other.try_wlock(address, 8).unwrap().is_none());
}

#[test]
fn the_list_of_locks_says_who_holds_and_who_waits() {
    let pair = pair("list", LONG);
    let address = pair.region(1, 2);
    let (holder, waiter) = (pair.pool(0), pair.pool(1));
    let at = address.checked_add(64).unwrap();
    let guard = holder.wlock(at, 100, &all()).unwrap();
    let waits = std::thread::spawn(move || waiter.rlock(at, 50, &all()).unwrap().unlock().unwrap());
    let deadline = Instant::now() + LONG;
    let table = loop {
        let table = holder.locks().unwrap();
        if table.locks.first().is_some_and(|lock| !lock.waiters.is_empty()) {
            break table;
        }
        assert!(Instant::now() < deadline, "{table:?}");
        std::thread::sleep(Duration::from_millis(10));
    };
    let lock = &table.locks[0];
    assert_eq!((table.locks.len(), table.silent.len()), (1, 0));
    assert_eq!((lock.address, lock.fence), (at, guard.fence()));
    assert_eq!(lock.object, Some((name("region-1"), 64)));
    assert_eq!((lock.holders[0].pid, lock.holders[0].bytes), (std::process::id(), 100));
    assert_eq!(lock.waiters[0].bytes, 50);
    assert!(lock.holders[0].left_ms > 0 && lock.holders[0].left_ms <= LONG.as_millis() as u64);
    guard.unlock().unwrap();
    waits.join().unwrap();
    assert!(holder.locks().unwrap().locks.is_empty());
}

#[test]
fn what_was_read_of_a_region_is_not_read_of_the_next_one_at_its_addresses() {
    let pair = pair("next-region", LONG);
    let far = pair.pool(0);
    let address = pair.region(1, 2);
    pair.pool(1).write(address, &[7; 4096]).unwrap();
    let read_under_a_guard = || {
        let guard = far.rlock(address, 4096, &all())?;
        let mut into = [1; 4096];
        guard.read(0, &mut into)?;
        guard.unlock().map(|()| into)
    };
    assert_eq!(read_under_a_guard().unwrap(), [7; 4096]);
    pair.pool(1).remove(&name("region-1")).unwrap();
    assert_eq!(pair.region(1, 2), address, "the first addresses that are free");
    // A program may believe in what was removed for a second, and then it finds out.
    let until = Instant::now() + LONG;
    while !read_under_a_guard().is_ok_and(|read| read == [0; 4096]) {
        assert!(Instant::now() < until, "{:?}", read_under_a_guard().map(|read| read[0]));
        std::thread::sleep(Duration::from_millis(50));
    }
}
