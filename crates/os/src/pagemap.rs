//! Which pages of an address range are present (`PAGEMAP_SCAN`), and letting go of them.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use crate::BASE_PAGE_BYTES;
use crate::error::{OsError, check};
use crate::mapping::check_multiple;

/// What a page can be, and one call of the kernel that finds such pages.
pub mod scan {
    use std::io;
    use std::os::fd::{AsRawFd, BorrowedFd};

    /// Written since write tracking was armed.
    pub const WRITTEN: u64 = 1 << 1;
    /// Of a file.
    pub const FILE: u64 = 1 << 2;
    /// In the page table.
    pub const PRESENT: u64 = 1 << 3;
    /// In a swap device, or just being moved to another place in memory by the kernel.
    pub const SWAPPED: u64 = 1 << 4;
    /// Mapped as a huge page.
    pub const HUGE: u64 = 1 << 6;

    /// `_IOWR('f', 16, struct pm_scan_arg)`.
    const PAGEMAP_SCAN: libc::Ioctl = 0xC060_6610u32 as libc::Ioctl;

    /// Which pages are looked for, and what is said of them.
    #[derive(Clone, Copy, Default, Debug)]
    pub struct Wanted {
        /// All of these, each as `inverted` says.
        pub all: u64,
        /// One of these at least; 0 for none.
        pub any: u64,
        /// What a page must not be.
        pub inverted: u64,
        /// What is said of each run.
        pub told: u64,
        /// Most pages; 0 for no limit.
        pub pages_max: u64,
    }

    /// `struct page_region` of `linux/fs.h`: neighbouring pages of one kind.
    #[repr(C)]
    #[derive(Clone, Copy, Default, Debug)]
    pub struct Run {
        /// Address of the first byte.
        pub start: u64,
        /// One past the last.
        pub end: u64,
        /// What they are, of what was to be told.
        pub categories: u64,
    }

    /// `struct pm_scan_arg` of `linux/fs.h`.
    #[repr(C)]
    #[derive(Default)]
    struct Arguments {
        size: u64,
        flags: u64,
        start: u64,
        end: u64,
        walk_end: u64,
        vector: u64,
        vector_entries: u64,
        pages_max: u64,
        category_inverted: u64,
        category_mask: u64,
        category_any_of_mask: u64,
        return_mask: u64,
    }

    const _: () = assert!(size_of::<Arguments>() == 96);
    const _: () = assert!(size_of::<Run>() == 24);

    /// One call: fills `found`, and returns how many runs it found and up to which address it looked. Allocates nothing.
    ///
    /// # Errors
    /// `ENOTTY` on kernels before 6.7.
    pub fn once(
        pagemap: BorrowedFd<'_>,
        (start, end): (u64, u64),
        wanted: &Wanted,
        found: &mut [Run],
    ) -> io::Result<(usize, u64)> {
        let mut arguments = Arguments {
            size: size_of::<Arguments>() as u64,
            start,
            end,
            vector: found.as_mut_ptr().expose_provenance() as u64,
            vector_entries: found.len() as u64,
            pages_max: wanted.pages_max,
            category_inverted: wanted.inverted,
            category_mask: wanted.all,
            category_any_of_mask: wanted.any,
            return_mask: wanted.told,
            ..Arguments::default()
        };
        // SAFETY: the argument block is live and of the size that it says; the vector has the entries that it says.
        let result = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
        match usize::try_from(result) {
            Ok(count) => Ok((count.min(found.len()), arguments.walk_end)),
            Err(_) => Err(io::Error::last_os_error()),
        }
    }
}

/// Runs taken from the kernel in one call.
const RUNS_PER_CALL: usize = 256;

/// Neighbouring pages that are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresentRun {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes, a multiple of the base page.
    pub bytes: u64,
    /// Whether they are mapped as huge pages.
    pub huge: bool,
    /// Whether they were written since write tracking was armed (always set where it is not armed).
    pub written: bool,
}

/// The page table of a process, to be asked.
#[derive(Debug)]
pub struct PageMap {
    descriptor: File,
}

impl PageMap {
    /// That of this process.
    ///
    /// # Errors
    /// The refusal of `open`.
    pub fn of_self() -> Result<Self, OsError> {
        Self::open("/proc/self/pagemap")
    }

    /// That of another process.
    ///
    /// # Errors
    /// `EACCES` for the process of another user without `CAP_SYS_PTRACE`, `ENOENT` if there is none.
    pub fn of_process(process: i32) -> Result<Self, OsError> {
        Self::open(&format!("/proc/{process}/pagemap"))
    }

