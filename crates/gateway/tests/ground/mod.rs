//! A node for tests of the server, in it and around it.

use hinterland_node::{BackingChoice, Node, NodeOptions};
use hinterland_os::PageKind;
use hinterland_types::RackName;
use std::path::Path;

/// A pool of one node, with 16 MiB for blocks, whose state and socket are in a folder.
pub fn node(root: &Path) -> Node {
    let rack = RackName::parse("one").unwrap();
    let address = "127.0.0.1:0".parse().unwrap();
    let mut options =
        NodeOptions::new("one".parse().unwrap(), rack, root.join("socket"), root.join("state"), address);
    options.capacity_bytes = 16 << 20;
    options.kv_capacity_bytes = 16 << 20;
    options.backing = BackingChoice::Pages(PageKind::Base4K);
    Node::start(options).unwrap()
}
