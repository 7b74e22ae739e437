//! What threads of one program ask over its session, between two racks: over two rings, one, and the socket.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_node::{BackingChoice, Node, NodeOptions};
use hinterland_os::PageKind;
use hinterland_pool::{Pool, PoolError, PutOptions, RingChoice, Rings};
use hinterland_proto::control::{AllocationKind, LockMode, Request};
use hinterland_types::{GlobalAddress, ObjectName, RackName};
use std::path::PathBuf;
use std::time::Duration;

/// How long a lock is waited for that is given in the end.
const LONG_MS: u32 = 120_000;
const EINVAL: i32 = 22;
const ETIMEDOUT: i32 = 110;

/// Two nodes, each its own rack; the first hosts the directory.
struct Pair {
    nodes: Vec<Option<Node>>,
    sockets: Vec<PathBuf>,
    folder: PathBuf,
}

impl Pair {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("hl-rings-{name}-{}", std::process::id()));
        let mut pair = Self { nodes: Vec::new(), sockets: Vec::new(), folder };
        for rack in ["a", "b"] {
            let root = pair.folder.join(rack);
            let listen = "127.0.0.1:0".parse().unwrap();
            let name = RackName::parse(rack).unwrap();
            let mut options = NodeOptions::new(rack, name, root.join("socket"), root.join("state"), listen);
            options.capacity_bytes = 16 << 20;
            options.segment_bytes = 2 << 20;
            options.backing = BackingChoice::Pages(PageKind::Base4K);
            options.lease = Duration::from_secs(20);
            options.join = pair.nodes.first().and_then(Option::as_ref).map(Node::core_address);
            pair.sockets.push(options.socket.clone());
            pair.nodes.push(Some(Node::start(options).unwrap()));
        }
        pair
    }

    fn pool(&self, rack: usize, rings: RingChoice) -> Pool {
        Pool::connect_over(Some(&self.sockets[rack]), rings).unwrap()
    }

    /// An address of the other rack, and a program there that has locked it.
    fn held(&self) -> (GlobalAddress, Pool) {
        let holder = self.pool(1, RingChoice::Socket);
        let at = RackName::parse("b").unwrap();
        let region = holder.create_region(&name("region"), 2 << 20, Some(at)).unwrap();
        holder.lock(region.address.unwrap(), LockMode::Write, 0).unwrap();
        (region.address.unwrap(), holder)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for node in self.nodes.iter_mut().rev().filter_map(Option::take) {
            node.stop();
        }
        for rack in ["a", "b"] {
            let state = self.folder.join(rack).join("state/node.id");
            let number = std::fs::read_to_string(state).unwrap_or_default();
            // Whatever is left of it is of no use to anybody.
            for kind in ["hinterland", "memory"] {
                let _ = std::fs::remove_dir_all(format!("/dev/shm/{kind}-{}", number.trim()));
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn name(text: &str) -> ObjectName {
    ObjectName::parse(text).unwrap()
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
    let pair = Pair::new("two");
    let (address, holder) = pair.held();
    let pool = &pair.pool(0, RingChoice::Two);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pool.lock(address, LockMode::Write, LONG_MS));
        wait_for(pool, 1);
        for _ in 0..100 {
            let (piece, _) = pool.allocate(64, AllocationKind::Session).unwrap();
            pool.free(piece).unwrap();
        }
        // What may take long does not wait either, and leaves the rack or not.
        assert_eq!(pool.stat(&name("region")).unwrap().address, Some(address));
        assert_eq!(pool.session().rings().unwrap().far().unwrap().outstanding(), 1);
        holder.unlock(address).unwrap();
        waits.join().unwrap().unwrap();
    });
    pool.unlock(address).unwrap();
}

#[test]
fn over_one_ring_or_the_socket_they_wait_in_turn() {
    let pair = Pair::new("one");
    let (address, holder) = pair.held();
    for rings in [RingChoice::Single, RingChoice::Socket] {
        let pool = &pair.pool(0, rings);
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
    let pair = Pair::new("both");
    let (address, holder) = pair.held();
    let pool = &pair.pool(0, RingChoice::Two);
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
    let pair = Pair::new("try");
    let (address, holder) = pair.held();
    for rings in [RingChoice::Two, RingChoice::Single, RingChoice::Socket] {
        let pool = pair.pool(0, rings);
        assert_eq!(pool.lock(address, LockMode::Write, 0).unwrap_err().code(), ETIMEDOUT);
        holder.unlock(address).unwrap();
        pool.lock(address, LockMode::Write, 0).unwrap();
        assert_eq!(holder.lock(address, LockMode::Write, 0).unwrap_err().code(), ETIMEDOUT);
        pool.unlock(address).unwrap();
        holder.lock(address, LockMode::Write, LONG_MS).unwrap();
    }
}

#[test]
fn a_node_that_is_gone_is_noticed_on_both_rings() {
    let mut pair = Pair::new("gone");
    let pool = pair.pool(0, RingChoice::Two);
    pool.stat(&name("nothing")).unwrap_err();
    let rings = pool.session().rings().unwrap();
    for node in pair.nodes.iter_mut().rev().filter_map(Option::take) {
        node.stop();
    }
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
    let pair = Pair::new("long");
    let pool = pair.pool(0, RingChoice::Single);
    for index in 0..40 {
        let object = name(&format!("{}{index:02}", "x".repeat(150)));
        pool.put(&mut &b"byte"[..], &object, &PutOptions::default(), &mut |_| {}).unwrap();
    }
    assert_eq!(pool.list("x").unwrap().len(), 40);
    assert!(pool.session().rings().is_some());
}
