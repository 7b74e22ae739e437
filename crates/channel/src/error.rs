//! Why a channel refuses, and what to try.

use crate::lane::BadPosition;
use hinterland_os::OsError;

/// Why an operation on a channel failed.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other side is gone; what it sent before has been taken.
    #[error("the other side of the channel is gone (hint: connect again; the log of the GPU node says why)")]
    Closed,
    /// The peer did what no honest peer does, or the connection damaged bytes. The channel is over.
    #[error("the channel is broken: {reason} (hint: connect again; both sides must be of one version)")]
    Broken {
        /// How.
        reason: String,
    },
    /// A body that the channel does not carry.
    #[error("a body of {bytes} bytes in a channel for {bytes_max} (hint: send it in pieces)")]
    TooLong {
        /// Bytes asked for.
        bytes: usize,
        /// Most bytes of a body.
        bytes_max: usize,
    },
    /// An access outside of the body of a frame.
    #[error("{bytes} bytes at {offset} of a body of {limit} bytes (hint: ask `len` first)")]
    OutOfBody {
        /// First byte of the access.
        offset: usize,
        /// Bytes of the access.
        bytes: usize,
        /// Bytes of the body.
        limit: usize,
    },
    /// An option that no channel can have.
    #[error("{what} of {value} (hint: {hint})")]
    BadOption {
        /// Which.
        what: &'static str,
        /// What was asked for.
        value: usize,
        /// What it may be.
        hint: &'static str,
    },
    /// The system refused.
    #[error(transparent)]
    Os(#[from] OsError),
}

impl ChannelError {
    /// Whether the channel is over, so that every further call fails.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Closed | Self::Broken { .. })
    }

    pub(crate) fn position(bad: BadPosition) -> Self {
        Self::Broken { reason: format!("the peer's position `{}` cannot be {:#x}", bad.word, bad.found) }
    }
}
