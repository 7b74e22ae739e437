//! What the runs of this user on this host tell each other, so that none takes a disk, a link or the processors away from the others.
//!
//! A file of shared memory in the folder of control sockets has a slot for each run: when it last served a fault, its share, and what it has used of
//! each device ([`share`](hinterland_farplan::share) has the rule). A run writes its own slot and reads the others', so nobody waits for an answer; a lock on
//! the file, a byte for each slot, ends with its owner in whatever way that ends. Words that lie cost others at most [`WAIT_MAX`] a batch, or the processor
//! of a fault. Bytes of the file, all words of 8 bytes in the order of this host:
//!
//! | at | what |
//! | --- | --- |
//! | 0 | `HLSHARE1` |
//! | 64 + 256 n | slot n of 64: when it last served a fault, in nanoseconds of the monotonic clock; 0 for never |
//! | + 8 | its share |
//! | + 16 | faults a second of late |
//! | + 32 + 32 d | device d of 7: its key; 0 for none yet |
//! | + 8 | units of use |
//! | + 16 | how much is under way, or waits to be |
//! | + 24 | when something last began or ended there |

use hinterland_farplan::share::{self, Use};
use hinterland_os::clock::monotonic_ns;
use hinterland_os::file_lock::{ByteLock, lock_byte};
use hinterland_os::{MapOptions, Mapping, OsError, SharedSlice, affinity};
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The name of the file.
const NAME: &str = "shares";
const MAGIC: u64 = u64::from_ne_bytes(*b"HLSHARE1");
const SLOTS: usize = 64;
const SLOTS_AT: usize = 64;
const SLOT_BYTES: usize = 256;
const SHARE_AT: usize = 8;
const RATE_AT: usize = 16;
const DEVICES_AT: usize = 32;
const DEVICES: usize = (SLOT_BYTES - DEVICES_AT) / DEVICE_BYTES;
const DEVICE_BYTES: usize = 32;
const USED_AT: usize = 8;
const UNDER_WAY_AT: usize = 16;
const SEEN_AT: usize = 24;
const FILE_BYTES: usize = SLOTS_AT + SLOTS * SLOT_BYTES;

/// The longest that a batch waits for others, whatever they say.
const WAIT_MAX: Duration = Duration::from_millis(5);
/// Between two looks at the others.
const LOOK_EVERY: Duration = Duration::from_micros(100);
/// A run that served a fault within this time is at work, in nanoseconds.
const AT_WORK_NS: u64 = 10_000_000;
/// Over what time faults are counted, in nanoseconds.
const RATE_NS: u64 = 10_000_000;
/// How long the answer to whether the processors are crowded stands, in nanoseconds.
const CROWDED_NS: u64 = 1_000_000;

/// The slot of one run, and its view of the others.
pub(crate) struct Board {
    memory: SharedSlice,
    /// Keeps the lock on the slot.
    _file: File,
    slot: usize,
    share: u64,
    processors: usize,
    waited_ns: AtomicU64,
    /// When it was last looked whether the processors are crowded, and in the lowest bits what was found: that they are, and that others crowd them.
    crowded: AtomicU64,
    /// Since when faults are counted, and how many there were.
    counted: [AtomicU64; 2],
}

