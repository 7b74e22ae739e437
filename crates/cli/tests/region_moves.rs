//! A page moves while programs write it, and one of the parties is killed at each step of the move: the node that wants the
//! page, the node that has it, the node with the directory. No acknowledged byte is lost, and the page has one home.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helpers too")]

#[path = "region_moves/programs.rs"]
mod programs;

use hinterland_os::{MapOptions, MemoryFile};
use hinterland_pool::Pool;
use hinterland_proto::control::{Reply, Request};
use hinterland_proto::pages::SLOTS_BYTES;
use hinterland_types::{GlobalAddress, ObjectName};
use programs::Programs;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const PAGE: u64 = 2 << 20;
/// How long anything may take that does not take long.
const LONG: Duration = Duration::from_secs(30);
/// The directory's node, the home, and the node that wants the page.
const PARTIES: [&str; 3] = ["d", "a", "b"];
/// Steps of the directory that every command passes, whose number tells which command it was.
const DIRECTORY_STEPS: [&str; 3] = ["directory-planned", "directory-written", "directory-durable"];

/// Three nodes, each a process.
struct Nodes {
    folder: PathBuf,
    ports: BTreeMap<&'static str, u16>,
    running: BTreeMap<&'static str, Child>,
    /// Steps that each node has said on standard error, in order.
    steps: Arc<Mutex<Vec<(&'static str, String)>>>,
}

impl Nodes {
    fn new(name: &str, fault: impl Fn(&str) -> Option<String>) -> Self {
        let folder = std::env::temp_dir().join(format!("hl-moves-{name}-{}", std::process::id()));
        let port = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let ports = PARTIES.map(|party| (party, port())).into();
        let mut nodes = Self { folder, ports, running: BTreeMap::new(), steps: Arc::default() };
        PARTIES.into_iter().for_each(|party| nodes.start(party, fault(party)));
        nodes
    }

