//! Where everything lies in the books.

use crate::words::{Point, Words};
use hinterland_os::Coherence;

const MAGIC: u64 = u64::from_le_bytes(*b"HLKVBK01");
const HEAD_WORDS: usize = 512;
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
}

impl Geometry {
    /// The geometry of a store of `slots` slots (1 to 2^32 less 1) over `blocks_bytes` bytes, of which `expected` are
    /// used at once.
    pub fn new(slots: u64, expected: u64, blocks_bytes: u64) -> Self {
        let slots = slots.clamp(1, SLOTS_MAX);
        let buckets = expected.clamp(1, slots).div_ceil(BLOCKS_A_BUCKET).next_power_of_two();
        Self { slots, buckets, blocks_bytes, coherence: Coherence::Hardware }
    }

    /// The same for memory of another kind.
    #[must_use]
    pub const fn with_coherence(self, coherence: Coherence) -> Self {
        Self { coherence, ..self }
    }

    /// Writes it to the head of books of zeros, which are nowhere but in this host's cache.
    pub fn store(&self, words: &impl Words) {
        words.store(1, self.slots);
        words.store(2, self.buckets);
        words.store(3, self.blocks_bytes);
        words.store(4, u64::from(self.coherence == Coherence::Software));
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
        let geometry = Self { slots, buckets, blocks_bytes, coherence };
        (is_sound && buckets <= SLOTS_MAX && geometry.books_bytes() <= books_bytes).then_some(geometry)
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

    /// Length of the books in bytes.
    pub const fn books_bytes(&self) -> u64 {
        (HEAD_WORDS as u64 + self.buckets * BUCKET_WORDS as u64 + self.slots * HEADER_WORDS as u64) * 8
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

    /// First word of a slot's header.
    pub(crate) const fn header(&self, slot: u32) -> usize {
        HEAD_WORDS + self.buckets as usize * BUCKET_WORDS + slot as usize * HEADER_WORDS
    }
}
