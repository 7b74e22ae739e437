//! What was read of other nodes under read locks, kept until somebody may write under the lock.
//!
//! A lock home gives every writer a fence of its own, and readers the last one: the same fence again says that nobody wrote under
//! the lock since. So a later guard finds what an earlier one has read, and nobody has to be told when it ends. A lock is a name that
//! outlives regions: what was read counts for the region that it was read of, and not for the next one at its addresses.

use crate::PoolError;
use hinterland_types::{GlobalAddress, ObjectId};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is read at once around a small read.
const BLOCK_BYTES: u64 = 4096;
/// Longest read that is kept.
pub(super) const READ_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a pool.
const CACHE_BYTES_MAX: usize = 16 << 20;

/// All of a pool.
#[derive(Default)]
pub(super) struct ReadCache {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    locks: HashMap<GlobalAddress, Cached>,
    bytes: usize,
}

/// Which region was read, and under which fence. A later one of either is larger.
pub(super) type Version = (ObjectId, u64);

/// What was read under one lock.
struct Cached {
    version: Version,
    /// By offset in the region; a block may be short at the ends of a guard's range.
    blocks: BTreeMap<u64, Arc<[u8]>>,
}

impl ReadCache {
    /// Reads a range of a region under a lock that covers `range`, as far as possible from what is kept. `read` reads from homes.
    /// Says whether it was asked.
    pub fn read(
        &self,
        (lock, version): (GlobalAddress, Version),
        range: &Range<u64>,
        offset: u64,
        into: &mut [u8],
        read: impl FnOnce(u64, &mut [u8]) -> Result<(), PoolError>,
    ) -> Result<bool, PoolError> {
        if self.find(lock, version, offset, into) {
            return Ok(false);
        }
        let end = offset + into.len() as u64;
        let start = (offset / BLOCK_BYTES * BLOCK_BYTES).max(range.start);
        let stop = end.next_multiple_of(BLOCK_BYTES).min(range.end);
        // At most a read that is kept and two blocks.
        let mut bytes = vec![0; (stop - start) as usize];
        read(start, &mut bytes)?;
        into.copy_from_slice(&bytes[(offset - start) as usize..(end - start) as usize]);
        self.keep(lock, version, start, &bytes);
        Ok(true)
    }

