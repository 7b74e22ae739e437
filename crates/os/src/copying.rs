//! Long copies, where `memcpy` is not the quickest way: past the caches, and past a slow case of some processors.
//!
//! - *Streaming.* Bytes that nobody reads soon, into memory that no cache holds: an ordinary store first loads the line that
//!   it overwrites and later pushes other lines out of the caches. Non-temporal stores do neither. Random 64 KiB copies over
//!   512 MiB on an AMD EPYC 7003: 15.8 GB/s, 9.4 by `memcpy`; 4 KiB: 9.6 and 6.8.
//! - *Strides.* The string move of AMD's processors of family 25, to which the C library gives copies from 2 KiB on, copies
//!   at a sixteenth of its speed when the destination lies 1 to 31 bytes further in its page than the source does: 2.9 GB/s
//!   in place of 46 within the caches, 2.8 in place of 9.4 in memory. That is how a slot, which begins a page, meets a large
//!   buffer of `malloc`, which begins 16 bytes into one. Such copies are made of 16-byte moves.
//! - *Sums.* A block's crc32c is taken while it is streamed, by two units of the processor at once.
//!
//! Copies of memory that is read and written by words at the same time go [word by word](load_words) where they must.
//!
//! `HINTERLAND_NO_FOLDING=1` takes sums by one unit, `HINTERLAND_NO_STREAMING=1` and `HINTERLAND_NO_STRIDES=1` leave copies
//! to `memcpy`.

#[cfg(target_arch = "x86_64")]
mod folding;
#[cfg(target_arch = "x86_64")]
mod polynomial;
#[cfg(target_arch = "x86_64")]
mod summing;
mod words;

pub use words::{load_few_words, load_words, store_few_words, store_words};

use std::ptr;

/// Copies below this size are left to `memcpy`: it makes no string move of them.
const STRIDES_BYTES_MIN: usize = 2048;
/// Copies below this size are not streamed: their ends, which are ordinary stores, are too large a part of them.
const STREAMED_BYTES_MIN: usize = 512;

/// Copies bytes that somebody may be writing, as `memcpy` does, or quicker.
///
/// # Safety
/// `source` must be valid for reads and `destination` for writes of `bytes` bytes, and they must not overlap.
#[inline]
pub(crate) unsafe fn copy_long(source: *const u8, destination: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if bytes >= STRIDES_BYTES_MIN && strides::is_slow_case(source, destination) && ways().strides {
        // SAFETY: as promised by the caller, and long enough.
        unsafe { strides::copy(source, destination, bytes) };
        return;
    }
    // SAFETY: as promised by the caller.
    unsafe { ptr::copy_nonoverlapping(source, destination, bytes) };
}

/// Copies bytes that somebody may be writing, past the caches. Whoever tells another thread of them makes a
/// [`streaming_fence`] before: these stores are not ordered with others.
///
/// # Safety
/// `source` must be valid for reads and `destination` for writes of `bytes` bytes, and they must not overlap.
#[inline]
pub unsafe fn copy_streaming(source: *const u8, destination: *mut u8, bytes: usize) {
    #[cfg(target_arch = "x86_64")]
    if bytes >= STREAMED_BYTES_MIN && ways().streaming {
        // SAFETY: as promised by the caller, and long enough.
        unsafe { strides::stream(source, destination, bytes) };
        return;
    }
    // SAFETY: as promised by the caller.
    unsafe { copy_long(source, destination, bytes) };
}

/// Copies as [`copy_streaming`] does, and goes on with `sum`, the crc32c of the bytes before; the crc32c of all, or nothing
/// where the processor cannot, or the destination begins inside of 16 aligned bytes: then nothing was copied.
///
/// # Safety
/// As [`copy_streaming`].
#[inline]
pub unsafe fn copy_streaming_summed(
    source: *const u8,
    destination: *mut u8,
    bytes: usize,
    sum: u32,
) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if destination.addr().is_multiple_of(16) && ways().sums {
        // SAFETY: as promised by the caller; the line above has the rest.
        return Some(!unsafe { summing::stream(source, destination, bytes, !sum) });
    }
    let _ = (source, destination, bytes, sum);
    None
}

/// Goes on with `sum`, the crc32c of the bytes before, over bytes that somebody may be writing; nothing where the processor
/// cannot.
///
/// # Safety
/// `source` must be valid for reads of `bytes` bytes.
#[inline]
pub unsafe fn summed(source: *const u8, bytes: usize, sum: u32) -> Option<u32> {
    #[cfg(target_arch = "x86_64")]
    if summing::is_possible() {
        // SAFETY: as promised by the caller; the line above has the rest.
        return Some(!unsafe { summing::sum(source, bytes, !sum) });
    }
    let _ = (source, bytes, sum);
    None
}

