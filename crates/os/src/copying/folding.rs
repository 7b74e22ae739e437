//! Sums by two units of the processor at once: while one takes the crc32c of three [lanes](super::summing), the other folds a
//! fourth stretch by multiplications without carry.
//!
//! A crc32c instruction takes 8 bytes and begins once a cycle; that is some 25 GB/s, and where memory takes bytes as quickly,
//! streaming and summing up are slower than streaming alone. *Folding* keeps 128 bytes that have the same remainder as
//! everything folded before them: each step multiplies them by the power of x that moves them over the next 128 bytes, and
//! adds these. On an AMD EPYC 7003 a sum of 64 KiB goes from 22 to 29 GB/s, and streamed with its sum from 16 to 19.5, where
//! streaming alone makes 20.5.
//!
//! Stores go through the bytes in order, apart from the stretches: five places that are written at once are slower than one.
//! So bytes are loaded twice, and who writes them meanwhile gets a sum that does not fit, which a reader finds.
//!
//! `HINTERLAND_NO_FOLDING=1` leaves all to the lanes.

use super::polynomial::{moves, over, power_of_x};

/// Bytes of each of the three lanes.
const LANE_BYTES: usize = 512;
/// Bytes of each lane that a step takes.
const LANE_STEP_BYTES: usize = 64;
/// Bytes that a step folds: four registers.
const FOLDED_STEP_BYTES: usize = 4 * REGISTER_BYTES;
const REGISTER_BYTES: usize = 32;
const STEPS: usize = LANE_BYTES / LANE_STEP_BYTES;
/// Bytes of the stretch that is folded.
const FOLDED_BYTES: usize = STEPS * FOLDED_STEP_BYTES;
/// Bytes of three lanes and the stretch.
const CHUNK_BYTES: usize = 3 * LANE_BYTES + FOLDED_BYTES;
/// Bytes that a step stores.
const STORED_STEP_BYTES: usize = CHUNK_BYTES / STEPS;

/// Moves a sum over a lane, and over the stretch.
static OVER_LANE: [[u32; 256]; 4] = moves(LANE_BYTES);
static OVER_FOLDED: [[u32; 256]; 4] = moves(FOLDED_BYTES);

/// Streams as many of the bytes as make whole chunks and goes on with their crc32c before it is inverted; how many, and the
/// sum. None where the processor cannot, or the destination begins inside of 32 aligned bytes.
///
/// # Safety
/// Both ranges must be valid and apart, and the processor must have the crc32c instruction.
pub unsafe fn stream(source: *const u8, destination: *mut u8, bytes: usize, sum: u32) -> (usize, u32) {
    if bytes < CHUNK_BYTES || !destination.addr().is_multiple_of(REGISTER_BYTES) || !is_on() {
        return (0, sum);
    }
    // SAFETY: as promised by the caller; `is_on` looked at the processor.
    unsafe { chunks::<true>(source, destination, bytes, sum) }
}

/// The same, of bytes that somebody may be writing, and nothing is stored.
///
/// # Safety
/// The range must be valid, and the processor must have the crc32c instruction.
pub unsafe fn sum(source: *const u8, bytes: usize, sum: u32) -> (usize, u32) {
    if bytes < CHUNK_BYTES || !is_on() {
        return (0, sum);
    }
    // SAFETY: as promised by the caller; `is_on` looked at the processor.
    unsafe { chunks::<false>(source, std::ptr::null_mut(), bytes, sum) }
}

/// Whether the processor multiplies so, and nobody switched it off.
fn is_on() -> bool {
    static IS_ON: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *IS_ON.get_or_init(|| {
        is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("avx2")
            && std::env::var_os("HINTERLAND_NO_FOLDING").is_none_or(|value| value != "1")
    })
}

