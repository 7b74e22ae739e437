//! Calls by which a program takes memory for itself alone: it serves its faults, locks all of it, or has the kernel look at it when a thread ends.

use super::arming::{self, Otherwise};
use super::rights::Next;
use super::{calls, is_active, layout, link, mover, reserved};
use crate::cancel::uncancelled;
use hinterland_farplan::PAGE;
use hinterland_os::process;
use libc::{c_int, c_ulong, pthread_mutex_t, pthread_mutexattr_t};
use std::io;

/// `UFFDIO_REGISTER`: a range and how its faults are to be served.
const REGISTER_FAULTS: c_ulong = 0xC020_AA00;

/// The kernel has refused an `ioctl` because somebody else is there: if that is us, it is the kernel's from here on, and the program may ask again.
pub(crate) fn make_way(request: c_ulong, argument: u64) -> bool {
    // Two cannot serve the same memory, and the program knows what it wants of it.
    if request != REGISTER_FAULTS || !is_active() {
        return false;
    }
    // SAFETY: the kernel has read these words.
    let [address, bytes] = unsafe { *std::ptr::with_exposed_provenance::<[u64; 2]>(argument as usize) };
    link::release(address, bytes);
    drop_first_zeros(address, bytes);
    true
}

/// A mapping under service begins with a page of zeros that the program has not touched: its own service is to see it missing.
fn drop_first_zeros(address: u64, bytes: u64) {
    const PAGE: usize = hinterland_farplan::PAGE as usize;
    let mut there = [0u8; 2];
    let looked = bytes.min(2 * hinterland_farplan::PAGE);
    // SAFETY: a byte for each of at most two pages is written.
    let known = unsafe { libc::syscall(libc::SYS_mincore, address, looked, there.as_mut_ptr()) } == 0;
    if !known || there[0] & 1 == 0 || there[1] & 1 != 0 {
        return;
    }
    // SAFETY: a whole page of the program's that is there, as the kernel just said.
    let is_zero = unsafe { *std::ptr::with_exposed_provenance::<[u8; PAGE]>(address as usize) } == [0; PAGE];
    if is_zero {
        // SAFETY: the page holds zeros, and so it does afterwards.
        unsafe { libc::syscall(libc::SYS_madvise, address, PAGE, libc::MADV_DONTNEED) };
    }
}

/// `mlockall`: all that is mapped but the staging area, which nobody could fill and which must be empty again each time.
pub(crate) fn lock_all(flags: c_int) -> io::Result<()> {
    let done = |result: libc::c_long| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: a plain value.
    let kernel = |flags: c_int| done(unsafe { libc::syscall(libc::SYS_mlockall, flags) });
    // What is to be locked as it is mapped would lock the staging area, too.
    arming::begin(Otherwise::Ended);
    if !is_active() || flags & libc::MCL_CURRENT == 0 {
        return kernel(flags);
    }
    let (start, end) = mover::staging_range();
    // Nothing is moved there meanwhile.
    layout::drop_content(|| {
        // Whether it may, the kernel says. This fills nothing.
        kernel(flags & !libc::MCL_FUTURE | libc::MCL_ONFAULT)?;
        // SAFETY: memory of this library; its contents stay.
        done(unsafe { libc::syscall(libc::SYS_munlock, start, end - start) })?;
        if flags & libc::MCL_FUTURE == 0 { Ok(()) } else { kernel(flags & !libc::MCL_CURRENT) }
    })?;
    // Who does not see its mappings, as in another root, has locked what comes when it comes.
    let maps =
        if flags & libc::MCL_ONFAULT == 0 { process::text_of("/proc/self/maps") } else { Ok(String::new()) };
    for line in maps.unwrap_or_default().lines() {
        let Some((from, to)) = range(line) else { continue };
        for (from, to) in [(from, to.min(start)), (from.max(end), to)] {
            if from < to {
                // What cannot be read, or is gone, is passed over, as the kernel does.
                // SAFETY: a range of this process; its contents stay.
                unsafe { libc::syscall(libc::SYS_mlock2, from, to - from, 0) };
            }
        }
    }
    Ok(())
}

