//! What a job gets: back ends, budget and unit, from its trace if there is one, else by rule.

use super::jobs::{Host, Job};
use crate::commands::advise as trace;
use crate::failure::Failure;
use crate::run::back_end::back_end;
use hinterland_far::control::LOCAL_BYTES_MIN;
use hinterland_farplan::advise::{Goal, Wishes, advise, local_for};
use hinterland_farplan::dispatch::Demand;
use hinterland_farplan::replay::{Costs, Speed};
use hinterland_farplan::trace::Trace;

/// What a slowdown is when none is asked for.
const SLOWDOWN: f64 = 1.5;
/// Kept beside a share of what a program uses: its libraries, and what is on its way.
const BESIDE_BYTES: u64 = 32 << 20;
/// What compressed content takes of the host, in hundredths; measured contents of numbers are at 40 to 60.
const PACKED_PERCENT: u64 = 60;

/// Settings of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Back ends in words.
    pub far: Vec<String>,
    pub local_bytes: u64,
    pub unit_bytes: u64,
    pub ahead: bool,
    /// What it takes of the host.
    pub demand: Demand,
    /// Why.
    pub why: String,
}

/// Chooses settings of jobs.
pub trait Advisor {
    /// The settings of a job.
    ///
    /// # Errors
    /// [`Failure`] for a trace that is none.
    fn advise(&self, host: &Host, job: &Job) -> Result<Setting, Failure>;
}

/// By a page trace if the job has one, else by the slowdown alone.
pub struct ByTrace;

impl Advisor for ByTrace {
    fn advise(&self, host: &Host, job: &Job) -> Result<Setting, Failure> {
        let slowdown = slowdown(job);
        let mut setting = match &job.trace {
            Some(path) => by_trace(&trace::read(path)?, host, job, slowdown),
            None => by_rule(host, job, slowdown),
        };
        if let Some(local) = job.local {
            setting.local_bytes = local.0;
            setting.why = "by hand".to_owned();
        }
        if let Some(far) = &job.far {
            setting.far.clone_from(far);
            setting.why = "by hand".to_owned();
        }
        setting.demand = demand(job, &setting);
        Ok(setting)
    }
}

/// How many times longer than alone a job may take.
pub fn slowdown(job: &Job) -> f64 {
    let by_deadline = job.deadline.zip(job.seconds).map(|(deadline, seconds)| deadline / seconds);
    job.slowdown.or(by_deadline).unwrap_or(SLOWDOWN).max(1.0)
}

fn by_rule(host: &Host, job: &Job, slowdown: f64) -> Setting {
    let percent = match slowdown {
        slowdown if slowdown >= 2.0 => 30,
        slowdown if slowdown >= 1.5 => 50,
        slowdown if slowdown >= 1.2 => 70,
        _ => 100,
    };
    let local_bytes = (job.memory.0 / 100 * percent + BESIDE_BYTES).max(LOCAL_BYTES_MIN);
    let far_bytes = job.memory.0.saturating_sub(local_bytes);
    let has_room = |word: &&String| back_end(word).is_ok_and(|one| one.room_bytes() >= far_bytes);
    let far = match host.back_ends.iter().find(has_room) {
        Some(word) => vec![word.clone()],
        // None has room for all of it, all together may have.
        None => host.back_ends.clone(),
    };
    Setting {
        far,
        local_bytes,
        unit_bytes: host.unit.0,
        ahead: true,
        demand: Demand { back_ends: Vec::new(), memory_bytes: 0 },
        why: format!("{percent}% here by rule for a slowdown of {slowdown:.2}"),
    }
}

