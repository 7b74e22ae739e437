//! The smallest whole service: some memory behind one handle, and calls that come back as they went.

use crate::service::Service;
use crate::slice::Slice;
use hinterland_proto::{ErrorCode, PeerHello, Refusal, RemoteError};
use hinterland_types::{ByteRange, Handle, Rights, SessionId};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Serves one piece of memory to everybody: for tests, examples and measurements of a fabric alone.
#[derive(Debug)]
pub struct MemoryService {
    memory: Slice,
    rights: Rights,
    session_next: AtomicU64,
    open: AtomicUsize,
    revoked: AtomicBool,
}

impl MemoryService {
    /// The handle of the memory.
    pub const HANDLE: Handle = Handle(7);

    /// Offers `memory` under [`MemoryService::HANDLE`].
    pub fn new(memory: Slice, rights: Rights) -> Self {
        Self {
            memory,
            rights,
            session_next: AtomicU64::new(1),
            open: AtomicUsize::new(0),
            revoked: AtomicBool::new(false),
        }
    }

    /// The memory that is offered.
    pub fn memory(&self) -> &Slice {
        &self.memory
    }

    /// Takes back what devices may reach without asking; messages go on. It holds from the next call on.
    pub fn revoke(&self) {
        // Relaxed: as in `one_sided`.
        self.revoked.store(true, Ordering::Relaxed);
    }

    /// Sessions that were opened and not closed.
    pub fn open_sessions(&self) -> usize {
        // Relaxed: a count; nothing is published through it.
        self.open.load(Ordering::Relaxed)
    }
}

impl Service for MemoryService {
    /// A question is how many bytes from the start, a little-endian `u64`.
    fn fetch(&self, _session: SessionId, question: &[u8]) -> Result<(Handle, Slice), RemoteError> {
        let malformed = || RemoteError::new(ErrorCode::MALFORMED, "a question has 8 bytes");
        let bytes = u64::from_le_bytes(question.try_into().map_err(|_| malformed())?);
        let slice = usize::try_from(bytes).ok().and_then(|bytes| self.memory.sub(0, bytes));
        let slice = slice.ok_or_else(|| RemoteError::new(ErrorCode::RANGE, "there are not so many bytes"))?;
        Ok((Self::HANDLE, slice))
    }

    fn opened(&self, _peer: &PeerHello) -> Result<SessionId, Refusal> {
        // Relaxed: counts; nothing is published through them.
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(SessionId(self.session_next.fetch_add(1, Ordering::Relaxed)))
    }

    fn closed(&self, _session: SessionId) {
        // Relaxed: as above.
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn resolve(
        &self,
        _session: SessionId,
        handle: Handle,
        range: ByteRange,
        needed: Rights,
    ) -> Result<Slice, RemoteError> {
        if handle != Self::HANDLE {
            let text = format!("{handle} names nothing (hint: use {})", Self::HANDLE);
            return Err(RemoteError::new(ErrorCode::UNKNOWN_HANDLE, text));
        }
        if !self.rights.allows(needed) {
            let text = format!("{handle} allows {}, not {needed} (hint: ask for more rights)", self.rights);
            return Err(RemoteError::new(ErrorCode::RIGHTS, text));
        }
        let bytes = self.memory.len() as u64;
        ByteRange::within(range.offset(), range.bytes(), bytes)
            .ok()
            .and_then(|range| {
                let offset = usize::try_from(range.offset()).ok()?;
                self.memory.sub(offset, usize::try_from(range.bytes()).ok()?)
            })
            .ok_or_else(|| {
                let text = format!(
                    "{} bytes at {} are not inside {bytes} (hint: ask for the size)",
                    range.bytes(),
                    range.offset()
                );
                RemoteError::new(ErrorCode::RANGE, text)
            })
    }

    fn one_sided(
        &self,
        session: SessionId,
        handle: Handle,
        range: ByteRange,
        needed: Rights,
    ) -> Result<Option<(ByteRange, Slice)>, RemoteError> {
        self.resolve(session, handle, range, needed)?;
        // Relaxed: a switch of tests; nothing is published through it.
        if self.revoked.load(Ordering::Relaxed) {
            return Err(RemoteError::new(ErrorCode::REVOKED, "it was revoked (hint: ask for a new handle)"));
        }
        let whole = ByteRange::within(0, self.memory.len() as u64, u64::MAX);
        Ok(whole.ok().map(|whole| (whole, self.memory.clone())))
    }

    fn call(&self, _session: SessionId, body: &[u8]) -> Result<Vec<u8>, RemoteError> {
        Ok(body.to_vec())
    }
}
