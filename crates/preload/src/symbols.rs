//! The functions of the C library that this library stands in for.
//!
//! Each first finds out, without a lock, whether the call can have to do with the pool. All system calls are made
//! directly, so that nothing comes back here; `errno` is as the program left it unless a call fails.

use crate::cancel::uncancelled;
use crate::upgrade::{kernel_map, upgrade, will_need};
use crate::{far, mounts};
use hinterland_proto::control::Advice;
use hinterland_region::process::{self, Share};
use hinterland_region::system::MapCall;
use hinterland_types::limits::BASE_PAGE_BYTES;
use libc::{c_int, c_uint, c_ulong, c_void, iovec, off_t, size_t, ssize_t};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `mmap(2)`.
///
/// # Safety
/// As `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    let call = MapCall {
        address: number(address),
        bytes: bytes as u64,
        protection,
        flags,
        descriptor,
        // A negative offset stays wrong, as a number that is too large.
        offset: offset as u64,
    };
    let result = keep_errno(|| {
        let object = if flags & libc::MAP_ANONYMOUS == 0 { mounts::object_of(descriptor) } else { None };
        match object.and_then(|object| upgrade(&call, object)) {
            Some(mapped) => Ok(mapped),
            None => kernel_map(call),
        }
    });
    result.map_or(libc::MAP_FAILED, pointer)
}

/// `mmap64`: the same where offsets have 64 bits.
///
/// # Safety
/// As `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mmap64(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the caller's promise is the same.
    unsafe { mmap(address, bytes, protection, flags, descriptor, offset) }
}

/// `munmap(2)`.
///
/// # Safety
/// As `munmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    let (address, bytes) = (number(address), bytes as u64);
    status(keep_errno(|| process::unmap(address, bytes).unwrap_or_else(|| far::unmap(address, bytes))))
}

/// `mprotect(2)`.
///
/// # Safety
/// As `mprotect`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mprotect(address: *mut c_void, bytes: size_t, protection: c_int) -> c_int {
    let (address, bytes) = (number(address), bytes as u64);
    status(keep_errno(|| {
        process::protect(address, bytes, protection)
            .unwrap_or_else(|| far::protect(address, bytes, protection))
    }))
}

/// `mremap(2)`. Pool memory shrinks; it neither grows nor moves, which is answered with `ENOMEM` and changes nothing.
///
/// The last argument is optional in C; on the processors of Linux an optional pointer is passed as any other.
///
/// # Safety
/// As `mremap`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mremap(
    address: *mut c_void,
    bytes: size_t,
    new_bytes: size_t,
    flags: c_int,
    target: *mut c_void,
) -> *mut c_void {
    let (address, bytes, new_bytes) = (number(address), bytes as u64, new_bytes as u64);
    let target = number(target);
    let remap = || far::remap(address, bytes, new_bytes, flags, target);
    let result = keep_errno(|| {
        if process::share(address, bytes.max(1)) != Share::None {
            return shrink(address, bytes, new_bytes, flags);
        }
        if flags & libc::MREMAP_FIXED != 0 { process::replace(target, new_bytes, remap) } else { remap() }
    });
    result.map_or(libc::MAP_FAILED, pointer)
}

/// `madvise(2)`.
///
/// # Safety
/// As `madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn madvise(address: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    let (address, bytes) = (number(address), bytes as u64);
    status(keep_errno(|| advise(address, bytes, advice)))
}

/// `posix_madvise(3)`: answers with the error in place of setting `errno`.
///
/// # Safety
/// As `posix_madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_madvise(address: *mut c_void, bytes: size_t, advice: c_int) -> c_int {
    if advice == libc::POSIX_MADV_DONTNEED {
        // The C library does nothing either: dropping contents is more than this advice allows.
        return 0;
    }
    let (address, bytes) = (number(address), bytes as u64);
    let before = errno();
    // The other numbers are those of madvise.
    let code = if keep_errno(|| advise(address, bytes, advice)).is_some() { 0 } else { errno() };
    set_errno(before);
    code
}

/// `process_madvise(2)`.
///
/// # Safety
/// As `process_madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn process_madvise(
    process: c_int,
    parts: *const iovec,
    count: size_t,
    advice: c_int,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: the caller's promise.
    let done = keep_errno(|| unsafe { far::advise_parts(process, (parts, count), advice, flags) });
    // A count of bytes of this address space.
    done.map_or(-1, |bytes| bytes as ssize_t)
}

