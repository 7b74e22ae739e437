//! cuBLASLt, loaded when it is first asked for: products with whatever comes with them. *Not run on a GPU yet.*

use super::order::Stream;
use super::{CallError, Lent, candidates};
use crate::driver::Handle;
use crate::library::{Library, functions, named};
use std::ffi::{c_int, c_void};

/// Its name by versions; `HINTERLAND_CUBLASLT` in front of them names another.
const NAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];
const VARIABLE: &str = "HINTERLAND_CUBLASLT";
/// Attributes of preferences: bytes to work in, and what the addresses of the four matrices are multiples of.
const WORKSPACE_BYTES: c_int = 1;
const ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
/// What an algorithm may count on at most, if nobody says less.
const ALIGNMENT_MAX: u32 = 256;

type Any = *const c_void;
/// Attributes by their numbers.
pub type Attributes<'all> = &'all [(u32, Vec<u8>)];

functions! {
    /// Its functions, by what they do.
    Calls {
        make = c"cublasLtCreate" (*mut Handle);
        product_make = c"cublasLtMatmulDescCreate" (*mut Handle, c_int, c_int);
        product_set = c"cublasLtMatmulDescSetAttribute" (Handle, c_int, Any, usize);
        product_end = c"cublasLtMatmulDescDestroy" (Handle);
        layout_make = c"cublasLtMatrixLayoutCreate" (*mut Handle, c_int, u64, u64, i64);
        layout_set = c"cublasLtMatrixLayoutSetAttribute" (Handle, c_int, Any, usize);
        layout_end = c"cublasLtMatrixLayoutDestroy" (Handle);
        wish_make = c"cublasLtMatmulPreferenceCreate" (*mut Handle);
        wish_set = c"cublasLtMatmulPreferenceSetAttribute" (Handle, c_int, Any, usize);
        wish_end = c"cublasLtMatmulPreferenceDestroy" (Handle);
        choose = c"cublasLtMatmulAlgoGetHeuristic" (Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Chosen, *mut c_int);
        multiply = c"cublasLtMatmul" (Handle, Handle, Any, u64, Handle, u64, Handle, Any, u64, Handle, u64, Handle, *const Chosen, u64, usize, Handle);
    }
}

/// `cublasLtMatmulHeuristicResult_t`, which begins with the algorithm.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chosen {
    algorithm: [u64; 8],
    workspace_bytes: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

const _: () = assert!(size_of::<Chosen>() == 96);

/// cuBLASLt.
#[derive(Clone, Copy)]
pub struct Lt {
    call: Calls,
    handle: Handle,
}

/// A product as a program described it.
#[derive(Clone, Copy, Debug)]
pub struct LtProduct<'all> {
    /// Attributes of the product.
    pub attributes: Attributes<'all>,
    /// Address and attributes of a, b, c and d.
    pub matrices: [(u64, Attributes<'all>); 4],
    /// The factors alpha and beta, as values or as device addresses.
    pub factors: [[u8; 16]; 2],
    /// Whether the factors are device addresses.
    pub in_memory: bool,
    /// Memory to work in, and its length.
    pub workspace: (u64, u64),
}

/// A value of 16 bytes at an address that any type of number may have.
#[repr(align(16))]
struct Aligned([u8; 16]);

/// A description of cuBLASLt's, ended with this.
struct Description {
    handle: Handle,
    end: unsafe extern "C" fn(Handle) -> c_int,
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: it was made once, and nobody has it any more.
        unsafe { (self.end)(self.handle) };
    }
}

fn failed(what: &'static str, code: c_int, words: &str) -> CallError {
    CallError { what, code, words: words.to_owned(), is_blas: true }
}

fn check(what: &'static str, code: c_int) -> Result<(), CallError> {
    if code == 0 { Ok(()) } else { Err(failed(what, code, "cuBLASLt refuses it")) }
}

