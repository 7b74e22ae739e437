//! The life of each fault unit of a cache file, and who waits for it.
//!
//! ```text
//! missing --request--> queued --begin--> filling --complete--> present
//!    ^                                      |                     |
//!    +----------------- fail ---------------+                   evict
//!    +------------------------- gone -------------- leaving <-----+
//! ```
//! One lock a file guards it; a unit that is queued, being filled or copied out is never evicted, and a unit whose
//! pages are being punched out is not filled before that is done.

use super::reading::Arrival;
use std::collections::HashMap;
use std::sync::Arc;

/// Faults in a unit that is present before its pages are believed to be gone. A few are usual: they were raised before the fill.
const VAIN_FAULTS_MAX: u32 = 1024;

/// Who waits for a unit.
#[derive(Clone, Debug)]
pub enum Waiter {
    /// A thread that touched it through this registration.
    Fault(u64),
    /// A reader.
    Read(Arc<Arrival>),
}

impl Waiter {
    /// Whether it is a thread that touched a mapping.
    pub const fn is_fault(&self) -> bool {
        matches!(self, Self::Fault(_))
    }
}

impl PartialEq for Waiter {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Fault(one), Self::Fault(another)) => one == another,
            (Self::Read(one), Self::Read(another)) => Arc::ptr_eq(one, another),
            _ => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Missing,
    Queued { demanded: bool },
    Filling { demanded: bool },
    Present,
    Leaving { wanted: bool },
}

/// What a fault leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// The bytes are here: wake the thread.
    Present,
    /// They are on their way; the waiter is noted.
    OnTheirWay,
    /// They must be queued at the front; the waiter is noted.
    Fetch,
}

/// States of all units of one cache file.
#[derive(Debug)]
pub struct UnitStates {
    states: Vec<State>,
    waiters: Vec<(u32, Waiter)>,
    /// Units that are being copied out, once for each reader.
    pinned: Vec<u32>,
    /// Faults in units that were present, since they were filled.
    vain: HashMap<u32, u32>,
    present: u32,
    /// A bit for each unit that has left to make room.
    left: Vec<u64>,
}

impl UnitStates {
    /// `count` units, none of them here.
    pub fn new(count: u32) -> Self {
        Self {
            states: vec![State::Missing; count as usize],
            waiters: Vec::new(),
            pinned: Vec::new(),
            vain: HashMap::new(),
            present: 0,
            left: vec![0; count.div_ceil(u64::BITS) as usize],
        }
    }

    /// A program touched the unit.
    pub fn touch(&mut self, unit: u32, waiter: Waiter) -> Touch {
        let state = &mut self.states[unit as usize];
        let outcome = match *state {
            State::Present => return Touch::Present,
            State::Missing | State::Queued { demanded: false } => {
                *state = State::Queued { demanded: true };
                Touch::Fetch
            }
            State::Filling { .. } => {
                *state = State::Filling { demanded: true };
                Touch::OnTheirWay
            }
            State::Leaving { .. } => {
                *state = State::Leaving { wanted: true };
                Touch::OnTheirWay
            }
            State::Queued { demanded: true } => Touch::OnTheirWay,
        };
        self.waiters.push((unit, waiter));
        outcome
    }

    /// A thread faulted although the unit is present: counts it. Whether that goes on and on, so that the pages cannot be in the
    /// file, whoever took them: the unit has to leave and be filled again, or the thread faults forever.
    pub fn is_in_vain(&mut self, unit: u32) -> bool {
        let faults = self.vain.entry(unit).or_default();
        *faults += 1;
        *faults >= VAIN_FAULTS_MAX && self.may_leave(unit)
    }

    /// The unit is wanted ahead of a touch; whether it must be queued.
    pub fn request(&mut self, unit: u32) -> bool {
        let state = &mut self.states[unit as usize];
        if *state != State::Missing {
            return false;
        }
        *state = State::Queued { demanded: false };
        true
    }

    /// A worker starts to fill the unit; `None` if it need not, else whether a program waits.
    pub fn begin(&mut self, unit: u32) -> Option<bool> {
        let State::Queued { demanded } = self.states[unit as usize] else { return None };
        self.states[unit as usize] = State::Filling { demanded };
        Some(demanded)
    }

