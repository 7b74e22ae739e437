//! Numbers with a fraction as Redis reads, adds and writes them: in 80 bits, of which 64 are the mantissa.
//!
//! Redis computes in `long double`. Rust has none, so this is that type of x86-64, where each result is the value nearest to
//! the exact one, of two as near the even one. Numbers that no `long double` can be are none here.

use crate::big::Big;
use std::cmp::Ordering;

/// Longest text of a number.
const TEXT_BYTES_MAX: usize = 5 * 1024 - 1;
/// Bits of a mantissa.
const MANTISSA_BITS: i64 = 64;
/// Exponent of the last bit of the smallest numbers.
const EXPONENT_MIN: i64 = -16_445;
/// Exponent of the first bit of the largest numbers.
const TOP_MAX: i64 = 16_383;
/// Decimal digits before the point, or zeros behind it, beyond which every number is too large, or nothing.
const DIGITS_MAX: i64 = 4990;
/// Bits before the point, or zeros behind it, beyond which every number is too large, or nothing.
const BITS_MAX: i64 = 16_500;
/// Digits behind the point that are written.
const FRACTION_DIGITS: usize = 17;
/// Ten to their power.
const FRACTION: u128 = 100_000_000_000_000_000;

/// A number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Float {
    /// `mantissa` times two to the `exponent`, or less than nothing.
    Finite {
        /// Whether it is below zero; of zero it says nothing.
        negative: bool,
        /// Its bits.
        mantissa: u64,
        /// What its last bit counts.
        exponent: i16,
    },
    /// Larger or smaller than any number. It can be read, and no sum may have it.
    Infinite,
}

impl Float {
    /// Nothing.
    pub const ZERO: Self = Self::Finite { negative: false, mantissa: 0, exponent: 0 };

    /// Reads a number in any form that C has: `1.5`, `-.5e3`, `0x1p-3`, `inf`. `None` for other text, and for a number
    /// that is too large, or so small that nothing is left of it.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
        let (negative, rest) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if rest.eq_ignore_ascii_case(b"inf") || rest.eq_ignore_ascii_case(b"infinity") {
            return Some(Self::Infinite);
        }
        match rest {
            [b'0', b'x' | b'X', digits @ ..] => hexadecimal(negative, digits),
            digits => decimal(negative, digits),
        }
    }

    /// The sum; `None` if it is no number any more.
    pub fn plus(self, other: Self) -> Option<Self> {
        let (
            Self::Finite { negative, mantissa, exponent },
            Self::Finite { negative: other_negative, mantissa: other_mantissa, exponent: other_exponent },
        ) = (self, other)
        else {
            return None;
        };
        let least = exponent.min(other_exponent);
        // Both differences are positive and fit: the casts lose nothing.
        let mut one = Big::from(mantissa).shifted((i32::from(exponent) - i32::from(least)) as usize);
        let mut two =
            Big::from(other_mantissa).shifted((i32::from(other_exponent) - i32::from(least)) as usize);
        let mut sign = negative;
        if negative == other_negative {
            one.add(&two);
        } else if one.compare(&two) == Ordering::Less {
            two.subtract(&one);
            (one, sign) = (two, other_negative);
        } else {
            one.subtract(&two);
        }
        if one.is_zero() { Some(Self::ZERO) } else { nearest(sign, one, &Big::from(1), i64::from(least)) }
    }

    /// Appends the number with up to 17 digits behind the point, and no zeros at their end.
    pub fn push(self, into: &mut Vec<u8>) {
        let Self::Finite { negative, mantissa, exponent } = self else {
            return into.extend_from_slice(b"inf");
        };
        let (whole, fraction) = match usize::try_from(exponent) {
            Ok(left) => (Big::from(mantissa).shifted(left).to_digits(), 0),
            Err(_) => {
                let scaled = rounded(u128::from(mantissa) * FRACTION, exponent.unsigned_abs().into());
                ((scaled / FRACTION).to_string().into_bytes(), scaled % FRACTION)
            }
        };
        if negative && (whole != b"0" || fraction != 0) {
            into.push(b'-');
        }
        into.extend_from_slice(&whole);
        if fraction != 0 {
            let digits = format!(".{fraction:0FRACTION_DIGITS$}");
            into.extend_from_slice(digits.trim_end_matches('0').as_bytes());
        }
    }
}

/// A number without its last `bits` bits, of which there is one at least, rounded.
const fn rounded(number: u128, bits: u32) -> u128 {
    // Less than a half even of the largest: the largest has 121 bits.
    if bits > 122 {
        return 0;
    }
    let (kept, lost, half) = (number >> bits, number & ((1 << bits) - 1), 1 << (bits - 1));
    if lost > half || (lost == half && kept & 1 == 1) { kept + 1 } else { kept }
}

