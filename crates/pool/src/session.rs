//! A session with the local node: requests and replies in order, with descriptors.

use crate::PoolError;
use crate::local::LocalStream;
use crate::rings::{LazyRings, RingChoice, Rings};
use crate::silence::{Patience, Silence};
use hinterland_os::fault_point;
use hinterland_os::poll::wait_readable;
use hinterland_os::socket::{UnixStream, runtime_folder};
use hinterland_proto::control::{Reply, Request, decode, encode};
use hinterland_proto::{
    ClientIdentity, ErrorCode, Established, Features, FrameHeader, FrameKind, PoolId, RemoteError, Role,
    encode_runs,
};
use hinterland_types::limits::FRAME_BODY_BYTES_MAX;
use hinterland_types::{ByteRange, Handle, NodeId, RangeError};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// How long a client waits for a node that listens but does not accept.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it then waits for each message of the handshake before it looks whether the node is stopped.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A session; when it is dropped, the node takes back all that it held.
pub struct Session {
    stream: Mutex<LocalStream>,
    established: Established,
    socket: PathBuf,
    /// None for a session that has one user, who waits for itself alone.
    rings: Option<LazyRings>,
}

/// The socket that is used when none is named: `HINTERLAND_SOCKET`, else `hinterland/node.sock` below
/// `XDG_RUNTIME_DIR`, else below `/run`.
pub fn default_socket() -> PathBuf {
    named_socket().unwrap_or_else(|| runtime_folder().join("hinterland/node.sock"))
}

