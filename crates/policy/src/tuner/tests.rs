//! Tests of the tuner on synthetic traces, mapped generation by generation.

use super::*;
use proptest::prelude::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const OBJECT_BYTES: u64 = 8 << 30;

/// Maps an object again and again, each time with the recommendation, and lets `trace` fault it.
fn after_generations(count: u32, trace: impl Fn(&mut Tuner, u64)) -> UnitBytes {
    let mut tuner = Tuner::new(TunerConfig::default(), OBJECT_BYTES);
    for _ in 0..count {
        let unit = tuner.recommend();
        tuner.begin_generation(unit);
        trace(&mut tuner, unit.get());
    }
    tuner.recommend()
}

/// Offsets without a pattern.
fn scattered(count: u64) -> impl Iterator<Item = u64> {
    (1..=count).map(|index| index.wrapping_mul(0x9e37_79b9_7f4a_7c15) % OBJECT_BYTES)
}

#[test]
fn an_unknown_object_starts_at_2_mib() {
    assert_eq!(Tuner::new(TunerConfig::default(), OBJECT_BYTES).recommend(), UnitBytes::DEFAULT);
    assert_eq!(after_generations(3, |_, _| ()), UnitBytes::DEFAULT);
}

#[test]
fn a_few_faults_change_nothing() {
    let few = |tuner: &mut Tuner, unit| {
        (0..30).for_each(|index| tuner.observe_fault(index * unit, false, &mut |_| true))
    };
    assert_eq!(after_generations(3, few), UnitBytes::DEFAULT);
}

#[test]
fn a_scan_grows_the_unit_to_16_mib_and_no_further() {
    let scan = |tuner: &mut Tuner, unit| {
        (0..200).for_each(|index| tuner.observe_fault(index * unit, false, &mut |_| true))
    };
    assert_eq!(after_generations(1, scan).get(), 4 * MIB);
    assert_eq!(after_generations(3, scan).get(), 16 * MIB);
    assert_eq!(after_generations(9, scan).get(), 16 * MIB);
}

#[test]
fn a_scan_by_eight_threads_with_prefetch_is_a_scan() {
    let scan = |tuner: &mut Tuner, unit: u64| {
        for step in 0..40 {
            (0..8).for_each(|thread| {
                tuner.observe_fault(thread * (1 << 30) + step * 9 * unit, false, &mut |_| true)
            });
        }
    };
    assert_eq!(after_generations(1, scan).get(), 4 * MIB);
}

#[test]
fn units_of_which_little_is_used_shrink_to_what_is_used() {
    for used in [20 * KIB, 300 * KIB, 900 * KIB] {
        let sparse = |tuner: &mut Tuner, unit: u64| {
            for offset in scattered(200) {
                tuner.observe_eviction(unit, Some(used.min(unit)));
                tuner.observe_fault(offset, false, &mut |_| true);
            }
        };
        let unit = after_generations(8, sparse).get();
        assert_eq!(unit, UnitBytes::holding(used).get(), "{used} used");
    }
}

#[test]
fn what_was_measured_holds_while_nothing_else_is_known() {
    let mut tuner = Tuner::new(TunerConfig::default(), OBJECT_BYTES);
    tuner.begin_generation(UnitBytes::new(256 * KIB).unwrap());
    let mut faults = scattered(1000);
    let mut window = |tuner: &mut Tuner| {
        faults.by_ref().take(64).for_each(|offset| tuner.observe_fault(offset, true, &mut |_| false));
    };
    // Two evictions a window: the fourth window knows enough.
    for expected in [256, 256, 256, 64] {
        (0..2).for_each(|_| tuner.observe_eviction(256 * KIB, Some(64 * KIB)));
        window(&mut tuner);
        assert_eq!(tuner.recommend().get(), expected * KIB);
    }
    // Nothing is measured for a while.
    window(&mut tuner);
    assert_eq!(tuner.recommend().get(), 64 * KIB);
    // A scan ends what was known of reads at random.
    (0..64).for_each(|index| tuner.observe_fault(index * 256 * KIB, false, &mut |_| true));
    assert_eq!(tuner.recommend().get(), 512 * KIB);
    window(&mut tuner);
    assert_eq!(tuner.recommend().get(), 256 * KIB);
}

