//! The host's cache of sealed objects of other racks: files, faults, fills, eviction.
//!
//! See `docs/decisions/2026-11-21-cache-files.md` for what must hold and why.

mod budgets;
mod evict;
mod faults;
mod file;
mod fill;
mod idle;
mod reading;
mod registration;
mod shown;
mod source;
mod units;
mod used;

pub use file::{CacheFile, CacheKey};
pub use idle::idle_files_max;
pub use registration::NewRegistration;
pub use shown::CacheShown;

use crate::directory_link::DirectoryLink;
use crate::heat_copies::Fetches;
use crate::holdings::Holdings;
use crate::peers::Peers;
use crate::refused::{Refused, errno};
use faults::{FaultWatch, Watched};
use file::Policies;
use fill::FillQueue;
use hinterland_fabric::Intake;
use hinterland_os::{clock, process};
use hinterland_policy::layout::{self, Parsed, Preference};
use hinterland_policy::prefetch::{self, PrefetchConfig, PrefetchSwitches, Prefetcher};
use hinterland_policy::probation::{Probation, ProbationConfig};
use hinterland_policy::{EvictionKind, Tuner, TunerConfig, UnitBytes, UnitMap};
use hinterland_proto::control::{Advice, ObjectInfo, Problem};
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;
use hinterland_types::{ByteRange, NodeId, SessionId};
use registration::Registration;
pub(crate) use source::Source;
use source::SourceTallies;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest header that is read to learn where experts are.
const HEADER_BYTES_MAX: u64 = 64 << 20;
/// Objects below this size are not worth parsing.
const LAYOUT_BYTES_MIN: u64 = 8 << 20;
/// How often room is made for pages that cannot be had, and how long is waited where nothing can leave.
const COPY_TRIES_MAX: usize = 32;
const COPY_PAUSE: Duration = Duration::from_millis(5);
/// Problems kept for `doctor`.
const PROBLEMS_MAX: usize = 100;
/// How long the prober sleeps when nothing is filled.
const PROBE_PAUSE: Duration = Duration::from_millis(200);

/// Optimisations that can be turned off, to show what each is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSwitches {
    /// Huge pages for cache files whose units allow it.
    pub huge: bool,
    /// Fetch ahead: rest of an expert, sequential, stride.
    pub prefetch: PrefetchSwitches,
    /// Divide models by expert.
    pub layout: bool,
    /// Ask programs which units they still use.
    pub probe: bool,
    /// Keep a part of what is read in a loop.
    pub loops: bool,
    /// Use the first bytes of a unit while the next ones are on their way.
    pub pipeline: bool,
}

impl Default for CacheSwitches {
    fn default() -> Self {
        Self {
            huge: true,
            prefetch: PrefetchSwitches::default(),
            layout: true,
            probe: true,
            loops: true,
            pipeline: true,
        }
    }
}

/// What can be set.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Budget of all cache files together, in bytes.
    pub budget_bytes: u64,
    /// Threads that fill.
    pub workers: usize,
    /// Cache files that are kept although nobody maps or reads them.
    pub idle_files_max: usize,
    /// Order in which units leave.
    pub eviction: EvictionKind,
    /// Optimisations.
    pub switches: CacheSwitches,
}

/// Counters of the cache since the node started.
#[derive(Default)]
pub struct Tallies {
    /// Fault events.
    pub faults: AtomicU64,
    /// Units filled because a program waited.
    pub demand_fills: AtomicU64,
    /// Units filled ahead.
    pub prefetch_fills: AtomicU64,
    /// Bytes filled.
    pub filled_bytes: AtomicU64,
    /// Microseconds that demanded fills took.
    pub demand_fill_us: AtomicU64,
    /// Units evicted.
    pub evictions: AtomicU64,
    /// Bytes evicted.
    pub evicted_bytes: AtomicU64,
    /// Faults that ended in SIGBUS.
    pub poisoned_faults: AtomicU64,
}

/// What is read from without a network, and what counts the rest.
#[derive(Clone)]
pub struct Near {
    /// The objects of this node.
    pub holdings: Arc<Holdings>,
    /// What came from other racks.
    pub fetches: Arc<Fetches>,
}

