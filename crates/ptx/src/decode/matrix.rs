//! Instructions on matrices that lie in the registers of a warp.

use super::{Modifiers, exactly};
use crate::body::{Body, Operand};
use crate::code::{Matrix, Multiply, Op, Source, Space, Target};
use crate::error::PtxError;
use crate::types::Type;

/// `ldmatrix`, `stmatrix`, `movmatrix`, `mma`.
pub(super) fn matrix<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<(), PtxError> {
    if !m.take("sync") || !m.take("aligned") {
        return Err(m.refused(body, "without `.sync.aligned` is not supported"));
    }
    let matrix = if m.name == "mma" { multiply(body, m, operands)? } else { moved(body, m, operands)? };
    m.finish(body)?;
    body.emit(Op::Matrix(Box::new(matrix)));
    Ok(())
}

/// Matrices of 8 by 8 numbers of 16 bits, to and from shared memory, or turned within registers.
fn moved<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<Matrix, PtxError> {
    if !m.take("m8n8") || !m.take("b16") {
        return Err(m.refused(body, "of this shape or type is not supported"));
    }
    let is_turned = m.take("trans");
    let [first, second] = exactly(body, operands)?;
    if m.name == "movmatrix" {
        return Ok(Matrix::Turn { target: body.target(first)?, source: body.source(second, Type::B32)? });
    }
    let count = match m.one_of(&["x1", "x2", "x4"]) {
        Some("x1") => 1,
        Some("x2") => 2,
        Some(_) => 4,
        None => return Err(m.refused(body, "has no count")),
    };
    let space = if m.take("shared") | m.take("shared::cta") { Space::Shared } else { Space::Generic };
    if m.name == "ldmatrix" {
        let targets = targets(body, first)?;
        if targets.len() != count {
            return Err(body.error(format!("{} registers for {count} matrices", targets.len())));
        }
        return Ok(Matrix::Load { address: body.address(second, space)?, is_turned, targets });
    }
    let sources = sources(body, second, Type::B32)?;
    if sources.len() != count {
        return Err(body.error(format!("{} registers for {count} matrices", sources.len())));
    }
    Ok(Matrix::Store { address: body.address(first, space)?, is_turned, sources })
}

pub(super) fn targets<'m>(body: &mut Body<'_, 'm>, operand: &Operand<'m>) -> Result<Vec<Target>, PtxError> {
    match operand {
        Operand::Vector(parts) => parts.iter().map(|part| body.target(part)).collect(),
        single => Ok(vec![body.target(single)?]),
    }
}

pub(super) fn sources<'m>(
    body: &mut Body<'_, 'm>,
    operand: &Operand<'m>,
    kind: Type,
) -> Result<Vec<Source>, PtxError> {
    match operand {
        Operand::Vector(parts) => parts.iter().map(|part| body.source(part, kind)).collect(),
        single => Ok(vec![body.source(single, kind)?]),
    }
}

/// Rows of the first matrix, and columns of it, of shapes with eight columns of the second.
const SHAPES: [(&str, usize, usize); 7] = [
    ("m16n8k4", 16, 4),
    ("m16n8k8", 16, 8),
    ("m16n8k16", 16, 16),
    ("m16n8k32", 16, 32),
    ("m8n8k16", 8, 16),
    ("m8n8k32", 8, 32),
    ("m8n8k4", 8, 4),
];

fn multiply<'m>(
    body: &mut Body<'_, 'm>,
    m: &mut Modifiers<'m>,
    operands: &[Operand<'m>],
) -> Result<Matrix, PtxError> {
    let &(_, rows, depth) = SHAPES
        .iter()
        .find(|(name, ..)| m.take(name))
        .ok_or_else(|| m.refused(body, "of this shape is not supported"))?;
    if !m.take("row") || !m.take("col") {
        return Err(m.refused(body, "of other than `.row.col` is not supported"));
    }
    let saturates = m.take("satfinite");
    let [to, first, second, with] = [m.kind(body)?, m.kind(body)?, m.kind(body)?, m.kind(body)?];
    let per_register = match first {
        Type::F64 | Type::Tf32 => 1,
        Type::F16 | Type::Bf16 => 2,
        Type::S8 | Type::U8 => 4,
        _ => return Err(m.refused(body, "of this type is not supported")),
    };
    let is_integer = matches!(first, Type::S8 | Type::U8);
    let is_possible = match first {
        Type::S8 | Type::U8 => matches!(second, Type::S8 | Type::U8) && to == Type::S32 && depth >= 16,
        Type::F64 => second == first && to == first && (rows, depth) == (8, 4),
        Type::F16 => {
            second == first && matches!(to, Type::F16 | Type::F32) && rows == 16 && (8..=16).contains(&depth)
        }
        Type::Bf16 => second == first && to == Type::F32 && rows == 16 && (8..=16).contains(&depth),
        _ => second == first && to == Type::F32 && rows == 16 && depth <= 8,
    };
    let (with_is_possible, kinds) =
        (with == to || (first == Type::F16 && matches!(with, Type::F16 | Type::F32)), Type::B32);
    if !is_possible || !with_is_possible || (saturates && !is_integer) {
        return Err(m.refused(body, "of these types and this shape is not supported"));
    }
    let [d, a, b, c] = exactly(body, operands)?;
    let kind = if first == Type::F64 { Type::F64 } else { kinds };
    let result = Multiply {
        rows,
        depth,
        per_register,
        kinds: [first, second],
        to,
        with,
        saturates,
        a: sources(body, a, kind)?,
        b: sources(body, b, kind)?,
        c: sources(body, c, if with == Type::F64 { Type::F64 } else { kinds })?,
        d: targets(body, d)?,
    };
    let registers = |kind: Type| rows * 8 / 32 / if kind == Type::F16 { 2 } else { 1 };
    let wanted =
        [rows * depth / 32 / per_register, 8 * depth / 32 / per_register, registers(with), registers(to)];
    if [result.a.len(), result.b.len(), result.c.len(), result.d.len()] != wanted {
        return Err(body.error("a matrix has another number of registers than its shape"));
    }
    Ok(Matrix::Multiply(result))
}
