//! What a client does with the memory of a store: find, copy out, copy in.

use crate::header::{self, Block};
use crate::key::{BlockKey, Namespace};
use crate::layout::Geometry;
use crate::lookup::{lookup, lookup_many};
use crate::sum::{read_summed, sum_over};
use crate::view::{Found, ViewError};
use crate::words::{Memory, Point};
use hinterland_os::copying::streaming_fence;
use std::sync::{Mutex, PoisonError};

/// Bytes whose old copies are dropped before it is known that they are wanted.
const AHEAD_BYTES_MAX: usize = 16 << 10;
/// Damaged blocks that are remembered until they are told of: one that is not is found again by the next reader.
const DAMAGED_MAX: usize = 64;

/// The three files of a store, in one kind of memory.
pub struct Client<M> {
    books: M,
    blocks: M,
    touches: M,
    geometry: Geometry,
    damaged: Mutex<Vec<Found>>,
}

impl<M: Memory> Client<M> {
    /// Takes books, blocks and touches.
    ///
    /// # Errors
    /// [`ViewError::Foreign`] if they do not belong together.
    pub fn new(books: M, blocks: M, touches: M) -> Result<Self, ViewError> {
        let geometry = Geometry::load(&books, books.bytes() as u64).ok_or(ViewError::Foreign)?;
        if (blocks.bytes() as u64) < geometry.blocks_bytes()
            || (touches.bytes() as u64) < geometry.touches_bytes()
        {
            return Err(ViewError::Foreign);
        }
        Ok(Self { books, blocks, touches, geometry, damaged: Mutex::default() })
    }

    /// See [`View::find`](crate::View::find).
    #[inline]
    pub fn find(&self, namespace: Namespace, key: &BlockKey) -> Option<Found> {
        self.fitting(lookup(&self.books, &self.geometry, namespace, key))
    }

    /// See [`View::find_many`](crate::View::find_many).
    #[inline]
    pub fn find_many(
        &self,
        namespace: Namespace,
        keys: &[BlockKey],
        mut take: impl FnMut(Option<Found>) -> bool,
    ) {
        if M::BY_HAND {
            // A line that comes early may be an old one, and is dropped anyhow before it is read.
            let _ = keys.iter().all(|key| take(self.find(namespace, key)));
        } else {
            let take = |block| take(self.fitting(block));
            lookup_many(&self.books, &self.geometry, namespace, keys, take);
        }
    }

    /// A length or place outside the file can only come of a broken node.
    #[inline]
    fn fitting(&self, found: Option<Block>) -> Option<Found> {
        let fits = |block: &Block| {
            block
                .offset
                .checked_add(u64::from(block.bytes))
                .is_some_and(|end| end <= self.blocks.bytes() as u64)
        };
        found.filter(fits).map(Found)
    }

    /// See [`View::read`](crate::View::read).
    #[inline]
    pub fn read(&self, found: &Found, into: &mut [&mut [u8]]) -> bool {
        let mut reading = self.reading(found, 0);
        if M::BY_HAND {
            reading.expect(into.iter().map(|piece| piece.len()).sum());
        }
        for piece in into {
            if !reading.copy(piece) {
                break;
            }
        }
        reading.is_right()
    }

    /// See [`View::reading`](crate::View::reading).
    #[inline]
    pub fn reading(&self, found: &Found, from: u32) -> Reading<'_, M> {
        let Found(block) = *found;
        let start = block.offset as usize;
        let (at, end) = (start + from.min(block.bytes) as usize, start + block.bytes as usize);
        Reading {
            client: self,
            block,
            at,
            end,
            fresh: at,
            ahead: 0,
            is_streaming: false,
            failed: false,
            is_whole: from == 0,
            sum: 0,
        }
    }

    /// See [`View::is_still`](crate::View::is_still).
    #[inline]
    pub fn is_still(&self, found: &Found) -> bool {
        let is_right = header::is_still(&self.books, &self.geometry, &found.0, Point::HeaderCopied);
        if is_right {
            self.touch(found.0.slot);
        }
        is_right
    }

    /// See [`View::is_of`](crate::View::is_of).
    pub fn is_of(&self, slot: u32, generation: u64) -> bool {
        let block = Block { slot, generation, offset: 0, bytes: 0 };
        header::is_still(&self.books, &self.geometry, &block, Point::HeaderCopied)
    }

    /// See [`View::keys`](crate::View::keys).
    pub fn keys(&self, namespace: Namespace) -> Vec<BlockKey> {
        // The number of slots fits their type.
        let slots = 0..self.geometry.slots() as u32;
        slots.filter_map(|slot| header::key(&self.books, &self.geometry, slot, namespace)).collect()
    }

    /// See [`View::write_pieces`](crate::View::write_pieces).
    ///
    /// # Errors
    /// As there.
    pub fn write_pieces<'piece>(
        &self,
        offset: u64,
        bytes: u64,
        from: impl IntoIterator<Item = &'piece [u8]>,
    ) -> Result<Option<u32>, ViewError> {
        header::before_writing();
        let (place, room, point) = (offset as usize, bytes as usize, Point::WrittenBytes);
        let (given, sum) = if self.geometry.sums() {
            let (given, sum) = self.blocks.write_whole_summed(place, room, from, point)?;
            (given, Some(sum))
        } else {
            (self.blocks.write_whole(place, room, from, point)?, None)
        };
        if given as u64 != bytes {
            return Err(ViewError::Length { given: given as u64, expected: bytes });
        }
        Ok(sum)
    }

    /// See [`View::sum`](crate::View::sum).
    pub fn sum(&self, offset: u64, bytes: u32) -> Option<u32> {
        let (at, bytes) = (offset as usize, bytes as usize);
        if M::BY_HAND {
            self.blocks.refresh(at / 8, bytes.div_ceil(8), Point::BytesToRead);
        }
        sum_over(&self.blocks, 0, at, bytes).ok()
    }

    /// See [`View::known_sum`](crate::View::known_sum).
    pub fn known_sum(&self, found: &Found) -> Option<u32> {
        header::sum(&self.books, &self.geometry, found.0.slot)
    }

    /// See [`View::is_lost`](crate::View::is_lost).
    pub fn is_lost(&self) -> bool {
        self.books.is_lost() || self.blocks.is_lost() || self.touches.is_lost()
    }

    /// See [`View::take_damaged`](crate::View::take_damaged).
    pub fn take_damaged(&self) -> Vec<Found> {
        std::mem::take(&mut *self.damaged.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Slots of the store.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) const fn blocks(&self) -> &M {
        &self.blocks
    }

    pub(crate) const fn touches(&self) -> &M {
        &self.touches
    }

    #[inline]
    fn touch(&self, slot: u32) {
        let (at, mut byte) = (slot as usize, [0]);
        self.touches.refresh(at / 8, 1, Point::TouchToLook);
        // A line that is touched already is not written, so that readers on several processors share it.
        let known = self.touches.read(at, &mut byte);
        if known.is_ok() && byte[0] == 0 {
            // Only a hint to the node.
            let _ = self.touches.write(at, &[1]);
            self.touches.write_back(at / 8, 1, Point::Touched);
        }
    }
}

