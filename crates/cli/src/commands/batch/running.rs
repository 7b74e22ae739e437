//! Running a plan: jobs start when there is room for them, in instances that are kept open for those behind them.

use super::advice::{Setting, slowdown};
use super::jobs::{Host, Job};
use crate::context::Context;
use crate::failure::Failure;
use crate::run::back_end::back_end;
use crate::run::{far, preload, program};
use crate::size::human;
use crate::table::{Align, Table};
use hinterland_far::store::Stores;
use hinterland_far::{Budget, Options, Report, Service, Watch};
use hinterland_farplan::dispatch::{Dispatcher, Place};
use hinterland_farplan::width::WIDTH;
use hinterland_os::poll::{SignalWatch, wait_readable};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the ends of jobs are looked for.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How long jobs may take to end when the batch is interrupted.
const FAREWELL: Duration = Duration::from_secs(3);

/// A set of open back ends.
struct Instance {
    stores: Arc<Stores>,
    names: Vec<String>,
}

/// A job that runs.
struct Running {
    index: usize,
    place: Place,
    child: Child,
    supervised: far::Supervised,
    started: Instant,
}

/// A job that has ended, or could not be started.
pub struct Ended {
    name: String,
    far: String,
    local_bytes: u64,
    way: &'static str,
    /// Why it could not be started.
    refused: Option<String>,
    status: Option<ExitStatus>,
    waited_s: f64,
    took_s: f64,
    report: Report,
    /// Whether what was asked for was kept; nothing where nobody can tell.
    kept: Option<bool>,
    objective: String,
}

/// What all jobs have in common.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// The folder for what they write.
    pub logs: Option<&'a Path>,
    /// Whether processors are kept from sleep while their faults come quickly.
    pub awake: bool,
}

struct Runner<'a> {
    plan: &'a [(&'a Job, Setting)],
    host: &'a Host,
    dispatcher: Dispatcher,
    instances: BTreeMap<usize, Instance>,
    setup: Setup<'a>,
    context: &'a Context,
    begun: Instant,
}

/// Runs all jobs; those that have ended, and why the others have not. What runs is ended when this process is asked to end.
///
/// # Errors
/// [`Failure`] without signals or the library.
pub fn run(
    plan: &[(&Job, Setting)],
    host: &Host,
    dispatcher: Dispatcher,
    setup: Setup<'_>,
    context: &Context,
) -> Result<(Vec<Ended>, Option<Failure>), Failure> {
    let signals = SignalWatch::new()?;
    preload::find()?;
    if let Some(folder) = setup.logs {
        std::fs::create_dir_all(folder).map_err(|error| Failure::file("making", folder, &error))?;
    }
    let begun = Instant::now();
    let mut runner = Runner { plan, host, dispatcher, instances: BTreeMap::new(), setup, context, begun };
    let mut queue: VecDeque<usize> = (0..plan.len()).collect();
    let mut running: Vec<Running> = Vec::new();
    let mut ended: Vec<Ended> = Vec::new();
    while !queue.is_empty() || !running.is_empty() {
        while let Some(index) = queue.front().copied()
            && let Some(place) = runner.dispatcher.place(&plan[index].1.demand)
        {
            queue.pop_front();
            match runner.start(index, place) {
                Ok(one) => running.push(one),
                Err(failure) => {
                    runner.dispatcher.leave(place, &plan[index].1.demand);
                    ended.push(runner.refused(index, place, &failure));
                }
            }
        }
        if !running.is_empty() && wait_readable(&signals, Some(LOOK_INTERVAL))? {
            end_all(running);
            let interrupted = Failure::new(
                format!("interrupted: {} jobs had ended, the others were ended", ended.len()),
                "run it again, without the jobs that are done",
            );
            return Ok((ended, Some(interrupted)));
        }
        let mut left = Vec::with_capacity(running.len());
        for mut one in running {
            match one.child.try_wait() {
                Ok(None) => left.push(one),
                // A child that cannot be waited for is gone.
                status => ended.push(runner.end(one, status.ok().flatten())),
            }
        }
        running = left;
    }
    Ok((ended, None))
}

