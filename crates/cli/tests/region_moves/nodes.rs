//! Three nodes as processes, which can be killed at a step and started again, and a region on one of them.

#[path = "../../../node/tests/loopback/mod.rs"]
mod loopback;

use hinterland_pool::Pool;
use hinterland_types::{GlobalAddress, ObjectName};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const PAGE: u64 = 2 << 20;
/// How long anything may take that does not take long.
pub const LONG: Duration = Duration::from_secs(30);
/// The directory's node, the home, and the node that wants the page.
pub const PARTIES: [&str; 3] = ["d", "a", "b"];
/// Steps of the directory that every command passes, whose number tells which command it was.
pub const DIRECTORY_STEPS: [&str; 3] = ["directory-planned", "directory-written", "directory-durable"];

/// Three nodes, each a process.
pub struct Nodes {
    pub folder: PathBuf,
    addresses: BTreeMap<&'static str, SocketAddr>,
    pub running: BTreeMap<&'static str, Child>,
    /// Steps that each node has said on standard error, in order.
    steps: Arc<Mutex<Vec<(&'static str, String)>>>,
}

impl Nodes {
    pub fn new(name: &str, fault: impl Fn(&str) -> Option<String>) -> Self {
        let folder = std::env::temp_dir().join(format!("hl-moves-{name}-{}", std::process::id()));
        let addresses = PARTIES.map(|party| (party, loopback::address())).into();
        let mut nodes = Self { folder, addresses, running: BTreeMap::new(), steps: Arc::default() };
        PARTIES.into_iter().for_each(|party| nodes.start(party, fault(party)));
        nodes
    }

    pub fn start(&mut self, party: &'static str, fault: Option<String>) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hinterland"));
        command.args(["--json", "--quiet", "--socket"]).arg(self.socket(party)).arg("node");
        command.args(["--name", party, "--listen", &self.addresses[party].to_string()]);
        command.arg("--state").arg(self.folder.join(party)).args(["--capacity", "32M", "--backing", "base"]);
        command.args(["--hot", "off"]);
        if party != "d" {
            command.args(["--join", &self.addresses["d"].to_string()]);
        }
        if let Some(fault) = fault {
            command.env("HINTERLAND_FAULT_POINT", fault);
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (errors, steps) = (child.stderr.take().unwrap(), Arc::clone(&self.steps));
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                match line.strip_prefix("fault-point ") {
                    Some(step) => steps.lock().unwrap().push((party, step.to_owned())),
                    None => eprintln!("{party}: {line}"),
                }
            }
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.running.insert(party, child);
    }

    pub fn socket(&self, party: &str) -> PathBuf {
        self.folder.join(format!("{party}.sock"))
    }

    pub fn pool(&self, party: &str) -> Pool {
        Pool::connect(Some(&self.socket(party))).unwrap()
    }

    /// Waits until a node has killed itself, and starts it again.
    pub fn revive(&mut self, party: &'static str) {
        let deadline = Instant::now() + LONG;
        while self.running.get_mut(party).unwrap().try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "{party} did not reach its step");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.start(party, None);
    }

    pub fn steps(&self) -> Vec<(&'static str, String)> {
        // What was said last is on its way.
        std::thread::sleep(Duration::from_millis(100));
        self.steps.lock().unwrap().clone()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.running.values_mut() {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        for party in PARTIES {
            let number = std::fs::read_to_string(self.folder.join(party).join("node.id")).unwrap_or_default();
            for kind in ["hinterland", "memory"] {
                // Whatever is left of it is of no use to anybody.
                let _ = std::fs::remove_dir_all(format!("/dev/shm/{kind}-{}", number.trim()));
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub fn region() -> ObjectName {
    ObjectName::parse("r").unwrap()
}

/// A region of two pages on `a`.
pub fn create(nodes: &Nodes) -> GlobalAddress {
    nodes.pool("a").create_region(&region(), 2 * PAGE, None).unwrap().address.unwrap()
}

/// Pulls until it works.
pub fn pull(nodes: &Nodes, party: &str, first: GlobalAddress) {
    let deadline = Instant::now() + LONG;
    loop {
        let pulled = Pool::connect(Some(&nodes.socket(party))).and_then(|pool| pool.pull_page(first));
        match pulled {
            Ok(()) => return,
            Err(error) => assert!(Instant::now() < deadline, "the page does not come to {party}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
