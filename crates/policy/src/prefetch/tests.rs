//! Tests of prefetch: each reason for a guess, its limits, and silence on random faults.

use super::*;
use crate::unit::{Edge, Group, UnitBytes};
use proptest::prelude::*;
use std::collections::BTreeSet;

const MIB: u64 = 1 << 20;

fn uniform(units: u64) -> UnitMap {
    UnitMap::uniform(units * 2 * MIB, UnitBytes::DEFAULT).unwrap()
}

/// Ten dense units, then `experts` times three matrices of 18 blocks, matrix by matrix, then ten dense units.
fn experts(experts: u32) -> UnitMap {
    let mut cuts = vec![0u64];
    let mut add = |bytes: u64| cuts.push(cuts[cuts.len() - 1] + bytes);
    (0..10).for_each(|_| add(2 * MIB));
    (0..3 * experts).for_each(|_| add(18 << 16));
    (0..10).for_each(|_| add(2 * MIB));
    let members = |expert| (0..3).map(|matrix| 10 + matrix * experts + expert).collect();
    let groups: Vec<Group> =
        (0..experts).map(|expert| Group { members: members(expert), edges: vec![] }).collect();
    UnitMap::extents(cuts[cuts.len() - 1], cuts, &groups).unwrap()
}

/// Eight groups of one unit of 1 MiB each; between neighbours an edge of 64 KiB, half of it for each.
fn with_edges() -> UnitMap {
    let half = 32 << 10;
    let cuts: Vec<u64> = (0..=16).map(|cut| cut / 2 * (MIB + 2 * half) + cut % 2 * 2 * half).collect();
    let edge = |unit: usize, from: u64| Edge {
        unit: unit as u32,
        part: ByteRange::new(cuts[unit] + from, half).unwrap(),
    };
    let groups: Vec<Group> = (0..8usize)
        .map(|expert| Group {
            members: vec![2 * expert as u32 + 1],
            edges: std::iter::once(edge(2 * expert, half))
                .chain((expert < 7).then(|| edge(2 * expert + 2, 0)))
                .collect(),
        })
        .collect();
    UnitMap::extents(cuts[16], cuts.clone(), &groups).unwrap()
}

/// A prefetcher with a cache that holds everything that was ever fetched.
struct Reader {
    prefetcher: Prefetcher,
    map: UnitMap,
    resident: BTreeSet<u32>,
    tick: u64,
}

impl Reader {
    fn new(map: UnitMap, config: PrefetchConfig) -> Self {
        Self { prefetcher: Prefetcher::new(config), map, resident: BTreeSet::new(), tick: 0 }
    }

    /// Touches a unit; if it is not resident it faults, and what is fetched with it is returned.
    fn touch(&mut self, unit: u32) -> Vec<u32> {
        self.tick += 1;
        if self.resident.contains(&unit) { Vec::new() } else { self.fault(unit) }
    }

    fn fault(&mut self, unit: u32) -> Vec<u32> {
        let mut out = Vec::new();
        self.resident.insert(unit);
        let resident = &self.resident;
        let (tick, offset) = (Tick(self.tick), self.map.range(unit).offset());
        self.prefetcher.on_fault(&self.map, offset, tick, &mut |unit| resident.contains(&unit), &mut out);
        self.resident.extend(&out);
        out
    }

    fn faults(&mut self, units: impl IntoIterator<Item = u32>) -> usize {
        let mut count = 0;
        for unit in units {
            if !self.resident.contains(&unit) {
                count += 1;
            }
            self.touch(unit);
        }
        count
    }
}

fn reader(map: UnitMap) -> Reader {
    Reader::new(map, PrefetchConfig::default())
}

fn without(change: impl Fn(&mut PrefetchSwitches)) -> PrefetchConfig {
    let mut config = PrefetchConfig::default();
    change(&mut config.switches);
    config
}

#[test]
fn a_fault_brings_the_rest_of_its_group() {
    let mut reader = reader(experts(64));
    assert_eq!(reader.touch(10 + 5), [10 + 64 + 5, 10 + 128 + 5]);
    assert_eq!(reader.touch(10 + 64 + 9), [10 + 128 + 9, 10 + 9], "what lies behind comes first");
    let mut off = Reader::new(experts(64), without(|switches| switches.group = false));
    assert!(off.touch(10 + 5).is_empty());
}

#[test]
fn a_sequence_opens_a_window_that_doubles() {
    let mut reader = reader(uniform(1000));
    assert!(reader.touch(100).is_empty());
    assert_eq!(reader.touch(101), [102, 103]);
    let windows: Vec<usize> = [104, 109, 118, 135, 168, 201].map(|unit| reader.touch(unit).len()).to_vec();
    assert_eq!(windows, [4, 8, 16, 32, 32, 32]);
}

