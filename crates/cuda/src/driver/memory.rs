//! Memory that a program maps by itself, piece by piece. A piece is mapped whole and in one place.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use crate::code::{Code, INVALID_VALUE, NOT_SUPPORTED};
use crate::core::handle::Kind;
use crate::core::thread::driver;
use crate::runtime::device::number;
use crate::runtime::give;

/// `CU_MEM_LOCATION_TYPE_DEVICE`
const ON_DEVICE: c_int = 1;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`: the memory may be given to other processes. PyTorch says so of all, and gives none if it is alone: it is giving
/// that is refused, in words.
const AS_FILE: c_int = 1;

/// `CUmemAllocationProp`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct AllocationProperties {
    kind: c_int,
    handle_types: c_int,
    location: c_int,
    device: c_int,
    _windows: *mut c_void,
    _flags: [u8; 8],
}

/// Reserves addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemAddressReserve(
    place: *mut u64,
    bytes: usize,
    alignment: usize,
    _wanted: u64,
    _flags: c_ulonglong,
) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|session| unsafe { give(place, session.reserve_addresses(bytes as u64, alignment as u64)?) })
}

/// Gives addresses back.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuMemAddressFree(address: u64, bytes: usize) -> Code {
    driver(|session| session.release_addresses(address, bytes as u64))
}

/// What lengths of memory are a multiple of.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemGetAllocationGranularity(
    place: *mut usize,
    _properties: *const AllocationProperties,
    _option: c_int,
) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|session| unsafe { give(place, session.welcome.granularity as usize) })
}

/// Sets memory of a device aside.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemCreate(
    place: *mut u64,
    bytes: usize,
    properties: *const AllocationProperties,
    _flags: c_ulonglong,
) -> Code {
    driver(|session| {
        if place.is_null() || properties.is_null() || bytes == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as documented.
        let properties = unsafe { &*properties };
        if properties.location != ON_DEVICE || properties.handle_types & !AS_FILE != 0 {
            return Err(NOT_SUPPORTED);
        }
        if !(bytes as u64).is_multiple_of(session.welcome.granularity) {
            return Err(INVALID_VALUE);
        }
        let device = number(session, properties.device)?;
        let number = session.create_piece(device, bytes as u64)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Kind::Memory.number(number)) }
    })
}

/// The program needs the handle no more; the memory goes when it is not mapped either.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuMemRelease(handle: u64) -> Code {
    driver(|session| session.release_piece(Kind::Memory.of_number(handle)?))
}

/// Maps memory at reserved addresses.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuMemMap(
    address: u64,
    bytes: usize,
    offset: usize,
    handle: u64,
    _flags: c_ulonglong,
) -> Code {
    driver(|session| {
        if offset != 0 {
            return Err(NOT_SUPPORTED);
        }
        session.map_piece(Kind::Memory.of_number(handle)?, address, bytes as u64)
    })
}

/// Unmaps memory.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuMemUnmap(address: u64, bytes: usize) -> Code {
    driver(|session| session.unmap_range(address, bytes as u64))
}

/// What is mapped can be read and written by its device from the start, and by those that reach it; others are refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemSetAccess(
    address: u64,
    bytes: usize,
    access: *const c_void,
    count: usize,
) -> Code {
    /// `CUmemAccessDesc`
    #[repr(C)]
    struct Access {
        location: c_int,
        device: c_int,
        _flags: c_uint,
    }
    driver(|session| {
        let device = session.check_range(address, bytes as u64)?;
        if access.is_null() || count == 0 {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as documented.
        let all = unsafe { std::slice::from_raw_parts(access.cast::<Access>(), count) };
        for one in all {
            let other = number(session, one.device)?;
            if one.location != ON_DEVICE
                || (other != device && !crate::runtime::device::reaches(session, other, device)?)
            {
                return Err(NOT_SUPPORTED);
            }
        }
        Ok(())
    })
}
