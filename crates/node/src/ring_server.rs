//! The ring of a session: one thread answers requests without a system call a request.
//!
//! Short requests have a fixed form and cost nothing but their work; any other request of a session comes as
//! a message of the shared-memory fabric.

use crate::core::Core;
use crate::refused::{Refused, errno};
use crate::session::{Answer, Session};
use hinterland_fabric::shm::{SLOTS, ShmServer, serve_until};
use hinterland_fabric::{Service, Slice};
use hinterland_os::process;
use hinterland_proto::control::{Reply, Request, decode, encode};
use hinterland_proto::ring_message::{RingRequest, RingResponse};
use hinterland_proto::{PeerHello, Refusal, RefusalCode, RemoteError};
use hinterland_types::{ByteRange, Handle, Rights, SessionId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Makes a ring for a session and starts its thread.
///
/// # Errors
/// [`Refused`] for a session of another host, or without memory or threads.
pub fn open(core: &Core, session: &Arc<Session>) -> Answer {
    let ended = session.ring_flag()?;
    let (server, descriptor) = ShmServer::new()?;
    let (core, session) = (core.shared(), Arc::downgrade(session));
    std::thread::Builder::new()
        .name("ring".to_owned())
        .stack_size(512 << 10)
        .spawn(move || serve(&core, &session, server, &ended))
        .map_err(|error| Refused::new(errno::EIO, format!("no thread for a ring: {error}")))?;
    Ok((Reply::RingOpened { slots: SLOTS }, vec![descriptor]))
}

fn serve(core: &Weak<Core>, session: &Weak<Session>, server: ShmServer, ended: &AtomicBool) {
    process::name_thread("ring");
    let (Some(core), Some(session)) = (core.upgrade(), session.upgrade()) else { return };
    let id = session.id;
    let service = RingService { core: Arc::clone(&core), session };
    let mut short = |body: &_| answer(&core, id, body);
    let count = |answered| {
        // Relaxed: a counter that nothing is ordered by.
        core.ring_requests.fetch_add(answered as u64, Ordering::Relaxed);
    };
    serve_until(server, &service, id, &mut short, || ended.load(Ordering::Acquire), count);
    if ended.load(Ordering::Acquire) {
        // What the last requests took, while the socket's thread was giving everything back, goes too.
        service.session.end(&core);
    }
}

/// One session, as the fabric sees it.
struct RingService {
    core: Arc<Core>,
    session: Arc<Session>,
}

impl Service for RingService {
    fn opened(&self, _peer: &PeerHello) -> Result<SessionId, Refusal> {
        Err(Refusal::new(RefusalCode::Denied, "a ring belongs to a session that is open already"))
    }

    /// The socket ends the session, not the ring.
    fn closed(&self, _session: SessionId) {}

    fn resolve(
        &self,
        _session: SessionId,
        handle: Handle,
        range: ByteRange,
        needed: Rights,
    ) -> Result<Slice, RemoteError> {
        Ok(self.session.resolve(handle, range, needed)?)
    }

    fn call(&self, _session: SessionId, body: &[u8]) -> Result<Vec<u8>, RemoteError> {
        let request = decode::<Request>(body).map_err(Refused::from)?;
        let reply = match self.session.answer(&self.core, request, Vec::new()) {
            Ok((reply, descriptors)) if descriptors.is_empty() => reply,
            Ok(_) => {
                let text = "a descriptor cannot go over a ring (hint: ask over the socket)";
                Refused::new(errno::ENOTSUP, text).reply()
            }
            Err(refused) => refused.reply(),
        };
        Ok(encode(&reply).map_err(Refused::from)?)
    }
}

fn answer(core: &Core, session: SessionId, body: &hinterland_ring::Body) -> hinterland_ring::Body {
    let Some(request) = RingRequest::parse(body) else {
        return RingResponse { code: errno::EINVAL, ..RingResponse::default() }.to_body(0);
    };
    let result = match request {
        RingRequest::Ping(value) => Ok((value, 0)),
        RingRequest::Allocate(bytes, kind) => {
            core.segment.allocate(core, session, bytes, kind).map(|(address, bytes)| (address.raw(), bytes))
        }
        RingRequest::Free(address) => core.segment.free(session, address).map(|()| (0, 0)),
        RingRequest::Lock(address, mode) => {
            core.locks.lock(session, address, mode, 0, &|| true).map(|()| (0, 0)).map_err(Refused::from)
        }
        RingRequest::Unlock(address) => {
            core.locks.unlock(session, address).map(|()| (0, 0)).map_err(Refused::from)
        }
    };
    let response = match result {
        Ok((value, bytes)) => RingResponse { code: 0, value, bytes },
        Err(refused) => RingResponse { code: refused.code, ..RingResponse::default() },
    };
    response.to_body(body[0])
}
