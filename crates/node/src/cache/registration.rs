//! A program's mapping of a cache file, and how its faults are answered.

use crate::notices::NoticeChannel;
use hinterland_os::Userfault;
use hinterland_proto::control::ProbeRange;
use hinterland_types::{ByteRange, SessionId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Smallest piece of a mapping that is woken or probed.
const PAGE_BYTES: u64 = 4096;

/// One mapping in one program.
pub struct Registration {
    /// Identifier, never used twice.
    pub id: u64,
    /// Whose.
    pub session: SessionId,
    pointer: AtomicU64,
    /// Offset in the object at the pointer.
    offset: u64,
    bytes: u64,
    /// Pages of the mapping.
    page_bytes: u64,
    /// Parts that show something else: the program has unmapped them, and mapped another object there. As distances from the pointer, ascending and
    /// apart.
    covered: Mutex<Vec<(u64, u64)>>,
    fault: Userfault,
    channel: Arc<Mutex<Option<Arc<NoticeChannel>>>>,
}

/// What a program hands over when it maps a cache file.
pub struct NewRegistration {
    /// Identifier, never used twice.
    pub id: u64,
    /// Whose.
    pub session: SessionId,
    /// Where the mapping starts.
    pub pointer: u64,
    /// The part of the object that it shows.
    pub range: ByteRange,
    /// Pages of the mapping.
    pub page_bytes: u64,
    /// Guards the mapping.
    pub fault: Userfault,
    /// Where the program can be told something, once it asked for that.
    pub channel: Arc<Mutex<Option<Arc<NoticeChannel>>>>,
}

impl Registration {
    /// Takes what a program handed over.
    pub fn new(new: NewRegistration) -> Self {
        Self {
            id: new.id,
            session: new.session,
            pointer: AtomicU64::new(new.pointer),
            offset: new.range.offset(),
            bytes: new.range.bytes(),
            page_bytes: new.page_bytes,
            covered: Mutex::default(),
            fault: new.fault,
            channel: new.channel,
        }
    }

    /// The descriptor to read events from.
    pub const fn fault(&self) -> &Userfault {
        &self.fault
    }

    /// Offset in the object of an address of the program, if the mapping covers it.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let pointer = self.pointer.load(Ordering::Acquire);
        let distance = address.checked_sub(pointer)?;
        let is_shown = distance < self.bytes
            && !self.covered().iter().any(|&(start, end)| (start..end).contains(&distance));
        is_shown.then(|| self.offset + distance)
    }

    /// The program has mapped `newer` later. Where that lies, this one is not any more: nobody says when parts of a mapping are unmapped.
    pub fn cover(&self, newer: &Self) {
        let (pointer, start) = (self.pointer.load(Ordering::Acquire), newer.pointer.load(Ordering::Acquire));
        let first = start.max(pointer) - pointer;
        let end = (start + newer.bytes).saturating_sub(pointer).min(self.bytes);
        if first >= end {
            return;
        }
        let mut covered = self.covered();
        let (mut first, mut last) = (first, end);
        covered.retain(|&(start, end)| {
            let is_apart = end < first || start > last;
            if !is_apart {
                (first, last) = (first.min(start), last.max(end));
            }
            is_apart
        });
        let place = covered.partition_point(|&(start, _)| start < first);
        covered.insert(place, (first, last));
    }

    fn covered(&self) -> MutexGuard<'_, Vec<(u64, u64)>> {
        self.covered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program moved its mapping.
    pub fn moved(&self, from: u64, to: u64) {
        // AcqRel: pairs with the load in `offset_of`; only the fault thread moves a registration.
        let _ = self.pointer.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Where the program sees a range of the object: nowhere, at one place, or at several where it has mapped something else in between.
    pub fn shown(&self, range: ByteRange) -> Vec<ProbeRange> {
        let start = range.offset().max(self.offset);
        let end = range.end().min(self.offset + self.bytes);
        if start >= end {
            return Vec::new();
        }
        let pointer = self.pointer.load(Ordering::Acquire);
        let page_bytes = self.page_bytes.max(PAGE_BYTES);
        let (mut from, end) = (start - self.offset, end - self.offset);
        let mut shown = Vec::new();
        let mut show = |from: u64, to: u64| {
            if from < to {
                let first = (pointer + from) / PAGE_BYTES * PAGE_BYTES;
                let last = (pointer + to).next_multiple_of(page_bytes);
                shown.push(ProbeRange { pointer: first, bytes: last - first });
            }
        };
        for &(gone, back) in self.covered().iter() {
            show(from, gone.min(end));
            from = from.max(back);
        }
        show(from, end);
        shown
    }

    /// Lets threads go on that wait for a range whose bytes are in the file: they touch it again, and the kernel
    /// maps it.
    pub fn resolve(&self, range: ByteRange) {
        for shown in self.shown(range) {
            if let Err(error) = self.fault.wake(shown.pointer, shown.bytes) {
                // The program unmapped it or ended: nobody waits any more.
                tracing::debug!(%error, "a mapping went away while its fault was answered");
            }
        }
    }

    /// Lets the program know that a range is lost: words first, then SIGBUS to whoever touches it.
    pub fn poison(&self, range: ByteRange, reason: &str) {
        if let Some(channel) = self.channel() {
            channel.lost(reason);
        }
        for shown in self.shown(range) {
            let Err(error) = self.fault.poison(shown.pointer, shown.bytes, self.page_bytes) else { continue };
            // Of a range of which the program has unmapped a part, the kernel takes nothing as a whole.
            let page_bytes = self.page_bytes.max(PAGE_BYTES);
            let pages = (0..shown.bytes).step_by(page_bytes as usize).map(|at| shown.pointer + at); // at most 2 MiB
            let poisoned =
                pages.filter(|page| self.fault.poison(*page, page_bytes, page_bytes).is_ok()).count();
            if poisoned == 0 {
                tracing::warn!(%error, "a range could not be poisoned; its threads are woken to fault again");
            }
            // Waking is better than a hang: the touch faults again and is answered again.
            let _ = self.fault.wake(shown.pointer, shown.bytes);
        }
    }

    /// The channel to the program, if it has opened one.
    pub fn channel(&self) -> Option<Arc<NoticeChannel>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_os::poll::EventCounter;
    use hinterland_os::userfault::{FaultModes, Features, Scope};
    use hinterland_os::{MapOptions, Mapping, MemoryFile, PageKind};
    use std::os::fd::AsFd;

    fn mapping(pointer: u64, offset: u64, bytes: u64) -> Registration {
        // Nothing is asked of it here.
        let descriptor = EventCounter::new().unwrap().as_fd().try_clone_to_owned().unwrap();
        Registration::new(NewRegistration {
            id: 1,
            session: SessionId(1),
            pointer,
            range: ByteRange::new(offset, bytes).unwrap(),
            page_bytes: PAGE_BYTES,
            fault: Userfault::from_descriptor(descriptor, Scope::Full),
            channel: Arc::default(),
        })
    }

    fn shown(mapping: &Registration, offset: u64, bytes: u64) -> Vec<(u64, u64)> {
        let ranges = mapping.shown(ByteRange::new(offset, bytes).unwrap());
        ranges.into_iter().map(|range| (range.pointer / PAGE_BYTES, range.bytes / PAGE_BYTES)).collect()
    }

    #[test]
    fn what_is_left_of_a_lost_range_of_which_a_part_was_unmapped_is_marked_as_lost() {
        let features = Features::MISSING_SHMEM.with(Features::POISON);
        let Ok(fault) = Userfault::open(features) else {
            eprintln!("not run: no userfaultfd with what is needed on this machine");
            return;
        };
        let file = MemoryFile::anonymous("half-unmapped", 4 * PAGE_BYTES, PageKind::Base4K).unwrap();
        let whole = Arc::new(Mapping::reserve(None, 4 * PAGE_BYTES as usize).unwrap());
        // The second half is as if it had been unmapped.
        let options = MapOptions { write: true, ..MapOptions::default() };
        let _half = whole.map_inside(0, &file, 0, 2 * PAGE_BYTES as usize, options).unwrap();
        let modes = FaultModes { missing: true, ..FaultModes::default() };
        fault.register(whole.address(), 2 * PAGE_BYTES, modes).unwrap();
        let mapping = Registration::new(NewRegistration {
            id: 1,
            session: SessionId(1),
            pointer: whole.address(),
            range: ByteRange::new(0, 4 * PAGE_BYTES).unwrap(),
            page_bytes: PAGE_BYTES,
            fault,
            channel: Arc::default(),
        });
        mapping.poison(ByteRange::new(PAGE_BYTES, 2 * PAGE_BYTES).unwrap(), "lost");
        let again =
            |page: u64| mapping.fault.poison(whole.address() + page * PAGE_BYTES, PAGE_BYTES, PAGE_BYTES);
        assert_eq!(again(1).unwrap().present_bytes, PAGE_BYTES, "a touch is SIGBUS and no endless fault");
        assert_eq!(again(0).unwrap().present_bytes, 0, "what was not lost stays");
    }

    #[test]
    fn where_something_else_is_mapped_later_a_mapping_shows_nothing() {
        const P: u64 = PAGE_BYTES;
        // Pages 100 to 109 of the program show pages 50 to 59 of the object.
        let old = mapping(100 * P, 50 * P, 10 * P);
        assert_eq!(shown(&old, 0, 100 * P), [(100, 10)]);
        old.cover(&mapping(90 * P, 0, 10 * P));
        old.cover(&mapping(110 * P, 0, 10 * P));
        assert_eq!(shown(&old, 0, 100 * P), [(100, 10)], "beside it");
        old.cover(&mapping(104 * P, 0, 2 * P));
        assert_eq!(old.offset_of(103 * P + 5), Some(53 * P + 5));
        assert_eq!((old.offset_of(104 * P), old.offset_of(106 * P - 1)), (None, None));
        assert_eq!(old.offset_of(106 * P), Some(56 * P));
        assert_eq!(shown(&old, 0, 100 * P), [(100, 4), (106, 4)]);
        assert_eq!(shown(&old, 55 * P, 2 * P), [(106, 1)]);
        assert_eq!(shown(&old, 54 * P, 2 * P), []);
        // What lies beside it, or over it, is one with it.
        old.cover(&mapping(106 * P, 0, P));
        old.cover(&mapping(103 * P, 0, 2 * P));
        old.cover(&mapping(108 * P, 0, 50 * P));
        assert_eq!(*old.covered(), [(3 * P, 7 * P), (8 * P, 10 * P)]);
        assert_eq!(shown(&old, 0, 100 * P), [(100, 3), (107, 1)]);
        old.cover(&mapping(0, 0, 1000 * P));
        assert_eq!((shown(&old, 0, 100 * P), old.offset_of(100 * P)), (vec![], None));
        assert_eq!(old.covered().len(), 1);
    }
}