/// The host's cache.
pub struct Cache {
    options: CacheOptions,
    peers: Arc<Peers>,
    directory: Arc<DirectoryLink>,
    own: NodeId,
    /// What this node holds itself, and what it counts of what it fetches.
    near: Near,
    files: RwLock<HashMap<CacheKey, Arc<CacheFile>>>,
    opening: Mutex<()>,
    queue: FillQueue,
    watch: FaultWatch,
    /// Held while room is counted and taken.
    room: Mutex<()>,
    /// Held while units leave to make room.
    evicting: Mutex<()>,
    next_registration: AtomicU64,
    /// Grows with each use of a file, so that the one that was not used for longest is known.
    uses: AtomicU64,
    /// Counters.
    pub tallies: Tallies,
    sources: Arc<SourceTallies>,
    problems: Mutex<VecDeque<Problem>>,
    filled: (Mutex<bool>, Condvar),
    stopping: AtomicBool,
    /// Raised when `stopping` is set.
    stopped: (Mutex<()>, Condvar),
}

/// The threads of a cache, to be joined when it stops.
pub struct CacheThreads(Vec<JoinHandle<()>>);

/// What a session wants of the objects that it maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachePreference {
    /// Budget of each object.
    pub budget_bytes: Option<u64>,
    /// Fault unit.
    pub unit_bytes: Option<UnitBytes>,
}

impl Cache {
    /// Starts the cache and its threads.
    ///
    /// # Errors
    /// [`Refused`] without descriptors, threads or memory to pin.
    pub fn start(
        options: CacheOptions,
        peers: Arc<Peers>,
        directory: Arc<DirectoryLink>,
        own: NodeId,
        near: Near,
    ) -> Result<(Arc<Self>, CacheThreads), Refused> {
        let cache = Arc::new(Self {
            options,
            peers,
            directory,
            own,
            near,
            files: RwLock::default(),
            opening: Mutex::default(),
            queue: FillQueue::default(),
            watch: FaultWatch::new()?,
            room: Mutex::default(),
            evicting: Mutex::default(),
            next_registration: AtomicU64::new(1),
            uses: AtomicU64::new(1),
            tallies: Tallies::default(),
            sources: Arc::default(),
            problems: Mutex::default(),
            filled: (Mutex::new(false), Condvar::new()),
            stopping: AtomicBool::new(false),
            stopped: (Mutex::new(()), Condvar::new()),
        });
        let mut threads = Vec::new();
        for _ in 0..cache.options.workers.max(1) {
            // As many streams for each as the peer gives: with one, a fill takes a third longer.
            let intake = Intake::new(fill::PART_BYTES as usize, 0)?;
            let cache = Arc::clone(&cache);
            threads.push(spawn("fill", move || fill::work(&cache, intake))?);
        }
        let serving = Arc::clone(&cache);
        threads.push(spawn("faults", move || serving.watch.serve(&serving))?);
        let probing = Arc::clone(&cache);
        threads.push(spawn("probe", move || probing.probe_files())?);
        let sweeping = Arc::clone(&cache);
        threads.push(spawn("idle", move || sweeping.tend_idle())?);
        Ok((cache, CacheThreads(threads)))
    }

