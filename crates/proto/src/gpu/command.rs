//! Commands: what a program wants of its devices, in the order in which it wants it.

use super::fields::messages;

/// Flags of [`Launch`].
pub mod launch_flags {
    /// All groups of the grid must run at once, so that they can wait for each other.
    pub const COOPERATIVE: u32 = 1;
    /// The kernel may start before the one in front of it has ended (programmatic stream serialisation).
    pub const PROGRAMMATIC: u32 = 2;
    /// `cluster` holds the size of a cluster.
    pub const CLUSTER: u32 = 4;
}

/// Functions of cuBLAS in a [`BlasCall`].
#[allow(missing_docs)]
pub mod blas_functions {
    pub const DOT: u32 = 1;
    pub const DOTC: u32 = 2;
    pub const AXPY: u32 = 3;
    pub const SCAL: u32 = 4;
    pub const SCAL_REAL: u32 = 5;
    pub const COPY: u32 = 6;
    pub const SWAP: u32 = 7;
    pub const NRM2: u32 = 8;
    pub const ASUM: u32 = 9;
    pub const IAMAX: u32 = 10;
    pub const IAMIN: u32 = 11;
    pub const GEMV: u32 = 20;
    pub const GER: u32 = 21;
    pub const GERC: u32 = 22;
    pub const TRSM: u32 = 30;
    pub const TRSM_POINTERS: u32 = 31;
    pub const TRMM: u32 = 32;
    pub const TRSV: u32 = 33;
    pub const TRMV: u32 = 34;
    pub const SYRK: u32 = 40;
    pub const HERK: u32 = 41;
    pub const SYMM: u32 = 42;
    pub const HEMM: u32 = 43;
    pub const GETRF: u32 = 50;
    pub const GETRS: u32 = 51;
    pub const GETRI: u32 = 52;
    pub const GEQRF: u32 = 53;
    pub const GELS: u32 = 54;

    /// Names of the functions as cuBLAS has them, without type and version.
    pub const NAMES: &[(u32, &str)] = &[
        (DOT, "dot"),
        (DOTC, "dotc"),
        (AXPY, "axpy"),
        (SCAL, "scal"),
        (SCAL_REAL, "scal_real"),
        (COPY, "copy"),
        (SWAP, "swap"),
        (NRM2, "nrm2"),
        (ASUM, "asum"),
        (IAMAX, "iamax"),
        (IAMIN, "iamin"),
        (GEMV, "gemv"),
        (GER, "ger"),
        (GERC, "gerc"),
        (TRSM, "trsm"),
        (TRSM_POINTERS, "trsmBatched"),
        (TRMM, "trmm"),
        (TRSV, "trsv"),
        (TRMV, "trmv"),
        (SYRK, "syrk"),
        (HERK, "herk"),
        (SYMM, "symm"),
        (HEMM, "hemm"),
        (GETRF, "getrfBatched"),
        (GETRS, "getrsBatched"),
        (GETRI, "getriBatched"),
        (GEQRF, "geqrfBatched"),
        (GELS, "gelsBatched"),
    ];
}

