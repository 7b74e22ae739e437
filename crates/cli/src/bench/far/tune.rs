//! `far-tune`: programs with the settings that are advised from a trace of each, beside the defaults and the best of a sweep.

use super::apps;
use super::overhead::SOURCE;
use crate::bench::case::row;
use crate::bench::ground::Ground;
use crate::bench::report::{Better, Row};
use crate::bench::rounds::{Samples, Way, in_turn};
use crate::bench::{Bench, Setting};
use crate::commands::advise::{read, words};
use crate::failure::Failure;
use crate::run::back_end::{BackEnd, back_end};
use crate::run::costs;
use hinterland_farplan::PAGE;
use hinterland_farplan::advise::{Goal, Wishes, advise, local_for};
use hinterland_farplan::features::Features;
use hinterland_farplan::replay::{self, Costs, Gaps, Speed, Unit};
use hinterland_farplan::width::WIDTH;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The sweep: what moves at once, with and without fetching ahead, over each back end and both together; where all compress, also as each place uses together.
const UNITS: [u64; 3] = [4 << 10, 64 << 10, 2 << 20];
const BACK_ENDS: [&[usize]; 3] = [&[0], &[1], &[0, 1]];
/// Beside these, with a disk: a unit, and threads that read and that write, with fetching ahead.
const WIDE: (u64, usize) = (64 << 10, 8);
/// What `--quick` leaves of it.
const QUICK_UNITS: [u64; 2] = [64 << 10, 2 << 20];
/// The least local memory that `run` takes.
const LOCAL_BYTES_MIN: u64 = 64 << 20;
/// Room of the back end on the disk.
const DISK_BYTES: u64 = 2 << 30;
/// Workloads, and how large they are: enough for each to take far longer than the interpreter takes to start.
const APPS: [(&str, f64); 10] = [
    ("sort", 0.3),
    ("stream", 0.4),
    ("linpack", 0.4),
    ("sparse", 0.3),
    ("pagerank", 0.4),
    ("breadth", 0.4),
    ("shortest", 0.3),
    ("kmeans", 0.4),
    ("transformer", 0.6),
    ("database", 0.4),
];
/// Workloads whose names stand here are taken, with commas between; all without it.
const CHOICE: &str = "HINTERLAND_FAR_WORKLOADS";
/// Memory of the programs of `--quick`, in MiB.
const QUICK_MIB: &str = "80";
/// For one that is no program of Python and fits into less than its own window.
const WINDOW: &str = "32M";

/// The bench.
pub struct FarTune;

impl Bench for FarTune {
    fn name(&self) -> &'static str {
        "far-tune"
    }

    fn subject(&self) -> &'static str {
        "programs with the settings that `advise` gives, beside the defaults and the best of a sweep"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = Ground::new(setting, 0)?;
        let scene = Scene::new(setting, ground.folder())?;
        let mut rows = Vec::new();
        for (name, line) in programs(&ground, setting.quick)? {
            let told = line.and_then(|line| scene.rows(name, &line));
            rows.extend(told.unwrap_or_else(|failure| {
                let why = format!("{} (hint: {})", failure.text, failure.hint);
                vec![Row::absent(name, "s", Better::Lower, why)]
            }));
        }
        Ok(rows)
    }
}

/// The words of each program.
type Programs = Vec<(&'static str, Result<Vec<String>, Failure>)>;

fn programs(ground: &Ground, quick: bool) -> Result<Programs, Failure> {
    if quick {
        let storms = ground.compiled("storms", SOURCE)?.display().to_string();
        let line = |name: &str| vec![storms.clone(), name.to_owned(), QUICK_MIB.to_owned()];
        return Ok(["scan", "random"].map(|name| (name, Ok(line(name)))).into());
    }
    let chosen = std::env::var(CHOICE).ok();
    let is_chosen = |name: &str| chosen.as_ref().is_none_or(|all| all.split(',').any(|one| one == name));
    Ok(APPS
        .into_iter()
        .filter(|(name, _)| is_chosen(name))
        .map(|(name, scale)| (name, apps::words(name, scale)))
        .collect())
}

/// What all programs share: back ends and what they and the engine's steps cost here.
struct Scene<'bench> {
    setting: &'bench Setting,
    folder: &'bench Path,
    back_ends: Vec<BackEnd>,
    costs: Costs,
}

/// A way to run a program, and the words for it.
#[derive(Clone, Debug, PartialEq)]
struct Plan {
    words: Vec<String>,
    told_s: f64,
}

