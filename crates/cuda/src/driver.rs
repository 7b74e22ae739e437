//! Functions of `libcuda`, as CUDA's documentation describes them. What differs is said at the function.

pub mod context;
pub mod copy;
pub mod device;
pub mod entry;
pub mod launch;
pub mod memory;
pub mod module;
pub mod stream;
