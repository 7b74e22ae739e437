//! Arithmetic with numbers of 32 and 64 bits.

use super::soft::{self, F32, F64};
use crate::code::Scalar;
use crate::types::{Rounding, Type};

/// Modifiers of an instruction that are part of which function it is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Style {
    pub rounding: Option<Rounding>,
    /// Numbers that are too small for a full mantissa count as zero.
    pub flushes: bool,
    /// Results end at 0 and 1.
    pub saturates: bool,
}

/// Bits of the const parameter `M`.
const FLUSHES: u8 = 1;
const SATURATES: u8 = 2;
/// Values of the const parameter `R`.
const NEAREST: u8 = 0;
const ZERO: u8 = 1;
const DOWN: u8 = 2;
const UP: u8 = 3;

const fn rounding(r: u8) -> Rounding {
    match r {
        ZERO => Rounding::Zero,
        DOWN => Rounding::Down,
        UP => Rounding::Up,
        _ => Rounding::Nearest,
    }
}

/// What stands for "no number" in 32 bits.
pub(crate) const NAN32: u32 = 0x7fff_ffff;

/// The number, or zero of its sign if it has no full mantissa.
pub(crate) fn flushed(bits: u64) -> f32 {
    let bits = bits as u32;
    f32::from_bits(if bits & 0x7f80_0000 == 0 { bits & 0x8000_0000 } else { bits })
}

fn read<const M: u8>(bits: u64) -> f32 {
    if M & FLUSHES != 0 { flushed(bits) } else { f32::from_bits(bits as u32) }
}

fn write<const M: u8>(value: f32) -> u64 {
    if value.is_nan() {
        return if M & SATURATES != 0 { 0 } else { u64::from(NAN32) };
    }
    let value = if M & SATURATES != 0 { value.clamp(0.0, 1.0) } else { value };
    let value = if M & FLUSHES != 0 { flushed(u64::from(value.to_bits())) } else { value };
    // A clamped -0 is +0.
    u64::from(if M & SATURATES != 0 && value == 0.0 { 0 } else { value.to_bits() })
}

fn number32<const M: u8>(bits: u64) -> soft::Number {
    F32.decompose(u64::from(read::<M>(bits).to_bits()))
}

fn add32<const R: u8, const M: u8>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    if R == NEAREST {
        return write::<M>(read::<M>(a) + read::<M>(b));
    }
    let sum = soft::add(F32, number32::<M>(a), number32::<M>(b), rounding(R));
    write::<M>(f32::from_bits(sum as u32))
}

fn sub32<const R: u8, const M: u8>(a: u64, b: u64, c: u64, d: u64) -> u64 {
    if R == NEAREST {
        return write::<M>(read::<M>(a) - read::<M>(b));
    }
    add32::<R, M>(a, b ^ 0x8000_0000, c, d)
}

fn mul32<const R: u8, const M: u8>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    if R == NEAREST {
        return write::<M>(read::<M>(a) * read::<M>(b));
    }
    let product = soft::product(number32::<M>(a), number32::<M>(b));
    write::<M>(f32::from_bits(F32.compose(product, rounding(R)) as u32))
}

fn fma32<const R: u8, const M: u8>(a: u64, b: u64, c: u64, _: u64) -> u64 {
    if R == NEAREST {
        return write::<M>(read::<M>(a).mul_add(read::<M>(b), read::<M>(c)));
    }
    let product = soft::product(number32::<M>(a), number32::<M>(b));
    let sum = soft::add(F32, product, number32::<M>(c), rounding(R));
    write::<M>(f32::from_bits(sum as u32))
}

fn div32<const R: u8, const M: u8>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    if R == NEAREST {
        return write::<M>(read::<M>(a) / read::<M>(b));
    }
    let quotient = soft::quotient(F32, number32::<M>(a), number32::<M>(b), rounding(R));
    write::<M>(f32::from_bits(quotient as u32))
}

fn rcp32<const R: u8, const M: u8>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    div32::<R, M>(0x3f80_0000, a, 0, 0)
}

fn sqrt32<const R: u8, const M: u8>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    if R == NEAREST {
        return write::<M>(read::<M>(a).sqrt());
    }
    write::<M>(f32::from_bits(soft::root(F32, number32::<M>(a), rounding(R)) as u32))
}

fn write64(value: f64) -> u64 {
    if value.is_nan() { 0xfff8_0000_0000_0000 } else { value.to_bits() }
}

fn add64<const R: u8, const M: u8>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    if R == NEAREST {
        return write64(f64::from_bits(a) + f64::from_bits(b));
    }
    soft::add(F64, F64.decompose(a), F64.decompose(b), rounding(R))
}

