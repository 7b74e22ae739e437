//! The checksum of a KV block that went over a wire: equal only for the same bytes of the same key and namespace.

use hinterland_kv::BlockKey;
use hinterland_proto::checksum::{crc32c, crc32c_append};

/// The checksum of a block whose bytes have the checksum `of_bytes`.
pub(super) fn whole(fingerprint: &[u8; 32], key: &BlockKey, bytes: u32, of_bytes: u32) -> u32 {
    // A key has at most 64 bytes: the cast loses nothing.
    let sum = crc32c_append(crc32c(fingerprint), &[key.len() as u8]);
    let sum = crc32c_append(crc32c_append(sum, &key.to_vec()), &bytes.to_le_bytes());
    crc32c_append(sum, &of_bytes.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_kv::sum_over;
    use hinterland_os::Mapping;
    use std::sync::Arc;

    #[test]
    fn it_tells_bytes_keys_lengths_and_namespaces_apart() {
        let memory = Arc::new(Mapping::anonymous(100_000, false).unwrap()).slice();
        memory.fill(0, 100_000, 7).unwrap();
        let (key, other) = (BlockKey::new(b"a").unwrap(), BlockKey::new(b"a\0").unwrap());
        let sum = |fingerprint, key, bytes: u32| {
            whole(&[fingerprint; 32], key, bytes, sum_over(&memory, 0, 0, bytes as usize).unwrap())
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
}
