//! Pools of memory, and allocations in the order of a stream.

use std::ffi::{c_int, c_void};
use std::ptr::without_provenance_mut;

use super::device::number;
use super::{give, give_if};
use crate::code::{Code, INVALID_VALUE, NOT_SUPPORTED};
use crate::core::handle::Kind;
use crate::core::session::Session;
use crate::core::stream::Stream;
use crate::core::thread::with_session;

/// `cudaMemLocation`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Location {
    kind: c_int,
    number: c_int,
}

/// `cudaMemPoolProps`, up to what is looked at.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PoolProperties {
    allocation: c_int,
    handle_types: c_int,
    location: Location,
}

/// `cudaMemAccessDesc`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Access {
    location: Location,
    flags: c_int,
}

/// `cudaMemLocationTypeDevice`
const ON_DEVICE: c_int = 1;
/// `cudaMemPoolAttr`
const REUSE: std::ops::RangeInclusive<c_int> = 1..=3;
const THRESHOLD: c_int = 4;
const RESERVED: c_int = 5;
const RESERVED_MAX: c_int = 6;
const USED: c_int = 7;
const USED_MAX: c_int = 8;
/// `cudaMemAccessFlagsProtReadWrite`
const READ_WRITE: c_int = 3;

fn pool_of(handle: *mut c_void) -> Result<u32, Code> {
    Kind::Pool.of(handle)
}

/// # Safety
/// `place` is null or can be written.
unsafe fn give_pool(place: *mut *mut c_void, pool: u32) -> Result<(), Code> {
    // SAFETY: the caller's promise.
    unsafe { give(place, Kind::Pool.handle(pool)) }
}

/// The pool that a device has from the start.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaDeviceGetDefaultMemPool(place: *mut *mut c_void, device: c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    with_session(|session| unsafe { give_pool(place, number(session, device)?) })
}

/// The pool that a device allocates from.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaDeviceGetMemPool(place: *mut *mut c_void, device: c_int) -> Code {
    with_session(|session| {
        let pool = session.current_pool(number(session, device)?)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give_pool(place, pool) }
    })
}

/// Has a device allocate from a pool of its own.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaDeviceSetMemPool(device: c_int, pool: *mut c_void) -> Code {
    with_session(|session| session.set_current_pool(number(session, device)?, pool_of(pool)?))
}

/// Makes a pool of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemPoolCreate(
    place: *mut *mut c_void,
    properties: *const PoolProperties,
) -> Code {
    with_session(|session| {
        // SAFETY: as documented.
        let properties = unsafe { properties.as_ref() }.ok_or(INVALID_VALUE)?;
        if place.is_null() || properties.allocation != 1 {
            return Err(INVALID_VALUE);
        }
        if properties.handle_types != 0 || properties.location.kind != ON_DEVICE {
            return Err(NOT_SUPPORTED);
        }
        let pool = session.create_pool(number(session, properties.location.number)?)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give_pool(place, pool) }
    })
}

/// Ends a pool.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaMemPoolDestroy(pool: *mut c_void) -> Code {
    with_session(|session| session.destroy_pool(pool_of(pool)?))
}

/// A pool keeps nothing that could be given back.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaMemPoolTrimTo(pool: *mut c_void, _bytes_min: usize) -> Code {
    with_session(|session| session.with_pool(pool_of(pool)?, |_| Ok(())))
}

/// Sets an attribute of a pool. It is kept for questions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemPoolSetAttribute(
    pool: *mut c_void,
    attribute: c_int,
    value: *mut c_void,
) -> Code {
    with_session(|session| {
        if value.is_null() {
            return Err(INVALID_VALUE);
        }
        session.with_pool(pool_of(pool)?, |pool| {
            // SAFETY: a number of the attribute's type, as documented.
            let long = || unsafe { value.cast::<u64>().read() };
            // SAFETY: likewise.
            let short = || unsafe { value.cast::<c_int>().read() };
            match attribute {
                // From 1 to 3.
                which if REUSE.contains(&which) => {
                    pool.reuse[(which - 1) as usize] = c_int::from(short() != 0);
                }
                THRESHOLD => pool.threshold = long(),
                RESERVED_MAX | USED_MAX if long() == 0 => pool.used_max = pool.used,
                _ => return Err(INVALID_VALUE),
            }
            Ok(())
        })
    })
}

