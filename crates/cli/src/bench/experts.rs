//! `experts`: a mixture-of-experts model of 3.9 GB in less memory than it takes, from another rack and from disk, beside
//! all of it in memory.
//!
//! Ours: `hinterland run --budget` bounds the cache of the model; the private memory of the program (context, buffers)
//! comes on top of it. From disk: a control group bounds the page cache and the program's private memory together.

use super::ground::{BenchNode, Ground, NodePlan};
use super::report::{Better, Row};
use super::rounds::Samples;
use super::trace::Trace;
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_pool::PutOptions;
use hinterland_proto::control::Request;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Share of the model in words, and the memory.
const SHARES: [(&str, u64); 2] = [("64pct", 2400 << 20), ("43pct", 1600 << 20)];
/// How the kernel is asked to read from disk: nothing preloaded, else what the mapping is advised.
const SETTINGS: [(&str, Option<&str>); 3] =
    [("stock", None), ("normal", Some("normal")), ("random", Some("random"))];
/// Tokens before those that count: enough to fill the pipeline; a long batch would touch every expert.
const PREFILL: u32 = 8;
/// Tokens whose experts come in before those that count.
const SETTLING: u32 = 32;
/// Tokens of a round.
const TOKENS: u32 = 32;
/// Tokens from disk: some settings need seconds for one.
const DISK_TOKENS: u32 = 12;
/// Bytes of a matrix of an expert, three of which are an expert (1024 x 2048 weights of 4.5 bits).
const EXPERT_BYTES: u64 = 3 * 1024 * 2048 / 32 * 18;
const OBJECT: &str = "bench/experts.gguf";
const TEXT: &str = "/usr/share/common-licenses/GPL-3";
const STREAMS: usize = 4;

/// The bench.
pub struct Experts;

/// What was prepared, and what the machine can do.
struct Scene<'bench> {
    ground: &'bench Ground,
    prepared: PathBuf,
    model: PathBuf,
    model_bytes: u64,
    rounds: usize,
    settling: u32,
    tokens: u32,
    /// Threads of the program that compute.
    threads: u16,
}

/// Options of `experts`.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "experts")]
pub struct ExpertsOptions {
    /// Threads of llama.cpp that compute [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

impl ExpertsOptions {
    /// Whether any was given.
    pub fn any(&self) -> bool {
        self.threads.is_some()
    }

    fn threads(&self) -> u16 {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.unwrap_or_else(|| u16::try_from(processors()).unwrap_or(u16::MAX))
    }
}

/// What one setting gave: tokens a second and bytes moved for each.
#[derive(Default)]
struct Found {
    tokens_per_second: Samples,
    bytes_per_token: Samples,
}

impl Bench for Experts {
    fn name(&self) -> &'static str {
        "experts"
    }

    fn subject(&self) -> &'static str {
        "a mixture-of-experts model in less memory than it takes: from another rack, from disk, all in memory"
    }

    fn switches(&self) -> &'static [&'static str] {
        &["expert-prefetch", "layout", "probe", "loops"]
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let prepared = super::prepared::folder()?.join("experts");
        let model = super::prepared::file(&prepared.join("model.gguf"))?;
        super::prepared::file(&prepared.join("driver"))?;
        let model_bytes =
            fs::metadata(&model).map_err(|error| Failure::file("reading", &model, &error))?.len();
        let largest = SHARES[0].1;
        let ground = Ground::new(setting, model_bytes + largest + (256 << 20))?;
        let (settling, tokens) = if setting.quick { (8, 8) } else { (SETTLING, TOKENS) };
        let rounds = setting.rounds.min(5);
        let threads = setting.experts.threads();
        let scene =
            Scene { ground: &ground, prepared, model, model_bytes, rounds, settling, tokens, threads };
        (setting.say)("experts: all in memory");
        let (memory, trace) = scene.in_memory()?;
        (setting.say)("experts: putting the model");
        let plan = NodePlan { capacity_bytes: 64 << 20, cache_bytes: largest, ..NodePlan::default() };
        let home =
            ground.node(NodePlan { name: "home", capacity_bytes: model_bytes + (128 << 20), ..plan })?;
        let near = ground.node(NodePlan { name: "near", join: Some(&home.address), ..plan })?;
        scene.put(&home)?;
        let wire = scene.wire()?;
        let mut rows = vec![plain("memory-tokens", "tokens/s", Better::Higher, &memory.tokens_per_second)];
        for (share, budget) in SHARES {
            (setting.say)(&format!("experts: {share}, from the other rack"));
            let ours = scene.out_of_pool(&near, budget)?;
            let mut disk = Vec::new();
            for (word, advice) in SETTINGS {
                (setting.say)(&format!("experts: {share}, from disk, {word}"));
                disk.push((word, scene.out_of_disk(budget, advice)));
            }
            rows.extend(scene.rows(share, budget, &ours, &memory, &trace, wire, disk));
        }
        Ok(rows)
    }
}

