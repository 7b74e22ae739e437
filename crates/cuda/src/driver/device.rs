//! Devices, errors and versions.

use std::ffi::{c_char, c_int, c_uint};

use crate::code::{Code, INVALID_VALUE, driver_name, words};
use crate::core::thread::driver;
use crate::runtime::device::{self, number};
use crate::runtime::{give, limit};

same! {
    /// Whether kernels of a device reach memory of another one.
    hl_cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) = device::hl_cudaDeviceCanAccessPeer;
    /// How two devices reach each other.
    hl_cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_int, device: c_int, peer: c_int) = device::hl_cudaDeviceGetP2PAttribute;
    /// The address of a device on the bus of its node.
    hl_cuDeviceGetPCIBusId(place: *mut c_char, length: c_int, device: c_int) = device::hl_cudaDeviceGetPCIBusId;
    /// The device with an address on the bus.
    hl_cuDeviceGetByPCIBusId(place: *mut c_int, bus: *const c_char) = device::hl_cudaDeviceGetByPCIBusId;
    /// A limit of the current device.
    hl_cuCtxGetLimit(value: *mut usize, number: c_int) = limit::hl_cudaDeviceGetLimit;
    /// Sets a limit of the current device.
    hl_cuCtxSetLimit(number: c_int, value: usize) = limit::hl_cudaDeviceSetLimit;
    /// Whether the current device is to have more shared memory or more cache: it chooses by itself.
    hl_cuCtxGetCacheConfig(place: *mut c_int) = limit::hl_cudaDeviceGetCacheConfig;
    /// A preference, which is let go.
    hl_cuCtxSetCacheConfig(config: c_int) = limit::hl_cudaDeviceSetCacheConfig;
    /// What stays in the cache is a hint, which there was none of.
    hl_cuCtxResetPersistingL2Cache() = limit::hl_cudaCtxResetPersistingL2Cache;
    /// Nobody profiles here.
    hl_cuProfilerStart() = limit::hl_cudaProfilerStart;
    /// Nobody profiles here.
    hl_cuProfilerStop() = limit::hl_cudaProfilerStop;
}

/// What code a device runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuDeviceComputeCapability(
    major: *mut c_int,
    minor: *mut c_int,
    device: c_int,
) -> Code {
    driver(|session| {
        let (of_device, detail) = session.device(number(session, device)?)?.capability;
        // SAFETY: places for results, as documented.
        unsafe {
            give(major, of_device as c_int)?;
            give(minor, detail as c_int)
        }
    })
}

/// Makes the session.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuInit(_flags: c_uint) -> Code {
    driver(|_| Ok(()))
}

/// The version of the node's driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuDriverGetVersion(version: *mut c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|session| unsafe { give(version, session.welcome.driver) })
}

/// How many devices there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuDeviceGetCount(count: *mut c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|session| unsafe { give(count, session.welcome.devices.len() as c_int) })
}

/// A device by its number, which is its handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuDeviceGet(place: *mut c_int, ordinal: c_int) -> Code {
    driver(|session| {
        number(session, ordinal)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, ordinal) }
    })
}

/// The name of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuDeviceGetName(place: *mut c_char, length: c_int, device: c_int) -> Code {
    driver(|session| {
        let name = &session.device(number(session, device)?)?.name;
        let room = usize::try_from(length).ok().filter(|room| *room > 0).ok_or(INVALID_VALUE)?;
        if place.is_null() {
            return Err(INVALID_VALUE);
        }
        let bytes = name.len().min(room - 1);
        // SAFETY: the program gave that much room.
        unsafe {
            place.cast::<u8>().copy_from_nonoverlapping(name.as_ptr(), bytes);
            place.add(bytes).write(0);
        }
        Ok(())
    })
}

/// The identifier of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuDeviceGetUuid_v2(place: *mut [u8; 16], device: c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|session| unsafe { give(place, session.device(number(session, device)?)?.uuid) })
}

/// The memory of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuDeviceTotalMem_v2(place: *mut usize, device: c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|session| unsafe { give(place, session.device(number(session, device)?)?.memory as usize) })
}

/// An attribute of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuDeviceGetAttribute(place: *mut c_int, attribute: c_int, device: c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|session| unsafe { give(place, session.attribute(number(session, device)?, attribute)?) })
}

/// The name of an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuGetErrorName(code: Code, place: *mut *const c_char) -> Code {
    match driver_name(code) {
        // SAFETY: a place for a result, as documented.
        Some(name) => unsafe { give(place, name.as_ptr()) }.err().unwrap_or(0),
        None => INVALID_VALUE,
    }
}

/// What an error means.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuGetErrorString(code: Code, place: *mut *const c_char) -> Code {
    if driver_name(code).is_none() {
        return INVALID_VALUE;
    }
    // SAFETY: a place for a result, as documented.
    unsafe { give(place, words(code).as_ptr()) }.err().unwrap_or(0)
}
