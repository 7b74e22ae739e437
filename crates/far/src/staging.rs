//! What a reclaim thread has moved into its staging area, read back in one piece for each run of neighbours.

use hinterland_os::OsError;
use hinterland_os::pagemap::{PageMap, PresentRun};
use hinterland_os::remote_memory;
use std::ops::Range;

/// A part of a staging area. The buffer is used again: new memory costs more than what is read into it.
#[derive(Default)]
pub(crate) struct Staged {
    process: i32,
    start: u64,
    bytes: u64,
    present: Vec<PresentRun>,
    content: Vec<u8>,
}

impl Staged {
    /// Looks which pages of a part are there.
    ///
    /// # Errors
    /// The refusal of the scan; then nothing counts as there.
    pub(crate) fn look(&mut self, process: i32, start: u64, bytes: u64) -> Result<(), OsError> {
        (self.process, self.start, self.bytes) = (process, start, bytes);
        self.present.clear();
        let scanned =
            PageMap::of_process(process).and_then(|pages| pages.present(start, bytes, &mut self.present));
        if scanned.is_err() {
            self.present.clear();
        }
        scanned
    }

    /// How far into a range of it the last page reaches that is there.
    pub(crate) fn reach(&self, range: Range<u64>) -> u64 {
        let (from, to) = (self.start + range.start, self.start + range.end);
        let ends = self.present.iter().filter(|run| run.address < to && run.address + run.bytes > from);
        ends.map(|run| (run.address + run.bytes).min(to) - from).max().unwrap_or(0)
    }

    /// Reads the pages that are there; the others are zeros.
    ///
    /// # Errors
    /// The refusal of `process_vm_readv`.
    pub(crate) fn read(&mut self) -> Result<(), OsError> {
        // At most a staging area of some MiB.
        self.content.resize(self.bytes as usize, 0);
        let mut done = 0;
        for run in &self.present {
            let from = (run.address.saturating_sub(self.start) as usize).clamp(done, self.content.len());
            let to = ((run.address + run.bytes - self.start) as usize).clamp(from, self.content.len());
            self.content[done..from].fill(0);
            remote_memory::read(self.process, self.start + from as u64, &mut self.content[from..to])?;
            done = to;
        }
        self.content[done..].fill(0);
        Ok(())
    }

    /// What was read of a range.
    pub(crate) fn content(&self, range: Range<u64>) -> &[u8] {
        &self.content[range.start as usize..range.end as usize]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use hinterland_farplan::PAGE;
    use hinterland_os::{MapOptions, MemoryFile, PageKind};

    #[test]
    fn pages_that_are_there_are_read_and_the_others_are_zeros_whatever_was_read_before() {
        // Pages 1, 2 and 5 of eight.
        let file = MemoryFile::anonymous("staged", 8 * PAGE, PageKind::Base4K).unwrap();
        let options = MapOptions { write: true, ..MapOptions::default() };
        let mapping = file.map(0, 8 * PAGE as usize, options).unwrap();
        let mapping = std::sync::Arc::new(mapping);
        let (start, slice) = (mapping.address(), mapping.slice());
        for page in [1, 2, 5] {
            slice.write_at(page * PAGE as usize, &[page as u8; PAGE as usize]).unwrap();
        }
        let own = std::process::id() as i32;
        let mut staged = Staged { content: vec![9; 20 * PAGE as usize], ..Staged::default() };
        staged.look(own, start, 8 * PAGE).unwrap();
        let reach = |from: u64, to: u64| staged.reach(from * PAGE..to * PAGE) / PAGE;
        assert_eq!(
            [reach(0, 8), reach(0, 1), reach(0, 2), reach(2, 3), reach(2, 5), reach(6, 8)],
            [6, 0, 2, 1, 1, 0]
        );
        staged.read().unwrap();
        for page in 0..8u64 {
            let expected = if [1, 2, 5].contains(&page) { page as u8 } else { 0 };
            let content = staged.content(page * PAGE..(page + 1) * PAGE);
            assert!(content.iter().all(|byte| *byte == expected), "page {page}");
        }
        assert!(staged.look(i32::MAX, start, PAGE).is_err());
        assert_eq!(staged.reach(0..PAGE), 0);
    }
}
