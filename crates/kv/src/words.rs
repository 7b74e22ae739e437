//! The memory of a store as words of 8 bytes and as bytes, coherent or not.

#[cfg(not(loom))]
use crate::sum::summed;
#[cfg(not(loom))]
use hinterland_os::copying::streaming_fence;
#[cfg(not(loom))]
use hinterland_os::{FlushedSlice, OsError, SharedSlice};

/// A block of this size and more is written past the caches: no cache holds a slot that is written, and who reads the block
/// reads it later. Below, the fence behind it costs more than that.
#[cfg(not(loom))]
const STREAMED_BLOCK_BYTES_MIN: usize = 4096;

/// Where a cache line is moved by hand, if the memory is not coherent. See
/// `docs/decisions/2026-11-22-software-coherence.md` for who does it when, and what would go wrong without it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Point {
    /// The node has made books.
    NewBooks,
    /// The node has made the file for blocks.
    NewBlocks,
    /// The node has made the file for touches.
    NewTouches,
    /// A client has mapped the books.
    HeadToRead,
    /// The node has retired a block.
    RetiredHeader,
    /// The node has written the key of a block.
    PublishedKey,
    /// The node has published a block.
    PublishedHeader,
    /// The node has counted an entry that went past a full bucket.
    PassedBucket,
    /// The node has written an entry of the index.
    PublishedEntry,
    /// The node has put one slot into an entry in place of another.
    SwappedEntry,
    /// The node has taken an entry out of the index.
    RemovedEntry,
    /// A client is about to search a bucket.
    BucketToRead,
    /// A client is about to read a header.
    HeaderToRead,
    /// A client has read a header.
    HeaderFound,
    /// A client is about to copy a block.
    BytesToRead,
    /// A client has copied a block.
    HeaderCopied,
    /// A client has stored a block.
    WrittenBytes,
    /// A client is about to look whether a slot is touched.
    TouchToLook,
    /// A client has touched a slot.
    Touched,
    /// The node is about to look whether a slot was touched.
    TouchToTake,
    /// The node has forgotten a touch.
    TouchTaken,
    /// A client is about to add to a counter.
    CountToAdd,
    /// A client has added to a counter.
    Counted,
    /// The node is about to look at counters.
    CountsToRead,
}

impl Point {
    /// Whether the node itself drops its copies here: of what clients write.
    pub const fn is_of_node_reading(self) -> bool {
        matches!(self, Self::TouchToTake | Self::CountsToRead)
    }

    /// All of them.
    pub const ALL: [Self; 24] = [
        Self::NewBooks,
        Self::NewBlocks,
        Self::NewTouches,
        Self::HeadToRead,
        Self::RetiredHeader,
        Self::PublishedKey,
        Self::PublishedHeader,
        Self::PassedBucket,
        Self::PublishedEntry,
        Self::SwappedEntry,
        Self::RemovedEntry,
        Self::BucketToRead,
        Self::HeaderToRead,
        Self::HeaderFound,
        Self::BytesToRead,
        Self::HeaderCopied,
        Self::WrittenBytes,
        Self::TouchToLook,
        Self::Touched,
        Self::TouchToTake,
        Self::TouchTaken,
        Self::CountToAdd,
        Self::Counted,
        Self::CountsToRead,
    ];
}

/// Memory that several processes reach, as words of 8 bytes each. Out of range reads zero and stores nothing: who uses it
/// has checked the geometry before.
///
/// On coherent memory the calls with a [`Point`] do nothing, and cost nothing.
pub trait Words {
    /// Loads a word. Acquire: pairs with the Release of [`store`](Self::store).
    fn load(&self, word: usize) -> u64;
    /// Stores a word. Release: pairs with the Acquire of [`load`](Self::load).
    fn store(&self, word: usize, value: u64);
    /// Starts to write `words` words from `word` on back to memory.
    #[inline(always)]
    fn write_back(&self, _word: usize, _words: usize, _point: Point) {}
    /// Makes what was written back, or streamed, arrive before anything that is stored or said later.
    #[inline(always)]
    fn fence(&self, _point: Point) {}
    /// Drops this host's copies of `words` words from `word` on: what is loaded later is as new as now, and not older than
    /// what was loaded before.
    #[inline(always)]
    fn refresh(&self, _word: usize, _words: usize, _point: Point) {}
    /// Hints that the line of a word will be loaded soon. Only coherent memory takes it.
    #[inline(always)]
    fn prefetch(&self, _word: usize) {}
}

