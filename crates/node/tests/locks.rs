//! Locks between two racks: two nodes in this process, and programs at each.

#![allow(clippy::unwrap_used)] // a test says by its panic where it failed

#[allow(dead_code, reason = "other tests use the rest")]
mod nodes;

use hinterland_fabric::Endpoint;
use hinterland_fabric::tcp::{ClientOptions, TcpEndpoint};
use hinterland_pool::{GuardOptions, Pool, PoolError};
use hinterland_proto::Role;
use hinterland_proto::control::{LockMode, Reply, Request, decode, encode};
use hinterland_types::{ByteRange, GlobalAddress, Rights};
use nodes::{Nodes, name};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(20);
const ETIMEDOUT: i32 = 110;
const EDEADLK: i32 = 35;
const EOWNERDEAD: i32 = 130;

/// Two nodes, each its own rack; the first hosts the directory.
fn pair(name: &str, lease: Duration) -> Nodes {
    Nodes::with(&format!("locks-{name}"), 2, 8, |options| {
        options.lease = lease;
    })
}

fn code<T: std::fmt::Debug>(result: Result<T, PoolError>) -> i32 {
    result.unwrap_err().code()
}

fn upgrade(pool: &Pool, address: GlobalAddress, wait_ms: u32) -> Result<Reply, PoolError> {
    let mode = LockMode::Write;
    pool.session().call(&Request::LockWait { address, mode, upgrade: true, queue: true, wait_ms })
}

#[test]
fn two_racks_exclude_each_other_wherever_the_lock_is_kept() {
    let pair = pair("exclude", LONG);
    for rack in [0, 1] {
        let address = pair.region(rack, 2);
        let (a, b) = (pair.pool(0), pair.pool(1));
        a.lock_within(address, LockMode::Write, LONG).unwrap();
        assert_eq!(code(b.lock_within(address, LockMode::Read, Duration::ZERO)), ETIMEDOUT);
        assert_eq!(code(b.lock_within(address, LockMode::Write, Duration::from_millis(50))), ETIMEDOUT);
        a.unlock(address).unwrap();
        b.lock_within(address, LockMode::Write, LONG).unwrap();
        assert_eq!(code(a.lock_within(address, LockMode::Write, Duration::ZERO)), ETIMEDOUT);
        b.unlock(address).unwrap();
        a.lock_within(address, LockMode::Read, LONG).unwrap();
        b.lock_within(address, LockMode::Read, LONG).unwrap();
    }
}

#[test]
fn a_lock_on_a_region_that_was_removed_is_none_on_the_next_one_at_its_addresses() {
    let pair = pair("removed", LONG);
    let address = pair.region(1, 2);
    let (forgetful, other) = (pair.pool(0), pair.pool(1));
    let made_anew = || {
        pair.pool(1).remove(&name("region-1")).unwrap();
        assert_eq!(pair.region(1, 2), address, "the first addresses that are free");
    };
    forgetful.lock_within(address, LockMode::Write, LONG).unwrap();
    made_anew();
    forgetful.lock_within(address, LockMode::Write, LONG).unwrap();
    assert_eq!(code(other.lock_within(address, LockMode::Read, Duration::ZERO)), ETIMEDOUT);
    made_anew();
    other.lock_within(address, LockMode::Write, Duration::from_secs(10)).unwrap();
    assert_eq!(code(forgetful.lock_within(address, LockMode::Read, Duration::ZERO)), ETIMEDOUT);
    other.unlock(address).unwrap();
    forgetful.lock_within(address, LockMode::Write, LONG).unwrap();
    forgetful.unlock(address).unwrap();
}

#[test]
fn counters_under_a_lock_lose_no_addition() {
    let pair = pair("count", LONG);
    let address = pair.region(1, 2);
    let each = 40;
    std::thread::scope(|scope| {
        for rack in [0, 1, 0, 1] {
            let pool = pair.pool(rack);
            scope.spawn(move || {
                for _ in 0..each {
                    pool.lock_within(address, LockMode::Write, LONG).unwrap();
                    let mut word = [0; 8];
                    pool.read(address, &mut word).unwrap();
                    let next = u64::from_le_bytes(word) + 1;
                    pool.write(address, &next.to_le_bytes()).unwrap();
                    pool.unlock(address).unwrap();
                }
            });
        }
    });
    let mut word = [0; 8];
    pair.pool(0).read(address, &mut word).unwrap();
    assert_eq!(u64::from_le_bytes(word), 4 * each);
}

#[test]
fn a_program_that_ends_leaves_its_locks_to_those_who_wait_in_another_rack() {
    let pair = pair("ends", LONG);
    let address = pair.region(1, 2);
    let (holder, waiter) = (pair.pool(0), pair.pool(1));
    holder.lock_within(address, LockMode::Write, LONG).unwrap();
    let waits = std::thread::spawn(move || waiter.lock_within(address, LockMode::Write, LONG));
    std::thread::sleep(Duration::from_millis(100));
    drop(holder);
    waits.join().unwrap().unwrap();
}

