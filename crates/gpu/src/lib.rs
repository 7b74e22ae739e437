//! GPUs through their own driver: host memory registered with it, and one kernel that copies all fragments of a batch.
//!
//! A mechanism crate: it decides nothing. Nothing is linked: `libcuda.so.1` and `libnvrtc.so` are loaded when a program first
//! asks for a GPU, so that one binary runs with and without them. See `docs/decisions/2026-11-22-kv-gpu.md`.
//!
//! | module | subject |
//! | --- | --- |
//! | [`library`] | shared libraries, opened by name or path |
//! | [`driver`] | the driver's functions that are used |
//! | [`compiler`] | NVRTC: the kernel's source becomes a program for one GPU |
//! | [`gpu`] | a GPU: its context |
//! | [`memory`] | memory of the host that the GPU reaches, and memory of the GPU |
//! | [`stream`] | streams of the program and of this library |
//! | [`copier`] | the kernel, and the tables by which it is told what to copy |
//! | [`launch`] | a batch of copies on a stream, from its launch to its end |
//! | [`plain`] | the same copies without the kernel, to compare with |
//! | [`lend`] | a GPU lent to programs elsewhere |
//! | `stand_in` | with the feature `stand-in`: what tests have in place of a driver |

mod compiler;
mod copier;
mod driver;
mod error;
mod gpu;
mod launch;
pub mod lend;
mod library;
mod memory;
mod plain;
#[cfg(feature = "stand-in")]
pub mod stand_in;
mod stream;

pub use compiler::{Compiled, Compiler, KERNEL_SOURCE};
pub use copier::{Copier, Direction, Piece};
pub use error::GpuError;
pub use gpu::Gpu;
pub use launch::Launch;
pub use memory::{DeviceMemory, Registered};
pub use plain::Plain;
pub use stream::{Stream, StreamHandle};
