//! Putting a file into the address space so that no thread ever touches it before its faults are served.
//!
//! A mapping that is to be armed is made without access, kept from children, registered, and only then opened. Where
//! something is in place already that threads may touch at any moment, the new mapping is made and armed elsewhere and
//! then moved over the old one in one step.

use crate::error::RegionError;
use crate::system::{self, Extent, MapCall};
use hinterland_os::Userfault;
use hinterland_os::userfault::FaultModes;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Where to put a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    /// Where the kernel likes.
    Anywhere,
    /// There, if nothing is there.
    Free(u64),
    /// There, in place of what is there.
    Over(u64),
}

/// A part of a file.
#[derive(Clone, Copy)]
pub(crate) struct FilePart<'a> {
    /// The file.
    pub file: BorrowedFd<'a>,
    /// Offset, a multiple of the file's page.
    pub offset: u64,
    /// Length, a multiple of the file's page.
    pub bytes: u64,
}

/// Maps a part of a file that has all its bytes.
///
/// # Errors
/// [`RegionError::System`].
pub(crate) fn put_plain(
    part: FilePart<'_>,
    spot: Spot,
    protection: i32,
    shared: bool,
) -> Result<Extent, RegionError> {
    let kind = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
    map(part, spot, protection, kind | libc::MAP_NORESERVE)
}

/// Maps a part of a file whose faults `guard` is to serve.
///
/// The mapping is private whatever the program asked for: the kernel arms shared mappings only of files that may be
/// written, and a program that wrote to a cache file would write into the memory of others. For reading there is no
/// difference: the pages are those of the file.
///
/// # Errors
/// [`RegionError::System`] or [`RegionError::Os`]; nothing is left in place then.
pub(crate) fn put_armed(
    part: FilePart<'_>,
    spot: Spot,
    protection: i32,
    guard: &Userfault,
    modes: FaultModes,
) -> Result<Extent, RegionError> {
    let extent = map(part, spot, libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_NORESERVE)?;
    arm(extent, protection, guard, modes).inspect_err(|_| {
        // SAFETY: the range was mapped above and nobody knows of it.
        let _ = unsafe { system::unmap(extent.address, extent.bytes) };
    })?;
    Ok(extent)
}

/// Reserves a range whose touches wait until something is moved over it. For a forked child, in which nothing is there.
///
/// # Errors
/// [`RegionError::System`] or [`RegionError::Os`].
pub(crate) fn put_waiting(extent: Extent, protection: i32, guard: &Userfault) -> Result<(), RegionError> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let call = MapCall {
        address: extent.address,
        bytes: extent.bytes,
        protection: libc::PROT_NONE,
        flags,
        descriptor: -1,
        offset: 0,
    };
    // SAFETY: the range is of the pool, by the table, and was kept from this child.
    unsafe { system::map(call) }.map_err(|error| RegionError::system("mmap", extent, error))?;
    arm(extent, protection, guard, FaultModes { missing: true, ..FaultModes::default() })
}

/// Gives a range up: every touch of it is SIGBUS from here on, at once for all threads. Without a descriptor for that, it
/// is SIGSEGV.
pub(crate) fn put_lost(extent: Extent) {
    let file = system::empty_file();
    let call = |descriptor| MapCall {
        address: extent.address,
        bytes: extent.bytes,
        protection: libc::PROT_READ,
        flags: libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
        descriptor,
        offset: 0,
    };
    // SAFETY: the range is of the pool, by the table.
    let mapped = file.as_ref().is_ok_and(|file| unsafe { system::map(call(*file)) }.is_ok());
    if !mapped {
        // SAFETY: as above. If even this is refused, the range is not mapped any more.
        let _ = unsafe { system::protect(extent.address, extent.bytes, libc::PROT_NONE) };
    }
    if let Ok(file) = file {
        // SAFETY: made above; the mapping keeps the file.
        unsafe { system::close(file) };
    }
}

/// Moves a mapping over another one; the kernel exchanges them in one step. If the mapping is armed, somebody must read
/// the events of its descriptor meanwhile.
///
/// # Errors
/// [`RegionError::System`]; the mapping stays where it is then.
pub(crate) fn move_over(from: Extent, target: u64) -> Result<(), RegionError> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: both ranges are of the pool: one was made by the caller, the other is in the table.
    unsafe { system::remap(from.address, from.bytes, from.bytes, flags, target) }
        .map(drop)
        .map_err(|error| RegionError::system("mremap", from, error))
}

fn map(part: FilePart<'_>, spot: Spot, protection: i32, flags: i32) -> Result<Extent, RegionError> {
    let (address, how) = match spot {
        Spot::Anywhere => (0, 0),
        Spot::Free(address) => (address, libc::MAP_FIXED_NOREPLACE),
        Spot::Over(address) => (address, libc::MAP_FIXED),
    };
    let call = MapCall {
        address,
        bytes: part.bytes,
        protection,
        flags: flags | how,
        descriptor: part.file.as_raw_fd(),
        offset: part.offset,
    };
    let wanted = Extent { address, bytes: part.bytes };
    // SAFETY: `Over` is used for ranges that the program named for replacement or that the table says are the pool's.
    let got = unsafe { system::map(call) }.map_err(|error| RegionError::system("mmap", wanted, error))?;
    let extent = Extent { address: got, bytes: part.bytes };
    if matches!(spot, Spot::Free(_)) && got != address {
        // A kernel that does not know the flag takes the address for a hint.
        // SAFETY: the range was mapped above and nobody knows of it.
        let _ = unsafe { system::unmap(got, part.bytes) };
        let taken = std::io::Error::from_raw_os_error(libc::EEXIST);
        return Err(RegionError::system("mmap", wanted, taken));
    }
    Ok(extent)
}

/// Keeps a range without access from children, has its faults served, and opens it.
fn arm(extent: Extent, protection: i32, guard: &Userfault, modes: FaultModes) -> Result<(), RegionError> {
    // SAFETY: the caller has just mapped the range; the advice changes only what a child inherits.
    unsafe { system::advise(extent.address, extent.bytes, libc::MADV_DONTFORK) }
        .map_err(|error| RegionError::system("madvise(MADV_DONTFORK)", extent, error))?;
    guard.register(extent.address, extent.bytes, modes)?;
    // SAFETY: as above.
    unsafe { system::protect(extent.address, extent.bytes, protection) }
        .map_err(|error| RegionError::system("mprotect", extent, error))
}
