//! The checksum of a block's bytes: over memory that others may write, and of bytes on their way into it.

use crate::words::Memory;
use hinterland_os::OsError;
use hinterland_proto::checksum::crc32c_append;

/// Bytes that are copied and summed up at once: half of what is copied is in the processor's first cache when the other half happens.
/// With 4 KiB both together take as long as the copy alone, give or take a few percent, with 64 KiB a third longer.
const AT_ONCE_BYTES: usize = 4 << 10;

/// Goes on with the crc32c `sum` over bytes of memory.
///
/// # Errors
/// [`OsError`] outside.
pub fn sum_over(memory: &impl Memory, sum: u32, offset: usize, bytes: usize) -> Result<u32, OsError> {
    match memory.sum_in_place(offset, bytes, sum)? {
        Some(sum) => Ok(sum),
        None => sum_of_copies(memory, sum, offset, bytes),
    }
}

/// The same, of bytes that are copied out piece by piece.
fn sum_of_copies(memory: &impl Memory, mut sum: u32, offset: usize, bytes: usize) -> Result<u32, OsError> {
    let mut piece = [0; AT_ONCE_BYTES];
    let (mut at, mut left) = (offset, bytes);
    while left > 0 {
        let piece = &mut piece[..AT_ONCE_BYTES.min(left)];
        memory.read(at, piece)?;
        sum = crc32c_append(sum, piece);
        at += piece.len();
        left -= piece.len();
    }
    Ok(sum)
}

/// Copies bytes out and goes on with their crc32c.
///
/// # Errors
/// [`OsError`] outside.
pub fn read_summed(
    memory: &impl Memory,
    mut sum: u32,
    offset: usize,
    into: &mut [u8],
) -> Result<u32, OsError> {
    let mut at = offset;
    for piece in into.chunks_mut(AT_ONCE_BYTES) {
        memory.read(at, piece)?;
        sum = crc32c_append(sum, piece);
        at += piece.len();
    }
    Ok(sum)
}

/// The same bytes in pieces that are summed up right before they are taken; `sum` is that of all taken.
pub(crate) fn summed<'piece>(
    pieces: impl IntoIterator<Item = &'piece [u8]>,
    sum: &mut u32,
) -> impl Iterator<Item = &'piece [u8]> {
    let small = pieces.into_iter().flat_map(|piece| piece.chunks(AT_ONCE_BYTES));
    small.inspect(|piece| *sum = crc32c_append(*sum, piece))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_os::Mapping;
    use hinterland_proto::checksum::crc32c;
    use std::sync::Arc;

    #[test]
    fn pieces_give_the_checksum_of_the_whole() {
        let memory = Arc::new(Mapping::anonymous(50_000, false).unwrap()).slice();
        let bytes: Vec<u8> = (0..50_000_u32).map(|number| (number % 251) as u8).collect();
        memory.write_at(0, &bytes).unwrap();
        let first = sum_over(&memory, 0, 0, 20_001).unwrap();
        assert_eq!(sum_over(&memory, first, 20_001, 29_999).unwrap(), crc32c(&bytes));
        assert_eq!(sum_of_copies(&memory, first, 20_001, 29_999).unwrap(), crc32c(&bytes));
        let mut out = vec![0; 50_000];
        let (begin, end) = out.split_at_mut(9001);
        let first = read_summed(&memory, 0, 0, begin).unwrap();
        assert_eq!(read_summed(&memory, first, 9001, end).unwrap(), crc32c(&bytes));
        let mut sum = 0;
        let taken: Vec<u8> = summed(bytes.chunks(7777), &mut sum).flatten().copied().collect();
        assert!(out == bytes && taken == bytes && sum == crc32c(&bytes));
        assert!(sum_over(&memory, 0, 49_999, 2).is_err() && sum_over(&memory, 0, usize::MAX, 2).is_err());
    }
}
