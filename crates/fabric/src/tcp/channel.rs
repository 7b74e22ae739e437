//! The client's end of one stream: requests go out, answers come straight into the caller's memory.
//!
//! Requests and answers are two queues in the same order. Nothing moves but in [`Channel::flush`] and
//! [`Channel::receive`], so memory that a request names is touched only inside them. Whoever begins a request must
//! keep its memory valid until the answer is there or the channel is dropped.

use super::socket::{Socket, Wait, is_idle};
use super::{CHECKED_BODY_BYTES, STAGING_BYTES};
use crate::error::FabricError;
use crate::part::Part;
use hinterland_os::copying::{load_words, store_words};
use hinterland_proto::checksum::{crc32c, crc32c_append};
use hinterland_proto::{
    Established, FrameHeader, FrameKind, FrameReceiver, FrameSender, HEADER_BYTES, RemoteError,
};
use hinterland_types::{Handle, NodeId};
use std::collections::VecDeque;
use std::io;

/// Answers from this size on are received straight into the caller's memory; below it one copy from the staging
/// buffer costs less than the more complicated system call.
const DIRECT_BYTES_MIN: usize = 4096;

/// A request to send.
pub(super) struct Request<'a> {
    pub kind: FrameKind,
    pub handle: Handle,
    pub argument: u64,
    /// The start of the body: a run table, a word, or all of a call.
    pub start: &'a [u8],
    /// The rest of the body, sent from where it lies.
    pub payload: &'a [Part],
    /// Where the bytes of the answer go.
    pub into: &'a [Part],
    /// The caller's name for the request.
    pub tag: u64,
    /// Whether both bodies carry checksums, however long they are.
    pub checked: bool,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) enum Answer {
    /// The bytes are in memory, here or there.
    Done,
    /// The word before an atomic operation.
    Word(u64),
    /// The body of a reply.
    Reply(Vec<u8>),
    /// The first bytes of what was found are in memory; there are so many, and the handle reaches them.
    Found(Handle, u64),
    /// The peer did not do it.
    Failed(RemoteError),
}

/// A frame on its way out.
#[derive(Default)]
struct Outgoing {
    /// Header and start of the body.
    head: Vec<u8>,
    payload: Vec<Part>,
    sent: usize,
    bytes: usize,
}

/// A request whose answer is due.
struct Pending {
    request: u64,
    tag: u64,
    answer: FrameKind,
    into: Vec<Part>,
    into_bytes: usize,
}

impl Pending {
    /// Forgets all memory behind the first `bytes`.
    fn keep_first(&mut self, bytes: usize) {
        let mut left = bytes;
        for part in &mut self.into {
            *part = part.first(left.min(part.bytes()));
            left -= part.bytes();
        }
        self.into_bytes = bytes;
    }
}

/// One stream to a node.
pub(super) struct Channel {
    socket: Socket,
    peer: NodeId,
    sender: FrameSender,
    receiver: FrameReceiver,
    request_next: u64,
    outgoing: VecDeque<Outgoing>,
    pending: VecDeque<Pending>,
    /// The header of the answer whose body is coming.
    header: Option<FrameHeader>,
    /// Bytes of that body that are in place.
    filled: usize,
    /// A body that has no place in the caller's memory.
    body: Vec<u8>,
    staging: Vec<u8>,
    start: usize,
    end: usize,
    parts: Vec<Part>,
    spare_outgoing: Vec<Outgoing>,
    spare_parts: Vec<Vec<Part>>,
}

impl Drop for Channel {
    /// Whoever gives a request up may make it again over another stream, and then others: the first one must not arrive after those.
    /// The kernel was told so from the start, since who is killed drops nothing. With no request left, the peer sees a plain end.
    fn drop(&mut self) {
        if self.pending.is_empty() && self.outgoing.is_empty() {
            self.socket.forget_unsent(false);
        }
    }
}