    /// A queued prefetch is dropped because there is no room for it.
    pub fn forget(&mut self, unit: u32) {
        if self.states[unit as usize] == (State::Queued { demanded: false }) {
            self.states[unit as usize] = State::Missing;
        }
    }

    /// The bytes are in the file; returns who waits, and whether anybody asked for it.
    pub fn complete(&mut self, unit: u32) -> (Vec<Waiter>, bool) {
        let demanded = self.states[unit as usize] == (State::Filling { demanded: true });
        self.states[unit as usize] = State::Present;
        self.vain.remove(&unit);
        self.present += 1;
        (self.take_waiters(unit), demanded)
    }

    /// The bytes cannot be had; returns who waits.
    pub fn fail(&mut self, unit: u32) -> Vec<Waiter> {
        self.states[unit as usize] = State::Missing;
        self.take_waiters(unit)
    }

    /// Marks the unit as leaving if it may leave; whether its pages must be punched out now.
    pub fn evict(&mut self, unit: u32) -> bool {
        let may_leave = self.may_leave(unit);
        if may_leave {
            self.states[unit as usize] = State::Leaving { wanted: false };
            self.present -= 1;
        }
        may_leave
    }

    /// These units leave to make room for others.
    pub fn note_left(&mut self, units: &[u32]) {
        units.iter().for_each(|unit| self.left[(unit / u64::BITS) as usize] |= 1 << (unit % u64::BITS));
    }

    /// Whether the unit has ever left to make room.
    pub fn has_left(&self, unit: u32) -> bool {
        self.left[(unit / u64::BITS) as usize] >> (unit % u64::BITS) & 1 == 1
    }

    /// Whether the unit is present and nobody copies it out.
    pub fn may_leave(&self, unit: u32) -> bool {
        self.is_present(unit) && !self.is_pinned(unit)
    }

    /// Keeps a unit that is present from leaving while it is copied out; whether it is present.
    pub fn pin(&mut self, unit: u32) -> bool {
        let is_present = self.is_present(unit);
        if is_present {
            self.pinned.push(unit);
        }
        is_present
    }

    /// One copy is done.
    pub fn unpin(&mut self, unit: u32) {
        if let Some(place) = self.pinned.iter().position(|&pinned| pinned == unit) {
            self.pinned.swap_remove(place);
        }
    }

    /// Whether the unit is being copied out.
    pub fn is_pinned(&self, unit: u32) -> bool {
        self.pinned.contains(&unit)
    }

    /// The pages of a leaving unit are gone; whether a program touched it meanwhile, so that it must be queued.
    pub fn gone(&mut self, unit: u32) -> bool {
        let wanted = self.states[unit as usize] == (State::Leaving { wanted: true });
        self.states[unit as usize] = if wanted { State::Queued { demanded: true } } else { State::Missing };
        wanted
    }

    /// Whether the bytes of the unit are in the file.
    pub fn is_present(&self, unit: u32) -> bool {
        self.states.get(unit as usize) == Some(&State::Present)
    }

    /// Whether there is such a unit: an object without bytes has none.
    pub const fn has(&self, unit: u32) -> bool {
        (unit as usize) < self.states.len()
    }

    /// Whether nobody has asked for the unit, or it has left.
    pub fn is_missing(&self, unit: u32) -> bool {
        self.states[unit as usize] == State::Missing
    }

    /// Units whose bytes are in the file.
    pub fn present_units(&self) -> impl Iterator<Item = u32> {
        // A file has at most 2^27 units: the cast loses nothing.
        (0..self.states.len() as u32).filter(|&unit| self.is_present(unit))
    }

    /// How many units are present.
    pub const fn present_count(&self) -> u32 {
        self.present
    }

    /// Drops the waiters of a registration that is gone.
    pub fn drop_waiters(&mut self, registration: u64) {
        self.waiters.retain(|(_, waiter)| *waiter != Waiter::Fault(registration));
    }

