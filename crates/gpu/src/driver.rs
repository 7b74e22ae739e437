//! The driver's functions that are used, and what it says when one fails.

use crate::error::GpuError;
use crate::library::{Library, functions};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};

/// Names the driver library, in place of the machine's.
const VARIABLE: &str = "HINTERLAND_CUDA";
/// The name of the driver's interface, the same in all of its versions.
const LIBRARY: &str = "libcuda.so.1";
/// CUDA 11.4: every function below, and reading registered memory that is mapped read-only.
const VERSION_MIN: c_int = 11_040;

/// The driver's handles and addresses are numbers to us: it checks them.
pub(crate) type Handle = usize;
/// An address of the GPU.
pub(crate) type Address = u64;

pub(crate) const NOT_READY: c_int = 600;
const OUT_OF_MEMORY: c_int = 2;
const DEINITIALIZED: c_int = 4;
const NO_DEVICE: c_int = 100;
const INVALID_CONTEXT: c_int = 201;
const ILLEGAL_ADDRESS: c_int = 700;

pub(crate) const MULTIPROCESSORS: c_int = 16;
pub(crate) const CAN_MAP_HOST_MEMORY: c_int = 19;
pub(crate) const CAPABILITY_MAJOR: c_int = 75;
pub(crate) const CAPABILITY_MINOR: c_int = 76;
pub(crate) const READ_ONLY_REGISTER: c_int = 113;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
pub(crate) const MEMORY_TYPE: c_int = 2;

pub(crate) const REGISTER_PORTABLE: c_uint = 1;
pub(crate) const REGISTER_MAPPED: c_uint = 2;
pub(crate) const REGISTER_READ_ONLY: c_uint = 8;

pub(crate) const EVENT_WITHOUT_TIME: c_uint = 2;
pub(crate) const STREAM_APART: c_uint = 1;

functions! {
    /// The driver's functions, by what they do.
    Functions {
        init = c"cuInit" (c_uint);
        version = c"cuDriverGetVersion" (*mut c_int);
        error_name = c"cuGetErrorName" (c_int, *mut *const c_char);
        error_words = c"cuGetErrorString" (c_int, *mut *const c_char);
        device_count = c"cuDeviceGetCount" (*mut c_int);
        device = c"cuDeviceGet" (*mut c_int, c_int);
        device_name = c"cuDeviceGetName" (*mut c_char, c_int, c_int);
        device_attribute = c"cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
        context_current = c"cuCtxGetCurrent" (*mut Handle);
        context_push = c"cuCtxPushCurrent_v2" (Handle);
        context_pop = c"cuCtxPopCurrent_v2" (*mut Handle);
        context_device = c"cuCtxGetDevice" (*mut c_int);
        primary_retain = c"cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
        primary_release = c"cuDevicePrimaryCtxRelease_v2" (c_int);
        module_load = c"cuModuleLoadData" (*mut Handle, *const c_void);
        module_function = c"cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
        module_unload = c"cuModuleUnload" (Handle);
        launch = c"cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
        host_register = c"cuMemHostRegister_v2" (*mut c_void, usize, c_uint);
        host_address = c"cuMemHostGetDevicePointer_v2" (*mut Address, *mut c_void, c_uint);
        host_unregister = c"cuMemHostUnregister" (*mut c_void);
        allocate = c"cuMemAlloc_v2" (*mut Address, usize);
        free = c"cuMemFree_v2" (Address);
        copy_in = c"cuMemcpyHtoD_v2" (Address, *const c_void, usize);
        copy_out = c"cuMemcpyDtoH_v2" (*mut c_void, Address, usize);
        copy_in_on = c"cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle);
        copy_out_on = c"cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle);
        pointer_attribute = c"cuPointerGetAttribute" (*mut c_void, c_int, Address);
        stream_create = c"cuStreamCreate" (*mut Handle, c_uint);
        stream_wait = c"cuStreamSynchronize" (Handle);
        stream_destroy = c"cuStreamDestroy_v2" (Handle);
        event_create = c"cuEventCreate" (*mut Handle, c_uint);
        event_record = c"cuEventRecord" (Handle, Handle);
        event_query = c"cuEventQuery" (Handle);
        event_wait = c"cuEventSynchronize" (Handle);
        event_destroy = c"cuEventDestroy_v2" (Handle);
    }
}

