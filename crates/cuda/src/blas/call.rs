//! Functions of cuBLAS beside products of matrices: vectors, triangles, decompositions. All of them become one command.

use std::ffi::{c_int, c_void};

use hinterland_proto::gpu::command::{BlasCall, blas_functions as function};

use super::gemm::scalar;
use super::handle::Handle;
use super::{INVALID_VALUE, SUCCESS, Status, blas, status};
use crate::runtime::give;

/// `cudaDataType_t`
const F32: u32 = 0;
const F64: u32 = 1;
const C32: u32 = 4;
const C64: u32 = 5;

type Any = *const c_void;
type Out = *mut c_void;

/// Bytes of a number.
const fn bytes(kind: u32) -> usize {
    match kind {
        F32 => 4,
        C64 => 16,
        _ => 8,
    }
}

fn base(handle: u32, function: u32, kind: u32) -> BlasCall {
    BlasCall {
        handle,
        function,
        kind,
        in_memory: 0,
        options: [0; 3],
        more: 0,
        m: 0,
        n: 0,
        k: 0,
        a: 0,
        a_step: 0,
        b: 0,
        b_step: 0,
        c: 0,
        c_step: 0,
        count: 1,
        alpha: [0; 16],
        beta: [0; 16],
    }
}

fn place(address: Any, step: c_int) -> (u64, i64) {
    (address.addr() as u64, i64::from(step))
}

fn check(call: &BlasCall) -> Result<bool, Status> {
    if call.m < 0 || call.n < 0 || call.k < 0 || call.count < 0 {
        return Err(INVALID_VALUE);
    }
    Ok(call.m > 0 && call.count > 0)
}

/// Does a function whose scalars have so many bytes, where it has any.
///
/// # Safety
/// The handle lives; scalars that are not null have so many bytes in pointer mode 0.
unsafe fn run(
    handle: *mut Handle,
    (function, kind): (u32, u32),
    (alpha, beta, scalar_bytes): (Any, Any, usize),
    fill: impl FnOnce(&mut BlasCall),
) -> Status {
    blas(|session| {
        // SAFETY: the caller's promise.
        let handle = unsafe { Handle::of(handle)? };
        let settings = handle.settings();
        let mut call = base(handle.number, function, kind);
        fill(&mut call);
        if !check(&call)? {
            return Ok(());
        }
        // Modes are 0 and 1.
        call.in_memory = settings.pointer_mode as u32;
        for (given, to) in [(alpha, &mut call.alpha), (beta, &mut call.beta)] {
            if !given.is_null() {
                // SAFETY: the caller's promise.
                *to = unsafe { scalar(&settings, given, scalar_bytes)? };
            }
        }
        handle.issue(session, &settings, &call)
    })
}

/// Does a function with a result, which the host waits for in pointer mode 0.
///
/// # Safety
/// The handle lives; the result has room for so many bytes.
unsafe fn ask(
    handle: *mut Handle,
    (function, kind): (u32, u32),
    (result, result_bytes): (Out, usize),
    fill: impl FnOnce(&mut BlasCall),
) -> Status {
    blas(|session| {
        // SAFETY: the caller's promise.
        let handle = unsafe { Handle::of(handle)? };
        let settings = handle.settings();
        if result.is_null() {
            return Err(INVALID_VALUE);
        }
        let mut call = base(handle.number, function, kind);
        fill(&mut call);
        let is_some = check(&call)?;
        call.in_memory = 1;
        if settings.pointer_mode != 0 {
            call.c = result.addr() as u64;
            return handle.issue(session, &settings, &call);
        }
        if !is_some {
            // SAFETY: the caller's promise. Of nothing, everything is zero.
            unsafe { result.cast::<u8>().write_bytes(0, result_bytes) };
            return Ok(());
        }
        call.c = handle.scratch(session)?;
        handle.issue(session, &settings, &call)?;
        let from = std::ptr::without_provenance(call.c as usize);
        session.copy(&settings.stream, result, from, result_bytes).map_err(status)?;
        session.synchronize_stream(&settings.stream).map_err(status)
    })
}

