//! Why an operation on a remote node failed.

use hinterland_proto::{FrameError, HandshakeError, RefusalCode, RemoteError};
use hinterland_types::NodeId;
use std::time::Duration;

/// A failed operation. After [`FabricError::is_connection_lost`] the bytes of a read are undefined and a write may or
/// may not have happened.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum FabricError {
    /// No connection could be made.
    #[error("cannot connect to {address}: {reason} (hint: is the node up, and is this its address?)")]
    Connect {
        /// Where to.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// A connection was made, but one side does not believe the other, or does not speak TLS.
    #[error("{address} and this side do not come together: {reason}")]
    Tls {
        /// Where to.
        address: String,
        /// What was wrong, and what to do.
        reason: String,
    },
    /// A connection was made, but not admitted.
    #[error("handshake with {address} failed: {source}")]
    Handshake {
        /// Where to.
        address: String,
        /// What was wrong.
        source: HandshakeError,
    },
    /// The peer went away.
    #[error(
        "{peer} closed the connection during {during} (hint: see the log of the node; a replica may answer)"
    )]
    Closed {
        /// Who.
        peer: NodeId,
        /// What was going on.
        during: &'static str,
    },
    /// The peer did not answer in time.
    #[error("{peer} did not finish {during} within {} ms (hint: the node or the network hangs; a replica may answer)", after.as_millis())]
    Timeout {
        /// Who.
        peer: NodeId,
        /// What was going on.
        during: &'static str,
        /// How long it was waited for.
        after: Duration,
    },
    /// The session ended with its last stream; its handles mean nothing any more.
    #[error("the session with {peer} is over: {reason} (hint: connect again and ask for new handles)")]
    SessionLost {
        /// Who.
        peer: NodeId,
        /// What the peer or the system said.
        reason: String,
    },
    /// The peer answered that it will not or cannot.
    #[error("{peer} refused: {error}")]
    Remote {
        /// Who.
        peer: NodeId,
        /// Code and text.
        error: RemoteError,
    },
    /// The peer sent something that must not be believed; the stream was closed.
    #[error("{peer} sent a bad frame: {error}")]
    Frame {
        /// Who.
        peer: NodeId,
        /// What was wrong.
        error: FrameError,
    },
    /// The peer answered something else than what it was asked; the stream was closed.
    #[error("{peer} gave a wrong answer to {during}: {what} (hint: run the same release on both sides)")]
    WrongAnswer {
        /// Who.
        peer: NodeId,
        /// What was going on.
        during: &'static str,
        /// What was wrong.
        what: &'static str,
    },
    /// The runs and the buffer have different lengths.
    #[error("the runs have {runs_bytes} bytes, the buffer has {buffer_bytes} (hint: both must be equal)")]
    Lengths {
        /// Sum of the runs.
        runs_bytes: u64,
        /// Length of the buffer.
        buffer_bytes: u64,
    },
    /// A limit of the fabric.
    #[error("{what} of {value} is over the limit of {limit} (hint: split the request)")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        value: u64,
        /// How large it may be.
        limit: u64,
    },
    /// The system refused something.
    #[error("{what} failed: {reason} (hint: `hinterland doctor` shows the limits of this machine)")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        reason: String,
    },
    /// This fabric has no such operation.
    #[error("this fabric cannot {what} (hint: ask `capabilities` first)")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
}

impl FabricError {
    /// Whether the peer has as many streams or connections as it may: those that there are go on.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Handshake { source: HandshakeError::Refused(refusal), .. } if refusal.code == RefusalCode::Full)
    }

    /// Whether the peer may be gone: another replica should be asked, or the connection made again.
    pub fn is_connection_lost(&self) -> bool {
        !matches!(
            self,
            Self::Remote { .. } | Self::Lengths { .. } | Self::Limit { .. } | Self::Unsupported { .. }
        )
    }
}
