//! Limits and preferences of devices, and what a profiler would be told.
//!
//! The node's driver has its own limits, which are those that CUDA documents for a program that sets none. A program may ask for as much or less
//! and has it; more is refused, as the node is not told.

use std::ffi::{c_int, c_void};

use super::{give, give_if};
use crate::code::{Code, INVALID_VALUE, UNSUPPORTED_LIMIT};
use crate::core::attribute;
use crate::core::session::Session;
use crate::core::thread::{device, with_session};

/// Limits by `cudaLimit`, each with what it is of.
const LIMITS: [(&str, usize); 7] = [
    ("the stack of a thread in bytes", 1 << 10),
    ("what kernels print, in bytes,", 1 << 20),
    ("what kernels allocate, in bytes,", 8 << 20),
    ("the depth of kernels that wait for kernels", 2),
    ("the number of kernels that kernels have waiting", 2048),
    ("the bytes that the cache fetches at once", 64),
    ("the bytes that stay in the cache", 0),
];
/// Kernels of newer devices do not wait for kernels.
const DEPTH: usize = 3;
const WITHOUT_DEPTH: i32 = 9;
/// The cache fetches what it likes, and keeps what it likes: these two are hints.
const HINTS: std::ops::RangeInclusive<usize> = 5..=6;

fn limit(session: &Session, number: c_int) -> Result<(usize, &'static str, usize), Code> {
    let number = usize::try_from(number).map_err(|_| INVALID_VALUE)?;
    let (what, value) = LIMITS.get(number).ok_or(INVALID_VALUE)?;
    if number == DEPTH && session.attribute_or_zero(device(), attribute::MAJOR) >= WITHOUT_DEPTH {
        return Err(UNSUPPORTED_LIMIT);
    }
    Ok((number, what, *value))
}

/// A limit of the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaDeviceGetLimit(value: *mut usize, number: c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    with_session(|session| unsafe { give(value, limit(session, number)?.2) })
}

/// Sets a limit of the current device: one that it keeps to anyway is taken, a higher one is refused.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaDeviceSetLimit(number: c_int, value: usize) -> Code {
    with_session(|session| {
        let (number, what, most) = limit(session, number)?;
        if value > most && !HINTS.contains(&number) {
            eprintln!(
                "hinterland: {what} is {most} on a GPU elsewhere and cannot be {value} (hint: a program that goes on has that, and one that needs more has to run beside the GPU)"
            );
            return Err(UNSUPPORTED_LIMIT);
        }
        Ok(())
    })
}

/// Whether a device is to have more shared memory or more cache: it chooses by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaDeviceGetCacheConfig(place: *mut c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    with_session(|_| unsafe { give(place, 0) })
}

/// A preference, which is let go.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaDeviceSetCacheConfig(_config: c_int) -> Code {
    with_session(|_| Ok(()))
}

/// What stays in the cache is a hint, which there was none of.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaCtxResetPersistingL2Cache() -> Code {
    with_session(|_| Ok(()))
}

/// Nobody profiles here.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaProfilerStart() -> Code {
    with_session(|_| Ok(()))
}

/// Nobody profiles here.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaProfilerStop() -> Code {
    with_session(|_| Ok(()))
}

/// A kernel of the program as a handle of the driver's: the address of its stub is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGetFuncBySymbol(place: *mut *const c_void, stub: *const c_void) -> Code {
    with_session(|session| {
        super::launch::registered(session, stub)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, stub) }
    })
}

/// Attributes of streams are hints, of which none is kept: those that a stream has are zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaStreamGetAttribute(
    stream: *mut c_void,
    number: c_int,
    value: *mut [u64; 8],
) -> Code {
    with_session(|session| {
        let stream = session.stream(stream)?;
        let answer = match number {
            PRIORITY => u64::from(stream.priority.cast_unsigned()),
            number if STREAM_HINTS.contains(&number) => 0,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: a place for a result of 64 bytes, as documented.
        unsafe { give(value, [answer, 0, 0, 0, 0, 0, 0, 0]) }
    })
}

/// Hints, which are let go.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaStreamSetAttribute(
    stream: *mut c_void,
    number: c_int,
    value: *const c_void,
) -> Code {
    with_session(|session| {
        session.stream(stream)?;
        if value.is_null() || !STREAM_HINTS.contains(&number) {
            return Err(INVALID_VALUE);
        }
        Ok(())
    })
}

/// Hints, which are let go.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaStreamCopyAttributes(to: *mut c_void, from: *mut c_void) -> Code {
    with_session(|session| session.stream(to).and_then(|_| session.stream(from)).map(drop))
}

/// `cudaLaunchAttributePriority`, which a stream has from its start.
const PRIORITY: c_int = 8;
/// Window of the cache, synchronisation, domains of memory.
const STREAM_HINTS: &[c_int] = &[1, 3, 9, 10];

/// Flags of pinned memory of the host, as the program gave them; none has an effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaHostGetFlags(flags: *mut u32, memory: *const c_void) -> Code {
    with_session(|session| {
        let pinned = session.pinned(memory.addr() as u64).ok_or(INVALID_VALUE)?;
        // SAFETY: a place for a result or null, as documented.
        unsafe { give_if(flags, pinned.flags) };
        Ok(())
    })
}
