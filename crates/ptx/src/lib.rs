//! PTX without a GPU: a parser of modules, and an interpreter that runs their kernels warp by warp.
//!
//! | module | subject |
//! | --- | --- |
//! | [`Module`] | what a text declares: kernels with their parameters, variables with what they start with |
//! | [`Launch`] | one run of a kernel over a grid |
//! | [`Memory`] | global memory, which the caller supplies |
//!
//! Blocks run one after the other (by turns, if the kernel waits for its whole grid), and the warps of a block by turns. Lanes
//! of a warp go apart at branches and meet again; results are those of IEEE 754 where PTX asks for them. Nothing here reads a clock or a file, so
//! that the same launch gives the same memory.
//!
//! The language is described at <https://docs.nvidia.com/cuda/parallel-thread-execution/>.
#![forbid(unsafe_code)]

mod body;
mod code;
mod declaration;
mod decode;
mod error;
mod launch;
mod machine;
mod memory;
mod module;
mod scalar;
mod text;
mod types;

pub use error::{FaultKind, LaunchError, PtxError};
pub use launch::{Launch, LaunchGeometry, Limits, Report};
pub use machine::{LOCAL_WINDOW, PARAMETER_WINDOW, SHARED_WINDOW};
pub use memory::{FlatMemory, IllegalAddress, Memory};
pub use module::{Entry, Module, Parameter, Variable};