#[test]
fn units_that_are_used_whole_do_not_shrink_however_random_the_faults() {
    let random = |tuner: &mut Tuner, unit: u64| {
        for offset in scattered(200) {
            tuner.observe_eviction(unit, Some(unit * 3 / 4));
            tuner.observe_fault(offset, true, &mut |_| false);
        }
    };
    assert_eq!(after_generations(4, random), UnitBytes::DEFAULT);
}

#[test]
fn thrashing_on_random_faults_shrinks_the_unit_with_care() {
    let thrash = |tuner: &mut Tuner, _| {
        scattered(200).for_each(|offset| tuner.observe_fault(offset, true, &mut |_| false))
    };
    assert_eq!(after_generations(1, thrash).get(), MIB);
    assert_eq!(after_generations(9, thrash).get(), 256 * KIB);
    let fits = |tuner: &mut Tuner, _| {
        scattered(200).for_each(|offset| tuner.observe_fault(offset, false, &mut |_| false))
    };
    assert_eq!(
        after_generations(9, fits),
        UnitBytes::DEFAULT,
        "random faults of a set that fits are no reason"
    );
}

#[test]
fn a_changed_habit_is_followed_back() {
    let mut tuner = Tuner::new(TunerConfig::default(), OBJECT_BYTES);
    for offset in scattered(200) {
        tuner.observe_fault(offset, true, &mut |_| false);
    }
    assert_eq!(tuner.recommend().get(), MIB);
    tuner.begin_generation(tuner.recommend());
    (0..200).for_each(|index| tuner.observe_fault(index * MIB, false, &mut |_| true));
    assert_eq!(tuner.recommend().get(), 2 * MIB);
}

#[test]
fn jumps_in_an_object_of_few_units_are_no_sequence() {
    for units in [24, 48, 200, 1000] {
        let mut tuner = Tuner::new(TunerConfig::default(), units * 2 * MIB);
        for offset in scattered(200) {
            // A quarter of the object is here.
            let is_here =
                &mut |other: u64| (other / (2 * MIB)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0;
            tuner.observe_fault(offset % (units * 2 * MIB), true, is_here);
        }
        assert_eq!(tuner.recommend().get(), MIB, "{units} units");
    }
}

#[test]
fn a_habit_that_changes_for_ever_changes_the_unit_a_few_times() {
    let mut tuner = Tuner::new(TunerConfig::default(), OBJECT_BYTES);
    let mut units = vec![tuner.recommend()];
    for round in 0..200 {
        let unit = tuner.recommend();
        tuner.begin_generation(unit);
        match round % 2 {
            0 => (0..100).for_each(|index| tuner.observe_fault(index * unit.get(), true, &mut |_| false)),
            _ => scattered(100).for_each(|offset| tuner.observe_fault(offset, true, &mut |_| false)),
        }
        units.push(tuner.recommend());
    }
    let changes = units.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!((2..=12).contains(&changes), "{changes} changes");
    assert!(units[100..].iter().all(|unit| *unit == units[100]), "it stays in the end");
}

#[test]
fn a_tuner_that_is_off_recommends_its_start() {
    let mut tuner = Tuner::new(TunerConfig { enabled: false, ..TunerConfig::default() }, OBJECT_BYTES);
    (0..1000).for_each(|index| tuner.observe_fault(index * 2 * MIB, false, &mut |_| true));
    assert_eq!(tuner.recommend(), UnitBytes::DEFAULT);
}

proptest! {
    #[test]
    fn every_recommendation_is_within_the_limits_and_one_step_away(
        start in 0u32..11,
        faults in prop::collection::vec((any::<u64>(), any::<bool>(), prop::option::of(any::<u64>())), 0..400),
    ) {
        let start = UnitBytes::holding((64 * KIB) << start);
        let mut tuner = Tuner::new(TunerConfig { largest: UnitBytes::MAX, ..TunerConfig::default() }, OBJECT_BYTES);
        tuner.begin_generation(start);
        for (offset, is_refault, used) in faults {
            tuner.observe_eviction(start.get(), used);
            tuner.observe_fault(offset, is_refault, &mut |_| true);
            let recommended = tuner.recommend().get();
            prop_assert!(recommended <= 2 * start.get() && recommended >= (start.get() / 4).max(64 * KIB));
        }
    }
}
