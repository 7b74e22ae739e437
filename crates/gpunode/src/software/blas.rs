//! Products of matrices, in plain loops. Matrices lie in columns.

use super::linear;
use super::space::View;
use crate::failure::Failure;
use hinterland_proto::gpu::command::{BlasGemm, BlasGemmPointers};

/// Elements by cuBLAS's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    F64,
    F16,
    Bf16,
}

impl Element {
    pub(super) fn of(kind: u32) -> Result<Self, Failure> {
        match kind {
            0 => Ok(Self::F32),
            1 => Ok(Self::F64),
            2 => Ok(Self::F16),
            14 => Ok(Self::Bf16),
            other => Err(Failure::blas_unsupported(format!(
                "the software device multiplies no elements of type {other}"
            ))),
        }
    }

    pub(super) const fn bytes(self) -> u64 {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    pub(super) fn read(self, bytes: &[u8]) -> f64 {
        match (self, bytes) {
            (Self::F64, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
            (Self::F16, &[a, b]) => f32_of_f16(u16::from_le_bytes([a, b])).into(),
            (Self::Bf16, &[a, b]) => f32::from_bits(u32::from(u16::from_le_bytes([a, b])) << 16).into(),
            _ => f64::NAN,
        }
    }

    pub(super) fn write(self, value: f64, bytes: &mut [u8]) {
        // Values that are not double have been rounded to single precision already.
        match self {
            Self::F64 => bytes.copy_from_slice(&value.to_le_bytes()),
            Self::F32 => bytes.copy_from_slice(&(value as f32).to_le_bytes()),
            Self::F16 => bytes.copy_from_slice(&f16_of_f32(value as f32).to_le_bytes()),
            Self::Bf16 => bytes.copy_from_slice(&bf16_of_f32(value as f32).to_le_bytes()),
        }
    }
}

/// How sums are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Precision {
    Single,
    Double,
    /// Single, with factors of half precision.
    Half,
}

impl Precision {
    fn of(compute: u32) -> Result<Self, Failure> {
        match compute {
            64 | 65 => Ok(Self::Half),
            68 | 69 | 74..=77 => Ok(Self::Single),
            70 | 71 => Ok(Self::Double),
            other => Err(Failure::blas_unsupported(format!(
                "the software device has no computation of type {other}"
            ))),
        }
    }