fn by_trace(trace: &Trace, host: &Host, job: &Job, slowdown: f64) -> Setting {
    let wishes = Wishes {
        local_bytes: None,
        slowdown_max: slowdown,
        speeds: host.back_ends.iter().map(|word| speed(word)).collect(),
        costs: Costs::default(),
        goal: Goal::Effect,
    };
    let Some(advice) = advise(trace, &wishes) else { return by_rule(host, job, slowdown) };
    let best = &advice.best.setting;
    let words = best.back_ends.iter().filter_map(|index| host.back_ends.get(*index)).cloned().collect();
    let all = local_for(trace, advice.features.footprint_bytes);
    let local_bytes = advice.local_bytes_least.unwrap_or(all).max(LOCAL_BYTES_MIN);
    Setting {
        far: words,
        local_bytes,
        unit_bytes: best.unit.bytes().min(host.unit.0),
        ahead: best.ahead,
        demand: Demand { back_ends: Vec::new(), memory_bytes: 0 },
        why: format!("by its trace, the least for a slowdown of {slowdown:.2}"),
    }
}

/// Figures of a back end for the model, where it has not been measured yet: those of the machine that the model was made on.
fn speed(word: &str) -> Speed {
    let sleeps = !is_packed(word);
    let (get_ns, get_kib_ns, put_ns, put_kib_ns, cost) = if is_packed(word) {
        (2_000.0, 400.0, 2_000.0, 1_000.0, PACKED_PERCENT as f64 / 100.0)
    } else {
        (60_000.0, 900.0, 60_000.0, 600.0, 0.05)
    };
    Speed {
        name: word.to_owned(),
        get_ns,
        get_kib_ns,
        put_ns,
        put_kib_ns,
        get_together: 2.0,
        put_together: 2.0,
        sleeps,
        // Jobs of a batch have units of one size.
        is_exact: false,
        cost,
    }
}

/// Whether it takes memory of this host.
fn is_packed(word: &str) -> bool {
    word.starts_with("lz4") || word.starts_with("zstd")
}

fn demand(job: &Job, setting: &Setting) -> Demand {
    let far_bytes = job.memory.0.saturating_sub(setting.local_bytes);
    let packed = setting.far.iter().filter(|word| is_packed(word)).count() as u64;
    let kept_bytes = far_bytes / 100 * PACKED_PERCENT * packed / setting.far.len().max(1) as u64;
    Demand { back_ends: setting.far.clone(), memory_bytes: setting.local_bytes + kept_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::batch::jobs::Bytes;

    fn host() -> Host {
        let back_ends = vec!["ssd:/tmp@100M".to_owned(), "lz4".to_owned()];
        Host {
            memory: Bytes(1 << 30),
            instances: 2,
            jobs_each: 2,
            back_ends,
            unit: Bytes(65536),
            image: None,
        }
    }

    fn job(memory: u64) -> Job {
        Job::of_memory("job", memory)
    }

    #[test]
    fn the_more_slowdown_is_allowed_the_less_memory_a_job_gets() {
        let local = |slowdown: f64| {
            let job = Job { slowdown: Some(slowdown), ..job(1 << 30) };
            ByTrace.advise(&host(), &job).unwrap().local_bytes
        };
        assert!(local(1.0) > local(1.2) && local(1.2) > local(1.5) && local(1.5) > local(3.0));
        let late = Job { seconds: Some(10.0), deadline: Some(30.0), ..job(1 << 30) };
        assert_eq!(ByTrace.advise(&host(), &late).unwrap().local_bytes, local(3.0));
    }

    #[test]
    fn a_back_end_has_room_and_compressed_memory_counts() {
        let small = ByTrace.advise(&host(), &job(200 << 20)).unwrap();
        assert_eq!(small.far, ["ssd:/tmp@100M"]);
        assert_eq!(small.demand.memory_bytes, small.local_bytes);
        let large = ByTrace.advise(&host(), &job(1 << 30)).unwrap();
        assert_eq!(large.far, ["lz4"]);
        assert!(large.demand.memory_bytes > large.local_bytes);
        let hand = Job { local: Some(Bytes(80 << 20)), far: Some(host().back_ends), ..job(1 << 30) };
        let hand = ByTrace.advise(&host(), &hand).unwrap();
        assert_eq!((hand.local_bytes, hand.far.len(), hand.why.as_str()), (80 << 20, 2, "by hand"));
    }
}
