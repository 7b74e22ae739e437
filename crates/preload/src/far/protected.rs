//! Memory that the program has forbidden itself to write leaves as well.
//!
//! The kernel moves pages out of memory that may be written, and out of no other. So what may not be written may be for the moment of the move, while the
//! userfaultfd that the supervisor serves protects each page of it in place of the program. Who writes there meanwhile waits for the supervisor, which
//! serves nobody before the move is over, and meets the program's own protection then. Nobody changes the protection meanwhile, for which
//! the layout lock is taken, and nobody forks, since the child would find it open.
//!
//! What the program may not even read stays: nothing would hold back who reads it at that moment, and is to be told that it is closed.
//!
//! Allocates nothing: this is the reclaim thread's.

use super::layout;
use hinterland_os::Userfault;
use hinterland_os::mappings::{self, Mapping};
use libc::c_int;
use std::cell::OnceCell;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

/// Attempts at giving the program its protection back: the kernel refuses only for want of a few hundred bytes.
const RESTORES_MAX: u32 = 10_000;

/// What it takes, in a table of descriptors that the program does not have.
pub(super) struct Protected {
    /// The userfaultfd that the supervisor serves.
    served: OwnedFd,
    /// The mappings of this process, once they were asked for; none where they cannot be told.
    maps: OnceCell<Option<OwnedFd>>,
}

impl Protected {
    pub(super) const fn new(served: OwnedFd) -> Self {
        Self { served, maps: OnceCell::new() }
    }

    /// The mapping that an address lies in, where the kernel tells one by one.
    pub(super) fn mapping(&self, address: u64) -> Option<Mapping> {
        let maps = self.maps.get_or_init(open_maps).as_ref()?;
        mappings::at(maps.as_fd(), address)
    }

    /// Does something while a part of a mapping may be written. The caller has the layout lock.
    ///
    /// # Errors
    /// `EAGAIN` if it cannot be done now, `EINVAL` if it never can: the program has sealed the mapping (`mseal`).
    pub(super) fn while_open<T>(
        &self,
        mapping: Mapping,
        (address, bytes): (u64, u64),
        work: impl FnOnce() -> T,
    ) -> Result<T, c_int> {
        if !may_be_open(mapping) {
            return Err(libc::EINVAL);
        }
        if layout::is_forking() || !Userfault::protect_by(self.served.as_fd(), address, bytes) {
            return Err(libc::EAGAIN);
        }
        if !protect(address, bytes, libc::PROT_READ | libc::PROT_WRITE) {
            // SAFETY: the C library gives every thread an errno.
            let errno = unsafe { *libc::__errno_location() };
            return Err(if errno == libc::EPERM { libc::EINVAL } else { libc::EAGAIN });
        }
        let result = work();
        for _ in 0..RESTORES_MAX {
            if protect(address, bytes, libc::PROT_READ) {
                return Ok(result);
            }
            // SAFETY: gives the processor away.
            unsafe { libc::sched_yield() };
        }
        end()
    }
}

/// Whether a mapping may be written for a moment: one that may be read, and no more. Code is left alone: not everybody may make memory executable again.
const fn may_be_open(mapping: Mapping) -> bool {
    mapping.read && !mapping.write && !mapping.execute && mapping.is_private
}

fn open_maps() -> Option<OwnedFd> {
    // SAFETY: a constant with its NUL.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/proc/self/maps".as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    // SAFETY: the descriptor is fresh and owned by nobody else.
    c_int::try_from(opened).ok().filter(|raw| *raw >= 0).map(|raw| unsafe { OwnedFd::from_raw_fd(raw) })
}

fn protect(address: u64, bytes: u64, protection: c_int) -> bool {
    // SAFETY: memory of the program; the caller gives it the protection that the program has asked for again.
    unsafe { libc::syscall(libc::SYS_mprotect, address, bytes, protection) == 0 }
}

/// Ends a program that could write where it has forbidden itself to.
fn end() -> ! {
    super::mover::say(
        b"hinterland: the kernel refuses to protect memory of this program again, which is ended (hint: free memory)\n",
    );
    loop {
        // SAFETY: ends this process, at once and whatever the program thinks of signals.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
}
