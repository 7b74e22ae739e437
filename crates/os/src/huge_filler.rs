//! Huge pages that appear whole in a file, copied in through the node's own armed mapping.
//!
//! hugetlbfs has no `write`. A store through a mapping makes a cleared page visible first: 95 us of clearing for each
//! 2 MiB, and every reader must be kept away by minor faults until the bytes are in. Here the node arms its own mapping
//! and answers its own missing pages with `UFFDIO_COPY`: the kernel takes a page, copies the bytes and only then puts
//! it into the file. Nothing is cleared, nobody sees half a page, and a program that touches the page later is served
//! by the kernel alone.

use crate::error::OsError;
use crate::mapping::{MapOptions, Mapping};
use crate::memory_file::{MemoryFile, PageKind};
use crate::userfault::{FaultModes, Features, Userfault};
use crate::{HUGE_PAGE_BYTES, mapping};

/// Fills one file of huge pages. May be used from several threads at once, each for pages of its own.
#[derive(Debug)]
pub struct HugeFiller {
    fault: Userfault,
    mapping: Mapping,
}

impl HugeFiller {
    /// Maps and arms the whole file. Nobody may touch that mapping: its missing pages are filled, never served.
    ///
    /// # Errors
    /// [`OsError::Unsupported`] for other pages; the refusal of userfaultfd or of the mapping.
    pub fn new(file: &MemoryFile) -> Result<Self, OsError> {
        if file.kind() != PageKind::Huge2M {
            return Err(OsError::Unsupported {
                operation: "filling huge pages",
                reason: format!("the file has {} pages", file.kind()),
                hint: "write into such a file instead".into(),
            });
        }
        let bytes = usize::try_from(file.len()).unwrap_or(usize::MAX);
        let mapping = file.map(0, bytes, MapOptions { write: true, ..MapOptions::default() })?;
        let fault = Userfault::open(Features::MISSING_HUGETLBFS)?;
        let modes = FaultModes { missing: true, ..FaultModes::default() };
        fault.register(mapping.address(), file.len(), modes)?;
        Ok(Self { fault, mapping })
    }

    /// Makes the pages from `offset` on with the bytes of `source`; both must be multiples of 2 MiB. Pages that are in
    /// the file already stay as they are.
    ///
    /// # Errors
    /// [`OsError::Misaligned`], [`OsError::OutOfBounds`]; `ENOMEM` without huge pages.
    pub fn copy(&self, offset: u64, source: &[u8]) -> Result<(), OsError> {
        let page_bytes = HUGE_PAGE_BYTES as u64;
        let bytes = source.len() as u64;
        mapping::check_multiple("start of huge pages", offset, page_bytes)?;
        mapping::check_multiple("length of huge pages", bytes, page_bytes)?;
        let limit = self.mapping.len() as u64;
        if offset > limit || bytes > limit - offset {
            return Err(OsError::OutOfBounds { offset, bytes, limit });
        }
        let address = self.mapping.address() + offset;
        // SAFETY: the source is a live slice of `bytes` bytes.
        unsafe { self.fault.copy(address, source.as_ptr(), bytes, page_bytes) }.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huge_pages::HugePageCounts;

    #[test]
    fn a_filled_page_shows_its_bytes_in_another_mapping_and_a_hole_can_be_filled_again() {
        let page = HUGE_PAGE_BYTES as u64;
        if HugePageCounts::read().map_or(0, |counts| counts.obtainable()) < 2 {
            eprintln!("no huge pages on this machine: nothing to check");
            return;
        }
        let file = MemoryFile::anonymous("huge-filler-test", 2 * page, PageKind::Huge2M).unwrap();
        let filler = HugeFiller::new(&file).unwrap();
        let reader = std::sync::Arc::new(file.map(0, 2 * HUGE_PAGE_BYTES, MapOptions::default()).unwrap());
        for value in [7, 9] {
            filler.copy(page, &vec![value; HUGE_PAGE_BYTES]).unwrap();
            let mut seen = [0; 2];
            reader.slice().read_at(2 * HUGE_PAGE_BYTES - 2, &mut seen).unwrap();
            assert_eq!(seen, [value; 2]);
            file.punch(page, page).unwrap();
        }
        assert!(matches!(filler.copy(1, &[0; 4096]), Err(OsError::Misaligned { .. })));
        assert!(matches!(filler.copy(2 * page, &vec![0; HUGE_PAGE_BYTES]), Err(OsError::OutOfBounds { .. })));
    }
}