#[test]
fn a_scan_of_1000_units_faults_fewer_than_50_times() {
    let mut scan = reader(uniform(1000));
    let count = scan.faults(0..1000);
    assert!(count < 50, "{count}");
    assert_eq!(scan.resident.len(), 1000, "and fetches nothing twice or past the end");
    let mut off = Reader::new(uniform(1000), without(|switches| switches.sequential = false));
    assert_eq!(off.faults(0..1000), 1000);
}

#[test]
fn faults_of_units_that_were_fetched_keep_the_window_ahead() {
    let mut reader = reader(uniform(1000));
    let mut late = 0;
    for unit in 0..1000 {
        late += u32::from(!reader.resident.contains(&unit));
        reader.tick += 1;
        reader.fault(unit);
    }
    assert_eq!(late, 2, "only the two faults that found the sequence waited for bytes");
}

#[test]
fn four_threads_that_scan_apart_are_four_sequences() {
    let mut reader = reader(uniform(4000));
    let order = (0..1000).flat_map(|step| (0..4).map(move |thread| thread * 1000 + step));
    let count = reader.faults(order);
    assert!(count < 4 * 50, "{count}");
}

#[test]
fn a_stride_is_followed_in_both_directions() {
    for step in [7i64, -1, -12] {
        let unit = |index: i64| u32::try_from(5000 + index * step).unwrap();
        let mut scan = reader(uniform(10_000));
        assert!(scan.touch(unit(0)).is_empty() && scan.touch(unit(1)).is_empty());
        assert_eq!(scan.touch(unit(2)), [unit(3)], "step {step}");
        let count = scan.faults((3..200).map(unit));
        assert!(count < 20, "step {step}: {count}");
        let mut off = Reader::new(uniform(10_000), without(|switches| switches.stride = false));
        assert_eq!(off.faults((0..200).map(unit)), 200);
    }
}

#[test]
fn a_backward_run_stops_at_the_start_and_a_forward_run_at_the_end() {
    let mut reader = reader(uniform(20));
    reader.faults((0..10).rev());
    assert_eq!(reader.resident, (0..10).collect());
    reader.faults(10..20);
    assert_eq!(reader.resident, (0..20).collect());
}

/// Numbers without a pattern.
fn random(seed: u64, count: usize, below: u64) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % below) as u32
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn random_faults_bring_nothing_with_them() {
    let mut reader = reader(uniform(100_000));
    let fetched: usize = random(1, 2000, 100_000).into_iter().map(|unit| reader.touch(unit).len()).sum();
    assert!(fetched < 20, "{fetched} units for 2000 faults");
}

#[test]
fn random_faults_in_a_small_object_waste_little() {
    let mut wasted = 0;
    for seed in 0..50 {
        let mut reader = reader(uniform(256));
        wasted += random(seed, 64, 256).into_iter().map(|unit| reader.touch(unit).len()).sum::<usize>();
    }
    assert!(wasted < 50 * 64 / 6, "{wasted} units for 3200 faults");
}

#[test]
fn experts_that_a_router_picks_bring_only_their_own_matrices() {
    let mut reader = reader(experts(64));
    let mut others = 0;
    for token in 0..500u64 {
        reader.resident.clear();
        let chosen: BTreeSet<u32> = random(token, 8, 64).into_iter().collect();
        for &expert in &chosen {
            let fetched = reader.touch(10 + expert);
            others += fetched.iter().filter(|&&unit| !chosen.contains(&((unit - 10) % 64))).count();
        }
    }
    assert!(others < 500 * 8 * 3 / 100, "{others} units of experts that nobody asked for");
}

#[test]
fn experts_in_a_row_are_read_ahead() {
    let mut reader = reader(experts(64));
    let count = reader.faults(10..10 + 64);
    assert!(count < 16, "{count} faults for 64 experts");
}

#[test]
fn a_shared_edge_is_asked_for_once() {
    let mut reader = reader(with_edges());
    assert_eq!(reader.touch(1), [2, 0]);
    reader.faults([3, 5]);
    assert_eq!(
        reader.touch(7),
        [8, 9, 10],
        "the fourth in a row brings the next, and the edge between them once"
    );
}

#[test]
fn a_fault_in_an_edge_brings_the_group_whose_bytes_it_is_about() {
    let map = with_edges();
    let edge = map.range(4).offset();
    let fetched = |offset: u64| {
        let mut out = Vec::new();
        Prefetcher::new(PrefetchConfig::default()).on_fault(&map, offset, Tick(0), &mut |_| false, &mut out);
        out
    };
    assert_eq!(fetched(edge), [2, 3], "from expert 1, which ends here");
    assert_eq!(fetched(edge + (32 << 10)), [5, 6], "from expert 2, which starts here");
}

