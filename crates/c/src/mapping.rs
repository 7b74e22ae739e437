//! Objects as memory of the program.

use crate::failure::{Failure, guarded};
use crate::pool::PoolHandle;
use crate::text::{name, place};
use hinterland_proto::control::Advice;
use hinterland_region::{Access, MapOptions, RegionError};
use hinterland_types::ByteRange;
use std::ffi::{c_char, c_int, c_void};

/// The default again.
pub const HL_ADVICE_NORMAL: c_int = 0;
/// It will be touched in no order.
pub const HL_ADVICE_RANDOM: c_int = 1;
/// It will be read in order.
pub const HL_ADVICE_SEQUENTIAL: c_int = 2;
/// It will be touched soon.
pub const HL_ADVICE_WILL_NEED: c_int = 3;

/// Maps an object for reading, at its place in the window if that is free.
///
/// # Safety
/// `pool` came from `hl_open`; `name_text` is null or a string; `pointer` and `bytes` are null or take a result.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_map(
    pool: *mut PoolHandle,
    name_text: *const c_char,
    pointer: *mut *const c_void,
    bytes: *mut u64,
) -> c_int {
    // SAFETY: the caller promises it; a pointer to read from has the form of one to write to.
    unsafe { map(pool, name_text, pointer.cast(), bytes, Access::Read) }
}

/// Maps a region of this rack for reading and writing.
///
/// # Safety
/// As [`hl_map`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_map_region(
    pool: *mut PoolHandle,
    name_text: *const c_char,
    pointer: *mut *mut c_void,
    bytes: *mut u64,
) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { map(pool, name_text, pointer, bytes, Access::SharedWrite) }
}

/// # Safety
/// As [`hl_map`].
unsafe fn map(
    pool: *mut PoolHandle,
    name_text: *const c_char,
    pointer: *mut *mut c_void,
    bytes: *mut u64,
    access: Access,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises all.
        let (handle, name) = unsafe { (PoolHandle::of(pool)?, name(name_text)?) };
        // SAFETY: as above.
        let (pointer, bytes) = unsafe { (place("the pointer", pointer)?, place("the length", bytes)?) };
        let options = MapOptions { access, ..MapOptions::default() };
        let region = handle.regions()?.map(name.clone(), options).map_err(|error| match error {
            RegionError::Range(_) => {
                Failure::argument(format!("{name} has no bytes (hint: hl_stat tells the size before)"))
            }
            other if access == Access::SharedWrite && other.code() == libc::EACCES => {
                let text = "it can be read and nothing else (hint: map it with hl_map)";
                Failure::new(libc::EACCES, format!("{name} is sealed: {text}"))
            }
            other => other.into(),
        })?;
        let first = region.pointer().as_ptr();
        bytes.fill(region.bytes());
        handle.mapped().insert(first.addr(), region);
        pointer.fill(first.cast());
        Ok(())
    })
}

/// Unmaps what `hl_map` or `hl_map_region` mapped.
///
/// # Safety
/// `pool` came from `hl_open`; no thread uses the memory any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_unmap(pool: *mut PoolHandle, pointer: *const c_void) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises it.
        let handle = unsafe { PoolHandle::of(pool) }?;
        let region = handle.mapped().remove(&pointer.addr());
        // Unmapping asks the node: not under the lock.
        region.map(drop).ok_or_else(|| unknown(pointer))
    })
}

/// Says what is expected of a range of mapped memory.
///
/// # Safety
/// `pool` came from `hl_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_advise(
    pool: *mut PoolHandle,
    pointer: *const c_void,
    offset: u64,
    bytes: u64,
    advice: c_int,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises it.
        let handle = unsafe { PoolHandle::of(pool) }?;
        let advice = match advice {
            HL_ADVICE_NORMAL => Advice::Normal,
            HL_ADVICE_RANDOM => Advice::Random,
            HL_ADVICE_SEQUENTIAL => Advice::Sequential,
            HL_ADVICE_WILL_NEED => Advice::WillNeed,
            other => {
                return Err(Failure::argument(format!("advice {other} is unknown (hint: use HL_ADVICE_*)")));
            }
        };
        let mapped = handle.mapped();
        let region = mapped.get(&pointer.addr()).ok_or_else(|| unknown(pointer))?;
        Ok(region.advise(ByteRange::new(offset, bytes)?, advice)?)
    })
}

fn unknown(pointer: *const c_void) -> Failure {
    Failure::argument(format!("nothing is mapped at {pointer:p} (hint: pass what hl_map returned, once)"))
}
