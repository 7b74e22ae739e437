//! Memory by global address: allocations, regions, reads, writes and locks (paper 004, section 5.1).

use crate::failure::{Failure, guarded};
use crate::pool::PoolHandle;
use crate::text::{buffer, buffer_mut, name, place, rack};
use hinterland_proto::control::{AllocationKind, LockMode, ObjectInfo};
use hinterland_types::GlobalAddress;
use std::ffi::{c_char, c_int, c_void};
use std::time::Duration;

/// Allocates `bytes` bytes in this rack, aligned to 16, freed at the latest when the pool is closed.
///
/// # Safety
/// `pool` came from `hl_open`; `address` is null or takes an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_alloc(pool: *mut PoolHandle, bytes: u64, address: *mut u64) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { allocate(pool, bytes, address, AllocationKind::Session) }
}

/// Allocates `bytes` bytes in this rack that stay when the pool is closed, until they are freed.
///
/// # Safety
/// As [`hl_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_alloc_kept(pool: *mut PoolHandle, bytes: u64, address: *mut u64) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { allocate(pool, bytes, address, AllocationKind::Kept) }
}

/// # Safety
/// As [`hl_alloc`].
unsafe fn allocate(pool: *mut PoolHandle, bytes: u64, address: *mut u64, kind: AllocationKind) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, place) = unsafe { (PoolHandle::of(pool)?, place("the address", address)?) };
        let (first, _) = handle.pool().allocate(bytes, kind)?;
        place.fill(first.raw());
        Ok(())
    })
}

/// Frees an allocation.
///
/// # Safety
/// `pool` came from `hl_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_free(pool: *mut PoolHandle, address: u64) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises it.
        let handle = unsafe { PoolHandle::of(pool) }?;
        Ok(handle.pool().free(GlobalAddress::new(address)?)?)
    })
}

/// Makes a named region of zeros that is read and written in place, in a rack or in this one.
///
/// # Safety
/// `pool` came from `hl_open`; `name` and `rack` are null or strings; `address` is null or takes an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_create_region(
    pool: *mut PoolHandle,
    name_text: *const c_char,
    bytes: u64,
    rack_text: *const c_char,
    address: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises all.
        let (handle, place) = unsafe { (PoolHandle::of(pool)?, place("the address", address)?) };
        // SAFETY: as above.
        let (name, rack) = unsafe { (name(name_text)?, rack(rack_text)?) };
        place.fill(first_address(&handle.pool().create_region(&name, bytes, rack)?)?);
        Ok(())
    })
}

fn first_address(info: &ObjectInfo) -> Result<u64, Failure> {
    let none = || Failure::new(libc::EIO, format!("{} has no address", info.name));
    info.address.map(GlobalAddress::raw).ok_or_else(none)
}

/// Makes a named region of zeros whose pages are spread over all nodes with room, and move to the racks that use them.
///
/// # Safety
/// `pool` came from `hl_open`; `name` is null or a string; `address` is null or takes an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_create_spread(
    pool: *mut PoolHandle,
    name_text: *const c_char,
    bytes: u64,
    address: *mut u64,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises all.
        let (handle, place) = unsafe { (PoolHandle::of(pool)?, place("the address", address)?) };
        // SAFETY: as above.
        let name = unsafe { name(name_text) }?;
        place.fill(first_address(&handle.pool().create_spread(&name, bytes)?)?);
        Ok(())
    })
}

/// Reads bytes at an address of any rack.
///
/// # Safety
/// `pool` came from `hl_open`; `memory` is null or may be written for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_read(
    pool: *mut PoolHandle,
    address: u64,
    memory: *mut c_void,
    bytes: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, into) = unsafe { (PoolHandle::of(pool)?, buffer_mut(memory, bytes)?) };
        Ok(handle.pool().read(GlobalAddress::new(address)?, into)?)
    })
}

/// Writes bytes at an address of any rack.
///
/// # Safety
/// `pool` came from `hl_open`; `memory` is null or may be read for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_write(
    pool: *mut PoolHandle,
    address: u64,
    memory: *const c_void,
    bytes: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, from) = unsafe { (PoolHandle::of(pool)?, buffer(memory, bytes)?) };
        Ok(handle.pool().write(GlobalAddress::new(address)?, from)?)
    })
}

/// Takes a lock on an address of any rack together with other readers.
///
/// # Safety
/// `pool` came from `hl_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_rlock(pool: *mut PoolHandle, address: u64, wait_ms: u32) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { lock(pool, address, wait_ms, LockMode::Read) }
}

/// Takes a lock on an address of any rack alone.
///
/// # Safety
/// `pool` came from `hl_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_wlock(pool: *mut PoolHandle, address: u64, wait_ms: u32) -> c_int {
    // SAFETY: the caller promises it.
    unsafe { lock(pool, address, wait_ms, LockMode::Write) }
}

/// # Safety
/// As [`hl_rlock`].
unsafe fn lock(pool: *mut PoolHandle, address: u64, wait_ms: u32, mode: LockMode) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises it.
        let handle = unsafe { PoolHandle::of(pool) }?;
        let wait = Duration::from_millis(u64::from(wait_ms));
        Ok(handle.pool().lock_within(GlobalAddress::new(address)?, mode, wait)?)
    })
}

/// Gives a lock back.
///
/// # Safety
/// `pool` came from `hl_open`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_unlock(pool: *mut PoolHandle, address: u64) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises it.
        let handle = unsafe { PoolHandle::of(pool) }?;
        Ok(handle.pool().unlock(GlobalAddress::new(address)?)?)
    })
}
