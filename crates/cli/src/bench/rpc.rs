//! `rpc`: 64-byte requests to the node over its ring, beside a bare ping-pong in shared memory and Redis.

use super::case::Case;
use super::ground::{Ground, NodePlan};
use super::redis::Redis;
use super::report::{Better, Row};
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_os::{MapOptions, MemoryFile, affinity};
use hinterland_pool::Pool;
use hinterland_proto::control::{Reply, Request};
use hinterland_proto::ring_message::{RingRequest, RingResponse};
use hinterland_ring::{Requester, RingError, Session, WakeBy};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests that are out at once.
const DEPTH: u32 = 128;
/// How long an answer may take.
const LONG: Duration = Duration::from_secs(10);
/// Round trips that the learned spinning needs before it has learned.
const SETTLING: u64 = 2_000;

/// The bench.
pub struct Rpc;

impl Bench for Rpc {
    fn name(&self) -> &'static str {
        "rpc"
    }

    fn subject(&self) -> &'static str {
        "64-byte requests to the node, one at a time and 128 at once"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let ground = Ground::new(setting, 0)?;
        let node = ground.node(NodePlan {
            name: "bench",
            capacity_bytes: 256 << 20,
            cache_bytes: 64 << 20,
            ..NodePlan::default()
        })?;
        let pool = node.pool()?;
        let machine = RefCell::new(ground.machine()?);
        let redis = Redis::start(&ground);
        let connection = redis.as_ref().map_err(Clone::clone).and_then(Redis::over_unix).map(RefCell::new);
        let (single, deep) = if setting.quick { (20_000, 200_000) } else { (100_000, 2_000_000) };
        affinity::pin_thread(affinity::allowed_cores()[0])?;
        let ring = RefCell::new(open_ring(&pool)?);
        let round_trip =
            Case::new("rtt-64B", "ns", Better::Lower, || round_trip_ns(&mut ring.borrow_mut(), single))
                .limit("bare ping-pong of one cache line", || {
                    machine.borrow_mut().figure(&format!("pingpong {single} 1"))
                })
                .peer_or_why(
                    "Redis PING, unix socket",
                    connection.as_ref().map(|connection| || connection.borrow_mut().ping(5_000, 1)),
                );
        let depth = Case::new("depth128-64B", "M requests/s", Better::Higher, || {
            requests_per_second(&mut ring.borrow_mut(), deep).map(|rate| rate / 1e6)
        })
        .limit("bare cache lines, 128 at once", || {
            machine.borrow_mut().figure(&format!("pingpong {deep} {DEPTH}")).map(|ns| 1e3 / ns)
        })
        .peer_or_why(
            "Redis PING, 128 at once, unix socket",
            connection.as_ref().map(|connection| {
                || connection.borrow_mut().ping(100_000, DEPTH as usize).map(|ns| 1e3 / ns)
            }),
        );
        let rounds = setting.rounds;
        (setting.say)("rpc: one request at a time");
        let first = round_trip.measure(rounds);
        (setting.say)("rpc: 128 requests at once");
        Ok(vec![first, depth.measure(rounds)])
    }
}

/// The request ring of a session.
fn open_ring(pool: &Pool) -> Result<Requester, Failure> {
    let (reply, descriptors) = pool.session().call_with(&Request::OpenRing, &[])?;
    let (Reply::RingOpened { slots }, Some(descriptor)) = (&reply, descriptors.into_iter().next()) else {
        return Err(Failure::new(format!("the node answered {reply:?} in place of a ring"), "report this"));
    };
    let file = MemoryFile::from_descriptor(descriptor)?;
    let bytes = usize::try_from(file.len()).unwrap_or(0);
    let mapping = file.map(0, bytes, MapOptions { write: true, ..MapOptions::default() })?;
    let session = Session::attach(Arc::new(mapping).slice(), *slots).map_err(broken)?;
    Ok(Requester::new(session, WakeBy::Futex))
}

fn round_trip_ns(ring: &mut Requester, count: u64) -> Result<f64, Failure> {
    for number in 0..SETTLING {
        ping(ring, number)?;
    }
    let begin = Instant::now();
    for number in 0..count {
        ping(ring, number)?;
    }
    Ok(begin.elapsed().as_nanos() as f64 / count as f64)
}

#[inline]
fn ping(ring: &mut Requester, number: u64) -> Result<(), Failure> {
    let answer = ring.call(&RingRequest::Ping(number).to_body(), LONG).map_err(broken)?;
    check(&RingResponse::parse(&answer), number)
}

fn requests_per_second(ring: &mut Requester, count: u64) -> Result<f64, Failure> {
    let (mut submitted, mut answered) = (0, 0);
    let mut responses = Vec::with_capacity(DEPTH as usize);
    let begin = Instant::now();
    while answered < count {
        while submitted < count && ring.outstanding() < DEPTH {
            ring.submit(&RingRequest::Ping(submitted).to_body()).map_err(broken)?;
            submitted += 1;
        }
        if !ring.wait(LONG).map_err(broken)? {
            return Err(Failure::new("the node answers no more", "see its log"));
        }
        responses.clear();
        answered += ring.poll_all(&mut responses).map_err(broken)? as u64;
    }
    Ok(count as f64 / begin.elapsed().as_secs_f64())
}

fn check(response: &RingResponse, number: u64) -> Result<(), Failure> {
    if response.code == 0 && response.value == number {
        return Ok(());
    }
    Err(Failure::new(format!("the node answered {response:?} to ping {number}"), "report this"))
}

fn broken(error: RingError) -> Failure {
    Failure::of(&error)
}
