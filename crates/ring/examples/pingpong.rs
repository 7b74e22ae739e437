//! Round trips between two processes: through a session, and bare (two cache lines and a loop), in turn in one run.
//!
//! `cargo run --release -p hinterland-ring --example pingpong [ROUNDS]` prints, for each round and as medians, the time of
//! one 64-byte round trip bare and through a session with both sides spinning, and requests per second at depth 128.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hinterland_os::{MapOptions, MemoryFile, SharedSlice, affinity};
use hinterland_ring::{BODY_BYTES, Body, Requester, Responder, Session, WakeBy, session_bytes};

const SLOTS: u32 = 128;
/// Short rounds, many of them: on a machine with other work some rounds are undisturbed.
const ROUND_TRIPS: u64 = 10_000;
const DEPTH_REQUESTS: u64 = 500_000;
const SESSION_AT: usize = 4096;
const LONG: Duration = Duration::from_secs(10);

/// What the child does next; the parent stores it in the first word, the child answers in the second.
const BARE: u64 = 1;
const SINGLE: u64 = 2;
const DEPTH: u64 = 3;
const END: u64 = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, word, path] = arguments.as_slice()
        && word == "child"
    {
        return answer(&open(&PathBuf::from(path))?);
    }
    let rounds: usize = arguments.get(1).map_or(Ok(31), |text| text.parse())?;
    let path = PathBuf::from(format!("/dev/shm/hinterland-pingpong-{}", std::process::id()));
    let bytes = SESSION_AT + session_bytes(SLOTS)?.next_multiple_of(4096);
    let file = MemoryFile::create(&path, bytes as u64)?;
    let child = Command::new(std::env::current_exe()?).arg("child").arg(&path).spawn();
    let result = child.map_err(Into::into).and_then(|child| measure(&open(&path)?, child, rounds));
    file.remove()?;
    result
}

fn open(path: &std::path::Path) -> Result<SharedSlice, hinterland_os::OsError> {
    let file = MemoryFile::open(path, true)?;
    let options = MapOptions { write: true, ..MapOptions::default() };
    Ok(Arc::new(file.map(0, file.len() as usize, options)?).slice())
}

fn measure(memory: &SharedSlice, mut child: Child, rounds: usize) -> Result<(), Box<dyn std::error::Error>> {
    affinity::pin_thread(affinity::allowed_cores()[0])?;
    let mut rows = Vec::new();
    println!("round  bare ns  session ns  ratio  depth-{SLOTS} M requests/s");
    for round in 0..rounds {
        let bare = bare_round_trip_ns(memory)?;
        let single = single_round_trip_ns(memory)?;
        let depth = requests_per_second(memory)? / 1e6;
        println!("{round:5}  {bare:7.1}  {single:10.1}  {:5.2}  {depth:.1}", single / bare);
        rows.push([bare, single, single / bare, depth]);
    }
    start(memory, END)?;
    child.wait()?;
    let sorted = |column: usize| {
        let mut values: Vec<f64> = rows.iter().map(|row: &[f64; 4]| row[column]).collect();
        values.sort_by(f64::total_cmp);
        values
    };
    for (name, part) in [("lowest", 0.0), ("quarter", 0.25), ("median", 0.5), ("highest", 1.0)] {
        let [bare, single, ratio, depth] = [0, 1, 2, 3].map(|column| {
            let values = sorted(column);
            values[((values.len() - 1) as f64 * part) as usize]
        });
        println!("{name:7} {bare:7.1}  {single:10.1}  {ratio:5.2}  {depth:.1}");
    }
    Ok(())
}

fn bare_round_trip_ns(memory: &SharedSlice) -> Result<f64, hinterland_os::OsError> {
    memory.store_u64(128, 0)?;
    memory.store_u64(256, 0)?;
    start(memory, BARE)?;
    let mut line = [7u8; BODY_BYTES];
    let begin = Instant::now();
    for number in 1..=ROUND_TRIPS {
        memory.write_at(136, &line)?;
        memory.store_u64(128, number)?;
        while memory.load_u64(256)? != number {
            std::hint::spin_loop();
        }
        memory.read_at(264, &mut line)?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64)
}

