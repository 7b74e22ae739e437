//! What a command has besides its own arguments: where to write, and which node to ask.

use crate::failure::Failure;
use crate::output::Output;
use crate::service;
use hinterland_pool::{Pool, RingChoice};
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

/// How often somebody who waits is told that the node is silent.
const NOTICE: Duration = Duration::from_secs(5);
/// How long a command that only looks waits for an answer.
const LOOK_WITHIN: Duration = Duration::from_secs(30);

/// What all commands share.
#[derive(Clone, Debug)]
pub struct Context {
    /// Where it writes.
    pub output: Output,
    /// The node's socket, if one was named.
    pub socket: Option<PathBuf>,
}

impl Context {
    /// The socket that is meant.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(hinterland_pool::default_socket)
    }

    /// Tells systemd that the command serves from now on, and in a few words what.
    pub fn tell_ready(&self, words: impl Display) {
        if let Err(error) = service::tell_ready(&words.to_string()) {
            self.output.warn(format_args!("systemd is not told that this serves: {error}"));
        }
    }

    /// A connection to the pool through the node, for what may take long. While the node is silent, people are told; what is done
    /// goes on when it answers.
    ///
    /// # Errors
    /// [`Failure`] with exit status 3 if no node answers.
    pub fn pool(&self) -> Result<Pool, Failure> {
        self.connect(None)
    }

    /// The same for a command that only looks: it gives up after half a minute.
    ///
    /// # Errors
    /// As [`pool`](Self::pool).
    pub fn pool_to_look(&self) -> Result<Pool, Failure> {
        self.connect(Some(LOOK_WITHIN))
    }

    /// The same for what is asked again and again: nothing is said, and no answer is waited for longer than `patience`.
    ///
    /// # Errors
    /// As [`pool`](Self::pool).
    pub fn pool_to_watch(&self, patience: Duration) -> Result<Pool, Failure> {
        // A command is one thread, and over the socket it hears how long the node is silent.
        let pool = Pool::connect_over(Some(&self.socket()), RingChoice::Socket)?;
        pool.session().on_silence(patience, |_| false)?;
        Ok(pool)
    }

    fn connect(&self, limit: Option<Duration>) -> Result<Pool, Failure> {
        // A command is one thread, and over the socket it hears how long the node is silent.
        let pool = Pool::connect_over(Some(&self.socket()), RingChoice::Socket)?;
        let output = self.output;
        pool.session().on_silence(NOTICE, move |silence| {
            let goes_on = limit.is_none_or(|limit| silence.waited < limit);
            // Whoever gives up says it as an error.
            if goes_on && silence.waited == NOTICE {
                output.warn(format!("{silence} (hint: {})", silence.hint()));
            }
            goes_on
        })?;
        Ok(pool)
    }
}
