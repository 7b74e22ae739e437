//! One run of a kernel: its shape, its parameters, and how long it may take.

use crate::code::Program;
use crate::error::LaunchError;
use crate::machine::block::run_blocks;
use crate::machine::{LANES, Machine};
use crate::memory::Memory;
use crate::module::Module;

/// Threads of a block, as on all GPUs.
const BLOCK_THREADS_MAX: u64 = 1024;
/// Shared memory that a launch may ask for: the most that any GPU lends to one block.
const SHARED_BYTES_MAX: u32 = 227 << 10;
/// Memory for registers of one block, which the text of a kernel decides.
const REGISTER_BYTES_MAX: u64 = 1 << 30;

/// Blocks and threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchGeometry {
    /// Blocks in each direction: at most 2^31 - 1, 65535 and 65535, and none is 0.
    pub grid: [u32; 3],
    /// Threads of a block in each direction: at most 1024 in all, 64 in the last, and none is 0.
    pub block: [u32; 3],
    /// Bytes of `.extern .shared` variables, at most 227 KiB.
    pub dynamic_shared: u32,
}

/// How much a launch may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Instructions of warps; each is up to 32 instructions of threads.
    pub instructions: u64,
}

impl Default for Limits {
    /// An hour or so of work.
    fn default() -> Self {
        Self { instructions: 100_000_000_000 }
    }
}

/// A kernel that is to run.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Its name.
    pub entry: &'a str,
    /// Its shape.
    pub geometry: LaunchGeometry,
    /// Its parameters, each at its offset.
    pub parameters: &'a [u8],
    /// The address of the module's data.
    pub data: u64,
    /// How much it may do.
    pub limits: Limits,
}

/// What a launch has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Instructions of warps.
    pub instructions: u64,
}

impl Module {
    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// When the launch is not one, when the kernel is not understood, or when it fails. What it had written by then
    /// stays written.
    pub fn launch(&self, launch: &Launch<'_>, memory: &mut dyn Memory) -> Result<Report, LaunchError> {
        let missing = || LaunchError::NoSuchEntry(launch.entry.chars().take(200).collect());
        let entry = self.entry(launch.entry).ok_or_else(missing)?;
        let number = *self.function_names.get(launch.entry).ok_or_else(missing)?;
        check_geometry(&launch.geometry, entry.threads_max)?;
        let (needed, given) = (entry.parameter_bytes, launch.parameters.len() as u64);
        if given < needed {
            return Err(LaunchError::Parameters { needed, given });
        }
        let program = self.program(number)?;
        check_registers(&program, &launch.geometry)?;
        let mut machine = Machine::new(&program, launch, memory);
        run_blocks(&mut machine)?;
        Ok(Report { instructions: machine.executed })
    }
}

fn check_geometry(geometry: &LaunchGeometry, threads_max: Option<u32>) -> Result<(), LaunchError> {
    let [grid, block] = [geometry.grid, geometry.block].map(|counts| counts.map(u64::from));
    let threads: u64 = block.iter().product();
    let refused = |what: String| Err(LaunchError::Geometry(what));
    if grid.contains(&0) || grid[0] >= 1 << 31 || grid[1].max(grid[2]) > 65535 {
        return refused(format!("a grid of {grid:?} blocks"));
    }
    if block.contains(&0)
        || block[2] > 64
        || block.iter().any(|&side| side > BLOCK_THREADS_MAX)
        || threads > BLOCK_THREADS_MAX
    {
        return refused(format!("blocks of {block:?} threads"));
    }
    if let Some(most) = threads_max
        && threads > u64::from(most)
    {
        return refused(format!("{threads} threads in a block, and the kernel says {most}"));
    }
    if geometry.dynamic_shared > SHARED_BYTES_MAX {
        return refused(format!("{} bytes of shared memory", geometry.dynamic_shared));
    }
    Ok(())
}

fn check_registers(program: &Program, geometry: &LaunchGeometry) -> Result<(), LaunchError> {
    let threads: u64 = geometry.block.iter().map(|&side| u64::from(side)).product();
    let warps = threads.div_ceil(LANES as u64);
    let bytes = program.functions.iter().map(|function| u64::from(function.registers)).max().unwrap_or(0)
        * warps
        * 256;
    if bytes > REGISTER_BYTES_MAX {
        return Err(LaunchError::Geometry(format!("{bytes} bytes of registers in a block")));
    }
    Ok(())
}
