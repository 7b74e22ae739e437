//! Records: what is written for a block, and what is believed of what is read.

use crate::key::{BlockKey, KEY_BYTES_MAX};

/// Records start and end at multiples of this many bytes.
pub const RECORD_ALIGN: usize = 4096;
/// Bytes in front of those of the block.
pub const RECORD_HEADER_BYTES: usize = 256;

const MAGIC: &[u8; 8] = b"HLKVDR01";
const CHECKED_BYTES: usize = RECORD_HEADER_BYTES - 8;

/// What a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordKind {
    /// A block, whose bytes follow.
    Block,
    /// The block of the key was removed.
    Removed,
    /// All blocks of the namespace were removed.
    Cleared,
}

/// The header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it says.
    pub kind: RecordKind,
    /// Its number; later ones have higher ones.
    pub sequence: u64,
    /// The number of the first record of its region.
    pub region: u64,
    /// Fingerprint of the namespace.
    pub fingerprint: [u8; 32],
    /// The key; none for a namespace that was cleared.
    pub key: Option<BlockKey>,
    /// The block that it follows on.
    pub parent: Option<BlockKey>,
    /// Length of the bytes.
    pub bytes: u32,
    /// [`checksum`] of the bytes.
    pub checksum: u64,
    /// It came from another node.
    pub is_fetched: bool,
}

/// Why bytes are no header.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
pub enum RecordError {
    /// Nothing of ours was ever written there, or not whole.
    #[error("no record begins here")]
    None,
    /// The checksum of the header is wrong.
    #[error("the header of a record is damaged")]
    Damaged,
    /// It has a right checksum and says what no record says.
    #[error("a record says what this release does not know")]
    Foreign,
}

/// XXH3 of bytes.
pub fn checksum(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// Bytes that a record of so many bytes takes.
pub const fn record_bytes(bytes: u32) -> u64 {
    (RECORD_HEADER_BYTES as u64 + bytes as u64).next_multiple_of(RECORD_ALIGN as u64)
}

impl Record {
    /// Whether it is the first of its region.
    pub const fn begins_region(&self) -> bool {
        self.sequence == self.region
    }

    /// Writes the header to the start of `into`, which has room for it.
    ///
    /// # Errors
    /// Hands the length back if it has not.
    pub fn store(&self, into: &mut [u8]) -> Result<(), usize> {
        let length = into.len();
        let into = into.first_chunk_mut::<RECORD_HEADER_BYTES>().ok_or(length)?;
        into.fill(0);
        into[..8].copy_from_slice(MAGIC);
        into[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        into[16..24].copy_from_slice(&self.region.to_le_bytes());
        into[24..28].copy_from_slice(&self.kind.number().to_le_bytes());
        into[28..32].copy_from_slice(&self.bytes.to_le_bytes());
        into[32..64].copy_from_slice(&self.fingerprint);
        for (key, at, length_at) in [(self.key, 64, 192), (self.parent, 128, 193)] {
            if let Some(key) = key {
                let bytes = key.to_vec();
                into[at..at + bytes.len()].copy_from_slice(&bytes);
                // At most 64: the cast loses nothing.
                into[length_at] = bytes.len() as u8;
            }
        }
        into[194] = u8::from(self.is_fetched);
        into[200..208].copy_from_slice(&self.checksum.to_le_bytes());
        let sum = checksum(&into[..CHECKED_BYTES]);
        into[CHECKED_BYTES..].copy_from_slice(&sum.to_le_bytes());
        Ok(())
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn load(from: &[u8]) -> Result<Self, RecordError> {
        let from = from.first_chunk::<RECORD_HEADER_BYTES>().ok_or(RecordError::None)?;
        if &from[..8] != MAGIC {
            return Err(RecordError::None);
        }
        if checksum(&from[..CHECKED_BYTES]) != word(from, CHECKED_BYTES) {
            return Err(RecordError::Damaged);
        }
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(&from[32..64]);
        let kind = RecordKind::of(word(from, 24) as u32).ok_or(RecordError::Foreign)?;
        let (key, parent) = (key(from, 64, 192)?, key(from, 128, 193)?);
        if key.is_none() != (kind == RecordKind::Cleared) {
            return Err(RecordError::Foreign);
        }
        let bytes = (word(from, 24) >> 32) as u32;
        Ok(Self {
            kind,
            sequence: word(from, 8),
            region: word(from, 16),
            fingerprint,
            key,
            parent,
            bytes,
            checksum: word(from, 200),
            // Earlier releases have written 0.
            is_fetched: from[194] == 1,
        })
    }
}

impl RecordKind {
    const fn number(self) -> u32 {
        match self {
            Self::Block => 1,
            Self::Removed => 2,
            Self::Cleared => 3,
        }
    }

    const fn of(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Block),
            2 => Some(Self::Removed),
            3 => Some(Self::Cleared),
            _ => None,
        }
    }
}

fn word(from: &[u8; RECORD_HEADER_BYTES], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&from[at..at + 8]);
    u64::from_le_bytes(bytes)
}

fn key(
    from: &[u8; RECORD_HEADER_BYTES],
    at: usize,
    length_at: usize,
) -> Result<Option<BlockKey>, RecordError> {
    match usize::from(from[length_at]) {
        0 => Ok(None),
        length if length <= KEY_BYTES_MAX => {
            BlockKey::new(&from[at..at + length]).map(Some).map_err(|_| RecordError::Foreign)
        }
        _ => Err(RecordError::Foreign),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            kind: RecordKind::Block,
            sequence: 7,
            region: 5,
            fingerprint: [9; 32],
            key: BlockKey::new(&[3; 64]).ok(),
            parent: BlockKey::new(b"parent").ok(),
            bytes: 1 << 20,
            checksum: 42,
            is_fetched: true,
        }
    }

    #[test]
    fn a_header_comes_back_and_any_flipped_bit_is_noticed() {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        for kind in [RecordKind::Block, RecordKind::Removed] {
            let record = Record { kind, ..record() };
            assert_eq!(record.store(&mut bytes), Ok(()));
            assert_eq!(Record::load(&bytes), Ok(record));
        }
        let cleared = Record { kind: RecordKind::Cleared, key: None, parent: None, bytes: 0, ..record() };
        assert_eq!(cleared.store(&mut bytes), Ok(()));
        assert_eq!(Record::load(&bytes), Ok(cleared));
        for bit in 0..RECORD_HEADER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Record::load(&flipped).is_err(), "bit {bit}");
        }
        assert_eq!(Record::load(&[0; RECORD_HEADER_BYTES]), Err(RecordError::None));
        assert_eq!(Record::load(&bytes[..100]), Err(RecordError::None));
        assert_eq!(cleared.store(&mut bytes[..100]), Err(100));
    }

    #[test]
    fn what_a_header_cannot_say_is_refused_with_a_right_checksum_too() {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        assert_eq!(Record { key: None, ..record() }.store(&mut bytes), Ok(()));
        assert_eq!(Record::load(&bytes), Err(RecordError::Foreign));
    }

    #[test]
    fn records_take_whole_pages() {
        assert_eq!((record_bytes(0), record_bytes(3840), record_bytes(3841)), (4096, 4096, 8192));
    }
}
