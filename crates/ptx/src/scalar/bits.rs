//! Bits: logic, shifts, fields, permutations.

use crate::code::Scalar;
use crate::types::Type;

/// `and`, `shl`, `brev` and so on; nothing if there is none of the name for the type.
pub(crate) fn bits(name: &str, kind: Type) -> Option<Scalar> {
    let bits = kind.bits();
    Some(match (name, bits) {
        ("and", 16..) => |a, b, _, _| a & b,
        ("or", 16..) => |a, b, _, _| a | b,
        ("xor", 16..) => |a, b, _, _| a ^ b,
        ("not", 16..) => |a, _, _, _| !a,
        ("cnot", 16) => |a, _, _, _| u64::from(a as u16 == 0),
        ("cnot", 32) => |a, _, _, _| u64::from(a as u32 == 0),
        ("cnot", 64) => |a, _, _, _| u64::from(a == 0),
        ("shl", 16..) => |a, b, _, _| a.checked_shl(b as u32).unwrap_or(0),
        ("shr", 16..) => return shift_right(kind),
        ("clz", 32) => |a, _, _, _| u64::from((a as u32).leading_zeros()),
        ("clz", 64) => |a, _, _, _| u64::from(a.leading_zeros()),
        ("popc", 32) => |a, _, _, _| u64::from((a as u32).count_ones()),
        ("popc", 64) => |a, _, _, _| u64::from(a.count_ones()),
        ("brev", 32) => |a, _, _, _| u64::from((a as u32).reverse_bits()),
        ("brev", 64) => |a, _, _, _| a.reverse_bits(),
        ("bfind" | "bfind.shiftamt", _) => return highest(name == "bfind.shiftamt", kind),
        ("bfe", _) => return extract(kind),
        ("bfi", 32) => |a, b, c, d| insert(a, b, c, d, 32),
        ("bfi", 64) => |a, b, c, d| insert(a, b, c, d, 64),
        ("bmsk.clamp", 32) => |a, b, _, _| {
            let (start, length) = (a as u32, b as u32);
            ones(length).checked_shl(start).unwrap_or(0)
        },
        ("bmsk.wrap", 32) => |a, b, _, _| ones(b as u32 & 31) << (a & 31),
        ("szext.clamp" | "szext.wrap", 32) => return extend(name, kind),
        ("shf.l.clamp", 32) => |a, b, c, _| funnel(a, b, (c as u32).min(32)) >> 32,
        ("shf.l.wrap", 32) => |a, b, c, _| funnel(a, b, c as u32 & 31) >> 32,
        ("shf.r.clamp", 32) => |a, b, c, _| ((b << 32 | a & 0xffff_ffff) >> (c as u32).min(32)) & 0xffff_ffff,
        ("shf.r.wrap", 32) => |a, b, c, _| ((b << 32 | a & 0xffff_ffff) >> (c & 31)) & 0xffff_ffff,
        ("lop3", 32) => |a, b, c, table| {
            let row = |index: u64, word: u64| if table >> index & 1 == 1 { word } else { 0 };
            let (x, y, z) = (!a, !b, !c);
            row(0, x & y & z)
                | row(1, x & y & c)
                | row(2, x & b & z)
                | row(3, x & b & c)
                | row(4, a & y & z)
                | row(5, a & y & c)
                | row(6, a & b & z)
                | row(7, a & b & c)
        },
        ("fns", 32) => |mask, base, offset, _| nth(mask as u32, base as u32, offset as i32),
        _ => return permute(name),
    })
}

fn shift_right(kind: Type) -> Option<Scalar> {
    Some(match kind {
        Type::S16 => |a, b, _, _| (i64::from(a as i16) >> (b as u32).min(63)) as u64,
        Type::S32 => |a, b, _, _| (i64::from(a as i32) >> (b as u32).min(63)) as u64,
        Type::S64 => |a, b, _, _| (a as i64 >> (b as u32).min(63)) as u64,
        _ if kind.bits() == 16 => |a, b, _, _| (a & 0xffff).checked_shr(b as u32).unwrap_or(0),
        _ if kind.bits() == 32 => |a, b, _, _| (a & 0xffff_ffff).checked_shr(b as u32).unwrap_or(0),
        _ => |a, b, _, _| a.checked_shr(b as u32).unwrap_or(0),
    })
}

/// The highest bit that differs from the sign: its place, or how far it can be moved up.
fn highest(is_shift: bool, kind: Type) -> Option<Scalar> {
    macro_rules! find {
        ($signed:ty, $unsigned:ty, $is_signed:expr, $is_shift:expr) => {{
            let compute: Scalar = |a, _, _, _| {
                let value = a as $signed;
                let value = if $is_signed && value < 0 { !value as $unsigned } else { value as $unsigned };
                match value.checked_ilog2() {
                    Some(bit) => u64::from(if $is_shift { <$unsigned>::BITS - 1 - bit } else { bit }),
                    None => 0xffff_ffff,
                }
            };
            compute
        }};
    }
    Some(match (kind, is_shift) {
        (Type::U32, false) => find!(i32, u32, false, false),
        (Type::U32, true) => find!(i32, u32, false, true),
        (Type::S32, false) => find!(i32, u32, true, false),
        (Type::S32, true) => find!(i32, u32, true, true),
        (Type::U64, false) => find!(i64, u64, false, false),
        (Type::U64, true) => find!(i64, u64, false, true),
        (Type::S64, false) => find!(i64, u64, true, false),
        (Type::S64, true) => find!(i64, u64, true, true),
        _ => return None,
    })
}

