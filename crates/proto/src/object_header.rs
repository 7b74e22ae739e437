//! The header file that a home keeps beside the bytes of an object, so that a restart finds it again.
//!
//! All integers are little-endian:
//!
//! | bytes | field | meaning |
//! | --- | --- | --- |
//! | 0..4 | magic | `HNTO` |
//! | 4..6 | version | 1 |
//! | 6 | kind | 1 sealed object, 2 mutable region |
//! | 7 | zero | 0 |
//! | 8..16 | object | identifier |
//! | 16..24 | epoch | epoch under which the copy was placed here |
//! | 24..32 | bytes | size of the object |
//! | 32..64 | digest | of a sealed object, see [`crate::checksum::digest`]; zero for a region |
//! | 64..68 | name_bytes | length of the name |
//! | 68..72 | blocks | number of block checksums: one for each 64 KiB, none for a region |
//! | 72..76 | tail_crc | crc32c of everything behind byte 80 |
//! | 76..80 | header_crc | crc32c of bytes 0..76 |
//! | 80.. | name | UTF-8 |
//! | then | checksums | crc32c of each block, 4 bytes each |

use crate::checksum::{block_count, crc32c, digest};
use hinterland_types::{Epoch, ObjectId, ObjectName};

/// Bytes of the fixed part.
pub const OBJECT_HEADER_BYTES: usize = 80;

const MAGIC: &[u8; 4] = b"HNTO";
const VERSION: u16 = 1;

/// What a home knows of one of its copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectHeader {
    /// Identifier.
    pub object: ObjectId,
    /// Epoch of the copy.
    pub epoch: Epoch,
    /// Name.
    pub name: ObjectName,
    /// Size in bytes.
    pub bytes: u64,
    /// What it is.
    pub content: HeaderContent,
}

/// A sealed object has checksums, a region changes all the time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HeaderContent {
    /// Written once.
    Sealed {
        /// crc32c of each 64 KiB block.
        blocks: Vec<u32>,
    },
    /// Written in place.
    Region,
}

