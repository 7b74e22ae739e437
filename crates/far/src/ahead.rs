//! What follows a fault of a program that reads or writes in order: it is filled, read, or opened to writing, before it is touched.

use crate::engine::{Engine, Known, Space};
use crate::fault::{Want, ZEROS, fill, unprotect};
use crate::store::Copy;
use hinterland_farplan::room::FILL_SHARE;
use hinterland_farplan::stride::{self, FILL_BYTES_MAX, Next, PASSED_BYTES_MAX, Touch};
use hinterland_farplan::width::BESIDE_BYTES_MIN;
use hinterland_farplan::{PAGE, Piece, State};
use hinterland_os::OsError;
use hinterland_os::userfault::Fault;

/// Most bytes of several units that are filled by one call.
const TOGETHER_BYTES_MAX: u64 = 128 << 10;

/// What was done of a window.
struct Window {
    /// One past the last unit that is there.
    end: u64,
    /// Bytes of it that were there before.
    passed: u64,
}

impl Engine {
    /// Fills what follows a unit, or lies along the steps of its thread, if the program goes on in order and there is room to spare.
    pub(crate) fn continue_sequence(
        &self,
        known: &mut Known,
        id: u64,
        (start, end): (u64, u64),
        fault: &Fault,
        room: u64,
    ) -> Result<(), OsError> {
        if !self.ahead {
            return Ok(());
        }
        let Some(space) = known.spaces.get_mut(&id) else { return Ok(()) };
        let writes = fault.write || fault.write_protect;
        let page = fault.address & !(PAGE - 1);
        let touch = Touch { thread: fault.thread, page, start, end, writes };
        let trends = self.service.trends.then_some(&mut space.trends);
        let (sequence, bytes) = match stride::next(&mut space.sequences, trends, touch) {
            Next::Window { sequence, bytes } => (sequence, bytes),
            Next::Along(trend) => {
                // Who learns from faults learns from all of them.
                self.watch.ahead(id, start, end, 0);
                return self.follow_trend(known, id, page, trend, writes);
            }
            Next::Nothing => {
                self.watch.ahead(id, start, end, 0);
                return Ok(());
            }
        };
        let opens = self.service.guess && space.sequences.writes(sequence);
        let bytes = self.watch.ahead(id, start, end, bytes);
        if bytes == 0 {
            return Ok(());
        }
        // Several sequences must not push out what the others filled and nobody has touched yet.
        let most = bytes.min(FILL_BYTES_MAX).min(room / FILL_SHARE);
        let window = self.fill_window(known, id, end, most, opens, room)?;
        if let Some(space) = known.spaces.get_mut(&id) {
            space.sequences.fetched(sequence, window.end);
            self.read_ahead(space, window.end, end.saturating_add(window.passed + bytes));
        }
        Ok(())
    }

    /// Fills up to so many bytes from an address on. What is there already is passed over.
    fn fill_window(
        &self,
        known: &mut Known,
        id: u64,
        start: u64,
        most: u64,
        opens: bool,
        room: u64,
    ) -> Result<Window, OsError> {
        // Less than where eviction begins, or it would never begin.
        let spare = self.low_bytes(room) / 2;
        let mut window = Window { end: start, passed: 0 };
        let mut filled = 0;
        loop {
            let resident = known.resident_bytes();
            let Some(space) = known.spaces.get_mut(&id) else { break };
            if window.passed < PASSED_BYTES_MAX {
                let end = space.table.resident_end(window.end, PASSED_BYTES_MAX - window.passed);
                window.passed += end - window.end;
                window.end = end;
            }
            let Some((from, mut to)) = space.table.alike(window.end, self.unit_bytes) else { break };
            let state = space.table.state(from).cloned();
            let is_first = matches!(state, Some(State::Untouched));
            if filled >= most || resident + (to - from) + spare > room {
                break;
            }
            match state {
                Some(State::Untouched) => {
                    if !fill(&space.faults, from, &ZEROS[..(to - from) as usize], false)?.complete {
                        break;
                    }
                    let stamp = known.clock;
                    space.table.update(from..to, |unit| *unit = State::Resident { clean: None, stamp });
                    known.clock += to - from;
                    known.counters.zero_bytes += to - from;
                }
                Some(State::Far(piece)) => {
                    let left = (most - filled).min(room - spare - resident);
                    let Some(end) = self.fill_far(known, id, (from, to), &piece, left, opens)? else { break };
                    to = end;
                }
                _ => break,
            }
            known.counters.ahead_bytes += to - from;
            self.watch.filled(self.unit_bytes, id, (from, to), is_first, opens);
            filled += to - from;
            window.end = to;
        }
        Ok(window)
    }

