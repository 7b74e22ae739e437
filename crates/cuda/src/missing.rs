//! Symbols that programs may link against and that do nothing yet: each says its name once and returns "not supported".

use std::collections::HashSet;
use std::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, PoisonError};

use crate::code::NOT_SUPPORTED;

/// `CUBLAS_STATUS_NOT_SUPPORTED`
const BLAS_NOT_SUPPORTED: c_int = 15;
/// `NVML_ERROR_NOT_SUPPORTED`
const NVML_NOT_SUPPORTED: c_int = 3;

static SAID: Mutex<Option<HashSet<&'static CStr>>> = Mutex::new(None);

/// # Safety
/// `name` is a constant string.
unsafe fn say(name: *const c_char) {
    // SAFETY: the caller's promise.
    let name: &'static CStr = unsafe { CStr::from_ptr(name) };
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.get_or_insert_default().insert(name) {
        eprintln!(
            "hinterland: {} is not supported for a GPU elsewhere (hint: `hinterland gpu coverage PROGRAM` lists what is)",
            name.to_string_lossy()
        );
    }
}

/// A symbol of the runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_missing_cudart(name: *const c_char) -> c_int {
    // SAFETY: the stubs give constant strings.
    unsafe { say(name) };
    crate::core::thread::record(Err(NOT_SUPPORTED))
}

/// A symbol of the driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_missing_cuda(name: *const c_char) -> c_int {
    // SAFETY: the stubs give constant strings.
    unsafe { say(name) };
    NOT_SUPPORTED
}

/// A symbol of cuBLAS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_missing_cublas(name: *const c_char) -> c_int {
    // SAFETY: the stubs give constant strings.
    unsafe { say(name) };
    BLAS_NOT_SUPPORTED
}

/// A symbol of cuBLASLt.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_missing_cublaslt(name: *const c_char) -> c_int {
    // SAFETY: the stubs give constant strings.
    unsafe { say(name) };
    BLAS_NOT_SUPPORTED
}

/// A symbol of NVML.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_missing_nvml(name: *const c_char) -> c_int {
    // SAFETY: the stubs give constant strings.
    unsafe { say(name) };
    NVML_NOT_SUPPORTED
}