    /// Appends the runs of present pages between `address` and `address + bytes` to `runs`. Pages that are in a swap device, or that the
    /// kernel is just moving to another place, count as present: they have content.
    ///
    /// # Errors
    /// [`OsError::Misaligned`]; [`OsError::Unsupported`] on kernels before 6.7.
    pub fn present(&self, address: u64, bytes: u64, runs: &mut Vec<PresentRun>) -> Result<(), OsError> {
        check_multiple("address of a scan", address, BASE_PAGE_BYTES as u64)?;
        check_multiple("length of a scan", bytes, BASE_PAGE_BYTES as u64)?;
        let wanted = scan::Wanted {
            any: scan::PRESENT | scan::SWAPPED,
            told: scan::PRESENT | scan::HUGE | scan::WRITTEN,
            ..scan::Wanted::default()
        };
        let mut found = [scan::Run::default(); RUNS_PER_CALL];
        let end = address.saturating_add(bytes);
        let mut start = address;
        while start < end {
            let scanned = scan::once(self.descriptor.as_fd(), (start, end), &wanted, &mut found);
            let (count, walked_to) = scanned.map_err(|error| match error.raw_os_error() {
                Some(libc::ENOTTY) => needs_newer_kernel(),
                _ => {
                    let what = format!("{bytes} bytes at {address:#x}");
                    OsError::system("ioctl(PAGEMAP_SCAN)", what, error)
                }
            })?;
            runs.extend(found[..count].iter().map(|run| PresentRun {
                address: run.start,
                bytes: run.end - run.start,
                huge: run.categories & scan::HUGE != 0,
                written: run.categories & scan::WRITTEN != 0,
            }));
            if walked_to <= start {
                break;
            }
            start = walked_to;
        }
        Ok(())
    }

    /// Bytes of the range that are present.
    ///
    /// # Errors
    /// As [`present`](Self::present).
    pub fn present_bytes(&self, address: u64, bytes: u64) -> Result<u64, OsError> {
        let mut runs = Vec::new();
        self.present(address, bytes, &mut runs)?;
        Ok(runs.iter().map(|run| run.bytes).sum())
    }

    /// Whether the address space still exists. It is the one of the moment in which the map was made: one that has since ended, or
    /// become another program, has no pages, and a scan does not tell that from pages that were never there.
    pub fn is_alive(&self) -> bool {
        let mut entry = [0u8; 8];
        // The kernel reads nothing of an address space without users.
        self.descriptor.read_at(&mut entry, 0).is_ok_and(|bytes| bytes == entry.len())
    }

    fn open(path: &str) -> Result<Self, OsError> {
        let file = File::open(path).map_err(|error| OsError::system("open", path, error))?;
        Ok(Self { descriptor: file })
    }
}

fn needs_newer_kernel() -> OsError {
    OsError::Unsupported {
        operation: "asking which pages are present",
        reason: "this kernel has no PAGEMAP_SCAN".to_owned(),
        hint: "use a kernel from 6.7 on".into(),
    }
}

/// Unmaps the pages of a range of a shared file mapping (`MADV_DONTNEED`): the file keeps its bytes, and the next touch
/// faults.
///
/// # Safety
/// The range must be a shared mapping of a file. In private or anonymous memory the bytes would be lost, under whoever
/// uses them.
///
/// # Errors
/// [`OsError::Misaligned`], or the refusal of `madvise`.
pub unsafe fn advise_dont_need(address: u64, bytes: u64) -> Result<(), OsError> {
    check_multiple("address to let go of", address, BASE_PAGE_BYTES as u64)?;
    let start = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the caller promises a shared file mapping, whose contents this does not change.
    let result = unsafe { libc::madvise(start, bytes as usize, libc::MADV_DONTNEED) };
    check(result, "madvise(MADV_DONTNEED)", || format!("{bytes} bytes at {address:#x}")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MapOptions, MemoryFile, PageKind};
    use std::sync::Arc;

    #[test]
    fn exactly_the_touched_pages_are_present_until_they_are_let_go_of() {
        let file = MemoryFile::anonymous("present", 1 << 20, PageKind::Base4K).unwrap();
        let options = MapOptions { write: true, ..MapOptions::default() };
        let mapping = Arc::new(file.map(0, 1 << 20, options).unwrap());
        let (start, page) = (mapping.address(), BASE_PAGE_BYTES as u64);
        let slice = mapping.slice();
        for index in [0usize, 1, 7, 255] {
            slice.write_at(index * BASE_PAGE_BYTES, &[1]).unwrap();
        }
        let map = PageMap::of_self().unwrap();
        let mut runs = Vec::new();
        map.present(start, 1 << 20, &mut runs).unwrap();
        let places: Vec<_> =
            runs.iter().map(|run| ((run.address - start) / page, run.bytes / page)).collect();
        assert_eq!(places, [(0, 2), (7, 1), (255, 1)]);
        // SAFETY: the range is a shared mapping of a file.
        unsafe { advise_dont_need(start, 2 * page) }.unwrap();
        assert_eq!(map.present_bytes(start, 1 << 20).unwrap(), 2 * page);
        assert_eq!(slice.load_u64(0).unwrap(), 1);
        assert!(map.present(start + 1, page, &mut runs).is_err());
    }

    #[test]
    fn an_address_space_is_alive_until_its_process_ends() {
        let mut process =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let map = PageMap::of_process(process.id() as i32).unwrap();
        assert!(map.is_alive());
        drop(process.stdin.take());
        process.wait().unwrap();
        assert!(!map.is_alive());
    }

    #[test]
    fn more_runs_than_one_call_returns_are_all_found() {
        let mapping = Arc::new(crate::Mapping::anonymous(4 << 20, false).unwrap());
        for index in (0..1024).step_by(2) {
            mapping.slice().write_at(index * BASE_PAGE_BYTES, &[1]).unwrap();
        }
        let mut runs = Vec::new();
        PageMap::of_self().unwrap().present(mapping.address(), 4 << 20, &mut runs).unwrap();
        assert_eq!(runs.len(), 512);
    }
}
