//! What can go wrong between a program and its GPU.

/// A GPU cannot be used, or did not do what it was asked; the text ends in what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GpuError {
    /// There is no driver library.
    #[error(
        "there is no CUDA driver: {words} (hint: install the NVIDIA driver of the machine; in a container, start it with its GPUs; `nvidia-smi` shows whether it works)"
    )]
    NoDriver {
        /// What the loader said.
        words: String,
    },
    /// The driver lacks what is needed.
    #[error(
        "the CUDA driver is too old: it has {found}, and CUDA 11.4 or later is needed (hint: install driver 470 or later)"
    )]
    OldDriver {
        /// Its version, or the function that it lacks.
        found: String,
    },
    /// The driver finds no GPU, or not that one.
    #[error(
        "the driver has {count} GPUs, so there is no GPU {wanted} (hint: `nvidia-smi -L` lists them; CUDA_VISIBLE_DEVICES may hide some)"
    )]
    NoDevice {
        /// The number that was asked for.
        wanted: usize,
        /// How many there are.
        count: usize,
    },
    /// There is no run-time compiler.
    #[error(
        "there is no NVRTC, which compiles the copy kernel: {words} (hint: pip install nvidia-cuda-nvrtc, or the CUDA toolkit; HINTERLAND_NVRTC names its library)"
    )]
    NoCompiler {
        /// What the loader said.
        words: String,
    },
    /// The compiler does not know the GPU, or refuses the kernel.
    #[error(
        "NVRTC {version} does not compile the copy kernel for compute capability {capability}: {words} (hint: an NVRTC as new as the driver; HINTERLAND_NVRTC names its library)"
    )]
    Compile {
        /// The compiler's version.
        version: String,
        /// The GPU's, as `9.0`.
        capability: String,
        /// What the compiler said.
        words: String,
    },
    /// The GPU cannot reach memory of the host.
    #[error("{bytes} bytes of host memory cannot be registered with GPU {device}: {words} (hint: {hint})")]
    Registration {
        /// How many.
        bytes: usize,
        /// Which GPU.
        device: String,
        /// What the driver said.
        words: String,
        /// What to do.
        hint: &'static str,
    },
    /// A call of the driver failed.
    #[error("{what}: the CUDA driver says {name} ({code}): {words} (hint: {hint})")]
    Driver {
        /// What was being done.
        what: &'static str,
        /// The driver's number.
        code: i32,
        /// Its name for it.
        name: String,
        /// Its words.
        words: String,
        /// What to do.
        hint: &'static str,
    },
    /// An address that the GPU cannot use.
    #[error(
        "{address:#x} is no address of memory that this GPU reaches (hint: pass device memory, such as tensor.data_ptr() of a CUDA tensor, and the bytes that follow it)"
    )]
    Address {
        /// The address.
        address: u64,
    },
    /// Offset and length lie outside of memory.
    #[error("{bytes} bytes at {offset} lie outside of {limit} bytes (hint: check offset and length)")]
    Outside {
        /// Where it begins.
        offset: usize,
        /// How many.
        bytes: usize,
        /// How long the memory is.
        limit: usize,
    },
    /// The system has no memory to register.
    #[error("no memory to copy through: {words} (hint: `free -m` shows what uses it)")]
    Memory {
        /// What it said.
        words: String,
    },
}

impl GpuError {
    /// The `errno` value that fits.
    pub const fn code(&self) -> i32 {
        const ENOMEM: i32 = 12;
        const EFAULT: i32 = 14;
        const ENODEV: i32 = 19;
        const EINVAL: i32 = 22;
        const EIO: i32 = 5;
        match self {
            Self::NoDriver { .. }
            | Self::OldDriver { .. }
            | Self::NoDevice { .. }
            | Self::NoCompiler { .. }
            | Self::Compile { .. } => ENODEV,
            Self::Registration { .. } | Self::Memory { .. } => ENOMEM,
            Self::Address { .. } => EFAULT,
            Self::Outside { .. } => EINVAL,
            Self::Driver { .. } => EIO,
        }
    }
}
