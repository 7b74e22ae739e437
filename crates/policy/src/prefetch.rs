//! What is fetched together with a unit that faulted: its group, what a run of faults leads to, or nothing.
//!
//! A wrong guess costs bytes and room in the cache, so a guess needs a reason:
//!
//! 1. *Group*: units that are used together by construction. Whoever reads an expert's gate matrix reads its
//!    up and down matrices next.
//! 2. *Sequence*: a fault next to one of the last few. The window starts at 2 units and doubles with every
//!    fault that confirms it. Over experts only four neighbours in a row count, because a router that picks
//!    8 of 64 picks neighbours by chance.
//! 3. *Stride*: three faults the same distance apart; the window starts at 1 unit.
//! 4. *Advice*: what a program says it will need. Advice to expect a sequence opens a window at the first
//!    fault, but never over experts, and only until eight jumps in a row contradict it: programs give it
//!    for whole files and then read a part of them.
//!
//! The decisions are per object, and see faults only: a fault of a unit that is resident already (its bytes
//! were prefetched, the mapping was not) counts like any other, which keeps a window moving before it is
//! used up.

use crate::unit::{GroupId, UnitMap};
use hinterland_types::ByteRange;
use std::collections::VecDeque;

mod streams;
#[cfg(test)]
mod tests;

use streams::Streams;

/// Which reasons for a guess are used; all of them by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefetchSwitches {
    /// The rest of the faulting unit's group, and groups in a row.
    pub group: bool,
    /// Units in a row.
    pub sequential: bool,
    /// Units at equal distances.
    pub stride: bool,
}

impl Default for PrefetchSwitches {
    fn default() -> Self {
        Self { group: true, sequential: true, stride: true }
    }
}

/// Limits of a [`Prefetcher`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PrefetchConfig {
    /// What is done at all.
    pub switches: PrefetchSwitches,
    /// Longest window, in units.
    pub window_units_max: u32,
    /// Most bytes that one fault may ask for, its own unit not counted.
    pub budget_bytes: u64,
    /// Ticks after which a run of faults is forgotten. With a tick of a millisecond, ten seconds.
    pub run_ticks_max: u64,
}

impl Default for PrefetchConfig {
    fn default() -> Self {
        Self {
            switches: PrefetchSwitches::default(),
            window_units_max: 32,
            budget_bytes: 64 << 20,
            run_ticks_max: 10_000,
        }
    }
}

/// A time that the caller counts, in any unit; it never goes back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Tick(pub u64);

/// What a program says about its accesses to one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Find out from the faults.
    Normal,
    /// Guess nothing but groups.
    Random,
    /// Expect sequences of units that are in no group: the first fault opens a window.
    Sequential,
    /// These bytes will be needed: [`Prefetcher::next_advised`] hands them out.
    WillNeed(ByteRange),
}

/// Decides what is prefetched of one object.
#[derive(Debug)]
pub struct Prefetcher {
    config: PrefetchConfig,
    expectation: Expectation,
    streams: Streams,
    group_run: GroupRun,
    advised: VecDeque<ByteRange>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expectation {
    Normal,
    Random,
    /// With the number of jumps in a row that contradict it.
    Sequential(u32),
}

/// Groups that faulted in a row.
#[derive(Debug, Default)]
struct GroupRun {
    last: Option<GroupId>,
    length: u32,
    /// Groups behind the last that were asked for, and so will not fault.
    ahead: u32,
}

/// Groups in a row before the next is guessed.
const GROUP_RUN_MIN: u32 = 4;
/// Jumps in a row after which advice to expect a sequence is dropped.
const JUMPS_MAX: u32 = 8;
/// Window that advice to expect a sequence opens before any fault confirms it.
const ADVISED_WINDOW_UNITS: u32 = 8;
/// Ranges of advice that wait; the oldest is dropped for one more.
const ADVISED_RANGES_MAX: usize = 16;

impl Prefetcher {
    /// A prefetcher that has seen nothing.
    pub fn new(config: PrefetchConfig) -> Self {
        Self {
            config,
            expectation: Expectation::Normal,
            streams: Streams::default(),
            group_run: GroupRun::default(),
            advised: VecDeque::new(),
        }
    }

    /// Takes a program's advice.
    pub fn advise(&mut self, advice: Advice) {
        match advice {
            Advice::Normal => self.expectation = Expectation::Normal,
            Advice::Random => self.expectation = Expectation::Random,
            Advice::Sequential => self.expectation = Expectation::Sequential(0),
            Advice::WillNeed(range) => {
                if self.advised.len() == ADVISED_RANGES_MAX {
                    self.advised.pop_front();
                }
                self.advised.push_back(range);
            }
        }
    }

