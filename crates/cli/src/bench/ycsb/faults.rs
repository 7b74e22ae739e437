//! Two programs that share the table by page faults, in no pool: pages go to whoever touches them.

use super::Rates;
use crate::bench::worker::Worker;
use crate::failure::Failure;
use std::path::Path;
use std::process::Command;

/// The programs; they stay, and with them what pages they have.
pub struct Faulted {
    programs: [Worker; 2],
}

impl Faulted {
    /// Starts both with `more` words each, at most `cached` MiB of the other's pages in each, and has them load the records.
    ///
    /// # Errors
    /// [`Failure`] where the kernel gives no faults away.
    pub fn start(program: &Path, cached: &str, more: &[&str]) -> Result<Self, Failure> {
        let start = |end: [&str; 2]| {
            let mut command = Command::new(program);
            command.arg("faults").args(end).args(["--cached", cached]).args(more);
            Worker::start("a program that shares memory by page faults", command)
        };
        let mut first = start(["--listen", "127.0.0.1:0"])?;
        let address = first.heard("where it listens")?;
        let mut pair = Self { programs: [first, start(["--connect", &address])?] };
        pair.programs[0].words("create")?;
        pair.both("load")?;
        Ok(pair)
    }

    /// What both do at once.
    ///
    /// # Errors
    /// [`Failure`], also for a value that is not right.
    pub fn rate(&mut self, workload: &str, popularity: &str, seconds: &str) -> Result<Rates, Failure> {
        let answers = self.both(&format!("drive {workload} {popularity} {seconds}"))?;
        let rate = |answer: &String| {
            let mut words = answer.split_whitespace().map(str::parse::<f64>);
            Some(words.next()?.ok()? / words.next()?.ok()? / 1000.0)
        };
        Rates::of(answers.iter().map(rate).collect()).ok_or_else(|| {
            Failure::new(format!("a program that shares memory answered {answers:?}"), "report this")
        })
    }

    /// Has both do the same at once.
    fn both(&mut self, line: &str) -> Result<Vec<String>, Failure> {
        for program in &mut self.programs {
            program.tell(line)?;
        }
        // Each is heard even if the other failed, so that the next answer is to the next line.
        let heard: Vec<_> = self.programs.iter_mut().map(|program| program.heard(line)).collect();
        heard.into_iter().collect()
    }
}
