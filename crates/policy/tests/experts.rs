//! A cache in small, made of layout, prefetch and probation: what it fetches against an LRU of whole experts.

mod trace;

use hinterland_policy::eviction::Lru;
use hinterland_policy::layout::{Expert, ExpertPiece, Format};
use hinterland_policy::{
    Eviction, Layout, Preference, PrefetchConfig, Prefetcher, Probation, ProbationConfig, Tick, UnitBytes,
    UnitKey, UnitMap, plan,
};
use hinterland_types::ByteRange;
use std::collections::HashMap;
use trace::{AS_MEASURED, EXPERTS, LAYERS, MATRIX_BYTES, TOPICS, Touch, trace};

const LAYER_BYTES: u64 = 10 << 20;
const OUTPUT_BYTES: u64 = 100 << 20;

/// The file of the synthetic model: the output matrix, then layer by layer the dense part and three tensors of
/// 64 matrices. `phase` shifts all of it off the boundaries of blocks.
struct Model {
    size: u64,
    layout: Layout,
    parts: HashMap<Touch, Vec<ByteRange>>,
}

impl Model {
    fn new(phase: u64) -> Self {
        let mut at = phase;
        let mut take = |bytes: u64| {
            let range = ByteRange::new(at, bytes).expect("a small file");
            at += bytes;
            range
        };
        let mut parts: HashMap<Touch, Vec<ByteRange>> = HashMap::new();
        let mut pieces = Vec::new();
        parts.entry(Touch::Dense(LAYERS)).or_default().push(take(OUTPUT_BYTES));
        for block in 0..LAYERS {
            parts.entry(Touch::Dense(block)).or_default().push(take(LAYER_BYTES));
            for _matrix in 0..3 {
                for expert in 0..EXPERTS {
                    let range = take(MATRIX_BYTES);
                    pieces.push(ExpertPiece { range, expert: Expert { block, expert } });
                    parts.entry(Touch::Expert(block, expert)).or_default().push(range);
                }
            }
        }
        let layout = Layout { format: Format::Gguf, data_offset: phase, tensor_count: 0, pieces };
        Self { size: at, layout, parts }
    }
}

#[derive(Debug, Default)]
struct Outcome {
    fetched_bytes: u64,
    /// Faults that waited for bytes.
    waits: u64,
}

/// A node's cache of one object and one program that maps it.
struct Cache<'a> {
    map: &'a UnitMap,
    budget: u64,
    residents: Probation,
    prefetcher: Prefetcher,
    /// Whether the program has the unit in its page tables.
    is_mapped: Vec<bool>,
    outcome: Outcome,
    tick: u64,
}

impl Cache<'_> {
    fn key(unit: u32) -> UnitKey {
        UnitKey { object: 0, unit }
    }

    fn touch(&mut self, unit: u32, offset: u64) {
        if self.is_mapped[unit as usize] {
            return;
        }
        let is_resident = self.residents.contains(Self::key(unit));
        let mut fetched = Vec::new();
        if is_resident {
            self.residents.touch(Self::key(unit));
        } else {
            self.outcome.waits += 1;
            fetched.push(unit);
        }
        self.tick += 1;
        let residents = &self.residents;
        let mut is_resident = |unit| residents.contains(Self::key(unit));
        self.prefetcher.on_fault(self.map, offset, Tick(self.tick), &mut is_resident, &mut fetched);
        for &unit in &fetched {
            self.fill(unit);
        }
        self.is_mapped[unit as usize] = true;
        let mut probes = Vec::new();
        self.residents.next_probe(2 * fetched.len(), &mut probes);
        probes.iter().for_each(|key| self.is_mapped[key.unit as usize] = false);
    }

    fn fill(&mut self, unit: u32) {
        let bytes = self.map.range(unit).bytes();
        self.outcome.fetched_bytes += bytes;
        let over = (self.residents.bytes() + bytes).saturating_sub(self.budget);
        let mut left = Vec::new();
        self.residents.victims(over, &mut |_| true, &mut left);
        left.iter().for_each(|key| self.is_mapped[key.unit as usize] = false);
        self.residents.insert(Self::key(unit), bytes);
    }
}

