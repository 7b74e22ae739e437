//! Tests of the eviction orders: against plain lists, and the property that each one is known for.

use super::*;
use proptest::prelude::*;

fn key(unit: u32) -> UnitKey {
    UnitKey { object: 7, unit }
}

fn evict(policy: &mut dyn Eviction, bytes: u64) -> Vec<u32> {
    let mut out = Vec::new();
    policy.victims(bytes, &mut |_| true, &mut out);
    out.iter().map(|key| key.unit).collect()
}

proptest! {
    #[test]
    fn what_is_renewed_leaves_as_what_was_removed_and_inserted(steps in steps()) {
        for kind in EvictionKind::ALL {
            let (mut renewed, mut plain) = (kind.build(), kind.build());
            for step in &steps {
                match *step {
                    Step::Insert(unit, bytes) if renewed.contains(key(unit)) => {
                        renewed.renew(key(unit), bytes);
                        plain.remove(key(unit));
                        plain.insert(key(unit), bytes);
                    }
                    Step::Insert(unit, bytes) => {
                        renewed.insert(key(unit), bytes);
                        plain.insert(key(unit), bytes);
                    }
                    Step::Touch(unit) => {
                        renewed.touch(key(unit));
                        plain.touch(key(unit));
                    }
                    Step::Remove(unit) => {
                        renewed.remove(key(unit));
                        plain.remove(key(unit));
                    }
                    Step::Evict(bytes, _) => {
                        prop_assert_eq!(evict(&mut *renewed, bytes), evict(&mut *plain, bytes), "{}", kind);
                    }
                }
                prop_assert_eq!(renewed.bytes(), plain.bytes(), "{}", kind);
                (0..40).for_each(|unit| _ = renewed.load(key(unit)));
            }
            prop_assert_eq!(evict(&mut *renewed, u64::MAX), evict(&mut *plain, u64::MAX), "{}", kind);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u32, u64),
    Touch(u32),
    Remove(u32),
    Evict(u64, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u32..40, 1u64..9).prop_map(|(unit, bytes)| Step::Insert(unit, bytes)),
        4 => (0u32..40).prop_map(Step::Touch),
        1 => (0u32..40).prop_map(Step::Remove),
        2 => (0u64..30, 0u32..4).prop_map(|(bytes, pinned)| Step::Evict(bytes, pinned)),
    ];
    prop::collection::vec(step, 1..200)
}

/// The same orders in a plain vector, oldest first, each unit with its size and its referenced bit.
struct Plain {
    units: Vec<(u32, u64, bool)>,
    kind: EvictionKind,
}

impl Plain {
    fn touch(&mut self, unit: u32) {
        let Some(at) = self.units.iter().position(|held| held.0 == unit) else { return };
        match self.kind {
            EvictionKind::Lru => {
                let held = self.units.remove(at);
                self.units.push(held);
            }
            EvictionKind::Clock => self.units[at].2 = true,
            _ => {}
        }
    }

    fn evict(&mut self, bytes: u64, may_leave: impl Fn(u32) -> bool) -> Vec<u32> {
        let (mut taken, mut out) = (0, Vec::new());
        if self.kind == EvictionKind::Clock {
            let mut steps = 2 * self.units.len();
            while taken < bytes && steps > 0 && !self.units.is_empty() {
                steps -= 1;
                let (unit, size, referenced) = self.units.remove(0);
                if referenced || !may_leave(unit) {
                    self.units.push((unit, size, false));
                } else {
                    taken += size;
                    out.push(unit);
                }
            }
            return out;
        }
        self.units.retain(|&(unit, size, _)| {
            let leaves = taken < bytes && may_leave(unit);
            if leaves {
                taken += size;
                out.push(unit);
            }
            !leaves
        });
        out
    }
}

