//! Memory of devices and of the host, copies and fills.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;

use super::{give, give_if};
use crate::code::{CAPTURE_UNSUPPORTED, Code, INVALID_DIRECTION, INVALID_VALUE, NO_MEMORY, NOT_SUPPORTED};
use crate::core::device::Rows;
use crate::core::module::REGISTRY;
use crate::core::session::Session;
use crate::core::stream::Stream;
use crate::core::thread::with_session;

/// Memory of the host starts at a multiple of this.
const HOST_ALIGNMENT: usize = 4096;
/// Flags of memory of the host: for all contexts, seen by devices, written and not read.
const HOST_FLAGS: c_uint = 7;
/// Flags of memory that is registered: for all contexts, seen by devices, of a device that is no GPU, read and not written.
const REGISTER_FLAGS: c_uint = 15;

/// Allocates memory of the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMalloc(place: *mut *mut c_void, bytes: usize) -> Code {
    with_session(|session| {
        if place.is_null() {
            return Err(INVALID_VALUE);
        }
        session.check_unseen()?;
        let address = session.allocate(session.owner()?, bytes as u64)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, without_provenance_mut(address as usize)) }
    })
}

/// Allocates rows whose starts are multiples of 512.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMallocPitch(
    place: *mut *mut c_void,
    pitch: *mut usize,
    width: usize,
    height: usize,
) -> Code {
    with_session(|session| {
        if place.is_null() || pitch.is_null() {
            return Err(INVALID_VALUE);
        }
        let step = width.checked_next_multiple_of(512).ok_or(INVALID_VALUE)?;
        let bytes = step.checked_mul(height).ok_or(INVALID_VALUE)?;
        session.check_unseen()?;
        let address = session.allocate(session.owner()?, bytes as u64)?;
        // SAFETY: places for results, as documented.
        unsafe {
            give(pitch, step)?;
            give(place, without_provenance_mut(address as usize))
        }
    })
}

/// Unified memory would have to follow whoever touches it: not supported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMallocManaged(
    _place: *mut *mut c_void,
    _bytes: usize,
    _flags: c_uint,
) -> Code {
    with_session(|_| Err(NOT_SUPPORTED))
}

/// Frees memory of a device.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaFree(address: *mut c_void) -> Code {
    with_session(|session| {
        session.check_current()?;
        session.check_unseen()?;
        session.free(address.addr() as u64)
    })
}

/// Allocates memory of the host from which copies need not wait. Devices do not see it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaHostAlloc(place: *mut *mut c_void, bytes: usize, flags: c_uint) -> Code {
    with_session(|session| {
        if place.is_null() || flags & !HOST_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        if bytes == 0 {
            // SAFETY: a place for a result, as documented.
            return unsafe { give(place, null_mut()) };
        }
        session.check_unseen()?;
        let mut memory = null_mut();
        // SAFETY: the alignment is a power of two.
        if unsafe { libc::posix_memalign(&raw mut memory, HOST_ALIGNMENT, bytes) } != 0 {
            return Err(NO_MEMORY);
        }
        session.add_pinned(session.owner()?, memory.expose_provenance() as u64, bytes as u64, true, flags)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, memory) }
    })
}

/// The same without flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMallocHost(place: *mut *mut c_void, bytes: usize) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cudaHostAlloc(place, bytes, 0) }
}

/// Returns when nothing is on its way into pinned memory. While something is being captured, which may be by another thread, only that
/// is waited for that lands there.
fn settle(session: &Session, start: usize) -> Result<(), Code> {
    match session.synchronize_all() {
        Err(CAPTURE_UNSUPPORTED) => {
            let bytes = session.pinned_bytes(start as u64).unwrap_or(0);
            session.wait_landing((start, start + bytes as usize))
        }
        outcome => outcome,
    }
}

