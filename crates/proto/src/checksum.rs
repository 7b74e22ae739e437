//! Checksums of objects: crc32c of each 64 KiB block, and one digest over all of them.

use crc_fast::{CrcAlgorithm, Digest};
use hinterland_types::limits::CHECKSUM_BLOCK_BYTES;

/// crc32c of bytes: Castagnoli's polynomial, as iSCSI takes it.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// crc32c of what has the checksum `sum`, with `bytes` behind it; nothing has 0.
#[inline]
pub fn crc32c_append(sum: u32, bytes: &[u8]) -> u32 {
    // The state is the checksum before it is inverted, and 32 bits wide.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!sum));
    digest.update(bytes);
    digest.finalize() as u32
}

/// How many checksum blocks an object of `bytes` bytes has; the last may be short.
pub const fn block_count(bytes: u64) -> u64 {
    bytes.div_ceil(CHECKSUM_BLOCK_BYTES)
}

/// The digest of an object: blake3 over its size (8 bytes, little-endian) and its block checksums in
/// order (4 bytes each, little-endian). It stands in the directory; equal digests mean equal bytes.
pub fn digest(bytes: u64, blocks: &[u32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes.to_le_bytes());
    let mut chunk = Vec::with_capacity(4096);
    for group in blocks.chunks(1024) {
        chunk.clear();
        for block in group {
            chunk.extend_from_slice(&block.to_le_bytes());
        }
        hasher.update(&chunk);
    }
    *hasher.finalize().as_bytes()
}

/// Computes block checksums of bytes that come in pieces of any size.
///
/// ```
/// use hinterland_proto::checksum::BlockChecksums;
/// let mut pieces = BlockChecksums::default();
/// pieces.update(b"hello ");
/// pieces.update(b"world");
/// let mut whole = BlockChecksums::default();
/// whole.update(b"hello world");
/// assert_eq!(pieces.finish(), whole.finish());
/// ```
#[derive(Debug, Default, Clone)]
pub struct BlockChecksums {
    blocks: Vec<u32>,
    current: u32,
    filled_bytes: usize,
    bytes: u64,
}

impl BlockChecksums {
    /// Takes the next bytes.
    pub fn update(&mut self, mut piece: &[u8]) {
        self.bytes += piece.len() as u64;
        while !piece.is_empty() {
            let room = CHECKSUM_BLOCK_BYTES as usize - self.filled_bytes;
            let (now, later) = piece.split_at(room.min(piece.len()));
            self.current = crc32c_append(self.current, now);
            self.filled_bytes += now.len();
            if self.filled_bytes == CHECKSUM_BLOCK_BYTES as usize {
                self.end_block();
            }
            piece = later;
        }
    }

    /// Bytes taken up to now.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The block checksums; the last block may be short.
    pub fn finish(mut self) -> Vec<u32> {
        if self.filled_bytes > 0 {
            self.end_block();
        }
        self.blocks
    }

    fn end_block(&mut self) {
        self.blocks.push(self.current);
        self.current = 0;
        self.filled_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One bit after the other, as it is defined.
    fn by_bits(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(u32::MAX, |state, byte| {
            (0..8).fold(state ^ u32::from(*byte), |state, _| (state >> 1) ^ (0x82f6_3b78 * (state & 1)))
        })
    }

    #[test]
    fn checksums_of_every_length_are_those_of_the_definition() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let bytes: Vec<u8> = (0..9000_u32).map(|number| (number * 31 % 251) as u8).collect();
        // Every length up to where wide registers are full, and some beyond, at every alignment.
        for length in (0..600).chain([4095, 4096, 8191]) {
            for start in 0..16 {
                let (bytes, cut) = (&bytes[start..start + length], length / 3);
                let right = by_bits(bytes);
                assert_eq!(crc32c(bytes), right, "{start} {length}");
                assert_eq!(crc32c_append(crc32c(&bytes[..cut]), &bytes[cut..]), right, "{start} {length}");
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_give_the_same_checksums(
            bytes in proptest::collection::vec(any::<u8>(), 0..200_000),
            cut in 1usize..100_000,
        ) {
            let mut pieces = BlockChecksums::default();
            bytes.chunks(cut).for_each(|piece| pieces.update(piece));
            let plain: Vec<u32> = bytes.chunks(CHECKSUM_BLOCK_BYTES as usize).map(crc32c).collect();
            prop_assert_eq!(pieces.finish(), plain);
        }
    }

    #[test]
    fn the_digest_depends_on_size_and_on_every_block() {
        assert_ne!(digest(1, &[5]), digest(2, &[5]));
        assert_ne!(digest(1 << 20, &[5, 6]), digest(1 << 20, &[6, 5]));
        assert_eq!(block_count(0), 0);
        assert_eq!(block_count(65_537), 2);
    }
}
