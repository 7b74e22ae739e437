//! What both sides tell of themselves at the start, so that nobody has to ask later.

use serde::{Deserialize, Serialize};

/// What a client says first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`GPU_VERSION`](super::GPU_VERSION) of the client.
    pub version: u32,
    /// The program, for lists and messages.
    pub program: String,
    /// The host of the program, for lists and messages.
    pub host: String,
    /// The program's process number on its host.
    pub process: u32,
    /// Device memory wanted at once, in bytes a device; 0 for what the node gives to everybody.
    pub memory: u64,
    /// Devices wanted, by the node's numbers; empty for all.
    pub devices: Vec<u32>,
}

/// What a node answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// [`GPU_VERSION`](super::GPU_VERSION) of the node.
    pub version: u32,
    /// The session's number at that node.
    pub session: u64,
    /// Version of the driver, as `cuDriverGetVersion` has it.
    pub driver: i32,
    /// Version of cuBLAS, as `cublasGetVersion` has it; 0 if there is none.
    pub blas: i32,
    /// First address of the window in which the client chooses addresses.
    pub window: u64,
    /// Length of the window in bytes.
    pub window_bytes: u64,
    /// Addresses and lengths of mapped memory are multiples of this.
    pub granularity: u64,
    /// The devices, at most [`DEFAULT_STREAMS`](super::DEFAULT_STREAMS).
    pub devices: Vec<DeviceFacts>,
    /// Hashes of the fat binaries that the node keeps.
    pub modules: Vec<[u8; 32]>,
}

/// A device as its driver describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFacts {
    /// For people.
    pub name: String,
    /// The driver's identifier.
    pub uuid: [u8; 16],
    /// Memory in bytes.
    pub memory: u64,
    /// Memory that the session may use without asking, in bytes.
    pub grant: u64,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Address on the bus, as `0000:00:00.0`.
    pub bus: String,
    /// Attributes by the driver's numbers.
    pub attributes: Vec<(i32, i32)>,
    /// The devices of the session whose memory its kernels reach, a bit each.
    pub peers: u32,
    /// Whether it takes PTX in place of machine code: the device in software that runs kernels.
    pub needs_assembly: bool,
}

/// What the driver knows of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FunctionFacts {
    /// Static shared memory in bytes.
    pub shared: u64,
    /// Constant memory in bytes.
    pub constant: u64,
    /// Local memory of a thread in bytes.
    pub local: u64,
    /// Most threads in a group.
    pub threads_max: i32,
    /// Registers of a thread.
    pub registers: i32,
    /// Version of PTX, ten times major plus minor.
    pub ptx: i32,
    /// Version of machine code, ten times major plus minor.
    pub binary: i32,
    /// Most dynamic shared memory in bytes, as it is set.
    pub dynamic_shared_max: i32,
    /// The preferred share of shared memory in percent, or -1.
    pub carveout: i32,
}

/// A matrix of [`LtProduct`]: where it lies, and what cuBLASLt was told of its layout.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LtMatrix {
    /// Its address, 0 for none.
    pub address: u64,
    /// Attributes of `cublasLtMatrixLayout_t` by their numbers: type, rows, columns and lead are always there.
    pub attributes: Vec<(u32, Vec<u8>)>,
}

/// A product as `cublasLtMatmul` describes it. The node chooses the algorithm.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LtProduct {
    /// Attributes of `cublasLtMatmulDesc_t` by their numbers: compute and scale type are always there.
    pub attributes: Vec<(u32, Vec<u8>)>,
    /// The matrices a, b, c and d.
    pub matrices: [LtMatrix; 4],
    /// The scalar alpha, or its device address in the pointer modes that say so.
    pub alpha: [u8; 16],
    /// The scalar beta, likewise.
    pub beta: [u8; 16],
    /// Memory to work in.
    pub workspace: u64,
    /// Its length.
    pub workspace_bytes: u64,
}

/// What a node is and does, for lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// [`GPU_VERSION`](super::GPU_VERSION) of the node.
    pub version: u32,
    /// The devices.
    pub devices: Vec<DeviceStatus>,
    /// The sessions, by their numbers.
    pub sessions: Vec<SessionStatus>,
    /// Sessions since the start of the node.
    pub sessions_total: u64,
    /// Fat binaries in the cache.
    pub images: u64,
    /// Bytes of these.
    pub image_bytes: u64,
}

/// A device in lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// For people.
    pub name: String,
    /// Memory in bytes.
    pub memory: u64,
    /// Bytes of it that were promised to sessions.
    pub promised: u64,
}

/// A session in lists.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Its number.
    pub session: u64,
    /// The program.
    pub program: String,
    /// The host of the program.
    pub host: String,
    /// The program's process number on its host.
    pub process: u32,
    /// The process of the session on the node.
    pub session_process: u32,
    /// How long it has been there, in seconds.
    pub seconds: u64,
    /// Bytes of device memory that it has mapped.
    pub memory: u64,
    /// Bytes that it may map.
    pub grant: u64,
    /// Commands read.
    pub commands: u64,
    /// Kernels launched.
    pub launches: u64,
    /// Bytes copied to devices.
    pub bytes_in: u64,
    /// Bytes copied to the program.
    pub bytes_out: u64,
}
