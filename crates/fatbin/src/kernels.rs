//! Kernels and variables of an image: what a launch needs to know of them.

use crate::target::Target;
use crate::{assembly, cubin};
use thiserror::Error;

/// Bytes of all parameters of a kernel: what the newest GPUs take.
pub const PARAMETER_BYTES_MAX: u32 = 32_764;

/// Why an image cannot be read.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ImageError {
    /// Neither ELF nor PTX.
    #[error(
        "an image is neither machine code in ELF nor PTX (hint: a fat binary has to be opened first; code for the linker cannot run)"
    )]
    Form,
    /// ELF that is no machine code for a GPU, or is damaged.
    #[error(
        "machine code cannot be read: {reason} (hint: the program's file is damaged, or of a compiler that is not known yet)"
    )]
    Elf {
        /// What is wrong.
        reason: String,
    },
    /// The parameters of a kernel make no sense.
    #[error(
        "kernel {kernel}: {reason} (hint: the program's file is damaged, or of a compiler that is not known yet)"
    )]
    Parameters {
        /// The kernel's name.
        kernel: String,
        /// What is wrong.
        reason: String,
    },
    /// PTX that is damaged.
    #[error(
        "line {line} of PTX: {reason} (hint: the program's file is damaged, or of a compiler that is not known yet)"
    )]
    Assembly {
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
}

/// One parameter of a kernel, in the buffer of all its parameters. The place is that of this image: see [`Kernel::parameters_at`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parameter {
    /// Bytes from the start of the buffer.
    pub offset: u32,
    /// Bytes of the parameter.
    pub size: u32,
}

/// A kernel, as far as its image tells. What PTX leaves to the compiler is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// The mangled name.
    pub name: String,
    /// In the order of the source.
    pub parameters: Vec<Parameter>,
    /// Bytes of the buffer of all parameters: the end of the last one.
    pub parameter_bytes: u32,
    /// What each parameter is aligned to, a power of two; only in PTX, else empty.
    pub parameter_alignments: Vec<u32>,
    /// Where the buffer starts in the GPU's memory of constants; only in machine code.
    pub parameters_start: Option<u16>,
    /// Registers of a thread; only in machine code.
    pub registers: Option<u32>,
    /// Bytes of shared memory that the kernel has without a launch asking for more. In PTX, those declared within the kernel.
    pub static_shared_bytes: Option<u32>,
    /// Bytes of local memory of a thread; only in machine code.
    pub local_bytes: Option<u32>,
    /// Threads of a block that the compiler counted on, if the source says so.
    pub threads_max: Option<u32>,
    /// The shape of a block, if the source allows one only.
    pub block: Option<[u32; 3]>,
    /// Blocks of a cluster in each direction, if the source says so.
    pub cluster: Option<[u32; 3]>,
}

impl Kernel {
    /// Where the compiler puts the parameters of PTX in a buffer that starts at an address: it aligns addresses, not offsets. So with an
    /// alignment above 16 the places differ between GPUs, and from those of PTX itself, whose buffer starts at 0.
    pub fn parameters_at(&self, start: u16) -> Vec<Parameter> {
        let start = u32::from(start);
        let mut end = start;
        let place = |(parameter, alignment): (&Parameter, &u32)| {
            let address = end.next_multiple_of(*alignment);
            end = address + parameter.size;
            Parameter { offset: address - start, size: parameter.size }
        };
        self.parameters.iter().zip(&self.parameter_alignments).map(place).collect()
    }
}

/// Where a variable lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// `__device__`.
    Global,
    /// `__constant__`.
    Constant,
}

/// A variable of an image, which programs reach by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The mangled name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Where it lies.
    pub space: Space,
    /// Whether it is `__managed__`.
    pub is_managed: bool,
}

/// What an image has to offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernels {
    /// In the order of the image.
    pub kernels: Vec<Kernel>,
    /// Variables that have a place of their own in the image.
    pub variables: Vec<Variable>,
    /// The GPUs that it was made for. In machine code without the letter, which only the fat binary has.
    pub target: Option<Target>,
}

impl Kernels {
    /// Reads an unpacked image: machine code in ELF, or PTX (up to its first zero byte).
    ///
    /// # Errors
    /// [`ImageError`] when it is neither, or damaged.
    pub fn of_image(image: &[u8]) -> Result<Self, ImageError> {
        if image.starts_with(b"\x7fELF") { cubin::read(image) } else { assembly::read(image) }
    }

    /// The kernel of this mangled name.
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// The variable of this mangled name.
    pub fn variable(&self, name: &str) -> Option<&Variable> {
        self.variables.iter().find(|variable| variable.name == name)
    }
}
