//! `cublasLtMatmul` on the device in software: a product of cuBLAS with its result elsewhere, a bias, and a function behind it.

use super::blas::{self, Element};
use super::space::View;
use crate::failure::Failure;
use hinterland_proto::gpu::command::BlasGemm;
use hinterland_proto::gpu::{LtMatrix, LtProduct};

/// Attributes of a matrix.
mod matrix {
    pub const TYPE: u32 = 0;
    pub const ORDER: u32 = 1;
    pub const ROWS: u32 = 2;
    pub const COLUMNS: u32 = 3;
    pub const LEAD: u32 = 4;
    pub const COUNT: u32 = 5;
    pub const STRIDE: u32 = 6;
}

/// Attributes of a product.
mod product {
    pub const COMPUTE: u32 = 0;
    pub const SCALE: u32 = 1;
    pub const POINTER_MODE: u32 = 2;
    pub const TRANSPOSE_A: u32 = 3;
    pub const TRANSPOSE_B: u32 = 4;
    pub const EPILOGUE: u32 = 7;
    pub const BIAS: u32 = 8;
    pub const BIAS_TYPE: u32 = 26;
    /// Those that change nothing here: fill mode, auxiliary ones of no epilogue, hints.
    pub const IGNORED: &[u32] = &[6, 15, 25];
}

/// Bits of an epilogue.
const RELU: u64 = 2;
const BIAS: u64 = 4;
const GELU: u64 = 32;

