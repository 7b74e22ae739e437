//! The end of a wait: who leaves the queue, and upgrades that are taken back.
//!
//! An upgrade that was granted replaces its read lock. So it is not simply given back when its program does not want to wait any longer: the
//! lock home is asked to take it back if it waits yet, and the program hears what the home has said.

use super::{Locks, Wants, Wish};
use crate::core::Core;
use crate::refused::Refused;
use hinterland_directory::locks::{ClaimState, LockRequest};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long the lock home's word is waited for before the session is let go for a moment.
pub(super) const WORD_SLICE: Duration = Duration::from_millis(20);

impl Locks {
    /// Has the lock home take an upgrade back that waits, and waits a little for its word. False once it has come, or was waited
    /// for in vain for a lease; else the program has to ask again.
    pub(super) fn withdraw<'a>(
        &'a self,
        core: &Core,
        mut wants: MutexGuard<'a, Wants>,
        request: LockRequest,
    ) -> bool {
        let place = wants.holder.place(request);
        if let (Some(ask), Some((home, _))) = (wants.holder.withdraw(request), place) {
            wants.withdrawn.insert(request, Instant::now() + Duration::from_millis(self.lease_ms));
            wants.unheard.insert(request);
            drop(wants);
            self.send(core, home, request, ask);
            wants = self.wants();
        }
        let slice = Instant::now() + WORD_SLICE;
        loop {
            let until = wants.withdrawn.get(&request).copied();
            let until = until.filter(|_| wants.holder.state(request) == Some(ClaimState::Waiting));
            let now = Instant::now();
            let Some(until) = until.filter(|until| *until > now) else { return false };
            if now >= slice {
                return true;
            }
            let left = until.min(slice) - now;
            wants = self.changed.wait_timeout(wants, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives up a wish that waits, and says so.
    pub(super) fn leave(
        &self,
        core: &Core,
        mut wants: MutexGuard<'_, Wants>,
        (wish, request): (&Wish, LockRequest),
        wait_ms: u32,
    ) -> Refused {
        let place = wants.holder.place(request);
        let replaced = wants.holder.replaced(request);
        let ask = wants.holder.take_back(request);
        wants.settle(request);
        // A read lock that was to be upgraded is held as before, as far as is known.
        match replaced {
            Some(old) => wants.requests.insert((wish.session, wish.address), old),
            None => wants.requests.remove(&(wish.session, wish.address)),
        };
        drop(wants);
        if let (Some(ask), Some((home, _))) = (ask, place) {
            self.send(core, home, request, ask);
        }
        let Refused { code, mut text } = self.timed_out(place.map(|(home, _)| home), wish.address, wait_ms);
        if replaced.is_some() {
            text.push_str("; its next use says whether the read lock is still held");
        }
        Refused::new(code, text)
    }
}
