//! What a process becomes: a program that the library cannot be put before has its memory beside the budget, and who runs it is told.
//!
//! All ways of the C library to begin a program end in its `execve`, also in a child of `vfork` that has its parent's memory and
//! a small stack: nothing is kept here, and little is put on the stack.

use super::link;
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

/// `execve(2)`, in place of the C library's.
///
/// # Safety
/// As `execve`.
pub(super) unsafe extern "C" fn c_execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        tell(path, environment);
        libc::syscall(libc::SYS_execve, path, arguments, environment) as c_int
    }
}

/// # Safety
/// As `execve`; leaves `errno` to the call behind it.
unsafe fn tell(path: *const c_char, environment: *const *const c_char) {
    // SAFETY: the kernel refuses a pointer that is none.
    let opened =
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_PATH | libc::O_CLOEXEC) };
    // What is not there does not begin: the C library looks in every folder of the PATH.
    let Ok(raw @ 0..) = c_int::try_from(opened) else { return };
    // SAFETY: the descriptor is fresh and owned by nobody else.
    let file = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: the caller's promise.
    let is_bare =
        unsafe { !has(environment, b"LD_PRELOAD=") || !has(environment, b"HINTERLAND_FAR_SOCKET=") };
    link::tell_program(file.as_fd(), is_bare);
}

/// Whether a variable is there and not empty.
///
/// # Safety
/// The environment is as `execve` has it.
unsafe fn has(environment: *const *const c_char, name: &[u8]) -> bool {
    let mut place = environment;
    // SAFETY: a list of strings that ends in a null pointer, each of which ends in a zero; null is an empty list.
    unsafe {
        while !place.is_null() && !(*place).is_null() {
            let entry = CStr::from_ptr(*place).to_bytes();
            if entry.len() > name.len() && entry.starts_with(name) {
                return true;
            }
            place = place.add(1);
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_counts_when_it_is_there_with_a_value() {
        let environment =
            [c"A=1".as_ptr(), c"LD_PRELOAD=".as_ptr(), c"LD_PRELOADED=x".as_ptr(), std::ptr::null()];
        // SAFETY: the list is whole.
        unsafe {
            assert!(has(environment.as_ptr(), b"A="));
            assert!(!has(environment.as_ptr(), b"LD_PRELOAD="));
            assert!(!has(environment[3..].as_ptr(), b"A="));
            assert!(!has(std::ptr::null(), b"A="));
        }
    }
}
