//! `fault`: what the touch of a fault unit costs when its bytes are on the host, by unit; and system time for a whole
//! object, beside the kernel's own 4 KiB faults.

use super::case::Case;
use super::content::{put, write_file};
use super::ground::{BenchNode, Ground, NodePlan};
use super::report::{Better, Row};
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use std::cell::RefCell;

const UNITS: [(&str, u64); 4] =
    [("4KiB", 4 << 10), ("64KiB", 64 << 10), ("2MiB", 2 << 20), ("16MiB", 16 << 20)];
/// Touches of a round at most.
const TOUCHES_MAX: u64 = 4_096;

/// The bench.
pub struct Fault;

impl Bench for Fault {
    fn name(&self) -> &'static str {
        "fault"
    }

    fn subject(&self) -> &'static str {
        "touches of fault units that are on the host, and system time to map a whole object"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let bytes: u64 = if setting.quick { 512 << 20 } else { 1 << 30 };
        let whole: u64 = if setting.quick { 1 << 30 } else { 4 << 30 };
        let ground = Ground::new(setting, 2 * whole + 2 * bytes + (512 << 20))?;
        let plan =
            NodePlan { capacity_bytes: 64 << 20, cache_bytes: whole + (512 << 20), ..NodePlan::default() };
        let home = ground.node(NodePlan {
            name: "home",
            capacity_bytes: whole + bytes * 4 + (128 << 20),
            ..plan
        })?;
        let join = Some(home.address.as_str());
        let near = ground.node(NodePlan { name: "near", join, ..plan })?;
        let base =
            ground.node(NodePlan { name: "base", join, more: &["--without", "huge-pages"], ..plan })?;
        let mut rows = Vec::new();
        let file = ground.folder().join("touched");
        write_file(&file, bytes)?;
        let peer = RefCell::new(ground.machine()?);
        peer.borrow_mut().ask(&format!("map {}", file.display()))?;
        peer.borrow_mut().ask("random")?;
        peer.borrow_mut().ask("scan")?;
        for (word, unit) in UNITS {
            (setting.say)(&format!("fault: units of {word}"));
            let node = if unit < 2 << 20 { &base } else { &near };
            rows.push(filled(setting, &ground, [&home, node], &peer, word, unit, bytes));
        }
        drop(peer);
        (setting.say)("fault: system time of a whole object");
        rows.extend(system_time(setting, &ground, &home, &near, whole)?);
        Ok(rows)
    }
}

/// A touch of every unit of a mapping whose bytes are all on the host.
fn filled(
    setting: &Setting,
    ground: &Ground,
    [home, node]: [&BenchNode; 2],
    peer: &RefCell<Worker>,
    word: &str,
    unit: u64,
    bytes: u64,
) -> Row {
    let case = format!("filled-{word}");
    let object = format!("bench/unit-{word}");
    let fault_unit = unit.max(64 << 10);
    let mapped = || -> Result<Worker, Failure> {
        put(&home.pool()?, &object, bytes)?;
        let mut worker = ground.machine_on(node, &["--unit", &fault_unit.to_string()])?;
        worker.ask(&format!("map {}", ground.mount().join(&object).display()))?;
        worker.ask("scan")?;
        Ok(worker)
    };
    let worker = match mapped() {
        Ok(worker) => RefCell::new(worker),
        Err(failure) => return Row::absent(case, "us", Better::Lower, failure.text),
    };
    let touch = |worker: &RefCell<Worker>| {
        let mut worker = worker.borrow_mut();
        worker.ask("drop")?;
        worker.figure(&format!("touch {unit} {TOUCHES_MAX}")).map(|ns| ns / 1e3)
    };
    let mut row = Case::new(case, "us", Better::Lower, || touch(&worker))
        .peer("touch of one 4 KiB page of a file in the page cache", || touch(peer))
        .measure(setting.rounds);
    if unit < fault_unit && row.ours.is_some() {
        row.why = Some("the smallest fault unit is 64 KiB: these are touches of its 4 KiB pages".to_owned());
    }
    drop(worker);
    // The memory goes to the next unit; what is left is removed with the ground.
    if let (Ok(pool), Ok(name)) = (home.pool(), super::content::name(&object)) {
        let _ = pool.remove(&name);
    }
    row
}

/// Faults and system time to touch every 4 KiB of an object that is on the host, by a program that maps it anew.
fn system_time(
    setting: &Setting,
    ground: &Ground,
    home: &BenchNode,
    near: &BenchNode,
    bytes: u64,
) -> Result<Vec<Row>, Failure> {
    const OBJECT: &str = "bench/whole";
    put(&home.pool()?, OBJECT, bytes)?;
    let file = ground.folder().join("whole");
    write_file(&file, bytes)?;
    let rack = RefCell::new(ground.machine_on(home, &[])?);
    let ours = RefCell::new(ground.machine_on(near, &[])?);
    let peer = RefCell::new(ground.machine()?);
    let path = ground.mount().join(OBJECT).display().to_string();
    ours.borrow_mut().ask(&format!("map {path}"))?;
    ours.borrow_mut().ask("scan")?;
    let system = |worker: &RefCell<Worker>, path: &str, is_random: bool, node: Option<&BenchNode>| {
        let mut worker = worker.borrow_mut();
        worker.ask("unmap")?;
        let node_before = node.map_or(0.0, BenchNode::system_us);
        let before = worker.ask("usage")?;
        worker.ask(&format!("map {path}"))?;
        if is_random {
            worker.ask("random")?;
        }
        worker.ask("touch 4096")?;
        let after = worker.ask("usage")?;
        let node_after = node.map_or(0.0, BenchNode::system_us);
        let faults = after[0] + after[1] - before[0] - before[1];
        Ok([(after[3] - before[3] + node_after - node_before) / 1e6, faults])
    };
    let file = file.display().to_string();
    let mut rows = Vec::new();
    for (index, case, unit) in [(0, "systime", "s"), (1, "faults", "faults")] {
        let name = format!("{case}-{}GiB", bytes >> 30);
        let row = Case::new(name, unit, Better::Lower, || system(&ours, &path, false, Some(near)).map(|both| both[index]))
            .limit("mapped inside the rack", || system(&rack, &path, false, None).map(|both| both[index]))
            .peer("mmap of a file in the page cache, 4 KiB faults (MADV_RANDOM)", || {
                system(&peer, &file, true, None).map(|both| both[index])
            })
            .why("the object of 8 GiB of the name, its cache and the file do not fit into this machine's memory at once")
            .measure(setting.rounds);
        rows.push(row);
    }
    Ok(rows)
}
