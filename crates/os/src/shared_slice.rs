//! A piece of memory that other processes may change at any moment, reached only by copies and atomics.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::copying::{self, load_words, store_words};
use crate::error::OsError;
use crate::mapping::Mapping;

/// Copies up to this many bytes are done inline with overlapping moves; longer ones call `memcpy`, whose call then
/// costs little beside the bytes.
pub(crate) const INLINE_COPY_BYTES_MAX: usize = 128;

/// `len` bytes of a live [`Mapping`], which stays mapped as long as a slice of it exists.
///
/// It is never a `&[u8]`: somebody else may write while we read. Bytes are copied out and then validated, once.
/// Offsets and lengths are bytes.
#[derive(Clone)]
pub struct SharedSlice {
    start: NonNull<u8>,
    bytes: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: the memory is reached only by raw copies and atomics, which any thread may do; the mapping behind the Arc
// lives as long as the slice.
unsafe impl Send for SharedSlice {}
// SAFETY: as above; no method needs `&mut self`.
unsafe impl Sync for SharedSlice {}

impl std::fmt::Debug for SharedSlice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SharedSlice({:p}, {} bytes)", self.start, self.bytes)
    }
}

impl SharedSlice {
    pub(crate) fn whole(mapping: &Arc<Mapping>) -> Self {
        Self { start: mapping.start(), bytes: mapping.len(), mapping: Arc::clone(mapping) }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the slice has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The first byte. Valid for [`len`](Self::len) bytes while this slice lives; writing through it needs
    /// [`is_writable`](Self::is_writable).
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Whether the mapping allows writes.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.mapping.is_writable()
    }

    /// The mapping behind the slice.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// The part of `bytes` bytes from `offset`.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`].
    pub fn sub(&self, offset: usize, bytes: usize) -> Result<Self, OsError> {
        let start = self.at(offset, bytes)?;
        // SAFETY: `at` returned a pointer into a mapping, which is never null.
        let start = unsafe { NonNull::new_unchecked(start) };
        Ok(Self { start, bytes, mapping: Arc::clone(&self.mapping) })
    }

    /// Copies `destination.len()` bytes from `offset`. A word of 8 aligned bytes that is among them whole is copied as it was
    /// at one moment.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`]; [`OsError::Lost`] if the mapping is guarded.
    #[inline]
    pub fn read_at(&self, offset: usize, destination: &mut [u8]) -> Result<(), OsError> {
        let source = self.at(offset, destination.len())?;
        // SAFETY: `at` checked that the source lies in a live mapping; the destination is an exclusive borrow.
        unsafe { load_words(source, destination.as_mut_ptr(), destination.len()) };
        self.check_kept(offset, destination.len())
    }

    /// Goes on with the crc32c `sum` over `bytes` bytes from `offset`, where they lie; nothing where the processor cannot. What
    /// others write meanwhile may be in it or not.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    #[inline]
    pub fn crc32c(&self, offset: usize, bytes: usize, sum: u32) -> Result<Option<u32>, OsError> {
        let source = self.at(offset, bytes)?;
        // SAFETY: `at` checked that the source lies in a live mapping.
        let sum = unsafe { copying::summed(source, bytes, sum) };
        self.check_kept(offset, bytes)?;
        Ok(sum)
    }

    /// As [`read_at`](Self::read_at), past the caches, and words may be copied in halves. A thread that is told of these bytes is told after a
    /// [`streaming_fence`](copying::streaming_fence).
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    #[inline]
    pub fn read_streaming(&self, offset: usize, destination: &mut [u8]) -> Result<(), OsError> {
        let source = self.at(offset, destination.len())?;
        // SAFETY: as in `read_at`.
        unsafe { copying::copy_streaming(source, destination.as_mut_ptr(), destination.len()) };
        self.check_kept(offset, destination.len())
    }

