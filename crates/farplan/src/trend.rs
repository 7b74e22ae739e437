//! Programs that go through memory in steps, such as down a column of a matrix, or backwards: what the next touches are likely to be.
//!
//! The steps between the faults of a thread are put to the vote: the one that more than half of the last few are, or are a few times, is the trend. So a
//! touch elsewhere now and then does not end it, and faults at random have none. What is fetched along a trend makes no faults, so the next one is some
//! steps further on, and counts as one step.

use crate::PAGE;

/// Steps of a thread that are remembered; at first the last few are asked, then more.
const STEPS: usize = 16;
const STEPS_ASKED: usize = 4;
/// Steps of at most so many pages are themselves only; longer ones may be seen so many times as long.
const SHORT_PAGES: u64 = 3;
const TIMES_MAX: u64 = 8;
/// Threads that are told apart.
const THREADS: usize = 8;
/// Most units that are fetched along a trend with one fault.
pub const AHEAD_MAX: u32 = 16;
/// Most bytes of them.
pub const ALONG_BYTES_MAX: u64 = 128 << 10;
const COUNT_MIN: u32 = 2;
/// What it takes at most before a trend is followed, beside one.
const DOUBTS_MAX: u8 = 6;
/// Units that may have been there already, so that a trend goes on behind them.
const PASSED_MAX: i64 = 4;

/// The way from one address to another: those of programs have 47 bits.
const fn between(from: u64, to: u64) -> i64 {
    to as i64 - from as i64
}

/// What is likely to be touched next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trend {
    /// Bytes from one touch to the next; below 0 backwards.
    pub step: i64,
    /// How many touches to prepare.
    pub count: u32,
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    id: u32,
    /// Number of its last fault among all.
    used: u64,
    last: u64,
    steps: [i64; STEPS],
    count: usize,
    /// Its trend, and the last fault that followed it.
    trend: Option<Trend>,
    at: u64,
    /// Touches that went on as it foretold, and how many it takes before anything is fetched: one, and one for each trend that was followed in vain of late.
    proofs: u8,
    doubts: u8,
}

impl Thread {
    const NONE: Self = Self {
        id: 0,
        used: 0,
        last: 0,
        steps: [0; STEPS],
        count: 0,
        trend: None,
        at: 0,
        proofs: 0,
        doubts: 0,
    };

    /// Whether a touch goes on as foretold. Steps that are no number of pages are now and then a page longer.
    fn goes_on(&self, address: u64) -> bool {
        let Some(Trend { step, count }) = self.trend else { return false };
        let bytes = between(self.at, address);
        let page = PAGE as i64;
        let slack = if step.abs() > 2 * page { page } else { 0 };
        let steps = (bytes + bytes.signum() * step.abs() / 2) / step;
        (1..=i64::from(count) + 1 + PASSED_MAX).contains(&steps) && (bytes - steps * step).abs() <= slack
    }

    fn add(&mut self, step: i64) {
        self.steps[self.count % STEPS] = step;
        self.count += 1;
    }

    /// The step that more than half of the last ones are, or a few times of it: of few, else of twice as many. Only one that the latest step is
    /// such a multiple of, or that of the trend: nothing else would be followed.
    fn majority(&self) -> Option<i64> {
        let last = |back: usize| self.steps[(self.count - back) % STEPS];
        let known = self.trend.map(|trend| trend.step);
        let mut asked = STEPS_ASKED;
        while asked <= self.count.min(STEPS) {
            let votes = |step: i64| (1..=asked).filter(|back| is_times(last(*back), step)).count();
            let latest = (1..=asked).map(last).filter(|step| is_times(last(1), *step));
            let most = latest.chain(known).map(|step| (votes(step), step)).max();
            if let Some((_, step)) = most.filter(|(votes, _)| votes * 2 > asked) {
                return Some(step);
            }
            asked *= 2;
        }
        None
    }
}

