//! Memory that may no longer be far: it goes back to the kernel, with what it holds.
//!
//! The program wants to serve its faults itself, or a child of `fork` is to find it gone or empty: no table could stay true. What
//! is far comes back first, above the budget if need be.

use crate::engine::{Engine, Known, Space};
use crate::fault::{fill, placed};
use hinterland_farplan::State;
use hinterland_os::OsError;

const ENOMEM: i32 = 12;
/// Bytes that are given back under one hold of the lock: others have faults.
const STEP_BYTES: u64 = 16 << 20;

/// What came of giving a part of a unit back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    /// It is the kernel's.
    Back,
    /// It is on its way out, or events must be read first.
    Later,
    /// The process has as many mappings as it may have: a part of one would be one more.
    TooMany,
}

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
                let given = match self.give_back(&mut known, id, (at, next)) {
                    Ok(Given::TooMany) => self.give_back_before(&mut known, id, next),
                    given => given,
                };
                is_all &= matches!(given, Ok(Given::Back));
                at = next;
            }
        }
        is_all
    }

    /// Gives back what ends at an address, from the start of what is served without a gap: where something was given back before that, it becomes one
    /// mapping with it. What cannot be given back so stays under service, which is told.
    fn give_back_before(&self, known: &mut Known, id: u64, end: u64) -> Result<Given, OsError> {
        let mut left = STEP_BYTES;
        loop {
            let Some(space) = known.spaces.get(&id) else { return Ok(Given::Back) };
            let Some(start) = space.table.start(end - 1) else { return Ok(Given::Back) };
            let Some((_, unit_end)) = space.table.unit(start) else { return Ok(Given::Back) };
            if left == 0 {
                return Ok(Given::Later);
            }
            left = left.saturating_sub(unit_end - start);
            match self.give_back(known, id, (start, unit_end.min(end)))? {
                Given::Back => {}
                Given::Later => return Ok(Given::Later),
                Given::TooMany => {
                    self.say_once(
                        "mappings",
                        "a program has as many mappings as it may have: memory that should be the kernel's, as that of robust mutexes, stays far \
                         (hint: raise vm.max_map_count)",
                    );
                    return Ok(Given::Back);
                }
            }
        }
    }

    /// Gives a part of a unit back.
    fn give_back(&self, known: &mut Known, id: u64, (start, end): (u64, u64)) -> Result<Given, OsError> {
        let stamp = known.clock;
        let Some(space) = known.spaces.get_mut(&id) else { return Ok(Given::Back) };
        match space.table.state(start).cloned() {
            None | Some(State::Untouched | State::Resident { .. }) => {}
            Some(State::Leaving { .. }) => return Ok(Given::Later),
            Some(State::Far(piece)) => {
                let mut content = vec![0; piece.copy.bytes()];
                if let Err(error) = piece.copy.read(&mut content) {
                    self.say_once("lost", &format!("memory of a program is lost: {error}"));
                    let pages = hinterland_farplan::PAGE;
                    space.faults.poison(start, end - start, pages)?;
                } else if !fill(&space.faults, start, &placed(&content, piece.base, start, end), false)?
                    .complete
                {
                    return Ok(Given::Later);
                }
                known.counters.fetched_bytes += end - start;
            }
        }
        let Some(space) = known.spaces.get_mut(&id) else { return Ok(Given::Back) };
        // Protected pages may be written from here on. Who waits there tries again.
        match space.faults.unregister(start, end - start) {
            Ok(()) => {}
            Err(error) if error.errno() == Some(ENOMEM) => {
                // It stays under service, and is here. A part of a unit is so, too, but the table says of units what is missing of them.
                let is_far = matches!(space.table.state(start), Some(State::Far(_)));
                if is_far && space.table.unit(start) == Some((start, end)) {
                    space.table.set(start, State::Resident { clean: None, stamp });
                }
                return Ok(Given::TooMany);
            }
            Err(error) => return Err(error),
        }
        space.table.unmap(start, end);
        Ok(Given::Back)
    }
}
