//! Products of matrices: all of them become one of two commands.

use std::ffi::{c_int, c_longlong, c_void};

use hinterland_proto::gpu::command::{BlasGemm, BlasGemmPointers};

use super::handle::{Handle, Settings};
use super::{INVALID_VALUE, NOT_SUPPORTED, Status, blas};

/// `cudaDataType_t`: real numbers.
const F32: c_int = 0;
const F64: c_int = 1;
const F16: c_int = 2;
/// Complex numbers.
const C32: c_int = 4;
const C64: c_int = 5;
/// `cublasComputeType_t`
const COMPUTE_F16: c_int = 64;
const COMPUTE_F16_PEDANTIC: c_int = 65;
const COMPUTE_F32: c_int = 68;
const COMPUTE_F64: c_int = 70;
const COMPUTE_F64_PEDANTIC: c_int = 71;
const COMPUTE_I32: c_int = 72;
const COMPUTE_I32_PEDANTIC: c_int = 73;
/// `CUBLAS_GEMM_DEFAULT`
const DEFAULT: c_int = -1;

/// One matrix, or many that lie at equal distances.
#[derive(Clone, Copy)]
struct Matrix {
    address: *const c_void,
    kind: c_int,
    lead: c_int,
    stride: i64,
}

impl Matrix {
    fn new(address: *const c_void, kind: c_int, lead: c_int, stride: i64) -> Self {
        Self { address, kind, lead, stride }
    }

    fn number(self) -> u64 {
        self.address.addr() as u64
    }
}

/// What is the same for all products.
#[derive(Clone, Copy)]
struct Shape {
    transpose: (c_int, c_int),
    m: c_int,
    n: c_int,
    k: c_int,
    count: c_int,
    compute: c_int,
    algorithm: c_int,
}

/// Bytes of a scalar.
fn scalar_bytes(compute: c_int, result: c_int) -> Result<usize, Status> {
    match compute {
        COMPUTE_F16 | COMPUTE_F16_PEDANTIC => Ok(2),
        COMPUTE_F32..=69 | 74..=79 => Ok(if (4..8).contains(&result) { 8 } else { 4 }),
        COMPUTE_I32 | COMPUTE_I32_PEDANTIC => Ok(4),
        COMPUTE_F64 | COMPUTE_F64_PEDANTIC => Ok(if result == 5 { 16 } else { 8 }),
        _ => Err(NOT_SUPPORTED),
    }
}

/// A scalar by value, or its address in device memory.
///
/// # Safety
/// In pointer mode 0, `place` has `bytes` bytes.
pub(super) unsafe fn scalar(
    settings: &Settings,
    place: *const c_void,
    bytes: usize,
) -> Result<[u8; 16], Status> {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    let mut value = [0; 16];
    if settings.pointer_mode == 0 {
        // SAFETY: the caller's promise; no scalar is longer than 16 bytes.
        unsafe { place.cast::<u8>().copy_to_nonoverlapping(value.as_mut_ptr(), bytes) };
    } else {
        value[..8].copy_from_slice(&(place.addr() as u64).to_le_bytes());
    }
    Ok(value)
}

fn sizes(shape: &Shape) -> Result<bool, Status> {
    let all = [shape.m, shape.n, shape.k, shape.count];
    if all.iter().any(|size| *size < 0) {
        return Err(INVALID_VALUE);
    }
    Ok(shape.m > 0 && shape.n > 0 && shape.count > 0)
}

/// Sends products; with `are_pointers`, the matrices are given by arrays of addresses in device memory.
///
/// # Safety
/// As `cublasGemmStridedBatchedEx` and `cublasGemmBatchedEx` are documented.
unsafe fn multiply(
    handle: *mut Handle,
    shape: Shape,
    scalars: (*const c_void, *const c_void),
    [a, b, c]: [Matrix; 3],
    are_pointers: bool,
) -> Status {
    blas(|session| {
        // SAFETY: as documented.
        let handle = unsafe { Handle::of(handle)? };
        let settings = handle.settings();
        if !sizes(&shape)? {
            return Ok(());
        }
        let bytes = scalar_bytes(shape.compute, c.kind)?;
        let p = BlasGemm {
            handle: handle.number,
            transpose_a: shape.transpose.0 as u32,
            transpose_b: shape.transpose.1 as u32,
            compute: shape.compute as u32,
            m: i64::from(shape.m),
            n: i64::from(shape.n),
            k: i64::from(shape.k),
            a: a.number(),
            a_type: a.kind as u32,
            b_type: b.kind as u32,
            a_lead: i64::from(a.lead),
            a_stride: a.stride,
            b: b.number(),
            b_lead: i64::from(b.lead),
            b_stride: b.stride,
            c: c.number(),
            c_type: c.kind as u32,
            algorithm: shape.algorithm,
            c_lead: i64::from(c.lead),
            c_stride: c.stride,
            count: i64::from(shape.count),
            // SAFETY: as documented.
            alpha: unsafe { scalar(&settings, scalars.0, bytes)? },
            // SAFETY: as documented.
            beta: unsafe { scalar(&settings, scalars.1, bytes)? },
        };
        if are_pointers {
            handle.issue(session, &settings, &of_pointers(&p))
        } else {
            handle.issue(session, &settings, &p)
        }
    })
}

