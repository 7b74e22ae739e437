//! The ring for requests that leave the rack: fixed-size entries that point into a data buffer, answered in any order.
//!
//! Requests that stay in the rack are answered in a microsecond, those that leave it take a hundred. On one ring
//! that one thread serves, the former wait behind the latter. So a session has two: a [`crate::Requester`] with its
//! [`crate::Responder`] for what stays, and this for what leaves. It has two layers (paper 004, section 5.2): a ring of
//! entries, the same as any, and a buffer that holds the messages, of any length up to [`MESSAGE_BYTES_MAX`].
//!
//! # Memory
//!
//! | offset | bytes | written by | contents |
//! | --- | --- | --- | --- |
//! | 0 | R = [`crate::session_bytes`] of the slots, rounded up to 4096 | both | rings of entries |
//! | R | D, a multiple of 64 | both | data |
//!
//! An entry is the body of a slot:
//!
//! | offset | bytes | request | answer |
//! | --- | --- | --- | --- |
//! | 0 | 1 | 1 | 1 answered, 2 failed, 3 the answer did not fit and is not there |
//! | 1 | 3 | 0 | 0 |
//! | 4 | 4 | offset of the message in the data | length of the answer, at the same offset |
//! | 8 | 4 | length of the message | 0 |
//! | 12 | 4 | room: bytes from the offset that the answer may take, at least the length of the message | 0 |
//! | 16 | 40 | 0 | 0 |
//!
//! # Who owns which bytes when
//!
//! The asker alone sets parts of the data aside, in a table of its own. A part is the asker's until its entry is
//! written, the other side's until the answer's entry is, and the asker's again after. The Release and Acquire of
//! the entry's slot order the bytes as they order its body.
//!
//! # Many threads at the answering side
//!
//! The answering side is two halves: a [`Taker`] and an [`Answerer`], each used by one thread at a time; threads take
//! turns under a lock. The argument that no slot is used too early (see [`crate`]) needs that whoever writes answer `r` knows
//! of `r + 1` requests taken: each answer is of a request that its thread took, and the lock orders answers.
//!
//! # A hostile peer
//!
//! Offsets, lengths and rooms are checked against the buffer's own size, a message is copied once and looked at then,
//! and an answer's length is checked against what the asker itself had set aside. A peer that lets two requests name the same
//! bytes gets mixed answers, in its own memory.

use crate::extents::{Extent, Extents, LINE_BYTES};
use crate::layout::{Session, session_bytes, wait_until};
use crate::requester::{Listener, Requester, Ticket};
use crate::responder::WakeBy;
use crate::ring::{Inlet, Outlet};
use crate::slot::{BODY_BYTES, Body};
use crate::{RingError, SLOTS_MAX};
use hinterland_os::{SharedSlice, SpinBudget};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Longest message, and longest answer: what a peer can make the other side copy at once.
pub const MESSAGE_BYTES_MAX: usize = 256 << 10;
/// Largest data buffer.
pub const DATA_BYTES_MAX: usize = 64 << 20;

const CALL: u8 = 1;
const ANSWERED: u8 = 1;
const FAILED: u8 = 2;
const TOO_LONG: u8 = 3;

/// The memory of a two-layer ring, checked. Both ends are made from it.
#[derive(Clone, Debug)]
pub struct Layers {
    session: Session,
    data: SharedSlice,
}

impl Layers {
    /// Bytes of memory that are needed.
    ///
    /// # Errors
    /// [`RingError::BadSlots`], [`RingError::BadData`].
    pub fn bytes(slots: u32, data_bytes: usize) -> Result<usize, RingError> {
        Ok(Self::data_offset(slots, data_bytes)? + data_bytes)
    }

    /// Makes an empty ring in memory that nobody uses.
    ///
    /// # Errors
    /// [`RingError::BadSlots`], [`RingError::BadData`], [`RingError::Memory`].
    pub fn format(memory: &SharedSlice, slots: u32, data_bytes: usize) -> Result<Self, RingError> {
        Self::over(memory, slots, data_bytes, Session::format)
    }

    /// Takes memory that the other side has formatted; the numbers come from the handshake.
    ///
    /// # Errors
    /// As [`format`](Self::format); [`RingError::Foreign`].
    pub fn attach(memory: &SharedSlice, slots: u32, data_bytes: usize) -> Result<Self, RingError> {
        Self::over(memory, slots, data_bytes, Session::attach)
    }

    fn over(
        memory: &SharedSlice,
        slots: u32,
        data_bytes: usize,
        make: fn(SharedSlice, u32) -> Result<Session, RingError>,
    ) -> Result<Self, RingError> {
        let at = Self::data_offset(slots, data_bytes)?;
        let data = memory.sub(at, data_bytes)?;
        Ok(Self { session: make(memory.sub(0, at)?, slots)?, data })
    }

