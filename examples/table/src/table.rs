//! Get, set and remove.
//!
//! A key may be in either of two buckets. A word of a bucket names an entry, which is written before the word is
//! swapped in and never changed after, so a reader finds a whole value or another word. When a word was swapped out its entry's
//! room is used again; who reads there at that moment sees that the bytes do not fit their hash, and looks again.
//!
//! A program remembers where it has found an entry, and next time reads it at once, without its bucket. So whoever is
//! about to swap a word out first marks the old entry as leaving: from then on nobody believes what they remember, while those who
//! go by the bucket still find it. The mark is swapped in for a state that no other entry has, so it cannot hit
//! another entry in the same room. The state is remembered, too: in that room there may be a newer entry of the same key, which is
//! written before its word is swapped in, and whoever believed it there would see a value before the others do.
//!
//! Who goes by the bucket has eight bits of the state in the word. An entry that has the same, and the same key, and came into the
//! room between a reader's two reads can be seen that little too early; a torn or wrong value never.
//!
//! Two programs that insert the same key at once may do so in two places. Therefore an entry comes in as *coming*, which
//! nobody sees; then its program looks for others of the key, gives way to one that stands in front of it, or makes its own
//! entry live and removes those behind it.

mod many;

use crate::heap::Heap;
use crate::layout::{
    Aim, BUCKET_BYTES, BUCKETS_AT, Entry, MAGIC, NEXT_AT, Place, RECORD_BYTES_MAX, SLOTS, STATE_AT, Stage,
    UNIT_BYTES, entry, state, units,
};
use crate::memory::Memory;
use hinterland_pool::PoolError;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// How often something is tried again that others came before.
const TRIES_MAX: usize = 1000;
/// Keys whose place is remembered: 2 MiB of places and states. A key that falls on another's takes its room.
const REMEMBERED_MAX: usize = 128 << 10;

/// Why a table does not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// The pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// What is there is no table.
    #[error("there is no table at this address (hint: make one with `hinterland-table create`)")]
    NoTable,
    /// No room for a table.
    #[error("{0} bytes are too few for a table (hint: give it a megabyte or more)")]
    TooSmall(u64),
    /// Key and value are too long.
    #[error("key and value have {0} bytes together, {RECORD_BYTES_MAX} are the most")]
    TooLong(usize),
    /// No room for another entry.
    #[error("the table is full (hint: make a larger one)")]
    Full,
    /// Others change the key all the time, or its entry is damaged.
    #[error("the key is changed all the time (hint: try again)")]
    Contended,
}

/// Counters of one program's use of a table.
#[derive(Debug, Default)]
pub struct Counts {
    /// Values that were read where they were remembered to be.
    pub remembered: AtomicU64,
    /// Values that were found through their bucket.
    pub looked_up: AtomicU64,
    /// Reads that met an entry whose room was used again.
    pub overtaken: AtomicU64,
}

/// A table, as one program uses it from any number of threads.
pub struct Table<M> {
    memory: M,
    memory_bytes: u64,
    buckets: u64,
    heap: Heap,
    /// Places of keys by their hash: whose a place is says the entry.
    remembered: Option<Box<[Memo]>>,
    next_tag: AtomicU64,
    /// What this program did.
    pub counts: Counts,
}

/// Where an entry was, 0 for nowhere, and the word of its state. Two threads may leave the place of one and the state of another,
/// which no entry is.
#[derive(Debug, Default)]
struct Memo {
    place: AtomicU64,
    state: AtomicU64,
}

/// A slot of a bucket that has an entry of the key.
#[derive(Clone, Copy, Debug)]
struct Match {
    slot: u64,
    place: Place,
    state: u64,
}

/// What a reader saw of a key in a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sight {
    Found,
    Nothing,
    /// Something was replaced while it was read.
    Overtaken,
}

impl<M: Memory> Table<M> {
    /// Makes an empty table in memory of zeros: a fourth of it for buckets.
    ///
    /// # Errors
    /// [`TableError::TooSmall`], [`TableError::Pool`].
    pub fn create(memory: M, bytes: u64) -> Result<Self, TableError> {
        let fitting = bytes.saturating_sub(BUCKETS_AT) / 4 / BUCKET_BYTES;
        if fitting < 16 {
            return Err(TableError::TooSmall(bytes));
        }
        let buckets = 1_u64 << fitting.ilog2();
        memory.write(8, &buckets.to_le_bytes())?;
        memory.write(16, &bytes.to_le_bytes())?;
        memory.write(NEXT_AT, &(BUCKETS_AT + buckets * BUCKET_BYTES).to_le_bytes())?;
        memory.write(0, &MAGIC.to_le_bytes())?;
        Self::open(memory, true)
    }