    fn start(&mut self, party: &'static str, fault: Option<String>) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hinterland"));
        command.args(["--json", "--quiet", "--socket"]).arg(self.socket(party)).arg("node");
        command.args(["--name", party, "--listen", &format!("127.0.0.1:{}", self.ports[party])]);
        command.arg("--state").arg(self.folder.join(party)).args(["--capacity", "32M", "--backing", "base"]);
        command.args(["--hot", "off"]);
        if party != "d" {
            command.args(["--join", &format!("127.0.0.1:{}", self.ports["d"])]);
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

    fn socket(&self, party: &str) -> PathBuf {
        self.folder.join(format!("{party}.sock"))
    }

    fn pool(&self, party: &str) -> Pool {
        Pool::connect(Some(&self.socket(party))).unwrap()
    }

    /// Waits until a node has killed itself, and starts it again.
    fn revive(&mut self, party: &'static str) {
        let deadline = Instant::now() + LONG;
        while self.running.get_mut(party).unwrap().try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "{party} did not reach its step");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.start(party, None);
    }

    fn steps(&self) -> Vec<(&'static str, String)> {
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

fn region() -> ObjectName {
    ObjectName::parse("r").unwrap()
}

/// A region of two pages on `a`.
fn create(nodes: &Nodes) -> GlobalAddress {
    nodes.pool("a").create_region(&region(), 2 * PAGE, None).unwrap().address.unwrap()
}

/// Pulls until it works.
fn pull(nodes: &Nodes, party: &str, first: GlobalAddress) {
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

/// Which steps a move passes, and at each how often it was passed before it.
fn steps_of_a_move() -> Vec<(&'static str, String)> {
    let nodes = Nodes::new("count", |_| Some("count".to_owned()));
    let first = create(&nodes);
    let before = nodes.steps().len();
    pull(&nodes, "b", first);
    let is_of_the_move = |(party, step): &(&'static str, String)| {
        let name = step.rsplit_once(':').unwrap().0;
        if *party == "d" {
            DIRECTORY_STEPS.contains(&name)
        } else {
            name.starts_with("move-") || name.starts_with("home-page-") || name.starts_with("part-")
        }
    };
    nodes.steps().split_off(before).into_iter().filter(is_of_the_move).collect()
}

#[test]
fn killing_any_party_at_any_step_of_a_move_loses_nothing() {
    let steps = steps_of_a_move();
    let of = |party: &str| steps.iter().filter(|(other, _)| *other == party).count();
    println!(
        "{} steps: {} of the directory, {} of the home, {} of the taker",
        steps.len(),
        of("d"),
        of("a"),
        of("b")
    );
    assert!(of("d") >= 6 && of("a") >= 4 && of("b") >= 6, "{steps:?}");
    for (party, step) in &steps {
        let started = Instant::now();
        let mut nodes = Nodes::new("kill", |other| (other == *party).then(|| step.clone()));
        let first = create(&nodes);
        let sockets = PARTIES.map(|party| nodes.socket(party));
        let programs = Programs::start(&sockets, first);
        // Either way: what the caller is told of a move whose party died is of no importance.
        let told = nodes.pool("b").pull_page(first);
        nodes.revive(party);
        pull(&nodes, "b", first);
        pull(&nodes, "a", first);
        let done = programs.stop();
        programs::check(&sockets, first, &done);
        check_homes(&nodes);
        println!(
            "{party} killed at {step}: {} writes, the caller was told {:?}, {:?}",
            done.written(),
            told.is_ok(),
            started.elapsed()
        );
    }
}

/// Every page has one home, and every node has the memory of what it has and no more.
fn check_homes(nodes: &Nodes) {
    let deadline = Instant::now() + LONG;
    loop {
        let on = nodes.pool("d").pages_at(&region()).unwrap();
        assert_eq!(on.iter().map(|on| on.pages).sum::<u64>(), 2);
        let used = |party| nodes.pool(party).status().unwrap().used_bytes;
        let right = PARTIES.iter().all(|party| {
            let ours =
                on.iter().filter(|on| on.home.as_ref().is_some_and(|home| home.rack.as_str() == *party));
            used(party) == ours.map(|on| on.pages * PAGE).sum::<u64>()
        });
        if right {
            return;
        }
        assert!(Instant::now() < deadline, "{on:?}: {:?}", PARTIES.map(used));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_program_that_stopped_inside_an_access_keeps_the_page_until_it_goes_on_or_dies() {
    let nodes = Nodes::new("stopped", |_| None);
    let first = create(&nodes);
    let program = nodes.pool("a");
    let (reply, mut descriptors) = program.session().call_with(&Request::OpenSlots, &[]).unwrap();
    assert_eq!(reply, Reply::Done);
    let file = MemoryFile::from_descriptor(descriptors.remove(0)).unwrap();
    let options = MapOptions { write: true, ..MapOptions::default() };
    let slots = Arc::new(file.map(0, SLOTS_BYTES, options).unwrap()).slice();
    drop(file);
    // As a thread that was stopped between its store to the slot and the end of its copy.
    slots.store_u64(3 * 1024, u64::from(first.page().raw()) + 1).unwrap();
    let taker = nodes.pool("b");
    let refused = taker.pull_page(first).unwrap_err();
    assert!(refused.to_string().contains("stays in the page"), "{refused}");
    // Nobody else notices.
    taker.write(first, &[7; 8]).unwrap();
    let second = first.checked_add(PAGE).unwrap();
    taker.pull_page(second).unwrap();
    // The session is over, the program is not.
    drop(program);
    std::thread::sleep(Duration::from_millis(100));
    assert!(taker.pull_page(first).is_err());
    slots.store_u64(3 * 1024, 0).unwrap();
    taker.pull_page(first).unwrap();
    nodes.pool("a").pull_page(first).unwrap();
    // Stopped again, and killed.
    slots.store_u64(3 * 1024, u64::from(first.page().raw()) + 1).unwrap();
    assert!(taker.pull_page(first).is_err());
    drop(slots);
    taker.pull_page(first).unwrap();
    let mut found = [0; 8];
    nodes.pool("a").read(first, &mut found).unwrap();
    assert_eq!(found, [7; 8]);
}
