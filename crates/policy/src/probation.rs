//! Eviction when touches are not seen: units on probation are unmapped, so that the next touch shows.
//!
//! Once a unit is filled the kernel serves every access to it, and hides which units those are. What can be
//! had is a *probe*: programs drop a unit from their page tables (the bytes stay), and the next touch is a
//! cheap fault that the node sees. Probing everything all the time would cost what the cache saves, so
//! resident units are in two lists, as pages of the kernel are:
//!
//! ```text
//!            untouched for long: probed              untouched since: evicted
//!   active ----------------------------> inactive ----------------------------> ghost
//!      ^                                    | ^                                   |
//!      +------------ touched ---------------+ +------------ filled ---------------+
//!      +------------------------ filled again too soon ---------------------------+
//! ```
//!
//! - *Active* units are mapped and believed to be in use. Any [`Eviction`] orders them.
//! - *Inactive* units have been probed, or are new, and leave oldest first. The list is kept at a share of
//!   all bytes: the longer it is, the closer the order comes to least recently used, and the more faults
//!   the probes cost.
//! - The *ghost* remembers what was evicted. A unit that comes back before as many bytes were evicted as
//!   are active would have stayed, had the two lists been divided better: it becomes active at once.
//!
//! A program that cannot be probed costs precision only: its units then leave first in, first out.

use crate::eviction::{Eviction, EvictionKind, Ghost, Queues, UnitKey};

#[cfg(test)]
mod tests;

/// Switches and shares of [`Probation`]; the default has every switch on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbationConfig {
    /// The order of active units.
    pub active_order: EvictionKind,
    /// Share of the resident bytes that is kept inactive, in percent, at most 100.
    pub inactive_percent: u32,
    /// Whether new units start active, as in LRU, and not on probation.
    pub admit_active: bool,
    /// Whether units that come back soon after eviction start active.
    pub refault: bool,
}

impl Default for ProbationConfig {
    fn default() -> Self {
        Self { active_order: EvictionKind::Lru, inactive_percent: 33, admit_active: false, refault: true }
    }
}

/// The units of a cache whose touches are seen only after a probe.
///
/// It is an [`Eviction`] whose `touch` is called when a touch happens to be seen, with two ways to learn of
/// one: touches of probed units are pushed as they happen (`touch`), or asked for before eviction
/// ([`Self::victim_candidates`], [`Self::report`]).
pub struct Probation {
    config: ProbationConfig,
    active: Box<dyn Eviction>,
    inactive: Queues<3>,
    ghost: Ghost,
}

/// Inactive units that were touched when last heard of: new, or fallen from the active list, and still mapped.
const UNPROBED: u8 = 0;
/// Inactive units that are unmapped, and not touched since.
const PROBED: u8 = 1;
/// Inactive units of which the caller is asking whether they were touched.
const ASKED: u8 = 2;
/// The inactive queues in the order in which units leave.
const LEAVING: [u8; 3] = [ASKED, PROBED, UNPROBED];

impl Probation {
    /// An empty cache.
    pub fn new(config: ProbationConfig) -> Self {
        let active = config.active_order.build();
        Self { config, active, inactive: Queues::new(), ghost: Ghost::new(0) }
    }

    /// Appends to `out` at most `units_max` units to unmap, those nearest to eviction first.
    ///
    /// The caller unmaps them in every program and then reports touches. To be called after every few fills
    /// with at least twice as many units as were filled, or the list runs dry: units then leave first in,
    /// first out. Nothing is appended while the inactive list is long enough and probed.
    pub fn next_probe(&mut self, units_max: usize, out: &mut Vec<UnitKey>) {
        self.refill_inactive();
        for _ in 0..units_max {
            let Some(entry) = self.inactive.oldest(UNPROBED) else { break };
            self.inactive.push_front(PROBED, entry.key, entry.bytes, 0);
            out.push(entry.key);
        }
    }

    /// Appends to `out` the oldest probed units, at least `bytes_needed` together if there are so many, and
    /// returns their bytes.
    ///
    /// The caller finds out which of them were touched and calls [`Self::report`] for each. If too many were,
    /// it asks again: `victims` would evict the next without a question.
    pub fn victim_candidates(&mut self, bytes_needed: u64, out: &mut Vec<UnitKey>) -> u64 {
        let mut found = 0;
        while found < bytes_needed {
            let Some(entry) = self.inactive.oldest(PROBED) else { break };
            self.inactive.push_front(ASKED, entry.key, entry.bytes, 0);
            out.push(entry.key);
            found += entry.bytes;
        }
        found
    }

