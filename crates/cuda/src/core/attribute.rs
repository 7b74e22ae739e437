//! Attributes of devices, by the driver's numbers, as they are for a program whose device is elsewhere.

use super::session::Session;
use crate::code::{Code, INVALID_VALUE};

pub use numbers::*;

/// Numbers of attributes, as `CUdevice_attribute` has them.
#[allow(missing_docs)]
pub mod numbers {
    pub const THREADS_PER_BLOCK: i32 = 1;
    pub const BLOCK_X: i32 = 2;
    pub const GRID_X: i32 = 5;
    pub const SHARED_PER_BLOCK: i32 = 8;
    pub const CONSTANT: i32 = 9;
    pub const WARP: i32 = 10;
    pub const PITCH_MAX: i32 = 11;
    pub const REGISTERS_PER_BLOCK: i32 = 12;
    pub const TEXTURE_ALIGNMENT: i32 = 14;
    pub const MULTIPROCESSORS: i32 = 16;
    pub const INTEGRATED: i32 = 18;
    pub const CAN_MAP_HOST_MEMORY: i32 = 19;
    pub const SURFACE_ALIGNMENT: i32 = 30;
    pub const CONCURRENT_KERNELS: i32 = 31;
    pub const ECC: i32 = 32;
    pub const PCI_BUS: i32 = 33;
    pub const PCI_DEVICE: i32 = 34;
    pub const BUS_WIDTH: i32 = 37;
    pub const L2_CACHE: i32 = 38;
    pub const THREADS_PER_MULTIPROCESSOR: i32 = 39;
    pub const ASYNC_ENGINES: i32 = 40;
    pub const UNIFIED_ADDRESSING: i32 = 41;
    pub const PCI_DOMAIN: i32 = 50;
    pub const TEXTURE_PITCH_ALIGNMENT: i32 = 51;
    pub const MAJOR: i32 = 75;
    pub const MINOR: i32 = 76;
    pub const STREAM_PRIORITIES: i32 = 78;
    pub const GLOBAL_L1: i32 = 79;
    pub const LOCAL_L1: i32 = 80;
    pub const SHARED_PER_MULTIPROCESSOR: i32 = 81;
    pub const REGISTERS_PER_MULTIPROCESSOR: i32 = 82;
    pub const MANAGED_MEMORY: i32 = 83;
    pub const COMPUTE_PREEMPTION: i32 = 90;
    pub const COOPERATIVE_LAUNCH: i32 = 95;
    pub const SHARED_PER_BLOCK_OPTIN: i32 = 97;
    pub const HOST_REGISTER: i32 = 99;
    pub const BLOCKS_PER_MULTIPROCESSOR: i32 = 106;
    pub const PERSISTING_L2: i32 = 108;
    pub const ACCESS_POLICY_WINDOW: i32 = 109;
    pub const RESERVED_SHARED: i32 = 111;
    pub const MEMORY_POOLS: i32 = 115;
    pub const CLUSTER_LAUNCH: i32 = 120;
}

/// What does not reach over a network, whatever the device can do: number and value.
const HERE: &[(i32, i32)] = &[
    // Kernels do not see memory of the program's host, so none of it can be mapped, managed or reached by page tables.
    (CAN_MAP_HOST_MEMORY, 0),
    (MANAGED_MEMORY, 0),
    (86, 0),
    (88, 0),
    (89, 0),
    (91, 0),
    (92, 0),
    (93, 0),
    (94, 0),
    (98, 0),
    (100, 0),
    (101, 0),
    (113, 0),
    // No handles of memory, events or semaphores that another process could open.
    (103, 0),
    (104, 0),
    (105, 0),
    (110, 0),
    (114, 0),
    (116, 0),
    (119, 0),
    (122, 0),
    (124, 0),
    (125, 0),
    (128, 0),
    (132, 0),
    (UNIFIED_ADDRESSING, 1),
    (HOST_REGISTER, 1),
    (102, 1),
    // Pools of memory.
    (MEMORY_POOLS, 1),
];

impl Session {
    /// An attribute of a device.
    ///
    /// # Errors
    /// No such device, or it has no such attribute.
    pub fn attribute(&self, device: u32, number: i32) -> Result<i32, Code> {
        let facts = self.device(device)?;
        if let Some((_, value)) = HERE.iter().find(|(here, _)| *here == number) {
            return Ok(*value);
        }
        facts
            .attributes
            .iter()
            .find(|(have, _)| *have == number)
            .map(|(_, value)| *value)
            .ok_or(INVALID_VALUE)
    }

    /// The same, 0 if there is none.
    #[must_use]
    pub fn attribute_or_zero(&self, device: u32, number: i32) -> i32 {
        self.attribute(device, number).unwrap_or(0)
    }
}
