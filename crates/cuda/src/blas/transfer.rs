//! Copies of vectors and matrices between the program and a device, by cuBLAS's functions for that, and hints that are let go.

use std::ffi::{c_int, c_void};

use super::handle::Handle;
use super::{INVALID_VALUE, Status, blas, status};
use crate::core::device::Rows;
use crate::core::session::Session;

/// Copies rows of `width` bytes in the order of a stream; `steps` are in bytes.
fn copy(
    session: &Session,
    (from, from_step): (*const c_void, i64),
    (to, to_step): (*mut c_void, i64),
    (width, rows): (i64, i64),
    stream: *mut c_void,
) -> Result<(), Status> {
    let positive = |number: i64| u64::try_from(number).map_err(|_| INVALID_VALUE);
    let to = Rows { start: to.expose_provenance() as u64, pitch: positive(to_step)? };
    let from = Rows { start: from.expose_provenance() as u64, pitch: positive(from_step)? };
    let stream = session.stream(stream).map_err(status)?;
    session.copy_rows(&stream, to, from, positive(width)?, positive(rows)?).map_err(status)
}

/// Functions that copy in the order of a stream, and those that wait.
macro_rules! copies {
    ($($words:literal $vector:ident $vector_later:ident $matrix:ident $matrix_later:ident;)*) => {$(
        #[doc = concat!("Copies a vector ", $words, " in the order of a stream.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $vector_later(
            n: c_int, bytes: c_int, x: *const c_void, x_step: c_int, y: *mut c_void, y_step: c_int, stream: *mut c_void,
        ) -> Status {
            let (size, step) = (i64::from(bytes), |step: c_int| i64::from(step) * i64::from(bytes));
            blas(|session| copy(session, (x, step(x_step)), (y, step(y_step)), (size, i64::from(n)), stream))
        }

        #[doc = concat!("Copies a matrix ", $words, " in the order of a stream.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $matrix_later(
            rows: c_int, columns: c_int, bytes: c_int, a: *const c_void, a_lead: c_int, b: *mut c_void, b_lead: c_int,
            stream: *mut c_void,
        ) -> Status {
            let of = |count: c_int| i64::from(count) * i64::from(bytes);
            blas(|session| copy(session, (a, of(a_lead)), (b, of(b_lead)), (of(rows), i64::from(columns)), stream))
        }

        #[doc = concat!("Copies a vector ", $words, ", and waits.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $vector(
            n: c_int, bytes: c_int, x: *const c_void, x_step: c_int, y: *mut c_void, y_step: c_int,
        ) -> Status {
            // SAFETY: as documented.
            match unsafe { $vector_later(n, bytes, x, x_step, y, y_step, std::ptr::null_mut()) } {
                0 => wait(),
                code => code,
            }
        }

        #[doc = concat!("Copies a matrix ", $words, ", and waits.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $matrix(
            rows: c_int, columns: c_int, bytes: c_int, a: *const c_void, a_lead: c_int, b: *mut c_void, b_lead: c_int,
        ) -> Status {
            // SAFETY: as documented.
            match unsafe { $matrix_later(rows, columns, bytes, a, a_lead, b, b_lead, std::ptr::null_mut()) } {
                0 => wait(),
                code => code,
            }
        }
    )*};
}
copies! {
    "to a device" hl_cublasSetVector hl_cublasSetVectorAsync hl_cublasSetMatrix hl_cublasSetMatrixAsync;
    "from a device" hl_cublasGetVector hl_cublasGetVectorAsync hl_cublasGetMatrix hl_cublasGetMatrixAsync;
}

fn wait() -> Status {
    blas(|session| {
        let stream = session.default_stream().map_err(status)?;
        session.synchronize_stream(&stream).map_err(status)
    })
}

/// How many multiprocessors to use is a hint, which is let go.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasSetSmCountTarget(handle: *mut Handle, _count: c_int) -> Status {
    // SAFETY: as documented.
    blas(|_| unsafe { Handle::of(handle) }.map(drop))
}
