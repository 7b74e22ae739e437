//! NVRTC, the run-time compiler: the kernel's source becomes a program for one GPU.

use crate::error::GpuError;
use crate::library::{Library, functions, named};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

/// The source of the kernel, in CUDA C++.
pub const KERNEL_SOURCE: &str = include_str!("copy.cu");
/// The kernel's name in its program.
pub(crate) const KERNEL_NAME: &CStr = c"hinterland_copy";
/// Names the compiler's library, before any other is tried.
const VARIABLE: &str = "HINTERLAND_NVRTC";
/// Names and places of the compiler, the newest first; a library that the program has loaded already is found by its name.
const LIBRARIES: [&str; 6] = [
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so.11.2",
    "libnvrtc.so",
    "/usr/local/cuda/lib64/libnvrtc.so",
    "/usr/local/cuda/targets/x86_64-linux/lib/libnvrtc.so",
];
/// Longest log that is read: what says why stands at its start.
const LOG_BYTES_MAX: usize = 64 << 10;
/// Largest program that is believed.
const IMAGE_BYTES_MAX: usize = 16 << 20;

functions! {
    /// The compiler's functions, by what they do.
    Functions {
        version = c"nvrtcVersion" (*mut c_int, *mut c_int);
        capability_count = c"nvrtcGetNumSupportedArchs" (*mut c_int);
        capabilities = c"nvrtcGetSupportedArchs" (*mut c_int);
        create = c"nvrtcCreateProgram" (*mut *mut c_void, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
        compile = c"nvrtcCompileProgram" (*mut c_void, c_int, *const *const c_char);
        log_bytes = c"nvrtcGetProgramLogSize" (*mut c_void, *mut usize);
        log = c"nvrtcGetProgramLog" (*mut c_void, *mut c_char);
        binary_bytes = c"nvrtcGetCUBINSize" (*mut c_void, *mut usize);
        binary = c"nvrtcGetCUBIN" (*mut c_void, *mut c_char);
        assembly_bytes = c"nvrtcGetPTXSize" (*mut c_void, *mut usize);
        assembly = c"nvrtcGetPTX" (*mut c_void, *mut c_char);
        destroy = c"nvrtcDestroyProgram" (*mut *mut c_void);
    }
}

/// A compiler that was loaded.
pub struct Compiler {
    call: Functions,
    version: (c_int, c_int),
    /// Compute capabilities that it knows, each as major * 10 + minor, in rising order.
    capabilities: Vec<c_int>,
}

/// The kernel for a GPU, as the driver loads it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// Machine code, or assembly text that ends in a zero.
    pub image: Vec<u8>,
    /// Whether it is assembly (PTX), which the driver translates.
    pub is_assembly: bool,
}

/// A program inside the compiler, gone on drop.
struct Program<'compiler>(&'compiler Compiler, *mut c_void);

impl Compiler {
    /// Loads the compiler that the environment names, else the one at `path`, else one that the loader finds.
    ///
    /// # Errors
    /// [`GpuError::NoCompiler`].
    pub fn load(path: Option<&Path>) -> Result<Self, GpuError> {
        let candidates: Vec<PathBuf> = match named(VARIABLE) {
            Some(named) => vec![named],
            None => path.map(Path::to_owned).into_iter().chain(LIBRARIES.map(PathBuf::from)).collect(),
        };
        let library = Library::open(&candidates).map_err(|words| GpuError::NoCompiler { words })?;
        let missing = |name| GpuError::NoCompiler { words: format!("it has no function for `{name}`") };
        let call = Functions::of(library).map_err(missing)?;
        let failed = |_| GpuError::NoCompiler { words: "it does not say what it can do".to_owned() };
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: the places are ours.
        done(unsafe { (call.version)(&mut major, &mut minor) }).map_err(failed)?;
        // SAFETY: as above.
        done(unsafe { (call.capability_count)(&mut count) }).map_err(failed)?;
        let mut capabilities = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: there is room for as many numbers as it said.
        done(unsafe { (call.capabilities)(capabilities.as_mut_ptr()) }).map_err(failed)?;
        capabilities.sort_unstable();
        Ok(Self { call, version: (major, minor), capabilities })
    }

    /// The compiler's version, as `13.0`.
    pub fn version(&self) -> String {
        format!("{}.{}", self.version.0, self.version.1)
    }

