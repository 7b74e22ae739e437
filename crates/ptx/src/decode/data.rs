//! Instructions that move, convert, choose and compare.

use super::{Modifiers, exactly, scalar};
use crate::body::{Body, Operand};
use crate::code::{Comparison, Joined, Op, Scalar, Source, Space, Truth};
use crate::error::PtxError;
use crate::machine::{LOCAL_WINDOW, PARAMETER_WINDOW, SHARED_WINDOW};
use crate::scalar::compare as comparing;
use crate::scalar::convert::Conversion;
use crate::scalar::float;
use crate::types::{Rounding, Type};

/// `mov`, also into and out of parts.
pub(super) fn mov<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let kind = m.kind(body)?;
    m.finish(body)?;
    let [to, from] = exactly(body, operands)?;
    match (to, from) {
        (Operand::Vector(parts), from) => {
            let source = body.source(from, kind)?;
            let mut targets = Vec::new();
            for part in parts {
                targets.push(body.target_if_kept(part)?);
            }
            let bits = part_bits(body, kind, parts.len())?;
            body.emit(Op::Unpack { targets: targets.into(), source, bits });
        }
        (to, Operand::Vector(parts)) => {
            let bits = part_bits(body, kind, parts.len())?;
            let part_kind = if bits == 8 {
                Type::B8
            } else if bits == 16 {
                Type::B16
            } else {
                Type::B32
            };
            let mut sources = Vec::new();
            for part in parts {
                sources.push(body.source(part, part_kind)?);
            }
            let target = body.target(to)?;
            body.emit(Op::Pack { target, sources: sources.into(), bits });
        }
        (to, from) if kind == Type::Pred => {
            let truths = [body.truth(from)?, Truth::Constant(false)];
            let target = body.predicate(to)?;
            body.emit(Op::Logic { logic: |a, b| a | b, target, truths });
        }
        (to, from) => {
            let (target, source) = (body.target(to)?, body.source(from, kind)?);
            body.emit(Op::Move { target, source });
        }
    }
    Ok(())
}

/// Bits of each of so many parts.
fn part_bits(body: &Body<'_, '_>, kind: Type, parts: usize) -> Result<u32, PtxError> {
    match parts {
        2 | 4 => Ok(kind.bits() / parts as u32),
        _ => Err(body.error(format!("a value of {parts} parts"))),
    }
}

/// `cvt`.
pub(super) fn cvt<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let to_integer = m.one_of(&["rni", "rzi", "rmi", "rpi"]).map(|rounding| match rounding {
        "rzi" => Rounding::Zero,
        "rmi" => Rounding::Down,
        "rpi" => Rounding::Up,
        _ => Rounding::Nearest,
    });
    let rounding = m.rounding().unwrap_or(Rounding::Nearest);
    let (flushes, saturates, cuts) = (m.take("ftz"), m.take("sat"), m.take("relu"));
    let (to, from) = (m.kind(body)?, m.kind(body)?);
    let is_small = |kind: Type| matches!(kind, Type::E4m3x2 | Type::E5m2x2);
    let is_pair = |kind: Type| matches!(kind, Type::F16x2 | Type::Bf16x2) || is_small(kind);
    if is_small(to) && !m.take("satfinite") {
        return Err(m.refused(body, "to this type without `.satfinite` is not supported"));
    }
    m.finish(body)?;
    let (target, sources) = if is_pair(to) && from == Type::F32 {
        let [target, high, low] = exactly(body, operands)?;
        (target, [body.source(high, from)?, body.source(low, from)?])
    } else {
        let [target, value] = exactly(body, operands)?;
        (target, [body.source(value, from)?, Source::Constant(0)])
    };
    let is_possible = match (is_pair(to), is_pair(from)) {
        (true, true) => (is_small(to) && from == Type::F16x2) || (is_small(from) && to == Type::F16x2),
        (true, false) => from == Type::F32,
        (false, true) => false,
        (false, false) => to != Type::Pred && from != Type::Pred,
    };
    if !is_possible {
        return Err(m.refused(body, "between these types is not supported"));
    }
    let target = body.target(target)?;
    let conversion = Conversion { to, from, rounding, to_integer, flushes, saturates, cuts };
    body.emit(Op::Convert { conversion, target, sources });
    Ok(())
}

/// `cvta`: between an address of one space and one of all.
pub(super) fn cvta<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let is_narrowing = m.take("to");
    let space = m.one_of(&["global", "const", "shared", "shared::cta", "local", "param", "param::entry"]);
    let kind = m.kind(body)?;
    let [target, source] = exactly(body, operands)?;
    let (target, source) = (body.target(target)?, body.source(source, kind)?);
    let window = match space {
        Some("global" | "const") => 0,
        Some("shared" | "shared::cta") => SHARED_WINDOW,
        Some("local") => LOCAL_WINDOW,
        Some("param" | "param::entry") if body.is_entry() => PARAMETER_WINDOW,
        Some("param") => LOCAL_WINDOW,
        _ => return Err(m.refused(body, "to or from this space is not supported")),
    };
    let compute: Scalar =
        if is_narrowing { |a, b, _, _| a.wrapping_sub(b) } else { |a, b, _, _| a.wrapping_add(b) };
    scalar(body, m, Some(compute), target, &[source, Source::Constant(window)])
}

