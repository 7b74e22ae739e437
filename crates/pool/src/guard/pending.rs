//! Bytes that are to be written: ranges in order, of which none overlaps another.

use std::collections::BTreeMap;

/// A later write takes the place of what it covers.
#[derive(Default)]
pub(super) struct Pending {
    ranges: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
    writes: usize,
}

impl Pending {
    /// Bytes in all ranges.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many ranges there are.
    pub fn count(&self) -> usize {
        self.ranges.len()
    }

    /// How many writes it was.
    pub const fn writes(&self) -> usize {
        self.writes
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.ranges.iter().map(|(start, bytes)| (*start, bytes.as_slice()))
    }

    /// Notes a write.
    pub fn put(&mut self, start: u64, from: &[u8]) {
        self.writes += 1;
        if from.is_empty() {
            return;
        }
        if let Some((before, bytes)) = self.ranges.range_mut(..=start).next_back() {
            // 64-bit only, and no longer than a region.
            let at = (start - before) as usize;
            if at + from.len() <= bytes.len() {
                bytes[at..at + from.len()].copy_from_slice(from);
                return;
            }
        }
        self.cut(start, from.len());
        self.bytes += from.len();
        // What follows goes with it: others may read between two ranges, and an earlier write may have covered a word of both.
        let behind = self.ranges.remove(&(start + from.len() as u64)).unwrap_or_default();
        let before = self.ranges.range_mut(..start).next_back();
        match before.filter(|(before, bytes)| **before + bytes.len() as u64 == start) {
            Some((_, bytes)) => bytes.extend([from, &behind].into_iter().flatten()),
            None => {
                self.ranges.insert(start, [from, &behind].concat());
            }
        }
    }

    /// Whether one of the bytes is pending.
    pub fn overlaps(&self, start: u64, bytes: usize) -> bool {
        self.touching(start, bytes).next().is_some()
    }

    /// Puts what is pending over what was read.
    pub fn overlay(&self, start: u64, into: &mut [u8]) {
        let end = start + into.len() as u64;
        for (from, bytes) in self.touching(start, into.len()) {
            let (low, high) = (from.max(start), (from + bytes.len() as u64).min(end));
            // Inside both, by `touching`.
            into[(low - start) as usize..(high - start) as usize]
                .copy_from_slice(&bytes[(low - from) as usize..(high - from) as usize]);
        }
    }

    /// Whether one range has all of the bytes.
    pub fn covers(&self, start: u64, bytes: usize) -> bool {
        let before = self.ranges.range(..=start).next_back();
        before.is_some_and(|(from, there)| start + bytes as u64 <= from + there.len() as u64)
    }

    fn touching(&self, start: u64, bytes: usize) -> impl Iterator<Item = (u64, &[u8])> {
        let end = start + bytes as u64;
        let first = self.ranges.range(..=start).next_back().map_or(start, |(from, _)| *from);
        let all = self.ranges.range(first..end.max(first)).map(|(from, bytes)| (*from, bytes.as_slice()));
        all.filter(move |(from, there)| bytes > 0 && from + there.len() as u64 > start && *from < end)
    }

    /// Takes bytes out.
    fn cut(&mut self, start: u64, bytes: usize) {
        let end = start + bytes as u64;
        let touched: Vec<u64> = self.touching(start, bytes).map(|(from, _)| from).collect();
        for from in touched {
            let Some(mut there) = self.ranges.remove(&from) else { continue };
            self.bytes -= there.len();
            let there_end = from + there.len() as u64;
            if there_end > end {
                let behind = there.split_off((end - from) as usize);
                self.bytes += behind.len();
                self.ranges.insert(end, behind);
            }
            if from < start {
                there.truncate((start - from) as usize);
                self.bytes += there.len();
                self.ranges.insert(from, there);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain model: one byte a place.
    #[derive(Default)]
    struct Plain(BTreeMap<u64, u8>);

    /// A linear congruential generator; the tests need no better one.
    struct Chance(u64);

    impl Chance {
        fn below(&mut self, most: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % most
        }
    }

    #[test]
    fn random_writes_are_what_a_plain_map_of_bytes_has() {
        for seed in 0..200 {
            let (mut pending, mut plain, mut chance) = (Pending::default(), Plain::default(), Chance(seed));
            for number in 0..200_u64 {
                let (start, len) = (chance.below(300), chance.below(40) as usize);
                let bytes: Vec<u8> = (0..len).map(|at| (number + at as u64) as u8).collect();
                pending.put(start, &bytes);
                plain.0.extend(bytes.iter().enumerate().map(|(at, byte)| (start + at as u64, *byte)));
                let (from, len) = (chance.below(340), chance.below(60) as usize);
                let mut seen = vec![0xee; len];
                pending.overlay(from, &mut seen);
                let own = |at: usize| plain.0.get(&(from + at as u64)).copied();
                let due: Vec<u8> = (0..len).map(|at| own(at).unwrap_or(0xee)).collect();
                assert_eq!(seen, due, "seed {seed}, write {number}");
                assert_eq!(pending.overlaps(from, len), (0..len).any(|at| own(at).is_some()));
                assert!(!pending.covers(from, len) || (0..len).all(|at| own(at).is_some()));
            }
            let mut last_end = 0;
            for (start, bytes) in pending.ranges() {
                assert!(!bytes.is_empty(), "an empty range");
                // What touches is one range, so that no word is written in two.
                assert!(start > last_end || start == 0, "ranges overlap or touch");
                last_end = start + bytes.len() as u64;
            }
            assert_eq!(pending.bytes(), plain.0.len());
            assert_eq!(pending.bytes(), pending.ranges().map(|(_, bytes)| bytes.len()).sum::<usize>());
        }
    }
}