/// A block that is being copied, see [`View::reading`](crate::View::reading).
pub struct Reading<'client, M> {
    client: &'client Client<M>,
    block: Block,
    at: usize,
    end: usize,
    /// Up to where this host's old copies were dropped, if that is done by hand.
    fresh: usize,
    /// How much more is dropped than what is wanted.
    ahead: usize,
    /// It is copied past the caches.
    is_streaming: bool,
    failed: bool,
    /// It is copied from its first byte on.
    is_whole: bool,
    /// crc32c of what was copied, if that is checked.
    sum: u32,
}

impl<M: Memory> Reading<'_, M> {
    /// It is one of many blocks that are copied now, which would not all stay in the caches.
    pub fn stream(&mut self) {
        self.is_streaming = true;
    }

    /// Copies what comes next into a piece, as much as it holds; whether there may be more.
    #[inline]
    pub fn copy(&mut self, piece: &mut [u8]) -> bool {
        let count = piece.len().min(self.end - self.at);
        if M::BY_HAND {
            self.expect(count);
        }
        let (blocks, piece) = (&self.client.blocks, &mut piece[..count]);
        if self.client.geometry.verify() {
            match read_summed(blocks, self.sum, self.at, piece) {
                Ok(sum) => self.sum = sum,
                Err(_) => self.failed = true,
            }
        } else if self.is_streaming {
            self.failed |= blocks.read_streaming(self.at, piece).is_err();
        } else {
            self.failed |= blocks.read(self.at, piece).is_err();
        }
        self.at += count;
        self.at < self.end && !self.failed
    }

    /// Whether all that was copied is the block that was found. If not, it was evicted meanwhile, or its bytes are not those
    /// that were published, if that is checked.
    #[inline]
    pub fn is_right(&self) -> bool {
        if self.is_streaming {
            streaming_fence();
        }
        let is_sound = !self.client.geometry.verify() || self.is_sound();
        !self.failed && is_sound && self.client.is_still(&Found(self.block))
    }

    /// Whether the block has the checksum that was published with it. One without has just come over a wire or from a disk,
    /// where it was checked.
    #[cold]
    #[inline(never)]
    fn is_sound(&self) -> bool {
        let Client { books, geometry, .. } = self.client;
        let Some(published) = header::sum(books, geometry, self.block.slot) else { return true };
        let sum = if self.is_whole && self.at == self.end {
            Some(self.sum)
        } else {
            self.client.sum(self.block.offset, self.block.bytes)
        };
        let is_sound = sum == Some(published);
        if !is_sound && header::is_still(books, geometry, &self.block, Point::HeaderCopied) {
            let mut damaged = self.client.damaged.lock().unwrap_or_else(PoisonError::into_inner);
            if damaged.len() < DAMAGED_MAX {
                damaged.push(Found(self.block));
            }
        }
        is_sound
    }

    /// Drops old copies of the next `bytes` bytes. Of many pieces each drops twice as many as the one before, so that not every
    /// one waits.
    fn expect(&mut self, bytes: usize) {
        let wanted = self.at.saturating_add(bytes).min(self.end);
        if wanted <= self.fresh {
            return;
        }
        let until = wanted.max(self.fresh.saturating_add(self.ahead).min(self.end));
        let first = self.fresh / 8;
        self.client.blocks.refresh(first, until.div_ceil(8) - first, Point::BytesToRead);
        self.ahead = (2 * (until - self.fresh)).min(AHEAD_BYTES_MAX);
        self.fresh = until;
    }
}
