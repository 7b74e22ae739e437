//! What a page trace says of a program, in the features of multi-path far memory (paper 002, section IV.B).

use crate::PAGE;
use crate::reuse;
use crate::trace::{Kind, Trace};
use std::collections::{BTreeSet, HashMap};

/// Units for which the share of touched pages is told: what can be moved at once.
pub const UNITS: [u64; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 2 << 20];
/// Segments shorter than this are fragments: below it, moving one costs more than its bytes do.
const SEGMENT_BYTES: u64 = 64 << 10;
/// Touches are looked at in groups that bring back this part of the memory: what is near in time may move together.
const GROUP_PARTS: usize = 8;
/// Least touches of a group.
const GROUP_MIN: usize = 64;
/// Sequences that are told apart at once, as the engine does.
const SEQUENCES: usize = 8;
/// Touches that make a run.
const RUN_MIN: u64 = 4;
/// The share of touches that hot pages have together.
const HOT_SHARE: f64 = 0.8;
/// Shares of the memory, in hundredths, for which misses are told.
pub const SHARES: [u64; 10] = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100];

/// The features of a program. Ratios are from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Features {
    /// Bytes that are told apart: the unit of the trace.
    pub grain_bytes: u64,
    /// Different memory that was touched.
    pub footprint_bytes: u64,
    /// Touches that the trace saw.
    pub touches: u64,
    /// Touched memory that lies in segments below 64 KiB, of the memory touched within a short time.
    pub fragment_ratio: f64,
    /// How much of a unit is touched while it would be here, for each of [`UNITS`].
    pub unit_use: [f64; UNITS.len()],
    /// Touches that belong to runs of addresses in order.
    pub sequential_ratio: f64,
    /// The longest run.
    pub run_bytes_max: u64,
    /// The middle one of the runs.
    pub run_bytes_median: u64,
    /// The least part of the memory that has 80 of 100 touches.
    pub hot_ratio: f64,
    /// Stores of all loads and stores.
    pub store_ratio: f64,
    /// Anonymous memory of all that was resident, files included.
    pub anonymous_ratio: f64,
    /// Content over what it takes when it is compressed; 1 where nothing left.
    pub compression: f64,
    /// Touches that miss with so much of the memory here, for each of [`SHARES`]; of those that are no first ones.
    pub miss_ratios: [f64; SHARES.len()],
    /// The middle one of the reuse distances, in bytes.
    pub reuse_bytes_median: u64,
}

type Grain = (u8, u64);

impl Features {
    /// Those of a trace.
    pub fn of(trace: &Trace) -> Self {
        let grain_bytes = trace.header.unit_bytes;
        let grain = |space: u8, address: u64| (space, address / grain_bytes);
        let touched: Vec<Grain> = trace
            .touches()
            .filter(|record| record.kind != Kind::Write)
            .map(|record| grain(record.space, record.address))
            .collect();
        let again: Vec<Grain> = trace
            .touches()
            .filter(|record| record.kind == Kind::Again)
            .map(|record| grain(record.space, record.address))
            .collect();
        let mut counts: HashMap<Grain, u64> = HashMap::new();
        for one in &touched {
            *counts.entry(*one).or_default() += 1;
        }
        // What comes back is what units are for; a program that is touched only once has nothing else to look at.
        let moving = if again.len() >= GROUP_MIN { &again } else { &touched };
        let group = (counts.len() / GROUP_PARTS).max(GROUP_MIN);
        let runs = runs(moving);
        let distances = reuse::distances(&touched);
        let (fragment_ratio, unit_use) = fragments(moving, group, grain_bytes);
        Self {
            grain_bytes,
            footprint_bytes: counts.len() as u64 * grain_bytes,
            touches: touched.len() as u64,
            fragment_ratio,
            unit_use,
            sequential_ratio: ratio(runs.iter().sum(), moving.len() as u64),
            run_bytes_max: runs.last().copied().unwrap_or(0) * grain_bytes,
            run_bytes_median: runs.get(runs.len() / 2).copied().unwrap_or(0) * grain_bytes,
            hot_ratio: hot_ratio(&counts),
            store_ratio: store_ratio(trace),
            anonymous_ratio: anonymous_ratio(trace, counts.len() as u64 * grain_bytes),
            compression: compression(trace),
            miss_ratios: miss_ratios(&distances, counts.len() as u64),
            reuse_bytes_median: median(distances.iter().flatten().map(|d| u64::from(*d)).collect())
                * grain_bytes,
        }
    }

