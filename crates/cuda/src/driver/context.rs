//! Contexts under the driver's names: those that a program makes, and the primary one of each device, which the runtime uses as well.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use crate::code::{Code, INVALID_CONTEXT, INVALID_VALUE};
use crate::core::context::{Context, Owner};
use crate::core::handle::Kind;
use crate::core::session::{Session, present};
use crate::core::thread::{Choice, Current, current, driver, set_current, without_record};
use crate::runtime::device::number;
use crate::runtime::{give, give_if};

/// The version of the interface that contexts are made with, as the driver tells it since CUDA 3.2.
const API_VERSION: c_uint = 3020;

thread_local! {
    /// What was current and was pushed over.
    static PUSHED: RefCell<Vec<Current>> = const { RefCell::new(Vec::new()) };
}

/// The number of the context that is current, whether it is still there or not. If the program said nothing it is the runtime's, once that is in use.
fn current_number() -> Option<u32> {
    let Current { choice, owner } = current();
    let is_current = match choice {
        Choice::Program => true,
        Choice::None => false,
        Choice::Runtime => present()
            .and_then(|session| session.primary(owner.device).ok())
            .is_some_and(|primary| primary.is_of_runtime()),
    };
    is_current.then_some(owner.context)
}

/// That a context is current.
fn chosen(owner: Owner) -> Current {
    Current { choice: Choice::Program, owner }
}

/// That none is. The device stays.
fn nothing() -> Current {
    Current { choice: Choice::None, owner: Owner::primary(current().owner.device) }
}

/// Makes a context current, and remembers what was; in a destructor that runs last nothing is remembered any more.
fn push(owner: Owner) {
    let _ = PUSHED.try_with(|pushed| pushed.borrow_mut().push(current()));
    set_current(chosen(owner));
}

/// Makes current what was so before.
fn pop() {
    let before = PUSHED.try_with(|pushed| pushed.borrow_mut().pop()).ok().flatten();
    set_current(before.unwrap_or_else(nothing));
}

/// The context that a handle names.
///
/// # Errors
/// It names none (any more).
pub(crate) fn context_of(session: &Session, handle: *mut c_void) -> Result<Arc<Context>, Code> {
    session.context(Kind::Context.of(handle).map_err(|_| INVALID_CONTEXT)?)
}

/// The same, where null means the current one.
fn context_or_current(session: &Session, handle: *mut c_void) -> Result<Arc<Context>, Code> {
    if handle.is_null() { known_current(session) } else { context_of(session, handle) }
}

/// The current context.
///
/// # Errors
/// None is current, or it has ended.
fn known_current(session: &Session) -> Result<Arc<Context>, Code> {
    current_number().ok_or(INVALID_CONTEXT)?;
    session.current_context()
}

/// Holds the primary context of a device, which begins if nobody did.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuDevicePrimaryCtxRetain(place: *mut *mut c_void, device: c_int) -> Code {
    driver(|session| {
        let device = number(session, device)?;
        if place.is_null() {
            return Err(INVALID_VALUE);
        }
        session.retain_primary(device)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Kind::Context.handle(device)) }
    })
}

/// Lets go of the primary context of a device, which ends with all that belongs to it when nobody holds it any more.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    driver(|session| session.release_primary(number(session, device)?))
}

/// Frees all that the program has of a device, but for what belongs to contexts that it made. The primary context stays, with nothing in it.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuDevicePrimaryCtxReset_v2(device: c_int) -> Code {
    driver(|session| session.reset_device(number(session, device)?))
}

/// Sets flags of the primary context of a device. They are kept for questions.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: c_uint) -> Code {
    driver(|session| session.primary(number(session, device)?)?.set_flags(flags))
}

/// The flags of the primary context of a device, and whether anybody holds it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuDevicePrimaryCtxGetState(
    device: c_int,
    flags: *mut c_uint,
    active: *mut c_int,
) -> Code {
    driver(|session| {
        let primary = session.primary(number(session, device)?)?;
        // SAFETY: places for results or null, as documented.
        unsafe {
            give_if(flags, primary.flags());
            give_if(active, c_int::from(primary.is_active()));
        }
        Ok(())
    })
}

