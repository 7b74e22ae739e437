//! One run of a workload, from its start to its end: how long it took, how much processor time, and what it found.

use crate::failure::Failure;
use serde_json::Value;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Ticks of processor time in a second, as the kernel tells them to everybody.
const TICKS: f64 = 100.0;

/// A run that came to its end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    /// Seconds from its start to its end.
    pub seconds: f64,
    /// Processor seconds of it and of all that it started and waited for, in the kernel and outside.
    pub cpu_seconds: f64,
    /// Those in the kernel.
    pub system_seconds: f64,
    /// What the result is.
    pub checksum: String,
    /// The most memory that it had.
    pub peak_bytes: u64,
    /// Pages of files among them: the libraries.
    pub file_bytes: u64,
    /// What else it said.
    pub words: String,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// By itself.
    Done(Done),
    /// It crawled: it was ended after so many seconds.
    MoreThan(f64),
    /// It failed, or was killed.
    Failed(String),
}

/// Runs a program for at most this time.
///
/// # Errors
/// [`Failure`] if it cannot be started.
pub fn run(mut command: Command, limit: Duration) -> Result<Ended, Failure> {
    let (cpu, system) = children_seconds();
    let begun = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| {
        let name = command.get_program().to_string_lossy();
        Failure::new(format!("{name} cannot be started: {error}"), "run the bench in the source tree")
    })?;
    let (sender, ended) = channel();
    let (output, errors) = (child.stdout.take(), child.stderr.take());
    let output = std::thread::spawn(move || {
        let text = read_all(output);
        // Whoever waits has gone on when it took too long.
        let _ = sender.send(());
        text
    });
    let errors = std::thread::spawn(move || read_all(errors));
    let crawls = ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
    if crawls {
        // One that has ended just now is as good.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| Failure::new(format!("no status: {error}"), "report this"))?;
    let seconds = begun.elapsed().as_secs_f64();
    let [output, errors] = [output, errors].map(|thread| thread.join().unwrap_or_default());
    if crawls {
        return Ok(Ended::MoreThan(limit.as_secs_f64()));
    }
    let (cpu_after, system_after) = children_seconds();
    let words = errors.trim().to_owned();
    let found: Value =
        output.lines().last().and_then(|line| serde_json::from_str(line).ok()).unwrap_or_default();
    let Some(checksum) = found["checksum"].as_str().filter(|_| status.success()) else {
        let last = words.lines().last().unwrap_or("it said nothing");
        return Ok(Ended::Failed(format!("{status}: {last}")));
    };
    Ok(Ended::Done(Done {
        seconds,
        cpu_seconds: cpu_after - cpu,
        system_seconds: system_after - system,
        checksum: checksum.to_owned(),
        peak_bytes: found["peak_bytes"].as_u64().unwrap_or(0),
        file_bytes: found["file_bytes"].as_u64().unwrap_or(0),
        words,
    }))
}

fn read_all(from: Option<impl Read>) -> String {
    let mut text = Vec::new();
    if let Some(mut from) = from {
        // What was read before an error is kept.
        let _ = from.read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// Processor seconds of all processes that were waited for, and those in the kernel among them.
fn children_seconds() -> (f64, f64) {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let words: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let seconds =
        |index: usize| words.get(index).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0) / TICKS;
    (seconds(13) + seconds(14), seconds(14))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run(command, limit).unwrap()
    }

    #[test]
    fn what_a_run_found_and_used_is_told() {
        let script = "n=0; while [ $n -lt 300000 ]; do n=$((n+1)); done; echo words >&2; echo '{\"checksum\":\"a\",\"peak_bytes\":7}'";
        let Ended::Done(done) = shell(script, Duration::from_secs(100)) else { panic!("it did not end") };
        assert_eq!((done.checksum.as_str(), done.peak_bytes, done.words.as_str()), ("a", 7, "words"));
        assert!(done.seconds > 0.0 && done.cpu_seconds > 0.0, "{done:?}");
    }

    #[test]
    fn a_run_that_crawls_is_ended_and_one_that_fails_says_why() {
        assert_eq!(shell("exec sleep 1000", Duration::from_millis(10)), Ended::MoreThan(0.01));
        let Ended::Failed(why) = shell("echo broken >&2; exit 3", Duration::from_secs(100)) else {
            panic!("it did not fail")
        };
        assert!(why.contains('3') && why.ends_with("broken"), "{why}");
        assert!(matches!(shell("echo no json", Duration::from_secs(100)), Ended::Failed(_)));
    }
}
