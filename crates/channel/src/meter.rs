//! Counts of what passed, readable while the channel is in use. Relaxed throughout: statistics, each written by one thread.

use std::sync::atomic::{AtomicU64, Ordering};

/// What one half of an end has done, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Frames sent or taken.
    pub frames: u64,
    /// Bytes of these frames in the ring: headers, bodies and padding.
    pub bytes: u64,
    /// Times that this half slept.
    pub sleeps: u64,
    /// Times that it woke somebody who slept: a system call each.
    pub wakes: u64,
    /// System calls that moved bytes over a network.
    pub transfers: u64,
    /// Bytes that these moved.
    pub transfer_bytes: u64,
    /// What left for the other side as one: a send over a network, or a wake-up within a host.
    pub messages: u64,
}

/// The counters of one half, for whoever wants to read them.
#[derive(Debug, Default)]
pub struct Meter {
    pub(crate) frames: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) sleeps: AtomicU64,
    pub(crate) wakes: AtomicU64,
    pub(crate) transfers: AtomicU64,
    pub(crate) transfer_bytes: AtomicU64,
    pub(crate) messages: AtomicU64,
}

impl Meter {
    /// The counts so far; those of one moment may be a frame apart.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let read = |word: &AtomicU64| word.load(Ordering::Relaxed);
        Counters {
            frames: read(&self.frames),
            bytes: read(&self.bytes),
            sleeps: read(&self.sleeps),
            wakes: read(&self.wakes),
            transfers: read(&self.transfers),
            transfer_bytes: read(&self.transfer_bytes),
            messages: read(&self.messages),
        }
    }
}

/// Adds to a counter that only the caller writes: no read-modify-write, which would cost as much as a frame.
#[inline]
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}