/// Whole chunks, one after the other.
///
/// # Safety
/// As [`stream`] with an aligned destination if it `STORES`, else as [`sum`]; the processor must have what is enabled.
#[target_feature(enable = "sse4.2,avx2,pclmulqdq,vpclmulqdq")]
unsafe fn chunks<const STORES: bool>(
    source: *const u8,
    destination: *mut u8,
    bytes: usize,
    mut sum: u32,
) -> (usize, u32) {
    let mut at = 0;
    while at + CHUNK_BYTES <= bytes {
        // SAFETY: the chunk at `at` lies in both ranges, and chunks keep the alignment of the destination.
        sum = unsafe { chunk::<STORES>(source.add(at), destination.wrapping_add(at), sum) };
        at += CHUNK_BYTES;
    }
    (at, sum)
}

/// One chunk: a step takes 64 bytes of each lane and 128 of the stretch behind them, and stores what comes next in order.
///
/// # Safety
/// As [`chunks`], for the bytes of one.
#[inline]
#[target_feature(enable = "sse4.2,avx2,pclmulqdq,vpclmulqdq")]
unsafe fn chunk<const STORES: bool>(source: *const u8, destination: *mut u8, sum: u32) -> u32 {
    use std::arch::x86_64::{
        _MM_HINT_T0, _mm_crc32_u64, _mm_prefetch, _mm256_loadu_si256, _mm256_setzero_si256,
        _mm256_stream_si256,
    };
    let mut sums = [u64::from(sum), 0, 0];
    let mut folded = [_mm256_setzero_si256(); FOLDED_STEP_BYTES / REGISTER_BYTES];
    for step in 0..STEPS {
        let next = step * STORED_STEP_BYTES..(step + 1) * STORED_STEP_BYTES;
        for line in next.clone().step_by(64) {
            // Outside of the bytes this hints at lines that are not needed, and does nothing.
            _mm_prefetch::<_MM_HINT_T0>(source.wrapping_add(CHUNK_BYTES + line).cast());
        }
        for (register, folded) in folded.iter_mut().enumerate() {
            let at = 3 * LANE_BYTES + step * FOLDED_STEP_BYTES + register * REGISTER_BYTES;
            // SAFETY: inside the chunk.
            let value = unsafe { _mm256_loadu_si256(source.add(at).cast()) };
            *folded = fold::<{ 8 * FOLDED_STEP_BYTES }>(*folded, value);
        }
        if STORES {
            for at in next.step_by(REGISTER_BYTES) {
                // SAFETY: inside the chunk, and a step stores a multiple of what the destination is aligned to.
                unsafe {
                    let value = _mm256_loadu_si256(source.add(at).cast());
                    _mm256_stream_si256(destination.add(at).cast(), value);
                }
            }
        }
        // A word of each lane after the other, so that no sum is waited for.
        for word in 0..LANE_STEP_BYTES / size_of::<u64>() {
            for (lane, sum) in sums.iter_mut().enumerate() {
                let at = lane * LANE_BYTES + step * LANE_STEP_BYTES + word * size_of::<u64>();
                // SAFETY: inside the lane.
                let word = unsafe { source.add(at).cast::<u64>().read_unaligned() };
                *sum = _mm_crc32_u64(*sum, word);
            }
        }
    }
    // A register holds 32 bits of a sum.
    let joined = over(&OVER_LANE, sums[0] as u32) ^ sums[1] as u32;
    let joined = over(&OVER_LANE, joined) ^ sums[2] as u32;
    over(&OVER_FOLDED, joined) ^ remainder(folded)
}

/// The crc32c, before it is inverted and from zero on, of bytes that have been folded into these.
#[inline]
#[target_feature(enable = "sse4.2,avx2,pclmulqdq,vpclmulqdq")]
fn remainder(folded: [std::arch::x86_64::__m256i; 4]) -> u32 {
    use std::arch::x86_64::{_mm_crc32_u64, _mm256_extract_epi64, _mm256_permute2x128_si256};
    let [first, rest @ ..] = folded;
    let both = rest.into_iter().fold(first, |before, next| fold::<{ 8 * REGISTER_BYTES }>(before, next));
    // The lower half over the higher one, which is put where the result is taken from.
    let higher = _mm256_permute2x128_si256::<0x81>(both, both);
    let last = fold::<{ 8 * REGISTER_BYTES / 2 }>(both, higher);
    let sum = _mm_crc32_u64(0, _mm256_extract_epi64::<0>(last).cast_unsigned());
    // A register holds 32 bits of a sum.
    _mm_crc32_u64(sum, _mm256_extract_epi64::<1>(last).cast_unsigned()) as u32
}

