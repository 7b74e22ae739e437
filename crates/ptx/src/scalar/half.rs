//! Arithmetic with numbers of 16 bits, and with pairs of them.

use super::float::Style;
use super::soft::{BF16, F16, Format, sum_for_rounding};
use crate::code::Scalar;
use crate::types::Type;

/// Bits of the const parameter `M`.
const FLUSHES: u8 = 1;
const SATURATES: u8 = 2;
const CUTS: u8 = 4;

/// A number of IEEE's 16 bits.
pub(crate) fn f16(bits: u64) -> f64 {
    let (sign, rest) = ((bits & 0x8000) << 48, bits & 0x7fff);
    match rest >> 10 {
        0 => f64::from_bits(sign | (rest as f64 / 16_777_216.0).to_bits()),
        31 => f64::from_bits(sign | 0x7ff0_0000_0000_0000 | (rest & 0x3ff) << 42),
        exponent => f64::from_bits(sign | (exponent + 1008) << 52 | (rest & 0x3ff) << 42),
    }
}

/// The bits of a number of IEEE's 16 bits, or of a zero of its sign if it is too small to be normal.
pub(crate) fn flushed(bits: u64) -> u64 {
    if bits & F16.exponent_mask() == 0 { bits & 0x8000 } else { bits }
}

/// A number of the upper 16 of 32 bits.
pub(crate) fn bf16(bits: u64) -> f64 {
    f64::from(f32::from_bits((bits as u32 & 0xffff) << 16))
}

/// One of both formats of 16 bits.
trait Half {
    const FORMAT: Format;
    fn read(bits: u64) -> f64;
}

struct Ieee;
struct Brain;

impl Half for Ieee {
    const FORMAT: Format = F16;
    fn read(bits: u64) -> f64 {
        f16(bits)
    }
}

impl Half for Brain {
    const FORMAT: Format = BF16;
    fn read(bits: u64) -> f64 {
        bf16(bits)
    }
}

const NAN16: u64 = 0x7fff;

/// A double, rounded to the nearest number of a format of 16 bits.
pub(crate) fn rounded(format: Format, value: f64) -> u64 {
    let bits = value.to_bits();
    let sign = bits >> 48 & 0x8000;
    if value.is_nan() {
        return NAN16;
    }
    let (fraction_bits, bias) = (format.fraction_bits() as i32, format.bias());
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1023;
    let small = (1 - bias - exponent).max(0);
    let dropped = 52 - fraction_bits + small;
    if dropped > 54 {
        return sign;
    }
    let mantissa = (bits & 0xf_ffff_ffff_ffff) | 1 << 52;
    let (kept, rest, half) = (mantissa >> dropped, mantissa & ((1 << dropped) - 1), 1u64 << (dropped - 1));
    let kept = kept + u64::from(rest > half || (rest == half && kept & 1 == 1));
    // The hidden bit counts one up in the exponent, and so does a mantissa that became too long.
    let start = if small > 0 { 0 } else { ((exponent + bias - 1) as u64) << fraction_bits };
    sign | (start + kept).min(format.exponent_mask())
}

fn input<H: Half, const M: u8>(bits: u64) -> f64 {
    let flushed = M & FLUSHES != 0 && bits & H::FORMAT.exponent_mask() == 0;
    H::read(if flushed { bits & 0x8000 } else { bits })
}

fn output<H: Half, const M: u8>(value: f64) -> u64 {
    finish::<H, M>(rounded(H::FORMAT, value))
}

fn finish<H: Half, const M: u8>(bits: u64) -> u64 {
    let value = H::read(bits);
    if value.is_nan() {
        return if M & SATURATES != 0 { 0 } else { NAN16 };
    }
    let bits = if M & FLUSHES != 0 && bits & H::FORMAT.exponent_mask() == 0 { bits & 0x8000 } else { bits };
    if M & SATURATES != 0 {
        return if value <= 0.0 {
            0
        } else if value >= 1.0 {
            rounded(H::FORMAT, 1.0)
        } else {
            bits
        };
    }
    if M & CUTS != 0 && bits & 0x8000 != 0 { 0 } else { bits }
}

fn add<H: Half, const M: u8>(a: u64, b: u64, _: u64) -> u64 {
    output::<H, M>(sum_for_rounding(input::<H, M>(a), input::<H, M>(b)))
}

fn sub<H: Half, const M: u8>(a: u64, b: u64, _: u64) -> u64 {
    output::<H, M>(sum_for_rounding(input::<H, M>(a), -input::<H, M>(b)))
}

fn mul<H: Half, const M: u8>(a: u64, b: u64, _: u64) -> u64 {
    output::<H, M>(input::<H, M>(a) * input::<H, M>(b))
}

