//! System calls on address ranges that go straight to the kernel, past any library that stands in for `mmap`.
//!
//! The preload library exports `mmap`, `munmap` and their like under those names, and this crate is linked into it. A
//! call by name from here would come back to the preload library, which would ask this crate again.

use std::io;

/// A kernel-side range: where it starts and how long it is, both in whole pages of what is mapped there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Address of the first byte.
    pub address: u64,
    /// Length.
    pub bytes: u64,
}

impl Extent {
    /// One past the last byte.
    pub const fn end(self) -> u64 {
        self.address.saturating_add(self.bytes)
    }
}

/// What to map.
#[derive(Clone, Copy, Debug)]
pub struct MapCall {
    /// Where: a hint, or with `MAP_FIXED` the address.
    pub address: u64,
    /// Length.
    pub bytes: u64,
    /// `PROT_` bits.
    pub protection: i32,
    /// `MAP_` bits.
    pub flags: i32,
    /// A descriptor, or -1.
    pub descriptor: i32,
    /// Offset in the file.
    pub offset: u64,
}

/// `mmap`; returns the address.
///
/// # Safety
/// With `MAP_FIXED` the range must belong to the caller, as for `mmap` itself.
///
/// # Errors
/// The refusal of the kernel.
pub unsafe fn map(call: MapCall) -> io::Result<u64> {
    // SAFETY: the caller answers for a fixed range; everything else is a value.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            call.address,
            call.bytes,
            call.protection,
            call.flags,
            call.descriptor,
            call.offset,
        )
    };
    // Addresses of this process are positive numbers: the cast loses nothing.
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result as u64) }
}

/// `munmap`.
///
/// # Safety
/// Nobody may use the range any more.
///
/// # Errors
/// The refusal of the kernel.
pub unsafe fn unmap(address: u64, bytes: u64) -> io::Result<()> {
    // SAFETY: the caller answers for the range.
    done(unsafe { libc::syscall(libc::SYS_munmap, address, bytes) })
}

/// `mprotect`.
///
/// # Safety
/// The range must belong to the caller, and whoever uses it must cope with the protection.
///
/// # Errors
/// The refusal of the kernel.
pub unsafe fn protect(address: u64, bytes: u64, protection: i32) -> io::Result<()> {
    // SAFETY: the caller answers for the range.
    done(unsafe { libc::syscall(libc::SYS_mprotect, address, bytes, protection) })
}

/// `madvise`.
///
/// # Safety
/// The range must belong to the caller; some advice drops contents.
///
/// # Errors
/// The refusal of the kernel.
pub unsafe fn advise(address: u64, bytes: u64, advice: i32) -> io::Result<()> {
    // SAFETY: the caller answers for the range.
    done(unsafe { libc::syscall(libc::SYS_madvise, address, bytes, advice) })
}

/// `mremap`; returns the address.
///
/// # Safety
/// Both ranges must belong to the caller.
///
/// # Errors
/// The refusal of the kernel.
pub unsafe fn remap(address: u64, bytes: u64, new_bytes: u64, flags: i32, target: u64) -> io::Result<u64> {
    // SAFETY: the caller answers for the ranges.
    let result = unsafe { libc::syscall(libc::SYS_mremap, address, bytes, new_bytes, flags, target) };
    // Addresses of this process are positive numbers: the cast loses nothing.
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result as u64) }
}

/// A file of no bytes: every touch of a mapping of it is SIGBUS.
///
/// # Errors
/// `EMFILE` without descriptors left.
pub(crate) fn empty_file() -> io::Result<i32> {
    // SAFETY: the name is a NUL-terminated literal.
    let result =
        unsafe { libc::syscall(libc::SYS_memfd_create, c"hinterland-lost".as_ptr(), libc::MFD_CLOEXEC) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// Closes a descriptor by number; one that is closed already is left.
///
/// # Safety
/// The number must be a descriptor of this crate that nobody uses any more.
pub(crate) unsafe fn close(descriptor: i32) {
    // SAFETY: the caller owns the descriptor.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
}

/// The number of this thread.
pub(crate) fn thread_number() -> i32 {
    // SAFETY: the call takes nothing and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Writes a line to stderr in one system call. Rust's own stderr has a lock, which a thread may hold that waits for
/// memory which only the caller of this function can give.
pub fn say(text: &str) {
    let line = format!("hinterland: {text}\n");
    // SAFETY: pointer and length are of a live string. Nothing can be done about a stderr that is closed.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// All signals held back from this thread, until it is dropped.
pub(crate) struct SignalsHeld {
    before: libc::sigset_t,
}

impl SignalsHeld {
    /// Holds them back.
    pub fn hold() -> Self {
        // SAFETY: both sets are live; an all-zero set is valid and is filled by the calls.
        let before = unsafe {
            let mut all: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigfillset(&mut all);
            libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
            before
        };
        Self { before }
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        // SAFETY: the set is live and came from the kernel.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

fn done(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