    /// Brings back a far unit, and small ones behind it, of all together at most so many bytes. Returns where they end; `None`: content must be
    /// read first, or events.
    fn fill_far(
        &self,
        known: &mut Known,
        id: u64,
        (start, end): (u64, u64),
        piece: &Piece<Copy>,
        most: u64,
        opens: bool,
    ) -> Result<Option<u64>, OsError> {
        if self.is_read_beside(&piece.copy) && self.reads.get(&piece.copy).is_none() {
            return Ok(None);
        }
        let most = if self.service.together { most.min(TOGETHER_BYTES_MAX) } else { 0 };
        let together = known.spaces.get(&id).map_or_else(Vec::new, |space| self.together(space, start, most));
        if together.len() < 2 {
            let want = Want { waits: false, foretold: false, writes: opens };
            return Ok(self.fetch(known, id, (start, end), piece, want)?.then_some(end));
        }
        let bytes: usize = together.iter().map(|piece| piece.copy.bytes()).sum();
        let done = self.fetch_together(known, id, start, &together, opens)?;
        Ok(done.then_some(start + bytes as u64))
    }

    /// What neighbouring far units from an address on hold, at most so many bytes, each with a copy of its own that is read here and now.
    fn together(&self, space: &Space, from: u64, most: u64) -> Vec<Piece<Copy>> {
        let mut together = Vec::new();
        let mut at = from;
        while let Some((start, end)) = space.table.alike(at, self.unit_bytes)
            && let Some(State::Far(piece)) = space.table.state(at)
            && start == at
            && end - from <= most
            && piece.base == start as i64
            && piece.copy.bytes() as u64 == end - start
            && !self.is_read_beside(&piece.copy)
            && !self.reads.has(&piece.copy)
        {
            together.push(piece.clone());
            at = end;
        }
        together
    }

    /// Brings neighbouring units back by one call, ahead of a program. `false`: events must be read first, or one of them is better asked for alone.
    fn fetch_together(
        &self,
        known: &mut Known,
        id: u64,
        start: u64,
        together: &[Piece<Copy>],
        opens: bool,
    ) -> Result<bool, OsError> {
        let Some(space) = known.spaces.get_mut(&id) else { return Ok(true) };
        let mut content = self.reads.buffer(together.iter().map(|piece| piece.copy.bytes()).sum());
        let mut rest = &mut content[..];
        for piece in together {
            let (own, others) = rest.split_at_mut(piece.copy.bytes());
            rest = others;
            if piece.copy.read(own).is_err() {
                // Its touch says what is lost.
                return Ok(false);
            }
        }
        let protect = !opens && (!self.service.guess || space.guess.protects(start));
        let filled = fill(&space.faults, start, &content, protect)?;
        let bytes = content.len() as u64;
        self.reads.keep(content);
        if !filled.complete || opens && filled.found && !unprotect(space, start, start + bytes)? {
            return Ok(false);
        }
        known.counters.together_bytes += bytes;
        for piece in together {
            let is_clean = protect && !filled.found && !piece.copy.is_stranded();
            let unit = (piece.base as u64, piece.base as u64 + piece.copy.bytes() as u64);
            self.landed(known, id, unit, is_clean.then(|| piece.clone()), Want::default());
        }
        Ok(true)
    }

    /// Has the far units of a range read that are long enough for other threads.
    fn read_ahead(&self, space: &Space, from: u64, until: u64) {
        if self.unit_bytes <= BESIDE_BYTES_MIN {
            return;
        }
        let mut at = from;
        while at < until
            && let Some((_, end)) = space.table.unit(at)
        {
            if let Some(State::Far(piece)) = space.table.state(at)
                && self.is_read_beside(&piece.copy)
                && !self.reads.want(&piece.copy, false)
            {
                break;
            }
            at = end;
        }
    }

    fn is_read_beside(&self, copy: &Copy) -> bool {
        self.service.readers > 0 && copy.bytes() as u64 > BESIDE_BYTES_MIN && !copy.is_here()
    }
}

/// After the first write to a unit that was filled for reading: what follows it in order is likely to be written as well.
pub(crate) fn open_sequence(space: &mut Space, start: u64, end: u64) -> Result<(), OsError> {
    if let Some(until) = space.sequences.written(start) {
        return open(space, end, until).map(drop);
    }
    let (index, bytes) = space.sequences.fault(start, end, true);
    let reached = open(space, end, end.saturating_add(bytes.min(FILL_BYTES_MAX)))?;
    space.sequences.fetched(index, reached);
    Ok(())
}

/// Lets what is here of a range be written without a fault, up to the first unit that is not here; returns where that is.
pub(crate) fn open(space: &mut Space, from: u64, until: u64) -> Result<u64, OsError> {
    let (mut at, mut protected) = (from, from);
    while at < until
        && let Some((_, to)) = space.table.unit(at)
        && let Some(State::Resident { clean, stamp }) = space.table.state(at)
    {
        let (is_clean, stamp) = (clean.is_some(), *stamp);
        if is_clean {
            // First: what the table calls clean must not be open, whatever the kernel says.
            space.table.set(at, State::Resident { clean: None, stamp });
            protected = to;
        }
        at = to;
    }
    if protected > from {
        // What stays protected is opened at its first write.
        let _ = unprotect(space, from, protected)?;
    }
    Ok(at)
}
