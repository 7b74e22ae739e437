//! The bytes of a block, which follow from its number: whoever reads a wrong one notices.

/// Mixes the bits of a number: neighbours become strangers (the end of splitmix64).
pub const fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// The key of a block: as long as a SHA-256.
pub fn key(block: u32) -> [u8; 32] {
    let mut key = [0; 32];
    for (piece, salt) in key.as_chunks_mut::<8>().0.iter_mut().zip(1..) {
        *piece = mixed(u64::from(block) << 8 | salt).to_le_bytes();
    }
    key
}

/// Writes a block: word `i` is `mixed(block) + i * STEP`, little-endian, as `bench/kv/trace_peer.py` has it too.
pub fn write(block: u32, into: &mut [u8]) {
    for (word, value) in into.as_chunks_mut::<8>().0.iter_mut().zip(values(block)) {
        *word = value.to_le_bytes();
    }
}

/// Where the first byte is that is not the block's.
pub fn wrong_at(block: u32, bytes: &[u8]) -> Option<usize> {
    let words = bytes.as_chunks::<8>().0;
    // All of it first, in a loop without a way out: that is as fast as memory.
    let differs = words
        .iter()
        .zip(values(block))
        .fold(0, |differs, (word, value)| differs | (u64::from_le_bytes(*word) ^ value));
    if differs == 0 {
        return None;
    }
    let expected = values(block).flat_map(u64::to_le_bytes);
    bytes.iter().zip(expected).position(|(byte, expected)| *byte != expected)
}

/// What one word is more than the one before.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn values(block: u32) -> impl Iterator<Item = u64> {
    let first = mixed(u64::from(block));
    (0..).map(move |index: u64| first.wrapping_add(index.wrapping_mul(STEP)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found_wherever_it_is() {
        let mut bytes = vec![0; 4096];
        write(77, &mut bytes);
        assert_eq!(wrong_at(77, &bytes), None);
        for at in [0, 1, 8, 2047, 4095] {
            bytes[at] ^= 1;
            assert_eq!(wrong_at(77, &bytes), Some(at));
            bytes[at] ^= 1;
        }
        assert_eq!(wrong_at(78, &bytes), Some(0));
    }

    #[test]
    fn keys_of_blocks_differ() {
        let keys: std::collections::HashSet<_> = (0..10_000).map(key).collect();
        assert_eq!(keys.len(), 10_000);
    }
}
