//! Cuts one operation into frames: a walk over remote runs and local pieces at once.

use super::PARTS_MAX;
use crate::error::FabricError;
use crate::part::Part;
use hinterland_types::{ByteRange, whole_words};

/// Pieces of one frame: a system call also carries the header, the run table and what comes behind.
const FRAME_PARTS_MAX: usize = PARTS_MAX - 8;

/// What is left of an operation.
#[derive(Clone)]
pub(super) struct Cutter<'a> {
    runs: &'a [ByteRange],
    /// Bytes of the first run that are cut already.
    run_done: u64,
    parts: &'a [Part],
    /// Bytes of the first part that are cut already.
    part_done: usize,
    /// Most bytes of one frame.
    frame_bytes_max: u64,
    /// Most runs of one frame.
    frame_runs_max: usize,
}

impl<'a> Cutter<'a> {
    /// Checks that runs and pieces have the same length.
    pub fn new(
        runs: &'a [ByteRange],
        parts: &'a [Part],
        frame_bytes_max: u32,
        frame_runs_max: u32,
    ) -> Result<Self, FabricError> {
        let runs_bytes = runs.iter().try_fold(0u64, |sum, run| sum.checked_add(run.bytes()));
        let runs_bytes = runs_bytes.unwrap_or(u64::MAX);
        let buffer_bytes = parts.iter().map(|part| part.bytes() as u64).sum();
        if runs_bytes != buffer_bytes {
            return Err(FabricError::Lengths { runs_bytes, buffer_bytes });
        }
        let frame_bytes_max = u64::from(frame_bytes_max);
        let frame_runs_max = frame_runs_max as usize;
        Ok(Self { runs, run_done: 0, parts, part_done: 0, frame_bytes_max, frame_runs_max })
    }

    /// Leaves nothing.
    pub fn stop(&mut self) {
        self.runs = &[];
    }

    /// Appends the runs and pieces of the next frame; returns its bytes, 0 if nothing is left.
    pub fn next(&mut self, frame_runs: &mut Vec<ByteRange>, frame_parts: &mut Vec<Part>) -> usize {
        let mut frame_bytes = 0u64;
        while frame_bytes < self.frame_bytes_max
            && frame_runs.len() < self.frame_runs_max
            && frame_parts.len() < FRAME_PARTS_MAX
        {
            let Some(run) = self.runs.first() else { break };
            let run_left = run.bytes() - self.run_done;
            if run_left == 0 {
                self.runs = &self.runs[1..];
                self.run_done = 0;
                continue;
            }
            let room = self.frame_bytes_max - frame_bytes;
            let wanted = match whole_words(run.offset() + self.run_done, run.end(), room) {
                0 if frame_bytes > 0 => break,
                0 => run_left.min(room),
                some => some,
            };
            let taken = self.take_parts(wanted, frame_parts);
            // The sum cannot overflow: the run itself does not.
            let range = ByteRange::new(run.offset() + self.run_done, taken).unwrap_or_default();
            frame_runs.push(range);
            self.run_done += taken;
            frame_bytes += taken;
        }
        // At most `frame_bytes_max`, which came from a u32.
        frame_bytes as usize
    }

    /// Takes up to `wanted` bytes of pieces, as long as there is room for pieces; returns how many.
    fn take_parts(&mut self, wanted: u64, frame_parts: &mut Vec<Part>) -> u64 {
        let mut taken = 0;
        while taken < wanted && frame_parts.len() < FRAME_PARTS_MAX {
            let Some(part) = self.parts.first() else { break };
            let left = part.skip(self.part_done);
            let bytes = left.bytes().min(usize::try_from(wanted - taken).unwrap_or(usize::MAX));
            if bytes > 0 {
                frame_parts.push(left.first(bytes));
            }
            self.part_done += bytes;
            taken += bytes as u64;
            if self.part_done == part.bytes() {
                self.parts = &self.parts[1..];
                self.part_done = 0;
            }
        }
        taken
    }
}
