//! Streams.

use std::ffi::{c_int, c_uint, c_void};

use super::device::{PRIORITY_GREATEST, PRIORITY_LEAST};
use super::give;
use crate::code::{Code, INVALID_VALUE, NOT_READY};
use crate::core::capture_mode::CaptureMode;
use crate::core::handle::Kind;
use crate::core::list::HostCall;
use crate::core::thread::{exchange_capture_mode, with_session};

/// Makes a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamCreate(place: *mut *mut c_void) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cudaStreamCreateWithPriority(place, 0, 0) }
}

/// Makes a stream with flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamCreateWithFlags(place: *mut *mut c_void, flags: c_uint) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cudaStreamCreateWithPriority(place, flags, 0) }
}

/// Makes a stream with flags and a priority.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamCreateWithPriority(
    place: *mut *mut c_void,
    flags: c_uint,
    priority: c_int,
) -> Code {
    with_session(|session| {
        if place.is_null() || flags > 1 {
            return Err(INVALID_VALUE);
        }
        let priority = priority.clamp(PRIORITY_GREATEST, PRIORITY_LEAST);
        let stream = session.create_stream(session.owner()?, flags, priority)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Kind::Stream.handle(stream.number)) }
    })
}

/// Ends a stream; its work goes on.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaStreamDestroy(stream: *mut c_void) -> Code {
    with_session(|session| {
        Kind::Stream.of(stream)?;
        session.destroy_stream(&session.stream(stream)?)
    })
}

/// Returns when the work of a stream is done, or when nobody could tell that it is not.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaStreamSynchronize(stream: *mut c_void) -> Code {
    with_session(|session| {
        let stream = session.stream(stream)?;
        session.check_unseen()?;
        session.synchronize_stream(&stream)
    })
}

/// Whether the work of a stream is done.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaStreamQuery(stream: *mut c_void) -> Code {
    with_session(|session| {
        let stream = session.stream(stream)?;
        session.check_unseen()?;
        if session.is_stream_done(&stream)? { Ok(()) } else { Err(NOT_READY) }
    })
}

/// Makes a stream wait for an event.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaStreamWaitEvent(stream: *mut c_void, event: *mut c_void, flags: c_uint) -> Code {
    with_session(|session| {
        let stream = session.stream(stream)?;
        let event = session.events.get(Kind::Event.of(event)?)?;
        session.wait_event(&stream, &event, flags)
    })
}

/// The flags of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamGetFlags(stream: *mut c_void, flags: *mut c_uint) -> Code {
    // SAFETY: a place for a result, as documented.
    with_session(|session| unsafe { give(flags, session.stream(stream)?.flags) })
}

/// The priority of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamGetPriority(stream: *mut c_void, priority: *mut c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    with_session(|session| unsafe { give(priority, session.stream(stream)?.priority) })
}

/// The device of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamGetDevice(stream: *mut c_void, device: *mut c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    with_session(|session| unsafe { give(device, session.stream(stream)?.owner.device as c_int) })
}

/// The number of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamGetId(stream: *mut c_void, number: *mut u64) -> Code {
    // SAFETY: a place for a result, as documented.
    with_session(|session| unsafe { give(number, u64::from(session.stream(stream)?.number)) })
}

/// Begins to capture a stream. The mode says which threads may meanwhile make calls that the capture does not see.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaStreamBeginCapture(stream: *mut c_void, mode: c_int) -> Code {
    with_session(|session| {
        let mode = CaptureMode::of(mode)?;
        session.begin_capture(&session.stream(stream)?, mode)
    })
}

/// Ends a capture and gives its graph.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamEndCapture(stream: *mut c_void, place: *mut *mut c_void) -> Code {
    with_session(|session| {
        // SAFETY: a place for a result, as documented; an ended capture that failed gives none.
        unsafe { give(place, std::ptr::null_mut())? };
        let graph = session.end_capture(&*session.stream(stream)?)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Kind::Graph.handle(graph.number)) }
    })
}

/// Whether a stream is being captured: 0 no, 1 yes, 2 the capture has failed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamIsCapturing(stream: *mut c_void, status: *mut c_int) -> Code {
    with_session(|session| {
        let (number, failed) = session.capture_of(&*session.stream(stream)?)?;
        let state = if number == 0 { 0 } else { 1 + c_int::from(failed) };
        // SAFETY: a place for a result, as documented.
        unsafe { give(status, state) }
    })
}

/// Says what the calling thread may do while something is being captured, and what it might before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaThreadExchangeStreamCaptureMode(mode: *mut c_int) -> Code {
    with_session(|_| {
        // SAFETY: a mode, as documented, or null.
        let new = CaptureMode::of(*unsafe { mode.as_ref() }.ok_or(INVALID_VALUE)?)?;
        // SAFETY: as above.
        unsafe { give(mode, exchange_capture_mode(new) as c_int) }
    })
}

/// Calls a function of the program when the work of a stream so far is done, and not at all if it fails; of a stream that is being captured, when a launch of the
/// graph comes to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaLaunchHostFunc(
    stream: *mut c_void,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> Code {
    with_session(|session| {
        let call = HostCall { function: function.ok_or(INVALID_VALUE)?, data: data.expose_provenance() };
        session.call_host(&session.stream(stream)?, call)
    })
}

/// The same with stream and error as arguments; it is called in any case, and cannot be captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamAddCallback(
    stream: *mut c_void,
    function: Option<unsafe extern "C" fn(*mut c_void, Code, *mut c_void)>,
    data: *mut c_void,
    flags: c_uint,
) -> Code {
    add_callback((stream, stream), function, data, flags)
}

/// The same for a stream that the function is told by another handle: the one that the program gave.
pub(super) fn add_callback(
    (stream, told): (*mut c_void, *mut c_void),
    function: Option<unsafe extern "C" fn(*mut c_void, Code, *mut c_void)>,
    data: *mut c_void,
    flags: c_uint,
) -> Code {
    with_session(|session| {
        let function = function.filter(|_| flags == 0).ok_or(INVALID_VALUE)?;
        let (handle, data) = (told.expose_provenance(), data.expose_provenance());
        let call = move |code| {
            let pointer = std::ptr::with_exposed_provenance_mut;
            // SAFETY: the program's own function with its own data, which it keeps until then.
            unsafe { function(pointer(handle), code, pointer(data)) };
        };
        session.call_in_order(&session.stream(stream)?, Box::new(call))
    })
}
