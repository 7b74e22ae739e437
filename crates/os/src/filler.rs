//! Pages that appear whole in a file, copied in through the node's own armed mapping.
//!
//! While one process fills a page of a file, others have the file mapped and touch the page at any moment. If the page
//! enters the page cache before its bytes are in it, a reader sees zeros. Both ways to write a file do that: a store
//! through a mapping shows a cleared page first (and clears 2 MiB for 95 us), and a plain `write` copies with page
//! faults disabled, so that a source page that happens to be absent cuts it short, with the rest of the new page zeroed
//! and declared up to date. Here the node arms its own mapping and answers its own missing pages with `UFFDIO_COPY`:
//! the kernel takes a page, copies the bytes, repeats that if the copy was cut short, and only then puts the page into
//! the file. Nothing is cleared, nobody sees half a page, and a program that touches it later is served by the kernel
//! alone.
//!
//! Costs beside other ways: `cargo run --release -p hinterland-os --example costs`.

use crate::error::OsError;
use crate::mapping::check_multiple;
use crate::mapping::{MapOptions, Mapping};
use crate::memory_file::{MemoryFile, PageKind};
use crate::pagemap::PageMap;
use crate::userfault::{FaultModes, Features, Userfault};

/// Fills one file. May be used from several threads at once, each for pages of its own.
#[derive(Debug)]
pub struct PageFiller {
    fault: Userfault,
    mapping: Mapping,
    page_bytes: u64,
}

impl PageFiller {
    /// Maps and arms the whole file. Nobody may touch that mapping: its missing pages are filled, never served.
    ///
    /// # Errors
    /// [`OsError::Unsupported`] for pages that the kernel might make larger than asked for (tmpfs with huge pages) or that
    /// are always there (devices); the refusal of userfaultfd or of the mapping.
    pub fn new(file: &MemoryFile) -> Result<Self, OsError> {
        let features = match file.kind() {
            PageKind::Huge2M => Features::MISSING_HUGETLBFS,
            PageKind::Base4K => Features::MISSING_SHMEM,
            PageKind::TransparentHuge | PageKind::Device => {
                return Err(OsError::Unsupported {
                    operation: "filling pages",
                    reason: format!("the file has {} pages", file.kind()),
                    hint: "write into such a file instead".into(),
                });
            }
        };
        let bytes = usize::try_from(file.len()).unwrap_or(usize::MAX);
        let mapping = file.map(0, bytes, MapOptions { write: true, ..MapOptions::default() })?;
        let fault = Userfault::open(features)?;
        let modes = FaultModes { missing: true, ..FaultModes::default() };
        fault.register(mapping.address(), file.len(), modes)?;
        Ok(Self { fault, mapping, page_bytes: file.kind().page_bytes() })
    }

    /// Makes the pages from `offset` on with the bytes of `source`; both must be multiples of the file's pages. Pages that
    /// this filler has made already stay as they are.
    ///
    /// # Errors
    /// [`OsError::Misaligned`], [`OsError::OutOfBounds`]; `ENOMEM` without memory for a page.
    pub fn copy(&self, offset: u64, source: &[u8]) -> Result<(), OsError> {
        let bytes = source.len() as u64;
        check_multiple("start of a fill", offset, self.page_bytes)?;
        check_multiple("length of a fill", bytes, self.page_bytes)?;
        let limit = self.mapping.len() as u64;
        if offset > limit || bytes > limit - offset {
            return Err(OsError::OutOfBounds { offset, bytes, limit });
        }
        let address = self.mapping.address() + offset;
        // SAFETY: the source is a live slice of `bytes` bytes.
        let filled = unsafe { self.fault.copy(address, source.as_ptr(), bytes, self.page_bytes) }?;
        if filled.present_bytes > 0 && self.page_bytes > crate::BASE_PAGE_BYTES as u64 {
            return self.check_made(address, bytes);
        }
        Ok(())
    }

    /// Looks whether pages are there of which the kernel says so. Where no huge page is to be had, Linux (6.18) refuses a copy
    /// not with `ENOMEM` but with `EEXIST`, as if somebody had made the page: it looks for a page table, which the attempt itself
    /// has made. Whoever believed that would show zeros. What this mapping has made is in its page table.
    #[cold]
    fn check_made(&self, address: u64, bytes: u64) -> Result<(), OsError> {
        if PageMap::of_self()?.present_bytes(address, bytes)? == bytes {
            return Ok(());
        }
        let error = std::io::Error::from_raw_os_error(libc::ENOMEM);
        let hint = "no huge page can be had: raise vm.nr_overcommit_hugepages, or do without them";
        Err(OsError::system("copying pages", format!("{bytes} bytes of huge pages"), error).with_hint(hint))
    }
}

#[cfg(test)]
mod tests;
