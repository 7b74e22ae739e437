//! `far-overhead`: programs that fit into their local budget, beside the same programs without us.

use super::apps;
use crate::bench::ground::Ground;
use crate::bench::report::{Better, Row};
use crate::bench::rounds::Samples;
use crate::bench::worker::Worker;
use crate::bench::{Bench, Setting};
use crate::failure::Failure;
use std::path::Path;
use std::process::Command;

/// The programs that call for memory a lot, and the process that starts and measures them.
pub(super) const SOURCE: &str = include_str!("../../../../../bench/far/storms.c");
/// More than any of the programs uses.
const LOCAL: &str = "4G";
/// Pairs of runs for each round that is asked for; the second for `--quick`.
const PAIRS: [usize; 2] = [8, 1];
const LIMIT: &str = "the same program without us";
const PLAIN: &str = "1: no difference";
/// How much work the storms do; the second for `--quick`.
const STORMS: [(&str, [u64; 2]); 3] =
    [("mallocs", [4_000_000, 20_000]), ("maps", [600, 20]), ("threads", [8000, 80])];
/// Workloads that compute, and how large they are.
const APPS: [(&str, f64); 3] = [("stream", 1.0), ("kmeans", 0.3), ("sort", 0.3)];
/// Names of the figures that one run gives, in order, and how one is told that has no figure.
const WAYS: [&str; 3] = ["wall", "cpu", "instructions"];
const NO_COUNTER: &str = "perf_event_open gives no counter of instructions on this machine";

/// The bench.
pub struct FarOverhead;

impl Bench for FarOverhead {
    fn name(&self) -> &'static str {
        "far-overhead"
    }

    fn subject(&self) -> &'static str {
        "programs that fit into their local memory, beside the same programs without far memory"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = Ground::new(setting, 0)?;
        let storms = ground.compiled("storms", SOURCE)?;
        let mut with = Command::new(&setting.program);
        with.args(["--quiet", "run", "--local", LOCAL, "--"]).arg(&storms).arg("serve");
        let mut with = Worker::start("the programs with far memory", with)?;
        let mut plain = Command::new(&storms);
        plain.arg("serve");
        let mut plain = Worker::start("the programs without", plain)?;
        let pairs = setting.rounds * PAIRS[usize::from(setting.quick)];
        let mut rows = Vec::new();
        for (name, line) in lines(&storms, setting.quick) {
            (setting.say)(&format!("far-overhead: {name}"));
            let line = match line {
                Ok(line) => line,
                Err(failure) => {
                    let why = format!("{} (hint: {})", failure.text, failure.hint);
                    rows.push(Row::absent(name, "ms", Better::Lower, why));
                    continue;
                }
            };
            rows.extend(rows_of(name, pairs, &line, &mut with, &mut plain)?);
        }
        Ok(rows)
    }
}

/// The programs, each as a line for the process that starts them.
fn lines(storms: &Path, quick: bool) -> Vec<(&'static str, Result<String, Failure>)> {
    let size = usize::from(quick);
    let mut lines = Vec::new();
    for (name, counts) in STORMS {
        lines.push((name, Ok(format!("{}\t{name}\t{}", storms.display(), counts[size]))));
    }
    let count = [200, 5][size];
    let script = format!("i=0; while [ $i -lt {count} ]; do (:); i=$((i+1)); done");
    lines.push(("shell-forks", Ok(format!("sh\t-c\t{script}"))));
    let script = format!("i=0; while [ $i -lt {count} ]; do /bin/true; i=$((i+1)); done");
    lines.push(("shell-programs", Ok(format!("sh\t-c\t{script}"))));
    let start = apps::python().map(|python| format!("{}\t-I\t-c\tpass", python.display()));
    lines.push(("python-start", start));
    if !quick {
        for (name, scale) in APPS {
            lines.push((name, apps::words(name, scale).map(|words| words.join("\t"))));
        }
    }
    lines
}

/// Milliseconds and the ratios of pairs, for wall time, processor time and instructions.
fn rows_of(
    name: &str,
    pairs: usize,
    line: &str,
    with: &mut Worker,
    plain: &mut Worker,
) -> Result<Vec<Row>, Failure> {
    let mut times = [Samples::default(), Samples::default()];
    let mut ratios = [const { Vec::new() }; WAYS.len()];
    // The first pair fills caches.
    for pair in 0..=pairs {
        // Every other pair goes backwards, so that neither always comes behind the other.
        let (ours, theirs) = if pair % 2 == 0 {
            let ours = with.ask(line)?;
            (ours, plain.ask(line)?)
        } else {
            let theirs = plain.ask(line)?;
            (with.ask(line)?, theirs)
        };
        if pair == 0 {
            continue;
        }
        times[0].add(ours.first().copied().unwrap_or(f64::NAN));
        times[1].add(theirs.first().copied().unwrap_or(f64::NAN));
        for ((ratios, ours), theirs) in ratios.iter_mut().zip(&ours).zip(&theirs) {
            if *ours > 0.0 && *theirs > 0.0 {
                ratios.push(ours / theirs);
            }
        }
    }
    let time = Row {
        ours: times[0].median(),
        spread: times[0].spread(),
        runs: times[0].count(),
        limit: times[1].median(),
        limit_name: Some(LIMIT.to_owned()),
        ..Row::new(name, "ms", Better::Lower)
    };
    let ratios = WAYS.iter().zip(ratios).map(|(way, ratios)| ratio_row(&format!("{name}-{way}"), ratios));
    Ok(std::iter::once(time).chain(ratios).collect())
}

/// The median of the ratios of pairs; between its ends lie the middle half of them.
fn ratio_row(case: &str, mut ratios: Vec<f64>) -> Row {
    if ratios.is_empty() {
        return Row::absent(case, "times", Better::Lower, NO_COUNTER);
    }
    ratios.sort_by(f64::total_cmp);
    let mut samples = Samples::default();
    ratios.iter().for_each(|ratio| samples.add(*ratio));
    let quarter = ratios.len() / 4;
    Row {
        ours: samples.median(),
        spread: Some([ratios[quarter], ratios[ratios.len() - 1 - quarter]]),
        runs: ratios.len(),
        limit: Some(1.0),
        limit_name: Some(PLAIN.to_owned()),
        ..Row::new(case, "times", Better::Lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_middle_one_and_its_spread_the_middle_half() {
        let row = ratio_row("a", vec![9.0, 1.0, 1.1, 0.9, 1.2, 0.1, 1.0, 1.0]);
        assert_eq!((row.ours, row.spread, row.runs), (Some(1.0), Some([1.0, 1.1]), 8));
        assert_eq!(ratio_row("a", Vec::new()).why.as_deref(), Some(NO_COUNTER));
    }

    #[test]
    fn small_sizes_leave_out_what_must_be_installed() {
        let names = |quick| lines(Path::new("s"), quick).into_iter().map(|line| line.0).collect::<Vec<_>>();
        assert_eq!(names(true).len() + APPS.len(), names(false).len());
        assert!(lines(Path::new("/s"), true)[0].1.as_ref().is_ok_and(|line| line == "/s\tmallocs\t20000"));
    }
}
