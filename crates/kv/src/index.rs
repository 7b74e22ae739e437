//! The index: buckets of one cache line, walked by readers with plain loads.
//!
//! One writer. An entry is one word, so a reader sees it or not; it never moves. The overflow count of a bucket says how many
//! entries had to go past it because it was full: a reader goes on only then.

use crate::layout::{BUCKET_WORDS, Geometry};
use crate::words::{Point, Words};

/// Buckets that an entry may lie away from its own, and one more.
pub(crate) const PROBES_MAX: u64 = 32;

/// The slot for which `is_it` holds among those whose tag fits.
#[inline]
pub fn find(
    words: &impl Words,
    geometry: &Geometry,
    hash: u64,
    mut is_it: impl FnMut(u32) -> bool,
) -> Option<u32> {
    for probe in 0..PROBES_MAX {
        let bucket = bucket_of(geometry, hash, probe);
        words.refresh(bucket, BUCKET_WORDS, Point::BucketToRead);
        for entry in 1..BUCKET_WORDS {
            let value = words.load(bucket + entry);
            if value != 0 && value >> 32 == hash >> 32 {
                // The low half, less one; a hostile writer of the books could only make readers miss.
                let slot = (value as u32).wrapping_sub(1);
                if u64::from(slot) < geometry.slots() && is_it(slot) {
                    return Some(slot);
                }
            }
        }
        if words.load(bucket) == 0 {
            return None;
        }
    }
    None
}

/// Hints that a hash will be looked for.
#[inline]
pub fn prefetch(words: &impl Words, geometry: &Geometry, hash: u64) {
    words.prefetch(bucket_of(geometry, hash, 0));
}

/// The slot that a hash most probably has: whose tag fits in its first bucket.
#[inline]
pub fn guess(words: &impl Words, geometry: &Geometry, hash: u64) -> Option<u32> {
    let bucket = bucket_of(geometry, hash, 0);
    let fitting = (1..BUCKET_WORDS)
        .map(|entry| words.load(bucket + entry))
        .find(|&value| value != 0 && value >> 32 == hash >> 32);
    // The low half, less one.
    fitting.map(|value| (value as u32).wrapping_sub(1)).filter(|&slot| u64::from(slot) < geometry.slots())
}

/// Adds a slot; false if every bucket in reach is full.
#[must_use]
pub fn insert(words: &impl Words, geometry: &Geometry, hash: u64, slot: u32) -> bool {
    for probe in 0..PROBES_MAX {
        let bucket = bucket_of(geometry, hash, probe);
        let free = (1..BUCKET_WORDS).find(|&entry| words.load(bucket + entry) == 0);
        if let Some(entry) = free {
            // Before the entry is there, so that whoever is to find it goes far enough.
            pass(words, geometry, hash, probe, 1);
            words.store(bucket + entry, entry_of(hash, slot));
            for passed in 0..probe {
                words.write_back(bucket_of(geometry, hash, passed), 1, Point::PassedBucket);
            }
            words.write_back(bucket, BUCKET_WORDS, Point::PublishedEntry);
            words.fence(Point::PublishedEntry);
            return true;
        }
    }
    false
}

/// Takes a slot out; false if it is not in the index under this hash. Readers that still see it
/// find that the header does not fit, so it need not arrive before the header is retired.
pub fn remove(words: &impl Words, geometry: &Geometry, hash: u64, slot: u32) -> bool {
    for probe in 0..PROBES_MAX {
        let bucket = bucket_of(geometry, hash, probe);
        let found = (1..BUCKET_WORDS).find(|&entry| words.load(bucket + entry) == entry_of(hash, slot));
        if let Some(entry) = found {
            words.store(bucket + entry, 0);
            words.write_back(bucket + entry, 1, Point::RemovedEntry);
            pass(words, geometry, hash, probe, u64::MAX);
            return true;
        }
    }
    false
}

/// Puts a slot in the place of another one of the same hash, with one store: a reader sees one of the two at any moment.
/// False if the other one is not in the index.
#[must_use]
pub fn swap(words: &impl Words, geometry: &Geometry, hash: u64, old: u32, new: u32) -> bool {
    for probe in 0..PROBES_MAX {
        let bucket = bucket_of(geometry, hash, probe);
        let found = (1..BUCKET_WORDS).find(|&entry| words.load(bucket + entry) == entry_of(hash, old));
        if let Some(entry) = found {
            // Before the entry is, the new header is there, and the old one is until then.
            words.fence(Point::PublishedHeader);
            words.store(bucket + entry, entry_of(hash, new));
            words.write_back(bucket + entry, 1, Point::SwappedEntry);
            words.fence(Point::SwappedEntry);
            return true;
        }
    }
    false
}

/// The slots that a bucket names.
pub fn slots(words: &impl Words, geometry: &Geometry, bucket: u64) -> impl Iterator<Item = u32> {
    let first = geometry.bucket(bucket);
    // The low half, less one.
    (1..BUCKET_WORDS)
        .map(move |entry| words.load(first + entry))
        .filter_map(|value| (value as u32).checked_sub(1))
}

/// Adds `change` (wrapping) to the overflow count of the first `probes` buckets of a hash.
fn pass(words: &impl Words, geometry: &Geometry, hash: u64, probes: u64, change: u64) {
    for probe in 0..probes {
        let bucket = bucket_of(geometry, hash, probe);
        words.store(bucket, words.load(bucket).wrapping_add(change));
    }
}

#[inline]
fn bucket_of(geometry: &Geometry, hash: u64, probe: u64) -> usize {
    geometry.bucket(hash.wrapping_add(probe) & geometry.bucket_mask())
}

const fn entry_of(hash: u64, slot: u32) -> u64 {
    (hash >> 32 << 32) | (slot as u64 + 1)
}