/// Functions that have no result: words, names with the kind and the bytes of its scalars, the function, its arguments, and what they become.
macro_rules! functions {
    ($( $doc:literal [$($name:ident $kind:ident $scalar:literal),+] $function:ident $arguments:tt scalars $scalars:tt |$call:ident| $fill:block )*) => {
        $($( function! { $doc $name $kind $scalar $function $arguments $scalars $call $fill } )+)*
    };
}
macro_rules! function {
    ($doc:literal $name:ident $kind:ident $scalar:literal $function:ident ($($argument:ident: $type:ty),*) ($alpha:expr, $beta:expr) $call:ident $fill:block) => {
        #[doc = $doc]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: *mut Handle, $($argument: $type),*) -> Status {
            // SAFETY: as documented.
            unsafe { run(handle, (function::$function, $kind), ($alpha, $beta, $scalar), |$call| $fill) }
        }
    };
}
const NO: Any = std::ptr::null();
functions! {
    "Multiplies a matrix and a vector."
    [hl_cublasSgemv_v2 F32 4, hl_cublasDgemv_v2 F64 8, hl_cublasCgemv_v2 C32 8, hl_cublasZgemv_v2 C64 16] GEMV
    (transpose: c_int, m: c_int, n: c_int, alpha: Any, a: Any, a_lead: c_int, x: Any, x_step: c_int, beta: Any, y: Out, y_step: c_int)
    scalars(alpha, beta) |call| {
        call.options[0] = transpose as u32;
        (call.m, call.n) = (i64::from(m), i64::from(n));
        (call.a, call.a_step) = place(a, a_lead);
        (call.b, call.b_step) = place(x, x_step);
        (call.c, call.c_step) = place(y, y_step);
    }
    "Adds the product of a column and a row to a matrix."
    [hl_cublasSger_v2 F32 4, hl_cublasDger_v2 F64 8, hl_cublasCgeru_v2 C32 8, hl_cublasZgeru_v2 C64 16] GER
    (m: c_int, n: c_int, alpha: Any, x: Any, x_step: c_int, y: Any, y_step: c_int, a: Out, a_lead: c_int)
    scalars(alpha, NO) |call| {
        (call.m, call.n) = (i64::from(m), i64::from(n));
        (call.a, call.a_step) = place(x, x_step);
        (call.b, call.b_step) = place(y, y_step);
        (call.c, call.c_step) = place(a, a_lead);
    }
    "The same with the row conjugated."
    [hl_cublasCgerc_v2 C32 8, hl_cublasZgerc_v2 C64 16] GERC
    (m: c_int, n: c_int, alpha: Any, x: Any, x_step: c_int, y: Any, y_step: c_int, a: Out, a_lead: c_int)
    scalars(alpha, NO) |call| {
        (call.m, call.n) = (i64::from(m), i64::from(n));
        (call.a, call.a_step) = place(x, x_step);
        (call.b, call.b_step) = place(y, y_step);
        (call.c, call.c_step) = place(a, a_lead);
    }
    "Adds a multiple of a vector to another."
    [hl_cublasSaxpy_v2 F32 4, hl_cublasDaxpy_v2 F64 8, hl_cublasCaxpy_v2 C32 8, hl_cublasZaxpy_v2 C64 16] AXPY
    (n: c_int, alpha: Any, x: Any, x_step: c_int, y: Out, y_step: c_int) scalars(alpha, NO) |call| {
        call.m = i64::from(n);
        (call.a, call.a_step) = place(x, x_step);
        (call.c, call.c_step) = place(y, y_step);
    }
    "Multiplies a vector."
    [hl_cublasSscal_v2 F32 4, hl_cublasDscal_v2 F64 8, hl_cublasCscal_v2 C32 8, hl_cublasZscal_v2 C64 16] SCAL
    (n: c_int, alpha: Any, x: Out, x_step: c_int) scalars(alpha, NO) |call| {
        call.m = i64::from(n);
        (call.c, call.c_step) = place(x, x_step);
    }
    "Multiplies a vector by a real number."
    [hl_cublasCsscal_v2 C32 4, hl_cublasZdscal_v2 C64 8] SCAL_REAL
    (n: c_int, alpha: Any, x: Out, x_step: c_int) scalars(alpha, NO) |call| {
        call.m = i64::from(n);
        (call.c, call.c_step) = place(x, x_step);
    }
    "Copies a vector."
    [hl_cublasScopy_v2 F32 0, hl_cublasDcopy_v2 F64 0, hl_cublasCcopy_v2 C32 0, hl_cublasZcopy_v2 C64 0] COPY
    (n: c_int, x: Any, x_step: c_int, y: Out, y_step: c_int) scalars(NO, NO) |call| {
        call.m = i64::from(n);
        (call.a, call.a_step) = place(x, x_step);
        (call.c, call.c_step) = place(y, y_step);
    }
    "Exchanges two vectors."
    [hl_cublasSswap_v2 F32 0, hl_cublasDswap_v2 F64 0, hl_cublasCswap_v2 C32 0, hl_cublasZswap_v2 C64 0] SWAP
    (n: c_int, x: Out, x_step: c_int, y: Out, y_step: c_int) scalars(NO, NO) |call| {
        call.m = i64::from(n);
        (call.a, call.a_step) = place(x, x_step);
        (call.c, call.c_step) = place(y, y_step);
    }
    "Solves a triangular system of many right sides."
    [hl_cublasStrsm_v2 F32 4, hl_cublasDtrsm_v2 F64 8, hl_cublasCtrsm_v2 C32 8, hl_cublasZtrsm_v2 C64 16] TRSM
    (side: c_int, fill: c_int, transpose: c_int, diagonal: c_int, m: c_int, n: c_int, alpha: Any, a: Any, a_lead: c_int, b: Out, b_lead: c_int)
    scalars(alpha, NO) |call| {
        call.options = [side as u32, fill as u32, transpose as u32];
        call.more = diagonal as u32;
        (call.m, call.n) = (i64::from(m), i64::from(n));
        (call.a, call.a_step) = place(a, a_lead);
        (call.c, call.c_step) = place(b, b_lead);
    }
    "Solves triangular systems whose matrices are given by arrays of addresses."
    [hl_cublasStrsmBatched F32 4, hl_cublasDtrsmBatched F64 8, hl_cublasCtrsmBatched C32 8, hl_cublasZtrsmBatched C64 16] TRSM_POINTERS
    (side: c_int, fill: c_int, transpose: c_int, diagonal: c_int, m: c_int, n: c_int, alpha: Any, a: Any, a_lead: c_int, b: Any, b_lead: c_int, count: c_int)
    scalars(alpha, NO) |call| {
        call.options = [side as u32, fill as u32, transpose as u32];
        call.more = diagonal as u32;
        (call.m, call.n, call.count) = (i64::from(m), i64::from(n), i64::from(count));
        (call.a, call.a_step) = place(a, a_lead);
        (call.c, call.c_step) = place(b, b_lead);
    }
    "Multiplies by a triangle."
    [hl_cublasStrmm_v2 F32 4, hl_cublasDtrmm_v2 F64 8, hl_cublasCtrmm_v2 C32 8, hl_cublasZtrmm_v2 C64 16] TRMM
    (side: c_int, fill: c_int, transpose: c_int, diagonal: c_int, m: c_int, n: c_int, alpha: Any, a: Any, a_lead: c_int, b: Any, b_lead: c_int, c: Out, c_lead: c_int)
    scalars(alpha, NO) |call| {
        call.options = [side as u32, fill as u32, transpose as u32];
        call.more = diagonal as u32;
        (call.m, call.n) = (i64::from(m), i64::from(n));
        (call.a, call.a_step) = place(a, a_lead);
        (call.b, call.b_step) = place(b, b_lead);
        (call.c, call.c_step) = place(c, c_lead);
    }
    "Solves a triangular system."
    [hl_cublasStrsv_v2 F32 0, hl_cublasDtrsv_v2 F64 0, hl_cublasCtrsv_v2 C32 0, hl_cublasZtrsv_v2 C64 0] TRSV
    (fill: c_int, transpose: c_int, diagonal: c_int, n: c_int, a: Any, a_lead: c_int, x: Out, x_step: c_int) scalars(NO, NO) |call| {
        call.options = [fill as u32, transpose as u32, diagonal as u32];
        call.m = i64::from(n);
        (call.a, call.a_step) = place(a, a_lead);
        (call.c, call.c_step) = place(x, x_step);
    }
    "Multiplies a triangle and a vector."
    [hl_cublasStrmv_v2 F32 0, hl_cublasDtrmv_v2 F64 0, hl_cublasCtrmv_v2 C32 0, hl_cublasZtrmv_v2 C64 0] TRMV
    (fill: c_int, transpose: c_int, diagonal: c_int, n: c_int, a: Any, a_lead: c_int, x: Out, x_step: c_int) scalars(NO, NO) |call| {
        call.options = [fill as u32, transpose as u32, diagonal as u32];
        call.m = i64::from(n);
        (call.a, call.a_step) = place(a, a_lead);
        (call.c, call.c_step) = place(x, x_step);
    }
    "Adds the product of a matrix and its transpose to one half of a symmetric matrix."
    [hl_cublasSsyrk_v2 F32 4, hl_cublasDsyrk_v2 F64 8, hl_cublasCsyrk_v2 C32 8, hl_cublasZsyrk_v2 C64 16] SYRK
    (fill: c_int, transpose: c_int, n: c_int, k: c_int, alpha: Any, a: Any, a_lead: c_int, beta: Any, c: Out, c_lead: c_int)
    scalars(alpha, beta) |call| {
        call.options = [fill as u32, transpose as u32, 0];
        (call.m, call.k) = (i64::from(n), i64::from(k));
        (call.a, call.a_step) = place(a, a_lead);
        (call.c, call.c_step) = place(c, c_lead);
    }
    "The same with the transpose conjugated, and real factors."
    [hl_cublasCherk_v2 C32 4, hl_cublasZherk_v2 C64 8] HERK
    (fill: c_int, transpose: c_int, n: c_int, k: c_int, alpha: Any, a: Any, a_lead: c_int, beta: Any, c: Out, c_lead: c_int)
    scalars(alpha, beta) |call| {
        call.options = [fill as u32, transpose as u32, 0];
        (call.m, call.k) = (i64::from(n), i64::from(k));
        (call.a, call.a_step) = place(a, a_lead);
        (call.c, call.c_step) = place(c, c_lead);
    }
    "Multiplies by a symmetric matrix."
    [hl_cublasSsymm_v2 F32 4, hl_cublasDsymm_v2 F64 8, hl_cublasCsymm_v2 C32 8, hl_cublasZsymm_v2 C64 16] SYMM
    (side: c_int, fill: c_int, m: c_int, n: c_int, alpha: Any, a: Any, a_lead: c_int, b: Any, b_lead: c_int, beta: Any, c: Out, c_lead: c_int)
    scalars(alpha, beta) |call| {
        call.options = [side as u32, fill as u32, 0];
        (call.m, call.n) = (i64::from(m), i64::from(n));
        (call.a, call.a_step) = place(a, a_lead);
        (call.b, call.b_step) = place(b, b_lead);
        (call.c, call.c_step) = place(c, c_lead);
    }
    "Multiplies by a Hermitian matrix."
    [hl_cublasChemm_v2 C32 8, hl_cublasZhemm_v2 C64 16] HEMM
    (side: c_int, fill: c_int, m: c_int, n: c_int, alpha: Any, a: Any, a_lead: c_int, b: Any, b_lead: c_int, beta: Any, c: Out, c_lead: c_int)
    scalars(alpha, beta) |call| {
        call.options = [side as u32, fill as u32, 0];
        (call.m, call.n) = (i64::from(m), i64::from(n));
        (call.a, call.a_step) = place(a, a_lead);
        (call.b, call.b_step) = place(b, b_lead);
        (call.c, call.c_step) = place(c, c_lead);
    }
    "Decomposes matrices into triangles. The array of pivots may be null: then rows stay where they are."
    [hl_cublasSgetrfBatched F32 0, hl_cublasDgetrfBatched F64 0, hl_cublasCgetrfBatched C32 0, hl_cublasZgetrfBatched C64 0] GETRF
    (n: c_int, a: Any, a_lead: c_int, pivots: Out, info: Out, count: c_int) scalars(NO, NO) |call| {
        (call.m, call.count) = (i64::from(n), i64::from(count));
        (call.a, call.a_step) = place(a, a_lead);
        (call.b, call.b_step) = place(pivots, 0);
        (call.c, call.c_step) = place(info, 0);
    }
    "Inverts matrices that were decomposed."
    [hl_cublasSgetriBatched F32 0, hl_cublasDgetriBatched F64 0, hl_cublasCgetriBatched C32 0, hl_cublasZgetriBatched C64 0] GETRI
    (n: c_int, a: Any, a_lead: c_int, pivots: Any, c: Any, c_lead: c_int, info: Out, count: c_int) scalars(NO, NO) |call| {
        (call.m, call.count) = (i64::from(n), i64::from(count));
        (call.a, call.a_step) = place(a, a_lead);
        (call.b, call.b_step) = place(pivots, 0);
        (call.c, call.c_step) = place(c, c_lead);
        call.alpha[..8].copy_from_slice(&(info.addr() as u64).to_le_bytes());
    }
}

