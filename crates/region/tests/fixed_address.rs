//! A mapping in the place of another one; alone in its process, since an address that it frees may be another test's at once.

// A failure in a function that a test calls is a failed test.
#![allow(clippy::unwrap_used)]

mod stub_node;

use hinterland_region::{Address, MapOptions, Options, Region, RegionError, Regions, process};
use hinterland_types::ObjectId;
use stub_node::{StubNode, byte_of};

const OBJECT: u64 = 1;
/// What the second mapping has of the object, and from where.
const PART: u64 = 65536;

#[test]
fn stub_node_main() {
    stub_node::run_if_asked();
}

/// Whether a byte of every page is right.
fn is_right(region: &Region, from: u64) -> bool {
    let start = region.range().offset();
    // SAFETY: only bytes of the region.
    let load = |at: u64| unsafe { region.pointer().as_ptr().add(at as usize).read_volatile() };
    (from..region.bytes()).step_by(4096).all(|at| load(at) == byte_of(OBJECT, start + at))
}

#[test]
fn a_fixed_address_replaces_what_is_there() {
    let socket = std::env::temp_dir().join(format!("hinterland-fixed-{}.sock", std::process::id()));
    let mut node = StubNode::start("stub_node_main", &socket);
    node.add(OBJECT, 1 << 20, "base");
    let regions = Regions::connect(&Options { socket: Some(socket.clone()), ..Options::default() }).unwrap();
    let map = |options| regions.map(ObjectId(OBJECT), options);
    let old = map(MapOptions { address: Address::Anywhere, ..MapOptions::default() }).unwrap();
    let place = old.pointer().addr().get() as u64;
    let fixed = |place| MapOptions {
        offset: PART,
        bytes: Some(PART),
        address: Address::Fixed(place),
        ..MapOptions::default()
    };
    let new = map(fixed(place)).unwrap();
    assert_eq!(new.pointer(), old.pointer());
    assert!(is_right(&new, 0) && is_right(&old, PART));
    drop(new);
    assert_eq!(process::share(place, PART), process::Share::None);
    assert!(is_right(&old, PART));
    let before = node.order("requests").matches("Close").count();
    drop(old);
    assert_eq!((before, node.order("requests").matches("Close").count()), (1, 1));
    assert!(matches!(map(fixed(place + 1)), Err(RegionError::Alignment { .. })));
    let _ = std::fs::remove_file(&socket);
}