proptest! {
    #[test]
    fn lru_clock_and_fifo_do_what_a_plain_list_does(steps in steps(), which in 0usize..3) {
        let kind = [EvictionKind::Lru, EvictionKind::Clock, EvictionKind::Fifo][which];
        let mut policy = kind.build();
        let mut plain = Plain { units: Vec::new(), kind };
        for step in steps {
            match step {
                Step::Insert(unit, bytes) => {
                    policy.insert(key(unit), bytes);
                    if plain.units.iter().any(|held| held.0 == unit) {
                        plain.touch(unit);
                    } else {
                        plain.units.push((unit, bytes, false));
                    }
                }
                Step::Touch(unit) => {
                    policy.touch(key(unit));
                    plain.touch(unit);
                }
                Step::Remove(unit) => {
                    policy.remove(key(unit));
                    plain.units.retain(|held| held.0 != unit);
                }
                Step::Evict(bytes, pinned) => {
                    let may_leave = |unit: u32| unit % 4 != pinned;
                    let mut out = Vec::new();
                    let taken = policy.victims(bytes, &mut |key| may_leave(key.unit), &mut out);
                    let before: u64 = plain.units.iter().map(|held| held.1).sum();
                    let expected = plain.evict(bytes, may_leave);
                    let after: u64 = plain.units.iter().map(|held| held.1).sum();
                    prop_assert_eq!(out.iter().map(|key| key.unit).collect::<Vec<_>>(), expected);
                    prop_assert_eq!(taken, before - after);
                }
            }
            prop_assert_eq!(policy.bytes(), plain.units.iter().map(|held| held.1).sum::<u64>());
            prop_assert_eq!(policy.units(), plain.units.len());
        }
    }

    #[test]
    fn every_policy_frees_what_is_asked_if_it_can_and_never_a_pinned_unit(steps in steps(), which in 0usize..4) {
        let mut policy = EvictionKind::ALL[which].build();
        let mut sizes = std::collections::BTreeMap::new();
        for step in steps {
            match step {
                Step::Insert(unit, bytes) => {
                    policy.insert(key(unit), bytes);
                    sizes.entry(unit).or_insert(bytes);
                }
                Step::Touch(unit) => policy.touch(key(unit)),
                Step::Remove(unit) => {
                    policy.remove(key(unit));
                    sizes.remove(&unit);
                }
                Step::Evict(bytes, pinned) => {
                    let mut out = Vec::new();
                    let taken = policy.victims(bytes, &mut |key| key.unit % 4 != pinned, &mut out);
                    let sum: u64 = out.iter().map(|key| sizes.remove(&key.unit).expect("resident")).sum();
                    prop_assert_eq!(taken, sum);
                    prop_assert!(out.iter().all(|key| key.unit % 4 != pinned));
                    let left = sizes.keys().any(|unit| unit % 4 != pinned);
                    prop_assert!(taken >= bytes || !left, "{} of {} with units left", taken, bytes);
                }
            }
            prop_assert_eq!(policy.bytes(), sizes.values().sum::<u64>());
            prop_assert!(sizes.keys().all(|&unit| policy.contains(key(unit))));
        }
    }

    #[test]
    fn a_ghost_recalls_the_bytes_that_left_since(sizes in prop::collection::vec(1u64..10, 1..50), limit in 1u64..100) {
        let mut ghost = Ghost::new(limit);
        for (unit, &bytes) in sizes.iter().enumerate() {
            ghost.remember(key(unit as u32), bytes);
        }
        for unit in 0..sizes.len() {
            let since: u64 = sizes[unit + 1..].iter().sum();
            prop_assert_eq!(ghost.recall(key(unit as u32)), (since < limit).then_some(since));
        }
        prop_assert_eq!(ghost.units(), 0);
    }
}

#[test]
fn a_scan_does_not_flush_what_s3fifo_has_proven() {
    let mut policy = S3Fifo::new();
    for unit in 0..100 {
        policy.insert(key(unit), 1);
        policy.touch(key(unit));
    }
    for unit in 1000..2000 {
        policy.insert(key(unit), 1);
        assert_eq!(evict(&mut policy, 1).len(), 1);
    }
    let kept = (0..100).filter(|&unit| policy.contains(key(unit))).count();
    assert!(kept >= 85, "{kept} of 100 hot units survived a scan of 1000");
}

#[test]
fn a_unit_that_comes_back_soon_enters_the_main_queue_of_s3fifo() {
    let mut policy = S3Fifo::new();
    for unit in 0..10 {
        policy.insert(key(unit), 1);
    }
    assert_eq!(evict(&mut policy, 1), [0]);
    policy.insert(key(0), 1);
    // Newcomers leave before it, although it is the last but one.
    assert_eq!(evict(&mut policy, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(policy.contains(key(0)));
}

#[test]
fn a_policy_of_pinned_units_gives_up() {
    for kind in EvictionKind::ALL {
        let mut policy = kind.build();
        for unit in 0..5 {
            policy.insert(key(unit), 3);
            policy.touch(key(unit));
        }
        let mut out = Vec::new();
        assert_eq!(policy.victims(6, &mut |_| false, &mut out), 0, "{kind}");
        assert_eq!((out.len(), policy.bytes()), (0, 15));
        assert_eq!(policy.victims(6, &mut |_| true, &mut out), 6, "{kind}");
    }
}

#[test]
fn names_lead_to_kinds_and_back() {
    for kind in EvictionKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
        assert_eq!(kind.to_string().to_uppercase().parse(), Ok(kind));
    }
    let refused = "random".parse::<EvictionKind>().unwrap_err();
    assert!(refused.to_string().contains("hint: lru, clock, s3fifo or fifo"));
}
