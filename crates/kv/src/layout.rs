//! Where everything lies in the books.

use crate::index::PROBES_MAX;
use crate::words::{Point, Words};
use hinterland_os::Coherence;

const MAGIC: u64 = u64::from_le_bytes(*b"HLKVBK02");
const HEAD_WORDS: usize = 512;
/// Where the head says whether readers check what they copy.
const VERIFY: usize = 5;
/// Where the head counts the nodes that have written these books.
const LIVES: usize = 6;
/// Where the head says whether writers sum up what they copy.
const SUMS: usize = 7;
/// Smallest chunk of the blocks file: the table of chunks has a word for as many as there may be.
const CHUNK_BYTES_MIN: u64 = 4 << 20;
/// Words of a bucket: one cache line.
pub(crate) const BUCKET_WORDS: usize = 8;
/// Words of a header: two cache lines.
pub(crate) const HEADER_WORDS: usize = 16;
/// Blocks for each bucket of seven entries: the index is four sevenths full.
const BLOCKS_A_BUCKET: u64 = 4;
/// Most slots: what an entry of the index can name.
const SLOTS_MAX: u64 = u32::MAX as u64;

/// Numbers of slots and buckets, the length of the blocks file, and what keeps them coherent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    slots: u64,
    buckets: u64,
    blocks_bytes: u64,
    coherence: Coherence,
    verify: bool,
    sums: bool,
}

/// Why books of before are of no use to a node.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
pub enum Unfit {
    /// They are none, or another release made them.
    #[error("their books are of another release, or damaged")]
    Foreign,
    /// They are for another number of bytes.
    #[error("they lie in {0} bytes (hint: the --kv-capacity of before keeps them)")]
    Capacity(u64),
    /// They are for memory of another kind.
    #[error("they were kept with --coherence {0} (hint: the same keeps them)")]
    Coherence(Coherence),
    /// A file has another length than it had.
    #[error("a file was cut off: it has {found} bytes and not {needed}")]
    Length {
        /// Bytes that it has.
        found: u64,
        /// Bytes that it must have.
        needed: u64,
    },
}

impl Geometry {
    /// The geometry of a store of `slots` slots (1 to 2^32 less 1) over `blocks_bytes` bytes, of which `expected` are
    /// used at once.
    pub fn new(slots: u64, expected: u64, blocks_bytes: u64) -> Self {
        let slots = slots.clamp(1, SLOTS_MAX);
        let buckets = expected.clamp(1, slots).div_ceil(BLOCKS_A_BUCKET).next_power_of_two();
        Self { slots, buckets, blocks_bytes, coherence: Coherence::Hardware, verify: false, sums: false }
    }

    /// The same for memory of another kind.
    #[must_use]
    pub const fn with_coherence(self, coherence: Coherence) -> Self {
        Self { coherence, ..self }
    }

    /// The same for readers that check what they copy.
    #[must_use]
    pub const fn with_verify(self, verify: bool) -> Self {
        Self { verify, ..self }
    }

    /// The same for writers that give checksums with what they publish.
    #[must_use]
    pub const fn with_sums(self, sums: bool) -> Self {
        Self { sums, ..self }
    }

    /// Writes it to the head of books of zeros, which are nowhere but in this host's cache.
    pub fn store(&self, words: &impl Words) {
        words.store(1, self.slots);
        words.store(2, self.buckets);
        words.store(3, self.blocks_bytes);
        words.store(4, u64::from(self.coherence == Coherence::Software));
        words.store(VERIFY, u64::from(self.verify));
        words.store(SUMS, u64::from(self.sums));
        words.store(LIVES, 1);
        words.store(0, MAGIC);
        words.write_back(0, self.books_bytes() as usize / 8, Point::NewBooks);
        words.fence(Point::NewBooks);
    }