fn decimal(negative: bool, text: &[u8]) -> Option<Float> {
    let (digits, places, exponent) = parts(text, 10, b'e')?;
    let mut number = Big::from(0);
    for group in digits.chunks(9) {
        let (power, value) =
            group.iter().fold((1, 0), |(power, value), digit| (power * 10, value * 10 + digit));
        number.multiply_and_add(power, value);
    }
    if number.is_zero() {
        return Some(Float::ZERO);
    }
    let exponent = exponent - places;
    let leading = digits.iter().take_while(|digit| **digit == 0).count();
    let before_point = exponent + (digits.len() - leading) as i64;
    if before_point.abs() > DIGITS_MAX {
        return None;
    }
    let mut under = Big::from(1);
    let scaled = if exponent < 0 { &mut under } else { &mut number };
    // No more than some thousands: the casts lose nothing.
    (0..exponent.unsigned_abs() / 9).for_each(|_| scaled.multiply_and_add(1_000_000_000, 0));
    scaled.multiply_and_add(10_u32.pow((exponent.unsigned_abs() % 9) as u32), 0);
    nearest(negative, number, &under, 0)
}

fn hexadecimal(negative: bool, text: &[u8]) -> Option<Float> {
    let (digits, places, exponent) = parts(text, 16, b'p')?;
    let mut number = Big::from(0);
    for digit in digits {
        number.multiply_and_add(16, digit);
    }
    if number.is_zero() {
        return Some(Float::ZERO);
    }
    let exponent = exponent - places * 4;
    if (exponent + number.bits() as i64).abs() > BITS_MAX {
        return None;
    }
    nearest(negative, number, &Big::from(1), exponent)
}

/// Digits, how many of them are behind the point, and the exponent behind a letter.
fn parts(text: &[u8], radix: u32, letter: u8) -> Option<(Vec<u32>, i64, i64)> {
    let (mut digits, mut point) = (Vec::with_capacity(text.len()), None);
    let mut rest = text;
    while let [byte, behind @ ..] = rest {
        match char::from(*byte).to_digit(radix) {
            Some(digit) => digits.push(digit),
            None if *byte == b'.' && point.is_none() => point = Some(digits.len()),
            None => break,
        }
        rest = behind;
    }
    let places = point.map_or(0, |point| digits.len() - point) as i64;
    let exponent = match rest {
        [] => 0,
        [first, behind @ ..] if first.eq_ignore_ascii_case(&letter) => exponent(behind)?,
        _ => return None,
    };
    (!digits.is_empty()).then_some((digits, places, exponent))
}