/// Functions that also say on the host whether the arguments were good: 0 it is.
macro_rules! checked {
    ($( $doc:literal [$($name:ident $kind:ident),+] $function:ident $arguments:tt |$call:ident| $fill:block )*) => {
        $($( checked_function! { $doc $name $kind $function $arguments $call $fill } )+)*
    };
}
macro_rules! checked_function {
    ($doc:literal $name:ident $kind:ident $function:ident ($($argument:ident: $type:ty),*; $info:ident; $($last:ident: $last_type:ty),*) $call:ident $fill:block) => {
        #[doc = $doc]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: *mut Handle, $($argument: $type,)* $info: *mut c_int, $($last: $last_type),*) -> Status {
            // SAFETY: as documented.
            let done = unsafe { run(handle, (function::$function, $kind), (NO, NO, 0), |$call| $fill) };
            if done == SUCCESS {
                // SAFETY: a place for a result, as documented.
                return blas(|_| unsafe { give($info, 0).map_err(status) });
            }
            done
        }
    };
}
checked! {
    "Solves systems whose matrices were decomposed."
    [hl_cublasSgetrsBatched F32, hl_cublasDgetrsBatched F64, hl_cublasCgetrsBatched C32, hl_cublasZgetrsBatched C64] GETRS
    (transpose: c_int, n: c_int, sides: c_int, a: Any, a_lead: c_int, pivots: Any, b: Any, b_lead: c_int; info; count: c_int) |call| {
        call.options[0] = transpose as u32;
        (call.m, call.n, call.count) = (i64::from(n), i64::from(sides), i64::from(count));
        (call.a, call.a_step) = place(a, a_lead);
        (call.b, call.b_step) = place(pivots, 0);
        (call.c, call.c_step) = place(b, b_lead);
    }
    "Decomposes matrices into reflections and a triangle."
    [hl_cublasSgeqrfBatched F32, hl_cublasDgeqrfBatched F64, hl_cublasCgeqrfBatched C32, hl_cublasZgeqrfBatched C64] GEQRF
    (m: c_int, n: c_int, a: Any, a_lead: c_int, factors: Any; info; count: c_int) |call| {
        (call.m, call.n, call.count) = (i64::from(m), i64::from(n), i64::from(count));
        (call.a, call.a_step) = place(a, a_lead);
        (call.b, call.b_step) = place(factors, 0);
    }
    "Solves systems by least squares."
    [hl_cublasSgelsBatched F32, hl_cublasDgelsBatched F64, hl_cublasCgelsBatched C32, hl_cublasZgelsBatched C64] GELS
    (transpose: c_int, m: c_int, n: c_int, sides: c_int, a: Any, a_lead: c_int, c: Any, c_lead: c_int; info; singular: Out, count: c_int) |call| {
        call.options[0] = transpose as u32;
        (call.m, call.n, call.k) = (i64::from(m), i64::from(n), i64::from(sides));
        call.count = i64::from(count);
        (call.a, call.a_step) = place(a, a_lead);
        (call.b, call.b_step) = place(singular, 0);
        (call.c, call.c_step) = place(c, c_lead);
    }
}