/// The driver, loaded and initialised.
#[derive(Clone, Copy)]
pub(crate) struct Driver {
    pub(crate) call: Functions,
    /// As `13.0`.
    pub(crate) version: (c_int, c_int),
    /// Whether it is what the tests put in its place.
    pub(crate) is_stand_in: bool,
}

impl Driver {
    /// Loads and initialises the driver: the library that the environment names, else the one at `path`, else the machine's.
    ///
    /// # Errors
    /// [`GpuError::NoDriver`], [`GpuError::OldDriver`], [`GpuError::NoDevice`], or the driver's own.
    pub(crate) fn load(path: Option<&Path>) -> Result<Self, GpuError> {
        let library = Library::open(&[Self::path(path)]).map_err(|words| GpuError::NoDriver { words })?;
        let call = Functions::of(library)
            .map_err(|name| GpuError::OldDriver { found: format!("no function for `{name}`") })?;
        let is_stand_in = library.function(c"hinterland_stand_in").is_some();
        let driver = Self { call, version: (0, 0), is_stand_in };
        // SAFETY: no argument but a number that must be 0.
        let code = unsafe { (call.init)(0) };
        if code == NO_DEVICE {
            return Err(GpuError::NoDevice { wanted: 0, count: 0 });
        }
        driver.check("starting the driver", code)?;
        let mut version = 0;
        // SAFETY: the place is ours.
        driver.check("asking for the driver's version", unsafe { (call.version)(&mut version) })?;
        if version < VERSION_MIN {
            let found = format!("CUDA {}.{}", version / 1000, version % 1000 / 10);
            return Err(GpuError::OldDriver { found });
        }
        Ok(Self { version: (version / 1000, version % 1000 / 10), ..driver })
    }

    /// The library that is meant: the one that the environment names, else the one at `path`, else the machine's.
    pub(crate) fn path(path: Option<&Path>) -> PathBuf {
        let named = std::env::var_os(VARIABLE).map(PathBuf::from).or_else(|| path.map(Path::to_owned));
        named.unwrap_or_else(|| PathBuf::from(LIBRARY))
    }

    /// The failure of a call, if it was one.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub(crate) fn check(&self, what: &'static str, code: c_int) -> Result<(), GpuError> {
        if code == 0 {
            return Ok(());
        }
        let (name, words) = self.words(code);
        let hint = match code {
            OUT_OF_MEMORY => "free memory of the GPU, or leave more to this program",
            DEINITIALIZED => "the program is ending: finish transfers before",
            INVALID_CONTEXT => {
                "open the GPU after the program has made its context, and keep that until it is closed"
            }
            ILLEGAL_ADDRESS => {
                "something on this GPU used a wrong address, and nothing works in this process any more: check the buffers that were passed, then start again"
            }
            _ => "`nvidia-smi` shows whether the GPU works; an error of earlier work shows here too",
        };
        Err(GpuError::Driver { what, code, name, words, hint })
    }

    /// The driver's name and words for a failure.
    pub(crate) fn words(&self, code: c_int) -> (String, String) {
        let ask = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: the place is ours; what is put there is a string that stays, or null.
            unsafe { function(code, &mut text) };
            if text.is_null() {
                return "unknown".to_owned();
            }
            // SAFETY: as above.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        (ask(self.call.error_name), ask(self.call.error_words))
    }

    /// A number that describes a GPU.
    ///
    /// # Errors
    /// [`GpuError::Driver`].
    pub(crate) fn attribute(&self, device: c_int, attribute: c_int) -> Result<c_int, GpuError> {
        let mut value = 0;
        // SAFETY: the place is ours.
        let code = unsafe { (self.call.device_attribute)(&mut value, attribute, device) };
        self.check("asking what the GPU can do", code)?;
        Ok(value)
    }
}
