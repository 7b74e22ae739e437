//! Many copies by one call, under the driver's names.

use std::ffi::c_void;

use crate::code::Code;
use crate::core::thread::driver;
use crate::runtime::batch::{Attributes, Batch};
use crate::runtime::per_thread::own;
use crate::runtime::{batch, give_if};

same! {
    /// Copies between many places in the order of a stream.
    hl_cuMemcpyBatchAsync_v2(to: *const *mut c_void, from: *const *const c_void, bytes: *const usize, count: usize, attributes: *const Attributes, starts: *const usize, attribute_count: usize, stream: *mut c_void) = batch::hl_cudaMemcpyBatchAsync;
    /// The same where no stream means the thread's own.
    hl_cuMemcpyBatchAsync_v2_ptsz(to: *const *mut c_void, from: *const *const c_void, bytes: *const usize, count: usize, attributes: *const Attributes, starts: *const usize, attribute_count: usize, stream: *mut c_void) = batch::hl_cudaMemcpyBatchAsync_ptsz;
}

/// The same before CUDA 13, which says which copy failed, or that none did by itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemcpyBatchAsync(
    to: *const *mut c_void,
    from: *const *const c_void,
    bytes: *const usize,
    count: usize,
    attributes: *const Attributes,
    starts: *const usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: *mut c_void,
) -> Code {
    driver(|session| {
        let batch = Batch { to, from, bytes, count, attributes, starts, attribute_count };
        // SAFETY: as documented.
        unsafe { batch.copy(session, stream) }.map_err(|(index, code)| {
            // SAFETY: a place for a result or null, as documented.
            unsafe { give_if(failed, index.unwrap_or(usize::MAX)) };
            code
        })
    })
}

/// The same where no stream means the thread's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cuMemcpyBatchAsync_ptsz(
    to: *const *mut c_void,
    from: *const *const c_void,
    bytes: *const usize,
    count: usize,
    attributes: *const Attributes,
    starts: *const usize,
    attribute_count: usize,
    failed: *mut usize,
    stream: *mut c_void,
) -> Code {
    let own = own(stream);
    // SAFETY: as documented.
    unsafe { hl_cuMemcpyBatchAsync(to, from, bytes, count, attributes, starts, attribute_count, failed, own) }
}
