//! Bytes that are almost right: seeds, changed by the same sequence of random steps in every run.

use std::time::{Duration, Instant};

/// How long one target runs, in seconds, if `HINTERLAND_FUZZ_SECONDS` does not say.
const SECONDS: u64 = 2;
/// Longest input that mutations grow to: behind it only time is lost.
const BYTES_MAX: usize = 64 << 10;

/// Numbers that look random and are the same in every run.
pub struct Random(u64);

impl Random {
    /// Starts the sequence of a number.
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next number (splitmix64).
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, or 0.
    pub fn below(&mut self, end: usize) -> usize {
        self.number() as usize % end.max(1)
    }
}

/// Changes a few things, as a broken or hostile peer would.
pub fn mutate(random: &mut Random, bytes: &mut Vec<u8>) {
    const EDGES: [u64; 10] = [0, 1, 0x7f, 0x80, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 62, u64::MAX];
    for _ in 0..=random.below(4) {
        let place = random.below(bytes.len());
        match random.below(8) {
            0 if !bytes.is_empty() => bytes[place] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[place] = random.number() as u8,
            2 => bytes.truncate(place),
            3 => bytes.extend((0..random.below(40)).map(|index| index as u8)),
            4 | 5 => {
                let width = 1 << random.below(4);
                let edge =
                    EDGES[random.below(EDGES.len())].wrapping_sub(random.below(2) as u64).to_le_bytes();
                for (to, from) in bytes.iter_mut().skip(place).zip(&edge[..width]) {
                    *to = *from;
                }
            }
            6 if !bytes.is_empty() => {
                let end = (place + random.below(32)).min(bytes.len());
                let piece = bytes[place..end].to_vec();
                let at = random.below(bytes.len());
                bytes.splice(at..at, piece);
            }
            _ if !bytes.is_empty() => {
                let end = (place + random.below(32)).min(bytes.len());
                bytes.drain(place..end);
            }
            _ => bytes.push(0),
        }
    }
    bytes.truncate(BYTES_MAX);
}

/// Calls `target` with changed seeds until the time is over. The number of the round is said if it panics: the same
/// round of the same target has the same bytes again.
pub fn fuzz(seeds: &[Vec<u8>], mut target: impl FnMut(&mut Random, Vec<u8>)) {
    rounds(|random, round| {
        let mut bytes = seeds[round as usize % seeds.len()].clone();
        mutate(random, &mut bytes);
        target(random, bytes);
    });
}

/// Calls `target` with the random numbers of each round until the time is over.
pub fn rounds(mut target: impl FnMut(&mut Random, u64)) {
    struct Said(u64);
    impl Drop for Said {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("it was round {}", self.0);
            }
        }
    }
    let asked = std::env::var("HINTERLAND_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(asked.unwrap_or(SECONDS));
    let mut said = Said(0);
    while Instant::now() < end {
        for _ in 0..64 {
            target(&mut Random::new(said.0), said.0);
            said.0 += 1;
        }
    }
    eprintln!("{} rounds", said.0);
}
