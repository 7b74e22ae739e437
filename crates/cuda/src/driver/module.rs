//! Modules, libraries and kernels by name.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::code::{Code, INVALID_VALUE, NOT_FOUND};
use crate::core::handle::Kind;
use crate::core::module::{Binary, Registered};
use crate::core::session::Session;
use crate::core::thread::{device, driver};
use crate::runtime::launch::registered;
use crate::runtime::{give, give_if};

/// # Safety
/// `image` is an image, a fat binary or PTX text.
unsafe fn load(session: &Session, place: *mut *mut c_void, image: *const c_void) -> Result<(), Code> {
    // SAFETY: the caller's promise.
    let binary = unsafe { Binary::copy_of(image.cast())? };
    let number = session.modules.add_binary(binary)?;
    // What cannot be read is told now, as the driver does.
    let binary = session.modules.binary(number)?;
    match session.check_kernel(&binary, device(), "") {
        Ok(()) | Err(NOT_FOUND) => {}
        Err(code) => {
            session.modules.remove_binary(number)?;
            return Err(code);
        }
    }
    // SAFETY: a place for a result, as documented.
    unsafe { give(place, Kind::Module.handle(number)) }
}

/// Takes an image, a fat binary or PTX text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuModuleLoadData(place: *mut *mut c_void, image: *const c_void) -> Code {
    // SAFETY: as documented.
    driver(|session| unsafe { load(session, place, image) })
}

/// The same with options for the compiler, which the node's driver chooses itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuModuleLoadDataEx(
    place: *mut *mut c_void,
    image: *const c_void,
    _count: c_uint,
    _options: *mut c_int,
    _values: *mut *mut c_void,
) -> Code {
    // SAFETY: as documented.
    driver(|session| unsafe { load(session, place, image) })
}

/// The same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuModuleLoadFatBinary(place: *mut *mut c_void, image: *const c_void) -> Code {
    // SAFETY: as documented.
    driver(|session| unsafe { load(session, place, image) })
}

/// The same as a library, which is not bound to a device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuLibraryLoadData(
    place: *mut *mut c_void,
    image: *const c_void,
    _options: *mut c_int,
    _values: *mut *mut c_void,
    _count: c_uint,
    _library_options: *mut c_int,
    _library_values: *mut *mut c_void,
    _library_count: c_uint,
) -> Code {
    // SAFETY: as documented.
    driver(|session| unsafe { load(session, place, image) })
}

/// Forgets a module. Its kernels that were got stay usable only by mistake.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuModuleUnload(module: *mut c_void) -> Code {
    driver(|session| {
        let binary = session.modules.remove_binary(Kind::Module.of(module)?)?;
        session.unload(&binary)
    })
}

/// Forgets a library.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuLibraryUnload(library: *mut c_void) -> Code {
    hl_cuModuleUnload(library)
}

/// # Safety
/// `name` is null or a string.
unsafe fn text(name: *const c_char) -> Result<String, Code> {
    if name.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// A kernel of a module by its name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuModuleGetFunction(
    place: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> Code {
    driver(|session| {
        let binary = session.modules.binary(Kind::Module.of(module)?)?;
        // SAFETY: a string, as documented.
        let name = unsafe { text(name)? };
        session.check_kernel(&binary, device(), &name)?;
        let number = session.modules.add_function(Registered::new(binary, name))?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, Kind::Function.handle(number)) }
    })
}

/// A kernel of a library by its name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuLibraryGetKernel(
    place: *mut *mut c_void,
    library: *mut c_void,
    name: *const c_char,
) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cuModuleGetFunction(place, library, name) }
}

/// A kernel is a function on each device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuKernelGetFunction(place: *mut *mut c_void, kernel: *mut c_void) -> Code {
    driver(|session| {
        registered(session, kernel)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, kernel) }
    })
}

/// The name of a function in its image.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuFuncGetName(place: *mut *const c_char, function: *mut c_void) -> Code {
    driver(|session| {
        let name = registered(session, function)?.c_name()?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, name) }
    })
}

/// Address and length of a variable of a module.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuModuleGetGlobal_v2(
    place: *mut u64,
    bytes: *mut usize,
    module: *mut c_void,
    name: *const c_char,
) -> Code {
    driver(|session| {
        let binary = session.modules.binary(Kind::Module.of(module)?)?;
        // SAFETY: a string, as documented.
        let (address, length) = session.symbol(&binary, device(), &unsafe { text(name)? })?;
        // SAFETY: places for results or null, as documented.
        unsafe {
            give_if(place, address);
            give_if(bytes, length as usize);
        }
        Ok(())
    })
}
