//! Answers the requests of one stream, one after the other, straight from and to the memory that they name.

use super::channel::{append, scatter, skip_parts};
use super::server::Shared;
use super::socket::{Socket, Spinner, Wait, is_idle};
use super::{CHECKED_BODY_BYTES, STAGING_BYTES};
use crate::part::Part;
use crate::rdma::SessionHost;
use crate::slice::{Slice, lost};
use hinterland_proto::checksum::crc32c;
use hinterland_proto::{
    ErrorCode, Established, FrameError, FrameHeader, FrameKind, FrameReceiver, FrameSender, HEADER_BYTES,
    RUN_BYTES, RemoteError, RunTable,
};
use hinterland_types::{ByteRange, Rights, SessionId};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A slow peer gets the stall timeout once for every so many bytes of an answer.
const BYTES_PER_STALL: usize = 1 << 20;
/// Bytes of an answer that wait until all others have left: few, as they are copied.
const HELD_BACK_BYTES: usize = 512;

/// Why a stream ends.
#[derive(Debug)]
enum End {
    /// The peer closed it, or the server stops.
    Closed,
    /// The peer sent what must not be believed.
    Frame,
    /// The peer stopped in the middle of something.
    Stalled,
    /// The connection broke.
    Broken,
}

impl From<FrameError> for End {
    fn from(_: FrameError) -> Self {
        Self::Frame
    }
}

/// The server's end of one stream.
pub(super) struct Stream<'a> {
    socket: &'a Socket,
    shared: &'a Arc<Shared>,
    session: SessionId,
    /// What the session reaches by RDMA, if this node has devices.
    rdma: Option<Arc<SessionHost>>,
    sender: FrameSender,
    receiver: FrameReceiver,
    staging: Box<[u8]>,
    start: usize,
    end: usize,
    /// Most bytes to receive into the staging buffer at once: little after a long write, because another may follow
    /// whose bytes shall go straight to their place.
    ahead: usize,
    /// Header and copied body of the answer.
    head: Vec<u8>,
    /// The body of a request that must be whole before it is used.
    body: Vec<u8>,
    /// What the request names; kept until the answer has left.
    slices: Vec<Slice>,
    parts: Vec<Part>,
    /// What is left of head and parts, as the next system call takes it.
    pieces: Vec<Part>,
}

