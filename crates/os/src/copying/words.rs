//! Copies that never take an aligned word of 8 bytes for two halves.
//!
//! `memcpy` moves pieces of the length and at the places that suit it: the ends of a copy whose length is no multiple of 8 overlap inside of a
//! word, and a long copy keeps to the pieces of its destination, which may begin anywhere in a word of the source. If somebody
//! stores that word between two of them, half of the old and half of the new one are copied. Where both begin with a word and
//! the length is one of words, all pieces are words or several; only other copies are made here, word by word.

use super::{copy_streaming, is_streaming, streaming_fence};
use crate::shared_slice::{INLINE_COPY_BYTES_MAX, copy_racing};
use std::sync::atomic::{AtomicU64, Ordering};

const WORD_BYTES: usize = size_of::<u64>();
/// Stores from this size on go past the caches. Into memory that no cache holds they take half of the time of `memcpy`, which is more
/// than a reader loses who comes at once; below it the reader loses more (docs/decisions/2026-11-27-long-writes.md).
const STREAMED_BYTES_MIN: usize = 128 << 10;

/// Copies memory that others may be writing. A word of 8 aligned bytes of the source that lies in the range whole is copied as it
/// was at one moment.
///
/// # Safety
/// As [`copy_racing`].
#[inline(always)]
pub unsafe fn load_words(source: *const u8, destination: *mut u8, bytes: usize) {
    if is_of_words(source.addr(), destination.addr(), bytes) {
        // SAFETY: the caller's promise.
        unsafe { copy_racing(source, destination, bytes) };
    } else {
        // SAFETY: as above.
        unsafe { load_each(source, destination, bytes) };
    }
}

/// Copies into memory that others may be reading. A word of 8 aligned bytes of the destination that lies in the range whole
/// is stored at once. Whoever is told of these bytes by a later store sees them.
///
/// # Safety
/// As [`copy_racing`].
#[inline(always)]
pub unsafe fn store_words(source: *const u8, destination: *mut u8, bytes: usize) {
    if bytes >= STREAMED_BYTES_MIN && is_streaming() {
        // SAFETY: the caller's promise.
        unsafe { stream_words(source, destination, bytes) };
    } else if is_of_words(destination.addr(), source.addr(), bytes) {
        // SAFETY: the caller's promise.
        unsafe { copy_racing(source, destination, bytes) };
    } else {
        // SAFETY: as above.
        unsafe { store_each(source, destination, bytes) };
    }
}

/// As [`load_words`], but only up to 128 bytes of whole words, which needs no call of another function; says whether they were
/// copied.
///
/// # Safety
/// As [`copy_racing`].
#[inline(always)]
pub unsafe fn load_few_words(source: *const u8, destination: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { copy_few_words(source.addr(), source, destination, bytes) }
}

/// As [`store_words`], but only up to 128 bytes of whole words, which needs no call of another function; says whether they were
/// copied.
///
/// # Safety
/// As [`copy_racing`].
#[inline(always)]
pub unsafe fn store_few_words(source: *const u8, destination: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise.
    unsafe { copy_few_words(destination.addr(), source, destination, bytes) }
}

/// # Safety
/// As [`copy_racing`]; `shared` is where the shared side begins.
#[inline(always)]
unsafe fn copy_few_words(shared: usize, source: *const u8, destination: *mut u8, bytes: usize) -> bool {
    let is_few = bytes <= INLINE_COPY_BYTES_MAX && (shared | bytes).is_multiple_of(WORD_BYTES);
    if is_few {
        // SAFETY: the caller's promise.
        unsafe { copy_racing(source, destination, bytes) };
    }
    is_few
}

/// Whether every move of [`copy_racing`] is made of words of the shared side. Those of short copies begin at places that count from
/// both ends, those of long ones at places that suit either side.
#[inline(always)]
fn is_of_words(shared: usize, private: usize, bytes: usize) -> bool {
    (shared | bytes).is_multiple_of(WORD_BYTES)
        && (bytes <= INLINE_COPY_BYTES_MAX || private.is_multiple_of(WORD_BYTES))
}

/// The bytes before the first whole word of the shared side, and those of all its whole words: what is behind them is less than
/// a word, too.
fn parts(shared: usize, bytes: usize) -> (usize, usize) {
    let head = (shared.wrapping_neg() % WORD_BYTES).min(bytes);
    (head, (bytes - head) / WORD_BYTES * WORD_BYTES)
}

/// # Safety
/// As [`load_words`].
#[inline(never)]
unsafe fn load_each(source: *const u8, destination: *mut u8, bytes: usize) {
    let word = |from: *const u8, into: *mut u8| {
        // SAFETY: `each` gives places inside both ranges, where the source is aligned. It may be memory that is only read: nothing
        // is stored there. Relaxed: no more is wanted than that it is one load.
        let word = unsafe { AtomicU64::from_ptr(from.cast_mut().cast()).load(Ordering::Relaxed) };
        // SAFETY: as above.
        unsafe { into.cast::<u64>().write_unaligned(word) };
    };
    // SAFETY: the caller's promise.
    unsafe { each(source, destination, bytes, (source.addr(), destination.addr()), word) };
}

