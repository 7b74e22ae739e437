//! `ycsb`: YCSB's workloads on the hash table of `examples/table`, from two racks at once, beside two Redis servers.

use super::case::row;
use super::ground::{BenchNode, Ground, NodePlan};
use super::redis::Redis;
use super::report::{Better, Row};
use super::rounds::{Way, in_turn};
use super::{Bench, Setting};
use crate::failure::Failure;
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The workloads.
const WORKLOADS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Records, and bytes of their values as in paper 004.
const RECORDS: u64 = 100_000;
const QUICK_RECORDS: u64 = 10_000;
const VALUE_BYTES: &str = "64";
/// Seconds of a figure.
const SECONDS: &str = "0.5";
const QUICK_SECONDS: &str = "0.2";
/// Rounds at the most: one takes 40 s.
const ROUNDS_MAX: usize = 2;
/// MiB of a table: several times the records.
const TABLE_MEBIBYTES: &str = "256";

const LIMIT: &str = "both programs in the rack that has all of the table, no page moves";
const REDIS: &str = "two Redis servers over TCP";

/// The bench.
pub struct Ycsb;

/// Where drivers run and what they drive.
struct Field<'bench> {
    program: PathBuf,
    /// The nodes of two racks between which pages move.
    moving: [&'bench BenchNode; 2],
    /// Those of a pool of their own, where pages stay in the second rack.
    still: [&'bench BenchNode; 2],
    records: String,
    seconds: &'static str,
}

/// What is driven.
#[derive(Clone, Copy)]
enum Target<'bench> {
    /// The table, whose pages were laid over both racks; each driver in a rack of its own.
    Racks,
    /// The same where no page moves and none is copied.
    Still,
    /// The same without any technique: every access asks the node, and no place is remembered.
    Plain,
    /// The table where no page moves, both drivers in one rack that has all of it.
    Near,
    /// Redis servers.
    Redis(&'bench str),
}

impl Field<'_> {
    /// A driver's command without what it is to do.
    fn driver(&self, target: Target<'_>, part: usize) -> Command {
        let mut command = Command::new(&self.program);
        let node = match target {
            Target::Near => self.still[1],
            Target::Plain | Target::Still => self.still[part],
            Target::Racks | Target::Redis(_) => self.moving[part],
        };
        command.arg("--socket").arg(&node.socket).arg("drive");
        command.args(["--records", &self.records, "--value-bytes", VALUE_BYTES]);
        command.arg("--part").arg(format!("{part}/2"));
        match target {
            Target::Redis(servers) => command.args(["--redis", servers]),
            Target::Plain => command.args(["table", "--plain"]),
            Target::Racks | Target::Still => command.arg("table"),
            Target::Near => command.arg("table-near"),
        };
        command
    }

    /// Makes a table.
    fn create(&self, node: &BenchNode, table: &str, place: &[&str]) -> Result<(), Failure> {
        let made = Command::new(&self.program)
            .arg("--socket")
            .arg(&node.socket)
            .args(["create", table, "--mebibytes", TABLE_MEBIBYTES])
            .args(place)
            .output()
            .map_err(|error| failed(&error.to_string()))?;
        if made.status.success() {
            return Ok(());
        }
        Err(failed(String::from_utf8_lossy(&made.stderr).trim()))
    }

    fn load(&self, target: Target<'_>) -> Result<(), Failure> {
        self.both(target, &[]).map(drop)
    }

    /// Thousands of operations a second of two drivers together.
    fn rate(&self, target: Target<'_>, workload: &str, popularity: &str) -> Result<f64, Failure> {
        let mut words = vec!["--workload", workload, "--seconds", self.seconds];
        if popularity == "uniform" {
            words.push("--uniform");
        }
        let rates = self.both(target, &words)?.into_iter().map(|output| {
            let counted: Value = serde_json::from_slice(&output).ok()?;
            Some(counted["operations"].as_f64()? / counted["seconds"].as_f64()? / 1000.0)
        });
        let rates: Option<Vec<f64>> = rates.collect();
        rates.map(|rates| rates.iter().sum()).ok_or_else(|| failed("a driver did not say what it did"))
    }

    /// The rows of a workload: with all techniques, without moves and copies, and without any.
    fn rows(
        &self,
        workload: &str,
        popularity: &str,
        rounds: usize,
        servers: Result<&str, &Failure>,
    ) -> Result<Vec<Row>, Failure> {
        let mut targets = vec![Target::Racks, Target::Still, Target::Plain, Target::Near];
        targets.extend(servers.ok().map(Target::Redis));
        let mut ways: Vec<Way<'_>> = Vec::new();
        for target in targets {
            ways.push(Box::new(move || self.rate(target, workload, popularity)));
        }
        let samples = in_turn(rounds, &mut ways)?;
        let why = servers.err().map(|failure| format!("{}: {}", REDIS, failure.text));
        let suffixes = ["", "-still", "-plain"];
        Ok(suffixes
            .iter()
            .zip(&samples)
            .map(|(suffix, ours)| {
                let mut all = vec![ours.clone(), samples[3].clone()];
                all.extend(samples.get(4).cloned());
                let names = [Some(LIMIT.to_owned()), samples.get(4).map(|_| REDIS.to_owned())];
                let name = format!("{workload}-{popularity}{suffix}");
                row(name, "k operations/s", Better::Higher, &all, names, why.clone())
            })
            .collect())
    }

    /// Runs two drivers at once; what they said.
    fn both(&self, target: Target<'_>, words: &[&str]) -> Result<Vec<Vec<u8>>, Failure> {
        let start = |part| {
            let mut command = self.driver(target, part);
            command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().map_err(|error| failed(&error.to_string()))
        };
        let drivers: Vec<Result<Child, Failure>> = (0..2).map(start).collect();
        drivers
            .into_iter()
            .map(|driver| {
                let output = driver?.wait_with_output().map_err(|error| failed(&error.to_string()))?;
                if output.status.success() {
                    return Ok(output.stdout);
                }
                Err(failed(String::from_utf8_lossy(&output.stderr).trim()))
            })
            .collect()
    }
}

