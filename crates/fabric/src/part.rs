//! Where bytes of one operation come from or go to: a list of pieces of memory, as system calls take it.

use crate::slice::Slice;
use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;

/// One piece of memory, laid out as `struct iovec`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Part(libc::iovec);

// SAFETY: a part is an address and a length; every use of the memory behind it is unsafe and argued for there.
unsafe impl Send for Part {}
// SAFETY: as above.
unsafe impl Sync for Part {}

impl Part {
    pub(crate) fn new(start: *mut u8, bytes: usize) -> Self {
        Self(libc::iovec { iov_base: start.cast(), iov_len: bytes })
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::new(bytes.as_ptr().cast_mut(), bytes.len())
    }

    pub(crate) fn of_mut(bytes: &mut [u8]) -> Self {
        Self::new(bytes.as_mut_ptr(), bytes.len())
    }

    pub(crate) fn of_slice(slice: &Slice) -> Self {
        Self::new(slice.as_ptr(), slice.len())
    }

    pub(crate) fn start(self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    pub(crate) fn bytes(self) -> usize {
        self.0.iov_len
    }

    /// The piece without its first `bytes` bytes, which it must have.
    pub(crate) fn skip(self, bytes: usize) -> Self {
        debug_assert!(bytes <= self.bytes());
        Self::new(self.start().wrapping_add(bytes), self.bytes() - bytes)
    }

    /// The first `bytes` bytes of the piece, which it must have.
    pub(crate) fn first(self, bytes: usize) -> Self {
        debug_assert!(bytes <= self.bytes());
        Self::new(self.start(), bytes)
    }
}

/// Memory that an operation fills, piece after piece.
#[derive(Clone, Copy)]
pub struct Destination<'a> {
    parts: &'a [Part],
    borrow: PhantomData<&'a mut [u8]>,
}

/// Memory that an operation sends, piece after piece.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    parts: &'a [Part],
    borrow: PhantomData<&'a [u8]>,
}

impl<'a> Destination<'a> {
    /// Several pieces of private memory.
    pub fn scattered(pieces: &'a mut [IoSliceMut<'_>]) -> Self {
        let (start, count) = (pieces.as_ptr(), pieces.len());
        // SAFETY: `IoSliceMut` is guaranteed to be laid out as `iovec`, and so is `Part`; the borrow is kept.
        let parts = unsafe { std::slice::from_raw_parts(start.cast::<Part>(), count) };
        Self { parts, borrow: PhantomData }
    }

    /// Pieces that the caller made.
    ///
    /// # Safety
    /// Every part must be writable memory, apart from all others, as long as `'a`.
    pub(crate) unsafe fn from_parts(parts: &'a [Part]) -> Self {
        Self { parts, borrow: PhantomData }
    }

    /// The pieces.
    pub(crate) fn parts(&self) -> &'a [Part] {
        self.parts
    }

    /// Sum of the lengths.
    pub fn len(&self) -> u64 {
        total(self.parts)
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> Source<'a> {
    /// Several pieces of private memory.
    pub fn gathered(pieces: &'a [IoSlice<'_>]) -> Self {
        let (start, count) = (pieces.as_ptr(), pieces.len());
        // SAFETY: `IoSlice` is guaranteed to be laid out as `iovec`, and so is `Part`; the borrow is kept.
        let parts = unsafe { std::slice::from_raw_parts(start.cast::<Part>(), count) };
        Self { parts, borrow: PhantomData }
    }

    /// Pieces that the caller made.
    ///
    /// # Safety
    /// Every part must be readable memory as long as `'a`.
    pub(crate) unsafe fn from_parts(parts: &'a [Part]) -> Self {
        Self { parts, borrow: PhantomData }
    }

    /// The pieces.
    pub(crate) fn parts(&self) -> &'a [Part] {
        self.parts
    }

    /// Sum of the lengths.
    pub fn len(&self) -> u64 {
        total(self.parts)
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn total(parts: &[Part]) -> u64 {
    parts.iter().map(|part| part.bytes() as u64).sum()
}

/// A way to copy as many bytes as the last number says from the first place to the second.
pub(crate) type Copy = unsafe fn(*const u8, *mut u8, usize);

/// Copies piece after piece, at most `most` bytes, by `copy`; pieces that overlap, as two handles may name the same memory,
/// as `memmove` does.
///
/// # Safety
/// `from` must be readable and `into` writable memory; `copy` needs no more than that, and that they are apart.
pub(crate) unsafe fn copy_parts(from: &[Part], into: &[Part], mut most: u64, copy: Copy) {
    let (mut from, mut into) = (from.iter().copied(), into.iter().copied());
    let (mut source, mut target) = (from.next(), into.next());
    while let (Some(here), Some(there)) = (source, target) {
        let limit = usize::try_from(most).unwrap_or(usize::MAX);
        let bytes = here.bytes().min(there.bytes()).min(limit);
        if limit == 0 {
            return;
        }
        if here.start().addr().abs_diff(there.start().addr()) < bytes {
            // SAFETY: the caller vouches for both.
            unsafe { here.start().copy_to(there.start(), bytes) };
        } else {
            // SAFETY: as above, and they are apart.
            unsafe { copy(here.start(), there.start(), bytes) };
        }
        most -= bytes as u64;
        source = if bytes == here.bytes() { from.next() } else { Some(here.skip(bytes)) };
        target = if bytes == there.bytes() { into.next() } else { Some(there.skip(bytes)) };
    }
}
