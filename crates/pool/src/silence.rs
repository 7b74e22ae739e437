//! A node that takes what is said to it and does not answer.

use hinterland_os::process::text_of;
use hinterland_os::socket::UnixStream;
use std::fmt::{Display, Formatter, Result};
use std::time::Duration;

/// What is done while a node is silent: how often, and what, with whether to go on waiting.
pub struct Patience {
    pub(crate) every: Duration,
    pub(crate) then: Box<dyn FnMut(&Silence) -> bool + Send>,
}

impl Patience {
    /// Has `then` called again and again, each time when the node has been silent for so long once more.
    pub fn new(every: Duration, then: impl FnMut(&Silence) -> bool + Send + 'static) -> Self {
        Self { every, then: Box::new(then) }
    }
}

/// How long a node has been silent, and what is known of its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Silence {
    /// For how long.
    pub waited: Duration,
    /// The node's process; 0 where the system does not tell.
    pub process: i32,
    /// Somebody has stopped the process (`SIGSTOP`, ctrl-Z, a debugger).
    pub is_stopped: bool,
}

impl Silence {
    /// The silence of the process at the other end.
    pub(crate) fn of(stream: &UnixStream, waited: Duration) -> Self {
        let process = stream.peer_credentials().map_or(0, |peer| peer.process);
        let stat = text_of(format!("/proc/{process}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        Self { waited, process, is_stopped: matches!(state, Some('T' | 't')) }
    }

    /// What to do about it.
    pub fn hint(&self) -> String {
        if self.is_stopped {
            format!("`kill -CONT {}` lets it go on", self.process)
        } else {
            "it is very busy, waits for the directory or another node, or hangs: see its log; killed and started again it finds its objects".to_owned()
        }
    }
}

impl Display for Silence {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        write!(formatter, "the node has not answered for {} s", self.waited.as_secs())?;
        if self.is_stopped { write!(formatter, ": process {} is stopped", self.process) } else { Ok(()) }
    }
}
