//! The session with the node that mappings live by, on a descriptor that can be told apart.
//!
//! It is a session of its own beside those that the program opens: it is made anew after a restart of the node and in a
//! forked child. A node that is stopped is waited for, and the program is told so: what is mapped would be lost with the session.

use crate::descriptor::{Own, raised};
use crate::system::say;
use hinterland_os::fault_point;
use hinterland_os::socket::UnixStream;
use hinterland_pool::local::LocalStream;
use hinterland_pool::{Patience, PoolError};
use hinterland_proto::control::{Reply, Request, decode, encode};
use hinterland_proto::{ClientIdentity, Features, FrameHeader, FrameKind, PoolId, RemoteError, Role};
use hinterland_types::NodeId;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long a node may take to accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a node may take for each word of the handshake, and for the rest of an answer that it has begun.
const WORD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a node may take to answer before the program is told what it waits for.
const NOTICE_AFTER: Duration = Duration::from_secs(5);

/// A connection to the node.
pub(crate) struct Channel {
    stream: Own<Mutex<LocalStream>>,
    broken: AtomicBool,
}

impl Channel {
    /// Connects and shakes hands.
    ///
    /// # Errors
    /// [`PoolError::NoNode`] if nobody listens; [`PoolError::Os`] if this process cannot connect; else why the handshake failed.
    pub fn connect(socket: &Path) -> Result<Self, PoolError> {
        let stream = UnixStream::connect(socket, CONNECT_TIMEOUT).map_err(|error| match error.errno() {
            Some(code @ (libc::ENOENT | libc::ECONNREFUSED)) => PoolError::NoNode {
                socket: socket.to_path_buf(),
                source: std::io::Error::from_raw_os_error(code),
            },
            // The node may be there: lack of descriptors or of rights has hints of its own.
            _ => error.into(),
        })?;
        let stream = UnixStream::from_descriptor(raised(stream.as_fd())?);
        stream.set_receive_timeout(Some(WORD_TIMEOUT))?;
        let descriptor = stream.as_fd().as_raw_fd();
        let role = ClientIdentity {
            role: Role::Client,
            node: NodeId(0),
            pool: PoolId::ANY,
            key: None,
            features: Features(0),
            join: None,
        };
        let (mut stream, _) = LocalStream::open(stream, role)?;
        stream.on_silence(Patience::new(NOTICE_AFTER, |silence| {
            if silence.waited <= NOTICE_AFTER {
                say(&format!("waiting: {silence} (hint: {})", silence.hint()));
            }
            true
        }))?;
        Ok(Self { stream: Own::new(Mutex::new(stream), descriptor), broken: AtomicBool::new(false) })
    }

    /// Asks with descriptors and waits for the answer and its descriptors.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with the node's words; anything else means that the connection is of no more use.
    pub fn call_with(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), PoolError> {
        let answer = self.exchange(request, descriptors);
        if !matches!(answer, Ok(_) | Err(PoolError::Refused { .. } | PoolError::Control(_))) {
            // Release: pairs with the Acquire in `is_broken`; the flag guards no other data.
            self.broken.store(true, Ordering::Release);
        }
        answer
    }

    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// As [`call_with`](Self::call_with).
    pub fn call(&self, request: &Request) -> Result<Reply, PoolError> {
        self.call_with(request, &[]).map(|(reply, _)| reply)
    }

    /// Whether a call failed so that no later one can succeed.
    pub fn is_broken(&self) -> bool {
        // Acquire: pairs with the Release in `call_with`.
        self.broken.load(Ordering::Acquire)
    }

    /// The number of the descriptor.
    pub const fn descriptor(&self) -> RawFd {
        self.stream.number()
    }

    fn exchange(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), PoolError> {
        if self.is_broken() || !self.stream.is_ours() {
            // A program that closed every descriptor may have a file of its own under our number.
            return Err(PoolError::Closed);
        }
        let body = encode(request)?;
        // A control message is at most 1 MiB: the cast loses nothing.
        let header = FrameHeader::new(FrameKind::Call, 0, body.len() as u32);
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        fault_point::reach("program-asks");
        stream.send(header, &[&body], descriptors)?;
        fault_point::reach("program-asked");
        let (header, received) = stream.receive_header()?;
        let body = stream.receive_whole(&header)?;
        fault_point::reach("program-answered");
        match header.kind {
            FrameKind::Reply => match decode(&body)? {
                Reply::Error { code, text } => Err(PoolError::Refused { code, text }),
                reply => Ok((reply, received)),
            },
            FrameKind::Error => {
                let error = RemoteError::from_body(&body);
                // Codes are small numbers; one that is not is still an error.
                let code = i32::try_from(error.code.0).unwrap_or(libc::EIO);
                Err(PoolError::Refused { code, text: error.text })
            }
            other => Err(PoolError::Unexpected { expected: "Reply", answer: format!("{other:?}") }),
        }
    }
}
