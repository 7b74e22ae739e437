//! Moving cache lines by hand: memory that is shared with hosts whose caches do not see each other's stores.
//!
//! See `docs/decisions/2026-11-22-software-coherence.md`. A writer stores and then writes lines back, or stores past the
//! cache; a reader drops its copies before it loads. On memory that is coherent all of it is right too, only slower.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{Ordering, compiler_fence};

use crate::error::OsError;
use crate::shared_slice::SharedSlice;

/// Bytes of a cache line: what moves as a whole.
pub const LINE_BYTES: usize = 64;

/// Who keeps the copies of one line in several caches the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Coherence {
    /// The machine: all processes are on one host, or the hosts' caches see each other.
    #[default]
    Hardware,
    /// We do: hosts share memory, and a store is seen by others only after its line was written back and theirs dropped.
    Software,
}

impl Coherence {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::Software => "software",
        }
    }
}

impl fmt::Display for Coherence {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Coherence {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "hardware" => Ok(Self::Hardware),
            "software" => Ok(Self::Software),
            other => Err(format!("{other:?} is no coherence (hint: hardware or software)")),
        }
    }
}

/// The instructions of this processor that move lines. Whoever has one may use them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LineMover {
    has_clwb: bool,
    has_clflushopt: bool,
}

impl LineMover {
    /// Asks the processor.
    ///
    /// # Errors
    /// [`OsError::Unsupported`] on anything but x86-64 with lines of 64 bytes.
    pub fn detect() -> Result<Self, OsError> {
        instructions::detect()
    }

    /// The names of what is used, to write back and to drop.
    pub const fn names(self) -> (&'static str, &'static str) {
        let drop = if self.has_clflushopt { "clflushopt" } else { "clflush" };
        (if self.has_clwb { "clwb" } else { drop }, drop)
    }

    /// Starts to write the lines of a value back to memory; [`fence`](Self::fence) waits for it.
    #[inline]
    pub fn write_back<T>(self, value: &T) {
        // SAFETY: all bytes of a reference may be read.
        unsafe { instructions::write_back(self, std::ptr::from_ref(value).cast(), size_of::<T>()) }
    }

    /// Makes what was written back, or stored past the cache, arrive in memory before anything that this thread stores later.
    #[inline]
    pub fn fence(self) {
        instructions::store_fence();
    }

    /// Drops this host's copies of the lines of a value: what is loaded later comes from memory, not before everything that
    /// was loaded earlier. A dirty copy is written back.
    #[inline]
    pub fn refresh<T>(self, value: &T) {
        instructions::full_fence();
        // SAFETY: all bytes of a reference may be read.
        unsafe { instructions::drop_lines(self, std::ptr::from_ref(value).cast(), size_of::<T>()) };
        instructions::full_fence();
    }

    /// [`refresh`](Self::refresh) of two runs of values at the price of one.
    #[inline]
    pub fn refresh_both<T>(self, first: &[T], second: &[T]) {
        instructions::full_fence();
        for values in [first, second] {
            // SAFETY: all bytes of a reference may be read.
            unsafe { instructions::drop_lines(self, values.as_ptr().cast(), size_of_val(values)) };
        }
        instructions::full_fence();
    }
}

/// Shared memory whose lines are moved by hand.
#[derive(Clone, Debug)]
pub struct FlushedSlice {
    slice: SharedSlice,
    mover: LineMover,
}

impl FlushedSlice {
    /// Takes memory that starts at a line.
    ///
    /// # Errors
    /// [`OsError::Misaligned`]; [`OsError::Unsupported`] as [`LineMover::detect`].
    pub fn new(slice: SharedSlice) -> Result<Self, OsError> {
        let address = slice.as_ptr().addr();
        if !address.is_multiple_of(LINE_BYTES) {
            return Err(misaligned("address of flushed memory", address));
        }
        Ok(Self { slice, mover: LineMover::detect()? })
    }

    /// The memory as it looks through this host's cache.
    #[inline]
    pub fn slice(&self) -> &SharedSlice {
        &self.slice
    }