/// `isspacep`.
pub(super) fn isspacep<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let [target, address] = exactly(body, operands)?;
    let (target, address) = (body.predicate(target)?, body.source(address, Type::U64)?);
    let space = match m.one_of(&["global", "shared", "shared::cta", "local", "param", "param::entry"]) {
        Some("global") => Space::Global,
        Some("shared" | "shared::cta") => Space::Shared,
        Some("local") => Space::Local,
        Some("param" | "param::entry") => Space::Parameter,
        _ => return Err(m.refused(body, "of this space is not supported")),
    };
    m.finish(body)?;
    body.emit(Op::IsSpace { target, address, space });
    Ok(())
}

/// `selp` and `slct`.
pub(super) fn select<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let flushes = m.take("ftz");
    let kind = m.kind(body)?;
    let by = if m.name == "slct" { m.kind(body)? } else { Type::Pred };
    let [target, a, b, c] = exactly(body, operands)?;
    if m.name == "selp" && kind == Type::Pred {
        let (target, truths, by) =
            (body.predicate(target)?, [body.truth(a)?, body.truth(b)?], body.guard_of(c)?);
        body.emit(Op::Choose { target, truths, by });
        return Ok(());
    }
    let target = body.target(target)?;
    let (a, b) = (body.source(a, kind)?, body.source(b, kind)?);
    let compute: Option<Scalar> = match by {
        Type::Pred => Some(|a, b, c, _| if c & 1 == 1 { a } else { b }),
        Type::S32 => Some(|a, b, c, _| if c as i32 >= 0 { a } else { b }),
        Type::F32 if flushes => Some(|a, b, c, _| if float::flushed(c) >= 0.0 { a } else { b }),
        Type::F32 => Some(|a, b, c, _| if f32::from_bits(c as u32) >= 0.0 { a } else { b }),
        _ => None,
    };
    let c = if by == Type::Pred { Source::Predicate(body.guard_of(c)?) } else { body.source(c, by)? };
    scalar(body, m, compute, target, &[a, b, c])
}

/// `setp`, which ends in predicates, and `set`, which ends in a number.
pub(super) fn compare<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let name = m
        .one_of(&[
            "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu",
            "geu", "num", "nan",
        ])
        .ok_or_else(|| m.refused(body, "has no comparison that is supported"))?;
    let (logic, flushes) = (m.one_of(&["and", "or", "xor"]), m.take("ftz"));
    let result = if m.name == "set" { Some(m.kind(body)?) } else { None };
    let kind = m.kind(body)?;
    m.finish(body)?;
    let (operands, with) = match (logic, operands) {
        (Some(_), [rest @ .., with]) => (rest, Some(body.truth(with)?)),
        (_, operands) => (operands, None),
    };
    let [target, a, b] = exactly(body, operands)?;
    let compare = comparing::compare(name, kind, flushes)
        .ok_or_else(|| m.refused(body, "has no such comparison of this type"))?;
    let joined = logic.and_then(comparing::logic).zip(with).map(|(logic, with)| Joined { logic, with });
    let sources = [body.source(a, kind)?, body.source(b, kind)?];
    let is_pair = matches!(kind, Type::F16x2 | Type::Bf16x2);
    let Some(result) = result else {
        let targets = match *target {
            Operand::Pair(first, second) => [kept(body, first)?, kept(body, second)?],
            Operand::Name(name, 0) => [kept(body, name)?, None],
            _ => return Err(body.error("a predicate is missing")),
        };
        body.emit(Op::Compare(Box::new(Comparison { compare, targets, sources, joined, is_pair })));
        return Ok(());
    };
    let yes = match result {
        Type::F32 => 0x3f80_0000,
        Type::F16 | Type::F16x2 => 0x3c00,
        Type::Bf16 | Type::Bf16x2 => 0x3f80,
        _ if is_pair || result.bits() == 16 => 0xffff,
        _ => 0xffff_ffff,
    };
    let target = body.target(target)?;
    let comparison = Box::new(Comparison { compare, targets: [None; 2], sources, joined, is_pair });
    body.emit(Op::Set { comparison, target, yes });
    Ok(())
}

/// A predicate, or nothing for `_`.
fn kept<'m>(body: &mut Body<'_, 'm>, name: &'m str) -> Result<Option<u32>, PtxError> {
    if name == "_" { Ok(None) } else { body.predicate(&Operand::Name(name, 0)).map(Some) }
}

/// `testp`.
pub(super) fn testp<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let tests = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"];
    let name = m.one_of(&tests).unwrap_or("");
    let kind = m.kind(body)?;
    m.finish(body)?;
    let compare = float::test(name, kind).ok_or_else(|| m.refused(body, "has no such test of this type"))?;
    let [target, a] = exactly(body, operands)?;
    let targets = [Some(body.predicate(target)?), None];
    let sources = [body.source(a, kind)?, Source::Constant(0)];
    body.emit(Op::Compare(Box::new(Comparison { compare, targets, sources, joined: None, is_pair: false })));
    Ok(())
}
