//! Which of two ways of waiting for the next fault is quicker here, found by trying both.
//!
//! A thread that faults sleeps until it is served, and a processor that has nothing else to do sleeps, too. What it takes to wake one is the machine's:
//! a microsecond where idle processors look for work for a while, ten to forty in a virtual machine in which they stop at once. So either the
//! serving thread goes to the processor of the thread that it serves, and none has to be woken ([`follow`](crate::follow)); or it stays where it is and
//! looks for the next fault for a moment before it sleeps. Faults are counted in windows; now and then one is served the
//! other way, and what took less time for a fault, the program's own steps between two included, is gone on with.

use hinterland_os::idle::{Wakefulness, runnable_threads};
use std::time::{Duration, Instant};

/// Faults that are counted together: in fewer, memory is taken out all the time or not at all.
const WINDOW: u32 = 1024;
/// A fault takes less time where they come quickly, from one to the next: only then it is worth while to look for the next one.
const QUICK: Duration = Duration::from_micros(60);
/// The same for keeping processors awake: reads of a disk take longer.
const BUSY: Duration = Duration::from_micros(400);
/// How long the next fault is looked for.
const LOOK: Duration = Duration::from_micros(30);
/// A try to look is a success where it takes at most so many hundredths: it keeps a processor busy, and one that wins by chance is gone on with.
const LOOK_PERCENT: u32 = 90;
/// Windows until the other way is tried again; twice as many after each try that failed.
const PATIENCE: (u32, u32) = (8, 1024);
/// Others want the processors where, in the middle of so many windows, there are so many threads that run for each: those that take memory out
/// come and go.
const CROWD_WINDOWS: f64 = 4.0;
const CROWD_THREADS: f64 = 2.0;

/// What the serving thread does until the next fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It sleeps; where it can, on the processor of the thread that it serves.
    Sleep,
    /// It looks for the next fault for a moment, on a processor of its own.
    Look,
}

impl Way {
    const fn other(self) -> Self {
        match self {
            Self::Sleep => Self::Look,
            Self::Look => Self::Sleep,
        }
    }
}

/// How the next fault is waited for.
pub(crate) struct Ways {
    /// Whether it may be looked for at all.
    may_look: bool,
    /// Whether processors are kept awake while faults come.
    keeps_awake: bool,
    awake: Option<Wakefulness>,
    way: Way,
    /// The last window was a try; what the one before took.
    tried_against: Option<Duration>,
    windows_to_try: u32,
    patience: u32,
    /// Faults come quickly.
    is_quick: bool,
    faults: u32,
    begun: Option<Instant>,
    processors: usize,
    /// Threads that run, in the middle of the last windows.
    runnable: f64,
}

impl Ways {
    /// For a machine with so many processors for the calling thread.
    pub(crate) fn new(may_look: bool, keeps_awake: bool, processors: usize) -> Self {
        Self {
            may_look: may_look && processors > 1,
            keeps_awake,
            awake: None,
            way: Way::Sleep,
            tried_against: None,
            windows_to_try: 0,
            patience: PATIENCE.0,
            is_quick: false,
            faults: 0,
            begun: None,
            processors,
            runnable: 0.0,
        }
    }

    /// Whether the serving thread may go to the processor of the thread that it serves.
    pub(crate) const fn follows(&self) -> bool {
        self.look().is_none() && !self.is_awake()
    }

    /// How long the next fault is to be looked for now.
    pub(crate) const fn look(&self) -> Option<Duration> {
        match self.way {
            Way::Look if self.is_quick => Some(LOOK),
            _ => None,
        }
    }

    /// Whether idle processors are kept awake.
    pub(crate) const fn is_awake(&self) -> bool {
        self.awake.is_some()
    }

    /// So many faults have been served.
    pub(crate) fn served(&mut self, faults: usize, now: Instant) {
        // As many as one read of the kernel's events holds.
        self.faults += faults as u32;
        let begun = *self.begun.get_or_insert(now);
        if self.faults < WINDOW {
            return;
        }
        let each = now.saturating_duration_since(begun) / self.faults;
        (self.faults, self.begun) = (0, Some(now));
        self.keep_awake(each <= BUSY);
        if !self.may_look || each > QUICK || self.is_crowd() {
            return self.sleep();
        }
        self.choose(each);
    }