/// Whether a step is another one a few times: what lay in between was here already. Short ones are anything's parts.
const fn is_times(step: i64, of: i64) -> bool {
    if step == of {
        return true;
    }
    // Most differ in length or direction, and a division takes longer than all else here.
    let (length, part) = (step.unsigned_abs(), of.unsigned_abs());
    length > part
        && part > SHORT_PAGES * PAGE
        && (step < 0) == (of < 0)
        && length <= part.saturating_mul(TIMES_MAX)
        && length.is_multiple_of(part)
}

/// The trends of a program.
#[derive(Clone, Debug)]
pub struct Trends {
    threads: [Thread; THREADS],
    faults: u64,
}

impl Default for Trends {
    fn default() -> Self {
        Self { threads: [Thread::NONE; THREADS], faults: 0 }
    }
}

impl Trends {
    /// A fault of a thread in the page at an address, which continues no sequence: what to fetch as well.
    pub fn fault(&mut self, id: u32, page: u64) -> Option<Trend> {
        self.faults += 1;
        let index = self.index(id);
        let thread = &mut self.threads[index];
        if thread.id != id || thread.used == 0 {
            *thread = Thread { id, used: self.faults, last: page, ..Thread::NONE };
            return None;
        }
        let bytes = between(thread.last, page);
        if bytes == 0 {
            return None;
        }
        let before = thread.trend;
        let goes_on = thread.goes_on(page);
        let step = before.filter(|_| goes_on).map_or(bytes, |trend| trend.step);
        (thread.last, thread.used) = (page, self.faults);
        thread.add(step);
        let held = thread.majority();
        let follows = held.is_some_and(|held| is_times(step, held));
        let (before_step, before_count) = before.map_or((0, 0), |trend| (trend.step, trend.count));
        let count = if before.is_none() || held != Some(before_step) {
            thread.proofs = 0;
            0
        } else if goes_on {
            thread.proofs = thread.proofs.saturating_add(1);
            let is_proven = thread.proofs > thread.doubts;
            if is_proven { (before_count * 2).clamp(COUNT_MIN, AHEAD_MAX) } else { 0 }
        } else {
            // What was foretold did not come, be it that others came in between.
            before_count / 2
        };
        thread.doubts = match (before_count, count) {
            (1.., 0) => (thread.doubts + 1).min(DOUBTS_MAX),
            (1.., _) if goes_on => thread.doubts.saturating_sub(1),
            _ => thread.doubts,
        };
        thread.trend = held.map(|step| Trend { step, count });
        if follows {
            thread.at = page;
        }
        thread.trend.filter(|trend| follows && goes_on && trend.count > 0)
    }

