//! Serving a fault: what the missing pages of a unit hold goes into them.

use crate::ahead;
use crate::engine::{Engine, Known, Space, Waiting};
use crate::reads::Content;
use crate::store::Copy;
use crate::words::say;
use hinterland_farplan::grain::{Grains, Return};
use hinterland_farplan::refault::{Clock, Stay};
use hinterland_farplan::width::HERE_BYTES_MAX;
use hinterland_farplan::{PAGE, Piece, State};
use hinterland_os::userfault::{Event, Fault};
use hinterland_os::{OsError, Userfault};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

const ENOENT: i32 = 2;
const ESRCH: i32 = 3;
const EINVAL: i32 = 22;

/// Zeros for a whole unit.
pub(crate) static ZEROS: [u8; 2 << 20] = [0; 2 << 20];

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    Done,
    /// Something must happen first: an event be read, a unit get out, room be made.
    Later,
}

/// What came of filling a range.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fill {
    /// All pages of the range are there.
    pub(crate) complete: bool,
    /// Some were there before.
    pub(crate) found: bool,
}

/// Why a far unit comes back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Want {
    /// Somebody waits for it; else it is filled ahead.
    pub(crate) waits: bool,
    /// It is filled ahead because this very place was foretold, and not because it lies behind another one.
    pub(crate) foretold: bool,
    /// It is about to be written.
    pub(crate) writes: bool,
}

impl Want {
    /// Somebody waits for it, to write it or not.
    const fn by_somebody(writes: bool) -> Self {
        Self { waits: true, foretold: false, writes }
    }
}

impl Engine {
    /// Takes in an event of a space, which can be seen since a moment. Faults that cannot be served yet are kept.
    pub(crate) fn event(&self, known: &mut Known, id: u64, event: Event, since: Instant) {
        self.watch.event(self, known, id, &event);
        match event {
            Event::Fault(fault) => {
                known.counters.faults += 1;
                if let Some(touched) = &mut known.touched {
                    *touched.entry(fault.address >> crate::report::BIN_SHIFT).or_default() += 1;
                }
                known.counters.protect_faults += u64::from(fault.write_protect);
                let waiting = Waiting { space: id, fault, since };
                self.attempt(known, waiting);
            }
            Event::Fork(faults) => {
                let Some(child) = known.spaces.get(&id).map(|space| space.child(id, faults)) else { return };
                let new = known.space_next;
                known.space_next += 1;
                known.spaces.insert(new, child);
                // It counts in full although it shares its parent's memory: neither has to wait until as much has left.
                self.go_on_above_room(known);
            }
            Event::Remap { from, to, bytes } => {
                let Some(space) = known.spaces.get_mut(&id) else { return };
                space.table.remap(from, to, bytes);
                // Who waited at the old place finds out that it is gone.
                let _ = space.faults.wake(from, bytes);
            }
            Event::Remove { start, end } => {
                let Some(space) = known.spaces.get_mut(&id) else { return };
                space.table.remove(start, end);
                let _ = space.faults.wake(start, end - start);
            }
            Event::Unmap { start, end } => {
                let Some(space) = known.spaces.get_mut(&id) else { return };
                space.table.unmap(start, end);
                let _ = space.faults.wake(start, end - start);
            }
        }
    }

    /// Tries all waiting faults again.
    pub(crate) fn retry(&self, known: &mut Known) {
        for waiting in std::mem::take(&mut known.waiting) {
            self.attempt(known, waiting);
        }
    }

