//! The checksum of a KV block that went over a wire: equal only for the same bytes of the same key and namespace.

use hinterland_kv::BlockKey;
use hinterland_os::SharedSlice;
use hinterland_proto::checksum::{crc32c, crc32c_append};

/// Copied out piece by piece, as others may write the memory: three times the 8 KiB that the checksum takes side by side, and small
/// enough for the first cache.
const PIECE_BYTES: usize = 24 << 10;

/// The checksum of a block whose bytes have the checksum `of_bytes`.
pub(super) fn whole(fingerprint: &[u8; 32], key: &BlockKey, bytes: u32, of_bytes: u32) -> u32 {
    // A key has at most 64 bytes: the cast loses nothing.
    let sum = crc32c_append(crc32c(fingerprint), &[key.len() as u8]);
    let sum = crc32c_append(crc32c_append(sum, &key.to_vec()), &bytes.to_le_bytes());
    crc32c_append(sum, &of_bytes.to_le_bytes())
}

/// Takes checksums of shared memory.
pub(super) struct Summer {
    piece: Box<[u8]>,
}

impl Default for Summer {
    fn default() -> Self {
        Self { piece: vec![0; PIECE_BYTES].into_boxed_slice() }
    }
}

impl Summer {
    /// Goes on with a checksum over all of `memory`.
    pub(super) fn add(&mut self, mut sum: u32, memory: &SharedSlice) -> u32 {
        let mut at = 0;
        while at < memory.len() {
            let piece = &mut self.piece[..PIECE_BYTES.min(memory.len() - at)];
            // Inside, by the line above.
            if memory.read_at(at, piece).is_err() {
                break;
            }
            sum = crc32c_append(sum, piece);
            at += piece.len();
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_os::Mapping;
    use std::sync::Arc;

    #[test]
    fn it_tells_bytes_keys_lengths_and_namespaces_apart() {
        let memory = Arc::new(Mapping::anonymous(100_000, false).unwrap()).slice();
        memory.fill(0, 100_000, 7).unwrap();
        let (key, other) = (BlockKey::new(b"a").unwrap(), BlockKey::new(b"a\0").unwrap());
        let sum = |fingerprint, key, bytes: u32| {
            let part = memory.sub(0, bytes as usize).unwrap();
            whole(&[fingerprint; 32], key, bytes, Summer::default().add(0, &part))
        };
        let right = sum(1, &key, 90_000);
        assert_eq!(right, sum(1, &key, 90_000));
        let mut sums = vec![right, sum(2, &key, 90_000), sum(1, &other, 90_000), sum(1, &key, 89_999)];
        memory.write_at(70_000, &[6]).unwrap();
        sums.push(sum(1, &key, 90_000));
        sums.sort_unstable();
        sums.dedup();
        assert_eq!(sums.len(), 5);
    }

    #[test]
    fn pieces_give_the_checksum_of_the_whole() {
        let memory = Arc::new(Mapping::anonymous(50_000, false).unwrap()).slice();
        let bytes: Vec<u8> = (0..50_000_u32).map(|number| (number % 251) as u8).collect();
        memory.write_at(0, &bytes).unwrap();
        let mut summer = Summer::default();
        let first = summer.add(0, &memory.sub(0, 20_001).unwrap());
        assert_eq!(summer.add(first, &memory.sub(20_001, 29_999).unwrap()), crc32c(&bytes));
    }
}