/// Makes a context, which becomes current.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxCreate_v2(place: *mut *mut c_void, flags: c_uint, device: c_int) -> Code {
    driver(|session| {
        let device = number(session, device)?;
        if place.is_null() {
            return Err(INVALID_VALUE);
        }
        let owner = session.create_context(device, flags)?.owner;
        push(owner);
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Kind::Context.handle(owner.context)) }
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

/// Ends a context that the program made, with all that belongs to it. If it is current for the calling thread, what was so before is again; for others it
/// stays current, and their calls fail.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuCtxDestroy_v2(context: *mut c_void) -> Code {
    driver(|session| {
        let number = context_of(session, context)?.owner.context;
        let outcome = session.destroy_context(number);
        if session.context(number).is_err() && current_number() == Some(number) {
            pop();
        }
        outcome
    })
}

/// The current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxGetCurrent(place: *mut *mut c_void) -> Code {
    let handle = |number: Option<u32>| number.map_or(null_mut(), |number| Kind::Context.handle(number));
    // SAFETY: a place for a result, as documented.
    driver(|_| unsafe { give(place, handle(current_number())) })
}

/// Makes a context current, or none.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuCtxSetCurrent(context: *mut c_void) -> Code {
    driver(|session| {
        let new = if context.is_null() { nothing() } else { chosen(context_of(session, context)?.owner) };
        set_current(new);
        Ok(())
    })
}

/// Makes a context current and remembers the one before.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuCtxPushCurrent_v2(context: *mut c_void) -> Code {
    driver(|session| {
        push(context_of(session, context)?.owner);
        Ok(())
    })
}

/// Makes the context current that was so before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxPopCurrent_v2(place: *mut *mut c_void) -> Code {
    driver(|_| {
        let was = current_number().ok_or(INVALID_CONTEXT)?;
        pop();
        // SAFETY: a place for a result or null, as documented.
        unsafe { give_if(place, Kind::Context.handle(was)) };
        Ok(())
    })
}

/// The device of the current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxGetDevice(place: *mut c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|session| unsafe { give(place, known_current(session)?.owner.device as c_int) })
}

/// Waits for all work of the current context.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuCtxSynchronize() -> Code {
    driver(|session| session.wait_context(&*session.current_context()?))
}

/// The version of the interface that a context was made with.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxGetApiVersion(context: *mut c_void, version: *mut c_uint) -> Code {
    driver(|session| {
        context_or_current(session, context)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(version, API_VERSION) }
    })
}

/// A number that no other context has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxGetId(context: *mut c_void, place: *mut u64) -> Code {
    driver(|session| {
        let number = context_or_current(session, context)?.owner.context;
        // A primary context that was emptied is another one.
        let emptied = session.emptied(number).ok_or(INVALID_CONTEXT)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, u64::from(emptied) << 32 | (u64::from(number) + 1)) }
    })
}

/// The flags of the current context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxGetFlags(flags: *mut c_uint) -> Code {
    // SAFETY: a place for a result, as documented.
    driver(|session| unsafe { give(flags, known_current(session)?.flags()) })
}

/// Sets flags of the current context. They are kept for questions.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuCtxSetFlags(flags: c_uint) -> Code {
    driver(|session| known_current(session)?.set_flags(flags))
}

/// The range of priorities of streams: least and greatest.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Code {
    // SAFETY: as documented.
    without_record(|| unsafe { crate::runtime::device::hl_cudaDeviceGetStreamPriorityRange(least, greatest) })
}

/// Lets the current context reach memory of another one, of another device.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuCtxEnablePeerAccess(context: *mut c_void, flags: c_uint) -> Code {
    driver(|session| {
        let peer = context_of(session, context)?.owner;
        crate::runtime::device::enable_peer(session, peer, flags)
    })
}

/// Undoes `cuCtxEnablePeerAccess`.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuCtxDisablePeerAccess(context: *mut c_void) -> Code {
    driver(|session| {
        let peer = context_of(session, context)?.owner;
        crate::runtime::device::disable_peer(session, peer)
    })
}