    /// Opens a table. `remembers` whether places of keys are remembered.
    ///
    /// # Errors
    /// [`TableError::NoTable`], [`TableError::Pool`].
    pub fn open(memory: M, remembers: bool) -> Result<Self, TableError> {
        let mut header = [0; 24];
        memory.read(0, &mut header)?;
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().unwrap_or_default());
        let (buckets, memory_bytes) = (word(8), word(16));
        // Any program may have written there.
        let end = buckets.checked_mul(BUCKET_BYTES).and_then(|bytes| bytes.checked_add(BUCKETS_AT));
        if word(0) != MAGIC || !buckets.is_power_of_two() || end.is_none_or(|end| end > memory_bytes) {
            return Err(TableError::NoTable);
        }
        Ok(Self {
            memory,
            memory_bytes,
            buckets,
            heap: Heap::default(),
            remembered: remembers.then(|| (0..REMEMBERED_MAX).map(|_| Memo::default()).collect()),
            // Programs start anywhere in 62 bits: none meets the tag of another in the same room.
            next_tag: AtomicU64::new(RandomState::new().hash_one(buckets)),
            counts: Counts::default(),
        })
    }

    /// Appends the value of a key; whether there is one.
    ///
    /// # Errors
    /// [`TableError`].
    pub fn get(&self, key: &[u8], into: &mut Vec<u8>) -> Result<bool, TableError> {
        let aim = Aim::of(key, self.buckets);
        if let Some((place, state)) = self.recall(aim) {
            let mut bytes = vec![0; (place.units() * UNIT_BYTES) as usize];
            self.memory.read(place.offset(), &mut bytes)?;
            let found = Entry::parse(place.offset(), &bytes);
            if let Some(found) = found.filter(|found| found.key == key && found.state == state) {
                into.extend_from_slice(found.value);
                count(&self.counts.remembered);
                return Ok(true);
            }
            self.forget(aim);
        }
        self.look_up(aim, key, into)
    }

    /// Finds a key through its buckets, and appends its value; whether there is one.
    fn look_up(&self, aim: Aim, key: &[u8], into: &mut Vec<u8>) -> Result<bool, TableError> {
        count(&self.counts.looked_up);
        for _ in 0..TRIES_MAX {
            let mut words = [[0; SLOTS]; 2];
            let mut is_sure = true;
            for (words, bucket) in words.iter_mut().zip(aim.buckets) {
                // Most keys are in their first bucket: then the second is not read at all.
                *words = self.bucket(bucket)?;
                match self.in_bucket(words, bucket, aim, key, into)? {
                    Sight::Found => return Ok(true),
                    Sight::Nothing => {}
                    Sight::Overtaken => is_sure = false,
                }
            }
            if !is_sure {
                count(&self.counts.overtaken);
                continue;
            }
            // Meanwhile the key may have come into one and gone from the other.
            let now = [self.bucket(aim.buckets[0])?, self.bucket(aim.buckets[1])?];
            if now == words {
                return Ok(false);
            }
        }
        Err(TableError::Contended)
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// [`TableError`]; after [`TableError::Pool`] it may be set or not.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<(), TableError> {
        let record_bytes = key.len() + value.len();
        if record_bytes > RECORD_BYTES_MAX {
            return Err(TableError::TooLong(record_bytes));
        }
        let aim = Aim::of(key, self.buckets);
        for _ in 0..TRIES_MAX {
            let (matches, words) = self.matches(aim, key)?;
            let done = match matches.split_first() {
                Some((old, others)) => self.replace(aim, key, value, old, others)?,
                None => self.insert(aim, key, value, &words)?,
            };
            if done {
                return Ok(());
            }
        }
        Err(TableError::Contended)
    }

    /// Removes a key; whether it was there.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn remove(&self, key: &[u8]) -> Result<bool, TableError> {
        let aim = Aim::of(key, self.buckets);
        self.forget(aim);
        let mut was_there = false;
        for _ in 0..TRIES_MAX {
            let (matches, _) = self.matches(aim, key)?;
            let visible: Vec<_> =
                matches.iter().filter(|found| found.state & 3 != Stage::Coming as u64).collect();
            if visible.is_empty() {
                return Ok(was_there);
            }
            // From behind, so that one that was about to be removed is not found again.
            let mut is_gone = true;
            for found in visible.into_iter().rev() {
                is_gone &= self.take_out(found)?;
            }
            was_there |= is_gone;
            if is_gone {
                return Ok(true);
            }
        }
        Err(TableError::Contended)
    }

    /// Puts a new entry in place of the first that was found, and removes the others; whether nobody came before.
    fn replace(
        &self,
        aim: Aim,
        key: &[u8],
        value: &[u8],
        old: &Match,
        others: &[Match],
    ) -> Result<bool, TableError> {
        let (place, tag) = self.write_entry(aim, Stage::Live, key, value)?;
        let mut is_marked = self.mark_leaving(old)?;
        for other in others {
            is_marked &= self.mark_leaving(other)?;
        }
        if !is_marked || self.memory.swap(old.slot, old.place.0, place.0)? != old.place.0 {
            self.heap.give(place.offset(), place.units());
            return Ok(false);
        }
        for other in others {
            self.take_out(other)?;
        }
        self.heap.give(old.place.offset(), old.place.units());
        self.remember(aim, place, state(tag, Stage::Live));
        Ok(true)
    }

    /// Puts an entry of a new key into an empty slot; whether it is in the table.
    fn insert(
        &self,
        aim: Aim,
        key: &[u8],
        value: &[u8],
        words: &[[u64; SLOTS]; 2],
    ) -> Result<bool, TableError> {
        let used = |bucket: &[u64; SLOTS]| bucket.iter().filter(|&&word| word != 0).count();
        // The first bucket is the one that is looked at first: the second takes what would fill it.
        let choice = usize::from(used(&words[0]) > SLOTS * 3 / 4 && used(&words[1]) < used(&words[0]));
        let Some(index) = words[choice].iter().position(|&word| word == 0) else {
            return Err(TableError::Full);
        };
        let slot = aim.buckets[choice] + 8 * index as u64;
        let (place, tag) = self.write_entry(aim, Stage::Coming, key, value)?;
        if self.memory.swap(slot, 0, place.0)? != 0 {
            self.heap.give(place.offset(), place.units());
            return Ok(false);
        }
        let (matches, _) = self.matches(aim, key)?;
        let Some(own) = matches.iter().position(|found| found.slot == slot && found.place == place) else {
            // Somebody has put the next value in its place already.
            return Ok(true);
        };
        if own > 0 {
            // Another one stands in front: that one is replaced instead.
            if self.memory.swap(slot, place.0, 0)? == place.0 {
                self.heap.give(place.offset(), place.units());
                return Ok(false);
            }
            return Ok(true);
        }
        for other in &matches[1..] {
            self.mark_leaving(other)?;
        }
        self.memory.swap(place.offset() + STATE_AT, state(tag, Stage::Coming), state(tag, Stage::Live))?;
        for other in &matches[1..] {
            self.take_out(other)?;
        }
        self.remember(aim, place, state(tag, Stage::Live));
        Ok(true)
    }

    /// Takes an entry out of its slot; whether it was still there.
    fn take_out(&self, found: &Match) -> Result<bool, TableError> {
        let is_ours =
            self.mark_leaving(found)? && self.memory.swap(found.slot, found.place.0, 0)? == found.place.0;
        if is_ours {
            self.heap.give(found.place.offset(), found.place.units());
        }
        Ok(is_ours)
    }

    /// Lets nobody believe any more that an entry is where they remember it; whether it is still that entry.
    fn mark_leaving(&self, found: &Match) -> Result<bool, TableError> {
        let leaving = found.state | Stage::Leaving as u64;
        let before = self.memory.swap(found.place.offset() + STATE_AT, found.state, leaving)?;
        // With another state it has changed since it was read, or gone, and its room may be another entry's.
        Ok(before == found.state || before == leaving)
    }

    fn write_entry(
        &self,
        aim: Aim,
        stage: Stage,
        key: &[u8],
        value: &[u8],
    ) -> Result<(Place, u64), TableError> {
        let units = units(key.len() + value.len());
        let offset = self.heap.take(&self.memory, self.memory_bytes, units)?;
        // Relaxed: all that counts is that no number is given twice.
        let tag = self.next_tag.fetch_add(1, Ordering::Relaxed);
        let tag = tag << 2 >> 2;
        let written = self.memory.write(offset, &entry(offset, tag, stage, key, value));
        if let Err(error) = written {
            self.heap.give(offset, units);
            return Err(error.into());
        }
        Ok((Place::new(aim.fingerprint, tag, offset, units), tag))
    }

    /// Entries of a key, in the order of their slots, and all words of its buckets.
    fn matches(&self, aim: Aim, key: &[u8]) -> Result<(Vec<Match>, [[u64; SLOTS]; 2]), TableError> {
        'again: for _ in 0..TRIES_MAX {
            let words = [self.bucket(aim.buckets[0])?, self.bucket(aim.buckets[1])?];
            let mut found = Vec::new();
            let buckets = if aim.buckets[0] == aim.buckets[1] { 1 } else { 2 };
            for (bucket, words) in aim.buckets.iter().zip(&words).take(buckets) {
                for (index, &word) in words.iter().enumerate() {
                    let (place, slot) = (Place(word), bucket + 8 * index as u64);
                    if word == 0 || place.fingerprint() != aim.fingerprint {
                        continue;
                    }
                    let mut bytes = vec![0; (place.units() * UNIT_BYTES) as usize];
                    self.memory.read(place.offset(), &mut bytes)?;
                    match Entry::parse(place.offset(), &bytes).filter(|entry| entry.is_of(place)) {
                        Some(entry) if entry.key == key => {
                            found.push(Match { slot, place, state: entry.state })
                        }
                        Some(entry) if self.belongs(entry.key, *bucket, aim) => {}
                        _ => {
                            count(&self.counts.overtaken);
                            continue 'again;
                        }
                    }
                }
            }
            return Ok((found, words));
        }
        Err(TableError::Contended)
    }

    /// Looks for a key in the words of a bucket, and appends its value.
    fn in_bucket(
        &self,
        words: &[u64; SLOTS],
        bucket: u64,
        aim: Aim,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<Sight, TableError> {
        let mut sight = Sight::Nothing;
        for place in words.iter().map(|&word| Place(word)) {
            if place.0 == 0 || place.fingerprint() != aim.fingerprint {
                continue;
            }
            let mut bytes = vec![0; (place.units() * UNIT_BYTES) as usize];
            self.memory.read(place.offset(), &mut bytes)?;
            match Entry::parse(place.offset(), &bytes).filter(|found| found.is_of(place)) {
                Some(found) if found.key == key && found.stage() != Some(Stage::Coming) => {
                    into.extend_from_slice(found.value);
                    if found.stage() == Some(Stage::Live) {
                        self.remember(aim, place, found.state);
                    }
                    return Ok(Sight::Found);
                }
                Some(found) if found.key == key || self.belongs(found.key, bucket, aim) => {}
                // Its room has been used again for something else.
                _ => sight = Sight::Overtaken,
            }
        }
        Ok(sight)
    }

    /// Whether a key could be in a bucket under the same fingerprint.
    fn belongs(&self, key: &[u8], bucket: u64, aim: Aim) -> bool {
        let other = Aim::of(key, self.buckets);
        other.fingerprint == aim.fingerprint && other.buckets.contains(&bucket)
    }

    fn bucket(&self, offset: u64) -> Result<[u64; SLOTS], TableError> {
        let mut bytes = [0; BUCKET_BYTES as usize];
        self.memory.read(offset, &mut bytes)?;
        let mut words = [0; SLOTS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Ok(words)
    }

    /// Where the entry of a key was, and the word of its state.
    fn recall(&self, aim: Aim) -> Option<(Place, u64)> {
        // Relaxed: nothing is ordered by it, what is read at a place says itself what it is.
        let memo = self.memo(aim)?;
        let (place, state) = (Place(memo.place.load(Ordering::Relaxed)), memo.state.load(Ordering::Relaxed));
        (place.0 != 0 && place.fingerprint() == aim.fingerprint).then_some((place, state))
    }

    fn remember(&self, aim: Aim, place: Place, state: u64) {
        if let Some(memo) = self.memo(aim) {
            // Relaxed: as above.
            memo.place.store(place.0, Ordering::Relaxed);
            memo.state.store(state, Ordering::Relaxed);
        }
    }

    fn forget(&self, aim: Aim) {
        self.remember(aim, Place(0), 0);
    }

    /// Where the place of a key is remembered.
    fn memo(&self, aim: Aim) -> Option<&Memo> {
        let remembered = self.remembered.as_ref()?;
        // The middle of the hash: its ends choose bucket and fingerprint.
        remembered.get((aim.hash >> 24) as usize % REMEMBERED_MAX)
    }
}

/// Counts one more.
fn count(counter: &AtomicU64) {
    // Relaxed: nothing is ordered by it.
    counter.fetch_add(1, Ordering::Relaxed);
}
