//! Which memory is worth a huge page again.
//!
//! What leaves and comes back does so in small pages, and a program that asked for huge ones then walks page tables more often: touches at random places
//! take up to twice as long. Making a huge page costs a copy of 2 MiB, and the first part of it that leaves undoes it. So it pays where nothing
//! has come or gone for a while, in a run that does not fill much just now.

use crate::refault::Clock;
use crate::table::{Shared, State, Table};
use std::collections::BTreeMap;

/// Bytes of a huge page.
pub const HUGE_BYTES: u64 = 2 << 20;
/// Huge pages' places that one look goes over.
const LOOKED_AT: usize = 256;
/// Of the room, what may be filled between two looks where making huge pages still pays.
const CALM_SHARE: u64 = 8;

/// Places of huge pages, as they were when they were last looked at.
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    /// What came when, as one number, and whether it was proposed; of those that were here as a whole.
    seen: BTreeMap<u64, (u64, bool)>,
    /// Where the next look begins.
    at: u64,
    /// The clock of the last look.
    looked: Clock,
}

impl Blocks {
    /// Places that are here as a whole, and were so with the same content when they were last looked at: at most so many, each once until something changes there.
    pub fn next<C: Shared>(&mut self, table: &Table<C>, now: Clock, room: u64, most: usize) -> Vec<u64> {
        let filled = now - std::mem::replace(&mut self.looked, now).min(now);
        let is_calm = filled <= room / CALM_SHARE;
        let mut found = Vec::new();
        let mut looked_at = 0;
        for (start, end) in table.known(self.at, u64::MAX) {
            let mut block = start.next_multiple_of(HUGE_BYTES);
            while block + HUGE_BYTES <= end {
                if looked_at == LOOKED_AT || found.len() == most {
                    self.at = block;
                    return found;
                }
                looked_at += 1;
                if self.is_worth(table, block) && is_calm {
                    found.push(block);
                    if let Some(seen) = self.seen.get_mut(&block) {
                        seen.1 = true;
                    }
                }
                block += HUGE_BYTES;
            }
        }
        // At the end of a round, what is no memory any more is forgotten.
        self.at = 0;
        self.seen.retain(|block, _| table.unit(*block).is_some());
        found
    }

    /// Notes a place as it is, and says whether it stayed so since the last look and was not proposed.
    fn is_worth<C: Shared>(&mut self, table: &Table<C>, block: u64) -> bool {
        if table.resident_end(block, HUGE_BYTES) < block + HUGE_BYTES {
            self.seen.remove(&block);
            return false;
        }
        let stamps = stamps(table, block);
        match self.seen.insert(block, (stamps, false)) {
            Some((before, was_proposed)) if before == stamps => {
                self.seen.insert(block, (stamps, was_proposed));
                !was_proposed
            }
            _ => false,
        }
    }
}

/// When each unit of a block came, as one number.
fn stamps<C: Shared>(table: &Table<C>, block: u64) -> u64 {
    let (mut at, mut sum) = (block, 0xcbf2_9ce4_8422_2325u64);
    while at < block + HUGE_BYTES
        && let Some((_, end)) = table.unit(at)
    {
        if let Some(State::Resident { stamp, .. }) = table.state(at) {
            sum = (sum ^ stamp).wrapping_mul(0x0100_0000_01b3);
        }
        at = end;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE;

    const START: u64 = 10 * HUGE_BYTES;
    const ROOM: u64 = 1 << 30;

    /// A table of so many huge pages' places, all here since the moment 5.
    fn table(blocks: u64) -> Table<()> {
        let mut table = Table::new(PAGE);
        table.add(START - PAGE, START + blocks * HUGE_BYTES + PAGE);
        table.update(START - PAGE..START + blocks * HUGE_BYTES + PAGE, |unit| {
            *unit = State::Resident { clean: None, stamp: 5 };
        });
        table
    }

    #[test]
    fn what_stays_as_it_is_is_proposed_once() {
        let (table, mut blocks) = (table(3), Blocks::default());
        assert_eq!(blocks.next(&table, 9, ROOM, 8), [], "seen for the first time");
        assert_eq!(blocks.next(&table, 9, ROOM, 8), [0, 1, 2].map(|block| START + block * HUGE_BYTES));
        assert_eq!(blocks.next(&table, 9, ROOM, 8), []);
    }

    #[test]
    fn what_changed_is_proposed_when_it_has_stayed_again() {
        let (mut table, mut blocks) = (table(2), Blocks::default());
        for _ in 0..2 {
            blocks.next(&table, 9, ROOM, 8);
        }
        let page = START + 7 * PAGE;
        table.set(page, State::Untouched);
        assert_eq!(blocks.next(&table, 9, ROOM, 8), []);
        table.set(page, State::Resident { clean: None, stamp: 11 });
        assert_eq!(blocks.next(&table, 11, ROOM, 8), []);
        assert_eq!(blocks.next(&table, 11, ROOM, 8), [START]);
        // It came back between two looks.
        table.set(page, State::Resident { clean: None, stamp: 12 });
        assert_eq!(blocks.next(&table, 12, ROOM, 8), []);
        assert_eq!(blocks.next(&table, 12, ROOM, 8), [START]);
    }

    #[test]
    fn nothing_is_proposed_while_much_is_filled() {
        let (table, mut blocks) = (table(1), Blocks::default());
        blocks.next(&table, 9, ROOM, 8);
        assert_eq!(blocks.next(&table, 10 + ROOM / CALM_SHARE, ROOM, 8), []);
        assert_eq!(blocks.next(&table, 10 + ROOM / CALM_SHARE, ROOM, 8), [START]);
    }

    #[test]
    fn few_at_once_and_all_in_the_end_and_what_is_gone_is_forgotten() {
        let count = 2 * LOOKED_AT as u64 + 10;
        let (mut table, mut blocks) = (table(count), Blocks::default());
        let mut found = Vec::new();
        for _ in 0..600 {
            let next = blocks.next(&table, 9, ROOM, 3);
            assert!(next.len() <= 3);
            found.extend(next);
        }
        found.sort_unstable();
        assert_eq!(found, (0..count).map(|block| START + block * HUGE_BYTES).collect::<Vec<_>>());
        table.unmap(START, START + count * HUGE_BYTES);
        for _ in 0..4 {
            blocks.next(&table, 9, ROOM, 3);
        }
        assert!(blocks.seen.is_empty());
    }
}
