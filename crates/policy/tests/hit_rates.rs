//! Hit rates on generated traces of a mixture-of-experts model, as ratios to exact LRU.

mod trace;

use hinterland_policy::eviction::{Clock, Fifo, Lru, S3Fifo};
use hinterland_policy::{Eviction, EvictionKind, Probation, ProbationConfig, UnitKey};
use trace::{AS_MEASURED, EXPERTS, LAYERS, MATRIX_BYTES, Shape, TOPICS, Touch, trace};

const DENSE_UNIT_BYTES: u64 = 2 << 20;
/// Dense units of one layer, and of the output matrix.
const LAYER_UNITS: u32 = 5;
const OUTPUT_UNITS: u32 = 50;

/// The units of each thing that is touched: an expert has three.
fn groups(shape: Shape, tokens: usize) -> Vec<Vec<Vec<UnitKey>>> {
    let units = |touch: &Touch| -> Vec<UnitKey> {
        match *touch {
            Touch::Dense(layer) => {
                let count = if layer == LAYERS { OUTPUT_UNITS } else { LAYER_UNITS };
                (0..count).map(|unit| UnitKey { object: 1, unit: layer * LAYER_UNITS + unit }).collect()
            }
            Touch::Expert(layer, expert) => {
                let first = (layer * EXPERTS + expert) * 3;
                (first..first + 3).map(|unit| UnitKey { object: 0, unit }).collect()
            }
        }
    };
    trace(shape, tokens).iter().map(|touched| touched.iter().map(units).collect()).collect()
}

fn bytes_of(key: UnitKey) -> u64 {
    if key.object == 0 { MATRIX_BYTES } else { DENSE_UNIT_BYTES }
}

