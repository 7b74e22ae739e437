//! The core of the libraries that stand in for CUDA's in a program whose GPU is elsewhere.
//!
//! A program asks its loader for `libcudart.so.13`, `libcublas.so.13`, `libcuda.so.1` and so on. `hinterland run --gpu` has the loader find small
//! libraries of these names, whose symbols jump to the functions of this one: `cudaMalloc` to `hl_cudaMalloc`. So whatever one of
//! them made, the others know.
//!
//! | module | subject |
//! | --- | --- |
//! | [`core`] | the session with the node; streams, memory, code, graphs as they are known here |
//! | [`runtime`] | functions of `libcudart` |
//! | [`driver`] | functions of `libcuda` |
//! | [`blas`] | functions of `libcublas` and `libcublasLt` |
//! | [`nvml`] | functions of `libnvidia-ml` |
//! | [`missing`] | symbols that exist and do nothing but say so |
//!
//! Environment, set by `hinterland run --gpu`:
//!
//! | variable | meaning |
//! | --- | --- |
//! | `HINTERLAND_GPU` | the node: `unix:PATH` or `tcp:HOST:PORT` |
//! | `HINTERLAND_GPU_MEMORY` | bytes of device memory to ask for at the start |
#![allow(non_snake_case, reason = "functions have the names that CUDA's documentation gives them")]
#![allow(
    clippy::missing_safety_doc,
    reason = "what each function demands of its arguments is what CUDA's documentation says"
)]

pub mod blas;
pub mod code;
pub mod core;
pub mod counters;
pub mod driver;
pub mod missing;
pub mod nvml;
pub mod runtime;
