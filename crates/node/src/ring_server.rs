//! The rings of a session: one thread answers what stays in the rack without a system call a request, others what leaves it.
//!
//! On the first ring short requests have a fixed form and cost nothing but their work; any other request of a session comes as
//! a message of the shared-memory fabric, and is served in its turn. The second, the far ring, has messages only; up to
//! [`FAR_THREADS_MAX`] threads serve it, so that a request that waits for another node holds up neither those that stay here
//! nor, while threads are left, those that leave as well.

use crate::core::Core;
use crate::locks::Wish;
use crate::refused::{Refused, errno};
use crate::session::{Answer, Session};
use hinterland_fabric::shm::{FAR_DATA_BYTES, FAR_SLOTS, FarServer, SLOTS, ShmServer, serve_until};
use hinterland_fabric::{Service, Slice};
use hinterland_os::process;
use hinterland_proto::control::{Reply, Request, decode, encode};
use hinterland_proto::ring_message::{RingRequest, RingResponse};
use hinterland_proto::{PeerHello, Refusal, RefusalCode, RemoteError};
use hinterland_types::{ByteRange, Handle, Rights, SessionId};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

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

/// Threads of one session that may wait for other nodes at once; a thread that waits costs a stack, and nothing else.
const FAR_THREADS_MAX: usize = 16;

/// Makes a far ring for a session and starts its first thread; others follow when all are busy.
///
/// # Errors
/// As [`open`].
pub fn open_far(core: &Core, session: &Arc<Session>) -> Answer {
    let ended = session.ring_flag()?;
    let (server, descriptor) = FarServer::new()?;
    let far = FarRing {
        server,
        core: core.shared(),
        session: Arc::downgrade(session),
        ended,
        threads: AtomicUsize::new(0),
    };
    Arc::new(far)
        .add_thread()
        .map_err(|error| Refused::new(errno::EIO, format!("no thread for a ring: {error}")))?;
    // At most 64 MiB: the cast loses nothing.
    Ok((Reply::FarRingOpened { slots: FAR_SLOTS, data_bytes: FAR_DATA_BYTES as u32 }, vec![descriptor]))
}

/// How long a node that stops waits for the threads of its rings, which look this often whether their sessions have ended.
const STOP_LOOKS: u32 = 400;
const STOP_PAUSE: Duration = Duration::from_millis(5);

/// Waits until no thread serves a ring any more: one keeps what the next node of the same state needs. Sessions have been ended
/// before; a thread that waits for another node is left to itself in the end.
pub fn wait_for_threads(core: &Core) {
    for _ in 0..STOP_LOOKS {
        if Arc::strong_count(&core.rings.threads) == 1 {
            return;
        }
        std::thread::sleep(STOP_PAUSE);
    }
}

/// A far ring and the threads that serve it.
struct FarRing {
    server: FarServer,
    core: Weak<Core>,
    session: Weak<Session>,
    ended: Arc<AtomicBool>,
    threads: AtomicUsize,
}

impl FarRing {
    fn add_thread(self: Arc<Self>) -> std::io::Result<()> {
        // Relaxed: a count that nothing is ordered by.
        if self.threads.fetch_add(1, Ordering::Relaxed) >= FAR_THREADS_MAX {
            // Relaxed: as above.
            self.threads.fetch_sub(1, Ordering::Relaxed);
            return Ok(());
        }
        let far = Arc::clone(&self);
        let spawned = std::thread::Builder::new()
            .name("far-ring".to_owned())
            .stack_size(512 << 10)
            .spawn(move || far.serve());
        if spawned.is_err() {
            // Relaxed: as above.
            self.threads.fetch_sub(1, Ordering::Relaxed);
        }
        spawned.map(drop)
    }

    fn serve(self: Arc<Self>) {
        process::name_thread("far-ring");
        // The first local, so that it is dropped last.
        let _counted = self.core.upgrade().map(|core| Arc::clone(&core.rings.threads));
        let (Some(core), Some(session)) = (self.core.upgrade(), self.session.upgrade()) else { return };
        let id = session.id;
        let _attended = Attended { session: Arc::clone(&session), ended: Arc::clone(&self.ended) };
        let service = RingService { core: Arc::clone(&core), session };
        let took = |threads_left| {
            // Relaxed: a counter that nothing is ordered by.
            core.rings.requests.fetch_add(1, Ordering::Relaxed);
            if threads_left == 0 {
                // Without another thread the next request waits until this one is answered.
                drop(Arc::clone(&self).add_thread());
            }
        };
        self.server.serve_until(&service, id, || self.ended.load(Ordering::Acquire), took);
        if self.ended.load(Ordering::Acquire) {
            // As for the other ring: what the last requests took goes too.
            service.session.end(&core);
        }
    }
}

/// A ring that a thread serves. If that ends before the session does, since the peer cannot be believed or an answer panicked, the
/// session is over: nobody is left who would answer, and who waits for an answer looks only for the end of the session.
struct Attended {
    session: Arc<Session>,
    ended: Arc<AtomicBool>,
}

impl Drop for Attended {
    fn drop(&mut self) {
        if !self.ended.load(Ordering::Acquire) {
            self.session.hang_up();
        }
    }
}

fn serve(core: &Weak<Core>, session: &Weak<Session>, server: ShmServer, ended: &Arc<AtomicBool>) {
    process::name_thread("ring");
    // The first local, so that it is dropped last.
    let _counted = core.upgrade().map(|core| Arc::clone(&core.rings.threads));
    let (Some(core), Some(session)) = (core.upgrade(), session.upgrade()) else { return };
    let id = session.id;
    let _attended = Attended { session: Arc::clone(&session), ended: Arc::clone(ended) };
    let service = RingService { core: Arc::clone(&core), session };
    let mut short = |body: &_| answer(&core, id, body);
    let count = |answered| {
        // Relaxed: a counter that nothing is ordered by.
        core.rings.requests.fetch_add(answered as u64, Ordering::Relaxed);
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
        let resolved = self.session.resolve(handle, range, needed);
        Ok(resolved.map_err(|refused| self.core.told(refused))?)
    }

    fn call(&self, _session: SessionId, body: &[u8]) -> Result<Vec<u8>, RemoteError> {
        let request = decode::<Request>(body).map_err(Refused::from)?;
        let reply = match self.session.answer(&self.core, request, Vec::new()) {
            Ok((reply, descriptors)) if descriptors.is_empty() => reply,
            Ok(_) => {
                let text = "a descriptor cannot go over a ring (hint: ask over the socket)";
                Refused::new(errno::ENOTSUP, text).reply()
            }
            Err(refused) => self.core.told(refused).reply(),
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
            let mode = crate::locks::mode(mode);
            let (upgrade, queue, stay) = (false, false, false);
            let wish = Wish { session, pid: 0, address, bytes: 0, mode, upgrade, queue, stay };
            core.locks.lock(core, &wish, 0, &|| true).map(|_| (0, 0))
        }
        RingRequest::Unlock(address) => core.locks.unlock(core, session, address, true).map(|()| (0, 0)),
    };
    let response = match result {
        Ok((value, bytes)) => RingResponse { code: 0, value, bytes },
        Err(refused) => RingResponse { code: refused.code, ..RingResponse::default() },
    };
    response.to_body(body[0])
}
