//! Room in caches: which units leave, and how programs are asked which are still in use.

use super::Cache;
use super::file::CacheFile;
use super::registration::Registration;
use crate::fault_point;
use hinterland_policy::{Eviction, UnitKey};
use hinterland_proto::control::ProbeRange;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Units that programs are asked to unmap at once.
const PROBE_UNITS_MAX: usize = 128;
/// Smallest amount that an eviction frees, so that programs are not asked for every unit.
const EVICT_BYTES_MIN: u64 = 4 << 20;
/// How often units leave for one fill whose room others take.
const ROOM_TRIES_MAX: usize = 8;
/// How often programs are asked which units they use before units leave unasked.
const ASK_ROUNDS_MAX: usize = 6;
/// Units that were filled last and stay in a loop, at the least: those that workers fetch ahead.
const LOOP_PROTECTED_MIN: usize = 4;
/// Probing begins when a cache is filled to this share of its limit, in percent.
const PROBE_FROM_PERCENT: u64 = 70;

/// Keys of one file's own policy; the file is known, so its slot says nothing.
pub const fn key(unit: u32) -> UnitKey {
    UnitKey { object: 0, unit }
}

impl Cache {
    /// Takes `bytes` of the budgets of the host and of the file, evicting as needed. Whether they were taken:
    /// a fill that a program waits for always gets them, because it must not wait for ever.
    pub(super) fn make_room(&self, file: &Arc<CacheFile>, bytes: u64, demanded: bool) -> bool {
        if self.take_room(file, bytes) {
            return true;
        }
        let _one_at_a_time = self.evicting.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..ROOM_TRIES_MAX {
            // Who held the lock may have made enough; and what leaves here, a fill that asked later may take.
            if self.take_room(file, bytes) {
                return true;
            }
            let file_missing =
                file.budget().map_or(0, |budget| (file.resident_bytes() + bytes).saturating_sub(budget));
            if file_missing > 0 && self.evict(file, file_missing) < file_missing {
                break;
            }
            let host_missing = (self.resident_bytes() + bytes).saturating_sub(self.options.budget_bytes);
            if self.evict_largest(host_missing) < host_missing {
                break;
            }
        }
        let taken = self.take_room(file, bytes);
        if !taken && demanded {
            file.take(bytes);
        }
        taken || demanded
    }

    /// Takes room if it is there.
    fn take_room(&self, file: &CacheFile, bytes: u64) -> bool {
        let _counting = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = self.resident_bytes() + bytes <= self.options.budget_bytes
            && file.budget().is_none_or(|budget| file.resident_bytes() + bytes <= budget);
        if fits {
            file.take(bytes);
        }
        fits
    }

    /// Evicts at least `missing` bytes if it can, from the files that hold most; returns what was freed.
    pub(super) fn evict_largest(&self, missing: u64) -> u64 {
        let mut freed = 0;
        let mut files = self.files_by_size();
        while freed < missing {
            let Some(largest) = files.pop() else { break };
            freed += self.evict(&largest, missing - freed);
        }
        freed
    }

