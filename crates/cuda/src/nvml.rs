//! Functions of `libnvidia-ml`, which programs ask what devices there are before they use any.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use crate::core::session::{Session, session};
use crate::runtime::give;

/// `nvmlReturn_t`
type Status = c_int;

const SUCCESS: Status = 0;
const UNINITIALIZED: Status = 1;
const INVALID_ARGUMENT: Status = 2;
const INSUFFICIENT_SIZE: Status = 7;
/// Handles are numbers of devices from here on.
const HANDLE_BASE: usize = 0x5e0a_0000_0001;

fn nvml(work: impl FnOnce(&'static Session) -> Result<(), Status>) -> Status {
    match session() {
        Ok(session) => work(session).err().unwrap_or(SUCCESS),
        Err(_) => UNINITIALIZED,
    }
}

fn device(session: &Session, handle: *mut c_void) -> Result<u32, Status> {
    let number = handle.addr().checked_sub(HANDLE_BASE).ok_or(INVALID_ARGUMENT)?;
    let number = u32::try_from(number).map_err(|_| INVALID_ARGUMENT)?;
    session.device(number).map(|_| number).map_err(|_| INVALID_ARGUMENT)
}

/// Writes a string of C.
///
/// # Safety
/// `place` has room for `room` bytes.
unsafe fn write(text: &str, place: *mut c_char, room: c_uint) -> Result<(), Status> {
    if place.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= room as usize {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller's promise, and the room was looked at.
    unsafe {
        place.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
        place.add(text.len()).write(0);
    }
    Ok(())
}

/// # Safety
/// `place` is null or can be written.
unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Status> {
    // SAFETY: the caller's promise.
    unsafe { give(place, value) }.map_err(|_| INVALID_ARGUMENT)
}

/// Makes the session.
#[unsafe(no_mangle)]
pub extern "C" fn hl_nvmlInit_v2() -> Status {
    nvml(|_| Ok(()))
}

/// Makes the session.
#[unsafe(no_mangle)]
pub extern "C" fn hl_nvmlInitWithFlags(_flags: c_uint) -> Status {
    nvml(|_| Ok(()))
}

/// The session stays until the process ends.
#[unsafe(no_mangle)]
pub extern "C" fn hl_nvmlShutdown() -> Status {
    SUCCESS
}

/// What a status means.
#[unsafe(no_mangle)]
pub extern "C" fn hl_nvmlErrorString(status: Status) -> *const c_char {
    let words = match status {
        SUCCESS => c"Success",
        UNINITIALIZED => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        3 => c"Not Supported",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        _ => c"Unknown Error",
    };
    words.as_ptr()
}

/// How many devices there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetCount_v2(count: *mut c_uint) -> Status {
    // SAFETY: a place for a result, as documented.
    nvml(|session| unsafe { put(count, session.welcome.devices.len() as c_uint) })
}

/// A device by its number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetHandleByIndex_v2(number: c_uint, place: *mut *mut c_void) -> Status {
    nvml(|session| {
        session.device(number).map_err(|_| INVALID_ARGUMENT)?;
        // SAFETY: a place for a result, as documented.
        unsafe { put(place, std::ptr::without_provenance_mut(HANDLE_BASE + number as usize)) }
    })
}

/// The number of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetIndex(handle: *mut c_void, number: *mut c_uint) -> Status {
    // SAFETY: a place for a result, as documented.
    nvml(|session| unsafe { put(number, device(session, handle)?) })
}

/// The name of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetName(
    handle: *mut c_void,
    place: *mut c_char,
    room: c_uint,
) -> Status {
    nvml(|session| {
        let facts = &session.welcome.devices[device(session, handle)? as usize];
        // SAFETY: room as documented.
        unsafe { write(&facts.name, place, room) }
    })
}

/// The identifier of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetUUID(
    handle: *mut c_void,
    place: *mut c_char,
    room: c_uint,
) -> Status {
    nvml(|session| {
        let uuid = session.welcome.devices[device(session, handle)? as usize].uuid;
        let mut text = String::from("GPU-");
        for (at, byte) in uuid.iter().enumerate() {
            if [4, 6, 8, 10].contains(&at) {
                text.push('-');
            }
            text.push_str(&format!("{byte:02x}"));
        }
        // SAFETY: room as documented.
        unsafe { write(&text, place, room) }
    })
}

/// `nvmlMemory_t`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// The memory of a device, as far as this session may use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetMemoryInfo(handle: *mut c_void, place: *mut Memory) -> Status {
    nvml(|session| {
        let (free, total) = session.memory_left(device(session, handle)?).map_err(|_| INVALID_ARGUMENT)?;
        // SAFETY: a place for a result, as documented.
        unsafe { put(place, Memory { total, free, used: total.saturating_sub(free) }) }
    })
}

/// The compute capability of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetCudaComputeCapability(
    handle: *mut c_void,
    major: *mut c_int,
    minor: *mut c_int,
) -> Status {
    nvml(|session| {
        let (high, low) = session.welcome.devices[device(session, handle)? as usize].capability;
        // SAFETY: places for results, as documented.
        unsafe {
            put(major, high as c_int)?;
            put(minor, low as c_int)
        }
    })
}

/// The version of CUDA that the node's driver has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> Status {
    // SAFETY: a place for a result, as documented.
    nvml(|session| unsafe { put(version, session.welcome.driver) })
}

/// Makes the session.
#[unsafe(no_mangle)]
pub extern "C" fn hl_nvmlInit() -> Status {
    hl_nvmlInit_v2()
}

/// How many devices there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetCount(count: *mut c_uint) -> Status {
    // SAFETY: as documented.
    unsafe { hl_nvmlDeviceGetCount_v2(count) }
}

/// A device by its number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetHandleByIndex(number: c_uint, place: *mut *mut c_void) -> Status {
    // SAFETY: as documented.
    unsafe { hl_nvmlDeviceGetHandleByIndex_v2(number, place) }
}

/// The version of the node's driver, as CUDA counts it: the vendor's own number is not told over the network.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlSystemGetDriverVersion(place: *mut c_char, room: c_uint) -> Status {
    nvml(|session| {
        let version = session.welcome.driver;
        // SAFETY: room as documented.
        unsafe { write(&format!("{}.{}", version / 1000, version % 1000 / 10), place, room) }
    })
}
