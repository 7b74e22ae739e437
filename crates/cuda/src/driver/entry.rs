//! Functions of the driver by name, for programs that ask for them in place of linking.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use crate::code::{Code, INVALID_VALUE, NOT_FOUND};
use crate::core::thread::record;
use crate::missing::{hl_missing_cuda, say_not_found};
use crate::runtime::error::RUNTIME_VERSION;
use crate::runtime::give_if;

/// A later version of a function has its number behind the name; programs ask for the plain one.
const VERSIONS: &[&str] = &["_v4", "_v3", "_v2", ""];
/// Versions of functions that take other arguments than those before, and the version of CUDA since which the plain name means them. A
/// program that asks for an older version of CUDA calls with the arguments of that time.
const SINCE: &[(&str, c_int)] = &[
    ("cuCtxCreate_v3", 11_040),
    ("cuCtxCreate_v4", 12_050),
    ("cuGetProcAddress_v2", 12_000),
    ("cuGraphAddDependencies_v2", 12_030),
    ("cuGraphAddKernelNode_v2", 12_000),
    ("cuGraphAddNode_v2", 12_030),
    ("cuGraphExecKernelNodeSetParams_v2", 12_000),
    ("cuGraphExecUpdate_v2", 12_000),
    ("cuGraphGetEdges_v2", 12_030),
    ("cuGraphInstantiate", 12_000),
    ("cuGraphKernelNodeGetParams_v2", 12_000),
    ("cuGraphKernelNodeSetParams_v2", 12_000),
    ("cuGraphNodeGetDependencies_v2", 12_030),
    ("cuGraphNodeGetDependentNodes_v2", 12_030),
    ("cuGraphRemoveDependencies_v2", 12_030),
    ("cuMemcpyBatchAsync", 12_080),
    ("cuMemcpyBatchAsync_v2", 13_000),
    ("cuStreamBeginCapture_v2", 10_010),
    ("cuStreamGetCaptureInfo_v3", 12_030),
    ("cuStreamUpdateCaptureDependencies_v2", 12_030),
];
/// What a name that is looked up stands for where there is no more than a refusal.
type Refusal = unsafe extern "C" fn() -> Code;

/// Functions that refuse, by their names: each says its name once.
macro_rules! refusals {
    ($($name:literal)*) => {
        [$(($name, {
            unsafe extern "C" fn refuse() -> Code {
                const NAME: &CStr = $name;
                // SAFETY: a constant string.
                unsafe { hl_missing_cuda(NAME.as_ptr()) }
            }
            refuse
        })),*]
    };
}

/// Names that PyTorch has to find before it calls any function of the driver by itself, for segments that grow and for the words of an error when memory is out,
/// and that it calls for what is not there alone: memory of several processes, and words that streams write.
const WANTED: [(&CStr, Refusal); 5] = refusals!(
    c"cuMemExportToShareableHandle"
    c"cuMemGetAllocationPropertiesFromHandle"
    c"cuMemImportFromShareableHandle"
    c"cuMemRetainAllocationHandle"
    c"cuStreamWriteValue32"
);

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM` and `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`: what no stream means to the functions that are looked for.
const LEGACY_STREAM: u64 = 1;
const OWN_STREAM: u64 = 2;
/// What stands behind the names of functions to which it means the thread's own, where a stream is an argument and where none is.
const OWN_NAMES: [&str; 2] = ["_ptsz", "_ptds"];
/// `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`
const SYMBOL_NOT_FOUND: c_int = 1;
/// `CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT`
const TOO_OLD: c_int = 2;

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

/// The flags of a program to whose functions no stream means the thread's own, unless it says something else.
pub(crate) const fn own_by_default(flags: u64) -> u64 {
    if flags & (LEGACY_STREAM | OWN_STREAM) == 0 { flags | OWN_STREAM } else { flags }
}

/// The function of ours that stands for one of the driver's, as a version of CUDA has it; or what to say of it.
fn find(name: &CStr, cuda: c_int, flags: u64) -> Result<NonNull<c_void>, c_int> {
    let (Some(library), Ok(name)) = (own_library(), name.to_str()) else { return Err(SYMBOL_NOT_FOUND) };
    let look = |name: String| {
        let symbol = CString::new(format!("hl_{name}")).ok()?;
        // SAFETY: a handle of the loader and a string.
        NonNull::new(unsafe { libc::dlsym(library.as_ptr(), symbol.as_ptr()) })
    };
    let mut missing = SYMBOL_NOT_FOUND;
    for version in VERSIONS {
        let symbol = format!("{name}{version}");
        let Some(function) = look(symbol.clone()) else { continue };
        if SINCE.iter().all(|(later, since)| *later != symbol || *since <= cuda) {
            let mut names = OWN_NAMES.iter().filter(|_| flags & OWN_STREAM != 0);
            return Ok(names.find_map(|own| look(format!("{symbol}{own}"))).unwrap_or(function));
        }
        missing = TOO_OLD;
    }
    Err(missing)
}

/// # Safety
/// `name` is null or a string; the places can be written or are null.
unsafe fn look(
    name: *const c_char,
    place: *mut *mut c_void,
    cuda: c_int,
    flags: u64,
    found: *mut c_int,
) -> Result<(), Code> {
    if name.is_null() || place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    let name = unsafe { CStr::from_ptr(name) };
    let wanted = || {
        let (_, refusal) = WANTED.iter().find(|(known, _)| *known == name)?;
        NonNull::new((*refusal as *const c_void).cast_mut())
    };
    let function = find(name, cuda, flags).or_else(|why| wanted().ok_or(why));
    if function.is_err() {
        say_not_found(name);
    }
    // SAFETY: the caller's promise.
    unsafe {
        place.write(function.map_or(null_mut(), NonNull::as_ptr));
        give_if(found, function.err().unwrap_or(0));
    }
    function.map(drop).map_err(|_| NOT_FOUND)
}

/// A function of the driver by its name: the newest one that is here and that the program's version of CUDA has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuGetProcAddress_v2(
    name: *const c_char,
    place: *mut *mut c_void,
    version: c_int,
    flags: u64,
    found: *mut c_int,
) -> Code {
    // SAFETY: as documented.
    unsafe { look(name, place, version, flags, found) }.err().unwrap_or(0)
}

/// The same before CUDA 12.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuGetProcAddress(
    name: *const c_char,
    place: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> Code {
    // SAFETY: as documented.
    unsafe { look(name, place, version, flags, null_mut()) }.err().unwrap_or(0)
}

/// The same for programs that use the runtime. A name that is not there is no error: the status says it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaGetDriverEntryPointByVersion(
    name: *const c_char,
    place: *mut *mut c_void,
    version: c_uint,
    flags: u64,
    found: *mut c_int,
) -> Code {
    // No version is later than all.
    let version = c_int::try_from(version).unwrap_or(c_int::MAX);
    // SAFETY: as documented.
    match unsafe { look(name, place, version, flags, found) } {
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
    unsafe { hl_cudaGetDriverEntryPointByVersion(name, place, RUNTIME_VERSION.unsigned_abs(), flags, found) }
}
