//! A process that takes a line and answers with figures: its state stays warm between them.

use crate::failure::Failure;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A process that answers lines.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    what: String,
}

impl Worker {
    /// Starts it; `what` names it in words.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be started.
    pub fn start(what: &str, mut command: Command) -> Result<Self, Failure> {
        let failed = |error| Failure::new(format!("{what} cannot be started: {error}"), "check the program");
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let Some(output) = output else {
            return Err(Failure::new(format!("{what} has no output"), "report this"));
        };
        Ok(Self { child, input, output: BufReader::new(output), what: what.to_owned() })
    }

    /// Sends a line and takes the figures of the answer.
    ///
    /// # Errors
    /// [`Failure`] with the words of the process, or when it has ended.
    pub fn ask(&mut self, line: &str) -> Result<Vec<f64>, Failure> {
        let answer = self.words(line)?;
        answer
            .split_whitespace()
            .map(|word| {
                word.parse().map_err(|_| {
                    Failure::new(format!("{} answered {line:?} with {answer:?}", self.what), "report this")
                })
            })
            .collect()
    }

    /// Sends a line and takes the first figure of the answer.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn figure(&mut self, line: &str) -> Result<f64, Failure> {
        self.ask(line)?.first().copied().ok_or_else(|| {
            Failure::new(format!("{} answered {line:?} with nothing", self.what), "report this")
        })
    }

    /// Sends a line and takes the answer as it is.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn words(&mut self, line: &str) -> Result<String, Failure> {
        self.tell(line)?;
        self.heard(line)
    }

    /// Sends a line and does not wait; [`heard`](Self::heard) takes the answer.
    ///
    /// # Errors
    /// [`Failure`] when the process has ended.
    pub fn tell(&mut self, line: &str) -> Result<(), Failure> {
        let sent = self.input.as_mut().map(|input| writeln!(input, "{line}").and_then(|()| input.flush()));
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(self.ended(line)) }
    }

    /// Waits for the answer to a line that was sent.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn heard(&mut self, line: &str) -> Result<String, Failure> {
        let mut answer = String::new();
        if !self.output.read_line(&mut answer).is_ok_and(|bytes| bytes > 0) {
            return Err(self.ended(line));
        }
        let answer = answer.trim();
        match answer.strip_prefix("error ") {
            Some(text) => Err(Failure::new(format!("{}: {text}", self.what), "see the message")),
            None => Ok(answer.to_owned()),
        }
    }

    fn ended(&self, line: &str) -> Failure {
        let text = format!("{} ended before it answered {line:?}", self.what);
        Failure::new(text, "see what it said above")
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Worker {
    /// Workers end when nobody can ask them any more.
    fn drop(&mut self) {
        drop(self.input.take());
        // One that has ended by itself is as good.
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Worker {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Worker::start("a shell", command).unwrap()
    }

    #[test]
    fn figures_come_back_in_order() {
        let mut worker = shell("while read line; do echo \"1.5 $line\"; done");
        assert_eq!(worker.ask("2").unwrap(), [1.5, 2.0]);
        assert_eq!(worker.figure("3").unwrap(), 1.5);
    }

    #[test]
    fn words_of_a_failing_worker_are_told() {
        let mut worker = shell("read line; echo error no memory");
        assert_eq!(worker.ask("x").unwrap_err().text, "a shell: no memory");
        assert!(worker.ask("x").unwrap_err().text.contains("ended before"));
    }
}
