//! `far-switch`: what it takes to move a program's far memory from one back end to another while the program touches it.

use super::swap::{Kind, Swap};
use super::toucher::LONGEST;
use super::{BESIDE_BYTES, filled, plain_program, swapped};
use crate::bench::case::row;
use crate::bench::ground::Ground;
use crate::bench::report::{Better, Row};
use crate::bench::rounds::Samples;
use crate::bench::worker::Worker;
use crate::bench::{Bench, Setting};
use crate::failure::Failure;
use hinterland_os::{DirectBuffer, DirectFile, Transfer};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// For how long the program touches between two looks whether all has moved, in milliseconds.
const LOOK_MS: u64 = 200;
/// For how long it is looked at without a switch, in milliseconds; the second for `--quick`.
const QUIET_MS: [u64; 2] = [3000, 400];
/// Seconds that a switch may take.
const WAIT_S: &str = "300";
/// What the disk is measured with: so many bytes at once, of so many.
const PIECE_BYTES: usize = 64 << 10;
const PIECES: usize = 32;
/// From compressed memory to a disk, and back.
const WAYS: [&str; 2] = ["lz4-to-ssd", "ssd-to-lz4"];
const PEER: &str = "swapon and swapoff, zram and a disk";

/// The bench.
pub struct FarSwitch;

impl Bench for FarSwitch {
    fn name(&self) -> &'static str {
        "far-switch"
    }

    fn subject(&self) -> &'static str {
        "far memory that moves to another back end while its program touches it"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let (bytes, local) = setting.far.sizes(setting.quick)?;
        let quiet = QUIET_MS[usize::from(setting.quick)];
        let ground = Ground::new(setting, 0)?;
        let disk = RawDisk::new(ground.folder(), bytes - local)?;
        let mut ours = Ours::start(setting, &ground, bytes, local)?;
        let mut plain = plain_program(setting, bytes)?;
        let mut peer = Kernel::start(setting, &ground, bytes, local);
        let mut found = Found::default();
        for round in 0..=setting.rounds {
            // The first is thrown away.
            if round == 1 {
                found = Found::default();
            }
            (setting.say)(&format!("far-switch: round {round} of {}", setting.rounds));
            found.add("quiet", 0, longest_ms(&mut ours.worker, quiet)?);
            found.add("quiet", 1, longest_ms(&mut plain, quiet)?);
            for (way, name) in WAYS.into_iter().enumerate() {
                found.add_cost(name, 0, ours.switch(way)?);
                found.add(name, 1, disk.seconds(way == 0)?);
                if let Ok(kernel) = &mut peer {
                    match kernel.switch(way) {
                        Ok(cost) => found.add_cost(name, 2, cost),
                        Err(failure) => peer = Err(failure),
                    }
                }
            }
        }
        let why = peer.as_ref().err();
        Ok(found
            .rows(why.map(|failure| format!("{PEER}: {} (hint: {})", failure.text, failure.hint)).as_deref()))
    }
}

/// What a switch cost.
#[derive(Clone, Copy, Debug)]
struct Cost {
    /// Until nothing is left where it was.
    taken_s: f64,
    /// The longest wait for one touch meanwhile.
    pause_ms: f64,
}

/// A program with far memory.
struct Ours {
    worker: Worker,
    program: std::path::PathBuf,
    name: String,
    back_ends: [String; 2],
}

impl Ours {
    fn start(setting: &Setting, ground: &Ground, bytes: u64, local: u64) -> Result<Self, Failure> {
        let name = format!("far-switch-{}", std::process::id());
        let mut command = Command::new(&setting.program);
        command.args(["--quiet", "run", "--name", &name, "--far", "lz4", "--local"]);
        command.arg((local + BESIDE_BYTES).to_string()).arg("--").arg(&setting.program);
        let worker = filled("the program with far memory", command, bytes)?;
        let disk = format!("ssd:{}@{}", ground.folder().display(), 2 * bytes);
        Ok(Self { worker, program: setting.program.clone(), name, back_ends: [disk, "lz4".to_owned()] })
    }

