//! Handles to objects and regions: what a program lets its parts do, and takes back.

use crate::failure::{Failure, guarded};
use crate::kv::Owner;
use crate::pool::PoolHandle;
use crate::text::{buffer, buffer_mut, name, place};
use hinterland_pool::Object;
use hinterland_types::{ByteRange, Rights};
use std::ffi::{c_char, c_int, c_void};

/// Bytes may be read.
pub const HL_READ: u32 = 1;
/// Bytes may be written.
pub const HL_WRITE: u32 = 2;

/// An open object with rights and a range: `hl_handle` in C.
pub struct ObjectHandle {
    object: Object,
    owner: Owner,
}

impl ObjectHandle {
    /// The handle, of this process.
    ///
    /// # Safety
    /// `pointer` is null or came from [`hl_handle_open`] or [`hl_handle_diminish`] and was not closed.
    unsafe fn of<'a>(pointer: *mut Self) -> Result<&'a Self, Failure> {
        // SAFETY: the caller promises a handle, which came from a box.
        let handle = unsafe { pointer.as_ref() };
        let handle = handle
            .ok_or_else(|| Failure::argument("the handle is NULL (hint: call hl_handle_open first)"))?;
        handle.owner.check()?;
        Ok(handle)
    }

    fn boxed(object: Object) -> *mut Self {
        Box::into_raw(Box::new(Self { object, owner: Owner::new() }))
    }

    /// Whether the object has these bytes; which of them the handle reaches is asked later.
    fn check(&self, offset: u64, bytes: usize) -> Result<(), Failure> {
        ByteRange::within(offset, bytes as u64, self.object.info().bytes)?;
        Ok(())
    }
}

/// Opens an object or a region: a handle to all of it, with these rights.
///
/// # Safety
/// `pool` came from `hl_open`; `name_text` is null or a string; `handle` is null or takes a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_handle_open(
    pool: *mut PoolHandle,
    name_text: *const c_char,
    rights: u32,
    handle: *mut *mut ObjectHandle,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises all.
        let (pool, place) = unsafe { (PoolHandle::of(pool)?, place("the handle", handle)?) };
        // SAFETY: as above.
        let (name, rights) = (unsafe { name(name_text) }?, rights_of(rights)?);
        let object = pool.pool().open(&name, rights)?;
        if !object.rights().allows(rights) {
            let text =
                format!("{name} is sealed: it can be read and nothing else (hint: open it with HL_READ)");
            return Err(Failure::new(libc::EACCES, text));
        }
        place.fill(ObjectHandle::boxed(object));
        Ok(())
    })
}

/// Makes a weaker handle of another one.
///
/// # Safety
/// `handle` came from [`hl_handle_open`] or this function and was not closed; `weaker` is null or takes a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_handle_diminish(
    handle: *mut ObjectHandle,
    rights: u32,
    offset: u64,
    bytes: u64,
    weaker: *mut *mut ObjectHandle,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, place) = unsafe { (ObjectHandle::of(handle)?, place("the weaker handle", weaker)?) };
        let range = ByteRange::new(offset, bytes)?;
        place.fill(ObjectHandle::boxed(handle.object.diminish(rights_of(rights)?, range)?));
        Ok(())
    })
}

/// Reads bytes at an offset of the object.
///
/// # Safety
/// `handle` as for [`hl_handle_diminish`]; `memory` is null or may be written for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_handle_read(
    handle: *mut ObjectHandle,
    offset: u64,
    memory: *mut c_void,
    bytes: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, into) = unsafe { (ObjectHandle::of(handle)?, buffer_mut(memory, bytes)?) };
        handle.check(offset, into.len())?;
        Ok(handle.object.read_at(offset, into)?)
    })
}

/// Writes bytes at an offset of a region.
///
/// # Safety
/// `handle` as for [`hl_handle_diminish`]; `memory` is null or may be read for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_handle_write(
    handle: *mut ObjectHandle,
    offset: u64,
    memory: *const c_void,
    bytes: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, from) = unsafe { (ObjectHandle::of(handle)?, buffer(memory, bytes)?) };
        handle.check(offset, from.len())?;
        if !handle.object.rights().allows(Rights::WRITE) {
            let text = format!(
                "this handle to {} is not for writing (hint: open a region with HL_READ | HL_WRITE)",
                handle.object.info().name
            );
            return Err(Failure::new(libc::EACCES, text));
        }
        Ok(handle.object.write_at(offset, from)?)
    })
}

/// Takes a handle back, and all that were made from it; each is still to be closed.
///
/// # Safety
/// As [`hl_handle_diminish`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_handle_revoke(handle: *mut ObjectHandle) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises it.
        let handle = unsafe { ObjectHandle::of(handle) }?;
        Ok(handle.object.revoke()?)
    })
}

/// Gives a handle back; those that were made from it stay. Null is nothing to close.
///
/// # Safety
/// `handle` is null or as for [`hl_handle_diminish`]; no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_handle_close(handle: *mut ObjectHandle) -> c_int {
    guarded(|| {
        if handle.is_null() {
            return Ok(());
        }
        // SAFETY: the caller promises a handle, which came from a box, and that this is its last use.
        let handle = unsafe { Box::from_raw(handle) };
        if let Err(failure) = handle.owner.check() {
            // Its session is the parent's.
            std::mem::forget(handle);
            return Err(failure);
        }
        Ok(())
    })
}

/// Rights that a program has written as `HL_READ | HL_WRITE`.
fn rights_of(bits: u32) -> Result<Rights, Failure> {
    const BOTH: u32 = HL_READ | HL_WRITE;
    match bits {
        HL_READ => Ok(Rights::READ),
        HL_WRITE => Ok(Rights::WRITE),
        BOTH => Ok(Rights::READ | Rights::WRITE),
        other => {
            let text = format!("{other:#x} are no rights (hint: HL_READ, HL_WRITE, or both)");
            Err(Failure::argument(text))
        }
    }
}