/// `shmat`: of all that replaces memory the only one of which the kernel tells nobody. So the memory is the kernel's before.
pub(crate) fn attach(segment: c_int, address: u64, flags: c_int) -> io::Result<u64> {
    if flags & libc::SHM_REMAP != 0
        && let Some(bytes) = segment_bytes(segment)
    {
        leave_to_the_kernel(address, bytes);
    }
    // SAFETY: the program asked for exactly this.
    match unsafe { libc::syscall(libc::SYS_shmat, segment, address, flags) } {
        -1 => Err(io::Error::last_os_error()),
        start => Ok(start as u64),
    }
}

/// How long a segment of shared memory is; `None` if there is none, which the kernel says of the call behind this.
fn segment_bytes(segment: c_int) -> Option<u64> {
    // SAFETY: an all-zero shmid_ds is valid, and the kernel writes to a live structure.
    let (known, about) = unsafe {
        let mut about: libc::shmid_ds = std::mem::zeroed();
        (libc::shmctl(segment, libc::IPC_STAT, &raw mut about), about)
    };
    (known == 0).then_some(about.shm_segsz as u64)
}

/// Has memory be the kernel's from here on, with what it holds, whether far memory has begun or not.
fn leave_to_the_kernel(address: u64, bytes: u64) {
    let start = address & !(PAGE - 1);
    let bytes = (address - start).saturating_add(bytes).next_multiple_of(PAGE);
    if is_active() {
        reserved::cut(start, start.saturating_add(bytes));
        link::release(start, bytes);
    } else {
        calls::note_change(start, bytes);
    }
}

/// `pthread_mutex_init(3)`. A robust mutex is one that the kernel gives up for a thread that ends with it. Then it does not wait for a page that is not there, and
/// whoever wants the mutex would wait for ever. Nor does it wait where it hands its holder the priority of who waits for it: the C library would end the process.
///
/// # Safety
/// As `pthread_mutex_init`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_mutex_init(
    mutex: *mut pthread_mutex_t,
    attributes: *const pthread_mutexattr_t,
) -> c_int {
    static NEXT: Next = Next::new(c"pthread_mutex_init");
    // SAFETY: the caller's promise: attributes or null.
    if !attributes.is_null() && unsafe { is_kernels(attributes) } {
        // SAFETY: the C library gives every thread an errno.
        let errno = unsafe { *libc::__errno_location() };
        let address = mutex.expose_provenance() as u64;
        uncancelled(|| leave_to_the_kernel(address, size_of::<pthread_mutex_t>() as u64));
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    let next = NEXT.find();
    if next.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the C library's function of this name, which has this shape; the rest is the caller's promise.
    unsafe {
        let next: unsafe extern "C" fn(*mut pthread_mutex_t, *const pthread_mutexattr_t) -> c_int =
            std::mem::transmute(next);
        next(mutex, attributes)
    }
}

/// # Safety
/// The attributes are whole.
unsafe fn is_kernels(attributes: *const pthread_mutexattr_t) -> bool {
    let (mut robust, mut protocol) = (libc::PTHREAD_MUTEX_STALLED, libc::PTHREAD_PRIO_NONE);
    // SAFETY: the caller's promise, and places for the answers, which stay as they are where there is none.
    unsafe {
        libc::pthread_mutexattr_getrobust(attributes, &raw mut robust);
        libc::pthread_mutexattr_getprotocol(attributes, &raw mut protocol);
    }
    robust == libc::PTHREAD_MUTEX_ROBUST || protocol == libc::PTHREAD_PRIO_INHERIT
}

/// The addresses of a line of `maps`, unless the kernel itself put something there.
fn range(line: &str) -> Option<(u64, u64)> {
    if line.contains("[v") {
        return None;
    }
    let (from, to) = line.split_whitespace().next()?.split_once('-')?;
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::range;

    #[test]
    fn addresses_of_mappings_are_read_and_those_of_the_kernel_are_not() {
        let line = "7f0000001000-7f0000003000 rw-p 00000000 00:00 0 ";
        assert_eq!(range(line), Some((0x7f00_0000_1000, 0x7f00_0000_3000)));
        assert_eq!(range("7ffd000-7fff000 r-xp 0 00:00 0 [vdso]"), None);
        assert_eq!(range(""), None);
    }
}
