//! `kv-rpc`: messages of 64 bytes through a ring between two processes, with caches that see each other and with lines that are
//! moved by hand, each beside bare lines in the same way.

use super::case::Case;
use super::ground::Ground;
use super::report::{Better, Row};
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_os::{Coherence, MapOptions, MemoryFile, PageKind, SharedSlice, affinity};
use hinterland_ring::{BODY_BYTES, Body, Requester, Responder, RingError, Session, WakeBy, session_bytes};
use std::cell::RefCell;
use std::io::{BufRead, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages that are out at once.
const DEPTH: u32 = 128;
/// How long an answer may take.
const LONG: Duration = Duration::from_secs(10);
/// The answering process is started as this bench, which no list shows.
const ANSWERER: &str = "kv-rpc-answerer";
/// Where it finds the memory.
const MEMORY_VARIABLE: &str = "HINTERLAND_BENCH_MEMORY";

/// The bench.
pub struct KvRpc;

/// The process that answers. `answer COHERENCE COUNT` begins with that in a new session, and says so at once.
pub struct KvRpcAnswerer;

/// Two processes and the memory between them.
struct Scene {
    memory: SharedSlice,
    answerer: RefCell<Worker>,
    _descriptor: OwnedFd,
}

impl Bench for KvRpc {
    fn name(&self) -> &'static str {
        "kv-rpc"
    }

    fn subject(&self) -> &'static str {
        "64-byte messages to another process, caches coherent and moved by hand"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = Ground::new(setting, 0)?;
        let scene = Scene::new(setting)?;
        let machine = RefCell::new(ground.machine()?);
        let (single, deep) = if setting.quick { (5_000, 50_000) } else { (50_000, 1_000_000) };
        affinity::pin_thread(affinity::allowed_cores()[0])?;
        let mut rows = Vec::new();
        for coherence in [Coherence::Hardware, Coherence::Software] {
            let hand = u8::from(coherence == Coherence::Software);
            (setting.say)(&format!("kv-rpc: {coherence} coherence"));
            let bare = |count: u64, depth: u32| {
                machine.borrow_mut().figure(&format!("pingpong {count} {depth} {hand}"))
            };
            let one = Case::new(format!("{coherence}-1"), "ns", Better::Lower, || {
                scene.nanoseconds(coherence, single, 1)
            })
            .limit("bare lines, one at a time", || bare(single, 1));
            rows.push(one.measure(setting.rounds));
            let many = Case::new(format!("{coherence}-{DEPTH}"), "M/s", Better::Higher, || {
                scene.nanoseconds(coherence, deep, DEPTH).map(|ns| 1e3 / ns)
            })
            .limit("bare lines, 128 at once", || bare(deep, DEPTH).map(|ns| 1e3 / ns));
            rows.push(many.measure(setting.rounds));
        }
        Ok(rows)
    }
}

impl Scene {
    fn new(setting: &Setting) -> Result<Self, Failure> {
        let bytes = session_bytes(DEPTH).map_err(broken)? as u64;
        let file = MemoryFile::anonymous("kv-rpc", bytes.next_multiple_of(4096), PageKind::Base4K)?;
        let descriptor = file.duplicate()?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), descriptor.as_raw_fd());
        let mut command = Command::new(&setting.program);
        command.args(["bench", ANSWERER]).env(MEMORY_VARIABLE, path);
        let answerer = RefCell::new(Worker::start("the answering process", command)?);
        Ok(Self { memory: mapped(&file)?, answerer, _descriptor: descriptor })
    }

    /// Nanoseconds of a message and its answer, up to `depth` of them out at once.
    fn nanoseconds(&self, coherence: Coherence, count: u64, depth: u32) -> Result<f64, Failure> {
        let session = Session::format_with(self.memory.clone(), DEPTH, coherence).map_err(broken)?;
        let mut requester = Requester::new(session, WakeBy::Futex);
        self.answerer.borrow_mut().words(&format!("answer {coherence} {count}"))?;
        let (mut sent, mut answered) = (0, 0);
        let mut responses = Vec::with_capacity(DEPTH as usize);
        let begin = Instant::now();
        while answered < count {
            while sent < count && requester.outstanding() < depth {
                requester.submit(&body(sent)).map_err(broken)?;
                sent += 1;
            }
            if !requester.wait(LONG).map_err(broken)? {
                return Err(Failure::new("the answering process answers no more", "see what it said above"));
            }
            responses.clear();
            requester.poll_all(&mut responses).map_err(broken)?;
            for response in &responses {
                if response.body != body(answered + 1) {
                    return Err(Failure::new(format!("a wrong answer to message {answered}"), "report this"));
                }
                answered += 1;
            }
        }
        Ok(begin.elapsed().as_nanos() as f64 / count as f64)
    }
}

impl Bench for KvRpcAnswerer {
    fn name(&self) -> &'static str {
        ANSWERER
    }

    fn subject(&self) -> &'static str {
        "what `kv-rpc` talks to"
    }

    fn run(&self, _: &Setting) -> Result<Vec<Row>, Failure> {
        let path = std::env::var(MEMORY_VARIABLE)
            .map_err(|_| Failure::usage("this is a part of `bench kv-rpc`", "run that"))?;
        let memory = mapped(&MemoryFile::open(Path::new(&path), true)?)?;
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let question = match words.as_slice() {
                ["answer", coherence, count] => coherence.parse().ok().zip(count.parse().ok()),
                _ => None,
            };
            let Some((coherence, count)) = question else {
                println!("error {line:?} is no question");
                continue;
            };
            let session = Session::attach_with(memory.clone(), DEPTH, coherence).map_err(broken)?;
            std::thread::spawn(move || answer(Responder::new(session), count));
            println!("0");
            if std::io::stdout().flush().is_err() {
                break;
            }
        }
        Err(Failure { silent: true, ..Failure::new("nobody asks any more", "") })
    }
}

/// Answers so many messages, each with the next number.
fn answer(mut responder: Responder, count: u64) {
    let cores = affinity::allowed_cores();
    // Where there is one processor only, both sides share it.
    let _ = affinity::pin_thread(cores[cores.len().min(2) - 1]);
    let mut requests = Vec::with_capacity(DEPTH as usize);
    let mut answered = 0;
    while answered < count && responder.wait(LONG) {
        requests.clear();
        answered += responder.drain(&mut requests, DEPTH as usize) as u64;
        for request in &requests {
            let mut number = [0; 8];
            number.copy_from_slice(&request.body[..8]);
            let answer = body(u64::from_le_bytes(number).wrapping_add(1));
            if responder.respond(request.tag, &answer).is_err() {
                return;
            }
        }
    }
    responder.flush();
}

/// A message of a number, all of which changes with it.
fn body(number: u64) -> Body {
    let mut body = [0; BODY_BYTES];
    for (index, bytes) in (0..).zip(body.as_chunks_mut::<8>().0) {
        *bytes = number.wrapping_add(index).to_le_bytes();
    }
    body
}

fn mapped(file: &MemoryFile) -> Result<SharedSlice, Failure> {
    let options = MapOptions { write: true, ..MapOptions::default() };
    Ok(Arc::new(file.map(0, file.len() as usize, options)?).slice())
}

fn broken(error: RingError) -> Failure {
    Failure::of(&error)
}