    /// The answer for a candidate: if it was touched it becomes active; if not, it is evicted and the caller
    /// frees its bytes. Returns whether it is evicted; false also for a unit that left or was touched meanwhile.
    pub fn report(&mut self, key: UnitKey, was_touched: bool) -> bool {
        if self.inactive.get(key).is_none_or(|entry| entry.queue != ASKED) {
            return false;
        }
        if was_touched {
            self.touch(key);
        } else {
            self.evict(key);
        }
        !was_touched
    }

    /// Bytes of inactive units.
    pub fn inactive_bytes(&self) -> u64 {
        LEAVING.iter().map(|&queue| self.inactive.bytes(queue)).sum()
    }

    /// Moves the coldest active units to the inactive list until it has its share.
    fn refill_inactive(&mut self) {
        let wanted = self.bytes() / 100 * u64::from(self.config.inactive_percent.min(100));
        let missing = wanted.saturating_sub(self.inactive_bytes());
        if missing > 0 {
            self.deactivate(missing, &mut |_| true);
        }
    }

    fn deactivate(&mut self, bytes: u64, may_move: &mut dyn FnMut(UnitKey) -> bool) {
        // The order does not tell sizes, so each unit's is the difference that it makes.
        let mut one = Vec::with_capacity(1);
        let mut moved = 0;
        while moved < bytes {
            let unit_bytes = self.active.victims(1, may_move, &mut one);
            let Some(key) = one.pop() else { break };
            self.inactive.push_front(UNPROBED, key, unit_bytes, 0);
            moved += unit_bytes;
        }
    }

    fn activate(&mut self, key: UnitKey, bytes: u64) {
        self.active.insert(key, bytes);
        self.active.touch(key);
    }

    fn take_oldest(
        &mut self,
        queue: u8,
        bytes_needed: u64,
        is_evictable: &mut dyn FnMut(UnitKey) -> bool,
        out: &mut Vec<UnitKey>,
    ) -> u64 {
        let mut taken = 0;
        let mut next = self.inactive.oldest(queue);
        while taken < bytes_needed
            && let Some(entry) = next
        {
            next = self.inactive.younger(entry.key);
            if is_evictable(entry.key) {
                taken += self.evict(entry.key);
                out.push(entry.key);
            }
        }
        taken
    }

    fn evict(&mut self, key: UnitKey) -> u64 {
        let bytes_before = self.bytes();
        let Some(entry) = self.inactive.remove(key) else { return 0 };
        if self.config.refault {
            // What would not fit in the cache would have been evicted anyway.
            self.ghost.set_bytes_max(bytes_before);
            self.ghost.remember(key, entry.bytes);
        }
        entry.bytes
    }
}

impl Eviction for Probation {
    /// A unit was filled.
    fn insert(&mut self, key: UnitKey, bytes: u64) {
        if self.contains(key) {
            return self.touch(key);
        }
        let came_back_soon = self.ghost.recall(key).is_some_and(|distance| distance <= self.active.bytes());
        if came_back_soon {
            self.activate(key, bytes);
        } else if self.config.admit_active {
            self.active.insert(key, bytes);
        } else {
            self.inactive.push_front(UNPROBED, key, bytes, 0);
        }
    }

    /// A touch was seen. Of an inactive unit it counts only after the probe: before, it says no more than
    /// that some program maps a unit for the first time that was prefetched or filled for another.
    fn touch(&mut self, key: UnitKey) {
        match self.inactive.get(key) {
            Some(entry) if entry.queue == UNPROBED => {}
            Some(entry) => {
                self.inactive.remove(key);
                self.activate(key, entry.bytes);
            }
            None => self.active.touch(key),
        }
    }

    fn remove(&mut self, key: UnitKey) {
        self.inactive.remove(key);
        self.active.remove(key);
        self.ghost.forget(key);
    }

    /// Takes inactive units, oldest first; probed ones before those of which nothing is known, and active
    /// ones only if nothing else is left.
    fn victims(
        &mut self,
        bytes_needed: u64,
        is_evictable: &mut dyn FnMut(UnitKey) -> bool,
        out: &mut Vec<UnitKey>,
    ) -> u64 {
        let mut taken = 0;
        for queue in LEAVING {
            taken += self.take_oldest(queue, bytes_needed.saturating_sub(taken), is_evictable, out);
        }
        if taken < bytes_needed {
            self.deactivate(bytes_needed - taken, is_evictable);
            taken += self.take_oldest(UNPROBED, bytes_needed - taken, is_evictable, out);
        }
        taken
    }

    fn contains(&self, key: UnitKey) -> bool {
        self.inactive.get(key).is_some() || self.active.contains(key)
    }

    fn bytes(&self) -> u64 {
        self.inactive_bytes() + self.active.bytes()
    }

    fn units(&self) -> usize {
        LEAVING.iter().map(|&queue| self.inactive.units(queue)).sum::<usize>() + self.active.units()
    }
}
