//! Tests of probation: against plain lists, and what it promises to callers.

use super::*;
use proptest::prelude::*;

fn key(unit: u32) -> UnitKey {
    UnitKey { object: 3, unit }
}

fn units(keys: &[UnitKey]) -> Vec<u32> {
    keys.iter().map(|key| key.unit).collect()
}

fn probe(cache: &mut Probation, units_max: usize) -> Vec<u32> {
    let mut out = Vec::new();
    cache.next_probe(units_max, &mut out);
    units(&out)
}

fn evict(cache: &mut Probation, bytes: u64) -> Vec<u32> {
    let mut out = Vec::new();
    cache.victims(bytes, &mut |_| true, &mut out);
    units(&out)
}

fn filled(count: u32) -> Probation {
    let mut cache = Probation::new(ProbationConfig::default());
    for unit in 0..count {
        cache.insert(key(unit), 1);
    }
    cache
}

/// The lists in plain vectors, oldest first; active units in LRU order.
#[derive(Default)]
struct Plain {
    active: Vec<(u32, u64)>,
    /// Unprobed, probed, asked.
    inactive: [Vec<(u32, u64)>; 3],
    /// Unit and the bytes that had left when it had.
    ghost: Vec<(u32, u64)>,
    left_bytes: u64,
}

fn total(list: &[(u32, u64)]) -> u64 {
    list.iter().map(|unit| unit.1).sum()
}

impl Plain {
    fn bytes(&self) -> u64 {
        total(&self.active) + self.inactive.iter().map(|list| total(list)).sum::<u64>()
    }

    fn take(&mut self, unit: u32) -> Option<(u32, u64)> {
        let lists = std::iter::once(&mut self.active).chain(&mut self.inactive);
        lists
            .into_iter()
            .find_map(|list| list.iter().position(|held| held.0 == unit).map(|at| list.remove(at)))
    }

    fn touch(&mut self, unit: u32) {
        if self.inactive[0].iter().any(|held| held.0 == unit) {
            return;
        }
        let held = self.take(unit);
        self.active.extend(held);
    }

    fn insert(&mut self, unit: u32, bytes: u64) {
        if self.active.iter().chain(self.inactive.iter().flatten()).any(|held| held.0 == unit) {
            return self.touch(unit);
        }
        let remembered = self.ghost.iter().position(|held| held.0 == unit).map(|at| self.ghost.remove(at));
        let is_soon = remembered.is_some_and(|held| self.left_bytes - held.1 <= total(&self.active));
        let list = if is_soon { &mut self.active } else { &mut self.inactive[0] };
        list.push((unit, bytes));
    }

    fn deactivate(&mut self, bytes: u64, may_move: impl Fn(u32) -> bool) {
        let mut moved = 0;
        while moved < bytes {
            let Some(at) = self.active.iter().position(|held| may_move(held.0)) else { break };
            let held = self.active.remove(at);
            moved += held.1;
            self.inactive[0].push(held);
        }
    }

    fn probe(&mut self, units_max: usize) -> Vec<u32> {
        let inactive: u64 = self.inactive.iter().map(|list| total(list)).sum();
        self.deactivate((self.bytes() / 100 * 33).saturating_sub(inactive), |_| true);
        let count = units_max.min(self.inactive[0].len());
        let moved: Vec<(u32, u64)> = self.inactive[0].drain(..count).collect();
        self.inactive[1].extend(&moved);
        moved.iter().map(|held| held.0).collect()
    }

    fn candidates(&mut self, bytes: u64) -> Vec<u32> {
        let mut out = Vec::new();
        let mut found = 0;
        while found < bytes && !self.inactive[1].is_empty() {
            let held = self.inactive[1].remove(0);
            found += held.1;
            out.push(held.0);
            self.inactive[2].push(held);
        }
        out
    }

    fn report(&mut self, unit: u32, was_touched: bool) -> bool {
        let Some(at) = self.inactive[2].iter().position(|held| held.0 == unit) else { return false };
        if was_touched {
            self.touch(unit);
        } else {
            let held = self.inactive[2].remove(at);
            self.remember(held);
        }
        !was_touched
    }

    fn remember(&mut self, (unit, bytes): (u32, u64)) {
        let limit = self.bytes() + bytes;
        self.left_bytes += bytes;
        self.ghost.push((unit, self.left_bytes));
        let left = self.left_bytes;
        self.ghost.retain(|held| left - held.1 < limit);
    }

    fn evict_from(&mut self, list: usize, bytes: u64, pinned: u32, out: &mut Vec<u32>) -> u64 {
        let (mut taken, mut at) = (0, 0);
        while taken < bytes && at < self.inactive[list].len() {
            if self.inactive[list][at].0 % 4 == pinned {
                at += 1;
                continue;
            }
            let held = self.inactive[list].remove(at);
            taken += held.1;
            out.push(held.0);
            self.remember(held);
        }
        taken
    }