fn sub64<const R: u8, const M: u8>(a: u64, b: u64, c: u64, d: u64) -> u64 {
    add64::<R, M>(a, b ^ (1 << 63), c, d)
}

fn mul64<const R: u8, const M: u8>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    if R == NEAREST {
        return write64(f64::from_bits(a) * f64::from_bits(b));
    }
    F64.compose(soft::product(F64.decompose(a), F64.decompose(b)), rounding(R))
}

fn fma64<const R: u8, const M: u8>(a: u64, b: u64, c: u64, _: u64) -> u64 {
    if R == NEAREST {
        return write64(f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)));
    }
    soft::add(F64, soft::product(F64.decompose(a), F64.decompose(b)), F64.decompose(c), rounding(R))
}

fn div64<const R: u8, const M: u8>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    if R == NEAREST {
        return write64(f64::from_bits(a) / f64::from_bits(b));
    }
    soft::quotient(F64, F64.decompose(a), F64.decompose(b), rounding(R))
}

fn rcp64<const R: u8, const M: u8>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    div64::<R, M>(1f64.to_bits(), a, 0, 0)
}

fn sqrt64<const R: u8, const M: u8>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    if R == NEAREST {
        return write64(f64::from_bits(a).sqrt());
    }
    soft::root(F64, F64.decompose(a), rounding(R))
}

/// The function for a style: one for each rounding and each set of modifiers.
macro_rules! styled {
    ($function:ident, $style:expr) => {{
        let modifiers = u8::from($style.flushes) * FLUSHES + u8::from($style.saturates) * SATURATES;
        macro_rules! rounded {
            ($r:expr) => {
                match modifiers {
                    0 => $function::<$r, 0>,
                    1 => $function::<$r, 1>,
                    2 => $function::<$r, 2>,
                    _ => $function::<$r, 3>,
                }
            };
        }
        let compute: Scalar = match $style.rounding.unwrap_or(Rounding::Nearest) {
            Rounding::Nearest | Rounding::Away => rounded!(NEAREST),
            Rounding::Zero => rounded!(ZERO),
            Rounding::Down => rounded!(DOWN),
            Rounding::Up => rounded!(UP),
        };
        compute
    }};
}

/// `add`, `fma`, `sqrt` and so on, correctly rounded; nothing if there is none of the name for the type.
pub(crate) fn exact(name: &str, kind: Type, style: Style) -> Option<Scalar> {
    Some(match (name, kind) {
        ("add", Type::F32) => styled!(add32, style),
        ("sub", Type::F32) => styled!(sub32, style),
        ("mul", Type::F32) => styled!(mul32, style),
        ("fma" | "mad", Type::F32) => styled!(fma32, style),
        ("div", Type::F32) => styled!(div32, style),
        ("rcp", Type::F32) => styled!(rcp32, style),
        ("sqrt", Type::F32) => styled!(sqrt32, style),
        ("add", Type::F64) => styled!(add64, style),
        ("sub", Type::F64) => styled!(sub64, style),
        ("mul", Type::F64) => styled!(mul64, style),
        ("fma" | "mad", Type::F64) => styled!(fma64, style),
        ("div", Type::F64) => styled!(div64, style),
        ("rcp", Type::F64) => styled!(rcp64, style),
        ("sqrt", Type::F64) => styled!(sqrt64, style),
        _ => return None,
    })
}

/// A function of one operand, taken in 64 bits and rounded.
macro_rules! through_double {
    ($flushes:expr, |$value:ident| $body:expr) => {{
        if $flushes {
            |a: u64, _: u64, _: u64, _: u64| {
                let $value = f64::from(read::<FLUSHES>(a));
                write::<FLUSHES>(($body) as f32)
            }
        } else {
            |a: u64, _: u64, _: u64, _: u64| {
                let $value = f64::from(read::<0>(a));
                write::<0>(($body) as f32)
            }
        }
    }};
}

/// Functions that a GPU computes approximately. These are nearer to the exact value than a GPU's.
pub(crate) fn approximate(name: &str, kind: Type, flushes: bool) -> Option<Scalar> {
    if kind == Type::F64 {
        return Some(match name {
            "rcp" => |a, _, _, _| write64(1.0 / truncated(a)),
            "rsqrt" => |a, _, _, _| write64(1.0 / truncated(a).sqrt()),
            _ => return None,
        });
    }
    if kind != Type::F32 {
        return None;
    }
    Some(match name {
        "sin" => through_double!(flushes, |x| x.sin()),
        "cos" => through_double!(flushes, |x| x.cos()),
        "lg2" => through_double!(flushes, |x| x.log2()),
        "ex2" => through_double!(flushes, |x| x.exp2()),
        "tanh" => through_double!(flushes, |x| x.tanh()),
        "rcp" => through_double!(flushes, |x| 1.0 / x),
        "sqrt" => through_double!(flushes, |x| x.sqrt()),
        "rsqrt" => through_double!(flushes, |x| 1.0 / x.sqrt()),
        "div" if flushes => div32::<NEAREST, FLUSHES>,
        "div" => div32::<NEAREST, 0>,
        _ => return None,
    })
}

