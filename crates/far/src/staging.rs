//! What a reclaim thread has moved into its staging area, read back with one call for a whole batch.

use crate::peer::living;
use hinterland_os::OsError;
use hinterland_os::pagemap::{PageMap, PresentRun};
use hinterland_os::remote_memory;
use std::ops::Range;
use std::sync::Arc;

const ESRCH: i32 = 3;

/// A part of a staging area. The buffer is used again: new memory costs more than what is read into it.
#[derive(Default)]
pub(crate) struct Staged {
    area: u64,
    present: Vec<PresentRun>,
    /// What was read last.
    content: Arc<Vec<u8>>,
    /// What was read before, which others may still use.
    past: Vec<Arc<Vec<u8>>>,
}

impl Staged {
    /// Looks which pages of a range of the area at `area` are there.
    ///
    /// # Errors
    /// The refusal of the scan; then nothing counts as there.
    pub(crate) fn look(&mut self, pages: &PageMap, area: u64, range: Range<u64>) -> Result<(), OsError> {
        self.area = area;
        self.present.clear();
        let scanned = pages.present(area + range.start, range.end - range.start, &mut self.present);
        if scanned.is_err() {
            self.present.clear();
        }
        scanned
    }

    /// How far into a range of the area the last page reaches that is there.
    pub(crate) fn reach(&self, range: Range<u64>) -> u64 {
        let (from, to) = (self.area + range.start, self.area + range.end);
        let ends = self.present.iter().filter(|run| run.address < to && run.address + run.bytes > from);
        ends.map(|run| (run.address + run.bytes).min(to) - from).max().unwrap_or(0)
    }

    /// Reads the pages of these ranges that are there, with as few calls as can be; the others are zeros. The ranges are in order,
    /// and were looked at.
    ///
    /// # Errors
    /// The refusal of `process_vm_readv`.
    pub(crate) fn read(&mut self, process: i32, ranges: &[Range<u64>]) -> Result<(), OsError> {
        let (area, present) = (self.area, std::mem::take(&mut self.present));
        let end = ranges.last().map_or(0, |range| range.end);
        let mut parts = Vec::with_capacity(ranges.len());
        // At most a staging area of some MiB.
        let mut rest = self.buffer(end as usize);
        let mut at = 0;
        let mut runs = present.iter().map(|run| {
            let start = run.address.saturating_sub(area);
            start..run.address + run.bytes - area
        });
        let mut run = runs.next();
        for range in ranges {
            let mut from = range.start;
            while from < range.end {
                // The next page that is there, and how far they go on.
                while run.as_ref().is_some_and(|run| run.end <= from) {
                    run = runs.next();
                }
                let (start, end) = run.as_ref().map_or((range.end, range.end), |run| {
                    (run.start.clamp(from, range.end), run.end.min(range.end))
                });
                let (zeros, after) = skip(rest, at, from).split_at_mut((start - from) as usize);
                zeros.fill(0);
                let (part, after) = after.split_at_mut(end.saturating_sub(start) as usize);
                if !part.is_empty() {
                    parts.push((area + start, part));
                }
                (rest, at, from) = (after, end.max(start), end.max(start));
            }
        }
        let mut read = remote_memory::read_parts(process, &mut parts);
        if matches!(&read, Err(error) if error.errno() == Some(ESRCH)) {
            let other = living(process);
            if other != process {
                read = remote_memory::read_parts(other, &mut parts);
            }
        }
        self.present = present;
        read
    }

    /// A buffer that nobody uses any more, or a new one.
    fn buffer(&mut self, bytes: usize) -> &mut [u8] {
        if Arc::get_mut(&mut self.content).is_none() {
            let unused = self.past.iter_mut().position(|buffer| Arc::get_mut(buffer).is_some());
            let buffer = unused.map(|index| self.past.swap_remove(index)).unwrap_or_default();
            self.past.push(std::mem::replace(&mut self.content, buffer));
        }
        // Nobody else has it: nothing is copied.
        let content = Arc::make_mut(&mut self.content);
        if content.len() < bytes {
            content.resize(bytes, 0);
        }
        content
    }

    /// What was read; places in the area are places in here. Whoever keeps it has the next read make another one.
    pub(crate) const fn content(&self) -> &Arc<Vec<u8>> {
        &self.content
    }
}

/// What of a buffer that begins at `at` lies behind `from`.
fn skip(buffer: &mut [u8], at: u64, from: u64) -> &mut [u8] {
    &mut buffer[(from - at) as usize..]
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
        let pages = PageMap::of_self().unwrap();
        let mut staged = Staged { content: vec![9; 20 * PAGE as usize].into(), ..Staged::default() };
        staged.look(&pages, start, 0..8 * PAGE).unwrap();
        let reach = |from: u64, to: u64| staged.reach(from * PAGE..to * PAGE) / PAGE;
        assert_eq!(
            [reach(0, 8), reach(0, 1), reach(0, 2), reach(2, 3), reach(2, 5), reach(6, 8)],
            [6, 0, 2, 1, 1, 0]
        );
        let parts: [&[(u64, u64)]; 5] =
            [&[(0, 8)], &[(1, 2), (3, 8)], &[(0, 2), (4, 5), (7, 8)], &[(2, 6)], &[]];
        for ranges in parts {
            Arc::make_mut(&mut staged.content).fill(9);
            let bytes: Vec<_> = ranges.iter().map(|(from, to)| from * PAGE..to * PAGE).collect();
            staged.read(own, &bytes).unwrap();
            for page in ranges.iter().flat_map(|(from, to)| *from..*to) {
                let expected = if [1, 2, 5].contains(&page) { page as u8 } else { 0 };
                let content = &staged.content()[(page * PAGE) as usize..][..PAGE as usize];
                assert!(content.iter().all(|byte| *byte == expected), "page {page}");
            }
        }
        let whole = 0..8 * PAGE;
        assert!(staged.read(i32::MAX, std::slice::from_ref(&whole)).is_err());
        assert!(staged.look(&pages, start + 1, 0..PAGE).is_err());
        assert_eq!(staged.reach(0..PAGE), 0);
    }
}
