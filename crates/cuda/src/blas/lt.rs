//! `libcublasLt`: descriptions are kept here, products are sent with all of them, and the node chooses the algorithm.
//!
//! A description is a list of attributes by number, whose values are kept as bytes: what they mean is between the program and cuBLASLt.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hinterland_proto::gpu::command::LtMatmul;
use hinterland_proto::gpu::{LtMatrix, LtProduct};

use super::{INVALID_VALUE, NOT_INITIALIZED, NOT_SUPPORTED, Status, blas, status};
use crate::core::outbox::Effect;
use crate::runtime::{give, give_if};

/// Attributes of a layout.
const LAYOUT_TYPE: u32 = 0;
const LAYOUT_ROWS: u32 = 2;
const LAYOUT_COLUMNS: u32 = 3;
const LAYOUT_LEAD: u32 = 4;
/// Attributes of a product.
const COMPUTE_TYPE: u32 = 0;
const SCALE_TYPE: u32 = 1;
const POINTER_MODE: u32 = 2;
/// Longest value of an attribute.
const VALUE_BYTES_MAX: usize = 64;
/// In the first word of an algorithm that we gave: the node chooses.
const CHOSEN_THERE: u64 = 0x6c74_6867_6968_0001;

/// What is behind a descriptor that a program holds.
#[derive(Debug)]
pub struct Description {
    magic: u64,
    attributes: Mutex<BTreeMap<u32, Vec<u8>>>,
}

const MAGIC: u64 = 0x6c74_6465_7363_0001;

impl Description {
    fn make(attributes: impl IntoIterator<Item = (u32, Vec<u8>)>) -> *mut Self {
        let attributes = Mutex::new(attributes.into_iter().collect());
        Box::into_raw(Box::new(Self { magic: MAGIC, attributes }))
    }

    /// # Safety
    /// `description` is null or was made here and not destroyed.
    unsafe fn of<'any>(description: *const Self) -> Result<&'any Self, Status> {
        if description.is_null() || !description.is_aligned() {
            return Err(NOT_INITIALIZED);
        }
        // SAFETY: the caller's promise.
        let description = unsafe { &*description };
        if description.magic == MAGIC { Ok(description) } else { Err(INVALID_VALUE) }
    }

    fn attributes(&self) -> MutexGuard<'_, BTreeMap<u32, Vec<u8>>> {
        self.attributes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn list(&self) -> Vec<(u32, Vec<u8>)> {
        self.attributes().iter().map(|(number, value)| (*number, value.clone())).collect()
    }

    /// # Safety
    /// As [`of`](Self::of).
    unsafe fn destroy(description: *mut Self) -> Status {
        // SAFETY: the caller's promise.
        match unsafe { Self::of(description) } {
            Ok(_) => {
                // SAFETY: made by `make`; from here on it is not recognised any more.
                unsafe { Box::from_raw(description) }.magic = 0;
                super::SUCCESS
            }
            Err(status) => status,
        }
    }

    /// # Safety
    /// As [`of`](Self::of); `value` has `bytes` bytes.
    unsafe fn set(description: *mut Self, number: c_int, value: *const c_void, bytes: usize) -> Status {
        blas(|_| {
            // SAFETY: the caller's promise.
            let description = unsafe { Self::of(description)? };
            let number = u32::try_from(number).map_err(|_| INVALID_VALUE)?;
            if value.is_null() || bytes == 0 || bytes > VALUE_BYTES_MAX {
                return Err(INVALID_VALUE);
            }
            // SAFETY: the caller's promise.
            let value = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), bytes) };
            description.attributes().insert(number, value.to_vec());
            Ok(())
        })
    }

    /// # Safety
    /// As [`of`](Self::of); `value` has `bytes` bytes of room.
    unsafe fn get(
        description: *mut Self,
        number: c_int,
        value: *mut c_void,
        bytes: usize,
        written: *mut usize,
    ) -> Status {
        blas(|_| {
            // SAFETY: the caller's promise.
            let description = unsafe { Self::of(description)? };
            let attributes = description.attributes();
            let number = u32::try_from(number).map_err(|_| INVALID_VALUE)?;
            let found = attributes.get(&number).ok_or(NOT_SUPPORTED)?;
            if bytes != 0 && (value.is_null() || bytes < found.len()) {
                return Err(INVALID_VALUE);
            }
            // SAFETY: the caller's promise, and the room was looked at.
            unsafe {
                if bytes != 0 {
                    value.cast::<u8>().copy_from_nonoverlapping(found.as_ptr(), found.len());
                }
                give_if(written, found.len());
            }
            Ok(())
        })
    }
}

