//! Why a command was not done: the number that CUDA has for it, and words for people.

use hinterland_proto::gpu::answer::library;
use std::fmt;

/// Numbers of the driver, which the runtime shares.
pub mod number {
    /// An argument is out of its range.
    pub const INVALID_VALUE: i32 = 1;
    /// There is no memory left.
    pub const OUT_OF_MEMORY: i32 = 2;
    /// There is no such device.
    pub const INVALID_DEVICE: i32 = 101;
    /// A fat binary that is none.
    pub const INVALID_IMAGE: i32 = 200;
    /// A fat binary has nothing that this device can run.
    pub const NO_BINARY_FOR_GPU: i32 = 209;
    /// The assembly of a fat binary is not understood.
    pub const INVALID_PTX: i32 = 218;
    /// A name that nothing has.
    pub const INVALID_HANDLE: i32 = 400;
    /// A kernel or variable that a module does not have.
    pub const NOT_FOUND: i32 = 500;
    /// Something is not done yet.
    pub const NOT_READY: i32 = 600;
    /// A kernel touched memory that nobody has.
    pub const ILLEGAL_ADDRESS: i32 = 700;
    /// A kernel needs more of something than the device has.
    pub const OUT_OF_RESOURCES: i32 = 701;
    /// A kernel touched memory at an address that is no multiple of what it touched.
    pub const MISALIGNED_ADDRESS: i32 = 716;
    /// A kernel failed.
    pub const LAUNCH_FAILED: i32 = 719;
    /// All groups of a cooperative launch do not fit at once.
    pub const COOPERATIVE_TOO_LARGE: i32 = 720;
    /// This device, or this node, cannot do that.
    pub const NOT_SUPPORTED: i32 = 801;
    /// Something else.
    pub const UNKNOWN: i32 = 999;
}

/// cuBLAS's number for what it does not do.
const BLAS_NOT_SUPPORTED: i32 = 15;
/// cuBLAS's number for an argument that is out of its range.
const BLAS_INVALID_VALUE: i32 = 7;

/// Why a command was not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The number, never 0.
    pub error: i32,
    /// Whose number it is ([`library`]).
    pub library: u32,
    /// Whether the device is of no more use to the session.
    pub is_sticky: bool,
    /// Words for people.
    pub words: String,
}

impl Failure {
    /// A failure after which the session goes on.
    pub fn new(error: i32, words: impl Into<String>) -> Self {
        Self { error, library: library::DRIVER, is_sticky: false, words: words.into() }
    }

    /// An argument that is out of its range.
    pub fn value(words: impl Into<String>) -> Self {
        Self::new(number::INVALID_VALUE, words)
    }

    /// A name that nothing has.
    pub fn unknown(what: &str, name: u32) -> Self {
        Self::new(number::INVALID_HANDLE, format!("there is no {what} {name} in this session"))
    }

    /// A name that something has already.
    pub fn twice(what: &str, name: u32) -> Self {
        Self::value(format!("there is a {what} {name} already"))
    }

    /// More of something than a session may have.
    pub fn too_many(what: &str, limit: usize) -> Self {
        Self::new(number::OUT_OF_MEMORY, format!("a session has at most {limit} {what}"))
    }

    /// Something that this device cannot do.
    pub fn unsupported(words: impl Into<String>) -> Self {
        Self::new(number::NOT_SUPPORTED, words)
    }

    /// Something that cuBLAS refuses.
    pub fn blas(error: i32, words: impl Into<String>) -> Self {
        Self { library: library::BLAS, ..Self::new(error, words) }
    }

    /// Something that this device's cuBLAS does not do.
    pub fn blas_unsupported(words: impl Into<String>) -> Self {
        Self::blas(BLAS_NOT_SUPPORTED, words)
    }

    /// An argument of cuBLAS that is out of its range.
    pub fn blas_value(words: impl Into<String>) -> Self {
        Self::blas(BLAS_INVALID_VALUE, words)
    }

    /// The same as the end of what the session can do with the device.
    #[must_use]
    pub fn sticky(self) -> Self {
        Self { is_sticky: true, ..self }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = if self.library == library::BLAS { "cuBLAS" } else { "CUDA" };
        write!(formatter, "{} ({whose} error {})", self.words, self.error)
    }
}

impl std::error::Error for Failure {}