/// `ioctl(2)`. The last argument is optional in C, as that of `mremap` is.
///
/// # Safety
/// As `ioctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(descriptor: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the program asked for exactly this.
    let kernel = || unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument) as c_int };
    // It may take long, and a thread is cancelled in it as without us.
    let before = errno();
    let result = kernel();
    if result != -1 || errno() != libc::EBUSY {
        return result;
    }
    if keep_errno(|| Ok(far::make_way(request, number(argument)))) != Some(true) {
        return result;
    }
    set_errno(before);
    kernel()
}

/// `shmat(2)`.
///
/// # Safety
/// As `shmat`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn shmat(segment: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    let address = number(address.cast_mut());
    keep_errno(|| far::attach(segment, address, flags)).map_or(libc::MAP_FAILED, pointer)
}

/// `mlockall(2)`.
///
/// # Safety
/// As `mlockall`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mlockall(flags: c_int) -> c_int {
    status(keep_errno(|| far::lock_all(flags)))
}

fn advise(address: u64, bytes: u64, advice: c_int) -> io::Result<()> {
    let kernel = || far::advise(address, bytes, advice);
    let share = process::share(address, bytes);
    if share == Share::None {
        return kernel();
    }
    let refused = |code| Err(io::Error::from_raw_os_error(code));
    let told = |hint: Advice| {
        process::hint(address, bytes, hint);
        // The rest of the range is the kernel's business.
        if share == Share::Part { kernel() } else { Ok(()) }
    };
    match advice {
        libc::MADV_NORMAL => told(Advice::Normal),
        libc::MADV_RANDOM => told(Advice::Random),
        libc::MADV_SEQUENTIAL => told(Advice::Sequential),
        libc::MADV_WILLNEED => {
            will_need(address, bytes);
            if share == Share::Part { kernel() } else { Ok(()) }
        }
        libc::MADV_POPULATE_READ => {
            will_need(address, bytes);
            kernel()
        }
        // The kernel's answer for a mapping that is not both shared and writable.
        libc::MADV_REMOVE => refused(libc::EACCES),
        // Of no use to pool memory, and no harm to programs that go on without.
        libc::MADV_HUGEPAGE | libc::MADV_NOHUGEPAGE => Ok(()),
        // Both are of anonymous memory; collapsing would fill holes.
        libc::MADV_FREE | libc::MADV_COLLAPSE | libc::MADV_WIPEONFORK => refused(libc::EINVAL),
        // Inherited unserved, the memory would be zeros; a child gets it anew in any case.
        libc::MADV_DOFORK | libc::MADV_DONTFORK if process::is_served(address, bytes) => Ok(()),
        _ => match kernel() {
            // The rest is about when to let go of pages. The kernel refuses it for parts of huge pages, which a program
            // that mapped a file does not know of; the bytes are the same with it and without.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && has_huge_pages(address, bytes) => {
                Ok(())
            }
            other => other,
        },
    }
}

fn has_huge_pages(address: u64, bytes: u64) -> bool {
    process::page_bytes(address, bytes).is_some_and(|page| page > BASE_PAGE_BYTES)
}

fn shrink(address: u64, bytes: u64, new_bytes: u64, flags: c_int) -> io::Result<u64> {
    let rounded = |bytes: u64| bytes.checked_next_multiple_of(BASE_PAGE_BYTES);
    let (Some(old), Some(new)) = (rounded(bytes), rounded(new_bytes)) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    if new == 0 || old == 0 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    if new > old || flags & !libc::MREMAP_MAYMOVE != 0 {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    match process::unmap(address + new, old - new) {
        Some(Err(error)) => Err(error),
        Some(Ok(())) | None => Ok(address),
    }
}

/// Leaves `errno` as it was if the call succeeds, and sets it if not. A defect of ours is a call that failed: a panic must
/// not end the program.
fn keep_errno<T: Copy>(call: impl FnOnce() -> io::Result<T>) -> Option<T> {
    uncancelled(|| keep_errno_alone(call))
}

fn keep_errno_alone<T>(call: impl FnOnce() -> io::Result<T>) -> Option<T> {
    let before = errno();
    let result = catch_unwind(AssertUnwindSafe(call));
    match result.unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::ENOMEM))) {
        Ok(value) => {
            set_errno(before);
            Some(value)
        }
        Err(error) => {
            set_errno(error.raw_os_error().unwrap_or(libc::ENOMEM));
            None
        }
    }
}

fn errno() -> c_int {
    // SAFETY: the C library gives every thread an errno.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = value };
}

fn status(result: Option<()>) -> c_int {
    if result.is_some() { 0 } else { -1 }
}

fn number(pointer: *mut c_void) -> u64 {
    pointer.expose_provenance() as u64
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
