//! Turning functions inside of the C library to ours: `malloc` calls them past any preloaded library, and so do `posix_spawn` and `system`.
//!
//! Each of them is a system call and little else, and is replaced as a whole: its first bytes become a jump. This is done
//! before the program runs, while there is one thread.

use super::{calls, heap, programs};
use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Bytes of `jmp [rip+0]` and the address behind it. The shortest of the functions has more.
const JUMP_BYTES: usize = 14;

/// The version of all of them: the first one for this processor.
#[cfg(target_arch = "x86_64")]
const VERSION: &CStr = c"GLIBC_2.2.5";

/// The C library's own record of the end of the heap, which `sbrk` reads.
static CURRENT_BREAK: AtomicPtr<*mut c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Keeps the C library's record of the end of the heap.
pub(super) fn set_current_break(end: u64) {
    // Relaxed: set before the program runs.
    let place = CURRENT_BREAK.load(Ordering::Relaxed);
    if !place.is_null() {
        // SAFETY: the C library's variable, which its own `brk` writes as well, under the same lock.
        unsafe { *place = std::ptr::with_exposed_provenance_mut(end as usize) };
    }
}

/// Replaces the functions.
///
/// # Errors
/// A sentence where this C library or processor is not known.
#[cfg(target_arch = "x86_64")]
pub(super) fn turn_to_us() -> Result<(), String> {
    let found = |name: &CStr| {
        // With the version, since other libraries have functions of these names, too (an allocator its `mmap`), and not those are what `malloc` calls. To open
        // the C library by its name would take memory before anybody has looked where the heap begins.
        // SAFETY: both are NUL-terminated.
        let place = unsafe { libc::dlvsym(libc::RTLD_NEXT, name.as_ptr(), VERSION.as_ptr()) };
        let missing = || format!("the C library has no {name:?} (hint: far memory needs the GNU C library)");
        if place.is_null() { Err(missing()) } else { Ok(place) }
    };
    let current = found(c"__curbrk")?;
    // Relaxed: there is one thread.
    CURRENT_BREAK.store(current.cast(), Ordering::Relaxed);
    let targets: [(&CStr, usize); 8] = [
        (c"mmap", calls::c_mmap as *const () as usize),
        (c"mmap64", calls::c_mmap as *const () as usize),
        (c"munmap", calls::c_munmap as *const () as usize),
        (c"mprotect", calls::c_mprotect as *const () as usize),
        (c"mremap", calls::c_mremap as *const () as usize),
        (c"madvise", calls::c_madvise as *const () as usize),
        (c"brk", heap::c_brk as *const () as usize),
        (c"execve", programs::c_execve as *const () as usize),
    ];
    let mut places = [(std::ptr::null_mut(), 0); 8];
    for (place, (name, target)) in places.iter_mut().zip(targets) {
        *place = (found(name)?, target);
    }
    replace(&places).map_err(|error| format!("functions of the C library cannot be turned: {error}"))
}

/// Replaces the functions.
///
/// # Errors
/// Always: not known for this processor.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn turn_to_us() -> Result<(), String> {
    Err("far memory is for x86-64 programs (hint: there is no other way on this processor yet)".to_owned())
}

/// Replaces functions of one library: all that lies between them is made writable at once, for as long as it takes.
#[cfg(target_arch = "x86_64")]
fn replace(places: &[(*mut c_void, usize)]) -> std::io::Result<()> {
    let page = hinterland_farplan::PAGE as usize;
    let addresses = || places.iter().map(|(place, _)| place.addr());
    let first = addresses().min().unwrap_or(0) & !(page - 1);
    let end = (addresses().max().unwrap_or(0) + JUMP_BYTES).next_multiple_of(page);
    let protect = |protection: libc::c_int| {
        // SAFETY: the code of the C library between two of its functions; their contents are the caller's matter.
        match unsafe { libc::syscall(libc::SYS_mprotect, first, end - first, protection) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    protect(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC)?;
    for (place, target) in places {
        let mut jump = [0xFF, 0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        jump[6..].copy_from_slice(&(*target as u64).to_le_bytes());
        // SAFETY: the function has more bytes than the jump, is writable for now, and nobody is in it: there is one thread, and
        // it is here.
        unsafe { std::ptr::copy_nonoverlapping(jump.as_ptr(), place.cast::<u8>(), JUMP_BYTES) };
    }
    protect(libc::PROT_READ | libc::PROT_EXEC)
}