/// Frees memory of the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaFreeHost(memory: *mut c_void) -> Code {
    with_session(|session| {
        if memory.is_null() {
            return Ok(());
        }
        session.check_unseen()?;
        // Bytes that are still on their way would land in memory that is somebody else's by then.
        settle(session, memory.addr())?;
        session.remove_pinned(memory.addr() as u64, true)?;
        // SAFETY: from posix_memalign, and freed once: it was in the table.
        unsafe { libc::free(memory) };
        Ok(())
    })
}

/// Makes memory of the program such that copies need not wait. Devices do not see it.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaHostRegister(memory: *mut c_void, bytes: usize, flags: c_uint) -> Code {
    with_session(|session| {
        if memory.is_null() || bytes == 0 || flags & !REGISTER_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        session.check_unseen()?;
        session.add_pinned(session.owner()?, memory.expose_provenance() as u64, bytes as u64, false, flags)
    })
}

/// Undoes `cudaHostRegister`.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaHostUnregister(memory: *mut c_void) -> Code {
    with_session(|session| {
        session.check_unseen()?;
        settle(session, memory.addr())?;
        session.remove_pinned(memory.addr() as u64, false).map(drop)
    })
}

/// Devices do not see memory of the host: not supported.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaHostGetDevicePointer(
    _place: *mut *mut c_void,
    _memory: *mut c_void,
    _flags: c_uint,
) -> Code {
    with_session(|_| Err(NOT_SUPPORTED))
}

/// `cudaPointerAttributes`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_pointer: *mut c_void,
    host_pointer: *mut c_void,
    _reserved: [i64; 8],
}

/// What a pointer points to: 0 nothing that we know, 1 pinned memory of the host, 2 memory of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaPointerGetAttributes(
    place: *mut PointerAttributes,
    pointer: *const c_void,
) -> Code {
    with_session(|session| {
        let address = pointer.addr() as u64;
        let none = PointerAttributes {
            kind: 0,
            device: -2,
            device_pointer: null_mut(),
            host_pointer: pointer.cast_mut(),
            _reserved: [0; 8],
        };
        let found = match session.range_around(address) {
            Some(range) => PointerAttributes {
                kind: 2,
                device: range.owner.device as c_int,
                device_pointer: pointer.cast_mut(),
                host_pointer: null_mut(),
                ..none
            },
            None => match session.pinned_owner(address) {
                Some(owner) => PointerAttributes { kind: 1, device: owner.device as c_int, ..none },
                None => none,
            },
        };
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, found) }
    })
}

/// The range that an address of a device lies in.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemGetAddressRange_v2(
    start: *mut u64,
    bytes: *mut usize,
    address: u64,
) -> Code {
    crate::core::thread::driver(|session| {
        let range = session.range_around(address).ok_or(crate::code::NOT_FOUND)?;
        // SAFETY: places for results or null, as documented.
        unsafe {
            give_if(start, range.start);
            give_if(bytes, range.bytes as usize);
        }
        Ok(())
    })
}

/// `cudaMemcpyKind`
const TO_DEVICE: c_int = 1;
const FROM_DEVICE: c_int = 2;
const WITHIN: c_int = 3;
const BY_ADDRESSES: c_int = 4;

/// Where the bytes are is seen from the addresses; the direction that the program says has only to be one.
///
/// # Errors
/// It is none.
pub(crate) fn direction(kind: c_int) -> Result<(), Code> {
    if (0..=4).contains(&kind) { Ok(()) } else { Err(INVALID_DIRECTION) }
}

/// The same for a copy with a variable of a device as one end.
///
/// # Errors
/// There is no such direction, or it is one that does not end, or begin (`is_out`), at a device.
fn direction_with_symbol(kind: c_int, is_out: bool) -> Result<(), Code> {
    let other = if is_out { FROM_DEVICE } else { TO_DEVICE };
    if [other, WITHIN, BY_ADDRESSES].contains(&kind) { Ok(()) } else { Err(INVALID_DIRECTION) }
}