    fn data_offset(slots: u32, data_bytes: usize) -> Result<usize, RingError> {
        let rings = session_bytes(slots)?;
        if data_bytes == 0 || data_bytes > DATA_BYTES_MAX || !data_bytes.is_multiple_of(LINE_BYTES) {
            return Err(RingError::BadData { bytes: data_bytes });
        }
        Ok(rings.next_multiple_of(4096))
    }

    /// The answering end: its two halves.
    pub fn answering(self) -> (Taker, Answerer) {
        let unanswered = Arc::new(AtomicU32::new(0));
        let taker = Taker {
            layers: self.clone(),
            inlet: Inlet::default(),
            unanswered: Arc::clone(&unanswered),
            // What leaves the rack takes far longer than being woken, and who spins takes a processor from what stays.
            budget: SpinBudget::new(1),
        };
        (taker, Answerer { layers: self, outlet: Outlet::default(), unanswered })
    }
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It was answered; the answer was copied.
    Answered,
    /// It failed; what was copied says why.
    Failed,
    /// It was served, but its answer did not fit in the room.
    TooLong {
        /// What the answer would have taken, as the peer says.
        bytes: u32,
        /// What was set aside for it, at least as much as was asked for.
        room: usize,
    },
}

/// The end that asks. For one thread at a time; [`listener`](Self::listener) lets it wait while others submit.
#[derive(Debug)]
pub struct Asker {
    requester: Requester,
    data: SharedSlice,
    extents: Extents,
    /// For each number below the number of slots: the part of the request that is out under it.
    out: Vec<Option<Extent>>,
}

impl Asker {
    /// Takes the asking end of a ring that has just been formatted.
    pub fn new(layers: Layers) -> Self {
        let extents = Extents::new(layers.data.len());
        let out = vec![None; layers.session.slots() as usize];
        Self { requester: Requester::new(layers.session, WakeBy::Futex), data: layers.data, extents, out }
    }

    /// Writes a request whose answer may take `room` bytes. Call [`flush`](Self::flush) after a batch.
    ///
    /// # Errors
    /// [`RingError::TooLong`] if message or room are longer than [`MESSAGE_BYTES_MAX`] or the data; [`RingError::Full`] if no
    /// slot or no part of the data is free until an answer was taken; [`RingError::Broken`].
    pub fn submit(&mut self, message: &[u8], room: usize) -> Result<Ticket, RingError> {
        let room = room.max(message.len());
        let limit = MESSAGE_BYTES_MAX.min(self.data.len());
        if room > limit {
            return Err(RingError::TooLong { bytes: room, limit });
        }
        let full = RingError::Full { slots: self.requester.capacity() };
        if self.requester.outstanding() == self.requester.capacity() {
            return Err(full);
        }
        let extent = self.extents.take(room).ok_or(full)?;
        // At most 64 MiB each: the casts lose nothing.
        let entry = entry(CALL, extent.offset as u32, message.len() as u32, room as u32);
        let submitted = match self.data.write_at(extent.offset, message) {
            Ok(()) => self.requester.submit(&entry),
            Err(error) => Err(error.into()),
        };
        match submitted {
            Ok(ticket) => self.out[self.requester.number_of(ticket)] = Some(extent),
            Err(_) => self.extents.give(extent),
        }
        submitted
    }

    /// Makes requests arrive, and wakes the other side if it sleeps.
    pub fn flush(&self) {
        self.requester.flush();
    }

    /// Requests without an answer so far.
    pub fn outstanding(&self) -> u32 {
        self.requester.outstanding()
    }

    /// Copies the next answer to `into` in place of what is there, if one has come. Never waits.
    ///
    /// # Errors
    /// [`RingError::Broken`], for ever from the first answer that makes no sense.
    pub fn poll(&mut self, into: &mut Vec<u8>) -> Result<Option<(Ticket, Verdict)>, RingError> {
        let Some(response) = self.requester.poll()? else { return Ok(None) };
        let extent = self.out[self.requester.number_of(response.ticket)].take();
        let Some(extent) = extent else {
            return Err(self.requester.break_off("an answer to a request that has no room"));
        };
        self.extents.give(extent);
        let bytes = u32_at(&response.body, 4);
        let verdict = match response.body[0] {
            ANSWERED => Verdict::Answered,
            FAILED => Verdict::Failed,
            TOO_LONG => {
                into.clear();
                return Ok(Some((response.ticket, Verdict::TooLong { bytes, room: extent.bytes })));
            }
            _ => return Err(self.requester.break_off("an answer of an unknown kind")),
        };
        if bytes as usize > extent.bytes {
            return Err(self.requester.break_off("an answer longer than its room"));
        }
        into.resize(bytes as usize, 0);
        self.data.read_at(extent.offset, into)?;
        Ok(Some((response.ticket, verdict)))
    }

