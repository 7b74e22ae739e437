//! `ycsb`: YCSB's workloads on the hash table of `examples/table`, from two racks at once, beside two Redis servers and access by page
//! faults.
//!
//! | module | subject |
//! | --- | --- |
//! | [`faults`] | the programs that share the table by page faults |
//! | [`options`] | what to leave out |

mod faults;
pub mod options;

use super::case::row;
use super::ground::{BenchNode, Ground, NodePlan};
use super::redis::Redis;
use super::report::{Better, Row};
use super::rounds::{Samples, Way, in_turn};
use super::{Bench, Setting};
use crate::failure::Failure;
use faults::Faulted;
use serde_json::Value;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
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
/// Rounds at the most, beside the one that is thrown away: each takes a minute.
const ROUNDS_MAX: usize = 3;
/// MiB of a table: several times the records.
const TABLE_MEBIBYTES: &str = "256";
/// Room for a table and a half: hot pages can come, and not all of them.
const NODE_BYTES: u64 = 600 << 20;
/// By page faults: the suffix of the case, and MiB of the other program's pages that each may have. First what a node may have of pages
/// of another rack as copies, an eighth of its memory; then about a tenth of what is used of the other program's half, as where memory is short.
const FAULTED: [(&str, &str); 2] = [("-fault", "75"), ("-fault-tenth", "4")];
const _: () = assert!(NODE_BYTES / 8 == 75 << 20, "the first of FAULTED follows from it");

