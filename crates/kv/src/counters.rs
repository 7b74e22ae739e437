//! How often blocks were asked for and there, counted by the readers where the node can see it.

use crate::client::Client;
use crate::layout::Geometry;
use crate::words::{Memory, Point};
use hinterland_os::BASE_PAGE_BYTES;

/// Namespaces that are counted apart; the last number is for all others together.
pub const COUNTED_MAX: u32 = 64;
/// Bytes of the counters of one namespace: a cache line.
const COUNTS_BYTES: usize = 64;

/// What readers of a namespace have asked for since the store was made. Only told by them: nothing depends on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Keys that were looked up without being read.
    pub asked: u64,
    /// Of those, keys whose block was there.
    pub found: u64,
    /// Keys whose block was to be read.
    pub gets: u64,
    /// Of those, keys whose block was.
    pub got: u64,
    /// Bytes of those blocks.
    pub read_bytes: u64,
}

impl Geometry {
    /// Length of the touches file in bytes: a byte for each slot, and a page of counters.
    pub const fn touches_bytes(&self) -> u64 {
        self.counters() + BASE_PAGE_BYTES as u64
    }

    const fn counters(&self) -> u64 {
        self.slots().next_multiple_of(BASE_PAGE_BYTES as u64)
    }

    fn counts(&self, number: u32) -> usize {
        self.counters() as usize + number.min(COUNTED_MAX - 1) as usize * COUNTS_BYTES
    }
}

impl Counts {
    /// Reads the counters of a namespace from the touches file.
    pub fn load(touches: &impl Memory, geometry: &Geometry, number: u32) -> Self {
        let at = geometry.counts(number);
        touches.refresh(at / 8, COUNTS_BYTES / 8, Point::CountsToRead);
        let word = |index: usize| touches.load(at / 8 + index);
        Self { asked: word(0), found: word(1), gets: word(2), got: word(3), read_bytes: word(4) }
    }
}

impl<M: Memory> Client<M> {
    /// See [`View::count`](crate::View::count).
    #[inline]
    pub fn count(&self, number: u32, counts: Counts) {
        let word = self.geometry().counts(number) / 8;
        let touches = self.touches();
        touches.refresh(word, COUNTS_BYTES / 8, Point::CountToAdd);
        let Counts { asked, found, gets, got, read_bytes } = counts;
        for (index, count) in [asked, found, gets, got, read_bytes].into_iter().enumerate() {
            if count > 0 {
                // Only told to people.
                let _ = touches.add(word + index, count);
            }
        }
        touches.write_back(word, COUNTS_BYTES / 8, Point::Counted);
    }
}