    /// Ends all threads.
    pub fn stop(&self, threads: CacheThreads) {
        self.stopping.store(true, Ordering::Release);
        // Locked for a moment: who has looked whether the node stops is waiting by then.
        drop(self.stopped.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.stopped.1.notify_all();
        self.queue.stop();
        self.watch.stop();
        self.note_fill();
        for thread in threads.0 {
            if thread.join().is_err() {
                tracing::error!("a thread of the cache had panicked");
            }
        }
    }

    /// The cache file of an object for programs of one user, made if there is none.
    ///
    /// # Errors
    /// [`Refused`] if no home answers or there is no memory.
    fn open(
        &self,
        info: &ObjectInfo,
        user: u32,
        preference: CachePreference,
    ) -> Result<Arc<CacheFile>, Refused> {
        let file = self.open_or_make(info, user, preference)?;
        self.note_use(&file);
        Ok(file)
    }

    fn open_or_make(
        &self,
        info: &ObjectInfo,
        user: u32,
        preference: CachePreference,
    ) -> Result<Arc<CacheFile>, Refused> {
        let key = CacheKey { object: info.object, user };
        if let Some(file) = self.find(key)
            && self.better_unit(&file, preference).is_none()
        {
            file.source.learn(info);
            return Ok(file);
        }
        let _one_at_a_time = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let (learned, tuner) = match self.find(key) {
            Some(file) => match self.better_unit(&file, preference) {
                Some(unit) => (Some(unit), Some(file.lock().tuner.clone())),
                None => return Ok(file),
            },
            None => (None, None),
        };
        let links = (Arc::clone(&self.peers), Arc::clone(&self.directory));
        let mut source = Source::open(info.clone(), links.0, links.1, self.own, Arc::clone(&self.sources))?;
        source.is_pipelined = self.options.switches.pipeline;
        source.near = Some(self.near.clone());
        let units = self.divide(&source, info.bytes, preference.unit_bytes, learned)?;
        let prefetcher = Prefetcher::new(PrefetchConfig {
            switches: self.options.switches.prefetch,
            budget_bytes: self.ahead_bytes(preference),
            ..PrefetchConfig::default()
        });
        let mut tuner = tuner.unwrap_or_else(|| Tuner::new(TunerConfig::default(), info.bytes));
        tuner.begin_generation(preference.unit_bytes.or(learned).unwrap_or(UnitBytes::DEFAULT));
        let config = ProbationConfig { active_order: self.options.eviction, ..ProbationConfig::default() };
        let policies = Policies {
            prefetcher,
            probation: Probation::new(config),
            tuner,
            loops: self.options.switches.loops,
        };
        let file = CacheFile::new(key, source, units, policies, self.options.switches.huge)?;
        let file = Arc::new(file);
        self.files.write().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&file));
        self.forget_oldest();
        Ok(file)
    }

    /// Serves the faults of a program's mapping; returns its identifier.
    ///
    /// # Errors
    /// [`Refused`] if the mapping lies outside the file or the descriptor is no userfaultfd.
    pub fn register(
        &self,
        file: &Arc<CacheFile>,
        mut new: NewRegistration,
        budget_bytes: Option<u64>,
    ) -> Result<u64, Refused> {
        let id = self.next_registration.fetch_add(1, Ordering::AcqRel);
        new.id = id;
        new.range = file.check_mapping(new.range.offset(), new.range.bytes())?;
        new.page_bytes = file.page_kind().page_bytes();
        let session = new.session;
        let registration = Arc::new(Registration::new(new));
        {
            let mut state = file.lock();
            state.registrations.push(Arc::clone(&registration));
            state.budgets.insert(session, budget_bytes);
        }
        let watched = Watched { file: Arc::clone(file), registration };
        if let Err(error) = self.watch.add(watched) {
            self.forget(file, id, session);
            return Err(error.into());
        }
        Ok(id)
    }

    /// Serves a mapping no longer.
    ///
    /// # Errors
    /// [`Refused`] if there is no such mapping of this session.
    pub fn unregister(&self, id: u64, session: SessionId) -> Result<(), Refused> {
        let belongs = self.watch.session_of(id) == Some(session);
        let watched = if belongs { self.watch.remove(id) } else { None };
        let watched =
            watched.ok_or_else(|| Refused::new(errno::EBADF, format!("no mapping {id} in this session")))?;
        self.forget(&watched.file, id, session);
        Ok(())
    }

    /// The cache file of an object for a session that reads it, or is about to map it; it stays the one until
    /// [`end_reading`](Self::end_reading).
    ///
    /// # Errors
    /// [`Refused`] if no home answers or there is no memory.
    pub fn begin_reading(
        &self,
        info: &ObjectInfo,
        user: u32,
        session: SessionId,
        preference: CachePreference,
    ) -> Result<Arc<CacheFile>, Refused> {
        loop {
            let file = self.open(info, user, preference)?;
            {
                let mut state = file.lock();
                state.readers.insert(session);
                state.budgets.insert(session, preference.budget_bytes);
            }
            // Between the two, another program may have begun it anew with other units.
            if self.find(file.key).is_some_and(|current| Arc::ptr_eq(&current, &file)) {
                return Ok(file);
            }
        }
    }

    /// A session reads an object no longer.
    pub fn end_reading(&self, file: &CacheFile, session: SessionId) {
        self.note_use(file);
        let mut state = file.lock();
        state.readers.remove(&session);
        if !state.is_used_by(session) {
            state.budgets.remove(session);
        }
    }

    /// Fetches ahead or changes how that is done, as a program advises.
    pub fn advise(&self, file: &Arc<CacheFile>, range: ByteRange, advice: Advice) {
        if advice != Advice::WillNeed {
            file.lock().prefetcher.advise(match advice {
                Advice::Random => prefetch::Advice::Random,
                Advice::Sequential => prefetch::Advice::Sequential,
                Advice::Normal | Advice::WillNeed => prefetch::Advice::Normal,
            });
            return;
        }
        let limit = file.budget().unwrap_or(u64::MAX).min(self.options.budget_bytes);
        if file.units.count() == 0 || range.bytes() == 0 {
            return;
        }
        let (first, last) = (file.units.unit_of(range.offset()), file.units.unit_of(range.end() - 1));
        let mut fetch = Vec::new();
        let mut promised = file.resident_bytes();
        {
            let mut state = file.lock();
            for unit in first..=last {
                let memory = file.unit_memory(unit);
                if promised + memory > limit {
                    break;
                }
                if state.units.request(unit) {
                    fetch.push((unit, false));
                    promised += memory;
                }
            }
        }
        self.queue.push(file, &fetch);
    }

    /// Drops every filled unit of an object, for all users.
    pub fn drop_filled(&self, info: &ObjectInfo) {
        for file in self.all().into_iter().filter(|file| file.key.object == info.object) {
            let mut leaving = Vec::new();
            {
                let mut state = file.lock();
                let present: Vec<u32> = state.units.present_units().collect();
                for unit in present {
                    if state.units.evict(unit) {
                        hinterland_policy::Eviction::remove(&mut state.probation, evict::key(unit));
                        leaving.push(unit);
                    }
                }
            }
            let wanted = file.punch(&leaving);
            self.queue.push(&file, &wanted);
        }
    }

    /// Bytes in all cache files.
    pub fn resident_bytes(&self) -> u64 {
        self.all().iter().map(|file| file.resident_bytes()).sum()
    }

    /// Budget of all cache files together.
    pub const fn budget_bytes(&self) -> u64 {
        self.options.budget_bytes
    }

    /// The last problems, oldest first.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Keeps a problem for `doctor`.
    pub fn problem(&self, text: &str) {
        let text = self.peers.roster().named(text);
        tracing::error!("{text}");
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        if problems.len() == PROBLEMS_MAX {
            problems.pop_front();
        }
        problems.push_back(Problem { at_ms: clock::wall_ms(), text });
    }

    /// The unit with which an object should be cached anew: what was asked for, or what its trace has taught; `None`
    /// to leave it as it is, as long as somebody uses it in any case.
    ///
    /// What is here of an object is lost with its file. Where that is most of it, another unit would save less than that.
    fn better_unit(&self, file: &CacheFile, preference: CachePreference) -> Option<UnitBytes> {
        let state = file.lock();
        let current = file.units.uniform_unit()?;
        let holds_most = file.resident_bytes() > file.units.size() / 2;
        let learned = if holds_most { current } else { state.tuner.recommend() };
        let wanted = preference.unit_bytes.unwrap_or(learned);
        (state.is_idle() && wanted != current).then_some(wanted)
    }

    /// How far ahead an object may be fetched: a small part of its budget, so that guesses evict little.
    fn ahead_bytes(&self, preference: CachePreference) -> u64 {
        let budget = preference.budget_bytes.unwrap_or(u64::MAX).min(self.options.budget_bytes);
        (budget / 8).min(PrefetchConfig::default().budget_bytes)
    }

    fn forget(&self, file: &Arc<CacheFile>, id: u64, session: SessionId) {
        self.note_use(file);
        let mut state = file.lock();
        state.registrations.retain(|registration| registration.id != id);
        state.units.drop_waiters(id);
        if !state.is_used_by(session) {
            state.budgets.remove(session);
        }
    }

    fn note_use(&self, file: &CacheFile) {
        // Relaxed: a number that differs from use to use; nothing else is ordered by it.
        file.note_use(self.uses.fetch_add(1, Ordering::Relaxed));
    }

    /// Whether the node is ending.
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn find(&self, key: CacheKey) -> Option<Arc<CacheFile>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).get(&key).cloned()
    }

    fn all(&self) -> Vec<Arc<CacheFile>> {
        self.files.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// All files, the one that holds most last.
    fn files_by_size(&self) -> Vec<Arc<CacheFile>> {
        let mut files = self.all();
        files.sort_by_key(|file| file.resident_bytes());
        files
    }

    /// Makes pages of a file, evicting others if there is no memory for them: of this file, then of those that hold most.
    fn copy(&self, file: &Arc<CacheFile>, offset: u64, bytes: &[u8]) -> Result<(), Refused> {
        const ENOMEM: i32 = 12;
        let wanted = bytes.len() as u64;
        for _ in 0..COPY_TRIES_MAX {
            match file.filler().copy(offset, bytes) {
                Err(error) if error.errno() == Some(ENOMEM) => {
                    tracing::debug!(%error, "room is made for a page that cannot be had");
                    if self.evict(file, wanted) == 0 && self.evict_largest(wanted) == 0 {
                        // What other workers are filling just now can leave in a moment.
                        std::thread::sleep(COPY_PAUSE);
                    }
                }
                result => return Ok(result?),
            }
        }
        Ok(file.filler().copy(offset, bytes)?)
    }

    fn count_fill(&self, bytes: u64, demanded: bool, took: Duration) {
        // Relaxed: counters that nothing is ordered by.
        self.tallies.filled_bytes.fetch_add(bytes, Ordering::Relaxed);
        if demanded {
            self.tallies.demand_fills.fetch_add(1, Ordering::Relaxed);
            self.tallies.demand_fill_us.fetch_add(took.as_micros() as u64, Ordering::Relaxed);
        } else {
            self.tallies.prefetch_fills.fetch_add(1, Ordering::Relaxed);
        }
        self.note_fill();
    }

    fn note_fill(&self) {
        *self.filled.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.filled.1.notify_one();
    }

    /// The prober: after fills, asks programs to unmap what is nearest to eviction.
    fn probe_files(&self) {
        process::name_thread("probe");
        while !self.is_stopping() {
            let mut filled = self.filled.0.lock().unwrap_or_else(PoisonError::into_inner);
            if !*filled {
                filled =
                    self.filled.1.wait_timeout(filled, PROBE_PAUSE).unwrap_or_else(PoisonError::into_inner).0;
            }
            let any = std::mem::take(&mut *filled);
            drop(filled);
            if any {
                self.all().iter().for_each(|file| self.probe(file));
            }
        }
    }

    /// Divides an object into fault units: as asked, by expert, or uniformly.
    fn divide(
        &self,
        source: &Source,
        bytes: u64,
        unit: Option<UnitBytes>,
        learned: Option<UnitBytes>,
    ) -> Result<UnitMap, Refused> {
        let preference = Preference { unit, default_unit: learned.unwrap_or(UnitBytes::DEFAULT) };
        let layout = if self.options.switches.layout && unit.is_none() && bytes >= LAYOUT_BYTES_MIN {
            read_layout(source, bytes)
        } else {
            None
        };
        layout::plan(layout.as_ref(), bytes, &preference)
            .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))
    }
}

/// Reads as much of the start of an object as its header needs; `None` if it is no model file.
fn read_layout(source: &Source, bytes: u64) -> Option<layout::Layout> {
    let mut prefix = Vec::new();
    let mut wanted = CHECKSUM_BLOCK_BYTES;
    loop {
        let start = prefix.len() as u64;
        let end = wanted.next_multiple_of(CHECKSUM_BLOCK_BYTES).min(bytes);
        prefix.resize(end as usize, 0);
        let range = ByteRange::new(start, end - start).ok()?;
        source.fetch_into(range, &mut prefix[start as usize..]).ok()?;
        match layout::parse_prefix(&prefix, bytes) {
            Parsed::Layout(layout) => return Some(layout),
            Parsed::NeedMore(more) if more <= HEADER_BYTES_MAX.min(bytes) && more > end => wanted = more,
            _ => return None,
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Refused> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(work)
        .map_err(|error| Refused::new(errno::EIO, format!("a thread could not be started: {error}")))
}
