//! Symbols that programs may link against and that do nothing yet: each says its name once and returns "not supported". Names that
//! programs look up and that are not there are said once, too.

use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::{Mutex, Once, OnceLock, PoisonError};

use crate::code::NOT_SUPPORTED;
use crate::core::session::{VERBOSE, is_set};

/// `CUBLAS_STATUS_NOT_SUPPORTED`
const BLAS_NOT_SUPPORTED: c_int = 15;
/// `NVML_ERROR_NOT_SUPPORTED`
const NVML_NOT_SUPPORTED: c_int = 3;

/// Names that are said of those that a program looks up: it may only try which there are, and has hundreds to try.
const LOOKED_UP_MAX: usize = 32;

/// What keeps memory and events from being shared.
const IPC: &str = ": each program has memory and events of its own there, which no other one sees, on the same GPU neither (hint: threads of one process, or copies through memory that both map)";

static SAID: Mutex<Option<HashSet<&'static CStr>>> = Mutex::new(None);
static LOOKED_UP: Mutex<Option<HashSet<CString>>> = Mutex::new(None);

/// Says that a program has looked up a function of the driver that is not there, if it is asked to say much; once a name, and of
/// [`LOOKED_UP_MAX`] names. Runtimes look up all that they know, and need few.
pub(crate) fn say_not_found(name: &CStr) {
    static SAYS: OnceLock<bool> = OnceLock::new();
    if !SAYS.get_or_init(|| is_set(VERBOSE)) {
        return;
    }
    let mut all = LOOKED_UP.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_default();
    if all.len() > LOOKED_UP_MAX || all.contains(name) {
        return;
    }
    all.insert(name.to_owned());
    // A program's name for a function does not get to steer the terminal.
    let name = name.to_bytes().escape_ascii();
    if all.len() > LOOKED_UP_MAX {
        eprintln!("hinterland: more functions were looked up that are not there; they are not named");
    } else {
        eprintln!(
            "hinterland: {name} was looked up and is not there for a GPU elsewhere (hint: a program that goes on has no need of it)"
        );
    }
}

/// # Safety
/// `name` is a constant string.
unsafe fn say(name: *const c_char) {
    // SAFETY: the caller's promise.
    let name: &'static CStr = unsafe { CStr::from_ptr(name) };
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    if said.get_or_insert_default().insert(name) {
        eprintln!("hinterland: {} is not supported for a GPU elsewhere{}", name.to_string_lossy(), why(name));
    }
}

/// Why, as far as there is more to say than that, and what to try.
fn why(name: &CStr) -> &'static str {
    const SHARE: [&str; 8] = [
        "cudaIpc",
        "cuIpc",
        "cuMemExportToShareableHandle",
        "cuMemImportFromShareableHandle",
        "cudaMemPoolExport",
        "cudaMemPoolImport",
        "cuMemPoolExport",
        "cuMemPoolImport",
    ];
    let name = name.to_bytes();
    if SHARE.iter().any(|start| name.starts_with(start.as_bytes())) {
        IPC
    } else {
        " (hint: `hinterland gpu coverage PROGRAM` lists what is)"
    }
}

/// Says that an event cannot be given to another process, once.
pub(crate) fn say_no_shared_event() {
    static SAYS: Once = Once::new();
    SAYS.call_once(|| {
        eprintln!("hinterland: events of several processes are not supported for a GPU elsewhere{IPC}")
    });
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
