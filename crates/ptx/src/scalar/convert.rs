//! Conversions between all types.

use super::float::{NAN32, flushed};
use super::half::{bf16, f16, rounded};
use super::soft::{BF16, F16, F32, F64, Format, Number, TF32};
use crate::types::{Rounding, Type};

/// What `cvt` does to one value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Conversion {
    pub to: Type,
    pub from: Type,
    /// How a result is rounded that the type cannot express.
    pub rounding: Rounding,
    /// How a number becomes an integer; also between numbers of one type.
    pub to_integer: Option<Rounding>,
    pub flushes: bool,
    pub saturates: bool,
    /// Negative results are zero.
    pub cuts: bool,
}

fn format(kind: Type) -> Option<Format> {
    Some(match kind {
        Type::F16 | Type::F16x2 => F16,
        Type::Bf16 | Type::Bf16x2 => BF16,
        Type::Tf32 => TF32,
        Type::F32 => F32,
        Type::F64 => F64,
        _ => return None,
    })
}

impl Conversion {
    /// The converted value. `second` is the lower half of a pair, and means nothing otherwise.
    pub fn apply(&self, value: u64, second: u64) -> u64 {
        if let Some(result) = self.plain(value) {
            return result;
        }
        if let Some((small, is_narrowing)) = small_of(self.to, self.from) {
            return if is_narrowing {
                self.narrowed(small, value, second)
            } else {
                self.widened(small, value)
            };
        }
        match (format(self.to), format(self.from)) {
            (Some(to), Some(from)) if matches!(self.to, Type::F16x2 | Type::Bf16x2) => {
                self.between(to, from, second) | self.between(to, from, value) << 16
            }
            (Some(to), Some(from)) => self.between(to, from, value),
            (Some(to), None) => self.number_of(to, value),
            (None, Some(from)) => self.integer_of(from, value),
            (None, None) => self.integers(value),
        }
    }

    /// What the machine can do at once, if nothing but rounding to the nearest is asked for.
    fn plain(&self, value: u64) -> Option<u64> {
        let is_plain = self.rounding == Rounding::Nearest && self.to_integer.is_none();
        if !is_plain || self.flushes || self.saturates || self.cuts {
            return None;
        }
        let single = |value: f32| u64::from(if value.is_nan() { NAN32 } else { value.to_bits() });
        Some(match (self.to, self.from) {
            (Type::F32, Type::F16) => single(f16(value & 0xffff) as f32),
            (Type::F32, Type::Bf16) => single(bf16(value) as f32),
            (Type::F16, Type::F32) => rounded(F16, f64::from(f32::from_bits(value as u32))),
            (Type::Bf16, Type::F32) => rounded(BF16, f64::from(f32::from_bits(value as u32))),
            (Type::F32, Type::S32) => u64::from((value as i32 as f32).to_bits()),
            (Type::F32, Type::U32) => u64::from((value as u32 as f32).to_bits()),
            (Type::S64, Type::S32) => value as i32 as u64,
            (Type::U64, Type::U32) | (Type::U32, Type::U64) => value & 0xffff_ffff,
            _ => return None,
        })
    }

    /// Two numbers of 8 bits from two of 32, or from a pair of 16.
    fn narrowed(&self, small: Small, value: u64, second: u64) -> u64 {
        // No zero is negative either.
        let one = |value: f64| if self.cuts && value <= 0.0 { 0 } else { small.nearest(value) };
        let single = |bits: u64| f64::from(f32::from_bits(bits as u32));
        if self.from == Type::F32 {
            one(single(second)) | one(single(value)) << 8
        } else {
            one(f16(value & 0xffff)) | one(f16(value >> 16 & 0xffff)) << 8
        }
    }

    fn widened(&self, small: Small, value: u64) -> u64 {
        let one = |bits: u64| {
            let number = small.number(bits & 0xff);
            rounded(F16, if self.cuts && number <= 0.0 { 0.0 } else { number })
        };
        one(value) | one(value >> 8) << 16
    }

    fn read(&self, from: Format, value: u64) -> Number {
        let value = if self.flushes && self.from == Type::F32 {
            u64::from(flushed(value).to_bits())
        } else {
            value & self.from.mask()
        };
        from.decompose(value)
    }

    fn between(&self, to: Format, from: Format, value: u64) -> u64 {
        let mut number = self.read(from, value);
        if let (Some(rounding), Number::Finite { is_negative, mantissa, exponent: ..0 }) =
            (self.to_integer, number)
            && let Number::Finite { exponent, .. } = number
        {
            let mantissa = integer(is_negative, mantissa, exponent, rounding);
            number = Number::Finite { is_negative, mantissa, exponent: 0 };
        }
        match number {
            Number::Nan if self.saturates => return 0,
            Number::Infinite { is_negative: true } | Number::Finite { is_negative: true, .. }
                if self.saturates || self.cuts =>
            {
                return 0;
            }
            _ => {}
        }
        let bits = to.compose(number, self.rounding);
        let one = to.compose(Number::Finite { is_negative: false, mantissa: 1, exponent: 0 }, Rounding::Zero);
        let bits = if self.saturates && number != Number::Nan { bits.min(one) } else { bits };
        match self.to {
            Type::F32 if self.flushes => u64::from(flushed(bits).to_bits()),
            Type::Tf32 => bits << 13,
            _ => bits,
        }
    }

