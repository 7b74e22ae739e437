//! The ring of a session against a real node: messages of the fabric and short requests on one ring.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

use hinterland_fabric::{Endpoint, FabricError};
use hinterland_node::{BackingChoice, Node, NodeOptions};
use hinterland_pool::Pool;
use hinterland_proto::control::{LockMode, Reply, Request, decode, encode};
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
        let mut options = NodeOptions::new("one", rack, root.join("socket"), root.join("state"), address);
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
    let address = GlobalAddress::new(4096).unwrap();
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
