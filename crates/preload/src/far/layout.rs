//! The lock between calls that take memory away and the thread that moves pages out, and the epoch that the supervisor sees.
//!
//! The supervisor orders pages by address. Between its decision and the move the program might unmap the address and map
//! something else there. So whatever takes memory away makes the epoch odd, does its work, and makes it even again, all under
//! the lock; the reclaim thread moves under the lock, and only if the epoch is still the one that the supervisor decided under.

use super::room;
use hinterland_farplan::wire;
use hinterland_os::{MapOptions, MemoryFile, OsError, PageKind, Seals, futex};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Looks at a lock that is taken before the reclaim thread gives an order back.
const LOOKS_MAX: u32 = 200;

/// The words of the page: outside of all memory that may be far, because the reclaim thread reads them.
static EPOCH: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());
static LOCK: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());
static FORKS: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Makes the shared page of this process, and returns a descriptor of it, to be handed over. It is never unmapped: another thread may be in it.
pub(super) fn prepare() -> Result<OwnedFd, OsError> {
    let bytes = hinterland_farplan::PAGE;
    let Some(_room) = room::of_a_page() else {
        let refusal = std::io::Error::from_raw_os_error(libc::EFBIG);
        return Err(OsError::system("memfd_create", "the limit of file sizes (ulimit -f)", refusal));
    };
    let file = MemoryFile::anonymous("hinterland-far", bytes, PageKind::Base4K)?;
    file.add_seals(Seals { shrink: true, grow: true, ..Seals::default() })?;
    let descriptor = file.duplicate()?;
    let mapping = file.map(0, bytes as usize, MapOptions { write: true, ..MapOptions::default() })?;
    let slice = Box::leak(Box::new(Arc::new(mapping).slice()));
    let epoch = std::ptr::from_ref(slice.atomic_u64(wire::EPOCH_AT)?);
    let lock = std::ptr::from_ref(slice.atomic_u32(wire::LOCK_AT)?);
    let forks = std::ptr::from_ref(slice.atomic_u32(wire::FORKS_AT)?);
    // Relaxed: published by `activate`, before which nobody looks; a child of fork has one thread.
    EPOCH.store(epoch.cast_mut(), Ordering::Relaxed);
    LOCK.store(lock.cast_mut(), Ordering::Relaxed);
    FORKS.store(forks.cast_mut(), Ordering::Relaxed);
    Ok(descriptor)
}

fn words() -> Option<(&'static AtomicU64, &'static AtomicU32)> {
    // SAFETY: words of a mapping that is never unmapped. Relaxed: as above.
    unsafe { Some((EPOCH.load(Ordering::Relaxed).as_ref()?, LOCK.load(Ordering::Relaxed).as_ref()?)) }
}

/// Takes a lock that a word is.
pub(super) fn acquire(word: &AtomicU32) {
    // 0: free, 1: taken, 2: taken and somebody waits. Acquire: pairs with the Release in `release`.
    if word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
        return; // Relaxed on failure: the loop below looks again.
    }
    while word.swap(2, Ordering::Acquire) != 0 {
        // Acquire: as above. Woken, interrupted or too late: look again.
        let _ = futex::wait(word, 2, None);
    }
}

/// Lets go of it.
pub(super) fn release(word: &AtomicU32) {
    // Release: pairs with the Acquire of the next holder.
    if word.swap(0, Ordering::Release) == 2 {
        let _ = futex::wake(word, 1);
    }
}

/// Does what takes memory away from the program.
pub(super) fn change<T>(call: impl FnOnce() -> T) -> T {
    let Some((epoch, lock)) = words() else { return call() };
    // A handler of a signal that unmaps would wait for the lock of the thread that it interrupts.
    let held = Signals::hold();
    acquire(lock);
    // Relaxed: the lock orders it for the reclaim thread; the supervisor learns of the call by its event, later.
    epoch.fetch_add(1, Ordering::SeqCst);
    let result = call();
    epoch.fetch_add(1, Ordering::SeqCst); // SeqCst: as above, and before the lock is let go of.
    release(lock);
    drop(held);
    result
}

/// Does what drops content but leaves the mapping: not while the reclaim thread is at a page.
pub(super) fn drop_content<T>(call: impl FnOnce() -> T) -> T {
    let Some((_, lock)) = words() else { return call() };
    let held = Signals::hold();
    acquire(lock);
    let result = call();
    release(lock);
    drop(held);
    result
}

/// This thread is about to fork: from here to [`after_fork`] all memory has the protection that the program gave it. No lock is held between, since the
/// C library takes its own there, with which others wait for this one.
pub(super) fn before_fork() {
    // SAFETY: as in `words`. Relaxed: as there.
    let Some(forks) = (unsafe { FORKS.load(Ordering::Relaxed).as_ref() }) else { return };
    // Relaxed: the lock, which is taken behind it, orders it for the reclaim thread. Not in the memory of the program, where it would cost parent and child a
    // copy of the page.
    forks.fetch_add(1, Ordering::Relaxed);
    drop_content(|| ());
}

/// In the parent, whether there is a child or not.
pub(super) fn after_fork() {
    // SAFETY: as above. Relaxed: as above.
    if let Some(forks) = unsafe { FORKS.load(Ordering::Relaxed).as_ref() } {
        // Relaxed: who learns of it late leaves memory where it is. A handler of a signal may have begun in between, in a page of its own.
        let _ = forks.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    }
}

/// Whether a thread forks. The caller has the lock.
pub(super) fn is_forking() -> bool {
    // SAFETY: as above. Relaxed: as above.
    unsafe { FORKS.load(Ordering::Relaxed).as_ref() }.is_some_and(|forks| forks.load(Ordering::Relaxed) != 0)
}

/// Does something while the layout is as it was in `epoch`; `None` if it is another, or if somebody changes it and takes long:
/// whoever holds the lock may wait for a page of the very order, and must never wait for its end.
pub(super) fn while_unchanged<T>(expected: u64, work: impl FnOnce() -> T) -> Option<T> {
    let (epoch, lock) = words()?;
    let mut looks = 0;
    // Acquire: pairs with the Release in `release`. Relaxed on failure: looked at again.
    while lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        looks += 1;
        if looks > LOOKS_MAX {
            return None;
        }
        // SAFETY: gives the processor away.
        unsafe { libc::sched_yield() };
    }
    // SeqCst: written under the lock.
    let result = (epoch.load(Ordering::SeqCst) == expected).then(work);
    release(lock);
    result
}

/// All signals held back from this thread until dropped. `errno` stays.
pub(super) struct Signals {
    before: u64,
}

impl Signals {
    /// Holds them back.
    pub(super) fn hold() -> Self {
        let (all, mut before) = (u64::MAX, 0u64);
        // SAFETY: both masks are eight bytes, as the call is told.
        unsafe {
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const all, &raw mut before, 8)
        };
        Self { before }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let none = std::ptr::null_mut::<u64>();
        // SAFETY: as above.
        unsafe {
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const self.before, none, 8)
        };
    }
}
