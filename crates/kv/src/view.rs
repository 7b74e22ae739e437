//! A client's side: the three files, mapped.

use crate::client::{self, Client};
use crate::counters::Counts;
use crate::header::Block;
use crate::key::{BlockKey, Namespace};
use crate::layout::Geometry;
use hinterland_os::{Coherence, FlushedSlice, MapOptions, MemoryFile, OsError, SharedSlice};
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
pub struct Found(pub(crate) Block);

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
pub struct View(Kind);

/// What kind of memory they are: asked once a call.
enum Kind {
    Hardware(Client<SharedSlice>),
    Software(Box<Client<FlushedSlice>>),
}

impl View {
    /// Maps the files that the node handed out: books, blocks, touches.
    ///
    /// # Errors
    /// [`ViewError::Os`] if one cannot be mapped, or if the store's memory is not coherent and this processor cannot flush
    /// its caches; [`ViewError::Foreign`] if they do not belong together.
    pub fn map(books: &MemoryFile, blocks: &MemoryFile, touches: &MemoryFile) -> Result<Self, ViewError> {
        Self::map_with(books, blocks, touches, false)
    }

    /// The same, and survives that somebody cuts the files off: what is read then is a miss.
    ///
    /// # Errors
    /// As [`map`](Self::map).
    pub fn map_guarded(
        books: &MemoryFile,
        blocks: &MemoryFile,
        touches: &MemoryFile,
    ) -> Result<Self, ViewError> {
        Self::map_with(books, blocks, touches, true)
    }

    fn map_with(
        books: &MemoryFile,
        blocks: &MemoryFile,
        touches: &MemoryFile,
        guarded: bool,
    ) -> Result<Self, ViewError> {
        let whole = |file: &MemoryFile, write: bool| -> Result<SharedSlice, OsError> {
            let options = MapOptions { write, guarded, ..MapOptions::default() };
            Ok(Arc::new(file.map(0, file.len() as usize, options)?).slice())
        };
        let files = [whole(books, false)?, whole(blocks, true)?, whole(touches, true)?];
        // What kind it is stands in the memory itself, of which this host's cache may have an old copy.
        let head = FlushedSlice::new(files[0].clone());
        let geometry = match &head {
            Ok(head) => Geometry::load(head, books.len()),
            Err(_) => Geometry::load(&files[0], books.len()),
        };
        match geometry.ok_or(ViewError::Foreign)?.coherence() {
            Coherence::Hardware => {
                let [books, blocks, touches] = files;
                Ok(Self(Kind::Hardware(Client::new(books, blocks, touches)?)))
            }
            Coherence::Software => {
                let [_, blocks, touches] = files;
                let client = Client::new(head?, FlushedSlice::new(blocks)?, FlushedSlice::new(touches)?)?;
                Ok(Self(Kind::Software(Box::new(client))))
            }
        }
    }

    /// The block of a key, if it is there now.
    #[inline]
    pub fn find(&self, namespace: Namespace, key: &BlockKey) -> Option<Found> {
        match &self.0 {
            Kind::Hardware(client) => client.find(namespace, key),
            Kind::Software(client) => find_flushed(client, namespace, key),
        }
    }

    /// Finds the blocks of many keys, with less waiting for memory than one by one: what is there of each is given to `take`,
    /// in their order, until it says that this was enough.
    #[inline]
    pub fn find_many(
        &self,
        namespace: Namespace,
        keys: &[BlockKey],
        take: impl FnMut(Option<Found>) -> bool,
    ) {
        match &self.0 {
            Kind::Hardware(client) => client.find_many(namespace, keys, take),
            Kind::Software(client) => client.find_many(namespace, keys, take),
        }
    }

    /// The keys of a namespace, in no order: those that are there all the while, and some of those that come or go meanwhile.
    pub fn keys(&self, namespace: Namespace) -> Vec<BlockKey> {
        match &self.0 {
            Kind::Hardware(client) => client.keys(namespace),
            Kind::Software(client) => client.keys(namespace),
        }
    }

    /// Copies a block into pieces, in their order, as much as they hold; whether what was copied is the block that was
    /// found. If not, it was evicted meanwhile, or has other bytes than were published; the pieces hold nothing of use.
    #[inline]
    pub fn read(&self, found: &Found, into: &mut [&mut [u8]]) -> bool {
        match &self.0 {
            Kind::Hardware(client) => client.read(found, into),
            Kind::Software(client) => read_flushed(client, found, into),
        }
    }

