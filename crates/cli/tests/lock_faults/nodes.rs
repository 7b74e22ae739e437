//! Three nodes, each a process: the directory's and two racks with regions.

#[path = "../../../node/tests/loopback/mod.rs"]
mod loopback;

use hinterland_pool::Pool;
use hinterland_types::{GlobalAddress, ObjectName, RackName};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take that does not take long.
pub const LONG: Duration = Duration::from_secs(40);
const PARTIES: [&str; 3] = ["d", "a", "b"];

/// The nodes; they end with this.
pub struct Nodes {
    folder: PathBuf,
    lease: Duration,
    addresses: BTreeMap<&'static str, SocketAddr>,
    running: BTreeMap<&'static str, Child>,
}

impl Nodes {
    /// Starts them; `fault` names the step at which a party is killed.
    pub fn new(name: &str, lease: Duration, fault: impl Fn(&str) -> Option<String>) -> Self {
        let folder = std::env::temp_dir().join(format!("hl-lockf-{name}-{}", std::process::id()));
        let addresses = PARTIES.map(|party| (party, loopback::address())).into();
        let mut nodes = Self { folder, lease, addresses, running: BTreeMap::new() };
        PARTIES.into_iter().for_each(|party| nodes.start(party, fault(party)));
        nodes
    }

    fn start(&mut self, party: &'static str, fault: Option<String>) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hinterland"));
        command.args(["--json", "--quiet", "--socket"]).arg(self.socket(party)).arg("node");
        command.args(["--name", party, "--listen", &self.addresses[party].to_string()]);
        command.arg("--state").arg(self.folder.join(party)).args(["--capacity", "32M", "--backing", "base"]);
        command.args(["--hot", "off", "--lease", &self.lease.as_secs_f64().to_string()]);
        if party != "d" {
            command.args(["--join", &self.addresses["d"].to_string()]);
        }
        if let Some(fault) = fault {
            command.env("HINTERLAND_FAULT_POINT", fault);
        }
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("ready"), "{party}: {line:?}");
        self.running.insert(party, child);
    }

    /// The socket of a node.
    pub fn socket(&self, party: &str) -> PathBuf {
        self.folder.join(format!("{party}.sock"))
    }

    /// A connection to a node.
    pub fn pool(&self, party: &str) -> Pool {
        Pool::connect(Some(&self.socket(party))).unwrap()
    }

    /// A region of one page in a rack; made if it is not there.
    pub fn region(&self, name: &str, rack: &str) -> GlobalAddress {
        let pool = self.pool("d");
        let name = ObjectName::parse(name).unwrap();
        let made = pool.create_region(&name, 2 << 20, Some(RackName::parse(rack).unwrap()));
        made.or_else(|_| pool.stat(&name)).unwrap().address.unwrap()
    }

    /// Pulls a page to a party; a move that took too long is over, and begins again.
    pub fn pull(&self, party: &str, page: GlobalAddress) {
        let deadline = Instant::now() + LONG;
        while let Err(error) = self.pool(party).pull_page(page) {
            assert!(Instant::now() < deadline, "the page does not come to {party}: {error}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends a signal to a node.
    pub fn signal(&self, party: &str, signal: &str) {
        super::programs::signal(self.running[party].id(), signal);
    }

    /// Waits until a node has killed itself, and starts it again.
    pub fn revive(&mut self, party: &'static str) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.running.get_mut(party).unwrap().try_wait().unwrap().is_none() {
            if Instant::now() >= deadline {
                // A step that this run does not pass so often is no step to be killed at.
                println!("{party} did not reach its step");
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.start(party, None);
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
