//! What can go wrong for somebody who uses the pool.

use hinterland_fabric::FabricError;
use hinterland_os::OsError;
use hinterland_proto::control::ControlError;
use hinterland_proto::{FrameError, HandshakeError};
use std::path::PathBuf;

/// An operation on the pool failed; the text ends in what to do.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// No node listens on the socket.
    #[error(
        "no node answers on {socket}: {source} (hint: start one with `hinterland up`, or name its socket with --socket)"
    )]
    NoNode {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The node said no.
    #[error("{text}")]
    Refused {
        /// An `errno` value that fits.
        code: i32,
        /// The node's words, with a hint.
        text: String,
    },
    /// The node closed the connection.
    #[error(
        "the node closed the session (hint: see its log, or `hinterland doctor`; a restarted node needs a new session)"
    )]
    Closed,
    /// The handshake failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The peer sent something that is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The peer sent something that is no control message.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The answer does not belong to the request.
    #[error("the node answered {answer} where {expected} was due (hint: run the same release on both sides)")]
    Unexpected {
        /// What was due.
        expected: &'static str,
        /// What came, shortened.
        answer: String,
    },
    /// Another node could not be reached or refused.
    #[error(transparent)]
    Fabric(Box<FabricError>),
    /// The operating system said no.
    #[error(transparent)]
    Os(#[from] OsError),
    /// Reading the input or writing the output failed.
    #[error("{what}: {source} (hint: check the file and its disk)")]
    Stream {
        /// What was being done.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Every home of an object failed.
    #[error(
        "{name} cannot be read: {reasons} (hint: `hinterland stat {name}` shows its homes; put it with --copies 2 to survive the loss of a node)"
    )]
    Unreachable {
        /// The object.
        name: String,
        /// One reason a home.
        reasons: String,
    },
}

impl PoolError {
    /// The `errno` value that fits, for programs that know nothing else.
    pub fn code(&self) -> i32 {
        const EIO: i32 = 5;
        const ENOTCONN: i32 = 107;
        match self {
            Self::Refused { code, .. } => *code,
            Self::NoNode { .. } | Self::Closed => ENOTCONN,
            _ => EIO,
        }
    }
}