    /// Where a thread is told of: its own place, else that of the one that has been silent for longest.
    fn index(&self, id: u32) -> usize {
        let own = self.threads.iter().position(|thread| thread.id == id && thread.used > 0);
        own.or_else(|| (0..THREADS).min_by_key(|index| self.threads[*index].used)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1 << 40;

    /// The faults of a thread in these pages, and how many units each has fetched.
    fn faults(trends: &mut Trends, thread: u32, pages: impl IntoIterator<Item = i64>) -> Vec<(i64, u32)> {
        let fault = |page: i64| {
            let trend = trends.fault(thread, START.wrapping_add_signed(page * PAGE as i64));
            trend.map_or((0, 0), |trend| (trend.step / PAGE as i64, trend.count))
        };
        pages.into_iter().map(fault).collect()
    }

    /// Runs through pages: those that were fetched are no faults. Returns how many were.
    fn touches(trends: &mut Trends, thread: u32, pages: &[i64]) -> usize {
        let mut here = std::collections::HashSet::new();
        let mut count = 0;
        for page in pages {
            if here.insert(*page) {
                count += 1;
                let (step, ahead) = faults(trends, thread, [*page])[0];
                here.extend((1..=i64::from(ahead)).map(|index| page + index * step));
            }
        }
        count
    }

    #[test]
    fn steps_that_are_repeated_are_fetched_along_and_ever_more_of_them() {
        let mut trends = Trends::default();
        let told = faults(&mut trends, 1, [0, 8, 16, 24, 32, 40, 64, 104, 176, 312]);
        assert_eq!(told[..5], [(0, 0); 5], "what is foretold must have come once");
        assert_eq!(told[5..], [(8, 2), (8, 4), (8, 8), (8, 16), (8, 16)]);
    }

    #[test]
    fn columns_and_ways_back_cost_few_faults() {
        let down: Vec<i64> = (0..2048).map(|row| row * 8).collect();
        assert!(touches(&mut Trends::default(), 1, &down) < 2048 / 12);
        let back: Vec<i64> = (0..2048).rev().collect();
        assert!(touches(&mut Trends::default(), 1, &back) < 2048 / 12);
        // Rows of 3,600 numbers of 8 bytes: a little more than seven pages.
        let uneven: Vec<i64> = (0..2048).map(|row| row * 28_800 / 4096).collect();
        assert!(touches(&mut Trends::default(), 1, &uneven) < 2048 / 4);
    }

    #[test]
    fn touches_elsewhere_do_not_end_a_trend_and_those_at_random_have_none() {
        let mut trends = Trends::default();
        faults(&mut trends, 1, (0..20).map(|step| step * 8));
        let told = faults(&mut trends, 1, [100_000, 100_500, 3000]);
        assert!(told.iter().all(|(_, count)| *count == 0), "nothing is fetched there");
        let told = faults(&mut trends, 1, [19 * 8 + 8, 19 * 8 + 16]);
        assert!(told[0].1 >= 2 && told[0].0 == 8, "it goes on where it was: {told:?}");
        let mut number: u64 = 1;
        let random = (0..10_000).map(|_| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (number >> 44) as i64
        });
        let told = faults(&mut Trends::default(), 1, random);
        assert!(told.iter().all(|(_, count)| *count == 0));
    }

    #[test]
    fn a_trend_that_has_ended_is_forgotten() {
        let mut trends = Trends::default();
        faults(&mut trends, 1, [0, 8, 16, 24, 32, 40, 64, 104, 176, 312]);
        let elsewhere = (0..40).map(|number: i64| 1_000_000 + number.pow(3) % 65_537 * 11);
        assert!(faults(&mut trends, 1, elsewhere).iter().all(|(_, count)| *count == 0));
        assert_eq!(faults(&mut trends, 1, [320]), [(0, 0)]);
    }

    #[test]
    fn who_was_followed_in_vain_has_to_show_more_the_next_time() {
        let mut trends = Trends::default();
        let mut fetched = Vec::new();
        for round in 0..12 {
            // Six touches, and then elsewhere: what is fetched is never touched.
            let told = faults(&mut trends, 1, (0..6).map(|step| round * 1_000_003 + step * (8 + round)));
            fetched.push(told.iter().map(|(_, count)| count).sum::<u32>());
        }
        assert!(fetched[0] > 0 && fetched[6..].iter().all(|count| *count == 0), "{fetched:?}");
        let told = faults(&mut trends, 1, (0..40).map(|step| (1 << 30) + step * 8));
        assert!(told[39].1 >= 8, "what goes on is followed after all: {told:?}");
    }

    #[test]
    fn threads_have_trends_of_their_own() {
        let mut trends = Trends::default();
        let mut told = Vec::new();
        for step in 0..7 {
            told = faults(&mut trends, 1, [step * 8]);
            faults(&mut trends, 2, [1_000_000 - step * 3]);
        }
        assert_eq!(told[0].0, 8);
        assert_eq!(faults(&mut trends, 2, [1_000_000 - 21])[0].0, -3);
        // More threads than are told apart: the oldest is forgotten, and nothing else happens.
        (3..40).for_each(|thread| drop(faults(&mut trends, thread, [0])));
        assert_eq!(faults(&mut trends, 1, [56]), [(0, 0)]);
    }
}