    const fn scalar(self) -> Element {
        match self {
            Self::Single => Element::F32,
            Self::Double => Element::F64,
            Self::Half => Element::F16,
        }
    }
}

/// `CUDA_C_32F` and `CUDA_C_64F`.
const COMPLEX_F32: u32 = 4;
const COMPLEX_F64: u32 = 5;

const fn is_complex(kind: u32) -> bool {
    matches!(kind, COMPLEX_F32 | COMPLEX_F64)
}

/// What is the same for all products of a command.
struct Product {
    transpose: [bool; 2],
    sizes: [usize; 3],
    elements: [Element; 3],
    leads: [u64; 3],
    precision: Precision,
    alpha: f64,
    beta: f64,
}

/// `cublasGemmStridedBatchedEx`. In `is_pointer_mode` the factors lie in device memory.
pub(super) fn gemm(view: &View, command: &BlasGemm, is_pointer_mode: bool) -> Result<(), Failure> {
    gemm_and(view, command, is_pointer_mode, &|_| ())
}

/// The same with `finish` done to each column of real numbers before it is rounded to the type of the result.
pub(super) fn gemm_and(
    view: &View,
    command: &BlasGemm,
    is_pointer_mode: bool,
    finish: &dyn Fn(&mut [f64]),
) -> Result<(), Failure> {
    let c = command;
    if is_complex(c.c_type) {
        let product = linear::Product {
            transposes: [c.transpose_a, c.transpose_b],
            sizes: [c.m, c.n, c.k],
            kinds: [c.a_type, c.b_type, c.c_type],
            leads: [c.a_lead, c.b_lead, c.c_lead],
            factors: [c.alpha, c.beta],
            in_memory: is_pointer_mode,
        };
        let bytes = if c.c_type == COMPLEX_F32 { 8 } else { 16 };
        return (0..c.count).try_for_each(|index| {
            // Looked at before: none of the matrices ends beyond all addresses.
            let place = |start: u64, stride: i64| {
                start.wrapping_add((index.wrapping_mul(stride) as u64).wrapping_mul(bytes))
            };
            let places = [place(c.a, c.a_stride), place(c.b, c.b_stride), place(c.c, c.c_stride)];
            linear::multiply(view, &product, places)
        });
    }
    let product = Product::new(
        view,
        [c.transpose_a, c.transpose_b, c.compute],
        [c.m, c.n, c.k],
        [c.a_type, c.b_type, c.c_type],
        [c.a_lead, c.b_lead, c.c_lead],
        [c.alpha, c.beta],
        is_pointer_mode,
    )?;
    for index in 0..u64::try_from(c.count).unwrap_or(0) {
        // Looked at before: none of the matrices ends beyond all addresses.
        let place = |start: u64, stride: i64, element: Element| {
            start.wrapping_add(index.wrapping_mul(stride as u64).wrapping_mul(element.bytes()))
        };
        let [a, b, out] = product.elements;
        product.multiply(
            view,
            [place(c.a, c.a_stride, a), place(c.b, c.b_stride, b), place(c.c, c.c_stride, out)],
            finish,
        )?;
    }
    Ok(())
}

/// `cublasGemmBatchedEx`.
pub(super) fn gemm_pointers(
    view: &View,
    command: &BlasGemmPointers,
    is_pointer_mode: bool,
) -> Result<(), Failure> {
    let c = command;
    let pointer = |array: u64, index: u64| {
        let mut bytes = [0; 8];
        view.read(array + index * 8, &mut bytes).map(|()| u64::from_le_bytes(bytes))
    };
    if is_complex(c.c_type) {
        let product = linear::Product {
            transposes: [c.transpose_a, c.transpose_b],
            sizes: [c.m, c.n, c.k],
            kinds: [c.a_type, c.b_type, c.c_type],
            leads: [c.a_lead, c.b_lead, c.c_lead],
            factors: [c.alpha, c.beta],
            in_memory: is_pointer_mode,
        };
        return (0..u64::try_from(c.count).unwrap_or(0)).try_for_each(|index| {
            let places = [pointer(c.a, index)?, pointer(c.b, index)?, pointer(c.c, index)?];
            linear::multiply(view, &product, places)
        });
    }
    let product = Product::new(
        view,
        [c.transpose_a, c.transpose_b, c.compute],
        [c.m, c.n, c.k],
        [c.a_type, c.b_type, c.c_type],
        [c.a_lead, c.b_lead, c.c_lead],
        [c.alpha, c.beta],
        is_pointer_mode,
    )?;
    for index in 0..u64::try_from(c.count).unwrap_or(0) {
        let places = [pointer(c.a, index)?, pointer(c.b, index)?, pointer(c.c, index)?];
        product.multiply(view, places, &|_| ())?;
    }
    Ok(())
}

impl Product {
    #[allow(clippy::too_many_arguments, reason = "the fields of two commands, by their kind")]
    fn new(
        view: &View,
        [transpose_a, transpose_b, compute]: [u32; 3],
        sizes: [i64; 3],
        kinds: [u32; 3],
        leads: [i64; 3],
        factors: [[u8; 16]; 2],
        is_pointer_mode: bool,
    ) -> Result<Self, Failure> {
        let precision = Precision::of(compute)?;
        if transpose_a > 2 || transpose_b > 2 {
            return Err(Failure::blas_value("a matrix is neither plain nor transposed"));
        }
        let factor = |bytes: [u8; 16]| -> Result<f64, Failure> {
            let scalar = precision.scalar();
            let length = scalar.bytes() as usize;
            if !is_pointer_mode {
                return Ok(scalar.read(&bytes[..length]));
            }
            let mut value = [0; 8];
            let mut address = [0; 8];
            address.copy_from_slice(&bytes[..8]);
            view.read(u64::from_le_bytes(address), &mut value[..length])?;
            Ok(scalar.read(&value[..length]))
        };
        let mut plain = [0; 3];
        for (size, given) in plain.iter_mut().zip(sizes) {
            *size = usize::try_from(given).map_err(|_| Failure::blas_value("a size is negative"))?;
        }
        let mut whole = [0; 3];
        for (lead, given) in whole.iter_mut().zip(leads) {
            *lead =
                u64::try_from(given).map_err(|_| Failure::blas_value("a leading dimension is negative"))?;
        }
        Ok(Self {
            transpose: [transpose_a != 0, transpose_b != 0],
            sizes: plain,
            elements: [Element::of(kinds[0])?, Element::of(kinds[1])?, Element::of(kinds[2])?],
            leads: whole,
            precision,
            alpha: factor(factors[0])?,
            beta: factor(factors[1])?,
        })
    }

    fn multiply(&self, view: &View, [a, b, c]: [u64; 3], finish: &dyn Fn(&mut [f64])) -> Result<(), Failure> {
        let [m, n, k] = self.sizes;
        if m == 0 || n == 0 {
            return Ok(());
        }
        let shape = |is_turned: bool, rows: usize, columns: usize| {
            if is_turned { (columns, rows) } else { (rows, columns) }
        };
        let (left, right) = if self.alpha == 0.0 || k == 0 {
            (Vec::new(), Vec::new())
        } else {
            (
                self.read(view, 0, a, shape(self.transpose[0], m, k))?,
                self.read(view, 1, b, shape(self.transpose[1], k, n))?,
            )
        };
        let mut sums = vec![0.0; m];
        let before = if self.beta == 0.0 { Vec::new() } else { self.read(view, 2, c, (m, n))? };
        for column in 0..n {
            self.column(column, &left, &right, &mut sums);
            if !before.is_empty() {
                for (sum, old) in sums.iter_mut().zip(&before[column * m..]) {
                    *sum = self.round(*sum + self.beta * old);
                }
            }
            finish(&mut sums);
            let element = self.elements[2];
            let mut bytes = vec![0; m * element.bytes() as usize];
            for (place, sum) in bytes.chunks_exact_mut(element.bytes() as usize).zip(&sums) {
                element.write(*sum, place);
            }
            view.write(c + column as u64 * self.leads[2] * element.bytes(), &bytes)?;
        }
        Ok(())
    }