/// The four functions of a kind of descriptor beside its making.
macro_rules! descriptor {
    ($words:literal $destroy:ident $set:ident $get:ident) => {
        #[doc = concat!("Ends ", $words, ".")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $destroy(description: *mut Description) -> Status {
            // SAFETY: as documented.
            unsafe { Description::destroy(description) }
        }

        #[doc = concat!("Sets an attribute of ", $words, ".")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set(
            description: *mut Description,
            number: c_int,
            value: *const c_void,
            bytes: usize,
        ) -> Status {
            // SAFETY: as documented.
            unsafe { Description::set(description, number, value, bytes) }
        }

        #[doc = concat!("An attribute of ", $words, " that was set.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(
            description: *mut Description,
            number: c_int,
            value: *mut c_void,
            bytes: usize,
            written: *mut usize,
        ) -> Status {
            // SAFETY: as documented.
            unsafe { Description::get(description, number, value, bytes, written) }
        }
    };
}
descriptor!("the layout of a matrix" hl_cublasLtMatrixLayoutDestroy hl_cublasLtMatrixLayoutSetAttribute hl_cublasLtMatrixLayoutGetAttribute);
descriptor!("the description of a product" hl_cublasLtMatmulDescDestroy hl_cublasLtMatmulDescSetAttribute hl_cublasLtMatmulDescGetAttribute);
descriptor!("preferences" hl_cublasLtMatmulPreferenceDestroy hl_cublasLtMatmulPreferenceSetAttribute hl_cublasLtMatmulPreferenceGetAttribute);

/// Makes the layout of a matrix.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasLtMatrixLayoutCreate(
    place: *mut *mut Description,
    kind: c_int,
    rows: u64,
    columns: u64,
    lead: i64,
) -> Status {
    let attributes = [
        (LAYOUT_TYPE, kind.to_le_bytes().to_vec()),
        (LAYOUT_ROWS, rows.to_le_bytes().to_vec()),
        (LAYOUT_COLUMNS, columns.to_le_bytes().to_vec()),
        (LAYOUT_LEAD, lead.to_le_bytes().to_vec()),
    ];
    // SAFETY: a place for a result, as documented.
    blas(|_| unsafe { give(place, Description::make(attributes)) }.map_err(status))
}

/// Makes the description of a product.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasLtMatmulDescCreate(
    place: *mut *mut Description,
    compute: c_int,
    scale: c_int,
) -> Status {
    let attributes =
        [(COMPUTE_TYPE, compute.to_le_bytes().to_vec()), (SCALE_TYPE, scale.to_le_bytes().to_vec())];
    // SAFETY: a place for a result, as documented.
    blas(|_| unsafe { give(place, Description::make(attributes)) }.map_err(status))
}

/// Makes preferences.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasLtMatmulPreferenceCreate(place: *mut *mut Description) -> Status {
    // SAFETY: a place for a result, as documented.
    blas(|_| unsafe { give(place, Description::make([])) }.map_err(status))
}

/// Makes a handle. It holds nothing: a handle of cuBLAS will do as well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasLtCreate(place: *mut *mut c_void) -> Status {
    // SAFETY: a place for a result, as documented.
    blas(|_| unsafe { give(place, Description::make([]).cast()) }.map_err(status))
}

/// Ends a handle that `cublasLtCreate` made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasLtDestroy(handle: *mut c_void) -> Status {
    // SAFETY: as documented.
    unsafe { Description::destroy(handle.cast()) }
}

/// The version of the node's cuBLAS.
#[unsafe(no_mangle)]
pub extern "C" fn hl_cublasLtGetVersion() -> usize {
    crate::core::session::present().map_or(0, |session| session.welcome.blas as usize)
}

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Heuristic {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: Status,
    waves: f32,
    _reserved: [c_int; 4],
}