    /// No fault has come for a while.
    pub(crate) fn rest(&mut self) {
        (self.faults, self.begun) = (0, None);
        self.sleep();
        self.keep_awake(false);
    }

    /// Whether others want the processors.
    fn is_crowd(&mut self) -> bool {
        let Some(count) = runnable_threads() else { return true };
        self.runnable += (count as f64 - self.runnable) / CROWD_WINDOWS;
        self.runnable > self.processors as f64 * CROWD_THREADS
    }

    /// Does not look for faults until they come quickly again.
    fn sleep(&mut self) {
        self.is_quick = false;
        if self.tried_against.take().is_some() {
            self.way = self.way.other();
        }
    }

    fn keep_awake(&mut self, wanted: bool) {
        if !wanted {
            self.awake = None;
        } else if self.keeps_awake && self.awake.is_none() {
            self.awake = Wakefulness::begin().ok();
            // Who may not once may not again.
            self.keeps_awake = self.awake.is_some();
        }
    }

    /// A window of quick faults has ended, each of which took so long.
    fn choose(&mut self, each: Duration) {
        self.is_quick = true;
        let Some(before) = self.tried_against.take() else {
            if self.windows_to_try == 0 {
                self.tried_against = Some(each);
                self.way = self.way.other();
            } else {
                self.windows_to_try -= 1;
            }
            return;
        };
        let limit = if self.way == Way::Look { before * LOOK_PERCENT / 100 } else { before };
        if each > limit {
            self.way = self.way.other();
            self.patience = (self.patience * 2).min(PATIENCE.1);
        } else {
            self.patience = PATIENCE.0;
        }
        self.windows_to_try = self.patience;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves windows of faults, of which each takes as long as the way says; returns how many windows were served by looking.
    fn windows(ways: &mut Ways, now: &mut Instant, count: u32, micros: impl Fn(Way) -> u64) -> u32 {
        let mut looked = 0;
        for _ in 0..count {
            let way = ways.way;
            looked += u32::from(way == Way::Look);
            for _ in 0..WINDOW {
                *now += Duration::from_micros(micros(way));
                ways.served(1, *now);
            }
        }
        looked
    }

    /// On a machine on which others never want all processors.
    fn ways() -> Ways {
        Ways::new(true, false, usize::MAX)
    }

    #[test]
    fn the_quicker_way_is_gone_on_with_and_the_other_one_tried_seldom() {
        let mut now = Instant::now();
        let looking_is_quicker = |way| if way == Way::Look { 11 } else { 18 };
        let looked = windows(&mut ways(), &mut now, 400, looking_is_quicker);
        assert!(looked >= 390, "{looked}");
        let sleeping_is_quicker = |way| if way == Way::Look { 40 } else { 18 };
        let looked = windows(&mut ways(), &mut now, 400, sleeping_is_quicker);
        assert!((1..=6).contains(&looked), "{looked}");
    }

    #[test]
    fn what_has_become_quicker_is_found() {
        let (mut ways, mut now) = (ways(), Instant::now());
        windows(&mut ways, &mut now, 50, |way| if way == Way::Look { 10 } else { 12 });
        assert_eq!(ways.look(), Some(LOOK));
        windows(&mut ways, &mut now, 50, |way| if way == Way::Look { 30 } else { 12 });
        assert_eq!(ways.look(), None);
    }

    #[test]
    fn who_faults_seldom_or_rests_is_not_looked_for() {
        let (mut ways, mut now) = (ways(), Instant::now());
        assert_eq!(windows(&mut ways, &mut now, 50, |_| 100), 0);
        windows(&mut ways, &mut now, 50, |way| if way == Way::Look { 11 } else { 18 });
        assert_eq!((ways.look(), ways.follows()), (Some(LOOK), false));
        ways.rest();
        assert_eq!((ways.look(), ways.follows()), (None, true));
        windows(&mut ways, &mut now, 2, |_| 11);
        assert_eq!(ways.look(), Some(LOOK), "what was quicker is gone on with");
    }

    #[test]
    fn nobody_looks_where_others_want_the_processors_or_there_is_one() {
        for mut ways in [Ways::new(true, false, 0), Ways::new(true, false, 1), Ways::new(false, false, 64)] {
            let mut now = Instant::now();
            assert_eq!(windows(&mut ways, &mut now, 50, |way| if way == Way::Look { 11 } else { 18 }), 0);
        }
    }
}
