//! Floating-point arithmetic in integers, for formats and roundings that the machine does not have.

use crate::types::Rounding;

/// How the bits of a number are divided.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Format {
    fraction_bits: u32,
    exponent_bits: u32,
    /// What stands for "no number".
    nan: u64,
}

pub(crate) const F16: Format = Format { fraction_bits: 10, exponent_bits: 5, nan: 0x7fff };
pub(crate) const BF16: Format = Format { fraction_bits: 7, exponent_bits: 8, nan: 0x7fff };
pub(crate) const F32: Format = Format { fraction_bits: 23, exponent_bits: 8, nan: 0x7fff_ffff };
pub(crate) const F64: Format = Format { fraction_bits: 52, exponent_bits: 11, nan: 0xfff8_0000_0000_0000 };
/// The upper 19 bits of an `F32` are kept.
pub(crate) const TF32: Format = Format { fraction_bits: 10, exponent_bits: 8, nan: 0x3_ffff };

/// A number taken apart: `mantissa * 2^exponent`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Nan,
    Infinite { is_negative: bool },
    Finite { is_negative: bool, mantissa: u128, exponent: i32 },
}

impl Format {
    /// Bits of the fraction, without the hidden one.
    pub fn fraction_bits(self) -> u32 {
        self.fraction_bits
    }

    /// What is added to an exponent when it is stored.
    pub fn bias(self) -> i32 {
        (1 << (self.exponent_bits - 1)) - 1
    }

    /// The exponent of the last bit of the smallest numbers.
    fn exponent_min(self) -> i32 {
        1 - self.bias() - self.fraction_bits as i32
    }

    /// The bits of the exponent.
    pub fn exponent_mask(self) -> u64 {
        self.infinity()
    }

    fn infinity(self) -> u64 {
        ((1 << self.exponent_bits) - 1) << self.fraction_bits
    }

    fn sign(self, is_negative: bool) -> u64 {
        u64::from(is_negative) << (self.fraction_bits + self.exponent_bits)
    }

    pub fn decompose(self, bits: u64) -> Number {
        let is_negative = bits & self.sign(true) != 0;
        let fraction = bits & ((1 << self.fraction_bits) - 1);
        let exponent = (bits >> self.fraction_bits) & ((1 << self.exponent_bits) - 1);
        if exponent == (1 << self.exponent_bits) - 1 {
            return if fraction != 0 { Number::Nan } else { Number::Infinite { is_negative } };
        }
        let hidden = if exponent == 0 { 0 } else { 1 << self.fraction_bits };
        Number::Finite {
            is_negative,
            mantissa: u128::from(fraction | hidden),
            exponent: self.exponent_min() + (exponent as i32 - 1).max(0),
        }
    }

    pub fn compose(self, number: Number, rounding: Rounding) -> u64 {
        match number {
            Number::Nan => self.nan,
            Number::Infinite { is_negative } => self.sign(is_negative) | self.infinity(),
            Number::Finite { is_negative, mantissa, exponent } => {
                self.round(is_negative, mantissa, exponent, false, rounding)
            }
        }
    }

