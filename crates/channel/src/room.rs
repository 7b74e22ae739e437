//! Room for one frame, written in place and then published.

use crate::error::ChannelError;
use crate::sender::Sender;
use crate::{FRAME_HEADER_BYTES, frame_bytes};
use hinterland_os::shared_slice::copy_racing;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

/// Room for the body of a frame. Dropped without a commit, it was never there.
///
/// It can be written and not read: within a host the peer may change it at any time. Bytes that were not written hold
/// what an earlier frame of this direction left there.
#[derive(Debug)]
pub struct Room<'sender> {
    sender: &'sender mut Sender,
    body: *mut u8,
    body_bytes: usize,
    filled: usize,
}

impl<'sender> Room<'sender> {
    /// Takes room that the sender has found, and writes the header of the frame into it.
    #[inline]
    pub(crate) fn new(sender: &'sender mut Sender, word: u32, body_bytes: usize) -> Self {
        let start = sender.place();
        let header = u64::from(word) << 32 | body_bytes as u64;
        let bytes = frame_bytes(body_bytes);
        // SAFETY: the sender has found `bytes` bytes of room at `start`, which is a multiple of 8 inside a live writable
        // mapping of twice the ring; only we write there until we publish. The last word lies within them.
        unsafe {
            // Relaxed: published by the position, see Outlet::publish().
            AtomicU64::from_ptr(start.cast()).store(header, Ordering::Relaxed);
            if !body_bytes.is_multiple_of(8) {
                // Relaxed: as above. The padding; what the body has of this word is written behind it.
                AtomicU64::from_ptr(start.add(bytes - 8).cast()).store(0, Ordering::Relaxed);
            }
        }
        // SAFETY: room for a frame holds its header.
        let body = unsafe { start.add(FRAME_HEADER_BYTES) };
        Self { sender, body, body_bytes, filled: 0 }
    }

    /// Bytes of the body.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.body_bytes
    }

    /// Whether the body has no bytes.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.body_bytes == 0
    }

    /// Bytes that [`append`](Self::append) has room for.
    #[inline]
    #[must_use]
    pub fn rest(&self) -> usize {
        self.body_bytes - self.filled
    }

    /// Writes behind what was appended before.
    ///
    /// # Errors
    /// [`ChannelError::OutOfBody`].
    #[inline]
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), ChannelError> {
        self.write_at(self.filled, bytes)?;
        self.filled += bytes.len();
        Ok(())
    }

    /// Writes at an offset of the body.
    ///
    /// # Errors
    /// [`ChannelError::OutOfBody`].
    #[inline]
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), ChannelError> {
        if offset > self.body_bytes || bytes.len() > self.body_bytes - offset {
            return Err(out_of_body(offset, bytes.len(), self.body_bytes));
        }
        // SAFETY: the range was checked to lie in the body, which is ours to write; a `&[u8]` never lies in a ring.
        unsafe { copy_racing(bytes.as_ptr(), self.body.add(offset), bytes.len()) };
        Ok(())
    }

    /// The body from an offset on.
    ///
    /// # Errors
    /// [`ChannelError::OutOfBody`].
    #[inline(always)]
    pub fn part(&mut self, offset: usize) -> Result<Part<'_>, ChannelError> {
        if offset > self.body_bytes {
            return Err(out_of_body(offset, 0, self.body_bytes));
        }
        // SAFETY: the offset was checked to lie in the body.
        let start = unsafe { self.body.add(offset) };
        Ok(Part { start, bytes: self.body_bytes - offset, _body: PhantomData })
    }

    /// The first byte of the body, for system calls and foreign code that write there: valid for writes of
    /// [`len`](Self::len) bytes until the room is committed or dropped. What is read through it may be of the peer's making.
    #[inline]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.body
    }

    /// Publishes the frame. A peer that is awake sees it at once; one that sleeps is woken (one system call). Over a network,
    /// the first frames after a pause are sent by the calling thread, so that none has to wake up for them.
    #[inline]
    pub fn commit(self) {
        self.sender.publish(frame_bytes(self.body_bytes));
        self.sender.wake_reader();
    }

    /// Publishes the frame and wakes nobody: a peer that sleeps learns of it with the next [`commit`](Self::commit) or
    /// [`Sender::flush`], which the caller owes. So frames that follow each other quickly go as one message.
    #[inline]
    pub fn commit_quietly(self) {
        self.sender.publish(frame_bytes(self.body_bytes));
    }
}

/// Bytes that are to be written and cannot be read: a part of the body of a frame, or memory of a program's own.
#[derive(Debug)]
pub struct Part<'body> {
    start: *mut u8,
    bytes: usize,
    _body: PhantomData<&'body mut [u8]>,
}

impl<'body> Part<'body> {
    /// Memory that nobody else reaches.
    pub fn of(bytes: &'body mut [u8]) -> Self {
        Self { start: bytes.as_mut_ptr(), bytes: bytes.len(), _body: PhantomData }
    }

    /// Writes at an offset.
    ///
    /// # Errors
    /// [`ChannelError::OutOfBody`].
    #[inline]
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), ChannelError> {
        if offset > self.bytes || bytes.len() > self.bytes - offset {
            return Err(out_of_body(offset, bytes.len(), self.bytes));
        }
        // SAFETY: the range was checked to lie in the part, which is ours to write; a `&[u8]` never lies in a ring.
        unsafe { copy_racing(bytes.as_ptr(), self.start.add(offset), bytes.len()) };
        Ok(())
    }

    /// Writes a value of a known length at an offset, by one store where the processor has one of that length.
    ///
    /// # Errors
    /// [`ChannelError::OutOfBody`].
    #[inline(always)]
    pub fn write_array<const N: usize>(&mut self, offset: usize, bytes: [u8; N]) -> Result<(), ChannelError> {
        if offset > self.bytes || N > self.bytes - offset {
            return Err(out_of_body(offset, N, self.bytes));
        }
        // SAFETY: the range was checked to lie in the part, which is ours to write; an array of bytes has alignment one.
        unsafe { self.start.add(offset).cast::<[u8; N]>().write(bytes) };
        Ok(())
    }
}

#[cold]
pub(crate) fn out_of_body(offset: usize, bytes: usize, limit: usize) -> ChannelError {
    ChannelError::OutOfBody { offset, bytes, limit }
}