/// Functions of two vectors with a number as their result.
macro_rules! results_of_two {
    ($( $doc:literal [$($name:ident $kind:ident $bytes:expr),+] $function:ident )*) => {$($(
        #[doc = $doc]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            handle: *mut Handle, n: c_int, x: Any, x_step: c_int, y: Any, y_step: c_int, result: Out,
        ) -> Status {
            // SAFETY: as documented.
            unsafe { ask(handle, (function::$function, $kind), (result, $bytes), |call| {
                call.m = i64::from(n);
                (call.a, call.a_step) = place(x, x_step);
                (call.b, call.b_step) = place(y, y_step);
            }) }
        }
    )+)*};
}
/// Functions of one vector likewise.
macro_rules! results_of_one {
    ($( $doc:literal [$($name:ident $kind:ident $bytes:expr),+] $function:ident )*) => {$($(
        #[doc = $doc]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(handle: *mut Handle, n: c_int, x: Any, x_step: c_int, result: Out) -> Status {
            // SAFETY: as documented.
            unsafe { ask(handle, (function::$function, $kind), (result, $bytes), |call| {
                call.m = i64::from(n);
                (call.a, call.a_step) = place(x, x_step);
            }) }
        }
    )+)*};
}
results_of_two! {
    "The sum of products of two vectors."
    [hl_cublasSdot_v2 F32 bytes(F32), hl_cublasDdot_v2 F64 bytes(F64), hl_cublasCdotu_v2 C32 bytes(C32), hl_cublasZdotu_v2 C64 bytes(C64)] DOT
    "The same with the first vector conjugated."
    [hl_cublasCdotc_v2 C32 bytes(C32), hl_cublasZdotc_v2 C64 bytes(C64)] DOTC
}
results_of_one! {
    "The length of a vector."
    [hl_cublasSnrm2_v2 F32 4, hl_cublasDnrm2_v2 F64 8, hl_cublasScnrm2_v2 C32 4, hl_cublasDznrm2_v2 C64 8] NRM2
    "The sum of magnitudes of a vector."
    [hl_cublasSasum_v2 F32 4, hl_cublasDasum_v2 F64 8, hl_cublasScasum_v2 C32 4, hl_cublasDzasum_v2 C64 8] ASUM
    "Where the largest magnitude of a vector is, counted from 1."
    [hl_cublasIsamax_v2 F32 4, hl_cublasIdamax_v2 F64 4, hl_cublasIcamax_v2 C32 4, hl_cublasIzamax_v2 C64 4] IAMAX
    "Where the smallest magnitude of a vector is, counted from 1."
    [hl_cublasIsamin_v2 F32 4, hl_cublasIdamin_v2 F64 4, hl_cublasIcamin_v2 C32 4, hl_cublasIzamin_v2 C64 4] IAMIN
}

/// The sum of products of two vectors of one type, which the result has, too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasDotEx(
    handle: *mut Handle,
    n: c_int,
    x: Any,
    x_type: c_int,
    x_step: c_int,
    y: Any,
    y_type: c_int,
    y_step: c_int,
    result: Out,
    result_type: c_int,
    _execution: c_int,
) -> Status {
    const HALVES: [c_int; 2] = [2, 14];
    if x_type != y_type || x_type != result_type {
        return super::NOT_SUPPORTED;
    }
    let kind = x_type as u32;
    let result_bytes = if HALVES.contains(&x_type) { 2 } else { bytes(kind) };
    // SAFETY: as documented.
    unsafe {
        ask(handle, (function::DOT, kind), (result, result_bytes), |call| {
            call.m = i64::from(n);
            (call.a, call.a_step) = place(x, x_step);
            (call.b, call.b_step) = place(y, y_step);
        })
    }
}
