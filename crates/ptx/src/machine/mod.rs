//! What runs kernels: blocks, their warps, the groups of lanes that stay together, and what instructions do to them.

mod access;
pub(crate) mod block;
mod exchange;
mod execute;
mod flow;
mod fragment;
mod matrix;
mod print;
mod warp;

use crate::code::Program;
use crate::error::FaultKind;
use crate::launch::{Launch, LaunchGeometry};
use crate::memory::Memory;

/// Threads of a warp.
pub(crate) const LANES: usize = 32;
/// A value for each lane.
pub(crate) type Lanes = [u64; LANES];

/// Where generic addresses of shared memory begin. The lower 32 bits are the address in shared memory.
pub const SHARED_WINDOW: u64 = 0x0100_0000_0000_0000;
/// Where generic addresses of a thread's own memory begin.
pub const LOCAL_WINDOW: u64 = 0x0200_0000_0000_0000;
/// Where generic addresses of a kernel's parameters begin.
pub const PARAMETER_WINDOW: u64 = 0x0300_0000_0000_0000;
/// Where the blocks of a grid wait for each other.
const GRID_WINDOW: u64 = 0x0400_0000_0000_0000;
/// Bytes there: its size, and a counter behind it.
const GRID_BYTES: usize = 8;

/// A launch on its way.
pub(crate) struct Machine<'a> {
    pub program: &'a Program,
    pub geometry: LaunchGeometry,
    pub parameters: &'a [u8],
    pub data: u64,
    pub memory: &'a mut dyn Memory,
    pub executed: u64,
    pub budget: u64,
    /// Where the blocks of a grid wait for each other.
    pub grid: Vec<u8>,
}

impl<'a> Machine<'a> {
    pub fn new(program: &'a Program, launch: &Launch<'a>, memory: &'a mut dyn Memory) -> Self {
        Self {
            program,
            geometry: launch.geometry,
            parameters: launch.parameters,
            data: launch.data,
            memory,
            executed: 0,
            budget: launch.limits.instructions,
            grid: vec![GRID_BYTES as u8, 0, 0, 0, 0, 0, 0, 0],
        }
    }
}

/// Why a warp cannot go on, and the lane to blame.
#[derive(Debug)]
pub(crate) struct Stop {
    pub kind: FaultKind,
    pub lane: usize,
}

/// The lanes of a mask, from the lowest.
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if mask == 0 {
            return None;
        }
        let lane = mask.trailing_zeros() as usize;
        mask &= mask - 1;
        Some(lane)
    })
}
