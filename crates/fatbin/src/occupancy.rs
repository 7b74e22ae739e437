//! How many groups of a kernel a multiprocessor holds, by the rules that the vendor documents: what each of warps, registers and
//! shared memory allows, and the least of these.

/// Threads of a warp.
const WARP: u32 = 32;
/// Registers are given to a warp in pieces of this.
const REGISTER_PIECE: u32 = 256;
/// Warps get their registers in one of so many parts of a multiprocessor.
const REGISTER_PARTS: u32 = 4;
/// Shared memory is given in pieces of this.
const SHARED_PIECE_BYTES: u32 = 128;
/// Most threads of a group.
const THREADS_MAX: u32 = 1024;

/// What a multiprocessor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Multiprocessor {
    /// Threads at once.
    pub threads: u32,
    /// Groups at once.
    pub groups: u32,
    /// Registers.
    pub registers: u32,
    /// Bytes of shared memory.
    pub shared_bytes: u32,
    /// Bytes of shared memory that each group costs besides its own.
    pub shared_reserved_bytes: u32,
    /// Most bytes of shared memory that a group may have.
    pub shared_group_bytes: u32,
}

/// What a group of a kernel needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Threads.
    pub threads: u32,
    /// Registers of a thread; 0 if nobody knows, and then they are no limit.
    pub registers: u32,
    /// Bytes of shared memory, static and dynamic.
    pub shared_bytes: u64,
}

impl Multiprocessor {
    /// How many such groups it holds; 0 if not even one.
    #[must_use]
    pub fn groups_of(&self, group: Group) -> u32 {
        let warps = group.threads.div_ceil(WARP);
        if warps == 0
            || group.threads > THREADS_MAX
            || group.shared_bytes > u64::from(self.shared_group_bytes)
        {
            return 0;
        }
        let by_warps = self.threads / WARP / warps;
        let by_registers = match group.registers.saturating_mul(WARP).next_multiple_of(REGISTER_PIECE) {
            0 => self.groups,
            of_warp => self.registers / REGISTER_PARTS / of_warp * REGISTER_PARTS / warps,
        };
        // At most what a group may have, as seen above.
        let shared =
            (group.shared_bytes as u32 + self.shared_reserved_bytes).next_multiple_of(SHARED_PIECE_BYTES);
        let by_shared = self.shared_bytes.checked_div(shared).unwrap_or(self.groups);
        by_warps.min(by_registers).min(by_shared).min(self.groups)
    }

    /// Most threads of a group of a kernel with so many registers a thread.
    #[must_use]
    pub fn threads_max(&self, registers: u32) -> u32 {
        match registers.saturating_mul(WARP).next_multiple_of(REGISTER_PIECE) {
            0 => THREADS_MAX,
            of_warp => (self.registers / REGISTER_PARTS / of_warp * REGISTER_PARTS * WARP).min(THREADS_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100: Multiprocessor = Multiprocessor {
        threads: 2048,
        groups: 32,
        registers: 65_536,
        shared_bytes: 228 << 10,
        shared_reserved_bytes: 1 << 10,
        shared_group_bytes: 227 << 10,
    };

    fn groups(registers: u32, threads: u32, shared_bytes: u64) -> u32 {
        H100.groups_of(Group { threads, registers, shared_bytes })
    }

    #[test]
    fn the_scarcest_resource_counts() {
        assert_eq!(groups(32, 256, 0), 8, "64 warps, 8 a group");
        assert_eq!(groups(32, 32, 0), 32, "groups");
        assert_eq!(groups(255, 256, 0), 1, "8160 registers a warp, rounded to 8192, two warps in each part");
        assert_eq!(groups(32, 1024, 0), 2);
        assert_eq!(groups(16, 128, 16 << 10), 13, "17 KiB a group of 228 KiB");
        assert_eq!(groups(32, 128, 227 << 10), 1);
        assert_eq!(groups(32, 128, (227 << 10) + 1), 0, "more than a group may have");
        assert_eq!(groups(32, 1025, 0), 0);
        assert_eq!(groups(0, 128, 0), 16, "unknown registers are no limit");
    }

    #[test]
    fn many_registers_leave_room_for_fewer_threads() {
        assert_eq!(H100.threads_max(32), 1024);
        assert_eq!(H100.threads_max(64), 1024);
        assert_eq!(H100.threads_max(128), 512);
        assert_eq!(H100.threads_max(255), 256);
        assert_eq!(H100.threads_max(0), 1024);
    }
}