impl Channel {
    pub fn new(socket: Socket, established: &Established) -> Self {
        socket.forget_unsent(true);
        Self {
            socket,
            peer: established.node,
            sender: FrameSender::new(established.send_sequence),
            receiver: FrameReceiver::new(established.receive_sequence),
            request_next: 1,
            outgoing: VecDeque::new(),
            pending: VecDeque::new(),
            header: None,
            filled: 0,
            body: Vec::new(),
            staging: vec![0; STAGING_BYTES],
            start: 0,
            end: 0,
            parts: Vec::new(),
            spare_outgoing: Vec::new(),
            spare_parts: Vec::new(),
        }
    }

    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Requests whose answers are due.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether some of a request has not left yet.
    pub fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// The tags of all requests whose answers are due.
    pub fn pending_tags(&self) -> impl Iterator<Item = u64> {
        self.pending.iter().map(|pending| pending.tag)
    }

    /// Puts a request into the queue; [`flush`](Self::flush) sends it.
    ///
    /// # Safety
    /// `payload` must be readable and `into` writable, and apart from other memory in use, until the answer was
    /// received or the channel is dropped.
    pub unsafe fn begin(&mut self, request: &Request<'_>) {
        let payload_bytes: usize = request.payload.iter().map(|part| part.bytes()).sum();
        let into_bytes: usize = request.into.iter().map(|part| part.bytes()).sum();
        let body_bytes = request.start.len() + payload_bytes;
        let mut out = self.spare_outgoing.pop().unwrap_or_default();
        out.head.clear();
        out.head.extend_from_slice(&[0; HEADER_BYTES]);
        out.head.extend_from_slice(request.start);
        out.payload.clear();
        out.sent = 0;
        out.bytes = HEADER_BYTES + body_bytes;
        // Bodies are below 2^32: the cutter and the limit of calls see to it.
        let mut header = FrameHeader::new(request.kind, self.request_next, body_bytes as u32);
        header.handle = request.handle;
        header.argument = request.argument;
        header.wants_body_crc = request.checked || into_bytes <= CHECKED_BODY_BYTES;
        if request.checked || body_bytes <= CHECKED_BODY_BYTES {
            // What is checked is copied first: somebody else may change the memory between checksum and sending.
            for part in request.payload {
                // SAFETY: the caller vouches for the payload.
                unsafe { append(&mut out.head, *part) };
            }
            header.body_crc = Some(crc32c(&out.head[HEADER_BYTES..]));
        } else {
            out.payload.extend_from_slice(request.payload);
        }
        let sealed = self.sender.seal(header);
        out.head[..HEADER_BYTES].copy_from_slice(&sealed);
        let mut into = self.spare_parts.pop().unwrap_or_default();
        into.clear();
        into.extend_from_slice(request.into);
        self.pending.push_back(Pending {
            request: self.request_next,
            tag: request.tag,
            answer: answer_kind(request.kind),
            into,
            into_bytes,
        });
        self.outgoing.push_back(out);
        self.request_next += 1;
    }

    /// Sends what is queued, until all has left or the socket is full; returns whether all has left.
    pub fn flush(&mut self, wait: Wait) -> Result<bool, FabricError> {
        while let Some(out) = self.outgoing.front_mut() {
            self.parts.clear();
            let head = Part::of(&out.head);
            skip_parts(&[head], out.sent, &mut self.parts);
            skip_parts(&out.payload, out.sent.saturating_sub(out.head.len()), &mut self.parts);
            // SAFETY: the head lives in the queue; whoever began the request keeps the payload valid.
            match unsafe { self.socket.send(&self.parts, wait) } {
                Ok(sent) => out.sent += sent,
                Err(error) if is_idle(&error) => return Ok(false),
                Err(error) => return Err(self.lost(&error)),
            }
            if out.sent == out.bytes
                && let Some(done) = self.outgoing.pop_front()
            {
                self.spare_outgoing.push(done);
            }
        }
        Ok(true)
    }

    /// Receives until one answer is whole; `None` if there is not enough yet.
    pub fn receive(&mut self, wait: Wait) -> Result<Option<(u64, Answer)>, FabricError> {
        loop {
            if let Some(done) = self.digest()? {
                return Ok(Some(done));
            }
            if self.pending.is_empty() || !self.fill(wait)? {
                return Ok(None);
            }
        }
    }