/// Whether [`copy_streaming`] does otherwise than `memcpy`.
#[inline]
fn is_streaming() -> bool {
    #[cfg(target_arch = "x86_64")]
    return ways().streaming;
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Orders everything that was streamed before it with every store after it.
#[inline]
pub fn streaming_fence() {
    #[cfg(target_arch = "x86_64")]
    {
        use std::sync::atomic::{Ordering, compiler_fence};
        // The compiler must not move stores either.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: every x86-64 has the instruction.
        unsafe { std::arch::x86_64::_mm_sfence() };
        compiler_fence(Ordering::SeqCst);
    }
}

/// What this process does otherwise than `memcpy`.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Ways {
    streaming: bool,
    sums: bool,
    strides: bool,
}

/// Found out once: what the processor is and what was switched off does not change.
#[cfg(target_arch = "x86_64")]
#[inline]
fn ways() -> Ways {
    static WAYS: std::sync::OnceLock<Ways> = std::sync::OnceLock::new();
    let is_on = |switch| std::env::var_os(switch).is_none_or(|value| value != "1");
    *WAYS.get_or_init(|| Ways {
        streaming: is_on("HINTERLAND_NO_STREAMING"),
        sums: is_on("HINTERLAND_NO_STREAMING") && summing::is_possible(),
        strides: strides::has_slow_case() && is_on("HINTERLAND_NO_STRIDES"),
    })
}

/// Copies in moves of 16 bytes, four to a cache line of the destination.
#[cfg(target_arch = "x86_64")]
mod strides {
    use std::arch::x86_64::{
        __cpuid, __cpuid_count, __m128i, _mm_loadu_si128, _mm_store_si128, _mm_storeu_si128, _mm_stream_si128,
    };

    /// Bytes of a cache line.
    const LINE_BYTES: usize = 64;
    /// Bytes of a move.
    const MOVE_BYTES: usize = size_of::<__m128i>();
    /// Bytes by which the destination is further in its page than the source in the slow case, at most.
    const SLOW_GAP_MAX: usize = 31;
    /// Bit of fast short string moves in EDX of leaf 7.
    const FSRM: u32 = 1 << 4;
    /// The family of the processors that were seen to be slow.
    const SLOW_FAMILY: u32 = 0x19;

    /// Whether the string move of this processor has the slow case.
    pub fn has_slow_case() -> bool {
        let vendor = __cpuid(0);
        let is_amd = (vendor.ebx, vendor.edx, vendor.ecx) == (0x6874_7541, 0x6974_6e65, 0x444d_4163);
        if !is_amd || vendor.eax < 7 {
            return false;
        }
        let signature = __cpuid(1).eax;
        let family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
        family == SLOW_FAMILY && __cpuid_count(7, 0).edx & FSRM != 0
    }

    /// Whether the two lie to each other as in the slow case.
    #[inline]
    pub fn is_slow_case(source: *const u8, destination: *mut u8) -> bool {
        let gap = destination.addr().wrapping_sub(source.addr()) % crate::BASE_PAGE_BYTES;
        (1..=SLOW_GAP_MAX).contains(&gap)
    }

    /// Copies through the caches.
    ///
    /// # Safety
    /// As [`super::copy_long`], and at least two lines.
    #[inline(never)]
    pub unsafe fn copy(source: *const u8, destination: *mut u8, bytes: usize) {
        // SAFETY: as promised by the caller; the place is aligned to a line.
        unsafe { by_lines(source, destination, bytes, |place, value| _mm_store_si128(place, value)) };
    }

    /// Copies past the caches.
    ///
    /// # Safety
    /// As [`super::copy_streaming`], and at least two lines.
    #[inline(never)]
    pub unsafe fn stream(source: *const u8, destination: *mut u8, bytes: usize) {
        // SAFETY: as promised by the caller; the place is aligned to a line.
        unsafe { by_lines(source, destination, bytes, |place, value| _mm_stream_si128(place, value)) };
    }

    /// The first and the last line are copied wherever they lie, and what is between by whole lines of the destination: of
    /// an aligned word there no part is stored alone.
    ///
    /// # Safety
    /// Both ranges must be valid and apart, with at least two lines; `store` stores to a place that is aligned to 16 bytes.
    #[inline(always)]
    unsafe fn by_lines(
        source: *const u8,
        destination: *mut u8,
        bytes: usize,
        store: impl Fn(*mut __m128i, __m128i),
    ) {
        debug_assert!(bytes >= 2 * LINE_BYTES);
        let head = LINE_BYTES - destination.addr() % LINE_BYTES;
        // SAFETY: both lines lie within ranges that have two of them.
        unsafe { line(source, destination) };
        let mut at = head;
        while at + LINE_BYTES <= bytes {
            for part in 0..LINE_BYTES / MOVE_BYTES {
                // SAFETY: the line at `at` ends within both ranges.
                let (from, into) =
                    unsafe { (source.add(at + part * MOVE_BYTES), destination.add(at + part * MOVE_BYTES)) };
                // SAFETY: as above; `head` aligned the destination.
                store(into.cast(), unsafe { _mm_loadu_si128(from.cast()) });
            }
            at += LINE_BYTES;
        }
        if at < bytes {
            let last = bytes - LINE_BYTES;
            // SAFETY: the last line of both ranges.
            unsafe { line(source.add(last), destination.add(last)) };
        }
    }