/// The same with bytes: the file of blocks, and that of touches.
#[cfg(not(loom))]
pub trait Memory: Words {
    /// Whether lines are moved by hand; the calls with a [`Point`] do nothing if not.
    const BY_HAND: bool;
    /// Length in bytes.
    fn bytes(&self) -> usize;
    /// Whether somebody has cut off the file behind memory that is guarded against that.
    fn is_lost(&self) -> bool {
        false
    }
    /// Copies bytes out.
    ///
    /// # Errors
    /// [`OsError`] outside.
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OsError>;
    /// Copies bytes out that nobody reads soon. They count only after a [`streaming_fence`].
    ///
    /// # Errors
    /// [`OsError`] outside.
    #[inline]
    fn read_streaming(&self, offset: usize, into: &mut [u8]) -> Result<(), OsError> {
        self.read(offset, into)
    }
    /// Goes on with the crc32c of bytes without copying them, if that can be.
    ///
    /// # Errors
    /// [`OsError`] outside.
    #[inline]
    fn sum_in_place(&self, _offset: usize, _bytes: usize, _sum: u32) -> Result<Option<u32>, OsError> {
        Ok(None)
    }
    /// Copies a piece in.
    ///
    /// # Errors
    /// [`OsError`] outside.
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), OsError>;
    /// Adds to a word (wrapping). By hand only one of two hosts that do it at once is sure to count.
    ///
    /// # Errors
    /// [`OsError`] outside.
    fn add(&self, word: usize, addend: u64) -> Result<(), OsError>;
    /// Copies pieces in, one after the other, as far as they fit into `bytes` bytes of lines that nobody else uses, and makes
    /// them arrive in memory; returns how long they are together.
    ///
    /// # Errors
    /// [`OsError`] outside.
    #[inline]
    fn write_whole<'piece>(
        &self,
        offset: usize,
        bytes: usize,
        pieces: impl IntoIterator<Item = &'piece [u8]>,
        _point: Point,
    ) -> Result<usize, OsError> {
        write_pieces(offset, bytes, pieces, |place, piece| self.write(place, piece))
    }
    /// As [`write_whole`](Self::write_whole), and takes the crc32c of what is given.
    ///
    /// # Errors
    /// [`OsError`] outside.
    #[inline]
    fn write_whole_summed<'piece>(
        &self,
        offset: usize,
        bytes: usize,
        pieces: impl IntoIterator<Item = &'piece [u8]>,
        point: Point,
    ) -> Result<(usize, u32), OsError> {
        let mut sum = 0;
        let given = self.write_whole(offset, bytes, summed(pieces, &mut sum), point)?;
        Ok((given, sum))
    }
}

#[cfg(not(loom))]
impl Words for SharedSlice {
    #[inline]
    fn load(&self, word: usize) -> u64 {
        self.load_u64(word * 8).unwrap_or(0)
    }

    fn store(&self, word: usize, value: u64) {
        if let Err(error) = self.store_u64(word * 8, value) {
            // A slice that is too short or read-only is a defect of the caller, and nothing that goes on may rely on it.
            debug_assert!(false, "{error}");
        }
    }

    #[inline]
    fn prefetch(&self, word: usize) {
        Self::prefetch(self, word * 8);
    }
}

#[cfg(not(loom))]
impl Memory for SharedSlice {
    const BY_HAND: bool = false;

    fn is_lost(&self) -> bool {
        self.mapping().is_lost()
    }

    #[inline]
    fn bytes(&self) -> usize {
        self.len()
    }

    #[inline]
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OsError> {
        self.read_at(offset, into)
    }

    #[inline]
    fn read_streaming(&self, offset: usize, into: &mut [u8]) -> Result<(), OsError> {
        Self::read_streaming(self, offset, into)
    }

    #[inline]
    fn sum_in_place(&self, offset: usize, bytes: usize, sum: u32) -> Result<Option<u32>, OsError> {
        self.crc32c(offset, bytes, sum)
    }

