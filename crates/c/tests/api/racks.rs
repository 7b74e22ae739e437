//! Two racks in this process, joined by TCP, with memory in a folder that goes with the test.

use hinterland_node::{BackingChoice, Node, NodeOptions};
use hinterland_pool::Pool;
use hinterland_types::RackName;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Node `b` hosts the directory; node `a` has joined it.
pub struct Racks {
    a: Option<Node>,
    b: Option<Node>,
    folder: PathBuf,
}

impl Racks {
    /// Starts both.
    pub fn start() -> Self {
        static FOLDERS: AtomicU64 = AtomicU64::new(0);
        let number = FOLDERS.fetch_add(1, Ordering::SeqCst);
        let folder = Path::new("/dev/shm").join(format!("hl-c-{}-{number}", std::process::id()));
        let b = start(&folder, "b", None);
        let a = start(&folder, "a", Some(b.core_address()));
        Self { a: Some(a), b: Some(b), folder }
    }

    /// The socket of a node, as C programs take it.
    pub fn socket(&self, node: &str) -> CString {
        CString::new(self.folder.join(node).join("socket").to_str().unwrap()).unwrap()
    }

    /// A folder for files of the test.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A pool through a node.
    pub fn pool(&self, node: &str) -> Pool {
        Pool::connect(Some(&self.folder.join(node).join("socket"))).unwrap()
    }

    /// Ends node `a`.
    pub fn stop_a(&mut self) {
        self.a.take().unwrap().stop();
    }
}

impl Drop for Racks {
    fn drop(&mut self) {
        [self.a.take(), self.b.take()].into_iter().flatten().for_each(Node::stop);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn start(folder: &Path, name: &str, join: Option<String>) -> Node {
    let own = folder.join(name);
    let mut options = NodeOptions::new(
        name.parse().unwrap(),
        RackName::parse(name).unwrap(),
        own.join("socket"),
        own.clone(),
        "127.0.0.1:0".parse().unwrap(),
    );
    options.join = join;
    options.capacity_bytes = 128 << 20;
    options.cache_budget_bytes = 128 << 20;
    options.segment_bytes = 8 << 20;
    options.backing = BackingChoice::Folder(own.join("memory"));
    Node::start(options).unwrap()
}
