//! Guards: locked ranges of regions, which nobody writes any more who has lost the lock.

use crate::failure::{Failure, guarded};
use crate::kv::Owner;
use crate::pool::{Connected, PoolHandle};
use crate::text::{buffer, buffer_mut, place};
use hinterland_pool::{GuardOptions, NotUpgraded, PoolError, ReadGuard, WriteGuard};
use hinterland_types::GlobalAddress;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// A lock and its range: `hl_guard` in C.
pub struct GuardHandle {
    /// Nothing while it changes from one kind to the other.
    guard: RwLock<Option<Guard>>,
    owner: Owner,
    /// What is buffered is yet to be written, also if the pool was closed meanwhile.
    _session: Arc<Connected>,
}

enum Guard {
    Read(ReadGuard),
    Write(WriteGuard),
}

impl GuardHandle {
    /// The guard behind a handle of this process.
    ///
    /// # Safety
    /// `pointer` is null or came from [`hl_guard_read`] or [`hl_guard_write`] and was not unlocked.
    unsafe fn of<'a>(pointer: *mut Self) -> Result<&'a Self, Failure> {
        // SAFETY: the caller promises a guard, which came from a box.
        let handle = unsafe { pointer.as_ref() };
        let handle = handle.ok_or_else(|| {
            Failure::argument("the guard is NULL (hint: call hl_guard_read or hl_guard_write first)")
        })?;
        handle.owner.check()?;
        Ok(handle)
    }

    fn with<T>(&self, work: impl FnOnce(&Guard) -> Result<T, Failure>) -> Result<T, Failure> {
        let guard = self.guard.read().unwrap_or_else(PoisonError::into_inner);
        work(guard.as_ref().ok_or_else(lost)?)
    }
}

impl Guard {
    fn write(&self) -> Result<&WriteGuard, Failure> {
        match self {
            Self::Write(guard) => Ok(guard),
            Self::Read(_) => Err(Failure::new(
                libc::EACCES,
                "the guard is one for reading (hint: hl_guard_upgrade, or take it with hl_guard_write)",
            )),
        }
    }
}

fn lost() -> Failure {
    Failure::new(libc::EOWNERDEAD, "the guard is lost (hint: unlock it and take a new one)")
}

/// Locks an address for reading with others; the guard covers `bytes` bytes from there on, in one region.
///
/// # Safety
/// `pool` came from `hl_open`; `guard` is null or takes a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_guard_read(
    pool: *mut PoolHandle,
    address: u64,
    bytes: u64,
    wait_ms: u32,
    guard: *mut *mut GuardHandle,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, place) = unsafe { (PoolHandle::of(pool)?, place("the guard", guard)?) };
        let taken = handle.pool().rlock(GlobalAddress::new(address)?, bytes, &options(wait_ms))?;
        place.fill(boxed(Guard::Read(taken), handle.connected()));
        Ok(())
    })
}

/// Locks an address for writing, alone; the guard covers `bytes` bytes from there on, in one region.
///
/// # Safety
/// As [`hl_guard_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_guard_write(
    pool: *mut PoolHandle,
    address: u64,
    bytes: u64,
    wait_ms: u32,
    guard: *mut *mut GuardHandle,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, place) = unsafe { (PoolHandle::of(pool)?, place("the guard", guard)?) };
        let taken = handle.pool().wlock(GlobalAddress::new(address)?, bytes, &options(wait_ms))?;
        place.fill(boxed(Guard::Write(taken), handle.connected()));
        Ok(())
    })
}

