//! Streams that are all taken are waited for, but no longer than the call may take.

use super::WAIT_SLICE;
use super::channel::Channel;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// A stream, or none while it is not open.
pub(super) type Slot = Mutex<Option<Channel>>;

/// Threads that wait until one of some streams is given back.
#[derive(Default)]
pub(super) struct Waiters {
    count: AtomicUsize,
    gate: Mutex<()>,
    freed: Condvar,
}

/// A stream that a thread has to itself until this is dropped.
pub(super) struct Taken<'a> {
    // Dropped before the bell rings.
    slot: MutexGuard<'a, Option<Channel>>,
    _bell: Bell<'a>,
}

/// Wakes one who waits when it is dropped.
struct Bell<'a>(&'a Waiters);

impl Drop for Bell<'_> {
    fn drop(&mut self) {
        // Pairs with the one in `wait`: either this thread sees there that somebody waits, or that one finds the stream free.
        fence(Ordering::SeqCst);
        // Relaxed: ordered by the fence.
        if self.0.count.load(Ordering::Relaxed) > 0 {
            drop(self.0.gate.lock().unwrap_or_else(PoisonError::into_inner));
            self.0.freed.notify_one();
        }
    }
}

impl Deref for Taken<'_> {
    type Target = Option<Channel>;
    fn deref(&self) -> &Option<Channel> {
        &self.slot
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Option<Channel> {
        &mut self.slot
    }
}

impl Waiters {
    /// Takes a stream for which these wait, if nobody has it.
    pub fn take<'a>(&'a self, stream: &'a Slot) -> Option<Taken<'a>> {
        let slot = match stream.try_lock() {
            Ok(slot) => slot,
            Err(TryLockError::WouldBlock) => return None,
            Err(TryLockError::Poisoned(poisoned)) => {
                // A thread panicked while it had the stream: nobody knows where in a frame it is, so it is closed.
                let mut slot = poisoned.into_inner();
                *slot = None;
                slot
            }
        };
        Some(Taken { slot, _bell: Bell(self) })
    }

    /// Waits until `take` gives a stream; `None` once `left` says that no time is.
    pub fn wait<'a>(
        &self,
        take: impl Fn() -> Option<Taken<'a>>,
        left: impl Fn() -> Option<Duration>,
    ) -> Option<Taken<'a>> {
        // Relaxed: ordered by the fence.
        self.count.fetch_add(1, Ordering::Relaxed);
        // Pairs with the one in `drop` of the bell.
        fence(Ordering::SeqCst);
        let found = loop {
            // Not under the lock: it may take long.
            let Some(left) = left() else {
                // It may have been woken for a stream that another one wants.
                self.freed.notify_one();
                break None;
            };
            let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
            // Whoever was woken takes the stream, or somebody has it who wakes the next one.
            if let Some(taken) = take() {
                break Some(taken);
            }
            drop(self.freed.wait_timeout(gate, left.min(WAIT_SLICE)));
        };
        // Relaxed: who sees it too late rings for nothing.
        self.count.fetch_sub(1, Ordering::Relaxed);
        found
    }
}