    /// Waits for the next answer, spinning first; `false` when the time is over. Flushes before.
    ///
    /// # Errors
    /// [`RingError::Broken`].
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, RingError> {
        self.requester.wait(timeout)
    }

    /// Waits in the place of this end, as it is: until it has taken another answer.
    pub fn listener(&self) -> Listener {
        self.requester.listener()
    }

    /// Takes over what a listener learned about waiting.
    pub fn learn_from(&mut self, listener: &Listener) {
        self.requester.learn_from(listener);
    }
}

/// A request that was taken; its answer names it.
#[derive(Debug, PartialEq, Eq)]
pub struct Errand {
    tag: u32,
    offset: usize,
    room: usize,
}

/// The half of the answering end that takes requests. For one thread at a time.
#[derive(Debug)]
pub struct Taker {
    layers: Layers,
    inlet: Inlet,
    unanswered: Arc<AtomicU32>,
    budget: SpinBudget,
}

impl Taker {
    /// Copies the next request to `into` in place of what is there, if one has come. Never waits.
    ///
    /// # Errors
    /// [`RingError::Broken`] for an entry that points outside the data: the peer cannot be believed any more.
    pub fn take(&mut self, into: &mut Vec<u8>) -> Result<Option<Errand>, RingError> {
        // Relaxed: only bounds how many are out; slots and data are ordered by the entries.
        if self.unanswered.load(Ordering::Relaxed) >= self.layers.session.slots() {
            return Ok(None);
        }
        let Some((tag, body)) = self.layers.session.take_request(&mut self.inlet) else { return Ok(None) };
        let (offset, bytes, room) =
            (u32_at(&body, 4) as usize, u32_at(&body, 8) as usize, u32_at(&body, 12) as usize);
        let data_bytes = self.layers.data.len();
        let fits = offset <= data_bytes && room <= data_bytes - offset;
        if body[0] != CALL || !fits || bytes > room || room > MESSAGE_BYTES_MAX {
            return Err(RingError::Broken { reason: "a request points outside the data" });
        }
        into.resize(bytes, 0);
        self.layers.data.read_at(offset, into)?;
        // Relaxed: as above.
        self.unanswered.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Errand { tag, offset, room }))
    }

    /// Waits until a request is there; asleep, after two looks. `false` when the time is over first.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let (session, inlet) = (&self.layers.session, &self.inlet);
        let ready = || session.has_request(inlet);
        wait_until(ready, session.audible(session.responder_bell()), &mut self.budget, timeout)
    }
}

/// The half of the answering end that answers. For one thread at a time.
#[derive(Debug)]
pub struct Answerer {
    layers: Layers,
    outlet: Outlet,
    unanswered: Arc<AtomicU32>,
}

impl Answerer {
    /// Answers a request, with an error if it `has_failed`, and wakes the other side if it sleeps.
    ///
    /// # Errors
    /// [`RingError::NothingToAnswer`] for an errand of another ring; [`RingError::Memory`].
    pub fn answer(&mut self, errand: Errand, bytes: &[u8], has_failed: bool) -> Result<(), RingError> {
        // Relaxed, both: only bounds how many are out, as in take(); nobody else counts down.
        if self.unanswered.load(Ordering::Relaxed) == 0 {
            return Err(RingError::NothingToAnswer { tag: errand.tag });
        }
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
        let kind = match (bytes.len() <= errand.room, has_failed) {
            (false, _) => TOO_LONG,
            (true, false) => ANSWERED,
            (true, true) => FAILED,
        };
        if kind != TOO_LONG {
            self.layers.data.write_at(errand.offset, bytes)?;
        }
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let session = &self.layers.session;
        session.push_response(&mut self.outlet, errand.tag, &entry(kind, length, 0, 0));
        let bell = session.requester_bell();
        if session.must_wake(bell) {
            bell.wake();
        }
        Ok(())
    }
}

fn entry(kind: u8, first: u32, second: u32, third: u32) -> Body {
    let mut body = [0; BODY_BYTES];
    body[0] = kind;
    body[4..8].copy_from_slice(&first.to_le_bytes());
    body[8..12].copy_from_slice(&second.to_le_bytes());
    body[12..16].copy_from_slice(&third.to_le_bytes());
    body
}

fn u32_at(body: &Body, offset: usize) -> u32 {
    u32::from_le_bytes([body[offset], body[offset + 1], body[offset + 2], body[offset + 3]])
}

const _: () = assert!(SLOTS_MAX as usize * LINE_BYTES <= DATA_BYTES_MAX);
