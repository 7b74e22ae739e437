//! Positions of one direction: how many bytes are published and released, and who sleeps until that changes.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use hinterland_ring::doorbell::Doorbell;

/// Positions and lengths are multiples of this.
pub const GRAIN: u64 = 8;

/// What both sides share of a direction beside the bytes; each word that one side writes often is in a line of its own,
/// and so far from the next that a processor which fetches lines in pairs fetches no foreign one.
#[repr(C)]
#[derive(Debug)]
pub struct LaneWords {
    published: AtomicU64,
    zero_0: [u8; 120],
    released: AtomicU64,
    zero_1: [u8; 120],
    receiver: Sleeper,
    zero_2: [u8; 120],
    sender: Sleeper,
    zero_3: [u8; 120],
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<LaneWords>() == 512 && size_of::<Sleeper>() == 8);
    assert!(std::mem::offset_of!(LaneWords, released) == 128);
    assert!(std::mem::offset_of!(LaneWords, receiver) == 256);
    assert!(std::mem::offset_of!(LaneWords, sender) == 384);
};

impl LaneWords {
    /// A direction in which nothing was sent, for models; in shared memory zeroed bytes are one.
    #[cfg(loom)]
    pub fn fresh() -> Self {
        let sleeper = || Sleeper { bell: Doorbell::silent(), barriers: AtomicU32::new(0) };
        Self {
            published: AtomicU64::new(0),
            zero_0: [0; 120],
            released: AtomicU64::new(0),
            zero_1: [0; 120],
            receiver: sleeper(),
            zero_2: [0; 120],
            sender: sleeper(),
            zero_3: [0; 120],
        }
    }

    /// Who sleeps until more is published.
    #[inline]
    pub fn receiver(&self) -> &Sleeper {
        &self.receiver
    }

    /// Who sleeps until more is released.
    #[inline]
    pub fn sender(&self) -> &Sleeper {
        &self.sender
    }
}

/// A side of a lane that may sleep.
#[repr(C)]
#[derive(Debug)]
pub struct Sleeper {
    /// Rung by the other side.
    pub bell: Doorbell,
    /// 1 if the owner has all processors pass a barrier before it sleeps, so that the ringer needs none.
    barriers: AtomicU32,
}

impl Sleeper {
    /// Says that the owner makes the barrier for both; before its first [`announce`](Self::announce).
    pub fn promise_barriers(&self) {
        // Release: pairs with nothing; the ringer may take any value (see must_wake).
        self.barriers.store(1, Ordering::Release);
    }

    /// Called by the owner before its last look; `barrier` is the barrier that it promised, or does nothing.
    pub fn announce(&self, barrier: impl FnOnce()) {
        self.bell.announce();
        barrier();
    }

    /// Called after something was published or released: whether the owner has to be woken, which is then the caller's
    /// duty. `registered` says whether the caller's process takes part in barriers of others.
    #[inline]
    pub fn must_wake(&self, registered: bool) -> bool {
        // Relaxed: it turns to 1 once, before the owner sleeps at all; who reads the 0 fences, which is always right.
        if registered && self.barriers.load(Ordering::Relaxed) == 1 {
            self.bell.must_wake_unfenced()
        } else {
            self.bell.must_wake()
        }
    }
}

/// A position of the peer's that no honest peer has: which, and what it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadPosition {
    /// Whose word it is.
    pub word: &'static str,
    /// What was found there.
    pub found: u64,
}

/// The writing end of a lane; its position is nobody else's.
#[derive(Debug)]
pub struct Outlet {
    position: u64,
    /// What was last seen to be released.
    released: u64,
    ring_bytes: u64,
}

impl Outlet {
    /// The end of a ring of so many bytes (a power of two) in which nothing was sent.
    pub fn new(ring_bytes: u64) -> Self {
        debug_assert!(ring_bytes.is_power_of_two());
        Self { position: 0, released: 0, ring_bytes }
    }

