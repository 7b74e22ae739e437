//! Functions of `libnvidia-ml`, which programs ask what devices there are before they use any.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

use hinterland_proto::gpu::{DeviceFacts, Welcome};

use crate::core::session::{look, look_at_status, present};
use crate::runtime::give;

/// `nvmlReturn_t`
type Status = c_int;

const SUCCESS: Status = 0;
const UNINITIALIZED: Status = 1;
const INVALID_ARGUMENT: Status = 2;
const NOT_FOUND: Status = 6;
const INSUFFICIENT_SIZE: Status = 7;
const GPU_IS_LOST: Status = 15;
/// Handles are numbers of devices from here on.
const HANDLE_BASE: usize = 0x5e0a_0000_0001;

/// What the node said of itself: to the session, if there is one, else to this library. It makes no session, as the vendor's does not use CUDA:
/// a program asks here what there is, forks, and its children use it.
fn facts() -> Option<&'static Welcome> {
    static FACTS: OnceLock<Option<Welcome>> = OnceLock::new();
    if let Some(session) = present() {
        return Some(&session.welcome);
    }
    let facts = FACTS.get_or_init(|| look().inspect_err(|why| eprintln!("hinterland: no GPU: {why}")).ok());
    facts.as_ref()
}

fn nvml(work: impl FnOnce(&'static Welcome) -> Result<(), Status>) -> Status {
    facts().map_or(UNINITIALIZED, |facts| work(facts).err().unwrap_or(SUCCESS))
}

fn handle(number: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(HANDLE_BASE + number)
}

/// The number of a device, and what it is.
fn device(facts: &'static Welcome, handle: *mut c_void) -> Result<(u32, &'static DeviceFacts), Status> {
    let number = handle.addr().checked_sub(HANDLE_BASE).ok_or(INVALID_ARGUMENT)?;
    let found = facts.devices.get(number).ok_or(INVALID_ARGUMENT)?;
    Ok((u32::try_from(number).map_err(|_| INVALID_ARGUMENT)?, found))
}

/// The identifier of a device, as people write it.
fn uuid_text(facts: &DeviceFacts) -> String {
    let mut text = String::from("GPU-");
    for (at, byte) in facts.uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Gives the handle of the device of which something is true.
///
/// # Safety
/// `place` is null or can be written.
unsafe fn give_handle(place: *mut *mut c_void, is_meant: impl Fn(&DeviceFacts) -> bool) -> Status {
    nvml(|facts| {
        let number = facts.devices.iter().position(is_meant).ok_or(NOT_FOUND)?;
        // SAFETY: the caller's promise.
        unsafe { put(place, handle(number)) }
    })
}

/// # Safety
/// `text` is null or a string.
unsafe fn lower(text: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().to_lowercase())
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

/// Asks the node what it has.
#[unsafe(no_mangle)]
pub extern "C" fn hl_nvmlInit_v2() -> Status {
    nvml(|_| Ok(()))
}

/// Asks the node what it has.
#[unsafe(no_mangle)]
pub extern "C" fn hl_nvmlInitWithFlags(_flags: c_uint) -> Status {
    nvml(|_| Ok(()))
}

/// What the node said stays known.
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
        NOT_FOUND => c"Not Found",
        GPU_IS_LOST => c"GPU is lost",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        _ => c"Unknown Error",
    };
    words.as_ptr()
}

/// How many devices there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetCount_v2(count: *mut c_uint) -> Status {
    // SAFETY: a place for a result, as documented.
    nvml(|facts| unsafe { put(count, facts.devices.len() as c_uint) })
}

/// A device by its number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetHandleByIndex_v2(number: c_uint, place: *mut *mut c_void) -> Status {
    nvml(|facts| {
        facts.devices.get(number as usize).ok_or(INVALID_ARGUMENT)?;
        // SAFETY: a place for a result, as documented.
        unsafe { put(place, handle(number as usize)) }
    })
}

/// A device by its identifier.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetHandleByUUID(
    uuid: *const c_char,
    place: *mut *mut c_void,
) -> Status {
    // SAFETY: a string or null, as documented.
    let Some(uuid) = (unsafe { lower(uuid) }) else { return INVALID_ARGUMENT };
    // SAFETY: a place for a result, as documented.
    unsafe { give_handle(place, |facts| uuid_text(facts).to_lowercase() == uuid) }
}