impl Board {
    /// Takes a slot in the file of the folder, which is this user's alone.
    ///
    /// # Errors
    /// The refusal of the file; [`OsError::Refused`] for a file of another release, and if all slots are taken.
    pub(crate) fn open(folder: &Path, share: u64) -> Result<Self, OsError> {
        let path = folder.join(NAME);
        let failed = |error| OsError::system("opening", path.display().to_string(), error);
        let file =
            File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(failed)?;
        if file.metadata().map_err(failed)?.len() < FILE_BYTES as u64 {
            file.set_len(FILE_BYTES as u64).map_err(failed)?;
        }
        let options = MapOptions { write: true, guarded: true, ..MapOptions::default() };
        let memory = Arc::new(Mapping::map(&file, 0, FILE_BYTES, options)?).slice();
        let found = memory.compare_swap_u64(0, 0, MAGIC)?;
        let refused = |reason: &str, hint: &'static str| OsError::Refused {
            operation: "sharing back ends with other runs",
            reason: format!("{} {reason}", path.display()),
            hint: hint.into(),
        };
        if found != 0 && found != MAGIC {
            return Err(refused(
                "is of another release",
                "end the runs of that release, and remove the file",
            ));
        }
        for slot in 0..SLOTS {
            if lock_byte(&file, slot as u64, ByteLock::Alone)? {
                memory.fill(SLOTS_AT + slot * SLOT_BYTES, SLOT_BYTES, 0)?;
                memory.store_u64(SLOTS_AT + slot * SLOT_BYTES + SHARE_AT, share)?;
                return Ok(Self {
                    memory,
                    _file: file,
                    slot,
                    share,
                    processors: affinity::core_count(),
                    waited_ns: AtomicU64::new(0),
                    crowded: AtomicU64::new(0),
                    counted: [const { AtomicU64::new(0) }; 2],
                });
            }
        }
        Err(refused(
            "has a slot for 64 runs, and all are taken",
            "run fewer programs with far memory at once",
        ))
    }

    /// Faults were served, by the one thread that serves them.
    pub(crate) fn note_faults(&self, count: u64) {
        let now = monotonic_ns();
        // A file that was cut off says nothing any more, here and below.
        let _ = self.memory.store_u64(self.at(self.slot), now);
        let [since, faults] = &self.counted;
        // Relaxed: one thread counts.
        let (passed, count) = (
            now - since.load(Ordering::Relaxed).min(now),
            faults.fetch_add(count, Ordering::Relaxed) + count,
        );
        if passed >= RATE_NS {
            let _ = self
                .memory
                .store_u64(self.at(self.slot) + RATE_AT, count.saturating_mul(1_000_000_000) / passed);
            since.store(now, Ordering::Relaxed); // Relaxed: as above.
            faults.store(0, Ordering::Relaxed); // Relaxed: as above.
        }
    }

    /// Whether this run and others at work leave no processor idle.
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowd() & 1 == 1
    }

    /// Whether a processor for the faults of one thread is not to be had: the processors are crowded, and not by others.
    pub(crate) fn is_crowding(&self) -> bool {
        self.crowd() & 3 == 1
    }

    fn crowd(&self) -> u64 {
        let now = monotonic_ns();
        // Relaxed: a hint, here and below.
        let known = self.crowded.load(Ordering::Relaxed);
        if now.saturating_sub(known) < CROWDED_NS {
            return known & 3;
        }
        let is_at_work = |slot: &usize| {
            let last = self.memory.load_u64(self.at(*slot)).unwrap_or(0);
            last != 0 && now.saturating_sub(last) < AT_WORK_NS
        };
        let rate = |slot: usize| self.memory.load_u64(self.at(slot) + RATE_AT).unwrap_or(0);
        let (mut others, mut most) = (0, 0);
        for slot in self.others().filter(is_at_work) {
            (others, most) = (others + 1, most.max(rate(slot)));
        }
        let is_crowded = share::is_crowded(others + 1, self.processors);
        let found = u64::from(is_crowded) | u64::from(share::is_quiet(rate(self.slot), most)) << 1;
        // Relaxed: a hint.
        self.crowded.store(now & !3 | found, Ordering::Relaxed);
        found
    }

    /// Waits, before bytes that nobody waits for move over a device, as long as a run that has used less of it has something under way there.
    pub(crate) fn give_way(&self, device: u64) {
        let Some(place) = self.begin(device) else { return };
        let begun = monotonic_ns();
        loop {
            let now = monotonic_ns();
            let used = self.look(place).used;
            let waited = Duration::from_nanos(now.saturating_sub(begun));
            if waited >= WAIT_MAX || !share::gives_way(used, self.uses(device), now) {
                // Relaxed: a counter for people.
                self.waited_ns.fetch_add(now.saturating_sub(begun), Ordering::Relaxed);
                break;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        self.end(place, 0);
    }

    /// Does what moves bytes over a device, for all to see.
    pub(crate) fn count<T>(&self, device: u64, bytes: usize, act: impl FnOnce() -> T) -> T {
        let Some(place) = self.begin(device) else { return act() };
        let done = act();
        self.end(place, bytes);
        done
    }

    /// Seconds that batches gave way to other runs.
    pub(crate) fn waited_s(&self) -> f64 {
        self.waited_ns.load(Ordering::Relaxed) as f64 / 1e9 // Relaxed: a counter for people.
    }

    fn at(&self, slot: usize) -> usize {
        SLOTS_AT + slot * SLOT_BYTES
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let own = self.slot;
        (0..SLOTS).filter(move |slot| *slot != own)
    }

    /// Where a slot has a device.
    fn place(&self, slot: usize, device: u64) -> Option<usize> {
        let places = (0..DEVICES).map(|number| self.at(slot) + DEVICES_AT + number * DEVICE_BYTES);
        // Keys are never taken away while a slot has its owner.
        places
            .map(|place| (place, self.memory.load_u64(place).unwrap_or(0)))
            .take_while(|(_, key)| *key != 0)
            .find(|(_, key)| *key == device)
            .map(|(place, _)| place)
    }

    /// What others have used of a device.
    fn uses(&self, device: u64) -> impl Iterator<Item = Use> {
        self.others().filter_map(move |slot| self.place(slot, device)).map(|place| self.look(place))
    }

    fn look(&self, place: usize) -> Use {
        let word = |at: usize| self.memory.load_u64(place + at).unwrap_or(0);
        Use { used: word(USED_AT), under_way: word(UNDER_WAY_AT), seen_ns: word(SEEN_AT) }
    }

    /// Says that something is under way; returns where this run has the device, if it has room for one more.
    fn begin(&self, device: u64) -> Option<usize> {
        let place = self.place(self.slot, device).or_else(|| self.add(device))?;
        let (own, now) = (self.look(place), monotonic_ns());
        let used = share::caught_up(own, self.uses(device), now);
        if used > own.used {
            // Another thread of this run may have caught up just now.
            let _ = self.memory.compare_swap_u64(place + USED_AT, own.used, used);
        }
        self.memory.fetch_add_u64(place + UNDER_WAY_AT, 1).ok()?;
        self.memory.store_u64(place + SEEN_AT, now).ok()?;
        Some(place)
    }

    fn end(&self, place: usize, bytes: usize) {
        let _ = self.memory.fetch_add_u64(place + USED_AT, share::units(bytes as u64, self.share));
        let _ = self.memory.fetch_add_u64(place + UNDER_WAY_AT, u64::MAX);
        let _ = self.memory.store_u64(place + SEEN_AT, monotonic_ns());
    }

    /// Gives a device a place in the own slot.
    fn add(&self, device: u64) -> Option<usize> {
        let places = (0..DEVICES).map(|number| self.at(self.slot) + DEVICES_AT + number * DEVICE_BYTES);
        let mut places = places;
        places.find(|place| {
            let found = self.memory.compare_swap_u64(*place, 0, device);
            found.is_ok_and(|found| found == 0 || found == device)
        })
    }
}

thread_local! {
    /// For which run this thread works.
    static RUN: RefCell<Option<Arc<Board>>> = const { RefCell::new(None) };
}

/// From here on the calling thread works for that run: back ends may be those of several.
pub(crate) fn work_for(board: Option<Arc<Board>>) {
    RUN.with(|run| *run.borrow_mut() = board);
}

/// Does something with the board of the run that the calling thread works for, if it works for one that has a board.
pub(crate) fn with<T>(act: impl FnOnce(Option<&Board>) -> T) -> T {
    // What is done may come here again.
    let board = RUN.with(|run| run.borrow().clone());
    act(board.as_deref())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use hinterland_farplan::share::{PAUSE_NS, SHARE, SLACK};
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    const DEVICE: u64 = 77;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("hinterland-board-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir(&folder).unwrap();
        folder
    }

    #[test]
    fn a_slot_is_free_again_when_its_run_has_ended_however() {
        let folder = folder("slots");
        let all: Vec<Board> = (0..SLOTS).map(|_| Board::open(&folder, SHARE).unwrap()).collect();
        let slots: Vec<usize> = all.iter().map(|board| board.slot).collect();
        assert_eq!(slots, (0..SLOTS).collect::<Vec<_>>());
        let refused = Board::open(&folder, SHARE).err().unwrap().to_string();
        assert!(refused.contains("all are taken") && refused.contains("hint:"), "{refused}");
        let mut all = all;
        all[7].count(DEVICE, 4096, || ());
        drop(all.remove(7));
        let again = Board::open(&folder, SHARE).unwrap();
        assert_eq!(again.slot, 7);
        assert_eq!(again.place(7, DEVICE), None, "what the run before used was kept");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_of_another_release_is_refused_and_one_that_is_cut_off_hurts_nobody() {
        let folder = folder("file");
        let board = Board::open(&folder, SHARE).unwrap();
        board.note_faults(1);
        let file = File::options().write(true).open(folder.join(NAME)).unwrap();
        file.set_len(0).unwrap();
        board.note_faults(1);
        board.give_way(DEVICE);
        assert_eq!(board.count(DEVICE, 1, || 5), 5);
        assert!(!board.is_crowded());
        std::fs::write(folder.join(NAME), [7; FILE_BYTES]).unwrap();
        let refused = Board::open(&folder, SHARE).err().unwrap().to_string();
        assert!(refused.contains("another release"), "{refused}");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn who_used_more_waits_as_long_as_another_one_reads_and_no_longer() {
        let folder = folder("waits");
        let [much, little] = [(); 2].map(|()| Board::open(&folder, SHARE).unwrap());
        little.count(DEVICE, 1, || ());
        much.count(DEVICE, 4 * SLACK as usize, || ());
        let is_read = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let (little, is_read) = (&little, &is_read);
            scope.spawn(move || {
                little.count(DEVICE, 1, || {
                    sender.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                    is_read.store(true, Ordering::SeqCst);
                });
            });
            receiver.recv().unwrap();
            let begun = Instant::now();
            much.give_way(DEVICE + 1);
            let (other, took) = (is_read.load(Ordering::SeqCst), begun.elapsed());
            much.give_way(DEVICE);
            let own = is_read.load(Ordering::SeqCst);
            // Where the machine was slow there was nothing left to wait for.
            assert!(!other || took > Duration::from_millis(1), "another device was waited for");
            assert!(own || much.waited_s() >= WAIT_MAX.as_secs_f64(), "nobody gave way");
        });
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn who_comes_later_has_no_claim_to_what_it_did_not_use() {
        let folder = folder("later");
        let first = Board::open(&folder, SHARE).unwrap();
        first.count(DEVICE, 100 * SLACK as usize, || ());
        let second = Board::open(&folder, 2 * SHARE).unwrap();
        second.count(DEVICE, 2 << 20, || ());
        let place = second.place(second.slot, DEVICE).unwrap();
        let (own, other) = (second.look(place), first.look(first.place(first.slot, DEVICE).unwrap()));
        // Unless the test was stopped for as long as a pause.
        if own.seen_ns - other.seen_ns < PAUSE_NS {
            assert_eq!(own.used, 100 * SLACK + (1 << 20));
        }
        assert_eq!((own.under_way, other.under_way), (0, 0));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn runs_at_work_crowd_the_processors() {
        let folder = folder("crowd");
        let boards: Vec<Board> = (0..=SLOTS / 2).map(|_| Board::open(&folder, SHARE).unwrap()).collect();
        let mut own = Board::open(&folder, SHARE).unwrap();
        own.processors = boards.len();
        assert!(!own.is_crowded(), "nobody is at work");
        // On a busy machine some have a rate and others none yet, so this one has more than any; and all may be at rest again.
        let deadline = Instant::now() + Duration::from_secs(30);
        while !(own.is_crowded() && own.is_crowding()) {
            assert!(Instant::now() < deadline, "runs at work do not crowd the processors");
            own.note_faults(1000);
            boards.iter().for_each(|board| board.note_faults(1));
            std::thread::sleep(Duration::from_nanos(CROWDED_NS));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn who_faults_far_less_than_another_one_crowds_nothing() {
        let folder = folder("quiet");
        let [mut loud, mut quiet] = [(); 2].map(|()| Board::open(&folder, SHARE).unwrap());
        (loud.processors, quiet.processors) = (2, 2);
        for _ in 0..2 {
            std::thread::sleep(Duration::from_nanos(RATE_NS));
            loud.note_faults(1000);
            quiet.note_faults(10);
        }
        assert!(loud.is_crowded() && loud.is_crowding());
        assert!(quiet.is_crowded() && !quiet.is_crowding());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
