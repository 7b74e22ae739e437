//! `fault`: what the touch of a fault unit costs when its bytes are on the host, by unit; and system time for a whole
//! object, beside the kernel's own 4 KiB faults.

use super::case::Case;
use super::content::{put, write_file};
use super::ground::{BenchNode, Ground, NodePlan};
use super::report::{Better, Row};
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_os::probe::Machine;
use std::cell::RefCell;

const UNITS: [(&str, u64); 4] =
    [("4KiB", 4 << 10), ("64KiB", 64 << 10), ("2MiB", 2 << 20), ("16MiB", 16 << 20)];
/// Touches of a round at most.
const TOUCHES_MAX: u64 = 4_096;

/// Bytes of the object that is touched whole, where there is room for it.
const WHOLE_BYTES: u64 = 8 << 30;
/// Bytes of the file that the kernel maps again and again beside it.
const PAGED_BYTES: u64 = 1 << 30;

/// The bench.
pub struct Fault;

impl Bench for Fault {
    fn name(&self) -> &'static str {
        "fault"
    }

    fn subject(&self) -> &'static str {
        "touches of fault units that are on the host, and system time to map a whole object"
    }

    fn switches(&self) -> &'static [&'static str] {
        &["huge-pages", "HINTERLAND_NO_SYMMETRIC=1"]
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let bytes: u64 = if setting.quick { 512 << 20 } else { 1 << 30 };
        let whole = if setting.quick { 1 << 30 } else { whole_bytes(bytes) };
        let ground = Ground::new(setting, 2 * whole + 2 * bytes + (512 << 20))?;
        let plan =
            NodePlan { capacity_bytes: 64 << 20, cache_bytes: whole + (512 << 20), ..NodePlan::default() };
        let home = ground.node(NodePlan {
            name: "home",
            capacity_bytes: whole + bytes * 2 + (128 << 20),
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

/// Bytes of the object that is touched whole: as many as this machine has room for twice, at its home and in the cache.
fn whole_bytes(unit_bytes: u64) -> u64 {
    let room = Machine::probe().memory_available_bytes;
    let needed = |whole: u64| 2 * whole + 2 * unit_bytes + PAGED_BYTES + (512 << 20);
    if room >= needed(WHOLE_BYTES) { WHOLE_BYTES } else { WHOLE_BYTES / 2 }
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
    let near = match straight(ground, home, &object) {
        Ok(near) => RefCell::new(near),
        Err(failure) => return Row::absent(case, "us", Better::Lower, failure.text),
    };
    let touch = |worker: &RefCell<Worker>| {
        let mut worker = worker.borrow_mut();
        worker.ask("drop")?;
        worker.figure(&format!("touch {unit} {TOUCHES_MAX}")).map(|ns| ns / 1e3)
    };
    let mut row = Case::new(case, "us", Better::Lower, || touch(&worker))
        .limit("the same touch of the object mapped inside the rack", || touch(&near))
        .peer("touch of a file in the page cache, 4 KiB pages", || touch(peer))
        .measure(setting.rounds);
    if unit < fault_unit && row.ours.is_some() {
        row.why = Some("the smallest fault unit is 64 KiB: these are touches of its 4 KiB pages".to_owned());
    }
    drop((worker, near));
    // The memory goes to the next unit; what is left is removed with the ground.
    if let (Ok(pool), Ok(name)) = (home.pool(), super::content::name(&object)) {
        let _ = pool.remove(&name);
    }
    row
}

/// A program that has an object of its own rack mapped, and has touched it.
fn straight(ground: &Ground, home: &BenchNode, object: &str) -> Result<Worker, Failure> {
    let mut worker = ground.machine_on(home, &[])?;
    worker.ask(&format!("map {}", ground.mount().join(object).display()))?;
    worker.ask("scan")?;
    Ok(worker)
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
    let path = ground.mount().join(OBJECT).display().to_string();
    let rack = RefCell::new(straight(ground, home, OBJECT)?);
    let ours = RefCell::new(ground.machine_on(near, &[])?);
    ours.borrow_mut().ask(&format!("map {path}"))?;
    ours.borrow_mut().ask("scan")?;
    let peer = RefCell::new(ground.machine()?);
    let paged = format!("paged {bytes} {}", PAGED_BYTES.min(bytes));
    peer.borrow_mut().ask(&paged)?;
    peer.borrow_mut().ask("pass 4096 1")?;
    let map = format!("map {path}");
    let case = |index: usize, case: &str, unit: &'static str| {
        let name = format!("{case}-{}GiB", bytes >> 30);
        Case::new(name, unit, Better::Lower, || Ok(used(&ours, &map, "pass 4096 0", Some(near))?[index]))
            .limit("mapped inside the rack", || Ok(used(&rack, &map, "pass 4096 0", None)?[index]))
            .peer("a file in memory with 4 KiB pages, again and again, one fault a page (stores: no fault-around)", || {
                Ok(used(&peer, &paged, "pass 4096 1", None)?[index])
            })
            .measure(setting.rounds)
    };
    Ok(vec![case(0, "systime", "ms"), case(1, "faults", "faults")])
}

/// Milliseconds of system time, the node's included, and faults, to map anew and touch everything.
fn used(
    worker: &RefCell<Worker>,
    map: &str,
    touch: &str,
    node: Option<&BenchNode>,
) -> Result<[f64; 2], Failure> {
    let mut worker = worker.borrow_mut();
    worker.ask("unmap")?;
    let node_before = node.map_or(0.0, BenchNode::system_us);
    let before = worker.ask("usage")?;
    worker.ask(map)?;
    worker.ask(touch)?;
    let after = worker.ask("usage")?;
    let node_us = node.map_or(0.0, BenchNode::system_us) - node_before;
    let [Some(faults), Some(system_us)] = [[0, 1].as_slice(), [3].as_slice()].map(|fields| {
        fields.iter().map(|&field| Some(after.get(field)? - before.get(field)?)).sum::<Option<f64>>()
    }) else {
        return Err(Failure::new("the machine told no usage", "report this"));
    };
    Ok([(system_us + node_us) / 1e3, faults])
}
