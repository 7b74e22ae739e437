//! Finding and copying blocks: no message to anybody.

use super::runs::Scatter;
use super::{KvCache, block_key};
use crate::PoolError;
use hinterland_kv::{BlockKey, Counts, Found, LOOKUPS_AT_ONCE, Reading};
use hinterland_proto::control::{KvRequest, KvSeen};

/// A batch of this many bytes and more is copied past the caches: they would lose its first blocks to its last.
const STREAMED_BATCH_BYTES_MIN: u64 = 16 << 20;

/// How often a block is looked for again that was replaced while it was read: who replaces takes longer than who reads.
const REPLACED_MAX: usize = 64;

/// A block to get: its key, and the pieces that it is copied into.
pub type Scattered<'bytes, 'pieces> = (&'bytes [u8], &'pieces mut [&'bytes mut [u8]]);

/// A block to get: its key, and the runs of fragments that it is copied into.
pub type ScatteredRuns<'bytes> = (&'bytes [u8], Scatter<'bytes>);

impl KvCache {
    /// The length of the block of a key, if it is there now. No message to anybody.
    ///
    /// # Errors
    /// [`PoolError::Refused`] for a key of no or more than 64 bytes.
    pub fn length(&self, key: &[u8]) -> Result<Option<u32>, PoolError> {
        let found = self.find(&block_key(key)?);
        self.count_asked(1, found.iter().len());
        Ok(found.map(|found| found.bytes()))
    }

    /// For each key, whether its block is there now.
    ///
    /// # Errors
    /// As [`length`](Self::length).
    pub fn exists(&self, keys: &[&[u8]]) -> Result<Vec<bool>, PoolError> {
        let mut all = Vec::with_capacity(keys.len());
        self.look_up(keys, |is_there| {
            all.push(is_there);
            true
        })?;
        self.count_asked(all.len(), all.iter().filter(|&&is_there| is_there).count());
        Ok(all)
    }

    /// How many of the keys, from the first on, are there now: the longest prefix that an engine need not compute.
    ///
    /// # Errors
    /// As [`length`](Self::length).
    ///
    /// ```no_run
    /// # use hinterland_pool::Pool;
    /// # let pool = Pool::connect(None)?;
    /// # let cache = pool.kv("a model")?;
    /// cache.put_prefix(&[(b"tokens 0-15", &[&[1; 64]]), (b"tokens 0-31", &[&[2; 64]])], None)?;
    /// let reused = cache.match_prefix(&[b"tokens 0-15", b"tokens 0-31", b"tokens 0-47"])?;
    /// assert!(reused <= 2);
    /// # Ok::<(), hinterland_pool::PoolError>(())
    /// ```
    pub fn match_prefix(&self, keys: &[&[u8]]) -> Result<usize, PoolError> {
        let mut found = 0;
        self.look_up(keys, |is_there| {
            found += usize::from(is_there);
            is_there
        })?;
        self.count_asked(keys.len(), found);
        Ok(found)
    }

    /// Copies a block into pieces, in their order; its length, or `None` if it is not there, or was evicted meanwhile: what
    /// the pieces hold then is of no use. Pieces that are shorter than the block get its start.
    ///
    /// # Errors
    /// As [`length`](Self::length).
    #[inline]
    pub fn get(&self, key: &[u8], into: &mut [&mut [u8]]) -> Result<Option<u32>, PoolError> {
        let found = self.read_latest(&block_key(key)?, |found| self.view.read(found, into));
        Ok(self.count_get(found.map(|found| found.bytes())))
    }

    /// Copies blocks into pieces; for each what [`get`](Self::get) says of it.
    ///
    /// # Errors
    /// As [`length`](Self::length).
    pub fn get_batch(&self, blocks: &mut [Scattered<'_, '_>]) -> Result<Vec<Option<u32>>, PoolError> {
        let wanted = blocks.iter().flat_map(|(_, into)| into.iter()).map(|piece| piece.len() as u64).sum();
        let streams = streams(wanted);
        blocks.iter_mut().map(|(key, into)| self.get_one_of(key, streams, into)).collect()
    }

    /// Copies one block of a batch, which is copied past the caches if it `streams`.
    pub(super) fn get_one_of(
        &self,
        key: &[u8],
        streams: bool,
        into: &mut [&mut [u8]],
    ) -> Result<Option<u32>, PoolError> {
        let mut fill = |reading: &mut Reading<'_>| {
            let _ = into.iter_mut().all(|piece| reading.copy(piece));
        };
        Ok(self.copy_by(&block_key(key)?, 0, streams, &mut fill))
    }

    /// Copies a block, from its byte `from` on, into runs of fragments; its length, or `None` as with [`get`](Self::get).
    ///
    /// # Errors
    /// As [`length`](Self::length).
    pub fn get_runs(&self, key: &[u8], from: u32, into: &mut Scatter<'_>) -> Result<Option<u32>, PoolError> {
        Ok(self.copy(&block_key(key)?, from, false, into))
    }

    /// Copies blocks into runs of fragments; for each what [`get`](Self::get) says of it.
    ///
    /// # Errors
    /// As [`length`](Self::length).
    pub fn get_runs_batch(&self, blocks: &mut [ScatteredRuns<'_>]) -> Result<Vec<Option<u32>>, PoolError> {
        let streams = streams(blocks.iter().map(|(_, into)| into.bytes()).sum());
        blocks.iter_mut().map(|(key, into)| Ok(self.copy(&block_key(key)?, 0, streams, into))).collect()
    }

    /// Copies parts of one block, each from a byte on into memory of its own; all of them are of the same block. Its length, or
    /// `None` as with [`get`](Self::get).
    ///
    /// # Errors
    /// As [`length`](Self::length).
    pub fn get_ranges(
        &self,
        key: &[u8],
        ranges: &mut [(u32, Scatter<'_>)],
    ) -> Result<Option<u32>, PoolError> {
        let found = self.read_latest(&block_key(key)?, |found| {
            let mut is_right = true;
            for (from, into) in ranges.iter_mut() {
                let mut reading = self.view.reading(found, *from);
                into.fill(|piece| reading.copy(piece));
                is_right &= reading.is_right();
            }
            is_right
        });
        Ok(self.count_get(found.map(|found| found.bytes())))
    }

    /// The keys of the namespace, in no order: those that are there all the while, and some of those that come or go
    /// meanwhile. It looks at every slot of the store: for tools and clean-up.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.view.keys(self.namespace).iter().map(BlockKey::to_vec).collect()
    }

    /// Tells of one key after the other whether its block is there, until `take` has enough. A key that is none is an error
    /// only if it is come to.
    fn look_up(&self, keys: &[&[u8]], mut take: impl FnMut(bool) -> bool) -> Result<(), PoolError> {
        let at_once = if self.looks_ahead { LOOKUPS_AT_ONCE } else { 1 };
        let mut group = Vec::with_capacity(keys.len().min(at_once));
        for keys in keys.chunks(at_once) {
            group.clear();
            let mut refused = None;
            for key in keys {
                match block_key(key) {
                    Ok(key) => group.push(key),
                    Err(error) => {
                        refused = Some(error);
                        break;
                    }
                }
            }
            let mut goes_on = true;
            self.find_many(&group, |found| {
                goes_on = take(found.is_some());
                goes_on
            });
            match refused {
                Some(error) if goes_on => return Err(error),
                _ if !goes_on => return Ok(()),
                _ => {}
            }
        }
        Ok(())
    }

    #[inline]
    pub(super) fn find(&self, key: &BlockKey) -> Option<Found> {
        self.view.find(self.namespace, key)
    }

    #[inline]
    pub(super) fn find_many(&self, keys: &[BlockKey], take: impl FnMut(Option<Found>) -> bool) {
        self.view.find_many(self.namespace, keys, take);
    }

    /// Copies a block into runs of fragments; `streams` if it is one of a large batch.
    pub(super) fn copy(
        &self,
        key: &BlockKey,
        from: u32,
        streams: bool,
        into: &mut Scatter<'_>,
    ) -> Option<u32> {
        self.copy_by(key, from, streams, &mut |reading| into.fill(|piece| reading.copy(piece)))
    }

    fn copy_by(
        &self,
        key: &BlockKey,
        from: u32,
        streams: bool,
        fill: &mut impl FnMut(&mut Reading<'_>),
    ) -> Option<u32> {
        let found = self.read_latest(key, |found| {
            let mut reading = self.view.reading(found, from);
            if streams {
                reading.stream();
            }
            fill(&mut reading);
            reading.is_right()
        });
        self.count_get(found.map(|found| found.bytes()))
    }

    /// Reads the block of a key, and where another one has taken its place meanwhile that one; `read` says whether what it read is right.
    #[inline]
    fn read_latest(&self, key: &BlockKey, mut read: impl FnMut(&Found) -> bool) -> Option<Found> {
        let found = self.find(key)?;
        if self.counts(read(&found)) { Some(found) } else { self.read_next(key, found, read) }
    }

    #[cold]
    fn read_next(
        &self,
        key: &BlockKey,
        mut before: Found,
        mut read: impl FnMut(&Found) -> bool,
    ) -> Option<Found> {
        for _ in 0..REPLACED_MAX {
            // The same once more is one whose bytes are wrong, or that leaves just now.
            let next = self.find(key).filter(|next| *next != before)?;
            if self.counts(read(&next)) {
                return Some(next);
            }
            before = next;
        }
        None
    }

    /// Whether what was read counts; if not, and because its bytes were others than those that were published, the node is told.
    #[inline]
    pub(super) fn counts(&self, is_right: bool) -> bool {
        if !is_right {
            self.tell_damage();
        }
        is_right
    }

    #[cold]
    fn tell_damage(&self) {
        let seen = |found: &Found| KvSeen { slot: found.block().slot, generation: found.block().generation };
        let blocks: Vec<KvSeen> = self.view.take_damaged().iter().map(seen).collect();
        if !blocks.is_empty() {
            // It is a miss in any case; a node that does not hear of it is told by the next reader.
            let _ = self.ask(KvRequest::Doubt { handle: self.handle, blocks });
        }
    }

    fn count_asked(&self, asked: usize, found: usize) {
        let counts = Counts { asked: asked as u64, found: found as u64, ..Counts::default() };
        self.view.count(self.counters, counts);
    }

    /// Counts a block that was to be read, and was if it has a length.
    #[inline]
    pub(super) fn count_get(&self, bytes: Option<u32>) -> Option<u32> {
        let (got, read_bytes) = bytes.map_or((0, 0), |bytes| (1, u64::from(bytes)));
        self.view.count(self.counters, Counts { gets: 1, got, read_bytes, ..Counts::default() });
        bytes
    }
}

/// Whether the blocks of a batch of so many bytes are copied past the caches.
pub(super) const fn streams(wanted: u64) -> bool {
    wanted >= STREAMED_BATCH_BYTES_MIN
}