/// A device by its address on the bus of its node. Some write the domain with eight digits, some with four.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetHandleByPciBusId_v2(
    bus: *const c_char,
    place: *mut *mut c_void,
) -> Status {
    // SAFETY: a string or null, as documented.
    let Some(bus) = (unsafe { lower(bus) }) else { return INVALID_ARGUMENT };
    let digits = |text: &str| text.trim_start_matches('0').to_owned();
    // SAFETY: a place for a result, as documented.
    unsafe { give_handle(place, |facts| digits(&facts.bus.to_lowercase()) == digits(&bus)) }
}

/// The number that a device's file would have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetMinorNumber(handle: *mut c_void, number: *mut c_uint) -> Status {
    // SAFETY: a place for a result, as documented.
    nvml(|facts| unsafe { put(number, device(facts, handle)?.0) })
}

/// The number of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetIndex(handle: *mut c_void, number: *mut c_uint) -> Status {
    // SAFETY: a place for a result, as documented.
    nvml(|facts| unsafe { put(number, device(facts, handle)?.0) })
}

/// The name of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetName(
    handle: *mut c_void,
    place: *mut c_char,
    room: c_uint,
) -> Status {
    // SAFETY: room as documented.
    nvml(|facts| unsafe { write(&device(facts, handle)?.1.name, place, room) })
}

/// The identifier of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetUUID(
    handle: *mut c_void,
    place: *mut c_char,
    room: c_uint,
) -> Status {
    // SAFETY: room as documented.
    nvml(|facts| unsafe { write(&uuid_text(device(facts, handle)?.1), place, room) })
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
    nvml(|facts| {
        let (number, facts) = device(facts, handle)?;
        let total = facts.memory;
        let free = match present() {
            Some(session) => session.memory_left(number).map_err(|_| GPU_IS_LOST)?.0,
            None => {
                let status = look_at_status().map_err(|_| GPU_IS_LOST)?;
                let promised = status.devices.get(number as usize).map_or(0, |device| device.promised);
                total.saturating_sub(promised)
            }
        };
        // SAFETY: a place for a result, as documented.
        unsafe { put(place, Memory { total, free, used: total.saturating_sub(free) }) }
    })
}

/// `nvmlProcessInfo_v1_t`: a process, and how many bytes of a device it has.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Process {
    process: c_uint,
    padding: c_uint,
    bytes: c_ulonglong,
}

const _: () = assert!(size_of::<Process>() == 16 && size_of::<PlacedProcess>() == 24);

/// `nvmlProcessInfo_t`, which also says in which part of a device.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PlacedProcess {
    process: Process,
    instances: [c_uint; 2],
}

/// Gives the processes of this host that use a device, as far as can be told: this one. What others of the node's programs are called on their hosts is no
/// name here. PyTorch asks when memory is out, and takes a refusal for a mistake of its own.
///
/// # Safety
/// `count` is null or can be written, and `processes` is null or has room for as many.
unsafe fn give_processes<T>(
    handle: *mut c_void,
    count: *mut c_uint,
    processes: *mut T,
    form: impl Fn(Process) -> T,
) -> Status {
    nvml(|facts| {
        let (number, _) = device(facts, handle)?;
        if count.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the caller's promise.
        let room = unsafe { count.read() };
        let bytes = present().map_or(0, |session| session.memory_used(number));
        let there = c_uint::from(bytes > 0);
        // SAFETY: as above.
        unsafe { count.write(there) };
        if there > room {
            return Err(INSUFFICIENT_SIZE);
        }
        if there == 0 {
            return Ok(());
        }
        // SAFETY: there is room for one.
        unsafe { put(processes, form(Process { process: std::process::id(), padding: 0, bytes })) }
    })
}

/// The processes that use a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetComputeRunningProcesses(
    handle: *mut c_void,
    count: *mut c_uint,
    processes: *mut Process,
) -> Status {
    // SAFETY: places for results, as documented.
    unsafe { give_processes(handle, count, processes, |process| process) }
}

