//! One connection: its socket, what came and is not understood yet, what waits to be sent.

use crate::shared::Shared;
use crate::transaction::Pending;
use hinterland_resp::reply::Mark;
use hinterland_resp::{Arguments, Limits, Parsed, ProtocolError, Replies, RequestParser};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

/// Least room for what the next read may bring.
const READ_BYTES_MIN: usize = 16 << 10;
/// Most that one turn reads from one connection, so that others have theirs.
const TURN_BYTES_MAX: usize = 4 << 20;
/// An input beyond this is given up when it is empty.
const KEPT_BYTES_MAX: usize = 8 << 20;
/// Replies that may wait before the next command of the connection waits too.
pub const REPLIES_BYTES_MAX: usize = 1 << 20;
/// What buffers of each connection may take without asking whether there is room.
pub const FREE_BYTES: usize = 64 << 10;

/// A socket of either kind.
#[derive(Debug)]
pub enum Stream {
    /// TCP.
    Tcp(TcpStream),
    /// Unix.
    Unix(UnixStream),
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
        }
    }
}

/// What came and is not used yet.
#[derive(Debug, Default)]
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Input {
    /// All of it.
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Bytes in the buffer, at places that hold until the next read.
    pub fn at(&self, place: std::ops::Range<usize>) -> &[u8] {
        self.bytes.get(place).unwrap_or_default()
    }

    /// The place of a range of [`unread`](Self::unread).
    pub const fn place(&self, range: std::ops::Range<usize>) -> std::ops::Range<usize> {
        self.start + range.start..self.start + range.end
    }

    /// `count` bytes are used; they stay at their place until the next read.
    pub fn used(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
    }

    /// Room for what comes, of which a request is known to need `wanted` bytes. It grows with what has come and not with
    /// what was announced.
    fn room(&mut self, wanted: usize) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > KEPT_BYTES_MAX && wanted < KEPT_BYTES_MAX {
                self.bytes = Vec::new();
            }
        }
        if self.bytes.len() - self.end < READ_BYTES_MIN {
            if self.start > 0 {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            if self.bytes.len() - self.end < READ_BYTES_MIN {
                let doubled = (self.bytes.len() * 2).max(READ_BYTES_MIN);
                // The last doubling stops at what is needed.
                let enough = wanted.max(self.end) + READ_BYTES_MIN;
                let bytes = doubled.min(enough).max(self.end + READ_BYTES_MIN);
                // Else it would be doubled once more for the few bytes behind a power of two.
                self.bytes.reserve_exact(bytes - self.bytes.len());
                self.bytes.resize(bytes, 0);
            }
        }
        &mut self.bytes[self.end..]
    }
}

/// Why a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Everything is answered: when it is sent.
    AfterReplies,
    /// The client is gone, or cannot be talked to.
    Now,
}

/// Which replies a client does not want (`CLIENT REPLY`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Silence {
    /// It wants all.
    #[default]
    None,
    /// Not the one to the next command.
    Next,
    /// Not the one to the command that runs.
    This,
    /// None.
    All,
}

impl Silence {
    /// A command begins.
    pub fn begin(&mut self) {
        if *self == Self::Next {
            *self = Self::This;
        }
    }

    /// It has ended: what it has appended behind `mark` is taken back if it is not wanted.
    pub fn end(&mut self, replies: &mut Replies, mark: Mark) {
        if matches!(self, Self::This | Self::All) {
            replies.back_to(mark);
        }
        if *self == Self::This {
            *self = Self::None;
        }
    }
}

/// What commands of a connection know of it and may change.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Its number.
    pub id: u64,
    /// Its database.
    pub database: usize,
    /// Whether it said the password, or there is none.
    pub is_known: bool,
    /// Whether and how it ends.
    pub end: Option<End>,
    /// What waits for `EXEC`.
    pub pending: Pending,
    /// Which replies are not wanted.
    pub silence: Silence,
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    /// What commands know of it.
    pub caller: Caller,
    /// The socket.
    pub stream: Stream,
    /// What came.
    pub input: Input,
    /// What waits to be sent.
    pub replies: Replies,
    /// Whether the client has sent its last byte.
    pub is_closed: bool,
    /// Writes of it that wait for the next message to the node.
    pub pending: usize,
    /// Since when what waits is not sent.
    pub stuck_since: Option<Instant>,
    /// Whether it was served since it was looked after.
    pub is_busy: bool,
    /// Whether it was served in this turn.
    pub is_served: bool,
    /// Whether there may be whole requests in the input that have not run.
    pub has_more: bool,
    /// What the poller was asked for: reading, writing.
    pub interest: (bool, bool),
    parser: RequestParser,
    /// Bytes that the next request needs at least.
    wanted: usize,
    accounted: usize,
    shared: Arc<Shared>,
}