fn single_round_trip_ns(memory: &SharedSlice) -> Result<f64, Box<dyn std::error::Error>> {
    let mut requester = new_requester(memory)?;
    start(memory, SINGLE)?;
    let mut body: Body = [7; BODY_BYTES];
    let begin = Instant::now();
    for _ in 0..ROUND_TRIPS {
        body = requester.call(&body, LONG)?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64)
}

fn requests_per_second(memory: &SharedSlice) -> Result<f64, Box<dyn std::error::Error>> {
    let mut requester = new_requester(memory)?;
    start(memory, DEPTH)?;
    let (mut submitted, mut answered) = (0, 0);
    let mut responses = Vec::with_capacity(SLOTS as usize);
    let body: Body = [7; BODY_BYTES];
    let begin = Instant::now();
    while answered < DEPTH_REQUESTS {
        while submitted < DEPTH_REQUESTS && requester.outstanding() < SLOTS {
            requester.submit(&body)?;
            submitted += 1;
        }
        if !requester.wait(LONG)? {
            return Err("the child answers no more".into());
        }
        responses.clear();
        answered += requester.poll_all(&mut responses)? as u64;
    }
    Ok(DEPTH_REQUESTS as f64 / begin.elapsed().as_secs_f64())
}

fn new_requester(memory: &SharedSlice) -> Result<Requester, Box<dyn std::error::Error>> {
    let part = memory.sub(SESSION_AT, memory.len() - SESSION_AT)?;
    Ok(Requester::new(Session::format(part, SLOTS)?, WakeBy::Futex))
}

/// Tells the child what to do next, and waits until it is about to do it.
fn start(memory: &SharedSlice, phase: u64) -> Result<(), hinterland_os::OsError> {
    memory.store_u64(8, 0)?;
    memory.store_u64(0, phase)?;
    while memory.load_u64(8)? != phase {
        std::thread::yield_now();
    }
    Ok(())
}

fn answer(memory: &SharedSlice) -> Result<(), Box<dyn std::error::Error>> {
    let cores = affinity::allowed_cores();
    affinity::pin_thread(cores[cores.len() - 1])?;
    hinterland_os::process::signal_when_parent_dies(9)?;
    loop {
        let phase = memory.load_u64(0)?;
        if phase == 0 {
            std::thread::yield_now();
            continue;
        }
        memory.store_u64(0, 0)?;
        memory.store_u64(8, phase)?;
        match phase {
            BARE => answer_bare(memory)?,
            SINGLE => answer_session(memory, ROUND_TRIPS)?,
            DEPTH => answer_session(memory, DEPTH_REQUESTS)?,
            _ => return Ok(()),
        }
    }
}

fn answer_bare(memory: &SharedSlice) -> Result<(), hinterland_os::OsError> {
    let mut line = [0u8; BODY_BYTES];
    for number in 1..=ROUND_TRIPS {
        while memory.load_u64(128)? != number {
            std::hint::spin_loop();
        }
        memory.read_at(136, &mut line)?;
        memory.write_at(264, &line)?;
        memory.store_u64(256, number)?;
    }
    Ok(())
}

fn answer_session(memory: &SharedSlice, count: u64) -> Result<(), Box<dyn std::error::Error>> {
    let part = memory.sub(SESSION_AT, memory.len() - SESSION_AT)?;
    let mut responder = Responder::new(Session::attach(part, SLOTS)?);
    let mut answered = 0;
    while answered < count {
        if !responder.wait(LONG) {
            return Err("the parent asks no more".into());
        }
        while let Some(request) = responder.take() {
            responder.respond(request.tag, &request.body)?;
            answered += 1;
        }
    }
    responder.flush();
    Ok(())
}
