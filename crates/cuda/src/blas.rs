//! Functions of `libcublas`, as its documentation describes them: settings are kept here, products are sent.

pub mod call;
pub mod gemm;
pub mod handle;
pub mod lt;
pub mod transfer;

use std::ffi::c_int;

use crate::code::Code;
use crate::core::session::{Session, session};

/// `cublasStatus_t`
pub type Status = c_int;

/// `CUBLAS_STATUS_SUCCESS`
pub const SUCCESS: Status = 0;
/// `CUBLAS_STATUS_NOT_INITIALIZED`
pub const NOT_INITIALIZED: Status = 1;
/// `CUBLAS_STATUS_ALLOC_FAILED`
pub const NO_MEMORY: Status = 3;
/// `CUBLAS_STATUS_INVALID_VALUE`
pub const INVALID_VALUE: Status = 7;
/// `CUBLAS_STATUS_EXECUTION_FAILED`
pub const EXECUTION_FAILED: Status = 13;
/// `CUBLAS_STATUS_INTERNAL_ERROR`
pub const INTERNAL: Status = 14;
/// `CUBLAS_STATUS_NOT_SUPPORTED`
pub const NOT_SUPPORTED: Status = 15;

/// What cuBLAS returns for an error of the session.
fn status(code: Code) -> Status {
    match code {
        crate::code::SUCCESS => SUCCESS,
        crate::code::INVALID_VALUE => INVALID_VALUE,
        crate::code::NO_MEMORY => NO_MEMORY,
        crate::code::NO_DEVICE | crate::code::NOT_INITIALIZED => NOT_INITIALIZED,
        crate::code::NOT_SUPPORTED => NOT_SUPPORTED,
        crate::code::UNAVAILABLE => INTERNAL,
        _ => EXECUTION_FAILED,
    }
}

/// Runs a function of cuBLAS with the session.
fn blas(work: impl FnOnce(&'static Session) -> Result<(), Status>) -> Status {
    match session() {
        Ok(session) => work(session).err().unwrap_or(SUCCESS),
        Err(code) => status(code),
    }
}
