//! `far-apps`: real programs from packages with a part of their memory here, beside the kernel's swap.
//!
//! | module | subject |
//! | --- | --- |
//! | [`options`] | which workloads, of which size, with how much of their memory here |
//! | [`program`] | one run of one workload |
//! | [`table`] | rows and means of what the runs took |

pub mod options;
mod program;
mod table;

use super::far::swap::{Kind, Swap};
use super::ground::Ground;
use super::report::Row;
use super::rounds::Samples;
use super::{Bench, Setting, prepared};
use crate::failure::Failure;
use hinterland_far::control::LOCAL_BYTES_MIN;
use options::Work;
use program::{Done, Ended, run};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What `bench/far/prepare.sh` makes. Not made canonical: that would lead past the packages of the environment.
const PYTHON: &str = ".cache/far-apps/bin/python";
const WORKLOADS: &str = "bench/far/workloads.py";
const HINT: &str = "bench/far/prepare.sh makes it, once; run the bench in the source tree";
/// How often as long as without a limit of its memory a program may take, and how long beside.
const CRAWL: (u32, Duration) = (10, Duration::from_secs(60));
/// How long a program may take without a limit.
const PLAIN_MAX: Duration = Duration::from_secs(600);
/// How often a run with swap is tried: under a small limit the kernel kills programs of a control group while there is swap left.
const TRIES: usize = 3;
/// Other ways to run a program with less memory than it needs.
const PEERS: [(Kind, &str, &str); 3] = [
    (Kind::Zram, "zram", "zram swap"),
    (Kind::Disk, "disk", "disk swap"),
    (Kind::Zswap, "zswap", "zswap before disk swap"),
];

/// The bench.
pub struct FarApps;

impl Bench for FarApps {
    fn name(&self) -> &'static str {
        "far-apps"
    }

    fn subject(&self) -> &'static str {
        "real programs (numpy, scipy, scikit-learn, igraph, SQLite) with a part of their memory here, from start to end"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let missing = |failure: Failure| Failure { hint: HINT.to_owned(), ..failure };
        for file in [PYTHON, WORKLOADS] {
            prepared::file(Path::new(file)).map_err(missing)?;
        }
        if let Some(program) = &setting.apps.program {
            let other = |failure| Failure { hint: "name a hinterland that was built".to_owned(), ..failure };
            prepared::file(program).map_err(other)?;
        }
        let works = setting.apps.works(&known()?, setting.quick)?;
        let percents = setting.apps.percents(setting.quick);
        let ground = Ground::new(setting, 0)?;
        let mut cases = Vec::new();
        for work in &works {
            let scene = Scene::new(setting, &ground, work)?;
            for percent in &percents {
                cases.push(scene.case(*percent)?);
            }
        }
        Ok(table::rows(&cases, &percents))
    }
}

/// The names of the workloads.
fn known() -> Result<Vec<String>, Failure> {
    let output = Command::new(PYTHON).args([WORKLOADS, "--list"]).output();
    let output = output.map_err(|error| Failure {
        hint: HINT.to_owned(),
        ..Failure::file("starting", Path::new(PYTHON), &error)
    })?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// What one way of running a program took, in all rounds.
#[derive(Clone, Debug, Default)]
struct Took {
    seconds: Samples,
    cpu_seconds: Samples,
    system_seconds: Samples,
    /// It was ended after so many seconds.
    more_than: Option<f64>,
    /// Why there is nothing.
    why: Option<String>,
    /// What the last run said.
    words: String,
}

/// A workload with so much of its memory here.
struct Case {
    work: Work,
    percent: u8,
    peak_bytes: u64,
    file_bytes: u64,
    local_bytes: u64,
    plain: Took,
    ours: Took,
    peers: Vec<Took>,
}

/// A workload that is measured.
struct Scene<'bench> {
    setting: &'bench Setting,
    ground: &'bench Ground,
    work: &'bench Work,
    first: Done,
    limit: Duration,
}

impl<'bench> Scene<'bench> {
    /// Runs the workload once as it is: files are in memory then, its peak and its checksum are known.
    fn new(setting: &'bench Setting, ground: &'bench Ground, work: &'bench Work) -> Result<Self, Failure> {
        (setting.say)(&format!("far-apps: {} of size {}", work.name, work.scale));
        let mut command = parented(setting);
        words(&mut command, work);
        let first = match run(command, PLAIN_MAX)? {
            Ended::Done(done) => done,
            Ended::MoreThan(seconds) => {
                let text = format!("{} took more than {seconds} s without a limit of its memory", work.name);
                return Err(Failure::new(text, "a smaller --scale"));
            }
            Ended::Failed(why) => {
                let text = format!("{} fails as it is: {why}", work.name);
                return Err(Failure::new(
                    text,
                    format!("run {PYTHON} {WORKLOADS} {} {}", work.name, work.scale),
                ));
            }
        };
        let limit = CRAWL.0 * Duration::from_secs_f64(first.seconds) + CRAWL.1;
        Ok(Self { setting, ground, work, first, limit })
    }