    fn number_of(&self, to: Format, value: u64) -> u64 {
        let wide = self.extended(value);
        let is_negative = wide < 0;
        let number = Number::Finite { is_negative, mantissa: wide.unsigned_abs(), exponent: 0 };
        let one = to.compose(Number::Finite { is_negative: false, mantissa: 1, exponent: 0 }, Rounding::Zero);
        match (self.saturates, is_negative) {
            (true, true) => 0,
            (true, false) => to.compose(number, self.rounding).min(one),
            _ => to.compose(number, self.rounding),
        }
    }

    /// Integers end at the limits of their type; what is no number is 0, or the highest bit if 64 bits are involved.
    fn integer_of(&self, from: Format, value: u64) -> u64 {
        let (least, most) = limits(self.to);
        let result = match self.read(from, value) {
            Number::Nan if self.from == Type::F64 || self.to.bits() == 64 => {
                return 1 << (self.to.bits() - 1);
            }
            Number::Nan => 0,
            Number::Infinite { is_negative } => {
                if is_negative {
                    least
                } else {
                    most
                }
            }
            Number::Finite { is_negative, mantissa, exponent } => {
                let whole =
                    integer(is_negative, mantissa, exponent, self.to_integer.unwrap_or(Rounding::Zero));
                let whole = i128::try_from(whole.min(1 << 70)).unwrap_or(i128::MAX);
                (if is_negative { -whole } else { whole }).clamp(least, most)
            }
        };
        result as u64
    }

    fn extended(&self, value: u64) -> i128 {
        match self.from {
            Type::S8 => i128::from(value as i8),
            Type::S16 => i128::from(value as i16),
            Type::S32 => i128::from(value as i32),
            Type::S64 => i128::from(value as i64),
            other => i128::from(value & other.mask()),
        }
    }

    fn integers(&self, value: u64) -> u64 {
        let wide = self.extended(value);
        let (least, most) = limits(self.to);
        let kept = if self.saturates { wide.clamp(least, most) } else { wide };
        match self.to {
            Type::S8 => kept as i8 as u64,
            Type::S16 => kept as i16 as u64,
            Type::S32 => kept as i32 as u64,
            other => kept as u64 & other.mask(),
        }
    }
}

fn limits(kind: Type) -> (i128, i128) {
    let bits = kind.bits();
    if kind.is_signed() { (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { (0, (1 << bits) - 1) }
}

/// The whole number that `mantissa * 2^exponent` is rounded to, without its sign.
fn integer(is_negative: bool, mantissa: u128, exponent: i32, rounding: Rounding) -> u128 {
    if exponent >= 0 {
        // Numbers beyond 70 bits are beyond all types, and exact anyway.
        return if exponent > 70 && mantissa != 0 { u128::MAX >> 1 } else { mantissa << exponent.min(70) };
    }
    let down = exponent.unsigned_abs();
    if down > 120 {
        let is_away =
            (rounding == Rounding::Up && !is_negative) || (rounding == Rounding::Down && is_negative);
        return u128::from(is_away && mantissa != 0);
    }
    let (kept, rest, half) = (mantissa >> down, mantissa & ((1 << down) - 1), 1u128 << (down - 1));
    let is_up = match rounding {
        Rounding::Nearest => rest > half || (rest == half && kept & 1 == 1),
        Rounding::Away => rest >= half,
        Rounding::Zero => false,
        Rounding::Down => rest != 0 && is_negative,
        Rounding::Up => rest != 0 && !is_negative,
    };
    kept + u128::from(is_up)
}

/// A format of 8 bits. Both have no room for numbers beyond their largest, so those end there.
#[derive(Clone, Copy)]
struct Small {
    fraction_bits: i32,
    bias: i32,
    most: f64,
}

/// The small format of a conversion, and whether it is the one that comes out.
fn small_of(to: Type, from: Type) -> Option<(Small, bool)> {
    let format = |kind| match kind {
        Type::E4m3x2 => Some(Small { fraction_bits: 3, bias: 7, most: 448.0 }),
        Type::E5m2x2 => Some(Small { fraction_bits: 2, bias: 15, most: 57344.0 }),
        _ => None,
    };
    format(to).map(|small| (small, true)).or_else(|| format(from).map(|small| (small, false)))
}

impl Small {
    fn number(self, bits: u64) -> f64 {
        let (sign, rest) = (if bits & 0x80 != 0 { -1.0 } else { 1.0 }, bits & 0x7f);
        let one = 1i32 << self.fraction_bits;
        let (exponent, fraction) = ((rest >> self.fraction_bits) as i32, rest as i32 & (one - 1));
        // The larger exponent range has an infinity as other formats have; the smaller has one thing that is no number.
        match (self.fraction_bits, rest) {
            (3, 0x7f) | (2, 0x7d..) => f64::NAN,
            (2, 0x7c) => sign * f64::INFINITY,
            _ => {
                let mantissa = if exponent == 0 { fraction } else { fraction + one };
                sign * f64::from(mantissa) * 2f64.powi(exponent.max(1) - self.bias - self.fraction_bits)
            }
        }
    }

    fn nearest(self, value: f64) -> u64 {
        if value.is_nan() {
            return 0x7f;
        }
        let sign = if value.is_sign_negative() { 0x80 } else { 0 };
        let size = value.abs().min(self.most);
        let exponent = ((size.to_bits() >> 52) as i32 - 1023).max(1 - self.bias);
        let units = (size * 2f64.powi(self.fraction_bits - exponent)).round_ties_even() as i32;
        // A mantissa that is rounded up to the next power of two carries into the exponent.
        let bits = ((exponent + self.bias - 1) << self.fraction_bits) + units;
        sign | (bits as u64).min(if self.fraction_bits == 3 { 0x7e } else { 0x7b })
    }
}
