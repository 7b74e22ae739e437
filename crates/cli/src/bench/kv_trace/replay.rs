//! Several client processes that replay one trace: started, given the requests in their order, and asked what came of it.

use super::client::Tally;
use super::options::Plan;
use super::requests::Request;
use crate::failure::Failure;
use std::io::{BufRead, BufReader, PipeWriter, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Numbers of requests that are written at once: 4 bytes each, and a write of a pipe is whole up to 4 KiB.
const WRITE_REQUESTS: usize = 1024;
/// How long a replay at recorded speed goes on after one of its clients has failed.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Clients that are ready.
pub struct Clients {
    /// Before the processes, so that it is closed first: they end when there are no more requests.
    cursor: Option<PipeWriter>,
    processes: Vec<Process>,
}

/// What came of a replay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// What all clients did together.
    pub tally: Tally,
    /// Processes.
    pub clients: usize,
    /// Seconds from the first request to the last answer, with the making and checking of bytes.
    pub whole_s: f64,
}

struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
    what: &'static str,
}

impl Clients {
    /// Starts processes and waits until all are ready.
    ///
    /// # Errors
    /// [`Failure`] with the words of the first that is not.
    pub fn start(
        what: &'static str,
        count: usize,
        mut command: impl FnMut() -> Result<Command, Failure>,
    ) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(format!("{what} cannot be started: {error}"), "check the program")
        };
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        let mut clients = Self { cursor: Some(writer), processes: Vec::with_capacity(count) };
        for _ in 0..count {
            let mut command = command()?;
            command.stdin(reader.try_clone().map_err(failed)?).stdout(Stdio::piped());
            let mut child = command.spawn().map_err(failed)?;
            let output = child.stdout.take();
            let output =
                output.ok_or_else(|| Failure::new(format!("{what} has no output"), "report this"))?;
            clients.processes.push(Process { child, output: BufReader::new(output), what });
        }
        for process in &mut clients.processes {
            let line = process.line()?;
            if line != "ready" {
                return Err(Failure::new(format!("{what} said {line:?}"), "report this"));
            }
        }
        Ok(clients)
    }

    /// Gives them the requests in their order, and waits until all are answered.
    ///
    /// # Errors
    /// [`Failure`] with the words of a client that failed.
    pub fn replay(mut self, plan: &Plan) -> Result<Outcome, Failure> {
        let stop = AtomicBool::new(false);
        let clients = self.processes.len();
        let cursor = self.cursor.take();
        let begin = Instant::now();
        let tallies = std::thread::scope(|scope| {
            scope.spawn(|| cursor.map(|cursor| give(cursor, &plan.trace.requests, plan.speed, &stop)));
            let threads: Vec<_> = self
                .processes
                .iter_mut()
                .map(|process| {
                    let stop = &stop;
                    scope.spawn(move || {
                        let tally = process.tally();
                        // Relaxed: only a hint to end early.
                        stop.fetch_or(tally.is_err(), Ordering::Relaxed);
                        tally
                    })
                })
                .collect();
            let broken = || Failure::new("a thread of the bench ended", "report this");
            threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| broken())?)
                .collect::<Result<Vec<_>, _>>()
        })?;
        let whole_s = begin.elapsed().as_secs_f64();
        let tally = tallies.iter().fold(Tally::default(), |all: Tally, tally| all.and(tally));
        if tally.requests != plan.trace.requests.len() as u64 {
            let text = format!("{} of {} requests were answered", tally.requests, plan.trace.requests.len());
            return Err(Failure::new(text, "report this"));
        }
        Ok(Outcome { tally, clients, whole_s })
    }
}

impl Outcome {
    /// Share of blocks that were there, in percent.
    pub fn hit_percent(&self) -> f64 {
        100.0 * self.tally.found as f64 / self.tally.asked.max(1) as f64
    }

    /// Requests a second, if clients did nothing but call the store.
    pub fn requests_per_s(&self) -> f64 {
        self.per_s(self.tally.requests)
    }

