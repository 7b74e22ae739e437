//! Functions of cuBLAS beside products of matrices, found by their names when they are called.

use super::blas::{Blas, BlasHandle};
use super::{CallError, Lent};
use std::ffi::{CString, c_int, c_void};

type Any = *const c_void;

/// A function of cuBLAS and its arguments: what each is depends on the function, as in `BlasCall` of the protocol.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// The function by its name, without type and version: `gemv`.
    pub name: &'static str,
    /// The type of its numbers, by cuBLAS's number.
    pub kind: i32,
    /// Options, by cuBLAS's numbers.
    pub options: [i32; 4],
    /// Sizes, and how many matrices.
    pub sizes: [i32; 4],
    /// Addresses of the device, and the steps or leading dimensions there.
    pub places: [(u64, i32); 3],
    /// An address beside them.
    pub info: u64,
    /// The factors alpha and beta, as values or as device addresses.
    pub factors: [[u8; 16]; 2],
    /// Whether the factors are device addresses.
    pub in_memory: bool,
}

/// A value of 16 bytes at an address that any type of number may have.
#[repr(align(16))]
struct Aligned([u8; 16]);

impl Call {
    /// The name of the function in the library.
    fn symbol(&self) -> Result<CString, CallError> {
        let letter = match self.kind {
            0 => "S",
            1 => "D",
            4 => "C",
            5 => "Z",
            _ => "",
        };
        let is_complex = matches!(self.kind, 4 | 5);
        let text = match (self.name, letter) {
            ("dot", "") => "cublasDotEx".to_owned(),
            (_, "") => return Err(missing(self.name)),
            ("ger", _) if is_complex => format!("cublas{letter}geru_v2"),
            ("dot", _) if is_complex => format!("cublas{letter}dotu_v2"),
            ("nrm2" | "asum", "C") => format!("cublasSc{}_v2", self.name),
            ("nrm2" | "asum", "Z") => format!("cublasDz{}_v2", self.name),
            ("scal_real", "C") => "cublasCsscal_v2".to_owned(),
            ("scal_real", "Z") => "cublasZdscal_v2".to_owned(),
            ("iamax", _) => format!("cublasI{}amax_v2", letter.to_lowercase()),
            ("iamin", _) => format!("cublasI{}amin_v2", letter.to_lowercase()),
            (name, _) if name.ends_with("Batched") => format!("cublas{letter}{name}"),
            (name, _) => format!("cublas{letter}{name}_v2"),
        };
        CString::new(text).map_err(|_| missing(self.name))
    }
}

fn missing(name: &str) -> CallError {
    let words = format!("this cuBLAS has no {name} of that type");
    CallError { what: "calling cuBLAS", code: 15, words, is_blas: true }
}

/// Calls an address as a function of these arguments.
macro_rules! invoke {
    ($address:expr, $($argument:expr => $kind:ty),+) => {{
        let function = std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),+) -> c_int>($address);
        function($($argument),+)
    }};
}

/// A call that is ready to be made.
struct Ready<'call> {
    address: *mut c_void,
    handle: usize,
    alpha: Any,
    beta: Any,
    call: &'call Call,
}

