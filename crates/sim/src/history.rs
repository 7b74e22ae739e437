//! Whether a history of one register is linearizable: the search of Wing and Gong, with what was seen remembered.
//!
//! J. M. Wing, C. Gong: "Testing and Verifying Concurrent Objects", 1993; the memory of seen states is that of G. Lowe: "Testing
//! for linearizability", 2017.

use std::collections::HashSet;

/// Most states that are looked at: a history that is good is seen to be after little more than its length.
const STATES_MAX: usize = 100_000;

/// What an operation did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// It saw this value.
    Read(u64),
    /// It wrote this value.
    Write(u64),
}

/// One operation on the register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// When it began.
    pub begin: u64,
    /// When it was over at the latest.
    pub end: u64,
    /// What it did.
    pub act: Act,
    /// Whether it may never have happened; if it did, then before `end`.
    pub may_be_lost: bool,
}

/// Looks for an order in which every operation has its effect at one moment between its begin and its end, each read sees
/// the last write, and the register starts as 0.
///
/// # Errors
/// A sentence with the operations around which there is none, or none was found among 100 000 beginnings of one.
pub fn linearizable(operations: &[Operation]) -> Result<(), String> {
    let mut sorted = operations.to_vec();
    sorted.sort_by_key(|operation| (operation.begin, operation.end));
    let mut search = Search { operations: &sorted, seen: HashSet::new(), furthest: 0 };
    let start = State { done: vec![0; sorted.len().div_ceil(64)], value: 0, latest_begin: 0, first_open: 0 };
    if search.run(start) {
        return Ok(());
    }
    let from = search.furthest.saturating_sub(4);
    let around: Vec<_> =
        sorted.iter().skip(from).take(10).map(|operation| format!("{operation:?}")).collect();
    Err(format!("no order explains what was seen around: {}", around.join("; ")))
}

#[derive(Clone)]
struct State {
    done: Vec<u64>,
    value: u64,
    /// The latest begin of all that are done: nothing that must have ended before may follow.
    latest_begin: u64,
    /// Everything before is done.
    first_open: usize,
}

impl State {
    fn is_done(&self, index: usize) -> bool {
        self.done[index / 64] & (1 << (index % 64)) != 0
    }
}

struct Search<'a> {
    operations: &'a [Operation],
    seen: HashSet<(Vec<u64>, u64)>,
    furthest: usize,
}

