//! `far-overhead`: programs that fit into their local budget, beside the same programs without us and with a library that does nothing.

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
/// Sets of three runs for each round that is asked for; the second for `--quick`.
const SETS: [usize; 2] = [8, 1];
const LIMIT: &str = "the same program without us";
const PLAIN: &str = "1: no difference";
const EMPTY: &str = "an empty library that is preloaded, the least that any does";
/// The source of that library: a compiler warns of a file without anything.
const EMPTY_SOURCE: &str = "int empty;\n";
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
        let with = Worker::start("the programs with far memory", with)?;
        let mut plain = Command::new(&storms);
        plain.arg("serve");
        let plain = Worker::start("the programs without", plain)?;
        let mut empty = Command::new(&storms);
        empty.arg("serve").env("LD_PRELOAD", ground.compiled_library("empty", EMPTY_SOURCE)?);
        let empty = Worker::start("the programs with an empty library", empty)?;
        let mut ways = [with, plain, empty];
        let sets = setting.rounds * SETS[usize::from(setting.quick)];
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
            rows.extend(rows_of(name, sets, &line, &mut ways)?);
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

/// Milliseconds, and the ratios of wall time, processor time and instructions to those of the plain run of the same set.
///
/// `ways` run the line with far memory, plain, and with the empty library.
fn rows_of(name: &str, sets: usize, line: &str, ways: &mut [Worker; 3]) -> Result<Vec<Row>, Failure> {
    let mut times = [Samples::default(), Samples::default()];
    let mut ratios = [const { [const { Vec::new() }; WAYS.len()] }; 2];
    // The first set fills caches.
    for set in 0..=sets {
        let mut figures = [const { Vec::new() }; 3];
        // Every other set goes backwards, so that none always comes behind the same other.
        for step in 0..ways.len() {
            let way = if set % 2 == 0 { step } else { ways.len() - 1 - step };
            figures[way] = ways[way].ask(line)?;
        }
        if set == 0 {
            continue;
        }
        let [ours, plain, empty] = figures;
        times[0].add(ours.first().copied().unwrap_or(f64::NAN));
        times[1].add(plain.first().copied().unwrap_or(f64::NAN));
        for (ratios, figures) in ratios.iter_mut().zip([&ours, &empty]) {
            for ((ratios, figure), plain) in ratios.iter_mut().zip(figures).zip(&plain) {
                if *figure > 0.0 && *plain > 0.0 {
                    ratios.push(figure / plain);
                }
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
    let [ours, empty] = ratios;
    let ratios = WAYS.iter().zip(ours).zip(empty);
    let ratios = ratios.map(|((way, ours), empty)| ratio_row(&format!("{name}-{way}"), ours, &empty));
    Ok(std::iter::once(time).chain(ratios).collect())
}

/// The median of the ratios of sets, and of those of the empty library; between the ends of the spread lie the middle half of ours.
fn ratio_row(case: &str, mut ratios: Vec<f64>, empty: &[f64]) -> Row {
    if ratios.is_empty() {
        return Row::absent(case, "times", Better::Lower, NO_COUNTER);
    }
    ratios.sort_by(f64::total_cmp);
    let [mut samples, mut others] = [Samples::default(), Samples::default()];
    ratios.iter().for_each(|ratio| samples.add(*ratio));
    empty.iter().for_each(|ratio| others.add(*ratio));
    let quarter = ratios.len() / 4;
    Row {
        ours: samples.median(),
        spread: Some([ratios[quarter], ratios[ratios.len() - 1 - quarter]]),
        runs: ratios.len(),
        limit: Some(1.0),
        limit_name: Some(PLAIN.to_owned()),
        peer: others.median(),
        peer_name: Some(EMPTY.to_owned()),
        ..Row::new(case, "times", Better::Lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_the_middle_one_and_its_spread_the_middle_half() {
        let row = ratio_row("a", vec![9.0, 1.0, 1.1, 0.9, 1.2, 0.1, 1.0, 1.0], &[1.5, 1.1, 1.0]);
        assert_eq!((row.ours, row.spread, row.runs), (Some(1.0), Some([1.0, 1.1]), 8));
        assert_eq!(row.peer, Some(1.1));
        assert_eq!(ratio_row("a", Vec::new(), &[]).why.as_deref(), Some(NO_COUNTER));
    }

    #[test]
    fn small_sizes_leave_out_what_must_be_installed() {
        let names = |quick| lines(Path::new("s"), quick).into_iter().map(|line| line.0).collect::<Vec<_>>();
        assert_eq!(names(true).len() + APPS.len(), names(false).len());
        assert!(lines(Path::new("/s"), true)[0].1.as_ref().is_ok_and(|line| line == "/s\tmallocs\t20000"));
    }
}
