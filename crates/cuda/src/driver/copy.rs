//! Memory of devices and of the host, copies and fills, under the driver's names.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::without_provenance_mut;
use std::sync::Arc;

use super::context::context_of;
use crate::code::{Code, INVALID_VALUE, NOT_SUPPORTED};
use crate::core::device::Rows;
use crate::core::handle::Kind;
use crate::core::session::Session;
use crate::core::stream::Stream;
use crate::core::thread::{driver, without_record};
use crate::runtime::memory::{
    copy_now, copy_peer, hl_cudaFreeHost, hl_cudaHostAlloc, hl_cudaHostRegister, hl_cudaHostUnregister,
    hl_cudaMallocPitch,
};
use crate::runtime::{give, give_if, limit};

fn pointer(address: u64) -> *mut c_void {
    without_provenance_mut(address as usize)
}

/// Allocates memory of the current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemAlloc_v2(place: *mut u64, bytes: usize) -> Code {
    driver(|session| {
        if place.is_null() || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        session.check_unseen()?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, session.allocate(session.owner()?, bytes as u64)?) }
    })
}

/// Allocates from the pool of the stream's device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemAllocAsync(place: *mut u64, bytes: usize, stream: *mut c_void) -> Code {
    driver(|session| {
        if place.is_null() || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let stream = session.stream(stream)?;
        let pool = session.current_pool(stream.owner.device)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, session.allocate_in(&stream, pool, bytes as u64)?) }
    })
}

/// Frees memory of a device.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuMemFree_v2(address: u64) -> Code {
    driver(|session| {
        session.check_current()?;
        session.check_unseen()?;
        session.free(address)
    })
}

/// The same: what was sent before still has the memory.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuMemFreeAsync(address: u64, stream: *mut c_void) -> Code {
    driver(|session| session.free_in(&*session.stream(stream)?, address))
}

/// Free and all memory of the current device, as far as this session may use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    driver(|session| {
        let (left, all) = session.memory_left(session.owner()?.device)?;
        // SAFETY: places for results or null, as documented.
        unsafe {
            give_if(free, left as usize);
            give_if(total, all as usize);
        }
        Ok(())
    })
}

/// Allocates memory of the host from which copies need not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemHostAlloc(place: *mut *mut c_void, bytes: usize, flags: c_uint) -> Code {
    // SAFETY: as documented.
    without_record(|| unsafe { hl_cudaHostAlloc(place, bytes, flags) })
}

/// The same without flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemAllocHost_v2(place: *mut *mut c_void, bytes: usize) -> Code {
    // SAFETY: as documented.
    without_record(|| unsafe { hl_cudaHostAlloc(place, bytes, 0) })
}

/// Frees memory of the host.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemFreeHost(memory: *mut c_void) -> Code {
    // SAFETY: as documented.
    without_record(|| unsafe { hl_cudaFreeHost(memory) })
}

/// Makes memory of the program such that copies need not wait.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuMemHostRegister_v2(memory: *mut c_void, bytes: usize, flags: c_uint) -> Code {
    without_record(|| hl_cudaHostRegister(memory, bytes, flags))
}

/// Undoes `cuMemHostRegister`.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuMemHostUnregister(memory: *mut c_void) -> Code {
    without_record(|| hl_cudaHostUnregister(memory))
}

same! {
    /// Flags of memory of the host.
    hl_cuMemHostGetFlags(flags: *mut u32, memory: *const c_void) = limit::hl_cudaHostGetFlags;
}

/// Allocates rows whose starts are multiples of 512.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemAllocPitch_v2(
    place: *mut u64,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Code {
    if width == 0 || height == 0 || ![4, 8, 16].contains(&element) {
        return INVALID_VALUE;
    }
    // SAFETY: as documented.
    without_record(|| unsafe { hl_cudaMallocPitch(place.cast(), pitch, width, height) })
}

/// `CUDA_MEMCPY2D`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Rectangle {
    from: End,
    to: End,
    width: usize,
    rows: usize,
}

/// One end of it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct End {
    x_bytes: usize,
    y: usize,
    kind: c_int,
    _pad: [u8; 4],
    host: *mut c_void,
    device: u64,
    _array: *mut c_void,
    pitch: usize,
}

impl End {
    /// # Errors
    /// It is an array, which there are none of, or lies nowhere.
    fn rows(&self) -> Result<Rows, Code> {
        let base = match self.kind {
            1 => self.host.expose_provenance() as u64,
            2 | 4 => self.device,
            3 => return Err(NOT_SUPPORTED),
            _ => return Err(INVALID_VALUE),
        };
        let before = self.y.checked_mul(self.pitch).and_then(|bytes| bytes.checked_add(self.x_bytes));
        let start = before.and_then(|bytes| base.checked_add(bytes as u64)).ok_or(INVALID_VALUE)?;
        Ok(Rows { start, pitch: self.pitch as u64 })
    }
}

