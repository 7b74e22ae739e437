//! Room for entries: pieces that this program has taken from the table's memory, and those that it has freed.
//!
//! Room is taken from the table in chunks, by adding to one word of the header, and kept by who took it. What a
//! program has freed or not used when it ends is lost to the others: enough for an example. Freed room rests until
//! [`RESTING`] more pieces of its length are free, so that a place is not soon the same place again.

use crate::layout::{NEXT_AT, UNIT_BYTES};
use crate::memory::Memory;
use crate::table::TableError;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// Units that are taken from the table at once: 256 KiB.
const CHUNK_UNITS: u64 = 4096;
/// Freed pieces of a length that stay free while there is other room.
const RESTING: usize = 64;

/// Free room, by its length in units.
#[derive(Debug, Default)]
pub struct Heap {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// What was used before, by its length in units.
    freed: BTreeMap<u64, VecDeque<u64>>,
    /// What nobody has used yet: where, and how many units.
    fresh: (u64, u64),
}

impl Heap {
    /// Takes `units` units; where they begin.
    ///
    /// # Errors
    /// [`TableError::Full`], [`TableError::Pool`].
    pub fn take(&self, memory: &impl Memory, memory_bytes: u64, units: u64) -> Result<u64, TableError> {
        let mut books = self.lock();
        if let Some(offset) = books.rested(units, RESTING).or_else(|| books.fresh(units)) {
            return Ok(offset);
        }
        let wanted = units.max(CHUNK_UNITS);
        let start = memory.add(NEXT_AT, wanted * UNIT_BYTES)?;
        let end = memory_bytes.min(start.saturating_add(wanted * UNIT_BYTES));
        let has = end.saturating_sub(start) / UNIT_BYTES;
        if has >= units {
            // What was left of the chunk before is used for shorter entries.
            let (offset, left) = std::mem::replace(&mut books.fresh, (start, has));
            books.give(offset, left);
        } else {
            books.give(start, has);
        }
        books.fresh(units).or_else(|| books.rested(units, 0)).ok_or(TableError::Full)
    }

    /// Gives units back.
    pub fn give(&self, offset: u64, units: u64) {
        self.lock().give(offset, units);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn give(&mut self, offset: u64, units: u64) {
        if units > 0 {
            self.freed.entry(units).or_default().push_back(offset);
        }
    }

    fn fresh(&mut self, units: u64) -> Option<u64> {
        let (offset, has) = self.fresh;
        let left = has.checked_sub(units)?;
        self.fresh = (offset + units * UNIT_BYTES, left);
        Some(offset)
    }

    /// The piece of the length, or of the shortest longer one, that is free for longest, if more than `resting` others
    /// are; what is too much of it stays free.
    fn rested(&mut self, units: u64, resting: usize) -> Option<u64> {
        let (&found, pieces) = self.freed.range_mut(units..).find(|(_, pieces)| pieces.len() > resting)?;
        let offset = pieces.pop_front()?;
        self.give(offset + units * UNIT_BYTES, found - units);
        Some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ProcessMemory;

    #[test]
    fn pieces_never_overlap_and_all_room_is_used_before_it_is_full() {
        const BYTES: u64 = 1 << 20;
        let (memory, heap) = (ProcessMemory::new(BYTES), Heap::default());
        memory.swap(NEXT_AT, 0, 4096).unwrap();
        let mut taken = Vec::new();
        for number in 0_u64.. {
            let units = number * 7 % 40 + 1;
            let Ok(offset) = heap.take(&memory, BYTES, units) else { break };
            taken.push((offset, units));
        }
        while let Ok(offset) = heap.take(&memory, BYTES, 1) {
            taken.push((offset, 1));
        }
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0].0 + pair[0].1 * UNIT_BYTES <= pair[1].0));
        assert_eq!(taken.iter().map(|(_, units)| units * UNIT_BYTES).sum::<u64>(), BYTES - 4096);
    }
}
