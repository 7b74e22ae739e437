//! Errors and versions.

use std::ffi::{c_char, c_int};

use super::give;
use crate::code::{Code, runtime_name, words};
use crate::core::session::present;
use crate::core::thread::{last_error, runtime, with_session};

/// The version of the runtime that these libraries are like.
pub(crate) const RUNTIME_VERSION: c_int = 13_000;

/// The last error, which is forgotten; a fault of the device is not.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaGetLastError() -> Code {
    seen(last_error(true))
}

/// The last error.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaPeekAtLastError() -> Code {
    seen(last_error(false))
}

/// A fault of the device hides behind no success.
fn seen(last: Code) -> Code {
    match present().map_or(0, |session| session.sticky()) {
        0 => last,
        sticky => sticky,
    }
}

/// The name of an error.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaGetErrorName(code: Code) -> *const c_char {
    runtime_name(code).as_ptr()
}

/// What an error means.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaGetErrorString(code: Code) -> *const c_char {
    words(code).as_ptr()
}

/// The version of the node's driver.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaDriverGetVersion(version: *mut c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    with_session(|session| unsafe { give(version, session.welcome.driver) })
}

/// The version of the runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaRuntimeGetVersion(version: *mut c_int) -> Code {
    // SAFETY: a place for a result, as documented.
    runtime(|| unsafe { give(version, RUNTIME_VERSION) })
}
