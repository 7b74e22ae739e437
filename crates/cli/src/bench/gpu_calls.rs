//! `gpu-calls`: what calls of CUDA cost in a program whose GPU is elsewhere, beside bare frames and beside a round trip for each call.

pub mod answerer;
mod link;

use super::case::Case;
use super::ground::Ground;
use super::report::{Better, Row};
use super::worker::Worker;
use super::{Bench, Setting};
use crate::failure::Failure;
use crate::run::cuda::find_core;
use link::Link;
use std::cell::RefCell;
use std::path::Path;
use std::process::Command;

/// The program that calls CUDA.
const CALLER_SOURCE: &str = include_str!("../../../../bench/gpu/calls.c");
/// What serves it: kernels do nothing, so that no figure is theirs.
const DEVICE: &str = "software:kernels=none,memory=256M";
/// Variables that would make other calls of it than those that are named.
const SWITCHES: [&str; 7] = [
    "HINTERLAND_GPU_MEMORY",
    "HINTERLAND_GPU_DELAY_US",
    "HINTERLAND_KEY_FILE",
    "HINTERLAND_VERBOSE",
    "HINTERLAND_NO_FENCE",
    "HINTERLAND_NO_GRAPH_EDITS",
    "HINTERLAND_NO_IMAGE_FACTS",
];
/// Bytes of the copies of a token to the device, and from it.
const UPLOADS: [usize; 6] = [1024, 4, 8, 8, 512, 4];
const LOGITS_BYTES: usize = 128_000;
/// Fields of a request that waits: of a copy, and of a call with one handle.
const COPY_FIELDS_BYTES: usize = 24;
const HANDLE_FIELDS_BYTES: usize = 8;
/// What a call returns.
const CODE_BYTES: usize = 4;
/// Calls of a token that synchronise.
const SYNCHRONISING: usize = 14;
/// The peer of counts, and that of times. Bare frames come at once to who answers them; ours pass through the threads of the device in
/// software, which this says.
const PEER: &str = "one round trip a call";
const TIMED_PEER: &str = "one round trip a call, no device behind";
/// Frames beside launches.
const FRAMES: &str = "the same bytes as frames into the same kind of ring";

/// The bench.
pub struct GpuCalls;

/// How much is done for one figure.
#[derive(Clone, Copy)]
struct Amount {
    bursts: usize,
    /// Launches of a burst: they fit into the ring.
    each: usize,
    launches: usize,
    trips: usize,
    tokens: usize,
}

/// A program that calls CUDA, and a channel of the same kind without CUDA.
struct Scene {
    caller: RefCell<Worker>,
    link: RefCell<Link>,
    amount: Amount,
}

/// What a token took.
struct Token {
    us: f64,
    waits: f64,
    bytes: f64,
}

impl Bench for GpuCalls {
    fn name(&self) -> &'static str {
        "gpu-calls"
    }

    fn subject(&self) -> &'static str {
        "calls of CUDA in a program whose GPU is elsewhere, and those of a token"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let core = find_core()?;
        let ground = Ground::new(setting, 0)?;
        let program = ground.compiled("calls", CALLER_SOURCE)?;
        let node = ground.gpu_node(DEVICE)?;
        let mut command = Command::new(&setting.program);
        command.args(["bench", answerer::NAME]);
        let mut answerer = Worker::start("the answering process", command)?;
        let amount = if setting.quick {
            Amount { bursts: 4, each: 100, launches: 5_000, trips: 100, tokens: 20 }
        } else {
            Amount { bursts: 200, each: 2_000, launches: 2_000_000, trips: 20_000, tokens: 1_000 }
        };
        let mut rows = Vec::new();
        let socket = format!("unix:{}", ground.folder().join("frames.sock").display());
        for (fabric, gpu, frames) in [
            ("shm", format!("unix:{}", node.socket.display()), socket.as_str()),
            ("tcp", node.address.clone(), "tcp:127.0.0.1:0"),
        ] {
            (setting.say)(&format!("gpu-calls: {fabric}"));
            let scene = Scene {
                caller: RefCell::new(caller(&program, &core, &gpu)?),
                link: RefCell::new(Link::open(&answerer.words(&format!("listen {frames}"))?)?),
                amount,
            };
            if fabric == "shm" {
                rows.extend(scene.launches(setting.rounds)?);
            }
            rows.extend(scene.token_rows(fabric, setting.rounds));
        }
        Ok(rows)
    }
}

/// Starts the program that calls CUDA.
fn caller(program: &Path, core: &Path, gpu: &str) -> Result<Worker, Failure> {
    let mut command = Command::new(program);
    command.arg(core).env("HINTERLAND_GPU", gpu);
    for switch in SWITCHES {
        command.env_remove(switch);
    }
    Worker::start("the program that calls CUDA", command)
}