fn run(
    model: &Model,
    map: &UnitMap,
    tokens: &[Vec<Touch>],
    budget: u64,
    prefetch: PrefetchConfig,
) -> Outcome {
    let mut cache = Cache {
        map,
        budget,
        residents: Probation::new(ProbationConfig::default()),
        prefetcher: Prefetcher::new(prefetch),
        is_mapped: vec![false; map.count() as usize],
        outcome: Outcome::default(),
        tick: 0,
    };
    for (token, touched) in tokens.iter().enumerate() {
        if token == tokens.len() / 4 {
            cache.outcome = Outcome::default();
        }
        for range in touched.iter().flat_map(|touch| &model.parts[touch]) {
            let (first, last) = map.units_in(*range).expect("a part lies in the file");
            for unit in first..=last {
                let first_byte = map.range(unit).offset().max(range.offset());
                cache.touch(unit, first_byte - first_byte % 4096);
            }
        }
    }
    cache.outcome
}

/// What an LRU of whole experts and whole dense parts fetches that sees every touch.
fn run_whole_experts(model: &Model, tokens: &[Vec<Touch>], budget: u64) -> Outcome {
    let mut cache = Lru::new();
    let mut outcome = Outcome::default();
    let mut left = Vec::new();
    for (token, touched) in tokens.iter().enumerate() {
        if token == tokens.len() / 4 {
            outcome = Outcome::default();
        }
        for touch in touched {
            let key = match *touch {
                Touch::Dense(layer) => UnitKey { object: 1, unit: layer },
                Touch::Expert(layer, expert) => UnitKey { object: 0, unit: layer * EXPERTS + expert },
            };
            let bytes: u64 = model.parts[touch].iter().map(|range| range.bytes()).sum();
            if !cache.contains(key) {
                outcome.waits += 1;
                outcome.fetched_bytes += bytes;
                cache.victims((cache.bytes() + bytes).saturating_sub(budget), &mut |_| true, &mut left);
            }
            cache.insert(key, bytes);
        }
    }
    outcome
}

fn ratio(outcome: &Outcome, limit: &Outcome) -> f64 {
    outcome.fetched_bytes as f64 / limit.fetched_bytes as f64
}

#[test]
fn bytes_moved_stay_near_those_of_an_lru_of_whole_experts() {
    for (phase, most) in [(0, 1.15), (1_786_912, 1.3)] {
        let model = Model::new(phase);
        let map = plan(Some(&model.layout), model.size, &Preference::default()).expect("a plan");
        for (name, shape) in [("as measured", AS_MEASURED), ("topics", TOPICS)] {
            let tokens = trace(shape, 120);
            for percent in [43, 64] {
                let budget = model.size * percent / 100;
                let limit = run_whole_experts(&model, &tokens, budget);
                let ours = run(&model, &map, &tokens, budget, PrefetchConfig::default());
                let ratio = ratio(&ours, &limit);
                println!(
                    "phase {phase} {name} {percent} %: {ratio:.3} x, {} / {} waits",
                    ours.waits, limit.waits
                );
                assert!(ratio <= most, "phase {phase}, {name}, {percent} %: {ratio:.3}");
            }
        }
    }
}

#[test]
fn units_that_ignore_experts_move_more_and_groups_wait_less() {
    let model = Model::new(1_786_912);
    let tokens = trace(AS_MEASURED, 60);
    let budget = model.size * 43 / 100;
    let with = |preference: &Preference, config: PrefetchConfig| {
        let map = plan(Some(&model.layout), model.size, preference).expect("a plan");
        run(&model, &map, &tokens, budget, config)
    };
    let best = with(&Preference::default(), PrefetchConfig::default());
    let explicit = Preference { unit: Some(UnitBytes::DEFAULT), ..Preference::default() };
    let uniform = with(&explicit, PrefetchConfig::default());
    let mut no_groups = PrefetchConfig::default();
    no_groups.switches.group = false;
    no_groups.switches.sequential = false;
    let single = with(&Preference::default(), no_groups);
    println!("best {best:?}\nuniform {uniform:?}\nno groups {single:?}");
    assert!(uniform.fetched_bytes > best.fetched_bytes * 2);
    assert!(single.waits > best.waits * 2);
}
