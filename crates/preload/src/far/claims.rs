//! Calls by which a program takes memory for itself alone: it serves its faults, or locks all of it.

use super::arming::{self, Otherwise};
use super::{is_active, link, mover};
use libc::{c_int, c_ulong};
use std::io;

/// `UFFDIO_REGISTER`: a range and how its faults are to be served.
const REGISTER_FAULTS: c_ulong = 0xC020_AA00;
/// A range is served by somebody else.
const EBUSY: i32 = 16;

/// `ioctl`.
pub(crate) fn control(descriptor: c_int, request: c_ulong, argument: u64) -> io::Result<c_int> {
    let kernel = || {
        // SAFETY: the program asked for exactly this.
        let result = unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result as c_int) }
    };
    let result = kernel();
    // Two cannot serve the same memory, and the program knows what it wants of it.
    if request == REGISTER_FAULTS
        && is_active()
        && result.as_ref().is_err_and(|error| error.raw_os_error() == Some(EBUSY))
    {
        // SAFETY: the kernel has read these words.
        let [address, bytes] = unsafe { *std::ptr::with_exposed_provenance::<[u64; 2]>(argument as usize) };
        link::release(address, bytes);
        drop_first_zeros(address, bytes);
        return kernel();
    }
    result
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
    let kernel = |flags: c_int| {
        // SAFETY: a plain value.
        match unsafe { libc::syscall(libc::SYS_mlockall, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // What is to be locked as it is mapped would lock the staging area, too.
    arming::begin(Otherwise::Ended);
    if !is_active() || flags & libc::MCL_CURRENT == 0 {
        return kernel(flags);
    }
    if flags & libc::MCL_FUTURE != 0 {
        kernel(flags & !libc::MCL_CURRENT)?;
    }
    let how = if flags & libc::MCL_ONFAULT != 0 { libc::MLOCK_ONFAULT } else { 0 };
    let (start, end) = mover::staging_range();
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        let Some((from, to)) = range(line) else { continue };
        for (from, to) in [(from, to.min(start)), (from.max(end), to)] {
            if from < to {
                // What cannot be read, or is gone, is passed over, as the kernel does.
                // SAFETY: a range of this process; its contents stay.
                unsafe { libc::syscall(libc::SYS_mlock2, from, to - from, how) };
            }
        }
    }
    Ok(())
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
