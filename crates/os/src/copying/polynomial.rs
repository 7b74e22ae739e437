//! The arithmetic of crc32c: polynomials over two elements, modulo Castagnoli's, as words whose highest bit is the power zero.

/// The polynomial without its power of 32.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// A sum moved over the bytes of the tables, by [`moves`].
#[inline]
pub fn over(moves: &[[u32; 256]; 4], sum: u32) -> u32 {
    let bytes = sum.to_le_bytes();
    (0..4).fold(0, |moved, place| moved ^ moves[place][bytes[place] as usize])
}

/// What each byte of a sum becomes, in each of its four places, `bytes` zero bytes later.
pub const fn moves(bytes: usize) -> [[u32; 256]; 4] {
    let power = power_of_x(8 * bytes);
    let mut moves = [[0; 256]; 4];
    let mut place = 0;
    while place < 4 {
        let mut byte: usize = 0;
        while byte < 256 {
            moves[place][byte] = product(power, (byte as u32) << (8 * place));
            byte += 1;
        }
        place += 1;
    }
    moves
}

/// x to a power, modulo the polynomial.
pub const fn power_of_x(mut exponent: usize) -> u32 {
    let (mut power, mut square) = (1 << 31, 1 << 30);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = product(power, square);
        }
        square = product(square, square);
        exponent >>= 1;
    }
    power
}

/// The product of two polynomials modulo ours.
const fn product(one: u32, mut other: u32) -> u32 {
    let (mut sum, mut bit) = (0, 32);
    while bit > 0 {
        bit -= 1;
        if one >> bit & 1 == 1 {
            sum ^= other;
        }
        other = (other >> 1) ^ if other & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    sum
}

/// One bit after the other, as it is defined, without inversions.
#[cfg(test)]
pub fn by_bits(bytes: &[u8], sum: u32) -> u32 {
    bytes.iter().fold(sum, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (POLYNOMIAL * (sum & 1)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_moves_over_zero_bytes() {
        for bytes in [1, 7, 128, 1024] {
            let moved = product(power_of_x(8 * bytes), 0xdead_beef);
            assert_eq!(moved, by_bits(&vec![0; bytes], 0xdead_beef), "{bytes}");
        }
    }
}
