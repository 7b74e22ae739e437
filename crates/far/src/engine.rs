//! What the supervisor knows: the programs' address spaces, the budget, and the faults that wait for room.

use crate::board::Board;
use crate::evict;
use crate::outside::Outside;
use crate::peer::living;
use crate::reads::Reads;
use crate::settle::Settling;
use crate::store::{Copy, Stores};
use crate::trace::{Watch, Watcher};
use crate::weighing::Own;
use crate::words::say;
use hinterland_farplan::enough::Enough;
use hinterland_farplan::grain::{BLOCK_BYTES, Grains};
use hinterland_farplan::guess::Guess;
use hinterland_farplan::hand::Hand;
use hinterland_farplan::huge::Blocks;
use hinterland_farplan::loose::Loose;
use hinterland_farplan::refault::{Clock, Refaults};
use hinterland_farplan::room::{self, ROOM_BYTES_MIN};
use hinterland_farplan::stride::{AHEAD_BYTES_MAX, Sequences};
use hinterland_farplan::trend::Trends;
use hinterland_farplan::{PAGE, State, Table};
use hinterland_os::pagemap::{PageMap, PresentRun};
use hinterland_os::poll::EventCounter;
use hinterland_os::process::ProcessHandle;
use hinterland_os::socket::UnixStream;
use hinterland_os::userfault::{Fault, FaultModes};
use hinterland_os::{OsError, SharedSlice, Userfault};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How much of the programs' memory may be on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// So many bytes, all resident memory of the programs included.
    Bytes(u64),
    /// So many hundredths of what the programs have in use, at least 16 MiB.
    Percent(u8),
}

impl Default for Budget {
    fn default() -> Self {
        Self::Percent(100)
    }
}

/// How faults are served; each part can be left out, to see what it is worth.
#[derive(Clone, Copy, Debug, Default)]
pub struct Service {
    /// Threads that read back ends beside the one that serves faults; without any, that one reads.
    pub readers: usize,
    /// Threads that put what has left into back ends; without any, nothing more leaves meanwhile.
    pub writers: usize,
    /// Whether faults of one thread are served on its processor.
    pub follow: bool,
    /// Whether the next fault is looked for before the serving thread sleeps, where that is quicker.
    pub look: bool,
    /// Whether idle processors of the machine are kept from sleep while faults come quickly.
    pub awake: bool,
    /// Whether memory that was written of late comes back open for writing, without its copy; else its first write is a fault.
    pub guess: bool,
    /// Whether what comes back soon after it left stays longer.
    pub refaults: bool,
    /// Whether small units that follow each other are filled by one call.
    pub together: bool,
    /// Whether what lies along the steps of a thread is filled ahead.
    pub trends: bool,
    /// Whether as much of a unit leaves and comes back together as its place uses together; for units of [`BLOCK_BYTES`] alone.
    pub fit: bool,
    /// Whether memory that has come to rest gets huge pages again, where the program or the machine wants them.
    pub huge: bool,
    /// Its share of disks, links and processors that other runs use, too, from 1 to [`SHARE_MAX`](hinterland_farplan::share::SHARE_MAX); 0 to
    /// regard no other run.
    pub share: u64,
}

/// How a run is set up.
pub struct Options {
    /// The budget.
    pub budget: Budget,
    /// Bytes of a unit, a power of two from 4 KiB to 2 MiB.
    pub unit_bytes: u64,
    /// Back ends and copies.
    pub stores: Arc<Stores>,
    /// Whether to fetch ahead of sequences.
    pub ahead: bool,
    /// How faults are served.
    pub service: Service,
    /// What is done with faults beside serving them.
    pub watch: Watch,
}

/// The reclaim thread of a program.
#[derive(Clone)]
pub(crate) struct Mover {
    pub stream: Arc<UnixStream>,
    pub pages: Arc<PageMap>,
    pub staging: u64,
    pub staging_bytes: u64,
}