    /// Starts to write the lines of a range back to memory; [`fence`](Self::fence) waits for it. What lies outside is left
    /// out.
    #[inline]
    pub fn write_back(&self, offset: usize, bytes: usize) {
        let (start, bytes) = self.range(offset, bytes);
        // SAFETY: `range` cut it to a live mapping, whose bytes may be read.
        unsafe { instructions::write_back(self.mover, start, bytes) }
    }

    /// See [`LineMover::fence`].
    #[inline]
    pub fn fence(&self) {
        self.mover.fence();
    }

    /// Drops this host's copies of the lines of a range, see [`LineMover::refresh`]. What lies outside is left out.
    #[inline]
    pub fn refresh(&self, offset: usize, bytes: usize) {
        let (start, bytes) = self.range(offset, bytes);
        instructions::full_fence();
        // SAFETY: `range` cut it to a live mapping, whose bytes may be read.
        unsafe { instructions::drop_lines(self.mover, start, bytes) }
        instructions::full_fence();
    }

    /// Stores pieces one after the other from `offset` on, past the cache, `bytes` bytes at most, and fills the last line up
    /// with zeros; returns how long they are together. [`fence`](Self::fence) makes them arrive.
    ///
    /// # Errors
    /// [`OsError::Misaligned`] unless `offset` is a multiple of a line; [`OsError::OutOfBounds`], [`OsError::ReadOnly`] for
    /// `bytes` with the last line whole: nothing is stored then.
    pub fn stream<'piece>(
        &self,
        offset: usize,
        bytes: usize,
        pieces: impl IntoIterator<Item = &'piece [u8]>,
    ) -> Result<usize, OsError> {
        if !offset.is_multiple_of(LINE_BYTES) {
            return Err(misaligned("offset of streamed bytes", offset));
        }
        if !self.slice.is_writable() {
            return Err(OsError::ReadOnly { offset: offset as u64, bytes: bytes as u64 });
        }
        let whole_bytes = bytes.checked_next_multiple_of(LINE_BYTES).unwrap_or(usize::MAX);
        let whole = self.slice.sub(offset, whole_bytes)?;
        let mut at = 0;
        let mut store = |line: &[u8; LINE_BYTES]| {
            debug_assert!(at < whole.len());
            // SAFETY: `stored` below never exceeds `bytes`, so there are at most as many lines as `whole` has; its mapping is
            // writable and it starts at a line.
            unsafe { instructions::stream_line(line, whole.as_ptr().add(at)) };
            at += LINE_BYTES;
        };
        let mut begun = [0; LINE_BYTES];
        let (mut filled, mut stored, mut given) = (0, 0, 0_usize);
        for piece in pieces {
            given = given.saturating_add(piece.len());
            let mut piece = &piece[..piece.len().min(bytes - stored)];
            stored += piece.len();
            if filled > 0 {
                let count = piece.len().min(LINE_BYTES - filled);
                begun[filled..filled + count].copy_from_slice(&piece[..count]);
                filled += count;
                piece = &piece[count..];
                if filled < LINE_BYTES {
                    continue;
                }
                store(&begun);
            }
            let (lines, rest) = piece.as_chunks::<LINE_BYTES>();
            lines.iter().for_each(&mut store);
            begun[..rest.len()].copy_from_slice(rest);
            filled = rest.len();
        }
        if filled > 0 {
            begun[filled..].fill(0);
            store(&begun);
        }
        Ok(given)
    }

    #[inline]
    fn range(&self, offset: usize, bytes: usize) -> (*const u8, usize) {
        let offset = offset.min(self.slice.len());
        let bytes = bytes.min(self.slice.len() - offset);
        (self.slice.as_ptr().cast_const().wrapping_add(offset), bytes)
    }
}

#[cold]
fn misaligned(what: &'static str, value: usize) -> OsError {
    OsError::Misaligned { what, value: value as u64, alignment: LINE_BYTES as u64 }
}

#[cfg(target_arch = "x86_64")]
mod instructions {
    use super::{LINE_BYTES, LineMover, Ordering, OsError, compiler_fence};
    use std::arch::asm;
    use std::arch::x86_64::{
        __cpuid, __cpuid_count, __m128i, _mm_clflush, _mm_loadu_si128, _mm_mfence, _mm_sfence,
        _mm_stream_si128,
    };