impl<'bench> Scene<'bench> {
    fn new(setting: &'bench Setting, folder: &'bench Path) -> Result<Self, Failure> {
        let parse = |text: &str| back_end(text).map_err(|text| Failure::new(text, "report this"));
        let disk = format!("ssd:{}@{DISK_BYTES}", folder.display());
        let back_ends = vec![parse("lz4")?, parse(&disk)?];
        let mut scene = Self { setting, folder, back_ends, costs: costs::assumed() };
        if !setting.quick {
            (setting.say)("far-tune: what faults cost here");
            scene.costs = costs::measured(&scene.speeds(2.0)?[0])?;
        }
        Ok(scene)
    }

    fn speeds(&self, compression: f64) -> Result<Vec<Speed>, Failure> {
        let socket = hinterland_pool::default_socket();
        self.back_ends.iter().map(|back_end| costs::speed(back_end, compression, &socket)).collect()
    }

    /// Traces a program, asks for advice, runs all settings, and those that count in turn.
    fn rows(&self, name: &str, line: &[String]) -> Result<Vec<Row>, Failure> {
        (self.setting.say)(&format!("far-tune: {name}, trace"));
        let path = self.folder.join("trace");
        let window = if self.setting.quick { WINDOW } else { "20%" };
        let mut command = Command::new(&self.setting.program);
        command.args(["--quiet", "trace", "--window", window, "-o"]).arg(&path).arg("--").args(line);
        let right = self.answer(command)?.0;
        let [tuned, default, grid @ ..] = &self.plans(&path)?[..] else {
            return Err(Failure::new("nothing is advised", "report this"));
        };
        let mut best: Option<(f64, &Plan)> = None;
        for (index, plan) in grid.iter().enumerate() {
            (self.setting.say)(&format!("far-tune: {name}, {} of {}", index + 1, grid.len()));
            let took = self.took(plan, line, &right)?;
            if best.is_none_or(|(least, _)| took < least) {
                best = Some((took, plan));
            }
        }
        let Some((_, best)) = best else { return Err(Failure::new("an empty sweep", "report this")) };
        let live = Plan { words: [&default.words[..], &["--tune".to_owned()]].concat(), ..default.clone() };
        let plans = [tuned, best, default, &live];
        let mut ways: Vec<Way<'_>> = Vec::new();
        for plan in plans {
            let right = &right;
            ways.push(Box::new(move || self.took(plan, line, right)));
        }
        let samples = in_turn(self.setting.rounds, &mut ways)?;
        drop(ways);
        Ok(told(name, plans, &samples))
    }

    /// The advised setting, the default one, and the sweep.
    fn plans(&self, path: &Path) -> Result<Vec<Plan>, Failure> {
        let trace = read(path)?;
        let speeds = self.speeds(Features::of(&trace).compression)?;
        let half = local_for(&trace, replay::footprint_pages(&trace) * PAGE / 2);
        let wishes = Wishes {
            local_bytes: Some(half.max(LOCAL_BYTES_MIN)),
            slowdown_max: 1.5,
            speeds: speeds.clone(),
            costs: self.costs.clone(),
            goal: Goal::Time,
        };
        let advice =
            advise(&trace, &wishes).ok_or_else(|| Failure::new("no back end is advised", "report this"))?;
        let gaps = Gaps::of(&trace);
        let plan = |unit: Unit, ahead: bool, width: usize, back_ends: &[usize]| {
            let setting = replay::Setting {
                local_bytes: advice.local_bytes,
                unit,
                ahead,
                width,
                back_ends: back_ends.to_vec(),
            };
            let told = replay::replay(&trace, &gaps, &setting, &speeds, &self.costs);
            Plan { words: words(&setting, &speeds), told_s: told.time_s }
        };
        let best = &advice.best;
        let mut plans = vec![
            Plan { words: words(&best.setting, &speeds), told_s: best.told.time_s },
            plan(Unit::Fitted, true, WIDTH, &[0]),
        ];
        let (units, back_ends) = if self.setting.quick {
            (&QUICK_UNITS[..], &BACK_ENDS[..1])
        } else {
            (&UNITS[..], &BACK_ENDS[..])
        };
        for back_ends in back_ends {
            let can_fit = back_ends.iter().all(|index| speeds[*index].is_exact);
            for unit in units.iter().copied().map(Unit::Bytes).chain(can_fit.then_some(Unit::Fitted)) {
                plans.extend([true, false].map(|ahead| plan(unit, ahead, WIDTH, back_ends)));
            }
            if !can_fit {
                plans.push(plan(Unit::Bytes(WIDE.0), true, WIDE.1, back_ends));
            }
        }
        Ok(plans)
    }