#[test]
fn a_waiter_that_gives_up_leaves_the_queue_to_readers() {
    let pair = pair("leaves", LONG);
    let address = pair.region(1, 2);
    let (reader, writer, other) = (pair.pool(0), pair.pool(0), pair.pool(1));
    reader.lock_within(address, LockMode::Read, LONG).unwrap();
    assert_eq!(code(writer.lock_within(address, LockMode::Write, Duration::from_millis(80))), ETIMEDOUT);
    other.lock_within(address, LockMode::Read, LONG).unwrap();
}

#[test]
fn a_read_lock_becomes_a_write_lock_and_of_two_that_want_that_one_is_refused() {
    let pair = pair("upgrade", LONG);
    let address = pair.region(0, 2);
    let (a, b) = (pair.pool(0), pair.pool(1));
    a.lock_within(address, LockMode::Read, LONG).unwrap();
    b.lock_within(address, LockMode::Read, LONG).unwrap();
    assert!(matches!(upgrade(&a, address, 10), Ok(Reply::LockWaiting)));
    assert_eq!(code(upgrade(&b, address, 2000)), EDEADLK);
    // It still reads; once it lets go, the first writes.
    b.unlock(address).unwrap();
    let deadline = Instant::now() + LONG;
    while !matches!(upgrade(&a, address, 50), Ok(Reply::Locked { .. })) {
        assert!(Instant::now() < deadline);
    }
    assert_eq!(code(b.lock_within(address, LockMode::Read, Duration::ZERO)), ETIMEDOUT);
}

#[test]
fn a_lock_is_not_taken_twice_nor_given_back_by_another() {
    let pair = pair("twice", LONG);
    let address = pair.region(1, 2);
    let (a, b) = (pair.pool(0), pair.pool(1));
    a.lock_within(address, LockMode::Read, LONG).unwrap();
    assert_eq!(code(a.lock_within(address, LockMode::Write, LONG)), 22);
    assert_eq!(code(b.unlock(address)), 22);
    a.unlock(address).unwrap();
    assert_eq!(code(a.unlock(address)), 22);
}

