//! `far-scan` and `far-random`: a program whose memory is twice its local budget reads it in order, and at random places.

use super::case::Case;
use super::report::{Better, Row};
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use std::io::{BufRead, Write};
use std::process::Command;
use std::time::{Duration, Instant};

/// The worker's name.
const TOUCHER: &str = "far-toucher";
/// The memory of the program, and how much of it may be local.
const SIZES: [(u64, u64); 2] = [(2 << 30, 1 << 30), (256 << 20, 128 << 20)];
/// Beside the data: the program itself and the libraries that it loads.
const BESIDE_BYTES: u64 = 32 << 20;
const PAGE_WORDS: usize = 512;
const NO_PEER: &str = "swap under a memory control group is not set up by this bench";
/// For how long touches at random places are counted.
const RANDOM_TIME: [Duration; 2] = [Duration::from_secs(2), Duration::from_millis(300)];

/// Reading in order.
pub struct FarScan;
/// Reading at random places.
pub struct FarRandom;
/// The program that reads.
pub struct Toucher;

impl Bench for FarScan {
    fn name(&self) -> &'static str {
        "far-scan"
    }

    fn subject(&self) -> &'static str {
        "a program with twice as much memory as may be local, reading all of it in order"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        cases(setting, "scan", "GB/s", "2M")
    }
}

impl Bench for FarRandom {
    fn name(&self) -> &'static str {
        "far-random"
    }

    fn subject(&self) -> &'static str {
        "a program with twice as much memory as may be local, reading pages of it at random"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        cases(setting, "random", "touches/s", "4K")
    }
}

/// One row for each back end, with memory that is all local as the limit.
fn cases(
    setting: &Setting,
    line: &'static str,
    unit: &'static str,
    move_unit: &str,
) -> Result<Vec<Row>, Failure> {
    let (bytes, local) = SIZES[usize::from(setting.quick)];
    let folder = std::env::temp_dir();
    let mut rows = Vec::new();
    for (name, far) in [("lz4", "lz4".to_owned()), ("ssd", format!("ssd:{}@{}", folder.display(), 2 * bytes))]
    {
        (setting.say)(&format!("far-{line}: {name}"));
        let mut command = Command::new(&setting.program);
        command.args(["--quiet", "run", "--local", &(local + BESIDE_BYTES).to_string(), "--far", &far]);
        command.args(["--far-unit", move_unit, "--"]).arg(&setting.program).args(["bench", TOUCHER]);
        let mut plain = Command::new(&setting.program);
        plain.args(["bench", TOUCHER]);
        let mut ours = Worker::start("the program with far memory", command)?;
        let mut limit = Worker::start("the program", plain)?;
        let quick = if setting.quick { " quick" } else { "" };
        for worker in [&mut ours, &mut limit] {
            worker.words(&format!("fill {bytes}"))?;
        }
        let question = format!("{line}{quick}");
        let case = Case::new(name, unit, Better::Higher, || ours.figure(&question))
            .limit("the same with all of its memory local", || limit.figure(&question))
            .why(NO_PEER);
        rows.push(case.measure(setting.rounds));
    }
    Ok(rows)
}

impl Bench for Toucher {
    fn name(&self) -> &'static str {
        TOUCHER
    }

    fn subject(&self) -> &'static str {
        "reads its own memory as it is told"
    }

    fn run(&self, _: &Setting) -> Result<Vec<Row>, Failure> {
        let mut memory = Vec::new();
        let mut state = 88_172_645_463_325_252u64;
        for line in std::io::stdin().lock().lines() {
            let line = line.map_err(|error| Failure::new(format!("no line: {error}"), "report this"))?;
            let quick = line.ends_with(" quick");
            let answer = match line.split(' ').collect::<Vec<_>>().as_slice() {
                ["fill", bytes] => fill(&mut memory, bytes.parse().unwrap_or(0)),
                ["scan", ..] => scan(&memory),
                ["random", ..] => random(&memory, &mut state, RANDOM_TIME[usize::from(quick)]),
                _ => "error of an unknown line".to_owned(),
            };
            let mut output = std::io::stdout().lock();
            writeln!(output, "{answer}")
                .and_then(|()| output.flush())
                .map_err(|error| Failure::output(&error))?;
        }
        Err(Failure { silent: true, ..Failure::new("nobody asks any more", "") })
    }
}

/// What stands at a place: half of it compresses, as in many programs.
const fn word(index: usize) -> u64 {
    if index.is_multiple_of(2) { index as u64 } else { (index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) }
}

fn fill(memory: &mut Vec<u64>, bytes: usize) -> String {
    *memory = Vec::with_capacity(bytes / 8);
    memory.extend((0..bytes / 8).map(word));
    "0".to_owned()
}

/// Reads a word of each cache line and compares one of each page.
fn scan(memory: &[u64]) -> String {
    let begun = Instant::now();
    let mut sum = 0u64;
    for (page, words) in memory.as_chunks::<PAGE_WORDS>().0.iter().enumerate() {
        sum = words.iter().step_by(8).fold(sum, |sum, word| sum.wrapping_add(*word));
        if words[9] != word(page * PAGE_WORDS + 9) {
            return format!("error of a wrong word in page {page}");
        }
    }
    std::hint::black_box(sum);
    format!("{}", (memory.len() * 8) as f64 / begun.elapsed().as_secs_f64() / 1e9)
}

fn random(memory: &[u64], state: &mut u64, time: Duration) -> String {
    let begun = Instant::now();
    let mut touches = 0u64;
    while !touches.is_multiple_of(64) || begun.elapsed() < time {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        let index = (*state % (memory.len() as u64).max(1)) as usize;
        if memory.get(index).is_some_and(|found| *found != word(index)) {
            return format!("error of a wrong word at {index}");
        }
        touches += 1;
    }
    format!("{}", touches as f64 / begun.elapsed().as_secs_f64())
}
