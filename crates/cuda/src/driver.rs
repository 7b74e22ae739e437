//! Functions of `libcuda`, as CUDA's documentation describes them. What differs is said at the function.

pub mod device;
pub mod memory;