    /// One column of alpha times the product.
    fn column(&self, column: usize, left: &[f64], right: &[f64], sums: &mut [f64]) {
        let [m, n, k] = self.sizes;
        sums.fill(0.0);
        if left.is_empty() {
            return;
        }
        for inner in 0..k {
            let factor =
                if self.transpose[1] { right[inner * n + column] } else { right[column * k + inner] };
            for (row, sum) in sums.iter_mut().enumerate() {
                let value = if self.transpose[0] { left[row * k + inner] } else { left[inner * m + row] };
                *sum = self.round(*sum + value * factor);
            }
        }
        for sum in sums {
            *sum = self.round(*sum * self.alpha);
        }
    }

    fn round(&self, value: f64) -> f64 {
        if self.precision == Precision::Double { value } else { f64::from(value as f32) }
    }

    /// Whether a matrix lies in memory.
    fn check(
        &self,
        view: &View,
        which: usize,
        address: u64,
        (rows, columns): (usize, usize),
    ) -> Result<(), Failure> {
        let too_large = || Failure::blas_value("a matrix ends beyond all addresses");
        let (lead, rows, columns) = (self.leads[which], rows as u64, columns as u64);
        if lead < rows {
            return Err(Failure::blas_value(format!(
                "a matrix of {rows} rows has a leading dimension of {lead}"
            )));
        }
        let elements = columns.saturating_sub(1).checked_mul(lead).and_then(|all| all.checked_add(rows));
        let bytes =
            elements.and_then(|all| all.checked_mul(self.elements[which].bytes())).ok_or_else(too_large)?;
        view.check(address, bytes)
    }

    /// The numbers of a matrix, without gaps between columns.
    fn read(
        &self,
        view: &View,
        which: usize,
        address: u64,
        (rows, columns): (usize, usize),
    ) -> Result<Vec<f64>, Failure> {
        self.check(view, which, address, (rows, columns))?;
        let (element, lead) = (self.elements[which], self.leads[which]);
        let mut bytes = vec![0; rows * element.bytes() as usize];
        let mut all = Vec::new();
        for column in 0..columns as u64 {
            let place = column.checked_mul(lead * element.bytes()).and_then(|at| address.checked_add(at));
            let place = place.ok_or_else(|| Failure::blas_value("a matrix ends beyond all addresses"))?;
            view.read(place, &mut bytes)?;
            all.extend(bytes.chunks_exact(element.bytes() as usize).map(|part| element.read(part)));
        }
        Ok(all)
    }
}

/// Half precision to single, exactly.
fn f32_of_f16(half: u16) -> f32 {
    let sign = u32::from(half >> 15) << 31;
    let (exponent, fraction) = (u32::from(half >> 10 & 31), u32::from(half & 1023));
    match exponent {
        // Steps of 2 to the power of -24.
        0 => f32::from_bits(sign | (fraction as f32 * (-24_f32).exp2()).to_bits()),
        31 => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// Single precision to half, to the nearest, and to the even one of two.
fn f16_of_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00;
    }
    // From 65520 on everything rounds to infinity.
    if magnitude >= 0x477f_f000 {
        return sign | 0x7c00;
    }
    if magnitude < 0x3880_0000 {
        // Below the smallest normal number: in steps of 2 to the power of -24, which `round_ties_even` counts.
        let steps = (f32::from_bits(magnitude) * 24_f32.exp2()).round_ties_even();
        return sign | steps as u16;
    }
    let rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    sign | ((rounded >> 13) - (112 << 10)) as u16
}

/// Single precision to the upper half of its bits, to the nearest, and to the even one of two.
fn bf16_of_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_comes_back_and_what_lies_between_goes_to_the_nearest() {
        for half in 0..=u16::MAX {
            let single = f32_of_f16(half);
            if single.is_nan() {
                assert!(f32_of_f16(f16_of_f32(single)).is_nan());
            } else {
                assert_eq!(f16_of_f32(single), half, "{single}");
            }
        }
        assert_eq!(f16_of_f32(2049.0), f16_of_f32(2048.0), "to the even one");
        assert_eq!(f16_of_f32(2051.0), f16_of_f32(2052.0));
        assert_eq!(f16_of_f32(65_519.0), 0x7bff);
        assert_eq!(f16_of_f32(65_520.0), 0x7c00);
        assert_eq!(bf16_of_f32(1.0), 0x3f80);
        assert_eq!(bf16_of_f32(f32::from_bits(0x3f80_8000)), 0x3f80, "to the even one");
        assert_eq!(bf16_of_f32(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert!(f32::from_bits(u32::from(bf16_of_f32(f32::from_bits(0x7f80_0001))) << 16).is_nan());
    }
}
