//! The request ring of a session: one thread answers short requests without a system call a request.

use crate::core::Core;
use crate::refused::{Refused, errno};
use crate::session::{Answer, Session};
use hinterland_os::{MapOptions, MemoryFile, PageKind, process};
use hinterland_proto::control::Reply;
use hinterland_proto::ring_message::{RingRequest, RingResponse};
use hinterland_ring::{Responder, Session as RingSession, session_bytes};
use hinterland_types::SessionId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Slots of each direction: depth 128 keeps both sides busy, twice that leaves slack.
const SLOTS: u32 = 256;
/// Requests taken at once.
const BATCH: usize = 64;
/// How often a sleeping ring thread looks whether its session has ended.
const PAUSE: Duration = Duration::from_millis(200);

/// Makes a ring for a session and starts its thread.
///
/// # Errors
/// [`Refused`] for a session of another host, or without memory or threads.
pub fn open(core: &Core, session: &Session) -> Answer {
    let ended = session.ring_flag()?;
    let bytes = session_bytes(SLOTS).map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
    let bytes = bytes.next_multiple_of(4096);
    let file = MemoryFile::anonymous("hinterland-ring", bytes as u64, PageKind::Base4K)?;
    file.allocate(0, bytes as u64)?;
    let options = MapOptions { write: true, ..MapOptions::default() };
    let mapping = Arc::new(file.map(0, bytes, options)?);
    let ring = RingSession::format(mapping.slice(), SLOTS)
        .map_err(|error| Refused::new(errno::EIO, error.to_string()))?;
    let responder = Responder::new(ring);
    let (core, id) = (core.shared(), session.id);
    std::thread::Builder::new()
        .name("ring".to_owned())
        .stack_size(256 << 10)
        .spawn(move || serve(&core, id, responder, &ended))
        .map_err(|error| Refused::new(errno::EIO, format!("no thread for a ring: {error}")))?;
    Ok((Reply::RingOpened { slots: SLOTS }, vec![file.duplicate()?]))
}

fn serve(core: &Weak<Core>, session: SessionId, mut responder: Responder, ended: &AtomicBool) {
    process::name_thread("ring");
    let mut requests = Vec::with_capacity(BATCH);
    while !ended.load(Ordering::Acquire) {
        if !responder.wait(PAUSE) {
            continue;
        }
        let Some(core) = core.upgrade() else { return };
        loop {
            requests.clear();
            if responder.drain(&mut requests, BATCH) == 0 {
                break;
            }
            for request in &requests {
                let response = answer(&core, session, &request.body);
                if responder.respond(request.tag, &response).is_err() {
                    return;
                }
            }
            // Relaxed: a counter that nothing is ordered by.
            core.ring_requests.fetch_add(requests.len() as u64, Ordering::Relaxed);
        }
        responder.flush();
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