/// One address space.
pub(crate) struct Space {
    /// 0 until it has greeted.
    pub process: i32,
    /// The thread of the first fault before that, as its own PID namespace numbers it; else 0.
    pub thread: u32,
    /// Whether the threads of its faults have these numbers here, too.
    pub is_numbered_here: bool,
    pub faults: Arc<Userfault>,
    pub table: Table<Copy>,
    pub sequences: Sequences,
    pub trends: Trends,
    pub guess: Guess,
    pub grains: Grains,
    pub refaults: Refaults,
    /// Places of huge pages, and which of them are at rest.
    pub blocks: Blocks,
    pub page: Option<SharedSlice>,
    pub mover: Option<Mover>,
    /// It has its userfaultfd, and no reclaim thread yet that would end it when this process ends: it would wait for its memory for ever.
    pub is_unattended: bool,
    /// Memory that is told of and not served yet: the program fits so far.
    pub loose: Loose,
    pub is_armed: bool,
    /// Pages with which mappings begin that have none yet; see [`Engine::begin_mappings`].
    pub bare: Vec<u64>,
    /// Which units leave next.
    pub hand: Hand,
    /// The last ticket when what the kernel had refused to move was asked for again.
    pub refused_at: u64,
    /// Resident bytes of the process that no table counts.
    pub other_bytes: u64,
    /// What counts of pages that it may have in common with other processes of the run, once that is known.
    pub own: Option<Own>,
    /// Made by `fork`, and its memory is shared with the parent's as long as neither writes.
    pub is_child: bool,
    /// Of a child, the space that all of its parents come from.
    pub family: u64,
    /// The process that forked it, until its own number is known; else 0.
    pub parent: i32,
}

/// What people are told at the end.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub faults: u64,
    pub protect_faults: u64,
    pub zero_bytes: u64,
    pub fetched_bytes: u64,
    pub ahead_bytes: u64,
    pub together_bytes: u64,
    pub trend_bytes: u64,
    /// Huge pages that were made again.
    pub huge_pages: u64,
    /// Faults for which somebody else was waited for, a disk or another host.
    pub slept: u64,
    pub evicted_bytes: u64,
    pub clean_bytes: u64,
    pub zero_evicted_bytes: u64,
    pub busy_bytes: u64,
    pub stale: u64,
    pub stall_ns: u64,
    /// The longest wait of one fault since it was last asked for.
    pub stall_ns_max: u64,
    pub resident_bytes_max: u64,
    pub far_bytes_max: u64,
    pub over_budget: u64,
    pub outside_bytes_max: u64,
    /// What the look before found.
    pub outside_bytes: u64,
}

/// A fault that waits for room or for a unit on its way out.
pub(crate) struct Waiting {
    pub space: u64,
    pub fault: Fault,
    pub since: Instant,
}

#[derive(Default)]
pub(crate) struct Known {
    /// Faults by huge page of their address since they were last taken, if somebody records them.
    pub touched: Option<BTreeMap<u64, u32>>,
    pub budget: Budget,
    /// After the budget was lowered, or a fork: what faults may fill up to until enough has left, so that they go on meanwhile.
    pub ceiling_bytes: u64,
    pub spaces: BTreeMap<u64, Space>,
    pub waiting: Vec<Waiting>,
    /// Bytes that were filled.
    pub clock: Clock,
    pub ticket: u64,
    pub space_next: u64,
    pub counters: Counters,
    /// What it would have taken to spare most of the faults of late.
    pub enough: Enough,
    /// Nothing can be taken out although there is no room.
    pub is_stuck: bool,
    /// The evicting thread waits to be told of pressure.
    pub is_evictor_idle: bool,
    pub is_over: bool,
    /// The first process of the run, once the library is in it: it may never have memory to tell of.
    pub first: Option<ProcessHandle>,
}

impl Known {
    /// The processes that are known, the first one of the run first while it lives.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let mut all: Vec<i32> =
            self.spaces.values().map(|space| space.process).filter(|process| *process > 0).collect();
        all.dedup();
        if let Some(first) = &self.first
            && !all.contains(&first.number())
            && first.has_ended(Duration::ZERO).is_ok_and(|ended| !ended)
        {
            all.insert(0, first.number());
        }
        all
    }

    /// Bytes that the tables have resident.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.spaces.values().map(|space| space.table.resident_bytes()).sum()
    }

    /// Bytes that the tables have far.
    pub(crate) fn far_bytes(&self) -> u64 {
        self.spaces.values().map(|space| space.table.far_bytes()).sum()
    }
}

/// The supervisor's core, shared by its threads.
pub(crate) struct Engine {
    known: Mutex<Known>,
    /// There is less room than there should be, or the run is over.
    pub pressure: Condvar,
    /// Rung when waiting faults may go on.
    pub bell: EventCounter,
    pub stores: Arc<Stores>,
    pub unit_bytes: u64,
    pub ahead: bool,
    pub service: Service,
    pub reads: Reads,
    pub settling: Settling,
    pub watch: Watcher,
    pub outside: Outside,
    /// What other runs know of this one; set before any thread begins.
    pub board: Option<Arc<Board>>,
    /// What was said and is not said again.
    pub said: Mutex<BTreeSet<&'static str>>,
    pub lost_bytes: AtomicU64,
    /// The library has said that it is there, although no process may have had far memory.
    pub is_loaded: AtomicBool,
    /// The run is over.
    pub over: Condvar,
}