impl Connection {
    /// A connection that has just come.
    pub fn new(id: u64, stream: Stream, shared: Arc<Shared>) -> Self {
        Self {
            caller: Caller {
                id,
                database: 0,
                is_known: shared.password.is_none(),
                end: None,
                pending: Pending::default(),
                silence: Silence::None,
            },
            stream,
            input: Input::default(),
            replies: Replies::default(),
            is_closed: false,
            pending: 0,
            stuck_since: None,
            is_busy: false,
            is_served: false,
            has_more: false,
            interest: (true, false),
            parser: RequestParser::default(),
            wanted: 0,
            accounted: 0,
            shared,
        }
    }

    /// Reads what has come, as much as one turn allows.
    pub fn receive(&mut self) {
        let mut taken = 0;
        while taken < TURN_BYTES_MAX && self.caller.end.is_none() && !self.is_closed {
            if self.is_over_budget() {
                self.refuse(
                    "OOM the buffers of all clients are full (hint: send less at once, or raise --buffers)",
                );
                return;
            }
            let room = self.input.room(self.wanted);
            let asked = room.len();
            match self.stream.read(room) {
                Ok(0) => self.is_closed = true,
                Ok(count) => {
                    self.input.end += count;
                    taken += count;
                    if count < asked {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.caller.end = Some(End::Now),
            }
        }
    }

    /// The next request, if it is whole: its bytes. [`request`](Self::request) has its words until the next call.
    ///
    /// # Errors
    /// [`ProtocolError`], and the connection cannot go on.
    pub fn parse(&mut self) -> Result<Option<usize>, ProtocolError> {
        if self.input.unread().is_empty() {
            self.wanted = 0;
            return Ok(None);
        }
        let limits = if self.caller.is_known { Limits::KNOWN } else { Limits::STRANGER };
        match self.parser.parse(self.input.unread(), &limits)? {
            Parsed::Request(bytes) => Ok(Some(bytes)),
            Parsed::More(bytes) => {
                self.wanted = bytes;
                Ok(None)
            }
        }
    }

    /// What a command needs at once: the words of the request that was just parsed, who asks, and where replies go.
    pub fn request(&mut self) -> (Arguments<'_>, &mut Caller, &mut Replies) {
        (self.parser.arguments(self.input.unread()), &mut self.caller, &mut self.replies)
    }

    /// The words of the request that was just parsed.
    pub fn words(&self) -> Arguments<'_> {
        self.parser.arguments(self.input.unread())
    }

    /// Sends what waits, as much as goes; whether all of it went.
    pub fn send(&mut self) -> bool {
        while !self.replies.unsent().is_empty() {
            match self.stream.write(self.replies.unsent()) {
                Ok(count) if count > 0 => {
                    self.replies.sent(count);
                    self.stuck_since = None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.stuck_since.get_or_insert_with(Instant::now);
                    return false;
                }
                Ok(_) | Err(_) => {
                    self.caller.end = Some(End::Now);
                    return false;
                }
            }
        }
        true
    }

    /// Answers with an error and ends.
    pub fn refuse(&mut self, text: &str) {
        self.replies.error(text);
        self.caller.end = Some(End::AfterReplies);
    }

    /// Tells the shared sum what the buffers take.
    pub fn account(&mut self) {
        let buffers = self.input.bytes.capacity() + self.replies.capacity();
        let taken = buffers + self.parser.capacity() + self.caller.pending.bytes();
        if taken != self.accounted {
            self.shared.buffer(self.accounted, taken);
            self.accounted = taken;
        }
    }

    /// Gives up buffers that are empty. To be called for connections that have been quiet for a while.
    pub fn rest(&mut self) {
        self.replies.rest();
        if self.input.start == self.input.end {
            self.input = Input::default();
            self.parser.rest();
        }
        self.account();
    }

    fn is_over_budget(&mut self) -> bool {
        self.account();
        self.accounted > FREE_BYTES && self.shared.room() == 0
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.buffer(self.accounted, 0);
        self.shared.leave(self.caller.id);
    }
}
