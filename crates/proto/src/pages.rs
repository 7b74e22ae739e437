//! What a node and its programs share about the pages of a region: a word for each page, slots, and samples of accesses.
//!
//! A *word* (8 bytes, little-endian, one for each page of a region, in a file that programs map read-only) says where the page
//! lies:
//!
//! | bits | meaning |
//! | --- | --- |
//! | 0 | here: the node has the page |
//! | 1 | moving: nobody may touch it for the moment |
//! | 2 | fence: who accesses it must run a full barrier between its slot and this word |
//! | 3 | shared: here, and other nodes have copies: it is read as ever, and written only after they were taken back |
//! | 4 | copy: the node has a copy, which may be read until the time that stands behind the words |
//! | 5..8 | zero |
//! | 8..24 | where it lies otherwise: place in the list of homes, from 1; 0 if the node does not know |
//! | 24..32 | zero |
//! | 32..64 | low half of the epoch under which the page came to its home |
//!
//! A word of zero says nothing: ask the node. Behind the words, 8 bytes after the next multiple of 4096 bytes, stands until when copies of
//! this region may be read, in nanoseconds of `CLOCK_BOOTTIME` ([`copies_until_at`]). A reader looks at the clock after it
//! has read, while its slot names the page: what it read later than that does not count. A *slot* (1024 bytes, [`SLOTS`] of them in a file of the session) belongs to one
//! thread of a program:
//!
//! | offset | size | field | meaning |
//! | --- | --- | --- | --- |
//! | 0 | 8 | `page` | number of the page that the thread is in, plus 1; 0 for none |
//! | 8 | 56 | `zero` | the rest of the cache line |
//! | 64 | 8 | `count` | samples that were ever written |
//! | 72 | 8 | `zero` | |
//! | 80 | 944 | `samples` | the latest 118 samples, the n-th at place n modulo 118 |
//!
//! A sample is 8 bytes: the page's number in bits 0 to 24, whether it was written to in bit 31, and how many accesses the
//! sample stands for in bits 32 to 47.

use hinterland_types::PageNumber;

/// Threads of one session that can access pages without asking their node.
pub const SLOTS: usize = 128;
/// Bytes of a slot with its samples.
pub const SLOT_BYTES: usize = 1024;
/// Bytes of the file of a session.
pub const SLOTS_BYTES: usize = SLOTS * SLOT_BYTES;
/// Where the count of samples stands in a slot.
pub const SAMPLE_COUNT_AT: usize = 64;
/// Where the samples stand in a slot.
pub const SAMPLES_AT: usize = 80;
/// Samples that a slot keeps.
pub const SAMPLES: u64 = ((SLOT_BYTES - SAMPLES_AT) / 8) as u64;
/// Where it stands, in a file of words, until when copies may be read. The 8 bytes before it stay zero: programs that were linked with an
/// earlier library compare them with a clock that stands still while the machine is suspended.
pub const fn copies_until_at(pages: u64) -> usize {
    copies_end(pages) + 8
}

const fn copies_end(pages: u64) -> usize {
    // A region has at most 2^25 pages: 64-bit only.
    (pages as usize * 8).next_multiple_of(4096)
}

/// Bytes of the file of words of a region.
pub const fn words_bytes(pages: u64) -> usize {
    copies_end(pages) + 4096
}

/// Homes that words can name.
pub const WORD_HOMES_MAX: usize = u16::MAX as usize;

const HERE: u64 = 1;
const MOVING: u64 = 1 << 1;
const FENCE: u64 = 1 << 2;
const SHARED: u64 = 1 << 3;
const COPY: u64 = 1 << 4;
const HOME_SHIFT: u32 = 8;
const EPOCH_SHIFT: u32 = 32;

/// What a node says of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageWord(pub u64);

impl PageWord {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self(0);

    /// The node has the page.
    pub const fn here(epoch: u64) -> Self {
        Self(HERE | epoch << EPOCH_SHIFT)
    }

    /// Another node has it: the one at this place of the list of homes.
    pub const fn elsewhere(home: usize, epoch: u64) -> Self {
        Self(((home as u64 + 1) & 0xffff) << HOME_SHIFT | epoch << EPOCH_SHIFT)
    }

    /// The same, and nobody may touch it.
    pub const fn moving(self) -> Self {
        Self(self.0 | MOVING)
    }

    /// The same, and accesses fence themselves.
    pub const fn fenced(self) -> Self {
        Self(self.0 | FENCE)
    }

    /// The same page, of which other nodes have copies.
    pub const fn shared(self) -> Self {
        Self(self.0 | SHARED)
    }