impl Bench for Ycsb {
    fn name(&self) -> &'static str {
        "ycsb"
    }

    fn subject(&self) -> &'static str {
        "YCSB's workloads on a hash table in pool memory, from two racks at once"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let program = setting.program.with_file_name("hinterland-table");
        if !program.exists() {
            return Err(Failure::new(
                format!("there is no {}", program.display()),
                "cargo build --release -p hinterland-table",
            ));
        }
        let ground = Ground::new(setting, 2 << 30)?;
        // Room for a table and a half: hot pages can come, and not all of them.
        let plan = NodePlan { capacity_bytes: 600 << 20, cache_bytes: 64 << 20, ..NodePlan::default() };
        let first = ground.node(NodePlan { name: "first", ..plan })?;
        let second = ground.node(NodePlan { name: "second", join: Some(&first.address), ..plan })?;
        let plan = NodePlan { more: &["--hot", "off"], ..plan };
        let still_first = ground.node(NodePlan { name: "still-first", ..plan })?;
        let still_second =
            ground.node(NodePlan { name: "still-second", join: Some(&still_first.address), ..plan })?;
        let (records, seconds) =
            if setting.quick { (QUICK_RECORDS, QUICK_SECONDS) } else { (RECORDS, SECONDS) };
        let field = Field {
            program,
            moving: [&first, &second],
            still: [&still_first, &still_second],
            records: records.to_string(),
            seconds,
        };
        (setting.say)("ycsb: records are loaded");
        field.create(&first, "table", &["--spread"])?;
        field.create(&still_first, "table", &["--spread"])?;
        field.create(&still_second, "table-near", &["--rack", "still-second"])?;
        for target in [Target::Racks, Target::Still, Target::Near] {
            field.load(target)?;
        }
        let redis = Redis::start(&ground).and_then(|one| Ok((one, Redis::start(&ground)?)));
        let servers =
            redis.as_ref().map(|(one, other)| format!("127.0.0.1:{},127.0.0.1:{}", one.port(), other.port()));
        let servers = match servers {
            Ok(servers) => field.load(Target::Redis(&servers)).map(|()| servers),
            Err(failure) => Err(failure.clone()),
        };
        let rounds = if setting.quick { 1 } else { setting.rounds.min(ROUNDS_MAX) };
        let mut rows = Vec::new();
        for popularity in ["zipfian", "uniform"] {
            for workload in WORKLOADS {
                (setting.say)(&format!("ycsb: {workload} {popularity}"));
                rows.extend(field.rows(workload, popularity, rounds, servers.as_deref())?);
            }
        }
        Ok(rows)
    }
}

fn failed(why: &str) -> Failure {
    Failure::new(format!("a driver failed: {why}"), "run hinterland-table by hand")
}
