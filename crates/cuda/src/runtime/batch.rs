//! Many copies by one call.

use std::ffi::{c_int, c_uint, c_void};

use super::pool::Location;
use crate::code::{Code, INVALID_VALUE, NOT_SUPPORTED};
use crate::core::session::Session;
use crate::core::thread::with_session;

/// `cudaMemcpyAttributes`, which is `CUmemcpyAttributes`. Where ends should lie, and the flags, are hints.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Attributes {
    order: c_int,
    _from: Location,
    _to: Location,
    _flags: c_uint,
}

/// `cudaMemcpySrcAccessOrder`: in the order of the stream, before the call returns, whenever.
const ORDERS: std::ops::RangeInclusive<c_int> = 1..=3;
const DURING_CALL: c_int = 2;

/// What a call is given: places, sizes, and from which copy on each of the attributes holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch {
    pub(crate) to: *const *mut c_void,
    pub(crate) from: *const *const c_void,
    pub(crate) bytes: *const usize,
    pub(crate) count: usize,
    pub(crate) attributes: *const Attributes,
    pub(crate) starts: *const usize,
    pub(crate) attribute_count: usize,
}

/// # Safety
/// `start` is null or has `count` elements.
unsafe fn list<'list, T>(start: *const T, count: usize) -> Result<&'list [T], Code> {
    if start.is_null() || count == 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(start, count) })
}

impl Batch {
    /// Copies all of them, one behind the other, in the order of a stream.
    ///
    /// # Errors
    /// There are none, attributes are not as they can be, or the stream is the default one; or a copy fails, and which.
    ///
    /// # Safety
    /// As `cudaMemcpyBatchAsync` is documented.
    pub(crate) unsafe fn copy(
        &self,
        session: &Session,
        stream: *mut c_void,
    ) -> Result<(), (Option<usize>, Code)> {
        let whole = |code| (None, code);
        // SAFETY: the caller's promise.
        let (to, from, bytes) = unsafe {
            let lists =
                (list(self.to, self.count), list(self.from, self.count), list(self.bytes, self.count));
            (lists.0.map_err(whole)?, lists.1.map_err(whole)?, lists.2.map_err(whole)?)
        };
        // SAFETY: likewise.
        let (attributes, starts) = unsafe {
            let lists =
                (list(self.attributes, self.attribute_count), list(self.starts, self.attribute_count));
            (lists.0.map_err(whole)?, lists.1.map_err(whole)?)
        };
        let grow = starts.windows(2).all(|pair| pair[0] < pair[1]);
        let are_inside = starts.iter().all(|start| *start < self.count);
        let are_known = attributes.iter().all(|one| ORDERS.contains(&one.order));
        let stream = session.stream(stream).map_err(whole)?;
        if starts[0] != 0 || !grow || !are_inside || !are_known || stream.is_default() {
            return Err(whole(INVALID_VALUE));
        }
        let is_refused = |index: &usize| {
            let kind = starts.partition_point(|start| start <= index) - 1;
            let is_now = attributes[kind].order == DURING_CALL;
            // Each launch would read what is gone by then.
            is_now && stream.is_captured() && !session.is_device_address(from[*index].addr() as u64)
        };
        // Before the first copy, so that a graph has all of them or none.
        if let Some(index) = (0..self.count).find(is_refused) {
            return Err((Some(index), NOT_SUPPORTED));
        }
        (0..self.count).try_for_each(|index| {
            session.copy(&stream, to[index], from[index], bytes[index]).map_err(|code| (Some(index), code))
        })
    }
}

/// Copies between many places in the order of a stream, of which each source is read as its attributes say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpyBatchAsync(
    to: *const *mut c_void,
    from: *const *const c_void,
    bytes: *const usize,
    count: usize,
    attributes: *const Attributes,
    starts: *const usize,
    attribute_count: usize,
    stream: *mut c_void,
) -> Code {
    let batch = Batch { to, from, bytes, count, attributes, starts, attribute_count };
    // SAFETY: as documented.
    with_session(|session| unsafe { batch.copy(session, stream) }.map_err(|(_, code)| code))
}

/// The same where no stream means the thread's own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hl_cudaMemcpyBatchAsync_ptsz(
    to: *const *mut c_void,
    from: *const *const c_void,
    bytes: *const usize,
    count: usize,
    attributes: *const Attributes,
    starts: *const usize,
    attribute_count: usize,
    stream: *mut c_void,
) -> Code {
    let own = super::per_thread::own(stream);
    // SAFETY: as documented.
    unsafe { hl_cudaMemcpyBatchAsync(to, from, bytes, count, attributes, starts, attribute_count, own) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_as_long_as_the_compiler_of_cuda_13_makes_them() {
        assert_eq!(size_of::<Attributes>(), 24);
    }
}
