//! Functions of the driver by name, for programs that ask for them in place of linking.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use crate::code::{Code, INVALID_VALUE, NOT_FOUND};
use crate::core::thread::record;
use crate::missing::say_not_found;
use crate::runtime::give_if;

/// A later version of a function has its number behind the name; programs ask for the plain one.
const VERSIONS: &[&str] = &["_v4", "_v3", "_v2", ""];
/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`
const SYMBOL_NOT_FOUND: c_int = 1;

/// This library, as the loader knows it.
fn own_library() -> Option<NonNull<c_void>> {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        // SAFETY: the structure is plain, and the address is that of a function of ours.
        unsafe {
            let mut place: libc::Dl_info = std::mem::zeroed();
            if libc::dladdr(hl_cuGetProcAddress_v2 as *const c_void, &raw mut place) == 0 {
                return 0;
            }
            libc::dlopen(place.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD).expose_provenance()
        }
    });
    NonNull::new(std::ptr::with_exposed_provenance_mut(*library))
}

/// The function of ours that stands for one of the driver's.
fn find(name: &CStr) -> Option<NonNull<c_void>> {
    let library = own_library()?;
    let name = name.to_str().ok()?;
    VERSIONS.iter().find_map(|version| {
        let symbol = CString::new(format!("hl_{name}{version}")).ok()?;
        // SAFETY: a handle of the loader and a string.
        NonNull::new(unsafe { libc::dlsym(library.as_ptr(), symbol.as_ptr()) })
    })
}

/// # Safety
/// `name` is null or a string; the places can be written or are null.
unsafe fn look(name: *const c_char, place: *mut *mut c_void, found: *mut c_int) -> Result<(), Code> {
    if name.is_null() || place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let function = find(name);
    if function.is_none() {
        say_not_found(name);
    }
    // SAFETY: the caller's promise.
    unsafe {
        place.write(function.map_or(null_mut(), NonNull::as_ptr));
        give_if(found, if function.is_some() { 0 } else { SYMBOL_NOT_FOUND });
    }
    function.map(drop).ok_or(NOT_FOUND)
}

/// A function of the driver by its name. All versions that programs may ask for are the newest one that is here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuGetProcAddress_v2(
    name: *const c_char,
    place: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
    found: *mut c_int,
) -> Code {
    // SAFETY: as documented.
    unsafe { look(name, place, found) }.err().unwrap_or(0)
}

/// The same for programs that use the runtime. A name that is not there is no error: the status says it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGetDriverEntryPointByVersion(
    name: *const c_char,
    place: *mut *mut c_void,
    _version: u32,
    _flags: u64,
    found: *mut c_int,
) -> Code {
    // SAFETY: as documented.
    match unsafe { look(name, place, found) } {
        Err(NOT_FOUND) if !found.is_null() => 0,
        result => record(result),
    }
}

/// The same for the version of the runtime.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGetDriverEntryPoint(
    name: *const c_char,
    place: *mut *mut c_void,
    flags: u64,
    found: *mut c_int,
) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cudaGetDriverEntryPointByVersion(name, place, 0, flags, found) }
}