    /// Bit of CLFLUSHOPT in EBX of leaf 7.
    const CLFLUSHOPT: u32 = 1 << 23;
    /// Bit of CLWB in EBX of leaf 7.
    const CLWB: u32 = 1 << 24;

    pub(super) fn detect() -> Result<LineMover, OsError> {
        // Bits 8 to 15 of EBX of leaf 1 count 8 bytes each.
        let line = (__cpuid(1).ebx >> 8 & 0xff) as usize * 8;
        if line != LINE_BYTES {
            return Err(OsError::Unsupported {
                operation: "software coherence",
                reason: format!("this processor flushes {line} bytes at once, not {LINE_BYTES}"),
                hint: "use --coherence hardware".into(),
            });
        }
        let features = if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        Ok(LineMover { has_clwb: features & CLWB != 0, has_clflushopt: features & CLFLUSHOPT != 0 })
    }

    /// # Safety
    /// The range may be read, and the mover is what `detect` found.
    #[inline]
    pub(super) unsafe fn write_back(mover: LineMover, start: *const u8, bytes: usize) {
        if !mover.has_clwb {
            // SAFETY: as promised by the caller.
            unsafe { drop_lines(mover, start, bytes) };
            return;
        }
        for line in lines(start, bytes) {
            // SAFETY: the line overlaps readable bytes, and the processor has the instruction.
            unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) };
        }
    }

    /// # Safety
    /// The range may be read, and the mover is what `detect` found.
    #[inline]
    pub(super) unsafe fn drop_lines(mover: LineMover, start: *const u8, bytes: usize) {
        if mover.has_clflushopt {
            for line in lines(start, bytes) {
                // SAFETY: the line overlaps readable bytes, and the processor has the instruction.
                unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) };
            }
        } else {
            for line in lines(start, bytes) {
                // SAFETY: the line overlaps readable bytes; every x86-64 has the instruction.
                unsafe { _mm_clflush(line) };
            }
        }
    }

    /// # Safety
    /// `into` is aligned to a line of memory that may be written.
    #[inline]
    pub(super) unsafe fn stream_line(line: &[u8; LINE_BYTES], into: *mut u8) {
        let (from, into) = (line.as_ptr().cast::<__m128i>(), into.cast::<__m128i>());
        for part in 0..LINE_BYTES / size_of::<__m128i>() {
            // SAFETY: inside the line, which the caller promises is aligned and writable; every x86-64 has SSE2.
            unsafe { _mm_stream_si128(into.add(part), _mm_loadu_si128(from.add(part))) };
        }
    }

    #[inline]
    pub(super) fn store_fence() {
        // The compiler must not move stores either.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: every x86-64 has the instruction.
        unsafe { _mm_sfence() };
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn full_fence() {
        compiler_fence(Ordering::SeqCst);
        // SAFETY: every x86-64 has the instruction.
        unsafe { _mm_mfence() };
        compiler_fence(Ordering::SeqCst);
    }

    /// The starts of the lines of a range.
    #[inline]
    fn lines(start: *const u8, bytes: usize) -> impl Iterator<Item = *const u8> {
        let before = start.addr() % LINE_BYTES;
        let first = start.wrapping_sub(before);
        let count = if bytes == 0 { 0 } else { (before + bytes).div_ceil(LINE_BYTES) };
        (0..count).map(move |line| first.wrapping_add(line * LINE_BYTES))
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod instructions {
    use super::{LINE_BYTES, LineMover, Ordering, OsError, compiler_fence};

    pub(super) fn detect() -> Result<LineMover, OsError> {
        Err(OsError::Unsupported {
            operation: "software coherence",
            reason: format!("it is written for x86-64, not for {}", std::env::consts::ARCH),
            hint: "use --coherence hardware, which is right for programs of one host".into(),
        })
    }

    // Nobody has a `LineMover` here, so nobody calls these.

    pub(super) unsafe fn write_back(_: LineMover, _: *const u8, _: usize) {}

    pub(super) unsafe fn drop_lines(_: LineMover, _: *const u8, _: usize) {}

    pub(super) unsafe fn stream_line(_: &[u8; LINE_BYTES], _: *mut u8) {}

    pub(super) fn store_fence() {
        compiler_fence(Ordering::SeqCst);
    }

    pub(super) fn full_fence() {
        compiler_fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