    /// Takes what it can from the staging buffer.
    fn digest(&mut self) -> Result<Option<(u64, Answer)>, FabricError> {
        let header = match self.header {
            Some(header) => header,
            None if self.pending.is_empty() => return Ok(None),
            None => match self.open_header()? {
                Some(header) => header,
                None => return Ok(None),
            },
        };
        let body_bytes = header.body_bytes as usize;
        let taken = (self.end - self.start).min(body_bytes - self.filled);
        let staged = &self.staging[self.start..self.start + taken];
        if is_placed(header.kind) {
            if let Some(pending) = self.pending.front()
                && taken > 0
            {
                // SAFETY: whoever began the request keeps the memory valid and to itself.
                unsafe { scatter(staged, &pending.into, self.filled) };
            }
        } else {
            self.body.extend_from_slice(staged);
        }
        self.start += taken;
        self.filled += taken;
        if self.filled < body_bytes { Ok(None) } else { self.finish(&header).map(Some) }
    }

    /// Reads the header at the start of the staging buffer, if all of it is there.
    fn open_header(&mut self) -> Result<Option<FrameHeader>, FabricError> {
        let Some(bytes) = self.staging[self.start..self.end].first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let peer = self.peer;
        let header = self.receiver.accept(bytes).map_err(|error| FabricError::Frame { peer, error })?;
        self.start += HEADER_BYTES;
        let during = self.during();
        if header.kind == FrameKind::Close {
            return Err(FabricError::Closed { peer, during });
        }
        let Some(pending) = self.pending.front() else { return Ok(None) };
        let body_bytes = header.body_bytes as usize;
        let right_length = match header.kind {
            FrameKind::ReadReply => body_bytes == pending.into_bytes,
            FrameKind::FetchReply => body_bytes as u64 == header.argument.min(pending.into_bytes as u64),
            _ => true,
        };
        let wrong = if header.request != pending.request {
            Some("it answers another request")
        } else if header.kind != pending.answer && header.kind != FrameKind::Error {
            Some("it is an answer to something else")
        } else if !right_length {
            Some("it has another length")
        } else {
            None
        };
        if let Some(what) = wrong {
            return Err(FabricError::WrongAnswer { peer, during, what });
        }
        if header.kind == FrameKind::FetchReply
            && let Some(pending) = self.pending.front_mut()
        {
            // From here on it is like a read of as many bytes as there are.
            pending.keep_first(body_bytes);
        }
        self.header = Some(header);
        self.filled = 0;
        self.body.clear();
        Ok(Some(header))
    }

    /// The answer is whole.
    fn finish(&mut self, header: &FrameHeader) -> Result<(u64, Answer), FabricError> {
        self.header = None;
        let (peer, during) = (self.peer, self.during());
        let Some(pending) = self.pending.pop_front() else {
            return Err(FabricError::WrongAnswer { peer, during, what: "nothing was asked" });
        };
        let checksum = || match header.kind {
            // SAFETY: whoever began the request keeps the memory valid.
            kind if is_placed(kind) => unsafe { checksum_parts(&pending.into) },
            _ => crc32c(&self.body),
        };
        header.check_body(checksum).map_err(|error| FabricError::Frame { peer, error })?;
        let answer = match header.kind {
            FrameKind::Error => Answer::Failed(RemoteError::from_body(&self.body)),
            FrameKind::AtomicReply => {
                let word = self.body.first_chunk().copied().unwrap_or_default();
                Answer::Word(u64::from_le_bytes(word))
            }
            FrameKind::Reply | FrameKind::VerbsReply => Answer::Reply(std::mem::take(&mut self.body)),
            FrameKind::FetchReply => Answer::Found(header.handle, header.argument),
            _ => Answer::Done,
        };
        self.spare_parts.push(pending.into);
        Ok((pending.tag, answer))
    }