impl<'a> Stream<'a> {
    pub fn new(socket: &'a Socket, shared: &'a Arc<Shared>, established: &Established) -> Self {
        Self {
            rdma: shared.rdma_of(established.ticket.session),
            socket,
            shared,
            session: established.ticket.session,
            sender: FrameSender::new(established.send_sequence),
            receiver: FrameReceiver::new(established.receive_sequence),
            staging: vec![0; STAGING_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            ahead: STAGING_BYTES,
            head: Vec::new(),
            body: Vec::new(),
            slices: Vec::new(),
            parts: Vec::new(),
            pieces: Vec::new(),
        }
    }

    /// Serves until the stream ends, for whatever reason: the session hears of its last one only.
    pub fn run(mut self) {
        while self.serve_one().is_ok() {
            self.slices.clear();
        }
    }

    fn serve_one(&mut self) -> Result<(), End> {
        let header = self.next_header()?;
        let long = header.kind == FrameKind::Write && header.body_bytes as usize >= STAGING_BYTES;
        self.ahead = if long { HEADER_BYTES + RUN_BYTES } else { STAGING_BYTES };
        match header.kind {
            FrameKind::Call => {
                self.receive_body(&header, header.body_bytes as usize)?;
                let reply = self.shared.service.call(self.session, &self.body);
                if let Some(rdma) = &self.rdma {
                    // What the call revoked is closed to the device before the caller hears that it is revoked.
                    rdma.revalidate(&*self.shared.service);
                }
                self.answer_call(&header, reply)
            }
            FrameKind::Verbs => {
                self.receive_body(&header, header.body_bytes as usize)?;
                match self.verbs() {
                    Ok(body) => self.answer(FrameKind::VerbsReply, &header, &body),
                    Err(error) => self.answer_error(&header, &error),
                }
            }
            FrameKind::Read => {
                self.receive_body(&header, header.body_bytes as usize)?;
                self.read(&header)
            }
            FrameKind::Fetch => {
                self.receive_body(&header, header.body_bytes as usize)?;
                self.fetch(&header)
            }
            FrameKind::Write => self.write(&header),
            FrameKind::CompareSwap | FrameKind::FetchAdd => {
                self.receive_body(&header, header.body_bytes as usize)?;
                let word = self.atomic(&header);
                self.answer_word(&header, word)
            }
            FrameKind::Close => Err(End::Closed),
            // Answers to nothing: the peer is broken or hostile.
            FrameKind::Reply
            | FrameKind::ReadReply
            | FrameKind::WriteReply
            | FrameKind::AtomicReply
            | FrameKind::VerbsReply
            | FrameKind::FetchReply
            | FrameKind::Error => Err(End::Frame),
        }
    }

    fn verbs(&self) -> Result<Vec<u8>, RemoteError> {
        let Some(rdma) = &self.rdma else {
            let text = "this node has no RDMA devices (hint: use TCP)";
            return Err(RemoteError::new(ErrorCode::MALFORMED, text));
        };
        rdma.answer(&self.shared.service, &self.body)
    }

    fn read(&mut self, header: &FrameHeader) -> Result<(), End> {
        let table = RunTable::parse(&self.body)?;
        let bytes = table.total_bytes() as usize;
        let resolved = table.iter().try_for_each(|range| {
            let slice = resolve(self.shared, self.session, header, range, Rights::READ)?;
            self.slices.push(slice);
            Ok(())
        });
        if let Err(error) = resolved {
            return self.answer_error(header, &error);
        }
        self.answer_slices(header, FrameHeader::new(FrameKind::ReadReply, header.request, bytes as u32))
    }

    fn fetch(&mut self, header: &FrameHeader) -> Result<(), End> {
        let (handle, slice) = match self.shared.service.fetch(self.session, &self.body) {
            Ok(found) => found,
            Err(error) => return self.answer_error(header, &error),
        };
        // At most 4 MiB: the shape of the frame sees to it.
        let bytes = slice.len().min(header.argument as usize);
        let mut reply = FrameHeader::new(FrameKind::FetchReply, header.request, bytes as u32);
        reply.handle = handle;
        reply.argument = slice.len() as u64;
        self.slices.extend(slice.sub(0, bytes));
        self.answer_slices(header, reply)
    }

    /// Answers with the bytes of all slices, from where they lie unless they are short or to be checked.
    fn answer_slices(&mut self, header: &FrameHeader, mut reply: FrameHeader) -> Result<(), End> {
        let bytes = reply.body_bytes as usize;
        self.head.clear();
        self.head.resize(HEADER_BYTES, 0);
        self.parts.clear();
        let is_checked = header.wants_body_crc || bytes <= CHECKED_BODY_BYTES;
        if is_checked || self.slices.iter().any(Slice::is_changing) {
            // What is checked is copied first: somebody else may change it between checksum and sending. The kernel copies to
            // where the bytes before have ended, which may be inside of a word.
            for slice in &self.slices {
                // SAFETY: the slice keeps its memory alive.
                unsafe { append(&mut self.head, Part::of_slice(slice)) };
            }
            if self.slices.iter().any(Slice::is_lost) {
                return self.answer_error(header, &lost());
            }
            reply.body_crc = is_checked.then(|| crc32c(&self.head[HEADER_BYTES..]));
        } else {
            self.parts.extend(self.slices.iter().map(Part::of_slice));
        }
        self.send(reply, HEADER_BYTES + bytes)
    }

    fn write(&mut self, header: &FrameHeader) -> Result<(), End> {
        let table_bytes = header.run_table_bytes();
        let body_bytes = header.body_bytes as usize;
        // A body with a checksum is believed only when it is whole.
        let mut whole = header.body_crc.is_some();
        self.receive_body(header, if whole { body_bytes } else { table_bytes })?;
        let table = RunTable::parse(&self.body[..table_bytes])?;
        if table.total_bytes() as usize != body_bytes - table_bytes {
            return Err(End::Frame);
        }
        let resolved = table.iter().try_for_each(|range| {
            let slice = resolve(self.shared, self.session, header, range, Rights::WRITE)?;
            self.slices.push(slice);
            Ok(())
        });
        if let Err(error) = resolved {
            if !whole {
                self.discard(body_bytes - table_bytes)?;
            }
            return self.answer_error(header, &error);
        }
        if !whole && self.slices.iter().any(Slice::is_changing) {
            // The kernel has it in pieces, which may end inside of a word.
            self.ahead = STAGING_BYTES;
            self.receive_more(body_bytes)?;
            whole = true;
        }
        if self.is_given_up() {
            return Err(End::Closed);
        }
        if whole {
            self.parts.clear();
            self.parts.extend(self.slices.iter().map(Part::of_slice));
            // SAFETY: the slices keep their memory alive and `resolve` checked that it may be written.
            unsafe { scatter(&self.body[table_bytes..], &self.parts, 0) };
        } else {
            self.receive_slices(body_bytes - table_bytes)?;
        }
        if self.slices.iter().any(Slice::is_lost) {
            return self.answer_error(header, &lost());
        }
        self.head.clear();
        self.head.resize(HEADER_BYTES, 0);
        self.parts.clear();
        self.send(FrameHeader::new(FrameKind::WriteReply, header.request, 0), HEADER_BYTES)
    }

    /// Whether the peer has given up what it asks for: it breaks the connection off then, asks anew over another one, and may have written
    /// other bytes since. A node that was stopped or starved still finds the request of before.
    fn is_given_up(&self) -> bool {
        self.socket.is_broken_off()
    }

    fn atomic(&self, header: &FrameHeader) -> Result<u64, RemoteError> {
        let operand = |index: usize| {
            let word = self.body[index * 8..].first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(word)
        };
        let range = ByteRange::new(header.argument, 8)
            .map_err(|error| RemoteError::new(ErrorCode::RANGE, error.to_string()))?;
        let slice = resolve(self.shared, self.session, header, range, Rights::READ | Rights::WRITE)?;
        if self.is_given_up() {
            return Err(RemoteError::new(ErrorCode::INTERNAL, "whoever asked has given it up"));
        }
        let before = match header.kind {
            FrameKind::CompareSwap => slice.compare_swap(operand(0), operand(1)),
            _ => slice.fetch_add(operand(0)),
        };
        if slice.is_lost() {
            return Err(lost());
        }
        let text = "the word is not aligned to 8 bytes in memory (hint: choose another offset)";
        before.ok_or_else(|| RemoteError::new(ErrorCode::MALFORMED, text))
    }

    fn answer_call(&mut self, header: &FrameHeader, reply: Result<Vec<u8>, RemoteError>) -> Result<(), End> {
        let limit = hinterland_types::limits::CONTROL_BYTES_MAX as usize;
        match reply {
            Ok(body) if body.len() <= limit => self.answer(FrameKind::Reply, header, &body),
            Ok(body) => {
                let text = format!("the answer of {} bytes is over the limit of {limit}", body.len());
                self.answer_error(header, &RemoteError::new(ErrorCode::LIMIT, text))
            }
            Err(error) => self.answer_error(header, &error),
        }
    }

    fn answer_word(&mut self, header: &FrameHeader, word: Result<u64, RemoteError>) -> Result<(), End> {
        match word {
            Ok(word) => self.answer(FrameKind::AtomicReply, header, &word.to_le_bytes()),
            Err(error) => self.answer_error(header, &error),
        }
    }

    fn answer_error(&mut self, header: &FrameHeader, error: &RemoteError) -> Result<(), End> {
        self.slices.clear();
        self.answer(FrameKind::Error, header, &error.to_body())
    }

    /// Answers with a body that is copied.
    fn answer(&mut self, kind: FrameKind, request: &FrameHeader, body: &[u8]) -> Result<(), End> {
        // Callers keep bodies at or below the limits of their kinds, far below 2^32.
        let mut reply = FrameHeader::new(kind, request.request, body.len() as u32);
        if request.wants_body_crc || body.len() <= CHECKED_BODY_BYTES {
            reply.body_crc = Some(crc32c(body));
        }
        self.head.clear();
        self.head.resize(HEADER_BYTES, 0);
        self.head.extend_from_slice(body);
        self.parts.clear();
        self.send(reply, HEADER_BYTES + body.len())
    }

    /// Sends a header, what is behind it in `head`, and `parts`. Sleeps when the socket is full, even if the stream
    /// spins for requests: then it is the peer that needs the processor.
    fn send(&mut self, reply: FrameHeader, bytes: usize) -> Result<(), End> {
        let sealed = self.sender.seal(reply);
        self.head[..HEADER_BYTES].copy_from_slice(&sealed);
        let started = Instant::now();
        let patience = self.shared.options.stall_timeout
            * u32::try_from(1 + bytes / BYTES_PER_STALL).unwrap_or(u32::MAX);
        let held = self.held_back();
        self.send_part(bytes - held, started, patience)?;
        if held > 0 {
            let parts_bytes: usize = self.parts.iter().map(|part| part.bytes()).sum();
            self.pieces.clear();
            skip_parts(&self.parts, parts_bytes - held, &mut self.pieces);
            self.head.clear();
            self.parts.clear();
            for piece in &self.pieces {
                // SAFETY: `self.slices` keeps the memory behind the parts alive.
                unsafe { append(&mut self.head, *piece) };
            }
            // What was there until now was there when it was sent: the peer gets the rest, or never all of it.
            if self.slices.iter().any(Slice::is_lost) {
                return Err(End::Broken);
            }
            self.send_part(held, started, patience)?;
        }
        Ok(())
    }

    /// How many bytes of what is sent from where it lies wait until it is known that it was there. Another request may be the first to miss pages of
    /// memory that was cut off, while the kernel, in the middle of sending, waits for a slow peer: then there are zeros in their place.
    fn held_back(&self) -> usize {
        let bytes: usize = self.parts.iter().map(|part| part.bytes()).sum();
        if self.slices.iter().any(Slice::is_guarded) { bytes.min(HELD_BACK_BYTES) } else { 0 }
    }

    /// Sends the first `bytes` bytes of `head` and `parts`.
    fn send_part(&mut self, bytes: usize, started: Instant, patience: Duration) -> Result<(), End> {
        let mut sent = 0;
        while sent < bytes {
            // As in `held_back`: there is no use in sending on.
            if self.slices.iter().any(Slice::is_lost) {
                return Err(End::Broken);
            }
            self.pieces.clear();
            skip_parts(&[Part::of(&self.head)], sent, &mut self.pieces);
            skip_parts(&self.parts, sent.saturating_sub(self.head.len()), &mut self.pieces);
            self.pieces.truncate(super::PARTS_MAX);
            let mut room = bytes - sent;
            self.pieces.retain_mut(|piece| {
                *piece = piece.first(room.min(piece.bytes()));
                room -= piece.bytes();
                piece.bytes() > 0
            });
            // SAFETY: the head is ours; `self.slices` keeps the memory behind the parts alive.
            match unsafe { self.socket.send(&self.pieces, Wait::Sleep) } {
                Ok(some) => sent += some,
                Err(error) if is_idle(&error) => self.check(started, patience)?,
                Err(_) => return Err(self.broken()),
            }
        }
        Ok(())
    }

    /// Waits for a header: spinning first, if that is allowed, then asleep for as long as it takes.
    fn next_header(&mut self) -> Result<FrameHeader, End> {
        if self.end - self.start < HEADER_BYTES && !self.spin()? {
            while self.end == self.start {
                self.fill(Wait::Sleep)?;
                if self.shared.is_stopping() {
                    return Err(End::Closed);
                }
            }
        }
        self.fill_to(HEADER_BYTES)?;
        let Some(bytes) = self.staging[self.start..].first_chunk::<HEADER_BYTES>() else {
            return Err(End::Frame);
        };
        let header = self.receiver.accept(bytes)?;
        self.start += HEADER_BYTES;
        Ok(header)
    }

    /// Spins until bytes come; false if spinning is not allowed or was in vain.
    fn spin(&mut self) -> Result<bool, End> {
        let options = &self.shared.options;
        if options.spin.is_zero() || self.end > self.start {
            return Ok(false);
        }
        // Relaxed: a count that limits how many cores are kept busy; nothing is published through it.
        let others = self.shared.spinners.fetch_add(1, Ordering::Relaxed);
        let result = if others < options.spinners_max { self.spin_for(options.spin) } else { Ok(false) };
        // Relaxed: as above.
        self.shared.spinners.fetch_sub(1, Ordering::Relaxed);
        result
    }

    fn spin_for(&mut self, most: Duration) -> Result<bool, End> {
        let started = Instant::now();
        let mut spinner = Spinner::default();
        loop {
            if self.fill(Wait::Never)? {
                return Ok(true);
            }
            if spinner.pause() && started.elapsed() >= most {
                return Ok(false);
            }
        }
    }

    /// Receives the first `bytes` bytes of a body into `self.body`; checks them, if they are all of it.
    fn receive_body(&mut self, header: &FrameHeader, bytes: usize) -> Result<(), End> {
        self.body.clear();
        self.receive_more(bytes)?;
        if bytes == header.body_bytes as usize {
            header.check_body(|| crc32c(&self.body))?;
        }
        Ok(())
    }

    /// Receives until `self.body` has `bytes` bytes.
    fn receive_more(&mut self, bytes: usize) -> Result<(), End> {
        let started = Instant::now();
        while self.body.len() < bytes {
            if self.end == self.start && !self.fill(Wait::Sleep)? {
                self.check(started, self.shared.options.stall_timeout)?;
            }
            let taken = (self.end - self.start).min(bytes - self.body.len());
            self.body.extend_from_slice(&self.staging[self.start..self.start + taken]);
            self.start += taken;
        }
        Ok(())
    }

    /// Receives `bytes` bytes into the slices: first what is staged, then straight from the socket.
    fn receive_slices(&mut self, bytes: usize) -> Result<(), End> {
        self.parts.clear();
        self.parts.extend(self.slices.iter().map(Part::of_slice));
        let mut filled = (self.end - self.start).min(bytes);
        // SAFETY: the slices keep their memory alive and `resolve` checked that it may be written.
        unsafe { scatter(&self.staging[self.start..self.start + filled], &self.parts, 0) };
        self.start += filled;
        let started = Instant::now();
        while filled < bytes {
            self.pieces.clear();
            skip_parts(&self.parts, filled, &mut self.pieces);
            self.pieces.truncate(super::PARTS_MAX);
            // SAFETY: as above.
            match unsafe { self.socket.receive(&self.pieces, Wait::Sleep) } {
                Ok(0) => return Err(End::Closed),
                Ok(some) => filled += some,
                Err(error) if is_idle(&error) => self.check(started, self.shared.options.stall_timeout)?,
                Err(_) => return Err(self.broken()),
            }
        }
        Ok(())
    }

    /// The end after a system call on memory of the service failed. The peer has part of a frame by then; if the memory is
    /// gone, the next request for it is refused.
    fn broken(&self) -> End {
        self.slices.iter().for_each(Slice::touch);
        End::Broken
    }

    /// Receives `bytes` bytes and forgets them.
    fn discard(&mut self, mut bytes: usize) -> Result<(), End> {
        let started = Instant::now();
        while bytes > 0 {
            if self.end == self.start && !self.fill(Wait::Sleep)? {
                self.check(started, self.shared.options.stall_timeout)?;
            }
            let taken = (self.end - self.start).min(bytes);
            self.start += taken;
            bytes -= taken;
        }
        Ok(())
    }

    /// Fills the staging buffer until it holds `bytes` bytes.
    fn fill_to(&mut self, bytes: usize) -> Result<(), End> {
        let started = Instant::now();
        while self.end - self.start < bytes {
            if !self.fill(Wait::Sleep)? {
                self.check(started, self.shared.options.stall_timeout)?;
            }
        }
        Ok(())
    }

    /// Receives once into the staging buffer; false if nothing came.
    fn fill(&mut self, wait: Wait) -> Result<bool, End> {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        } else if self.staging.len() - self.end < HEADER_BYTES {
            self.staging.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = self.staging.len().min(self.end + self.ahead);
        match self.socket.receive_bytes(&mut self.staging[self.end..room], wait) {
            Ok(0) => Err(End::Closed),
            Ok(received) => {
                self.end += received;
                Ok(true)
            }
            Err(error) if is_idle(&error) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(End::Closed),
            Err(_) => Err(End::Broken),
        }
    }

    fn check(&self, started: Instant, most: Duration) -> Result<(), End> {
        if self.shared.is_stopping() {
            return Err(End::Closed);
        }
        if started.elapsed() < most { Ok(()) } else { Err(End::Stalled) }
    }
}

/// Asks the service, and believes it only if the slice is what it should be.
fn resolve(
    shared: &Shared,
    session: SessionId,
    header: &FrameHeader,
    range: ByteRange,
    needed: Rights,
) -> Result<Slice, RemoteError> {
    let slice = shared.service.resolve(session, header.handle, range, needed)?;
    if slice.is_lost() {
        return Err(lost());
    }
    let writable = slice.is_writable() || !needed.allows(Rights::WRITE);
    if slice.len() as u64 == range.bytes() && writable {
        return Ok(slice);
    }
    let text = format!("the service gave {} bytes for a range of {}", slice.len(), range.bytes());
    Err(RemoteError::new(ErrorCode::INTERNAL, text))
}