/// The same products for arrays of addresses, which have no strides.
fn of_pointers(p: &BlasGemm) -> BlasGemmPointers {
    BlasGemmPointers {
        handle: p.handle,
        transpose_a: p.transpose_a,
        transpose_b: p.transpose_b,
        compute: p.compute,
        m: p.m,
        n: p.n,
        k: p.k,
        a: p.a,
        a_type: p.a_type,
        b_type: p.b_type,
        a_lead: p.a_lead,
        b: p.b,
        b_lead: p.b_lead,
        c: p.c,
        c_type: p.c_type,
        algorithm: p.algorithm,
        c_lead: p.c_lead,
        count: p.count,
        alpha: p.alpha,
        beta: p.beta,
    }
}

/// Products whose matrices lie at equal distances.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasGemmStridedBatchedEx(
    handle: *mut Handle,
    transpose_a: c_int,
    transpose_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: c_int,
    a_lead: c_int,
    a_stride: c_longlong,
    b: *const c_void,
    b_type: c_int,
    b_lead: c_int,
    b_stride: c_longlong,
    beta: *const c_void,
    c: *mut c_void,
    c_type: c_int,
    c_lead: c_int,
    c_stride: c_longlong,
    count: c_int,
    compute: c_int,
    algorithm: c_int,
) -> Status {
    let shape = Shape { transpose: (transpose_a, transpose_b), m, n, k, count, compute, algorithm };
    let matrices = [
        Matrix::new(a, a_type, a_lead, a_stride),
        Matrix::new(b, b_type, b_lead, b_stride),
        Matrix::new(c, c_type, c_lead, c_stride),
    ];
    // SAFETY: as documented.
    unsafe { multiply(handle, shape, (alpha, beta), matrices, false) }
}

/// One product.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasGemmEx(
    handle: *mut Handle,
    transpose_a: c_int,
    transpose_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: c_int,
    a_lead: c_int,
    b: *const c_void,
    b_type: c_int,
    b_lead: c_int,
    beta: *const c_void,
    c: *mut c_void,
    c_type: c_int,
    c_lead: c_int,
    compute: c_int,
    algorithm: c_int,
) -> Status {
    let shape = Shape { transpose: (transpose_a, transpose_b), m, n, k, count: 1, compute, algorithm };
    let matrices = [
        Matrix::new(a, a_type, a_lead, 0),
        Matrix::new(b, b_type, b_lead, 0),
        Matrix::new(c, c_type, c_lead, 0),
    ];
    // SAFETY: as documented.
    unsafe { multiply(handle, shape, (alpha, beta), matrices, false) }
}

/// Products whose matrices are given by arrays of addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasGemmBatchedEx(
    handle: *mut Handle,
    transpose_a: c_int,
    transpose_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: *const *const c_void,
    a_type: c_int,
    a_lead: c_int,
    b: *const *const c_void,
    b_type: c_int,
    b_lead: c_int,
    beta: *const c_void,
    c: *const *mut c_void,
    c_type: c_int,
    c_lead: c_int,
    count: c_int,
    compute: c_int,
    algorithm: c_int,
) -> Status {
    let shape = Shape { transpose: (transpose_a, transpose_b), m, n, k, count, compute, algorithm };
    let matrices = [
        Matrix::new(a.cast(), a_type, a_lead, 0),
        Matrix::new(b.cast(), b_type, b_lead, 0),
        Matrix::new(c.cast(), c_type, c_lead, 0),
    ];
    // SAFETY: as documented.
    unsafe { multiply(handle, shape, (alpha, beta), matrices, true) }
}