/// Makes a guard for writing of one for reading, once the other readers have left.
///
/// # Safety
/// `guard` came from [`hl_guard_read`] or [`hl_guard_write`] and was not unlocked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_guard_upgrade(guard: *mut GuardHandle, wait_ms: u32) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises it.
        let handle = unsafe { GuardHandle::of(guard) }?;
        let mut guard = handle.guard.write().unwrap_or_else(PoisonError::into_inner);
        match guard.take().ok_or_else(lost)? {
            Guard::Read(read) => match read.upgrade(Duration::from_millis(u64::from(wait_ms))) {
                Ok(write) => {
                    *guard = Some(Guard::Write(write));
                    Ok(())
                }
                Err(NotUpgraded { guard: read, error }) => {
                    *guard = Some(Guard::Read(*read));
                    Err(error.into())
                }
            },
            write @ Guard::Write(_) => {
                *guard = Some(write);
                Err(Failure::argument("the guard is one for writing already (hint: go on)"))
            }
        }
    })
}

/// Reads bytes at an offset of a guard's range.
///
/// # Safety
/// `guard` as for [`hl_guard_upgrade`]; `memory` is null or may be written for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_guard_load(
    guard: *mut GuardHandle,
    offset: u64,
    memory: *mut c_void,
    bytes: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, into) = unsafe { (GuardHandle::of(guard)?, buffer_mut(memory, bytes)?) };
        handle.with(|guard| match guard {
            Guard::Read(guard) => Ok(guard.read(offset, into)?),
            Guard::Write(guard) => Ok(guard.read(offset, into)?),
        })
    })
}

/// Writes bytes at an offset of a guard's range.
///
/// # Safety
/// `guard` as for [`hl_guard_upgrade`]; `memory` is null or may be read for `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_guard_store(
    guard: *mut GuardHandle,
    offset: u64,
    memory: *const c_void,
    bytes: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, from) = unsafe { (GuardHandle::of(guard)?, buffer(memory, bytes)?) };
        handle.with(|guard| Ok(guard.write()?.write(offset, from)?))
    })
}

/// Returns when all that was stored has arrived.
///
/// # Safety
/// As [`hl_guard_upgrade`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_guard_flush(guard: *mut GuardHandle) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises it.
        let handle = unsafe { GuardHandle::of(guard) }?;
        handle.with(|guard| Ok(guard.write()?.flush()?))
    })
}

/// Gives the fence of a guard's lock: the number of the last grant to a writer.
///
/// # Safety
/// As [`hl_guard_upgrade`]; `fence` is null or takes a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_guard_fence(guard: *mut GuardHandle, fence: *mut u64) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises both.
        let (handle, place) = unsafe { (GuardHandle::of(guard)?, place("the fence", fence)?) };
        place.fill(handle.with(|guard| {
            Ok(match guard {
                Guard::Read(guard) => guard.fence(),
                Guard::Write(guard) => guard.fence(),
            })
        })?);
        Ok(())
    })
}

/// Flushes, gives the lock back, and ends the guard, whatever it returns. Null is nothing to unlock.
///
/// # Safety
/// `guard` is null or as for [`hl_guard_upgrade`]; no other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_guard_unlock(guard: *mut GuardHandle) -> c_int {
    guarded(|| {
        if guard.is_null() {
            return Ok(());
        }
        // SAFETY: the caller promises a guard, which came from a box, and that this is its last use.
        let handle = unsafe { Box::from_raw(guard) };
        if let Err(failure) = handle.owner.check() {
            // The lock and its session are the parent's.
            std::mem::forget(handle);
            return Err(failure);
        }
        let guard = handle.guard.into_inner().unwrap_or_else(PoisonError::into_inner);
        let unlocked: Result<(), PoolError> = match guard.ok_or_else(lost)? {
            Guard::Read(guard) => guard.unlock(),
            Guard::Write(guard) => guard.unlock(),
        };
        Ok(unlocked?)
    })
}

fn options(wait_ms: u32) -> GuardOptions {
    GuardOptions { wait: Duration::from_millis(u64::from(wait_ms)), ..GuardOptions::default() }
}

fn boxed(guard: Guard, session: Arc<Connected>) -> *mut GuardHandle {
    let guard = RwLock::new(Some(guard));
    Box::into_raw(Box::new(GuardHandle { guard, owner: Owner::new(), _session: session }))
}