    /// Seconds of a run, whose answer must be the right one.
    fn took(&self, plan: &Plan, line: &[String], right: &str) -> Result<f64, Failure> {
        let mut command = Command::new(&self.setting.program);
        command.arg("--quiet").args(&plan.words).arg("--").args(line);
        let (answer, took) = self.answer(command)?;
        if answer != right {
            let text = format!("{}: the answer is {answer}, and was {right}", plan.words.join(" "));
            return Err(Failure::new(text, "report this: far memory gave a wrong byte"));
        }
        Ok(took)
    }

    /// What a program says without its times, and how long it took.
    fn answer(&self, mut command: Command) -> Result<(String, f64), Failure> {
        let failed = |why: String| {
            Failure::new(format!("a program failed: {why}"), "run it by itself and see what it says")
        };
        let begun = Instant::now();
        let output = command.stdin(Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
        let took = begun.elapsed().as_secs_f64();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(failed(format!("{}: {}", output.status, said.lines().last().unwrap_or_default())));
        }
        Ok((checksum(&String::from_utf8_lossy(&output.stdout)), took))
    }
}

/// The checksum of a workload, or all that another program says.
fn checksum(said: &str) -> String {
    let fields: BTreeMap<String, serde_json::Value> = serde_json::from_str(said).unwrap_or_default();
    fields.get("checksum").map_or_else(|| said.trim().to_owned(), ToString::to_string)
}

/// Rows of one program: what was advised, what the tuner that learns while it runs does with the defaults, and what was foretold.
fn told(name: &str, plans: [&Plan; 4], samples: &[Samples]) -> Vec<Row> {
    let [tuned, best, default, _] = plans;
    // The same words are the same setting, whatever the moment did.
    let same = |plan: &Plan, other: &Samples| if plan == best { samples[1].clone() } else { other.clone() };
    let is_best = format!("the best of a sweep: {}", best.words.join(" "));
    let names = || [Some(is_best.clone()), Some(format!("the defaults: {}", default.words.join(" ")))];
    let seconds = |case: String, ours: &Samples, why: String| {
        row(
            case,
            "s",
            Better::Lower,
            &[ours.clone(), samples[1].clone(), same(default, &samples[2])],
            names(),
            Some(why),
        )
    };
    let ours = same(tuned, &samples[0]);
    let foretold = {
        let mut foretold = Samples::default();
        foretold.add(tuned.told_s);
        foretold
    };
    vec![
        seconds(name.to_owned(), &ours, format!("advised: {}", tuned.words.join(" "))),
        seconds(format!("{name}-live"), &samples[3], "the defaults with --tune".to_owned()),
        row(
            format!("{name}-foretold"),
            "s",
            Better::Lower,
            &[foretold, ours],
            [Some("what it took".to_owned()), None],
            None,
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(value: f64) -> Samples {
        let mut samples = Samples::default();
        samples.add(value);
        samples
    }

    #[test]
    fn what_is_the_best_of_the_sweep_is_compared_with_itself() {
        let plan = |word: &str, told_s| Plan { words: vec![word.to_owned()], told_s };
        let (tuned, other) = (plan("a", 1.5), plan("b", 9.0));
        let all = [2.0, 1.0, 3.0, 4.0].map(samples);
        let rows = told("x", [&tuned, &tuned, &other, &other], &all);
        assert_eq!((rows[0].ours, rows[0].limit, rows[0].peer), (Some(1.0), Some(1.0), Some(3.0)));
        assert_eq!((rows[2].ours, rows[2].limit), (Some(1.5), Some(1.0)));
        let rows = told("x", [&tuned, &other, &other, &other], &all);
        assert_eq!((rows[0].ours, rows[0].limit, rows[0].peer), (Some(2.0), Some(1.0), Some(1.0)));
        assert_eq!(rows[1].ours, Some(4.0));
    }

    #[test]
    fn an_answer_is_a_checksum_without_its_times() {
        assert_eq!(checksum("{\"checksum\": \"ab\", \"s\": 1.5}"), "\"ab\"");
        assert_eq!(checksum("17\n"), "17");
    }
}
