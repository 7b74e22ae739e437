//! Cache files that nobody maps or reads: how many are kept, and when they are forgotten.
//!
//! Each keeps a memory file, a userfaultfd and a mapping, whether it holds bytes or not. Whoever uses a file holds a
//! reference to it: a session from `Map` or its first read until it closes the handle, a served mapping, and each unit
//! that waits to be filled or is being filled. So a file is idle if nothing but the table refers to it, and it is
//! forgotten under the lock of the table, where nobody can begin to use it.

use super::Cache;
use super::file::{CacheFile, CacheKey};
use crate::refused::errno;
use hinterland_os::process;
use hinterland_types::ObjectId;
use std::cmp::Reverse;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Most idle cache files that are kept, however many descriptors the node may have: far fewer than the 65,530 mappings
/// of a process, and few enough to be looked through each time one is opened.
const IDLE_FILES_MAX: usize = 1024;
/// Of so many descriptors that the node may have, one is for an idle cache file: each file has two, so that a quarter is
/// spent on them and the rest is left to sessions, peers and files in use.
const DESCRIPTORS_PER_IDLE_FILE: u64 = 8;
/// How often idle files are looked through.
const SWEEP_PAUSE: Duration = Duration::from_secs(5);
/// Objects that a sweep asks the directory about. The next one goes on behind them: a host with many idle files must not
/// keep a directory busy that others wait for.
const SWEEP_FILES_MAX: usize = 64;

/// Idle cache files that a node keeps if nobody says how many.
pub fn idle_files_max() -> usize {
    // At most IDLE_FILES_MAX: the cast loses nothing.
    (process::descriptors_max() / DESCRIPTORS_PER_IDLE_FILE).clamp(1, IDLE_FILES_MAX as u64) as usize
}

impl Cache {
    /// Forgets the idle files that nobody has used for longest, if there are more than are kept.
    pub(super) fn forget_oldest(&self) {
        let limit = self.options.idle_files_max;
        let mut idle: Vec<(u64, CacheKey)> = {
            let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
            if files.len() <= limit {
                return;
            }
            files.values().filter(|file| is_unused(file)).map(|file| (file.last_use(), file.key)).collect()
        };
        let Some(excess) = idle.len().checked_sub(limit).filter(|&excess| excess > 0) else { return };
        idle.sort_unstable_by_key(|&(last_use, _)| Reverse(last_use));
        // A few more, so that not every file that is opened has all of them looked through.
        let keep = idle.len() - (excess + limit / 8);
        idle.drain(..keep);
        idle.into_iter().for_each(|(_, key)| self.forget_unused(key));
    }

    /// Sweeps until the node stops.
    pub(super) fn tend_idle(&self) {
        process::name_thread("idle");
        let mut after = None;
        loop {
            let waiting = self.stopped.0.lock().unwrap_or_else(PoisonError::into_inner);
            let waited = self.stopped.1.wait_timeout_while(waiting, SWEEP_PAUSE, |()| !self.is_stopping());
            drop(waited);
            if self.is_stopping() {
                return;
            }
            after = self.sweep(after);
            self.look_for_near();
            self.forget_oldest();
        }
    }

    /// Has files that are filled from other racks ask for homes in this one, a few at a time: another node of the rack may have a copy by
    /// now. The fills themselves do not wait for a directory.
    fn look_for_near(&self) {
        let files = self.all();
        // Those that fetched nothing of late ask nothing.
        let mut asked = files.iter().filter(|file| file.source.is_far()).take(SWEEP_FILES_MAX);
        // As in `sweep`: where the directory does not answer, the next file would not be told either.
        let is_answered = |file: &&Arc<CacheFile>| match file.source.look_for_near() {
            Err(refused) => refused.code == errno::ENOENT,
            Ok(()) => true,
        };
        while asked.next().is_some_and(|file| !self.is_stopping() && is_answered(&file)) {}
    }

    /// Forgets idle files whose objects are gone, from the one behind `after` on; where the next sweep goes on.
    fn sweep(&self, after: Option<CacheKey>) -> Option<CacheKey> {
        let mut idle: Vec<CacheKey> = {
            let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
            files.values().filter(|file| is_unused(file)).map(|file| file.key).collect()
        };
        idle.sort_unstable();
        let begun = idle.partition_point(|&key| Some(key) <= after);
        for &key in idle[begun..].iter().take(SWEEP_FILES_MAX) {
            if self.is_stopping() {
                return None;
            }
            match self.directory.lookup_object(key.object) {
                Ok(_) => {}
                Err(refused) if refused.code == errno::ENOENT => self.forget_unused(key),
                // The directory does not answer: it will hardly do so for the next one at once.
                Err(_) => return Some(key),
            }
        }
        idle.get(begun + SWEEP_FILES_MAX - 1).copied()
    }

    /// Forgets the idle files of an object that this node holds itself.
    pub fn forget_object(&self, object: ObjectId) {
        let of_it = |file: &Arc<CacheFile>| (file.key.object == object).then_some(file.key);
        self.all()
            .iter()
            .filter_map(of_it)
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|key| self.forget_unused(key));
    }

    /// Forgets a file unless somebody has begun to use it.
    fn forget_unused(&self, key: CacheKey) {
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        let forgotten = if files.get(&key).is_some_and(is_unused) { files.remove(&key) } else { None };
        // Its pages are freed when nobody waits for the table any more.
        drop(files);
        drop(forgotten);
    }
}

/// Whether nothing but the table, which the caller has locked, refers to a file.
fn is_unused(file: &Arc<CacheFile>) -> bool {
    Arc::strong_count(file) == 1
}
