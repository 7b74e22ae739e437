//! Nodes of one pool in this process, each its own rack.

#[path = "../loopback/mod.rs"]
mod loopback;

use hinterland_node::{BackingChoice, Node, NodeOptions};
use hinterland_os::PageKind;
use hinterland_pool::Pool;
use hinterland_types::{GlobalAddress, ObjectName, RackName};
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of a page.
pub const PAGE: u64 = 2 << 20;

/// Nodes; the first hosts the directory.
pub struct Nodes {
    pub all: Vec<Member>,
    folder: PathBuf,
}

/// One node.
pub struct Member {
    pub options: NodeOptions,
    node: Option<Node>,
}

impl Nodes {
    /// So many nodes that lend so many pages each.
    pub fn new(name: &str, count: usize, pages: u64) -> Self {
        Self::with(name, count, pages, |_| {})
    }

    /// The same, with other options.
    pub fn with(name: &str, count: usize, pages: u64, change: impl Fn(&mut NodeOptions)) -> Self {
        let folder = std::env::temp_dir().join(format!("hl-nodes-{name}-{}", std::process::id()));
        let mut nodes = Self { all: Vec::new(), folder };
        for number in 0..count {
            let name = format!("r{number}");
            let root = nodes.folder.join(&name);
            let (rack, listen) = (RackName::parse(&name).unwrap(), loopback::address());
            let mut options = NodeOptions::new(
                name.parse().unwrap(),
                rack,
                root.join("socket"),
                root.join("state"),
                listen,
            );
            options.capacity_bytes = pages * PAGE;
            options.backing = BackingChoice::Pages(PageKind::Base4K);
            options.join = nodes.all.first().map(Member::address);
            options.lease = Duration::from_secs(60);
            change(&mut options);
            let mut member = Member { options, node: None };
            member.start();
            nodes.all.push(member);
        }
        nodes
    }

    /// A session with one.
    pub fn pool(&self, rack: usize) -> Pool {
        self.all[rack].pool()
    }

    /// A region of so many pages in one rack; its address.
    pub fn region(&self, rack: usize, pages: u64) -> GlobalAddress {
        let at = self.all[rack].options.rack.clone();
        let region = name(&format!("region-{rack}"));
        self.pool(rack).create_region(&region, pages * PAGE, Some(at)).unwrap().address.unwrap()
    }

    /// A session with each.
    pub fn pools(&self) -> Vec<Pool> {
        self.all.iter().map(Member::pool).collect()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.all.iter_mut().rev().for_each(Member::stop);
        for number in 0..self.all.len() {
            let path = self.folder.join(format!("r{number}/state/node.id"));
            let number = std::fs::read_to_string(path).unwrap_or_default();
            for kind in ["hinterland", "memory"] {
                // Whatever is left of it is of no use to anybody.
                let _ = std::fs::remove_dir_all(format!("/dev/shm/{kind}-{}", number.trim()));
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Member {
    /// Starts it, on the state of its last life.
    pub fn start(&mut self) {
        self.node = Some(Node::start(self.options.clone()).unwrap());
    }

    /// Stops it, if it runs.
    pub fn stop(&mut self) {
        if let Some(node) = self.node.take() {
            node.stop();
        }
    }

    /// Where others reach it.
    pub fn address(&self) -> String {
        self.node.as_ref().unwrap().core_address()
    }

    /// A session with it.
    pub fn pool(&self) -> Pool {
        Pool::connect(Some(&self.options.socket)).unwrap()
    }
}

/// An object's name.
pub fn name(text: &str) -> ObjectName {
    ObjectName::parse(text).unwrap()
}

/// Bytes that follow from their offset.
pub fn pattern(offset: u64, bytes: usize) -> Vec<u8> {
    (offset..offset + bytes as u64)
        .map(|place| (place ^ place >> 8 ^ place >> 16 ^ place >> 24) as u8)
        .collect()
}
