//! Modules, libraries and kernels by name.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::code::{Code, FILE_NOT_FOUND, INVALID_IMAGE, INVALID_VALUE};
use crate::core::context::Owner;
use crate::core::handle::Kind;
use crate::core::module::{Binary, HEADER_BYTES};
use crate::core::session::Session;
use crate::core::thread::{driver, with_session};
use crate::runtime::launch::registered;
use crate::runtime::{give, give_if};

/// What a program takes code as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loaded {
    /// A module, which is of a context and ends with it.
    Module,
    /// A library, which is of all contexts.
    Library,
}

/// # Safety
/// `image` is an image, a fat binary or PTX text.
unsafe fn load(
    session: &Session,
    kind: Loaded,
    place: *mut *mut c_void,
    image: *const c_void,
) -> Result<(), Code> {
    // SAFETY: the caller's promise.
    let mut binary = unsafe { Binary::copy_of(image.cast())? };
    let owner = session.owner()?;
    binary.owner = (kind == Loaded::Module).then_some(owner);
    let number = session.modules.add_binary(binary)?;
    // What cannot be read is told now, as the driver does.
    let binary = session.modules.binary(number)?;
    if let Err(code) = session.confirm(&binary, owner) {
        // The node has nothing of it, or is gone.
        session.remove_binary(number)?;
        return Err(code);
    }
    // SAFETY: a place for a result, as documented.
    unsafe { give(place, Kind::Module.handle(number)) }
}

/// Takes an image, a fat binary or PTX text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuModuleLoadData(place: *mut *mut c_void, image: *const c_void) -> Code {
    // SAFETY: as documented.
    driver(|session| unsafe { load(session, Loaded::Module, place, image) })
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
    driver(|session| unsafe { load(session, Loaded::Module, place, image) })
}

/// The same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuModuleLoadFatBinary(place: *mut *mut c_void, image: *const c_void) -> Code {
    // SAFETY: as documented.
    driver(|session| unsafe { load(session, Loaded::Module, place, image) })
}

/// # Safety
/// `name` is null or a string.
unsafe fn load_file(
    session: &Session,
    kind: Loaded,
    place: *mut *mut c_void,
    name: *const c_char,
) -> Result<(), Code> {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name)? };
    let mut image = std::fs::read(&name).map_err(|error| {
        eprintln!("hinterland: code for the GPU in {} cannot be read: {error}", name.escape_default());
        FILE_NOT_FOUND
    })?;
    // Text ends with a zero byte, and who looks at a header finds one.
    image.resize(image.len().max(HEADER_BYTES) + 1, 0);
    if !Binary::fits(&image) {
        return Err(INVALID_IMAGE);
    }
    // SAFETY: it is as long as its kind says, as was seen.
    unsafe { load(session, kind, place, image.as_ptr().cast()) }
}

/// Takes an image, a fat binary or PTX text from a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuModuleLoad(place: *mut *mut c_void, name: *const c_char) -> Code {
    // SAFETY: as documented.
    driver(|session| unsafe { load_file(session, Loaded::Module, place, name) })
}

/// The same as a library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuLibraryLoadFromFile(
    place: *mut *mut c_void,
    name: *const c_char,
    _options: *mut c_int,
    _values: *mut *mut c_void,
    _count: c_uint,
    _library_options: *mut c_int,
    _library_values: *mut *mut c_void,
    _library_count: c_uint,
) -> Code {
    // SAFETY: as documented.
    driver(|session| unsafe { load_file(session, Loaded::Library, place, name) })
}

/// Code is taken when it is first used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuModuleGetLoadingMode(mode: *mut c_int) -> Code {
    /// `CU_MODULE_LAZY_LOADING`
    const LAZY: c_int = 2;
    // SAFETY: a place for a result, as documented.
    driver(|_| unsafe { give(mode, LAZY) })
}

/// The same as a library, which is not bound to a context.
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
    driver(|session| unsafe { load(session, Loaded::Library, place, image) })
}

/// Forgets a module, and its kernels that were got.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cuModuleUnload(module: *mut c_void) -> Code {
    driver(|session| unload(session, module))
}

