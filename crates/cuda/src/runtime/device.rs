//! Devices: all of it is answered from what the node said at the start.

use std::ffi::{CStr, c_char, c_int, c_uint};

use super::{give, give_if};
use crate::code::{
    Code, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, PEER_ENABLED, PEER_NOT_ENABLED, PEER_UNSUPPORTED,
};
use crate::core::context::Owner;
use crate::core::session::Session;
use crate::core::thread::{current, device, set_device, with_session};

/// The priorities that streams have, least and greatest.
pub(crate) const PRIORITY_LEAST: c_int = 0;
/// The greatest one.
pub(crate) const PRIORITY_GREATEST: c_int = -5;

/// A device number of the program.
pub(crate) fn number(session: &Session, device: c_int) -> Result<u32, Code> {
    let device = u32::try_from(device).map_err(|_| INVALID_DEVICE)?;
    session.device(device).map(|_| device)
}

/// How many devices there are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGetDeviceCount(count: *mut c_int) -> Code {
    let code = with_session(|session| {
        // SAFETY: a place for a result, as documented.
        unsafe { give(count, session.welcome.devices.len() as c_int) }
    });
    if code == NO_DEVICE {
        // SAFETY: a place for a result, as documented.
        unsafe { give_if(count, 0) };
    }
    code
}

/// The current device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGetDevice(place: *mut c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    with_session(|_| unsafe { give(place, device() as c_int) })
}

/// Makes a device current for the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaSetDevice(device: c_int) -> Code {
    with_session(|session| {
        set_device(number(session, device)?);
        session.check_current()
    })
}

/// Makes a device ready.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaInitDevice(device: c_int, _device_flags: c_uint, _flags: c_uint) -> Code {
    with_session(|session| session.begin_runtime(number(session, device)?))
}

/// How a host thread waits is ours to choose: the flags are taken and have no effect.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaSetDeviceFlags(flags: c_uint) -> Code {
    with_session(|session| session.primary(device())?.set_flags(flags))
}

/// The flags that were set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGetDeviceFlags(flags: *mut c_uint) -> Code {
    // SAFETY: a place for a result, as documented.
    with_session(|session| unsafe { give(flags, session.context(current().owner.context)?.flags()) })
}

/// Waits for all work of the current context.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaDeviceSynchronize() -> Code {
    with_session(|session| session.wait_context(&*session.current_context()?))
}

/// Frees all that the program has of the current device but for what belongs to contexts that it made; what it calls next begins anew. With such a context
/// current nothing is freed: the runtime keeps nothing of its own there.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaDeviceReset() -> Code {
    with_session(|session| {
        let owner = current().owner;
        if owner.is_primary() { session.end_runtime(owner.device) } else { session.check_current() }
    })
}

/// An attribute of a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: c_int,
) -> Code {
    with_session(|session| {
        let device = number(session, device)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(value, session.attribute(device, attribute)?) }
    })
}

/// The address of a device on the bus of its node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaDeviceGetPCIBusId(place: *mut c_char, length: c_int, device: c_int) -> Code {
    with_session(|session| {
        let bus = &session.device(number(session, device)?)?.bus;
        let room = usize::try_from(length).map_err(|_| INVALID_VALUE)?;
        if place.is_null() || room <= bus.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the program gave that much room.
        unsafe {
            place.cast::<u8>().copy_from_nonoverlapping(bus.as_ptr(), bus.len());
            place.add(bus.len()).write(0);
        }
        Ok(())
    })
}

/// The device with an address on the bus.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaDeviceGetByPCIBusId(place: *mut c_int, bus: *const c_char) -> Code {
    with_session(|session| {
        if bus.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: a string, as documented.
        let bus = unsafe { CStr::from_ptr(bus) }.to_string_lossy().to_lowercase();
        let found = session.welcome.devices.iter().position(|device| device.bus.to_lowercase() == bus);
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, found.ok_or(INVALID_DEVICE)? as c_int) }
    })
}

/// Whether kernels of a device reach memory of another one, as the node said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> Code {
    with_session(|session| {
        let reaches = reaches(session, number(session, device)?, number(session, peer)?)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(can, c_int::from(reaches)) }
    })
}

/// Whether a device reaches memory of another one.
pub(crate) fn reaches(session: &Session, device: u32, peer: u32) -> Result<bool, Code> {
    Ok(device != peer && session.device(device)?.peers & (1 << peer) != 0)
}

/// Lets the current device reach memory of another one. The node has allowed it already where it can be; what the program said is kept for its questions.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> Code {
    with_session(|session| enable_peer(session, Owner::primary(number(session, peer)?), flags))
}

/// # Errors
/// The devices do not reach each other, or it was said before.
pub(crate) fn enable_peer(session: &Session, peer: Owner, flags: c_uint) -> Result<(), Code> {
    let own = session.current_context()?;
    if own.owner.device == peer.device {
        return Err(INVALID_DEVICE);
    }
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    if !reaches(session, own.owner.device, peer.device)? {
        return Err(PEER_UNSUPPORTED);
    }
    if own.reach(peer) { Ok(()) } else { Err(PEER_ENABLED) }
}

/// Undoes `cudaDeviceEnablePeerAccess`.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaDeviceDisablePeerAccess(peer: c_int) -> Code {
    with_session(|session| disable_peer(session, Owner::primary(number(session, peer)?)))
}

/// # Errors
/// It was not enabled.
pub(crate) fn disable_peer(session: &Session, peer: Owner) -> Result<(), Code> {
    if session.current_context()?.leave(peer) { Ok(()) } else { Err(PEER_NOT_ENABLED) }
}

/// How two devices reach each other: 1 rank of speed, 2 whether, 3 whether with atomics of their own, 4 with arrays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaDeviceGetP2PAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: c_int,
    peer: c_int,
) -> Code {
    with_session(|session| {
        let (device, peer) = (number(session, device)?, number(session, peer)?);
        if device == peer {
            return Err(INVALID_DEVICE);
        }
        let answer = match attribute {
            1 | 3 | 4 => 0,
            2 => c_int::from(reaches(session, device, peer)?),
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: a place for a result, as documented.
        unsafe { give(value, answer) }
    })
}

/// The range of priorities of streams: least and greatest.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaDeviceGetStreamPriorityRange(
    least: *mut c_int,
    greatest: *mut c_int,
) -> Code {
    with_session(|_| {
        // SAFETY: places for results, as documented.
        unsafe {
            give_if(least, PRIORITY_LEAST);
            give_if(greatest, PRIORITY_GREATEST);
        }
        Ok(())
    })
}

/// Free and all memory of the current device, as far as this session may use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemGetInfo(free: *mut usize, total: *mut usize) -> Code {
    with_session(|session| {
        let (left, all) = session.memory_left(session.owner()?.device)?;
        // SAFETY: places for results, as documented.
        unsafe {
            give(free, left as usize)?;
            give(total, all as usize)
        }
    })
}

/// The device that suits: the first one, whatever is wanted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaChooseDevice(place: *mut c_int, _properties: *const u8) -> Code {
    // SAFETY: a place for a result, as documented.
    with_session(|_| unsafe { give(place, 0) })
}
