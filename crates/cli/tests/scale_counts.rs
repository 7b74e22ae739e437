//! What is simulated is what happens: two real nodes and two simulated ones are given the same accesses, and the same pages move in as many
//! transactions of the directory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "../../node/tests/loopback/mod.rs"]
mod loopback;

use hinterland_pool::Pool;
use hinterland_sim::scale::{Access, ScaleFigures, ScalePlan, Workload, simulate};
use hinterland_types::{GlobalAddress, ObjectName};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PAGE: u64 = 2 << 20;
const PAGES: u32 = 8;
/// Pages that the second node uses much; it uses the others as often as a few percent of what a move must gain.
const HOT: u32 = 3;
/// Accesses between two looks of the node: fewer than the samples that a thread keeps.
const BATCH: u32 = 20;
/// How long anything may take that does not take long.
const LONG: Duration = Duration::from_secs(30);

/// Two nodes; the first hosts the directory and says each of its steps.
struct Nodes {
    folder: PathBuf,
    running: Vec<Child>,
    /// Transactions of the directory.
    durable: Arc<Mutex<u64>>,
}

impl Nodes {
    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("hl-scale-{}", std::process::id()));
        let mut nodes = Self { folder, running: Vec::new(), durable: Arc::default() };
        let (first, second) = (loopback::address(), loopback::address());
        nodes.start("a", first, None);
        nodes.start("b", second, Some(first));
        nodes
    }

    fn start(&mut self, name: &'static str, listen: SocketAddr, join: Option<SocketAddr>) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hinterland"));
        command.args(["--json", "--quiet", "--socket"]).arg(self.socket(name)).arg("node");
        command.args(["--name", name, "--listen", &listen.to_string()]);
        command.arg("--state").arg(self.folder.join(name)).args(["--capacity", "64M", "--backing", "base"]);
        match join {
            Some(join) => command.args(["--join", &join.to_string()]),
            None => command.env("HINTERLAND_FAULT_POINT", "count"),
        };
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (errors, durable) = (child.stderr.take().unwrap(), Arc::clone(&self.durable));
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                match line.strip_prefix("fault-point ") {
                    Some(step) => {
                        *durable.lock().unwrap() += u64::from(step.starts_with("directory-durable"))
                    }
                    None => eprintln!("{name}: {line}"),
                }
            }
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        self.running.push(child);
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.sock"))
    }

    fn pool(&self, name: &str) -> Pool {
        Pool::connect(Some(&self.socket(name))).unwrap()
    }

    /// Transactions so far; what was said last is on its way.
    fn durable(&self) -> u64 {
        std::thread::sleep(Duration::from_millis(200));
        *self.durable.lock().unwrap()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in &mut self.running {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        for name in ["a", "b"] {
            let number = std::fs::read_to_string(self.folder.join(name).join("node.id")).unwrap_or_default();
            for kind in ["hinterland", "memory"] {
                // Whatever is left of it is of no use to anybody.
                let _ = std::fs::remove_dir_all(format!("/dev/shm/{kind}-{}", number.trim()));
            }
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Pages that have moved to `b`.
fn moved(pool: &Pool, name: &ObjectName) -> u64 {
    let pages = pool.pages_at(name).unwrap();
    pages.iter().map(|on| on.moved).sum()
}

/// Real nodes: pages that moved, and transactions.
fn real() -> (u64, u64) {
    let nodes = Nodes::new();
    let name = ObjectName::parse("r").unwrap();
    let region = nodes.pool("a").create_region(&name, u64::from(PAGES) * PAGE, None).unwrap();
    let first: GlobalAddress = region.address.unwrap();
    let pool = nodes.pool("b");
    let mut buffer = [0; 64];
    let mut read = |page: u32, count: u32| {
        let address = first.checked_add(u64::from(page) * PAGE).unwrap();
        (0..count).for_each(|_| pool.read(address, &mut buffer).unwrap());
    };
    (HOT..PAGES).for_each(|page| read(page, 2));
    let before = nodes.durable();
    let deadline = Instant::now() + LONG;
    while moved(&pool, &name) < u64::from(HOT) {
        assert!(Instant::now() < deadline, "the pages do not move");
        (0..HOT).for_each(|page| read(page, BATCH));
        std::thread::sleep(Duration::from_millis(15));
    }
    // Goes on for a while: what is here does not move again, and the others do not come.
    for _ in 0..10 {
        (0..HOT).for_each(|page| read(page, BATCH));
        std::thread::sleep(Duration::from_millis(15));
    }
    (moved(&pool, &name), nodes.durable() - before)
}

/// The same, simulated.
fn simulated() -> ScaleFigures {
    let access = |page: u32, reads: u32| Access { node: 1, page, reads, writes: 0 };
    let mut rounds = vec![(HOT..PAGES).map(|page| access(page, 2)).collect::<Vec<_>>()];
    rounds.extend((0..100).map(|_| (0..HOT).map(|page| access(page, BATCH)).collect()));
    let plan = ScalePlan {
        nodes: 2,
        racks: 2,
        workload: Workload::Script(rounds),
        time: Duration::from_secs(2),
        pages_per_node: PAGES / 2,
        objects_per_node: 0,
        threads: 1,
        ..ScalePlan::default()
    };
    simulate(&plan, &|| 0).unwrap()
}

#[test]
fn two_real_nodes_and_two_simulated_ones_move_the_same_pages_in_as_many_transactions() {
    let simulated = simulated();
    let (moved, durable) = real();
    assert_eq!(moved, u64::from(HOT));
    assert_eq!(simulated.moves.taken, moved, "{simulated:#?}");
    let kinds = simulated.directory.kinds.values();
    assert_eq!(kinds.map(|kind| kind.durable).sum::<u64>(), durable, "{simulated:#?}");
    assert_eq!((simulated.moves.refused_by_home, simulated.stale), (0, 0), "{simulated:#?}");
}