    fn find(&self, lock: GlobalAddress, version: Version, offset: u64, into: &mut [u8]) -> bool {
        let state = self.lock();
        let Some(cached) = state.locks.get(&lock).filter(|cached| cached.version == version) else {
            return false;
        };
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let Some((start, block)) = cached.blocks.range(..=at).next_back() else { return false };
            let from = (at - start) as usize;
            if from >= block.len() {
                return false;
            }
            let now = (block.len() - from).min(into.len() - done);
            into[done..done + now].copy_from_slice(&block[from..from + now]);
            done += now;
        }
        true
    }

    fn keep(&self, lock: GlobalAddress, version: Version, start: u64, bytes: &[u8]) {
        let mut state = self.lock();
        if state.locks.get(&lock).is_some_and(|cached| cached.version > version) {
            // A late answer of a guard before.
            return;
        }
        if state.locks.get(&lock).is_some_and(|cached| cached.version < version) {
            state.remove(lock);
        }
        if state.bytes + bytes.len() > CACHE_BYTES_MAX {
            // Simple and rare: what is used is there again soon.
            *state = State::default();
        }
        let cached = state.locks.entry(lock).or_insert_with(|| Cached { version, blocks: BTreeMap::new() });
        let (mut added, mut removed) = (0, 0);
        let mut at = start;
        while at < start + bytes.len() as u64 {
            let end = (at / BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES).min(start + bytes.len() as u64);
            let block: Arc<[u8]> = bytes[(at - start) as usize..(end - start) as usize].into();
            added += block.len();
            // Those of a guard with a narrower range.
            let inside: Vec<u64> = cached.blocks.range(at + 1..end).map(|(from, _)| *from).collect();
            removed += inside
                .iter()
                .filter_map(|from| cached.blocks.remove(from))
                .map(|old| old.len())
                .sum::<usize>();
            removed += cached.blocks.insert(at, block).map_or(0, |before| before.len());
            at = end;
        }
        state.bytes = state.bytes + added - removed;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, lock: GlobalAddress) {
        if let Some(cached) = self.locks.remove(&lock) {
            self.bytes -= cached.blocks.values().map(|block| block.len()).sum::<usize>();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: u64 = 1 << 21;

    fn read(cache: &ReadCache, fence: u64, range: Range<u64>, offset: u64, bytes: usize) -> (bool, Vec<u8>) {
        let lock = GlobalAddress::new(LOCK).unwrap();
        let mut into = vec![0; bytes];
        let asked = cache.read((lock, (ObjectId(1), fence)), &range, offset, &mut into, |start, home| {
            // A home whose bytes say where they lie and under which fence they were read.
            let byte = |at: usize| (start + at as u64).wrapping_add(fence * 31) as u8;
            home.iter_mut().enumerate().for_each(|(at, into)| *into = byte(at));
            Ok(())
        });
        (asked.unwrap(), into)
    }

    #[test]
    fn the_same_fence_finds_what_was_read_and_a_higher_one_does_not() {
        let cache = ReadCache::default();
        let (asked, first) = read(&cache, 7, 0..20_000, 5000, 64);
        assert!(asked);
        assert_eq!(read(&cache, 7, 0..20_000, 5000, 64), (false, first));
        assert!(!read(&cache, 7, 0..20_000, 4096, 4096).0, "the whole block was read");
        assert!(read(&cache, 7, 0..20_000, 8000, 400).0, "the next block was not");
        let (asked, later) = read(&cache, 8, 0..20_000, 5000, 64);
        assert!(asked, "somebody may have written");
        assert_eq!(later[0], (5000u64 + 8 * 31) as u8);
        assert!(read(&cache, 7, 0..20_000, 5000, 64).0, "an older fence finds nothing of a newer one");
    }

    #[test]
    fn what_was_read_of_a_region_is_not_found_for_the_next_one_at_its_addresses() {
        let cache = ReadCache::default();
        let lock = GlobalAddress::new(LOCK).unwrap();
        let read_of = |object: u64, fence: u64| {
            let home = |_, home: &mut [u8]| {
                home.fill(object as u8);
                Ok(())
            };
            let mut into = [0; 4];
            cache.read((lock, (ObjectId(object), fence)), &(0..100), 0, &mut into, home).unwrap();
            into
        };
        assert_eq!(read_of(1, 7), [1; 4]);
        // Another home may keep the lock of the next one, and have given fewer fences.
        for fence in [7, 3, 9] {
            assert_eq!(read_of(2, fence), [2; 4]);
        }
        assert_eq!(read_of(1, 7), [1; 4]);
    }

    #[test]
    fn nothing_behind_the_ends_of_a_guard_is_read() {
        let cache = ReadCache::default();
        let range = 100..300;
        let (_, bytes) = read(&cache, 1, range.clone(), 150, 10);
        assert_eq!(bytes[0], (150 + 31) as u8);
        assert!(!read(&cache, 1, range, 100, 200).0);
        // A wider guard of the same lock reads what the narrow one did not.
        let (asked, bytes) = read(&cache, 1, 0..5000, 250, 100);
        assert!(asked);
        assert_eq!(bytes[99], (349 + 31) as u8);
    }

    #[test]
    fn random_reads_are_what_the_home_has() {
        let cache = ReadCache::default();
        let mut seed = 1u64;
        for _ in 0..2000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (offset, bytes) = ((seed >> 33) % 60_000, ((seed >> 20) % 5000) as usize + 1);
            let end = 70_000;
            let (_, found) =
                read(&cache, 3, 10..end, offset.max(10), bytes.min((end - offset.max(10)) as usize));
            for (at, byte) in found.iter().enumerate() {
                assert_eq!(*byte, (offset.max(10) + at as u64 + 93) as u8);
            }
        }
        assert!(cache.lock().bytes <= CACHE_BYTES_MAX);
    }
}