fn unload(session: &Session, module: *mut c_void) -> Result<(), Code> {
    let binary = session.remove_binary(Kind::Module.of(module)?)?;
    session.unload(&binary)
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

/// Where code is looked at: in the context of its module, or, of a library, in the current one.
fn place_of(session: &Session, binary: &Binary) -> Result<Owner, Code> {
    let current = session.owner()?;
    Ok(binary.owner.unwrap_or(current))
}

/// A kernel of a module by its name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuModuleGetFunction(
    place: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> Code {
    // SAFETY: as documented.
    driver(|session| unsafe { function_of(session, place, module, name) })
}

/// # Safety
/// `name` is null or a string, and `place` is null or can be written.
unsafe fn function_of(
    session: &Session,
    place: *mut *mut c_void,
    module: *mut c_void,
    name: *const c_char,
) -> Result<(), Code> {
    let binary = session.modules.binary(Kind::Module.of(module)?)?;
    // SAFETY: the caller's promise.
    let name = unsafe { text(name)? };
    session.check_kernel(&binary, place_of(session, &binary)?, &name)?;
    let number = session.modules.name_function(&binary, &name)?;
    // SAFETY: the caller's promise.
    unsafe { give(place, Kind::Function.handle(number)) }
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

/// A library is a module in each context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuLibraryGetModule(place: *mut *mut c_void, library: *mut c_void) -> Code {
    driver(|session| {
        session.modules.binary(Kind::Module.of(library)?)?;
        // SAFETY: a place for a result, as documented.
        unsafe { give(place, library) }
    })
}

/// A kernel is a function in each context.
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
    // SAFETY: as documented.
    driver(|session| unsafe { variable_of(session, place, bytes, module, name) })
}

/// # Safety
/// `name` is null or a string, and the places are null or can be written.
unsafe fn variable_of(
    session: &Session,
    place: *mut u64,
    bytes: *mut usize,
    module: *mut c_void,
    name: *const c_char,
) -> Result<(), Code> {
    let binary = session.modules.binary(Kind::Module.of(module)?)?;
    // SAFETY: the caller's promise.
    let name = unsafe { text(name)? };
    let (address, length) = session.symbol(&binary, place_of(session, &binary)?, &name)?;
    // SAFETY: the caller's promise.
    unsafe {
        give_if(place, address);
        give_if(bytes, length as usize);
    }
    Ok(())
}

/// Address and length of a variable of a library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuLibraryGetGlobal(
    place: *mut u64,
    bytes: *mut usize,
    library: *mut c_void,
    name: *const c_char,
) -> Code {
    // SAFETY: as documented.
    unsafe { hl_cuModuleGetGlobal_v2(place, bytes, library, name) }
}

/// Takes an image, a fat binary or PTX text, for a program of the runtime's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaLibraryLoadData(
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
    with_session(|session| unsafe { load(session, Loaded::Library, place, image) })
}

/// The same from a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaLibraryLoadFromFile(
    place: *mut *mut c_void,
    name: *const c_char,
    _options: *mut c_int,
    _values: *mut *mut c_void,
    _count: c_uint,
    _library_options: *mut c_int,
    _library_values: *mut *mut c_void,
    _library_count: c_uint,
) -> Code {
    // SAFETY: as documented.
    with_session(|session| unsafe { load_file(session, Loaded::Library, place, name) })
}

/// Forgets a library.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cudaLibraryUnload(library: *mut c_void) -> Code {
    with_session(|session| unload(session, library))
}

/// A kernel of a library by its name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaLibraryGetKernel(
    place: *mut *mut c_void,
    library: *mut c_void,
    name: *const c_char,
) -> Code {
    // SAFETY: as documented.
    with_session(|session| unsafe { function_of(session, place, library, name) })
}

/// Address and length of a variable of a library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaLibraryGetGlobal(
    place: *mut *mut c_void,
    bytes: *mut usize,
    library: *mut c_void,
    name: *const c_char,
) -> Code {
    // SAFETY: as documented.
    with_session(|session| unsafe { variable_of(session, place.cast(), bytes, library, name) })
}
