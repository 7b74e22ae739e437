//! Which units leave next: a hand that goes round by address and passes over what is to stay for a while.

use crate::refault::{Clock, STAYS_MAX};
use crate::table::{Shared, Table};

/// Part of what is resident that was filled last and stays, whatever its address.
const YOUNG: u64 = 4;

/// Where the search goes on, and how much it respects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hand {
    at: u64,
    /// How far beyond `now` what is to stay longer leaves all the same, because nothing else was left.
    reach: Clock,
    /// Where to go on with what the kernel has refused to move.
    refused_at: u64,
}

impl Hand {
    /// Resident units, about so many bytes, in the order of addresses, blocks of `block_bytes` bytes whole; none only if nothing is resident that is not
    /// leaving.
    pub fn next<C: Shared>(
        &mut self,
        table: &Table<C>,
        now: Clock,
        bytes: u64,
        block_bytes: u64,
    ) -> Vec<(u64, u64)> {
        let resident = table.resident_bytes();
        let (usual, far) = (self.reach, STAYS_MAX.saturating_mul(resident));
        loop {
            let before = now.saturating_sub(resident / YOUNG).saturating_add(self.reach);
            let (found, next) = table.victims(self.at, bytes, block_bytes, before);
            let begun = std::mem::replace(&mut self.at, next.unwrap_or(0));
            if !found.is_empty() {
                if next.is_none() {
                    self.reach = (self.reach / 2).min(far);
                }
                return found;
            }
            if begun > 0 {
                continue;
            }
            if self.reach == Clock::MAX {
                self.reach = usual;
                return found;
            }
            // Whatever stays longer than that was to stay in a larger room than there is now.
            self.reach = if self.reach > far { Clock::MAX } else { (self.reach * 2).max(resident / 2 + 1) };
        }
    }

    /// As [`next`](Self::next), of what the kernel has refused to move, each in its turn: it may let it go by now.
    pub fn refused<C: Shared>(&mut self, table: &Table<C>, bytes: u64, block_bytes: u64) -> Vec<(u64, u64)> {
        let (found, next) = table.refused(self.refused_at, bytes, block_bytes);
        self.refused_at = next.unwrap_or(0);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;
    use crate::table::State;

    /// A table of one page for each stamp.
    fn table(stamps: &[Clock]) -> Table<()> {
        let mut table = Table::new(PAGE);
        table.add(PAGE, PAGE * (1 + stamps.len() as u64));
        for (index, stamp) in stamps.iter().enumerate() {
            table.set(PAGE * (1 + index as u64), State::Resident { clean: None, stamp: *stamp });
        }
        table
    }

    /// Takes out one page after the other; gives their numbers.
    fn order(table: &mut Table<()>, now: Clock) -> Vec<u64> {
        let (mut hand, mut order) = (Hand::default(), Vec::new());
        while let [(start, _)] = hand.next(table, now, PAGE, PAGE)[..] {
            table.leave(start..start + PAGE, start, true);
            order.push(start / PAGE - 1);
        }
        order
    }

    #[test]
    fn a_unit_that_is_larger_than_what_is_asked_for_leaves_all_the_same() {
        let mut table = table(&[0; 5]);
        let mut hand = Hand::default();
        for number in 1..=5 {
            assert_eq!(hand.next(&table, 100, PAGE / 8, PAGE), [(PAGE * number, PAGE * (number + 1))]);
            table.leave(PAGE * number..PAGE * (number + 1), number, true);
        }
        assert!(hand.next(&table, 100, PAGE / 8, PAGE).is_empty());
    }

    #[test]
    fn the_hand_goes_round_and_what_is_young_or_to_stay_leaves_last() {
        let now = 100 * PAGE;
        let (young, stays) = (now, now + 8 * PAGE);
        let mut table = table(&[stays, 0, young, 1, stays, 2]);
        let order = order(&mut table, now);
        assert_eq!(order[..3], [1, 3, 5]);
        assert_eq!(order[3], 2, "young, but not to stay");
        assert_eq!(order.len(), 6, "in the end everything can leave");
    }

    #[test]
    fn what_was_to_stay_in_a_much_larger_room_leaves_too() {
        let mut table = table(&[Clock::MAX - 1, 1 << 50, Clock::MAX / 2]);
        assert_eq!(order(&mut table, 7).len(), 3);
    }

    #[test]
    fn a_table_without_anything_resident_gives_nothing_and_the_hand_is_as_before() {
        let mut hand = Hand::default();
        let empty = table(&[]);
        assert!(hand.next(&empty, 5, PAGE, PAGE).is_empty());
        assert_eq!((hand.at, hand.reach), (0, 0));
    }
}