    /// Starts to copy a block from its byte `from` on, piece by piece.
    #[inline]
    pub fn reading(&self, found: &Found, from: u32) -> Reading<'_> {
        Reading(match &self.0 {
            Kind::Hardware(client) => ReadingKind::Hardware(client.reading(found, from)),
            Kind::Software(client) => ReadingKind::Software(client.reading(found, from)),
        })
    }

    /// Writes pieces into a slot that the node has reserved for this process; the crc32c of the bytes, if the store's writers are
    /// to give it when they publish.
    ///
    /// # Errors
    /// [`ViewError::Length`] if they are not `bytes` long together; [`ViewError::Os`] outside the file.
    pub fn write(&self, offset: u64, bytes: u64, from: &[&[u8]]) -> Result<Option<u32>, ViewError> {
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
    ) -> Result<Option<u32>, ViewError> {
        match &self.0 {
            Kind::Hardware(client) => client.write_pieces(offset, bytes, from),
            Kind::Software(client) => client.write_pieces(offset, bytes, from),
        }
    }

    /// Adds to the counters of a namespace.
    #[inline]
    pub fn count(&self, number: u32, counts: Counts) {
        match &self.0 {
            Kind::Hardware(client) => client.count(number, counts),
            Kind::Software(client) => client.count(number, counts),
        }
    }

    /// Whether the block that was found is still the one that lies there: to be asked after its bytes were used in any way
    /// but by [`read`](Self::read). If so, it counts as read.
    pub fn is_still(&self, found: &Found) -> bool {
        match &self.0 {
            Kind::Hardware(client) => client.is_still(found),
            Kind::Software(client) => client.is_still(found),
        }
    }

    /// Whether a slot still has a generation: to be asked after its bytes were copied by the node. It does not count as read.
    pub fn is_of(&self, slot: u32, generation: u64) -> bool {
        match &self.0 {
            Kind::Hardware(client) => client.is_of(slot, generation),
            Kind::Software(client) => client.is_of(slot, generation),
        }
    }

    /// crc32c of bytes of the blocks file; `None` outside.
    pub fn sum(&self, offset: u64, bytes: u32) -> Option<u32> {
        match &self.0 {
            Kind::Hardware(client) => client.sum(offset, bytes),
            Kind::Software(client) => client.sum(offset, bytes),
        }
    }

    /// The checksum that was taken of a block's bytes when it was published, if it was taken by now. It is this block's if
    /// [`is_still`](Self::is_still) afterwards.
    pub fn known_sum(&self, found: &Found) -> Option<u32> {
        match &self.0 {
            Kind::Hardware(client) => client.known_sum(found),
            Kind::Software(client) => client.known_sum(found),
        }
    }

    /// Whether somebody has cut off a file of a [guarded](Self::map_guarded) view.
    pub fn is_lost(&self) -> bool {
        match &self.0 {
            Kind::Hardware(client) => client.is_lost(),
            Kind::Software(client) => client.is_lost(),
        }
    }

    /// Blocks that were read since this was asked last and had other bytes than were published, up to 64: the node is to
    /// be told of them.
    #[cold]
    pub fn take_damaged(&self) -> Vec<Found> {
        match &self.0 {
            Kind::Hardware(client) => client.take_damaged(),
            Kind::Software(client) => client.take_damaged(),
        }
    }

    /// Part of the blocks file, to be read after its block was found. What is stored there in memory that is not coherent stays
    /// in this host's cache: [`write`](Self::write) is for that.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`].
    pub fn blocks(&self, offset: u64, bytes: u64) -> Result<SharedSlice, OsError> {
        // Beyond the memory of this machine nothing is mapped, so a number that is cut off lies outside as well.
        let place = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        match &self.0 {
            Kind::Hardware(client) => client.blocks().sub(place, bytes),
            Kind::Software(client) => {
                let part = client.blocks().slice().sub(place, bytes)?;
                client.blocks().refresh(place, bytes);
                Ok(part)
            }
        }
    }

    /// Slots of the store.
    pub const fn geometry(&self) -> &Geometry {
        match &self.0 {
            Kind::Hardware(client) => client.geometry(),
            Kind::Software(client) => client.geometry(),
        }
    }
}

/// A block that is being copied. What was copied counts only if it [`is_right`](Self::is_right) in the end.
pub struct Reading<'view>(ReadingKind<'view>);

enum ReadingKind<'view> {
    Hardware(client::Reading<'view, SharedSlice>),
    Software(client::Reading<'view, FlushedSlice>),
}

impl Reading<'_> {
    /// It is one of many blocks that are copied now: they would not all stay in the caches, and are copied past them.
    #[inline]
    pub fn stream(&mut self) {
        match &mut self.0 {
            ReadingKind::Hardware(reading) => reading.stream(),
            ReadingKind::Software(reading) => reading.stream(),
        }
    }

    /// Copies what comes next into a piece, as much as it holds; whether there may be more.
    #[inline]
    pub fn copy(&mut self, piece: &mut [u8]) -> bool {
        match &mut self.0 {
            ReadingKind::Hardware(reading) => reading.copy(piece),
            ReadingKind::Software(reading) => reading.copy(piece),
        }
    }

    /// Whether all that was copied is the block that was found. If not, it was evicted meanwhile.
    #[inline]
    pub fn is_right(&self) -> bool {
        match &self.0 {
            ReadingKind::Hardware(reading) => reading.is_right(),
            ReadingKind::Software(reading) => reading.is_right(),
        }
    }
}

// Apart, so that the code for coherent memory is as short as without them.

#[cold]
#[inline(never)]
fn find_flushed(client: &Client<FlushedSlice>, namespace: Namespace, key: &BlockKey) -> Option<Found> {
    client.find(namespace, key)
}

#[cold]
#[inline(never)]
fn read_flushed(client: &Client<FlushedSlice>, found: &Found, into: &mut [&mut [u8]]) -> bool {
    client.read(found, into)
}
