//! The same question to the product: threads of one program that ask through one [`Pool`], while every fifth request takes a lock of another rack.

use super::QUANTILES;
use crate::bench::Setting;
use crate::bench::case::row;
use crate::bench::ground::{BenchNode, Ground, NodePlan};
use crate::bench::report::{Better, Row};
use crate::bench::rounds::Samples;
use crate::failure::Failure;
use hinterland_pool::{Pool, RingChoice};
use hinterland_proto::control::{AllocationKind, LockMode};
use hinterland_types::{GlobalAddress, ObjectName};
use std::thread;
use std::time::Instant;

/// Threads that ask.
const THREADS: u64 = 4;
/// How far their locks are from each other.
const LOCK_BYTES: u64 = 4096;
/// Bytes of the region that the locks are in.
const REGION_BYTES: u64 = 2 << 20;
/// What each node lends: its segment of 64 MiB, and the region.
const CAPACITY_BYTES: u64 = 80 << 20;
/// How long a lock that nobody else wants is waited for.
const WAIT_MS: u32 = 10_000;

/// What the threads of one program do.
#[derive(Clone, Copy)]
struct Way {
    rings: RingChoice,
    /// Whether every fifth request leaves.
    leaves: bool,
}

const WAYS: [Way; 4] = [
    Way { rings: RingChoice::Two, leaves: true },
    Way { rings: RingChoice::Two, leaves: false },
    Way { rings: RingChoice::Single, leaves: true },
    Way { rings: RingChoice::Socket, leaves: true },
];

/// How long requests took, in nanoseconds, ascending.
#[derive(Default)]
struct Times {
    stay: Vec<u64>,
    leave: Vec<u64>,
}

/// Rows of the product.
///
/// # Errors
/// [`Failure`] if nodes cannot be started or do not answer.
pub(super) fn rows(setting: &Setting) -> Result<Vec<Row>, Failure> {
    let ground = Ground::new(setting, 2 * CAPACITY_BYTES)?;
    let more = ["--hot", "off"];
    let plan =
        NodePlan { capacity_bytes: CAPACITY_BYTES, cache_bytes: 4 << 20, more: &more, ..NodePlan::default() };
    let home = ground.node(NodePlan { name: "home", ..plan })?;
    let near = ground.node(NodePlan { name: "near", join: Some(&home.address), ..plan })?;
    let name = ObjectName::parse("bench/rings").map_err(|error| Failure::of(&error))?;
    let first = home.pool()?.create_region(&name, REGION_BYTES, None)?.address.unwrap_or_default();
    let count = if setting.quick { 500 } else { 10_000 };
    let mut stay = vec![vec![Samples::default(); WAYS.len()]; QUANTILES.len()];
    let mut leave = vec![Samples::default(); WAYS.len()];
    for round in 0..=setting.rounds {
        (setting.say)(&format!("rings, threads of a program: round {round} of {}", setting.rounds));
        for (place, way) in WAYS.into_iter().enumerate() {
            let times = way.run(&near, first, count)?;
            // The first round settles what is learned.
            if round == 0 {
                continue;
            }
            for (quantile, (_, share)) in stay.iter_mut().zip(QUANTILES) {
                quantile[place].add(at(&times.stay, share));
            }
            leave[place].add(at(&times.leave, 0.5));
        }
    }
    let mut rows = Vec::new();
    for ([two, none, single, socket], (name, _)) in stay.into_iter().filter_map(four).zip(QUANTILES) {
        let names = [Some("no request leaves".to_owned()), Some("the socket".to_owned())];
        let samples = [two, none, socket.clone()];
        rows.push(row(format!("pool-{name}"), "us", Better::Lower, &samples, names, None));
        let names = [None, Some("the socket".to_owned())];
        rows.push(row(format!("pool-single-{name}"), "us", Better::Lower, &[single, socket], names, None));
    }
    let names = [None, Some("the socket".to_owned())];
    if let Some([two, _, _, socket]) = four(leave) {
        rows.push(row("pool-remote-p50", "us", Better::Lower, &[two, socket], names, None));
    }
    Ok(rows)
}

fn four(samples: Vec<Samples>) -> Option<[Samples; 4]> {
    samples.try_into().ok()
}

/// Microseconds at a place of a distribution; no number if there is none.
fn at(times: &[u64], share: f64) -> f64 {
    let place = (times.len().saturating_sub(1) as f64 * share) as usize;
    times.get(place).map_or(f64::NAN, |time| *time as f64 / 1e3)
}

impl Way {
    /// Lets each thread ask `count` times.
    fn run(self, near: &BenchNode, first: GlobalAddress, count: u64) -> Result<Times, Failure> {
        let pool = &Pool::connect_over(Some(&near.socket), self.rings)?;
        let all = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|number| {
                    let lock = first.checked_add(number * LOCK_BYTES).unwrap_or_default();
                    scope.spawn(move || self.ask(pool, lock, count))
                })
                .collect();
            let times = threads.into_iter().map(|thread| thread.join());
            times.collect::<Result<Vec<_>, _>>()
        });
        let lost = |_| Failure::new("a thread of the bench panicked", "report this");
        let mut times = Times::default();
        for part in all.map_err(lost)? {
            let part = part?;
            times.stay.extend(part.stay);
            times.leave.extend(part.leave);
        }
        times.stay.sort_unstable();
        times.leave.sort_unstable();
        Ok(times)
    }

    fn ask(self, pool: &Pool, lock: GlobalAddress, count: u64) -> Result<Times, Failure> {
        let mut times = Times::default();
        // The first ones open the rings and learn how long to wait awake.
        let settling = count / 10;
        for number in 1..=count + settling {
            let counts = number > settling;
            let begin = Instant::now();
            let took = |begin: Instant| u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
            if self.leaves && super::leaves(number) {
                pool.lock(lock, LockMode::Write, WAIT_MS)?;
                times.leave.extend(counts.then(|| took(begin)));
                pool.unlock(lock)?;
            } else {
                let (piece, _) = pool.allocate(64, AllocationKind::Session)?;
                times.stay.extend(counts.then(|| took(begin)));
                pool.free(piece)?;
            }
        }
        Ok(times)
    }
}
