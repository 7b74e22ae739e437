//! PTX without a GPU: a parser of modules, and an interpreter that runs their kernels warp by warp.
//!
//! | module | subject |
//! | --- | --- |
//! | [`Module`] | what a text declares: kernels with their parameters, variables with what they start with |
//! | [`Launch`] | one run of a kernel over a grid |
//! | [`Memory`] | global memory, which the caller supplies |
//!
//! Blocks run one after the other (by turns, if the kernel waits for its whole grid), and the warps of a block by turns. Lanes
//! of a warp go apart at branches and meet again. Results are those of IEEE 754 where PTX asks for them; functions that a GPU
//! approximates are nearer to the exact value here, and sums of matrix instructions are rounded once. Nothing reads a clock
//! or a file, so the same launch gives the same memory.
//!
//! Not done, and refused by name when a kernel that needs it is launched: `cp.async.bulk` and other tensor copies, `mbarrier`,
//! `wgmma` and later matrix instructions, `mma` of numbers of 4 or 8 bits with a binary point, textures, calls with parameters in
//! registers, and launches from within a kernel. A cluster is one block; who launches larger ones asks whether a kernel would tell
//! ([`Module::knows_cluster`]).
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
