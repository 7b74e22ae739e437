//! Opaque handles that a program gets: a kind and a number, so that a wrong one is recognised and none is given twice.

use std::collections::HashMap;
use std::ffi::c_void;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, PoisonError, RwLock};

use crate::code::{Code, INVALID_HANDLE, INVALID_VALUE};

/// What a handle names. The numbers are such that no handle is a plausible pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Kind {
    /// `cudaStream_t`
    Stream = 0x5e01,
    /// `cudaEvent_t`
    Event = 0x5e02,
    /// `cudaGraph_t`
    Graph = 0x5e03,
    /// `cudaGraphExec_t`
    GraphExec = 0x5e04,
    /// `CUmodule`, `CUlibrary`
    Module = 0x5e05,
    /// `CUfunction`, `CUkernel`, `cudaKernel_t`
    Function = 0x5e06,
    /// `CUcontext`
    Context = 0x5e07,
    /// `CUmemGenericAllocationHandle`
    Memory = 0x5e08,
    /// `cudaGraphNode_t`
    Node = 0x5e09,
    /// `cudaMemPool_t`
    Pool = 0x5e0a,
    /// `cudaUserObject_t`
    UserObject = 0x5e0b,
}

const SHIFT: u32 = 44;

impl Kind {
    /// The handle with a number.
    #[must_use]
    pub fn handle(self, number: u32) -> *mut c_void {
        std::ptr::without_provenance_mut(self.number(number) as usize)
    }

    /// The same as a number.
    #[must_use]
    pub fn number(self, number: u32) -> u64 {
        (self as u64) << SHIFT | u64::from(number) << 4
    }

    /// What CUDA says of something else in the place of a handle of this kind.
    const fn wrong(self) -> Code {
        match self {
            Self::Graph | Self::GraphExec | Self::Node | Self::Pool | Self::UserObject => INVALID_VALUE,
            _ => INVALID_HANDLE,
        }
    }

    /// The number of a handle of this kind.
    ///
    /// # Errors
    /// It is something else.
    pub fn of(self, handle: *const c_void) -> Result<u32, Code> {
        self.of_number(handle.addr() as u64)
    }

    /// The same for a handle that is a number.
    ///
    /// # Errors
    /// It is something else.
    pub fn of_number(self, handle: u64) -> Result<u32, Code> {
        if handle >> SHIFT != self as u64 {
            return Err(self.wrong());
        }
        u32::try_from((handle & ((1 << SHIFT) - 1)) >> 4).map_err(|_| self.wrong())
    }
}

/// Spreads numbers and addresses over a table.
#[derive(Debug, Default, Clone, Copy)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }
    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
}

/// A map with keys that are numbers.
pub type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;

/// Things by their number. A number is never given twice.
#[derive(Debug)]
pub struct Table<T> {
    things: RwLock<(u32, NumberMap<u32, Arc<T>>)>,
}

impl<T> Table<T> {
    /// An empty table whose first number is `first`.
    #[must_use]
    pub fn new(first: u32) -> Self {
        Self { things: RwLock::new((first, NumberMap::default())) }
    }

    /// Adds what `make` makes of its number.
    ///
    /// # Errors
    /// All numbers were given, or what `make` says.
    pub fn add(&self, make: impl FnOnce(u32) -> Result<T, Code>) -> Result<Arc<T>, Code> {
        let mut things = self.things.write().unwrap_or_else(PoisonError::into_inner);
        let number = things.0;
        let thing = Arc::new(make(number)?);
        things.0 = number.checked_add(1).ok_or(crate::code::NO_MEMORY)?;
        things.1.insert(number, thing.clone());
        Ok(thing)
    }

    /// The thing with a number.
    ///
    /// # Errors
    /// There is none (any more).
    pub fn get(&self, number: u32) -> Result<Arc<T>, Code> {
        let things = self.things.read().unwrap_or_else(PoisonError::into_inner);
        things.1.get(&number).cloned().ok_or(INVALID_HANDLE)
    }

    /// Takes the thing with a number out.
    ///
    /// # Errors
    /// There is none (any more).
    pub fn remove(&self, number: u32) -> Result<Arc<T>, Code> {
        let mut things = self.things.write().unwrap_or_else(PoisonError::into_inner);
        things.1.remove(&number).ok_or(INVALID_HANDLE)
    }

    /// All things at this moment, and their numbers.
    #[must_use]
    pub fn numbered(&self) -> Vec<(u32, Arc<T>)> {
        let things = self.things.read().unwrap_or_else(PoisonError::into_inner);
        things.1.iter().map(|(number, thing)| (*number, thing.clone())).collect()
    }

    /// All things at this moment.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<T>> {
        let things = self.things.read().unwrap_or_else(PoisonError::into_inner);
        things.1.values().cloned().collect()
    }
}