    /// Blocks that were read or put a second, likewise.
    pub fn blocks_per_s(&self) -> f64 {
        self.per_s(self.tally.found + self.tally.stored)
    }

    /// Requests a second by the clock, with the making and checking of bytes.
    pub fn requests_per_s_whole(&self) -> f64 {
        self.tally.requests as f64 / self.whole_s
    }

    fn per_s(&self, count: u64) -> f64 {
        count as f64 * self.clients as f64 / self.tally.busy_s.max(1e-9)
    }
}

/// Writes the numbers of all requests, at their times if a speed is given.
fn give(mut cursor: PipeWriter, requests: &[Request], speed: Option<f64>, stop: &AtomicBool) {
    let begin = Instant::now();
    let numbers: Vec<u32> = (0..).take(requests.len()).collect();
    let at_once = if speed.is_some() { 1 } else { WRITE_REQUESTS };
    for numbers in numbers.chunks(at_once) {
        let at_ms = numbers.first().map_or(0, |&first| requests[first as usize].at_ms);
        if let Some(speed) = speed {
            let due = Duration::from_secs_f64(at_ms as f64 / 1e3 / speed);
            while let Some(left) = due.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
                std::thread::sleep(left.min(PAUSE_MAX));
                // Relaxed: as above.
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        if cursor.write_all(&bytes).is_err() {
            // No client is left: each has said why.
            return;
        }
    }
}

impl Process {
    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if !self.output.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            return Err(Failure::new(format!("{} ended", self.what), "see what it said above"));
        }
        match line.trim().strip_prefix("error ") {
            Some(text) => Err(Failure::new(format!("{}: {text}", self.what), "see the message")),
            None => Ok(line.trim().to_owned()),
        }
    }

    fn tally(&mut self) -> Result<Tally, Failure> {
        let line = self.line()?;
        Tally::parse(&line)
            .ok_or_else(|| Failure::new(format!("{} answered {line:?}", self.what), "report this"))
    }
}

impl Drop for Clients {
    /// They end when there are no more requests.
    fn drop(&mut self) {
        drop(self.cursor.take());
        for process in &mut self.processes {
            // One that has ended by itself is as good.
            let _ = process.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::TraceOptions;
    use super::*;

    fn shells(script: &str) -> Result<Clients, Failure> {
        Clients::start("a shell", 2, || {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Ok(command)
        })
    }

    #[test]
    fn every_request_is_taken_by_one_client() {
        let plan = TraceOptions::default().plan(true).unwrap();
        // Each counts the numbers that it gets, in fours of bytes.
        let clients = shells("echo ready; echo $(($(wc -c) / 4)) 0 0 0 0 1").unwrap();
        let outcome = clients.replay(&plan).unwrap();
        assert_eq!(outcome.tally.requests, plan.trace.requests.len() as u64);
        assert_eq!((outcome.clients, outcome.tally.busy_s), (2, 2.0));
    }

    #[test]
    fn a_client_that_finds_a_wrong_byte_ends_the_replay() {
        let mut plan = TraceOptions::default().plan(true).unwrap();
        // At this speed it would take days.
        plan.speed = Some(0.001);
        let clients = shells("echo ready; echo error block 5 is wrong at byte 9; cat >/dev/null").unwrap();
        assert_eq!(clients.replay(&plan).unwrap_err().text, "a shell: block 5 is wrong at byte 9");
    }

    #[test]
    fn a_client_that_leaves_requests_out_is_noticed() {
        let plan = TraceOptions::default().plan(true).unwrap();
        let clients = shells("echo ready; cat >/dev/null; echo 1 0 0 0 0 1").unwrap();
        assert!(clients.replay(&plan).unwrap_err().text.contains("2 of"));
    }

    #[test]
    fn a_client_that_does_not_get_ready_says_why() {
        assert_eq!(shells("echo error no node").err().unwrap().text, "a shell: no node");
        assert_eq!(shells("true").err().unwrap().text, "a shell ended");
    }
}