    /// As [`write_at`](Self::write_at), past the caches, and words may be stored in halves. Whoever is told of these bytes is told after a
    /// [`streaming_fence`](copying::streaming_fence).
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    #[inline]
    pub fn write_streaming(&self, offset: usize, source: &[u8]) -> Result<(), OsError> {
        let destination = self.at_for_write(offset, source.len())?;
        // SAFETY: as in `write_at`.
        unsafe { copying::copy_streaming(source.as_ptr(), destination, source.len()) };
        self.check_kept(offset, source.len())
    }

    /// As [`write_streaming`](Self::write_streaming), and goes on with the crc32c `sum`; nothing, and nothing is written, where
    /// [that cannot be](copying::copy_streaming_summed).
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    #[inline]
    pub fn write_streaming_summed(
        &self,
        offset: usize,
        source: &[u8],
        sum: u32,
    ) -> Result<Option<u32>, OsError> {
        let destination = self.at_for_write(offset, source.len())?;
        // SAFETY: as in `write_at`.
        let sum = unsafe { copying::copy_streaming_summed(source.as_ptr(), destination, source.len(), sum) };
        self.check_kept(offset, source.len())?;
        Ok(sum)
    }

    /// Copies all of `source` to `offset`. A word of 8 aligned bytes that is overwritten whole is stored at once.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`], [`OsError::ReadOnly`]; [`OsError::Lost`] if the mapping is guarded.
    #[inline]
    pub fn write_at(&self, offset: usize, source: &[u8]) -> Result<(), OsError> {
        let destination = self.at_for_write(offset, source.len())?;
        // SAFETY: `at_for_write` checked that the destination lies in a live, writable mapping; a `&[u8]` cannot
        // overlap with it, since no such reference to mapped memory is ever made.
        unsafe { store_words(source.as_ptr(), destination, source.len()) };
        self.check_kept(offset, source.len())
    }

    /// Copies `bytes` bytes from `offset` to `other_offset` of another slice. The two ranges must not overlap in
    /// memory; if they do (the same bytes in the same mapping) the result is some mix of both.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`], [`OsError::ReadOnly`].
    #[inline]
    pub fn copy_to(
        &self,
        offset: usize,
        other: &SharedSlice,
        other_offset: usize,
        bytes: usize,
    ) -> Result<(), OsError> {
        let source = self.at(offset, bytes)?;
        let destination = other.at_for_write(other_offset, bytes)?;
        if source.cast_const().addr().abs_diff(destination.addr()) < bytes {
            // SAFETY: both ranges lie in live mappings; `ptr::copy` allows overlap.
            unsafe { ptr::copy(source, destination, bytes) };
        } else {
            // SAFETY: both ranges lie in live mappings, the destination is writable and they do not overlap.
            unsafe { load_words(source, destination, bytes) };
        }
        self.check_kept(offset, bytes)?;
        other.check_kept(other_offset, bytes)
    }

    /// Sets `bytes` bytes from `offset` to `value`.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`], [`OsError::ReadOnly`].
    pub fn fill(&self, offset: usize, bytes: usize, value: u8) -> Result<(), OsError> {
        let destination = self.at_for_write(offset, bytes)?;
        // SAFETY: `at_for_write` checked that the range lies in a live, writable mapping.
        unsafe { ptr::write_bytes(destination, value, bytes) };
        self.check_kept(offset, bytes)
    }

    /// Asks the processor to have the cache line at `offset` ready: a hint that loads nothing and, outside, does nothing.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len() {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: inside the memory of this slice, and a prefetch neither faults nor changes anything.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.as_ptr().add(offset).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    /// The 8 bytes at `offset` in one load. Acquire: pairs with the Release of [`store_u64`](Self::store_u64) and of
    /// the read-modify-writes, in whichever process does them.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`], [`OsError::Misaligned`].
    #[inline]
    pub fn load_u64(&self, offset: usize) -> Result<u64, OsError> {
        // Acquire: pairs with the Release in store_u64, compare_swap_u64 and fetch_add_u64.
        Ok(self.word(offset)?.load(Ordering::Acquire))
    }

