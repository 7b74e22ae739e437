//! Both ends of a stream of frames: numbering what leaves, checking and cutting up what comes.

use super::{FrameError, FrameHeader, HEADER_BYTES};
use crate::checksum::crc32c;

/// Smallest step in which a body's buffer grows.
const BODY_STEP_BYTES: usize = 64 << 10;

/// Numbers the frames that leave.
#[derive(Debug)]
pub struct FrameSender {
    next: u64,
}

/// Checks the headers that come: everything that [`FrameHeader::parse`] does, and the sequence.
#[derive(Debug)]
pub struct FrameReceiver {
    next: u64,
}

/// A whole frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Frame {
    /// The checked header.
    pub header: FrameHeader,
    /// The body; its checksum, if there is one, was checked.
    pub body: Vec<u8>,
}

/// Turns bytes, as they come, into frames.
///
/// Holds at most one body, at most as long as its kind allows, in a buffer of at most 64 KiB or twice the
/// bytes that came. The first error is kept: every later call returns it again.
#[derive(Debug)]
pub struct FrameDecoder {
    receiver: FrameReceiver,
    header_bytes: [u8; HEADER_BYTES],
    header_filled: usize,
    header: Option<FrameHeader>,
    body: Vec<u8>,
    failure: Option<FrameError>,
}

impl FrameSender {
    /// Starts at the number that the handshake gave for this direction.
    pub const fn new(first: u64) -> Self {
        Self { next: first }
    }

    /// Gives the frame its number and returns the header's bytes.
    pub fn seal(&mut self, mut header: FrameHeader) -> [u8; HEADER_BYTES] {
        header.sequence = self.next;
        self.next = self.next.wrapping_add(1);
        header.to_bytes()
    }
}

impl FrameReceiver {
    /// Starts at the number that the handshake gave for this direction.
    pub const fn new(first: u64) -> Self {
        Self { next: first }
    }

    /// Checks the next header.
    ///
    /// # Errors
    /// [`FrameError`]; the connection cannot be used any further.
    pub fn accept(&mut self, bytes: &[u8; HEADER_BYTES]) -> Result<FrameHeader, FrameError> {
        let header = FrameHeader::parse(bytes)?;
        if header.sequence != self.next {
            return Err(FrameError::Sequence { expected: self.next, found: header.sequence });
        }
        self.next = self.next.wrapping_add(1);
        Ok(header)
    }
}

impl FrameDecoder {
    /// A decoder whose first frame must have the number `first`.
    pub const fn new(first: u64) -> Self {
        Self {
            receiver: FrameReceiver::new(first),
            header_bytes: [0; HEADER_BYTES],
            header_filled: 0,
            header: None,
            body: Vec::new(),
            failure: None,
        }
    }

    /// Takes bytes from the front of `input` until a frame is whole or the input is empty.
    ///
    /// # Errors
    /// [`FrameError`] for a frame that must not be believed.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        self.advance(input).inspect_err(|failure| {
            self.failure = Some(*failure);
            self.body = Vec::new();
        })
    }

    /// Says whether the connection may end here.
    ///
    /// # Errors
    /// [`FrameError::Truncated`] inside a frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        let missing = match &self.header {
            Some(header) => header.body_bytes as usize - self.body.len(),
            None if self.header_filled == 0 => return Ok(()),
            None => HEADER_BYTES - self.header_filled,
        };
        Err(FrameError::Truncated { missing })
    }

    #[cfg(test)]
    pub(super) fn buffered_capacity(&self) -> usize {
        self.body.capacity()
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        let header = match self.header {
            Some(header) => header,
            None => {
                let taken = take(input, HEADER_BYTES - self.header_filled);
                self.header_bytes[self.header_filled..self.header_filled + taken.len()]
                    .copy_from_slice(taken);
                self.header_filled += taken.len();
                if self.header_filled < HEADER_BYTES {
                    return Ok(None);
                }
                *self.header.insert(self.receiver.accept(&self.header_bytes)?)
            }
        };
        let body_bytes = header.body_bytes as usize;
        let taken = take(input, body_bytes - self.body.len());
        grow(&mut self.body, taken.len(), body_bytes);
        self.body.extend_from_slice(taken);
        if self.body.len() < body_bytes {
            return Ok(None);
        }
        header.check_body(|| crc32c(&self.body))?;
        self.header = None;
        self.header_filled = 0;
        Ok(Some(Frame { header, body: std::mem::take(&mut self.body) }))
    }
}

fn take<'a>(input: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(most.min(input.len()));
    *input = rest;
    taken
}

/// Makes room for `more` bytes by doubling, but never past `limit` bytes: a length on the wire is a claim.
fn grow(body: &mut Vec<u8>, more: usize, limit: usize) {
    let needed = body.len() + more;
    if needed > body.capacity() {
        let wanted = needed.max(body.capacity() * 2).max(BODY_STEP_BYTES).min(limit);
        body.reserve_exact(wanted - body.len());
    }
}
