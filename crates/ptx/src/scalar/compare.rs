//! Comparisons, and what joins them with other truth values.

use super::float::flushed;
use super::half::{bf16, f16, flushed as flushed_half};
use crate::code::{Compare, Logic};
use crate::types::Type;
use std::cmp::Ordering;

/// The comparison of this name for a type; nothing if there is none.
pub(crate) fn compare(name: &str, kind: Type, flushes: bool) -> Option<Compare> {
    macro_rules! floats {
        ($read:expr) => {{
            fn order(a: u64, b: u64) -> Option<Ordering> {
                $read(a).partial_cmp(&$read(b))
            }
            Some(match name {
                "eq" => |a, b| order(a, b) == Some(Ordering::Equal),
                "ne" => |a, b| matches!(order(a, b), Some(Ordering::Less | Ordering::Greater)),
                "lt" => |a, b| order(a, b) == Some(Ordering::Less),
                "le" => |a, b| matches!(order(a, b), Some(Ordering::Less | Ordering::Equal)),
                "gt" => |a, b| order(a, b) == Some(Ordering::Greater),
                "ge" => |a, b| matches!(order(a, b), Some(Ordering::Greater | Ordering::Equal)),
                "equ" => |a, b| matches!(order(a, b), None | Some(Ordering::Equal)),
                "neu" => |a, b| order(a, b) != Some(Ordering::Equal),
                "ltu" => |a, b| matches!(order(a, b), None | Some(Ordering::Less)),
                "leu" => |a, b| order(a, b) != Some(Ordering::Greater),
                "gtu" => |a, b| matches!(order(a, b), None | Some(Ordering::Greater)),
                "geu" => |a, b| order(a, b) != Some(Ordering::Less),
                "num" => |a, b| order(a, b).is_some(),
                "nan" => |a, b| order(a, b).is_none(),
                _ => return None,
            })
        }};
    }
    match kind {
        Type::F32 if flushes => floats!(flushed),
        Type::F32 => floats!(|bits: u64| f32::from_bits(bits as u32)),
        Type::F64 => floats!(f64::from_bits),
        Type::F16 | Type::F16x2 if flushes => floats!(|bits: u64| f16(flushed_half(bits))),
        Type::F16 | Type::F16x2 => floats!(f16),
        Type::Bf16 | Type::Bf16x2 => floats!(bf16),
        _ => integers_of(name, kind),
    }
}

fn integers_of(name: &str, kind: Type) -> Option<Compare> {
    macro_rules! numbers {
        ($type:ty) => {
            match name {
                "eq" => |a, b| a as $type == b as $type,
                "ne" => |a, b| a as $type != b as $type,
                "lt" | "lo" => |a, b| (a as $type) < b as $type,
                "le" | "ls" => |a, b| a as $type <= b as $type,
                "gt" | "hi" => |a, b| a as $type > b as $type,
                "ge" | "hs" => |a, b| a as $type >= b as $type,
                _ => return None,
            }
        };
    }
    Some(match kind {
        Type::U16 | Type::B16 => numbers!(u16),
        Type::U32 | Type::B32 => numbers!(u32),
        Type::U64 | Type::B64 => numbers!(u64),
        Type::S16 => numbers!(i16),
        Type::S32 => numbers!(i32),
        Type::S64 => numbers!(i64),
        _ => return None,
    })
}

/// `and`, `or` and `xor` of truth values.
pub(crate) fn logic(name: &str) -> Option<Logic> {
    Some(match name {
        "and" => |a, b| a & b,
        "or" => |a, b| a | b,
        "xor" => |a, b| a ^ b,
        _ => return None,
    })
}