    /// How much of a unit of this size is touched while it would be here.
    pub fn use_of(&self, unit_bytes: u64) -> f64 {
        let place = UNITS.iter().position(|unit| *unit >= unit_bytes).unwrap_or(UNITS.len() - 1);
        self.unit_use[place]
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// Lengths of the runs of at least four touches in the order of addresses, sorted.
fn runs(touched: &[Grain]) -> Vec<u64> {
    let mut open: Vec<(Grain, u64)> = Vec::new();
    let mut found = Vec::new();
    for grain in touched {
        if let Some(place) = open.iter().position(|(next, _)| next == grain) {
            let (_, length) = open.remove(place);
            open.push(((grain.0, grain.1 + 1), length + 1));
            continue;
        }
        if open.len() == SEQUENCES {
            // The one that was continued least lately ends.
            found.push(open.remove(0).1);
        }
        open.push(((grain.0, grain.1 + 1), 1));
    }
    found.extend(open.into_iter().map(|(_, length)| length));
    found.retain(|length| *length >= RUN_MIN);
    found.sort_unstable();
    found
}

/// The share of touched memory in short segments, and the use of units, over groups of touches near in time.
fn fragments(touched: &[Grain], group: usize, grain_bytes: u64) -> (f64, [f64; UNITS.len()]) {
    let segment_min = SEGMENT_BYTES.div_ceil(grain_bytes).max(2);
    let (mut pages, mut short) = (0u64, 0u64);
    let mut moved = [0u64; UNITS.len()];
    for part in touched.chunks(group) {
        let set: BTreeSet<Grain> = part.iter().copied().collect();
        pages += set.len() as u64;
        let mut segment: Option<(Grain, u64)> = None;
        for grain in &set {
            segment = match segment {
                Some((last, length)) if *grain == (last.0, last.1 + 1) => Some((*grain, length + 1)),
                before => {
                    short += before.map_or(0, |(_, length)| if length < segment_min { length } else { 0 });
                    Some((*grain, 1))
                }
            };
        }
        short += segment.map_or(0, |(_, length)| if length < segment_min { length } else { 0 });
        for (unit, sum) in UNITS.iter().zip(&mut moved) {
            let per_unit = (unit / grain_bytes).max(1);
            let units: BTreeSet<Grain> = set.iter().map(|(space, at)| (*space, at / per_unit)).collect();
            *sum += units.len() as u64 * per_unit;
        }
    }
    let mut unit_use = [1.0; UNITS.len()];
    for (share, moved) in unit_use.iter_mut().zip(moved) {
        *share = ratio(pages, moved).min(1.0);
    }
    (ratio(short, pages), unit_use)
}

fn hot_ratio(counts: &HashMap<Grain, u64>) -> f64 {
    let mut sorted: Vec<u64> = counts.values().copied().collect();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let wanted = sorted.iter().sum::<u64>() as f64 * HOT_SHARE;
    let mut sum = 0.0;
    let hot = sorted.iter().take_while(|count| {
        let goes_on = sum < wanted;
        sum += **count as f64;
        goes_on
    });
    ratio(hot.count() as u64, sorted.len() as u64)
}

fn store_ratio(trace: &Trace) -> f64 {
    let stores = trace.touches().filter(|record| record.is_store() || record.kind == Kind::Write).count();
    ratio(stores as u64, trace.touches().count() as u64)
}

fn anonymous_ratio(trace: &Trace, anonymous: u64) -> f64 {
    let census = trace.records.iter().filter(|record| record.kind == Kind::Census);
    let files = census.map(|record| u64::from(record.amount) * PAGE).max().unwrap_or(0);
    ratio(anonymous, anonymous + files)
}

fn compression(trace: &Trace) -> f64 {
    match trace.last(Kind::Content) {
        Some(record) if record.address > 0 => record.time_ns as f64 / record.address as f64,
        _ => 1.0,
    }
}

fn miss_ratios(distances: &[Option<u32>], grains: u64) -> [f64; SHARES.len()] {
    let repeated = distances.iter().flatten().count() as u64;
    let mut ratios = [0.0; SHARES.len()];
    for (place, share) in ratios.iter_mut().zip(SHARES) {
        *place = ratio(reuse::misses(distances, grains * share / 100), repeated);
    }
    ratios
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::trace::{Header, Record, STORE};
    use proptest::prelude::*;

    /// A trace with a touch each microsecond; stores where `store` says so.
    pub(crate) fn trace_of(pages: &[u64], store: impl Fn(usize) -> bool) -> Trace {
        let mut seen = BTreeSet::new();
        let record = |(index, page): (usize, &u64)| Record {
            time_ns: index as u64 * 1000,
            address: page * PAGE,
            kind: if seen.insert(*page) { Kind::First } else { Kind::Again },
            space: 0,
            flags: if store(index) { STORE } else { 0 },
            amount: 1,
        };
        let header = Header { unit_bytes: PAGE, window_bytes: PAGE, window_percent: 0 };
        Trace {
            header,
            records: pages.iter().enumerate().map(record).collect(),
            time_ns: pages.len() as u64 * 1000,
        }
    }

    #[test]
    fn a_scan_is_sequential_whole_and_cold() {
        let pages: Vec<u64> = (0..4096).cycle().take(3 * 4096).collect();
        let features = Features::of(&trace_of(&pages, |_| false));
        assert_eq!((features.fragment_ratio, features.sequential_ratio), (0.0, 1.0));
        assert_eq!(features.unit_use, [1.0; 5]);
        assert_eq!((features.store_ratio, features.footprint_bytes), (0.0, 16 << 20));
        assert!((features.hot_ratio - 0.8).abs() < 0.01, "all pages are as hot: {}", features.hot_ratio);
        assert_eq!(features.miss_ratios[8], 1.0, "a loop misses all until all of it fits");
        assert_eq!(features.miss_ratios[9], 0.0);
        assert_eq!(features.anonymous_ratio, 1.0);
    }

    #[test]
    fn random_touches_are_fragments_and_leave_units_unused() {
        let mut state = 1u64;
        let pages: Vec<u64> = (0..20_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) % 65_536 * 16
            })
            .collect();
        let features = Features::of(&trace_of(&pages, |index| index % 4 == 0));
        assert!(features.fragment_ratio > 0.99 && features.sequential_ratio < 0.01);
        assert!(
            features.unit_use[0] > 0.99 && features.use_of(64 << 10) < 0.1 && features.use_of(2 << 20) < 0.1
        );
        assert!((features.store_ratio - 0.25).abs() < 0.01);
    }

