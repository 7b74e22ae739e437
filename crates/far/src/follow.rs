//! Serving a thread's faults on its own processor: a switch there costs a third of waking another one, twice.
//!
//! A thread that faults sleeps, and the scheduler wakes it on a processor that is idle, so that each fault would wake the
//! other processor two times. Here the serving thread goes to where the program's thread ran last, and lets it run there only for the moment
//! in which it is woken: it is asleep before, and has its own processors back before it runs, for meanwhile the serving thread runs before all
//! others (`SCHED_FIFO`). The program never sees it. Without the right to run first nobody is followed.

use hinterland_os::affinity::{CoreSet, core_of_thread};
use hinterland_os::process::run_first;

/// Faults of one thread, one after the other, before it is followed.
const STREAK_MIN: u32 = 16;
/// Faults between two looks where the thread is.
const LOOK_EVERY: u32 = 256;
/// More is not filled ahead on the processor of the thread.
const AHEAD_BYTES_MAX: u64 = 128 << 10;
/// Longer units take longer to fill than to switch, and meanwhile nobody else could run there.
const UNIT_BYTES_MAX: u64 = 64 << 10;

/// Whom the serving thread follows.
pub(crate) struct Follow {
    /// Where the serving thread may run; `None` if it follows nobody.
    own: Option<CoreSet>,
    thread: u32,
    streak: u32,
    core: Option<(usize, CoreSet)>,
}

/// The processors that a thread gets back.
pub(crate) struct Before {
    thread: i32,
    cores: CoreSet,
}

impl Follow {
    /// For the calling thread, if it is to follow anybody.
    pub(crate) fn new(is_on: bool, unit_bytes: u64) -> Self {
        let is_on = is_on && unit_bytes <= UNIT_BYTES_MAX;
        let own = CoreSet::of_thread(0).ok().filter(|own| is_on && own.count() > 1);
        Self { own, thread: 0, streak: 0, core: None }
    }

    /// A fault of a thread is about to be served, and no other one waits; about so many bytes will be filled ahead with it. What takes longer than two
    /// switches is better filled while the thread runs on, elsewhere.
    pub(crate) fn begin(&mut self, thread: u32, ahead_bytes: u64) -> Option<Before> {
        self.own?;
        if ahead_bytes > AHEAD_BYTES_MAX {
            self.leave();
            return None;
        }
        if thread != self.thread {
            self.leave();
            self.thread = thread;
            return None;
        }
        self.streak = self.streak.saturating_add(1);
        if self.streak < STREAK_MIN {
            return None;
        }
        // Thread numbers fit the kernel's own type.
        let number = thread as i32;
        if self.core.is_none() || self.streak.is_multiple_of(LOOK_EVERY) {
            self.look(number);
        }
        let (core, one) = self.core.as_ref()?;
        let cores =
            CoreSet::of_thread(number).ok().filter(|cores| cores.contains(*core) && cores.count() > 1)?;
        one.apply(number).ok()?;
        Some(Before { thread: number, cores })
    }

    /// The fault was served, and so much filled ahead. While a disk was waited for, the processor had time for others, and it wakes whoever is next anyway.
    pub(crate) fn end(&mut self, before: Option<Before>, ahead_bytes: u64, has_slept: bool) {
        if let Some(before) = before {
            // It may have been killed.
            let _ = before.cores.apply(before.thread);
        }
        if ahead_bytes > AHEAD_BYTES_MAX || has_slept {
            self.leave();
        }
    }

    /// Follows nobody, until there is a reason again.
    pub(crate) fn leave(&mut self) {
        self.streak = 0;
        if self.core.take().is_some()
            && let Some(own) = &self.own
        {
            // These are the processors that it had, and everybody may run like others.
            let _ = own.apply(0);
            let _ = run_first(false);
        }
    }

    fn look(&mut self, thread: i32) {
        let Some(core) = core_of_thread(thread) else { return };
        if self.core.as_ref().is_some_and(|(known, _)| *known == core) {
            return;
        }
        if self.core.is_none() && run_first(true).is_err() {
            self.own = None;
            return;
        }
        let one = self.own.filter(|own| own.contains(core)).and_then(|_| CoreSet::one(core));
        let Some(one) = one.filter(|one| one.apply(0).is_ok()) else {
            let _ = run_first(false);
            return self.leave();
        };
        self.core = Some((core, one));
    }
}
