//! The three clocks: one for intervals, one for what is believed for a while, one for dates.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since some fixed moment of this boot; the same in every process of the host, and never goes back. It stands still while
/// the machine is suspended: what others may take back after a time counts by [`boot_ns`].
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes a timespec of this frame; CLOCK_MONOTONIC always exists, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    // Both fields of a monotonic time are never negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds since this machine was started, with those in which it was suspended; the same in every process of the host, and never
/// goes back. Who holds a lease looks at this clock, for other machines do not wait for one that sleeps.
pub fn boot_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes a timespec of this frame; CLOCK_BOOTTIME exists since Linux 2.6.39, so the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    // Both fields of such a time are never negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The same in milliseconds.
pub fn boot_ms() -> u64 {
    boot_ns() / 1_000_000
}

/// Milliseconds since 1970; may jump when the clock of the machine is set.
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
