//! Instructions that reach memory.

use super::Modifiers;
use crate::body::{Body, Operand};
use crate::code::{Access, Atomic, Op, Scalar, Source, Space, Transfer};
use crate::error::PtxError;
use crate::scalar::{float, half, integer};
use crate::types::Type;

/// Modifiers that say something about order, scope or caches. One thread after the other runs, so all is in order.
fn is_hint(part: &str) -> bool {
    matches!(
        part,
        "weak"
            | "relaxed"
            | "acquire"
            | "release"
            | "acq_rel"
            | "volatile"
            | "mmio"
            | "cta"
            | "cluster"
            | "gpu"
            | "sys"
            | "nc"
            | "ca"
            | "cg"
            | "cs"
            | "lu"
            | "cv"
            | "wb"
            | "wt"
            | "noftz"
            | "noncoherent"
    ) || part.starts_with("L1::")
        || part.starts_with("L2::")
}

fn space(body: &Body<'_, '_>, m: &mut Modifiers<'_>) -> Space {
    match m.one_of(&[
        "global",
        "const",
        "shared",
        "shared::cta",
        "local",
        "param",
        "param::entry",
        "param::func",
    ]) {
        Some("global" | "const") => Space::Global,
        Some("shared" | "shared::cta") => Space::Shared,
        Some("local" | "param::func") => Space::Local,
        Some("param" | "param::entry") if body.is_entry() => Space::Parameter,
        Some("param") => Space::Local,
        _ => Space::Generic,
    }
}

/// `ld` and `st`.
pub(super) fn access<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let space = space(body, m);
    m.drop(is_hint);
    let parts = match m.one_of(&["v2", "v4", "v8"]) {
        Some("v2") => 2,
        Some("v4") => 4,
        Some(_) => 8,
        None => 1,
    };
    let kind = m.kind(body)?;
    m.finish(body)?;
    // A cache policy may follow.
    let [first, second, ..] = operands else { return Err(body.error("operands are missing")) };
    let is_load = m.name != "st";
    let (value, address) = if is_load { (first, second) } else { (second, first) };
    let address = body.address(address, space)?;
    let values = match value {
        Operand::Vector(values) => values.as_slice(),
        value => std::slice::from_ref(value),
    };
    if values.len() != parts || kind == Type::Pred {
        return Err(body.error(format!("{} values in place of {parts}", values.len())));
    }
    let mut access = Access {
        address,
        bytes: kind.bytes(),
        is_signed: kind.is_signed(),
        targets: Vec::new(),
        sources: Vec::new(),
    };
    for value in values {
        if is_load {
            access.targets.push(body.target_if_kept(value)?);
        } else {
            access.sources.push(body.source(value, kind)?);
        }
    }
    let access = Box::new(access);
    body.emit(if is_load { Op::Load(access) } else { Op::Store(access) });
    Ok(())
}

/// `atom`, and `red`, which drops the old value.
pub(super) fn atomic<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let space = space(body, m);
    m.drop(is_hint);
    let operation =
        m.one_of(&["add", "cas", "exch", "and", "or", "xor", "inc", "dec", "min", "max"]).unwrap_or("");
    let kind = m.kind(body)?;
    m.finish(body)?;
    let (target, rest) = match (m.name, operands) {
        ("atom", [target, rest @ ..]) => (body.target_if_kept(target)?, rest),
        (_, rest) => (None, rest),
    };
    let takes = if operation == "cas" { 2 } else { 1 };
    let [address, given @ ..] = rest else { return Err(body.error("operands are missing")) };
    if given.len() < takes {
        return Err(body.error("operands are missing"));
    }
    let address = body.address(address, space)?;
    let mut sources = [Source::Constant(0); 2];
    for (source, operand) in sources.iter_mut().zip(&given[..takes]) {
        *source = body.source(operand, kind)?;
    }
    let compute =
        operation_of(operation, kind).ok_or_else(|| m.refused(body, "has no such operation of this type"))?;
    // Sums of 32 bits in global memory count numbers without a full mantissa as zero (PTX ISA, `atom`).
    let flushing = float::Style { flushes: true, ..float::Style::default() };
    let summed = if operation == "add" { float::exact("add", kind, flushing) } else { None };
    let compute_in_global = summed.filter(|_| kind == Type::F32).unwrap_or(compute);
    let bytes = kind.bytes();
    let atomic = Atomic { address, bytes, compute, compute_in_global, target, sources };
    body.emit(Op::Atomic(Box::new(atomic)));
    Ok(())
}