/// The socket that `HINTERLAND_SOCKET` names; an empty variable names none.
pub fn named_socket() -> Option<PathBuf> {
    std::env::var_os("HINTERLAND_SOCKET").filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl Session {
    /// Opens a session with the node at `socket`, or at [`default_socket`].
    ///
    /// # Errors
    /// [`PoolError::NoNode`] if nobody listens; [`PoolError::Handshake`] if the node refuses; [`PoolError::Silent`] if it says nothing.
    pub fn connect(socket: Option<&Path>) -> Result<Self, PoolError> {
        Self::open(socket, |stream, identity| {
            stream.set_receive_timeout(Some(HANDSHAKE_TIMEOUT))?;
            let (stream, established) = LocalStream::open(stream, identity)?;
            stream.socket().set_receive_timeout(None)?;
            Ok((stream, established))
        })
    }

    /// The same with patience from the first word on, over the socket alone: so nobody is silent unheard.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and when the patience ends.
    pub fn connect_patiently(socket: Option<&Path>, patience: Patience) -> Result<Self, PoolError> {
        Self::open(socket, |stream, identity| LocalStream::open_patiently(stream, identity, patience))
    }

    fn open(
        socket: Option<&Path>,
        shake_hands: impl FnOnce(UnixStream, ClientIdentity) -> Result<(LocalStream, Established), PoolError>,
    ) -> Result<Self, PoolError> {
        let socket = socket.map_or_else(default_socket, Path::to_path_buf);
        let stream = UnixStream::connect(&socket, CONNECT_TIMEOUT).map_err(|error| PoolError::NoNode {
            socket: socket.clone(),
            source: error
                .errno()
                .map_or_else(|| std::io::Error::other(error.to_string()), std::io::Error::from_raw_os_error),
        })?;
        let identity = ClientIdentity {
            role: Role::Client,
            node: NodeId(0),
            pool: PoolId::ANY,
            key: None,
            features: Features(0),
            join: None,
        };
        let (mut stream, established) = shake_hands(stream, identity)?;
        stream.end_when_interrupted()?;
        Ok(Self { stream: Mutex::new(stream), established, socket, rings: None })
    }

    /// The same for threads that are not to wait for each other: the session gets rings when they are of use.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub(crate) fn connect_shared(socket: Option<&Path>, choice: RingChoice) -> Result<Self, PoolError> {
        Ok(Self { rings: Some(LazyRings::new(choice)), ..Self::connect(socket)? })
    }

    /// The rings that requests go over, once they are open.
    pub fn rings(&self) -> Option<&Rings> {
        self.rings.as_ref()?.known()
    }

    /// The node at the other end.
    pub const fn node(&self) -> NodeId {
        self.established.node
    }

    /// The pool that the node belongs to.
    pub const fn pool(&self) -> PoolId {
        self.established.pool
    }

    /// The socket that was connected to.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether the node has ended the session. While another thread waits for an answer it is taken to live: that thread
    /// hears of it.
    pub fn is_lost(&self) -> bool {
        let Ok(stream) = self.stream.try_lock() else { return false };
        // Nothing was asked, so the only thing to read is the end.
        wait_readable(stream.socket(), Some(Duration::ZERO)).unwrap_or(true)
    }

    /// A second descriptor of the socket: between calls it is readable only when the node has ended the session.
    ///
    /// # Errors
    /// [`PoolError::Os`] without descriptors left.
    pub fn watch(&self) -> Result<UnixStream, PoolError> {
        Ok(self.stream.lock().unwrap_or_else(PoisonError::into_inner).socket().duplicate()?)
    }

    /// Has `then` called again and again while an answer is waited for; when it returns false, the session is ended, and whoever
    /// waits gets [`PoolError::Silent`]. Its requests go over the socket alone from here on, so that one that hangs holds up those behind it.
    ///
    /// # Errors
    /// [`PoolError::Os`] for a time of no length.
    pub fn on_silence(
        &self,
        every: Duration,
        then: impl FnMut(&Silence) -> bool + Send + 'static,
    ) -> Result<(), PoolError> {
        if let Some(rings) = &self.rings {
            rings.forgo();
        }
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).on_silence(Patience::new(every, then))
    }

    /// Ends the session, whoever still has it: the node takes back what it was given, and every later call fails.
    pub fn end(&self) {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner).socket().shutdown();
    }

    /// Asks, and waits for the answer; over the session's rings if it has some and the request may go over them.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with the node's words; else what became of the connection.
    pub fn call(&self, request: &Request) -> Result<Reply, PoolError> {
        if let Some(answer) = self.rings.as_ref().and_then(|rings| rings.call(self, request)) {
            return answer;
        }
        self.call_with(request, &[]).map(|(reply, _)| reply)
    }

    /// Asks with descriptors over the socket, and waits for the answer and its descriptors.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_with(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Reply, Vec<OwnedFd>), PoolError> {
        let body = encode(request)?;
        // A control message is at most 1 MiB: the cast loses nothing.
        let header = FrameHeader::new(FrameKind::Call, 0, body.len() as u32);
        let mut stream = self.stream();
        fault_point::reach("client-asks");
        stream.send(header, &[&body], descriptors)?;
        fault_point::reach("client-asked");
        let reply = receive_reply(&mut stream);
        fault_point::reach("client-answered");
        reply
    }

    /// The session for several requests at once: the node works on the next one while the answer to the last is used. Other
    /// threads wait until it is dropped.
    pub fn line(&self) -> Line<'_> {
        Line { stream: self.stream(), unanswered: 0 }
    }

    /// Writes bytes of a resource that this node holds, at an offset of the resource.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the handle does not allow it.
    pub fn write(&self, handle: Handle, mut offset: u64, bytes: &[u8]) -> Result<(), PoolError> {
        for piece in bytes.chunks(FRAME_BODY_BYTES_MAX as usize) {
            let mut table = Vec::with_capacity(16);
            let run = range(offset, piece.len() as u64)?;
            encode_runs(&[run], &mut table)?;
            let mut header = FrameHeader::new(FrameKind::Write, 0, (table.len() + piece.len()) as u32);
            header.handle = handle;
            header.argument = 1;
            let mut stream = self.stream();
            fault_point::reach("client-writes");
            stream.send(header, &[&table, piece], &[])?;
            fault_point::reach("client-written");
            self.finish(&mut stream, FrameKind::WriteReply, &mut [])?;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    /// Reads bytes of a resource that this node holds, or of a sealed object of another rack through this node's cache.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the handle does not allow it, or no home has the bytes.
    pub fn read(&self, handle: Handle, mut offset: u64, into: &mut [u8]) -> Result<(), PoolError> {
        for piece in into.chunks_mut(FRAME_BODY_BYTES_MAX as usize) {
            let mut table = Vec::with_capacity(16);
            encode_runs(&[range(offset, piece.len() as u64)?], &mut table)?;
            let mut header = FrameHeader::new(FrameKind::Read, 0, table.len() as u32);
            header.handle = handle;
            header.argument = 1;
            let mut stream = self.stream();
            stream.send(header, &[&table], &[])?;
            let bytes = piece.len() as u64;
            self.finish(&mut stream, FrameKind::ReadReply, piece)?;
            offset += bytes;
        }
        Ok(())
    }

    /// The socket, for this thread alone.
    fn stream(&self) -> MutexGuard<'_, LocalStream> {
        match self.stream.try_lock() {
            Ok(stream) => return stream,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        if let Some(rings) = &self.rings {
            rings.note_busy();
        }
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, stream: &mut LocalStream, due: FrameKind, into: &mut [u8]) -> Result<(), PoolError> {
        let (header, _) = stream.receive_header()?;
        if header.kind == due && header.body_bytes as usize == into.len() {
            return stream.receive_body(into);
        }
        let body = stream.receive_whole(&header)?;
        match header.kind {
            FrameKind::Error => Err(refused(&RemoteError::from_body(&body))),
            other => Err(unexpected("ReadReply or WriteReply", &other)),
        }
    }
}

/// A session that one thread has to itself: requests go out, and answers come in their order.
pub struct Line<'session> {
    stream: MutexGuard<'session, LocalStream>,
    unanswered: usize,
}

