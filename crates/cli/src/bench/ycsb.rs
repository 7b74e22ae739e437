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
/// MiB of a table: several times the records.
const TABLE_MEBIBYTES: &str = "256";

/// The bench.
pub struct Ycsb;

/// Where drivers run and what they drive.
struct Field<'bench> {
    program: PathBuf,
    nodes: [&'bench BenchNode; 2],
    records: String,
    seconds: &'static str,
}

/// What is driven.
#[derive(Clone, Copy)]
enum Target<'bench> {
    /// The table, whose memory lies in the second rack; each driver in a rack of its own.
    Racks,
    /// The same without remembering where keys were found.
    RacksForgetful,
    /// The table, both drivers in its rack.
    Near,
    /// Redis servers.
    Redis(&'bench str),
}

impl Field<'_> {
    /// A driver's command without what it is to do.
    fn driver(&self, target: Target<'_>, part: usize) -> Command {
        let mut command = Command::new(&self.program);
        let node = match target {
            Target::Near => self.nodes[1],
            _ => self.nodes[part],
        };
        command.arg("--socket").arg(&node.socket).arg("drive");
        command.args(["--records", &self.records, "--value-bytes", VALUE_BYTES]);
        command.arg("--part").arg(format!("{part}/2"));
        match target {
            Target::Redis(servers) => command.args(["--redis", servers]),
            Target::RacksForgetful => command.args(["table", "--forgetful"]),
            Target::Racks | Target::Near => command.arg("table"),
        };
        command
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
        let records = if setting.quick { QUICK_RECORDS } else { RECORDS };
        let seconds = if setting.quick { "1" } else { "3" };
        let field = Field { program, nodes: [&near, &far], records: records.to_string(), seconds };
        let create = Command::new(&field.program)
            .arg("--socket")
            .arg(&far.socket)
            .args(["create", "table", "--mebibytes", TABLE_MEBIBYTES, "--rack", "far"])
            .output()
            .map_err(|error| failed(&error.to_string()))?;
        if !create.status.success() {
            return Err(failed(String::from_utf8_lossy(&create.stderr).trim()));
        }
        field.load(Target::Racks)?;
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
                for (target, suffix) in [(Target::Racks, ""), (Target::RacksForgetful, "-plain")] {
                    let name = format!("{workload}-{popularity}{suffix}");
                    let case = Case::new(name, "k operations/s", Better::Higher, || {
                        field.rate(target, workload, popularity)
                    })
                    .limit("both programs in the rack of the table", || {
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