/// The approximate functions of 64 bits look at the upper half of their operand.
fn truncated(bits: u64) -> f64 {
    f64::from_bits(bits & 0xffff_ffff_0000_0000)
}

/// `abs`, `neg`, `min`, `max`, `copysign`, `testp`.
pub(crate) fn simple(name: &str, kind: Type, flushes: bool) -> Option<Scalar> {
    macro_rules! both {
        ($function:ident) => {
            if flushes { $function::<FLUSHES> } else { $function::<0> }
        };
    }
    Some(match (name, kind) {
        ("abs", Type::F32) => both!(abs32),
        ("neg", Type::F32) => both!(neg32),
        ("min", Type::F32) => both!(min32),
        ("max", Type::F32) => both!(max32),
        ("min.NaN", Type::F32) => both!(min_nan32),
        ("max.NaN", Type::F32) => both!(max_nan32),
        ("abs", Type::F64) => |a, _, _, _| a & !(1 << 63),
        ("neg", Type::F64) => |a, _, _, _| a ^ (1 << 63),
        ("min", Type::F64) => |a, b, _, _| write64(least(f64::from_bits(a), f64::from_bits(b))),
        ("max", Type::F64) => |a, b, _, _| write64(-least(-f64::from_bits(a), -f64::from_bits(b))),
        ("copysign", Type::F32) => |a, b, _, _| (b & 0x7fff_ffff) | (a & 0x8000_0000),
        ("copysign", Type::F64) => |a, b, _, _| (b & !(1 << 63)) | (a & (1 << 63)),
        _ => return None,
    })
}

fn abs32<const M: u8>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    let value = read::<M>(a);
    if value.is_nan() { u64::from(NAN32) } else { u64::from(value.abs().to_bits()) }
}

fn neg32<const M: u8>(a: u64, _: u64, _: u64, _: u64) -> u64 {
    let value = read::<M>(a);
    if value.is_nan() { u64::from(NAN32) } else { u64::from((-value).to_bits()) }
}

/// The lesser; -0 is less than +0, and a number less than none.
fn least<F: Copy + PartialOrd + Into<f64>>(a: F, b: F) -> F {
    let (x, y): (f64, f64) = (a.into(), b.into());
    if x.is_nan() || x > y || (x == y && y.is_sign_negative()) { b } else { a }
}

fn min32<const M: u8>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    write::<M>(least(read::<M>(a), read::<M>(b)))
}

fn max32<const M: u8>(a: u64, b: u64, _: u64, _: u64) -> u64 {
    write::<M>(-least(-read::<M>(a), -read::<M>(b)))
}

fn min_nan32<const M: u8>(a: u64, b: u64, c: u64, d: u64) -> u64 {
    if read::<M>(a).is_nan() || read::<M>(b).is_nan() { u64::from(NAN32) } else { min32::<M>(a, b, c, d) }
}

fn max_nan32<const M: u8>(a: u64, b: u64, c: u64, d: u64) -> u64 {
    if read::<M>(a).is_nan() || read::<M>(b).is_nan() { u64::from(NAN32) } else { max32::<M>(a, b, c, d) }
}

/// `testp`: what kind of number it is.
pub(crate) fn test(name: &str, kind: Type) -> Option<crate::code::Compare> {
    macro_rules! tests {
        ($read:expr) => {
            match name {
                "finite" => |a, _| $read(a).is_finite(),
                "infinite" => |a, _| $read(a).is_infinite(),
                "number" => |a, _| !$read(a).is_nan(),
                "notanumber" => |a, _| $read(a).is_nan(),
                // Zeros count as normal, as PTX has it.
                "normal" => |a, _| $read(a).is_normal() || $read(a) == 0.0,
                "subnormal" => |a, _| $read(a).is_subnormal(),
                _ => return None,
            }
        };
    }
    Some(match kind {
        Type::F32 => tests!(|bits: u64| f32::from_bits(bits as u32)),
        Type::F64 => tests!(f64::from_bits),
        _ => return None,
    })
}
