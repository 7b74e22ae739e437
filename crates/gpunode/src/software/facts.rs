//! The attributes of the device that it looks like, an H100 with HBM3, by the public figures; and occupancy.

use super::options::{NAME, SoftwareOptions};
use hinterland_proto::gpu::{DeviceFacts, FunctionFacts};

/// The driver's version that it stands for.
pub(super) const DRIVER: i32 = 13_000;
/// The cuBLAS version that it stands for.
pub(super) const BLAS: i32 = 130_002;
/// Compute capability.
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
/// Shared memory is given in pieces of this.
const SHARED_PIECE_BYTES: u32 = 128;
/// Threads of a warp.
const WARP: u32 = 32;
/// Warps of a multiprocessor.
const WARPS: u32 = 64;
/// Groups of a multiprocessor.
const GROUPS: u32 = 32;
/// Registers of a multiprocessor.
const REGISTERS: u32 = 64 << 10;
/// Registers are given to a warp in pieces of this.
const REGISTER_PIECE: u32 = 256;
/// Warps get their registers in one of so many parts of a multiprocessor.
const REGISTER_PARTS: u32 = 4;

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
    (75, CAPABILITY.0 as i32),
    (76, CAPABILITY.1 as i32),
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
    DeviceFacts {
        name: NAME.to_owned(),
        uuid,
        memory: options.memory_bytes,
        grant: grant.min(options.memory_bytes),
        capability: CAPABILITY,
        bus: format!("0000:00:{:02x}.0", 1 + index),
        attributes,
        is_software: true,
    }
}

/// How many groups of a kernel a multiprocessor holds: what each of warps, registers and shared memory allows, and the least of these.
pub(super) fn occupancy(kernel: &FunctionFacts, threads: u32, dynamic_shared: u64) -> u32 {
    let warps = threads.div_ceil(WARP);
    if warps == 0 || threads > 1024 {
        return 0;
    }
    let shared = kernel.shared.saturating_add(dynamic_shared);
    if shared > u64::from(SHARED_OPT_IN_BYTES) {
        return 0;
    }
    let by_warps = WARPS / warps;
    let of_warp = (u32::try_from(kernel.registers).unwrap_or(0) * WARP).next_multiple_of(REGISTER_PIECE);
    let by_registers = match of_warp {
        0 => GROUPS,
        registers => REGISTERS / REGISTER_PARTS / registers * REGISTER_PARTS / warps,
    };
    // At most what a group may have, as seen above.
    let of_group = (shared as u32 + SHARED_RESERVED_BYTES).next_multiple_of(SHARED_PIECE_BYTES);
    by_warps.min(by_registers).min(SHARED_ALL_BYTES / of_group).min(GROUPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(registers: i32, shared: u64, threads: u32, dynamic: u64) -> u32 {
        occupancy(&FunctionFacts { registers, shared, ..FunctionFacts::default() }, threads, dynamic)
    }

    #[test]
    fn occupancy_is_what_the_scarcest_resource_allows() {
        assert_eq!(groups(32, 0, 256, 0), 8, "64 warps, 8 a group");
        assert_eq!(groups(32, 0, 32, 0), 32, "groups");
        assert_eq!(
            groups(255, 0, 256, 0),
            1,
            "8160 registers a warp, rounded to 8192, two warps in each part"
        );
        assert_eq!(groups(32, 0, 1024, 0), 2);
        assert_eq!(groups(16, 16 << 10, 128, 0), 13, "17 KiB a group of 228 KiB");
        assert_eq!(groups(32, 0, 128, 227 << 10), 1);
        assert_eq!(groups(32, 1, 128, 227 << 10), 0, "more than a group may have");
        assert_eq!(groups(32, 0, 1025, 0), 0);
    }
}
