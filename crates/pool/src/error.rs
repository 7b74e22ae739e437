//! What can go wrong for somebody who uses the pool.

use crate::silence::Silence;
use hinterland_fabric::FabricError;
use hinterland_os::OsError;
use hinterland_proto::control::ControlError;
use hinterland_proto::{FrameError, HandshakeError};
use std::path::{Path, PathBuf};

/// An operation on the pool failed; the text ends in what to do.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// No node listens on the socket.
    #[error("{}", no_node(socket, source))]
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
    /// The node takes connections and does not answer.
    #[error("{0} (hint: {hint})", hint = .0.hint())]
    Silent(Silence),
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
    #[error("{what}: {source} (hint: {hint})", hint = stream_hint(source))]
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
    /// No home has the bytes that were put.
    #[error(
        "{name} cannot be read: {what}: {reasons} (hint: `hinterland verify {name}` shows which copies are wrong)"
    )]
    Wrong {
        /// The object.
        name: String,
        /// What nobody has.
        what: String,
        /// One reason a home.
        reasons: String,
    },
}

impl PoolError {
    /// The `errno` value that fits, for programs that know nothing else.
    pub fn code(&self) -> i32 {
        const EIO: i32 = 5;
        const ENOTCONN: i32 = 107;
        const ETIMEDOUT: i32 = 110;
        match self {
            Self::Silent(_) => ETIMEDOUT,
            Self::Refused { code, .. } => *code,
            Self::NoNode { .. } | Self::Closed => ENOTCONN,
            _ => EIO,
        }
    }
}

/// A socket at which nobody answers, or that this user may not use.
fn no_node(socket: &Path, source: &std::io::Error) -> String {
    let place = socket.display();
    if source.kind() == std::io::ErrorKind::PermissionDenied {
        return format!(
            "this user may not use the node at {place}: {source} (hint: start the node with --socket-group GROUP and be a member of that \
             group, or name another socket with --socket)"
        );
    }
    format!(
        "no node answers on {place}: {source} (hint: start one with `hinterland up`, or name its socket with --socket)"
    )
}

/// What to do about an input or output that failed.
fn stream_hint(source: &std::io::Error) -> &'static str {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    match (source.raw_os_error(), source.kind()) {
        (Some(EMFILE | ENFILE), _) => "raise the limit of open files: `ulimit -n 65536`",
        (_, std::io::ErrorKind::UnexpectedEof) => {
            "let nobody write to it meanwhile, or put it as a stream: `hinterland put - --name NAME < FILE`"
        }
        (_, std::io::ErrorKind::StorageFull) => "make room on that disk",
        _ => "check the file and its disk",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_of_others_is_no_missing_node() {
        let text = |errno| no_node(Path::new("/run/a.sock"), &std::io::Error::from_raw_os_error(errno));
        assert!(text(13).contains("--socket-group GROUP") && !text(13).contains("no node answers"));
        assert!(text(2).contains("no node answers on /run/a.sock") && text(2).contains("hinterland up"));
    }

    #[test]
    fn a_failed_stream_says_what_to_do_about_its_reason() {
        let text = |source| PoolError::Stream { what: "reading".to_owned(), source }.to_string();
        assert!(text(std::io::Error::from_raw_os_error(24)).contains("ulimit -n"));
        assert!(text(std::io::ErrorKind::UnexpectedEof.into()).contains("as a stream"));
        assert!(text(std::io::ErrorKind::StorageFull.into()).contains("make room"));
        assert!(text(std::io::ErrorKind::Other.into()).contains("check the file"));
    }
}
