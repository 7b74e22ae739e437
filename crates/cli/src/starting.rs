//! Ctrl-C while a command that stays is not ready yet: its signals are data from the first moment on, which nobody reads until it is.

use crate::failure::Failure;
use crate::output::Output;
use hinterland_os::poll::{EventCounter, Interest, Poller, SignalWatch};
use std::process::exit;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

/// Token of a signal.
const SIGNAL: u64 = 0;
/// Token of the end of the wait.
const DONE: u64 = 1;
/// A shell says of a program that a signal has ended so much more than the signal's number.
const ENDED_BY_SIGNAL: i32 = 128;

/// A wait for somebody who may never answer: until it is over, a signal ends the process.
pub struct Starting {
    done: Arc<EventCounter>,
    watching: Option<JoinHandle<bool>>,
}

impl Starting {
    /// Begins a wait of which nothing is left that would have to be put back. Call it behind [`SignalWatch::new`], which holds the signals
    /// back.
    ///
    /// # Errors
    /// [`Failure`] without threads or descriptors left.
    pub fn begin() -> Result<Self, Failure> {
        Self::watched(None)
    }

    /// Begins a wait that leaves something where it does not come to its end: the first signal is answered with `words` alone, and the
    /// second one ends the process.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub fn begin_in_order(output: Output, words: &'static str) -> Result<Self, Failure> {
        Self::watched(Some((output, words)))
    }

    fn watched(first: Option<(Output, &'static str)>) -> Result<Self, Failure> {
        let (done, signals, poller) = (Arc::new(EventCounter::new()?), SignalWatch::new()?, Poller::new()?);
        poller.add(&signals, SIGNAL, Interest::READ)?;
        poller.add(&*done, DONE, Interest::READ)?;
        let watching = move || watch(&poller, &signals, first);
        let watching = Builder::new().name("signals".to_owned()).spawn(watching);
        let watching = watching
            .map_err(|error| Failure::new(format!("starting a thread: {error}"), "raise `ulimit -u`"))?;
        Ok(Self { done, watching: Some(watching) })
    }

    /// Ends the wait; whether a signal has come that did not end the process.
    pub fn finish(mut self) -> bool {
        self.end()
    }

    fn end(&mut self) -> bool {
        self.done.raise();
        // A thread that has panicked has seen nothing.
        self.watching.take().is_some_and(|watching| watching.join().unwrap_or(false))
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.end();
    }
}

/// Ends the process by a signal, or by the second one if the first has words, unless the wait is over: then it is the command's to end.
fn watch(poller: &Poller, signals: &SignalWatch, mut first: Option<(Output, &'static str)>) -> bool {
    let is_patient = first.is_some();
    let mut ready = Vec::new();
    loop {
        // A wait that fails would leave the command as it is without one.
        if poller.wait(&mut ready, None).is_err() || ready.iter().any(|one| one.token == DONE) {
            return is_patient && first.is_none();
        }
        match (signals.take(), first.take()) {
            (Some(_), Some((output, words))) => output.say(words),
            (Some(signal), None) => exit(ENDED_BY_SIGNAL + signal),
            (None, untouched) => first = untouched,
        }
    }
}
