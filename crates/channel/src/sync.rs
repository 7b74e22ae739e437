//! The atomics of the machine or of the model checker, and the light one of a pair of fences.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Keeps the compiler from moving a later load over an earlier store; the other side's heavy fence keeps the processor to it.
#[inline(always)]
pub fn light_fence() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    // The model checker knows no barrier that one thread makes for another: it gets two full fences.
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
