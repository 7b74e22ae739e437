//! The disk tier of a user's KV blocks: what is evicted goes there, what is missed comes back.
//!
//! See `docs/decisions/2026-11-22-kv-disk-tier.md`. Locks are taken in the order store, tier; nobody holds the tier's while it asks the disk.

mod bring;
mod notes;
mod recover;
mod write;

#[cfg(test)]
mod tests;

use crate::fault_point;
use crate::refused::{Refused, errno};
use hinterland_kv::disk::{Record, RecordKind, TierLog};
use hinterland_kv::{BlockKey, Departing, Leaving, View, read_summed};
use hinterland_os::{DirectBuffer, DirectFile, Transfer, process};
use hinterland_proto::control::KvDiskStatus;
use notes::Notes;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of blocks that wait to be written.
const STAGED_BYTES_MAX: usize = 64 << 20;
/// Transfers that fail one after the other before the tier rests.
const FAILURES_MAX: u32 = 8;
/// How long it rests.
const REST: Duration = Duration::from_secs(30);
/// How long room that is made ahead waits for the disk.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a node that stops waits for the disk.
const FAREWELL: Duration = Duration::from_secs(10);

/// Where a node keeps KV blocks that do not fit into memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvDisk {
    /// Folder for a file for each user.
    pub folder: PathBuf,
    /// Bytes of each file.
    pub bytes: u64,
}

impl KvDisk {
    /// What is in the way already when a node starts, in words; the disk itself is asked when the first program opens a store.
    pub(crate) fn trouble(&self) -> Option<String> {
        let refused = empty_log(self.bytes).err().or_else(|| self.make_folder().err())?;
        Some(format!("KV blocks that leave the memory will be lost: {refused}"))
    }

    fn make_folder(&self) -> Result<(), Refused> {
        std::fs::create_dir_all(&self.folder).map_err(|error| {
            let folder = self.folder.display();
            let text = format!("cannot make {folder}: {error} (hint: choose another folder with --kv-disk)");
            Refused::new(errno::EIO, text)
        })
    }

    /// The file of a user.
    pub(super) fn file(&self, user: u32) -> PathBuf {
        self.folder.join(format!("kv-{user}.blocks"))
    }
}

fn empty_log(bytes: u64) -> Result<TierLog, Refused> {
    TierLog::new(bytes).ok_or_else(|| {
        let text = format!("{bytes} bytes are too few for a disk of KV blocks (hint: --kv-disk-capacity 1G)");
        Refused::new(errno::EINVAL, text)
    })
}

