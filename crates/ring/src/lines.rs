//! The slots of a ring as one of its ends reaches them: through caches that see each other, or line by line by hand.

use crate::slot::{Body, Slot};

/// The slots of a ring, a power of two of them.
///
/// A message is one line that one side writes, and lines move whole: who sees the head that it waits for sees the body. So
/// where caches do not see each other, a message needs one line to be written back and one copy to be dropped, and no
/// fence between head and body. See `docs/decisions/2026-11-22-software-coherence.md`.
pub trait Lines {
    /// Whether lines are moved by hand; if not, the calls that move them do nothing and are not made.
    const BY_HAND: bool;
    /// How many there are.
    fn slots(&self) -> usize;
    /// See [`Slot::publish`].
    fn publish(&self, place: usize, sequence: u32, tag: u32, body: &Body);
    /// See [`Slot::take`].
    fn take(&self, place: usize, sequence: u32) -> Option<(u32, Body)>;
    /// See [`Slot::holds`].
    fn holds(&self, place: usize, sequence: u32) -> bool;
    /// Starts to write a slot back to memory.
    #[inline(always)]
    fn write_back(&self, _place: usize) {}
    /// Drops this host's copies of `count` slots from `place` on, round the end; at most all.
    #[inline(always)]
    fn refresh(&self, _place: usize, _count: usize) {}
}

impl Lines for [Slot] {
    const BY_HAND: bool = false;

    #[inline]
    fn slots(&self) -> usize {
        self.len()
    }

    #[inline]
    fn publish(&self, place: usize, sequence: u32, tag: u32, body: &Body) {
        self[place].publish(sequence, tag, body);
    }

    #[inline]
    fn take(&self, place: usize, sequence: u32) -> Option<(u32, Body)> {
        self[place].take(sequence)
    }

    #[inline]
    fn holds(&self, place: usize, sequence: u32) -> bool {
        self[place].holds(sequence)
    }
}

/// Slots whose lines are moved by the processor's own instructions.
#[cfg(not(loom))]
#[derive(Clone, Copy)]
pub(crate) struct Flushed<'session> {
    pub slots: &'session [Slot],
    pub mover: hinterland_os::LineMover,
}

#[cfg(not(loom))]
impl Lines for Flushed<'_> {
    const BY_HAND: bool = true;

    #[inline]
    fn slots(&self) -> usize {
        self.slots.len()
    }

    #[inline]
    fn publish(&self, place: usize, sequence: u32, tag: u32, body: &Body) {
        self.slots.publish(place, sequence, tag, body);
    }

    #[inline]
    fn take(&self, place: usize, sequence: u32) -> Option<(u32, Body)> {
        self.slots.take(place, sequence)
    }

    #[inline]
    fn holds(&self, place: usize, sequence: u32) -> bool {
        self.slots.holds(place, sequence)
    }

    #[inline]
    fn write_back(&self, place: usize) {
        self.mover.write_back(&self.slots[place]);
    }

    #[inline]
    fn refresh(&self, place: usize, count: usize) {
        let (before, from) = self.slots.split_at(place);
        let first = &from[..count.min(from.len())];
        self.mover.refresh_both(first, &before[..(count - first.len()).min(before.len())]);
    }
}
