//! Writes of an object that is being put: a seal refuses those that begin behind it and waits for those on their way, so that
//! no byte arrives behind the checksums.

use super::Holding;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The writes of one object.
#[derive(Default)]
pub(super) struct Writes {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    on_their_way: u32,
    is_closed: bool,
}

/// A write on its way, until it is dropped.
pub(super) struct Write(Arc<Holding>);

/// No write is on its way, and none begins before this is dropped.
pub(super) struct Quiet<'a> {
    writes: &'a Writes,
    is_for_good: bool,
}

impl Writes {
    /// One more write of an object, unless its seal has begun.
    pub(super) fn begin(holding: &Arc<Holding>) -> Option<Write> {
        let mut state = holding.writes.lock();
        if state.is_closed {
            return None;
        }
        state.on_their_way += 1;
        Some(Write(Arc::clone(holding)))
    }

    /// Refuses those that come, and waits for those on their way; `None` if some stay for so long.
    pub(super) fn end(&self, patience: Duration) -> Option<Quiet<'_>> {
        let mut state = self.lock();
        state.is_closed = true;
        let waited = self.ended.wait_timeout_while(state, patience, |state| state.on_their_way > 0);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.on_their_way > 0 {
            state.is_closed = false;
            return None;
        }
        Some(Quiet { writes: self, is_for_good: false })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Quiet<'_> {
    /// No write ever begins again.
    pub(super) fn for_good(mut self) {
        self.is_for_good = true;
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.writes.lock().is_closed = self.is_for_good;
    }
}

impl Drop for Write {
    fn drop(&mut self) {
        let writes = &self.0.writes;
        writes.lock().on_their_way -= 1;
        writes.ended.notify_all();
    }
}
