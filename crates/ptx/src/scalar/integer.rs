//! Integer arithmetic.

use crate::code::{Scalar, WithCarry};
use crate::types::Type;

/// A function for each width and sign. Results of signed types are extended; the register cuts them.
macro_rules! integers {
    ($kind:expr, $T:ident, |$a:ident, $b:ident, $c:ident| $body:expr) => {
        match $kind {
            Type::U16 | Type::B16 => Some(integers!(@ u16, u64, $T, $a, $b, $c, $body)),
            Type::U32 | Type::B32 => Some(integers!(@ u32, u64, $T, $a, $b, $c, $body)),
            Type::U64 | Type::B64 => Some(integers!(@ u64, u64, $T, $a, $b, $c, $body)),
            Type::S16 => Some(integers!(@ i16, i64, $T, $a, $b, $c, $body)),
            Type::S32 => Some(integers!(@ i32, i64, $T, $a, $b, $c, $body)),
            Type::S64 => Some(integers!(@ i64, i64, $T, $a, $b, $c, $body)),
            _ => None,
        }
    };
    (@ $type:ty, $wide:ty, $T:ident, $a:ident, $b:ident, $c:ident, $body:expr) => {{
        #[allow(dead_code, reason = "not every function names its type")]
        type $T = $type;
        let compute: Scalar = |$a, $b, $c, _| {
            let ($a, $b, $c) = ($a as $type, $b as $type, $c as $type);
            let _ = ($b, $c);
            ($body) as $wide as u64
        };
        compute
    }};
}