impl Scene<'_> {
    fn driver(&self, mut command: Command, model: &Path) -> Result<Worker, Failure> {
        command.arg(self.prepared.join("driver")).arg(model).arg(TEXT);
        let mut worker = Worker::start("llama.cpp", command)?;
        worker.ask(&format!("threads {}", self.threads))?;
        Ok(worker)
    }

    /// Tokens a second with all of the model in memory, and which experts each token uses.
    fn in_memory(&self) -> Result<(Found, Trace), Failure> {
        let path = self.ground.folder().join("trace");
        let mut tracing = self.driver(Command::new("env"), &self.model)?;
        tracing.ask(&format!("trace {}", path.display()))?;
        tracing.ask("load")?;
        tracing.ask(&format!("prefill {PREFILL}"))?;
        tracing.ask(&format!("decode {}", self.settling + self.tokens * self.rounds as u32))?;
        drop(tracing);
        let trace = Trace::read(&path)?;
        let mut worker = self.driver(Command::new("env"), &self.model)?;
        let mut found = Found::default();
        self.warm(&mut worker)?;
        for _ in 0..self.rounds {
            let figures = self.decode(&mut worker, self.tokens)?;
            found.tokens_per_second.add(f64::from(self.tokens) / figures[0]);
        }
        Ok((found, trace))
    }

    fn warm(&self, worker: &mut Worker) -> Result<(), Failure> {
        worker.ask("load")?;
        worker.ask(&format!("prefill {PREFILL}"))?;
        worker.ask(&format!("decode {}", self.settling)).map(drop)
    }

    fn decode(&self, worker: &mut Worker, tokens: u32) -> Result<Vec<f64>, Failure> {
        let figures = worker.ask(&format!("decode {tokens}"))?;
        if figures.len() == 6 {
            Ok(figures)
        } else {
            Err(Failure::new("the driver said too little", "build it anew"))
        }
    }

    fn put(&self, home: &BenchNode) -> Result<(), Failure> {
        let mut file =
            fs::File::open(&self.model).map_err(|error| Failure::file("reading", &self.model, &error))?;
        let options = PutOptions { bytes: Some(self.model_bytes), ..PutOptions::default() };
        home.pool()?.put(&mut file, &super::content::name(OBJECT)?, &options, &mut |_| {})?;
        Ok(())
    }

    /// Bytes a second of a bare transfer, memory to memory.
    fn wire(&self) -> Result<f64, Failure> {
        let mut machine = self.ground.machine()?;
        machine.ask(&format!("serve {}", 256 << 20))?;
        let mut rates = Samples::default();
        for round in 0..=self.rounds {
            let rate = machine.figure(&format!("stream {STREAMS} {} 0", 1u64 << 30))?;
            if round > 0 {
                rates.add(rate * 1e9);
            }
        }
        rates.median().ok_or_else(|| Failure::new("no transfer was timed", "report this"))
    }

    /// Ours: a fresh cache, the text decoded up to the tokens that count, and those.
    fn out_of_pool(&self, near: &BenchNode, budget: u64) -> Result<Found, Failure> {
        let pool = near.pool()?;
        pool.session().call(&Request::DropCache { name: super::content::name(OBJECT)? })?;
        let command = self.ground.run_on(near, &["--budget", &budget.to_string()]);
        let mut worker = self.driver(command, &self.ground.mount().join(OBJECT))?;
        self.warm(&mut worker)?;
        let mut found = Found::default();
        for _ in 0..self.rounds {
            let before = pool.status()?.counters;
            let figures = self.decode(&mut worker, self.tokens)?;
            let after = pool.status()?.counters;
            let moved = after.network_received_bytes - before.network_received_bytes;
            found.tokens_per_second.add(f64::from(self.tokens) / figures[0]);
            found.bytes_per_token.add(moved as f64 / f64::from(self.tokens));
        }
        Ok(found)
    }

    /// The kernel's own way: the file mapped from disk by a program in a control group.
    fn out_of_disk(&self, budget: u64, advice: Option<&str>) -> Result<Found, Failure> {
        let group = MemoryGroup::new(budget)?;
        super::content::forget_pages(&self.model)?;
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(&group.folder);
        if let Some(advice) = advice {
            let library = self.prepared.join("advice.so");
            command
                .arg("env")
                .arg(format!("LD_PRELOAD={}", library.display()))
                .arg(format!("ADVICE={advice}"));
        }
        let mut worker = self.driver(command, &self.model)?;
        worker.ask("load")?;
        worker.ask(&format!("prefill {PREFILL}"))?;
        let tokens = if self.tokens < DISK_TOKENS { 4 } else { DISK_TOKENS };
        let figures = self.decode(&mut worker, tokens)?;
        let mut found = Found::default();
        found.tokens_per_second.add(f64::from(tokens) / figures[0]);
        found.bytes_per_token.add(figures[3] / f64::from(tokens));
        Ok(found)
    }

    // A row is made of everything that was found.
    #[allow(clippy::too_many_arguments)]
    fn rows(
        &self,
        share: &str,
        budget: u64,
        ours: &Found,
        memory: &Found,
        trace: &Trace,
        wire: f64,
        disk: Vec<(&str, Result<Found, Failure>)>,
    ) -> Vec<Row> {
        let experts_bytes = trace.experts() * EXPERT_BYTES;
        let room =
            budget.saturating_sub(self.model_bytes - experts_bytes.min(self.model_bytes)) / EXPERT_BYTES;
        let first = (PREFILL + self.settling) as usize;
        let must_move = trace.lru_misses(room as usize, first) as f64 * EXPERT_BYTES as f64
            / f64::from(self.tokens * self.rounds as u32);
        let in_memory = memory.tokens_per_second.median();
        let possible = in_memory.map(|rate| 1.0 / (must_move / wire + 1.0 / rate));
        let best = disk
            .iter()
            .filter_map(|(word, found)| {
                let found = found.as_ref().ok()?;
                Some((*word, found.tokens_per_second.median()?, found.bytes_per_token.median()?))
            })
            .max_by(|a, b| a.1.total_cmp(&b.1));
        let peer_name = best.map(|(word, ..)| format!("mmap from disk, best of three settings: {word}"));
        let mut tokens =
            plain(format!("{share}-tokens"), "tokens/s", Better::Higher, &ours.tokens_per_second);
        tokens.limit = possible;
        tokens.limit_name = Some(format!(
            "{:.2} GB/s of bare TCP for what an LRU of experts moves, then compute",
            wire / 1e9
        ));
        (tokens.peer, tokens.peer_name) = (best.map(|best| best.1), peer_name.clone());
        let mut bytes = plain(format!("{share}-bytes"), "MB/token", Better::Lower, &ours.bytes_per_token);
        bytes.ours = bytes.ours.map(|value| value / 1e6);
        bytes.spread = bytes.spread.map(|spread| spread.map(|value| value / 1e6));
        bytes.limit = Some(must_move / 1e6);
        bytes.limit_name = Some(format!("LRU of {room} whole experts over the same text"));
        (bytes.peer, bytes.peer_name) = (best.map(|best| best.2 / 1e6), peer_name);
        let mut rows = vec![tokens, bytes];
        rows.extend(disk.into_iter().map(|(word, found)| {
            let case = format!("{share}-disk-{word}");
            match found {
                Ok(found) => plain(case, "tokens/s", Better::Higher, &found.tokens_per_second),
                Err(failure) => Row::absent(case, "tokens/s", Better::Higher, failure.text),
            }
        }));
        rows
    }
}