/// A number among attributes.
fn number(attributes: Attributes<'_>, which: u32) -> Result<u64, CallError> {
    let found = attributes.iter().find(|(number, value)| *number == which && value.len() <= 8);
    let (_, value) = found.ok_or_else(|| failed("reading a product", 7, "a size or a type is missing"))?;
    Ok(value.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

impl Lt {
    /// Loads it, and makes its one handle.
    ///
    /// # Errors
    /// The loader's words, or cuBLASLt's.
    pub fn open(device: &Lent) -> Result<Self, CallError> {
        device.enter()?;
        let mut names = candidates(&NAMES);
        names.splice(0..0, named(VARIABLE));
        let library = Library::open(&names).map_err(|words| failed("loading cuBLASLt", 1, &words))?;
        let call = Calls::of(library)
            .map_err(|name| failed("loading cuBLASLt", 1, &format!("it has no function for `{name}`")))?;
        let mut handle = 0;
        // SAFETY: the place is ours.
        check("making a handle of cuBLASLt", unsafe { (call.make)(&mut handle) })?;
        Ok(Self { call, handle })
    }

    /// Multiplies, with the algorithm that cuBLASLt thinks best.
    ///
    /// # Errors
    /// cuBLASLt's; none of its algorithms can do it.
    pub fn multiply(&self, device: &Lent, stream: &Stream, product: &LtProduct<'_>) -> Result<(), CallError> {
        device.enter()?;
        let described = self.product(product.attributes)?;
        let mut layouts = Vec::new();
        for (_, attributes) in &product.matrices {
            layouts.push(self.layout(attributes)?);
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|which: usize| layouts[which].handle);
        let wish = self.wish(product)?;
        let mut chosen =
            Chosen { algorithm: [0; 8], workspace_bytes: 0, state: 0, waves: 0.0, reserved: [0; 4] };
        let mut count = 0;
        // SAFETY: all descriptions live, and the places are ours.
        let code = unsafe {
            let (own, product) = (self.handle, described.handle);
            (self.call.choose)(own, product, a, b, c, d, wish.handle, 1, &mut chosen, &mut count)
        };
        check("choosing an algorithm", code)?;
        if count < 1 || chosen.state != 0 {
            return Err(failed("choosing an algorithm", 15, "cuBLASLt has none for this product"));
        }
        let values = product.factors.map(Aligned);
        let [alpha, beta] = [0, 1].map(|which: usize| factor(&values[which], product.in_memory));
        let [at_a, at_b, at_c, at_d] = product.matrices.map(|(address, _)| address);
        let (work, work_bytes) = product.workspace;
        // SAFETY: all descriptions live through the call, and factors do or are device addresses; what the addresses say is the device's to check.
        let code = unsafe {
            (self.call.multiply)(
                self.handle,
                described.handle,
                alpha,
                at_a,
                a,
                at_b,
                b,
                beta,
                at_c,
                c,
                at_d,
                d,
                &chosen,
                work,
                work_bytes as usize,
                stream.handle,
            )
        };
        check("multiplying", code)
    }

    fn product(&self, attributes: Attributes<'_>) -> Result<Description, CallError> {
        let mut handle = 0;
        let (compute, scale) = (number(attributes, 0)? as c_int, number(attributes, 1)? as c_int);
        // SAFETY: the place is ours.
        check("describing a product", unsafe { (self.call.product_make)(&mut handle, compute, scale) })?;
        let made = Description { handle, end: self.call.product_end };
        set(attributes.iter().filter(|(number, _)| *number > 1), handle, self.call.product_set)?;
        Ok(made)
    }

    fn layout(&self, attributes: Attributes<'_>) -> Result<Description, CallError> {
        let mut handle = 0;
        let (kind, rows) = (number(attributes, 0)? as c_int, number(attributes, 2)?);
        let (columns, lead) = (number(attributes, 3)?, number(attributes, 4)? as i64);
        // SAFETY: the place is ours.
        let code = unsafe { (self.call.layout_make)(&mut handle, kind, rows, columns, lead) };
        check("describing a matrix", code)?;
        let made = Description { handle, end: self.call.layout_end };
        let others = attributes.iter().filter(|(number, _)| !matches!(number, 0 | 2 | 3 | 4));
        set(others, handle, self.call.layout_set)?;
        Ok(made)
    }

    fn wish(&self, product: &LtProduct<'_>) -> Result<Description, CallError> {
        let mut handle = 0;
        // SAFETY: the place is ours.
        check("wishing for an algorithm", unsafe { (self.call.wish_make)(&mut handle) })?;
        let made = Description { handle, end: self.call.wish_end };
        let bytes = product.workspace.1;
        // SAFETY: the value is ours.
        let code = unsafe { (self.call.wish_set)(handle, WORKSPACE_BYTES, (&raw const bytes).cast(), 8) };
        check("wishing for an algorithm", code)?;
        for ((address, _), which) in product.matrices.iter().zip(ALIGNMENTS) {
            // At most 256.
            let alignment = (1_u32 << address.trailing_zeros().min(31)).min(ALIGNMENT_MAX);
            // SAFETY: the value is ours.
            let code = unsafe { (self.call.wish_set)(handle, which, (&raw const alignment).cast(), 4) };
            check("wishing for an algorithm", code)?;
        }
        Ok(made)
    }
}

/// Sets attributes of a description.
fn set<'all>(
    attributes: impl Iterator<Item = &'all (u32, Vec<u8>)>,
    handle: Handle,
    with: unsafe extern "C" fn(Handle, c_int, Any, usize) -> c_int,
) -> Result<(), CallError> {
    for (number, value) in attributes {
        let number = c_int::try_from(*number).unwrap_or(c_int::MAX);
        // SAFETY: the value has so many bytes; a number or a length that is none is refused.
        let code = unsafe { with(handle, number, value.as_ptr().cast(), value.len()) };
        check("setting an attribute", code)?;
    }
    Ok(())
}

fn factor(value: &Aligned, in_memory: bool) -> Any {
    if !in_memory {
        return value.0.as_ptr().cast();
    }
    let mut address = [0; 8];
    address.copy_from_slice(&value.0[..8]);
    std::ptr::without_provenance(u64::from_le_bytes(address) as usize)
}
