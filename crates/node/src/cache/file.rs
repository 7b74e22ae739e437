//! One cached object: its file, its units, and the programs that have it mapped.

use super::budgets::Budgets;
use super::evict;
use super::registration::Registration;
use super::source::Source;
use super::units::{Touch, UnitStates, Waiter};
use super::used::UsedParts;
use crate::refused::{Refused, errno};
use hinterland_os::{MemoryFile, OsError, PageFiller, PageKind, Seals};
use hinterland_policy::prefetch::{Prefetcher, Tick};
use hinterland_policy::probation::Probation;
use hinterland_policy::{LoopWatch, Tuner, UnitMap};
use hinterland_proto::checksum::crc32c;
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;
use hinterland_types::{ByteRange, ObjectId, SessionId};
use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which cache file: programs share one only with programs of the same user.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct CacheKey {
    /// The object.
    pub object: ObjectId,
    /// The user id of the programs.
    pub user: u32,
}

/// One cached object.
pub struct CacheFile {
    /// Which.
    pub key: CacheKey,
    /// Where its bytes come from.
    pub source: Source,
    /// How it is divided.
    pub units: UnitMap,
    file: MemoryFile,
    filler: PageFiller,
    state: Mutex<FileState>,
    resident_bytes: AtomicU64,
    /// When somebody began or ended to use it, as a number that grows from use to use.
    last_use: AtomicU64,
}

/// What the lock of a file guards.
pub struct FileState {
    /// Life of each unit.
    pub units: UnitStates,
    /// Programs that have it mapped.
    pub registrations: Vec<Arc<Registration>>,
    /// What to fetch ahead.
    pub prefetcher: Prefetcher,
    /// Faults so far, the time of the prefetcher.
    pub ticks: u64,
    /// Learns which unit would suit the object.
    pub tuner: Tuner,
    /// How much of units was used.
    pub used: UsedParts,
    /// Sees loops, in which the order of the policy is the wrong one.
    pub loops: LoopWatch,
    /// What to evict.
    pub probation: Probation,
    /// Sessions that read it, or have asked for its descriptor to map it.
    pub readers: HashSet<SessionId>,
    /// Budgets that sessions asked for.
    pub budgets: Budgets,
}

impl FileState {
    /// Whether nobody has it mapped, is about to map it, or reads it.
    pub fn is_idle(&self) -> bool {
        self.registrations.is_empty() && self.readers.is_empty()
    }

    /// A unit leaves of which programs were asked whether they still use it: the tuner hears how much of it they did.
    pub fn observe_eviction(&mut self, map: &UnitMap, unit: u32) {
        let used_bytes = self.used.take(unit);
        self.tuner.observe_eviction(map.range(unit).bytes(), used_bytes);
    }

    /// Whether a session has it mapped or reads it.
    pub fn is_used_by(&self, session: SessionId) -> bool {
        self.readers.contains(&session)
            || self.registrations.iter().any(|registration| registration.session == session)
    }
}

/// What decides about a new file.
pub struct Policies {
    /// What to fetch ahead.
    pub prefetcher: Prefetcher,
    /// What to evict.
    pub probation: Probation,
    /// Learns which unit would suit the object.
    pub tuner: Tuner,
    /// Whether loops are looked for.
    pub loops: bool,
}

/// What a fault needs.
pub struct FaultOutcome {
    /// The unit that was touched.
    pub unit: u32,
    /// Whether its bytes are there already.
    pub present: bool,
    /// Units to fill, the touched one first if it must be; the flag says that a program waits for it.
    pub fetch: Vec<(u32, bool)>,
}

/// What came of copying bytes out.
#[derive(Debug, PartialEq, Eq)]
pub enum Copied {
    /// All of them.
    Whole,
    /// They are not in the file. These units were touched by others meanwhile, and must be queued.
    Absent(Vec<(u32, bool)>),
}

impl CacheFile {
    /// Makes an empty file.
    ///
    /// # Errors
    /// [`OsError`] without memory for the file itself (its pages come later).
    pub fn new(
        key: CacheKey,
        source: Source,
        units: UnitMap,
        policies: Policies,
        huge: bool,
    ) -> Result<Self, OsError> {
        let bytes = source.info().bytes;
        let (first, second) = page_kinds(bytes, huge && units.wants_huge());
        let (file, filler) = match (make(key.object, bytes, first), second) {
            (Err(_), Some(second)) => make(key.object, bytes, second)?,
            (made, _) => made?,
        };
        let state = FileState {
            units: UnitStates::new(units.count()),
            registrations: Vec::new(),
            prefetcher: policies.prefetcher,
            ticks: 0,
            tuner: policies.tuner,
            used: UsedParts::default(),
            loops: LoopWatch::new(units.count(), policies.loops),
            probation: policies.probation,
            readers: HashSet::new(),
            budgets: Budgets::default(),
        };
        Ok(Self {
            key,
            source,
            units,
            file,
            filler,
            state: Mutex::new(state),
            resident_bytes: AtomicU64::new(0),
            last_use: AtomicU64::new(0),
        })
    }

