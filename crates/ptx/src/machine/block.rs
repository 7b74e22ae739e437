//! A block: its shared memory, its barriers, and its warps, one after the other.

use super::flow::Runner;
use super::warp::Warp;
use super::{LANES, Machine};
use crate::code::Reduction;
use crate::error::{FaultKind, LaunchError};

/// Barriers: sixteen that programs name, and one for clusters.
const BARRIERS: usize = 17;

/// A barrier of the block.
#[derive(Debug, Default, Clone)]
pub(super) struct BarrierState {
    /// Threads that have come since it last opened; whole warps count as 32.
    pub arrived: u64,
    /// Threads of those that wait for all threads of the block.
    pub waiting_for_all: u64,
    /// Threads that it waits for, if that has been said.
    pub wanted: Option<u64>,
    pub opened: u64,
    count: u64,
    others: u64,
    /// Answers of when it last opened: how many, all, any.
    answer: (u64, bool, bool),
}

impl BarrierState {
    /// Counts truth values of those who come.
    pub fn tell(&mut self, yes: u64, no: u64) {
        self.count += yes;
        self.others += no;
    }

    /// Opens it if everybody is there.
    pub fn open_if_complete(&mut self, alive: u64) -> bool {
        let is_complete = match self.wanted {
            Some(wanted) => self.arrived >= wanted,
            None => self.waiting_for_all > 0 && self.waiting_for_all >= alive,
        };
        if is_complete {
            let answer = (self.count, self.others == 0, self.count > 0);
            *self = Self { opened: self.opened + 1, answer, ..Self::default() };
        }
        is_complete
    }

    /// What it brings back to everybody.
    pub fn answer(&self, reduction: &Reduction) -> u64 {
        match reduction {
            Reduction::Count(_) => self.answer.0,
            Reduction::All(_) => u64::from(self.answer.1),
            Reduction::Any(_) => u64::from(self.answer.2),
        }
    }
}

/// What the warps of a block share.
#[derive(Debug)]
pub(super) struct Block {
    pub index: [u32; 3],
    pub dynamic: Vec<u8>,
    pub fixed: Vec<u8>,
    pub barriers: Vec<BarrierState>,
    /// Threads that have not ended.
    pub alive: u64,
    pub warps: u64,
}

/// Runs all blocks of a launch, one after the other.
pub(crate) fn run_blocks(machine: &mut Machine<'_>) -> Result<(), LaunchError> {
    let shape = machine.geometry.block;
    let threads = shape.iter().product::<u32>() as usize;
    let mut warps: Vec<_> =
        (0..threads.div_ceil(LANES)).map(|number| Warp::new(number, shape, machine.program)).collect();
    let mut block = Block {
        index: [0; 3],
        dynamic: vec![0; machine.geometry.dynamic_shared as usize],
        fixed: vec![0; machine.program.shared_bytes as usize],
        barriers: Vec::new(),
        alive: 0,
        warps: warps.len() as u64,
    };
    let [width, height, depth] = machine.geometry.grid;
    for z in 0..depth {
        for y in 0..height {
            for x in 0..width {
                block.index = [x, y, z];
                block.alive = threads as u64;
                block.dynamic.fill(0);
                block.fixed.fill(0);
                block.barriers = vec![BarrierState::default(); BARRIERS];
                run_block(machine, &mut block, &mut warps)?;
                warps.iter_mut().for_each(Warp::restart);
            }
        }
    }
    Ok(())
}

/// Runs one block to its end.
fn run_block(machine: &mut Machine<'_>, block: &mut Block, warps: &mut [Warp]) -> Result<(), LaunchError> {
    while block.alive > 0 {
        let mut has_moved = false;
        for warp in warps.iter_mut().filter(|warp| warp.alive != 0) {
            has_moved |= Runner { machine, block, warp }.run()?;
        }
        if has_moved {
            continue;
        }
        // Threads that have ended are waited for no longer.
        let alive = block.alive;
        let has_opened =
            block.barriers.iter_mut().fold(false, |any, barrier| barrier.open_if_complete(alive) | any);
        if !has_opened {
            return Err(deadlock(machine, block, warps));
        }
    }
    Ok(())
}

fn deadlock(machine: &Machine<'_>, block: &Block, warps: &[Warp]) -> LaunchError {
    let stuck = warps.iter().find_map(|warp| Some((warp, warp.groups.first()?)));
    let (line, thread) = stuck.map_or((0, [0; 3]), |(warp, group)| {
        let code = &machine.program.functions[group.function].code;
        let line = code.get(group.at).map_or(0, |instruction| instruction.line);
        (line, warp.threads[group.lanes.trailing_zeros() as usize % LANES])
    });
    LaunchError::Fault { kind: FaultKind::Deadlock, line, block: block.index, thread }
}
