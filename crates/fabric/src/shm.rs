//! The fabric inside a rack: loads and stores on memory that both sides map, and calls through a ring.
//!
//! A session has one area of shared memory that either side may write at any time:
//!
//! | offset | bytes | contents |
//! | --- | --- | --- |
//! | 0 | R = [`hinterland_ring::session_bytes`] of [`SLOTS`], rounded up to 4096 | request and response ring |
//! | R | [`SLOTS`] x [`CELL_BYTES`] | cells: cell `i` holds a body that is too long for a slot |
//!
//! The 56-byte body of a ring slot, requests and responses alike:
//!
//! | offset | bytes | contents |
//! | --- | --- | --- |
//! | 0 | 1 | form: 1 inline, 2 in a cell; in responses 3 inline error, 4 error in a cell; from 16 on see below |
//! | 1 | 1 | length of an inline body, at most [`INLINE_BYTES`] |
//! | 2 | 2 | cell |
//! | 4 | 4 | length of a body in a cell, at most [`CELL_BYTES`] |
//! | 8 | 48 | inline body |
//!
//! A form of 16 or more is a short request of the service's own making; what follows the first byte is its own
//! affair, in the response too (see `hinterland_proto::ring_message`).
//!
//! Calls that may take long go over a [two-layer ring](hinterland_ring::two_layer) of their own: [`FarEndpoint`].
//!
//! A request names the cell that belongs to it until its response is taken; a longer response goes to the same
//! cell. Everything is copied once and checked then. Reads, writes and atomics ask nobody: they are loads and
//! stores on memory that [`ShmEndpoint::attach`] was given with a handle.

mod client;
mod far;
mod server;
#[cfg(test)]
mod tests;

pub use client::ShmEndpoint;
pub use far::{FAR_DATA_BYTES, FAR_SLOTS, FarEndpoint, FarServer};
pub use server::{ShmServer, serve_until};

use crate::error::FabricError;
use hinterland_os::{MapOptions, MemoryFile, OsError, PageKind, Seals, SharedSlice};
use hinterland_ring::{BODY_BYTES, Body, RingError, Session, session_bytes};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Slots of each ring, and cells: twice the depth of 128 that keeps both sides busy.
pub const SLOTS: u32 = 256;
/// Longest body that fits in a slot.
pub const INLINE_BYTES: usize = BODY_BYTES - 8;
/// Longest body of a call or an answer; longer ones go over the socket.
pub const CELL_BYTES: usize = 4096;

/// Bodies whose first byte is this or more are short requests and not messages.
pub const SHORT_FORM_MIN: u8 = 16;

const FORM_INLINE: u8 = 1;
const FORM_CELL: u8 = 2;
const FORM_ERROR_INLINE: u8 = 3;
const FORM_ERROR_CELL: u8 = 4;

/// The shared area of one session, mapped.
#[derive(Clone, Debug)]
pub(crate) struct Area {
    ring: SharedSlice,
    cells: SharedSlice,
}

impl Area {
    /// Bytes of an area.
    fn bytes() -> Result<(usize, usize), RingError> {
        let ring_bytes = session_bytes(SLOTS)?.next_multiple_of(4096);
        Ok((ring_bytes, ring_bytes + SLOTS as usize * CELL_BYTES))
    }

    /// Makes an area; the file is for the other side.
    fn make() -> Result<(Self, MemoryFile), FabricError> {
        let (_, bytes) = Self::bytes().map_err(|error| ring_failed(&error))?;
        let file =
            MemoryFile::anonymous("hinterland-ring", bytes as u64, PageKind::Base4K).map_err(os_failed)?;
        // The client holds it too: it must not be able to cut off what the node has mapped.
        file.add_seals(Seals::FIXED_LENGTH).map_err(os_failed)?;
        // Pages are made now: a peer that finds no memory later would get SIGBUS.
        file.allocate(0, bytes as u64).map_err(os_failed)?;
        Ok((Self::map(&file)?, file))
    }

    /// Maps an area that the other side made; its length is checked before it is touched.
    fn open(descriptor: OwnedFd) -> Result<Self, FabricError> {
        let file = MemoryFile::from_descriptor(descriptor).map_err(os_failed)?;
        Self::map(&file)
    }

    fn map(file: &MemoryFile) -> Result<Self, FabricError> {
        let (ring_bytes, bytes) = Self::bytes().map_err(|error| ring_failed(&error))?;
        let options = MapOptions { write: true, ..MapOptions::default() };
        let whole = Arc::new(file.map(0, bytes, options).map_err(os_failed)?).slice();
        Ok(Self {
            ring: whole.sub(0, ring_bytes).map_err(os_failed)?,
            cells: whole.sub(ring_bytes, bytes - ring_bytes).map_err(os_failed)?,
        })
    }

    fn session(&self, format: bool) -> Result<Session, FabricError> {
        let ring = self.ring.clone();
        let made = if format { Session::format(ring, SLOTS) } else { Session::attach(ring, SLOTS) };
        made.map_err(|error| ring_failed(&error))
    }

    /// Writes a body: into the slot if it fits, else into the cell.
    fn put(&self, cell: u16, bytes: &[u8], is_error: bool) -> Option<Body> {
        let mut body = [0; BODY_BYTES];
        body[2..4].copy_from_slice(&cell.to_le_bytes());
        if bytes.len() <= INLINE_BYTES {
            body[0] = if is_error { FORM_ERROR_INLINE } else { FORM_INLINE };
            // At most 48: the cast loses nothing.
            body[1] = bytes.len() as u8;
            body[8..8 + bytes.len()].copy_from_slice(bytes);
            return Some(body);
        }
        if bytes.len() > CELL_BYTES {
            return None;
        }
        body[0] = if is_error { FORM_ERROR_CELL } else { FORM_CELL };
        // At most 4096: the cast loses nothing.
        body[4..8].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.cells.write_at(usize::from(cell) * CELL_BYTES, bytes).ok()?;
        Some(body)
    }

    /// Copies a body out, once, and checks it; `None` if it makes no sense. The flag says that it is an error.
    fn take(&self, body: &Body, into: &mut Vec<u8>) -> Option<(u16, bool)> {
        let cell = u16::from_le_bytes([body[2], body[3]]);
        if u32::from(cell) >= SLOTS {
            return None;
        }
        into.clear();
        match body[0] {
            FORM_INLINE | FORM_ERROR_INLINE => {
                let bytes = usize::from(body[1]);
                into.extend_from_slice(body.get(8..8 + bytes)?);
            }
            FORM_CELL | FORM_ERROR_CELL => {
                let bytes = u32::from_le_bytes([body[4], body[5], body[6], body[7]]) as usize;
                if bytes > CELL_BYTES {
                    return None;
                }
                into.resize(bytes, 0);
                self.cells.read_at(usize::from(cell) * CELL_BYTES, into).ok()?;
            }
            _ => return None,
        }
        Some((cell, matches!(body[0], FORM_ERROR_INLINE | FORM_ERROR_CELL)))
    }
}

fn os_failed(error: OsError) -> FabricError {
    FabricError::System { what: "sharing memory for a ring", reason: error.to_string() }
}

fn ring_failed(error: &RingError) -> FabricError {
    FabricError::System { what: "using a ring", reason: error.to_string() }
}
