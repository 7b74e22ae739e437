//! A page trace played against a model of the engine: the run time that a setting would give.
//!
//! The model has what the engine has, and what decides there decides here: the table of units, the hand that sweeps over what is resident, grains that are
//! learnt by place, refaults, guesses of what will be written, sequences and trends are the engine's own code. What is a thread there is a time here: the one that serves
//! faults, the one that evicts, and as many that read and that write back ends as the width says. They share a device or the processors that the program leaves. There are no
//! queues in the kernel and no cache of the processor.

mod gaps;
mod memory;
mod threads;

pub use self::gaps::Gaps;

use self::memory::Memory;
use crate::PAGE;
use crate::grain::BLOCK_BYTES;
use crate::room;
use crate::trace::{Kind, Record, Trace};

/// How fast a back end is, and what its memory costs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Speed {
    /// Its name in `--far`.
    pub name: String,
    /// Nanoseconds to read content back: once, and for each KiB.
    pub get_ns: f64,
    /// As above, for each KiB.
    pub get_kib_ns: f64,
    /// Nanoseconds to keep content: once, and for each KiB.
    pub put_ns: f64,
    /// As above, for each KiB.
    pub put_kib_ns: f64,
    /// How many times as much as one thread several get from it when they read; less than 1 counts as 1.
    pub get_together: f64,
    /// The same for those that write.
    pub put_together: f64,
    /// Whether who uses it sleeps meanwhile; else that takes a processor.
    pub sleeps: bool,
    /// Whether content takes as much there as it is long, however short it is, so that units can be fitted.
    pub is_exact: bool,
    /// What a byte there costs, in bytes of this host's memory.
    pub cost: f64,
}

/// What the engine's steps cost, in nanoseconds, and what there is to do them.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// A fault, from the touch until the program goes on, without its content.
    pub fault_ns: f64,
    /// Filling a page.
    pub page_ns: f64,
    /// The first write to a clean unit.
    pub write_ns: f64,
    /// Taking a batch out.
    pub batch_ns: f64,
    /// Taking a page out, beside what its back end does.
    pub out_page_ns: f64,
    /// The first touch of a page without far memory.
    pub plain_page_ns: f64,
    /// Processors; one is the program's, or that of the thread that serves its fault.
    pub processors: usize,
}

impl Default for Costs {
    /// Estimates for a machine with two processors and Linux 6.18, from what calls of the kernel cost there; they were never fitted to runs.
    fn default() -> Self {
        Self {
            fault_ns: 16_000.0,
            page_ns: 700.0,
            write_ns: 12_000.0,
            batch_ns: 60_000.0,
            out_page_ns: 900.0,
            plain_page_ns: 1_000.0,
            processors: 2,
        }
    }
}

/// What moves at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// So many bytes, a power of two of at least a page: `--far-unit`.
    Bytes(u64),
    /// Of 16 KiB as much as each place uses together, as it is without `--far-unit`; only where all back ends are exact.
    Fitted,
}

impl Unit {
    /// The most that moves at once.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Fitted => BLOCK_BYTES,
        }
    }

    /// The least that may move alone.
    const fn part_bytes(self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Fitted => PAGE,
        }
    }
}

/// What can be set.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// `--local` in bytes.
    pub local_bytes: u64,
    /// What moves at once.
    pub unit: Unit,
    /// Whether to fetch ahead of sequences.
    pub ahead: bool,
    /// `--far-width`: threads that read back ends, and as many that write to them.
    pub width: usize,
    /// Which of the speeds, each once; content goes to them in turn by their speed.
    pub back_ends: Vec<usize>,
}

/// What a setting would give.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Seconds.
    pub time_s: f64,
    /// Seconds without far memory, as far as the trace tells.
    pub plain_s: f64,
    /// Page faults served, first writes included.
    pub faults: u64,
    /// Brought back, ahead included.
    pub in_bytes: u64,
    /// Taken out and written.
    pub out_bytes: u64,
    /// Filled ahead of the program.
    pub ahead_bytes: u64,
    /// Most that was far at once.
    pub far_bytes_max: u64,
}

/// Plays a trace.
pub fn replay(trace: &Trace, gaps: &Gaps, setting: &Setting, speeds: &[Speed], costs: &Costs) -> Prediction {
    let room = room_bytes(trace, setting.local_bytes);
    let pages = footprint_pages(trace);
    let plain_s = (gaps.sum_ns() + pages as f64 * costs.plain_page_ns) / 1e9;
    if pages * PAGE <= room {
        // Nothing is under service as long as all fits.
        return Prediction { time_s: plain_s, plain_s, ..Prediction::default() };
    }
    let mut memory = Memory::new(trace, setting, room, speeds, costs);
    let mut gaps = gaps.each.iter();
    for record in &trace.records {
        if record.kind.is_touch() {
            memory.go_on(gaps.next().copied().unwrap_or(0.0));
            memory.touch(record, trace.header.unit_bytes);
        } else if record.kind == Kind::Drop {
            memory.drop_range(record);
        }
    }
    memory.go_on(gaps.sum::<f64>());
    Prediction { plain_s, ..memory.told() }
}

/// Bytes that may be resident of what is under service.
pub fn room_bytes(trace: &Trace, local_bytes: u64) -> u64 {
    let census = trace.records.iter().filter(|record| record.kind == Kind::Census);
    let other = census.map(|record| record.address).max().unwrap_or(0);
    room::room_bytes(local_bytes, other)
}

/// Different pages that were touched.
pub fn footprint_pages(trace: &Trace) -> u64 {
    let grain = trace.header.unit_bytes;
    touched(trace, grain).len() as u64 * (grain / PAGE)
}

/// Units of so many bytes that were touched at any time, by space and number, in order.
fn touched(trace: &Trace, unit_bytes: u64) -> Vec<(u8, u64)> {
    // A trace whose unit is larger touched all of it.
    let count = (trace.header.unit_bytes / unit_bytes).max(1);
    let first = |record: &Record| (record.space, record.address / unit_bytes);
    let mut all: Vec<(u8, u64)> = trace.touches().map(first).collect();
    all.sort_unstable();
    all.dedup();
    if count > 1 {
        let each = |(space, first): (u8, u64)| (0..count).map(move |index| (space, first + index));
        all = all.into_iter().flat_map(each).collect();
        all.sort_unstable();
        all.dedup();
    }
    all
}

#[cfg(test)]
mod tests;
