//! What threads of one program ask over its session, between two racks: over two rings, one, and the socket.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[allow(dead_code, reason = "other tests use the rest")]
mod nodes;

use hinterland_pool::{Pool, PoolError, PutOptions, RingChoice, Rings};
use hinterland_proto::control::{AllocationKind, LockMode, Request};
use hinterland_types::GlobalAddress;
use nodes::{Member, Nodes, PAGE, name};
use std::time::Duration;

/// How long a lock is waited for that is given in the end.
const LONG_MS: u32 = 120_000;
const EINVAL: i32 = 22;
const ETIMEDOUT: i32 = 110;

/// Two nodes, each its own rack.
fn pair(name: &str) -> Nodes {
    Nodes::with(&format!("rings-{name}"), 2, 8, |options| options.segment_bytes = PAGE)
}

fn pool(pair: &Nodes, rack: usize, rings: RingChoice) -> Pool {
    Pool::connect_over(Some(&pair.all[rack].options.socket), rings).unwrap()
}

/// An address of the other rack, and a program there that has locked it.
fn held(pair: &Nodes) -> (GlobalAddress, Pool) {
    let address = pair.region(1, 1);
    let holder = pool(pair, 1, RingChoice::Socket);
    holder.lock(address, LockMode::Write, 0).unwrap();
    (address, holder)
}

/// Waits until so many requests of a pool are under way on its far ring.
fn wait_for(pool: &Pool, outstanding: u32) {
    while pool.session().rings().and_then(Rings::far).is_none_or(|far| far.outstanding() < outstanding) {
        std::thread::yield_now();
    }
}

/// Waits until the home of a lock knows of somebody who waits for it.
fn wait_for_queue(holder: &Pool) {
    while holder.locks().unwrap().locks.iter().all(|lock| lock.waiters.is_empty()) {
        std::thread::yield_now();
    }
}

#[test]
fn other_threads_are_answered_while_one_waits_for_a_lock_of_another_rack() {
    let pair = pair("two");
    let (address, holder) = held(&pair);
    let pool = &pool(&pair, 0, RingChoice::Two);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pool.lock(address, LockMode::Write, LONG_MS));
        wait_for(pool, 1);
        for _ in 0..100 {
            let (piece, _) = pool.allocate(64, AllocationKind::Session).unwrap();
            pool.free(piece).unwrap();
        }
        // What may take long does not wait either, and leaves the rack or not.
        assert_eq!(pool.stat(&name("region-1")).unwrap().address, Some(address));
        assert_eq!(pool.session().rings().unwrap().far().unwrap().outstanding(), 1);
        holder.unlock(address).unwrap();
        waits.join().unwrap().unwrap();
    });
    pool.unlock(address).unwrap();
}

#[test]
fn over_one_ring_or_the_socket_they_wait_in_turn() {
    let pair = pair("one");
    let (address, holder) = held(&pair);
    for rings in [RingChoice::Single, RingChoice::Socket] {
        let pool = &pool(&pair, 0, rings);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| pool.lock(address, LockMode::Write, LONG_MS));
            wait_for_queue(&holder);
            let behind = scope.spawn(|| pool.session().call(&Request::Ping));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!behind.is_finished(), "{rings:?}");
            holder.unlock(address).unwrap();
            waits.join().unwrap().unwrap();
            behind.join().unwrap().unwrap();
        });
        assert_eq!(pool.session().rings().is_some(), rings == RingChoice::Single);
        pool.unlock(address).unwrap();
        holder.lock(address, LockMode::Write, LONG_MS).unwrap();
    }
}

#[test]
fn two_threads_of_a_program_that_wait_for_one_lock_do_not_both_get_it() {
    let pair = pair("both");
    let (address, holder) = held(&pair);
    let pool = &pool(&pair, 0, RingChoice::Two);
    let mut outcomes: Vec<_> = std::thread::scope(|scope| {
        let waits = [(); 2].map(|()| scope.spawn(|| pool.lock(address, LockMode::Write, LONG_MS)));
        wait_for(pool, 2);
        wait_for_queue(&holder);
        // Both are with the node by now or soon.
        std::thread::sleep(Duration::from_millis(50));
        holder.unlock(address).unwrap();
        waits.map(|wait| wait.join().unwrap().map_err(|error| error.code())).into()
    });
    outcomes.sort();
    assert_eq!(outcomes, [Ok(()), Err(EINVAL)]);
    pool.unlock(address).unwrap();
    // It comes back over the network: the lock home hears of it a little later than who gave it back.
    holder.lock(address, LockMode::Write, LONG_MS).unwrap();
}

#[test]
fn a_lock_of_another_rack_can_be_tried() {
    let pair = pair("try");
    let (address, holder) = held(&pair);
    for rings in [RingChoice::Two, RingChoice::Single, RingChoice::Socket] {
        let pool = pool(&pair, 0, rings);
        assert_eq!(pool.lock(address, LockMode::Write, 0).unwrap_err().code(), ETIMEDOUT);
        holder.unlock(address).unwrap();
        pool.lock(address, LockMode::Write, 0).unwrap();
        assert_eq!(holder.lock(address, LockMode::Write, 0).unwrap_err().code(), ETIMEDOUT);
        pool.unlock(address).unwrap();
        holder.lock(address, LockMode::Write, LONG_MS).unwrap();
    }
}

#[test]
fn who_wants_to_hear_of_a_silent_node_hears_of_it_with_rings_too() {
    let pair = pair("silent");
    let (address, holder) = held(&pair);
    let pool = &pool(&pair, 0, RingChoice::Two);
    pool.stat(&name("region-1")).unwrap();
    assert!(pool.session().rings().is_some());
    let (heard, told) = std::sync::mpsc::channel();
    let every = Duration::from_millis(20);
    pool.session().on_silence(every, move |silence| heard.send(silence.waited).is_ok()).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pool.lock(address, LockMode::Write, LONG_MS));
        assert_eq!(told.recv().unwrap(), every);
        holder.unlock(address).unwrap();
        waits.join().unwrap().unwrap();
    });
}

#[test]
fn a_node_that_is_gone_is_noticed_on_both_rings() {
    let mut pair = pair("gone");
    let pool = pool(&pair, 0, RingChoice::Two);
    pool.stat(&name("nothing")).unwrap_err();
    let rings = pool.session().rings().unwrap();
    pair.all.iter_mut().rev().for_each(Member::stop);
    for request in [Request::Ping, Request::Stat { name: name("nothing") }] {
        // Twice: the first call finds it out, the next one knows.
        for _ in 0..2 {
            assert!(matches!(rings.call(&request), Err(PoolError::Closed)), "{request:?}");
            assert!(matches!(pool.session().call(&request), Err(PoolError::Closed)), "{request:?}");
        }
    }
}

#[test]
fn an_answer_that_is_longer_than_a_ring_has_room_comes_over_the_socket() {
    let pair = pair("long");
    let pool = pool(&pair, 0, RingChoice::Single);
    for index in 0..40 {
        let object = name(&format!("{}{index:02}", "x".repeat(150)));
        pool.put(&mut &b"byte"[..], &object, &PutOptions::default(), &mut |_| {}).unwrap();
    }
    assert_eq!(pool.list("x").unwrap().len(), 40);
    assert!(pool.session().rings().is_some());
}