    /// Evicts at least `bytes` from a file if it can; returns what was freed.
    ///
    /// Units that were probed and not touched since go first. What was touched goes back to the active ones, so it is
    /// asked again until enough is found; only then units leave of which nothing is known.
    pub(super) fn evict(&self, file: &Arc<CacheFile>, bytes: u64) -> u64 {
        let wanted = bytes.max(EVICT_BYTES_MIN.min(file.resident_bytes() / 8));
        let (mut leaving, mut freed) = leave_loop(file, wanted);
        let rounds = if self.options.switches.probe { ASK_ROUNDS_MAX } else { 0 };
        for _ in 0..rounds {
            if freed >= bytes {
                break;
            }
            let mut candidates = Vec::new();
            file.lock().probation.victim_candidates(wanted.saturating_sub(freed), &mut candidates);
            if candidates.is_empty() {
                break;
            }
            let touched = self.ask_touched(file, &candidates);
            let mut state = file.lock();
            for (candidate, touched) in candidates.iter().zip(touched) {
                let touched = touched || state.units.is_pinned(candidate.unit);
                if state.probation.report(*candidate, touched) && state.units.evict(candidate.unit) {
                    state.observe_eviction(&file.units, candidate.unit);
                    freed += file.unit_memory(candidate.unit);
                    leaving.push(candidate.unit);
                }
            }
        }
        if freed < bytes {
            let mut state = file.lock();
            let mut more = Vec::new();
            let super::file::FileState { units, probation, .. } = &mut *state;
            probation.victims(bytes - freed, &mut |key| units.may_leave(key.unit), &mut more);
            leaving.extend(more.iter().map(|key| key.unit).filter(|&unit| units.evict(unit)));
        }
        let freed = leaving.iter().map(|&unit| file.unit_memory(unit)).sum();
        file.lock().units.note_left(&leaving);
        fault_point::reach("evict-chosen");
        let wanted = file.punch(&leaving);
        fault_point::reach("evict-punched");
        self.queue.push(file, &wanted);
        // Relaxed: counters that nothing is ordered by.
        self.tallies.evictions.fetch_add(leaving.len() as u64, Ordering::Relaxed);
        self.tallies.evicted_bytes.fetch_add(freed, Ordering::Relaxed);
        freed
    }

    /// Asks programs to unmap the units that are nearest to eviction, so that their next touch shows.
    pub(super) fn probe(&self, file: &Arc<CacheFile>) {
        let limit = file.budget().unwrap_or(u64::MAX).min(self.options.budget_bytes);
        if !self.options.switches.probe || file.resident_bytes() < limit / 100 * PROBE_FROM_PERCENT {
            return;
        }
        let mut units = Vec::new();
        let registrations = {
            let mut state = file.lock();
            state.probation.next_probe(PROBE_UNITS_MAX, &mut units);
            state.registrations.clone()
        };
        if units.is_empty() {
            return;
        }
        // Before the entries are dropped that tell it.
        self.measure_used(file, &registrations, &units);
        for registration in registrations {
            let (ranges, _) = shown(file, &registration, &units);
            if let Some(channel) = registration.channel()
                && !ranges.is_empty()
                && let Err(error) = channel.unmap(ranges)
            {
                tracing::debug!(%error, "a program did not unmap what it was asked to");
            }
        }
    }

    /// Which of the units any program has touched since they were unmapped.
    fn ask_touched(&self, file: &Arc<CacheFile>, units: &[UnitKey]) -> Vec<bool> {
        let mut touched = vec![false; units.len()];
        if units.is_empty() {
            return touched;
        }
        let registrations = file.lock().registrations.clone();
        for registration in registrations {
            let (ranges, places) = shown(file, &registration, units);
            let Some(channel) = registration.channel() else { continue };
            match channel.touched(ranges) {
                Ok(answers) => {
                    for (place, answer) in places.into_iter().zip(answers) {
                        touched[place] |= answer;
                    }
                }
                Err(error) => tracing::debug!(%error, "a program did not say what it touched"),
            }
        }
        touched
    }
}

/// In a loop, what was filled most recently leaves, but for what may not have been used yet.
fn leave_loop(file: &CacheFile, wanted: u64) -> (Vec<u32>, u64) {
    let mut state = file.lock();
    let (mut leaving, mut freed) = (Vec::new(), 0);
    if !state.loops.is_looping() {
        return (leaving, freed);
    }
    let protected = (state.units.present_count() as usize / 4).max(LOOP_PROTECTED_MIN);
    let candidates: Vec<u32> = state.loops.latest(protected).collect();
    for unit in candidates {
        if freed >= wanted {
            break;
        }
        if state.units.evict(unit) {
            state.probation.remove(key(unit));
            freed += file.unit_memory(unit);
            leaving.push(unit);
        }
    }
    (leaving, freed)
}

/// Where a program sees units, and which of the units those are.
fn shown(file: &CacheFile, registration: &Registration, units: &[UnitKey]) -> (Vec<ProbeRange>, Vec<usize>) {
    units
        .iter()
        .enumerate()
        .flat_map(|(place, key)| {
            registration.shown(file.units.range(key.unit)).into_iter().map(move |range| (range, place))
        })
        .unzip()
}
