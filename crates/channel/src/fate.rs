//! Whether a channel is over, known to both halves of an end as soon as one of them finds out.

use crate::error::ChannelError;
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
}

#[derive(Debug)]
enum Reason {
    Broken(String),
    Lost(String),
}

impl Fate {
    /// Whether the channel is over, at the cost of a load.
    #[inline]
    pub fn is_over(&self) -> bool {
        // Acquire: pairs with the Release in end().
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
        // Release: pairs with the Acquire in is_over().
        self.0.over.store(true, Ordering::Release);
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