    fn take_waiters(&mut self, unit: u32) -> Vec<Waiter> {
        self.waiters.extract_if(.., |(waiting, _)| *waiting == unit).map(|(_, waiter)| waiter).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: Waiter = Waiter::Fault(1);
    const V: Waiter = Waiter::Fault(2);

    #[test]
    fn two_programs_that_touch_one_unit_cause_one_fetch() {
        let mut units = UnitStates::new(2);
        assert_eq!(units.touch(1, W), Touch::Fetch);
        assert_eq!(units.touch(1, V), Touch::OnTheirWay);
        assert_eq!(units.begin(1), Some(true));
        assert_eq!(units.begin(1), None);
        assert_eq!(units.complete(1), (vec![W, V], true));
        assert_eq!(units.touch(1, W), Touch::Present);
        assert_eq!(units.present_count(), 1);
    }

    #[test]
    fn an_object_without_bytes_has_no_unit() {
        let mut units = UnitStates::new(0);
        assert!(!units.has(0) && !units.is_present(0) && !units.pin(0));
    }

    #[test]
    fn a_unit_that_is_being_filled_is_not_evicted() {
        let mut units = UnitStates::new(1);
        assert!(units.request(0));
        assert!(!units.evict(0));
        units.begin(0);
        assert!(!units.evict(0));
        units.complete(0);
        assert!(units.evict(0));
        assert!(!units.evict(0));
        assert!(!units.gone(0));
        assert_eq!(units.touch(0, W), Touch::Fetch);
    }

    #[test]
    fn a_touch_while_the_pages_leave_waits_and_is_fetched_again() {
        let mut units = UnitStates::new(1);
        units.request(0);
        units.begin(0);
        units.complete(0);
        assert!(units.evict(0));
        assert_eq!(units.touch(0, W), Touch::OnTheirWay);
        assert_eq!(units.begin(0), None);
        assert!(units.gone(0));
        assert_eq!(units.begin(0), Some(true));
        assert_eq!(units.complete(0), (vec![W], true));
    }

    #[test]
    fn a_touch_makes_a_queued_prefetch_a_demand() {
        let mut units = UnitStates::new(1);
        assert!(units.request(0));
        assert!(!units.request(0));
        assert_eq!(units.touch(0, W), Touch::Fetch);
        units.forget(0);
        assert_eq!(units.begin(0), Some(true));
    }

    #[test]
    fn a_failed_fill_gives_its_waiters_back_and_can_be_tried_again() {
        let mut units = UnitStates::new(1);
        units.touch(0, W);
        units.begin(0);
        assert_eq!(units.fail(0), vec![W]);
        assert_eq!(units.touch(0, V), Touch::Fetch);
        units.drop_waiters(2);
        units.begin(0);
        assert_eq!(units.complete(0), (vec![], true));
    }

    #[test]
    fn a_unit_that_is_copied_out_does_not_leave() {
        let mut units = UnitStates::new(1);
        assert!(!units.pin(0));
        units.request(0);
        units.begin(0);
        units.complete(0);
        assert!(units.pin(0) && units.pin(0));
        units.unpin(0);
        assert!(!units.evict(0));
        units.unpin(0);
        assert!(units.evict(0));
        assert!(!units.pin(0));
    }

    #[test]
    fn a_present_unit_whose_faults_never_end_is_filled_again() {
        let mut units = UnitStates::new(1);
        for _ in 0..2 {
            units.request(0);
            units.begin(0);
            units.complete(0);
            assert!((1..VAIN_FAULTS_MAX).all(|_| !units.is_in_vain(0)));
            assert!(units.pin(0) && !units.is_in_vain(0), "not while it is copied out");
            units.unpin(0);
            assert!(units.is_in_vain(0));
            assert!(units.evict(0) && !units.gone(0));
        }
    }

    #[test]
    fn a_reader_waits_beside_the_mappings_and_is_not_dropped_with_them() {
        let mut units = UnitStates::new(1);
        let reader = Waiter::Read(Arc::default());
        assert_eq!(units.touch(0, W), Touch::Fetch);
        assert_eq!(units.touch(0, reader.clone()), Touch::OnTheirWay);
        units.begin(0);
        units.drop_waiters(1);
        assert_eq!(units.complete(0), (vec![reader], true));
    }
}