    /// All ways, in turn, round by round.
    fn case(&self, percent: u8) -> Result<Case, Failure> {
        let Done { peak_bytes, file_bytes, .. } = self.first;
        let own_bytes = peak_bytes.saturating_sub(file_bytes) / 100 * u64::from(percent);
        let local_bytes = (own_bytes + file_bytes).max(LOCAL_BYTES_MIN);
        (self.setting.say)(&format!(
            "far-apps: {} with {percent} % of {} MiB",
            self.work.name,
            peak_bytes >> 20
        ));
        let mut case = Case {
            work: self.work.clone(),
            percent,
            peak_bytes,
            file_bytes,
            local_bytes,
            plain: Took::default(),
            ours: Took::default(),
            peers: vec![Took::default(); PEERS.len()],
        };
        for _ in 0..self.setting.rounds {
            let mut command = parented(self.setting);
            words(&mut command, self.work);
            self.take(&mut case.plain, "without a limit", command)?;
            let mut command = parented(self.setting);
            command.arg(self.setting.apps.program.as_ref().unwrap_or(&self.setting.program));
            command.args(["run", "--local", &local_bytes.to_string(), "--"]);
            words(&mut command, self.work);
            self.take(&mut case.ours, "with far memory", command)?;
            for (took, peer) in case.peers.iter_mut().zip(PEERS) {
                // A control group does not count pages of files that were in memory before; our budget does.
                self.swapped(took, peer, local_bytes - file_bytes)?;
            }
        }
        Ok(case)
    }

    /// A run with swap. One that crawled is not tried again in later rounds.
    fn swapped(&self, took: &mut Took, peer: (Kind, &str, &str), bytes: u64) -> Result<(), Failure> {
        for _ in 0..TRIES {
            if took.more_than.is_some() {
                return Ok(());
            }
            took.why = None;
            self.swapped_once(took, peer, bytes)?;
            if took.why.is_none() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn swapped_once(&self, took: &mut Took, peer: (Kind, &str, &str), bytes: u64) -> Result<(), Failure> {
        let (kind, _, name) = peer;
        let room = (2 * self.first.peak_bytes).next_multiple_of(1 << 20);
        let swap = Swap::start(self.ground, kind, room);
        let command = swap.and_then(|mut swap| {
            let command = swap.command(Path::new(PYTHON), bytes)?;
            Ok((swap, command))
        });
        match command {
            Ok((swap, mut command)) => {
                command.args([WORKLOADS, &self.work.name, &self.work.scale.to_string()]);
                let taken = self.take(took, &format!("with {name}"), command);
                drop(swap);
                taken
            }
            Err(failure) => {
                took.why = Some(format!("{name}: {} (hint: {})", failure.text, failure.hint));
                Ok(())
            }
        }
    }

    /// A run, and what it found compared with the first.
    fn take(&self, took: &mut Took, how: &str, command: Command) -> Result<(), Failure> {
        match run(command, self.limit)? {
            Ended::Done(done) if done.checksum != self.first.checksum => {
                let (name, scale) = (&self.work.name, self.work.scale);
                let text = format!(
                    "{name} of size {scale} found {} {how}, and {} as it is: a byte was wrong",
                    done.checksum, self.first.checksum
                );
                return Err(Failure::new(text, "report this, with the figures of `hinterland bench`"));
            }
            Ended::Done(done) => {
                took.seconds.add(done.seconds);
                took.cpu_seconds.add(done.cpu_seconds);
                took.system_seconds.add(done.system_seconds);
                took.words = done.words;
            }
            Ended::MoreThan(seconds) => took.more_than = Some(seconds),
            Ended::Failed(why) => took.why = Some(format!("{how}: {why}")),
        }
        Ok(())
    }
}

/// A program that does not outlive the bench, to be followed by its words.
fn parented(setting: &Setting) -> Command {
    let mut command = Command::new(&setting.program);
    command.args(["become", "--parent", &std::process::id().to_string(), "--"]);
    command
}

fn words(command: &mut Command, work: &Work) {
    command.args([PYTHON, WORKLOADS, &work.name, &work.scale.to_string()]);
}
