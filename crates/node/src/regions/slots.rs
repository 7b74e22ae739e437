//! The slots of a session: which pages its threads are in, and samples of what they have accessed.

use crate::refused::Refused;
use hinterland_os::file_lock::{ByteLock, is_byte_locked, lock_byte};
use hinterland_os::{MapOptions, MemoryFile, PageKind, SharedSlice};
use hinterland_proto::pages::{
    AccessSample, SAMPLE_COUNT_AT, SAMPLES, SAMPLES_AT, SLOT_BYTES, SLOTS, SLOTS_BYTES,
};
use hinterland_types::{PageNumber, SessionId};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The byte that is locked as long as a program has the file open or mapped.
const IN_USE: u64 = 1 << 40;

/// Samples that one stands for at the most: a thread's accesses of other racks between two looks, ten times over.
const STANDS_FOR_MAX: u64 = 256;

/// Memory that a session shares with its node. The program may write anything into it: that can keep pages where they
/// are, and make them look hot, and nothing else.
pub struct SlotFile {
    /// Whose.
    pub session: SessionId,
    file: MemoryFile,
    memory: SharedSlice,
    has_ended: AtomicBool,
    /// Samples of each slot that were looked at.
    seen: Mutex<Box<[u64; SLOTS]>>,
}

impl SlotFile {
    /// Slots that nobody is in.
    ///
    /// # Errors
    /// [`Refused`] without memory.
    pub fn new(session: SessionId) -> Result<Self, Refused> {
        let file = MemoryFile::anonymous("hinterland-slots", SLOTS_BYTES as u64, PageKind::Base4K)?;
        file.allocate(0, SLOTS_BYTES as u64)?;
        // Guarded: the program has a descriptor with which it can cut the file off.
        let options = MapOptions { write: true, guarded: true, ..MapOptions::default() };
        let memory = Arc::new(file.map(0, SLOTS_BYTES, options)?).slice();
        let seen = Mutex::new(Box::new([0; SLOTS]));
        Ok(Self { session, file, memory, has_ended: AtomicBool::new(false), seen })
    }

    /// A descriptor for the program.
    ///
    /// # Errors
    /// [`Refused`] without descriptors left.
    pub fn descriptor(&self) -> Result<OwnedFd, Refused> {
        let file = self.file.reopen()?;
        lock_byte(&file, IN_USE, ByteLock::Shared)?;
        Ok(file)
    }

    /// The session is over.
    pub fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    /// Whether a thread may be in one of the slots: until the session is over and nobody has them mapped.
    pub fn is_in_use(&self) -> bool {
        !self.has_ended.load(Ordering::Acquire) || is_byte_locked(&self.file, IN_USE).unwrap_or(true)
    }

    /// Whether a thread is in the page, or may be: a program that has cut its slots off cannot be asked any more.
    pub fn names(&self, page: PageNumber) -> bool {
        let word = u64::from(page.raw()) + 1;
        let is_named =
            (0..SLOTS).any(|slot| self.memory.load_u64(slot * SLOT_BYTES).is_ok_and(|there| there == word));
        is_named || self.memory.mapping().is_lost()
    }

    /// The slots whose threads are in one of the pages, or may be.
    pub fn inside(&self, first: PageNumber, last: PageNumber) -> Vec<usize> {
        (0..SLOTS).filter(|slot| self.is_inside(*slot, first, last)).collect()
    }

    /// Whether the thread of a slot is in one of the pages, or may be.
    pub fn is_inside(&self, slot: usize, first: PageNumber, last: PageNumber) -> bool {
        let named = u64::from(first.raw()) + 1..=u64::from(last.raw()) + 1;
        let there = self.memory.load_u64(slot * SLOT_BYTES);
        there.is_ok_and(|there| named.contains(&there)) || self.memory.mapping().is_lost()
    }

    /// What was sampled since the last call, with for how many accesses each sample counts. Samples that were overwritten in between are
    /// lost, and those that are left stand for them, too: else a thread that makes many would look as if it made as many as there is
    /// room for. The accesses of a thread are `most` together at the most, each a like part of it.
    pub fn drain(&self, most: u64, mut take: impl FnMut(AccessSample, u64)) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<(AccessSample, u64)> = Vec::new();
        for (slot, seen) in seen.iter_mut().enumerate() {
            let start = slot * SLOT_BYTES;
            let Ok(count) = self.memory.load_u64(start + SAMPLE_COUNT_AT) else { return };
            // A program may have written any number.
            let written = count.wrapping_sub(*seen);
            let fresh = written.min(SAMPLES);
            let stands_for = written.div_ceil(SAMPLES).clamp(1, STANDS_FOR_MAX);
            found.clear();
            for number in 0..fresh {
                let place = (count.wrapping_sub(1 + number) % SAMPLES) as usize;
                let word = self.memory.load_u64(start + SAMPLES_AT + place * 8).unwrap_or(0);
                let sample = AccessSample::from_word(word);
                found.extend(sample.map(|sample| (sample, u64::from(sample.weight) * stands_for)));
            }
            *seen = count;
            let total: u64 = found.iter().map(|(_, accesses)| accesses).sum();
            // What a part leaves over goes to the next one, so that small ones are not lost.
            let mut left_over = 0;
            for (sample, accesses) in &found {
                let part = if total > most { accesses * most + left_over } else { accesses * total };
                left_over = if total > most { part % total } else { 0 };
                take(*sample, part / total.max(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(page: u32, weight: u16) -> AccessSample {
        AccessSample { page: PageNumber::new(page).unwrap(), is_write: page == 3, weight }
    }

    fn write(slots: &SlotFile, slot: usize, samples: &[AccessSample]) {
        let start = slot * SLOT_BYTES;
        let count = slots.memory.load_u64(start + SAMPLE_COUNT_AT).unwrap();
        for (number, sample) in (count..).zip(samples) {
            let place = (number % SAMPLES) as usize;
            slots.memory.store_u64(start + SAMPLES_AT + place * 8, sample.to_word()).unwrap();
        }
        slots.memory.store_u64(start + SAMPLE_COUNT_AT, count + samples.len() as u64).unwrap();
    }

    fn drained(slots: &SlotFile, most: u64) -> Vec<(u32, u64)> {
        let mut all = std::collections::BTreeMap::new();
        slots.drain(most, |sample, accesses| *all.entry(sample.page.raw()).or_default() += accesses);
        all.into_iter().collect()
    }

    #[test]
    fn a_thread_counts_for_so_much_at_the_most_and_its_pages_keep_their_shares() {
        let slots = SlotFile::new(SessionId(1)).unwrap();
        write(&slots, 0, &[sample(1, 61), sample(2, 61), sample(2, 61), sample(3, 61)]);
        write(&slots, 1, &[sample(1, 1), sample(4, 1)]);
        // Each thread has its own limit.
        assert_eq!(drained(&slots, 100), [(1, 26), (2, 50), (3, 25), (4, 1)]);
        assert_eq!(drained(&slots, 100), []);
        write(&slots, 0, &[sample(1, 61), sample(2, 61), sample(2, 61), sample(3, 61)]);
        assert_eq!(drained(&slots, 1000), [(1, 61), (2, 122), (3, 61)]);
        // Parts below one are not lost.
        write(&slots, 0, &[sample(5, 1); 40]);
        assert_eq!(drained(&slots, 10), [(5, 10)]);
    }
}