    /// Takes a fault at a byte of the object, exact to a page.
    ///
    /// Appends to `out` the units to fetch besides the one that faulted, most certain first, without those for
    /// which `is_resident` holds (resident, or on their way), at most the budget of bytes.
    pub fn on_fault(
        &mut self,
        map: &UnitMap,
        offset: u64,
        tick: Tick,
        is_resident: &mut dyn FnMut(u32) -> bool,
        out: &mut Vec<u32>,
    ) {
        let unit = map.unit_of(offset);
        let switches = self.config.switches;
        let first = out.len();
        let keeps_off_groups = switches.group;
        let bytes_left = self.config.budget_bytes;
        let mut request = Request { map, keeps_off_groups, bytes_left, is_resident, first, out };
        match map.group_at(offset) {
            Some(group) if switches.group => {
                request.rest_of_group(group, unit);
                if switches.sequential && self.expectation != Expectation::Random {
                    self.groups_in_a_row(group, &mut request);
                }
            }
            _ if self.expectation != Expectation::Random => self.units_in_a_row(unit, tick, &mut request),
            _ => {}
        }
    }

    /// Appends to `out` units of advised ranges that are not resident, up to `bytes_max` of them, and
    /// forgets what it hands out and what is resident. To be called when the network is idle, with what
    /// room there is: advice for a whole file does not make the cache larger.
    pub fn next_advised(
        &mut self,
        map: &UnitMap,
        bytes_max: u64,
        is_resident: &mut dyn FnMut(u32) -> bool,
        out: &mut Vec<u32>,
    ) {
        let mut bytes_left = bytes_max;
        while let Some(range) = self.advised.front_mut() {
            let Some((unit, _)) = map.units_in(*range) else {
                self.advised.pop_front();
                continue;
            };
            let unit_range = map.range(unit);
            if !is_resident(unit) {
                if unit_range.bytes() > bytes_left {
                    return;
                }
                bytes_left -= unit_range.bytes();
                out.push(unit);
            }
            // The unit starts at or before the range, so what is left starts where the unit ends.
            let rest = range.end().saturating_sub(unit_range.end());
            *range = ByteRange::new(unit_range.end(), rest).unwrap_or_default();
        }
    }

    /// Guesses the next groups once four in a row have faulted: one, then twice as many each time.
    fn groups_in_a_row(&mut self, group: GroupId, request: &mut Request<'_>) {
        let run = &mut self.group_run;
        let steps = run.last.map_or(0, |last| i64::from(group.0) - i64::from(last.0));
        if run.last == Some(group) || (steps > 0 && steps <= i64::from(run.ahead)) {
            return;
        }
        run.length = if steps == i64::from(run.ahead) + 1 { run.length + 1 } else { 1 };
        *run = GroupRun { last: Some(group), length: run.length, ahead: 0 };
        if run.length < GROUP_RUN_MIN {
            return;
        }
        let doublings = (run.length - GROUP_RUN_MIN).min(5);
        let window = (1 << doublings).min(self.config.window_units_max);
        while run.ahead < window {
            let Some(next) = group.0.checked_add(run.ahead + 1) else { return };
            for &unit in request.map.group(GroupId(next)) {
                if !request.add(unit) {
                    return;
                }
            }
            run.ahead += 1;
        }
    }

    /// Finds the run that the fault continues and asks for the rest of its window.
    fn units_in_a_row(&mut self, unit: u32, tick: Tick, request: &mut Request<'_>) {
        let window_max = self.config.window_units_max;
        self.streams.forget_before(tick.0.saturating_sub(self.config.run_ticks_max));
        let is_continued = self.streams.observe(unit, tick.0, window_max);
        if let Expectation::Sequential(jumps) = &mut self.expectation {
            *jumps = if is_continued { 0 } else { *jumps + 1 };
            if *jumps == JUMPS_MAX {
                self.expectation = Expectation::Normal;
            } else if !is_continued {
                self.streams.start(unit, 1, ADVISED_WINDOW_UNITS.min(window_max), tick.0);
            }
        }
        let Some(run) = self.streams.run_at(unit) else { return };
        let switches = self.config.switches;
        if !(if run.step() == 1 { switches.sequential } else { switches.stride }) {
            return;
        }
        while let Some(next) = run.next_wanted() {
            let is_group_ahead = request.keeps_off_groups && request.map.group_of(next).is_some();
            if is_group_ahead || !request.add(next) {
                return;
            }
            run.asked(next);
        }
    }
}

/// What one fault asks for.
struct Request<'a> {
    map: &'a UnitMap,
    /// Whether runs of units stop where a group begins.
    keeps_off_groups: bool,
    bytes_left: u64,
    is_resident: &'a mut dyn FnMut(u32) -> bool,
    /// Where this fault's units start in `out`.
    first: usize,
    out: &'a mut Vec<u32>,
}

impl Request<'_> {
    /// Asks for a unit unless it is resident; false if it does not exist or the budget does not hold it.
    fn add(&mut self, unit: u32) -> bool {
        if unit >= self.map.count() {
            return false;
        }
        // Neighbouring groups share their edges.
        if self.out[self.first..].contains(&unit) || (self.is_resident)(unit) {
            return true;
        }
        let bytes = self.map.range(unit).bytes();
        if bytes > self.bytes_left {
            return false;
        }
        self.bytes_left -= bytes;
        self.out.push(unit);
        true
    }

    /// Asks for the group: first what lies behind the unit, where its reader goes next, then the rest.
    fn rest_of_group(&mut self, group: GroupId, unit: u32) {
        let units = self.map.group(group);
        let behind = units.partition_point(|&other| other <= unit);
        for &other in units[behind..].iter().chain(&units[..behind]) {
            if other != unit && !self.add(other) {
                return;
            }
        }
    }
}
