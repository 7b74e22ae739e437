//! Functions of `libcudart`, as CUDA's documentation describes them. What differs is said at the function.

pub mod any_node;
pub mod batch;
pub mod device;
pub mod error;
pub mod event;
pub mod graph;
pub mod launch;
pub mod limit;
pub mod memory;
pub mod node;
pub mod node_attribute;
pub mod per_thread;
pub mod pool;
pub mod properties;
pub mod register;
pub mod stream;
pub mod user_object;
pub mod volume;

use crate::code::{Code, INVALID_VALUE};

/// Writes a result for the program.
///
/// # Errors
/// There is no place for it.
///
/// # Safety
/// `place` is null or can be written.
pub(crate) unsafe fn give<T>(place: *mut T, value: T) -> Result<(), Code> {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// Writes a result that the program may not want.
///
/// # Safety
/// `place` is null or can be written.
pub(crate) unsafe fn give_if<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { place.write(value) };
    }
}
