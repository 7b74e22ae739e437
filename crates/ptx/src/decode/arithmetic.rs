//! Instructions that compute.

use super::{Modifiers, exactly, scalar};
use crate::body::{Body, Operand};
use crate::code::{Carry, Op, Source, Truth};
use crate::error::PtxError;
use crate::scalar::float::{self, Style};
use crate::scalar::{bits as bit, compare, half, integer};
use crate::types::Type;

/// The type of twice the width.
fn twice(kind: Type) -> Type {
    match kind {
        Type::S16 => Type::S32,
        Type::S32 => Type::S64,
        Type::U16 => Type::U32,
        _ => Type::U64,
    }
}

/// `add` to `tanh`, of all types.
pub(super) fn arithmetic<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    if m.parts.contains(&"cc") {
        return carrying(body, m, operands);
    }
    let style = Style { rounding: m.rounding(), flushes: m.take("ftz"), saturates: m.take("sat") };
    let (is_approximate, cuts, keeps_nan) =
        (m.take("approx") | m.take("full"), m.take("relu"), m.take("NaN"));
    let mode = m.one_of(&["lo", "hi", "wide"]);
    let pair = m.one_of(&["s16x2", "u16x2"]);
    let Some((target, given)) = operands.split_first() else {
        return Err(body.error("operands are missing"));
    };
    if given.len() > 3 {
        return Err(body.error(format!("{} operands", operands.len())));
    }
    let target = body.target(target)?;
    if let Some(pair) = pair {
        let [a, b] = exactly(body, given)?;
        let sources = [body.source(a, Type::B32)?, body.source(b, Type::B32)?];
        let name = if cuts { format!("{}.relu", m.name) } else { m.name.to_string() };
        return scalar(body, m, integer::pairs(&name, pair == "s16x2"), target, &sources);
    }
    let kind = m.kind(body)?;
    let mut sources = Vec::new();
    for (index, operand) in given.iter().enumerate() {
        let is_wide = mode == Some("wide") && index == 2;
        sources.push(body.source(operand, if is_wide { twice(kind) } else { kind })?);
    }
    let name = match (mode, keeps_nan) {
        (Some(mode), _) => format!("{}.{mode}", m.name),
        (None, true) => format!("{}.NaN", m.name),
        (None, false) => m.name.to_string(),
    };
    let compute = match kind {
        Type::F32 | Type::F64 if cuts => None,
        Type::F32 | Type::F64
            if is_approximate || matches!(m.name, "sin" | "cos" | "lg2" | "ex2" | "tanh" | "rsqrt") =>
        {
            float::approximate(&name, kind, style.flushes)
        }
        Type::F32 | Type::F64 if matches!(m.name, "div" | "rcp" | "sqrt") && style.rounding.is_none() => None,
        Type::F32 | Type::F64 => {
            float::exact(&name, kind, style).or_else(|| float::simple(&name, kind, style.flushes))
        }
        Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 => half::arithmetic(&name, kind, style, cuts),
        _ if cuts && !style.saturates => integer::arithmetic(&format!("{name}.relu"), kind),
        _ if style.saturates => integer::arithmetic(&format!("{name}.sat"), kind),
        _ => integer::arithmetic(&name, kind),
    };
    let takes = match m.name {
        "abs" | "neg" | "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" => 1,
        "mad" | "fma" | "sad" | "mad24" => 3,
        _ => 2,
    };
    if sources.len() != takes {
        return Err(body.error(format!("{} takes {takes} operands, not {}", m.name, sources.len())));
    }
    scalar(body, m, compute, target, &sources)
}