    #[test]
    fn a_few_hot_pages_are_found_among_many() {
        let pages: Vec<u64> =
            (0..10_000u64).map(|index| if index % 10 == 0 { 100 + index } else { index % 7 }).collect();
        let features = Features::of(&trace_of(&pages, |_| true));
        assert!(features.hot_ratio < 0.01, "{}", features.hot_ratio);
        assert!(features.miss_ratios[0] < 0.01, "{:?}", features.miss_ratios);
        assert_eq!(features.store_ratio, 1.0);
    }

    #[test]
    fn two_sequences_that_take_turns_are_two_runs() {
        let pages: Vec<u64> = (0..200).map(|index| index / 2 + (index % 2) * 10_000).collect();
        let features = Features::of(&trace_of(&pages, |_| false));
        assert_eq!((features.sequential_ratio, features.run_bytes_max), (1.0, 100 * PAGE));
    }

    proptest! {
        #[test]
        fn ratios_stay_between_none_and_all(pages in proptest::collection::vec(0u64..500, 1..800)) {
            let features = Features::of(&trace_of(&pages, |index| index % 3 == 0));
            let mut ratios = vec![features.fragment_ratio, features.sequential_ratio, features.hot_ratio];
            ratios.extend(features.unit_use);
            ratios.extend(features.miss_ratios);
            prop_assert!(ratios.iter().all(|ratio| (0.0..=1.0).contains(ratio)), "{:?}", features);
            prop_assert!(features.miss_ratios.is_sorted_by(|a, b| a >= b), "more memory, fewer misses");
            prop_assert_eq!(features.miss_ratios[9], 0.0);
        }
    }
}
