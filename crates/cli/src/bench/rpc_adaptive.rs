//! `rpc-adaptive`: bytes that a service finds, fetched over TCP in each of three ways, and in the way that is chosen; and the same for
//! objects of another rack.

mod first_read;

use super::case::row;
use super::report::{Better, Row};
use super::rounds::Samples;
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_fabric::adaptive::{Adaptive, Way};
use hinterland_fabric::tcp::{ClientOptions, Server, ServerOptions, TcpEndpoint};
use hinterland_fabric::{Endpoint, MemoryService, Slice};
use hinterland_types::Rights;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Instant;

/// Sizes with their names.
const SIZES: [(&str, usize); 6] = [
    ("64B", 64),
    ("512B", 512),
    ("4KiB", 4 << 10),
    ("32KiB", 32 << 10),
    ("256KiB", 256 << 10),
    ("1MiB", 1 << 20),
];
/// The forced ways, and the choice, which comes last.
const WAYS: [(&str, Option<Way>); 4] = [
    ("message", Some(Way::Message)),
    ("read", Some(Way::Read)),
    ("direct", Some(Way::Direct)),
    ("adaptive", None),
];

/// The bench.
pub struct RpcAdaptive;

impl Bench for RpcAdaptive {
    fn name(&self) -> &'static str {
        "rpc-adaptive"
    }

    fn subject(&self) -> &'static str {
        "64 B to 1 MiB of another node: with the answer, read, placed, and as chosen; and objects"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let memory = Slice::copied(&vec![7; 1 << 20]);
        let service = Arc::new(MemoryService::new(memory, Rights::READ));
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| Failure::of(&error))?;
        let server = Server::start(listener, service, ServerOptions::default())?;
        let connect = || -> Result<Arc<dyn Endpoint>, Failure> {
            Ok(Arc::new(TcpEndpoint::connect(server.address(), ClientOptions::default())?))
        };
        let endpoint = connect()?;
        let ways = WAYS
            .into_iter()
            .map(|(name, way)| Ok((name, Adaptive::calibrated(Arc::clone(&endpoint), way, b"ping")?)))
            .collect::<Result<Vec<_>, Failure>>()?;
        if let Some(found) = ways[WAYS.len() - 1].1.calibration() {
            let round_trip_us = found.round_trip_ns as f64 / 1e3;
            (setting.say)(&format!(
                "rpc-adaptive: a round trip of {round_trip_us:.1} us, guess {} bytes",
                found.guess_bytes
            ));
        }
        let fetchers: Vec<Fetcher<'_>> = ways.iter().map(|(name, adaptive)| bare(name, adaptive)).collect();
        let count = if setting.quick { 48 } else { 480 };
        let mut rows = Vec::new();
        for size in SIZES {
            rows.extend(measure("", size, &fetchers, setting.rounds, count)?);
        }
        rows.extend(first_read::rows(setting, count)?);
        Ok(rows)
    }
}

/// One way of fetching.
struct Fetcher<'a> {
    name: &'static str,
    /// What a fetch of so many bytes takes.
    fetch_us: Box<dyn Fn(usize) -> Result<f64, Failure> + 'a>,
    /// Round trips of all fetches so far.
    round_trips: Box<dyn Fn() -> u64 + 'a>,
}

/// The rows of one size: each forced way, then the choice beside the best of them, and what there is behind it. The ways are taken in turn
/// fetch by fetch, in every order, because a socket's thread that has gone to sleep makes the next fetch slow, whichever it is.
fn measure(
    prefix: &str,
    (size_name, size): (&str, usize),
    ways: &[Fetcher<'_>],
    rounds: usize,
    count: u64,
) -> Result<Vec<Row>, Failure> {
    let mut samples = vec![Samples::default(); ways.len()];
    let mut asked = vec![0.0; ways.len()];
    for round in 0..=rounds {
        let before: Vec<_> = ways.iter().map(|way| (way.round_trips)()).collect();
        let mut times = vec![Samples::default(); ways.len()];
        for fetch in 0..count {
            for place in order(fetch, ways.len()) {
                times[place].add((ways[place].fetch_us)(size)?);
            }
        }
        for (place, way) in ways.iter().enumerate() {
            asked[place] = ((way.round_trips)() - before[place]) as f64 / count as f64;
            if let Some(median) = times[place].median().filter(|_| round > 0) {
                samples[place].add(median);
            }
        }
    }
    let forced = samples.iter().take(WAYS.len() - 1).filter_map(Samples::median);
    let best = forced.reduce(f64::min);
    let rows = ways.iter().zip(&samples).zip(asked).map(|((way, samples), asked)| {
        let words = Some(format!("round trips each: {asked:.2}"));
        let taken = row(
            format!("{prefix}{}-{size_name}", way.name),
            "us",
            Better::Lower,
            std::slice::from_ref(samples),
            [None, None],
            words,
        );
        let is_choice = way.name == "adaptive";
        Row {
            peer: best.filter(|_| is_choice),
            peer_name: is_choice.then(|| "the best of the forced ways".to_owned()),
            ..taken
        }
    });
    Ok(rows.collect())
}

/// The places in the order of this turn; 24 turns have every order of four.
fn order(turn: u64, count: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..count).collect();
    let mut turn = turn as usize;
    let mut order = Vec::new();
    while !left.is_empty() {
        order.push(left.remove(turn % left.len()));
        turn /= left.len() + 1;
    }
    order
}

/// Fetches over a bare fabric whose addresses are not learned.
fn bare<'a>(name: &'static str, adaptive: &'a Adaptive) -> Fetcher<'a> {
    let fetch = |size: usize| {
        let question = (size as u64).to_le_bytes();
        let mut into = vec![0; size];
        let begin = Instant::now();
        adaptive.fetch_into(&question, &mut into)?;
        let time_us = begin.elapsed().as_secs_f64() * 1e6;
        adaptive.forget(&question);
        checked(&into, time_us)
    };
    let round_trips = || {
        let counts = adaptive.counts();
        counts.questions + counts.reads
    };
    Fetcher { name, fetch_us: Box::new(fetch), round_trips: Box::new(round_trips) }
}

/// What it took, if the bytes are right.
fn checked(bytes: &[u8], time_us: f64) -> Result<f64, Failure> {
    if bytes.iter().all(|&byte| byte == 7) {
        Ok(time_us)
    } else {
        Err(Failure::new("fetched bytes are wrong", "report this"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_comes_once_in_as_many_turns_as_there_are() {
        for (count, turns, sum) in [(4, 24, 6), (5, 120, 10)] {
            let orders: std::collections::HashSet<_> = (0..turns).map(|turn| order(turn, count)).collect();
            assert_eq!(orders.len() as u64, turns);
            assert!(orders.iter().all(|order| order.iter().sum::<usize>() == sum));
        }
    }
}
