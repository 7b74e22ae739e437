//! A thread is not cancelled in the middle of a call of this library.
//!
//! `malloc`, `mmap` and their like are no points of cancellation, and programs cancel threads that are in them. What stands in for them here speaks to
//! others, by calls of the C library that are such points: a thread that ended there would keep a lock for ever. What is cancelled meanwhile ends at the next
//! point of the program.
//!
//! A thread that may be cancelled anywhere (`PTHREAD_CANCEL_ASYNCHRONOUS`) ends as soon as the work is done: the C library unwinds it from within
//! [`uncancelled`]. All that lies between that and the program has nothing to drop, catches nothing, and is `C-unwind`; else Rust ends the process.

use libc::c_int;
use std::mem::ManuallyDrop;

const CANCEL_DISABLE: c_int = 1;

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Does something with cancellation held back from this thread. `errno` stays. What comes of it needs no drop, since the thread may end behind it.
pub(crate) fn uncancelled<T: Copy>(work: impl FnOnce() -> T) -> T {
    // Not dropped where the thread ends, whatever it is made of.
    let work = ManuallyDrop::new(work);
    let mut before = 0;
    // SAFETY: a known state, and a place for the one before.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
    let result = apart(ManuallyDrop::into_inner(work));
    // SAFETY: the state that was there.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}

/// In a frame of its own, which may have something to drop.
#[inline(never)]
fn apart<T>(work: impl FnOnce() -> T) -> T {
    work()
}
