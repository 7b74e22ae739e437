//! What can be wrong with a module, with a launch, and with a kernel while it runs.

use thiserror::Error;

/// Why a module or one of its functions cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "line {line} of the PTX: {what} (hint: compile for a GPU of sm_90 or older, without what is named here)"
)]
pub struct PtxError {
    /// The line, counted from 1.
    pub line: u32,
    /// What is not understood or not supported.
    pub what: String,
}

impl PtxError {
    pub(crate) fn new(line: u32, what: impl Into<String>) -> Self {
        Self { line, what: what.into() }
    }
}

/// What a kernel did that ended it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FaultKind {
    /// An address that nothing lies at.
    #[error("illegal address {0:#x}")]
    IllegalAddress(u64),
    /// An address that is no multiple of what is accessed.
    #[error("misaligned address {0:#x}")]
    MisalignedAddress(u64),
    /// The kernel ended itself.
    #[error("the kernel executed a trap")]
    Trap,
    /// An assertion in the kernel did not hold: where, and what it was.
    #[error("an assertion failed: {0}")]
    Assertion(String),
    /// All threads that are left wait for others.
    #[error("deadlock: every thread that is left waits at a barrier that can never be complete")]
    Deadlock,
    /// The budget of instructions is used up.
    #[error("the budget of {0} warp instructions is used up")]
    Budget(u64),
    /// Calls are nested too deep, or need more memory than a thread may have.
    #[error("the stack of a thread is used up")]
    Stack,
    /// Something that this interpreter does not do.
    #[error("{0}")]
    Unsupported(String),
}

/// Why a launch did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LaunchError {
    /// The module has no such kernel.
    #[error("there is no kernel {0} (hint: names are those of the PTX, mangled)")]
    NoSuchEntry(String),
    /// The kernel, or something that it calls, is not understood.
    #[error(transparent)]
    Ptx(#[from] PtxError),
    /// More threads, blocks or shared memory than a launch may ask for.
    #[error("the launch asks for {0} (hint: see the limits of LaunchGeometry)")]
    Geometry(String),
    /// The parameters end before those that the kernel declares.
    #[error(
        "the kernel takes {needed} bytes of parameters, not {given} (hint: pass all, at the offsets of Entry::parameters)"
    )]
    Parameters {
        /// Bytes that the kernel declares.
        needed: u64,
        /// Bytes that were given.
        given: u64,
    },
    /// The kernel ran and failed.
    #[error(
        "{kind} at line {line} in block {block:?}, thread {thread:?} (hint: this is an error of the kernel or of its arguments)"
    )]
    Fault {
        /// What it did.
        kind: FaultKind,
        /// The line of the PTX.
        line: u32,
        /// `blockIdx`.
        block: [u32; 3],
        /// `threadIdx` of the first thread that did it.
        thread: [u32; 3],
    },
}

impl LaunchError {
    /// The number of the CUDA runtime's error that stands for this.
    #[must_use]
    pub fn cuda_code(&self) -> u32 {
        match self {
            Self::NoSuchEntry(_) => 500,
            Self::Ptx(_) => 218,
            Self::Geometry(_) => 9,
            Self::Parameters { .. } => 1,
            Self::Fault { kind, .. } => match kind {
                FaultKind::IllegalAddress(_) => 700,
                FaultKind::MisalignedAddress(_) => 716,
                FaultKind::Assertion(_) => 710,
                FaultKind::Deadlock | FaultKind::Budget(_) => 702,
                FaultKind::Stack => 714,
                FaultKind::Trap => 719,
                FaultKind::Unsupported(_) => 801,
            },
        }
    }
}
