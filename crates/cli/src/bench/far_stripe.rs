//! `far-stripe`: back ends of far memory, each alone and several together, through the same code as a run, with several threads.

use super::case::row;
use super::ground::{BenchNode, Ground, NodePlan};
use super::report::{Better, Row};
use super::rounds::{Samples, Way, in_turn};
use super::{Bench, Setting};
use crate::failure::Failure;
use hinterland_far::store::{Copy, Disk, Packed, Pooled, Store, Stores};
use hinterland_types::RackName;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A unit, as a run has them unless it is asked for others.
const UNIT_BYTES: usize = 64 << 10;
/// Threads that put and get: enough to keep a disk busy.
const THREADS: usize = 8;
/// Contents of each thread: more than the caches of the processors hold.
const WINDOW: usize = 256;
const CAPACITY_BYTES: u64 = 768 << 20;
const WARM_TIME: Duration = Duration::from_millis(300);
/// Ticks of processor time in a second, as the kernel tells them to everybody.
const TICKS: f64 = 100.0;
const LIMIT: &str = "the sum of each alone, or what the processors can do if that is less";
const PEER: &str = "the best of them alone";

/// Back ends that are measured alone.
const ALONE: [&str; 4] = ["pool", "rack", "ssd", "lz4"];
/// And together.
const TOGETHER: [&[usize]; 5] = [&[0, 2], &[1, 2], &[2, 3], &[0, 1, 2], &[1, 2, 3]];

/// The bench.
pub struct FarStripe;

impl Bench for FarStripe {
    fn name(&self) -> &'static str {
        "far-stripe"
    }

    fn subject(&self) -> &'static str {
        "back ends of far memory, each alone and several together, content put, read back and freed"
    }

    fn run(&self, setting: &Setting) -> Result<Vec<Row>, Failure> {
        let time = Duration::from_millis(if setting.quick { 200 } else { 1000 });
        let ground = Ground::new(setting, 0)?;
        let plan = |name, join| NodePlan {
            name,
            join,
            capacity_bytes: CAPACITY_BYTES,
            cache_bytes: 4 << 20,
            ..NodePlan::default()
        };
        let home = ground.node(plan("far-east", None))?;
        let own = ground.node(plan("far-west", Some(&home.address)))?;
        let scene = Scene { folder: ground.folder(), own: &own, home: &home, time };
        // Processor seconds for each byte, of each alone and of each set.
        let costs = RefCell::new([const { Vec::new() }; ALONE.len() + TOGETHER.len()]);
        let (scene, costs) = (&scene, &costs);
        let mut ways: Vec<Way<'_>> = Vec::new();
        for (index, name) in ALONE.iter().enumerate() {
            ways.push(Box::new(move || {
                (setting.say)(&format!("far-stripe: {name}"));
                let (rate, cost) = scene.figure(&[index])?;
                costs.borrow_mut()[index].push(cost);
                Ok(rate)
            }));
        }
        for (index, together) in TOGETHER.iter().enumerate() {
            ways.push(Box::new(move || {
                (setting.say)(&format!("far-stripe: {}", words(together)));
                let (rate, cost) = scene.figure(together)?;
                costs.borrow_mut()[ALONE.len() + index].push(cost);
                Ok(rate)
            }));
        }
        in_turn(1, &mut ways)?;
        costs.borrow_mut().iter_mut().for_each(Vec::clear);
        let samples = in_turn(setting.rounds, &mut ways)?;
        drop(ways);
        let costs = costs.borrow().clone().map(|costs| median(&costs));
        Ok(rows(&samples, &costs))
    }
}

/// What is measured on.
struct Scene<'bench> {
    folder: &'bench Path,
    own: &'bench BenchNode,
    home: &'bench BenchNode,
    time: Duration,
}

impl Scene<'_> {
    fn open(&self, index: usize) -> Result<Box<dyn Store>, Failure> {
        let room = (4 * THREADS * WINDOW * UNIT_BYTES) as u64;
        let unit = UNIT_BYTES as u64;
        Ok(match ALONE[index] {
            "pool" => Box::new(Pooled::open(self.own.pool()?, None, room, unit)?),
            "rack" => {
                let rack = RackName::parse("far-east").map_err(|error| Failure::of(&error))?;
                Box::new(Pooled::open(self.own.pool()?, Some(rack), room, unit)?)
            }
            "ssd" => Box::new(Disk::open(self.folder, room, unit).map_err(|error| Failure::of(&error))?),
            _ => Box::new(Packed::new(room)),
        })
    }

    /// Gigabytes a second that went in and came back, and processor seconds for each of these bytes.
    fn figure(&self, together: &[usize]) -> Result<(f64, f64), Failure> {
        let stores = Arc::new(Stores::new(Vec::new(), 1));
        for index in together {
            stores.add(self.open(*index)?).map_err(|error| Failure::of(&error))?;
        }
        let processes = [std::process::id(), self.own.process(), self.home.process()];
        let ticks = || processes.iter().map(|process| ticks_of(*process)).sum::<f64>();
        let (mut before, mut bytes, mut seconds) = (0.0, 0, 0.0);
        let mut windows: Vec<Thread> = (0..THREADS).map(Thread::new).collect();
        for time in [WARM_TIME, self.time] {
            before = ticks();
            let begun = Instant::now();
            let moved = std::thread::scope(|scope| {
                let run = |thread| {
                    let stores = &stores;
                    scope.spawn(move || Thread::run(thread, stores, begun + time))
                };
                let running: Vec<_> = windows.iter_mut().map(run).collect();
                running.into_iter().map(|thread| thread.join().unwrap_or(Ok(0))).sum::<Result<u64, Failure>>()
            });
            seconds = begun.elapsed().as_secs_f64();
            bytes = moved?;
        }
        let used = (ticks() - before) / TICKS;
        Ok((bytes as f64 / seconds / 1e9, used / (bytes as f64).max(1.0)))
    }
}

