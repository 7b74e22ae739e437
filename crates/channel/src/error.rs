//! Why a channel refuses, and what to try.

use crate::lane::BadPosition;
use hinterland_os::OsError;
use hinterland_proto::HandshakeError;

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
    /// The network failed, or the peer went in the middle of something.
    #[error("the channel is lost: {reason} (hint: is the GPU node up, and the network? connect again)")]
    Lost {
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
    /// No connection could be made.
    #[error("cannot connect to {address}: {reason} (hint: is the GPU node up, and is this its address?)")]
    Connect {
        /// Where to.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// A connection was made, and the handshake failed.
    #[error("handshake with {address} failed: {source}")]
    Handshake {
        /// Where to.
        address: String,
        /// What was wrong.
        source: HandshakeError,
    },
    /// This side did not admit a peer; it was told so if it listened.
    #[error("a peer at {address} was not admitted: {reason}")]
    NotAdmitted {
        /// Who, as far as that is known.
        address: String,
        /// Why.
        reason: String,
    },
    /// A text that is no address.
    #[error("{text:?} is no address of a GPU node (hint: `unix:/path/of/socket` or `tcp:host:port`)")]
    BadAddress {
        /// The text.
        text: String,
    },
    /// What should be a channel that another process handed over is none.
    #[error(
        "no channel was handed over: {reason} (hint: start this process from a GPU node of the same version)"
    )]
    NoHandover {
        /// What is wrong.
        reason: String,
    },
    /// The system refused.
    #[error(transparent)]
    Os(#[from] OsError),
}

impl ChannelError {
    /// Whether the channel is over, so that every further call fails.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self, Self::Closed | Self::Broken { .. } | Self::Lost { .. })
    }

    pub(crate) fn position(bad: BadPosition) -> Self {
        Self::Broken { reason: format!("the peer's position `{}` cannot be {:#x}", bad.word, bad.found) }
    }
}
