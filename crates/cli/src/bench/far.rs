//! `far-scan` and `far-random`: a program whose memory is twice its local budget reads it in order, and at random places.

pub mod apps;
pub mod isolation;
mod machine;
pub mod options;
pub mod overhead;
pub mod swap;
pub mod switch;
pub mod toucher;
pub mod tune;

use super::case::Case;
use super::ground::{BenchNode, Ground, NodePlan};
use super::report::{Better, Row};
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_os::idle::Wakefulness;
use std::process::Command;
use swap::{Kind, Swap};

/// Beside the data: the program itself and the libraries that it loads.
const BESIDE_BYTES: u64 = 32 << 20;
/// The lending node fetches nothing itself.
const LENDER_CACHE_BYTES: u64 = 4 << 20;
/// For how long a figure is taken, in milliseconds; the second for `--quick`.
const TIMES_MS: [u64; 2] = [3000, 300];

/// Reading in order.
pub struct FarScan;
/// Reading at random places.
pub struct FarRandom;

impl Bench for FarScan {
    fn name(&self) -> &'static str {
        "far-scan"
    }

    fn subject(&self) -> &'static str {
        "a program with twice as much memory as may be local, reading all of it in order"
    }

    fn switches(&self) -> &'static [&'static str] {
        &["HINTERLAND_FAR_TOGETHER=0", "HINTERLAND_FAR_READERS=0"]
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let mut rows = cases(setting, &SCAN, false)?;
        rows.push(machine::copies(setting));
        rows.push(machine::disk(setting, Ground::new(setting, 0)?.folder()));
        Ok(rows)
    }
}

impl Bench for FarRandom {
    fn name(&self) -> &'static str {
        "far-random"
    }

    fn subject(&self) -> &'static str {
        "a program with twice as much memory as may be local, reading pages of it at random"
    }

    fn switches(&self) -> &'static [&'static str] {
        &[
            "HINTERLAND_FAR_FOLLOW=0",
            "HINTERLAND_FAR_LOOK=0",
            "HINTERLAND_FAR_GUESS=0",
            "HINTERLAND_FAR_TRENDS=0",
        ]
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let mut rows = cases(setting, &RANDOM, false)?;
        match Wakefulness::begin() {
            Ok(_) => rows.extend(cases(setting, &RANDOM, true)?),
            Err(error) => (setting.say)(&format!("far-random: without `--awake`: {error}")),
        }
        Ok(rows)
    }
}

/// How memory is read.
struct Reading {
    /// What the worker is told.
    line: &'static str,
    /// Of the figures.
    unit: &'static str,
    /// What moves at once.
    move_unit: &'static str,
}

const SCAN: Reading = Reading { line: "scan", unit: "GB/s", move_unit: "2M" };
const RANDOM: Reading = Reading { line: "random", unit: "touches/s", move_unit: "4K" };

/// One row for each back end, with memory that is all local as the limit and the kernel's swap as the peer; with processors that are kept awake
/// for ours while it is served, and for the others all the time.
fn cases(
    setting: &Setting,
    Reading { line, unit, move_unit }: &Reading,
    is_awake: bool,
) -> Result<Vec<Row>, Failure> {
    let (bytes, local) = setting.far.sizes(setting.quick)?;
    let ground = Ground::new(setting, 0)?;
    let question = format!("{line} {}", TIMES_MS[usize::from(setting.quick)]);
    let disk = format!("ssd:{}@{}", ground.folder().display(), 2 * bytes);
    let back_ends = [
        ("lz4", "lz4", Kind::Zram, "zram swap"),
        ("pool", "pool", Kind::Zram, "zram swap"),
        ("ssd", disk.as_str(), Kind::Disk, "disk swap"),
    ];
    let mut rows = Vec::new();
    for (far_name, far, kind, peer_name) in back_ends {
        let name = if is_awake { format!("{far_name}-awake") } else { far_name.to_owned() };
        (setting.say)(&format!("far-{line}: {name}"));
        // Its memory is used from the first byte on: it is there only while it is measured.
        let node = if far_name == "pool" { Some(lender(&ground, bytes)?) } else { None };
        let mut swap = Swap::start(&ground, kind, 2 * bytes);
        let mut peer = match &mut swap {
            Ok(swap) => swapped(setting, swap, bytes, local),
            Err(failure) => Err(failure.clone()),
        };
        let local_bytes = (local + BESIDE_BYTES).to_string();
        let mut words = vec!["--local", &local_bytes, "--far", far, "--far-unit", move_unit];
        words.extend(is_awake.then_some("--awake"));
        let mut ours = far_program(setting, &ground, node.as_ref(), &words, bytes)?;
        let mut limit = plain_program(setting, bytes)?;
        let awake_figure = |worker: &mut Worker| {
            // Dropped after the figure.
            let _awake = is_awake.then(Wakefulness::begin);
            worker.figure(&question)
        };
        let case = Case::new(name, unit, Better::Higher, || ours.figure(&question))
            .limit("the same with all of its memory local", || awake_figure(&mut limit));
        let way = peer.as_mut().map(|peer| || awake_figure(peer)).map_err(|failure| &*failure);
        rows.push(case.peer_or_why(peer_name, way).measure(setting.rounds));
    }
    Ok(rows)
}

/// A node of the same rack with memory for all that can be far.
fn lender(ground: &Ground, bytes: u64) -> Result<BenchNode, Failure> {
    let (capacity_bytes, cache_bytes) = (bytes + bytes / 4, LENDER_CACHE_BYTES);
    ground.node(NodePlan { name: "far-lender", capacity_bytes, cache_bytes, ..NodePlan::default() })
}

/// The program with far memory, its memory filled.
fn far_program(
    setting: &Setting,
    ground: &Ground,
    node: Option<&BenchNode>,
    words: &[&str],
    bytes: u64,
) -> Result<Worker, Failure> {
    let mut command = match node {
        Some(node) => ground.run_on(node, words),
        None => {
            let mut command = Command::new(&setting.program);
            command.args(["--quiet", "run"]).args(words).arg("--");
            command
        }
    };
    command.arg(&setting.program);
    filled("the program with far memory", command, bytes)
}

/// The program with all of its memory local, filled.
fn plain_program(setting: &Setting, bytes: u64) -> Result<Worker, Failure> {
    filled("the program", Command::new(&setting.program), bytes)
}

/// The program with swap, its memory filled.
fn swapped(setting: &Setting, swap: &mut Swap, bytes: u64, local: u64) -> Result<Worker, Failure> {
    filled("the program with swap", swap.command(&setting.program, local + BESIDE_BYTES)?, bytes)
}

fn filled(what: &str, mut command: Command, bytes: u64) -> Result<Worker, Failure> {
    command.args(["bench", toucher::NAME]);
    let mut worker = Worker::start(what, command)?;
    worker.words(&format!("fill {bytes}"))?;
    Ok(worker)
}
