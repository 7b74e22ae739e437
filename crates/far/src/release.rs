//! Memory that may no longer be far: it goes back to the kernel, with what it holds.
//!
//! The program wants to serve its faults itself, or a child of `fork` is to find it gone or empty: no table could stay true. What
//! is far comes back first, above the budget if need be.

use crate::engine::{Engine, Known, Space};
use crate::fault::{fill, placed};
use hinterland_farplan::State;
use hinterland_os::OsError;

/// Bytes that are given back under one hold of the lock: others have faults.
const STEP_BYTES: u64 = 16 << 20;

impl Engine {
    /// Gives a part of a range back. `false`: not all of it, so ask again.
    pub(crate) fn release(&self, process: u64, address: u64, bytes: u64) -> bool {
        let mut known = self.lock();
        let ours = |space: &Space| u64::try_from(space.process) == Ok(process);
        let Some((id, space)) = known.spaces.iter_mut().rev().find(|(_, space)| ours(space)) else {
            return true;
        };
        let id = *id;
        let end = address.saturating_add(bytes);
        space.loose.release(address, end);
        let mut left = STEP_BYTES;
        let mut is_all = true;
        for (from, to) in space.table.known(address, end) {
            let mut at = from;
            while at < to {
                let Some((_, unit_end)) = known.spaces.get(&id).and_then(|space| space.table.unit(at)) else {
                    break;
                };
                let next = unit_end.min(to);
                if left == 0 {
                    return false;
                }
                left = left.saturating_sub(next - at);
                is_all &= self.give_back(&mut known, id, (at, next)).unwrap_or(false);
                at = next;
            }
        }
        is_all
    }

    /// Gives a part of a unit back. `false`: it is on its way out, or events must be read first.
    fn give_back(&self, known: &mut Known, id: u64, (start, end): (u64, u64)) -> Result<bool, OsError> {
        let Some(space) = known.spaces.get_mut(&id) else { return Ok(true) };
        match space.table.state(start).cloned() {
            None | Some(State::Untouched | State::Resident { .. }) => {}
            Some(State::Leaving { .. }) => return Ok(false),
            Some(State::Far(piece)) => {
                let mut content = vec![0; piece.copy.bytes()];
                if let Err(error) = piece.copy.read(&mut content) {
                    self.say_once("lost", &format!("memory of a program is lost: {error}"));
                    let pages = hinterland_farplan::PAGE;
                    space.faults.poison(start, end - start, pages)?;
                } else if !fill(&space.faults, start, &placed(&content, piece.base, start, end), false)?
                    .complete
                {
                    return Ok(false);
                }
                known.counters.fetched_bytes += end - start;
            }
        }
        let Some(space) = known.spaces.get_mut(&id) else { return Ok(true) };
        // Protected pages may be written from here on. Who waits there tries again.
        space.faults.unregister(start, end - start)?;
        space.table.unmap(start, end);
        Ok(true)
    }
}
