//! Pools of device memory: the runtime's, under the driver's names. Handles and structures are the same.

use std::ffi::{c_int, c_void};

use crate::code::Code;
use crate::runtime::pool::{self, Access, Location, PoolProperties};

same! {
    /// The pool that a device begins with.
    hl_cuDeviceGetDefaultMemPool(place: *mut *mut c_void, device: c_int) = pool::hl_cudaDeviceGetDefaultMemPool;
    /// The pool that a device allocates from.
    hl_cuDeviceGetMemPool(place: *mut *mut c_void, device: c_int) = pool::hl_cudaDeviceGetMemPool;
    /// Sets the pool that a device allocates from.
    hl_cuDeviceSetMemPool(device: c_int, pool: *mut c_void) = pool::hl_cudaDeviceSetMemPool;
    /// Makes a pool.
    hl_cuMemPoolCreate(place: *mut *mut c_void, properties: *const PoolProperties) = pool::hl_cudaMemPoolCreate;
    /// Ends a pool.
    hl_cuMemPoolDestroy(pool: *mut c_void) = pool::hl_cudaMemPoolDestroy;
    /// A pool keeps nothing back.
    hl_cuMemPoolTrimTo(pool: *mut c_void, bytes_min: usize) = pool::hl_cudaMemPoolTrimTo;
    /// Sets an attribute of a pool.
    hl_cuMemPoolSetAttribute(pool: *mut c_void, attribute: c_int, value: *mut c_void) = pool::hl_cudaMemPoolSetAttribute;
    /// An attribute of a pool.
    hl_cuMemPoolGetAttribute(pool: *mut c_void, attribute: c_int, value: *mut c_void) = pool::hl_cudaMemPoolGetAttribute;
    /// Says which devices use a pool.
    hl_cuMemPoolSetAccess(pool: *mut c_void, list: *const Access, count: usize) = pool::hl_cudaMemPoolSetAccess;
    /// Whether a device uses a pool.
    hl_cuMemPoolGetAccess(flags: *mut c_int, pool: *mut c_void, location: *mut Location) = pool::hl_cudaMemPoolGetAccess;
    /// Allocates from a pool.
    hl_cuMemAllocFromPoolAsync(place: *mut *mut c_void, bytes: usize, pool: *mut c_void, stream: *mut c_void) = pool::hl_cudaMallocFromPoolAsync;
}