fn end_all(mut running: Vec<Running>) {
    let process = |one: &Running| nix::unistd::Pid::from_raw(one.child.id() as i32);
    for one in &running {
        // It may have ended meanwhile.
        let _ = nix::sys::signal::kill(process(one), nix::sys::signal::Signal::SIGTERM);
    }
    let deadline = Instant::now() + FAREWELL;
    while Instant::now() < deadline && running.iter_mut().any(|one| matches!(one.child.try_wait(), Ok(None)))
    {
        std::thread::sleep(LOOK_INTERVAL);
    }
    for mut one in running {
        let _ = one.child.kill();
        let _ = one.child.wait();
        drop(one.supervised.end());
    }
}

impl Runner<'_> {
    fn start(&mut self, index: usize, place: Place) -> Result<Running, Failure> {
        let (job, setting) = &self.plan[index];
        let stores = self.open(place.instance, &setting.far)?;
        let words: Vec<std::ffi::OsString> = job.program.iter().map(Into::into).collect();
        let (unit_bytes, ahead) = (setting.unit_bytes, setting.ahead);
        let budget = Budget::Bytes(setting.local_bytes);
        // The unit is what was advised.
        let (service, watch) = (far::service(WIDTH)?, Watch::Nothing);
        // Without shares at all, nobody has one.
        let share = if service.share > 0 { job.share.unwrap_or(service.share) } else { 0 };
        let service = Service { fit: false, share, awake: self.setup.awake, ..service };
        let options = Options { budget, unit_bytes, stores, ahead, service, watch };
        let supervised = far::Supervised::of_job(&job.name, &words, options, &self.context.output)?;
        let variables = [(far::SOCKET_VARIABLE, supervised.socket())];
        let mut command = program::command(&words, &[preload::find()?], &variables, self.context.output)?;
        command.stdin(Stdio::null());
        if let Some(folder) = self.setup.logs {
            let file = |end: &str| {
                let path = folder.join(format!("{}.{end}", job.name));
                File::create(&path).map_err(|error| Failure::file("making", &path, &error))
            };
            command.stdout(file("out")?).stderr(file("err")?);
        } else {
            // The table of the batch alone goes to standard output.
            command.stdout(std::io::stderr());
        }
        let child = command.spawn().map_err(|error| program::not_started(&error))?;
        self.context.output.say(format!(
            "{} starts with {} here and {} ({})",
            job.name,
            human(setting.local_bytes),
            setting.far.join(","),
            super::word(place.way)
        ));
        Ok(Running { index, place, child, supervised, started: Instant::now() })
    }

    /// The back ends of an instance, opened or exchanged if need be. Only one that is idle is ever exchanged.
    fn open(&mut self, number: usize, far: &[String]) -> Result<Arc<Stores>, Failure> {
        let mut wanted = BTreeMap::new();
        for word in far {
            let one = back_end(word).map_err(|why| Failure::of(&why))?;
            wanted.insert(one.name(), one);
        }
        let instance = self
            .instances
            .entry(number)
            .or_insert_with(|| Instance { stores: Arc::new(Stores::new(Vec::new(), 1)), names: Vec::new() });
        for (name, one) in &wanted {
            if !instance.names.contains(name) {
                let store = one.open(self.host.unit.0, &self.context.socket())?;
                instance.stores.add(store).map_err(|error| Failure::of(&error))?;
                instance.names.push(name.clone());
            }
        }
        let old: Vec<String> =
            instance.names.iter().filter(|name| !wanted.contains_key(*name)).cloned().collect();
        for name in old {
            instance.stores.retire(&name).map_err(|error| Failure::of(&error))?;
            instance.names.retain(|other| *other != name);
        }
        Ok(Arc::clone(&instance.stores))
    }

    fn end(&mut self, one: Running, status: Option<ExitStatus>) -> Ended {
        let (job, setting) = &self.plan[one.index];
        let took_s = one.started.elapsed().as_secs_f64();
        let report = one.supervised.end();
        self.dispatcher.leave(one.place, &setting.demand);
        let done_s = self.begun.elapsed().as_secs_f64();
        let kept = job.deadline.map(|deadline| done_s <= deadline).or_else(|| {
            let seconds = job.seconds?;
            Some(took_s / seconds <= slowdown(job))
        });
        let ended = Ended {
            status,
            waited_s: one.started.duration_since(self.begun).as_secs_f64(),
            took_s,
            report,
            kept,
            ..self.blank(one.index, one.place)
        };
        self.context.output.say(format!("{} has ended after {took_s:.1} s: {}", job.name, ended.outcome()));
        ended
    }

    fn refused(&self, index: usize, place: Place, failure: &Failure) -> Ended {
        self.context.output.fail(&Failure::new(
            format!("{} is not started: {}", self.plan[index].0.name, failure.text),
            failure.hint.clone(),
        ));
        let waited_s = self.begun.elapsed().as_secs_f64();
        Ended { refused: Some(failure.text.clone()), waited_s, ..self.blank(index, place) }
    }

    fn blank(&self, index: usize, place: Place) -> Ended {
        let (job, setting) = &self.plan[index];
        Ended {
            name: job.name.clone(),
            far: setting.far.join(","),
            local_bytes: setting.local_bytes,
            way: super::word(place.way),
            refused: None,
            status: None,
            waited_s: 0.0,
            took_s: 0.0,
            report: Report::default(),
            kept: None,
            objective: match job.deadline {
                Some(deadline) => format!("by {deadline} s"),
                None => format!("{:.2} x", slowdown(job)),
            },
        }
    }
}