/// A decimal exponent. One that is far too large stays so.
fn exponent(text: &[u8]) -> Option<i64> {
    const LARGE: i64 = 1 << 40;
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        [b'+', digits @ ..] => (1, digits),
        digits => (1, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = digits.iter().fold(0, |value, digit| (value * 10 + i64::from(digit - b'0')).min(LARGE));
    Some(sign * value)
}

/// The number that is nearest to `over / under` times two to the `exponent`; `None` if it is too large, or nothing.
fn nearest(negative: bool, mut over: Big, under: &Big, exponent: i64) -> Option<Float> {
    // Bits before the point are between this and one more.
    let mut top = over.bits() as i64 - under.bits() as i64;
    let is_less = if top >= 0 {
        over.compare(&under.shifted(top as usize)) == Ordering::Less
    } else {
        over.shifted(top.unsigned_abs() as usize).compare(under) == Ordering::Less
    };
    top -= i64::from(is_less);
    let mut last = (top + exponent - (MANTISSA_BITS - 1)).max(EXPONENT_MIN);
    let shift = last - exponent;
    let mut under = under.clone();
    // Callers see to it that numbers are of a size that can be: the casts lose nothing, and shifts are small.
    if shift >= 0 {
        under = under.shifted(shift as usize);
    } else {
        over = over.shifted(shift.unsigned_abs() as usize);
    }
    let mut mantissa = 0_u64;
    for bit in (0..MANTISSA_BITS).rev() {
        let part = under.shifted(bit as usize);
        if over.compare(&part) != Ordering::Less {
            over.subtract(&part);
            mantissa |= 1 << bit;
        }
    }
    let is_up = match over.shifted(1).compare(&under) {
        Ordering::Less => false,
        Ordering::Equal => mantissa & 1 == 1,
        Ordering::Greater => true,
    };
    if is_up {
        mantissa = mantissa.checked_add(1).unwrap_or_else(|| {
            last += 1;
            1 << (MANTISSA_BITS - 1)
        });
    }
    if mantissa == 0 || last + MANTISSA_BITS - 1 - i64::from(mantissa.leading_zeros()) > TOP_MAX {
        return None;
    }
    // Its limits are those above.
    i16::try_from(last).ok().map(|exponent| Float::Finite { negative, mantissa, exponent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(float: Float) -> String {
        let mut bytes = Vec::new();
        float.push(&mut bytes);
        String::from_utf8(bytes).unwrap()
    }

    fn sum(one: &str, two: &str) -> Option<String> {
        Float::parse(one.as_bytes())?.plus(Float::parse(two.as_bytes())?).map(text)
    }

    /// What Redis 7.0 on x86-64 answers to `INCRBYFLOAT`.
    #[test]
    fn sums_are_those_of_redis() {
        for (one, two, expected) in [
            ("10.5", "0.1", "10.6"),
            ("3", "1.123456789", "4.123456789"),
            ("5.0e3", "2.0e2", "5200"),
            ("0.1", "0.2", "0.3"),
            ("1", "-1.00000000000000000001", "0"),
            ("0x1.8p3", "0", "12"),
            ("9223372036854775807", "1", "9223372036854775808"),
            ("18446744073709551615", "1", "18446744073709551616"),
            ("18446744073709551616", "1", "18446744073709551616"),
            ("18446744073709551616", "3", "18446744073709551620"),
            ("1e20", "1", "100000000000000000000"),
            ("1e-18", "0", "0"),
            ("6e-18", "0", "0.00000000000000001"),
            ("-6e-18", "0", "-0.00000000000000001"),
            ("-1e-30", "0", "0"),
            (".5", "5.", "5.5"),
            ("+1", "1", "2"),
            ("0e999999999999", "1", "1"),
            ("1e-4950", "0", "0"),
        ] {
            assert_eq!(sum(one, two).as_deref(), Some(expected), "{one} + {two}");
        }
        assert_eq!(sum("inf", "1"), None);
        assert_eq!(sum("1e4932", "1e4932"), None);
    }

    #[test]
    fn what_is_no_number_is_none() {
        for word in [
            "",
            " 1",
            "1 ",
            "1x",
            "e5",
            ".",
            "-",
            "+-1",
            "1e",
            "1e+",
            "1e5.",
            "0x",
            "0x.",
            "0x1p",
            "0xg",
            "nan",
            "infi",
            "1..2",
            "1e4933",
            "-1e9999999999999999999",
            "1e-4951",
            "1\0",
            "1,5",
            "--1",
            "0x1p16384",
            "0x1p-16446",
        ] {
            assert_eq!(Float::parse(word.as_bytes()), None, "{word:?}");
        }
        assert_eq!(Float::parse(&[b'1'; TEXT_BYTES_MAX + 1]), None);
        for word in ["INF", "-infinity", "+Inf"] {
            assert_eq!(Float::parse(word.as_bytes()), Some(Float::Infinite));
        }
        for word in ["1e4932", "0x1p16383", "0x1p-16445", "0X.8P1", "1E5", "2e-4951"] {
            assert!(Float::parse(word.as_bytes()).is_some(), "{word}");
        }
        assert!(Float::parse(&[b'0'; TEXT_BYTES_MAX]).is_some());
    }

    #[test]
    fn the_largest_number_comes_back_from_its_digits() {
        let largest = Float::parse(b"0x1.fffffffffffffffep16383").unwrap();
        assert_eq!(text(largest).len(), 4933);
        assert_eq!(Float::parse(text(largest).as_bytes()), Some(largest));
        assert_eq!(Float::parse(b"0x1.ffffffffffffffffp16383"), None);
        assert_eq!(largest.plus(largest), None);
        assert_eq!(largest.plus(Float::parse(b"1").unwrap()), Some(largest));
    }

    proptest! {
        #[test]
        fn integers_are_added_exactly(one in any::<i64>(), two in any::<i64>()) {
            let right = i128::from(one) + i128::from(two);
            // Sums of 65 bits may be rounded.
            prop_assume!(right.unsigned_abs() <= u128::from(u64::MAX));
            prop_assert_eq!(sum(&one.to_string(), &two.to_string()), Some(right.to_string()));
        }

        #[test]
        fn decimals_with_17_digits_behind_the_point_come_back(whole in 0..100_u64, fraction in 0..100_000_000_000_000_000_u64) {
            let number = format!("{whole}.{fraction:017}");
            let number = number.trim_end_matches('0').trim_end_matches('.');
            prop_assert_eq!(sum(number, "0"), Some(number.to_owned()));
        }

        #[test]
        fn every_text_is_a_number_or_none(words in "[-+0-9.eExXpPa-fin ]{0,24}") {
            if let Some(number) = Float::parse(words.as_bytes()).filter(|number| *number != Float::Infinite) {
                let shown = text(number);
                prop_assert!(Float::parse(shown.as_bytes()).is_some());
                prop_assert_eq!(number.plus(Float::ZERO).map(text), Some(shown));
            }
        }
    }
}
