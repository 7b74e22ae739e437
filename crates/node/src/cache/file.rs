//! One cached object: its file, its units, and the programs that have it mapped.

use super::evict;
use super::registration::Registration;
use super::source::Source;
use super::units::{Touch, UnitStates, Waiter};
use crate::refused::{Refused, errno};
use hinterland_os::{MemoryFile, OsError, PageFiller, PageKind, Seals};
use hinterland_policy::prefetch::{Prefetcher, Tick};
use hinterland_policy::probation::Probation;
use hinterland_policy::{LoopWatch, Tuner, UnitMap};
use hinterland_types::{ByteRange, ObjectId, SessionId};
use std::collections::{HashMap, HashSet};
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
    /// Sees loops, in which the order of the policy is the wrong one.
    pub loops: LoopWatch,
    /// What to evict.
    pub probation: Probation,
    /// Sessions that read it without mapping it.
    pub readers: HashSet<SessionId>,
    /// Budgets that sessions asked for.
    pub budgets: HashMap<SessionId, Option<u64>>,
}

impl FileState {
    /// Whether nobody has it mapped or reads it.
    pub fn is_idle(&self) -> bool {
        self.registrations.is_empty() && self.readers.is_empty()
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
        let (file, filler) = if huge && units.wants_huge() {
            make(key.object, bytes, PageKind::Huge2M)
                .or_else(|_| make(key.object, bytes, PageKind::Base4K))?
        } else {
            make(key.object, bytes, PageKind::Base4K)?
        };
        let state = FileState {
            units: UnitStates::new(units.count()),
            registrations: Vec::new(),
            prefetcher: policies.prefetcher,
            ticks: 0,
            tuner: policies.tuner,
            loops: LoopWatch::new(units.count(), policies.loops),
            probation: policies.probation,
            readers: HashSet::new(),
            budgets: HashMap::new(),
        };
        Ok(Self {
            key,
            source,
            units,
            file,
            filler,
            state: Mutex::new(state),
            resident_bytes: AtomicU64::new(0),
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

    /// Budget of this object: the largest that a session asked for, if all that have it mapped asked.
    pub fn budget(&self) -> Option<u64> {
        let state = self.lock();
        state.budgets.values().copied().collect::<Option<Vec<u64>>>()?.into_iter().max()
    }

    /// A program touched `offset` of a mapping, or reads from there.
    pub fn fault(&self, offset: u64, waiter: Waiter) -> FaultOutcome {
        let unit = self.units.unit_of(offset);
        let mut state = self.lock();
        let is_fault = waiter.is_fault();
        let touch = state.units.touch(unit, waiter.clone());
        let mut fetch = Vec::new();
        if touch == Touch::Present && is_fault && state.units.is_in_vain(unit) && state.units.evict(unit) {
            hinterland_policy::Eviction::remove(&mut state.probation, evict::key(unit));
            state.units.touch(unit, waiter);
            drop(state);
            tracing::error!(unit, "pages of a cache file are gone that were there; they are fetched again");
            return FaultOutcome { unit, present: false, fetch: self.punch(&[unit]) };
        }
        if touch == Touch::Fetch {
            fetch.push((unit, true));
            // The unit is chosen for mappings: a reader says itself how much it wants.
            if is_fault {
                state.tuner.observe_fault(offset, false);
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
        FaultOutcome { unit, present: touch == Touch::Present, fetch }
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

    /// Copies bytes of one unit out of the file; whether they are there. The unit cannot leave meanwhile.
    ///
    /// # Errors
    /// [`OsError`] if the file cannot be read.
    pub fn copy_out(&self, unit: u32, offset: u64, into: &mut [u8]) -> Result<bool, OsError> {
        if !self.lock().units.pin(unit) {
            return Ok(false);
        }
        let copied = self.file.read_at(offset, into);
        self.lock().units.unpin(unit);
        copied.map(|()| true)
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

    /// Lets a list of waiters know that a unit is lost.
    pub fn poison(&self, unit: u32, waiters: &[Waiter], reason: &str) {
        let range = self.units.range(unit);
        let mut told = Vec::new();
        for waiter in waiters {
            match waiter {
                Waiter::Fault(id) if told.contains(id) => {}
                Waiter::Fault(id) => {
                    told.push(*id);
                    if let Some(registration) = self.registration(*id) {
                        registration.poison(range, reason);
                    }
                }
                Waiter::Read(arrival) => arrival.set(Err(reason.to_owned())),
            }
        }
    }

    /// Checks that a mapping that a program announces lies inside the file.
    ///
    /// # Errors
    /// [`Refused`] if it does not.
    pub fn check_mapping(&self, offset: u64, bytes: u64) -> Result<ByteRange, Refused> {
        ByteRange::within(offset, bytes, self.file.len())
            .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))
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