impl Line<'_> {
    /// Asks, all in one message, and does not wait.
    ///
    /// # Errors
    /// What became of the connection.
    pub fn send(&mut self, requests: &[Request]) -> Result<(), PoolError> {
        let frame = |request: &Request| {
            let body = encode(request)?;
            // A control message is at most 1 MiB: the cast loses nothing.
            Ok((FrameHeader::new(FrameKind::Call, 0, body.len() as u32), body))
        };
        let frames = requests.iter().map(frame).collect::<Result<Vec<_>, PoolError>>()?;
        self.stream.send_together(&frames)?;
        self.unanswered += requests.len();
        Ok(())
    }

    /// Waits for the answer to the oldest request that has none.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with the node's words; [`PoolError::Closed`] if nothing was asked.
    pub fn receive(&mut self) -> Result<Reply, PoolError> {
        if self.unanswered == 0 {
            return Err(PoolError::Closed);
        }
        self.unanswered -= 1;
        receive_reply(&mut self.stream).map(|(reply, _)| reply)
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        // What was not waited for must not be taken for the answer to another request.
        while self.unanswered > 0 && !matches!(self.receive(), Err(PoolError::Closed | PoolError::Os(_))) {}
    }
}

fn receive_reply(stream: &mut LocalStream) -> Result<(Reply, Vec<OwnedFd>), PoolError> {
    let (header, received) = stream.receive_header()?;
    let body = stream.receive_whole(&header)?;
    match header.kind {
        FrameKind::Reply => match decode(&body)? {
            Reply::Error { code, text } => Err(PoolError::Refused { code, text }),
            reply => Ok((reply, received)),
        },
        FrameKind::Error => Err(refused(&RemoteError::from_body(&body))),
        other => Err(unexpected("Reply", &other)),
    }
}

pub(crate) fn range(offset: u64, bytes: u64) -> Result<ByteRange, PoolError> {
    const EINVAL: i32 = 22;
    ByteRange::new(offset, bytes)
        .map_err(|error: RangeError| PoolError::Refused { code: EINVAL, text: error.to_string() })
}

pub(crate) fn refused(error: &RemoteError) -> PoolError {
    PoolError::Refused { code: errno_of(error.code), text: error.text.clone() }
}

/// The `errno` value that fits what kind of failure a node reports of a read or a write.
const fn errno_of(code: ErrorCode) -> i32 {
    const EIO: i32 = 5;
    const EAGAIN: i32 = 11;
    const EREMCHG: i32 = 78;
    const EBADF: i32 = 9;
    const EACCES: i32 = 13;
    const EINVAL: i32 = 22;
    const ENOSPC: i32 = 28;
    const ENOTSUP: i32 = 95;
    match code {
        ErrorCode::UNKNOWN_HANDLE | ErrorCode::REVOKED => EBADF,
        ErrorCode::RIGHTS => EACCES,
        ErrorCode::PAGE_MOVED => EREMCHG,
        ErrorCode::PAGE_MOVING => EAGAIN,
        ErrorCode::RANGE | ErrorCode::MALFORMED => EINVAL,
        ErrorCode::LIMIT => ENOSPC,
        ErrorCode::UNSUPPORTED => ENOTSUP,
        _ => EIO,
    }
}

pub(crate) fn unexpected(expected: &'static str, answer: &impl std::fmt::Debug) -> PoolError {
    let mut answer = format!("{answer:?}");
    answer.truncate(answer.char_indices().nth(80).map_or(answer.len(), |(index, _)| index));
    PoolError::Unexpected { expected, answer }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_the_node_is_an_input_output_error_and_no_other_errno() {
        let code = |code| refused(&RemoteError::new(code, "why".to_owned())).code();
        assert_eq!(code(ErrorCode::INTERNAL), 5);
        assert_eq!(code(ErrorCode::RIGHTS), 13);
        assert_eq!(code(ErrorCode::UNKNOWN_HANDLE), 9);
        assert_eq!(code(ErrorCode::APPLICATION), 5);
    }
}
