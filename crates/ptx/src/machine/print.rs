//! What kernels say: `printf` and failed assertions.

use super::flow::Runner;
use super::warp::Group;
use super::{Stop, lanes};
use crate::code::{Address, Call, Source, Space};
use crate::error::FaultKind;

/// Bytes of one text, of its format and of each text within it.
const TEXT_BYTES_MAX: usize = 4096;
/// The widest field.
const WIDTH_MAX: usize = 256;

/// Flags, width and precision of a field.
#[derive(Default)]
struct Field {
    is_left: bool,
    has_zeros: bool,
    has_sign: bool,
    has_space: bool,
    has_prefix: bool,
    is_wide: bool,
    /// How often `h` stands there: the lower half of a number, or its lowest byte.
    halvings: u32,
    width: usize,
    precision: Option<usize>,
}

impl Field {
    /// Bits of an integer that are shown.
    fn bits(&self) -> u32 {
        match (self.is_wide, self.halvings) {
            (true, _) => 64,
            (false, 0) => 32,
            (false, 1) => 16,
            (false, _) => 8,
        }
    }
}

/// Arguments as `printf` gets them: each at a multiple of its size.
struct Arguments {
    lane: usize,
    next: u64,
}

impl Runner<'_, '_> {
    /// `vprintf(format, arguments)`: one text for each lane, from the lowest.
    pub fn print(&mut self, group: &Group, call: &Call) -> Result<(), Stop> {
        for lane in lanes(group.lanes) {
            let [format, arguments] = [0, 1].map(|index| self.argument(group, call, index, lane));
            let format = self.text(format, lane)?;
            let mut arguments = Arguments { lane, next: arguments };
            let (text, count) = self.formatted(&format, &mut arguments)?;
            self.machine.memory.print(&text);
            for &(at, bytes) in &call.results {
                let result = self.frame_bytes(lane, group.frame + at, bytes)?;
                result.fill(0);
                result.iter_mut().zip(u32::to_le_bytes(count)).for_each(|(to, from)| *to = from);
            }
        }
        Ok(())
    }