/// A number among attributes: as many bytes as it has.
fn number(attributes: &[(u32, Vec<u8>)], which: u32) -> Option<u64> {
    let (_, bytes) = attributes.iter().find(|(number, _)| *number == which)?;
    (bytes.len() <= 8).then(|| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// A matrix as a product of cuBLAS takes it.
struct Matrix {
    kind: u32,
    rows: i64,
    columns: i64,
    lead: i64,
    count: i64,
    stride: i64,
}

impl Matrix {
    fn of(given: &LtMatrix) -> Result<Self, Failure> {
        let of = |which| number(&given.attributes, which);
        let must = |which| of(which).ok_or_else(|| Failure::blas_value("a matrix lacks a size or a type"));
        if of(matrix::ORDER).unwrap_or(0) != 0 {
            return Err(Failure::blas_unsupported("the software device has matrices by columns only"));
        }
        Ok(Self {
            kind: must(matrix::TYPE)? as u32,
            rows: must(matrix::ROWS)? as i64,
            columns: must(matrix::COLUMNS)? as i64,
            lead: must(matrix::LEAD)? as i64,
            // A count has four bytes.
            count: of(matrix::COUNT).map_or(1, |count| i64::from(count as i32)),
            stride: of(matrix::STRIDE).unwrap_or(0) as i64,
        })
    }
}

/// Does the product.
pub(super) fn matmul(view: &View, given: &LtProduct) -> Result<(), Failure> {
    let of = |which| number(&given.attributes, which);
    let known = |which: u32| {
        which <= product::BIAS || which == product::BIAS_TYPE || product::IGNORED.contains(&which)
    };
    if let Some((other, _)) = given.attributes.iter().find(|(which, _)| !known(*which)) {
        return Err(Failure::blas_unsupported(format!(
            "the software device has no attribute {other} of cublasLtMatmul"
        )));
    }
    let epilogue = of(product::EPILOGUE).unwrap_or(1);
    if epilogue != 1 && epilogue & !(RELU | BIAS | GELU) != 0 {
        return Err(Failure::blas_unsupported(format!("the software device has no epilogue {epilogue}")));
    }
    let mode = of(product::POINTER_MODE).unwrap_or(0);
    if mode > 1 {
        return Err(Failure::blas_unsupported("the software device takes one factor for all rows"));
    }
    let [a, b, c, d] = &given.matrices;
    let (left, right, before, out) = (Matrix::of(a)?, Matrix::of(b)?, Matrix::of(c)?, Matrix::of(d)?);
    let transposed =
        [of(product::TRANSPOSE_A).unwrap_or(0) as u32, of(product::TRANSPOSE_B).unwrap_or(0) as u32];
    let inner = if transposed[0] == 0 { left.columns } else { left.rows };
    let command = BlasGemm {
        handle: 0,
        transpose_a: transposed[0],
        transpose_b: transposed[1],
        compute: compute(&of)?,
        m: out.rows,
        n: out.columns,
        k: inner,
        a: a.address,
        a_type: left.kind,
        b_type: right.kind,
        a_lead: left.lead,
        a_stride: left.stride,
        b: b.address,
        b_lead: right.lead,
        b_stride: right.stride,
        c: d.address,
        c_type: out.kind,
        algorithm: -1,
        c_lead: out.lead,
        c_stride: out.stride,
        count: out.count,
        alpha: given.alpha,
        beta: given.beta,
    };
    if c.address != d.address && given.beta != [0; 16] {
        move_matrices(view, (c.address, &before), (d.address, &out))?;
    }
    if epilogue == 1 {
        return blas::gemm(view, &command, mode == 1);
    }
    let bias = match epilogue & BIAS {
        0 => Vec::new(),
        _ => {
            let kind = of(product::BIAS_TYPE).map_or(out.kind, |kind| kind as u32);
            read_bias(view, of(product::BIAS).unwrap_or(0), kind, &out)?
        }
    };
    // Complex numbers have no such functions.
    Element::of(out.kind)?;
    blas::gemm_and(view, &command, mode == 1, &|numbers| finish(numbers, epilogue, &bias))
}

/// The computation: a product whose factors are of double precision has no other.
fn compute(of: &impl Fn(u32) -> Option<u64>) -> Result<u32, Failure> {
    let kind = of(product::COMPUTE).ok_or_else(|| Failure::blas_value("a product lacks its type"))? as u32;
    match (kind, of(product::SCALE)) {
        (68 | 69 | 74..=77, Some(1)) | (70 | 71, Some(0)) => {
            Err(Failure::blas_unsupported("the software device has factors of the computation's own type"))
        }
        _ => Ok(kind),
    }
}

/// Where a column of one of some matrices starts.
fn column_place(start: u64, matrix: &Matrix, index: i64, column: i64, bytes: u64) -> Result<u64, Failure> {
    let elements =
        index.checked_mul(matrix.stride).and_then(|all| all.checked_add(column.checked_mul(matrix.lead)?));
    let elements = elements.and_then(|all| u64::try_from(all).ok());
    let place = elements.and_then(|all| all.checked_mul(bytes)).and_then(|all| start.checked_add(all));
    place.ok_or_else(|| Failure::blas_value("a matrix ends beyond all addresses"))
}

/// Puts what is to be added where the result will be.
fn move_matrices(view: &View, (from, old): (u64, &Matrix), (to, new): (u64, &Matrix)) -> Result<(), Failure> {
    if old.kind != new.kind || old.rows != new.rows || old.columns != new.columns {
        return Err(Failure::blas_unsupported(
            "the software device adds matrices of the result's type and shape",
        ));
    }
    let element_bytes = Element::of(new.kind)?.bytes();
    let bytes =
        rows(new)?.checked_mul(element_bytes).ok_or_else(|| Failure::blas_value("a matrix is too large"))?;
    for index in 0..new.count {
        for column in 0..new.columns {
            let source = column_place(from, old, index, column, element_bytes)?;
            view.check(source, bytes)?;
            let mut raw = vec![0; bytes as usize];
            view.read(source, &mut raw)?;
            view.write(column_place(to, new, index, column, element_bytes)?, &raw)?;
        }
    }
    Ok(())
}

/// The numbers that are added to each column.
fn read_bias(view: &View, address: u64, kind: u32, out: &Matrix) -> Result<Vec<f64>, Failure> {
    let element = Element::of(kind)?;
    let length =
        rows(out)?.checked_mul(element.bytes()).ok_or_else(|| Failure::blas_value("a bias is too long"))?;
    view.check(address, length)?;
    let mut bytes = vec![0; length as usize];
    view.read(address, &mut bytes)?;
    Ok(bytes.chunks_exact(element.bytes() as usize).map(|part| element.read(part)).collect())
}

/// Adds the bias to a column, and applies the function, before anything is rounded to the type of the result.
fn finish(numbers: &mut [f64], epilogue: u64, bias: &[f64]) {
    for (row, value) in numbers.iter_mut().enumerate() {
        *value += bias.get(row).copied().unwrap_or(0.0);
        if epilogue & RELU != 0 {
            *value = value.max(0.0);
        } else if epilogue & GELU != 0 {
            // The approximation by a hyperbolic tangent, which is what cuBLASLt has.
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (*value + 0.044_715 * value.powi(3));
            *value = 0.5 * *value * (1.0 + inner.tanh());
        }
    }
}

fn rows(matrix: &Matrix) -> Result<u64, Failure> {
    u64::try_from(matrix.rows).map_err(|_| Failure::blas_value("a size is negative"))
}
