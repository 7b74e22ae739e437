//! Runs of pages, and the free ones among them: first fit, with neighbours joined.

use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{GlobalAddress, PageNumber};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Consecutive pages: never empty, never past the end of the address space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "(PageNumber, u32)", into = "(PageNumber, u32)")]
pub struct PageRun {
    first: PageNumber,
    count: u32,
}

/// A run that is empty or ends behind the address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{count} pages from page {first} are not a run (hint: at least one page, and none at {} or above)",
    PageNumber::COUNT
)]
pub struct BadRun {
    first: u32,
    count: u32,
}

impl PageRun {
    /// Makes a run.
    ///
    /// # Errors
    /// [`BadRun`] if it is empty or ends behind the address space.
    pub fn new(first: PageNumber, count: u32) -> Result<Self, BadRun> {
        match first.raw().checked_add(count) {
            Some(end) if count > 0 && end <= PageNumber::COUNT => Ok(Self { first, count }),
            _ => Err(BadRun { first: first.raw(), count }),
        }
    }

    /// The first page.
    pub const fn first(self) -> PageNumber {
        self.first
    }

    /// How many pages, at least 1.
    pub const fn count(self) -> u32 {
        self.count
    }

    /// The address of the first byte.
    pub const fn address(self) -> GlobalAddress {
        self.first.address()
    }

    /// Whether the page is one of these.
    pub const fn contains(self, page: PageNumber) -> bool {
        page.raw() >= self.first.raw() && page.raw() < self.end()
    }

    /// Every page, ascending.
    pub fn iter(self) -> impl Iterator<Item = PageNumber> {
        (self.first.raw()..self.end()).filter_map(PageNumber::new)
    }

    const fn end(self) -> u32 {
        self.first.raw() + self.count
    }
}

impl TryFrom<(PageNumber, u32)> for PageRun {
    type Error = BadRun;
    fn try_from((first, count): (PageNumber, u32)) -> Result<Self, BadRun> {
        // A page number from outside may be out of range: `new` checks its end.
        Self::new(first, count)
    }
}

impl From<PageRun> for (PageNumber, u32) {
    fn from(run: PageRun) -> Self {
        (run.first, run.count)
    }
}

impl fmt::Display for PageRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pages {}..{}", self.first.raw(), self.end())
    }
}

/// Pages that an object of so many bytes takes: at least one, so that every object has an address.
pub(crate) fn pages_for(bytes: u64) -> u32 {
    // An object has at most 2^43 bytes, so 2^22 pages: more than fits is more than any run has.
    u32::try_from(bytes.div_ceil(PAGE_BYTES).max(1)).unwrap_or(u32::MAX)
}

/// The pages that nobody owns, as runs that never touch each other.
///
/// Page 0 is never given away: address 0 means "nowhere" to programs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FreePages {
    /// First page of a run to the number of its pages.
    runs: BTreeMap<u32, u32>,
}

impl FreePages {
    pub(crate) fn all() -> Self {
        Self { runs: BTreeMap::from([(1, PageNumber::COUNT - 1)]) }
    }

    /// The first run of `count` pages, left in place: [`FreePages::claim`] takes it.
    pub(crate) fn first_fit(&self, count: u32) -> Option<PageRun> {
        let (first, _) = self.runs.iter().find(|(_, free)| **free >= count)?;
        PageRun::new(PageNumber::new(*first)?, count).ok()
    }

    /// Length of the longest run in pages.
    pub(crate) fn longest(&self) -> u32 {
        self.runs.values().copied().max().unwrap_or(0)
    }

    /// Takes a run; `false`, and nothing taken, if a page of it is not free.
    pub(crate) fn claim(&mut self, run: PageRun) -> bool {
        let Some((&first, &count)) = self.runs.range(..=run.first.raw()).next_back() else { return false };
        if run.end() > first + count {
            return false;
        }
        self.runs.remove(&first);
        if run.first.raw() > first {
            self.runs.insert(first, run.first.raw() - first);
        }
        if first + count > run.end() {
            self.runs.insert(run.end(), first + count - run.end());
        }
        true
    }

    /// Gives a run back, joined with its free neighbours.
    pub(crate) fn release(&mut self, run: PageRun) {
        let mut first = run.first.raw();
        let mut count = run.count;
        if let Some((&before, &length)) = self.runs.range(..first).next_back() {
            assert!(before + length <= first, "a page is released twice");
            if before + length == first {
                self.runs.remove(&before);
                first = before;
                count += length;
            }
        }
        if let Some((&after, &length)) = self.runs.range(first + 1..).next() {
            assert!(run.end() <= after, "a page is released twice");
            if run.end() == after {
                self.runs.remove(&after);
                count += length;
            }
        }
        self.runs.insert(first, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(first: u32, count: u32) -> PageRun {
        PageRun::new(PageNumber::new(first).unwrap(), count).unwrap()
    }

    #[test]
    fn page_zero_is_never_given_away() {
        let mut free = FreePages::all();
        assert_eq!(free.first_fit(1), Some(run(1, 1)));
        assert!(!free.claim(run(0, 1)));
        assert_eq!(free.first_fit(PageNumber::COUNT), None);
        assert!(free.claim(run(1, PageNumber::COUNT - 1)));
        assert_eq!(free.longest(), 0);
    }

    #[test]
    fn a_hole_is_filled_before_the_end_is_used() {
        let mut free = FreePages::all();
        assert!(free.claim(run(1, 9)));
        free.release(run(3, 2));
        assert_eq!(free.first_fit(2), Some(run(3, 2)));
        assert_eq!(free.first_fit(3), Some(run(10, 3)));
    }

    #[test]
    fn an_empty_run_and_one_past_the_end_cannot_be_made() {
        assert!(PageRun::new(PageNumber::new(1).unwrap(), 0).is_err());
        assert!(PageRun::new(PageNumber::new(PageNumber::COUNT - 1).unwrap(), 2).is_err());
        let hostile = postcard::to_allocvec(&(u32::MAX, 1u32)).unwrap();
        assert!(postcard::from_bytes::<PageRun>(&hostile).is_err());
    }

    proptest! {
        /// Claims and releases against a plain set of pages; runs never touch each other.
        #[test]
        fn free_pages_agree_with_a_set(steps in prop::collection::vec((any::<bool>(), 0u32..60, 1u32..8), 1..60)) {
            let mut free = FreePages::all();
            let mut owned: Vec<PageRun> = Vec::new();
            for (claim, place, count) in steps {
                if claim {
                    let wanted = run(place + 1, count);
                    let clear = owned.iter().all(|o| o.end() <= wanted.first.raw() || wanted.end() <= o.first.raw());
                    prop_assert_eq!(free.claim(wanted), clear);
                    if clear {
                        owned.push(wanted);
                    }
                } else if !owned.is_empty() {
                    free.release(owned.swap_remove(place as usize % owned.len()));
                }
                let total: u32 = owned.iter().map(|o| o.count).sum();
                prop_assert_eq!(free.runs.values().sum::<u32>(), PageNumber::COUNT - 1 - total);
                let ends: Vec<_> = free.runs.iter().map(|(first, count)| (*first, first + count)).collect();
                prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0));
                if let Some(found) = free.first_fit(count) {
                    prop_assert!(free.clone().claim(found));
                }
            }
        }
    }
}