const LIMIT: &str = "both programs in the rack that has all of the table, no page moves";
const REDIS: &str = "two Redis servers over TCP";
const UNIT: &str = "k operations/s";

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
    /// Programs that share the table by page faults, by suffix, or why there are none.
    faulted: Vec<(&'static str, Result<RefCell<Faulted>, Failure>)>,
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

    /// What two drivers do at once.
    fn rate(&self, target: Target<'_>, workload: &str, popularity: &str) -> Result<Rates, Failure> {
        let mut words = vec!["--workload", workload, "--seconds", self.seconds];
        if popularity == "uniform" {
            words.push("--uniform");
        }
        let rates = self.both(target, &words)?.into_iter().map(|output| {
            let counted: Value = serde_json::from_slice(&output).ok()?;
            Some(counted["operations"].as_f64()? / counted["seconds"].as_f64()? / 1000.0)
        });
        Rates::of(rates.collect()).ok_or_else(|| failed("a driver did not say what it did"))
    }

    /// The rows of a workload: with all techniques, without moves and copies, without any, and by page faults.
    fn rows(
        &self,
        workload: &str,
        popularity: &str,
        (rounds, is_quick): (usize, bool),
        servers: Result<&str, &Failure>,
    ) -> Result<Vec<Row>, Failure> {
        // The limit, and the peer if there is one, come first: each row has them beside its own.
        let mut beside = vec![Target::Near];
        beside.extend(servers.ok().map(Target::Redis));
        let own = [("", Target::Racks), ("-still", Target::Still), ("-plain", Target::Plain)];
        let mut takes: Vec<Take<'_>> = Vec::new();
        for target in beside.iter().copied().chain(own.map(|(_, target)| target)) {
            takes.push(Box::new(move || self.rate(target, workload, popularity)));
        }
        let mut suffixes = own.map(|(suffix, _)| suffix).to_vec();
        for (suffix, faulted) in &self.faulted {
            let Ok(faulted) = faulted else { continue };
            suffixes.push(suffix);
            takes.push(Box::new(|| faulted.borrow_mut().rate(workload, popularity, self.seconds)));
        }
        let (samples, together) = samples(&takes, rounds, is_quick)?;
        let lacking = servers.err().map(|failure| format!("{}: {}", REDIS, failure.text));
        let count = beside.len();
        let name = |suffix: &str| format!("{workload}-{popularity}{suffix}");
        let taken = suffixes.iter().enumerate().map(|(index, suffix)| {
            let places: Vec<usize> = std::iter::once(count + index).chain(0..count).collect();
            let all: Vec<Samples> = places.iter().map(|&place| samples[place].clone()).collect();
            let names = [Some(LIMIT.to_owned()), (count > 1).then(|| REDIS.to_owned())];
            let sums = places.iter().zip(["ours", "limit", "peer"]).map(|(&place, whose)| {
                format!("{whose} {:.1}", together[place].median().unwrap_or_default())
            });
            let why =
                format!("both programs together, however unequal: {}", sums.collect::<Vec<_>>().join(", "));
            let why = lacking.iter().cloned().chain([why]).collect::<Vec<_>>().join("; ");
            row(name(suffix), UNIT, Better::Higher, &all, names, Some(why))
        });
        let absent = self.faulted.iter().filter_map(|(suffix, faulted)| {
            let failure = faulted.as_ref().err()?;
            let why = format!("{} (hint: {})", failure.text, failure.hint);
            Some(Row::absent(name(suffix), UNIT, Better::Higher, why))
        });
        Ok(taken.chain(absent).collect())
    }

    /// Starts the programs that share the table by page faults.
    fn share(&self) -> Vec<(&'static str, Result<RefCell<Faulted>, Failure>)> {
        let more = ["--records", &self.records, "--value-bytes", VALUE_BYTES, "--mebibytes", TABLE_MEBIBYTES];
        FAULTED
            .map(|(suffix, cached)| (suffix, Faulted::start(&self.program, cached, &more).map(RefCell::new)))
            .into()
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

/// What two programs did at once, in thousands of operations a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Twice what the slower one did: what both racks get that have as much to do as each other.
    even: f64,
    /// What they did together. It is large as well when one does all and the other nearly nothing, because all pages went to it.
    together: f64,
}

impl Rates {
    /// Of one program each, if both said what they did.
    fn of(rates: Option<Vec<f64>>) -> Option<Self> {
        let rates = rates?;
        let slowest = rates.iter().copied().reduce(f64::min)?;
        Some(Self { even: slowest * rates.len() as f64, together: rates.iter().sum() })
    }
}

/// One way of driving two programs.
type Take<'bench> = Box<dyn Fn() -> Result<Rates, Failure> + 'bench>;

/// Takes figures in turn, after a round that is thrown away: even rates, and what was done together.
fn samples(
    takes: &[Take<'_>],
    rounds: usize,
    is_quick: bool,
) -> Result<(Vec<Samples>, Vec<Samples>), Failure> {
    let together: Vec<RefCell<Samples>> = takes.iter().map(|_| RefCell::default()).collect();
    let mut ways: Vec<Way<'_>> = Vec::new();
    for (take, together) in takes.iter().zip(&together) {
        ways.push(Box::new(move || {
            let taken = take()?;
            together.borrow_mut().add(taken.together);
            Ok(taken.even)
        }));
    }
    if !is_quick {
        in_turn(1, &mut ways)?;
        together.iter().for_each(|one| drop(one.take()));
    }
    let even = in_turn(rounds, &mut ways)?;
    drop(ways);
    Ok((even, together.into_iter().map(RefCell::into_inner).collect()))
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
        let built = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified()).ok();
        if built(&program) < built(&setting.program) {
            // It may be as it should be: cargo makes anew what has changed.
            (setting.say)(
                "ycsb: hinterland-table is older than this command: `cargo build --release -p hinterland-table` makes sure",
            );
        }
        let ground = Ground::new(setting, 2 << 30)?;
        let plan = NodePlan { capacity_bytes: NODE_BYTES, cache_bytes: 64 << 20, ..NodePlan::default() };
        let first = ground.node(NodePlan { name: "first", ..plan })?;
        let second = ground.node(NodePlan { name: "second", join: Some(&first.address), ..plan })?;
        let plan = NodePlan { more: &["--hot", "off"], ..plan };
        let still_first = ground.node(NodePlan { name: "still-first", ..plan })?;
        let still_second =
            ground.node(NodePlan { name: "still-second", join: Some(&still_first.address), ..plan })?;
        let (records, seconds) =
            if setting.quick { (QUICK_RECORDS, QUICK_SECONDS) } else { (RECORDS, SECONDS) };
        let mut field = Field {
            program,
            moving: [&first, &second],
            still: [&still_first, &still_second],
            records: records.to_string(),
            seconds,
            faulted: Vec::new(),
        };
        (setting.say)("ycsb: records are loaded");
        field.create(&first, "table", &["--spread"])?;
        field.create(&still_first, "table", &["--spread"])?;
        field.create(&still_second, "table-near", &["--rack", "still-second"])?;
        for target in [Target::Racks, Target::Still, Target::Near] {
            field.load(target)?;
        }
        if !setting.ycsb.no_page_faults {
            field.faulted = field.share();
        }
        let redis = Redis::start(&ground).and_then(|one| Ok((one, Redis::start(&ground)?)));
        let servers =
            redis.as_ref().map(|(one, other)| format!("127.0.0.1:{},127.0.0.1:{}", one.port(), other.port()));
        let servers = match servers {
            Ok(servers) => field.load(Target::Redis(&servers)).map(|()| servers),
            Err(failure) => Err(failure.clone()),
        };
        let rounds = if setting.quick { 1 } else { setting.rounds.min(ROUNDS_MAX) };
        let rounds = (rounds, setting.quick);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_gets_nothing_done_is_not_made_up_for_by_the_other() {
        assert_eq!(Rates::of(Some(vec![1000.0, 2.0])), Some(Rates { even: 4.0, together: 1002.0 }));
        assert_eq!(Rates::of(None), None);
    }

    #[test]
    fn the_round_that_is_thrown_away_is_in_neither_figure() {
        let number = RefCell::new(0.0);
        let take: Take<'_> = Box::new(|| {
            *number.borrow_mut() += 1.0;
            Ok(Rates { even: *number.borrow(), together: 10.0 * *number.borrow() })
        });
        let (even, together) = samples(&[take], 3, false).unwrap();
        assert_eq!((even[0].spread(), together[0].spread()), (Some([2.0, 4.0]), Some([20.0, 40.0])));
    }
}