    /// The number of this format for `mantissa * 2^exponent`, and a little more if `is_more`; then the mantissa has
    /// at least two bits more than the format.
    pub fn round(
        self,
        is_negative: bool,
        mantissa: u128,
        exponent: i32,
        is_more: bool,
        rounding: Rounding,
    ) -> u64 {
        let sign = self.sign(is_negative);
        if mantissa == 0 && !is_more {
            return sign;
        }
        let precision = self.fraction_bits as i32 + 1;
        let bits = 128 - mantissa.leading_zeros() as i32;
        let mut last = (exponent + bits - precision).max(self.exponent_min());
        let shift = last - exponent;
        let (mut kept, rest, half) = if shift <= 0 {
            (mantissa << -shift, 0, 1)
        } else if shift > 127 {
            (0, mantissa.min(1), 2)
        } else {
            (mantissa >> shift, mantissa & ((1 << shift) - 1), 1u128 << (shift - 1))
        };
        let is_inexact = rest != 0 || is_more;
        let is_up = match rounding {
            Rounding::Nearest => rest > half || (rest == half && (is_more || kept & 1 == 1)),
            Rounding::Away => rest >= half,
            Rounding::Zero => false,
            Rounding::Down => is_inexact && is_negative,
            Rounding::Up => is_inexact && !is_negative,
        };
        kept += u128::from(is_up);
        if kept >> precision != 0 {
            kept >>= 1;
            last += 1;
        }
        let is_subnormal = kept >> (precision - 1) == 0;
        let biased = if is_subnormal { 0 } else { (last - self.exponent_min() + 1) as u64 };
        if biased >= (1 << self.exponent_bits) - 1 {
            let is_largest = match rounding {
                Rounding::Nearest | Rounding::Away => false,
                Rounding::Zero => true,
                Rounding::Down => !is_negative,
                Rounding::Up => is_negative,
            };
            return sign | (self.infinity() - u64::from(is_largest));
        }
        sign | (biased << self.fraction_bits) | (kept as u64 & ((1 << self.fraction_bits) - 1))
    }
}

/// `a + b` in a format.
pub(crate) fn add(format: Format, a: Number, b: Number, rounding: Rounding) -> u64 {
    match (a, b) {
        (Number::Nan, _) | (_, Number::Nan) => format.nan,
        (Number::Infinite { is_negative: x }, Number::Infinite { is_negative: y }) if x != y => format.nan,
        (Number::Infinite { .. }, _) => format.compose(a, rounding),
        (_, Number::Infinite { .. }) => format.compose(b, rounding),
        (
            Number::Finite { is_negative: x, mantissa: m, exponent: e },
            Number::Finite { is_negative: y, mantissa: n, exponent: f },
        ) => {
            if m == 0 && n == 0 {
                let is_negative = if x == y { x } else { rounding == Rounding::Down };
                return format.sign(is_negative);
            }
            if m == 0 {
                return format.compose(b, rounding);
            }
            if n == 0 {
                return format.compose(a, rounding);
            }
            sum(format, (x, m, e), (y, n, f), rounding)
        }
    }
}

/// The sum of two numbers that are not zero.
fn sum(format: Format, a: (bool, u128, i32), b: (bool, u128, i32), rounding: Rounding) -> u64 {
    let top = |number: (bool, u128, i32)| number.2 - number.1.leading_zeros() as i32;
    let (large, small) = if top(a) >= top(b) { (a, b) } else { (b, a) };
    // The larger moves up until it has 126 bits or both have the same exponent.
    let room = large.1.leading_zeros() as i32 - 2;
    let up = (large.2 - small.2).clamp(0, room);
    let (big, exponent) = (large.1 << up, large.2 - up);
    let down = exponent - small.2;
    let (other, is_more) = match down {
        ..=0 => (small.1 << -down, false),
        1..=127 => (small.1 >> down, small.1 & ((1 << down) - 1) != 0),
        _ => (0, true),
    };
    if large.0 == small.0 {
        return format.round(large.0, big + other, exponent, is_more, rounding);
    }
    let difference = big.abs_diff(other) - u128::from(is_more);
    if difference == 0 && !is_more {
        return format.sign(rounding == Rounding::Down);
    }
    let is_negative = if big >= other { large.0 } else { small.0 };
    format.round(is_negative, difference, exponent, is_more, rounding)
}

