//! Memory that is kept alive by whoever holds a slice of it and that others may change at any moment.

use hinterland_os::copying::{load_words, store_words};
use hinterland_os::{BASE_PAGE_BYTES, Loss, SharedSlice};
use hinterland_proto::{ErrorCode, RemoteError};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of memory with a guard: as long as the slice lives, the memory stays mapped.
///
/// The guard is whatever keeps it so: a mapping, a pin, a lease of the pool. The bytes are reached by copies,
/// atomics and system calls only, never by reference.
#[derive(Clone)]
pub struct Slice {
    start: NonNull<u8>,
    bytes: usize,
    writable: bool,
    changing: bool,
    guard: Arc<dyn Send + Sync>,
    /// What tells that the memory has gone from under the guard.
    loss: Option<Loss>,
}

// SAFETY: the memory is reached only by raw copies, atomics and system calls, which any thread may do; the guard is
// Send and Sync and keeps it mapped.
unsafe impl Send for Slice {}
// SAFETY: as above; no method needs `&mut self`.
unsafe impl Sync for Slice {}

impl From<SharedSlice> for Slice {
    /// The same memory, kept mapped by its mapping; allocates nothing.
    fn from(shared: SharedSlice) -> Self {
        let start = NonNull::new(shared.as_ptr()).unwrap_or(NonNull::dangling());
        let guard = Arc::clone(shared.mapping());
        let loss = shared.mapping().loss();
        // SAFETY: the mapping becomes the guard and stays mapped with it; nobody holds references into shared memory.
        let slice = unsafe { Self::from_raw(start, shared.len(), shared.is_writable(), guard) };
        Self { loss, ..slice }
    }
}

impl fmt::Debug for Slice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slice({:p}, {} bytes)", self.start, self.bytes)
    }
}

impl Slice {
    /// A slice of any memory.
    ///
    /// # Safety
    /// `bytes` bytes from `start` must be readable (and writable, if `writable`) as long as `guard` lives, and no
    /// reference to them may exist meanwhile.
    pub unsafe fn from_raw(
        start: NonNull<u8>,
        bytes: usize,
        writable: bool,
        guard: Arc<dyn Send + Sync>,
    ) -> Self {
        Self { start, bytes, writable, changing: false, guard, loss: None }
    }

    /// Zeroed memory of the heap, aligned to 8 bytes.
    pub fn zeroed(bytes: usize) -> Self {
        let words: Arc<[AtomicU64]> = (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        let start = NonNull::from(&words[..]).cast();
        // SAFETY: the words live as long as the guard, are at least `bytes` long, and being atomics they may be
        // written through a shared reference; none is kept.
        unsafe { Self::from_raw(start, bytes, true, Arc::new(words)) }
    }

    /// Memory of the heap with a copy of `bytes` in it.
    pub fn copied(bytes: &[u8]) -> Self {
        let slice = Self::zeroed(bytes.len());
        slice.copy_in(0, bytes);
        slice
    }

    /// The same memory with one more guard, dropped with the last part of the slice: something that counts who uses it.
    #[must_use]
    pub fn guarded(self, guard: impl Send + Sync + 'static) -> Self {
        Self { guard: Arc::new((self.guard, guard)), ..self }
    }

    /// The same memory, of which is known that others read and write it by words while it is sent or received: then no word of 8 aligned
    /// bytes is sent or stored in halves, for the price of one more copy of what is long.
    #[must_use]
    pub fn changing(self) -> Self {
        Self { changing: true, ..self }
    }

    /// Whether others [read and write it by words](Self::changing).
    pub(crate) fn is_changing(&self) -> bool {
        self.changing
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the slice has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The first byte; valid for [`len`](Self::len) bytes while this slice lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Whether the memory may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether the file behind the memory was cut off: to be asked after a copy, which may have copied zeros.
    pub fn is_lost(&self) -> bool {
        self.loss.is_some_and(Loss::has_happened)
    }

    /// Whether its memory can be cut off.
    pub(crate) fn is_guarded(&self) -> bool {
        self.loss.is_some()
    }

    /// Touches every page, so that [`is_lost`](Self::is_lost) tells of pages that only the kernel has missed.
    pub(crate) fn touch(&self) {
        if self.loss.is_some() {
            (0..self.bytes).step_by(BASE_PAGE_BYTES).for_each(|offset| {
                self.copy_out(offset, &mut [0]);
            });
        }
    }

    /// The part of `bytes` bytes from `offset`, or `None` if it does not lie inside.
    pub fn sub(&self, offset: usize, bytes: usize) -> Option<Self> {
        if offset > self.bytes || bytes > self.bytes - offset {
            return None;
        }
        // SAFETY: `offset` is at most the length, so the sum stays inside the memory or one past its end.
        let start = unsafe { self.start.add(offset) };
        Some(Self { start, bytes, guard: Arc::clone(&self.guard), ..*self })
    }

    /// Copies the bytes from `offset` out; as many as lie inside. Returns how many.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) -> usize {
        let bytes = into.len().min(self.bytes.saturating_sub(offset));
        if bytes > 0 {
            // SAFETY: the source lies inside this slice, the destination is an exclusive borrow of at least `bytes`.
            unsafe { load_words(self.start.as_ptr().add(offset), into.as_mut_ptr(), bytes) };
        }
        bytes
    }

    /// Copies bytes in at `offset`; as many as lie inside, none if the memory is read-only. Returns how many.
    pub fn copy_in(&self, offset: usize, from: &[u8]) -> usize {
        let bytes = if self.writable { from.len().min(self.bytes.saturating_sub(offset)) } else { 0 };
        if bytes > 0 {
            // SAFETY: the destination lies inside this writable slice; no reference to it exists, so `from` is apart.
            unsafe { store_words(from.as_ptr(), self.start.as_ptr().add(offset), bytes) };
        }
        bytes
    }

    /// All bytes, copied.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.bytes];
        self.copy_out(0, &mut copy);
        copy
    }

    /// The 8-byte word at the start, or `None` if the slice is shorter, not aligned to 8, or read-only.
    pub(crate) fn word(&self) -> Option<&AtomicU64> {
        if self.bytes < 8 || !self.writable || !self.start.as_ptr().addr().is_multiple_of(8) {
            return None;
        }
        // SAFETY: aligned, writable, and alive as long as `self`; it is reached by atomics and racing copies only.
        Some(unsafe { AtomicU64::from_ptr(self.start.as_ptr().cast()) })
    }

    /// Replaces the first word if it is `expected`; returns what it was, `None` as [`word`](Self::word) does.
    pub(crate) fn compare_swap(&self, expected: u64, desired: u64) -> Option<u64> {
        // AcqRel: pairs with the swaps and adds of other requests on the same word, local or remote.
        let result = self.word()?.compare_exchange(expected, desired, Ordering::AcqRel, Ordering::Acquire);
        Some(result.unwrap_or_else(|before| before))
    }

    /// Adds to the first word; returns what it was, `None` as [`word`](Self::word) does.
    pub(crate) fn fetch_add(&self, addend: u64) -> Option<u64> {
        // AcqRel: pairs with the swaps and adds of other requests on the same word, local or remote.
        Some(self.word()?.fetch_add(addend, Ordering::AcqRel))
    }
}

/// What is said of memory that [is lost](Slice::is_lost).
pub(crate) fn lost() -> RemoteError {
    let text =
        "the memory was lost meanwhile: its file was cut off (hint: remove the object and put it again)";
    RemoteError::new(ErrorCode::INTERNAL, text)
}