impl Search<'_> {
    fn run(&mut self, start: State) -> bool {
        // A stack of its own: histories may be longer than the thread's.
        let mut open = vec![start];
        while let Some(state) = open.pop() {
            if !self.seen.insert((state.done.clone(), state.value)) {
                continue;
            }
            if self.seen.len() > STATES_MAX {
                return false;
            }
            self.furthest = self.furthest.max(state.first_open);
            let left = || (state.first_open..self.operations.len()).filter(|index| !state.is_done(*index));
            if left().all(|index| self.operations[index].may_be_lost) {
                return true;
            }
            let must = left().filter(|index| !self.operations[*index].may_be_lost);
            let earliest_end = must.map(|index| self.operations[index].end).min().unwrap_or(u64::MAX);
            let before = open.len();
            for index in left() {
                let operation = self.operations[index];
                if operation.begin > earliest_end {
                    break;
                }
                // Somebody who began later has had its effect.
                if operation.end < state.latest_begin {
                    continue;
                }
                let value = match operation.act {
                    Act::Read(value) if value != state.value => continue,
                    Act::Read(value) | Act::Write(value) => value,
                };
                let mut next = state.clone();
                next.value = value;
                next.done[index / 64] |= 1 << (index % 64);
                next.latest_begin = next.latest_begin.max(operation.begin);
                self.settle(&mut next);
                open.push(next);
            }
            // The earliest is tried first: most histories are nearly in order.
            open[before..].reverse();
        }
        false
    }

    /// What can have no effect any more counts as done, so that it does not double the states from there on.
    fn settle(&self, state: &mut State) {
        for index in state.first_open..self.operations.len() {
            let operation = self.operations[index];
            if operation.begin > state.latest_begin {
                break;
            }
            if operation.may_be_lost && operation.end < state.latest_begin {
                state.done[index / 64] |= 1 << (index % 64);
            }
        }
        while state.first_open < self.operations.len() && state.is_done(state.first_open) {
            state.first_open += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sure(begin: u64, end: u64, act: Act) -> Operation {
        Operation { begin, end, act, may_be_lost: false }
    }

    fn unsure(begin: u64, end: u64, act: Act) -> Operation {
        Operation { begin, end, act, may_be_lost: true }
    }

    #[test]
    fn one_after_the_other_is_good() {
        let history = [
            sure(0, 1, Act::Read(0)),
            sure(2, 3, Act::Write(1)),
            sure(4, 5, Act::Read(1)),
            sure(6, 7, Act::Write(2)),
            sure(8, 9, Act::Read(2)),
        ];
        assert_eq!(linearizable(&history), Ok(()));
    }

    #[test]
    fn a_read_of_what_was_overwritten_before_it_began_is_bad() {
        let history = [sure(0, 1, Act::Write(1)), sure(2, 3, Act::Write(2)), sure(4, 5, Act::Read(1))];
        assert!(linearizable(&history).unwrap_err().contains("Read(1)"));
    }

    #[test]
    fn operations_that_overlap_may_come_in_either_order_but_in_one_for_all() {
        let writes = [sure(0, 10, Act::Write(1)), sure(0, 10, Act::Write(2))];
        let seen = |first, second| {
            let reads = [sure(11, 12, Act::Read(first)), sure(13, 14, Act::Read(second))];
            linearizable(&[&writes[..], &reads[..]].concat())
        };
        assert_eq!(seen(1, 1), Ok(()));
        assert_eq!(seen(2, 2), Ok(()));
        assert!(seen(1, 2).is_err());
    }

    #[test]
    fn a_new_value_that_was_seen_is_not_unseen() {
        let history = [sure(0, 100, Act::Write(1)), sure(10, 20, Act::Read(1)), sure(30, 40, Act::Read(0))];
        assert!(linearizable(&history).is_err());
    }

    #[test]
    fn a_write_of_unknown_end_may_have_happened_or_not() {
        for seen in [0, 1] {
            let history = [unsure(0, 50, Act::Write(1)), sure(60, 61, Act::Read(seen))];
            assert_eq!(linearizable(&history), Ok(()), "{seen}");
        }
        let late = [unsure(0, 50, Act::Write(1)), sure(60, 61, Act::Read(0)), sure(62, 63, Act::Read(1))];
        assert!(linearizable(&late).is_err(), "it landed after its time");
    }

    #[test]
    fn a_value_that_nobody_wrote_is_bad() {
        assert!(linearizable(&[sure(0, 1, Act::Read(7))]).is_err());
    }

    #[test]
    fn many_that_overlap_are_found_in_time() {
        // Twelve writers at once: without memory this would be 12! orders.
        let mut history: Vec<_> =
            (1..=12).map(|value| sure(value, 1000 + value, Act::Write(value))).collect();
        history.extend((1..=12).map(|value| sure(2000 + value, 2000 + value, Act::Read(1))));
        assert_eq!(linearizable(&history), Ok(()));
    }

    #[test]
    fn random_histories_of_a_real_register_are_good_and_with_one_lie_bad() {
        let mut random = crate::random::Random::new(5);
        for _ in 0..200 {
            let mut history = Vec::new();
            let mut value = 0;
            for moment in 1..60_u64 {
                let (begin, end) =
                    (moment * 10 - random.below(25).min(moment * 10), moment * 10 + random.below(25));
                let act = if random.percent(40) {
                    value = moment;
                    Act::Write(moment)
                } else {
                    Act::Read(value)
                };
                history.push(sure(begin, end, act));
            }
            assert_eq!(linearizable(&history), Ok(()));
            let last = history.len() as u64 * 10 + 1000;
            history.push(sure(last, last + 1, Act::Read(1_000_000)));
            assert!(linearizable(&history).is_err());
        }
    }
}