/// The same, and where an end is said to be of a device, it is looked for among variables whose places were not asked for yet.
///
/// # Errors
/// There is no such direction.
fn direction_of(session: &Session, kind: c_int, to: *mut c_void, from: *const c_void) -> Result<(), Code> {
    direction(kind)?;
    for (end, is_said) in [
        (to.addr(), kind == TO_DEVICE || kind == WITHIN),
        (from.addr(), kind == FROM_DEVICE || kind == WITHIN),
    ] {
        // One that is of no device after all is taken for what it is.
        let _ = is_said && session.is_device_address_as_said(end as u64);
    }
    Ok(())
}

/// Copies, and returns when the program may use both ends.
pub(crate) fn copy_now(
    session: &Session,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
) -> Result<(), Code> {
    session.check_unseen()?;
    let stream = session.default_stream()?;
    session.copy(&stream, to, from, bytes)?;
    session.synchronize_stream(&stream)
}

/// Copies in the order of the default stream, and waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpy(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
) -> Code {
    with_session(|session| {
        direction_of(session, kind, to, from)?;
        copy_now(session, to, from, bytes)
    })
}

/// Copies in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    kind: c_int,
    stream: *mut c_void,
) -> Code {
    with_session(|session| {
        direction_of(session, kind, to, from)?;
        session.copy(&session.stream(stream)?, to, from, bytes)
    })
}

/// Copies between devices, behind all work of both and of the current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpyPeer(
    to: *mut c_void,
    to_device: c_int,
    from: *const c_void,
    from_device: c_int,
    bytes: usize,
) -> Code {
    with_session(|session| copy_peer(session, (to, to_device), (from, from_device), bytes))
}

/// # Errors
/// There is no such device; as a copy.
pub(crate) fn copy_peer(
    session: &Session,
    (to, to_device): (*mut c_void, c_int),
    (from, from_device): (*const c_void, c_int),
    bytes: usize,
) -> Result<(), Code> {
    let (to_device, from_device) =
        (super::device::number(session, to_device)?, super::device::number(session, from_device)?);
    for one in [to_device, from_device] {
        session.wait_device(one)?;
    }
    session.wait_context(&*session.current_context()?)?;
    copy_now(session, to, from, bytes)
}

/// The same in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpyPeerAsync(
    to: *mut c_void,
    to_device: c_int,
    from: *const c_void,
    from_device: c_int,
    bytes: usize,
    stream: *mut c_void,
) -> Code {
    with_session(|session| {
        super::device::number(session, to_device)?;
        super::device::number(session, from_device)?;
        session.copy(&session.stream(stream)?, to, from, bytes)
    })
}

/// Copies a rectangle, and waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpy2D(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
) -> Code {
    with_session(|session| {
        direction_of(session, kind, to, from)?;
        session.check_unseen()?;
        let stream = session.default_stream()?;
        copy_rows(session, &stream, (to, to_pitch), (from, from_pitch), width, height)?;
        session.synchronize_stream(&stream)
    })
}

/// Copies a rectangle in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpy2DAsync(
    to: *mut c_void,
    to_pitch: usize,
    from: *const c_void,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
    stream: *mut c_void,
) -> Code {
    with_session(|session| {
        direction_of(session, kind, to, from)?;
        copy_rows(session, &session.stream(stream)?, (to, to_pitch), (from, from_pitch), width, height)
    })
}

fn copy_rows(
    session: &Session,
    stream: &Arc<Stream>,
    (to, to_pitch): (*mut c_void, usize),
    (from, from_pitch): (*const c_void, usize),
    width: usize,
    height: usize,
) -> Result<(), Code> {
    let to = Rows { start: to.expose_provenance() as u64, pitch: to_pitch as u64 };
    let from = Rows { start: from.expose_provenance() as u64, pitch: from_pitch as u64 };
    session.copy_rows(stream, to, from, width as u64, height as u64)
}

