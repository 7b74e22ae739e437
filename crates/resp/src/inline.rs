//! Requests as a line of words, as people type them over telnet.

use std::ops::Range;

/// Splits a line at spaces. Words in double quotes may have escapes (`\n`, `\x00`), those in single quotes only `\'`. The
/// words go behind each other into `owned`, their places into `words`. `None` if quotes do not close or something follows
/// them.
pub fn split(line: &[u8], owned: &mut Vec<u8>, words: &mut Vec<Range<usize>>) -> Option<()> {
    let mut rest = line;
    loop {
        let blank = rest.iter().take_while(|byte| is_blank(**byte)).count();
        rest = &rest[blank..];
        if rest.is_empty() {
            return Some(());
        }
        let start = owned.len();
        rest = word(rest, owned)?;
        words.push(start..owned.len());
    }
}

/// Appends the first word of `rest`; what is behind it.
fn word<'line>(mut rest: &'line [u8], owned: &mut Vec<u8>) -> Option<&'line [u8]> {
    loop {
        match *rest {
            [] => return Some(rest),
            [byte, ..] if is_blank(byte) => return Some(rest),
            [b'"', ref inside @ ..] => return closed(double_quoted(inside, owned)?),
            [b'\'', ref inside @ ..] => return closed(single_quoted(inside, owned)?),
            [byte, ref behind @ ..] => {
                owned.push(byte);
                rest = behind;
            }
        }
    }
}

/// A closing quote must be followed by a blank or nothing.
fn closed(rest: &[u8]) -> Option<&[u8]> {
    rest.first().is_none_or(|byte| is_blank(*byte)).then_some(rest)
}

fn double_quoted<'line>(mut rest: &'line [u8], owned: &mut Vec<u8>) -> Option<&'line [u8]> {
    loop {
        let (byte, behind) = match *rest {
            [] => return None,
            [b'"', ref behind @ ..] => return Some(behind),
            [b'\\', b'x', high, low, ref behind @ ..] if hex(high).is_some() && hex(low).is_some() => {
                (hex(high)? << 4 | hex(low)?, behind)
            }
            [b'\\', escaped, ref behind @ ..] => (unescaped(escaped), behind),
            [byte, ref behind @ ..] => (byte, behind),
        };
        owned.push(byte);
        rest = behind;
    }
}

fn single_quoted<'line>(mut rest: &'line [u8], owned: &mut Vec<u8>) -> Option<&'line [u8]> {
    loop {
        let (byte, behind) = match *rest {
            [] => return None,
            [b'\'', ref behind @ ..] => return Some(behind),
            [b'\\', b'\'', ref behind @ ..] => (b'\'', behind),
            [byte, ref behind @ ..] => (byte, behind),
        };
        owned.push(byte);
        rest = behind;
    }
}

const fn unescaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

fn hex(byte: u8) -> Option<u8> {
    // A hexadecimal digit is below 16: the cast loses nothing.
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

const fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c | 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
        let (mut owned, mut words) = (Vec::new(), Vec::new());
        split(line, &mut owned, &mut words)?;
        Some(words.into_iter().map(|range| owned[range].to_vec()).collect())
    }

    #[test]
    fn quotes_and_escapes_are_taken_off() {
        let line = br#"  set a"b c" 'it\'s \n' "\x41\xZ\n\"" ''"#;
        let expected = [&b"set"[..], b"ab c", b"it's \\n", b"AxZ\n\"", b""];
        assert_eq!(words(line).unwrap(), expected);
    }

    #[test]
    fn quotes_that_do_not_close_or_are_not_followed_by_a_blank_are_refused() {
        for line in [&b"\"a"[..], b"'a", b"\"a\"b", b"'a'b", b"\"a\\"] {
            assert_eq!(words(line), None, "{}", line.escape_ascii());
        }
    }
}