#[test]
fn a_sequence_stops_where_experts_begin() {
    let mut reader = reader(experts(64));
    reader.faults(0..10);
    assert_eq!(reader.resident, (0..10).collect());
}

#[test]
fn the_budget_bounds_every_request() {
    let config = PrefetchConfig { budget_bytes: 5 * MIB, ..PrefetchConfig::default() };
    let mut reader = Reader::new(uniform(1000), config);
    assert!((0..1000).all(|unit| reader.touch(unit).len() <= 2));
    let mut reader = Reader::new(experts(64), PrefetchConfig { budget_bytes: 2 * MIB, ..config });
    assert_eq!(reader.touch(10), [10 + 64]);
}

#[test]
fn a_run_that_rests_too_long_is_forgotten() {
    let mut reader = reader(uniform(1000));
    reader.touch(10);
    reader.touch(11);
    reader.tick += 20_000;
    assert!(reader.touch(14).is_empty());
    assert_eq!(reader.touch(15), [16, 17]);
}

#[test]
fn random_advice_leaves_only_groups() {
    let mut dense = reader(uniform(1000));
    dense.prefetcher.advise(Advice::Random);
    assert_eq!(dense.faults(0..100), 100);
    let mut grouped = reader(experts(64));
    grouped.prefetcher.advise(Advice::Random);
    assert_eq!(grouped.faults(10..74), 64);
    assert_eq!(grouped.resident.len(), 192);
}

#[test]
fn sequential_advice_opens_a_window_at_once_and_is_dropped_when_it_is_wrong() {
    let mut scan = reader(uniform(1000));
    scan.prefetcher.advise(Advice::Sequential);
    assert_eq!(scan.touch(0).len(), 8);
    assert_eq!(scan.touch(9).len(), 16);
    let mut jumping = reader(uniform(100_000));
    jumping.prefetcher.advise(Advice::Sequential);
    let fetched: Vec<usize> =
        random(3, 20, 100_000).into_iter().map(|unit| jumping.touch(unit).len()).collect();
    assert!(
        fetched[..7].iter().all(|&count| count == 8) && fetched[7..].iter().all(|&count| count == 0),
        "{fetched:?}"
    );
}

#[test]
fn advised_ranges_are_handed_out_once_and_in_pieces() {
    let mut reader = reader(uniform(100));
    let range = ByteRange::new(3 * MIB, 8 * MIB).unwrap();
    reader.prefetcher.advise(Advice::WillNeed(range));
    let mut next = |bytes: u64| {
        let mut out = Vec::new();
        reader.prefetcher.next_advised(&reader.map, bytes, &mut |unit| unit == 3, &mut out);
        out
    };
    assert!(next(MIB).is_empty());
    assert_eq!(next(5 * MIB), [1, 2]);
    assert_eq!(next(100 * MIB), [4, 5], "unit 3 is resident");
    assert!(next(100 * MIB).is_empty());
}

#[test]
fn advice_behind_the_end_and_endless_advice_are_harmless() {
    let mut reader = reader(uniform(4));
    reader.prefetcher.advise(Advice::WillNeed(ByteRange::new(1 << 40, 5).unwrap()));
    reader.prefetcher.advise(Advice::WillNeed(ByteRange::new(6 * MIB, u64::MAX - 6 * MIB).unwrap()));
    for _ in 0..1000 {
        reader.prefetcher.advise(Advice::WillNeed(ByteRange::new(0, 1).unwrap()));
    }
    let mut out = Vec::new();
    reader.prefetcher.next_advised(&reader.map, u64::MAX, &mut |_| false, &mut out);
    assert!(out.len() <= ADVISED_RANGES_MAX);
}

proptest! {
    #[test]
    fn whatever_faults_the_request_is_real_new_and_within_the_budget(
        units in prop::collection::vec(0u32..220, 1..300),
        which in 0usize..3,
        sequential in any::<bool>(),
        budget_mib in 0u64..40,
        window_units_max in 0u32..40,
    ) {
        let config = PrefetchConfig { budget_bytes: budget_mib * MIB, window_units_max, ..PrefetchConfig::default() };
        let map = [experts(64), uniform(212), with_edges()][which].clone();
        let mut reader = Reader::new(map, config);
        if sequential {
            reader.prefetcher.advise(Advice::Sequential);
        }
        for unit in units {
            let before = reader.resident.clone();
            let out = reader.fault(unit);
            let bytes: u64 = out.iter().map(|&unit| reader.map.range(unit).bytes()).sum();
            prop_assert!(bytes <= budget_mib * MIB);
            prop_assert!(out.iter().all(|other| *other < reader.map.count() && *other != unit && !before.contains(other)));
            prop_assert_eq!(out.iter().collect::<BTreeSet<_>>().len(), out.len());
        }
    }
}
