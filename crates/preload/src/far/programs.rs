//! What a process becomes: a program that the library cannot be put before has its memory beside the budget, and who runs it is told.
//!
//! All ways of the C library to begin a program end in its `execve`, also in a child of `vfork` that has its parent's memory and
//! a small stack: nothing is kept here, and little is put on the stack.

use super::link;
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

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
    let is_bare = unsafe {
        !has(environment, b"LD_PRELOAD=", OWN_NAME.get().copied().unwrap_or_default())
            || !has(environment, b"HINTERLAND_FAR_SOCKET=", b"")
    };
    link::tell_program(file.as_fd(), is_bare);
}

/// The name of this library's file, set before the program runs.
static OWN_NAME: OnceLock<&'static [u8]> = OnceLock::new();

/// Finds out what this library is called, as long as the loader may be asked: behind a `vfork` that is not the moment.
pub(super) fn learn_own_name() {
    let _ = OWN_NAME.set(own_name());
}

fn own_name() -> &'static [u8] {
    // SAFETY: an all-zero record is valid and is filled by the call; the name lives as long as this library.
    unsafe {
        let mut about: libc::Dl_info = std::mem::zeroed();
        let here = c_execve as *const ();
        if libc::dladdr(here.cast(), &mut about) == 0 || about.dli_fname.is_null() {
            return b"";
        }
        let path = CStr::from_ptr(about.dli_fname).to_bytes();
        path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
    }
}

/// Whether a variable is there, is not empty and has these bytes in it.
///
/// # Safety
/// The environment is as `execve` has it.
unsafe fn has(environment: *const *const c_char, name: &[u8], part: &[u8]) -> bool {
    let mut place = environment;
    // SAFETY: a list of strings that ends in a null pointer, each of which ends in a zero; null is an empty list.
    unsafe {
        while !place.is_null() && !(*place).is_null() {
            let entry = CStr::from_ptr(*place).to_bytes();
            if entry.len() > name.len() && entry.starts_with(name) {
                // The loader takes the first of several.
                return part.is_empty() || entry.windows(part.len()).any(|bytes| bytes == part);
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
            assert!(has(environment.as_ptr(), b"A=", b""));
            assert!(!has(environment.as_ptr(), b"LD_PRELOAD=", b""));
            assert!(!has(environment[3..].as_ptr(), b"A=", b""));
            assert!(!has(std::ptr::null(), b"A=", b""));
            let other = [c"LD_PRELOAD=/lib/a.so:/x/own.so".as_ptr(), std::ptr::null()];
            assert!(has(other.as_ptr(), b"LD_PRELOAD=", b"own.so"));
            assert!(!has(other.as_ptr(), b"LD_PRELOAD=", b"our.so"));
        }
    }
}
