//! Opening and closing a pool.

use crate::failure::{Failure, guarded};
use crate::text::{place, string};
use hinterland_pool::Pool;
use hinterland_region::{Region, Regions};
use std::collections::HashMap;
use std::ffi::{OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

/// Forks that lie between this process and the one that loaded the library.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// An open pool: `hl_pool` in C.
pub struct PoolHandle {
    mapped: Mutex<HashMap<usize, Region>>,
    regions: Mutex<Option<Regions>>,
    connected: Arc<Connected>,
    /// What [`FORKS`] was when it was opened.
    forks: u64,
}

/// A session, which ends with this, whatever still knows of it: that of a closed pool must keep no locks.
pub(crate) struct Connected(Pool);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.session().end();
    }
}

impl PoolHandle {
    /// The pool behind a handle of this process.
    ///
    /// # Safety
    /// `pointer` is null or came from [`hl_open`] and was not closed.
    pub(crate) unsafe fn of<'a>(pointer: *mut Self) -> Result<&'a Self, Failure> {
        // SAFETY: the caller promises a pool, which came from a box.
        let handle = unsafe { pointer.as_ref() };
        let handle =
            handle.ok_or_else(|| Failure::argument("the pool is NULL (hint: call hl_open first)"))?;
        if handle.is_inherited() {
            return Err(Failure::new(
                libc::ENOTCONN,
                "this pool was opened before fork() and belongs to the parent (hint: call hl_open in the child; what is mapped can be read)",
            ));
        }
        Ok(handle)
    }

    /// The pool.
    pub(crate) fn pool(&self) -> &Pool {
        &self.connected.0
    }

    /// Its session, for who must have it until they end, also when the pool is closed before.
    pub(crate) fn connected(&self) -> Arc<Connected> {
        Arc::clone(&self.connected)
    }

    /// What maps objects, connected at the first use.
    pub(crate) fn regions(&self) -> Result<Regions, Failure> {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(regions) = &*regions {
            return Ok(regions.clone());
        }
        Ok(regions.insert(Regions::new(self.pool().session())?).clone())
    }

    /// What is mapped, by pointer.
    pub(crate) fn mapped(&self) -> MutexGuard<'_, HashMap<usize, Region>> {
        self.mapped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_inherited(&self) -> bool {
        // Relaxed: it changes only in a child that has just been forked, before any other thread of it runs.
        self.forks != FORKS.load(Ordering::Relaxed)
    }
}

/// Opens a pool through the node at `socket`; with null through `HINTERLAND_SOCKET` or the default socket.
///
/// # Safety
/// `socket` is null or a string; `pool` is null or takes a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_open(socket: *const c_char, pool: *mut *mut PoolHandle) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises it.
        let place = unsafe { place("the pool", pool) }?;
        let socket = if socket.is_null() {
            None
        } else {
            // SAFETY: the caller promises a string.
            Some(Path::new(OsStr::from_bytes(unsafe { string("the socket", socket) }?.to_bytes())))
        };
        count_forks();
        let handle = PoolHandle {
            connected: Arc::new(Connected(Pool::connect(socket)?)),
            regions: Mutex::default(),
            mapped: Mutex::default(),
            // Relaxed: as in `is_inherited`.
            forks: FORKS.load(Ordering::Relaxed),
        };
        place.fill(Box::into_raw(Box::new(handle)));
        Ok(())
    })
}

/// Closes a pool: unmaps what it mapped, and the node takes back its locks and allocations, once no guard of it is left. Null is nothing to
/// close.
///
/// # Safety
/// `pool` is null or came from [`hl_open`] and was not closed; no other thread uses it, or what it mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_close(pool: *mut PoolHandle) -> c_int {
    guarded(|| {
        if pool.is_null() {
            return Ok(());
        }
        // SAFETY: the caller promises a pool, which came from a box, and that this is its last use.
        let handle = unsafe { Box::from_raw(pool) };
        if handle.is_inherited() {
            // Its session is the parent's, and a thread that the child does not have may hold its locks.
            std::mem::forget(handle);
        }
        Ok(())
    })
}

/// Has children of this process know that they are children.
fn count_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function lives as long as this library, and does what is allowed in a forked child.
        unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
    });
}

unsafe extern "C" fn count_fork() {
    // Relaxed: there is no other thread yet.
    FORKS.fetch_add(1, Ordering::Relaxed);
}