impl Engine {
    pub(crate) fn new(options: Options, bell: EventCounter) -> Self {
        Self {
            known: Mutex::new(Known { budget: options.budget, ..Known::default() }),
            pressure: Condvar::new(),
            bell,
            stores: options.stores,
            unit_bytes: options.unit_bytes,
            ahead: options.ahead,
            service: Service {
                fit: options.service.fit && options.unit_bytes == BLOCK_BYTES,
                ..options.service
            },
            reads: Reads::default(),
            settling: Settling::new(options.service.writers),
            watch: Watcher::new(options.watch),
            outside: Outside::default(),
            board: None,
            said: Mutex::default(),
            lost_bytes: AtomicU64::new(0),
            is_loaded: AtomicBool::new(false),
            over: Condvar::new(),
        }
    }

    /// The lock under which events are read and tables change. Nobody waits for a program while holding it.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the parts of a unit that may leave alone.
    pub(crate) const fn part_bytes(&self) -> u64 {
        if self.service.fit { PAGE } else { self.unit_bytes }
    }

    /// Bytes that the tables may have resident.
    pub(crate) fn room_bytes(&self, known: &Known) -> u64 {
        let other: u64 = known.spaces.values().map(|space| space.other_bytes).sum();
        match known.budget {
            Budget::Bytes(bytes) => room::room_bytes(bytes, other),
            Budget::Percent(percent) => {
                let refused: u64 = known.spaces.values().map(|space| space.table.refused_bytes()).sum();
                let movable = |space: &Space| space.table.resident_bytes() + space.table.far_bytes();
                let used = refused + known.spaces.values().map(movable).sum::<u64>();
                (used / 100 * u64::from(percent)).saturating_sub(refused).max(ROOM_BYTES_MIN)
            }
        }
    }

    /// There is suddenly more than there is room for. It leaves at once; faults meanwhile go on, and refill half of what leaves.
    pub(crate) fn go_on_above_room(&self, known: &mut Known) {
        let resident = known.resident_bytes();
        known.ceiling_bytes = if resident > self.room_bytes(known) { resident } else { 0 };
    }

    /// What has become less by itself, as when a child of a fork ends, is not filled again.
    pub(crate) fn lower_ceiling(&self, known: &mut Known) {
        let room = self.room_bytes(known);
        let ceiling = known.ceiling_bytes.min(known.resident_bytes() + self.low_bytes(room));
        known.ceiling_bytes = if ceiling > room { ceiling } else { 0 };
    }

    /// Room that is kept free.
    pub(crate) fn spare_bytes(&self, room: u64) -> u64 {
        room::spare_bytes(room, self.unit_bytes)
    }

    /// Free room at which eviction begins.
    pub(crate) fn low_bytes(&self, room: u64) -> u64 {
        room::low_bytes(room, self.unit_bytes)
    }

    /// Takes a range under service, and finds out what of it is there already.
    pub(crate) fn arm(&self, known: &mut Known, id: u64, start: u64, end: u64) {
        let stamp = known.clock;
        let Some(space) = known.spaces.get_mut(&id) else { return };
        let modes = FaultModes { missing: true, minor: false, write_protect: true };
        for (from, to) in space.table.add(start, end) {
            if space.faults.register(from, to - from, modes).is_err() {
                // Unmapped meanwhile, or of a kind that cannot be served: it stays the kernel's.
                space.table.unmap(from, to);
                continue;
            }
            let mut runs = Vec::new();
            let scanned = space.pages().and_then(|pages| pages.present(from, to - from, &mut runs));
            if scanned.is_err() {
                // All of it may be there.
                mark(space, from, to, stamp);
            }
            let missing = first_missing(from, to, &runs);
            for run in runs {
                mark(space, run.address, run.address + run.bytes, stamp);
            }
            if to - from > PAGE
                && let Some(page) = missing
            {
                space.bare.push(page);
            }
        }
        self.begin_mappings(known, id);
    }

    /// Gives each new mapping its first page, all zeros. Mappings that the program splits (`mprotect`) become one again only if their pages
    /// have the same `anon_vma`, which the kernel makes with the first page: made in the parts, it differs, and `mremap` of
    /// all of them fails. Without far memory, pages that are only read make none.
    pub(crate) fn begin_mappings(&self, known: &mut Known, id: u64) {
        let stamp = known.clock;
        let Some(space) = known.spaces.get_mut(&id) else { return };
        for page in std::mem::take(&mut space.bare) {
            let untouched =
                matches!(space.table.state(page), Some(State::Untouched | State::Resident { .. }));
            if !untouched {
                continue;
            }
            match space.faults.try_copy(page, &[0; PAGE as usize], false) {
                Ok(filled) if filled.mapped_bytes + filled.present_bytes == 0 => space.bare.push(page),
                // Unmapped meanwhile: then there is nothing to begin.
                Ok(_) | Err(_) => mark(space, page, page + PAGE, stamp),
            }
        }
    }

