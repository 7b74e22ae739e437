//! `hinterland bench`: measures, beside the limit of the machine and a peer.

use crate::bench::experts::ExpertsOptions;
use crate::bench::far::options::FarOptions;
use crate::bench::far_apps::options::AppsOptions;
use crate::bench::kv_trace::options::TraceOptions;
use crate::bench::report::{Machine, Report};
use crate::bench::ycsb::options::YcsbOptions;
use crate::bench::{BENCHES, Setting, find, plot, switches};
use crate::commands::node::Switch;
use crate::context::Context;
use crate::failure::Failure;
use crate::table::{Align, Table};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// What to measure.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Figures are medians. Ours, the limit and the peer are taken in turn, in one process tree; nothing \
says whether a figure is good. A bench starts its own nodes and leaves nothing running.")]
pub struct Arguments {
    /// The bench, or `list` to see which there are
    #[arg(value_name = "NAME")]
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
    if arguments.name == "list" {
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
    let machine = Machine::look();
    let mut rows = bench.run(&setting)?;
    if arguments.switches {
        rows.extend(switches::rows(bench, &setting, &rows)?);
    }
    let report = Report { bench: bench.name().to_owned(), machine, rows };
    if let Some(path) = &arguments.plot {
        std::fs::write(path, plot::svg(&report)).map_err(|error| Failure::file("writing", path, &error))?;
    }
    context.output.either(&report.json(), || report.text())?;
    Ok(ExitCode::SUCCESS)
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
