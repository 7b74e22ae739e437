//! What a kernel may be launched with and set to, as far as it is known here. The driver refuses what is beyond by the call itself, and so
//! do we: a program looks at its launch, and takes another one if it was refused. What only the node knows is told where the program next waits.

use std::sync::atomic::{AtomicU32, Ordering};

use super::attribute;
use super::launch::Geometry;
use super::module::Kernel;
use super::session::Session;
use crate::code::{COOPERATIVE_TOO_LARGE, Code, INVALID_VALUE, OUT_OF_RESOURCES};

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
pub(super) const DYNAMIC_SHARED_MAX: i32 = 8;
/// `CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT`
pub(super) const CARVEOUT: i32 = 9;
/// Attributes that say how clusters may be.
const CLUSTERS: std::ops::RangeInclusive<i32> = 11..=15;

/// Limits of a kernel's launches.
#[derive(Debug)]
pub struct Limits {
    /// Threads of a group that the source allows.
    threads: u64,
    /// Threads of a group that there are registers for.
    threads_by_registers: u64,
    /// Bytes of dynamic shared memory, until the program sets another number.
    dynamic_shared: AtomicU32,
    /// The largest such number.
    dynamic_shared_most: u32,
}

impl Limits {
    /// Those of a kernel that its image describes. What nobody knows limits nothing.
    pub(super) fn of(session: &Session, device: u32, layout: &hinterland_fatbin::Kernel) -> Self {
        let own = layout.static_shared_bytes.unwrap_or(0);
        let left = |number| match u32::try_from(session.attribute_or_zero(device, number)) {
            Ok(0) | Err(_) => u32::MAX,
            Ok(bytes) => bytes.saturating_sub(own),
        };
        let by_registers = match session.attribute_or_zero(device, attribute::REGISTERS_PER_MULTIPROCESSOR) {
            0 => u32::MAX,
            _ => layout.registers.map_or(u32::MAX, |some| session.multiprocessor(device).threads_max(some)),
        };
        Self {
            threads: layout.threads_max.unwrap_or(u32::MAX).into(),
            threads_by_registers: by_registers.into(),
            dynamic_shared: AtomicU32::new(left(attribute::SHARED_PER_BLOCK)),
            dynamic_shared_most: left(attribute::SHARED_PER_BLOCK_OPTIN),
        }
    }

    /// Whether a group may have so many threads and so much shared memory.
    ///
    /// # Errors
    /// It may not.
    #[inline(always)]
    pub(super) fn check(&self, threads: u64, shared: usize) -> Result<(), Code> {
        // Relaxed: what a program sets in one thread and launches in another has the order that the program gives it.
        if threads > self.threads || shared > self.dynamic_shared.load(Ordering::Relaxed) as usize {
            return Err(INVALID_VALUE);
        }
        if threads > self.threads_by_registers {
            return Err(OUT_OF_RESOURCES);
        }
        Ok(())
    }

    /// Takes an attribute that the program sets.
    ///
    /// # Errors
    /// There is none of this number that can be set, or not to this.
    pub(super) fn set(&self, attribute: i32, value: i32) -> Result<(), Code> {
        match attribute {
            DYNAMIC_SHARED_MAX => {
                let bytes = u32::try_from(value).ok().filter(|bytes| *bytes <= self.dynamic_shared_most);
                // Relaxed: as in `check`.
                self.dynamic_shared.store(bytes.ok_or(INVALID_VALUE)?, Ordering::Relaxed);
                Ok(())
            }
            CARVEOUT if (-1..=100).contains(&value) => Ok(()),
            attribute if CLUSTERS.contains(&attribute) => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }
}

impl Session {
    /// Whether all groups of a launch fit on the device at once, as they may wait for each other.
    ///
    /// # Errors
    /// They do not; what [`occupancy`](Self::occupancy) says.
    #[cold]
    pub(super) fn check_cooperative(&self, kernel: &Kernel, geometry: &Geometry) -> Result<(), Code> {
        let multiprocessors = self.attribute_or_zero(kernel.owner.device, attribute::MULTIPROCESSORS);
        let threads = geometry.block.iter().product();
        let fit = u64::from(self.occupancy(kernel, threads, geometry.shared as u64, 0)?)
            .saturating_mul(u64::try_from(multiprocessors).unwrap_or(0));
        let groups = geometry.grid.iter().map(|size| u64::from(*size)).fold(1, u64::saturating_mul);
        if groups > fit { Err(COOPERATIVE_TOO_LARGE) } else { Ok(()) }
    }
}
