//! A client's side: the three files, mapped.

use crate::header::{self, Block};
use crate::index;
use crate::key::{BlockKey, Namespace};
use crate::layout::Geometry;
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
        if blocks.len() < geometry.blocks_bytes() || touches.len() < geometry.slots() {
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
        let mut found = None;
        index::find(&self.books, &self.geometry, key.hash(namespace), |slot| {
            found = header::read(&self.books, &self.geometry, slot, namespace, key);
            found.is_some()
        });
        // A length or place outside the file can only come of a broken node.
        let fits = |block: &Block| {
            block
                .offset
                .checked_add(u64::from(block.bytes))
                .is_some_and(|end| end <= self.blocks.len() as u64)
        };
        found.filter(fits).map(Found)
    }

    /// Copies a block into pieces, in their order, as much as they hold; whether what was copied is the block that was
    /// found. If not, it was evicted meanwhile, and the pieces hold nothing of use.
    #[inline]
    pub fn read(&self, found: &Found, into: &mut [&mut [u8]]) -> bool {
        let Found(block) = found;
        let mut at = block.offset as usize;
        let end = at + block.bytes as usize;
        for piece in into {
            let count = piece.len().min(end - at);
            if self.blocks.read_at(at, &mut piece[..count]).is_err() {
                return false;
            }
            at += count;
        }
        let is_right = header::is_still(&self.books, &self.geometry, block);
        if is_right {
            self.touch(block.slot);
        }
        is_right
    }

    /// Writes pieces into a slot that the node has reserved for this process.
    ///
    /// # Errors
    /// [`ViewError::Length`] if they are not `bytes` long together; [`ViewError::Os`] outside the file.
    pub fn write(&self, offset: u64, bytes: u64, from: &[&[u8]]) -> Result<(), ViewError> {
        let given = from.iter().map(|piece| piece.len() as u64).sum();
        if given != bytes {
            return Err(ViewError::Length { given, expected: bytes });
        }
        header::before_writing();
        let mut at = offset as usize;
        for piece in from {
            self.blocks.write_at(at, piece)?;
            at += piece.len();
        }
        Ok(())
    }

    /// Slots of the store.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
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