    /// Serves all memory that was told of, if it does not fit.
    pub(crate) fn arm_if_needed(&self, known: &mut Known) {
        if known.spaces.values().all(|space| !space.is_armed) {
            if self.fits(known) {
                return;
            }
            // Programs that start many others: most of what does not fit has ended.
            evict::sweep(known);
            if self.fits(known) {
                return;
            }
        }
        let ids: Vec<u64> = known.spaces.keys().copied().collect();
        for id in ids {
            let Some(space) = known.spaces.get_mut(&id) else { continue };
            space.is_armed = true;
            for (start, end) in space.loose.take() {
                self.arm(known, id, start, end);
            }
        }
        self.pressure.notify_all();
    }

    /// Whether all memory that programs have, or may write without another call, can stay here.
    fn fits(&self, known: &Known) -> bool {
        let bytes = |space: &Space| space.loose.bytes() + space.table.resident_bytes();
        match known.budget {
            Budget::Bytes(_) => known.spaces.values().map(bytes).sum::<u64>() <= self.room_bytes(known),
            Budget::Percent(_) => false,
        }
    }

    /// Says something to whoever runs the program, once for each subject.
    pub(crate) fn say_once(&self, subject: &'static str, text: &str) {
        if self.said.lock().unwrap_or_else(PoisonError::into_inner).insert(subject) {
            say(text);
        }
    }
}

impl Space {
    /// Which of its pages are there. The reclaim thread's map is of this very memory, whatever becomes of the process.
    pub(crate) fn pages(&self) -> Result<Arc<PageMap>, OsError> {
        match &self.mover {
            Some(mover) => Ok(Arc::clone(&mover.pages)),
            None => PageMap::of_process(living(self.process)).map(Arc::new),
        }
    }

    pub(crate) fn new(process: i32, faults: Userfault, unit_bytes: u64, part_bytes: u64) -> Self {
        Self {
            process,
            thread: 0,
            is_numbered_here: false,
            faults: Arc::new(faults),
            table: Table::new(part_bytes),
            sequences: Sequences::new(AHEAD_BYTES_MAX),
            trends: Trends::default(),
            guess: Guess::default(),
            grains: Grains::default(),
            refaults: Refaults::new(unit_bytes, part_bytes),
            blocks: Blocks::default(),
            page: None,
            mover: None,
            is_unattended: false,
            loose: Loose::default(),
            is_armed: false,
            bare: Vec::new(),
            hand: Hand::default(),
            refused_at: 0,
            other_bytes: 0,
            own: None,
            is_child: false,
            family: 0,
            parent: 0,
        }
    }

    /// Keeps the thread of its first fault in mind until it has greeted.
    pub(crate) fn note_thread(&mut self, thread: u32) {
        if self.process == 0 && self.thread == 0 {
            self.thread = thread;
        }
    }

    /// The space of a child that `fork` made of this one, which has the number `id`, in the state of that moment.
    pub(crate) fn child(&self, id: u64, faults: Userfault) -> Self {
        let mut table = self.table.clone();
        table.accept_refused(0);
        Self {
            process: 0,
            thread: 0,
            is_numbered_here: false,
            faults: Arc::new(faults),
            table,
            sequences: Sequences::new(AHEAD_BYTES_MAX),
            trends: Trends::default(),
            guess: self.guess.clone(),
            grains: self.grains.clone(),
            refaults: self.refaults.clone(),
            blocks: Blocks::default(),
            page: None,
            mover: None,
            is_unattended: false,
            loose: self.loose.clone(),
            is_armed: self.is_armed,
            bare: Vec::new(),
            hand: Hand::default(),
            refused_at: 0,
            other_bytes: 0,
            own: None,
            is_child: true,
            family: if self.is_child { self.family } else { id },
            parent: self.process,
        }
    }
}

/// The first page of a range that no run covers.
fn first_missing(from: u64, to: u64, runs: &[PresentRun]) -> Option<u64> {
    let end = runs
        .iter()
        .fold(from, |end, run| if run.address <= end { end.max(run.address + run.bytes) } else { end });
    (end < to).then_some(end)
}

fn mark(space: &mut Space, from: u64, to: u64, stamp: u64) {
    space.table.update(from..to, |unit| *unit = State::Resident { clean: None, stamp });
}
