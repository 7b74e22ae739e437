//! One message in one cache line, handed from a writer to a reader.

use crate::sync::{AtomicU64, Ordering};

/// Words of the body of a message. The model checker gets a shorter one, so that it ends.
const BODY_WORDS: usize = if cfg!(loom) { 1 } else { 7 };
/// Bytes of the body of a message.
pub const BODY_BYTES: usize = BODY_WORDS * 8;

/// The body of a message.
pub type Body = [u8; BODY_BYTES];

/// One cache line: a head word (sequence in the low half, tag in the high half) and the body.
///
/// The body is words of atomics, too: the peer may write while we read, and relaxed word accesses, unlike a plain copy,
/// are defined then. They cost what plain moves cost.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    head: AtomicU64,
    body: [AtomicU64; BODY_WORDS],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Slot>() == 64 && align_of::<Slot>() == 64);

impl Slot {
    /// A slot without a message, for models; in shared memory zeroed bytes are one.
    #[cfg(loom)]
    pub fn empty() -> Self {
        Self { head: AtomicU64::new(0), body: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Writes a message. The caller knows, by the rule of the ring, that the reader is done with the one before.
    #[inline]
    pub fn publish(&self, sequence: u32, tag: u32, body: &Body) {
        for (word, bytes) in self.body.iter().zip(body.as_chunks::<8>().0) {
            // Relaxed: ordered by the Release of the head below.
            word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
        }
        // Release: pairs with the Acquire in take(), which makes the body visible with the head.
        self.head.store(u64::from(tag) << 32 | u64::from(sequence), Ordering::Release);
    }

    /// Copies the message with this sequence, if it is there: its tag and body.
    #[inline]
    pub fn take(&self, sequence: u32) -> Option<(u32, Body)> {
        // Acquire: pairs with the Release in publish().
        let head = self.head.load(Ordering::Acquire);
        if head as u32 != sequence {
            return None;
        }
        let mut body = [0; BODY_BYTES];
        for (bytes, word) in body.as_chunks_mut::<8>().0.iter_mut().zip(&self.body) {
            // Relaxed: ordered by the Acquire of the head above.
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        Some(((head >> 32) as u32, body))
    }

    /// Whether the message with this sequence is there.
    #[inline]
    pub fn holds(&self, sequence: u32) -> bool {
        // Relaxed: only a hint whether take() will find something; take() does the pairing.
        self.head.load(Ordering::Relaxed) as u32 == sequence
    }
}
