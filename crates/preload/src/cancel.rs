//! A thread is not cancelled in the middle of a call of this library.
//!
//! `malloc`, `mmap` and their like are no points of cancellation, and programs cancel threads that are in them. What stands in for them here speaks to
//! others, by calls of the C library that are such points: a thread that ended there would keep a lock for ever. What is cancelled meanwhile ends at the next
//! point of the program.

use libc::c_int;
use std::marker::PhantomData;

const CANCEL_DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// Cancellation held back from this thread until dropped. `errno` stays.
pub(crate) struct Uncancelled {
    before: c_int,
    /// It is of this thread.
    _thread: PhantomData<*const ()>,
}

impl Uncancelled {
    /// Holds it back.
    pub(crate) fn hold() -> Self {
        let mut before = 0;
        // SAFETY: a known state, and a place for the one before.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Self { before, _thread: PhantomData }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: the state that was there.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}