/// The exact product.
pub(crate) fn product(a: Number, b: Number) -> Number {
    let is_negative_of = |number: Number| match number {
        Number::Nan => false,
        Number::Infinite { is_negative } | Number::Finite { is_negative, .. } => is_negative,
    };
    let is_negative = is_negative_of(a) != is_negative_of(b);
    let is_zero = |number: Number| matches!(number, Number::Finite { mantissa: 0, .. });
    match (a, b) {
        (Number::Nan, _) | (_, Number::Nan) => Number::Nan,
        (Number::Infinite { .. }, other) | (other, Number::Infinite { .. }) => {
            if is_zero(other) {
                Number::Nan
            } else {
                Number::Infinite { is_negative }
            }
        }
        (
            Number::Finite { mantissa: m, exponent: e, .. },
            Number::Finite { mantissa: n, exponent: f, .. },
        ) => Number::Finite { is_negative, mantissa: m * n, exponent: e + f },
    }
}

/// `a / b` in a format.
pub(crate) fn quotient(format: Format, a: Number, b: Number, rounding: Rounding) -> u64 {
    match (a, b) {
        (Number::Nan, _) | (_, Number::Nan) | (Number::Infinite { .. }, Number::Infinite { .. }) => {
            format.nan
        }
        (Number::Infinite { is_negative: x }, Number::Finite { is_negative: y, .. }) => {
            format.sign(x != y) | format.infinity()
        }
        (Number::Finite { is_negative: x, .. }, Number::Infinite { is_negative: y }) => format.sign(x != y),
        (
            Number::Finite { is_negative: x, mantissa: m, exponent: e },
            Number::Finite { is_negative: y, mantissa: n, exponent: f },
        ) => match (m, n) {
            (0, 0) => format.nan,
            (0, _) => format.sign(x != y),
            (_, 0) => format.sign(x != y) | format.infinity(),
            _ => {
                let up = m.leading_zeros() - 2;
                let (dividend, exponent) = (m << up, e - up as i32 - f);
                format.round(x != y, dividend / n, exponent, dividend % n != 0, rounding)
            }
        },
    }
}

/// The square root in a format.
pub(crate) fn root(format: Format, a: Number, rounding: Rounding) -> u64 {
    match a {
        Number::Finite { is_negative, mantissa: 0, .. } => format.sign(is_negative),
        Number::Finite { is_negative: false, mantissa, exponent } => {
            let up = (mantissa.leading_zeros() - 2) & !1;
            let (mantissa, exponent) = (mantissa << up, exponent - up as i32);
            // The exponent has to be even; there is room for one bit more.
            let odd = exponent.rem_euclid(2);
            let (mantissa, exponent) = (mantissa << odd, exponent - odd);
            let root = mantissa.isqrt();
            format.round(false, root, exponent / 2, root * root != mantissa, rounding)
        }
        Number::Infinite { is_negative: false } => format.infinity(),
        _ => format.nan,
    }
}

