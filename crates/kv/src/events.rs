//! What was stored and removed, in order, for routers that send requests to where their prefix is.

use crate::key::{BlockKey, Namespace};
use std::collections::VecDeque;

/// Events that are kept: a reader that falls behind by more has to look at the blocks anew.
const KEPT_MAX: usize = 1 << 16;
/// Bits of the numbers that one node gives.
const LIFE_BITS: u32 = 40;

/// One change of what is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A block became visible.
    Stored {
        /// Whose.
        namespace: Namespace,
        /// Its key.
        key: BlockKey,
        /// The block before it in its prefix, if that is there.
        parent: Option<BlockKey>,
        /// Its length.
        bytes: u32,
    },
    /// A block was evicted or removed.
    Removed {
        /// Whose.
        namespace: Namespace,
        /// Its key.
        key: BlockKey,
    },
}

/// A part of the record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Events {
    /// Number of the first of `events`; they count from one on.
    pub first: u64,
    /// In their order.
    pub events: Vec<Event>,
    /// Whether events before `first` were asked for and are not kept any more, or never were.
    pub lost: bool,
}

/// The record, kept once somebody has asked for it.
#[derive(Default)]
pub(crate) struct Journal {
    is_kept: bool,
    /// Number of the event that comes next.
    next: u64,
    events: VecDeque<Event>,
}

impl Journal {
    /// A record whose numbers are none of those that a node of before gave.
    pub(crate) fn of_life(life: u64) -> Self {
        Self { next: (life - 1) << LIFE_BITS, ..Self::default() }
    }

    pub(crate) fn add(&mut self, event: impl FnOnce() -> Event) {
        self.next = self.next.max(1) + 1;
        if self.is_kept {
            if self.events.len() == KEPT_MAX {
                self.events.pop_front();
            }
            self.events.push_back(event());
        }
    }

    pub(crate) fn after(&mut self, after: u64, limit: usize) -> Events {
        self.is_kept = true;
        let next = self.next.max(1);
        let oldest = next - self.events.len() as u64;
        let first = (after.saturating_add(1)).clamp(oldest, next);
        let events = self.events.iter().skip((first - oldest) as usize).take(limit).copied().collect();
        // A number that was never given is of a node before this one.
        Events { first, events, lost: after.saturating_add(1) < oldest || after >= next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed(number: u64) -> Event {
        // A key has a byte at least; a test fails by panicking.
        let key = BlockKey::new(&number.to_le_bytes()).unwrap_or_else(|error| panic!("{error}"));
        Event::Removed { namespace: Namespace(0), key }
    }

    #[test]
    fn each_event_is_told_once_and_what_is_not_kept_is_said_to_be_lost() {
        let mut journal = Journal::default();
        journal.add(|| removed(0));
        let start = journal.after(0, 10);
        assert!(start.lost && start.events.is_empty() && start.first == 2, "{start:?}");
        (0..5).for_each(|number| journal.add(|| removed(number)));
        let some = journal.after(start.first - 1, 3);
        assert_eq!((some.first, some.events.len(), some.lost), (2, 3, false));
        assert_eq!(some.events, [removed(0), removed(1), removed(2)]);
        let rest = journal.after(some.first + 2, 10);
        assert_eq!(rest.events, [removed(3), removed(4)]);
        assert_eq!(journal.after(rest.first + 1, 10), Events { first: 7, events: vec![], lost: false });
        (0..KEPT_MAX as u64 + 3).for_each(|number| journal.add(|| removed(number)));
        let late = journal.after(6, 1);
        assert!(late.lost && late.events == [removed(3)], "{late:?}");
        assert!(journal.after(u64::MAX - 1, 1).lost);
    }
}