    fn attempt(&self, known: &mut Known, waiting: Waiting) {
        match self.serve(known, waiting.space, &waiting.fault) {
            Ok(Served::Done) => {
                let stalled = u64::try_from(waiting.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
                known.counters.stall_ns = known.counters.stall_ns.saturating_add(stalled);
                known.counters.stall_ns_max = known.counters.stall_ns_max.max(stalled);
            }
            Ok(Served::Later) => {
                known.waiting.push(waiting);
                self.press(known);
            }
            // The process has ended; its space goes at the next look.
            Err(error) if error.errno() == Some(ESRCH) => {}
            Err(error) => {
                self.say_once(
                    "fault",
                    &format!("a page fault cannot be served, and is tried again: {error}"),
                );
                known.waiting.push(waiting);
            }
        }
        let resident = known.resident_bytes();
        let room = self.room_bytes(known);
        known.counters.resident_bytes_max = known.counters.resident_bytes_max.max(resident);
        if resident + self.low_bytes(room) > room {
            self.press(known);
        }
    }

    /// Has the evicting thread look, if it does not already.
    fn press(&self, known: &mut Known) {
        if std::mem::take(&mut known.is_evictor_idle) {
            self.pressure.notify_all();
        }
    }

    fn serve(&self, known: &mut Known, id: u64, fault: &Fault) -> Result<Served, OsError> {
        let room = self.room_bytes(known);
        let resident = known.resident_bytes();
        let is_stuck = known.is_stuck;
        let limit = room.max(known.ceiling_bytes);
        let clock = known.clock;
        let Some(space) = known.spaces.get_mut(&id) else { return Ok(Served::Done) };
        space.note_thread(fault.thread);
        let page = fault.address & !(PAGE - 1);
        let Some((start, end)) = space.table.unit(page) else {
            let fits = is_stuck || resident + PAGE <= limit;
            return if fits { serve_grown(space, page, fault, clock) } else { Ok(Served::Later) };
        };
        let Some(state) = space.table.state(page).cloned() else { return Ok(Served::Done) };
        // What is missing of what is resident is missing page by page; all else goes by content.
        let is_missing = matches!(state, State::Resident { .. }) && !fault.write_protect;
        let alike = space.table.alike(page, self.unit_bytes).filter(|_| !is_missing);
        let (start, end) = alike.unwrap_or((start, end));
        let fits = is_stuck || resident + (end - start) <= limit;
        let writes = fault.write || fault.write_protect;
        match state {
            State::Leaving { .. } => Ok(Served::Later),
            State::Resident { clean, stamp } => {
                let is_first_write = fault.write_protect && clean.is_some();
                // What is protected may be written from here on; what is missing are zeros.
                let done = if fault.write_protect {
                    unprotect(space, start, end)?
                } else {
                    fill(&space.faults, start, &ZEROS[..(end - start) as usize], false)?.complete
                };
                if !done {
                    return Ok(Served::Later);
                }
                // It is in use; and what was to stay longer does.
                let stamp = stamp.max(clock);
                space.table.update(start..end, |unit| *unit = State::Resident { clean: None, stamp });
                if is_first_write {
                    space.guess.was_written(start);
                    if self.service.guess {
                        ahead::open_sequence(space, start, end)?;
                    }
                }
                Ok(Served::Done)
            }
            State::Untouched if !fits => Ok(Served::Later),
            State::Untouched => {
                if !fill(&space.faults, start, &ZEROS[..(end - start) as usize], false)?.complete {
                    return Ok(Served::Later);
                }
                if fault.write_protect && !unprotect(space, start, end)? {
                    return Ok(Served::Later);
                }
                space.table.update(start..end, |unit| *unit = State::Resident { clean: None, stamp: clock });
                known.clock += end - start;
                known.counters.zero_bytes += end - start;
                known.counters.over_budget += u64::from(resident + (end - start) > limit);
                self.continue_sequence(known, id, (start, end), fault, room)?;
                Ok(Served::Done)
            }
            State::Far(_) if !fits => Ok(Served::Later),
            State::Far(piece) => {
                if !self.fetch(known, id, (start, end), &piece, Want::by_somebody(writes))? {
                    return Ok(Served::Later);
                }
                known.counters.over_budget += u64::from(resident + (end - start) > limit);
                self.continue_sequence(known, id, (start, end), fault, room)?;
                Ok(Served::Done)
            }
        }
    }

    /// Brings a far unit back. `false`: events must be read first.
    pub(crate) fn fetch(
        &self,
        known: &mut Known,
        id: u64,
        (start, end): (u64, u64),
        piece: &Piece<Copy>,
        want: Want,
    ) -> Result<bool, OsError> {
        let clock = known.clock;
        known.counters.slept += u64::from(want.waits && piece.copy.sleeps());
        let Some(space) = known.spaces.get_mut(&id) else { return Ok(true) };
        let content = match self.content(&piece.copy) {
            Some(Ok(content)) => content,
            Some(Err(why)) => return self.lose(space, (start, end), &why, clock),
            None => return Ok(false),
        };
        let protect = !want.writes && (!self.service.guess || space.guess.protects(start));
        let filled = fill(&space.faults, start, &placed(&content, piece.base, start, end), protect)?;
        if !filled.complete {
            return Ok(false);
        }
        self.reads.used(&piece.copy, content);
        // A page that was there before may have been written since it was copied.
        let is_clean = protect && !filled.found && !piece.copy.is_stranded();
        if want.writes && filled.found && !unprotect(space, start, end)? {
            return Ok(false);
        }
        let clean = is_clean.then(|| piece.clone());
        self.landed(known, id, (start, end), clean, want);
        Ok(true)
    }

    /// A far unit is here again, and its copy has the same bytes if it is given.
    pub(crate) fn landed(
        &self,
        known: &mut Known,
        id: u64,
        (start, end): (u64, u64),
        clean: Option<Piece<Copy>>,
        want: Want,
    ) {
        let (clock, room) = (known.clock, self.room_bytes(known));
        let filled = known.counters.zero_bytes + known.counters.fetched_bytes;
        let Some(space) = known.spaces.get_mut(&id) else { return };
        let is_on = self.service.refaults;
        let bytes = end - start;
        let away = space.refaults.away(start, clock);
        if want.waits {
            // The clock also jumps.
            let filled = |away: Clock| (away as f64 * filled as f64 / clock.max(1) as f64) as u64;
            known.enough.came(away.map(filled));
        }
        let stay = if is_on {
            space.refaults.came((start, bytes), clock, room, want.waits)
        } else {
            Stay::default()
        };
        if self.service.fit {
            let copy_at = |address: u64| match space.table.state(address) {
                Some(State::Far(piece)) => Some(piece.copy.key()),
                _ => None,
            };
            let is_other_far = Grains::other_half(start, bytes)
                .is_some_and(|other| copy_at(other).is_some_and(|copy| copy_at(start) != Some(copy)));
            let is_wanted = want.waits || want.foretold;
            space.grains.came(Return { start, bytes, is_wanted, is_other_far, away }, clock, room);
        }
        let stamp = clock + stay.longer;
        space.table.update(start..end, |unit| *unit = State::Resident { clean: clean.clone(), stamp });
        known.clock += end - start + stay.jump;
        known.counters.fetched_bytes += end - start;
    }

    /// The content of a copy: what was read ahead, or a small read here and now. `None`: it is being read.
    fn content(&self, copy: &Copy) -> Option<Content> {
        let known = self.reads.get(copy);
        if let Some(Err(_)) = &known {
            self.reads.forget(copy);
        }
        if known.is_some() {
            return known;
        }
        let is_long = copy.bytes() as u64 > HERE_BYTES_MAX && !copy.is_here();
        if self.service.readers > 0 && (is_long || self.reads.has(copy)) {
            self.reads.want(copy, true);
            // It may have come between the two.
            return self.reads.get(copy);
        }
        let mut content = self.reads.buffer(copy.bytes());
        let read = copy.read(&mut content);
        Some(read.map(|()| Arc::new(content)).map_err(|error| error.to_string()))
    }

    /// Content that nobody has any more: whoever touches it gets SIGBUS, never other bytes.
    fn lose(
        &self,
        space: &mut Space,
        (start, end): (u64, u64),
        why: &str,
        stamp: Clock,
    ) -> Result<bool, OsError> {
        self.lost_bytes.fetch_add(end - start, Ordering::Relaxed); // Relaxed: a number for people.
        say(format_args!(
            "{} bytes at {start:#x} of process {} are lost, so that it is stopped at its next touch (SIGBUS): {why}",
            end - start,
            space.process
        ));
        space.faults.poison(start, end - start, PAGE)?;
        space.table.update(start..end, |unit| *unit = State::Resident { clean: None, stamp });
        Ok(true)
    }
}

/// The bytes of `start..end`: those of the content, whose first byte belongs at `base`, and zeros outside of it.
pub(crate) fn placed(content: &[u8], base: i64, start: u64, end: u64) -> Cow<'_, [u8]> {
    // Addresses of programs have 47 bits: as signed numbers they do not change.
    let (start, end) = (start as i64, end as i64);
    let from = start.max(base);
    let to = end.min(base + content.len() as i64);
    let source = if from < to { &content[(from - base) as usize..(to - base) as usize] } else { &[] };
    if source.len() as i64 == end - start {
        return Cow::Borrowed(source);
    }
    let mut whole = vec![0; (end - start) as usize];
    if from < to {
        whole[(from - start) as usize..(to - start) as usize].copy_from_slice(source);
    }
    Cow::Owned(whole)
}