/// Functions of one type each: alike but for the type and how results are computed.
macro_rules! typed {
    ($($words:literal $single:ident $strided:ident $batched:ident $number:ty, $kind:expr, $compute:expr;)*) => {$(
        #[doc = concat!("One product of ", $words, ".")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $single(
            handle: *mut Handle, transpose_a: c_int, transpose_b: c_int, m: c_int, n: c_int, k: c_int,
            alpha: *const $number, a: *const $number, a_lead: c_int, b: *const $number, b_lead: c_int,
            beta: *const $number, c: *mut $number, c_lead: c_int,
        ) -> Status {
            let shape = Shape {
                transpose: (transpose_a, transpose_b), m, n, k, count: 1, compute: $compute, algorithm: DEFAULT,
            };
            let matrices = [
                Matrix::new(a.cast(), $kind, a_lead, 0),
                Matrix::new(b.cast(), $kind, b_lead, 0),
                Matrix::new(c.cast(), $kind, c_lead, 0),
            ];
            // SAFETY: as documented.
            unsafe { multiply(handle, shape, (alpha.cast(), beta.cast()), matrices, false) }
        }

        #[doc = concat!("Products of ", $words, " whose matrices lie at equal distances.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $strided(
            handle: *mut Handle, transpose_a: c_int, transpose_b: c_int, m: c_int, n: c_int, k: c_int,
            alpha: *const $number, a: *const $number, a_lead: c_int, a_stride: c_longlong,
            b: *const $number, b_lead: c_int, b_stride: c_longlong,
            beta: *const $number, c: *mut $number, c_lead: c_int, c_stride: c_longlong, count: c_int,
        ) -> Status {
            let shape = Shape {
                transpose: (transpose_a, transpose_b), m, n, k, count, compute: $compute, algorithm: DEFAULT,
            };
            let matrices = [
                Matrix::new(a.cast(), $kind, a_lead, a_stride),
                Matrix::new(b.cast(), $kind, b_lead, b_stride),
                Matrix::new(c.cast(), $kind, c_lead, c_stride),
            ];
            // SAFETY: as documented.
            unsafe { multiply(handle, shape, (alpha.cast(), beta.cast()), matrices, false) }
        }

        #[doc = concat!("Products of ", $words, " whose matrices are given by arrays of addresses.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $batched(
            handle: *mut Handle, transpose_a: c_int, transpose_b: c_int, m: c_int, n: c_int, k: c_int,
            alpha: *const $number, a: *const *const $number, a_lead: c_int, b: *const *const $number, b_lead: c_int,
            beta: *const $number, c: *const *mut $number, c_lead: c_int, count: c_int,
        ) -> Status {
            let shape = Shape {
                transpose: (transpose_a, transpose_b), m, n, k, count, compute: $compute, algorithm: DEFAULT,
            };
            let matrices = [
                Matrix::new(a.cast(), $kind, a_lead, 0),
                Matrix::new(b.cast(), $kind, b_lead, 0),
                Matrix::new(c.cast(), $kind, c_lead, 0),
            ];
            // SAFETY: as documented.
            unsafe { multiply(handle, shape, (alpha.cast(), beta.cast()), matrices, true) }
        }
    )*};
}
typed! {
    "f32" hl_cublasSgemm_v2 hl_cublasSgemmStridedBatched hl_cublasSgemmBatched f32, F32, COMPUTE_F32;
    "f64" hl_cublasDgemm_v2 hl_cublasDgemmStridedBatched hl_cublasDgemmBatched f64, F64, COMPUTE_F64;
    "complex f32" hl_cublasCgemm_v2 hl_cublasCgemmStridedBatched hl_cublasCgemmBatched [f32; 2], C32, COMPUTE_F32;
    "complex f64" hl_cublasZgemm_v2 hl_cublasZgemmStridedBatched hl_cublasZgemmBatched [f64; 2], C64, COMPUTE_F64;
    "f16" hl_cublasHgemm hl_cublasHgemmStridedBatched hl_cublasHgemmBatched u16, F16, COMPUTE_F16;
}

/// One product of matrices of any type, summed in single precision.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasSgemmEx(
    handle: *mut Handle,
    transpose_a: c_int,
    transpose_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const f32,
    a: *const c_void,
    a_type: c_int,
    a_lead: c_int,
    b: *const c_void,
    b_type: c_int,
    b_lead: c_int,
    beta: *const f32,
    c: *mut c_void,
    c_type: c_int,
    c_lead: c_int,
) -> Status {
    let shape = Shape {
        transpose: (transpose_a, transpose_b),
        m,
        n,
        k,
        count: 1,
        compute: COMPUTE_F32,
        algorithm: DEFAULT,
    };
    let matrices = [
        Matrix::new(a, a_type, a_lead, 0),
        Matrix::new(b, b_type, b_lead, 0),
        Matrix::new(c, c_type, c_lead, 0),
    ];
    // SAFETY: as documented.
    unsafe { multiply(handle, shape, (alpha.cast(), beta.cast()), matrices, false) }
}
