//! Hit rates on generated traces of a mixture-of-experts model, as ratios to exact LRU.

use super::*;
use crate::eviction::{Clock, Fifo, Lru, S3Fifo};

/// A reproducible stream of numbers (xorshift).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

const LAYERS: u32 = 16;
const EXPERTS: usize = 64;
const CHOSEN: usize = 8;
const MATRIX_BYTES: u64 = 18 << 16;
const DENSE_UNIT_BYTES: u64 = 2 << 20;
/// Dense units that every token touches: five a layer, and the output matrix.
const DENSE_UNITS: u32 = 130;

#[derive(Clone, Copy)]
struct Shape {
    /// Exponent of the Zipf distribution of experts; 0 is uniform.
    skew: f64,
    /// Share of experts that a token takes over from the one before.
    overlap: f64,
    /// Tokens after which other experts are the popular ones; 0 is never.
    topic_tokens: usize,
}

/// The groups of units that each token touches, in order. An expert is three units, a dense unit is one.
fn trace(shape: Shape, tokens: usize) -> Vec<Vec<Vec<UnitKey>>> {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let weights: Vec<f64> = (1..=EXPERTS).map(|rank| 1.0 / (rank as f64).powf(shape.skew)).collect();
    let mut ranks: Vec<Vec<usize>> = (0..LAYERS).map(|_| (0..EXPERTS).collect()).collect();
    let mut before: Vec<Vec<usize>> = vec![Vec::new(); LAYERS as usize];
    let mut out = Vec::new();
    for token in 0..tokens {
        let mut touched = Vec::new();
        for layer in 0..LAYERS as usize {
            if token == 0 || (shape.topic_tokens > 0 && token % shape.topic_tokens == 0) {
                for index in (1..EXPERTS).rev() {
                    ranks[layer].swap(index, (numbers.next() % (index as u64 + 1)) as usize);
                }
            }
            for unit in 0..5 {
                touched.push(vec![UnitKey { object: 1, unit: layer as u32 * 5 + unit }]);
            }
            let mut chosen: Vec<usize> =
                before[layer].iter().copied().filter(|_| numbers.fraction() < shape.overlap).collect();
            while chosen.len() < CHOSEN {
                let mut point = numbers.fraction() * weights.iter().sum::<f64>();
                let rank = weights.iter().position(|weight| {
                    point -= weight;
                    point < 0.0
                });
                let expert = ranks[layer][rank.unwrap_or(0)];
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            chosen.sort_unstable();
            for &expert in &chosen {
                let first = (layer * EXPERTS + expert) as u32 * 3;
                touched.push((first..first + 3).map(|unit| UnitKey { object: 0, unit }).collect());
            }
            before[layer] = chosen;
        }
        touched.extend((LAYERS * 5..DENSE_UNITS).map(|unit| vec![UnitKey { object: 1, unit }]));
        out.push(touched);
    }
    out
}

fn bytes_of(key: UnitKey) -> u64 {
    if key.object == 0 { MATRIX_BYTES } else { DENSE_UNIT_BYTES }
}

fn capacity(percent: u64) -> u64 {
    let experts = u64::from(LAYERS) * EXPERTS as u64 * 3 * MATRIX_BYTES;
    (experts + u64::from(DENSE_UNITS) * DENSE_UNIT_BYTES) * percent / 100
}

#[derive(Debug, Default, Clone, Copy)]
struct Outcome {
    fetched_bytes: u64,
    misses: u64,
    touches: u64,
    /// Faults that only told that a probed unit is alive.
    probe_faults: u64,
}

impl Outcome {
    fn ratio_to(self, other: Self) -> f64 {
        self.fetched_bytes as f64 / other.fetched_bytes as f64
    }
}

/// Which units no program has mapped, because they were probed and not touched since.
struct Unmapped(Vec<bool>);

impl Unmapped {
    fn new() -> Self {
        Self(vec![false; 2 << 16])
    }

    fn set(&mut self, key: UnitKey, is_unmapped: bool) -> bool {
        std::mem::replace(&mut self.0[(key.object << 16 | key.unit) as usize], is_unmapped)
    }
}

/// Makes room for a unit and puts it in; returns what left.
fn fill(cache: &mut dyn Eviction, key: UnitKey, budget: u64, outcome: &mut Outcome) -> Vec<UnitKey> {
    outcome.misses += 1;
    outcome.fetched_bytes += bytes_of(key);
    let mut left = Vec::new();
    let over = (cache.bytes() + bytes_of(key)).saturating_sub(budget);
    if over > 0 {
        assert!(cache.victims(over, &mut |_| true, &mut left) >= over);
    }
    cache.insert(key, bytes_of(key));
    left
}

/// Runs a trace, every touch seen; the first quarter of the tokens warms up and is not counted.
fn run_seeing_all(trace: &[Vec<Vec<UnitKey>>], budget: u64, cache: &mut dyn Eviction) -> Outcome {
    let mut outcome = Outcome::default();
    for (token, touched) in trace.iter().enumerate() {
        if token == trace.len() / 4 {
            outcome = Outcome::default();
        }
        for &key in touched.iter().flatten() {
            outcome.touches += 1;
            if cache.contains(key) {
                cache.touch(key);
            } else {
                fill(cache, key, budget, &mut outcome);
            }
        }
    }
    outcome
}

/// The same where only touches of unmapped units are seen; probes at most 64 units after so many groups.
fn run_probing(
    trace: &[Vec<Vec<UnitKey>>],
    budget: u64,
    config: ProbationConfig,
    probe_every: usize,
) -> Outcome {
    let mut cache = Probation::new(config);
    let mut outcome = Outcome::default();
    let mut unmapped = Unmapped::new();
    let mut probed = Vec::new();
    for (token, touched) in trace.iter().enumerate() {
        if token == trace.len() / 4 {
            outcome = Outcome::default();
        }
        for (index, group) in touched.iter().enumerate() {
            for &key in group {
                outcome.touches += 1;
                if !cache.contains(key) {
                    for gone in fill(&mut cache, key, budget, &mut outcome) {
                        unmapped.set(gone, false);
                    }
                } else if unmapped.set(key, false) {
                    outcome.probe_faults += 1;
                    cache.touch(key);
                }
            }
            if index.is_multiple_of(probe_every) {
                cache.next_probe(64, &mut probed);
                for key in probed.drain(..) {
                    unmapped.set(key, true);
                }
            }
        }
    }
    outcome
}

/// Close to the trace of a real prompt, in which the hottest 8, 16 and 32 of 64 experts take 47, 69 and 88 % of
/// the touches and tokens overlap by 37 %; here it is 50, 67 and 84 %, and 35 %.
const AS_MEASURED: Shape = Shape { skew: 1.1, overlap: 0.0, topic_tokens: 0 };
const TOPICS: Shape = Shape { skew: 1.0, overlap: 0.2, topic_tokens: 60 };
const UNIFORM: Shape = Shape { skew: 0.0, overlap: 0.3, topic_tokens: 0 };

fn with_order(active_order: EvictionKind) -> ProbationConfig {
    ProbationConfig { active_order, ..ProbationConfig::default() }
}

#[test]
fn probing_fetches_at_most_a_tenth_more_than_exact_lru() {
    for shape in [AS_MEASURED, TOPICS] {
        let trace = trace(shape, 160);
        for percent in [43, 64] {
            let budget = capacity(percent);
            let exact = run_seeing_all(&trace, budget, &mut Lru::new());
            for order in [EvictionKind::Lru, EvictionKind::Clock, EvictionKind::S3Fifo] {
                let ratio = run_probing(&trace, budget, with_order(order), 8).ratio_to(exact);
                assert!(ratio <= 1.1, "{order} at {percent} %: {ratio:.3}");
            }
            let blind = run_seeing_all(&trace, budget, &mut Fifo::new()).ratio_to(exact);
            assert!(blind > 1.2, "first in first out is no worse, so the trace shows nothing: {blind:.3}");
        }
    }
}

#[test]
fn a_refault_saves_units_that_a_short_inactive_list_loses() {
    let trace = trace(TOPICS, 160);
    let config = ProbationConfig { inactive_percent: 10, ..ProbationConfig::default() };
    let with = run_probing(&trace, capacity(43), config, 8);
    let without = run_probing(&trace, capacity(43), ProbationConfig { refault: false, ..config }, 8);
    assert!(with.fetched_bytes * 10 < without.fetched_bytes * 9, "{with:?} {without:?}");
}

/// `cargo test --release -p hinterland-policy simulation::table -- --ignored --nocapture`
#[test]
#[ignore = "prints a table of a few minutes' work"]
fn table() {
    for (name, shape) in [("as measured", AS_MEASURED), ("topics", TOPICS), ("uniform", UNIFORM)] {
        let trace = trace(shape, 800);
        for percent in [43, 64] {
            let budget = capacity(percent);
            let exact = run_seeing_all(&trace, budget, &mut Lru::new());
            let show = |label: String, outcome: Outcome| {
                let hits = 1.0 - outcome.misses as f64 / outcome.touches as f64;
                let per_token = outcome.fetched_bytes / 600 >> 20;
                let probes = outcome.probe_faults as f64 / outcome.misses as f64;
                let ratio = outcome.ratio_to(exact);
                println!(
                    "{name:12} {percent} % {label:30} {ratio:.3} x LRU, {hits:.3} hits, {per_token:3} MiB/token, {probes:.2} probe faults/miss"
                );
            };
            show("LRU, all seen".to_owned(), exact);
            show("FIFO".to_owned(), run_seeing_all(&trace, budget, &mut Fifo::new()));
            show("CLOCK, all seen".to_owned(), run_seeing_all(&trace, budget, &mut Clock::new()));
            show("S3-FIFO, all seen".to_owned(), run_seeing_all(&trace, budget, &mut S3Fifo::new()));
            for order in [EvictionKind::Lru, EvictionKind::Clock, EvictionKind::S3Fifo] {
                for admit_active in [false, true] {
                    let config = ProbationConfig { admit_active, ..with_order(order) };
                    let label = format!("{order} probed, admit active {admit_active}");
                    show(label, run_probing(&trace, budget, config, 8));
                }
            }
            for probe_every in [1, 32, 265] {
                let label = format!("lru probed every {probe_every} groups");
                show(label, run_probing(&trace, budget, with_order(EvictionKind::Lru), probe_every));
            }
            for inactive_percent in [10, 20, 50] {
                let config = ProbationConfig { inactive_percent, ..ProbationConfig::default() };
                let label = format!("lru probed, {inactive_percent} % inactive");
                show(label, run_probing(&trace, budget, config, 8));
            }
        }
    }
}