fn copy_rectangle(session: &Session, copy: *const Rectangle, stream: &Arc<Stream>) -> Result<(), Code> {
    // SAFETY: as the functions are documented.
    let copy = unsafe { copy.as_ref() }.ok_or(INVALID_VALUE)?;
    session.copy_rows(stream, copy.to.rows()?, copy.from.rows()?, copy.width as u64, copy.rows as u64)
}

/// Copies a rectangle, and waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemcpy2D_v2(copy: *const Rectangle) -> Code {
    driver(|session| {
        session.check_unseen()?;
        let stream = session.default_stream()?;
        copy_rectangle(session, copy, &stream)?;
        session.synchronize_stream(&stream)
    })
}

/// The same for any pitch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemcpy2DUnaligned_v2(copy: *const Rectangle) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cuMemcpy2D_v2(copy) }
}

/// Copies a rectangle in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemcpy2DAsync_v2(copy: *const Rectangle, stream: *mut c_void) -> Code {
    driver(|session| copy_rectangle(session, copy, &session.stream(stream)?))
}

fn device_of(session: &Session, context: *mut c_void) -> Result<c_int, Code> {
    Ok(context_of(session, context)?.owner.device as c_int)
}

/// Copies between devices, and waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemcpyPeer(
    to: u64,
    to_context: *mut c_void,
    from: u64,
    from_context: *mut c_void,
    bytes: usize,
) -> Code {
    driver(|session| {
        let to = (pointer(to), device_of(session, to_context)?);
        let from = (pointer(from), device_of(session, from_context)?);
        copy_peer(session, to, (from.0.cast_const(), from.1), bytes)
    })
}

/// Copies between devices in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemcpyPeerAsync(
    to: u64,
    to_context: *mut c_void,
    from: u64,
    from_context: *mut c_void,
    bytes: usize,
    stream: *mut c_void,
) -> Code {
    driver(|session| {
        device_of(session, to_context)?;
        device_of(session, from_context)?;
        copy(session, pointer(to), pointer(from), bytes, stream)
    })
}

fn copy(
    session: &Session,
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> Result<(), Code> {
    session.copy(&session.stream(stream)?, to, from, bytes)
}

/// An end of a copy that the name of a function says to be of a device. Pinned memory of the host is one of all devices, too.
///
/// # Errors
/// It is other memory of the host, or none.
fn on_device(session: &Session, address: u64, bytes: usize) -> Result<*mut c_void, Code> {
    let is_one = bytes == 0
        || session.is_device_address(address)
        || session.is_pinned(address, bytes as u64)
        || session.is_device_address_as_said(address);
    is_one.then(|| pointer(address)).ok_or(INVALID_VALUE)
}

/// Copies to a device, and waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> Code {
    driver(|session| copy_now(session, on_device(session, to, bytes)?, from, bytes))
}

/// Copies from a device, and waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> Code {
    driver(|session| copy_now(session, to, on_device(session, from, bytes)?, bytes))
}

/// Copies within devices.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) -> Code {
    driver(|session| {
        let (to, from) = (on_device(session, to, bytes)?, on_device(session, from, bytes)?);
        copy_now(session, to, from, bytes)
    })
}

/// Copies between any two places, and waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemcpy(to: u64, from: u64, bytes: usize) -> Code {
    driver(|session| copy_now(session, pointer(to), pointer(from), bytes))
}

/// Copies to a device in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemcpyHtoDAsync_v2(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> Code {
    driver(|session| copy(session, on_device(session, to, bytes)?, from, bytes, stream))
}

/// Copies from a device in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: *mut c_void,
) -> Code {
    driver(|session| copy(session, to, on_device(session, from, bytes)?, bytes, stream))
}

/// Copies within devices in the order of a stream.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> Code {
    driver(|session| {
        let (to, from) = (on_device(session, to, bytes)?, on_device(session, from, bytes)?);
        copy(session, to, from, bytes, stream)
    })
}

/// Copies between any two places in the order of a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> Code {
    driver(|session| copy(session, pointer(to), pointer(from), bytes, stream))
}

/// Fills of elements of one, two and four bytes.
macro_rules! fills {
    ($($words:literal $now:ident $later:ident $rows:ident $number:ty, $bytes:literal;)*) => {$(
        #[doc = concat!("Sets elements of ", $words, " in the order of the default stream.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $now(address: u64, value: $number, count: usize) -> Code {
            match driver(Session::check_unseen) {
                0 => $later(address, value, count, std::ptr::null_mut()),
                code => code,
            }
        }

        #[doc = concat!("Sets elements of ", $words, " in the order of a stream.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $later(address: u64, value: $number, count: usize, stream: *mut c_void) -> Code {
            driver(|session| session.fill(&session.stream(stream)?, address, $bytes, u32::from(value), count as u64))
        }

        #[doc = concat!("Sets elements of ", $words, " of rows in the order of a stream.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $rows(
            address: u64, pitch: usize, value: $number, width: usize, height: usize, stream: *mut c_void,
        ) -> Code {
            driver(|session| {
                let place = Rows { start: address, pitch: pitch as u64 };
                let stream = session.stream(stream)?;
                session.fill_rows(&stream, place, $bytes, u32::from(value), width as u64, height as u64)
            })
        }
    )*};
}
fills! {
    "a byte" hl_cuMemsetD8_v2 hl_cuMemsetD8Async hl_cuMemsetD2D8Async u8, 1;
    "two bytes" hl_cuMemsetD16_v2 hl_cuMemsetD16Async hl_cuMemsetD2D16Async u16, 2;
    "four bytes" hl_cuMemsetD32_v2 hl_cuMemsetD32Async hl_cuMemsetD2D32Async u32, 4;
}