/// Fills the missing pages of a range, also where it spans mappings of different kinds.
pub(crate) fn fill(faults: &Userfault, address: u64, content: &[u8], protect: bool) -> Result<Fill, OsError> {
    match faults.try_copy(address, content, protect) {
        Ok(filled) => Ok(Fill {
            complete: filled.mapped_bytes + filled.present_bytes >= content.len() as u64,
            found: filled.present_bytes > 0,
        }),
        Err(error) if matches!(error.errno(), Some(ENOENT | EINVAL)) => {
            if content.len() as u64 <= PAGE {
                // No longer mapped, or no longer served: who waits tries again and sees for itself.
                faults.wake(address, PAGE)?;
                return Ok(Fill { complete: true, found: true });
            }
            let half = (content.len() as u64 / 2).next_multiple_of(PAGE);
            let first = fill(faults, address, &content[..half as usize], protect)?;
            if !first.complete {
                return Ok(first);
            }
            let second = fill(faults, address + half, &content[half as usize..], protect)?;
            // Where the kernel refused once, pages of the range may have been filled before.
            Ok(Fill { complete: second.complete, found: true })
        }
        Err(error) => Err(error),
    }
}

/// Lets a unit be written. `false`: events must be read first.
pub(crate) fn unprotect(space: &Space, start: u64, end: u64) -> Result<bool, OsError> {
    match space.faults.try_write_protect(start, end - start, false) {
        Ok(done) => Ok(done),
        Err(error) if matches!(error.errno(), Some(ENOENT | EINVAL)) => {
            space.faults.wake(start, end - start)?;
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Serves a page that no table has: a mapping grew by it, registered and never written, or its memory has been given back since the fault. Only
/// the kernel knows which, and what it does not serve must be in no table: it would leave, and come back as zeros.
fn serve_grown(space: &mut Space, page: u64, fault: &Fault, stamp: Clock) -> Result<Served, OsError> {
    match space.faults.try_copy(page, &ZEROS[..PAGE as usize], false) {
        Ok(filled) if filled.mapped_bytes + filled.present_bytes == 0 => Ok(Served::Later),
        Ok(_) => {
            if fault.write_protect && !unprotect(space, page, page + PAGE)? {
                return Ok(Served::Later);
            }
            space.table.add(page, page + PAGE);
            space.table.set(page, State::Resident { clean: None, stamp });
            Ok(Served::Done)
        }
        Err(error) if matches!(error.errno(), Some(ENOENT | EINVAL)) => {
            // Who waits tries again and sees for itself.
            space.faults.wake(page, PAGE)?;
            Ok(Served::Done)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_placed_where_it_belongs_and_zeros_around_it() {
        assert_eq!(*placed(&[1, 2, 3], 10, 9, 14), [0, 1, 2, 3, 0]);
        assert_eq!(*placed(&[1, 2, 3], 10, 11, 12), [2]);
        assert_eq!(*placed(&[1, 2, 3], 10, 20, 22), [0, 0]);
    }
}