/// `add`, `sub`, `mul.lo` and so on; nothing if there is none of the name for the type.
pub(crate) fn arithmetic(name: &str, kind: Type) -> Option<Scalar> {
    match name {
        "add" => integers!(kind, T, |a, b, c| a.wrapping_add(b)),
        "sub" => integers!(kind, T, |a, b, c| a.wrapping_sub(b)),
        "mul.lo" => integers!(kind, T, |a, b, c| a.wrapping_mul(b)),
        "mad.lo" => integers!(kind, T, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        "mul.hi" => integers!(kind, T, |a, b, c| ((i128::from(a) * i128::from(b)) >> T::BITS) as T)
            .map(|plain| if matches!(kind, Type::U64) { high_unsigned } else { plain }),
        "mad.hi" => integers!(kind, T, |a, b, c| {
            (((i128::from(a) * i128::from(b)) >> T::BITS) as T).wrapping_add(c)
        })
        .map(|plain| {
            if !matches!(kind, Type::U64) {
                return plain;
            }
            let unsigned: Scalar = |a, b, c, d| high_unsigned(a, b, c, d).wrapping_add(c);
            unsigned
        }),
        "div" => integers!(kind, T, |a, b, c| a.checked_div(b).unwrap_or(if b == 0 { !(0 as T) } else { a })),
        "rem" => integers!(kind, T, |a, b, c| a.checked_rem(b).unwrap_or(if b == 0 { a } else { 0 })),
        "min" => integers!(kind, T, |a, b, c| a.min(b)),
        "max" => integers!(kind, T, |a, b, c| a.max(b)),
        "abs" => integers!(kind, T, |a, b, c| (a as i64).wrapping_abs() as T),
        "neg" => integers!(kind, T, |a, b, c| (0 as T).wrapping_sub(a)),
        "sad" => integers!(kind, T, |a, b, c| (a.abs_diff(b) as T).wrapping_add(c)),
        _ => wide(name, kind),
    }
}

/// The upper half of a product, for which 127 bits and a sign are too few.
fn high_unsigned(a: u64, b: u64, _: u64, _: u64) -> u64 {
    ((u128::from(a) * u128::from(b)) >> 64) as u64
}

/// Products of twice the width, of 24 bits, sums that stop at the ends, and what is never below zero.
fn wide(name: &str, kind: Type) -> Option<Scalar> {
    Some(match (name, kind) {
        ("mul.wide", Type::U16 | Type::B16) => |a, b, _, _| u64::from(a as u16) * u64::from(b as u16),
        ("mul.wide", Type::U32 | Type::B32) => |a, b, _, _| u64::from(a as u32) * u64::from(b as u32),
        ("mul.wide", Type::S16) => |a, b, _, _| (i64::from(a as i16) * i64::from(b as i16)) as u64,
        ("mul.wide", Type::S32) => |a, b, _, _| (i64::from(a as i32) * i64::from(b as i32)) as u64,
        ("mad.wide", Type::U16 | Type::B16) => {
            |a, b, c, _| (u64::from(a as u16) * u64::from(b as u16)).wrapping_add(c)
        }
        ("mad.wide", Type::U32 | Type::B32) => {
            |a, b, c, _| (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c)
        }
        ("mad.wide", Type::S16) => {
            |a, b, c, _| ((i64::from(a as i16) * i64::from(b as i16)) as u64).wrapping_add(c)
        }
        ("mad.wide", Type::S32) => {
            |a, b, c, _| ((i64::from(a as i32) * i64::from(b as i32)) as u64).wrapping_add(c)
        }
        ("mul24.lo", Type::U32) => |a, b, _, _| unsigned24(a) * unsigned24(b),
        ("mul24.hi", Type::U32) => |a, b, _, _| (unsigned24(a) * unsigned24(b)) >> 16,
        ("mul24.lo", Type::S32) => |a, b, _, _| (signed24(a) * signed24(b)) as u64,
        ("mul24.hi", Type::S32) => |a, b, _, _| ((signed24(a) * signed24(b)) >> 16) as u64,
        ("mad24.lo", Type::U32) => |a, b, c, _| (unsigned24(a) * unsigned24(b)).wrapping_add(c),
        ("mad24.hi", Type::U32) => |a, b, c, _| ((unsigned24(a) * unsigned24(b)) >> 16).wrapping_add(c),
        ("mad24.lo", Type::S32) => |a, b, c, _| ((signed24(a) * signed24(b)) as u64).wrapping_add(c),
        ("mad24.hi", Type::S32) => |a, b, c, _| (((signed24(a) * signed24(b)) >> 16) as u64).wrapping_add(c),
        ("min.relu", Type::S32) => |a, b, _, _| (a as i32).min(b as i32).max(0) as u64,
        ("max.relu", Type::S32) => |a, b, _, _| (a as i32).max(b as i32).max(0) as u64,
        ("add.sat", Type::S32) => |a, b, _, _| (a as i32).saturating_add(b as i32) as u32 as u64,
        ("sub.sat", Type::S32) => |a, b, _, _| (a as i32).saturating_sub(b as i32) as u32 as u64,
        ("mad.hi.sat", Type::S32) => |a, b, c, _| {
            let high = ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as i32;
            u64::from(high.saturating_add(c as i32) as u32)
        },
        _ => return None,
    })
}

fn unsigned24(value: u64) -> u64 {
    value & 0xff_ffff
}

fn signed24(value: u64) -> i64 {
    (value << 40) as i64 >> 40
}

/// Arithmetic that brings a carry along: `addc`, `subc`, `madc` and those that only write one.
pub(crate) fn carrying(name: &str, kind: Type) -> Option<WithCarry> {
    Some(match (name, kind.bits()) {
        ("add", 32) => |a, b, _, carry| add32(a, b, carry),
        ("add", 64) => |a, b, _, carry| add64(a, b, carry),
        // A difference is a sum with the complement: the carry is set when nothing is borrowed, and compilers rely on it.
        ("sub", 32) => |a, b, _, carry| add32(a, !b, carry),
        ("sub", 64) => |a, b, _, carry| add64(a, !b, carry),
        ("mad.lo", 32) => |a, b, c, carry| add32(u64::from((a as u32).wrapping_mul(b as u32)), c, carry),
        ("mad.lo", 64) => |a, b, c, carry| add64(a.wrapping_mul(b), c, carry),
        ("mad.hi", 32) if kind.is_signed() => {
            |a, b, c, carry| add32(((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u64, c, carry)
        }
        ("mad.hi", 32) => |a, b, c, carry| add32((u64::from(a as u32) * u64::from(b as u32)) >> 32, c, carry),
        ("mad.hi", 64) if kind.is_signed() => {
            |a, b, c, carry| add64(((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64, c, carry)
        }
        ("mad.hi", 64) => |a, b, c, carry| add64(high_unsigned(a, b, 0, 0), c, carry),
        _ => return None,
    })
}

fn add32(a: u64, b: u64, carry: bool) -> (u64, bool) {
    let sum = u64::from(a as u32) + u64::from(b as u32) + u64::from(carry);
    (sum & 0xffff_ffff, sum >> 32 != 0)
}

fn add64(a: u64, b: u64, carry: bool) -> (u64, bool) {
    let sum = u128::from(a) + u128::from(b) + u128::from(carry);
    (sum as u64, sum >> 64 != 0)
}

/// Sums of products of four bytes, or of two bytes with two numbers of 16 bits.
pub(crate) fn dot(name: &str, first: Type, second: Type) -> Option<Scalar> {
    macro_rules! dot {
        ($a:ty, $b:ty) => {{
            let compute: Scalar = |a, b, c, _| {
                let (a, b) = ((a as u32).to_le_bytes(), (b as u32).to_le_bytes());
                let products = a.iter().zip(b).map(|(&a, b)| i64::from(a as $a) * i64::from(b as $b));
                (products.sum::<i64>() as u64).wrapping_add(c)
            };
            compute
        }};
    }
    macro_rules! dot2 {
        ($a:ty, $b:ty, $shift:expr) => {{
            let compute: Scalar = |a, b, c, _| {
                let (b0, b1) = ((b >> $shift) as $b, (b >> ($shift + 8)) as $b);
                let sum = i64::from(a as $a) * i64::from(b0) + i64::from((a >> 16) as $a) * i64::from(b1);
                (sum as u64).wrapping_add(c)
            };
            compute
        }};
    }
    Some(match (name, first, second) {
        ("dp4a", Type::S32, Type::S32) => dot!(i8, i8),
        ("dp4a", Type::S32, Type::U32) => dot!(i8, u8),
        ("dp4a", Type::U32, Type::S32) => dot!(u8, i8),
        ("dp4a", Type::U32, Type::U32) => dot!(u8, u8),
        ("dp2a.lo", Type::S32, Type::S32) => dot2!(i16, i8, 0),
        ("dp2a.lo", Type::S32, Type::U32) => dot2!(i16, u8, 0),
        ("dp2a.lo", Type::U32, Type::S32) => dot2!(u16, i8, 0),
        ("dp2a.lo", Type::U32, Type::U32) => dot2!(u16, u8, 0),
        ("dp2a.hi", Type::S32, Type::S32) => dot2!(i16, i8, 16),
        ("dp2a.hi", Type::S32, Type::U32) => dot2!(i16, u8, 16),
        ("dp2a.hi", Type::U32, Type::S32) => dot2!(u16, i8, 16),
        ("dp2a.hi", Type::U32, Type::U32) => dot2!(u16, u8, 16),
        _ => return None,
    })
}

/// Two numbers of 16 bits at once: `add.s16x2` and so on.
pub(crate) fn pairs(name: &str, is_signed: bool) -> Option<Scalar> {
    macro_rules! both {
        (|$a:ident, $b:ident| $body:expr, $type:ty) => {{
            let compute: Scalar = |a, b, _, _| {
                let one = |$a: $type, $b: $type| u64::from(($body) as u16);
                one(a as $type, b as $type) | one((a >> 16) as $type, (b >> 16) as $type) << 16
            };
            compute
        }};
    }
    Some(match (name, is_signed) {
        ("add", _) => both!(|a, b| a.wrapping_add(b), u16),
        ("sub", _) => both!(|a, b| a.wrapping_sub(b), u16),
        ("min", true) => both!(|a, b| a.min(b), i16),
        ("max", true) => both!(|a, b| a.max(b), i16),
        ("min.relu", true) => both!(|a, b| a.min(b).max(0), i16),
        ("max.relu", true) => both!(|a, b| a.max(b).max(0), i16),
        ("min", false) => both!(|a, b| a.min(b), u16),
        ("max", false) => both!(|a, b| a.max(b), u16),
        _ => return None,
    })
}