/// So many ones, from the lowest bit.
fn ones(count: u32) -> u64 {
    1u64.checked_shl(count.min(32)).unwrap_or(0).wrapping_sub(1)
}

/// A field of `length` bits from `start`, which a signed type fills up with its highest bit.
fn extract(kind: Type) -> Option<Scalar> {
    fn field(value: u64, start: u64, length: u64, bits: u64, is_signed: bool) -> u64 {
        let (start, length) = (start & 0xff, length & 0xff);
        if length == 0 {
            return 0;
        }
        let sign = is_signed && value >> (start + length - 1).min(bits - 1) & 1 == 1;
        let low = value.checked_shr(start as u32).unwrap_or(0);
        let kept = length.min(bits.saturating_sub(start));
        let mask = 1u64.checked_shl(kept as u32).unwrap_or(0).wrapping_sub(1);
        if sign { (low & mask) | !mask } else { low & mask }
    }
    Some(match kind {
        Type::U32 => |a, b, c, _| field(a & 0xffff_ffff, b, c, 32, false),
        Type::S32 => |a, b, c, _| field(a & 0xffff_ffff, b, c, 32, true),
        Type::U64 => |a, b, c, _| field(a, b, c, 64, false),
        Type::S64 => |a, b, c, _| field(a, b, c, 64, true),
        _ => return None,
    })
}

/// `b` with `length` bits of `a` at `start`.
fn insert(a: u64, b: u64, start: u64, length: u64, bits: u64) -> u64 {
    let (start, length) = (start & 0xff, length & 0xff);
    if start >= bits {
        return b;
    }
    let kept = length.min(bits - start);
    let mask = 1u64.checked_shl(kept as u32).unwrap_or(0).wrapping_sub(1) << start;
    (b & !mask) | ((a << start) & mask)
}

/// The lowest `b` bits of `a`, filled up with a sign or zeros.
fn extend(name: &str, kind: Type) -> Option<Scalar> {
    fn field(value: u64, length: u32, is_signed: bool) -> u64 {
        match length {
            0 => 0,
            32.. => value,
            _ if is_signed => ((value << (64 - length)) as i64 >> (64 - length)) as u64,
            _ => value & ones(length),
        }
    }
    Some(match (name, kind) {
        ("szext.clamp", Type::U32) => |a, b, _, _| field(a, b as u32, false),
        ("szext.clamp", Type::S32) => |a, b, _, _| field(a, b as u32, true),
        ("szext.wrap", Type::U32) => |a, b, _, _| field(a, b as u32 & 31, false),
        ("szext.wrap", Type::S32) => |a, b, _, _| field(a, b as u32 & 31, true),
        _ => return None,
    })
}

/// `b` above `a`, moved up. The upper 32 bits are the result.
fn funnel(a: u64, b: u64, by: u32) -> u64 {
    let word = b << 32 | a & 0xffff_ffff;
    word.checked_shl(by).unwrap_or(0)
}

/// The place of the `offset`-th set bit from `base` on, upwards or downwards.
fn nth(mask: u32, base: u32, offset: i32) -> u64 {
    const NONE: u64 = 0xffff_ffff;
    if base > 31 {
        return NONE;
    }
    let is_set = |bit: &u32| mask >> bit & 1 == 1;
    let found = match offset {
        0 => Some(base).filter(is_set),
        1.. => (base..32).filter(is_set).nth(offset as usize - 1),
        _ => (0..=base).rev().filter(is_set).nth(offset.unsigned_abs() as usize - 1),
    };
    found.map_or(NONE, u64::from)
}

/// `prmt` in its seven forms.
fn permute(name: &str) -> Option<Scalar> {
    fn pick(a: u64, b: u64, places: [u64; 4], signs: u64) -> u64 {
        let bytes = (b << 32) | (a & 0xffff_ffff);
        let mut result = 0;
        for (index, place) in places.into_iter().enumerate() {
            let byte = bytes >> ((place & 7) * 8) & 0xff;
            let is_sign = signs >> (index * 4 + 3) & 1 == 1;
            let byte = if !is_sign {
                byte
            } else if byte & 0x80 != 0 {
                0xff
            } else {
                0
            };
            result |= byte << (index * 8);
        }
        result
    }
    Some(match name {
        "prmt" => |a, b, c, _| pick(a, b, [c, c >> 4, c >> 8, c >> 12], c),
        "prmt.f4e" => |a, b, c, _| pick(a, b, [0, 1, 2, 3].map(|n| (c & 3) + n), 0),
        "prmt.b4e" => |a, b, c, _| pick(a, b, [0, 1, 2, 3].map(|n| (c & 3).wrapping_sub(n)), 0),
        "prmt.rc8" => |a, b, c, _| pick(a, b, [c & 3; 4], 0),
        "prmt.ecl" => |a, b, c, _| pick(a, b, [0, 1, 2, 3].map(|n: u64| n.max(c & 3)), 0),
        "prmt.ecr" => |a, b, c, _| pick(a, b, [0, 1, 2, 3].map(|n: u64| n.min(c & 3)), 0),
        "prmt.rc16" => |a, b, c, _| pick(a, b, [0, 1, 0, 1].map(|n| (c & 1) * 2 + n), 0),
        _ => return None,
    })
}
