//! Fat binaries of CUDA as bytes: which images they hold, which one a GPU takes, and what its kernels want.
//!
//! | module | subject |
//! | --- | --- |
//! | [`wrapper`] | the small structure in a program that says where a fat binary is |
//! | [`container`] | a fat binary: its entries, and one with fewer of them |
//! | [`target`] | capabilities of GPUs, and which GPUs an image is for |
//! | [`choice`] | the image that a GPU takes |
//! | [`decompress`] | an entry's payload as the image that it stands for |
//! | [`kernels`] | kernels and variables of an image, with the layout of parameters |
//! | [`occupancy`] | how many groups of a kernel a multiprocessor holds |
//! | [`cubin`], [`assembly`] | the two kinds of image: machine code in ELF, and PTX |
//!
//! The formats are not documented by their vendor, but for the wrapper. What is said here about them was found in what nvcc 12 and 13
//! write, and is tested against it. Bytes may come from anybody: no input panics, and what is allocated is bounded by the size
//! of the input and by [`IMAGE_BYTES_MAX`].
#![forbid(unsafe_code)]

pub mod assembly;
pub mod choice;
pub mod container;
pub mod cubin;
pub mod decompress;
pub mod kernels;
pub mod occupancy;
pub mod target;
pub mod wrapper;

mod numbers;

pub use choice::{choose, choose_assembly};
pub use container::{
    Compression, ContainerError, Containers, Entry, Kind, container_bytes, entries, repack, wrap,
};
pub use decompress::{DecompressError, IMAGE_BYTES_MAX};
pub use kernels::{ImageError, Kernel, Kernels, Parameter, Space, Variable};
pub use occupancy::{Group, Multiprocessor};
pub use target::{Capability, Specific, Target};
pub use wrapper::{Wrapper, WrapperError};

/// The name under which a fat binary or an image is known between machines: its BLAKE3 hash.
pub fn content_hash(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}
