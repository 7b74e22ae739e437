//! Runs of faults: which recent faults a fault continues, in steps of one unit or of any stride.

use std::collections::VecDeque;

/// The runs that are followed at once, and the last faults that belong to none.
#[derive(Debug, Default)]
pub(super) struct Streams {
    runs: Vec<Run>,
    /// Youngest first.
    strays: VecDeque<Stray>,
}

/// Faults at equal distances.
#[derive(Debug)]
pub(super) struct Run {
    /// The last unit that faulted.
    last: u32,
    /// Distance to the next unit; never 0.
    step: i64,
    /// Units that should be on their way ahead of the last fault.
    window: u32,
    /// The last unit that was asked for.
    asked_to: i64,
    tick: u64,
    /// Whether this fault asks: a window that is still half full waits.
    is_due: bool,
}

#[derive(Clone, Copy, Debug)]
struct Stray {
    unit: u32,
    tick: u64,
}

/// Runs followed at once: as many threads or processes as commonly read one object in parallel.
const RUNS_MAX: usize = 8;
/// Faults in which a neighbour is looked for: one for each run. In more of them random faults of a small
/// object are neighbours by chance.
const STRAYS_MAX: usize = RUNS_MAX;
/// Faults in which a stride is looked for; pairs are more often equal by chance than neighbours are.
const STRIDE_STRAYS_MAX: usize = 4;
/// Longest stride in units; faults farther apart are several readers rather than one.
const STRIDE_MAX: i64 = 64;
/// Window of a sequence when it is found, in units.
const WINDOW_SEQUENTIAL: u32 = 2;
/// Window of a stride when it is found, in units: the guess is weaker.
const WINDOW_STRIDE: u32 = 1;

impl Streams {
    /// Forgets runs and strays that are older than a tick.
    pub(super) fn forget_before(&mut self, tick: u64) {
        self.runs.retain(|run| run.tick >= tick);
        self.strays.retain(|stray| stray.tick >= tick);
    }

    /// Takes a fault; returns whether it continues or completes a run, whose window then grows.
    pub(super) fn observe(&mut self, unit: u32, tick: u64, window_max: u32) -> bool {
        if let Some(run) = self.runs.iter_mut().find(|run| run.leads_to(unit)) {
            run.advance(unit, tick, window_max);
            return true;
        }
        let is_repeated = self.strays.iter().any(|stray| stray.unit == unit);
        if is_repeated {
            return false;
        }
        if let Some(step) = self.step_to(unit) {
            let window = if step == 1 { WINDOW_SEQUENTIAL } else { WINDOW_STRIDE };
            self.strays.retain(|stray| i64::from(stray.unit) + step != i64::from(unit));
            self.start(unit, step, window.min(window_max), tick);
            return true;
        }
        self.strays.push_front(Stray { unit, tick });
        self.strays.truncate(STRAYS_MAX);
        false
    }

    /// Starts to follow a run; the one that was idle longest gives way.
    pub(super) fn start(&mut self, unit: u32, step: i64, window: u32, tick: u64) {
        if self.runs.len() == RUNS_MAX {
            let idle = (0..RUNS_MAX).min_by_key(|&index| self.runs[index].tick).unwrap_or(0);
            self.runs.swap_remove(idle);
        }
        self.runs.push(Run { last: unit, step, window, asked_to: i64::from(unit), tick, is_due: true });
    }

    /// The run whose last fault this unit is.
    pub(super) fn run_at(&mut self, unit: u32) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| run.last == unit)
    }

    /// The step of a run that the fault completes: one neighbour among the strays, or two at equal distances.
    fn step_to(&self, unit: u32) -> Option<i64> {
        let unit = i64::from(unit);
        let units = || self.strays.iter().map(|stray| i64::from(stray.unit));
        if units().any(|other| other + 1 == unit) {
            return Some(1);
        }
        // Strays are youngest first: the nearer of the two must be the younger.
        units().take(STRIDE_STRAYS_MAX).enumerate().find_map(|(index, nearer)| {
            let step = unit - nearer;
            let is_stride = step != 0 && step.abs() <= STRIDE_MAX;
            (is_stride
                && units().take(STRIDE_STRAYS_MAX).skip(index + 1).any(|farther| nearer - farther == step))
            .then_some(step)
        })
    }
}

impl Run {
    /// Distance to the next unit.
    pub(super) fn step(&self) -> i64 {
        self.step
    }

    /// The next unit to ask for, until the window is full.
    pub(super) fn next_wanted(&self) -> Option<u32> {
        let next = self.asked_to + self.step;
        let is_wanted = self.is_due && self.steps_to(next) <= i64::from(self.window);
        if is_wanted { u32::try_from(next).ok() } else { None }
    }

    /// The unit was asked for.
    pub(super) fn asked(&mut self, unit: u32) {
        self.asked_to = i64::from(unit);
    }

    /// Whether a fault of the unit belongs here: within what was asked for, or the next behind it.
    fn leads_to(&self, unit: u32) -> bool {
        let distance = i64::from(unit) - i64::from(self.last);
        let steps = self.steps_to(i64::from(unit));
        distance % self.step == 0 && (1..=i64::from(self.window) + 1).contains(&steps)
    }

    fn advance(&mut self, unit: u32, tick: u64, window_max: u32) {
        self.last = unit;
        self.tick = tick;
        let ahead = self.steps_to(self.asked_to);
        self.is_due = ahead <= i64::from(self.window / 2);
        if self.is_due {
            self.window = self.window.saturating_mul(2).min(window_max);
        }
        if ahead < 0 {
            self.asked_to = i64::from(unit);
        }
    }

    /// Steps from the last fault to a unit; negative behind it.
    fn steps_to(&self, unit: i64) -> i64 {
        (unit - i64::from(self.last)) / self.step
    }
}
