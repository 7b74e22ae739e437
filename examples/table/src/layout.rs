//! Where what lies in a table's memory. All numbers are little-endian.
//!
//! | from | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | magic `HLTABLE1` |
//! | 8 | 8 | number of buckets, a power of two |
//! | 16 | 8 | length of the memory |
//! | 24 | 8 | where room begins that nobody has taken yet |
//! | 4096 | 128 each | buckets: 16 words, each 0 or the place of an entry |
//! | then | 64 each | units of entries |
//!
//! A place: fingerprint of the key (12 bits, the highest), count of entries that its program has written (8 bits), units
//! (12 bits), offset in units (32 bits).
//!
//! | entry from | bytes | what |
//! | --- | --- | --- |
//! | 0 | 8 | hash of everything below but the stage, seeded with the entry's offset |
//! | 8 | 4, 4 | length of key, length of value |
//! | 16 | 8 | state: a number that no other entry has, and in the lowest two bits [`Stage`] |
//! | 24 | | key, value |

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Says that this is a table, and of which form.
pub const MAGIC: u64 = u64::from_le_bytes(*b"HLTABLE1");
/// Where the header has the room that nobody has taken yet.
pub const NEXT_AT: u64 = 24;
/// Where buckets begin.
pub const BUCKETS_AT: u64 = 4096;
/// Entries of a bucket.
pub const SLOTS: usize = 16;
/// Bytes of a bucket: two cache lines.
pub const BUCKET_BYTES: u64 = 8 * SLOTS as u64;
/// What entries are measured in: a cache line.
pub const UNIT_BYTES: u64 = 64;
/// Units of the longest entry.
const UNITS_MAX: u64 = (1 << 12) - 1;
/// The bits of a tag that a place has.
const TAG_MASK: u64 = 0xff;
/// In front of key and value.
pub const HEAD_BYTES: usize = 24;
/// Where an entry has its state.
pub const STATE_AT: u64 = 16;
/// Longest key and value together.
pub const RECORD_BYTES_MAX: usize = (UNITS_MAX * UNIT_BYTES) as usize - HEAD_BYTES;

/// Whom an entry is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Nobody yet: the key may be in the table a second time.
    Coming = 1,
    /// Everybody.
    Live = 2,
    /// Who finds it in its bucket, but nobody who remembers where it was.
    Leaving = 3,
}

/// A word of a bucket that is not empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(pub u64);

impl Place {
    /// The place of an entry. The lowest bits of its tag make it another word than that of an entry which lay there before.
    pub const fn new(fingerprint: u16, tag: u64, offset: u64, units: u64) -> Self {
        Self((fingerprint as u64) << 52 | (tag & TAG_MASK) << 44 | units << 32 | (offset / UNIT_BYTES))
    }

    /// Some bits of the key's hash.
    pub const fn fingerprint(self) -> u16 {
        (self.0 >> 52) as u16
    }

    /// The lowest bits of the tag of its entry.
    pub const fn tag(self) -> u64 {
        self.0 >> 44 & TAG_MASK
    }

    /// Length in units.
    pub const fn units(self) -> u64 {
        self.0 >> 32 & UNITS_MAX
    }

    /// Where it lies.
    pub const fn offset(self) -> u64 {
        (self.0 & ((1 << 32) - 1)) * UNIT_BYTES
    }
}

/// Which buckets a key may be in, and what its places have of its hash.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    /// Offsets of the buckets; they may be the same.
    pub buckets: [u64; 2],
    /// For [`Place::fingerprint`]: 12 bits.
    pub fingerprint: u16,
    /// The key's hash.
    pub hash: u64,
}

impl Aim {
    /// Where a key belongs in a table of `buckets` buckets.
    pub fn of(key: &[u8], buckets: u64) -> Self {
        let hash = xxh3_64(key);
        let second = xxh3_64_with_seed(key, 1);
        let at = |hash: u64| BUCKETS_AT + (hash & (buckets - 1)) * BUCKET_BYTES;
        Self { buckets: [at(hash), at(second)], fingerprint: (hash >> 52) as u16, hash }
    }
}