    fn switch(&mut self, way: usize) -> Result<Cost, Failure> {
        let mut command = Command::new(&self.program);
        command.args(["switch", &self.name, "--far", &self.back_ends[way], "--wait", WAIT_S, "--json"]);
        let work = move || {
            let failed = |why: String| Failure::new(format!("hinterland switch: {why}"), "run it by hand");
            let output = command.stdin(Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
            let told = serde_json::from_slice::<Value>(&output.stdout).ok();
            match told.as_ref().and_then(|told| told["seconds"].as_f64()) {
                Some(taken_s) if output.status.success() => Ok(taken_s),
                _ => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
            }
        };
        beside(&mut self.worker, work)
    }
}

/// The same program with the kernel's swap.
struct Kernel {
    worker: Worker,
    // Behind the program: what is swapped out would else have to come back.
    swap: Swap,
    bytes: u64,
}

impl Kernel {
    fn start(setting: &Setting, ground: &Ground, bytes: u64, local: u64) -> Result<Self, Failure> {
        let mut swap = Swap::start(ground, Kind::Zram, 2 * bytes)?;
        let worker = swapped(setting, &mut swap, bytes, local)?;
        Ok(Self { worker, swap, bytes: 2 * bytes })
    }

    fn switch(&mut self, way: usize) -> Result<Cost, Failure> {
        let kinds = [Kind::Zram, Kind::Disk];
        let (old, new) = (kinds[way], kinds[1 - way]);
        let (swap, bytes) = (&mut self.swap, self.bytes);
        beside(&mut self.worker, move || {
            let begun = Instant::now();
            swap.exchange(old, new, bytes)?;
            Ok(begun.elapsed().as_secs_f64())
        })
    }
}

/// Does some work while a program touches its memory; the work says how long it took.
fn beside(worker: &mut Worker, work: impl FnOnce() -> Result<f64, Failure> + Send) -> Result<Cost, Failure> {
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::channel();
        // Who receives waits until there is something: it is never gone before.
        scope.spawn(move || drop(send.send(work())));
        let mut pause_ms = 0f64;
        loop {
            pause_ms = pause_ms.max(longest_ms(worker, LOOK_MS)?);
            match receive.recv_timeout(Duration::ZERO) {
                Ok(taken_s) => return Ok(Cost { taken_s: taken_s?, pause_ms }),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Failure::new("the switch ended without a word", "report this"));
                }
            }
        }
    })
}

/// The longest wait for a touch within so many milliseconds.
fn longest_ms(worker: &mut Worker, time_ms: u64) -> Result<f64, Failure> {
    let figures = worker.ask(&format!("paced {time_ms}"))?;
    let longest = figures.get(LONGEST).copied();
    longest.map(|us| us / 1e3).ok_or_else(|| Failure::new("the program told no longest wait", "report this"))
}

/// The disk, written and read in large pieces, many at once.
struct RawDisk {
    file: DirectFile,
    bytes: u64,
}

impl RawDisk {
    fn new(folder: &Path, bytes: u64) -> Result<Self, Failure> {
        let bytes = bytes.next_multiple_of((PIECES * PIECE_BYTES) as u64);
        let file = DirectFile::open(&folder.join("raw"), bytes).map_err(|error| Failure::of(&error))?;
        Ok(Self { file, bytes })
    }

