//! What back ends and the engine's steps cost on this machine, measured in moments, for predictions.

use super::back_end::BackEnd;
use crate::bench::worker::Worker;
use crate::failure::Failure;
use hinterland_far::store::Store;
use hinterland_farplan::replay::{Costs, Speed};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Contents of two lengths, and how many of each: enough to tell what is paid once and what for each KiB.
const CONTENTS: [(usize, usize); 2] = [(4 << 10, 64), (256 << 10, 8)];
/// Room of a back end that is measured.
const ROOM_BYTES: u64 = 16 << 20;
/// Memory of the program that is measured, and how much of it may be local.
const SIZES: [u64; 2] = [256 << 20, 160 << 20];
const UNITS: [u64; 2] = [4 << 10, 64 << 10];
const ROUNDS: usize = 3;
/// For how long pages are touched in each.
const TOUCH_MS: u64 = 1000;

/// How quick a back end is, and what it costs for content that compresses so well.
///
/// # Errors
/// [`Failure`] when it cannot be had or refuses what it should keep.
pub fn speed(back_end: &BackEnd, compression: f64, socket: &Path) -> Result<Speed, Failure> {
    let mut put = [0.0; 2];
    let mut get = [0.0; 2];
    for (index, (bytes, count)) in CONTENTS.into_iter().enumerate() {
        let store = back_end.with_room(ROOM_BYTES).open(bytes as u64, socket)?;
        (put[index], get[index]) = times(&*store, bytes, count)?;
    }
    let kib = CONTENTS.map(|(bytes, _)| bytes as f64 / 1024.0);
    let line = |times: [f64; 2]| {
        let each = ((times[1] - times[0]) / (kib[1] - kib[0])).max(0.0);
        ((times[0] - each * kib[0]).max(0.0), each)
    };
    let ((put_ns, put_kib_ns), (get_ns, get_kib_ns)) = (line(put), line(get));
    let cost = back_end.cost(compression);
    Ok(Speed { name: back_end.words(), get_ns, get_kib_ns, put_ns, put_kib_ns, cost })
}

/// Least times to keep and to read back content of so many bytes, in nanoseconds: a busy machine adds to times, and never takes.
fn times(store: &dyn Store, bytes: usize, count: usize) -> Result<(f64, f64), Failure> {
    // Half of it compresses, as in many programs.
    let mut state = 88_172_645_463_325_252u64;
    let mut content = vec![0u8; bytes];
    for (index, word) in content.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *word = if index % 2 == 0 { state } else { index as u64 }.to_le_bytes();
    }
    let (mut puts, mut gets) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let begun = Instant::now();
        let place = store.put(&content).map_err(|error| Failure::of(&error))?;
        puts.push(begun.elapsed().as_nanos() as f64);
        let begun = Instant::now();
        store.get(place, &mut content).map_err(|error| Failure::of(&error))?;
        gets.push(begun.elapsed().as_nanos() as f64);
        store.free(place);
    }
    let least = |times: Vec<f64>| times.into_iter().fold(f64::INFINITY, f64::min);
    Ok((least(puts), least(gets)))
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// What faults cost, from a program of ours that touches pages at random with units of two sizes.
///
/// # Errors
/// [`Failure`] when that program cannot run with far memory.
pub fn measured(speed: &Speed) -> Result<Costs, Failure> {
    let mut each = [0.0; 2];
    for (place, unit) in each.iter_mut().zip(UNITS) {
        *place = random_touch_ns(unit)?;
    }
    let pages = UNITS.map(|unit| (unit / 4096) as f64);
    let content = UNITS.map(|unit| speed.get_ns + speed.get_kib_ns * unit as f64 / 1024.0);
    let rest = [each[0] - content[0], each[1] - content[1]];
    let page_ns = ((rest[1] - rest[0]) / (pages[1] - pages[0])).max(100.0);
    let fault_ns = (rest[0] - page_ns * pages[0]).max(1000.0);
    Ok(Costs { fault_ns, page_ns, write_ns: fault_ns, ..Costs::default() })
}

/// Nanoseconds of a touch that misses.
fn random_touch_ns(unit: u64) -> Result<f64, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("this program cannot find itself: {error}"), "mount /proc"))?;
    let [bytes, local] = SIZES;
    let mut command = Command::new(&program);
    command.args(["--quiet", "run", "--local", &local.to_string(), "--far", "lz4"]);
    command.args(["--far-unit", &unit.to_string(), "--"]).arg(&program).args(["bench", "far-toucher"]);
    let mut worker = Worker::start("the program that is measured", command)?;
    worker.words(&format!("fill {bytes}"))?;
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        rates.push(worker.figure(&format!("random {TOUCH_MS}"))?);
    }
    // Of the memory under service, what is neither local nor kept back as a margin and as spare room.
    let room = local as f64 - (40 << 20) as f64;
    let missing = 1.0 - (room * 15.0 / 16.0) / bytes as f64;
    Ok(1e9 / middle(rates).max(1.0) / missing.max(0.05))
}