impl Scene {
    /// Rows of launches that nobody waits for.
    fn launches(&self, rounds: usize) -> Result<[Row; 2], Failure> {
        let Amount { bursts, each, launches, trips, .. } = self.amount;
        let burst = |count: usize| self.caller.borrow_mut().ask(&format!("launch {count} {each}"));
        let frame_bytes = burst(1)?.get(1).copied().unwrap_or_default();
        // A few hundred bytes: exact.
        let body = (frame_bytes as usize).saturating_sub(hinterland_channel::FRAME_HEADER_BYTES);
        let trip = || self.link.borrow_mut().trips(&vec![(body, CODE_BYTES); trips]);
        let one = Case::new("launch-async", "ns", Better::Lower, || {
            Ok(burst(bursts)?.first().copied().unwrap_or(f64::NAN))
        })
        .limit(FRAMES, || self.link.borrow_mut().burst_ns(bursts, each, body))
        .peer(TIMED_PEER, || Ok(trip()? / trips as f64));
        let many = Case::new("launches-per-second", "1/s", Better::Higher, || {
            self.caller.borrow_mut().figure(&format!("rate {launches}"))
        })
        .limit(FRAMES, || Ok(1e9 / self.link.borrow_mut().burst_ns_to_the_end(launches, body)?))
        .peer(TIMED_PEER, || Ok(1e9 * trips as f64 / trip()?));
        Ok([one.measure(rounds), many.measure(rounds)])
    }

    /// Rows of a token, its calls being those of llama.cpp.
    fn token_rows(&self, fabric: &str, rounds: usize) -> [Row; 3] {
        let case = |name: &str| format!("{fabric}-{name}");
        let calls = calls_that_wait();
        let waits =
            Case::new(case("steady-roundtrips"), "a token", Better::Lower, || Ok(self.token()?.waits))
                .limit("one: the next token needs the logits", || Ok(1.0))
                .peer(PEER, || Ok(calls.len() as f64));
        let bytes =
            Case::new(case("steady-bytes"), "bytes a token", Better::Lower, || Ok(self.token()?.bytes))
                .limit("what the copies carry", || Ok(UPLOADS.iter().sum::<usize>() as f64))
                .peer(PEER, || self.link.borrow_mut().bytes_of(&calls));
        let time = Case::new(case("token-time"), "us", Better::Lower, || Ok(self.token()?.us))
            .limit("the same bytes in one round trip, no device behind", || {
                self.trips_us(&[(UPLOADS.iter().sum(), LOGITS_BYTES)])
            })
            .peer(TIMED_PEER, || self.trips_us(&calls));
        [waits.measure(rounds), bytes.measure(rounds), time.measure(rounds)]
    }

    fn token(&self) -> Result<Token, Failure> {
        let answer = self.caller.borrow_mut().ask(&format!("token {}", self.amount.tokens))?;
        match answer.as_slice() {
            &[us, waits, bytes] => Ok(Token { us, waits, bytes }),
            other => Err(Failure::new(format!("a token took {other:?}"), "report this")),
        }
    }

    /// Microseconds of these round trips, one after the other: the median of as many as there are tokens.
    fn trips_us(&self, trips: &[(usize, usize)]) -> Result<f64, Failure> {
        let mut samples = super::rounds::Samples::default();
        for _ in 0..self.amount.tokens {
            samples.add(self.link.borrow_mut().trips(trips)? / 1e3);
        }
        samples.median().ok_or_else(|| Failure::new("no round trip was made", "report this"))
    }
}

/// The calls of a token that would wait if each were forwarded, in their order: bytes of the request and of its answer.
fn calls_that_wait() -> Vec<(usize, usize)> {
    let synchronise = (HANDLE_FIELDS_BYTES, CODE_BYTES);
    let mut calls = Vec::new();
    for bytes in UPLOADS {
        calls.extend([synchronise, (COPY_FIELDS_BYTES + bytes, CODE_BYTES), synchronise]);
    }
    // The graph, and what comes back.
    calls.push((2 * HANDLE_FIELDS_BYTES, CODE_BYTES));
    calls.push((COPY_FIELDS_BYTES, CODE_BYTES + LOGITS_BYTES));
    calls.extend([synchronise; SYNCHRONISING - 2 * UPLOADS.len()]);
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_for_call_twenty_two_of_a_token_wait() {
        let calls = calls_that_wait();
        assert_eq!(calls.len(), 22);
        assert_eq!(
            calls.iter().filter(|call| **call == (HANDLE_FIELDS_BYTES, CODE_BYTES)).count(),
            SYNCHRONISING
        );
        assert_eq!(calls.iter().map(|(_, back)| back).sum::<usize>(), LOGITS_BYTES + 22 * CODE_BYTES);
    }
}