    /// Locks the file's state. Never held across I/O.
    pub fn lock(&self) -> MutexGuard<'_, FileState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pages of the file.
    pub fn page_kind(&self) -> PageKind {
        self.file.kind()
    }

    /// Length of the file.
    pub fn file_bytes(&self) -> u64 {
        self.file.len()
    }

    /// A descriptor through which a program maps the file and cannot write it.
    ///
    /// # Errors
    /// [`OsError`] without descriptors left.
    pub fn descriptor(&self) -> Result<OwnedFd, OsError> {
        self.file.reopen_read_only()
    }

    /// What fills the file.
    pub const fn filler(&self) -> &PageFiller {
        &self.filler
    }

    /// Bytes of the file that are in memory.
    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes.load(Ordering::Acquire)
    }

    /// Memory that a unit takes: its bytes, rounded up to the pages of the file.
    pub fn unit_memory(&self, unit: u32) -> u64 {
        self.units.range(unit).bytes().next_multiple_of(self.file.kind().page_bytes())
    }

    /// Counts memory that a fill is about to take.
    pub fn take(&self, bytes: u64) {
        self.resident_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Counts memory that was given back.
    pub fn give(&self, bytes: u64) {
        self.resident_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Somebody begins or ends to use the file.
    pub fn note_use(&self, now: u64) {
        // Relaxed: a number by which files are compared; nothing else is ordered by it.
        self.last_use.fetch_max(now, Ordering::Relaxed);
    }

    /// When somebody last began or ended to use it.
    pub fn last_use(&self) -> u64 {
        // Relaxed: see `note_use`.
        self.last_use.load(Ordering::Relaxed)
    }

    /// Budget of this object, if it has one: see [`Budgets::bytes`].
    pub fn budget(&self) -> Option<u64> {
        self.lock().budgets.bytes()
    }

    /// A program touched `offset` of a mapping, or reads from there; `None` if the object has no bytes to fill.
    pub fn fault(&self, offset: u64, waiter: Waiter) -> Option<FaultOutcome> {
        let unit = self.units.unit_of(offset);
        let mut state = self.lock();
        if !state.units.has(unit) {
            return None;
        }
        let is_fault = waiter.is_fault();
        let touch = state.units.touch(unit, waiter.clone());
        let mut fetch = Vec::new();
        if touch == Touch::Present && is_fault && state.units.is_in_vain(unit) && state.units.evict(unit) {
            hinterland_policy::Eviction::remove(&mut state.probation, evict::key(unit));
            state.units.touch(unit, waiter);
            drop(state);
            tracing::error!(unit, "pages of a cache file are gone that were there; they are fetched again");
            return Some(FaultOutcome { unit, present: false, fetch: self.punch(&[unit]) });
        }
        if touch == Touch::Fetch {
            fetch.push((unit, true));
            // The unit is chosen for mappings: a reader says itself how much it wants.
            if is_fault {
                let FileState { tuner, units, .. } = &mut *state;
                let mut is_here = |other| !units.is_missing(self.units.unit_of(other));
                tuner.observe_fault(offset, units.has_left(unit), &mut is_here);
            }
        }
        if touch != Touch::Present {
            state.ticks += 1;
            let tick = Tick(state.ticks);
            let mut ahead = Vec::new();
            let FileState { prefetcher, units, .. } = &mut *state;
            let mut is_known = |other| !units.is_missing(other);
            prefetcher.on_fault(&self.units, offset, tick, &mut is_known, &mut ahead);
            fetch.extend(ahead.into_iter().filter(|&other| units.request(other)).map(|other| (other, false)));
        }
        Some(FaultOutcome { unit, present: touch == Touch::Present, fetch })
    }

    /// Frees the pages of units that the caller has marked as leaving; returns those that were touched meanwhile
    /// and must be queued.
    #[must_use = "threads wait for the units that were touched meanwhile"]
    pub fn punch(&self, units: &[u32]) -> Vec<(u32, bool)> {
        let mut wanted = Vec::new();
        for &unit in units {
            self.free_pages(unit);
            if self.lock().units.gone(unit) {
                wanted.push((unit, true));
            }
        }
        wanted
    }

    /// Frees the pages of one unit, which nobody may be filling but the caller.
    pub fn free_pages(&self, unit: u32) {
        let range = self.units.range(unit);
        let memory = self.unit_memory(unit);
        if let Err(error) = self.file.punch(range.offset(), memory.min(self.file.len() - range.offset())) {
            tracing::error!(%error, "pages of a cache file could not be freed");
        }
        self.give(memory);
    }

    /// The registration behind an identifier.
    pub fn registration(&self, id: u64) -> Option<Arc<Registration>> {
        self.lock().registrations.iter().find(|registration| registration.id == id).cloned()
    }

    /// Copies bytes of one unit out of the file, which cannot leave meanwhile. If they are not there: units that must be queued first.
    ///
    /// # Errors
    /// [`OsError`] if the file cannot be read.
    pub fn copy_out(&self, unit: u32, offset: u64, into: &mut [u8]) -> Result<Copied, OsError> {
        if !self.lock().units.pin(unit) {
            return Ok(Copied::Absent(Vec::new()));
        }
        let copied = self.file.read_at(offset, into);
        let is_whole = copied.is_ok() && self.has_pages(offset, into);
        self.lock().units.unpin(unit);
        copied?;
        if is_whole {
            return Ok(Copied::Whole);
        }
        let mut state = self.lock();
        if !state.units.evict(unit) {
            return Ok(Copied::Absent(Vec::new()));
        }
        hinterland_policy::Eviction::remove(&mut state.probation, evict::key(unit));
        drop(state);
        tracing::error!(unit, "pages of a cache file are gone that were there; they are fetched again");
        Ok(Copied::Absent(self.punch(&[unit])))
    }

    /// Whether what was read came from pages. A hole reads as zeros; a page that holds nothing else is compared with its checksum.
    fn has_pages(&self, offset: u64, read: &[u8]) -> bool {
        let page_bytes = self.file.kind().page_bytes();
        let mut at = 0;
        while at < read.len() {
            // To the end of the page: a slice fits into the address space.
            let end =
                (at as u64 + page_bytes - (offset + at as u64) % page_bytes).min(read.len() as u64) as usize;
            if read[at..end].iter().all(|byte| *byte == 0) && !self.is_block_right(offset + at as u64) {
                return false;
            }
            at = end;
        }
        true
    }

    /// Compares the block of a byte with its checksum.
    fn is_block_right(&self, offset: u64) -> bool {
        let index = offset / CHECKSUM_BLOCK_BYTES;
        let start = index * CHECKSUM_BLOCK_BYTES;
        let mut block = vec![0; (self.source.info().bytes - start).min(CHECKSUM_BLOCK_BYTES) as usize];
        self.file.read_at(start, &mut block).is_ok() && self.source.checksum(index) == Some(crc32c(&block))
    }

    /// Answers a list of waiters of one unit.
    pub fn resolve(&self, unit: u32, waiters: &[Waiter]) {
        let range = self.units.range(unit);
        for waiter in waiters {
            match waiter {
                Waiter::Fault(id) => {
                    if let Some(registration) = self.registration(*id) {
                        registration.resolve(range);
                    }
                }
                Waiter::Read(arrival) => arrival.set(Ok(())),
            }
        }
    }

    /// Lets a list of waiters know that a unit cannot be had.
    pub fn poison(&self, unit: u32, waiters: &[Waiter], reason: &Refused) {
        let range = self.units.range(unit);
        let mut told = Vec::new();
        for waiter in waiters {
            match waiter {
                Waiter::Fault(id) if told.contains(id) => {}
                Waiter::Fault(id) => {
                    told.push(*id);
                    if let Some(registration) = self.registration(*id) {
                        registration.poison(range, &reason.text);
                    }
                }
                Waiter::Read(arrival) => arrival.set(Err(reason.clone())),
            }
        }
    }

    /// Checks that a mapping that a program announces lies inside the file.
    ///
    /// # Errors
    /// [`Refused`] if it does not, or if the object has no bytes that a fault could be answered with.
    pub fn check_mapping(&self, offset: u64, bytes: u64) -> Result<ByteRange, Refused> {
        if self.units.count() == 0 {
            let text = format!(
                "{} has no bytes to map (hint: map its file as the kernel does)",
                self.source.info().name
            );
            return Err(Refused::new(errno::EINVAL, text));
        }
        ByteRange::within(offset, bytes, self.file.len())
            .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))
    }
}