    /// Where in the ring the next frame goes.
    #[inline]
    pub fn offset(&self) -> usize {
        (self.position & (self.ring_bytes - 1)) as usize
    }

    /// Whether `bytes` bytes may be written at the offset; looks at the peer's word only if it seems that they may not.
    ///
    /// # Errors
    /// [`BadPosition`]: the peer says that it has released what was never published, or takes back what it released.
    #[inline]
    pub fn has_room(&mut self, words: &LaneWords, bytes: u64) -> Result<bool, BadPosition> {
        if self.free() >= bytes {
            return Ok(true);
        }
        // Acquire: pairs with the Release in Inlet::release(); the peer has read what we overwrite.
        let found = words.released.load(Ordering::Acquire);
        if found < self.released || found > self.position || !found.is_multiple_of(GRAIN) {
            return Err(BadPosition { word: "released", found });
        }
        self.released = found;
        Ok(self.free() >= bytes)
    }

    /// Publishes the next `bytes` bytes, which were found to have room and have been written.
    #[inline]
    pub fn publish(&mut self, words: &LaneWords, bytes: u64) {
        debug_assert!(bytes.is_multiple_of(GRAIN) && bytes <= self.free());
        self.position += bytes;
        // Release: pairs with the Acquire in Inlet::look(); whoever sees the position sees the bytes.
        words.published.store(self.position, Ordering::Release);
    }

    #[inline]
    fn free(&self) -> u64 {
        self.ring_bytes - (self.position - self.released)
    }
}

/// The reading end of a lane; its position is nobody else's.
#[derive(Debug)]
pub struct Inlet {
    position: u64,
    /// What was last seen to be published.
    published: u64,
    ring_bytes: u64,
}

impl Inlet {
    /// The end of a ring of so many bytes (a power of two) from which nothing was taken.
    pub fn new(ring_bytes: u64) -> Self {
        debug_assert!(ring_bytes.is_power_of_two());
        Self { position: 0, published: 0, ring_bytes }
    }

    /// Where in the ring the next frame begins.
    #[inline]
    pub fn offset(&self) -> usize {
        (self.position & (self.ring_bytes - 1)) as usize
    }

    /// Bytes released in all.
    #[inline]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes from the offset on that were seen to be published.
    #[inline]
    pub fn seen(&self) -> u64 {
        self.published - self.position
    }

    /// Looks at the peer's word, and returns as [`seen`](Self::seen).
    ///
    /// # Errors
    /// [`BadPosition`]: the peer says that it has published more than the ring holds, or takes back what it published.
    #[inline]
    pub fn look(&mut self, words: &LaneWords) -> Result<u64, BadPosition> {
        // Acquire: pairs with the Release in Outlet::publish().
        let found = words.published.load(Ordering::Acquire);
        if found < self.published || found - self.position > self.ring_bytes || !found.is_multiple_of(GRAIN) {
            return Err(BadPosition { word: "published", found });
        }
        self.published = found;
        Ok(self.seen())
    }

    /// Takes what this process itself has put into the ring as published, up to `position`.
    #[inline]
    pub fn believe(&mut self, position: u64) {
        debug_assert!(position >= self.published && position - self.position <= self.ring_bytes);
        self.published = position;
    }

    /// Gives the next `bytes` bytes back to the writer; at most what was seen. Returns whether to ask if the writer sleeps.
    ///
    /// A writer sleeps only while less than half of the ring is free (no frame takes more), so that it is asked only when
    /// half is. It is woken to write a good deal then, and not for the room of one frame.
    #[inline]
    #[must_use]
    pub fn release(&mut self, words: &LaneWords, bytes: u64) -> bool {
        debug_assert!(bytes <= self.seen());
        self.position += bytes;
        // Release: pairs with the Acquire in Outlet::has_room(); our reads are over.
        words.released.store(self.position, Ordering::Release);
        self.seen() <= self.ring_bytes / 2
    }
}
