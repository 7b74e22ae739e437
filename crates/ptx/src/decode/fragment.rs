//! `wmma`: loads, stores and products of fragments.

use super::matrix::{sources, targets};
use super::{Modifiers, exactly};
use crate::body::{Body, Operand};
use crate::code::{Fragment, Fragments, Matrix, Op, Source, Space};
use crate::error::PtxError;
use crate::types::Type;

/// Rows of the first matrix, columns of the second, and what both share.
const SHAPES: [(&str, [usize; 3]); 5] = [
    ("m16n16k16", [16, 16, 16]),
    ("m8n32k16", [8, 32, 16]),
    ("m32n8k16", [32, 8, 16]),
    ("m16n16k8", [16, 16, 8]),
    ("m8n8k4", [8, 8, 4]),
];

/// `wmma.load`, `wmma.store` and `wmma.mma`.
pub(super) fn wmma<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    let action = m.one_of(&["load", "store", "mma"]);
    if !m.take("sync") || !m.take("aligned") {
        return Err(m.refused(body, "without `.sync.aligned` is not supported"));
    }
    let &(_, shape) = SHAPES
        .iter()
        .find(|(name, _)| m.take(name))
        .ok_or_else(|| m.refused(body, "of this shape is not supported"))?;
    let matrix = match action {
        Some("mma") => multiply(body, m, shape, operands)?,
        Some(action) => moved(body, m, shape, action == "load", operands)?,
        None => return Err(m.refused(body, "is not supported")),
    };
    m.finish(body)?;
    body.emit(Op::Matrix(Box::new(matrix)));
    Ok(())
}

/// Numbers that a fragment can have.
fn is_number(kind: Type) -> bool {
    matches!(
        kind,
        Type::F16 | Type::Bf16 | Type::Tf32 | Type::F32 | Type::F64 | Type::S8 | Type::U8 | Type::S32
    )
}

/// Whether so many registers hold a fragment.
fn fits(body: &Body<'_, '_>, fragment: &Fragment, registers: usize) -> Result<(), PtxError> {
    if registers * fragment.per_register() * 32 >= fragment.rows * fragment.columns && registers <= 32 {
        return Ok(());
    }
    Err(body
        .error(format!("{registers} registers for a fragment of {} by {}", fragment.rows, fragment.columns)))
}

fn moved<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    [rows, columns, depth]: [usize; 3],
    is_load: bool,
    operands: &[Operand<'m>],
) -> Result<Matrix, PtxError> {
    let (rows, columns) = match m.one_of(&["a", "b", "c", "d"]) {
        Some("a") => (rows, depth),
        Some("b") => (depth, columns),
        Some(_) => (rows, columns),
        None => return Err(m.refused(body, "of no matrix")),
    };
    let is_by_columns = m.one_of(&["row", "col"]) == Some("col");
    let space = match m.one_of(&["global", "shared", "shared::cta"]) {
        Some("global") => Space::Global,
        Some(_) => Space::Shared,
        None => Space::Generic,
    };
    let kind = m.kind(body)?;
    if !is_number(kind) {
        return Err(m.refused(body, "of this type is not supported"));
    }
    let fragment = Fragment { rows, columns, kind, is_by_columns };
    let [first, second, rest @ ..] = operands else { return Err(body.error("operands are missing")) };
    let stride = match rest {
        [] => None,
        [stride] => Some(body.source(stride, Type::U32)?),
        _ => return Err(body.error("more than one stride")),
    };
    if is_load {
        let targets = targets(body, first)?;
        fits(body, &fragment, targets.len())?;
        return Ok(Matrix::LoadFragment { fragment, address: body.address(second, space)?, stride, targets });
    }
    let sources = sources(body, second, register(kind))?;
    fits(body, &fragment, sources.len())?;
    Ok(Matrix::StoreFragment { fragment, address: body.address(first, space)?, stride, sources })
}

/// The type of the registers of a fragment.
fn register(kind: Type) -> Type {
    if kind == Type::F64 { Type::F64 } else { Type::B32 }
}

fn multiply<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    [rows, columns, depth]: [usize; 3],
    operands: &[Operand<'m>],
) -> Result<Matrix, PtxError> {
    let saturates = m.take("satfinite");
    m.drop(|part| matches!(part, "row" | "col" | "rn"));
    let mut kinds = vec![m.kind(body)?, m.kind(body)?];
    while let Some(kind) = m.kind_if_any() {
        kinds.push(kind);
    }
    // With halves, only the types of the result and of what is added are named.
    let [to, first, second, with] = match kinds[..] {
        [to, with] => [to, Type::F16, Type::F16, with],
        [to, first, second, with] => [to, first, second, with],
        _ => return Err(m.refused(body, "of these types is not supported")),
    };
    let is_integer = matches!(first, Type::S8 | Type::U8);
    let is_possible = match first {
        Type::S8 | Type::U8 => first == second && to == Type::S32 && with == to,
        Type::F16 => first == second && [to, with].iter().all(|kind| matches!(kind, Type::F16 | Type::F32)),
        Type::Bf16 | Type::Tf32 => first == second && to == Type::F32 && with == to,
        Type::F64 => first == second && to == first && with == to,
        _ => false,
    };
    if !is_possible || (saturates && !is_integer) {
        return Err(m.refused(body, "of these types is not supported"));
    }
    let fragment = |rows, columns, kind| Fragment { rows, columns, kind, is_by_columns: false };
    let shapes = [
        fragment(rows, depth, first),
        fragment(depth, columns, second),
        fragment(rows, columns, with),
        fragment(rows, columns, to),
    ];
    let [d, a, b, c] = exactly(body, operands)?;
    let targets = targets(body, d)?;
    let mut read: [Vec<Source>; 3] = Default::default();
    for (index, operand) in [a, b, c].into_iter().enumerate() {
        read[index] = sources(body, operand, register(shapes[index].kind))?;
        fits(body, &shapes[index], read[index].len())?;
    }
    fits(body, &shapes[3], targets.len())?;
    Ok(Matrix::MultiplyFragments(Fragments { shapes, sources: read, targets, saturates }))
}