/// Pages that a file of so many bytes should have, and those to do with if these cannot be had.
///
/// A smaller object would take a whole huge page and leave most of it empty: a budget of 1 GiB would hold 512 of them. It
/// gets one only where the system has no small pages that the node can fill.
const fn page_kinds(bytes: u64, huge_fits: bool) -> (PageKind, Option<PageKind>) {
    match (huge_fits, bytes >= PageKind::Huge2M.page_bytes()) {
        (true, true) => (PageKind::Huge2M, Some(PageKind::Base4K)),
        (true, false) => (PageKind::Base4K, Some(PageKind::Huge2M)),
        (false, _) => (PageKind::Base4K, None),
    }
}

fn make(object: ObjectId, bytes: u64, kind: PageKind) -> Result<(MemoryFile, PageFiller), OsError> {
    let length = bytes.next_multiple_of(kind.page_bytes()).max(kind.page_bytes());
    // The name says to people, and as a hint to programs, what is in it.
    let name = format!("hinterland-cache-{:016x}", object.0);
    let file = MemoryFile::anonymous(&name, length, kind)?;
    file.add_seals(Seals::FIXED_LENGTH)?;
    let filler = PageFiller::new(&file)?;
    Ok((file, filler))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_below_a_huge_page_gets_small_ones() {
        const MIB: u64 = 1 << 20;
        assert_eq!(page_kinds(10 << 10, true), (PageKind::Base4K, Some(PageKind::Huge2M)));
        assert_eq!(page_kinds(2 * MIB - 1, true).0, PageKind::Base4K);
        assert_eq!(page_kinds(2 * MIB, true), (PageKind::Huge2M, Some(PageKind::Base4K)));
        assert_eq!(page_kinds(64 * MIB, false), (PageKind::Base4K, None));
    }
}
