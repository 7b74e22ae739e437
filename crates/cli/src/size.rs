//! Sizes as people write and read them: powers of 1024, short.

use std::fmt;
use std::str::FromStr;

use hinterland_types::size::UNITS;
pub use hinterland_types::size::human;

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

/// A size that reads back as the same number of bytes: `4G`, `1536M`.
pub fn exact(bytes: u64) -> String {
    let (mut count, mut unit) = (bytes, String::new());
    for larger in UNITS {
        if count == 0 || count % 1024 != 0 {
            break;
        }
        count /= 1024;
        unit = larger.to_string();
    }
    format!("{count}{unit}")
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
    fn an_exact_size_reads_back_as_itself() {
        for (number, text) in
            [(0, "0"), (4097, "4097"), (64 << 10, "64K"), (3 << 29, "1536M"), (4 << 30, "4G")]
        {
            assert_eq!(exact(number), text);
            assert_eq!(bytes(text), Ok(number));
        }
        assert_eq!(bytes(&exact(1 << 63)), Ok(1 << 63));
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
}
