//! Bytes that are summed up where they lie, or streamed and summed up in one pass: each is loaded once.
//!
//! The processor's crc32c instruction takes 8 bytes and needs three cycles for its answer, but begins one every cycle. So
//! three stretches of the bytes, *lanes*, are summed up side by side, and their sums joined: the sum of a lane is moved over
//! the bytes behind it by a multiplication with a power of x, which four tables make. Where the processor can, most of the
//! bytes are [folded](folding) beside that, and this module takes the rest.

use super::folding;
use super::polynomial::{moves, over};

/// Bytes of a lane where there are many, and where there are few.
const LANES: [usize; 2] = [1024, 128];

/// Tables that move a sum over the bytes of a lane, for each length of one.
static MOVES: [[[u32; 256]; 4]; LANES.len()] = [moves(LANES[0]), moves(LANES[1])];

/// Whether [`stream`] and [`sum`] may be called.
pub fn is_possible() -> bool {
    std::arch::is_x86_feature_detected!("sse4.2")
}

/// Copies past the caches and goes on with a crc32c before it is inverted.
///
/// # Safety
/// Both ranges must be valid and apart, the destination aligned to 16 bytes, and [`is_possible`].
#[target_feature(enable = "sse4.2")]
pub unsafe fn stream(source: *const u8, destination: *mut u8, bytes: usize, sum: u32) -> u32 {
    // SAFETY: as promised by the caller.
    unsafe {
        let (folded, sum) = folding::stream(source, destination, bytes, sum);
        pass::<true>(source.add(folded), destination.add(folded), bytes - folded, sum)
    }
}

/// Goes on with a crc32c before it is inverted over bytes that somebody may be writing.
///
/// # Safety
/// The range must be valid, and [`is_possible`].
#[target_feature(enable = "sse4.2")]
pub unsafe fn sum(source: *const u8, bytes: usize, sum: u32) -> u32 {
    // SAFETY: as promised by the caller; nothing is stored.
    unsafe {
        let (folded, sum) = folding::sum(source, bytes, sum);
        pass::<false>(source.add(folded), std::ptr::null_mut(), bytes - folded, sum)
    }
}

/// One pass over the bytes, which stores them if it `STORES`.
///
/// # Safety
/// As [`stream`] if it `STORES`, else as [`sum`].
#[inline]
#[target_feature(enable = "sse4.2")]
unsafe fn pass<const STORES: bool>(source: *const u8, destination: *mut u8, bytes: usize, sum: u32) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u64};
    let (mut at, mut sum) = (0, u64::from(sum));
    for (lane_bytes, moves) in LANES.into_iter().zip(&MOVES) {
        while at + 3 * lane_bytes <= bytes {
            // SAFETY: three lanes from `at` on are in both ranges, and lanes are multiples of 16 bytes.
            let sums =
                unsafe { lanes::<STORES>(source.add(at), destination.wrapping_add(at), lane_bytes, sum) };
            // A register holds 32 bits of a sum.
            let joined = over(moves, sums[0] as u32) ^ sums[1] as u32;
            sum = u64::from(over(moves, joined) ^ sums[2] as u32);
            at += 3 * lane_bytes;
        }
    }
    while at + 8 <= bytes {
        // SAFETY: 8 bytes from `at` on are in both ranges; neither needs alignment.
        unsafe {
            let word = source.add(at).cast::<u64>().read_unaligned();
            if STORES {
                destination.add(at).cast::<u64>().write_unaligned(word);
            }
            sum = _mm_crc32_u64(sum, word);
        }
        at += 8;
    }
    // As above.
    let mut sum = sum as u32;
    while at < bytes {
        // SAFETY: inside both ranges.
        unsafe {
            let byte = *source.add(at);
            if STORES {
                *destination.add(at) = byte;
            }
            sum = _mm_crc32_u8(sum, byte);
        }
        at += 1;
    }
    sum
}

/// One pass over three lanes; the sums of each, of which the first goes on with `sum`.
///
/// # Safety
/// Three times `lane_bytes`, a multiple of 16, must be valid at the source, and if it `STORES` at the destination, aligned to 16.
#[inline]
#[target_feature(enable = "sse4.2")]
unsafe fn lanes<const STORES: bool>(
    source: *const u8,
    destination: *mut u8,
    lane_bytes: usize,
    sum: u64,
) -> [u64; 3] {
    use std::arch::x86_64::{
        __m128i, _MM_HINT_T0, _mm_crc32_u64, _mm_cvtsi128_si64, _mm_extract_epi64, _mm_loadu_si128,
        _mm_prefetch, _mm_stream_si128,
    };
    const LINE_BYTES: usize = 64;
    const MOVE_BYTES: usize = size_of::<__m128i>();
    let mut sums = [sum, 0, 0];
    for line in (0..lane_bytes).step_by(LINE_BYTES) {
        // Three short lanes are no sequence that the processor would see by itself: the next ones are asked for. Outside of
        // the bytes this hints at lines that are not needed, and does nothing.
        for lane in 3..6 {
            _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(lane * lane_bytes + line).cast());
        }
        if !STORES {
            // A word of each lane after the other, so that no sum is waited for.
            for at in (line..line + LINE_BYTES).step_by(size_of::<u64>()) {
                for (lane, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: inside the lane.
                    let word = unsafe { source.add(lane * lane_bytes + at).cast::<u64>().read_unaligned() };
                    *sum = _mm_crc32_u64(*sum, word);
                }
            }
            continue;
        }
        for (lane, sum) in sums.iter_mut().enumerate() {
            // A line of one lane after the other, so that the processor writes whole lines.
            for part in 0..LINE_BYTES / MOVE_BYTES {
                let at = lane * lane_bytes + line + part * MOVE_BYTES;
                // SAFETY: inside the lane.
                let value = unsafe { _mm_loadu_si128(source.add(at).cast()) };
                // SAFETY: inside the lane, and lanes keep the alignment of the destination.
                unsafe { _mm_stream_si128(destination.add(at).cast(), value) };
                *sum = _mm_crc32_u64(*sum, _mm_cvtsi128_si64(value).cast_unsigned());
                *sum = _mm_crc32_u64(*sum, _mm_extract_epi64::<1>(value).cast_unsigned());
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copying::polynomial::by_bits;

    #[test]
    fn bytes_of_any_length_are_copied_and_summed_up() {
        if !is_possible() {
            eprintln!("skipped: this processor has no crc32c");
            return;
        }
        let source: Vec<u8> = (0..20_000_u32).map(|at| (at * at / 7 % 255) as u8 + 1).collect();
        let mut room = vec![0xEE_u8; 20_100];
        let start = room.as_ptr().addr().wrapping_neg() % 16;
        for (from, bytes) in
            (0..1000).map(|bytes| (bytes % 17, bytes)).chain([(3, 3071), (0, 4096), (5, 19_990)])
        {
            room.fill(0xEE);
            let into = room[start..].as_mut_ptr();
            // SAFETY: both ranges are in their lists, the destination is aligned, and it was looked whether it is possible.
            let (sum, alone) = unsafe {
                let from = source[from..].as_ptr();
                (stream(from, into, bytes, !0), super::sum(from, bytes, !0))
            };
            crate::copying::streaming_fence();
            assert_eq!(sum, alone, "{from} {bytes}");
            assert_eq!(sum, by_bits(&source[from..from + bytes], !0), "{from} {bytes}");
            assert!(room[start..start + bytes] == source[from..from + bytes], "{from} {bytes}");
            assert!(room[start + bytes..].iter().all(|byte| *byte == 0xEE), "{from} {bytes}");
        }
    }
}
