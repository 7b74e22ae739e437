//! The file of a batch: the host, the jobs, and what was asked for each.

use crate::failure::Failure;
use crate::input;
use crate::run::back_end::back_end;
use crate::run::far;
use crate::size::Size;
use hinterland_farplan::share::{SHARE, SHARE_MAX};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Longest name of a job: what Kubernetes and Slurm take, with a word of ours before it.
const NAME_LENGTH_MAX: usize = 40;
/// Longest file: many thousands of jobs.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A batch as it is written.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    pub host: Host,
    #[serde(rename = "job", default)]
    pub jobs: Vec<Job>,
}

/// What all jobs share.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Memory of this host for all jobs that run at once.
    pub memory: Bytes,
    /// Most instances: sets of open back ends.
    #[serde(default = "two")]
    pub instances: usize,
    /// Most jobs that share an instance at once.
    #[serde(default = "two")]
    pub jobs_each: usize,
    /// Back ends that jobs may have, the one that is best when nothing is known first.
    pub back_ends: Vec<String>,
    /// Most bytes that move at once.
    #[serde(default = "unit")]
    pub unit: Bytes,
    /// The container image of exported jobs.
    pub image: Option<String>,
}

/// A program, and what it must keep.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub name: String,
    pub program: Vec<String>,
    /// Memory that it uses.
    pub memory: Bytes,
    /// Seconds that it takes alone, with all of its memory here.
    pub seconds: Option<f64>,
    /// How many times longer than alone it may take.
    pub slowdown: Option<f64>,
    /// Seconds from the start of the batch until which it must have ended.
    pub deadline: Option<f64>,
    /// A page trace of an earlier run.
    pub trace: Option<PathBuf>,
    /// By hand: the budget.
    pub local: Option<Bytes>,
    /// By hand: back ends.
    pub far: Option<Vec<String>>,
    /// Its share of disks, links and processors beside other jobs.
    pub share: Option<u64>,
}

/// A size in words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Bytes(pub u64);

impl TryFrom<String> for Bytes {
    type Error = crate::size::SizeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse::<Size>().map(|size| Self(size.bytes))
    }
}

const fn two() -> usize {
    2
}

const fn unit() -> Bytes {
    Bytes(far::SLOW_UNIT_BYTES)
}

impl Batch {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`Failure`] that names the line or the job.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let text = input::read_text(path, FILE_BYTES_MAX)?;
        Self::parse(&text).map_err(|(why, hint)| Failure::new(format!("{}: {why}", path.display()), hint))
    }

    fn parse(text: &str) -> Result<Self, (String, String)> {
        let example = "docs/guides/far-batch.md shows a whole file".to_owned();
        let batch: Self = toml::from_str(text)
            .map_err(|error| (error.to_string().trim_end().to_owned(), example.clone()))?;
        if batch.jobs.is_empty() {
            return Err(("there is no [[job]]".to_owned(), example));
        }
        let host = &batch.host;
        if host.back_ends.is_empty() || host.instances == 0 || host.jobs_each == 0 {
            return Err((
                "the host needs a back end, an instance and a job in each at least".to_owned(),
                "write back_ends = [\"lz4\"], and instances and jobs_each from 1".to_owned(),
            ));
        }
        if !(4096..=2 << 20).contains(&host.unit.0) || !host.unit.0.is_power_of_two() {
            return Err(("the unit is none".to_owned(), "a power of two from 4K to 2M".to_owned()));
        }
        check_back_ends(&host.back_ends).map_err(|why| split("host", &why))?;
        let mut names = BTreeSet::new();
        for job in &batch.jobs {
            job.check().map_err(|why| split(&format!("job {:?}", job.name), &why))?;
            if !names.insert(&job.name) {
                return Err((
                    format!("two jobs are called {}", job.name),
                    "give each its own name".to_owned(),
                ));
            }
        }
        Ok(batch)
    }
}

