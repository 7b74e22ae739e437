//! Pinned memory that copies pass through: pieces of one length, used again when the device has done with them.

use hinterland_gpu::lend::memory::Pinned;
use hinterland_gpu::lend::{CallError, Lent};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Bytes of a piece: as much as a frame brings.
pub(super) const PIECE_BYTES: usize = 1 << 20;
/// Pieces of a device.
const PIECES_MAX: usize = 128;
/// How long a full pool is waited for before it is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

#[derive(Default)]
struct State {
    free: Vec<Pinned>,
    made: usize,
}

/// The pieces of a device.
#[derive(Default)]
pub(super) struct Staging {
    state: Mutex<State>,
    returned: Condvar,
}

impl Staging {
    /// A piece. Waits for the device where all are in use.
    pub(super) fn take(&self, device: &Lent) -> Result<Pinned, CallError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(piece) = state.free.pop() {
                return Ok(piece);
            }
            if state.made < PIECES_MAX {
                let piece = device.pinned(PIECE_BYTES)?;
                state.made += 1;
                return Ok(piece);
            }
            let waited = self.returned.wait_timeout(state, LOOK_AGAIN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A piece is lost, as nobody can tell when the device has done with it: another may be made in its place.
    pub(super) fn lose(&self, _piece: Pinned) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).made -= 1;
        self.returned.notify_one();
    }

    /// A piece that nobody uses any more.
    pub(super) fn put(&self, piece: Pinned) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).free.push(piece);
        self.returned.notify_one();
    }
}