/// Algorithms for a product: one, which stands for the one that the node chooses when it gets the product. Nobody is asked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasLtMatmulAlgoGetHeuristic(
    _handle: *mut c_void,
    product: *mut Description,
    a: *mut Description,
    b: *mut Description,
    c: *mut Description,
    d: *mut Description,
    preferences: *mut Description,
    wanted: c_int,
    results: *mut Heuristic,
    count: *mut c_int,
) -> Status {
    blas(|_| {
        for description in [product, a, b, c, d, preferences] {
            // SAFETY: as documented.
            unsafe { Description::of(description)? };
        }
        if wanted < 1 {
            return Err(INVALID_VALUE);
        }
        let mut algorithm = [0; 8];
        algorithm[0] = CHOSEN_THERE;
        let result = Heuristic { algorithm, workspace_bytes: 0, state: 0, waves: 1.0, _reserved: [0; 4] };
        // SAFETY: places for results, as documented.
        unsafe {
            give(results, result).map_err(status)?;
            give(count, 1).map_err(status)
        }
    })
}

/// Multiplies matrices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cublasLtMatmul(
    _handle: *mut c_void,
    product: *mut Description,
    alpha: *const c_void,
    a: *const c_void,
    a_layout: *mut Description,
    b: *const c_void,
    b_layout: *mut Description,
    beta: *const c_void,
    c: *const c_void,
    c_layout: *mut Description,
    d: *mut c_void,
    d_layout: *mut Description,
    _algorithm: *const Heuristic,
    workspace: *mut c_void,
    workspace_bytes: usize,
    stream: *mut c_void,
) -> Status {
    blas(|session| {
        // SAFETY: as documented.
        let product = unsafe { Description::of(product)? };
        let matrix = |address: *const c_void, layout: *mut Description| {
            // SAFETY: as documented.
            let attributes = unsafe { Description::of(layout)? }.list();
            Ok::<_, Status>(LtMatrix { address: address.addr() as u64, attributes })
        };
        let mode = product.attributes().get(&POINTER_MODE).map_or(0, |value| value[0]);
        let bytes = scale_bytes(&product.attributes());
        // SAFETY: as documented.
        let (alpha, beta) = unsafe { (scalar(alpha, mode, bytes)?, scalar(beta, mode, bytes)?) };
        let description = LtProduct {
            attributes: product.list(),
            matrices: [
                matrix(a, a_layout)?,
                matrix(b, b_layout)?,
                matrix(c, c_layout)?,
                matrix(d.cast_const(), d_layout)?,
            ],
            alpha,
            beta,
            workspace: workspace.addr() as u64,
            workspace_bytes: workspace_bytes as u64,
        };
        let stream = session.stream(stream).map_err(status)?;
        let text = postcard::to_allocvec(&description).map_err(|_| super::INTERNAL)?;
        let message = LtMatmul { stream: stream.number, flags: 0 };
        session
            .issue(&stream, Effect::Visible, &message, text.len(), |tail| tail.put(0, &text))
            .map(drop)
            .map_err(status)
    })
}

/// Bytes of a scalar, by its type: numbers of 2, 4, 8 or 16 bytes.
fn scale_bytes(attributes: &BTreeMap<u32, Vec<u8>>) -> usize {
    match attributes.get(&SCALE_TYPE).and_then(|value| value.first()) {
        // f64 and complex f32; complex f64; f16 and bf16.
        Some(1 | 4) => 8,
        Some(5) => 16,
        Some(2 | 14) => 2,
        _ => 4,
    }
}

/// A scalar by value, or its device address.
///
/// # Safety
/// In mode 0, `place` has `bytes` bytes.
unsafe fn scalar(place: *const c_void, mode: u8, bytes: usize) -> Result<[u8; 16], Status> {
    let mut value = [0; 16];
    if mode != 0 {
        value[..8].copy_from_slice(&(place.addr() as u64).to_le_bytes());
    } else if place.is_null() {
        return Err(INVALID_VALUE);
    } else {
        // SAFETY: the caller's promise; no scalar is longer than 16 bytes.
        unsafe { place.cast::<u8>().copy_to_nonoverlapping(value.as_mut_ptr(), bytes) };
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_as_long_as_the_compiler_of_cuda_13_makes_it() {
        assert_eq!(size_of::<Heuristic>(), 96);
    }
}