/// What becomes of an old value and one or two operands.
fn operation_of(name: &str, kind: Type) -> Option<Scalar> {
    if kind.is_float() {
        if !matches!(name, "add" | "min" | "max") {
            return None;
        }
        let style = float::Style::default();
        return match kind {
            Type::F32 | Type::F64 => float::exact(name, kind, style),
            _ => half::arithmetic(name, kind, style, false),
        };
    }
    Some(match (name, kind.bits()) {
        ("exch", 16..) => |_, b, _, _| b,
        ("cas", 16) => |a, b, c, _| if a as u16 == b as u16 { c } else { a },
        ("cas", 32) => |a, b, c, _| if a as u32 == b as u32 { c } else { a },
        ("cas", 64) => |a, b, c, _| if a == b { c } else { a },
        ("and", 32..) => |a, b, _, _| a & b,
        ("or", 32..) => |a, b, _, _| a | b,
        ("xor", 32..) => |a, b, _, _| a ^ b,
        ("inc", 32) => |a, b, _, _| if a as u32 >= b as u32 { 0 } else { a + 1 },
        ("dec", 32) => |a, b, _, _| if a as u32 == 0 || a as u32 > b as u32 { b } else { a - 1 },
        ("add" | "min" | "max", 32..) => return integer::arithmetic(name, kind),
        _ => return None,
    })
}

/// `cp.async`: done at once, so that there is never anything to wait for.
pub(super) fn copy<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    if !m.take("async") {
        return Err(m.refused(body, "without `.async` is not supported"));
    }
    if m.one_of(&["commit_group", "wait_group", "wait_all"]).is_some() {
        m.finish(body)?;
        body.emit(Op::Nothing);
        return Ok(());
    }
    m.drop(is_hint);
    let is_to_shared = m.take("shared") | m.take("shared::cta");
    if !is_to_shared || !m.take("global") {
        return Err(m.refused(body, "between these spaces is not supported"));
    }
    m.finish(body)?;
    let [to, from, bytes, rest @ ..] = operands else { return Err(body.error("operands are missing")) };
    let (to, from) = (body.address(to, Space::Shared)?, body.address(from, Space::Global)?);
    let Source::Constant(bytes @ (4 | 8 | 16)) = body.source(bytes, Type::U32)? else {
        return Err(body.error("a copy of other than 4, 8 or 16 bytes"));
    };
    let (mut read, mut ignored) = (Source::Constant(bytes), None);
    if let Some(operand) = rest.first() {
        if body.is_predicate(operand)? {
            ignored = Some(body.guard_of(operand)?);
        } else if !matches!(operand, Operand::Name(name, 0) if body.is_policy(name)?) {
            read = body.source(operand, Type::U32)?;
        }
    }
    body.emit(Op::Transfer(Box::new(Transfer { to, from, bytes: bytes as u32, read, ignored })));
    Ok(())
}

/// `createpolicy`: a number that nothing looks at.
pub(super) fn policy<'m>(body: &mut Body<'_, 'm>, operands: &[Operand<'m>]) -> Result<(), PtxError> {
    let Some(target) = operands.first() else { return Err(body.error("operands are missing")) };
    let target = body.target(target)?;
    body.emit(Op::Move { target, source: Source::Constant(0) });
    Ok(())
}
