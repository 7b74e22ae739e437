//! The driver's devices. *Not run on a GPU yet.*
//!
//! | module | subject |
//! | --- | --- |
//! | `machine` | the devices of a session as a [`Device`](crate::device::Device) |
//! | `programs` | modules and kernels |
//! | `execs` | instances of graphs |
//! | `blases` | handles of cuBLAS |
//! | `shapes` | rows and launches as the driver takes them |
//! | `watcher` | a thread that looks for what the devices have done, and tells the client |
//! | `staging` | pinned memory that copies pass through |
//! | `replay` | a captured list put under the driver's capture |
//!
//! Nothing waits for the device but the watcher, which asks for events as long as some are open: a callback of the driver would not come once the
//! device is broken, and a wait for one event would miss another. Bytes copied out and marks of one stream are told in its order.

mod blases;
mod execs;
mod machine;
mod programs;
mod replay;
mod shapes;
mod staging;
mod watcher;

pub use machine::{CudaMachine, device_memory};

use crate::failure::Failure;
use crate::software::is_sticky;
use hinterland_gpu::lend::CallError;

/// A call that failed, as a failure of a command.
fn failed(error: CallError) -> Failure {
    let words = error.to_string();
    if error.is_blas {
        return Failure::blas(error.code, words);
    }
    let failure = Failure::new(error.code, words);
    if is_sticky(failure.error) { failure.sticky() } else { failure }
}
