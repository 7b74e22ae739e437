//! Which handles of cuBLAS there are: the node's names of them, and their devices.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hinterland_proto::gpu::command::{BlasCreate, BlasDestroy};

use super::session::Session;
use crate::code::{Code, INVALID_HANDLE};

/// The handles of a session.
#[derive(Debug, Default)]
pub struct BlasHandles(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: u32,
    devices: BTreeMap<u32, u32>,
}

impl BlasHandles {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a handle of a device; returns its name, which none had before.
    ///
    /// # Errors
    /// The node is gone.
    pub fn create(&self, session: &Session, device: u32) -> Result<u32, Code> {
        let mut state = self.state();
        state.last += 1;
        let handle = state.last;
        session.send(&BlasCreate { handle, device })?;
        state.devices.insert(handle, device);
        Ok(handle)
    }

    /// Ends a handle.
    ///
    /// # Errors
    /// There is none (any more), or the node is gone.
    pub fn destroy(&self, session: &Session, handle: u32) -> Result<(), Code> {
        self.state().devices.remove(&handle).ok_or(INVALID_HANDLE)?;
        session.send(&BlasDestroy { handle }).map(drop)
    }

    /// Ends all handles of a device.
    ///
    /// # Errors
    /// The node is gone.
    pub(super) fn destroy_all_of(&self, session: &Session, device: u32) -> Result<(), Code> {
        let handles: Vec<u32> =
            self.state().devices.iter().filter(|(_, of)| **of == device).map(|(handle, _)| *handle).collect();
        handles.into_iter().try_for_each(|handle| self.destroy(session, handle))
    }
}
