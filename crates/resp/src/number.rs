//! Integers as Redis reads and writes them.

/// A decimal integer of 64 bits in its shortest form: no blank, no plus sign, no leading zero.
pub fn parse(bytes: &[u8]) -> Option<i64> {
    let (negative, digits) = match bytes {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [] => return None,
        [b'0'] if !negative => return Some(0),
        [b'0', ..] => return None,
        _ => {}
    }
    let mut value = 0_i64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        let digit = i64::from(digit - b'0');
        value = value.checked_mul(10)?;
        value = if negative { value.checked_sub(digit)? } else { value.checked_add(digit)? };
    }
    Some(value)
}

/// The decimal digits of an integer, in the end of `buffer`.
pub fn digits(value: i64, buffer: &mut [u8; 20]) -> &[u8] {
    let (mut rest, mut start) = (value.unsigned_abs(), buffer.len());
    loop {
        start -= 1;
        // A digit: the cast loses nothing.
        buffer[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if value < 0 {
        start -= 1;
        buffer[start] = b'-';
    }
    &buffer[start..]
}

/// Appends the decimal digits of an integer.
pub fn push(value: i64, into: &mut Vec<u8>) {
    into.extend_from_slice(digits(value, &mut [0; 20]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_come_back_and_no_other_form_is_one() {
        for value in [0, 7, -1, 10, i64::MAX, i64::MIN, 1_000_000] {
            let mut text = Vec::new();
            push(value, &mut text);
            assert_eq!(text, value.to_string().as_bytes());
            assert_eq!(parse(&text), Some(value));
        }
        let wrong =
            ["", "-", "-0", "01", "+1", " 1", "1 ", "1.0", "9223372036854775808", "-9223372036854775809"];
        for text in wrong {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
    }
}
