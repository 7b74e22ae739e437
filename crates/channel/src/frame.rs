//! A frame that has arrived; it is given back when it is dropped.

use crate::FRAME_HEADER_BYTES;
use crate::error::ChannelError;
use crate::receiver::Receiver;
use crate::room::out_of_body;
use hinterland_os::SharedSlice;
use hinterland_os::shared_slice::copy_racing;

/// Bytes of a body that are copied into private memory before anybody looks at them. The rest stays in the ring.
pub const HEAD_BYTES_MAX: usize = 4096;

/// A frame, taken from the ring when it is dropped.
///
/// Within a host the peer may change the ring while we read. The first [`HEAD_BYTES_MAX`] bytes of a body are ours and
/// never change; what lies behind them is data, and is copied where it belongs.
#[derive(Debug)]
pub struct Frame<'receiver> {
    receiver: &'receiver mut Receiver,
    word: u32,
    body_bytes: usize,
}

impl<'receiver> Frame<'receiver> {
    #[inline]
    pub(crate) fn new(receiver: &'receiver mut Receiver, word: u32, body_bytes: usize) -> Self {
        Self { receiver, word, body_bytes }
    }

    /// The word that the sender gave it.
    #[inline]
    #[must_use]
    pub fn word(&self) -> u32 {
        self.word
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

    /// The body, or as much of it as is copied beforehand: its first [`HEAD_BYTES_MAX`] bytes.
    #[inline]
    #[must_use]
    pub fn head(&self) -> &[u8] {
        self.receiver.head(self.body_bytes.min(HEAD_BYTES_MAX))
    }

    /// All of the body in private memory: free for what [`head`](Self::head) holds and on a network, else one copy into a
    /// buffer that is kept.
    pub fn bytes(&mut self) -> &[u8] {
        if self.body_bytes > HEAD_BYTES_MAX { self.receiver.whole(self.body_bytes) } else { self.head() }
    }

    /// Copies a part of the body.
    ///
    /// # Errors
    /// [`ChannelError::OutOfBody`].
    pub fn read_at(&self, offset: usize, destination: &mut [u8]) -> Result<(), ChannelError> {
        self.check(offset, destination.len())?;
        // SAFETY: the range was checked to lie in the body; the destination is an exclusive borrow.
        unsafe { self.copy(offset, destination.as_mut_ptr(), destination.len()) };
        Ok(())
    }

    /// Copies a part of the body into memory that others may read or write at the same time.
    ///
    /// # Errors
    /// [`ChannelError::OutOfBody`] for either side, [`ChannelError::Os`] for memory that is mapped read-only.
    pub fn copy_to(
        &self,
        offset: usize,
        destination: &SharedSlice,
        at: usize,
        bytes: usize,
    ) -> Result<(), ChannelError> {
        self.check(offset, bytes)?;
        let target = destination.sub(at, bytes)?;
        if !target.is_writable() {
            return Err(hinterland_os::OsError::ReadOnly { offset: at as u64, bytes: bytes as u64 }.into());
        }
        // SAFETY: both ranges were checked; the slice keeps its mapping, which is writable.
        unsafe { self.copy(offset, target.as_ptr(), bytes) };
        Ok(())
    }

    /// Copies a part of the body to an address, as of memory that a driver has pinned.
    ///
    /// # Safety
    /// `destination` must be valid for writes of `bytes` bytes, and lie in no ring.
    ///
    /// # Errors
    /// [`ChannelError::OutOfBody`].
    pub unsafe fn copy_to_address(
        &self,
        offset: usize,
        destination: *mut u8,
        bytes: usize,
    ) -> Result<(), ChannelError> {
        self.check(offset, bytes)?;
        // SAFETY: the range was checked to lie in the body; the caller answers for the destination.
        unsafe { self.copy(offset, destination, bytes) };
        Ok(())
    }

    /// Gives the frame back, as dropping it does.
    #[inline]
    pub fn release(self) {}

    #[inline]
    fn check(&self, offset: usize, bytes: usize) -> Result<(), ChannelError> {
        if offset > self.body_bytes || bytes > self.body_bytes - offset {
            return Err(out_of_body(offset, bytes, self.body_bytes));
        }
        Ok(())
    }

    /// Copies from the head what it has, so that nobody sees two values of one byte, and the rest from the ring.
    ///
    /// # Safety
    /// The range lies in the body, and `destination` is valid for writes of `bytes` bytes.
    unsafe fn copy(&self, offset: usize, destination: *mut u8, bytes: usize) {
        let head = self.head();
        let from_head = bytes.min(head.len().saturating_sub(offset));
        if from_head > 0 {
            // SAFETY: the head has `from_head` bytes from `offset` on, and the destination is private or racing memory
            // apart from it, of at least as many bytes.
            unsafe { copy_racing(head.as_ptr().add(offset), destination, from_head) };
        }
        let start = self.receiver.place();
        // SAFETY: the frame of header and `body_bytes` lies at `start`, of which the range was checked to be a part.
        unsafe {
            let source = start.add(FRAME_HEADER_BYTES + offset + from_head);
            copy_racing(source, destination.add(from_head), bytes - from_head);
        }
    }
}

impl Drop for Frame<'_> {
    #[inline]
    fn drop(&mut self) {
        self.receiver.release_taken();
    }
}