    fn seconds(&self, writes: bool) -> Result<f64, Failure> {
        let mut buffer = DirectBuffer::new(PIECES * PIECE_BYTES).map_err(|error| Failure::of(&error))?;
        buffer.bytes_mut().fill(7);
        let begun = Instant::now();
        for start in (0..self.bytes).step_by(PIECES * PIECE_BYTES) {
            let pieces = buffer.bytes_mut().chunks_mut(PIECE_BYTES);
            let places = (start..).step_by(PIECE_BYTES);
            let mut transfers: Vec<Transfer<'_>> = places
                .zip(pieces)
                .map(
                    |(at, piece)| if writes { Transfer::Write(at, piece) } else { Transfer::Read(at, piece) },
                )
                .collect();
            for result in self.file.transfer(&mut transfers) {
                result.map_err(|error| Failure::file("measuring the disk with", Path::new("raw"), &error))?;
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// Figures of all rounds by their case; ours, the limit and the peer.
#[derive(Default)]
struct Found {
    seconds: [[Samples; 3]; WAYS.len()],
    pauses: [[Samples; 3]; WAYS.len()],
    quiet: [Samples; 2],
}

impl Found {
    fn add(&mut self, case: &str, column: usize, value: f64) {
        match WAYS.iter().position(|way| *way == case) {
            Some(way) => self.seconds[way][column].add(value),
            None => self.quiet[column].add(value),
        }
    }

    fn add_cost(&mut self, case: &str, column: usize, cost: Cost) {
        let Some(way) = WAYS.iter().position(|way| *way == case) else { return };
        self.seconds[way][column].add(cost.taken_s);
        self.pauses[way][column].add(cost.pause_ms);
    }

    /// For each way the seconds that it took and the longest wait for a touch.
    fn rows(&self, why: Option<&str>) -> Vec<Row> {
        let why = why.map(str::to_owned);
        let mut rows = Vec::new();
        for (way, name) in WAYS.into_iter().enumerate() {
            let peer = |words: &str| why.is_none().then(|| format!("{PEER}{words}"));
            let limit = "as many bytes written to the disk, or read from it, 2 MiB at once".to_owned();
            rows.push(row(
                name,
                "s",
                Better::Lower,
                &self.seconds[way],
                [Some(limit), peer("")],
                why.clone(),
            ));
            let [ours, _, others] = &self.pauses[way];
            let limit = "the same without a switch".to_owned();
            rows.push(row(
                format!("{name}-pause"),
                "ms",
                Better::Lower,
                &[ours.clone(), self.quiet[0].clone(), others.clone()],
                [Some(limit), peer(", the longest wait")],
                why.clone(),
            ));
        }
        let limit = "a program with all of its memory here".to_owned();
        rows.push(row("quiet-pause", "ms", Better::Lower, &self.quiet, [Some(limit), None], None));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_has_its_time_and_its_longest_wait_with_what_they_are_without_a_switch() {
        let mut found = Found::default();
        for (way, name) in WAYS.into_iter().enumerate() {
            let taken_s = 2.0 + way as f64;
            found.add_cost(name, 0, Cost { taken_s, pause_ms: 20.0 });
            found.add(name, 1, 0.5);
            found.add_cost(name, 2, Cost { taken_s: 30.0, pause_ms: 900.0 });
        }
        found.add("quiet", 0, 3.0);
        found.add("quiet", 1, 0.1);
        let told = |rows: &[Row]| -> Vec<_> {
            rows.iter().map(|row| (row.case.clone(), row.ours, row.limit, row.peer)).collect()
        };
        let expected = [
            ("lz4-to-ssd", 2.0, 0.5, Some(30.0)),
            ("lz4-to-ssd-pause", 20.0, 3.0, Some(900.0)),
            ("ssd-to-lz4", 3.0, 0.5, Some(30.0)),
            ("ssd-to-lz4-pause", 20.0, 3.0, Some(900.0)),
            ("quiet-pause", 3.0, 0.1, None),
        ];
        let expected: Vec<_> =
            expected.map(|(case, ours, limit, peer)| (case.to_owned(), Some(ours), Some(limit), peer)).into();
        assert_eq!(told(&found.rows(None)), expected);
        let without = found.rows(Some("swapon: no right"));
        assert!(without[..4].iter().all(|row| row.peer.is_none() && row.why.is_some()));
    }

    #[test]
    fn work_that_fails_beside_a_program_says_why() {
        let mut command = Command::new("sh");
        command.args(["-c", "while read line; do echo 1 2 3 4 5000; done"]);
        let mut worker = Worker::start("a shell", command).unwrap();
        let cost = beside(&mut worker, || Ok(1.5)).unwrap();
        assert_eq!((cost.taken_s, cost.pause_ms), (1.5, 5.0));
        let failure = beside(&mut worker, || Err(Failure::new("no", "try"))).unwrap_err();
        assert_eq!(failure.text, "no");
    }
}