/// Each half of `before` multiplied by the power of x that moves it over so many `BITS`, with `next` added.
///
/// The first 8 bytes of a half stand 64 bits higher than the others. A product of two words that have their lowest power in the
/// highest bit is one bit short, and the powers stand 32 bits higher than they are: both are in the constants.
#[inline]
#[target_feature(enable = "avx2,pclmulqdq,vpclmulqdq")]
fn fold<const BITS: usize>(
    before: std::arch::x86_64::__m256i,
    next: std::arch::x86_64::__m256i,
) -> std::arch::x86_64::__m256i {
    use std::arch::x86_64::{_mm256_clmulepi64_epi128, _mm256_set_epi64x, _mm256_xor_si256};
    let first = const { (power_of_x(BITS + 32) as i64) << 1 };
    let second = const { (power_of_x(BITS - 32) as i64) << 1 };
    let powers = _mm256_set_epi64x(second, first, second, first);
    let first = _mm256_clmulepi64_epi128::<0x00>(before, powers);
    let second = _mm256_clmulepi64_epi128::<0x11>(before, powers);
    _mm256_xor_si256(_mm256_xor_si256(first, second), next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copying::polynomial::by_bits;

    #[test]
    fn whole_chunks_are_stored_and_summed_up_and_nothing_beside_them() {
        if !is_on() || !is_x86_feature_detected!("sse4.2") {
            eprintln!("skipped: this processor does not multiply without carry");
            return;
        }
        let source: Vec<u8> = (0..4 * CHUNK_BYTES as u32).map(|at| (at * at / 7 % 255) as u8 + 1).collect();
        let mut room = vec![0xEE_u8; 4 * CHUNK_BYTES];
        let start = room.as_ptr().addr().wrapping_neg() % REGISTER_BYTES;
        for (from, bytes) in (0..64).flat_map(|from| {
            [CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 17, 3 * CHUNK_BYTES].map(|bytes| (from, bytes))
        }) {
            room.fill(0xEE);
            // SAFETY: both ranges are in their lists, and it was looked whether it is possible.
            let (streamed, alone) = unsafe {
                let from = source[from..].as_ptr();
                (stream(from, room[start..].as_mut_ptr(), bytes, 0x1234_5678), sum(from, bytes, 0x1234_5678))
            };
            crate::copying::streaming_fence();
            let whole = bytes / CHUNK_BYTES * CHUNK_BYTES;
            let taken = &source[from..from + whole];
            assert_eq!(streamed, (whole, by_bits(taken, 0x1234_5678)), "{from} {bytes}");
            assert_eq!(alone, streamed, "{from} {bytes}");
            assert!(room[start..start + whole] == *taken, "{from} {bytes}");
            assert!(room[start + whole..].iter().all(|byte| *byte == 0xEE), "{from} {bytes}");
        }
    }

    #[test]
    fn a_destination_that_is_not_aligned_is_left_to_others() {
        let source = vec![7_u8; CHUNK_BYTES];
        let mut room = vec![0xEE_u8; CHUNK_BYTES + 2 * REGISTER_BYTES];
        let start = room.as_ptr().addr().wrapping_neg() % REGISTER_BYTES + 16;
        // SAFETY: both ranges are in their lists; nothing is done that the processor cannot.
        let left = unsafe { stream(source.as_ptr(), room[start..].as_mut_ptr(), CHUNK_BYTES, 5) };
        assert_eq!(left, (0, 5));
        assert!(room.iter().all(|byte| *byte == 0xEE));
    }
}