    /// The same page, of which no other node has a copy.
    pub const fn unshared(self) -> Self {
        Self(self.0 & !SHARED)
    }

    /// The same page elsewhere, with a copy of it here.
    pub const fn copied(self) -> Self {
        Self(self.0 | COPY)
    }

    /// Whether memory of the node may be read and written, by those who fence if [`needs_fence`](Self::needs_fence).
    #[inline]
    pub const fn is_here(self) -> bool {
        self.0 & (HERE | MOVING | SHARED) == HERE
    }

    /// Whether memory of the node may be used for a read or a write, by those who fence if they must.
    #[inline]
    pub const fn is_fit(self, is_write: bool) -> bool {
        let asked = if is_write { HERE | MOVING | SHARED } else { HERE | MOVING };
        self.0 & asked == HERE
    }

    /// The same without a fence.
    #[inline]
    pub const fn is_plainly_fit(self, is_write: bool) -> bool {
        let asked = if is_write { HERE | MOVING | FENCE | SHARED } else { HERE | MOVING | FENCE };
        self.0 & asked == HERE
    }

    /// The same page elsewhere, without a copy of it here.
    pub const fn uncopied(self) -> Self {
        Self(self.0 & !COPY)
    }

    /// Whether other nodes have copies of the page, which is here.
    pub const fn is_shared(self) -> bool {
        self.0 & (HERE | SHARED) == HERE | SHARED
    }

    /// Whether a copy of the page is here, which may be read until the time behind the words.
    #[inline]
    pub const fn is_copy(self) -> bool {
        self.0 & (HERE | MOVING | COPY) == COPY
    }

    /// Whether the node has the page, usable or not.
    pub const fn is_held(self) -> bool {
        self.0 & HERE != 0
    }

    /// Whether a move is going on.
    pub const fn is_moving(self) -> bool {
        self.0 & MOVING != 0
    }

    /// Whether an access must run a full barrier between its slot and this word.
    pub const fn needs_fence(self) -> bool {
        self.0 & FENCE != 0
    }

    /// The place of its home in the list of homes, if it lies elsewhere.
    pub const fn home(self) -> Option<usize> {
        let place = (self.0 >> HOME_SHIFT) as u16 as usize;
        if place == 0 || self.is_held() || self.is_moving() { None } else { Some(place - 1) }
    }

    /// Low half of the epoch under which the page came to its home.
    pub const fn epoch(self) -> u32 {
        (self.0 >> EPOCH_SHIFT) as u32
    }
}

/// Accesses of one thread to one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AccessSample {
    /// The page.
    pub page: PageNumber,
    /// Whether it was written to.
    pub is_write: bool,
    /// For how many accesses the sample stands.
    pub weight: u16,
}

impl AccessSample {
    /// As it stands in a slot.
    pub fn to_word(self) -> u64 {
        u64::from(self.page.raw()) | u64::from(self.is_write) << 31 | u64::from(self.weight) << 32
    }

    /// Reads what a program wrote, which may be anything; `None` if it makes no sense.
    pub fn from_word(word: u64) -> Option<Self> {
        // The masks keep what the fields have.
        let page = PageNumber::new((word & 0x7fff_ffff) as u32)?;
        let weight = (word >> 32) as u16;
        (weight > 0 && word >> 48 == 0).then_some(Self { page, is_write: word & 1 << 31 != 0, weight })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_word_says_one_thing() {
        assert!(PageWord::here(7).is_plainly_fit(true) && PageWord::here(7).home().is_none());
        let shared = PageWord::here(7).shared();
        assert!(shared.is_fit(false) && !shared.is_fit(true) && !shared.is_here() && shared.is_held());
        assert!(shared.unshared() == PageWord::here(7) && !shared.moving().is_fit(false));
        let copy = PageWord::elsewhere(3, 9).copied();
        assert!(copy.is_copy() && copy.home() == Some(3) && !copy.is_fit(false) && !copy.is_held());
        assert!(!PageWord::here(7).moving().is_here() && PageWord::here(7).moving().is_held());
        assert!(PageWord::here(7).fenced().is_here() && !PageWord::here(7).fenced().is_plainly_fit(true));
        assert_eq!(PageWord::elsewhere(0, 1 << 33 | 5).home(), Some(0));
        assert_eq!(PageWord::elsewhere(65_534, 9).epoch(), 9);
        assert!(PageWord::UNKNOWN.home().is_none() && !PageWord::UNKNOWN.is_here());
    }

    proptest! {
        #[test]
        fn any_word_of_a_program_is_a_sample_or_nothing(word: u64) {
            if let Some(sample) = AccessSample::from_word(word) {
                prop_assert_eq!(sample.to_word(), word);
            }
        }
    }
}
