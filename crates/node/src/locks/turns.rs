//! Turns: the threads of a program that want the same lock ask for it one after the other.
//!
//! A session has at most one wish for a lock. Its rings let several of its requests be under way at once; two that waited for the same wish
//! would both be told that they have it.

use super::{CLIENT_PAUSE, Locks, Wish};
use hinterland_types::{GlobalAddress, SessionId};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Nobody else of the session asks for the lock until this is dropped.
pub(super) struct Turn<'a> {
    locks: &'a Locks,
    wish: (SessionId, GlobalAddress),
}

impl Locks {
    /// Waits for the turn of a wish; `None` if it does not come before `deadline`, or is not wanted any more.
    pub(super) fn turn(
        &self,
        wish: &Wish,
        deadline: Instant,
        is_wanted: &dyn Fn() -> bool,
    ) -> Option<Turn<'_>> {
        let key = (wish.session, wish.address);
        let mut wants = self.wants();
        while !wants.busy.insert(key) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !is_wanted() || self.is_stopping.load(Ordering::Acquire) {
                return None;
            }
            wants.for_turns += 1;
            let waited = self.changed.wait_timeout(wants, left.min(CLIENT_PAUSE));
            wants = waited.unwrap_or_else(PoisonError::into_inner).0;
            wants.for_turns -= 1;
        }
        Some(Turn { locks: self, wish: key })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut wants = self.locks.wants();
        wants.busy.remove(&self.wish);
        if wants.for_turns > 0 {
            drop(wants);
            self.locks.changed.notify_all();
        }
    }
}