/// Why a header file is not believed.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum HeaderError {
    /// Too few or too many bytes.
    #[error(
        "object header of {found} bytes, {expected} expected (hint: it was half-written; the copy is dropped)"
    )]
    Length {
        /// What there is.
        found: usize,
        /// What there should be.
        expected: usize,
    },
    /// No object header, or of another release.
    #[error("object header starts with {0:02x?} (hint: it is of another release or no object header)")]
    Foreign(Vec<u8>),
    /// A checksum is wrong.
    #[error(
        "object header has a wrong checksum in its {0} (hint: it was half-written or the disk is failing; the copy is dropped)"
    )]
    Checksum(&'static str),
    /// A field makes no sense.
    #[error("object header has a {0} that makes no sense")]
    Field(&'static str),
}

impl ObjectHeader {
    /// The digest of a sealed object; zero for a region.
    pub fn digest(&self) -> [u8; 32] {
        match &self.content {
            HeaderContent::Sealed { blocks } => digest(self.bytes, blocks),
            HeaderContent::Region => [0; 32],
        }
    }

    /// The header as it stands in its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (kind, blocks): (u8, &[u32]) = match &self.content {
            HeaderContent::Sealed { blocks } => (1, blocks),
            HeaderContent::Region => (2, &[]),
        };
        let name = self.name.as_str().as_bytes();
        let mut tail = name.to_vec();
        blocks.iter().for_each(|block| tail.extend_from_slice(&block.to_le_bytes()));
        let mut bytes = Vec::with_capacity(OBJECT_HEADER_BYTES + tail.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[kind, 0]);
        bytes.extend_from_slice(&self.object.0.to_le_bytes());
        bytes.extend_from_slice(&self.epoch.0.to_le_bytes());
        bytes.extend_from_slice(&self.bytes.to_le_bytes());
        bytes.extend_from_slice(&self.digest());
        // A name has at most 1024 bytes and an object at most 2^27 blocks: the casts lose nothing.
        bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(blocks.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&crc32c(&tail).to_le_bytes());
        bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
        bytes.extend_from_slice(&tail);
        bytes
    }

    /// Reads and checks a header file; every byte must be accounted for.
    ///
    /// # Errors
    /// [`HeaderError`] for the first thing that is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, HeaderError> {
        let Some((fixed, tail)) = bytes.split_first_chunk::<OBJECT_HEADER_BYTES>() else {
            return Err(HeaderError::Length { found: bytes.len(), expected: OBJECT_HEADER_BYTES });
        };
        if &fixed[..4] != MAGIC || u16_at(fixed, 4) != VERSION {
            return Err(HeaderError::Foreign(fixed[..6].to_vec()));
        }
        if crc32c(&fixed[..76]) != u32_at(fixed, 76) {
            return Err(HeaderError::Checksum("fixed part"));
        }
        let name_bytes = u32_at(fixed, 64) as usize;
        let block_total = u32_at(fixed, 68) as usize;
        let expected = block_total
            .checked_mul(4)
            .and_then(|blocks| blocks.checked_add(name_bytes))
            .ok_or(HeaderError::Field("length"))?;
        if tail.len() != expected {
            let fixed_bytes = OBJECT_HEADER_BYTES;
            let expected = expected.saturating_add(fixed_bytes);
            return Err(HeaderError::Length { found: bytes.len(), expected });
        }
        if crc32c(tail) != u32_at(fixed, 72) {
            return Err(HeaderError::Checksum("name or checksums"));
        }
        let (name, blocks) = tail.split_at(name_bytes);
        let name = std::str::from_utf8(name)
            .ok()
            .and_then(|name| ObjectName::parse(name).ok())
            .ok_or(HeaderError::Field("name"))?;
        let size = u64_at(fixed, 24);
        let content = match fixed[6] {
            1 if block_total as u64 == block_count(size) => {
                let blocks = blocks.as_chunks::<4>().0.iter().map(|block| u32::from_le_bytes(*block));
                HeaderContent::Sealed { blocks: blocks.collect() }
            }
            2 if block_total == 0 => HeaderContent::Region,
            1 | 2 => return Err(HeaderError::Field("number of blocks")),
            _ => return Err(HeaderError::Field("kind")),
        };
        let header = Self {
            object: ObjectId(u64_at(fixed, 8)),
            epoch: Epoch(u64_at(fixed, 16)),
            name,
            bytes: size,
            content,
        };
        if fixed[7] != 0 || header.digest() != fixed[32..64] {
            return Err(HeaderError::Field("digest"));
        }
        Ok(header)
    }
}

fn u16_at(bytes: &[u8; OBJECT_HEADER_BYTES], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

fn u32_at(bytes: &[u8; OBJECT_HEADER_BYTES], offset: usize) -> u32 {
    u32::from_le_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
}

fn u64_at(bytes: &[u8; OBJECT_HEADER_BYTES], offset: usize) -> u64 {
    u64::from(u32_at(bytes, offset)) | u64::from(u32_at(bytes, offset + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> ObjectHeader {
        ObjectHeader {
            object: ObjectId(7),
            epoch: Epoch(3),
            name: ObjectName::parse("models/a.gguf").unwrap(),
            bytes: 65_537,
            content: HeaderContent::Sealed { blocks: vec![1, 2] },
        }
    }

    #[test]
    fn a_header_survives_its_file() {
        assert_eq!(ObjectHeader::parse(&sample().to_bytes()), Ok(sample()));
        let region = ObjectHeader { content: HeaderContent::Region, ..sample() };
        assert_eq!(ObjectHeader::parse(&region.to_bytes()), Ok(region));
    }

    #[test]
    fn a_header_cut_short_anywhere_is_refused() {
        let bytes = sample().to_bytes();
        for length in 0..bytes.len() {
            assert!(ObjectHeader::parse(&bytes[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let bytes = sample().to_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut wrong = bytes.clone();
            wrong[bit / 8] ^= 1 << (bit % 8);
            assert!(ObjectHeader::parse(&wrong).is_err(), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = ObjectHeader::parse(&bytes);
        }
    }
}
