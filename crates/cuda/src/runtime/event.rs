//! Events.

use std::ffi::{c_uint, c_void};

use super::give;
use crate::code::{Code, INVALID_VALUE, NOT_READY};
use crate::core::handle::Kind;
use crate::core::thread::with_session;

/// Events that another process could open are not supported.
const INTERPROCESS: c_uint = 4;

/// Makes an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaEventCreate(place: *mut *mut c_void) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cudaEventCreateWithFlags(place, 0) }
}

/// Makes an event with flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaEventCreateWithFlags(place: *mut *mut c_void, flags: c_uint) -> Code {
    with_session(|session| {
        if place.is_null() || flags > 7 {
            return Err(INVALID_VALUE);
        }
        if flags & INTERPROCESS != 0 {
            crate::missing::say_no_shared_event();
            return Err(crate::code::NOT_SUPPORTED);
        }
        let event = session.create_event(session.owner()?, flags)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Kind::Event.handle(event.number)) }
    })
}

/// Ends an event.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaEventDestroy(event: *mut c_void) -> Code {
    with_session(|session| session.destroy_event(Kind::Event.of(event)?))
}

/// Records an event behind the work of a stream.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaEventRecord(event: *mut c_void, stream: *mut c_void) -> Code {
    hl_cudaEventRecordWithFlags(event, stream, 0)
}

/// The same with flags.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaEventRecordWithFlags(
    event: *mut c_void,
    stream: *mut c_void,
    flags: c_uint,
) -> Code {
    with_session(|session| {
        let event = session.events.get(Kind::Event.of(event)?)?;
        session.record_event(&event, &session.stream(stream)?, flags)
    })
}

/// Whether an event is done.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaEventQuery(event: *mut c_void) -> Code {
    with_session(|session| {
        let event = session.events.get(Kind::Event.of(event)?)?;
        session.check_unseen()?;
        if session.is_event_done(&event)? { Ok(()) } else { Err(NOT_READY) }
    })
}

/// Returns when an event is done.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaEventSynchronize(event: *mut c_void) -> Code {
    with_session(|session| {
        let event = session.events.get(Kind::Event.of(event)?)?;
        session.check_unseen()?;
        session.synchronize_event(&event)
    })
}

/// Milliseconds between two events, as the device took them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaEventElapsedTime(
    place: *mut f32,
    start: *mut c_void,
    end: *mut c_void,
) -> Code {
    with_session(|session| {
        let start = session.events.get(Kind::Event.of(start)?)?;
        let end = session.events.get(Kind::Event.of(end)?)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, session.elapsed(&start, &end)?) }
    })
}