    fn evict(&mut self, bytes: u64, pinned: u32) -> Vec<u32> {
        let mut out = Vec::new();
        let mut taken = 0;
        for list in [2, 1, 0] {
            taken += self.evict_from(list, bytes.saturating_sub(taken), pinned, &mut out);
        }
        if taken < bytes {
            self.deactivate(bytes - taken, |unit| unit % 4 != pinned);
            self.evict_from(0, bytes - taken, pinned, &mut out);
        }
        out
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u32, u64),
    Touch(u32),
    Remove(u32),
    Probe(usize),
    Ask(u64, u32),
    Evict(u64, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0u32..50, 1u64..9).prop_map(|(unit, bytes)| Step::Insert(unit, bytes)),
        4 => (0u32..50).prop_map(Step::Touch),
        1 => (0u32..50).prop_map(Step::Remove),
        3 => (0usize..12).prop_map(Step::Probe),
        1 => (0u64..20, any::<u32>()).prop_map(|(bytes, touched)| Step::Ask(bytes, touched)),
        2 => (0u64..30, 0u32..5).prop_map(|(bytes, pinned)| Step::Evict(bytes, pinned)),
    ];
    prop::collection::vec(step, 1..250)
}

proptest! {
    #[test]
    fn probation_does_what_plain_lists_do(steps in steps()) {
        let mut cache = Probation::new(ProbationConfig::default());
        let mut plain = Plain::default();
        for step in steps {
            match step {
                Step::Insert(unit, bytes) => {
                    cache.insert(key(unit), bytes);
                    plain.insert(unit, bytes);
                }
                Step::Touch(unit) => {
                    cache.touch(key(unit));
                    plain.touch(unit);
                }
                Step::Remove(unit) => {
                    cache.remove(key(unit));
                    plain.take(unit);
                    plain.ghost.retain(|held| held.0 != unit);
                }
                Step::Probe(units_max) => prop_assert_eq!(probe(&mut cache, units_max), plain.probe(units_max)),
                Step::Ask(bytes, touched) => {
                    let mut out = Vec::new();
                    cache.victim_candidates(bytes, &mut out);
                    prop_assert_eq!(units(&out), plain.candidates(bytes));
                    // Every third answer is still out when the next step comes.
                    for (index, &candidate) in out.iter().enumerate().filter(|(index, _)| index % 3 != 2) {
                        let was_touched = touched >> (index % 32) & 1 == 1;
                        let expected = plain.report(candidate.unit, was_touched);
                        prop_assert_eq!(cache.report(candidate, was_touched), expected);
                    }
                }
                Step::Evict(bytes, pinned) => {
                    let mut out = Vec::new();
                    let taken = cache.victims(bytes, &mut |key| key.unit % 4 != pinned, &mut out);
                    let before = plain.bytes();
                    prop_assert_eq!(units(&out), plain.evict(bytes, pinned));
                    prop_assert_eq!(taken, before - plain.bytes());
                }
            }
            prop_assert_eq!(cache.bytes(), plain.bytes());
            prop_assert_eq!(cache.bytes() - cache.inactive_bytes(), total(&plain.active));
        }
    }
}

#[test]
fn a_probed_unit_that_is_touched_outlives_one_that_is_not() {
    let mut cache = filled(4);
    assert_eq!(probe(&mut cache, 2), [0, 1]);
    cache.touch(key(0));
    assert_eq!(evict(&mut cache, 3), [1, 2, 3]);
    assert!(cache.contains(key(0)));
}

#[test]
fn no_unit_is_probed_twice_without_a_touch() {
    let mut cache = filled(10);
    assert_eq!(probe(&mut cache, 64).len(), 10);
    assert!(probe(&mut cache, 64).is_empty());
    cache.touch(key(4));
    assert!(probe(&mut cache, 64).is_empty(), "nine of ten are inactive already");
}

#[test]
fn active_units_are_probed_when_the_inactive_list_is_short() {
    let mut cache = filled(300);
    probe(&mut cache, 300);
    for unit in 0..300 {
        cache.touch(key(unit));
    }
    assert_eq!(cache.inactive_bytes(), 0);
    assert_eq!(probe(&mut cache, 64), (0..64).collect::<Vec<u32>>());
    assert_eq!(cache.inactive_bytes(), 99);
}

#[test]
fn without_probes_units_leave_first_in_first_out() {
    let mut cache = filled(5);
    cache.touch(key(0));
    assert_eq!(evict(&mut cache, 2), [0, 1], "the first touch of a new unit says nothing");
}

#[test]
fn active_units_leave_if_there_is_nothing_else() {
    let mut cache = filled(3);
    probe(&mut cache, 3);
    for unit in 0..3 {
        cache.touch(key(unit));
    }
    assert_eq!((evict(&mut cache, 2), cache.units()), (vec![0, 1], 1));
}

#[test]
fn a_unit_that_comes_back_soon_is_active_at_once() {
    let mut cache = filled(10);
    probe(&mut cache, 10);
    for unit in 5..10 {
        cache.touch(key(unit));
    }
    assert_eq!(evict(&mut cache, 2), [0, 1]);
    cache.insert(key(0), 1);
    cache.insert(key(20), 1);
    assert_eq!(cache.inactive_bytes(), 4, "2, 3, 4 and the unit that was never there");
}

#[test]
fn an_answer_that_comes_too_late_changes_nothing() {
    let mut cache = filled(4);
    probe(&mut cache, 4);
    let mut asked = Vec::new();
    assert_eq!(cache.victim_candidates(3, &mut asked), 3);
    cache.touch(asked[0]);
    cache.remove(asked[1]);
    assert!(!cache.report(asked[0], false), "it was touched meanwhile");
    assert!(!cache.report(asked[1], false), "it is gone");
    assert!(cache.report(asked[2], false));
    assert!(!cache.report(asked[2], false), "the second answer for it");
    assert_eq!(cache.units(), 2);
}