    /// Reads it from the head of books of `books_bytes` bytes; `None` if they are no books of this release, or too short
    /// for what they say.
    pub fn load(words: &impl Words, books_bytes: u64) -> Option<Self> {
        words.refresh(0, HEAD_WORDS, Point::HeadToRead);
        let (slots, buckets, blocks_bytes) = (words.load(1), words.load(2), words.load(3));
        let coherence = match words.load(4) {
            0 => Coherence::Hardware,
            1 => Coherence::Software,
            _ => return None,
        };
        let is_sound =
            words.load(0) == MAGIC && (1..=SLOTS_MAX).contains(&slots) && buckets.is_power_of_two();
        let (verify, sums) = (words.load(VERIFY) != 0, words.load(SUMS) != 0);
        let geometry = Self { slots, buckets, blocks_bytes, coherence, verify, sums };
        (is_sound && buckets <= SLOTS_MAX && geometry.books_bytes() <= books_bytes).then_some(geometry)
    }

    /// Whether books of `books_bytes` bytes that a node has left are laid out so; `verify` and `sums` may be others.
    ///
    /// # Errors
    /// [`Unfit`] says what is different.
    pub fn fits(&self, words: &impl Words, books_bytes: u64) -> Result<(), Unfit> {
        let left = Self::load(words, u64::MAX).ok_or(Unfit::Foreign)?;
        if left.coherence != self.coherence {
            return Err(Unfit::Coherence(left.coherence));
        }
        if left.blocks_bytes != self.blocks_bytes {
            return Err(Unfit::Capacity(left.blocks_bytes));
        }
        let same = Self { verify: self.verify, sums: self.sums, ..left } == *self;
        let needed = self.books_bytes();
        match books_bytes == needed {
            _ if !same => Err(Unfit::Foreign),
            true => Ok(()),
            false => Err(Unfit::Length { found: books_bytes, needed }),
        }
    }

    /// Counts one more node that writes these books; its number, from 1 on.
    #[cfg(not(loom))]
    pub(crate) fn begin_life(&self, words: &impl Words) -> u64 {
        let life = words.load(LIVES).saturating_add(1);
        words.store(LIVES, life);
        words.store(VERIFY, u64::from(self.verify));
        words.store(SUMS, u64::from(self.sums));
        words.write_back(0, HEAD_WORDS, Point::NewBooks);
        words.fence(Point::NewBooks);
        life
    }

    /// Slots.
    pub const fn slots(&self) -> u64 {
        self.slots
    }

    /// Length of the blocks file in bytes.
    pub const fn blocks_bytes(&self) -> u64 {
        self.blocks_bytes
    }

    /// Who keeps the memory coherent.
    pub const fn coherence(&self) -> Coherence {
        self.coherence
    }

    /// Whether readers check what they copy.
    pub const fn verify(&self) -> bool {
        self.verify
    }

    /// Whether writers give checksums with what they publish.
    pub const fn sums(&self) -> bool {
        self.sums
    }

    /// Length of the books in bytes.
    pub const fn books_bytes(&self) -> u64 {
        (self.chunk(0) as u64 + self.blocks_bytes.div_ceil(CHUNK_BYTES_MIN)) * 8
    }

    /// Most blocks that are kept: where every entry is in reach of every hash as many as there are, else three quarters of
    /// that, so that an entry always finds a place among the buckets in its reach.
    pub const fn blocks_max(&self) -> u64 {
        let entries = self.buckets * (BUCKET_WORDS as u64 - 1);
        if self.buckets <= PROBES_MAX { entries } else { entries / 4 * 3 }
    }

    /// Buckets of the index.
    pub const fn buckets(&self) -> u64 {
        self.buckets
    }

    /// The last bucket's number: buckets are a power of two, so it masks.
    pub(crate) const fn bucket_mask(&self) -> u64 {
        self.buckets - 1
    }

    /// First word of a bucket.
    pub(crate) const fn bucket(&self, bucket: u64) -> usize {
        HEAD_WORDS + bucket as usize * BUCKET_WORDS
    }

    /// The word with the bytes of a chunk's slots.
    pub(crate) const fn chunk(&self, chunk: u32) -> usize {
        HEAD_WORDS
            + self.buckets as usize * BUCKET_WORDS
            + self.slots as usize * HEADER_WORDS
            + chunk as usize
    }

    /// First word of a slot's header.
    pub(crate) const fn header(&self, slot: u32) -> usize {
        HEAD_WORDS + self.buckets as usize * BUCKET_WORDS + slot as usize * HEADER_WORDS
    }
}
