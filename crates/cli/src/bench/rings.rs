//! `rings`: how long requests that stay in the rack take while every fifth leaves it, on one ring and on two.

mod product;

use super::case::row;
use super::report::{Better, Row};
use super::rounds::Samples;
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_fabric::shm::{FAR_DATA_BYTES, FAR_SLOTS, FarServer, ShmEndpoint, ShmServer, serve_until};
use hinterland_fabric::{Endpoint, Queue, Service, Slice};
use hinterland_os::{MapOptions, MemoryFile};
use hinterland_proto::{ErrorCode, PeerHello, Refusal, RefusalCode, RemoteError};
use hinterland_ring::two_layer::{Asker, Layers};
use hinterland_types::{ByteRange, Handle, NodeId, Rights, SessionId};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a request that leaves the rack waits for.
const AWAY: Duration = Duration::from_micros(100);
/// Of so many requests one leaves.
const ONE_IN: u64 = 5;
/// Requests that may be away at once, and threads of the node that wait for them.
const AWAY_MAX: usize = 8;
/// How long an answer may take.
const LONG: Duration = Duration::from_secs(10);
/// Messages: the first byte says whether the request leaves.
const STAYS: [u8; 8] = [0; 8];
const LEAVES: [u8; 8] = [1; 8];
/// Parts of a distribution that are shown, with their names.
const QUANTILES: [(&str, f64); 3] = [("local-p50", 0.5), ("local-p99", 0.99), ("local-p999", 0.999)];

/// The bench.
pub struct Rings;

impl Bench for Rings {
    fn name(&self) -> &'static str {
        "rings"
    }

    fn subject(&self) -> &'static str {
        "requests that stay in the rack while every fifth leaves it for 100 us"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let count = if setting.quick { 2_000 } else { 50_000 };
        let mut samples = vec![vec![Samples::default(); 3]; QUANTILES.len()];
        for round in 0..=setting.rounds {
            (setting.say)(&format!("rings: round {round} of {}", setting.rounds));
            for (place, way) in [Way::TwoLayers, Way::StaysOnly, Way::Single].into_iter().enumerate() {
                let mut times = Scene::start(way)?.run(count)?;
                times.sort_unstable();
                for (quantile, (_, share)) in samples.iter_mut().zip(QUANTILES) {
                    let time = times[((times.len() - 1) as f64 * share) as usize];
                    // The first round settles what is learned.
                    if round > 0 {
                        quantile[place].add(time as f64 / 1e3);
                    }
                }
            }
        }
        let names = || [Some("no request leaves".to_owned()), Some("a single ring".to_owned())];
        let rows = samples.iter().zip(QUANTILES);
        let rows = rows.map(|(samples, (name, _))| row(name, "us", Better::Lower, samples, names(), None));
        let mut rows: Vec<Row> = rows.collect();
        rows.extend(product::rows(setting)?);
        Ok(rows)
    }
}

/// Whether the request of this number leaves: spread evenly but in no fixed order (a multiplicative hash).
const fn leaves(number: u64) -> bool {
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).is_multiple_of(ONE_IN)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Those that leave go over a ring of their own.
    TwoLayers,
    /// None leaves.
    StaysOnly,
    /// All go over one.
    Single,
}

/// A node's rings and the threads that serve them, in this process.
struct Scene {
    way: Way,
    near: ShmEndpoint,
    /// Posts what leaves on the near ring.
    posts: Box<dyn Queue>,
    far: Asker,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Scene {
    fn start(way: Way) -> Result<Self, Failure> {
        let ended = Arc::new(AtomicBool::new(false));
        let (near_server, near) = ShmServer::new()?;
        let (far_server, far) = FarServer::new()?;
        let mut threads = Vec::new();
        let flag = Arc::clone(&ended);
        threads.push(std::thread::spawn(move || {
            let until = || flag.load(Ordering::Acquire);
            serve_until(near_server, &Away, SessionId(1), &mut |body| *body, until, |_| {});
        }));
        let far_server = Arc::new(far_server);
        for _ in 0..if way == Way::TwoLayers { AWAY_MAX } else { 0 } {
            let (server, flag) = (Arc::clone(&far_server), Arc::clone(&ended));
            threads.push(std::thread::spawn(move || {
                server.serve_until(&Away, SessionId(1), || flag.load(Ordering::Acquire), |_| {});
            }));
        }
        let near = ShmEndpoint::open(NodeId(1), near)?;
        let posts = near.queue(0)?;
        Ok(Self { way, near, posts, far: open_far(far)?, ended, threads })
    }

    /// Asks until `count` requests that stay were answered; returns how long each took, in nanoseconds.
    fn run(mut self, count: usize) -> Result<Vec<u64>, Failure> {
        let mut times = Vec::with_capacity(count);
        let (mut number, mut body) = (0u64, Vec::new());
        while times.len() < count {
            number += 1;
            match (self.way, leaves(number)) {
                (Way::TwoLayers, true) => self.post_far(&mut body)?,
                (Way::Single, true) => self.post_near(number)?,
                _ => {
                    let begin = Instant::now();
                    self.near.call_within(&STAYS, LONG)?;
                    times.push(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
                }
            }
        }
        Ok(times)
    }

    fn post_far(&mut self, body: &mut Vec<u8>) -> Result<(), Failure> {
        let broken = |error| Failure::of(&error);
        while self.far.poll(body).map_err(broken)?.is_some() {}
        while self.far.outstanding() as usize >= AWAY_MAX {
            self.far.wait(LONG).map_err(broken)?;
            while self.far.poll(body).map_err(broken)?.is_some() {}
        }
        self.far.submit(&LEAVES, 64).map_err(broken)?;
        self.far.flush();
        Ok(())
    }

    fn post_near(&mut self, number: u64) -> Result<(), Failure> {
        let mut done = Vec::new();
        self.posts.poll(&mut done, Duration::ZERO)?;
        while self.posts.in_flight() >= AWAY_MAX {
            self.posts.poll(&mut done, LONG)?;
        }
        self.posts.post_call(number, &LEAVES)?;
        Ok(())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // One that panicked has said so itself.
            drop(thread.join());
        }
    }
}

fn open_far(descriptor: OwnedFd) -> Result<Asker, Failure> {
    let file = MemoryFile::from_descriptor(descriptor)?;
    let bytes = usize::try_from(file.len()).unwrap_or(0);
    let mapping = file.map(0, bytes, MapOptions { write: true, ..MapOptions::default() })?;
    let memory = Arc::new(mapping).slice();
    let layers = Layers::attach(&memory, FAR_SLOTS, FAR_DATA_BYTES).map_err(|error| Failure::of(&error))?;
    Ok(Asker::new(layers))
}

/// Answers at once what stays, and after [`AWAY`] what leaves.
struct Away;

impl Service for Away {
    fn opened(&self, _: &PeerHello) -> Result<SessionId, Refusal> {
        Err(Refusal::new(RefusalCode::Denied, "a bench has no peers"))
    }

    fn closed(&self, _: SessionId) {}

    fn resolve(&self, _: SessionId, _: Handle, _: ByteRange, _: Rights) -> Result<Slice, RemoteError> {
        Err(RemoteError::new(ErrorCode::UNKNOWN_HANDLE, "a bench of calls has no memory"))
    }

    fn call(&self, _: SessionId, body: &[u8]) -> Result<Vec<u8>, RemoteError> {
        if body == LEAVES {
            std::thread::sleep(AWAY);
        }
        Ok(body.to_vec())
    }
}