    /// Receives once; returns whether anything came.
    fn fill(&mut self, wait: Wait) -> Result<bool, FabricError> {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
        let staged = self.end - self.start;
        // How long the answer to a fetch is, its header says; until then nothing can go to its place.
        let ahead = self
            .pending
            .front()
            .filter(|pending| pending.answer != FrameKind::FetchReply)
            .map_or(0, |pending| pending.into_bytes);
        match self.header {
            Some(header) if is_placed(header.kind) => self.fill_body(wait),
            None if staged == 0 && ahead >= DIRECT_BYTES_MIN => self.fill_frame(wait),
            _ => {
                if self.staging.len() - self.end < HEADER_BYTES {
                    self.staging.copy_within(self.start..self.end, 0);
                    self.start = 0;
                    self.end = staged;
                }
                self.parts.clear();
                self.parts.push(Part::of_mut(&mut self.staging[self.end..]));
                let received = self.receive_parts(wait)?;
                self.end += received;
                Ok(received > 0)
            }
        }
    }

    /// Receives the rest of a body into its place, and what comes behind it into the staging buffer.
    fn fill_body(&mut self, wait: Wait) -> Result<bool, FabricError> {
        // `digest` took all that was staged before it asked for more.
        self.parts.clear();
        let Some(pending) = self.pending.front() else { return Ok(false) };
        skip_parts(&pending.into, self.filled, &mut self.parts);
        let wanted = pending.into_bytes - self.filled;
        let behind = self.behind();
        if behind > 0 {
            self.parts.push(Part::of_mut(&mut self.staging[..behind]));
        }
        let received = self.receive_parts(wait)?;
        self.filled += received.min(wanted);
        self.end = received.saturating_sub(wanted);
        Ok(received > 0)
    }

    /// Receives a header into the staging buffer and, in the hope that it is that of the expected answer, what
    /// comes behind it into the memory of that answer.
    fn fill_frame(&mut self, wait: Wait) -> Result<bool, FabricError> {
        let behind = self.behind();
        let Some(pending) = self.pending.front() else { return Ok(false) };
        let wanted = pending.into_bytes;
        self.parts.clear();
        self.parts.push(Part::of_mut(&mut self.staging[..HEADER_BYTES]));
        self.parts.extend_from_slice(&pending.into);
        if behind > 0 {
            self.parts.push(Part::of_mut(&mut self.staging[HEADER_BYTES..HEADER_BYTES + behind]));
        }
        let received = self.receive_parts(wait)?;
        if received <= HEADER_BYTES {
            self.end = received;
            return Ok(received > 0);
        }
        let placed = (received - HEADER_BYTES).min(wanted);
        self.end = received - placed;
        let header = self.open_header()?;
        if header.is_some_and(|header| header.kind == FrameKind::ReadReply) {
            self.filled = placed;
        } else if let Some(pending) = self.pending.front() {
            // It is an error: what lies in the caller's memory is its text and what came behind it.
            let rest = self.staging[self.start..self.end].to_vec();
            self.staging.truncate(self.start);
            // SAFETY: whoever began the request keeps the memory valid; `placed` bytes of it were just received.
            unsafe { gather(&pending.into, placed, &mut self.staging) };
            self.staging.extend_from_slice(&rest);
            self.end = self.staging.len();
            let room = self.end.max(STAGING_BYTES);
            self.staging.resize(room, 0);
        }
        Ok(true)
    }

    /// How much to receive behind the current answer: nothing if no other is due, a header if its body shall go
    /// straight to its place, else plenty.
    fn behind(&self) -> usize {
        match self.pending.get(1) {
            None => 0,
            Some(next) if next.into_bytes >= DIRECT_BYTES_MIN => HEADER_BYTES,
            Some(_) => STAGING_BYTES - HEADER_BYTES,
        }
    }

    /// Receives into `self.parts`; 0 if nothing is there.
    fn receive_parts(&mut self, wait: Wait) -> Result<usize, FabricError> {
        // SAFETY: the parts are pieces of the staging buffer, which lives, and of memory that whoever began the
        // request keeps valid.
        match unsafe { self.socket.receive(&self.parts, wait) } {
            Ok(0) => Err(FabricError::Closed { peer: self.peer, during: self.during() }),
            Ok(received) => Ok(received),
            Err(error) if is_idle(&error) => Ok(0),
            Err(error) => Err(self.lost(&error)),
        }
    }

