//! A client's side: the three files, mapped.

use crate::header::{self, Block};
use crate::key::{BlockKey, Namespace};
use crate::layout::Geometry;
use crate::lookup::lookup;
use hinterland_os::{MapOptions, MemoryFile, OsError, SharedSlice};
use std::sync::Arc;

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// A file cannot be mapped.
    #[error(transparent)]
    Os(#[from] OsError),
    /// The books are none.
    #[error("the node's KV books cannot be read (hint: run the same release of program and node)")]
    Foreign,
    /// The pieces to write are not as long as the slot.
    #[error("{given} bytes were given for a block of {expected} (hint: they must be equal)")]
    Length {
        /// Bytes of the pieces.
        given: u64,
        /// Bytes that were reserved.
        expected: u64,
    },
}

/// A block that was found, until it is evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found(Block);

impl Found {
    /// Its length in bytes.
    pub const fn bytes(&self) -> u32 {
        self.0.bytes
    }

    /// Where it lay.
    pub const fn block(&self) -> &Block {
        &self.0
    }
}

/// The files of a store, mapped by one process.
pub struct View {
    books: SharedSlice,
    blocks: SharedSlice,
    touches: SharedSlice,
    geometry: Geometry,
}

impl View {
    /// Maps the files that the node handed out: books, blocks, touches.
    ///
    /// # Errors
    /// [`ViewError::Os`] if one cannot be mapped, [`ViewError::Foreign`] if they do not belong together.
    pub fn map(books: &MemoryFile, blocks: &MemoryFile, touches: &MemoryFile) -> Result<Self, ViewError> {
        let whole = |file: &MemoryFile, write: bool| -> Result<SharedSlice, OsError> {
            let options = MapOptions { write, ..MapOptions::default() };
            Ok(Arc::new(file.map(0, file.len() as usize, options)?).slice())
        };
        let books_slice = whole(books, false)?;
        let geometry = Geometry::load(&books_slice, books.len()).ok_or(ViewError::Foreign)?;
        if blocks.len() < geometry.blocks_bytes() || touches.len() < geometry.touches_bytes() {
            return Err(ViewError::Foreign);
        }
        Ok(Self {
            books: books_slice,
            blocks: whole(blocks, true)?,
            touches: whole(touches, true)?,
            geometry,
        })
    }

    /// The block of a key, if it is there now.
    #[inline]
    pub fn find(&self, namespace: Namespace, key: &BlockKey) -> Option<Found> {
        let found = lookup(&self.books, &self.geometry, namespace, key);
        // A length or place outside the file can only come of a broken node.
        let fits = |block: &Block| {
            block
                .offset
                .checked_add(u64::from(block.bytes))
                .is_some_and(|end| end <= self.blocks.len() as u64)
        };
        found.filter(fits).map(Found)
    }

    /// The keys of a namespace, in no order: those that are there all the while, and some of those that come or go meanwhile.
    pub fn keys(&self, namespace: Namespace) -> Vec<BlockKey> {
        // The number of slots fits their type.
        let slots = 0..self.geometry.slots() as u32;
        slots.filter_map(|slot| header::key(&self.books, &self.geometry, slot, namespace)).collect()
    }

    /// Copies a block into pieces, in their order, as much as they hold; whether what was copied is the block that was
    /// found. If not, it was evicted meanwhile, and the pieces hold nothing of use.
    #[inline]
    pub fn read(&self, found: &Found, into: &mut [&mut [u8]]) -> bool {
        let mut reading = self.reading(found, 0);
        for piece in into {
            if !reading.copy(piece) {
                break;
            }
        }
        reading.is_right()
    }

    /// Starts to copy a block from its byte `from` on, piece by piece.
    #[inline]
    pub fn reading(&self, found: &Found, from: u32) -> Reading<'_> {
        let Found(block) = *found;
        let start = block.offset as usize;
        let (at, end) = (start + from.min(block.bytes) as usize, start + block.bytes as usize);
        Reading { view: self, block, at, end, failed: false }
    }

    /// Writes pieces into a slot that the node has reserved for this process.
    ///
    /// # Errors
    /// [`ViewError::Length`] if they are not `bytes` long together; [`ViewError::Os`] outside the file.
    pub fn write(&self, offset: u64, bytes: u64, from: &[&[u8]]) -> Result<(), ViewError> {
        self.write_pieces(offset, bytes, from.iter().copied())
    }

    /// As [`write`](Self::write), of pieces that no list holds.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_pieces<'piece>(
        &self,
        offset: u64,
        bytes: u64,
        from: impl IntoIterator<Item = &'piece [u8]>,
    ) -> Result<(), ViewError> {
        header::before_writing();
        let mut given = 0;
        for piece in from {
            // Nothing behind the slot is touched: that is another block.
            if given + piece.len() as u64 <= bytes {
                self.blocks.write_at((offset as usize).saturating_add(given as usize), piece)?;
            }
            given += piece.len() as u64;
        }
        if given == bytes { Ok(()) } else { Err(ViewError::Length { given, expected: bytes }) }
    }

    /// Whether the block that was found is still the one that lies there: to be asked after its bytes were used in any way
    /// but by [`read`](Self::read). If so, it counts as read.
    pub fn is_still(&self, found: &Found) -> bool {
        let is_right = header::is_still(&self.books, &self.geometry, &found.0);
        if is_right {
            self.touch(found.0.slot);
        }
        is_right
    }

    /// Part of the blocks file.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`].
    pub fn blocks(&self, offset: u64, bytes: u64) -> Result<SharedSlice, OsError> {
        // Beyond the memory of this machine nothing is mapped, so a number that is cut off lies outside as well.
        let place = usize::try_from(offset).unwrap_or(usize::MAX);
        self.blocks.sub(place, usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Slots of the store.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) const fn touches(&self) -> &SharedSlice {
        &self.touches
    }

    #[inline]
    fn touch(&self, slot: u32) {
        let mut byte = [0];
        // A line that is touched already is not written, so that readers on several processors share it.
        let known = self.touches.read_at(slot as usize, &mut byte);
        if known.is_ok() && byte[0] == 0 {
            // Only a hint to the node.
            let _ = self.touches.write_at(slot as usize, &[1]);
        }
    }
}

/// A block that is being copied. What was copied counts only if it [`is_right`](Self::is_right) in the end.
pub struct Reading<'view> {
    view: &'view View,
    block: Block,
    at: usize,
    end: usize,
    failed: bool,
}

impl Reading<'_> {
    /// Copies what comes next into a piece, as much as it holds; whether there may be more.
    #[inline]
    pub fn copy(&mut self, piece: &mut [u8]) -> bool {
        let count = piece.len().min(self.end - self.at);
        self.failed |= self.view.blocks.read_at(self.at, &mut piece[..count]).is_err();
        self.at += count;
        self.at < self.end && !self.failed
    }

    /// Whether all that was copied is the block that was found. If not, it was evicted meanwhile.
    #[inline]
    pub fn is_right(&self) -> bool {
        let is_right = !self.failed && header::is_still(&self.view.books, &self.view.geometry, &self.block);
        if is_right {
            self.view.touch(self.block.slot);
        }
        is_right
    }
}
