//! Which moves are under way, and how many more may begin.

use super::decision::Why;
use super::settings::HeatRules;
use hinterland_types::PageNumber;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

/// The moves of one rack, coming and going: at most one a page at a time, and not too many a second.
#[derive(Debug)]
pub struct Moves {
    rules: HeatRules,
    moving: HashSet<PageNumber>,
    /// Until when a page is left alone, and the same by time.
    resting: HashMap<PageNumber, Duration>,
    resting_by_time: BTreeSet<(Duration, PageNumber)>,
    /// Moves that may begin, as they were at `filled`.
    tokens: f64,
    filled: Duration,
}

impl Moves {
    /// Nothing moves; a burst may begin at once.
    pub fn new(rules: HeatRules) -> Self {
        Self {
            rules,
            moving: HashSet::new(),
            resting: HashMap::new(),
            resting_by_time: BTreeSet::new(),
            tokens: f64::from(rules.settings().burst),
            filled: Duration::ZERO,
        }
    }

    /// Begins a move of `page`: from here until [`end`](Self::end) no other begins. Counts against the budget of moves.
    ///
    /// # Errors
    /// [`Why::Moving`], [`Why::Resting`] or [`Why::Budget`]; nothing has changed then.
    pub fn begin(&mut self, page: PageNumber, now: Duration) -> Result<(), Why> {
        if self.moving.contains(&page) {
            return Err(Why::Moving);
        }
        self.wake(now);
        if self.resting.contains_key(&page) {
            return Err(Why::Resting);
        }
        self.fill(now);
        if self.tokens < 1.0 {
            return Err(Why::Budget);
        }
        self.tokens -= 1.0;
        self.moving.insert(page);
        Ok(())
    }

    /// Whether a move of `page` could begin but for the budget; nothing changes by asking.
    ///
    /// # Errors
    /// [`Why::Moving`] or [`Why::Resting`].
    pub fn is_free(&mut self, page: PageNumber, now: Duration) -> Result<(), Why> {
        if self.moving.contains(&page) {
            return Err(Why::Moving);
        }
        self.wake(now);
        if self.resting.contains_key(&page) { Err(Why::Resting) } else { Ok(()) }
    }

    /// Ends what [`begin`](Self::begin) began. A page that `has_moved` rests; one that was refused is not asked for again
    /// at once, and does not count against the budget. Without a beginning nothing happens.
    pub fn end(&mut self, page: PageNumber, has_moved: bool, now: Duration) {
        if !self.moving.remove(&page) {
            return;
        }
        let settings = *self.rules.settings();
        if !has_moved {
            self.tokens = (self.tokens + 1.0).min(f64::from(settings.burst));
        }
        let until = now.saturating_add(if has_moved { settings.rest } else { settings.pause });
        if let Some(before) = self.resting.insert(page, until) {
            self.resting_by_time.remove(&(before, page));
        }
        self.resting_by_time.insert((until, page));
        if self.resting.len() > settings.pages_max as usize
            && let Some((_, page)) = self.resting_by_time.pop_first()
        {
            self.resting.remove(&page);
        }
    }

    /// Whether a move of `page` is under way.
    pub fn is_moving(&self, page: PageNumber) -> bool {
        self.moving.contains(&page)
    }

    /// Moves under way.
    pub fn under_way(&self) -> usize {
        self.moving.len()
    }

    /// Drops what has rested enough.
    fn wake(&mut self, now: Duration) {
        while let Some(&(until, page)) = self.resting_by_time.first()
            && until <= now
        {
            self.resting_by_time.pop_first();
            self.resting.remove(&page);
        }
    }

    fn fill(&mut self, now: Duration) {
        let settings = self.rules.settings();
        let passed = now.saturating_sub(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * settings.moves_per_s).min(f64::from(settings.burst));
        self.filled = self.filled.max(now);
    }
}