    /// `__assertfail(message, file, line, function, size)`.
    pub fn assertion(&mut self, group: &Group, call: &Call) -> Stop {
        let lane = super::flow::first(group.lanes);
        let mut text = |index| {
            let at = self.argument(group, call, index, lane);
            self.text(at, lane)
                .map_or_else(|_| "?".to_string(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
        };
        let (message, file, function) = (text(0), text(1), text(3));
        let line = self.argument(group, call, 2, lane);
        Stop { kind: FaultKind::Assertion(format!("{file}:{line}: {function}: {message}")), lane }
    }

    /// An argument of a call as a number.
    fn argument(&mut self, group: &Group, call: &Call, index: usize, lane: usize) -> u64 {
        let Some(&(at, size)) = call.arguments.get(index) else { return 0 };
        let mut bytes = [0; 8];
        if let Ok(found) = self.frame_bytes(lane, group.frame + at, size.min(8)) {
            bytes[..found.len()].copy_from_slice(found);
        }
        u64::from_le_bytes(bytes)
    }

    /// Bytes at a generic address.
    fn bytes<const N: usize>(&mut self, at: u64, lane: usize) -> Result<[u8; N], Stop> {
        let address = Address { base: Source::Constant(0), offset: 0, space: Space::Generic };
        let mut bytes = [0; N];
        self.read_at(lane, &address, &[at; super::LANES], &mut bytes)?;
        Ok(bytes)
    }

    /// A text that ends in a zero.
    fn text(&mut self, at: u64, lane: usize) -> Result<Vec<u8>, Stop> {
        let mut found = Vec::new();
        while found.len() < TEXT_BYTES_MAX {
            match self.bytes(at.wrapping_add(found.len() as u64), lane)? {
                [0] => break,
                [byte] => found.push(byte),
            }
        }
        Ok(found)
    }

    fn next_number(&mut self, arguments: &mut Arguments, is_wide: bool) -> Result<u64, Stop> {
        let size = if is_wide { 8 } else { 4 };
        // Nothing lies at the end of all addresses, nor at 0.
        let at = arguments.next.checked_next_multiple_of(size).unwrap_or(0);
        arguments.next = at.wrapping_add(size);
        if is_wide {
            return self.bytes(at, arguments.lane).map(u64::from_le_bytes);
        }
        self.bytes(at, arguments.lane).map(|bytes| u64::from(u32::from_le_bytes(bytes)))
    }

    /// The text, and how many arguments it took.
    fn formatted(&mut self, format: &[u8], arguments: &mut Arguments) -> Result<(Vec<u8>, u32), Stop> {
        let (mut text, mut count, mut at) = (Vec::new(), 0, 0);
        while at < format.len() && text.len() < TEXT_BYTES_MAX {
            if format[at] != b'%' {
                text.push(format[at]);
                at += 1;
                continue;
            }
            at += 1;
            let mut field = Field::default();
            let Some(letter) = self.field(format, &mut at, &mut field, arguments)? else { break };
            if letter == b'%' {
                text.push(b'%');
                continue;
            }
            count += 1;
            let shown = self.shown(letter, &field, arguments)?;
            text.extend(shown);
        }
        text.truncate(TEXT_BYTES_MAX);
        Ok((text, count))
    }

    /// Reads what stands between `%` and the letter, and the letter.
    fn field(
        &mut self,
        format: &[u8],
        at: &mut usize,
        field: &mut Field,
        arguments: &mut Arguments,
    ) -> Result<Option<u8>, Stop> {
        // Nothing: a precision that an argument takes back.
        let (mut number, mut is_precision) = (Some(0usize), false);
        while let Some(&letter) = format.get(*at) {
            *at += 1;
            match letter {
                b'-' => field.is_left = true,
                b'+' => field.has_sign = true,
                b' ' => field.has_space = true,
                b'#' => field.has_prefix = true,
                b'0' if number == Some(0) && !is_precision => field.has_zeros = true,
                b'0'..=b'9' => {
                    let more = number.unwrap_or(0) * 10 + usize::from(letter - b'0');
                    number = Some(more.min(WIDTH_MAX));
                }
                b'*' => {
                    let given = self.next_number(arguments, false)? as i32;
                    let size = (given.unsigned_abs() as usize).min(WIDTH_MAX);
                    // What is below zero is a width to the left, and no precision at all.
                    field.is_left |= given < 0 && !is_precision;
                    number = Some(size).filter(|_| given >= 0 || !is_precision);
                }
                b'.' => {
                    field.width = number.unwrap_or(0);
                    (number, is_precision) = (Some(0), true);
                }
                b'l' | b'z' | b'j' | b't' => field.is_wide = true,
                b'h' => field.halvings += 1,
                _ => {
                    if is_precision {
                        field.precision = number;
                    } else {
                        field.width = number.unwrap_or(0);
                    }
                    return Ok(Some(letter));
                }
            }
        }
        Ok(None)
    }

    /// One argument as its letter asks.
    fn shown(&mut self, letter: u8, field: &Field, arguments: &mut Arguments) -> Result<Vec<u8>, Stop> {
        // With a precision, an integer is filled up with spaces.
        let is_integer = matches!(letter, b'd' | b'i' | b'u' | b'x' | b'X' | b'o');
        let mut has_zeros = letter != b'c' && !(is_integer && field.precision.is_some());
        let body = match letter {
            b'd' | b'i' => {
                let unused = 64 - field.bits();
                let value = (self.next_number(arguments, field.is_wide)? << unused) as i64 >> unused;
                signed(value < 0, digits(value.unsigned_abs().to_string(), field), field)
            }
            b'u' => {
                let value = self.next_number(arguments, field.is_wide)? & (u64::MAX >> (64 - field.bits()));
                digits(value.to_string(), field)
            }
            b'x' | b'X' | b'o' => {
                let value = self.next_number(arguments, field.is_wide)? & (u64::MAX >> (64 - field.bits()));
                let text = match letter {
                    b'x' => format!("{value:x}"),
                    b'X' => format!("{value:X}"),
                    _ => format!("{value:o}"),
                };
                let text = digits(text, field);
                let prefix = match letter {
                    // The first digit is to be a zero, which it may be already.
                    b'o' if field.has_prefix && !text.starts_with('0') => "0",
                    b'x' if field.has_prefix && value != 0 => "0x",
                    b'X' if field.has_prefix && value != 0 => "0X",
                    _ => "",
                };
                format!("{prefix}{text}")
            }
            b'p' => match self.next_number(arguments, true)? {
                0 => return Ok(padded(b"(nil)".to_vec(), field, false)),
                address => format!("{address:#x}"),
            },
            b'e' | b'E' | b'f' | b'F' | b'g' | b'G' | b'a' | b'A' => {
                let value = f64::from_bits(self.next_number(arguments, true)?);
                has_zeros &= value.is_finite();
                let text = match letter {
                    b'a' | b'A' if value.is_finite() => hexadecimal(value.abs(), field),
                    _ => real(value.abs(), letter, field),
                };
                signed(
                    value.is_sign_negative(),
                    if letter.is_ascii_uppercase() { text.to_uppercase() } else { text },
                    field,
                )
            }
            b'c' => return Ok(padded(vec![self.next_number(arguments, false)? as u8], field, false)),
            b's' => {
                let at = self.next_number(arguments, true)?;
                let mut text = match (at, field.precision) {
                    // As the C library has it, whole or not at all.
                    (0, Some(..6)) => Vec::new(),
                    (0, _) => b"(null)".to_vec(),
                    _ => self.text(at, arguments.lane)?,
                };
                text.truncate(field.precision.unwrap_or(TEXT_BYTES_MAX));
                return Ok(padded(text, field, false));
            }
            _ => return Ok(vec![b'%', letter]),
        };
        Ok(padded(body.into_bytes(), field, has_zeros))
    }
}

/// At least as many digits as the precision says: of a zero, none if that is what it says.
fn digits(text: String, field: &Field) -> String {
    if field.precision == Some(0) && text == "0" {
        return String::new();
    }
    let missing = field.precision.unwrap_or(0).saturating_sub(text.len());
    "0".repeat(missing) + &text
}

fn signed(is_negative: bool, text: String, field: &Field) -> String {
    let sign = match (is_negative, field.has_sign, field.has_space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    };
    format!("{sign}{text}")
}

/// As C writes numbers in hexadecimal digits, with an exponent of 2.
fn hexadecimal(value: f64, field: &Field) -> String {
    const DIGITS: usize = 13;
    let (fraction, stored) = (value.to_bits() & ((1 << 52) - 1), (value.to_bits() >> 52) as i32);
    let (mut number, exponent) = match (stored, fraction) {
        (0, 0) => (0, 0),
        (0, _) => (fraction, -1022),
        _ => (fraction | 1 << 52, stored - 1023),
    };
    let count = field.precision.unwrap_or(DIGITS);
    if count < DIGITS {
        let dropped = (DIGITS - count) * 4;
        let (kept, rest, half) = (number >> dropped, number & ((1 << dropped) - 1), 1u64 << (dropped - 1));
        number = (kept + u64::from(rest > half || (rest == half && kept & 1 == 1))) << dropped;
    }
    let digits = format!("{:013x}{}", number & ((1 << 52) - 1), "0".repeat(count.saturating_sub(DIGITS)));
    let digits = &digits[..count];
    let digits = if field.precision.is_none() { digits.trim_end_matches('0') } else { digits };
    let point = if digits.is_empty() && !field.has_prefix { "" } else { "." };
    format!("0x{}{point}{digits}p{exponent:+}", number >> 52)
}

/// As C writes numbers with a decimal point, which stands there also without digits behind it if the field has `#`.
fn real(value: f64, letter: u8, field: &Field) -> String {
    let precision = field.precision.unwrap_or(6);
    let pointed = |text: String| if field.has_prefix && !text.contains('.') { text + "." } else { text };
    if !value.is_finite() {
        return if value.is_nan() { "nan" } else { "inf" }.to_string();
    }
    let scientific = |precision: usize| {
        let text = format!("{value:.precision$e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let sign = if exponent < 0 { '-' } else { '+' };
        (format!("{}e{sign}{:02}", pointed(mantissa.to_owned()), exponent.abs()), exponent)
    };
    match letter.to_ascii_lowercase() {
        b'f' => pointed(format!("{value:.precision$}")),
        b'g' => {
            let precision = precision.max(1);
            let (text, exponent) = scientific(precision - 1);
            let is_short = exponent >= -4 && exponent < precision as i32;
            let after = (precision as i32 - 1 - exponent).max(0) as usize;
            let text = if is_short { pointed(format!("{value:.after$}")) } else { text };
            if field.has_prefix {
                return text;
            }
            let (number, rest) = text.split_at(text.find('e').unwrap_or(text.len()));
            let number = if number.contains('.') {
                number.trim_end_matches('0').trim_end_matches('.')
            } else {
                number
            };
            format!("{number}{rest}")
        }
        _ => scientific(precision).0,
    }
}

/// Fills a field up to its width, with zeros if it is to have them and may (`has_zeros`): they stand behind signs and `0x`.
fn padded(text: Vec<u8>, field: &Field, has_zeros: bool) -> Vec<u8> {
    let missing = field.width.saturating_sub(text.len());
    if field.is_left {
        return [text, vec![b' '; missing]].concat();
    }
    if field.has_zeros && has_zeros {
        let signs = text.iter().take_while(|byte| matches!(byte, b'-' | b'+' | b' ')).count();
        let signs = if matches!(text[signs..], [b'0', b'x' | b'X', ..]) { signs + 2 } else { signs };
        return [&text[..signs], &vec![b'0'; missing], &text[signs..]].concat();
    }
    [vec![b' '; missing], text].concat()
}