fn fma<H: Half, const M: u8>(a: u64, b: u64, c: u64) -> u64 {
    output::<H, M>(sum_for_rounding(input::<H, M>(a) * input::<H, M>(b), input::<H, M>(c)))
}

fn min<H: Half, const M: u8>(a: u64, b: u64, _: u64) -> u64 {
    finish::<H, M>(least(input::<H, M>(a), input::<H, M>(b), a, b))
}

fn max<H: Half, const M: u8>(a: u64, b: u64, _: u64) -> u64 {
    finish::<H, M>(least(-input::<H, M>(a), -input::<H, M>(b), a, b))
}

fn min_nan<H: Half, const M: u8>(a: u64, b: u64, c: u64) -> u64 {
    if H::read(a).is_nan() || H::read(b).is_nan() { NAN16 } else { min::<H, M>(a, b, c) }
}

fn max_nan<H: Half, const M: u8>(a: u64, b: u64, c: u64) -> u64 {
    if H::read(a).is_nan() || H::read(b).is_nan() { NAN16 } else { max::<H, M>(a, b, c) }
}

/// The bits of the lesser; a number is less than none.
fn least(x: f64, y: f64, a: u64, b: u64) -> u64 {
    if x.is_nan() || x > y || (x == y && y.is_sign_negative()) { b & 0xffff } else { a & 0xffff }
}

fn neg<H: Half, const M: u8>(a: u64, _: u64, _: u64) -> u64 {
    let flushed = M & FLUSHES != 0 && a & H::FORMAT.exponent_mask() == 0;
    if H::read(a).is_nan() { NAN16 } else { (if flushed { a & 0x8000 } else { a & 0xffff }) ^ 0x8000 }
}

fn abs<H: Half, const M: u8>(a: u64, _: u64, _: u64) -> u64 {
    let flushed = M & FLUSHES != 0 && a & H::FORMAT.exponent_mask() == 0;
    if H::read(a).is_nan() {
        NAN16
    } else if flushed {
        0
    } else {
        a & 0x7fff
    }
}

fn ex2<H: Half, const M: u8>(a: u64, _: u64, _: u64) -> u64 {
    output::<H, M>(input::<H, M>(a).exp2())
}

fn tanh<H: Half, const M: u8>(a: u64, _: u64, _: u64) -> u64 {
    output::<H, M>(input::<H, M>(a).tanh())
}

fn single<F: Fn(u64, u64, u64) -> u64>(function: F, a: u64, b: u64, c: u64) -> u64 {
    function(a & 0xffff, b & 0xffff, c & 0xffff)
}

fn pair<F: Fn(u64, u64, u64) -> u64>(function: F, a: u64, b: u64, c: u64) -> u64 {
    let low = function(a & 0xffff, b & 0xffff, c & 0xffff);
    low | function(a >> 16 & 0xffff, b >> 16 & 0xffff, c >> 16 & 0xffff) << 16
}

/// `add`, `fma`, `max` and so on of 16 bits or pairs; nothing if there is none of the name for the type.
pub(crate) fn arithmetic(name: &str, kind: Type, style: Style, cuts: bool) -> Option<Scalar> {
    macro_rules! formats {
        ($function:ident, $m:expr) => {{
            let compute: Scalar = match kind {
                Type::F16 => |a, b, c, _| single($function::<Ieee, { $m }>, a, b, c),
                Type::F16x2 => |a, b, c, _| pair($function::<Ieee, { $m }>, a, b, c),
                Type::Bf16 => |a, b, c, _| single($function::<Brain, { $m }>, a, b, c),
                Type::Bf16x2 => |a, b, c, _| pair($function::<Brain, { $m }>, a, b, c),
                _ => return None,
            };
            compute
        }};
    }
    macro_rules! styled {
        ($function:ident) => {
            match (style.flushes, style.saturates, cuts) {
                (false, false, false) => formats!($function, 0),
                (true, false, false) => formats!($function, FLUSHES),
                (false, true, false) => formats!($function, SATURATES),
                (true, true, false) => formats!($function, FLUSHES | SATURATES),
                (false, false, true) => formats!($function, CUTS),
                (true, false, true) => formats!($function, FLUSHES | CUTS),
                _ => return None,
            }
        };
    }
    Some(match name {
        "add" => styled!(add),
        "sub" => styled!(sub),
        "mul" => styled!(mul),
        "fma" => styled!(fma),
        "min" => styled!(min),
        "max" => styled!(max),
        "min.NaN" => styled!(min_nan),
        "max.NaN" => styled!(max_nan),
        "neg" => styled!(neg),
        "abs" => styled!(abs),
        "ex2" => styled!(ex2),
        "tanh" => styled!(tanh),
        _ => return None,
    })
}