    /// What the oldest request is, in words.
    pub fn during(&self) -> &'static str {
        match self.pending.front().map(|pending| pending.answer) {
            Some(FrameKind::ReadReply) => "a read",
            Some(FrameKind::FetchReply) => "a fetch",
            Some(FrameKind::WriteReply) => "a write",
            Some(FrameKind::AtomicReply) => "an atomic operation",
            Some(_) => "a call",
            None => "nothing",
        }
    }

    fn lost(&self, error: &io::Error) -> FabricError {
        let (peer, during) = (self.peer, self.during());
        match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected => FabricError::Closed { peer, during },
            _ if error.raw_os_error() == Some(libc::ETIMEDOUT) => {
                FabricError::Timeout { peer, during, after: super::socket::SILENCE_MAX }
            }
            _ => FabricError::System { what: "moving bytes over a socket", reason: error.to_string() },
        }
    }
}

const fn answer_kind(request: FrameKind) -> FrameKind {
    match request {
        FrameKind::Read => FrameKind::ReadReply,
        FrameKind::Write => FrameKind::WriteReply,
        FrameKind::CompareSwap | FrameKind::FetchAdd => FrameKind::AtomicReply,
        FrameKind::Verbs => FrameKind::VerbsReply,
        FrameKind::Fetch => FrameKind::FetchReply,
        _ => FrameKind::Reply,
    }
}

/// Whether the body of an answer goes into the caller's memory.
const fn is_placed(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::ReadReply | FrameKind::FetchReply)
}

/// Appends `parts` without their first `skip` bytes.
pub(super) fn skip_parts(parts: &[Part], mut skip: usize, out: &mut Vec<Part>) {
    for part in parts {
        if skip >= part.bytes() {
            skip -= part.bytes();
        } else {
            out.push(part.skip(skip));
            skip = 0;
        }
    }
}

/// Appends a copy of a part.
///
/// # Safety
/// The part must be readable memory.
pub(super) unsafe fn append(out: &mut Vec<u8>, part: Part) {
    let (before, bytes) = (out.len(), part.bytes());
    out.reserve(bytes);
    if bytes > 0 {
        // SAFETY: the caller vouches for the part; the vector has room and is apart from it.
        unsafe {
            load_words(part.start(), out.as_mut_ptr().add(before), bytes);
            out.set_len(before + bytes);
        }
    }
}

/// Copies `from` into the bytes of `parts` from `offset` on, as far as they go.
///
/// # Safety
/// Every part must be writable memory, apart from `from`.
pub(super) unsafe fn scatter(mut from: &[u8], parts: &[Part], mut offset: usize) {
    for part in parts {
        if offset >= part.bytes() {
            offset -= part.bytes();
            continue;
        }
        let piece = part.skip(offset);
        offset = 0;
        let bytes = piece.bytes().min(from.len());
        if bytes == 0 {
            return;
        }
        // SAFETY: the caller vouches for the part, and `bytes` fit into what is left of it.
        unsafe { store_words(from.as_ptr(), piece.start(), bytes) };
        from = &from[bytes..];
    }
}

/// Appends the first `bytes` bytes of `parts`.
///
/// # Safety
/// Every part must be readable memory.
unsafe fn gather(parts: &[Part], mut bytes: usize, out: &mut Vec<u8>) {
    for part in parts {
        let piece = part.first(bytes.min(part.bytes()));
        // SAFETY: the caller vouches for the part.
        unsafe { append(out, piece) };
        bytes -= piece.bytes();
    }
}

/// The checksum of all bytes of `parts`.
///
/// # Safety
/// Every part must be readable memory.
unsafe fn checksum_parts(parts: &[Part]) -> u32 {
    /// Copied out piece by piece: memory that others may change is never seen as a slice.
    const PIECE_BYTES: usize = 4096;
    let mut piece = Vec::with_capacity(PIECE_BYTES);
    let mut sum = 0;
    for part in parts {
        let mut rest = *part;
        while rest.bytes() > 0 {
            let now = rest.first(rest.bytes().min(PIECE_BYTES));
            piece.clear();
            // SAFETY: the caller vouches for the part.
            unsafe { append(&mut piece, now) };
            sum = crc32c_append(sum, &piece);
            rest = rest.skip(now.bytes());
        }
    }
    sum
}