    /// Stores 8 bytes at `offset` at once. Release: pairs with the Acquire of [`load_u64`](Self::load_u64).
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`], [`OsError::Misaligned`], [`OsError::ReadOnly`].
    #[inline]
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), OsError> {
        // Release: pairs with the Acquire in load_u64, compare_swap_u64 and fetch_add_u64.
        self.atomic_u64(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Replaces the 8 bytes at `offset` if they are `expected`; returns what was there before, which equals
    /// `expected` exactly if the swap happened.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`], [`OsError::Misaligned`], [`OsError::ReadOnly`].
    #[inline]
    pub fn compare_swap_u64(&self, offset: usize, expected: u64, desired: u64) -> Result<u64, OsError> {
        let word = self.atomic_u64(offset)?;
        // AcqRel: pairs with load_u64, store_u64 and the other read-modify-writes of this type.
        match word.compare_exchange(expected, desired, Ordering::AcqRel, Ordering::Acquire) {
            Ok(before) | Err(before) => Ok(before),
        }
    }

    /// Adds to the 8 bytes at `offset` (wrapping); returns what was there before.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`], [`OsError::Misaligned`], [`OsError::ReadOnly`].
    #[inline]
    pub fn fetch_add_u64(&self, offset: usize, addend: u64) -> Result<u64, OsError> {
        // AcqRel: pairs with load_u64, store_u64 and the other read-modify-writes of this type.
        Ok(self.atomic_u64(offset)?.fetch_add(addend, Ordering::AcqRel))
    }

    /// The 8-byte word at `offset`, for protocols that name their own orderings.
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`], [`OsError::Misaligned`], [`OsError::ReadOnly`].
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, OsError> {
        self.at_for_write(offset, 8)?;
        self.word(offset)
    }

    /// The 4-byte word at `offset`, for protocols that name their own orderings and for [`crate::futex`].
    ///
    /// # Errors
    /// [`OsError::OutOfBounds`], [`OsError::Misaligned`], [`OsError::ReadOnly`].
    #[inline]
    pub fn atomic_u32(&self, offset: usize) -> Result<&AtomicU32, OsError> {
        let pointer = self.at_for_write(offset, 4)?;
        check_alignment(pointer, 4)?;
        // SAFETY: aligned, inside a live writable mapping that outlives the borrow of self, and only ever reached by
        // atomics or racing copies.
        Ok(unsafe { AtomicU32::from_ptr(pointer.cast()) })
    }

    /// To be asked after every copy: whether the file was there all the time.
    #[inline]
    fn check_kept(&self, offset: usize, bytes: usize) -> Result<(), OsError> {
        if self.mapping.is_lost() { Err(lost(offset, bytes)) } else { Ok(()) }
    }

    #[inline]
    fn word(&self, offset: usize) -> Result<&AtomicU64, OsError> {
        let pointer = self.at(offset, 8)?;
        check_alignment(pointer, 8)?;
        // SAFETY: aligned, inside a live mapping that outlives the borrow of self, and only ever reached by atomics or
        // racing copies. Callers other than load_u64 have checked that it is writable.
        Ok(unsafe { AtomicU64::from_ptr(pointer.cast()) })
    }

    #[inline]
    fn at_for_write(&self, offset: usize, bytes: usize) -> Result<*mut u8, OsError> {
        if !self.mapping.is_writable() {
            return Err(read_only(offset, bytes));
        }
        self.at(offset, bytes)
    }

    #[inline]
    fn at(&self, offset: usize, bytes: usize) -> Result<*mut u8, OsError> {
        if offset > self.bytes || bytes > self.bytes - offset {
            return Err(out_of_bounds(offset, bytes, self.bytes));
        }
        // SAFETY: offset <= self.bytes, so the pointer stays inside the mapping or one past its end.
        Ok(unsafe { self.start.as_ptr().add(offset) })
    }
}

#[cold]
fn out_of_bounds(offset: usize, bytes: usize, limit: usize) -> OsError {
    OsError::OutOfBounds { offset: offset as u64, bytes: bytes as u64, limit: limit as u64 }
}

#[cold]
fn lost(offset: usize, bytes: usize) -> OsError {
    OsError::Lost { offset: offset as u64, bytes: bytes as u64 }
}

#[cold]
fn read_only(offset: usize, bytes: usize) -> OsError {
    OsError::ReadOnly { offset: offset as u64, bytes: bytes as u64 }
}

#[inline]
fn check_alignment(pointer: *mut u8, alignment: usize) -> Result<(), OsError> {
    let address = pointer.addr();
    if address & (alignment - 1) != 0 {
        return Err(OsError::Misaligned {
            what: "address of an atomic word",
            value: address as u64,
            alignment: alignment as u64,
        });
    }
    Ok(())
}

/// Copies memory that others may be writing at the same time; every copy of this crate goes through here.
///
/// The language calls a plain copy that races with a writer undefined, and offers nothing in its place that runs at the
/// speed of memory: an atomic copy of bytes does not exist yet, and volatile accesses are no better defined and stop
/// the compiler from using wide moves. What can really go wrong with a plain copy is bounded here. The racing writer
/// is mostly another process, which no compiler sees. The bytes are moved by `memcpy` or by unaligned moves of 8 to 32
/// bytes and land in memory of the caller, so any mix of old and new bytes may arrive, but values are looked at only
/// after the copy; nothing here branches on a byte of shared memory. Readers that need a
/// consistent whole check a generation or a checksum afterwards. Should an atomic copy of bytes appear in the standard
/// library, this is the only function to change.
///
/// # Safety
/// `source` must be valid for reads and `destination` for writes of `bytes` bytes, and they must not overlap.
#[inline(always)]
pub unsafe fn copy_racing(source: *const u8, destination: *mut u8, bytes: usize) {
    if bytes > INLINE_COPY_BYTES_MAX {
        // SAFETY: the caller promises both ranges and that they are apart.
        unsafe { copying::copy_long(source, destination, bytes) };
        return;
    }
    // SAFETY: every piece lies within `bytes` of both ranges, which the caller promises.
    unsafe {
        if bytes >= 64 {
            copy_ends::<64>(source, destination, bytes);
        } else if bytes >= 32 {
            copy_ends::<32>(source, destination, bytes);
        } else if bytes >= 16 {
            copy_ends::<16>(source, destination, bytes);
        } else if bytes >= 8 {
            copy_ends::<8>(source, destination, bytes);
        } else if bytes >= 4 {
            copy_ends::<4>(source, destination, bytes);
        } else if bytes > 0 {
            copy_piece::<1>(source, destination);
            copy_piece::<1>(source.add(bytes / 2), destination.add(bytes / 2));
            copy_piece::<1>(source.add(bytes - 1), destination.add(bytes - 1));
        }
    }
}

/// Copies the first and the last `N` bytes of a range of `N..=2N` bytes.
///
/// # Safety
/// As [`copy_racing`], and `bytes >= N`.
#[inline(always)]
unsafe fn copy_ends<const N: usize>(source: *const u8, destination: *mut u8, bytes: usize) {
    // SAFETY: the caller promises `bytes` valid bytes and `bytes >= N`.
    unsafe {
        copy_piece::<N>(source, destination);
        // A store more than there must be is one that others wait behind.
        if bytes > N {
            copy_piece::<N>(source.add(bytes - N), destination.add(bytes - N));
        }
    }
}

/// Copies `N` bytes through registers.
///
/// # Safety
/// As [`copy_racing`] with `bytes == N`.
#[inline(always)]
unsafe fn copy_piece<const N: usize>(source: *const u8, destination: *mut u8) {
    // SAFETY: the caller promises N valid bytes at both; an array of bytes has alignment one.
    unsafe { destination.cast::<[u8; N]>().write(source.cast::<[u8; N]>().read()) };
}

#[cfg(test)]
mod tests;
