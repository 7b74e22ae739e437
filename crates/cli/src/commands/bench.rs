//! `hinterland bench`: measures, beside the limit of the machine and a peer.

use crate::bench::experts::ExpertsOptions;
use crate::bench::far::options::FarOptions;
use crate::bench::far_apps::options::AppsOptions;
use crate::bench::kv_trace::options::TraceOptions;
use crate::bench::report::{Machine, Report};
use crate::bench::ycsb::options::YcsbOptions;
use crate::bench::{BENCHES, LIST, Setting, find, names, plot, switches};
use crate::commands::node::Switch;
use crate::context::Context;
use crate::failure::Failure;
use crate::table::{Align, Table};
use serde_json::json;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What to measure.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Figures are medians. Ours, the limit and the peer are taken in turn, in one process tree; nothing \
says whether a figure is good. A bench starts its own nodes and leaves nothing running.")]
pub struct Arguments {
    /// The bench, or `list` to see which there are
    #[arg(value_name = "NAME", value_parser = names(), hide_possible_values = true)]
    name: String,
    /// How often each figure is taken
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Small sizes: shows that it works, and no figure to quote
    #[arg(long)]
    quick: bool,
    /// Start the nodes of the bench without an optimisation, as `hinterland node --without`; may be repeated
    #[arg(long, value_name = "SWITCH", value_enum, hide_possible_values = true)]
    without: Vec<Switch>,
    /// Also take all figures without each optimisation that the bench is about, one after the other
    #[arg(long)]
    switches: bool,
    /// Also draw the figures as bars
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Options of one bench
    #[command(flatten)]
    trace: TraceOptions,
    /// Options of the benches of far memory
    #[command(flatten)]
    far: FarOptions,
    /// Options of `far-apps`
    #[command(flatten)]
    apps: AppsOptions,
    /// Options of `experts`
    #[command(flatten)]
    experts: ExpertsOptions,
    /// Options of `ycsb`
    #[command(flatten)]
    ycsb: YcsbOptions,
}

/// Runs a bench, or lists them.
///
/// # Errors
/// [`Failure`] when there is no such bench or it cannot measure.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    if arguments.name == LIST {
        return list(context);
    }
    let bench = find(BENCHES, &arguments.name)?;
    if arguments.trace.any() && bench.name() != "kv-trace" {
        let text = format!("{} takes no option of kv-trace", bench.name());
        return Err(Failure::usage(text, "`hinterland bench --help` tells which those are"));
    }
    if arguments.apps.any() && bench.name() != "far-apps" {
        let text = format!("{} takes no option of far-apps", bench.name());
        return Err(Failure::usage(text, "`hinterland bench --help` tells which those are"));
    }
    if arguments.far.any() && !["far-scan", "far-random", "far-switch"].contains(&bench.name()) {
        let text = format!("{} takes no option of the benches of far memory", bench.name());
        return Err(Failure::usage(text, "--set and --local are for far-scan, far-random and far-switch"));
    }
    if arguments.switches && bench.switches().is_empty() {
        let text = format!("{} has no optimisation that could be turned off", bench.name());
        return Err(Failure::usage(
            text,
            "run it without --switches: its rows say what they are compared with",
        ));
    }
    if arguments.experts.any() && bench.name() != "experts" {
        let text = format!("{} takes no --threads", bench.name());
        return Err(Failure::usage(text, "--threads is for experts"));
    }
    if arguments.ycsb.any() && bench.name() != "ycsb" {
        let text = format!("{} takes no --no-page-faults", bench.name());
        return Err(Failure::usage(text, "--no-page-faults is for ycsb"));
    }
    let output = context.output;
    let setting = Setting {
        rounds: usize::from(arguments.rounds),
        quick: arguments.quick,
        without: arguments.without.iter().map(Switch::name).collect(),
        trace: arguments.trace.clone(),
        far: arguments.far.clone(),
        apps: arguments.apps.clone(),
        experts: arguments.experts.clone(),
        ycsb: arguments.ycsb.clone(),
        program: std::env::current_exe().map_err(|error| {
            Failure::new(format!("this program cannot find itself: {error}"), "mount /proc")
        })?,
        say: Box::new(move |words| output.say(words)),
    };
    arguments.plot.as_deref().map(check_writable).transpose()?;
    let machine = Machine::look();
    let mut rows = bench.run(&setting)?;
    if arguments.switches {
        rows.extend(switches::rows(bench, &setting, &rows)?);
    }
    let report = Report { bench: bench.name().to_owned(), machine, rows };
    let drawn = arguments.plot.as_deref().map(|path| draw(&report, path)).transpose();
    // What took minutes is shown whatever became of its picture.
    context.output.either(&report.json(), || report.text())?;
    drawn.map(|_| ExitCode::SUCCESS)
}

fn draw(report: &Report, path: &Path) -> Result<(), Failure> {
    fs::write(path, plot::svg(report)).map_err(|error| Failure::file("writing", path, &error))
}

/// Refuses a place for a picture before the bench takes its time. What is there stays as it is, and what is not there is not made; of
/// pipes and devices it shows when they are written to.
fn check_writable(path: &Path) -> Result<(), Failure> {
    let is_new = fs::symlink_metadata(path).is_err();
    if fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
        return Ok(());
    }
    let opened = File::options().append(true).create(true).open(path);
    opened.map_err(|error| Failure::file("writing", path, &error))?;
    if is_new {
        // What cannot be removed is written over at the end.
        let _ = fs::remove_file(path);
    }
    Ok(())
}

fn list(context: &Context) -> Result<ExitCode, Failure> {
    let value =
        BENCHES.iter().map(|bench| json!({ "bench": bench.name(), "subject": bench.subject() })).collect();
    let mut table = Table::new(&[("BENCH", Align::Left), ("MEASURES", Align::Left)]);
    for bench in BENCHES {
        table.row([bench.name().to_owned(), bench.subject().to_owned()]);
    }
    context.output.either(&value, || table.text())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_takes_no_picture_is_refused_and_nothing_is_left_of_the_look() {
        let folder = std::env::temp_dir().join(format!("hl-plot-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (new, there) = (folder.join("new.svg"), folder.join("there.svg"));
        fs::write(&there, "of before").unwrap();
        for path in [&new, &there, Path::new("/dev/null")] {
            check_writable(path).unwrap();
        }
        assert!(!new.exists());
        assert_eq!(fs::read_to_string(&there).unwrap(), "of before");
        for path in [&folder, &folder.join("none/a.svg"), &there.join("a.svg")] {
            assert!(check_writable(path).unwrap_err().text.contains("writing"), "{}", path.display());
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