#[test]
fn a_home_that_is_started_again_gives_nothing_before_the_leases_of_before_are_over() {
    let lease = Duration::from_secs(2);
    let mut pair = pair("again", lease);
    let address = pair.region(1, 2);
    let a = pair.pool(0);
    a.lock_within(address, LockMode::Write, LONG).unwrap();
    pair.all[1].stop();
    let started = Instant::now();
    pair.all[1].start();
    let b = pair.pool(1);
    b.lock_within(address, LockMode::Write, LONG).unwrap();
    assert!(started.elapsed() >= lease, "the holder of before might have written");
    // Whoever had it is told.
    let deadline = Instant::now() + LONG;
    loop {
        match a.session().call(&Request::LockState { address }) {
            Err(error) if error.code() == EOWNERDEAD => break,
            other => assert!(Instant::now() < deadline, "{other:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_write_that_comes_after_its_lock_was_given_away_is_refused_at_the_page_home() {
    let pair = pair("late", LONG);
    let address = pair.region(1, 2);
    let (a, b) = (pair.pool(0), pair.pool(1));
    let options = ClientOptions { role: Role::Client, pool: a.session().pool(), ..ClientOptions::default() };
    let address_b = pair.all[1].address();
    let home = TcpEndpoint::connect(&address_b, options).unwrap();
    let ask = |request: &Request| decode::<Reply>(&home.call(&encode(request).unwrap()).unwrap()).unwrap();
    let object = b.stat(&name("region-1")).unwrap().object;
    let opened = ask(&Request::OpenObject { object, rights: Rights::READ | Rights::WRITE });
    let Reply::Opened(opened) = opened else { panic!("{opened:?}") };
    let handle = opened.handle;
    let lock = |pool: &Pool| {
        let mode = LockMode::Write;
        let request = Request::LockWait { address, mode, upgrade: false, queue: true, wait_ms: 20_000 };
        match pool.session().call(&request).unwrap() {
            Reply::Locked { fence, .. } => fence,
            other => panic!("{other:?}"),
        }
    };
    let write = |fence, text: &[u8]| {
        let runs = vec![ByteRange::new(0, 2).unwrap(), ByteRange::new(100, 3).unwrap()];
        ask(&Request::WriteLocked { handle, lock: address, fence, runs, bytes: text.to_vec() })
    };
    let old = lock(&a);
    assert_eq!(write(old, b"01234"), Reply::Done);
    // It ends without saying that all has arrived, as when its program dies.
    a.session().call(&Request::UnlockAs { address, clean: false }).unwrap();
    let fresh = lock(&b);
    assert!(fresh > old);
    match write(old, b"56789") {
        Reply::Error { code: EOWNERDEAD, text } => assert!(text.contains("hint:"), "{text}"),
        other => panic!("{other:?}"),
    }
    let range = ByteRange::new(100, 3).unwrap();
    let read = |fence| ask(&Request::ReadLocked { handle, lock: address, fence, range });
    assert_eq!(read(fresh), Reply::Bytes(b"234".to_vec()));
    assert!(matches!(read(old), Reply::Error { code: EOWNERDEAD, .. }));
    // More than an answer may have is refused before memory is taken for it.
    let range = ByteRange::new(0, 4 << 20).unwrap();
    match ask(&Request::ReadLocked { handle, lock: address, fence: fresh, range }) {
        Reply::Error { code: 22, text } => assert!(text.contains("limit"), "{text}"),
        other => panic!("{other:?}"),
    }
    // Lengths that do not fit are refused before anything is written.
    let runs = vec![ByteRange::new(0, 8).unwrap()];
    let short = Request::WriteLocked { handle, lock: address, fence: fresh, runs, bytes: vec![1] };
    assert!(matches!(ask(&short), Reply::Error { code: 22, .. }));
    assert_eq!(write(fresh, b"abcde"), Reply::Done);
}

#[test]
fn a_node_that_stops_leaves_its_locks_to_others() {
    let mut pair = pair("gone", Duration::from_secs(2));
    let address = pair.region(0, 2);
    let b = pair.pool(1);
    b.lock_within(address, LockMode::Write, LONG).unwrap();
    let a = pair.pool(0);
    assert_eq!(code(a.lock_within(address, LockMode::Write, Duration::from_millis(50))), ETIMEDOUT);
    // With a session open: what it held ends with the session, or else with the lease.
    pair.all[1].stop();
    a.lock_within(address, LockMode::Write, LONG).unwrap();
    drop(b);
}

#[test]
fn a_home_that_is_started_again_with_a_shorter_lease_waits_for_the_longer_one_of_before() {
    let mut pair = pair("shorter", Duration::from_secs(3));
    let address = pair.region(1, 2);
    let a = pair.pool(0);
    a.lock_within(address, LockMode::Write, LONG).unwrap();
    pair.all[1].stop();
    pair.all[1].options.lease = Duration::from_millis(400);
    // Twice: what the first of them has promised to wait for, the second has to wait for, too.
    let mut started = Instant::now();
    for _ in 0..2 {
        started = Instant::now();
        pair.all[1].start();
        std::thread::sleep(Duration::from_millis(600));
        pair.all[1].stop();
    }
    let kept = || std::fs::read_to_string(pair.all[1].options.state.join("locks")).unwrap();
    assert!(kept().trim_end().ends_with(" 3000"), "{}", kept());
    started = started.max(Instant::now());
    pair.all[1].start();
    pair.pool(1).lock_within(address, LockMode::Write, LONG).unwrap();
    assert!(started.elapsed() >= Duration::from_secs(3), "the holder of before might have written");
    let kept = std::fs::read_to_string(pair.all[1].options.state.join("locks")).unwrap();
    assert!(kept.trim_end().ends_with(" 400"), "the longer lease is over: {kept}");
}

/// Two nodes, and the address of a region of the second where one of the first was, whose lock the second had used.
fn made_anew(test: &str) -> (Nodes, GlobalAddress) {
    let pair = pair(test, LONG);
    let address = pair.region(0, 2);
    let b = pair.pool(1);
    b.lock_within(address, LockMode::Write, LONG).unwrap();
    b.unlock(address).unwrap();
    pair.pool(0).remove(&name("region-0")).unwrap();
    // Addresses are given again as soon as every home has let go of them.
    assert_eq!(pair.region(1, 2), address);
    (pair, address)
}

#[test]
fn a_lock_on_a_region_made_where_another_was_is_one_for_all_racks() {
    let (pair, address) = made_anew("made-anew");
    let (a, b) = (pair.pool(0), pair.pool(1));
    b.lock_within(address, LockMode::Write, LONG).unwrap();
    assert_eq!(code(a.lock_within(address, LockMode::Write, Duration::ZERO)), ETIMEDOUT);
    b.unlock(address).unwrap();
    a.lock_within(address, LockMode::Write, LONG).unwrap();
}

#[test]
fn a_guard_of_a_region_made_where_another_was_writes_at_once() {
    let (pair, address) = made_anew("guard-anew");
    let options = GuardOptions { wait: LONG, write_buffer: false, read_cache: false };
    let guard = pair.pool(0).wlock(address, 8, &options).unwrap();
    guard.write(0, &[7; 8]).unwrap();
    guard.unlock().unwrap();
    let mut found = [0; 8];
    pair.pool(1).read(address, &mut found).unwrap();
    assert_eq!(found, [7; 8]);
}