impl Ready<'_> {
    /// Functions of vectors.
    ///
    /// # Safety
    /// The address is that of the function, whose arguments cuBLAS's documentation gives; factors live, or are device addresses by the handle's mode.
    unsafe fn of_vectors(&self) -> Option<c_int> {
        let (address, h) = (self.address, self.handle);
        let alpha = self.alpha;
        let [m, _, _, _] = self.call.sizes;
        let [(a, a_step), (b, b_step), (c, c_step)] = self.call.places;
        // SAFETY: the caller's promise.
        let code = unsafe {
            match self.call.name {
                "axpy" => {
                    invoke!(address, h => usize, m => c_int, alpha => Any, a => u64, a_step => c_int, c => u64, c_step => c_int)
                }
                "scal" | "scal_real" => {
                    invoke!(address, h => usize, m => c_int, alpha => Any, c => u64, c_step => c_int)
                }
                "copy" | "swap" => {
                    invoke!(address, h => usize, m => c_int, a => u64, a_step => c_int, c => u64, c_step => c_int)
                }
                "dot" if !matches!(self.call.kind, 0 | 1 | 4 | 5) => {
                    invoke!(address, h => usize, m => c_int, a => u64, self.call.kind => c_int, a_step => c_int, b => u64, self.call.kind => c_int, b_step => c_int, c => u64, self.call.kind => c_int, 0 => c_int)
                }
                "dot" | "dotc" => {
                    invoke!(address, h => usize, m => c_int, a => u64, a_step => c_int, b => u64, b_step => c_int, c => u64)
                }
                "nrm2" | "asum" | "iamax" | "iamin" => {
                    invoke!(address, h => usize, m => c_int, a => u64, a_step => c_int, c => u64)
                }
                _ => return None,
            }
        };
        Some(code)
    }

    /// Functions of matrices.
    ///
    /// # Safety
    /// The address is that of the function, whose arguments cuBLAS's documentation gives; factors live, or are device addresses by the handle's mode.
    unsafe fn of_matrices(&self) -> Option<c_int> {
        let (address, h) = (self.address, self.handle);
        let alpha = self.alpha;
        let beta = self.beta;
        let [o, p, q, r] = self.call.options;
        let [m, n, k, _] = self.call.sizes;
        let [(a, a_step), (b, b_step), (c, c_step)] = self.call.places;
        // SAFETY: the caller's promise.
        let code = unsafe {
            match self.call.name {
                "gemv" => {
                    invoke!(address, h => usize, o => c_int, m => c_int, n => c_int, alpha => Any, a => u64, a_step => c_int, b => u64, b_step => c_int, beta => Any, c => u64, c_step => c_int)
                }
                "ger" | "gerc" => {
                    invoke!(address, h => usize, m => c_int, n => c_int, alpha => Any, a => u64, a_step => c_int, b => u64, b_step => c_int, c => u64, c_step => c_int)
                }
                "trsm" => {
                    invoke!(address, h => usize, o => c_int, p => c_int, q => c_int, r => c_int, m => c_int, n => c_int, alpha => Any, a => u64, a_step => c_int, c => u64, c_step => c_int)
                }
                "trmm" => {
                    invoke!(address, h => usize, o => c_int, p => c_int, q => c_int, r => c_int, m => c_int, n => c_int, alpha => Any, a => u64, a_step => c_int, b => u64, b_step => c_int, c => u64, c_step => c_int)
                }
                "trsv" | "trmv" => {
                    invoke!(address, h => usize, o => c_int, p => c_int, q => c_int, m => c_int, a => u64, a_step => c_int, c => u64, c_step => c_int)
                }
                "syrk" | "herk" => {
                    invoke!(address, h => usize, o => c_int, p => c_int, m => c_int, k => c_int, alpha => Any, a => u64, a_step => c_int, beta => Any, c => u64, c_step => c_int)
                }
                "symm" | "hemm" => {
                    invoke!(address, h => usize, o => c_int, p => c_int, m => c_int, n => c_int, alpha => Any, a => u64, a_step => c_int, b => u64, b_step => c_int, beta => Any, c => u64, c_step => c_int)
                }
                _ => return None,
            }
        };
        Some(code)
    }

    /// Functions of many matrices, some of which say on the host whether an argument was wrong.
    ///
    /// # Safety
    /// The address is that of the function, whose arguments cuBLAS's documentation gives; factors live, or are device addresses by the handle's mode.
    unsafe fn of_many(&self, host: *mut c_int) -> Option<c_int> {
        let (address, h) = (self.address, self.handle);
        let alpha = self.alpha;
        let [o, p, q, r] = self.call.options;
        let [m, n, k, count] = self.call.sizes;
        let [(a, a_step), (b, _), (c, c_step)] = self.call.places;
        // SAFETY: the caller's promise.
        let code = unsafe {
            match self.call.name {
                "trsmBatched" => {
                    invoke!(address, h => usize, o => c_int, p => c_int, q => c_int, r => c_int, m => c_int, n => c_int, alpha => Any, a => u64, a_step => c_int, c => u64, c_step => c_int, count => c_int)
                }
                "getrfBatched" => {
                    invoke!(address, h => usize, m => c_int, a => u64, a_step => c_int, b => u64, c => u64, count => c_int)
                }
                "getriBatched" => {
                    invoke!(address, h => usize, m => c_int, a => u64, a_step => c_int, b => u64, c => u64, c_step => c_int, self.call.info => u64, count => c_int)
                }
                "getrsBatched" => {
                    invoke!(address, h => usize, o => c_int, m => c_int, n => c_int, a => u64, a_step => c_int, b => u64, c => u64, c_step => c_int, host => *mut c_int, count => c_int)
                }
                "geqrfBatched" => {
                    invoke!(address, h => usize, m => c_int, n => c_int, a => u64, a_step => c_int, b => u64, host => *mut c_int, count => c_int)
                }
                "gelsBatched" => {
                    invoke!(address, h => usize, o => c_int, m => c_int, n => c_int, k => c_int, a => u64, a_step => c_int, c => u64, c_step => c_int, host => *mut c_int, b => u64, count => c_int)
                }
                _ => return None,
            }
        };
        Some(code)
    }
}

impl Blas {
    /// Calls a function. Its pointer mode is the handle's.
    ///
    /// # Errors
    /// cuBLAS's; it has no such function.
    pub fn call(&self, device: &Lent, handle: &BlasHandle, call: &Call) -> Result<(), CallError> {
        device.enter()?;
        let address = self.function(&call.symbol()?).ok_or_else(|| missing(call.name))?;
        let values = call.factors.map(Aligned);
        let factor = |value: &Aligned| -> Any {
            if !call.in_memory {
                return value.0.as_ptr().cast();
            }
            let mut address = [0; 8];
            address.copy_from_slice(&value.0[..8]);
            std::ptr::without_provenance(u64::from_le_bytes(address) as usize)
        };
        let (alpha, beta) = (factor(&values[0]), factor(&values[1]));
        let ready = Ready { address, handle: handle.number(), alpha, beta, call };
        let mut told: c_int = 0;
        // SAFETY: the address is that of the function with this name; factors live through the call, or are device addresses by the handle's mode;
        // `told` is a place of ours; what device addresses say is the device's to check.
        let code = unsafe {
            ready.of_vectors().or_else(|| ready.of_matrices()).or_else(|| ready.of_many(&raw mut told))
        };
        Self::check("calling cuBLAS", code.ok_or_else(|| missing(call.name))?)?;
        if told == 0 {
            return Ok(());
        }
        let words = format!("argument {} of {} is wrong", -told, call.name);
        Err(CallError { what: "calling cuBLAS", code: 7, words, is_blas: true })
    }
}
