//! What a process becomes: a program that the library cannot be put before has its memory beside the budget, and who runs it is told.
//!
//! Most programs have the library before them and say themselves when they have memory: of those nobody is told. The rest are for the supervisor to look
//! at: what cannot be told from the first bytes of the file, and all that a process begins that others of its user or root cannot follow.
//!
//! All ways of the C library to begin a program end in its `execve`, also in a child of `vfork` that has its parent's memory and
//! a small stack: nothing is kept here, and little is put on the stack.

use super::{link, rights};
use crate::cancel::uncancelled;
use hinterland_farplan::plain;
use libc::{c_char, c_int};
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// `execve(2)`, in place of the C library's.
///
/// # Safety
/// As `execve`.
pub(super) unsafe extern "C-unwind" fn c_execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    uncancelled(|| unsafe { tell(path, environment) });
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_execve, path, arguments, environment) as c_int }
}

/// # Safety
/// As `execve`; leaves `errno` to the call behind it.
unsafe fn tell(path: *const c_char, environment: *const *const c_char) {
    let open = |flags: c_int| {
        // SAFETY: the kernel refuses a pointer that is none.
        let opened =
            unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags | libc::O_CLOEXEC) };
        // SAFETY: the descriptor is fresh and owned by nobody else.
        c_int::try_from(opened).ok().filter(|raw| *raw >= 0).map(|raw| unsafe { OwnedFd::from_raw_fd(raw) })
    };
    // SAFETY: the caller's promise.
    let is_bare = unsafe {
        !has(environment, b"LD_PRELOAD=", own_name()) || !has(environment, b"HINTERLAND_FAR_SOCKET=", b"")
    };
    // Not one that waits for somebody at the other end, as a pipe would.
    let readable = || open(libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY);
    if !is_bare && !rights::have_changed() && readable().is_some_and(|file| is_plain(file.as_fd())) {
        return;
    }
    // What is not there does not begin: the C library looks in every folder of the PATH.
    if let Some(file) = open(libc::O_PATH) {
        link::tell_program(file.as_fd(), is_bare);
    }
}

/// Whether a file is a program that the loader of the GNU C library puts this one's libraries before. `false` for any that is not understood.
fn is_plain(file: BorrowedFd<'_>) -> bool {
    let raw = file.as_raw_fd();
    // SAFETY: an all-zero stat is valid, and the kernel writes to a live structure.
    let status = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        if libc::syscall(libc::SYS_fstat, raw, &raw mut status) != 0 {
            return false;
        }
        status
    };
    if status.st_mode & libc::S_IFMT != libc::S_IFREG || status.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0
    {
        return false;
    }
    // SAFETY: the kernel writes to the slice, which is borrowed for writing.
    let read = |at: u64, bytes: &mut [u8]| unsafe {
        libc::syscall(libc::SYS_pread64, raw, bytes.as_mut_ptr(), bytes.len(), at) == bytes.len() as i64
    };
    let (mut head, mut tags) = ([0; plain::HEAD_BYTES], [0; plain::TAGS_BYTES]);
    read(0, &mut head)
        && plain::tags_at(&head).is_some_and(|at| read(at, &mut tags) && plain::name_a_library(&tags))
}

/// The name of this library's file, set before the program runs: its bytes and how many these are.
static OWN_NAME: (AtomicPtr<u8>, AtomicUsize) = (AtomicPtr::new(std::ptr::null_mut()), AtomicUsize::new(0));

/// Keeps in mind what this library is called, as long as the loader may be asked: behind a `vfork` that is not the moment.
pub(super) fn learn_own_name(path: &'static [u8]) {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    OWN_NAME.0.store(name.as_ptr().cast_mut(), Ordering::Relaxed); // Relaxed: there is one thread.
    OWN_NAME.1.store(name.len(), Ordering::Relaxed); // Relaxed: as above.
}

fn own_name() -> &'static [u8] {
    let (bytes, count) = (&OWN_NAME.0, &OWN_NAME.1);
    // Relaxed, both: set before there were threads.
    let (bytes, count) = (bytes.load(Ordering::Relaxed), count.load(Ordering::Relaxed));
    // SAFETY: both are of one slice, which stays and which nobody changes; a null pointer is looked at first.
    if bytes.is_null() { b"" } else { unsafe { std::slice::from_raw_parts(bytes, count) } }
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