/// The processes that use a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetComputeRunningProcesses_v2(
    handle: *mut c_void,
    count: *mut c_uint,
    processes: *mut PlacedProcess,
) -> Status {
    /// A device that is not in parts.
    const WHOLE: c_uint = c_uint::MAX;
    let placed = |process| PlacedProcess { process, instances: [WHOLE; 2] };
    // SAFETY: places for results, as documented.
    unsafe { give_processes(handle, count, processes, placed) }
}

/// The processes that use a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetComputeRunningProcesses_v3(
    handle: *mut c_void,
    count: *mut c_uint,
    processes: *mut PlacedProcess,
) -> Status {
    // SAFETY: as documented.
    unsafe { hl_nvmlDeviceGetComputeRunningProcesses_v2(handle, count, processes) }
}

/// `nvmlGpuFabricInfo_v3_t`. The second version ends in front of `summary`, and is as long as what is then left.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Fabric {
    /// Its own length, and its version in the highest byte.
    version: c_uint,
    cluster: [u8; 16],
    status: Status,
    clique: c_uint,
    state: u8,
    padding: [u8; 3],
    health: c_uint,
    summary: u8,
    rest: [u8; 3],
}

const _: () = assert!(size_of::<Fabric>() == 40 && std::mem::offset_of!(Fabric, summary) == 36);

/// What a device is to a fabric of many machines: none of them has one. PyTorch asks before it makes segments that grow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetGpuFabricInfoV(handle: *mut c_void, place: *mut Fabric) -> Status {
    const MISMATCH: Status = 25;
    const SECOND: c_uint = 2 << 24 | 36;
    const THIRD: c_uint = 3 << 24 | 40;
    nvml(|facts| {
        device(facts, handle)?;
        if place.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: the first field says how long the place is, as documented.
        let version = unsafe { place.cast::<c_uint>().read() };
        let bytes = match version {
            SECOND | THIRD => (version & 0xff) as usize,
            _ => return Err(MISMATCH),
        };
        // SAFETY: as above. Zeros are no fabric, and a status without an error.
        unsafe { place.cast::<u8>().add(size_of::<c_uint>()).write_bytes(0, bytes - size_of::<c_uint>()) };
        Ok(())
    })
}

/// What two devices can do with each other's memory, by a number of the kind of access. Engines ask for links between all of their devices, and share memory among
/// their processes where there are some: no device is said to have one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetP2PStatus(
    handle: *mut c_void,
    peer: *mut c_void,
    kind: c_int,
    status: *mut c_int,
) -> Status {
    const THERE: c_int = 0;
    const NOT_SUPPORTED: c_int = 5;
    /// Reading and writing, which kernels do where the driver says that they can, and links, atomics, and ways over the bus, of which the node says nothing.
    const ACCESS: std::ops::RangeInclusive<c_int> = 0..=1;
    const UNTOLD: std::ops::RangeInclusive<c_int> = 2..=4;
    nvml(|facts| {
        let ((own, known), (other, _)) = (device(facts, handle)?, device(facts, peer)?);
        let reaches = own == other || known.peers.checked_shr(other).unwrap_or(0) & 1 != 0;
        let answer = match kind {
            kind if ACCESS.contains(&kind) && reaches => THERE,
            kind if ACCESS.contains(&kind) || UNTOLD.contains(&kind) => NOT_SUPPORTED,
            _ => return Err(INVALID_ARGUMENT),
        };
        // SAFETY: a place for a result, as documented.
        unsafe { put(status, answer) }
    })
}

/// The compute capability of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_nvmlDeviceGetCudaComputeCapability(
    handle: *mut c_void,
    major: *mut c_int,
    minor: *mut c_int,
) -> Status {
    nvml(|facts| {
        let (high, low) = device(facts, handle)?.1.capability;
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
    nvml(|facts| unsafe { put(version, facts.driver) })
}

/// Asks the node what it has.
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
    nvml(|facts| {
        let version = facts.driver;
        // SAFETY: room as documented.
        unsafe { write(&format!("{}.{}", version / 1000, version % 1000 / 10), place, room) }
    })
}