/// Several attributes at once: each place gets what it would get alone, and zeros for a pointer that is none of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuPointerGetAttributes(
    count: c_uint,
    attributes: *const c_int,
    places: *mut *mut c_void,
    address: u64,
) -> Code {
    if attributes.is_null() || places.is_null() {
        return INVALID_VALUE;
    }
    for at in 0..count as usize {
        // SAFETY: as many of both as the count says, as documented.
        let (attribute, place) = unsafe { (*attributes.add(at), *places.add(at)) };
        // SAFETY: as documented.
        if unsafe { hl_cuPointerGetAttribute(place, attribute, address) } == 0 || place.is_null() {
            continue;
        }
        // SAFETY: a place for the type that the attribute has, as documented: four bytes or eight.
        unsafe {
            match attribute {
                2 | 6 | 8 | 9 | 10 | 13 | 15 | 16 | 21 => place.cast::<u32>().write(0),
                1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20 => place.cast::<u64>().write(0),
                _ => return INVALID_VALUE,
            }
        }
    }
    driver(|_| Ok(()))
}

/// What the current device may do with memory: 3 read and write, 0 nothing. No device reaches memory of the host.
fn access(session: &Session, is_of_device: bool, device: u32) -> Result<c_uint, Code> {
    const READ_WRITE: c_uint = 3;
    let own = session.owner()?.device;
    let reaches = is_of_device && (own == device || crate::runtime::device::reaches(session, own, device)?);
    Ok(if reaches { READ_WRITE } else { 0 })
}

/// What a pointer points to: attribute 1 context, 2 kind of memory, 3 device address, 4 host address, 6 whether copies of it that wait were made to wait more, 7 a
/// number that no other memory gets, 8 whether it is unified memory, 9 number of the device, 10 and 15 whether it can be shared, 11 and 12 where and how long
/// all of it is, 13 whether it is there, 14 what can be made of it for others, 16 what the current device may do with it, 17 its pool, 18 and 19 how long and
/// where it is mapped, 20 a number of its memory wherever that is mapped, 21 whether it can be decompressed into. Memory of the host is known where it is pinned,
/// and has no address for devices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuPointerGetAttribute(
    place: *mut c_void,
    attribute: c_int,
    address: u64,
) -> Code {
    const HOST: c_uint = 1;
    const DEVICE: c_uint = 2;
    driver(|session| {
        let range = session.range_around(address);
        let (owner, kind, start, bytes, numbers) = match range {
            Some(range) => (range.owner, DEVICE, range.start, range.bytes, (range.number, range.memory())),
            None => {
                let pinned = session.pinned(address).ok_or(INVALID_VALUE)?;
                let (start, end) = pinned.range();
                (pinned.owner, HOST, start as u64, (end - start) as u64, (pinned.number, pinned.number))
            }
        };
        // SAFETY: a place for the type that the attribute has, as documented.
        unsafe {
            match attribute {
                1 => give(place.cast(), Kind::Context.handle(owner.told())),
                2 => give(place.cast::<c_uint>(), kind),
                3 if kind == DEVICE => give(place.cast::<u64>(), address),
                4 if kind == HOST => give(place.cast::<u64>(), address),
                // It is neither unified memory nor anything that other processes, devices of other makers or decompressors could have, and nothing is set of it.
                6 | 8 | 10 | 15 | 21 => give(place.cast::<c_uint>(), 0),
                7 => give(place.cast::<u64>(), numbers.0),
                16 => give(place.cast::<c_uint>(), access(session, kind == DEVICE, owner.device)?),
                18 => give(place.cast::<u64>(), bytes),
                19 => give(place.cast::<u64>(), start),
                20 => give(place.cast::<u64>(), numbers.1),
                13 => give(place.cast::<c_uint>(), 1),
                14 => give(place.cast::<u64>(), 0),
                17 => give(place.cast::<*mut c_void>(), session.pool_around(start)),
                9 => give(place.cast::<c_int>(), owner.device as c_int),
                11 => give(place.cast::<u64>(), start),
                12 => give(place.cast::<u64>(), bytes),
                _ => Err(INVALID_VALUE),
            }
        }
    })
}
