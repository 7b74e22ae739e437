//! `hot`: a rack that uses pages of another one, with and without moves of hot pages.

use super::case::row;
use super::ground::{BenchNode, Ground, NodePlan};
use super::report::{Better, Row};
use super::rounds::{Way, in_turn};
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_os::affinity;
use hinterland_pool::Pool;
use hinterland_types::{GlobalAddress, ObjectName};
use std::time::{Duration, Instant};

const PAGE: u64 = 2 << 20;
/// Bytes of an access; every other one is a write.
const ACCESS_BYTES: usize = 64;
/// How skewed the use of pages is.
const ZIPF: f64 = 0.99;
/// Rounds at the most: with six thresholds one takes 55 s.
const ROUNDS_MAX: usize = 3;
const LIMIT: &str = "all pages in the own rack";
const PEER: &str = "the same without moves";
/// Accesses between two looks at the clock.
const CHUNK: usize = 256;

/// The bench.
pub struct Hot;

/// Two racks; the region lies in the one, the program runs in the other.
struct Scene {
    pool: Pool,
    first: GlobalAddress,
    // They end in this order: the home hosts the directory.
    _user: BenchNode,
    _home: BenchNode,
}

/// Which pages are used.
struct Pages {
    /// Sums of the shares of pages, the most used first.
    sums: Vec<f64>,
    /// Which page has which rank.
    order: Vec<u64>,
    random: u64,
}

impl Bench for Hot {
    fn name(&self) -> &'static str {
        "hot"
    }

    fn subject(&self) -> &'static str {
        "pages of another rack that move to the rack that uses them, zipfian and uniform"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        // In the first second pages move and each costs what a thousand accesses cost; what it was worth is seen after it.
        let (pages, time) =
            if setting.quick { (16, Duration::from_millis(400)) } else { (64, Duration::from_secs(3)) };
        let thresholds: &[u32] = if setting.quick { &[1, 4] } else { &[1, 2, 3, 4, 6, 8] };
        let rounds = if setting.quick { 1 } else { setting.rounds.min(ROUNDS_MAX) };
        // The program, both nodes and their moves on one processor: a round trip then costs two switches, every time. On
        // several it costs that or the waking of an idle processor, several times as much, as the scheduler likes.
        if let Some(core) = affinity::allowed_cores().first() {
            affinity::pin_thread(*core).map_err(|error| Failure::of(&error))?;
        }
        let ground = Ground::new(setting, 2 * pages * PAGE)?;
        let mut rows = Vec::new();
        for (name, skew) in [("zipfian", Some(ZIPF)), ("uniform", None)] {
            // Each figure has nodes of its own: what moved in one must not be there in the next.
            let figure = |hot: &str, threshold: u32, near: bool| {
                (setting.say)(&format!("hot: {name}, moves {hot}, threshold {threshold}"));
                let scene = Scene::new(&ground, pages, hot, threshold, near)?;
                scene.rate(&mut Pages::new(pages, skew), time)
            };
            // Neither the limit nor the peer has a threshold: they are taken once a round, for all rows.
            let mut ways: Vec<Way<'_>> =
                vec![Box::new(|| figure("off", 1, true)), Box::new(|| figure("off", 1, false))];
            for threshold in thresholds {
                ways.push(Box::new(move || figure("on", *threshold, false)));
            }
            let samples = in_turn(rounds, &mut ways)?;
            for (threshold, ours) in thresholds.iter().zip(&samples[2..]) {
                let names = [LIMIT, PEER].map(|words| Some(words.to_owned()));
                let all = [ours.clone(), samples[0].clone(), samples[1].clone()];
                let row =
                    row(format!("{name}-hp{threshold}"), "M accesses/s", Better::Higher, &all, names, None);
                rows.push(row);
            }
        }
        Ok(rows)
    }
}

impl Scene {
    fn new(ground: &Ground, pages: u64, hot: &str, threshold: u32, near: bool) -> Result<Self, Failure> {
        let threshold = threshold.to_string();
        let more = ["--hot", hot, "--hot-threshold", &threshold];
        let plan = |name, join, capacity_bytes| NodePlan {
            name,
            join,
            capacity_bytes,
            cache_bytes: 4 << 20,
            more: &more,
            end: None,
        };
        let home = ground.node(plan("hot-home", None, pages * PAGE))?;
        // The user's rack has room for half of the pages, as a pool that is shared has.
        let room = if near { pages * PAGE } else { pages * PAGE / 2 };
        let user = ground.node(plan("hot-user", Some(&home.address), room))?;
        let pool = user.pool()?;
        let name = ObjectName::parse("bench/hot").map_err(|error| Failure::of(&error))?;
        let maker = if near { user.pool()? } else { home.pool()? };
        let first = maker.create_region(&name, pages * PAGE, None)?.address.unwrap_or_default();
        Ok(Self { pool, first, _user: user, _home: home })
    }

    /// Accesses a microsecond, over all of the time.
    fn rate(&self, pages: &mut Pages, time: Duration) -> Result<f64, Failure> {
        let mut buffer = [7; ACCESS_BYTES];
        let begin = Instant::now();
        let mut done = 0u64;
        while begin.elapsed() < time {
            for number in 0..CHUNK {
                let address = self.first.checked_add(pages.next()).unwrap_or_default();
                if number % 2 == 0 {
                    self.pool.read(address, &mut buffer)?;
                } else {
                    self.pool.write(address, &buffer)?;
                }
            }
            done += CHUNK as u64;
        }
        Ok(done as f64 / begin.elapsed().as_secs_f64() / 1e6)
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let Ok(name) = ObjectName::parse("bench/hot") else { return };
        // Its nodes go, too.
        let _ = self.pool.remove(&name);
    }
}

impl Pages {
    fn new(pages: u64, skew: Option<f64>) -> Self {
        let share = |rank: u64| skew.map_or(1.0, |skew| 1.0 / (rank as f64 + 1.0).powf(skew));
        let mut sum = 0.0;
        let mut sums: Vec<f64> = (0..pages)
            .map(|rank| {
                sum += share(rank);
                sum
            })
            .collect();
        sums.iter_mut().for_each(|part| *part /= sum);
        // An odd factor visits every page of a power of two once.
        let order = (0..pages).map(|rank| rank * 37 % pages).collect();
        Self { sums, order, random: 88_172_645_463_325_252 }
    }

    /// The offset of the next access.
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // 53 bits: what a float has.
        let share = (self.random >> 11) as f64 / (1u64 << 53) as f64;
        let rank = self.sums.partition_point(|sum| *sum <= share).min(self.order.len() - 1);
        let line = (self.random & 0x7fff) * ACCESS_BYTES as u64;
        self.order[rank] * PAGE + line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skewed_pages_are_used_by_rank_and_uniform_ones_alike() {
        for skew in [Some(ZIPF), None] {
            let mut pages = Pages::new(16, skew);
            let mut counts = [0u64; 16];
            (0..100_000).for_each(|_| counts[(pages.next() / PAGE) as usize] += 1);
            let most = counts.iter().max().copied().unwrap_or(0);
            let least = counts.iter().min().copied().unwrap_or(0);
            assert_eq!(most > 8 * least, skew.is_some(), "{counts:?}");
            assert!(least > 0);
        }
    }
}
