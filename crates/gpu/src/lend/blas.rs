//! cuBLAS, loaded when it is first asked for.

use super::order::Stream;
use super::{CallError, Lent, candidates};
use crate::driver::Handle;
use crate::library::{Library, functions, named};
use std::cell::Cell;
use std::ffi::{c_int, c_void};

/// Its name by versions; `HINTERLAND_CUBLAS` in front of them names another.
const NAMES: [&str; 2] = ["libcublas.so.13", "libcublas.so.12"];
const VARIABLE: &str = "HINTERLAND_CUBLAS";

type Any = *const c_void;

functions! {
    /// cuBLAS's functions, by what they do. Sizes have 64 bits.
    Calls {
        make = c"cublasCreate_v2" (*mut Handle);
        end = c"cublasDestroy_v2" (Handle);
        version = c"cublasGetVersion_v2" (Handle, *mut c_int);
        set_stream = c"cublasSetStream_v2" (Handle, Handle);
        set_math = c"cublasSetMathMode" (Handle, c_int);
        set_workspace = c"cublasSetWorkspace_v2" (Handle, u64, usize);
        set_pointers = c"cublasSetPointerMode_v2" (Handle, c_int);
        set_atomics = c"cublasSetAtomicsMode" (Handle, c_int);
        gemm = c"cublasGemmStridedBatchedEx_64" (Handle, c_int, c_int, i64, i64, i64, Any, u64, c_int, i64, i64, u64, c_int, i64, i64, Any, u64, c_int, i64, i64, i64, c_int, c_int);
        gemm_pointers = c"cublasGemmBatchedEx_64" (Handle, c_int, c_int, i64, i64, i64, Any, u64, c_int, i64, u64, c_int, i64, Any, u64, c_int, i64, i64, c_int, c_int);
    }
}

/// cuBLAS.
#[derive(Clone, Copy)]
pub struct Blas {
    call: Calls,
    library: Library,
}

/// Memory of a device to work in: address and length.
pub type Workspace = (u64, u64);

/// A handle of cuBLAS.
#[derive(Debug)]
pub struct BlasHandle {
    handle: Handle,
    /// The stream that cuBLAS was last told, if it is known to be there, and the memory that it was told to work in since then: telling it a stream, be it
    /// the same one, has it work in memory of its own.
    told: Cell<(Option<Handle>, Option<Workspace>)>,
}

impl BlasHandle {
    /// A stream is to end: another one may have its handle.
    pub fn forget(&self, stream: &Stream) {
        if self.told.get().0 == Some(stream.handle) {
            self.told.set((None, None));
        }
    }

    pub(super) const fn number(&self) -> Handle {
        self.handle
    }
}

/// A setting of a handle.
#[derive(Debug, Clone, Copy)]
pub enum Setting {
    /// Its math mode.
    Math(i32),
    /// Whether factors lie in device memory.
    Pointers(i32),
    /// Whether atomics may be used.
    Atomics(i32),
}

/// A product of matrices, by cuBLAS's numbers; addresses are those of the device.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    /// What is done with a and b: 0, 1 or 2 for nothing, transposed, transposed and conjugated.
    pub transposes: [i32; 2],
    /// Rows and columns of c, and what a and b have in common.
    pub sizes: [i64; 3],
    /// Types of a, b, c.
    pub types: [i32; 3],
    /// Addresses of a, b, c, or of arrays of such.
    pub addresses: [u64; 3],
    /// Leading dimensions.
    pub leads: [i64; 3],
    /// Elements from one matrix to the next; unused with arrays.
    pub strides: [i64; 3],
    /// How many products.
    pub count: i64,
    /// Types of computation and algorithm.
    pub compute: [i32; 2],
    /// The factors alpha and beta, as values or as device addresses.
    pub factors: [[u8; 16]; 2],
    /// Whether the factors are device addresses.
    pub in_memory: bool,
}

/// A value of 16 bytes at an address that any type of number may have.
#[repr(align(16))]
struct Aligned([u8; 16]);

impl Blas {
    /// Loads it.
    ///
    /// # Errors
    /// The loader's words.
    pub fn open() -> Result<Self, CallError> {
        let missing = |words: String| CallError { what: "loading cuBLAS", code: 1, words, is_blas: true };
        let mut names = candidates(&NAMES);
        names.splice(0..0, named(VARIABLE));
        let library = Library::open(&names).map_err(missing)?;
        let call = Calls::of(library).map_err(|name| missing(format!("it has no function for `{name}`")))?;
        Ok(Self { call, library })
    }

    pub(super) fn check(what: &'static str, code: c_int) -> Result<(), CallError> {
        if code == 0 {
            return Ok(());
        }
        Err(CallError { what, code, words: "cuBLAS refuses it".to_owned(), is_blas: true })
    }

    /// The address of a function, never null.
    pub(super) fn function(&self, name: &std::ffi::CStr) -> Option<*mut c_void> {
        self.library.function(name)
    }

    /// Makes a handle on a device.
    ///
    /// # Errors
    /// cuBLAS's.
    pub fn handle(&self, device: &Lent) -> Result<BlasHandle, CallError> {
        device.enter()?;
        let mut handle = 0;
        // SAFETY: the place is ours.
        Self::check("making a handle", unsafe { (self.call.make)(&mut handle) })?;
        Ok(BlasHandle { handle, told: Cell::default() })
    }