    /// Copies 64 bytes.
    ///
    /// # Safety
    /// As many must be valid on both sides.
    #[inline(always)]
    unsafe fn line(source: *const u8, destination: *mut u8) {
        for part in 0..LINE_BYTES / MOVE_BYTES {
            // SAFETY: inside the 64 bytes, and neither needs alignment.
            unsafe {
                let value = _mm_loadu_si128(source.add(part * MOVE_BYTES).cast());
                _mm_storeu_si128(destination.add(part * MOVE_BYTES).cast(), value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The place in a list that begins a page.
    fn page(bytes: &[u8]) -> usize {
        bytes.as_ptr().addr().wrapping_neg() % crate::BASE_PAGE_BYTES
    }

    /// Copies by `copy`, from `from` bytes into a page to `into` bytes into another, and looks at all bytes around.
    fn check(from: usize, into: usize, bytes: usize, copy: impl Fn(*const u8, *mut u8, usize)) {
        let source: Vec<u8> = (0..bytes + 8192).map(|at| (at * 31 % 251) as u8 + 1).collect();
        let mut room = vec![0xEE_u8; bytes + 8192];
        let (from, start) = (page(&source) + from, page(&room) + into);
        copy(source[from..].as_ptr(), room[start..].as_mut_ptr(), bytes);
        assert!(room[start..start + bytes] == source[from..from + bytes], "{from} {into} {bytes}");
        let outside = room[..start].iter().chain(&room[start + bytes..]);
        assert!(outside.copied().all(|byte| byte == 0xEE), "{from} {into} {bytes}");
    }

    fn every_way(from: usize, into: usize, bytes: usize) {
        // SAFETY: `check` gives valid ranges of that length.
        check(from, into, bytes, |from, into, bytes| unsafe { copy_long(from, into, bytes) });
        check(from, into, bytes, |from, into, bytes| {
            // SAFETY: as above.
            unsafe { copy_streaming(from, into, bytes) };
            streaming_fence();
        });
        #[cfg(target_arch = "x86_64")]
        if bytes >= 128 {
            // SAFETY: as above, and long enough.
            check(from, into, bytes, |from, into, bytes| unsafe { strides::copy(from, into, bytes) });
        }
    }

    #[test]
    fn every_length_and_place_is_copied_whole_and_nothing_beside_it() {
        for bytes in (120..=330).chain([511, 512, 513, 2047, 2048, 2049, 4096, 10_000]) {
            for (from, into) in [(0, 0), (0, 1), (0, 16), (0, 31), (0, 32), (16, 0), (7, 60), (63, 64)] {
                every_way(from, into, bytes);
            }
        }
    }

    proptest! {
        #[test]
        fn any_copy_is_right(from in 0_usize..200, into in 0_usize..200, bytes in 0_usize..20_000) {
            every_way(from, into, bytes);
        }
    }

    /// Who reads a region by words while somebody writes it sees no half of one.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn an_aligned_word_is_stored_whole_also_by_short_moves() {
        use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        const WORDS: usize = 1024;
        let words: Vec<AtomicU64> = (0..WORDS + 1).map(|_| AtomicU64::new(0)).collect();
        let (done, shared) = (AtomicBool::new(false), &words);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let sources = [vec![0_u64; WORDS], vec![u64::MAX; WORDS]];
                for round in 0..20_000 {
                    // From the second word on, so that the first line is no whole one.
                    let (from, into) = (sources[round % 2].as_ptr(), shared[1].as_ptr());
                    // SAFETY: as many words are there on both sides, and others reach them by atomics only.
                    unsafe { strides::copy(from.cast(), into.cast(), WORDS * 8) };
                }
                // Relaxed: the words themselves are what is looked at.
                done.store(true, Ordering::Relaxed);
            });
            while !done.load(Ordering::Relaxed) {
                for word in shared {
                    let seen = word.load(Ordering::Relaxed);
                    assert!(seen == 0 || seen == u64::MAX, "{seen:x}");
                }
            }
        });
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_slow_case_is_a_destination_a_little_further_in_its_page() {
        let at = |address: usize| std::ptr::without_provenance_mut::<u8>(address);
        for (source, destination, is_slow) in
            [(0x1000, 0x8000, false), (0x1000, 0x8001, true), (0x1000, 0x801f, true), (0x1000, 0x8020, false)]
        {
            assert_eq!(
                strides::is_slow_case(at(source), at(destination)),
                is_slow,
                "{source:x} {destination:x}"
            );
        }
        assert!(strides::is_slow_case(at(0x1ff8), at(0x9000)), "over the end of a page");
        assert!(!strides::is_slow_case(at(0x1010), at(0x9000)), "a little before it");
    }
}