    #[inline]
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), OsError> {
        self.write_at(offset, from)
    }

    #[inline]
    fn add(&self, word: usize, addend: u64) -> Result<(), OsError> {
        self.fetch_add_u64(word * 8, addend).map(drop)
    }

    #[inline]
    fn write_whole<'piece>(
        &self,
        offset: usize,
        bytes: usize,
        pieces: impl IntoIterator<Item = &'piece [u8]>,
        _point: Point,
    ) -> Result<usize, OsError> {
        if bytes < STREAMED_BLOCK_BYTES_MIN {
            return write_pieces(offset, bytes, pieces, |place, piece| self.write_at(place, piece));
        }
        let given = write_pieces(offset, bytes, pieces, |place, piece| self.write_streaming(place, piece));
        streaming_fence();
        given
    }

    #[inline]
    fn write_whole_summed<'piece>(
        &self,
        offset: usize,
        bytes: usize,
        pieces: impl IntoIterator<Item = &'piece [u8]>,
        point: Point,
    ) -> Result<(usize, u32), OsError> {
        let mut sum = 0;
        if bytes < STREAMED_BLOCK_BYTES_MIN {
            let given = self.write_whole(offset, bytes, summed(pieces, &mut sum), point)?;
            return Ok((given, sum));
        }
        let given = write_pieces(offset, bytes, pieces, |place, piece| {
            sum = match self.write_streaming_summed(place, piece, sum)? {
                Some(sum) => sum,
                None => write_summed(self, place, piece, sum)?,
            };
            Ok(())
        })?;
        streaming_fence();
        Ok((given, sum))
    }
}

/// Writes a piece and takes its sum, one after the other.
#[cfg(not(loom))]
fn write_summed(memory: &SharedSlice, offset: usize, piece: &[u8], mut sum: u32) -> Result<u32, OsError> {
    let mut at = offset;
    for small in summed([piece], &mut sum) {
        memory.write_streaming(at, small)?;
        at += small.len();
    }
    Ok(sum)
}

/// Copies pieces in, one after the other, as far as they fit into `bytes` bytes; returns how long they are together.
#[cfg(not(loom))]
#[inline]
fn write_pieces<'piece>(
    offset: usize,
    bytes: usize,
    pieces: impl IntoIterator<Item = &'piece [u8]>,
    mut write: impl FnMut(usize, &[u8]) -> Result<(), OsError>,
) -> Result<usize, OsError> {
    let mut given = 0;
    for piece in pieces {
        // Nothing behind the slot is touched: that is another block.
        if given + piece.len() <= bytes {
            write(offset.saturating_add(given), piece)?;
        }
        given += piece.len();
    }
    Ok(given)
}

#[cfg(not(loom))]
impl Words for FlushedSlice {
    #[inline]
    fn load(&self, word: usize) -> u64 {
        Words::load(self.slice(), word)
    }

    fn store(&self, word: usize, value: u64) {
        Words::store(self.slice(), word, value);
    }

    #[inline]
    fn write_back(&self, word: usize, words: usize, _point: Point) {
        Self::write_back(self, word * 8, words * 8);
    }

    #[inline]
    fn fence(&self, _point: Point) {
        Self::fence(self);
    }

    #[inline]
    fn refresh(&self, word: usize, words: usize, _point: Point) {
        Self::refresh(self, word * 8, words * 8);
    }
}

#[cfg(not(loom))]
impl Memory for FlushedSlice {
    const BY_HAND: bool = true;

    fn is_lost(&self) -> bool {
        self.slice().mapping().is_lost()
    }

    #[inline]
    fn bytes(&self) -> usize {
        self.slice().len()
    }

    #[inline]
    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OsError> {
        self.slice().read_at(offset, into)
    }

    #[inline]
    fn write(&self, offset: usize, from: &[u8]) -> Result<(), OsError> {
        self.slice().write_at(offset, from)
    }

    fn add(&self, word: usize, addend: u64) -> Result<(), OsError> {
        self.slice().fetch_add_u64(word * 8, addend).map(drop)
    }

    fn write_whole<'piece>(
        &self,
        offset: usize,
        bytes: usize,
        pieces: impl IntoIterator<Item = &'piece [u8]>,
        _point: Point,
    ) -> Result<usize, OsError> {
        let given = self.stream(offset, bytes, pieces)?;
        Self::fence(self);
        Ok(given)
    }
}