/// A double for which rounding to any smaller format gives what the exact `a + b` gives.
pub(crate) fn sum_for_rounding(a: f64, b: f64) -> f64 {
    let sum = a + b;
    if !sum.is_finite() {
        return sum;
    }
    let part = sum - a;
    let rest = (a - (sum - part)) + (b - part);
    if rest == 0.0 || sum.to_bits() & 1 == 1 {
        return sum;
    }
    // Odd bits stand for "not exact": towards the rest, so that no even neighbour is reached.
    if (rest > 0.0) == (sum > 0.0) {
        f64::from_bits(sum.to_bits() + 1)
    } else {
        f64::from_bits(sum.to_bits() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let word = self.0;
            (word ^ (word >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
        }

        /// Any bits; often numbers that are near each other, or special ones.
        fn single(&mut self) -> f32 {
            match self.next() % 8 {
                0 => f32::from_bits(self.next() as u32 & 0x807f_ffff),
                1 => [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 1.0]
                    [self.next() as usize % 7],
                2..=4 => f32::from_bits((self.next() as u32 & 0x81ff_ffff) | 0x3e00_0000),
                _ => f32::from_bits(self.next() as u32),
            }
        }

        fn double(&mut self) -> f64 {
            match self.next() % 4 {
                0 => f64::from(self.single()),
                1 => f64::from_bits(self.next() & 0x800f_ffff_ffff_ffff),
                2 => f64::from_bits((self.next() & 0x803f_ffff_ffff_ffff) | 0x3fc0_0000_0000_0000),
                _ => f64::from_bits(self.next()),
            }
        }
    }

    fn same32(a: u64, b: f32) -> bool {
        a == u64::from(b.to_bits()) || (f32::from_bits(a as u32).is_nan() && b.is_nan())
    }

    fn same64(a: u64, b: f64) -> bool {
        a == b.to_bits() || (f64::from_bits(a).is_nan() && b.is_nan())
    }

    #[test]
    fn rounding_to_nearest_is_what_the_machine_does() {
        let mut random = Random(1);
        let near = Rounding::Nearest;
        for _ in 0..200_000 {
            let (a, b, c) = (random.single(), random.single(), random.single());
            let [x, y, z] = [a, b, c].map(|value| F32.decompose(u64::from(value.to_bits())));
            assert!(same32(add(F32, x, y, near), a + b), "{a:e} + {b:e}");
            assert!(same32(F32.compose(product(x, y), near), a * b), "{a:e} * {b:e}");
            assert!(same32(add(F32, product(x, y), z, near), a.mul_add(b, c)), "{a:e} * {b:e} + {c:e}");
            assert!(same32(quotient(F32, x, y, near), a / b), "{a:e} / {b:e}");
            assert!(same32(root(F32, x, near), a.sqrt()), "{a:e}");
            let (a, b, c) = (random.double(), random.double(), random.double());
            let [x, y, z] = [a, b, c].map(|value| F64.decompose(value.to_bits()));
            assert!(same64(add(F64, x, y, near), a + b), "{a:e} + {b:e}");
            assert!(same64(add(F64, product(x, y), z, near), a.mul_add(b, c)), "{a:e} * {b:e} + {c:e}");
            assert!(same64(quotient(F64, x, y, near), a / b), "{a:e} / {b:e}");
            assert!(same64(root(F64, x, near), a.sqrt()), "{a:e}");
            assert!(same32(F32.compose(x, near), a as f32), "{a:e}");
        }
    }

    #[test]
    fn directed_roundings_enclose_the_exact_result() {
        let mut random = Random(2);
        for _ in 0..100_000 {
            let (a, b) = (random.single(), random.single());
            let [x, y] = [a, b].map(|value| F32.decompose(u64::from(value.to_bits())));
            let exact = f64::from(a) * f64::from(b);
            if exact.is_nan() {
                continue;
            }
            let [down, up, zero] = [Rounding::Down, Rounding::Up, Rounding::Zero]
                .map(|rounding| f32::from_bits(F32.compose(product(x, y), rounding) as u32));
            assert!(f64::from(down) <= exact && exact <= f64::from(up), "{a:e} * {b:e}");
            assert_eq!(zero.to_bits(), if exact.is_sign_negative() { up.to_bits() } else { down.to_bits() });
            let is_exact = f64::from(down) == exact;
            let next = if down == 0.0 { f32::from_bits(1) } else { down.next_up() };
            assert!(
                is_exact && down == up || !is_exact && (up == next || up == down.next_up()),
                "{down:e} {up:e}"
            );
        }
    }

    #[test]
    fn a_sum_for_rounding_loses_nothing_that_matters() {
        let mut random = Random(3);
        for _ in 0..200_000 {
            let (a, b) = (f64::from(random.single()), f64::from(random.single()));
            let [x, y] = [a, b].map(|value| F64.decompose(value.to_bits()));
            for format in [F16, BF16, F32] {
                let direct = add(format, x, y, Rounding::Nearest);
                let step = F64.decompose(sum_for_rounding(a, b).to_bits());
                assert_eq!(format.compose(step, Rounding::Nearest), direct, "{a:e} + {b:e}");
            }
        }
    }
}
