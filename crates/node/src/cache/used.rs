//! How much of each unit programs have used, which is found out just before the unit is put on probation.
//!
//! Programs are asked which parts of a unit are in their page tables. That is one message more in the thread that probes, for a
//! few units a round, and none where a fault or a fill waits.

use super::Cache;
use super::file::CacheFile;
use super::registration::Registration;
use hinterland_policy::UnitKey;
use hinterland_types::ByteRange;
use std::collections::HashMap;
use std::sync::Arc;

/// Smallest part: on a touch the kernel maps 16 pages of 4 KiB, so less cannot be told apart.
const PART_BYTES_MIN: u64 = 64 << 10;
/// Most parts of one unit.
const PARTS_MAX: u64 = 32;
/// Units that are looked at in one round of probes: their parts make one message of 256 ranges at most.
const MEASURED_UNITS_MAX: usize = 8;

/// What is known of the units of one file.
#[derive(Debug, Default)]
pub struct UsedParts(HashMap<u32, Option<u64>>);

impl UsedParts {
    /// A unit is about to be unmapped; so many of its bytes were used since it was filled or unmapped last.
    /// `None`: nobody knows, and nobody will before it is filled again.
    pub fn add(&mut self, unit: u32, used_bytes: Option<u64>) {
        let known = self.0.entry(unit).or_insert(Some(0));
        // A part that is used twice counts twice: too much is said sooner than too little.
        *known = known.zip(used_bytes).map(|(known, more)| known.saturating_add(more));
    }

    /// The used bytes of a unit that leaves. One of which nothing was used was fetched ahead or only read: it says nothing.
    pub fn take(&mut self, unit: u32) -> Option<u64> {
        self.0.remove(&unit).flatten().filter(|&used_bytes| used_bytes > 0)
    }
}

impl Cache {
    /// Finds out how much of units that are about to be unmapped has been used.
    pub(super) fn measure_used(
        &self,
        file: &CacheFile,
        registrations: &[Arc<Registration>],
        units: &[UnitKey],
    ) {
        // What the file's own layout divides is no business of the tuner.
        if file.units.uniform_unit().is_none() {
            return;
        }
        let (measured, others) = units.split_at(units.len().min(MEASURED_UNITS_MAX));
        let parts: Vec<(u32, ByteRange)> = measured.iter().flat_map(|key| parts(file, key.unit)).collect();
        let touched = touched_parts(registrations, &parts);
        let mut state = file.lock();
        for key in measured {
            let mut own = parts.iter().enumerate().filter(|(_, (unit, _))| *unit == key.unit).peekable();
            let is_known = own.peek().is_some();
            let used = touched.as_ref().filter(|_| is_known).map(|touched| {
                own.filter(|(place, _)| touched[*place]).map(|(_, (_, part))| part.bytes()).sum()
            });
            state.used.add(key.unit, used);
        }
        others.iter().for_each(|key| state.used.add(key.unit, None));
    }
}

/// The parts of a unit that can be told apart; none if it is touched as a whole.
fn parts(file: &CacheFile, unit: u32) -> Vec<(u32, ByteRange)> {
    let range = file.units.range(unit);
    let smallest = file.page_kind().page_bytes().max(PART_BYTES_MIN);
    let part_bytes = range.bytes().div_ceil(PARTS_MAX).next_multiple_of(smallest);
    if part_bytes >= range.bytes() {
        return Vec::new();
    }
    // At most `PARTS_MAX`: the cast loses nothing.
    (0..range.bytes().div_ceil(part_bytes))
        .map(|number| range.offset() + number * part_bytes)
        .filter_map(|start| ByteRange::new(start, part_bytes.min(range.end() - start)).ok())
        .map(|part| (unit, part))
        .collect()
}

/// Which parts any program has touched; `None` if one of those that see them does not say.
fn touched_parts(registrations: &[Arc<Registration>], parts: &[(u32, ByteRange)]) -> Option<Vec<bool>> {
    let mut touched = vec![false; parts.len()];
    for registration in registrations {
        let (ranges, places): (Vec<_>, Vec<_>) = parts
            .iter()
            .enumerate()
            .flat_map(|(place, (_, part))| {
                registration.shown(*part).into_iter().map(move |range| (range, place))
            })
            .unzip();
        if ranges.is_empty() {
            continue;
        }
        let answers = registration.channel()?.touched(ranges).ok()?;
        places.into_iter().zip(answers).for_each(|(place, answer)| touched[place] |= answer);
    }
    Some(touched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_between_probes_adds_up_and_what_nobody_knows_stays_unknown() {
        let mut used = UsedParts::default();
        used.add(1, Some(64));
        used.add(1, Some(128));
        assert_eq!((used.take(1), used.take(1)), (Some(192), None));
        used.add(2, Some(64));
        used.add(2, None);
        used.add(2, Some(64));
        assert_eq!(used.take(2), None);
        used.add(3, Some(0));
        assert_eq!(used.take(3), None);
    }
}
