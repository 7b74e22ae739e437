//! What back ends and the engine's steps cost on this machine, measured in moments, for predictions.

use super::back_end::BackEnd;
use crate::bench::worker::Worker;
use crate::failure::Failure;
use hinterland_far::store::Store;
use hinterland_farplan::replay::{Costs, Speed};
use hinterland_farplan::width::WIDTH_MAX;
use std::num::NonZero;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use std::time::Instant;

/// Contents of two lengths, and how many of each: enough to tell what is paid once and what for each KiB.
const CONTENTS: [(usize, usize); 2] = [(4 << 10, 64), (256 << 10, 8)];
/// Length of the contents that several threads move at once, how many each, and how often that is timed.
const TOGETHER: (usize, usize, usize) = (64 << 10, 4, 3);
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
    let store = back_end.with_room(ROOM_BYTES).open(TOGETHER.0 as u64, socket)?;
    let (put_together, get_together) = together(&*store)?;
    Ok(Speed {
        name: back_end.words(),
        get_ns,
        get_kib_ns,
        put_ns,
        put_kib_ns,
        get_together,
        put_together,
        sleeps: back_end.is_slow(),
        is_exact: back_end.is_exact(),
        cost: back_end.cost(compression),
    })
}

/// How many times as much as one thread alone as many as can be get when they keep content, and when they read it back.
fn together(store: &dyn Store) -> Result<(f64, f64), Failure> {
    let (bytes, each, rounds) = TOGETHER;
    let (put_ns, get_ns) = times(store, bytes, each * rounds)?;
    let content = content(bytes);
    let (mut puts_ns, mut gets_ns) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..rounds {
        let (places, took_ns) = at_once(|_| {
            (0..each).map(|_| store.put(&content).map_err(|error| Failure::of(&error))).collect()
        })?;
        puts_ns = puts_ns.min(took_ns);
        let (_, took_ns) = at_once(|thread| {
            let mut content = vec![0; bytes];
            let mine = &places[thread * each..(thread + 1) * each];
            mine.iter()
                .map(|place| store.get(*place, &mut content).map_err(|error| Failure::of(&error)))
                .collect()
        })?;
        gets_ns = gets_ns.min(took_ns);
        places.into_iter().for_each(|place| store.free(place));
    }
    let all = (WIDTH_MAX * each) as f64;
    let times = |one_ns: f64, all_ns: f64| (one_ns * all / all_ns.max(1.0)).clamp(1.0, WIDTH_MAX as f64);
    Ok((times(put_ns, puts_ns), times(get_ns, gets_ns)))
}

/// Has as many threads as can be do something at once; what came of it, in their order, and the nanoseconds from the first one's beginning to the last one's end.
fn at_once<T: Send>(act: impl Fn(usize) -> Result<Vec<T>, Failure> + Sync) -> Result<(Vec<T>, f64), Failure> {
    let (start, act) = (Barrier::new(WIDTH_MAX), &act);
    let each = std::thread::scope(|scope| {
        let run = |thread: usize| {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                let begun = Instant::now();
                (act(thread), begun, Instant::now())
            })
        };
        let threads: Vec<_> = (0..WIDTH_MAX).map(run).collect();
        // One that panicked has ended this process.
        threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
    });
    let begun = each.iter().map(|(_, begun, _)| *begun).min();
    let ended = each.iter().map(|(_, _, ended)| *ended).max();
    let took_ns = begun.zip(ended).map_or(0.0, |(begun, ended)| (ended - begun).as_nanos() as f64);
    let mut all = Vec::new();
    for (came, _, _) in each {
        all.extend(came?);
    }
    Ok((all, took_ns))
}

/// Least times to keep and to read back content of so many bytes, in nanoseconds: a busy machine adds to times, and never takes.
fn times(store: &dyn Store, bytes: usize, count: usize) -> Result<(f64, f64), Failure> {
    let mut content = content(bytes);
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

/// Content of which half compresses, as in many programs.
fn content(bytes: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252u64;
    let mut content = vec![0u8; bytes];
    for (index, word) in content.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *word = if index % 2 == 0 { state } else { index as u64 }.to_le_bytes();
    }
    content
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// What the engine's steps are taken to cost, on the processors that this machine has.
pub fn assumed() -> Costs {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    Costs { processors, ..Costs::default() }
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
    Ok(Costs { fault_ns, page_ns, write_ns: fault_ns, ..assumed() })
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