    /// Its version.
    pub fn version(&self, handle: &BlasHandle) -> i32 {
        let mut version = 0;
        // SAFETY: the place is ours, and the handle lives.
        unsafe { (self.call.version)(handle.handle, &mut version) };
        version
    }

    /// Ends a handle. It may wait for the device.
    pub fn end(&self, device: &Lent, handle: BlasHandle) {
        if device.enter().is_ok() {
            // SAFETY: it was made once, and the value is gone.
            unsafe { (self.call.end)(handle.handle) };
        }
    }

    /// Has what comes next of a handle run in a stream, and work in this memory of the device (address and length), or in cuBLAS's own.
    ///
    /// # Errors
    /// cuBLAS's.
    pub fn place(
        &self,
        device: &Lent,
        handle: &BlasHandle,
        stream: &Stream,
        workspace: Option<Workspace>,
    ) -> Result<(), CallError> {
        let (told, given) = handle.told.get();
        let is_back = given.is_some() && workspace.is_none();
        if told == Some(stream.handle) && given == workspace {
            return Ok(());
        }
        device.enter()?;
        // What is told in part is not known.
        handle.told.set((None, None));
        if told != Some(stream.handle) || is_back {
            // SAFETY: both live.
            let code = unsafe { (self.call.set_stream)(handle.handle, stream.handle) };
            Self::check("setting the stream of a handle", code)?;
        }
        if let Some((address, bytes)) = workspace {
            // SAFETY: the handle lives; the memory is the session's to look at.
            let code = unsafe { (self.call.set_workspace)(handle.handle, address, bytes as usize) };
            Self::check("setting the workspace of a handle", code)?;
        }
        handle.told.set((Some(stream.handle), workspace));
        Ok(())
    }

    /// Sets something.
    ///
    /// # Errors
    /// cuBLAS's.
    pub fn set(&self, device: &Lent, handle: &BlasHandle, setting: Setting) -> Result<(), CallError> {
        device.enter()?;
        let own = handle.handle;
        // SAFETY: the handle lives; all else is plain values, which cuBLAS checks.
        let code = unsafe {
            match setting {
                Setting::Math(mode) => (self.call.set_math)(own, mode),
                Setting::Pointers(mode) => (self.call.set_pointers)(own, mode),
                Setting::Atomics(mode) => (self.call.set_atomics)(own, mode),
            }
        };
        Self::check("setting a handle", code)
    }

    /// Multiplies matrices that lie a stride apart.
    ///
    /// # Errors
    /// cuBLAS's.
    pub fn multiply(&self, device: &Lent, handle: &BlasHandle, product: &Product) -> Result<(), CallError> {
        device.enter()?;
        let p = product;
        let values = p.factors.map(Aligned);
        let [alpha, beta] = [0, 1].map(|which| factor(&values[which], p.in_memory));
        // SAFETY: the factors live through the call, or are device addresses by the handle's mode; the memory of all matrices was
        // looked at by the caller.
        let code = unsafe {
            (self.call.gemm)(
                handle.handle,
                p.transposes[0],
                p.transposes[1],
                p.sizes[0],
                p.sizes[1],
                p.sizes[2],
                alpha,
                p.addresses[0],
                p.types[0],
                p.leads[0],
                p.strides[0],
                p.addresses[1],
                p.types[1],
                p.leads[1],
                p.strides[1],
                beta,
                p.addresses[2],
                p.types[2],
                p.leads[2],
                p.strides[2],
                p.count,
                p.compute[0],
                p.compute[1],
            )
        };
        Self::check("multiplying", code)
    }

    /// Multiplies matrices whose addresses lie in arrays in device memory.
    ///
    /// # Errors
    /// cuBLAS's.
    pub fn multiply_pointers(
        &self,
        device: &Lent,
        handle: &BlasHandle,
        product: &Product,
    ) -> Result<(), CallError> {
        device.enter()?;
        let p = product;
        let values = p.factors.map(Aligned);
        let [alpha, beta] = [0, 1].map(|which| factor(&values[which], p.in_memory));
        // SAFETY: as above; what the arrays say is the device's to check.
        let code = unsafe {
            (self.call.gemm_pointers)(
                handle.handle,
                p.transposes[0],
                p.transposes[1],
                p.sizes[0],
                p.sizes[1],
                p.sizes[2],
                alpha,
                p.addresses[0],
                p.types[0],
                p.leads[0],
                p.addresses[1],
                p.types[1],
                p.leads[1],
                beta,
                p.addresses[2],
                p.types[2],
                p.leads[2],
                p.count,
                p.compute[0],
                p.compute[1],
            )
        };
        Self::check("multiplying", code)
    }
}

fn factor(value: &Aligned, in_memory: bool) -> Any {
    if !in_memory {
        return value.0.as_ptr().cast();
    }
    let mut address = [0; 8];
    address.copy_from_slice(&value.0[..8]);
    std::ptr::without_provenance(u64::from_le_bytes(address) as usize)
}
