//! Sizes as people write and read them: powers of 1024, short.

use std::fmt;
use std::str::FromStr;

/// Letters of the units, each 1024 times the one before.
const UNITS: [char; 5] = ['K', 'M', 'G', 'T', 'P'];

/// A number of bytes given on the command line: `2G`, `512M`, `64K`, `1.5G` or plain bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Size {
    /// The number of bytes.
    pub bytes: u64,
}

/// A size that cannot be understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SizeError {
    text: String,
    reason: &'static str,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, reason } = self;
        write!(
            f,
            "{text:?} is no size: {reason} (hint: write 2G, 512M, 64K or a number of bytes; K, M, G and T are powers of 1024)"
        )
    }
}

impl std::error::Error for SizeError {}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let refuse = |reason| SizeError { text: text.chars().take(40).collect(), reason };
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err(refuse("it is empty"));
        }
        if trimmed.starts_with('-') {
            return Err(refuse("it is negative"));
        }
        let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits);
        let shift = unit_shift(unit).ok_or_else(|| refuse("its unit is not known"))?;
        let bytes = scaled(number, shift).map_err(refuse)?;
        Ok(Self { bytes })
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&human(self.bytes))
    }
}

/// Bits to shift by for a unit: nothing, `B`, or a letter with or without `iB`.
fn unit_shift(unit: &str) -> Option<u32> {
    let letter = match unit {
        "" | "B" => return Some(0),
        _ => unit.strip_suffix("iB").unwrap_or(unit),
    };
    let mut characters = letter.chars();
    let (Some(letter), None) = (characters.next(), characters.next()) else { return None };
    let index = UNITS.iter().position(|unit| *unit == letter.to_ascii_uppercase())?;
    Some(10 * (index as u32 + 1))
}

fn scaled(number: &str, shift: u32) -> Result<u64, &'static str> {
    const TOO_LARGE: &str = "it is too large";
    const NO_NUMBER: &str = "it does not begin with a number";
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || fraction.contains('.') {
        return Err(NO_NUMBER);
    }
    let whole: u64 = whole.parse().map_err(|_| TOO_LARGE)?;
    let bytes = whole.checked_mul(1 << shift).ok_or(TOO_LARGE)?;
    // Six digits are below a byte for K and close enough above.
    let digits = &fraction[..fraction.len().min(6)];
    if digits.is_empty() {
        return Ok(bytes);
    }
    if shift == 0 {
        return Err("it is a part of a byte");
    }
    let part: u64 = digits.parse().map_err(|_| NO_NUMBER)?;
    let part = (u128::from(part) << shift) / 10u128.pow(digits.len() as u32);
    // Below 1 of the unit, so it fits.
    bytes.checked_add(part as u64).ok_or(TOO_LARGE)
}

/// Bytes for people: `17 B`, `1.5 GiB`; three digits at most, never rounded up to 1024.
pub fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut letter = 'K';
    for unit in UNITS {
        value /= 1024.0;
        letter = unit;
        if value < 1023.5 {
            break;
        }
    }
    if value < 9.995 {
        format!("{value:.2} {letter}iB")
    } else if value < 99.95 {
        format!("{value:.1} {letter}iB")
    } else {
        format!("{value:.0} {letter}iB")
    }
}

/// A rate for people: `850 MiB/s`.
pub fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", human(bytes_per_second.max(0.0) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Result<u64, String> {
        text.parse::<Size>().map(|size| size.bytes).map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(bytes("0"), Ok(0));
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("17B"), Ok(17));
        assert_eq!(bytes("64K"), Ok(64 << 10));
        assert_eq!(bytes("512m"), Ok(512 << 20));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("1.5G"), Ok(3 << 29));
        assert_eq!(bytes("0.25k"), Ok(256));
        assert_eq!(bytes(" 1T "), Ok(1 << 40));
    }

    #[test]
    fn what_is_no_size_says_why_and_what_to_write() {
        for (text, reason) in [
            ("", "empty"),
            ("-1G", "negative"),
            ("G", "begin with a number"),
            (".5G", "begin with a number"),
            ("1.2.3G", "begin with a number"),
            ("2GB", "unit is not known"),
            ("5 parsecs", "unit is not known"),
            ("1.5", "part of a byte"),
            ("99999999999999999999", "too large"),
            ("18000000000G", "too large"),
            ("16384P", "too large"),
        ] {
            let error = bytes(text).unwrap_err();
            assert!(error.contains(reason) && error.contains("hint: write 2G"), "{text:?}: {error}");
        }
    }

    #[test]
    fn people_read_at_most_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (1536, "1.50 KiB"),
            (10 << 20, "10.0 MiB"),
            ((1 << 20) - 1, "1.00 MiB"),
            (3 << 30, "3.00 GiB"),
            (999 << 30, "999 GiB"),
            (u64::MAX, "16384 PiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
