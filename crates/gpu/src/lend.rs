//! A GPU lent to programs elsewhere: all that their commands need of the driver and of cuBLAS, in safe calls.
//!
//! *Not run on a GPU yet.* Everything is in the device's primary context, which belongs to this process alone: a session of a GPU node is a
//! process. No call here waits for work of the GPU, but for those that say so.
//!
//! | module | subject |
//! | --- | --- |
//! | `calls` | the functions, and the structures that they take |
//! | [`memory`] | the window of addresses, memory in it, pinned memory, copies and fills |
//! | [`order`] | streams, events, captures and graphs |
//! | [`program`] | modules, kernels and launches |
//! | [`blas`] | cuBLAS: handles and products |
//! | [`blas_call`] | its other functions |
//! | [`lt`] | cuBLASLt |

pub mod blas;
pub mod blas_call;
mod calls;
pub mod lt;
pub mod memory;
pub mod order;
pub mod program;
pub mod tensor;

use crate::driver::{Driver, Handle};
use crate::error::GpuError;
use crate::library::Library;
use calls::Calls;
use std::ffi::{CStr, c_char, c_int};
use std::path::PathBuf;
use std::sync::Arc;

/// Highest number of an attribute that is asked for; the driver refuses those that it does not know.
const ATTRIBUTES: std::ops::Range<c_int> = 1..160;
/// Longest name.
const NAME_BYTES: usize = 256;

/// A call of the driver or of cuBLAS that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {words} (error {code})")]
pub struct CallError {
    /// What was being done.
    pub what: &'static str,
    /// The number.
    pub code: i32,
    /// The library's words for it.
    pub words: String,
    /// Whether it is cuBLAS's number.
    pub is_blas: bool,
}

/// The driver, for lending.
pub struct Lender {
    pub(crate) driver: Driver,
    pub(crate) call: Calls,
}

/// A device in the context of this process.
pub struct Lent {
    pub(crate) lender: Arc<Lender>,
    pub(crate) device: c_int,
    pub(crate) context: Handle,
}

/// What the driver says of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// Its name.
    pub name: String,
    /// Its identifier.
    pub uuid: [u8; 16],
    /// Its memory in bytes.
    pub memory: u64,
    /// Its address on the bus.
    pub bus: String,
    /// Attributes by the driver's numbers.
    pub attributes: Vec<(i32, i32)>,
}

impl Lender {
    /// Loads the driver.
    ///
    /// # Errors
    /// [`GpuError::NoDriver`], [`GpuError::OldDriver`], [`GpuError::NoDevice`].
    pub fn open() -> Result<Arc<Self>, GpuError> {
        let driver = Driver::load(None)?;
        let library = Library::open(&[Driver::path(None)]).map_err(|words| GpuError::NoDriver { words })?;
        let call = Calls::of(library)
            .map_err(|name| GpuError::OldDriver { found: format!("no function for `{name}`") })?;
        Ok(Arc::new(Self { driver, call }))
    }

    /// How many devices there are.
    ///
    /// # Errors
    /// The driver's.
    pub fn count(&self) -> Result<u32, CallError> {
        let mut count = 0;
        // SAFETY: the place is ours.
        self.check("counting GPUs", unsafe { (self.driver.call.device_count)(&mut count) })?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The driver's version, as `13000`.
    pub fn version(&self) -> i32 {
        self.driver.version.0 * 1000 + self.driver.version.1 * 10
    }

    /// What the driver says of device `number`, without making a context on it.
    ///
    /// # Errors
    /// The driver's.
    pub fn about(&self, number: u32) -> Result<About, CallError> {
        let device = self.device(number)?;
        let (mut name, mut bus) = ([0_u8; NAME_BYTES], [0_u8; NAME_BYTES]);
        let (mut uuid, mut memory) = ([0_u8; 16], 0_usize);
        let (names, length) = (&self.driver.call, NAME_BYTES as c_int);
        // SAFETY: there is room for as many bytes as are told.
        self.check("asking for a name", unsafe {
            (names.device_name)(name.as_mut_ptr().cast::<c_char>(), length, device)
        })?;
        // SAFETY: likewise.
        self.check("asking for the bus", unsafe {
            (self.call.device_bus)(bus.as_mut_ptr().cast::<c_char>(), length, device)
        })?;
        // SAFETY: an identifier has 16 bytes.
        self.check("asking for an identifier", unsafe {
            (self.call.device_uuid)(uuid.as_mut_ptr(), device)
        })?;
        // SAFETY: the place is ours.
        self.check("asking for memory", unsafe { (self.call.device_memory)(&mut memory, device) })?;
        let mut attributes = Vec::new();
        for attribute in ATTRIBUTES {
            let mut value = 0;
            // SAFETY: the place is ours; an attribute that is not known is refused.
            let code = unsafe { (names.device_attribute)(&mut value, attribute, device) };
            if code == 0 && value != 0 {
                attributes.push((attribute, value));
            }
        }
        Ok(About { name: text(&name), uuid, memory: memory as u64, bus: text(&bus), attributes })
    }

    /// Device `number`, with its context.
    ///
    /// # Errors
    /// The driver's.
    pub fn lend(self: &Arc<Self>, number: u32) -> Result<Lent, CallError> {
        let device = self.device(number)?;
        let mut context = 0;
        // SAFETY: the place is ours. The context is never given back: it ends with the process.
        let code = unsafe { (self.driver.call.primary_retain)(&mut context, device) };
        self.check("making a context", code)?;
        Ok(Lent { lender: Arc::clone(self), device, context })
    }

    fn device(&self, number: u32) -> Result<c_int, CallError> {
        let mut device = 0;
        let number = c_int::try_from(number).unwrap_or(c_int::MAX);
        // SAFETY: the place is ours; a number that no device has is refused.
        self.check("finding a GPU", unsafe { (self.driver.call.device)(&mut device, number) })?;
        Ok(device)
    }

    pub(crate) fn check(&self, what: &'static str, code: c_int) -> Result<(), CallError> {
        if code == 0 {
            return Ok(());
        }
        let (name, words) = self.driver.words(code);
        Err(CallError { what, code, words: format!("{name}: {words}"), is_blas: false })
    }
}

impl Lent {
    /// Makes the context current on this thread; what follows on it is for this device.
    pub(crate) fn enter(&self) -> Result<&Calls, CallError> {
        // SAFETY: the context lives as long as the process.
        self.lender.check("entering a context", unsafe { (self.lender.call.context_set)(self.context) })?;
        Ok(&self.lender.call)
    }

    /// Whether its kernels reach memory of another device.
    pub fn reaches(&self, other: &Self) -> bool {
        let mut can = 0;
        // SAFETY: the place is ours; a device is no peer of itself.
        let code = unsafe { (self.lender.call.can_reach)(&mut can, self.device, other.device) };
        code == 0 && can != 0 && self.device != other.device
    }

    pub(crate) fn check(&self, what: &'static str, code: c_int) -> Result<(), CallError> {
        self.lender.check(what, code)
    }
}

fn text(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

/// Names of a library's versions, the latest first.
pub(crate) fn candidates(names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(PathBuf::from).collect()
}
