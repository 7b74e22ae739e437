//! `ycsb`: YCSB's workloads on the hash table of `examples/table`, from two racks at once, beside two Redis servers.

use super::case::Case;
use super::ground::{BenchNode, Ground, NodePlan};
use super::redis::Redis;
use super::report::{Better, Row};
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
const SECONDS: &str = "1";
/// MiB of a table: several times the records.
const TABLE_MEBIBYTES: &str = "256";

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
}

/// What is driven.
#[derive(Clone, Copy)]
enum Target<'bench> {
    /// The table, which was made in the second rack; each driver in a rack of its own.
    Racks,
    /// The same where no page moves, without remembering where keys were found.
    Plain,
    /// The table where no page moves, both drivers in its rack.
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
            Target::Plain => self.still[part],
            Target::Racks | Target::Redis(_) => self.moving[part],
        };
        command.arg("--socket").arg(&node.socket).arg("drive");
        command.args(["--records", &self.records, "--value-bytes", VALUE_BYTES]);
        command.arg("--part").arg(format!("{part}/2"));
        match target {
            Target::Redis(servers) => command.args(["--redis", servers]),
            Target::Plain => command.args(["table", "--forgetful"]),
            Target::Racks | Target::Near => command.arg("table"),
        };
        command
    }

    /// Makes the table in a rack.
    fn create(&self, node: &BenchNode, rack: &str) -> Result<(), Failure> {
        let made = Command::new(&self.program)
            .arg("--socket")
            .arg(&node.socket)
            .args(["create", "table", "--mebibytes", TABLE_MEBIBYTES, "--rack", rack])
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
        let mut words = vec!["--workload", workload, "--seconds", SECONDS];
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
        let ground = Ground::new(setting, 1 << 30)?;
        let plan = NodePlan { capacity_bytes: 400 << 20, cache_bytes: 64 << 20, ..NodePlan::default() };
        let far = ground.node(NodePlan { name: "far", ..plan })?;
        let near = ground.node(NodePlan { name: "near", join: Some(&far.address), ..plan })?;
        let plan = NodePlan { more: &["--hot", "off"], ..plan };
        let still_far = ground.node(NodePlan { name: "still-far", ..plan })?;
        let still_near =
            ground.node(NodePlan { name: "still-near", join: Some(&still_far.address), ..plan })?;
        let records = if setting.quick { QUICK_RECORDS } else { RECORDS };
        let field = Field {
            program,
            moving: [&near, &far],
            still: [&still_near, &still_far],
            records: records.to_string(),
        };
        for (node, rack, target) in [(&far, "far", Target::Racks), (&still_far, "still-far", Target::Plain)] {
            field.create(node, rack)?;
            field.load(target)?;
        }
        let redis = Redis::start(&ground).and_then(|one| Ok((one, Redis::start(&ground)?)));
        let servers =
            redis.as_ref().map(|(one, other)| format!("127.0.0.1:{},127.0.0.1:{}", one.port(), other.port()));
        let servers = match servers {
            Ok(servers) => field.load(Target::Redis(&servers)).map(|()| servers),
            Err(failure) => Err(failure.clone()),
        };
        let mut rows = Vec::new();
        for popularity in ["zipfian", "uniform"] {
            for workload in WORKLOADS {
                (setting.say)(&format!("ycsb: {workload} {popularity}"));
                for (target, suffix) in [(Target::Racks, ""), (Target::Plain, "-plain")] {
                    let name = format!("{workload}-{popularity}{suffix}");
                    let case = Case::new(name, "k operations/s", Better::Higher, || {
                        field.rate(target, workload, popularity)
                    })
                    .limit("both programs in the rack of the table, no page moves", || {
                        field.rate(Target::Near, workload, popularity)
                    });
                    let peer = servers
                        .as_ref()
                        .map(|servers| || field.rate(Target::Redis(servers), workload, popularity));
                    rows.push(case.peer_or_why("two Redis servers over TCP", peer).measure(setting.rounds));
                }
            }
        }
        Ok(rows)
    }
}

fn failed(why: &str) -> Failure {
    Failure::new(format!("a driver failed: {why}"), "run hinterland-table by hand")
}