/// One thread's content.
struct Thread {
    content: Vec<u8>,
    kept: VecDeque<Copy>,
    number: u64,
}

impl Thread {
    fn new(number: usize) -> Self {
        let mut state = 88_172_645_463_325_252u64.wrapping_mul(number as u64 * 2 + 1);
        let mut content = vec![7; UNIT_BYTES];
        // Half of it compresses, as in many programs.
        for part in content.chunks_mut(16) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            part[..8].copy_from_slice(&(state ^ state >> 29).to_le_bytes());
        }
        Self { content, kept: VecDeque::new(), number: (number as u64) << 32 }
    }

    /// Puts one, reads the oldest back and frees it, over and over. Returns the bytes of both.
    fn run(&mut self, stores: &Arc<Stores>, end: Instant) -> Result<u64, Failure> {
        let mut back = vec![0; UNIT_BYTES];
        let mut moved = 0;
        while Instant::now() < end {
            self.number += 1;
            self.content[..8].copy_from_slice(&self.number.to_le_bytes());
            let (copy, refusal) = stores.put(&self.content);
            if let Some(refusal) = refusal {
                return Err(Failure::of(&refusal));
            }
            self.kept.push_back(copy);
            moved += UNIT_BYTES as u64;
            if self.kept.len() > WINDOW
                && let Some(oldest) = self.kept.pop_front()
            {
                // What comes back is compared with the checksum of what went in.
                oldest.read(&mut back).map_err(|error| Failure::of(&error))?;
                moved += UNIT_BYTES as u64;
            }
        }
        Ok(moved)
    }
}

/// Processor time of a process, its kernel's included.
fn ticks_of(process: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let words: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let number = |index: usize| words.get(index).and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0);
    number(11) + number(12)
}

fn median(values: &[f64]) -> f64 {
    let mut samples = Samples::default();
    values.iter().for_each(|value| samples.add(*value));
    samples.median().unwrap_or(0.0)
}

fn words(together: &[usize]) -> String {
    together.iter().map(|index| ALONE[*index]).collect::<Vec<_>>().join("+")
}

/// Each alone, and each set with the sum of its members and what the processors allow.
fn rows(samples: &[Samples], costs: &[f64; ALONE.len() + TOGETHER.len()]) -> Vec<Row> {
    let cpus = std::thread::available_parallelism().map_or(1.0, |cpus| cpus.get() as f64);
    let (alone, together) = samples.split_at(ALONE.len());
    let (costs, costs_together) = costs.split_at(ALONE.len());
    let mut rows = Vec::new();
    for ((name, samples), cost) in ALONE.iter().zip(alone).zip(costs) {
        let why = format!(
            "the {cpus} processors could do {:.2} GB/s of it: {:.3} ns of processor time for each byte",
            cpus / cost / 1e9,
            cost * 1e9
        );
        let ours = std::slice::from_ref(samples);
        rows.push(row(*name, "GB/s", Better::Higher, ours, [None, None], Some(why)));
    }
    for ((members, samples), taken) in TOGETHER.iter().zip(together).zip(costs_together) {
        let rates: Vec<f64> = members.iter().map(|index| alone[*index].median().unwrap_or(0.0)).collect();
        let sum: f64 = rates.iter().sum();
        // In proportion to their speed, a byte costs so much.
        let cost: f64 = members.iter().zip(&rates).map(|(index, rate)| costs[*index] * rate / sum).sum();
        let processors = cpus / cost / 1e9;
        let best = rates.iter().copied().fold(0.0, f64::max);
        let single = |value| {
            let mut samples = Samples::default();
            samples.add(value);
            samples
        };
        let all = [samples.clone(), single(sum.min(processors)), single(best)];
        let busy = taken * 1e9 * samples.median().unwrap_or(0.0) / cpus;
        let why = format!(
            "the sum of each alone is {sum:.2} GB/s, the processors allow {processors:.2} GB/s at {:.3} ns for each byte; \
             it took {:.3} ns, and the processors were busy for {:.0} hundredths of the time",
            cost * 1e9,
            taken * 1e9,
            busy * 100.0
        );
        let names = [LIMIT, PEER].map(|words| Some(words.to_owned()));
        rows.push(row(words(members), "GB/s", Better::Higher, &all, names, Some(why)));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_sum_or_what_the_processors_allow() {
        let mut samples = vec![Samples::default(); ALONE.len() + TOGETHER.len()];
        for (index, samples) in samples.iter_mut().enumerate() {
            samples.add(index as f64 + 1.0);
        }
        let row = |cost: f64| rows(&samples, &[cost; ALONE.len() + TOGETHER.len()])[ALONE.len()].clone();
        assert_eq!((row(1e-15).limit, row(1e-15).peer), (Some(4.0), Some(3.0)));
        let dear = row(1e-9).limit.unwrap();
        let cpus = std::thread::available_parallelism().unwrap().get() as f64;
        assert!((dear - cpus.min(4.0)).abs() < 1e-9, "{dear}");
    }
}
