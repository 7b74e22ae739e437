//! What the machine does: copies of memory, pages that the kernel fills for another process, and reads of its disk.

use crate::bench::Setting;
use crate::bench::case::Case;
use crate::bench::report::{Better, Row};
use crate::failure::Failure;
use hinterland_os::userfault::{FaultModes, Features};
use hinterland_os::{DirectBuffer, DirectFile, Mapping, OsError, Transfer, Userfault};
use std::path::Path;
use std::time::Instant;

const BYTES: usize = 64 << 20;
const UNIT: usize = 2 << 20;
/// Reads of the disk that are under way at once.
const DEPTH: usize = 16;

/// GB/s of `UFFDIO_COPY`, beside those of a plain copy.
pub fn copies(setting: &Setting) -> Row {
    let source = vec![7u8; UNIT];
    let mut target = vec![1u8; BYTES];
    let name = "uffdio-copy";
    Case::new(name, "GB/s", Better::Higher, || fill(&source))
        .limit("plain copies", || {
            let begun = Instant::now();
            for part in target.chunks_mut(UNIT) {
                part.copy_from_slice(&source);
            }
            std::hint::black_box(&mut target);
            Ok(BYTES as f64 / begun.elapsed().as_secs_f64() / 1e9)
        })
        .why("what the kernel fills at most, in pages of 4 KiB, by one thread")
        .measure(setting.rounds)
}

fn fill(source: &[u8]) -> Result<f64, Failure> {
    let failed = |error: hinterland_os::OsError| Failure::of(&error);
    let faults = Userfault::open(Features::NONE).map_err(failed)?;
    let memory = Mapping::anonymous(BYTES, false).map_err(failed)?;
    let modes = FaultModes { missing: true, ..FaultModes::default() };
    faults.register(memory.address(), BYTES as u64, modes).map_err(failed)?;
    let begun = Instant::now();
    for at in (0..BYTES).step_by(UNIT) {
        faults.try_copy(memory.address() + at as u64, source, false).map_err(failed)?;
    }
    Ok(BYTES as f64 / begun.elapsed().as_secs_f64() / 1e9)
}

/// GB/s that the disk of a folder gives to who does nothing else: units read past the page cache, many at once. In quick runs it reads less.
pub fn disk(setting: &Setting, folder: &Path) -> Row {
    let batches = if setting.quick { 2 } else { 32 };
    let mut file = written(folder, batches).map_err(|error| Failure::of(&error));
    Case::new("disk-read", "GB/s", Better::Higher, || {
        let file = file.as_mut().map_err(|failure| failure.clone())?;
        let begun = Instant::now();
        for batch in 0..batches {
            file.pass(batch, false).map_err(|error| Failure::of(&error))?;
        }
        Ok((batches * DEPTH * UNIT) as f64 / begun.elapsed().as_secs_f64() / 1e9)
    })
    .why("what the disk gives at most: units of 2 MiB past the page cache, 16 at once")
    .measure(setting.rounds)
}

/// A file of a disk with a buffer for a batch of it.
struct Reading {
    file: DirectFile,
    buffer: DirectBuffer,
}

impl Reading {
    /// Reads or writes the units of one batch, all at once.
    fn pass(&mut self, batch: usize, writes: bool) -> Result<(), OsError> {
        let place = |index: usize| ((batch * DEPTH + index) * UNIT) as u64;
        let units = self.buffer.bytes_mut().chunks_mut(UNIT).enumerate();
        let mut transfers: Vec<Transfer<'_>> = units
            .map(|(index, unit)| match writes {
                true => Transfer::Write(place(index), unit),
                false => Transfer::Read(place(index), unit),
            })
            .collect();
        let results = self.file.transfer(&mut transfers);
        let failed = |error| OsError::system("reading the disk", "a file without a name", error);
        results.into_iter().collect::<Result<(), _>>().map_err(failed)
    }
}

/// A file that has been written as a whole.
fn written(folder: &Path, batches: usize) -> Result<Reading, OsError> {
    let file = DirectFile::unnamed(folder, (batches * DEPTH * UNIT) as u64)?;
    let mut reading = Reading { file, buffer: DirectBuffer::new(DEPTH * UNIT)? };
    reading.buffer.bytes_mut().fill(7);
    for batch in 0..batches {
        reading.pass(batch, true)?;
    }
    Ok(reading)
}