/// A share of the model's bytes.
fn budget(percent: u64) -> u64 {
    let experts = u64::from(LAYERS * EXPERTS) * 3 * MATRIX_BYTES;
    let dense = u64::from(LAYERS * LAYER_UNITS + OUTPUT_UNITS) * DENSE_UNIT_BYTES;
    (experts + dense) * percent / 100
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

    /// Sets the state of a unit and returns what it was.
    fn replace(&mut self, key: UnitKey, is_unmapped: bool) -> bool {
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
fn run_seeing_all(tokens: &[Vec<Vec<UnitKey>>], budget: u64, cache: &mut dyn Eviction) -> Outcome {
    let mut outcome = Outcome::default();
    for (token, touched) in tokens.iter().enumerate() {
        if token == tokens.len() / 4 {
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
    tokens: &[Vec<Vec<UnitKey>>],
    budget: u64,
    config: ProbationConfig,
    probe_every: usize,
) -> Outcome {
    let mut cache = Probation::new(config);
    let mut outcome = Outcome::default();
    let mut unmapped = Unmapped::new();
    let mut probed = Vec::new();
    for (token, touched) in tokens.iter().enumerate() {
        if token == tokens.len() / 4 {
            outcome = Outcome::default();
        }
        for (index, group) in touched.iter().enumerate() {
            for &key in group {
                outcome.touches += 1;
                if !cache.contains(key) {
                    for gone in fill(&mut cache, key, budget, &mut outcome) {
                        unmapped.replace(gone, false);
                    }
                } else if unmapped.replace(key, false) {
                    outcome.probe_faults += 1;
                    cache.touch(key);
                }
            }
            if index.is_multiple_of(probe_every) {
                cache.next_probe(64, &mut probed);
                for key in probed.drain(..) {
                    unmapped.replace(key, true);
                }
            }
        }
    }
    outcome
}

/// The same where even touches of unmapped units are not seen: programs are asked before units leave, at most so
/// many times for each unit that comes in; what is then missing leaves without a question.
fn run_asking(tokens: &[Vec<Vec<UnitKey>>], budget: u64, rounds_max: usize) -> Outcome {
    let mut cache = Probation::new(ProbationConfig::default());
    let mut outcome = Outcome::default();
    let mut unmapped = Unmapped::new();
    let (mut probed, mut asked) = (Vec::new(), Vec::new());
    for (token, touched) in tokens.iter().enumerate() {
        if token == tokens.len() / 4 {
            outcome = Outcome::default();
        }
        for &key in touched.iter().flatten() {
            outcome.touches += 1;
            if cache.contains(key) {
                outcome.probe_faults += u64::from(unmapped.replace(key, false));
                continue;
            }
            let limit = budget - bytes_of(key);
            for _ in 0..rounds_max {
                if cache.bytes() <= limit || cache.victim_candidates(cache.bytes() - limit, &mut asked) == 0 {
                    break;
                }
                for key in asked.drain(..) {
                    let was_touched = !unmapped.replace(key, false);
                    cache.report(key, was_touched);
                }
            }
            for gone in fill(&mut cache, key, budget, &mut outcome) {
                unmapped.replace(gone, false);
            }
            cache.next_probe(4, &mut probed);
            for key in probed.drain(..) {
                unmapped.replace(key, true);
            }
        }
    }
    outcome
}

fn with_order(active_order: EvictionKind) -> ProbationConfig {
    ProbationConfig { active_order, ..ProbationConfig::default() }
}

#[test]
fn probing_fetches_at_most_a_tenth_more_than_exact_lru() {
    for shape in [AS_MEASURED, TOPICS] {
        let tokens = groups(shape, 160);
        for percent in [43, 64] {
            let exact = run_seeing_all(&tokens, budget(percent), &mut Lru::new());
            for order in [EvictionKind::Lru, EvictionKind::Clock, EvictionKind::S3Fifo] {
                let ratio = run_probing(&tokens, budget(percent), with_order(order), 8).ratio_to(exact);
                assert!(ratio <= 1.1, "{order} at {percent} %: {ratio:.3}");
            }
            let blind = run_seeing_all(&tokens, budget(percent), &mut Fifo::new()).ratio_to(exact);
            assert!(blind > 1.2, "first in first out is no worse, so the trace shows nothing: {blind:.3}");
        }
    }
}

#[test]
fn asking_before_eviction_does_as_well_as_seeing_touches_of_probed_units() {
    let tokens = groups(AS_MEASURED, 160);
    for percent in [43, 64] {
        let exact = run_seeing_all(&tokens, budget(percent), &mut Lru::new());
        let patient = run_asking(&tokens, budget(percent), 16).ratio_to(exact);
        let hasty = run_asking(&tokens, budget(percent), 1).ratio_to(exact);
        println!("{percent} %: {patient:.3} x LRU, asking once {hasty:.3} x");
        assert!(patient <= 1.1, "{percent} %: {patient:.3}");
    }
}

#[test]
fn a_refault_saves_units_that_a_short_inactive_list_loses() {
    let tokens = groups(TOPICS, 160);
    let config = ProbationConfig { inactive_percent: 10, ..ProbationConfig::default() };
    let with = run_probing(&tokens, budget(43), config, 8);
    let without = run_probing(&tokens, budget(43), ProbationConfig { refault: false, ..config }, 8);
    assert!(with.fetched_bytes * 10 < without.fetched_bytes * 9, "{with:?} {without:?}");
}

fn print(name: &str, percent: u64, label: &str, outcome: Outcome, exact: Outcome) {
    let hits = 1.0 - outcome.misses as f64 / outcome.touches as f64;
    let per_token = (outcome.fetched_bytes / 600) >> 20;
    let probes = outcome.probe_faults as f64 / outcome.misses as f64;
    let ratio = outcome.ratio_to(exact);
    println!(
        "{name:12} {percent} % {label:36} {ratio:.3} x LRU, {hits:.3} hits, {per_token:3} MiB/token, {probes:.2} probe faults/miss"
    );
}

/// `cargo test --release -p hinterland-policy --test hit_rates -- --ignored --nocapture`
#[test]
#[ignore = "prints a table of a few minutes' work"]
fn table() {
    let uniform = Shape { skew: 0.0, overlap: 0.3, topic_tokens: 0 };
    for (name, shape) in [("as measured", AS_MEASURED), ("topics", TOPICS), ("uniform", uniform)] {
        let tokens = groups(shape, 800);
        for percent in [43, 64] {
            let budget = budget(percent);
            let exact = run_seeing_all(&tokens, budget, &mut Lru::new());
            let show = |label: &str, outcome: Outcome| print(name, percent, label, outcome, exact);
            show("LRU, all seen", exact);
            show("FIFO", run_seeing_all(&tokens, budget, &mut Fifo::new()));
            show("CLOCK, all seen", run_seeing_all(&tokens, budget, &mut Clock::new()));
            show("S3-FIFO, all seen", run_seeing_all(&tokens, budget, &mut S3Fifo::new()));
            for order in [EvictionKind::Lru, EvictionKind::Clock, EvictionKind::S3Fifo] {
                for admit_active in [false, true] {
                    let config = ProbationConfig { admit_active, ..with_order(order) };
                    let label = format!("{order} probed, admit active {admit_active}");
                    show(&label, run_probing(&tokens, budget, config, 8));
                }
            }
            for rounds_max in [1, 2, 4, 16] {
                let label = format!("lru probed, asked {rounds_max} times");
                show(&label, run_asking(&tokens, budget, rounds_max));
            }
            for probe_every in [1, 32, 145] {
                let label = format!("lru probed every {probe_every} groups");
                show(&label, run_probing(&tokens, budget, with_order(EvictionKind::Lru), probe_every));
            }
            for inactive_percent in [10, 20, 50] {
                let config = ProbationConfig { inactive_percent, ..ProbationConfig::default() };
                let label = format!("lru probed, {inactive_percent} % inactive");
                show(&label, run_probing(&tokens, budget, config, 8));
            }
        }
    }
}
