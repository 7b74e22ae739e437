//! What a node offers to its peers: memory behind handles, and calls.

use crate::slice::Slice;
use hinterland_proto::{ErrorCode, PeerHello, Refusal, RemoteError};
use hinterland_types::{ByteRange, Handle, Rights, SessionId};

/// The node's side of every connection. Called from many threads at once, one call a stream at a time.
///
/// A call that blocks holds up only the stream that it came on. Peers are hostile: nothing in a body may be
/// believed, and `resolve` must check handle, rights and range against the session's own table every time.
pub trait Service: Send + Sync {
    /// Admits a peer and gives it a session that no other has. Called once a session, before its first request.
    ///
    /// # Errors
    /// A [`Refusal`] that the peer is told.
    fn opened(&self, peer: &PeerHello) -> Result<SessionId, Refusal>;

    /// The last stream of the session is closed: release everything that it held.
    fn closed(&self, session: SessionId);

    /// The memory behind `range` of a handle; it is kept alive until the answer has left.
    ///
    /// # Errors
    /// A [`RemoteError`] that the peer is told. A slice of another length than the range counts as an
    /// internal error, and so does a read-only slice where [`Rights::WRITE`] is needed.
    fn resolve(
        &self,
        session: SessionId,
        handle: Handle,
        range: ByteRange,
        needed: Rights,
    ) -> Result<Slice, RemoteError>;

    /// The memory behind a handle that a peer may reach by RDMA, without asking again: the widest part of the handle
    /// around `range` (the slice has its length), or `None` for memory that is reached by messages only.
    ///
    /// Whoever says `Some` for reading vouches that the bytes do not move until [`Host::revoke`](crate::rdma::Host::revoke) has taken
    /// them back or the handle is closed, and that who reads them while they change notices or may see it; for writing also that nobody else may come to own or seal them while the handle lives, and that their words
    /// are swapped by devices only. It is asked again after every call of the session: what is refused then is taken back.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    fn one_sided(
        &self,
        session: SessionId,
        handle: Handle,
        range: ByteRange,
        needed: Rights,
    ) -> Result<Option<(ByteRange, Slice)>, RemoteError> {
        let _ = (session, handle, range, needed);
        Ok(None)
    }

    /// Finds the memory that a question asks for, and a handle under which the session may read all of it from offset 0 on
    /// later, or handle 0 for none. What is sent with the answer is as it is at that moment, so it should be sealed.
    ///
    /// # Errors
    /// A [`RemoteError`] that the peer is told.
    fn fetch(&self, session: SessionId, question: &[u8]) -> Result<(Handle, Slice), RemoteError> {
        let _ = (session, question);
        Err(RemoteError::new(ErrorCode::UNSUPPORTED, "this service finds nothing (hint: call, then read)"))
    }

    /// Answers a message.
    ///
    /// # Errors
    /// A [`RemoteError`] that the peer is told.
    fn call(&self, session: SessionId, body: &[u8]) -> Result<Vec<u8>, RemoteError>;
}