/// # Safety
/// As [`store_words`].
#[inline(never)]
unsafe fn store_each(source: *const u8, destination: *mut u8, bytes: usize) {
    let word = |from: *const u8, into: *mut u8| {
        // SAFETY: `each` gives places inside both ranges, where the destination is aligned.
        let word = unsafe { from.cast::<u64>().read_unaligned() };
        // SAFETY: as above. Relaxed: no more is wanted than that it is one store.
        unsafe { AtomicU64::from_ptr(into.cast()).store(word, Ordering::Relaxed) };
    };
    // SAFETY: the caller's promise.
    unsafe { each(source, destination, bytes, (destination.addr(), source.addr()), word) };
}

/// # Safety
/// As [`store_words`].
#[inline(never)]
unsafe fn stream_words(source: *const u8, destination: *mut u8, bytes: usize) {
    let (head, words) = parts(destination.addr(), bytes);
    let end = head + words;
    // SAFETY: all places lie inside both ranges, which the caller promises. Streamed copies are made of whole words where both the
    // destination and the length are.
    unsafe {
        copy_racing(source, destination, head);
        copy_streaming(source.add(head), destination.add(head), words);
        copy_racing(source.add(end), destination.add(end), bytes - end);
    }
    streaming_fence();
}

/// Copies the whole words of the shared side, each by `word` where [`copy_racing`] would not keep to them, and what is before and
/// behind them.
///
/// # Safety
/// As [`copy_racing`]; `shared` and `private` are where the two sides begin.
#[inline(always)]
unsafe fn each(
    source: *const u8,
    destination: *mut u8,
    bytes: usize,
    (shared, private): (usize, usize),
    word: impl Fn(*const u8, *mut u8),
) {
    let (head, words) = parts(shared, bytes);
    let end = head + words;
    // SAFETY: all places lie inside both ranges, which the caller promises.
    unsafe {
        copy_racing(source, destination, head);
        if is_of_words(shared + head, private + head, words) {
            copy_racing(source.add(head), destination.add(head), words);
        } else {
            (head..end).step_by(WORD_BYTES).for_each(|at| word(source.add(at), destination.add(at)));
        }
        copy_racing(source.add(end), destination.add(end), bytes - end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    const WORDS: usize = 512;
    /// How often the other thread stores or looks at all words while something is copied again and again.
    const ROUNDS: u64 = 2000;
    /// Lengths on both sides of the ways of `memcpy`, of words and not.
    const LENGTHS: [usize; 16] = [7, 8, 12, 31, 48, 100, 128, 136, 200, 256, 264, 320, 513, 1024, 2048, 3000];
    /// Where the shared and the private side begin.
    const PLACES: [(usize, usize); 8] = [(0, 0), (0, 1), (0, 20), (4, 0), (4, 4), (3, 5), (24, 8), (61, 3)];

    type Copy = unsafe fn(*const u8, *mut u8, usize);

    #[test]
    fn every_length_and_place_is_copied_whole_and_nothing_beside_it() {
        let source: Vec<u8> = (0..600_u32).map(|at| (at * 7 % 251) as u8).collect();
        for copy in [load_words as Copy, store_words, stream_words] {
            for bytes in (0..300).chain([511, 512, 520, 530]) {
                for (from, into) in PLACES {
                    let mut room = vec![0xEE_u8; 700];
                    // SAFETY: both lists are long enough for the longest from the farthest place.
                    unsafe { copy(source[from..].as_ptr(), room[into..].as_mut_ptr(), bytes) };
                    assert!(room[into..into + bytes] == source[from..from + bytes], "{bytes} {from} {into}");
                    let mut outside = room[..into].iter().chain(&room[into + bytes..]);
                    assert!(outside.all(|byte| *byte == 0xEE), "{bytes} {from} {into}");
                }
            }
        }
    }

    #[test]
    fn long_stores_are_whole_too() {
        let source: Vec<u8> = (0..STREAMED_BYTES_MIN + 100).map(|at| (at * 7 % 251) as u8).collect();
        for bytes in [STREAMED_BYTES_MIN - 1, STREAMED_BYTES_MIN, STREAMED_BYTES_MIN + 13] {
            let mut room = vec![0xEE_u8; bytes + 100];
            // SAFETY: both lists are long enough.
            unsafe { store_words(source[3..].as_ptr(), room[29..].as_mut_ptr(), bytes) };
            assert!(room[29..29 + bytes] == source[3..3 + bytes], "{bytes}");
            assert!(room[..29].iter().chain(&room[29 + bytes..]).all(|byte| *byte == 0xEE), "{bytes}");
        }
    }

    #[test]
    fn few_words_are_words_and_few() {
        let source: Vec<u8> = (1..=200).collect();
        for (bytes, from) in [(0, 0), (8, 3), (64, 1), (120, 0), (128, 5)] {
            let mut room = [0_u64; 16];
            // SAFETY: both have as many bytes.
            assert!(unsafe { store_few_words(source[from..].as_ptr(), room.as_mut_ptr().cast(), bytes) });
            let mut back = vec![0_u8; bytes];
            // SAFETY: as above.
            assert!(unsafe { load_few_words(room.as_ptr().cast(), back.as_mut_ptr(), bytes) });
            assert_eq!(back, source[from..from + bytes]);
        }
        let mut room = [0_u64; 20];
        for (bytes, into) in [(136, 0), (12, 0), (8, 4), (7, 0)] {
            // SAFETY: both have as many bytes.
            assert!(!unsafe {
                store_few_words(source.as_ptr(), room.as_mut_ptr().cast::<u8>().add(into), bytes)
            });
        }
        assert_eq!(room, [0; 20]);
    }

    fn shared() -> Vec<AtomicU64> {
        (0..2 * WORDS).map(|_| AtomicU64::new(0)).collect()
    }

    fn is_torn(word: u64) -> bool {
        word != 0 && word != u64::MAX
    }

    #[test]
    fn no_half_of_a_word_is_loaded() {
        let (shared, done, rounds) = (shared(), AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let word = rounds.fetch_add(1, Ordering::SeqCst) % 2 * u64::MAX;
                    // Relaxed, here and below: each word counts by itself.
                    shared.iter().for_each(|place| place.store(word, Ordering::Relaxed));
                }
            });
            let mut room = vec![0_u8; 16 * WORDS];
            let start = shared.as_ptr().cast::<u8>();
            let cases = LENGTHS.iter().flat_map(|&bytes| PLACES.map(|place| (bytes, place)));
            let is_seen_in_halves = |&(bytes, (from, into)): &(usize, (usize, usize))| {
                let last = rounds.load(Ordering::SeqCst) + ROUNDS;
                let mut tries = std::iter::from_fn(|| (rounds.load(Ordering::SeqCst) < last).then_some(()));
                tries.any(|()| {
                    // SAFETY: as many bytes are there on both sides; the other thread stores by atomics only.
                    unsafe { load_words(start.add(from), room[into..].as_mut_ptr(), bytes) };
                    let whole = &room[into..into + bytes][parts(from, bytes).0..];
                    whole.as_chunks().0.iter().any(|word| is_torn(u64::from_le_bytes(*word)))
                })
            };
            let torn: Vec<_> = cases.filter(is_seen_in_halves).collect();
            done.store(true, Ordering::SeqCst);
            assert_eq!(torn, [], "bytes, shared place, private place");
        });
    }

    /// Whether somebody sees half of a word while `bytes` bytes are stored by `copy`, beside the words in which they begin and end.
    fn stores_halves(copy: Copy, bytes: usize, (into, from): (usize, usize)) -> bool {
        let (shared, done, looks) = (shared(), AtomicBool::new(false), AtomicU64::new(0));
        let sources = [vec![0_u8; 16 * WORDS], vec![0xff; 16 * WORDS]];
        std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let whole = &shared[into.div_ceil(8)..((into + bytes) / 8).max(into.div_ceil(8))];
                let mut torn = false;
                while !done.load(Ordering::SeqCst) {
                    looks.fetch_add(1, Ordering::SeqCst);
                    torn |= whole.iter().any(|place| is_torn(place.load(Ordering::Relaxed)));
                }
                torn
            });
            let mut source = sources.iter().cycle();
            while looks.load(Ordering::SeqCst) < ROUNDS {
                let place = source.next().unwrap()[from..].as_ptr();
                // SAFETY: as many bytes are there on both sides; the other thread loads by atomics only.
                unsafe { copy(place, shared.as_ptr().cast_mut().cast::<u8>().add(into), bytes) };
            }
            done.store(true, Ordering::SeqCst);
            watch.join().unwrap()
        })
    }

    #[test]
    fn no_half_of_a_word_is_stored() {
        let cases = LENGTHS.iter().flat_map(|&bytes| PLACES.map(|place| (bytes, place)));
        let torn =
            cases.filter(|&(bytes, place)| stores_halves(store_words, bytes, place)).collect::<Vec<_>>();
        assert_eq!(torn, [], "bytes, shared place, private place");
    }

    /// Also past the caches; shorter ones go through them, as nothing else that is shared does.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn no_half_of_a_word_is_streamed() {
        let cases = [520, 527, 1024, 3000].into_iter().flat_map(|bytes| PLACES.map(|place| (bytes, place)));
        let torn =
            cases.filter(|&(bytes, place)| stores_halves(stream_words, bytes, place)).collect::<Vec<_>>();
        assert_eq!(torn, [], "bytes, shared place, private place");
    }
}
