//! The attributes of the device that it looks like, an H100 with HBM3, by the public figures; and occupancy.

use super::options::{Kernels, NAME, SoftwareOptions};
use hinterland_fatbin::{Group, Multiprocessor};
use hinterland_proto::gpu::{DeviceFacts, FunctionFacts};

/// The driver's version that it stands for.
pub(super) const DRIVER: i32 = 13_000;
/// The cuBLAS version that it stands for.
pub(super) const BLAS: i32 = 130_002;
/// Compute capability, if no other is asked for.
pub(super) const CAPABILITY: (u32, u32) = (9, 0);
/// Multiprocessors.
pub(super) const MULTIPROCESSORS: u32 = 132;
/// Shared memory of a group that needs no opt-in.
pub(super) const SHARED_BYTES: u32 = 48 << 10;
/// Shared memory of a group with opt-in.
pub(super) const SHARED_OPT_IN_BYTES: u32 = 227 << 10;
/// Shared memory of a multiprocessor.
const SHARED_ALL_BYTES: u32 = 228 << 10;
/// Shared memory that each group costs besides its own.
const SHARED_RESERVED_BYTES: u32 = 1 << 10;
/// Threads of a warp.
const WARP: u32 = 32;
/// Warps of a multiprocessor.
const WARPS: u32 = 64;
/// Groups of a multiprocessor.
const GROUPS: u32 = 32;
/// Registers of a multiprocessor.
const REGISTERS: u32 = 64 << 10;
/// A multiprocessor.
const MULTIPROCESSOR: Multiprocessor = Multiprocessor {
    threads: WARPS * WARP,
    groups: GROUPS,
    registers: REGISTERS,
    shared_bytes: SHARED_ALL_BYTES,
    shared_reserved_bytes: SHARED_RESERVED_BYTES,
    shared_group_bytes: SHARED_OPT_IN_BYTES,
};

/// Attributes by the driver's numbers. Those that are zero are absent.
const ATTRIBUTES: &[(i32, i32)] = &[
    // Threads and groups by dimension, shared and constant memory, warps, pitch, registers.
    (1, 1024),
    (2, 1024),
    (3, 1024),
    (4, 64),
    (5, i32::MAX),
    (6, 65_535),
    (7, 65_535),
    (8, SHARED_BYTES as i32),
    (9, 64 << 10),
    (10, WARP as i32),
    (11, i32::MAX),
    (12, REGISTERS as i32),
    // Clock in kHz, alignment of textures, copies beside kernels, multiprocessors.
    (13, 1_980_000),
    (14, 512),
    (15, 1),
    (16, MULTIPROCESSORS as i32),
    // Sizes of textures in one, two and three dimensions, and of layers.
    (21, 131_072),
    (22, 131_072),
    (23, 65_536),
    (24, 16_384),
    (25, 16_384),
    (26, 16_384),
    (27, 32_768),
    (28, 32_768),
    (29, 2048),
    (30, 512),
    // Kernels beside kernels, memory with error correction.
    (31, 1),
    (32, 1),
    // Clock of the memory in kHz, bits of its bus, bytes of the second cache.
    (36, 2_619_000),
    (37, 5120),
    (38, 50 << 20),
    (39, (WARPS * WARP) as i32),
    (40, 3),
    // One address space with the host, layers of textures, pitch of textures.
    (41, 1),
    (42, 32_768),
    (43, 2048),
    (51, 32),
    // Priorities of streams, caches in front of memory.
    (78, 1),
    (79, 1),
    (80, 1),
    (81, SHARED_ALL_BYTES as i32),
    (82, REGISTERS as i32),
    // How much slower double precision is, pre-emption, cooperative launches.
    (87, 2),
    (90, 1),
    (95, 1),
    (97, SHARED_OPT_IN_BYTES as i32),
    // Registered host memory, virtual memory management.
    (99, 1),
    (102, 1),
    (106, GROUPS as i32),
    (111, SHARED_RESERVED_BYTES as i32),
    // Clusters.
    (120, 1),
];

/// A device as a program sees it.
pub(super) fn device(options: &SoftwareOptions, index: u32, grant: u64) -> DeviceFacts {
    let mut uuid = *b"hinterland-soft0";
    uuid[15] = b'0' + (index % 10) as u8;
    let mut attributes = ATTRIBUTES.to_vec();
    // The number on the bus; the first one is absent, as zeros are.
    attributes.push((34, 1 + index as i32));
    attributes.extend([(75, options.capability.0 as i32), (76, options.capability.1 as i32)]);
    DeviceFacts {
        name: NAME.to_owned(),
        uuid,
        memory: options.memory_bytes,
        grant: grant.min(options.memory_bytes),
        capability: options.capability,
        bus: format!("0000:00:{:02x}.0", 1 + index),
        attributes,
        // All memory is memory of the node.
        peers: ((1 << options.devices) - 1) & !(1 << index),
        needs_assembly: options.kernels == Kernels::Ptx,
    }
}

/// How many groups of a kernel a multiprocessor holds.
pub(super) fn occupancy(kernel: &FunctionFacts, threads: u32, dynamic_shared: u64) -> u32 {
    let registers = u32::try_from(kernel.registers).unwrap_or(0);
    MULTIPROCESSOR.groups_of(Group {
        threads,
        registers,
        shared_bytes: kernel.shared.saturating_add(dynamic_shared),
    })
}
