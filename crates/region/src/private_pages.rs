//! Pages that a program has written in a private mapping: finding them, and taking copies of them to a forked child.

use crate::error::RegionError;
use crate::space::Stretch;
use crate::system::{self, Extent, MapCall};
use hinterland_os::OsError;
use hinterland_os::pagemap::scan::{self, Run, Wanted};
use hinterland_types::limits::BASE_PAGE_BYTES;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Runs taken from the kernel in one call.
const RUNS_PER_CALL: usize = 64;

/// Which pages to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// In the page table, whatever they are.
    Present,
    /// In the page table and not of the file: written by this process. A page that the kernel is just moving to another place in memory is not
    /// in the page table for that moment.
    Private,
    /// Written by this process and swapped out, or just being moved, or marked as lost, or marked as protected.
    Swapped,
    /// Either of them, by one look: by two, one after the other, a page that is moved meanwhile can be missed twice.
    Own,
}

/// The page table of this process; opened where it is needed and not kept, since a program may close any number.
pub(crate) struct PageScan {
    file: OwnedFd,
}

impl PageScan {
    /// Opens it.
    ///
    /// # Errors
    /// [`RegionError::Os`] without `/proc`.
    pub fn open() -> Result<Self, RegionError> {
        let path = "/proc/self/pagemap";
        let file = File::open(path).map_err(|error| OsError::system("open", path, error))?;
        Ok(Self { file: file.into() })
    }

    /// Whether the range has such a page.
    ///
    /// # Errors
    /// `ENOTTY` on kernels before 6.7.
    pub fn has(&self, extent: Extent, which: Which) -> io::Result<bool> {
        let mut run = [Run::default()];
        self.scan(extent, which, &mut run, 1).map(|(found, _)| found > 0)
    }

    /// The runs of such pages, in order of address.
    ///
    /// # Errors
    /// `ENOTTY` on kernels before 6.7.
    pub fn runs(&self, extent: Extent, which: Which) -> io::Result<Vec<Extent>> {
        let (mut present, absent) = self.runs_by_presence(extent, which)?;
        present.extend(absent);
        Ok(present)
    }

    /// The runs of such pages that are in the page table, and of those that are not.
    fn runs_by_presence(&self, extent: Extent, which: Which) -> io::Result<(Vec<Extent>, Vec<Extent>)> {
        let (mut present, mut absent) = (Vec::new(), Vec::new());
        let mut start = extent.address;
        while start < extent.end() {
            let mut found = [Run::default(); RUNS_PER_CALL];
            let rest = Extent { address: start, bytes: extent.end() - start };
            let (count, walked_to) = self.scan(rest, which, &mut found, 0)?;
            for run in &found[..count] {
                let runs = if run.categories & scan::PRESENT == 0 { &mut absent } else { &mut present };
                runs.push(Extent { address: run.start, bytes: run.end - run.start });
            }
            if walked_to <= start {
                break;
            }
            start = walked_to;
        }
        Ok((present, absent))
    }

    fn scan(
        &self,
        extent: Extent,
        which: Which,
        found: &mut [Run],
        pages_max: u64,
    ) -> io::Result<(usize, u64)> {
        let (all, any, inverted) = match which {
            Which::Present => (scan::PRESENT, 0, 0),
            Which::Private => (scan::PRESENT | scan::FILE, 0, scan::FILE),
            Which::Swapped => (scan::SWAPPED | scan::FILE, 0, scan::FILE),
            Which::Own => (scan::FILE, scan::PRESENT | scan::SWAPPED, scan::FILE),
        };
        let wanted = Wanted { all, any, inverted, told: scan::PRESENT, pages_max };
        scan::once(self.file.as_fd(), (extent.address, extent.end()), &wanted, found)
    }
}

/// One private page on its way from a parent to a forked child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    /// Where it belongs.
    pub address: u64,
    /// Where its copy lies, in memory that the child inherits.
    pub copy: u64,
}

/// Copies the private pages of a stretch into memory that a child inherits.
///
/// # Errors
/// [`RegionError::System`] without memory or without `PAGEMAP_SCAN`.
pub(crate) fn carry(scan: &PageScan, stretch: &Stretch) -> Result<Vec<Carried>, RegionError> {
    let failed = |source| RegionError::system("scan for private pages", stretch.extent, source);
    let (present, swapped) = scan.runs_by_presence(stretch.extent, Which::Own).map_err(failed)?;
    let pages = present.iter().chain(&swapped).map(|run| run.bytes / BASE_PAGE_BYTES).sum::<u64>();
    if pages == 0 {
        return Ok(Vec::new());
    }
    let bytes = pages * BASE_PAGE_BYTES;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let call = MapCall { address: 0, bytes, protection, flags, descriptor: -1, offset: 0 };
    // SAFETY: the kernel chooses the place.
    let mut copy = unsafe { system::map(call) }.map_err(failed)?;
    let mut carried = Vec::with_capacity(pages as usize);
    for (runs, may_be_lost) in [(&present, false), (&swapped, true)] {
        for address in runs.iter().flat_map(|run| (run.address..run.end()).step_by(BASE_PAGE_BYTES as usize))
        {
            // Pages that are marked as lost refuse to be read; they are lost to the child as well.
            if copy_own_page(address, copy, may_be_lost) {
                carried.push(Carried { address, copy });
                copy += BASE_PAGE_BYTES;
            }
        }
    }
    Ok(carried)
}

/// Frees the copies of carried pages.
pub(crate) fn drop_carried(carried: &[Carried]) {
    for page in carried {
        // SAFETY: the page was mapped by `carry` and nobody reads it any more.
        let _ = unsafe { system::unmap(page.copy, BASE_PAGE_BYTES) };
    }
}

/// Copies a page of this process. One that may be lost goes by way of the kernel, which answers with an error where a
/// load would be a signal.
fn copy_own_page(address: u64, copy: u64, may_be_lost: bool) -> bool {
    let pointer = |address: u64| std::ptr::with_exposed_provenance_mut::<u8>(address as usize);
    let part =
        |address: u64| libc::iovec { iov_base: pointer(address).cast(), iov_len: BASE_PAGE_BYTES as usize };
    if may_be_lost {
        // SAFETY: the local page is mapped, writable and nobody else's; the kernel checks the remote address.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &part(copy), 1, &part(address), 1, 0) };
        if read == BASE_PAGE_BYTES as isize {
            return true;
        }
        if io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) {
            return false;
        }
    }
    // SAFETY: the page is in memory or in swap, in a mapping that the table lock keeps; the copy is nobody else's. A
    // thread of the program that writes it meanwhile races with its own fork, as it would without us.
    unsafe { std::ptr::copy_nonoverlapping(pointer(address), pointer(copy), BASE_PAGE_BYTES as usize) };
    true
}
