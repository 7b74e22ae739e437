//! What the compiler calls before `main`: fat binaries, kernels and variables of the program. None of it needs a device.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use crate::code::Code;
use crate::core::module::{Binary, REGISTRY, say_managed};
use crate::core::session::present;
use crate::core::thread::{Configuration, Extent, pop_launch, push_launch, runtime};

/// Groups or threads, as the compiler passes them.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Dim3 {
    /// In the first direction.
    pub x: u32,
    /// In the second one.
    pub y: u32,
    /// In the third one.
    pub z: u32,
}

impl From<Dim3> for Extent {
    fn from(sizes: Dim3) -> Self {
        [sizes.x, sizes.y, sizes.z]
    }
}

impl From<Extent> for Dim3 {
    fn from([x, y, z]: Extent) -> Self {
        Self { x, y, z }
    }
}

/// What the program keeps for a fat binary: a pointer to a pointer, as CUDA has it. Nothing when the binary cannot be read.
type Handle = *mut *mut c_void;

/// Takes a fat binary; one that cannot be read is said on standard error, and its kernels do not exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl___cudaRegisterFatBinary(wrapper: *const c_void) -> Handle {
    // SAFETY: the compiler's own structure, which stays as long as the program.
    match unsafe { Binary::of_wrapper(wrapper.cast()) } {
        Ok(binary) => {
            let binary = Arc::into_raw(Arc::new(binary)).cast_mut().cast::<c_void>();
            Box::into_raw(Box::new(binary))
        }
        Err(_) => Box::into_raw(Box::new(std::ptr::null_mut())),
    }
}

/// # Safety
/// `handle` came from `__cudaRegisterFatBinary` and was not unregistered.
unsafe fn binary(handle: Handle) -> Option<Arc<Binary>> {
    if handle.is_null() {
        return None;
    }
    // SAFETY: the caller's promise: a box with a pointer from an `Arc`, or null, is behind it.
    unsafe {
        let binary = (*handle).cast_const().cast::<Binary>();
        if binary.is_null() {
            return None;
        }
        Arc::increment_strong_count(binary);
        Some(Arc::from_raw(binary))
    }
}

/// All of a fat binary has been registered.
#[unsafe(no_mangle)]
pub extern "C" fn hl___cudaRegisterFatBinaryEnd(_handle: Handle) {}

/// Forgets a fat binary.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl___cudaUnregisterFatBinary(handle: Handle) {
    // SAFETY: the compiler gives each handle back once.
    if let Some(binary) = unsafe { binary(handle) } {
        let functions = REGISTRY.remove(&binary);
        if let Some(session) = present() {
            session.forget_kernels(&functions);
            // A node that is gone has forgotten it already.
            let _ = session.unload(&binary);
        }
        // SAFETY: the count that `__cudaRegisterFatBinary` kept.
        unsafe { Arc::decrement_strong_count(Arc::as_ptr(&binary)) };
    }
    if !handle.is_null() {
        // SAFETY: made by `__cudaRegisterFatBinary`, and given back once.
        drop(unsafe { Box::from_raw(handle) });
    }
}

/// Takes a kernel: the address of its stub and its name in the image.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl___cudaRegisterFunction(
    handle: Handle,
    stub: *const c_void,
    _device_stub: *mut c_char,
    name: *const c_char,
    _thread_limit: c_int,
    _thread: *mut c_void,
    _block: *mut c_void,
    _block_size: *mut c_void,
    _grid_size: *mut c_void,
    _warp_size: *mut c_int,
) {
    // SAFETY: handle and name are the compiler's.
    if let (Some(binary), false) = (unsafe { binary(handle) }, name.is_null()) {
        // SAFETY: a string of the compiler.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        REGISTRY.add_function(stub.addr(), binary, name);
    }
}

/// Takes a variable: the address of its shadow and its name in the image.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl___cudaRegisterVar(
    handle: Handle,
    shadow: *mut c_char,
    _device_address: *mut c_char,
    name: *const c_char,
    _is_external: c_int,
    _size: usize,
    _is_constant: c_int,
    _is_global: c_int,
) {
    // SAFETY: handle and name are the compiler's.
    if let (Some(binary), false) = (unsafe { binary(handle) }, name.is_null()) {
        // SAFETY: a string of the compiler.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        REGISTRY.add_variable(shadow.addr(), binary, name);
    }
}

/// A variable of the program in unified memory.
static MANAGED: OnceLock<String> = OnceLock::new();

/// Unified memory is not supported: kernels of the same module are refused, and the program finds zeros in the variable, so that it comes as
/// far as its first launch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl___cudaRegisterManagedVar(
    _handle: Handle,
    place: *mut *mut c_void,
    _device_address: *mut c_char,
    name: *const c_char,
    _is_external: c_int,
    size: usize,
    _is_constant: c_int,
    _is_global: c_int,
) {
    if !name.is_null() {
        // SAFETY: a string of the compiler.
        MANAGED.get_or_init(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
    }
    // SAFETY: the place of the pointer by which the program reaches the variable, as long as it lives.
    unsafe { super::give_if(place, libc::calloc(size.max(1), 1)) };
}

/// Nothing is to be made ready for a fat binary. The program calls this before it first touches a variable in unified memory.
#[unsafe(no_mangle)]
pub extern "C" fn hl___cudaInitModule(_handle: Handle) -> c_char {
    if let Some(name) = MANAGED.get() {
        say_managed(name);
    }
    0
}

/// Keeps what `<<<...>>>` said until the stub asks for it.
#[unsafe(no_mangle)]
pub extern "C" fn hl___cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    shared: usize,
    stream: *mut c_void,
) -> u32 {
    let launch = Configuration { grid: grid.into(), block: block.into(), shared, stream };
    // What is not 0 keeps the stub from being called.
    runtime(|| push_launch(launch)).unsigned_abs()
}

/// What `<<<...>>>` said.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl___cudaPopCallConfiguration(
    grid: *mut Dim3,
    block: *mut Dim3,
    shared: *mut usize,
    stream: *mut c_void,
) -> Code {
    runtime(|| {
        let launch = pop_launch()?;
        // SAFETY: the stub gives places for all four; the last one is for a stream.
        unsafe {
            super::give(grid, launch.grid.into())?;
            super::give(block, launch.block.into())?;
            super::give(shared, launch.shared)?;
            super::give(stream.cast::<*mut c_void>(), launch.stream)
        }
    })
}

/// A kernel is known by the address of its stub.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl___cudaGetKernel(kernel: *mut *const c_void, stub: *const c_void) -> Code {
    // SAFETY: a place for a result.
    runtime(|| unsafe { super::give(kernel, stub) })
}
