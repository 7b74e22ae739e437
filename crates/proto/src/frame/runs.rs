//! Run tables: the ranges that one gather read or scatter write names.

use super::FrameError;
use hinterland_types::ByteRange;
use hinterland_types::limits::FRAME_BODY_BYTES_MAX;

/// Bytes of one run on the wire: offset, length and four zero bytes.
pub const RUN_BYTES: usize = 16;
/// Most runs of one frame: their table is 16 KiB, and a system call takes as many buffers (`IOV_MAX`).
pub const RUNS_MAX: usize = 1024;

/// A checked table of runs, borrowed from the body that it came in.
#[derive(Clone, Copy, Debug)]
pub struct RunTable<'a> {
    bytes: &'a [u8],
    total_bytes: u32,
}

impl<'a> RunTable<'a> {
    /// Checks a table.
    ///
    /// # Errors
    /// [`FrameError::Run`] for the first run that is empty, overflows, has a non-zero filler or takes
    /// the sum past [`FRAME_BODY_BYTES_MAX`]; index [`RUNS_MAX`] stands for a table of a wrong length.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let count = bytes.len() / RUN_BYTES;
        if !bytes.len().is_multiple_of(RUN_BYTES) || count == 0 || count > RUNS_MAX {
            return Err(FrameError::Run { index: RUNS_MAX, offset: 0, bytes: 0 });
        }
        let mut total_bytes = 0u64;
        for (index, run) in bytes.as_chunks::<RUN_BYTES>().0.iter().enumerate() {
            let (offset, bytes, filler) = split(run);
            total_bytes += u64::from(bytes);
            let good = bytes != 0
                && filler == 0
                && offset.checked_add(u64::from(bytes)).is_some()
                && total_bytes <= u64::from(FRAME_BODY_BYTES_MAX);
            if !good {
                return Err(FrameError::Run { index, offset, bytes });
            }
        }
        // The loop keeps the sum at or below FRAME_BODY_BYTES_MAX: the cast loses nothing.
        Ok(Self { bytes, total_bytes: total_bytes as u32 })
    }

    /// Sum of the lengths, at most [`FRAME_BODY_BYTES_MAX`].
    pub const fn total_bytes(&self) -> u32 {
        self.total_bytes
    }

    /// Number of runs, 1 to [`RUNS_MAX`].
    pub const fn count(&self) -> usize {
        self.bytes.len() / RUN_BYTES
    }

    /// The runs in their order.
    pub fn iter(&self) -> impl Iterator<Item = ByteRange> + 'a {
        self.bytes.as_chunks::<RUN_BYTES>().0.iter().map(|run| {
            let (offset, bytes, _) = split(run);
            // `parse` refused every run that overflows, so the default is never taken.
            ByteRange::new(offset, u64::from(bytes)).unwrap_or_default()
        })
    }
}

/// Appends the wire form of runs to `body` and returns the sum of their lengths.
///
/// # Errors
/// [`FrameError::Run`] for what [`RunTable::parse`] would refuse: no run, more than [`RUNS_MAX`], an empty
/// run, or more than [`FRAME_BODY_BYTES_MAX`] bytes in all. `body` is then as it was.
pub fn encode_runs(runs: &[ByteRange], body: &mut Vec<u8>) -> Result<u32, FrameError> {
    let start = body.len();
    for run in runs.iter().take(RUNS_MAX + 1) {
        let bytes = u32::try_from(run.bytes()).unwrap_or(u32::MAX);
        body.extend_from_slice(&run.offset().to_le_bytes());
        body.extend_from_slice(&bytes.to_le_bytes());
        body.extend_from_slice(&[0; 4]);
    }
    match RunTable::parse(&body[start..]) {
        Ok(table) => Ok(table.total_bytes()),
        Err(error) => {
            body.truncate(start);
            Err(error)
        }
    }
}

fn split(run: &[u8; RUN_BYTES]) -> (u64, u32, u32) {
    let word = |at: usize| u32::from_le_bytes([run[at], run[at + 1], run[at + 2], run[at + 3]]);
    (u64::from(word(4)) << 32 | u64::from(word(0)), word(8), word(12))
}
