//! The ring of a session against a real node: messages of the fabric and short requests on one ring.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_fabric::{Endpoint, FabricError};
use hinterland_node::{BackingChoice, Node, NodeOptions};
use hinterland_pool::{Pool, Rings};
use hinterland_proto::control::{AllocationKind, LockMode, Reply, Request, decode, encode};
use hinterland_types::{GlobalAddress, RackName};
use std::path::PathBuf;

struct Ground {
    root: PathBuf,
    node: Option<Node>,
}

impl Ground {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("hinterland-{name}-{}", std::process::id()));
        let rack = RackName::parse("one").unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let mut options =
            NodeOptions::new("one".parse().unwrap(), rack, root.join("socket"), root.join("state"), address);
        options.capacity_bytes = 64 << 20;
        options.segment_bytes = 4 << 20;
        options.backing = BackingChoice::Folder(root.join("memory"));
        let node = Some(Node::start(options).unwrap());
        Self { root, node }
    }

    fn pool(&self) -> Pool {
        Pool::connect(Some(&self.root.join("socket"))).unwrap()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop();
        }
        std::fs::remove_dir_all(&self.root).unwrap();
    }
}

#[test]
fn any_request_goes_through_the_ring_and_what_needs_a_descriptor_is_refused() {
    let ground = Ground::new("ring");
    let pool = ground.pool();
    let ring = pool.ring().unwrap();
    let ask = |request: &Request| decode::<Reply>(&ring.call(&encode(request).unwrap()).unwrap()).unwrap();
    assert_eq!(ask(&Request::Ping), Reply::Done);
    // An answer that is longer than a slot.
    let Reply::Status(status) = ask(&Request::Status) else { panic!("no status") };
    assert_eq!(status.name, "one");
    assert!(matches!(ask(&Request::OpenRing), Reply::Error { code: 95, .. }));
    assert!(matches!(ring.call(&[0xff; 40]), Err(FabricError::Remote { .. })));
}

#[test]
fn a_lock_taken_over_the_ring_ends_with_the_session() {
    let ground = Ground::new("ring-lock");
    let address = place(&ground);
    let holder = ground.pool();
    let ring = holder.ring().unwrap();
    let lock = Request::Lock { address, mode: LockMode::Write, wait_ms: 0 };
    let reply = decode::<Reply>(&ring.call(&encode(&lock).unwrap()).unwrap()).unwrap();
    assert_eq!(reply, Reply::Done);
    let other = ground.pool();
    assert!(other.lock(address, LockMode::Read, 0).is_err());
    drop((ring, holder));
    other.lock(address, LockMode::Read, 1000).unwrap();
}

/// A request that waits: for a lock that somebody else has.
/// An address that somebody owns: only these can be locked.
fn place(ground: &Ground) -> GlobalAddress {
    ground.pool().allocate(64, AllocationKind::Kept).unwrap().0
}

fn waiting_lock(address: GlobalAddress, wait_ms: u32) -> Request {
    Request::Lock { address, mode: LockMode::Write, wait_ms }
}

#[test]
fn requests_that_stay_are_answered_while_one_that_takes_long_waits() {
    let ground = Ground::new("ring-far");
    let (holder, waiter) = (ground.pool(), ground.pool());
    let rings = &waiter.rings().unwrap();
    // More than one thread of the node has to wait.
    let addresses = [(); 3].map(|()| place(&ground));
    for address in addresses {
        holder.lock(address, LockMode::Write, 0).unwrap();
    }
    std::thread::scope(|scope| {
        let waits = addresses.map(|address| scope.spawn(move || rings.call(&waiting_lock(address, 20_000))));
        while rings.far().unwrap().outstanding() < 3 {
            std::thread::yield_now();
        }
        for _ in 0..100 {
            assert_eq!(rings.call(&Request::Ping).unwrap(), Reply::Done);
        }
        // A request that takes long and is not held up by those that wait, answered out of their order.
        let listed = Request::List { prefix: String::new(), after: None, limit: 10 };
        assert!(matches!(rings.call(&listed).unwrap(), Reply::Objects { .. }));
        assert_eq!(rings.far().unwrap().outstanding(), 3);
        addresses.iter().for_each(|&address| holder.unlock(address).unwrap());
        for wait in waits {
            assert_eq!(wait.join().unwrap().unwrap(), Reply::Done);
        }
    });
}

#[test]
fn on_a_single_ring_they_wait_in_turn() {
    let ground = Ground::new("ring-single");
    let (holder, waiter) = (ground.pool(), ground.pool());
    let single = Rings::open_single(&waiter).unwrap();
    let address = place(&ground);
    holder.lock(address, LockMode::Write, 0).unwrap();
    let lock = encode(&waiting_lock(address, 20_000)).unwrap();
    let mut queue = single.near().queue(0).unwrap();
    queue.post_call(1, &lock).unwrap();
    queue.post_call(2, &encode(&Request::Ping).unwrap()).unwrap();
    let mut done = Vec::new();
    queue.poll(&mut done, std::time::Duration::from_millis(100)).unwrap();
    assert!(done.is_empty(), "{done:?}");
    holder.unlock(address).unwrap();
    while done.len() < 2 {
        queue.poll(&mut done, std::time::Duration::from_secs(5)).unwrap();
    }
    assert_eq!(done.iter().map(|done| done.tag).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_session_that_ends_takes_the_threads_of_its_far_ring_along() {
    let ground = Ground::new("ring-far-end");
    let (holder, waiter) = (ground.pool(), ground.pool());
    let rings = waiter.rings().unwrap();
    let address = place(&ground);
    holder.lock(address, LockMode::Write, 0).unwrap();
    let body = encode(&waiting_lock(address, 60_000)).unwrap();
    let late = rings.far().unwrap().call_within(&body, 100, std::time::Duration::from_millis(50));
    assert!(matches!(late, Err(FabricError::Timeout { .. })), "{late:?}");
    drop((rings, waiter));
    holder.unlock(address).unwrap();
    // Whatever the waiting thread still got was given back with its session.
    ground.pool().lock(address, LockMode::Write, 5000).unwrap();
}
