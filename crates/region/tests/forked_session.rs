//! What a forked child keeps open of its parent's session; alone in its process, since descriptors belong to all tests.

// A failure in a function that a test calls is a failed test.
#![allow(clippy::unwrap_used)]

mod stub_node;

use hinterland_region::{MapOptions, Options, Regions};
use hinterland_types::ObjectId;
use stub_node::{StubNode, byte_of};

#[test]
fn stub_node_main() {
    stub_node::run_if_asked();
}

/// The sockets and page tables that this process has open.
fn open_descriptors() -> Vec<String> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let names = links.map(|link| link.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("socket:") || name.ends_with("pagemap")).collect()
}

#[test]
fn a_child_lets_go_of_the_session_of_its_parent() {
    let socket = std::env::temp_dir().join(format!("hinterland-forked-{}.sock", std::process::id()));
    let mut node = StubNode::start("stub_node_main", &socket);
    node.add(1, 1 << 20, "base");
    let options = Options { socket: Some(socket.clone()), ..Options::default() };
    let regions = Regions::connect(&options).unwrap();
    let region = regions.map(ObjectId(1), MapOptions::default()).unwrap();
    let before = open_descriptors();
    assert_eq!(before.iter().filter(|name| name.starts_with("socket:")).count(), 2, "{before:?}");
    // SAFETY: the child looks, reads a byte and ends without returning.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            let right = region.pointer().as_ptr().read_volatile() == byte_of(1, 0);
            let after = open_descriptors();
            let kept =
                after.iter().filter(|name| name.starts_with("socket:") && before.contains(name)).count();
            libc::_exit(i32::from(!(right && kept == 0)));
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        status
    };
    assert_eq!(status, 0);
    drop(region);
    drop(regions);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while !open_descriptors().is_empty() && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(open_descriptors(), Vec::<String>::new(), "nothing stays open behind the last user");
    let _ = std::fs::remove_file(&socket);
}