/// `addc`, and `add.cc`: with a carry in, out or both.
pub(super) fn carrying<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let (reads, writes) = (m.name.ends_with('c'), m.take("cc"));
    let mode = m.one_of(&["lo", "hi"]);
    let kind = m.kind(body)?;
    m.finish(body)?;
    let base = m.name.strip_suffix('c').filter(|_| reads).unwrap_or(m.name);
    let name = mode.map_or(base.to_string(), |mode| format!("{base}.{mode}"));
    let (compute, op) = match (base, writes) {
        // A product alone carries nothing: `mad` with 0.
        ("mul", true) => return Err(m.refused(body, "with `.cc` is not supported")),
        _ => (integer::carrying(&name, kind), operands),
    };
    let compute = compute.ok_or_else(|| m.refused(body, "is not supported with this type"))?;
    let Some((target, given)) = op.split_first() else { return Err(body.error("operands are missing")) };
    let takes = if base == "mad" { 3 } else { 2 };
    if given.len() != takes {
        return Err(body.error(format!("{} takes {takes} operands, not {}", m.name, given.len())));
    }
    let target = body.target(target)?;
    let mut sources = [Source::Constant(0); 3];
    for (source, operand) in sources.iter_mut().zip(given) {
        *source = body.source(operand, kind)?;
    }
    let carry = if reads { Carry::Kept } else { Carry::Fixed(base == "sub") };
    body.emit(Op::Carry { compute, target, sources, carry, writes });
    Ok(())
}

/// `and` to `prmt`, also of predicates.
pub(super) fn bits<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let mut name = m.name.to_string();
    if m.name == "shf" {
        for side in [["l", "r"], ["clamp", "wrap"]] {
            let found = m.one_of(&side).ok_or_else(|| m.refused(body, "lacks a modifier"))?;
            name = format!("{name}.{found}");
        }
    } else if let Some(mode) =
        m.one_of(&["clamp", "wrap", "shiftamt", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"])
    {
        name = format!("{name}.{mode}");
    }
    let kind = m.kind(body)?;
    if kind == Type::Pred {
        return logic(body, m, operands);
    }
    let Some((target, given)) = operands.split_first() else {
        return Err(body.error("operands are missing"));
    };
    let takes = match m.name {
        "not" | "cnot" | "clz" | "popc" | "brev" | "bfind" => 1,
        "bfe" | "shf" | "fns" | "prmt" => 3,
        "bfi" | "lop3" => 4,
        _ => 2,
    };
    if given.len() != takes {
        return Err(body.error(format!("{} takes {takes} operands, not {}", m.name, given.len())));
    }
    let target = body.target(target)?;
    let mut sources = Vec::new();
    for (index, operand) in given.iter().enumerate() {
        // Places, lengths and distances have 32 bits.
        let is_count = match m.name {
            "shl" | "shr" | "bfe" => index >= 1,
            "bfi" => index >= 2,
            "lop3" => index == 3,
            _ => false,
        };
        sources.push(body.source(operand, if is_count { Type::U32 } else { kind })?);
    }
    scalar(body, m, bit::bits(&name, kind), target, &sources)
}

/// `and.pred` and so on.
fn logic<'m>(body: &mut Body<'_, 'm>, m: &Modifiers<'m>, operands: &[Operand<'m>]) -> Result<(), PtxError> {
    m.finish(body)?;
    let (target, truths, name) = if m.name == "not" {
        let [target, a] = exactly(body, operands)?;
        (target, [body.truth(a)?, Truth::Constant(true)], "xor")
    } else {
        let [target, a, b] = exactly(body, operands)?;
        (target, [body.truth(a)?, body.truth(b)?], m.name)
    };
    let target = body.predicate(target)?;
    let logic = compare::logic(name).ok_or_else(|| m.refused(body, "of predicates is not supported"))?;
    body.emit(Op::Logic { logic, target, truths });
    Ok(())
}

/// `dp4a` and `dp2a`.
pub(super) fn dot<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let name = m.one_of(&["lo", "hi"]).map_or(m.name.to_string(), |half| format!("{}.{half}", m.name));
    let (first, second) = (m.kind(body)?, m.kind(body)?);
    let [target, a, b, c] = exactly(body, operands)?;
    let target = body.target(target)?;
    let sources = [body.source(a, Type::B32)?, body.source(b, Type::B32)?, body.source(c, Type::B32)?];
    scalar(body, m, integer::dot(&name, first, second), target, &sources)
}
