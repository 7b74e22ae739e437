//! Products of matrices: all of them become one of two commands.

use std::ffi::{c_int, c_longlong, c_void};

use hinterland_proto::gpu::Message;
use hinterland_proto::gpu::command::{BlasGemm, BlasGemmPointers, BlasTrsmPointers};

use super::handle::{Handle, Settings};
use super::{INVALID_VALUE, NOT_SUPPORTED, Status, blas, status};
use crate::core::outbox::Effect;
use crate::core::session::Session;

/// `cudaDataType_t`: real numbers.
const F32: c_int = 0;
const F64: c_int = 1;
const F16: c_int = 2;
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
unsafe fn scalar(settings: &Settings, place: *const c_void, bytes: usize) -> Result<[u8; 16], Status> {
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

fn issue<M: Message>(session: &Session, settings: &Settings, message: &M) -> Result<(), Status> {
    session.issue(&settings.stream, Effect::Visible, message, 0, |_| ()).map(drop).map_err(status)
}

/// # Safety
/// As `cublasGemmStridedBatchedEx` is documented.
unsafe fn gemm(
    handle: *mut Handle,
    shape: Shape,
    scalars: (*const c_void, *const c_void),
    [a, b, c]: [Matrix; 3],
) -> Status {
    blas(|session| {
        // SAFETY: as documented.
        let handle = unsafe { Handle::of(handle)? };
        let settings = handle.settings();
        if !sizes(&shape)? {
            return Ok(());
        }
        let bytes = scalar_bytes(shape.compute, c.kind)?;
        let message = BlasGemm {
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
        issue(session, &settings, &message)
    })
}

/// The same for arrays of addresses in device memory.
///
/// # Safety
/// As `cublasGemmBatchedEx` is documented.
unsafe fn gemm_pointers(
    handle: *mut Handle,
    shape: Shape,
    scalars: (*const c_void, *const c_void),
    [a, b, c]: [Matrix; 3],
) -> Status {
    blas(|session| {
        // SAFETY: as documented.
        let handle = unsafe { Handle::of(handle)? };
        let settings = handle.settings();
        if !sizes(&shape)? {
            return Ok(());
        }
        let bytes = scalar_bytes(shape.compute, c.kind)?;
        let message = BlasGemmPointers {
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
            b: b.number(),
            b_lead: i64::from(b.lead),
            c: c.number(),
            c_type: c.kind as u32,
            algorithm: shape.algorithm,
            c_lead: i64::from(c.lead),
            count: i64::from(shape.count),
            // SAFETY: as documented.
            alpha: unsafe { scalar(&settings, scalars.0, bytes)? },
            // SAFETY: as documented.
            beta: unsafe { scalar(&settings, scalars.1, bytes)? },
        };
        issue(session, &settings, &message)
    })
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
    unsafe { gemm(handle, shape, (alpha, beta), matrices) }
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
    unsafe { gemm(handle, shape, (alpha, beta), matrices) }
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
    unsafe { gemm_pointers(handle, shape, (alpha, beta), matrices) }
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
            unsafe { gemm(handle, shape, (alpha.cast(), beta.cast()), matrices) }
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
            unsafe { gemm(handle, shape, (alpha.cast(), beta.cast()), matrices) }
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
            unsafe { gemm_pointers(handle, shape, (alpha.cast(), beta.cast()), matrices) }
        }
    )*};
}
typed! {
    "f32" hl_cublasSgemm_v2 hl_cublasSgemmStridedBatched hl_cublasSgemmBatched f32, F32, COMPUTE_F32;
    "f64" hl_cublasDgemm_v2 hl_cublasDgemmStridedBatched hl_cublasDgemmBatched f64, F64, COMPUTE_F64;
    "f16" hl_cublasHgemm hl_cublasHgemmStridedBatched hl_cublasHgemmBatched u16, F16, COMPUTE_F16;
}

/// Solves triangular systems of f32 whose matrices are given by arrays of addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasStrsmBatched(
    handle: *mut Handle,
    side: c_int,
    fill: c_int,
    transpose: c_int,
    diagonal: c_int,
    m: c_int,
    n: c_int,
    alpha: *const f32,
    a: *const *const f32,
    a_lead: c_int,
    b: *const *mut f32,
    b_lead: c_int,
    count: c_int,
) -> Status {
    blas(|session| {
        // SAFETY: as documented.
        let handle = unsafe { Handle::of(handle)? };
        let settings = handle.settings();
        if [m, n, count].iter().any(|size| *size < 0) {
            return Err(INVALID_VALUE);
        }
        let message = BlasTrsmPointers {
            handle: handle.number,
            side: side as u32,
            fill: fill as u32,
            transpose: transpose as u32,
            diagonal: diagonal as u32,
            kind: F32 as u32,
            m: i64::from(m),
            n: i64::from(n),
            a: a.addr() as u64,
            a_lead: i64::from(a_lead),
            b: b.addr() as u64,
            b_lead: i64::from(b_lead),
            count: i64::from(count),
            // SAFETY: as documented.
            alpha: unsafe { scalar(&settings, alpha.cast(), 4)? },
        };
        issue(session, &settings, &message)
    })
}
