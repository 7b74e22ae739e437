//! Whether a channel is over, known to both halves of an end as soon as one of them finds out.

use crate::error::ChannelError;
use crate::line::Line;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The state of a channel, shared by the halves of one end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fate(Arc<State>);

#[derive(Debug, Default)]
struct State {
    over: AtomicBool,
    /// How it ended; empty if the peer just went away.
    reason: OnceLock<Reason>,
    /// The sockets on which the halves sleep, within a host.
    lines: Vec<Arc<Line>>,
}

#[derive(Debug)]
enum Reason {
    Broken(String),
    Lost(String),
}

impl Fate {
    /// Of halves that sleep on these sockets: the end of the channel ends them, so that both wake up.
    pub fn of(lines: Vec<Arc<Line>>) -> Self {
        Self(Arc::new(State { lines, ..State::default() }))
    }

    /// Whether the channel is over, at the cost of a load.
    #[inline]
    pub fn is_over(&self) -> bool {
        // Acquire: pairs with the Release in close().
        self.0.over.load(Ordering::Acquire)
    }

    /// Fails if the channel was broken; what came before a peer just went away may still be taken.
    #[inline]
    pub fn check_unbroken(&self) -> Result<(), ChannelError> {
        if self.is_over() && matches!(self.0.reason.get(), Some(Reason::Broken(_))) {
            return Err(self.error());
        }
        Ok(())
    }

    /// The peer is gone.
    pub fn close(&self) {
        // AcqRel: the Release pairs with the Acquire in is_over(); who wakes up because a line ended sees it.
        if !self.0.over.swap(true, Ordering::AcqRel) {
            self.0.lines.iter().for_each(|line| line.end());
        }
    }

    /// Ends the channel for this reason, unless there is an earlier one; returns the error.
    pub fn end(&self, error: ChannelError) -> ChannelError {
        let reason = match &error {
            ChannelError::Broken { reason } => Some(Reason::Broken(reason.clone())),
            ChannelError::Lost { reason } => Some(Reason::Lost(reason.clone())),
            _ => None,
        };
        if let Some(reason) = reason {
            // An earlier reason is the better one.
            let _ = self.0.reason.set(reason);
        }
        self.close();
        error
    }

    /// The error of a channel that is over.
    #[cold]
    pub fn error(&self) -> ChannelError {
        match self.0.reason.get() {
            Some(Reason::Broken(reason)) => ChannelError::Broken { reason: reason.clone() },
            Some(Reason::Lost(reason)) => ChannelError::Lost { reason: reason.clone() },
            None => ChannelError::Closed,
        }
    }
}