/// An attribute of a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemPoolGetAttribute(
    pool: *mut c_void,
    attribute: c_int,
    value: *mut c_void,
) -> Code {
    with_session(|session| {
        let pool = session.with_pool(pool_of(pool)?, |pool| Ok(*pool))?;
        // SAFETY: a place for a number of the attribute's type, as documented.
        unsafe {
            match attribute {
                // From 1 to 3.
                which if REUSE.contains(&which) => give(value.cast(), pool.reuse[(which - 1) as usize]),
                THRESHOLD => give(value.cast(), pool.threshold),
                RESERVED | USED => give(value.cast(), pool.used),
                RESERVED_MAX | USED_MAX => give(value.cast(), pool.used_max),
                _ => Err(INVALID_VALUE),
            }
        }
    })
}

/// Lets devices reach memory of a pool: those that do reach it do so in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemPoolSetAccess(
    pool: *mut c_void,
    access: *const Access,
    count: usize,
) -> Code {
    with_session(|session| {
        let own = session.with_pool(pool_of(pool)?, |pool| Ok(pool.device))?;
        if count == 0 {
            return Ok(());
        }
        if access.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as documented.
        for one in unsafe { std::slice::from_raw_parts(access, count) } {
            if one.flags != 0 && !reaches(session, one.location, own)? {
                return Err(INVALID_VALUE);
            }
        }
        Ok(())
    })
}

fn reaches(session: &Session, location: Location, own: u32) -> Result<bool, Code> {
    if location.kind != ON_DEVICE {
        return Ok(false);
    }
    let other = number(session, location.number)?;
    Ok(other == own || super::device::reaches(session, other, own)?)
}

/// Whether a device reaches memory of a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemPoolGetAccess(
    flags: *mut c_int,
    pool: *mut c_void,
    location: *mut Location,
) -> Code {
    with_session(|session| {
        let own = session.with_pool(pool_of(pool)?, |pool| Ok(pool.device))?;
        // SAFETY: as documented.
        let location = *unsafe { location.as_ref() }.ok_or(INVALID_VALUE)?;
        let found = if reaches(session, location, own)? { READ_WRITE } else { 0 };
        // SAFETY: a place for a result, as documented.
        unsafe { give(flags, found) }
    })
}

/// Allocates from a pool.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMallocFromPoolAsync(
    place: *mut *mut c_void,
    bytes: usize,
    pool: *mut c_void,
    stream: *mut c_void,
) -> Code {
    with_session(|session| {
        let stream = session.stream(stream)?;
        // SAFETY: a place for a result, as documented.
        unsafe { allocate(session, place, bytes, pool_of(pool)?, &stream) }
    })
}

/// Allocates from the pool of the stream's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMallocAsync(
    place: *mut *mut c_void,
    bytes: usize,
    stream: *mut c_void,
) -> Code {
    with_session(|session| {
        let stream = session.stream(stream)?;
        let pool = session.current_pool(stream.owner.device)?;
        // SAFETY: a place for a result, as documented.
        unsafe { allocate(session, place, bytes, pool, &stream) }
    })
}

/// # Safety
/// `place` is null or can be written.
unsafe fn allocate(
    session: &Session,
    place: *mut *mut c_void,
    bytes: usize,
    pool: u32,
    stream: &Stream,
) -> Result<(), Code> {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { give_if(place, std::ptr::null_mut()) };
    let address = session.allocate_in(stream, pool, bytes as u64)?;
    // SAFETY: as above.
    unsafe { give(place, without_provenance_mut(address as usize)) }
}

/// Frees memory: what was sent before still has it.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaFreeAsync(address: *mut c_void, stream: *mut c_void) -> Code {
    with_session(|session| session.free_in(&*session.stream(stream)?, address.addr() as u64))
}