fn plain(case: impl Into<String>, unit: &'static str, better: Better, samples: &Samples) -> Row {
    super::case::row(case, unit, better, std::slice::from_ref(samples), [None, None], None)
}

/// A control group that bounds memory.
struct MemoryGroup {
    folder: PathBuf,
}

impl MemoryGroup {
    fn new(bytes: u64) -> Result<Self, Failure> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.split_once(":memory:")).map_or("/", |(_, path)| path);
        let parent = Path::new("/sys/fs/cgroup/memory").join(own.trim_start_matches('/'));
        let parent = if parent.is_dir() { parent } else { PathBuf::from("/sys/fs/cgroup/memory") };
        let folder = parent.join(format!("hinterland-bench-{}-{}", std::process::id(), bytes >> 20));
        let failed = |error| Failure {
            hint: "run as root, with control groups of version 1".to_owned(),
            ..Failure::file("making the control group", &folder, &error)
        };
        fs::create_dir(&folder).map_err(failed)?;
        let group = Self { folder: folder.clone() };
        fs::write(folder.join("memory.limit_in_bytes"), bytes.to_string()).map_err(failed)?;
        Ok(group)
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // The page cache of its programs is given back first; without programs the rest goes.
        let _ = fs::write(self.folder.join("memory.force_empty"), "0");
        let _ = fs::remove_dir(&self.folder);
    }
}
