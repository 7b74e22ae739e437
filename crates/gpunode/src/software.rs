//! The device in software: memory of this process, streams that worker threads serve, kernels in an interpreter.
//!
//! | module | subject |
//! | --- | --- |
//! | `options` | what a device is like, as the command line says it |
//! | `facts` | the attributes of the device that it looks like, and occupancy |
//! | `space` | the window of addresses, and the memory in it |
//! | `engine` | what waits for what, and the threads that do what waits for nothing |
//! | `lanes` | streams: what the next piece of work of each waits for |
//! | `faults` | failures that tests ask for |
//! | `lt` | products of cuBLASLt |
//! | `kernels` | modules and what their kernels do |
//! | `variables` | memory for variables of modules |
//! | `blas` | products of matrices |
//! | `machine` | all of these as a [`Device`](crate::device::Device) |

mod blas;
mod engine;
mod facts;
mod faults;
mod kernels;
mod lanes;
mod linear;
mod lt;
mod machine;
mod options;
mod space;
mod variables;

pub(crate) use faults::is_sticky;
pub use machine::SoftwareMachine;
pub use options::{Kernels, SoftwareOptions};