    /// Compiles the kernel for a GPU: to machine code if the compiler knows the GPU, else to assembly for the newest one that
    /// it knows and that is older.
    ///
    /// # Errors
    /// [`GpuError::Compile`].
    pub fn compile(&self, capability: (i32, i32)) -> Result<Compiled, GpuError> {
        let wanted = capability.0 * 10 + capability.1;
        if self.capabilities.contains(&wanted) {
            return self.compile_as(&format!("--gpu-architecture=sm_{wanted}"), capability, false);
        }
        match self.capabilities.iter().rev().find(|known| **known < wanted) {
            Some(known) => self.compile_as(&format!("--gpu-architecture=compute_{known}"), capability, true),
            None => Err(self.refusal(capability, "it knows later GPUs only")),
        }
    }

    /// Compiles the kernel to assembly for exactly this capability.
    ///
    /// # Errors
    /// [`GpuError::Compile`].
    pub fn assembly(&self, capability: (i32, i32)) -> Result<Compiled, GpuError> {
        let option = format!("--gpu-architecture=compute_{}", capability.0 * 10 + capability.1);
        self.compile_as(&option, capability, true)
    }

    fn compile_as(
        &self,
        architecture: &str,
        capability: (i32, i32),
        is_assembly: bool,
    ) -> Result<Compiled, GpuError> {
        let program = self.program().map_err(|words| self.refusal(capability, words))?;
        let architecture =
            CString::new(architecture).map_err(|_| self.refusal(capability, "no such capability"))?;
        let options = [architecture.as_ptr(), c"--std=c++14".as_ptr()];
        // SAFETY: the program lives, and the options are two strings.
        let code = unsafe { (self.call.compile)(program.1, 2, options.as_ptr()) };
        if code != 0 {
            return Err(self.refusal(capability, &program.log(code)));
        }
        let (bytes_of, image_of) = if is_assembly {
            (self.call.assembly_bytes, self.call.assembly)
        } else {
            (self.call.binary_bytes, self.call.binary)
        };
        let mut bytes = 0;
        // SAFETY: the program lives, and the place is ours.
        let code = unsafe { bytes_of(program.1, &mut bytes) };
        if code != 0 || bytes == 0 || bytes > IMAGE_BYTES_MAX {
            return Err(self.refusal(capability, &format!("a program of {bytes} bytes, code {code}")));
        }
        let mut image = vec![0_u8; bytes];
        // SAFETY: there is room for as many bytes as it said.
        let code = unsafe { image_of(program.1, image.as_mut_ptr().cast()) };
        if code != 0 {
            return Err(self.refusal(capability, &format!("no program, code {code}")));
        }
        Ok(Compiled { image, is_assembly })
    }

    fn program(&self) -> Result<Program<'_>, &'static str> {
        let source = CString::new(KERNEL_SOURCE).map_err(|_| "the source has a zero byte")?;
        let mut program = std::ptr::null_mut();
        // SAFETY: source and name are strings, there are no headers, and the place is ours.
        let code = unsafe {
            let none = std::ptr::null();
            (self.call.create)(&mut program, source.as_ptr(), c"copy.cu".as_ptr(), 0, none, none)
        };
        if code == 0 { Ok(Program(self, program)) } else { Err("it takes no program") }
    }

    fn refusal(&self, (major, minor): (i32, i32), words: &str) -> GpuError {
        GpuError::Compile {
            version: self.version(),
            capability: format!("{major}.{minor}"),
            words: words.trim().to_owned(),
        }
    }
}

impl Program<'_> {
    /// What the compiler wrote about it.
    fn log(&self, code: c_int) -> String {
        let mut bytes = 0;
        // SAFETY: the program lives, and the place is ours.
        let known = unsafe { (self.0.call.log_bytes)(self.1, &mut bytes) };
        if known != 0 || bytes == 0 || bytes > LOG_BYTES_MAX {
            return format!("code {code}, no log");
        }
        let mut text = vec![0_u8; bytes];
        // SAFETY: there is room for as many bytes as it said.
        let known = unsafe { (self.0.call.log)(self.1, text.as_mut_ptr().cast()) };
        let text = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy).unwrap_or_default();
        if known == 0 && !text.trim().is_empty() { text.into_owned() } else { format!("code {code}") }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program lives until here. There is nothing to be done about a failure.
        unsafe { (self.0.call.destroy)(&mut self.1) };
    }
}

fn done(code: c_int) -> Result<(), c_int> {
    if code == 0 { Ok(()) } else { Err(code) }
}
