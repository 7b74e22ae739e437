//! The heat of many pages in one rack, in bounded memory and constant time an update.
//!
//! All heats decay by the same factor, so which of two pages is hotter changes only when one is accessed.
//! `log2(heat) + lambda now / ln 2` is a score that stays the same while nothing happens; pages are
//! kept in lists by their score, in steps of a quarter. The lists that exist span what a heat can be, some 250,
//! however many pages there are. Within a list the page recorded longest ago comes first.

use super::decision::Heat;
use super::settings::{ACCESSES_MAX, HeatRules};
use hinterland_types::PageNumber;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// What one rack asks of pages, its own and those of others.
#[derive(Debug)]
pub struct HeatTable {
    rules: HeatRules,
    index: HashMap<PageNumber, usize>,
    entries: Vec<Entry>,
    free: Vec<usize>,
    /// By score, coldest first.
    lists: BTreeMap<i64, List>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    page: PageNumber,
    /// As they were at `last`.
    reads: f64,
    writes: f64,
    last: Duration,
    score: i64,
    older: Option<usize>,
    younger: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
struct List {
    oldest: usize,
    youngest: usize,
}

/// Steps of the score in which a heat doubles.
const STEPS: f64 = 4.0;

impl HeatTable {
    /// A table that knows no page.
    pub fn new(rules: HeatRules) -> Self {
        Self { rules, index: HashMap::new(), entries: Vec::new(), free: Vec::new(), lists: BTreeMap::new() }
    }

    /// Counts `reads` and `writes` of a page that happened until `now`; returns its heat. Nothing is recorded of a
    /// batch of none. A `now` before the last one counts as the last one.
    pub fn record(&mut self, page: PageNumber, reads: u64, writes: u64, now: Duration) -> Heat {
        if reads == 0 && writes == 0 {
            return self.heat(page, now);
        }
        let at = match self.index.get(&page) {
            Some(&at) => {
                self.unlink(at);
                at
            }
            None => self.add(page, now),
        };
        let entry = &mut self.entries[at];
        let left = self.rules.share_left(now.saturating_sub(entry.last));
        entry.reads = (entry.reads * left + reads as f64).min(ACCESSES_MAX);
        entry.writes = (entry.writes * left + writes as f64).min(ACCESSES_MAX);
        entry.last = entry.last.max(now);
        let faded = self.rules.settings().decay_per_s * entry.last.as_secs_f64() / std::f64::consts::LN_2;
        // At least one access has just been counted: the logarithm is of a number from 1 to 2e15.
        entry.score = (((entry.reads + entry.writes).log2() + faded) * STEPS) as i64;
        self.link(at);
        self.heat(page, now)
    }

    /// The heat of a page; zero if nothing is known of it.
    pub fn heat(&self, page: PageNumber, now: Duration) -> Heat {
        let Some(entry) = self.index.get(&page).map(|&at| &self.entries[at]) else { return Heat::ZERO };
        let left = self.rules.share_left(now.saturating_sub(entry.last));
        // Positive and below 2^63: the cast only rounds.
        Heat { reads: (entry.reads * left).round() as u64, writes: (entry.writes * left).round() as u64 }
    }

    /// The coldest of `candidates`, the first of equals, with its heat: the page that leaves when another needs its room.
    /// Costs a look-up for each; a few dozen drawn at random find one of the coldest of any number.
    pub fn coldest_of(
        &self,
        candidates: impl IntoIterator<Item = PageNumber>,
        now: Duration,
    ) -> Option<(PageNumber, Heat)> {
        candidates.into_iter().map(|page| (page, self.heat(page, now))).min_by_key(|(_, heat)| heat.total())
    }

    /// The hottest pages, at most `pages_max`, hottest first but for a fifth of their heat.
    pub fn hottest(&self, pages_max: usize, now: Duration) -> Vec<(PageNumber, Heat)> {
        let mut found = Vec::new();
        for list in self.lists.values().rev() {
            let mut next = Some(list.youngest);
            while let Some(at) = next
                && found.len() < pages_max
            {
                let entry = &self.entries[at];
                found.push((entry.page, self.heat(entry.page, now)));
                next = entry.older;
            }
        }
        found
    }

    /// Forgets a page, as when its region is removed.
    pub fn forget(&mut self, page: PageNumber) {
        if let Some(at) = self.index.remove(&page) {
            self.unlink(at);
            self.free.push(at);
        }
    }

    /// Pages of which heat is known.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Sets a page up without an access, in the place of the coldest if the table is full. It is in no list yet.
    fn add(&mut self, page: PageNumber, now: Duration) -> usize {
        if self.index.len() >= self.rules.settings().pages_max as usize {
            self.forget_coldest();
        }
        let entry = Entry { page, reads: 0.0, writes: 0.0, last: now, score: 0, older: None, younger: None };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        self.index.insert(page, at);
        at
    }

    fn forget_coldest(&mut self) {
        if let Some(list) = self.lists.values().next() {
            self.forget(self.entries[list.oldest].page);
        }
    }

    /// Puts an entry at the young end of its score's list.
    fn link(&mut self, at: usize) {
        let score = self.entries[at].score;
        let list = self.lists.entry(score).or_insert(List { oldest: at, youngest: at });
        let before = std::mem::replace(&mut list.youngest, at);
        self.entries[at].younger = None;
        self.entries[at].older = None;
        if before != at {
            self.entries[before].younger = Some(at);
            self.entries[at].older = Some(before);
        }
    }

    fn unlink(&mut self, at: usize) {
        let Entry { score, older, younger, .. } = self.entries[at];
        if let Some(older) = older {
            self.entries[older].younger = younger;
        }
        if let Some(younger) = younger {
            self.entries[younger].older = older;
        }
        match (older, younger) {
            (None, None) => {
                self.lists.remove(&score);
            }
            (None, Some(younger)) => {
                self.lists.entry(score).and_modify(|list| list.oldest = younger);
            }
            (Some(older), None) => {
                self.lists.entry(score).and_modify(|list| list.youngest = older);
            }
            (Some(_), Some(_)) => {}
        }
    }
}