/// What transfers are done on.
pub(super) trait Media: Send + Sync {
    fn transfer(&self, transfers: &mut [Transfer<'_>]) -> Vec<io::Result<()>>;
}

impl Media for DirectFile {
    fn transfer(&self, transfers: &mut [Transfer<'_>]) -> Vec<io::Result<()>> {
        DirectFile::transfer(self, transfers)
    }
}

/// A block that waits to be written, or is being written.
struct Staged {
    record: Record,
    bytes: Vec<u8>,
    /// Not removed meanwhile.
    is_live: bool,
}

struct State {
    log: TierLog,
    staged: VecDeque<Staged>,
    /// Number of the first of them.
    staged_first: u64,
    /// The number of the last one that was staged of each block.
    staged_blocks: HashMap<([u8; 32], BlockKey), u64>,
    staged_bytes: usize,
    /// Removals that wait to be written.
    notes: Notes,
    is_writing: bool,
    /// Fingerprints of the namespaces that may be written, by number.
    spaces: HashMap<u64, [u8; 32]>,
    /// Namespaces whose blocks are replaced in memory: what the disk has of them would be old.
    forbidden: HashSet<u64>,
    /// Blocks and namespaces that were removed: what was read before the last one may be of these.
    removals: u64,
    /// What the file holds is known.
    is_known: bool,
    /// But for what could not be read, and may be the next time.
    has_unknown: bool,
    is_stopping: bool,
    failures: u32,
    rests_until: Option<Instant>,
    last_error: Option<String>,
}

/// Counters since the node started.
#[derive(Default)]
struct Tally {
    written_blocks: AtomicU64,
    written_bytes: AtomicU64,
    read_blocks: AtomicU64,
    read_bytes: AtomicU64,
    lost_blocks: AtomicU64,
    failures: AtomicU64,
    checksum_failures: AtomicU64,
}

/// The tier of one user.
pub(super) struct DiskTier {
    path: PathBuf,
    media: Box<dyn Media>,
    state: Mutex<State>,
    /// Something was staged, or written, or the tier is to stop.
    changed: Condvar,
    tally: Tally,
    writer_next: AtomicU64,
    /// What blocks are read into.
    buffers: Mutex<Vec<DirectBuffer>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl DiskTier {
    /// Opens or makes the file of a user, and begins to read what it holds.
    ///
    /// # Errors
    /// [`Refused`] without room or rights, or if another node uses it.
    pub(super) fn open(disk: &KvDisk, user: u32) -> Result<Arc<Self>, Refused> {
        let path = disk.file(user);
        disk.make_folder()?;
        let file = DirectFile::open(&path, disk.bytes)?;
        file.lock()?;
        if !file.is_direct() {
            tracing::warn!(path = %path.display(), "no O_DIRECT here: KV blocks go through the page cache");
        }
        Self::over(path, Box::new(file), disk.bytes)
    }

    fn over(path: PathBuf, media: Box<dyn Media>, bytes: u64) -> Result<Arc<Self>, Refused> {
        let state = State {
            log: empty_log(bytes)?,
            staged: VecDeque::new(),
            staged_first: 0,
            staged_blocks: HashMap::new(),
            staged_bytes: 0,
            notes: Notes::default(),
            is_writing: false,
            spaces: HashMap::new(),
            forbidden: HashSet::new(),
            removals: 0,
            is_known: false,
            has_unknown: false,
            is_stopping: false,
            failures: 0,
            rests_until: None,
            last_error: None,
        };
        let tier = Arc::new(Self {
            path,
            media,
            state: Mutex::new(state),
            changed: Condvar::new(),
            tally: Tally::default(),
            // Writers of this kind have numbers that neither sessions nor fetches from other nodes reach.
            writer_next: AtomicU64::new(1 << 62),
            buffers: Mutex::default(),
            thread: Mutex::new(None),
        });
        let of_thread = Arc::clone(&tier);
        let run = move || {
            process::name_thread("kv-disk");
            of_thread.recover();
            of_thread.write_all();
        };
        let thread = std::thread::Builder::new().name("kv-disk".to_owned()).spawn(run);
        let thread = thread.map_err(|error| Refused::new(errno::EIO, error.to_string()))?;
        *tier.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(tier)
    }

    /// Blocks of a namespace may be written from here on.
    pub(super) fn know(&self, number: u64, fingerprint: [u8; 32]) {
        let mut state = self.lock();
        if !state.forbidden.contains(&number) {
            state.spaces.insert(number, fingerprint);
        }
    }

    /// Blocks of a namespace are replaced from here on: none is written any more, and none comes back. At the start of a node, too, as
    /// the one before it may have been killed before it had noted that on the disk.
    pub(super) fn forbid(&self, number: u64, fingerprint: [u8; 32]) {
        let mut state = self.lock();
        if !state.forbidden.insert(number) {
            return;
        }
        // Under one lock: what is staged in between would be found behind what is cleared.
        state.spaces.remove(&number);
        state.clear(fingerprint);
        drop(state);
        self.changed.notify_all();
    }

    /// Takes a copy of a block that leaves the memory, of which nobody can take its place meanwhile. It is lost if the disk
    /// does not keep up, or rests.
    pub(super) fn stage(&self, view: &View, leaving: &Leaving) {
        self.stage_if(view, leaving, || true);
    }

    /// The same, unless something else lies there once it is copied.
    fn stage_if(&self, view: &View, leaving: &Leaving, is_still: impl Fn() -> bool) {
        let mut state = self.lock();
        let Some(&fingerprint) = state.spaces.get(&leaving.namespace.0) else { return };
        let on_disk = state.log.find(&fingerprint, &leaving.key);
        if on_disk.is_some_and(|place| state.log.is_young(&place)) {
            return;
        }
        let length = leaving.bytes as usize;
        if !state.is_working() || state.staged_bytes + length > STAGED_BYTES_MAX {
            count(&self.tally.lost_blocks, 1);
            return;
        }
        let mut bytes = vec![0; length];
        let copied = view
            .blocks(leaving.offset, u64::from(leaving.bytes))
            .and_then(|memory| read_summed(&memory, 0, 0, &mut bytes));
        let Ok(sum) = copied else { return };
        if !is_still() {
            return;
        }
        if leaving.sum.is_some_and(|published| published != sum) {
            tracing::error!(
                offset = leaving.offset,
                "a KV block that leaves the memory is not what was published: it is not written"
            );
            count(&self.tally.lost_blocks, 1);
            return;
        }
        let record = Record {
            kind: RecordKind::Block,
            sequence: 0,
            region: 0,
            fingerprint,
            key: Some(leaving.key),
            parent: leaving.parent,
            bytes: leaving.bytes,
            // Computed by the thread that writes it.
            checksum: 0,
            is_fetched: leaving.is_fetched,
        };
        state.push(record, bytes);
        drop(state);
        fault_point::reach("kv-disk-staged");
        self.changed.notify_all();
    }

    /// The same for a block that nobody waits for: the disk is waited for, a while. It may be removed meanwhile, and its slot
    /// written again. Whoever removes it says so here after its slot has another generation, so it is not there again.
    pub(super) fn stage_patiently(&self, view: &View, departing: &Departing) {
        let Departing { leaving, slot, generation } = departing;
        let room = STAGED_BYTES_MAX - leaving.bytes as usize;
        // What there is no room for then is counted as lost.
        self.waits_until(Instant::now() + PATIENCE, |state| state.staged_bytes <= room);
        self.stage_if(view, leaving, || view.is_of(*slot, *generation));
    }

    /// A block was removed from the memory: it is not to come back. Whether it was here.
    pub(super) fn removed(&self, number: u64, key: &BlockKey) -> bool {
        let fingerprint = self.lock().spaces.get(&number).copied();
        fingerprint.is_some_and(|fingerprint| self.removed_of(fingerprint, key))
    }

    /// The same, also of a namespace that nobody has opened since the node started.
    pub(super) fn removed_of(&self, fingerprint: [u8; 32], key: &BlockKey) -> bool {
        self.remove(self.lock(), fingerprint, key)
    }

    fn remove(&self, mut state: MutexGuard<'_, State>, fingerprint: [u8; 32], key: &BlockKey) -> bool {
        let was_staged =
            state.drop_staged(|record| record.fingerprint == fingerprint && record.key.as_ref() == Some(key));
        let was_here = state.log.forget(&fingerprint, key) || was_staged;
        // Also of what was not here: its bytes may have been read before the log went round and forgot them.
        state.removals += 1;
        if was_here || state.may_have_more() {
            state.note_removed(fingerprint, *key);
            drop(state);
            self.changed.notify_all();
        }
        was_here
    }

    /// Removes the block of a key unless it is known to be one that was put here; whether it was here. Of what is not known to be here nobody can say: its bytes may
    /// have been read before the log went round, or it is in a part that is still read.
    pub(super) fn removed_if_fetched(&self, fingerprint: [u8; 32], key: &BlockKey) -> bool {
        let state = self.lock();
        !state.is_own(&fingerprint, key) && self.remove(state, fingerprint, key)
    }

    /// All blocks of a namespace were removed.
    pub(super) fn cleared(&self, number: u64) {
        let fingerprint = self.lock().spaces.get(&number).copied();
        if let Some(fingerprint) = fingerprint {
            self.cleared_all_of(fingerprint);
        }
    }

    /// The same, also for a namespace that nobody has opened since the node started.
    pub(super) fn cleared_all_of(&self, fingerprint: [u8; 32]) {
        self.lock().clear(fingerprint);
        self.changed.notify_all();
    }

    /// The length of the block of a key, if it may be had.
    pub(super) fn length(&self, fingerprint: &[u8; 32], key: &BlockKey) -> Option<u32> {
        self.lock().length(fingerprint, key)
    }

    /// The same for several, while the disk works; nothing is asked where there is no key.
    pub(super) fn lengths<'key>(
        &self,
        fingerprint: &[u8; 32],
        keys: impl Iterator<Item = Option<&'key BlockKey>>,
    ) -> Vec<Option<u32>> {
        let state = self.lock();
        let is_working = state.is_working();
        keys.map(|key| key.filter(|_| is_working).and_then(|key| state.length(fingerprint, key))).collect()
    }

    /// Writes what is staged and these blocks, as far as they are still there, and ends the thread; gives up on a disk that takes too long. Whether the disk knows of all
    /// removals.
    pub(super) fn stop(&self, view: &View, blocks: &[Departing]) -> bool {
        let until = Instant::now() + FAREWELL;
        self.begin_farewell(until);
        for Departing { leaving, slot, generation } in blocks {
            let length = leaving.bytes as usize;
            if !self.waits_until(until, |state| state.staged_bytes + length <= STAGED_BYTES_MAX) {
                break;
            }
            self.stage_if(view, leaving, || view.is_of(*slot, *generation));
        }
        self.waits_until(until, State::is_idle);
        let mut state = self.lock();
        state.is_stopping = true;
        if !state.notes.is_empty() {
            tracing::error!(path = %self.path.display(), "the disk of KV blocks does not know of all removals: they come back if memory is lost (hint: remove the file)");
        }
        drop(state);
        self.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread of the KV disk has panicked");
        }
        // What was being written is written now, or noted again.
        self.lock().notes.is_empty()
    }

    /// What was removed is told to a disk that rests too, and to one that is still read.
    fn begin_farewell(&self, until: Instant) {
        let mut state = self.lock();
        while !(state.notes.is_empty() || state.is_known || state.is_stopping) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if !state.notes.is_empty() {
            state.rests_until = None;
            self.changed.notify_all();
        }
    }

    /// Waits for what the thread does; false if it took too long, or the tier does not work.
    fn waits_until(&self, until: Instant, is_so: impl Fn(&State) -> bool) -> bool {
        let mut state = self.lock();
        while !is_so(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !state.is_working() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// What it holds and does.
    pub(super) fn status(&self) -> KvDiskStatus {
        let state = self.lock();
        // Relaxed: counters that nothing is ordered by.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        KvDiskStatus {
            path: self.path.display().to_string(),
            state: state.name().to_owned(),
            capacity_bytes: state.log.capacity_bytes(),
            blocks: state.log.blocks(),
            bytes: state.log.bytes(),
            staged_bytes: state.staged_bytes as u64,
            written_blocks: read(&self.tally.written_blocks),
            written_bytes: read(&self.tally.written_bytes),
            read_blocks: read(&self.tally.read_blocks),
            read_bytes: read(&self.tally.read_bytes),
            lost_blocks: read(&self.tally.lost_blocks),
            failures: read(&self.tally.failures),
            checksum_failures: read(&self.tally.checksum_failures),
            last_error: state.last_error.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what transfers came to; many failures in a row make the tier rest.
    fn judge(&self, state: &mut State, result: &io::Result<()>) {
        match result {
            Ok(()) => state.failures = 0,
            Err(error) => {
                count(&self.tally.failures, 1);
                state.failures += 1;
                state.last_error = Some(error.to_string());
                if state.failures >= FAILURES_MAX {
                    tracing::error!(path = %self.path.display(), %error, "the disk of KV blocks fails and is left alone for a while");
                    state.failures = 0;
                    state.rests_until = Some(Instant::now() + REST);
                }
            }
        }
    }
}

impl State {
    fn is_working(&self) -> bool {
        self.is_known && !self.is_stopping && self.rests_until.is_none_or(|until| Instant::now() >= until)
    }

    fn length(&self, fingerprint: &[u8; 32], key: &BlockKey) -> Option<u32> {
        // What is staged is later than what is written.
        let staged = self.staged_block(fingerprint, key).map(|staged| staged.record.bytes);
        staged.or_else(|| self.log.find(fingerprint, key).map(|place| place.bytes))
    }

    /// Whether the block of a key is here, and came from no other node.
    fn is_own(&self, fingerprint: &[u8; 32], key: &BlockKey) -> bool {
        // As above.
        let staged = self.staged_block(fingerprint, key).map(|staged| staged.record.is_fetched);
        let written = || self.log.find(fingerprint, key).map(|place| place.is_fetched);
        staged.or_else(written) == Some(false)
    }

    fn name(&self) -> &'static str {
        match self {
            Self { is_known: false, .. } => "reading what it holds",
            Self { rests_until: Some(until), .. } if Instant::now() < *until => "resting after failures",
            _ => "working",
        }
    }

    /// Nothing waits to be written, and nothing is being written.
    fn is_idle(&self) -> bool {
        self.staged.is_empty() && self.notes.is_empty() && !self.is_writing
    }

    /// Whether blocks may be on the disk, and come back after a restart, that the index does not know.
    const fn may_have_more(&self) -> bool {
        !self.is_known || self.has_unknown || !self.log.is_begun()
    }

    /// A block is not to come back, wherever on the disk it may be.
    fn note_removed(&mut self, fingerprint: [u8; 32], key: BlockKey) {
        if !self.notes.remove(fingerprint, key) {
            self.clear(fingerprint);
        }
    }

    /// All blocks of a namespace are not to come back.
    fn clear(&mut self, fingerprint: [u8; 32]) {
        self.removals += 1;
        self.drop_staged(|record| record.fingerprint == fingerprint);
        self.log.clear(&fingerprint);
        self.notes.clear(fingerprint);
    }

    fn push(&mut self, record: Record, bytes: Vec<u8>) {
        self.staged_bytes += bytes.len();
        if let Some(key) = record.key {
            let number = self.staged_first + self.staged.len() as u64;
            self.staged_blocks.insert((record.fingerprint, key), number);
        }
        self.staged.push_back(Staged { record, bytes, is_live: true });
    }

    /// Takes the first of what is staged away.
    fn pop(&mut self) -> Option<Staged> {
        let staged = self.staged.pop_front()?;
        self.staged_bytes -= staged.bytes.len();
        if let Some(key) = staged.record.key {
            let block = (staged.record.fingerprint, key);
            if self.staged_blocks.get(&block) == Some(&self.staged_first) {
                self.staged_blocks.remove(&block);
            }
        }
        self.staged_first += 1;
        Some(staged)
    }

    /// The staged block of a key.
    fn staged_block(&self, fingerprint: &[u8; 32], key: &BlockKey) -> Option<&Staged> {
        self.staged_and_number(fingerprint, key).map(|(staged, _)| staged)
    }

    /// The same, and its number, which no other has.
    fn staged_and_number(&self, fingerprint: &[u8; 32], key: &BlockKey) -> Option<(&Staged, u64)> {
        let number = *self.staged_blocks.get(&(*fingerprint, *key))?;
        // As many as there are staged.
        let staged = self.staged.get((number - self.staged_first) as usize);
        staged.filter(|staged| staged.is_live).map(|staged| (staged, number))
    }

    /// Staged blocks for which this holds are not to come back; whether there was one.
    fn drop_staged(&mut self, is_meant: impl Fn(&Record) -> bool) -> bool {
        let mut some = false;
        for staged in &mut self.staged {
            if staged.is_live && is_meant(&staged.record) {
                staged.is_live = false;
                some = true;
            }
        }
        some
    }
}

fn count(counter: &AtomicU64, by: u64) {
    // Relaxed: a counter that nothing is ordered by.
    counter.fetch_add(by, Ordering::Relaxed);
}
