//! What the machine does: copies of memory, and pages that the kernel fills for another process.

use crate::bench::Setting;
use crate::bench::case::Case;
use crate::bench::report::{Better, Row};
use crate::failure::Failure;
use hinterland_os::userfault::{FaultModes, Features};
use hinterland_os::{Mapping, Userfault};
use std::time::Instant;

const BYTES: usize = 64 << 20;
const UNIT: usize = 2 << 20;

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
