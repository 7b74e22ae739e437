//! `hinterland batch`: a queue of programs with far memory, within the memory of one host.

mod advice;
mod export;
mod jobs;
mod running;

use crate::context::Context;
use crate::failure::Failure;
use crate::run::far;
use crate::size::human;
use crate::table::{Align, Table};
use advice::{Advisor, ByTrace, Setting};
use export::Scheduler;
use hinterland_farplan::dispatch::{Dispatcher, Host, Way};
use jobs::{Batch, Job};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Which batch, and what to do with it.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Example: hinterland batch jobs.toml
         hinterland batch jobs.toml --dry-run
         hinterland batch jobs.toml --export slurm --into jobs

Jobs start in the order of the file, as many at once as the host's memory allows. Each gets back ends and a budget that \
keep what it asks for (a slowdown or a deadline), from a page trace of an earlier run if the file names one. An instance is a \
set of open back ends: a job runs in one that has its back ends already, else in an idle one whose back ends are \
exchanged, else in a new one. docs/guides/far-batch.md shows a file.")]
pub struct Arguments {
    /// The jobs
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    /// Show what would run with which settings, and end
    #[arg(long)]
    dry_run: bool,
    /// Write the plan as files of a cluster's scheduler, and end
    #[arg(long, value_enum, value_name = "SCHEDULER", requires = "into")]
    export: Option<Scheduler>,
    /// The folder for these files
    #[arg(long, value_name = "DIR", requires = "export")]
    into: Option<PathBuf>,
    /// The folder for what jobs write, NAME.out and NAME.err [default: where this command writes]
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Keep idle processors of this machine from sleep while faults of a job come quickly, as `hinterland run --awake` does
    #[arg(long)]
    awake: bool,
}

/// Runs, shows or exports a batch. The status is 1 if a job failed or missed what it asked for.
///
/// # Errors
/// [`Failure`] for a file that makes no sense, and for a job that no host of this size can run.
pub fn run(arguments: &Arguments, context: &Context) -> Result<ExitCode, Failure> {
    let batch = Batch::read(&arguments.file)?;
    let mut plan: Vec<(&Job, Setting)> = Vec::with_capacity(batch.jobs.len());
    for job in &batch.jobs {
        plan.push((job, ByTrace.advise(&batch.host, job)?));
    }
    let host = Host {
        memory_bytes: batch.host.memory.0,
        instances_max: batch.host.instances,
        jobs_each_max: batch.host.jobs_each,
    };
    let dispatcher = Dispatcher::new(host);
    for (job, setting) in &plan {
        if !dispatcher.can_ever_run(&setting.demand) {
            return Err(Failure::new(
                format!(
                    "job {:?} needs {} of this host, which has {} for all jobs",
                    job.name,
                    human(setting.demand.memory_bytes),
                    human(host.memory_bytes)
                ),
                "raise memory below [host], allow the job a higher slowdown, or set its local",
            ));
        }
    }
    if let (Some(scheduler), Some(folder)) = (arguments.export, &arguments.into) {
        export::write(scheduler, folder, &batch.host, &plan, arguments.awake)?;
        context.output.say(format!("{} files are in {}", plan.len(), folder.display()));
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.dry_run {
        let ways = foresee(dispatcher, &plan);
        let value: Vec<Value> =
            plan.iter().zip(&ways).map(|((job, setting), way)| planned(job, setting, *way)).collect();
        context.output.either(&json!({ "jobs": value }), || table(&plan, &ways))?;
        return Ok(ExitCode::SUCCESS);
    }
    far::check_awake(arguments.awake)?;
    let (logs, awake) = (arguments.logs.as_deref(), arguments.awake);
    let setup = running::Setup { logs, awake };
    let (ended, interrupted) = running::run(&plan, &batch.host, dispatcher, setup, context)?;
    let values: Vec<Value> = ended.iter().map(running::Ended::value).collect();
    context.output.either(&json!({ "jobs": values }), || running::table(&ended))?;
    // Behind what was done until then, which says which jobs need not be run again.
    if let Some(failure) = interrupted {
        return Err(failure);
    }
    Ok(if ended.iter().all(running::Ended::is_well) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// How a job comes to its instance, in a word.
const fn word(way: Way) -> &'static str {
    match way {
        Way::Online => "online",
        Way::Warm => "warm",
        Way::Switched => "switched",
        Way::Created => "created",
    }
}

/// How each job would come to its instance if those before it ended in their order.
fn foresee(mut dispatcher: Dispatcher, plan: &[(&Job, Setting)]) -> Vec<Way> {
    let mut running = std::collections::VecDeque::new();
    let mut ways = Vec::with_capacity(plan.len());
    for (_, setting) in plan {
        let place = loop {
            if let Some(place) = dispatcher.place(&setting.demand) {
                break Some(place);
            }
            let Some((place, demand)) = running.pop_front() else { break None };
            dispatcher.leave(place, demand);
        };
        if let Some(place) = place {
            running.push_back((place, &setting.demand));
            ways.push(place.way);
        }
    }
    ways
}

fn planned(job: &Job, setting: &Setting, way: Way) -> Value {
    json!({
        "name": job.name,
        "far": setting.far,
        "local_bytes": setting.local_bytes,
        "memory_bytes": setting.demand.memory_bytes,
        "unit_bytes": setting.unit_bytes,
        "ahead": setting.ahead,
        "instance": word(way),
        "why": setting.why,
    })
}

fn table(plan: &[(&Job, Setting)], ways: &[Way]) -> String {
    let mut table = Table::new(&[
        ("JOB", Align::Left),
        ("BACK ENDS", Align::Left),
        ("LOCAL", Align::Right),
        ("OF THE HOST", Align::Right),
        ("UNIT", Align::Right),
        ("INSTANCE", Align::Left),
        ("WHY", Align::Left),
    ]);
    for ((job, setting), way) in plan.iter().zip(ways) {
        table.row([
            job.name.clone(),
            setting.far.join(","),
            human(setting.local_bytes),
            human(setting.demand.memory_bytes),
            human(setting.unit_bytes),
            word(*way).to_owned(),
            setting.why.clone(),
        ]);
    }
    table.text()
}
