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

/// Memory for registers of blocks that have to be there at once.
const JOINT_BYTES_MAX: u64 = 4 << 30;

/// A block and its warps.
struct Resident {
    block: Block,
    warps: Vec<Warp>,
}

/// Runs all blocks of a launch: one after the other, or by turns if they wait for each other.
pub(crate) fn run_blocks(machine: &mut Machine<'_>) -> Result<(), LaunchError> {
    let [width, height, depth] = machine.geometry.grid;
    let all = (0..depth).flat_map(|z| (0..height).flat_map(move |y| (0..width).map(move |x| [x, y, z])));
    if !machine.program.is_joint {
        let mut resident = Resident::new(machine);
        for index in all {
            resident.restart(machine, index);
            while resident.block.alive > 0 {
                resident.turn(machine)?;
            }
        }
        return Ok(());
    }
    let count = u64::from(width) * u64::from(height) * u64::from(depth);
    let one = Resident::new(machine);
    let bytes = one.bytes().saturating_mul(count);
    if bytes > JOINT_BYTES_MAX {
        return Err(LaunchError::Geometry(format!(
            "{count} blocks that wait for each other, of {bytes} bytes"
        )));
    }
    let mut residents: Vec<_> = all
        .map(|index| {
            let mut resident = Resident::new(machine);
            resident.restart(machine, index);
            resident
        })
        .collect();
    while residents.iter().any(|resident| resident.block.alive > 0) {
        for resident in residents.iter_mut().filter(|resident| resident.block.alive > 0) {
            resident.turn(machine)?;
        }
    }
    Ok(())
}

impl Resident {
    fn new(machine: &Machine<'_>) -> Self {
        let shape = machine.geometry.block;
        let threads = shape.iter().product::<u32>() as usize;
        let warps: Vec<_> =
            (0..threads.div_ceil(LANES)).map(|number| Warp::new(number, shape, machine.program)).collect();
        let block = Block {
            index: [0; 3],
            dynamic: vec![0; machine.geometry.dynamic_shared as usize],
            fixed: vec![0; machine.program.shared_bytes as usize],
            barriers: Vec::new(),
            alive: 0,
            warps: warps.len() as u64,
        };
        Self { block, warps }
    }

    /// Bytes that it takes, for the most part.
    fn bytes(&self) -> u64 {
        let registers: usize = self.warps.iter().map(|warp| size_of_val(warp.registers.as_slice())).sum();
        let frames: usize = self.warps.iter().flat_map(|warp| &warp.frames).map(Vec::len).sum();
        (registers + frames + self.block.dynamic.len() + self.block.fixed.len()) as u64
    }

    /// Puts the block of an index to its start.
    fn restart(&mut self, machine: &Machine<'_>, index: [u32; 3]) {
        let block = &mut self.block;
        block.index = index;
        block.alive = machine.geometry.block.iter().map(|&side| u64::from(side)).product();
        block.dynamic.fill(0);
        block.fixed.fill(0);
        block.barriers = vec![BarrierState::default(); BARRIERS];
        self.warps.iter_mut().for_each(Warp::restart);
    }

    /// Gives each warp a turn.
    fn turn(&mut self, machine: &mut Machine<'_>) -> Result<(), LaunchError> {
        let (block, warps) = (&mut self.block, &mut self.warps);
        let mut has_moved = false;
        for warp in warps.iter_mut().filter(|warp| warp.alive != 0) {
            has_moved |= Runner { machine, block, warp }.run()?;
        }
        if has_moved {
            return Ok(());
        }
        // Threads that have ended are waited for no longer.
        let alive = block.alive;
        let has_opened =
            block.barriers.iter_mut().fold(false, |any, barrier| barrier.open_if_complete(alive) | any);
        if has_opened { Ok(()) } else { Err(deadlock(machine, block, warps)) }
    }
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