impl Ended {
    /// Whether it did what it should, and in time as far as anybody can tell.
    pub fn is_well(&self) -> bool {
        self.status.is_some_and(|status| status.success()) && self.kept != Some(false)
    }

    fn outcome(&self) -> String {
        match self.status {
            _ if self.refused.is_some() => "not started".to_owned(),
            Some(status) if status.success() => "done".to_owned(),
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("failed ({code})"),
                (None, Some(signal)) => format!("killed ({signal})"),
                (None, None) => "failed".to_owned(),
            },
            None => "lost".to_owned(),
        }
    }

    /// As JSON.
    pub fn value(&self) -> Value {
        json!({
            "name": self.name,
            "outcome": self.outcome(),
            "why": self.refused,
            "far": self.far,
            "local_bytes": self.local_bytes,
            "instance": self.way,
            "waited_s": self.waited_s,
            "seconds": self.took_s,
            "faults": self.report.faults,
            "stall_s": self.report.stall_s,
            "far_bytes_max": self.report.far_bytes_max,
            "objective": self.objective,
            "kept": self.kept,
        })
    }
}

/// All that has ended, as a table.
pub fn table(ended: &[Ended]) -> String {
    let mut table = Table::new(&[
        ("JOB", Align::Left),
        ("OUTCOME", Align::Left),
        ("BACK ENDS", Align::Left),
        ("INSTANCE", Align::Left),
        ("LOCAL", Align::Right),
        ("FAR", Align::Right),
        ("WAITED", Align::Right),
        ("TOOK", Align::Right),
        ("FAULTS", Align::Right),
        ("STALL", Align::Right),
        ("ASKED FOR", Align::Right),
        ("KEPT", Align::Left),
    ]);
    for one in ended {
        table.row([
            one.name.clone(),
            one.outcome(),
            one.far.clone(),
            one.way.to_owned(),
            human(one.local_bytes),
            human(one.report.far_bytes_max),
            format!("{:.1} s", one.waited_s),
            format!("{:.1} s", one.took_s),
            one.report.faults.to_string(),
            format!("{:.2} s", one.report.stall_s),
            one.objective.clone(),
            one.kept.map_or("not known", |kept| if kept { "yes" } else { "NO" }).to_owned(),
        ]);
    }
    table.text()
}