impl Job {
    /// One that says its memory alone.
    #[cfg(test)]
    pub(super) fn of_memory(name: &str, memory: u64) -> Self {
        Self {
            name: name.to_owned(),
            program: vec!["true".to_owned()],
            memory: Bytes(memory),
            seconds: None,
            slowdown: None,
            deadline: None,
            trace: None,
            local: None,
            far: None,
            share: None,
        }
    }

    fn check(&self) -> Result<(), String> {
        let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if self.name.is_empty()
            || self.name.len() > NAME_LENGTH_MAX
            || !self.name.bytes().all(is_fine)
            || self.name.starts_with('-')
            || self.name.ends_with('-')
        {
            return Err(format!(
                "its name is none (hint: up to {NAME_LENGTH_MAX} of a-z, 0-9 and -, as clusters ask for)"
            ));
        }
        if self.program.is_empty() {
            return Err("it has no program (hint: program = [\"python3\", \"train.py\"])".to_owned());
        }
        let is_time = |time: f64| time.is_finite() && time > 0.0;
        if !self.seconds.is_none_or(is_time) || !self.deadline.is_none_or(is_time) {
            return Err("seconds and deadline are times above 0 (hint: deadline = 90)".to_owned());
        }
        if !self.slowdown.is_none_or(|slowdown| slowdown.is_finite() && slowdown >= 1.0) {
            return Err("a slowdown is 1 or more (hint: 1.5 lets it take half as long again)".to_owned());
        }
        if self.local.is_some_and(|local| local.0 < hinterland_far::control::LOCAL_BYTES_MIN) {
            return Err("its local memory is too little for any program (hint: at least 64M)".to_owned());
        }
        if !self.share.is_none_or(|share| (1..=SHARE_MAX).contains(&share)) {
            let hint = format!("1 to {SHARE_MAX}; {SHARE} is what others have");
            return Err(format!("its share is out of range (hint: {hint})"));
        }
        match &self.far {
            Some(far) if far.is_empty() => Err("far names no back end (hint: leave it out)".to_owned()),
            Some(far) => check_back_ends(far),
            None => Ok(()),
        }
    }
}

fn check_back_ends(words: &[String]) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for word in words {
        let known = back_end(word)?;
        if !names.insert(known.name()) {
            return Err(format!("{} is named twice (hint: name each back end once)", known.name()));
        }
    }
    Ok(())
}

fn split(whose: &str, why: &str) -> (String, String) {
    let (why, hint) =
        why.split_once(" (hint: ").unwrap_or((why, "docs/guides/far-batch.md shows a whole file)"));
    (format!("{whose}: {why}"), hint.trim_end_matches(')').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "
[host]
memory = \"1G\"
back_ends = [\"lz4\", \"ssd:/tmp@1G\"]
[[job]]
name = \"sum\"
program = [\"true\"]
memory = \"400M\"
slowdown = 1.5
";

    #[test]
    fn a_file_has_defaults_and_what_makes_no_sense_is_told_with_its_job() {
        let batch = Batch::parse(GOOD).unwrap();
        assert_eq!((batch.host.instances, batch.host.jobs_each, batch.host.unit.0), (2, 2, 64 << 10));
        assert_eq!(batch.jobs[0].memory.0, 400 << 20);
        for (from, to, part) in [
            ("1.5", "0.5", "job \"sum\": a slowdown"),
            ("\"sum\"", "\"Sum it\"", "its name is none"),
            ("[\"true\"]", "[]", "no program"),
            ("400M", "much", "no size"),
            ("lz4", "tape", "is no back end"),
            ("slowdown", "slow_down", "slow_down"),
            ("ssd:/tmp@1G", "lz4", "named twice"),
            ("[[job]]", "[job]", "invalid type"),
        ] {
            let (why, hint) = Batch::parse(&GOOD.replace(from, to)).unwrap_err();
            assert!(why.contains(part) && !hint.is_empty(), "{part}: {why}");
        }
        let twice = format!("{GOOD}[[job]]\nname = \"sum\"\nprogram = [\"true\"]\nmemory = \"1M\"\n");
        assert!(Batch::parse(&twice).unwrap_err().0.contains("two jobs"));
    }
}