/// Units of an entry.
pub const fn units(record_bytes: usize) -> u64 {
    ((HEAD_BYTES + record_bytes) as u64).div_ceil(UNIT_BYTES)
}

/// The bytes of an entry that is to lie at `offset`.
pub fn entry(offset: u64, tag: u64, stage: Stage, key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES];
    // Both are checked against RECORD_BYTES_MAX before.
    bytes[8..12].copy_from_slice(&(key.len() as u32).to_le_bytes());
    bytes[12..16].copy_from_slice(&(value.len() as u32).to_le_bytes());
    bytes[16..24].copy_from_slice(&state(tag, stage).to_le_bytes());
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    let hash = hash(offset, &bytes);
    bytes[..8].copy_from_slice(&hash.to_le_bytes());
    bytes
}

/// A state's word.
pub const fn state(tag: u64, stage: Stage) -> u64 {
    tag << 2 | stage as u64
}

/// An entry as it was read, if it is whole.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'bytes> {
    /// The word of its state.
    pub state: u64,
    /// Key.
    pub key: &'bytes [u8],
    /// Value.
    pub value: &'bytes [u8],
}

impl<'bytes> Entry<'bytes> {
    /// Reads an entry that lay at `offset`; `None` if these bytes are not one entry, as while they are overwritten.
    pub fn parse(offset: u64, bytes: &'bytes [u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let (kept, lengths, state) = (word(0)?, word(8)?, word(16)?);
        let (key_bytes, value_bytes) = ((lengths & 0xffff_ffff) as usize, (lengths >> 32) as usize);
        let (key, rest) = bytes.get(HEAD_BYTES..)?.split_at_checked(key_bytes)?;
        let value = rest.get(..value_bytes)?;
        let whole = bytes.get(..HEAD_BYTES + key_bytes + value_bytes)?;
        (hash(offset, whole) == kept).then_some(Self { state, key, value })
    }

    /// Whether it can be the entry that this place was given to: else the room has been used again.
    pub const fn is_of(&self, place: Place) -> bool {
        self.state >> 2 & TAG_MASK == place.tag()
    }

    /// Whom it is for; `None` for a word that no entry has.
    pub const fn stage(&self) -> Option<Stage> {
        match self.state & 3 {
            1 => Some(Stage::Coming),
            2 => Some(Stage::Live),
            3 => Some(Stage::Leaving),
            _ => None,
        }
    }
}

fn hash(offset: u64, entry: &[u8]) -> u64 {
    let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap_or_default());
    // With the tag: else the state of the next entry in this room could go with the bytes of this one.
    let seed = offset ^ word(8).rotate_left(17) ^ (word(16) >> 2).rotate_left(43);
    xxh3_64_with_seed(&entry[HEAD_BYTES..], seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_what_was_put_in() {
        let place = Place::new(0xbee, 0x1ff, 77 * UNIT_BYTES, 4095);
        assert_eq!((place.fingerprint(), place.offset(), place.units()), (0xbee, 77 * UNIT_BYTES, 4095));
        assert_eq!(place.tag(), 0xff);
        assert_ne!(place, Place::new(0xbee, 0x1fe, 77 * UNIT_BYTES, 4095));
    }

    #[test]
    fn an_entry_is_whole_at_its_own_offset_only() {
        let bytes = entry(640, 9, Stage::Live, b"key", b"value");
        let read = Entry::parse(640, &bytes).unwrap();
        assert_eq!((read.key, read.value, read.stage()), (&b"key"[..], &b"value"[..], Some(Stage::Live)));
        assert!(Entry::parse(704, &bytes).is_none());
        assert!(read.is_of(Place::new(1, 9, 640, 1)) && !read.is_of(Place::new(1, 10, 640, 1)));
        for at in (0..bytes.len()).filter(|at| *at != 16) {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(Entry::parse(640, &wrong).is_none(), "byte {at}");
        }
        assert!(Entry::parse(640, &bytes[..20]).is_none() && Entry::parse(640, &bytes[..30]).is_none());
    }
}
