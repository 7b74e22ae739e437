//! Which handles of cuBLAS there are: the node's names of them, and their contexts.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hinterland_proto::gpu::command::{BlasCreate, BlasDestroy};

use super::context::Owner;
use super::session::Session;
use crate::code::{Code, INVALID_HANDLE};

/// The handles of a session.
#[derive(Debug, Default)]
pub struct BlasHandles(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: u32,
    owners: BTreeMap<u32, Owner>,
}

impl BlasHandles {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a handle of a context; returns its name, which none had before.
    ///
    /// # Errors
    /// The node is gone.
    pub fn create(&self, session: &Session, owner: Owner) -> Result<u32, Code> {
        let mut state = self.state();
        state.last += 1;
        let handle = state.last;
        session.send(&BlasCreate { handle, device: owner.device })?;
        state.owners.insert(handle, owner);
        Ok(handle)
    }

    /// Whether there is such a handle.
    ///
    /// # Errors
    /// There is none (any more).
    pub(super) fn known(&self, handle: u32) -> Result<(), Code> {
        self.state().owners.contains_key(&handle).then_some(()).ok_or(INVALID_HANDLE)
    }

    /// Ends a handle.
    ///
    /// # Errors
    /// There is none (any more), or the node is gone.
    pub fn destroy(&self, session: &Session, handle: u32) -> Result<(), Code> {
        self.state().owners.remove(&handle).ok_or(INVALID_HANDLE)?;
        session.send(&BlasDestroy { handle }).map(drop)
    }

    /// Ends all handles of a context.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn destroy_all_of(&self, session: &Session, owner: Owner) -> Result<(), Code> {
        let handles: Vec<u32> =
            self.state().owners.iter().filter(|(_, of)| **of == owner).map(|(handle, _)| *handle).collect();
        handles.into_iter().try_for_each(|handle| self.destroy(session, handle))
    }
}
