//! Ctrl-C while a command that stays is not ready yet: its signals are data from the first moment on, which nobody reads until it is.

use crate::failure::Failure;
use crate::output::Output;
use hinterland_os::poll::{EventCounter, Interest, Poller, SignalWatch};
use nix::libc::SIGHUP;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

/// Token of a signal.
const SIGNAL: u64 = 0;
/// Token of the end of the wait.
const DONE: u64 = 1;
/// A shell says of a program that a signal has ended so much more than the signal's number.
pub const ENDED_BY_SIGNAL: i32 = 128;

/// A wait for somebody who may never answer: until it is over, a signal ends the process.
pub struct Starting {
    done: Arc<EventCounter>,
    is_interrupted: Arc<AtomicBool>,
    watching: Option<JoinHandle<()>>,
}

/// What a signal does to a wait.
enum Answer {
    /// The first one ends the process, after this.
    End(Box<dyn FnOnce() + Send>),
    /// The first one is answered with these words, and the second one ends the process.
    Say(Output, &'static str),
}

impl Starting {
    /// Begins a wait of which nothing is left that would have to be put back. Call it behind [`SignalWatch::new`], which holds the signals
    /// back.
    ///
    /// # Errors
    /// [`Failure`] without threads or descriptors left.
    pub fn begin() -> Result<Self, Failure> {
        Self::begin_with(|| ())
    }

    /// The same where something has to be taken back: `at_end` is called before a signal ends the process.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_with(at_end: impl FnOnce() + Send + 'static) -> Result<Self, Failure> {
        Self::watched(Answer::End(Box::new(at_end)))
    }

    /// Begins a wait that leaves something where it does not come to its end: the first signal is answered with `words` alone, and the
    /// second one ends the process.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_in_order(output: Output, words: &'static str) -> Result<Self, Failure> {
        Self::watched(Answer::Say(output, words))
    }

    fn watched(answer: Answer) -> Result<Self, Failure> {
        let (done, signals, poller) = (Arc::new(EventCounter::new()?), SignalWatch::new()?, Poller::new()?);
        poller.add(&signals, SIGNAL, Interest::READ)?;
        poller.add(&*done, DONE, Interest::READ)?;
        let is_interrupted = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&is_interrupted);
        let watching = move || watch(&poller, &signals, answer, &seen);
        let watching = Builder::new().name("signals".to_owned()).spawn(watching);
        let watching = watching
            .map_err(|error| Failure::new(format!("starting a thread: {error}"), "raise `ulimit -u`"))?;
        Ok(Self { done, is_interrupted, watching: Some(watching) })
    }

    /// Ends the wait, unless a signal has come that did not end the process: then what follows is waited for, too, until this is dropped, and
    /// the next one ends it. Whether one has come.
    pub fn finish(&mut self) -> bool {
        if !self.has_signal() {
            self.end();
        }
        self.has_signal()
    }

    fn has_signal(&self) -> bool {
        self.is_interrupted.load(Ordering::Acquire)
    }

    fn end(&mut self) {
        self.done.raise();
        if let Some(watching) = self.watching.take() {
            // A thread that has panicked has said so.
            let _ = watching.join();
        }
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends the process by a signal, or by the second one if the first has words, unless the wait is over: then it is the command's to end.
fn watch(poller: &Poller, signals: &SignalWatch, answer: Answer, is_interrupted: &AtomicBool) {
    let mut answer = Some(answer);
    let mut ready = Vec::new();
    loop {
        // A wait that fails would leave the command as it is without one.
        if poller.wait(&mut ready, None).is_err() || ready.iter().any(|one| one.token == DONE) {
            return;
        }
        let Some(signal) = signals.take() else { continue };
        match answer.take() {
            Some(Answer::Say(output, words)) => {
                is_interrupted.store(true, Ordering::Release);
                output.say(words);
            }
            Some(Answer::End(at_end)) => {
                at_end();
                exit(ENDED_BY_SIGNAL + signal);
            }
            // A terminal that closes sends two, one of the kernel and one of the shell: nobody has asked twice.
            None if signal == SIGHUP => {}
            None => exit(ENDED_BY_SIGNAL + signal),
        }
    }
}