/// Sets bytes in the order of the default stream.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaMemset(address: *mut c_void, value: c_int, bytes: usize) -> Code {
    with_session(|session| {
        session.check_unseen()?;
        let stream = session.default_stream()?;
        session.fill(&stream, address.addr() as u64, 1, (value & 0xff) as u32, bytes as u64)
    })
}

/// Sets bytes in the order of a stream.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaMemsetAsync(
    address: *mut c_void,
    value: c_int,
    bytes: usize,
    stream: *mut c_void,
) -> Code {
    with_session(|session| {
        session.fill(&session.stream(stream)?, address.addr() as u64, 1, (value & 0xff) as u32, bytes as u64)
    })
}

/// Sets bytes of rows in the order of the default stream.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaMemset2D(
    address: *mut c_void,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
) -> Code {
    match with_session(Session::check_unseen) {
        0 => hl_cudaMemset2DAsync(address, pitch, value, width, height, null_mut()),
        code => code,
    }
}

/// Sets bytes of rows in the order of a stream.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaMemset2DAsync(
    address: *mut c_void,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
    stream: *mut c_void,
) -> Code {
    with_session(|session| {
        let place = Rows { start: address.addr() as u64, pitch: pitch as u64 };
        let value = (value & 0xff) as u32;
        session.fill_rows(&session.stream(stream)?, place, 1, value, width as u64, height as u64)
    })
}

fn symbol(session: &Session, shadow: *const c_void) -> Result<(u64, u64), Code> {
    let (binary, name) = REGISTRY.variable(shadow.addr())?;
    session.symbol(&binary, session.owner()?, &name).map_err(|_| crate::code::INVALID_SYMBOL)
}

/// The address of a variable on the current device. The node is asked once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGetSymbolAddress(place: *mut *mut c_void, shadow: *const c_void) -> Code {
    with_session(|session| {
        let (address, _) = symbol(session, shadow)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, without_provenance_mut(address as usize)) }
    })
}

/// The length of a variable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGetSymbolSize(place: *mut usize, shadow: *const c_void) -> Code {
    // SAFETY: a place for a result, as documented.
    with_session(|session| unsafe { give(place, symbol(session, shadow)?.1 as usize) })
}

/// A part of a variable as a pointer.
fn inside(
    session: &Session,
    shadow: *const c_void,
    bytes: usize,
    offset: usize,
) -> Result<*mut c_void, Code> {
    let (address, length) = symbol(session, shadow)?;
    let end = offset.checked_add(bytes).ok_or(INVALID_VALUE)?;
    if end as u64 > length {
        return Err(INVALID_VALUE);
    }
    Ok(without_provenance_mut((address + offset as u64) as usize))
}

/// Copies into a variable, and waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpyToSymbol(
    shadow: *const c_void,
    from: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
) -> Code {
    with_session(|session| {
        direction_with_symbol(kind, false)?;
        copy_now(session, inside(session, shadow, bytes, offset)?, from, bytes)
    })
}

/// Copies into a variable in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpyToSymbolAsync(
    shadow: *const c_void,
    from: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
    stream: *mut c_void,
) -> Code {
    with_session(|session| {
        direction_with_symbol(kind, false)?;
        session.copy(&session.stream(stream)?, inside(session, shadow, bytes, offset)?, from, bytes)
    })
}

/// Copies out of a variable, and waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpyFromSymbol(
    to: *mut c_void,
    shadow: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
) -> Code {
    with_session(|session| {
        direction_with_symbol(kind, true)?;
        copy_now(session, to, inside(session, shadow, bytes, offset)?, bytes)
    })
}

/// Copies out of a variable in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpyFromSymbolAsync(
    to: *mut c_void,
    shadow: *const c_void,
    bytes: usize,
    offset: usize,
    kind: c_int,
    stream: *mut c_void,
) -> Code {
    with_session(|session| {
        direction_with_symbol(kind, true)?;
        session.copy(&session.stream(stream)?, to, inside(session, shadow, bytes, offset)?, bytes)
    })
}