messages! {
    /// Any command.
    Command {
        /// Backs a range of the session's window with memory of a device, to be read and written. Address and length are multiples of
        /// the granularity; the memory counts against the grant.
        0x01 MapMemory { device: u32, flags: u32, address: u64, bytes: u64 }
        /// Gives back a whole range that was mapped, after all work of its device that was sent before.
        0x02 UnmapMemory { address: u64, bytes: u64 }

        /// Names a fat binary by the blake3 hash of its bytes. `bytes` is 0 if the node said that it has it; else its bytes follow in parts.
        0x10 Module { module: u32, device: u32, bytes: u64, hash: [u8; 32] }
        /// The next bytes of a module.
        0x11 ModulePart + tail { module: u32 }
        /// Names a kernel of a module; the tail is its name as the image has it.
        0x12 Function + tail { function: u32, module: u32 }
        /// Sets an attribute of a kernel, by the driver's number.
        0x13 FunctionAttribute { function: u32, attribute: i32, value: i32 }
        /// Forgets a module and its functions.
        0x14 ModuleDrop { module: u32 }

        /// Launches a kernel: groups, threads of a group, bytes of dynamic shared memory. The tail is the block of parameters, laid out as the
        /// image says.
        0x20 Launch + tail {
            function: u32, stream: u32, grid: [u32; 3], block: [u32; 3], shared: u32, flags: u32, cluster: [u32; 3],
        }

        /// Copies the tail to a device.
        0x30 CopyIn + tail { stream: u32, flags: u32, address: u64 }
        /// Copies from a device to the program: comes back in `Bytes`.
        0x31 CopyOut { stream: u32, transfer: u32, address: u64, bytes: u64 }
        /// Copies within a device or between two of a session.
        0x32 CopyWithin { stream: u32, flags: u32, to: u64, from: u64, bytes: u64 }
        /// Copies rows within a device: bytes from one row's start to the next (pitch), bytes of a row, rows.
        0x33 CopyRows { stream: u32, flags: u32, to: u64, to_pitch: u64, from: u64, from_pitch: u64, width: u64, rows: u64 }
        /// Copies the rows of the tail, which lie there without gaps, to a device.
        0x34 CopyInRows + tail { stream: u32, flags: u32, address: u64, pitch: u64, width: u64, rows: u64 }
        /// Copies rows to the program, without gaps: comes back in `Bytes`.
        0x35 CopyOutRows { stream: u32, transfer: u32, address: u64, pitch: u64, width: u64, rows: u64 }
        /// Sets `count` elements of 1, 2 or 4 bytes to the low bytes of `value`.
        0x36 Fill { stream: u32, element: u32, address: u64, count: u64, value: u32 }
        /// Sets `count` elements in each of some rows.
        0x37 FillRows { stream: u32, element: u32, address: u64, pitch: u64, count: u64, rows: u64, value: u32 }
        /// In a graph: copies rows to a device, whose bytes come with each launch in its `LaunchContent`. In a graph, the bytes of copies to
        /// the program come back under the names that are there.
        0x38 CopyInAtLaunch { stream: u32, flags: u32, address: u64, pitch: u64, width: u64, rows: u64 }
        /// Copies bytes of an object of a pool to a device: `bytes` bytes from `offset` on, which the node reads by itself. The object is one that
        /// `AskPooled` named and the answer to which was yes.
        0x39 CopyPooled { stream: u32, pooled: u32, address: u64, offset: u64, bytes: u64 }

        /// Makes a stream. Flag 1: apart from the default stream.
        0x40 StreamCreate { stream: u32, device: u32, flags: u32, priority: i32 }
        /// Ends a stream; work that was sent before is still done.
        0x41 StreamDestroy { stream: u32 }
        /// Makes an event. Flags are the driver's (2: without time).
        0x42 EventCreate { event: u32, device: u32, flags: u32 }
        /// Ends an event.
        0x43 EventDestroy { event: u32 }
        /// Records an event behind the work of a stream. Flag 1, in a graph: each launch records it for others, too.
        0x44 EventRecord { event: u32, stream: u32, flags: u32 }
        /// Makes a stream wait for the last record of an event. Flag 1, in a graph: for the last one outside of it, as it is when the graph is launched.
        0x45 StreamWait { stream: u32, event: u32, flags: u32 }
        /// Makes whatever is sent later, for any stream, wait for the work of this stream so far.
        0x46 Fence { stream: u32 }
        /// Asks for `Reached` when the work of a stream so far is done.
        0x47 MarkStream { mark: u64, stream: u32 }
        /// Asks for `Reached` when the last record of an event is done.
        0x48 MarkEvent { mark: u64, event: u32 }
        /// Asks for `Reached` when all work of a device so far is done.
        0x49 MarkDevice { mark: u64, device: u32 }
        /// Asks for the milliseconds between two events: `Answer` with the bits of an f32.
        0x4a EventElapsed { question: u32, start: u32, end: u32 }

        /// Names a captured list of commands of `bytes` bytes, `sent` of which follow in parts: the list itself when `base` is 0, else edits
        /// of the list of graph `base`. `stream` is where the capture began, and `flags` the device of that stream, which may have ended since.
        0x50 Graph { graph: u32, base: u32, stream: u32, flags: u32, bytes: u64, sent: u64 }
        /// The next bytes of a graph.
        0x51 GraphPart + tail { graph: u32 }
        /// Forgets a graph.
        0x52 GraphDestroy { graph: u32 }
        /// Makes a graph ready to be launched.
        0x53 GraphInstantiate { exec: u32, graph: u32, flags: u64 }
        /// Makes an instance do what a graph says; an instance that cannot be changed so is made anew. One that was refused leaves an instance that can be updated
        /// and ended alone.
        0x54 GraphUpdate { exec: u32, graph: u32 }
        /// Ends an instance.
        0x55 GraphExecDestroy { exec: u32 }
        /// Launches an instance.
        0x56 GraphLaunch { exec: u32, stream: u32 }
        /// The next bytes of what the next launch of an instance needs: a name (u32) for each copy to the program, of which there are `transfers`,
        /// and then the bytes of each copy that has them at launch, without gaps; both in the order of the list.
        0x57 LaunchContent + tail { exec: u32, transfers: u32 }
        /// Has launches of an instance leave a command of its list out (`is_on` 0), or do it again, by how many are in front of it. The command launches a
        /// kernel, fills, or copies within devices; `GraphUpdate` has all commands be done.
        0x58 GraphSwitch { exec: u32, step: u32, is_on: u32 }
        /// Has launches of an instance do another command in the place of one that `GraphSwitch` could leave out: of the same word and stream, and a kernel with
        /// the same flags and clusters. The tail is its body.
        0x59 GraphChange + tail { exec: u32, step: u32, word: u32 }

        /// Asks what the driver knows of a kernel: `Answer` with `FunctionFacts`.
        0x60 AskFunction { question: u32, function: u32 }
        /// Asks how many groups of a kernel a multiprocessor holds: `Answer` with a u32.
        0x61 AskOccupancy { question: u32, function: u32, threads: u32, flags: u32, shared: u64 }
        /// Asks where a variable of a module lies, by the name in the tail: `Answer` with address and length, two u64.
        0x62 AskSymbol + tail { question: u32, module: u32 }
        /// Asks for another grant of memory: `wanted` bytes in all, or as many as there are if that is at least `least`; else it stays as
        /// it is, but for what it is more than wanted. `Answer` with the grant, and what the node could add to it at this moment, two u64.
        0x63 AskGrant { question: u32, device: u32, least: u64, wanted: u64 }
        /// Asks how many groups of a cooperative or clustered launch fit: `Answer` with a u32.
        0x64 AskClusters { question: u32, function: u32, grid: [u32; 3], block: [u32; 3], cluster: [u32; 3], shared: u32 }

        /// Asks whether the node can read a sealed object of a pool, and names it: `Answer` without a tail. The right is what the pool
        /// tells those who may read the object (`crates/proto/src/right.rs`). Flag 1: all of it will be wanted soon.
        0x65 AskPooled { question: u32, pooled: u32, flags: u32, bytes: u64, object: u64, pool: [u8; 16], right: [u8; 32] }
        /// Asks the driver for the 128 bytes by which kernels copy tiles of a tensor, as `cuTensorMapEncodeTiled` makes them; the numbers are its own. The tail
        /// has sizes (`rank` u64), bytes from one to the next in all directions but the first (u64), sizes of a tile and steps (`rank` u32 each). `Answer` with
        /// the bytes.
        0x66 AskTensorMap + tail { question: u32, device: u32, address: u64, element: u32, rank: u32, interleave: u32, swizzle: u32, promotion: u32, fill: u32 }

        /// Makes a handle of cuBLAS.
        0x70 BlasCreate { handle: u32, device: u32 }
        /// Ends a handle of cuBLAS.
        0x71 BlasDestroy { handle: u32 }
        /// Sets what a handle keeps: 1 stream, 2 math mode, 3 workspace (address, bytes), 4 pointer mode, 5 atomics mode.
        0x72 BlasSet { handle: u32, property: u32, value: u64, more: u64 }
        /// Multiplies matrices as `cublasGemmStridedBatchedEx` does; a single product has a count of 1. `alpha` and `beta` are values, or device
        /// addresses in pointer mode 1. Types are cuBLAS's numbers.
        0x73 BlasGemm {
            handle: u32, transpose_a: u32, transpose_b: u32, compute: u32, m: i64, n: i64, k: i64,
            a: u64, a_type: u32, b_type: u32, a_lead: i64, a_stride: i64, b: u64, b_lead: i64, b_stride: i64,
            c: u64, c_type: u32, algorithm: i32, c_lead: i64, c_stride: i64, count: i64, alpha: [u8; 16], beta: [u8; 16],
        }
        /// The same with arrays of addresses in device memory.
        0x74 BlasGemmPointers {
            handle: u32, transpose_a: u32, transpose_b: u32, compute: u32, m: i64, n: i64, k: i64,
            a: u64, a_type: u32, b_type: u32, a_lead: i64, b: u64, b_lead: i64,
            c: u64, c_type: u32, algorithm: i32, c_lead: i64, count: i64, alpha: [u8; 16], beta: [u8; 16],
        }
        /// Does a function of cuBLAS by our number for it (`blas_functions`); `kind` is cuBLAS's number of the type. Options (side, half, transpose, and in
        /// `more` diagonal), sizes and places are in the order of the function's own arguments, the written place is c; results are written there.
        /// Scalars are values, or device addresses with `in_memory`.
        0x75 BlasCall {
            handle: u32, function: u32, kind: u32, in_memory: u32, options: [u32; 3], more: u32, m: i64, n: i64, k: i64,
            a: u64, a_step: i64, b: u64, b_step: i64, c: u64, c_step: i64, count: i64, alpha: [u8; 16], beta: [u8; 16],
        }
        /// Multiplies matrices as `cublasLtMatmul` does: the tail is an `LtProduct` in postcard's form.
        0x78 LtMatmul + tail { stream: u32, flags: u32 }
    }
}
