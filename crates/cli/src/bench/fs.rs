//! `fs`: fio on an object in a mount, beside fio on a file of a tmpfs.

use super::case::Case;
use super::content::{Content, name, write_file};
use super::ground::{BenchNode, Ground, NodePlan};
use super::report::{Better, Row};
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_pool::PutOptions;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of the file: too many for the processor's cache. A multiple of 2 MiB, so that the kernel can read the object by itself.
const FILE_BYTES: u64 = 256 << 20;
/// The same when there is no figure to quote.
const QUICK_BYTES: u64 = 8 << 20;
/// Seconds that fio runs for a figure.
const SECONDS: u64 = 3;
/// What is compared with.
const TMPFS: &str = "fio on a tmpfs";
/// Where there is always one.
const TMPFS_FOLDER: &str = "/dev/shm";

/// The bench.
pub struct Fs;

/// One way of reading or writing.
struct Way {
    case: &'static str,
    unit: &'static str,
    pattern: &'static str,
    block: &'static str,
    /// Whether operations are counted and not bytes.
    counts: bool,
}

const WAYS: [Way; 4] = [
    Way { case: "read-4KiB-random", unit: "op/s", pattern: "randread", block: "4k", counts: true },
    Way { case: "read-1MiB-sequential", unit: "MB/s", pattern: "read", block: "1m", counts: false },
    Way { case: "write-4KiB-random", unit: "op/s", pattern: "randwrite", block: "4k", counts: true },
    Way { case: "write-1MiB-sequential", unit: "MB/s", pattern: "write", block: "1m", counts: false },
];

impl Bench for Fs {
    fn name(&self) -> &'static str {
        "fs"
    }

    fn subject(&self) -> &'static str {
        "fio reading and writing an object of this host as a file"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        if let Err(failure) = fio(Command::new("fio").arg("--version")) {
            let why = format!("{} (hint: {})", failure.text, failure.hint);
            let absent = |way: &Way| Row::absent(way.case, way.unit, Better::Higher, why.clone());
            return Ok(WAYS.iter().map(absent).collect());
        }
        let bytes = if setting.quick { QUICK_BYTES } else { FILE_BYTES };
        let ground = Ground::new(setting, 0)?;
        // Not in huge pages of hugetlbfs: no file of those is passed through.
        let more = ["--backing", "transparent"];
        let plan = NodePlan { name: "home", capacity_bytes: 4 * bytes, more: &more, ..NodePlan::default() };
        let home = ground.node(plan)?;
        let options = PutOptions { bytes: Some(bytes), ..PutOptions::default() };
        home.pool()?.put(&mut Content::new(bytes), &name("bench/file")?, &options, &mut |_| {})?;
        let tmpfs = Tmpfs::new()?;
        write_file(&tmpfs.folder.join("file"), bytes)?;
        let scene = Scene { ground: &ground, home: &home, tmpfs: &tmpfs.folder, bytes, quick: setting.quick };
        let mut rows = Vec::new();
        for way in &WAYS {
            (setting.say)(&format!("fs: {}", way.case));
            let row = Case::new(way.case, way.unit, Better::Higher, || scene.ours(way))
                .limit(TMPFS, || scene.limit(way))
                .why("the peer is the tmpfs, which is the limit: both are files in the memory of this host");
            rows.push(row.measure(setting.rounds));
        }
        Ok(rows)
    }
}

/// A folder on a tmpfs that goes with the bench.
struct Tmpfs {
    folder: PathBuf,
}

impl Tmpfs {
    fn new() -> Result<Self, Failure> {
        let folder = Path::new(TMPFS_FOLDER).join(format!("hinterland-bench-fs-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| Failure::file("making", &folder, &error))?;
        Ok(Self { folder })
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // What cannot be removed is told by whoever looks there.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

struct Scene<'bench> {
    ground: &'bench Ground,
    home: &'bench BenchNode,
    tmpfs: &'bench Path,
    bytes: u64,
    quick: bool,
}

impl Scene<'_> {
    /// The same program in a mount of its own; what it writes becomes an object when it ends.
    fn ours(&self, way: &Way) -> Result<f64, Failure> {
        let mut command = self.ground.run_on(self.home, &["--writable", "--no-preload"]);
        command.arg("fio");
        self.figure(command, &self.ground.mount().join("bench"), way)
    }

    fn limit(&self, way: &Way) -> Result<f64, Failure> {
        self.figure(Command::new("fio"), self.tmpfs, way)
    }

    fn figure(&self, mut command: Command, folder: &Path, way: &Way) -> Result<f64, Failure> {
        let seconds = if self.quick { 1 } else { SECONDS };
        command.args(["--name=file", "--ioengine=psync", "--thread", "--invalidate=0", "--randrepeat=1"]);
        command.args(["--allow_file_create=0", "--fallocate=none", "--time_based", "--output-format=json"]);
        command
            .arg(format!("--runtime={seconds}"))
            .arg(format!("--filename={}", folder.join("file").display()));
        command.arg(format!("--rw={}", way.pattern)).arg(format!("--bs={}", way.block));
        command.arg(format!("--size={}", self.bytes));
        let answer = fio(&mut command)?;
        let job = &answer["jobs"][0][if way.pattern.contains("write") { "write" } else { "read" }];
        let figure =
            if way.counts { job["iops"].as_f64() } else { job["bw_bytes"].as_f64().map(|rate| rate / 1e6) };
        figure.ok_or_else(|| Failure::new("fio printed no figure", "run fio by hand and look"))
    }
}

/// Runs fio; what it prints, if that is JSON.
fn fio(command: &mut Command) -> Result<Value, Failure> {
    let output = command
        .output()
        .map_err(|error| Failure::new(format!("fio cannot be started: {error}"), "apt-get install fio"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Failure::new(format!("fio failed: {words}"), "run fio by hand and look"));
    }
    // Notes of fio stand before what it prints as JSON.
    let text = String::from_utf8_lossy(&output.stdout);
    let from = text.find('{').unwrap_or(text.len());
    Ok(serde_json::from_str(&text[from..]).unwrap_or_default())
}
