//! Contexts. Each device has one, its primary context, which is there as long as the session; a context that a program creates is the
//! primary one of its device.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

use crate::code::Code;
use crate::core::handle::Kind;
use crate::core::session::present;
use crate::core::thread::{device, driver, set_device, without_record};
use crate::runtime::device::number;
use crate::runtime::{give, give_if};

/// `CUDA_ERROR_INVALID_CONTEXT`
pub(super) const INVALID_CONTEXT: Code = 201;

thread_local! {
    /// Devices whose contexts were pushed over; the current one is the thread's device.
    static PUSHED: RefCell<Vec<Option<u32>>> = const { RefCell::new(Vec::new()) };
    /// Whether the program said that a context is current, or that none is. If it said nothing, the runtime's is, once there is a session.
    static HAS_CONTEXT: Cell<Option<bool>> = const { Cell::new(None) };
}

fn context(device: u32) -> *mut c_void {
    Kind::Context.handle(device)
}

fn current() -> Option<u32> {
    HAS_CONTEXT.get().unwrap_or_else(|| present().is_some()).then(device)
}

fn make_current(device: Option<u32>) {
    HAS_CONTEXT.set(Some(device.is_some()));
    if let Some(device) = device {
        set_device(device);
    }
}

/// Remembers what was current; in a destructor that runs last nothing is remembered any more.
fn push(device: Option<u32>) {
    let _ = PUSHED.try_with(|pushed| pushed.borrow_mut().push(device));
}

fn pop() -> Option<u32> {
    PUSHED.try_with(|pushed| pushed.borrow_mut().pop()).ok().flatten().flatten()
}

fn device_of(context: *mut c_void) -> Result<Option<u32>, Code> {
    if context.is_null() {
        return Ok(None);
    }
    Kind::Context.of(context).map(Some).map_err(|_| INVALID_CONTEXT)
}

/// The context of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuDevicePrimaryCtxRetain(place: *mut *mut c_void, device: c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|session| unsafe { give(place, context(number(session, device)?)) })
}

/// The context of a device stays as long as the session.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    driver(|session| number(session, device).map(drop))
}

/// Frees all that the program has of a device. The context stays, with nothing in it.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuDevicePrimaryCtxReset_v2(device: c_int) -> Code {
    driver(|session| session.reset_device(number(session, device)?))
}

/// How host threads wait is ours to choose.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuDevicePrimaryCtxSetFlags_v2(device: c_int, _flags: c_uint) -> Code {
    driver(|session| number(session, device).map(drop))
}

/// The context of a device is always there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Code {
    driver(|session| {
        number(session, device)?;
        // SAFETY: places for results or null, as documented.
        unsafe {
            give_if(flags, 0);
            give_if(active, 1);
        }
        Ok(())
    })
}

/// The context of the device becomes current.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxCreate_v2(place: *mut *mut c_void, _flags: c_uint, device: c_int) -> Code {
    driver(|session| {
        let device = number(session, device)?;
        push(current());
        make_current(Some(device));
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, context(device)) }
    })
}

/// The same with parameters, which are let go, as CUDA 11 has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxCreate_v3(
    place: *mut *mut c_void,
    _parameters: *const c_void,
    _count: c_int,
    flags: c_uint,
    device: c_int,
) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cuCtxCreate_v2(place, flags, device) }
}

/// The same with parameters, which are let go.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxCreate_v4(
    place: *mut *mut c_void,
    _parameters: *const c_void,
    flags: c_uint,
    device: c_int,
) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cuCtxCreate_v2(place, flags, device) }
}

/// The context stays as long as the session.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuCtxDestroy_v2(context: *mut c_void) -> Code {
    driver(|session| match device_of(context)? {
        Some(device) => session.synchronize_device(device),
        None => Err(INVALID_CONTEXT),
    })
}

/// The current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxGetCurrent(place: *mut *mut c_void) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|_| unsafe { give(place, current().map_or(null_mut(), context)) })
}

/// Makes a context current.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuCtxSetCurrent(context: *mut c_void) -> Code {
    driver(|_| device_of(context).map(make_current))
}

/// Makes a context current and remembers the one before.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuCtxPushCurrent_v2(context: *mut c_void) -> Code {
    driver(|_| {
        let device = device_of(context)?.ok_or(INVALID_CONTEXT)?;
        push(current());
        make_current(Some(device));
        Ok(())
    })
}

/// Makes the context current that was so before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxPopCurrent_v2(place: *mut *mut c_void) -> Code {
    driver(|_| {
        let was = current().ok_or(INVALID_CONTEXT)?;
        make_current(pop());
        // SAFETY: a place for a result or null, as documented.
        unsafe { give_if(place, context(was)) };
        Ok(())
    })
}

/// The device of the current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxGetDevice(place: *mut c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|_| unsafe { give(place, current().ok_or(INVALID_CONTEXT)? as c_int) })
}

/// Waits for all work of the current device.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuCtxSynchronize() -> Code {
    driver(|session| session.wait_device(device()))
}

/// The version of contexts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxGetApiVersion(_context: *mut c_void, version: *mut c_uint) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|_| unsafe { give(version, 3020) })
}

/// The flags of the current context: none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxGetFlags(flags: *mut c_uint) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|_| unsafe { give(flags, 0) })
}

/// The range of priorities of streams: least and greatest.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Code {
    // SAFETY: as documented.
    without_record(|| unsafe { crate::runtime::device::hl_cudaDeviceGetStreamPriorityRange(least, greatest) })
}

/// Lets the current device reach memory of the device of another context.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuCtxEnablePeerAccess(context: *mut c_void, flags: c_uint) -> Code {
    driver(|session| {
        let peer = device_of(context)?.ok_or(INVALID_CONTEXT)?;
        crate::runtime::device::enable_peer(session, peer as c_int, flags)
    })
}

/// Undoes `cuCtxEnablePeerAccess`.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuCtxDisablePeerAccess(context: *mut c_void) -> Code {
    driver(|session| {
        let peer = device_of(context)?.ok_or(INVALID_CONTEXT)?;
        crate::runtime::device::disable_peer(session, peer as c_int)
    })
}
