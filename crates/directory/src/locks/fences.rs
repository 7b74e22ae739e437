//! A page home's side: which fences an access under a lock may have.

use super::message::Fence;
use hinterland_types::{GlobalAddress, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Most locks that a page home remembers; it asks again about what it has forgotten.
const LOCKS_MAX: usize = 64 << 10;

/// Whether an access may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gate {
    /// It may.
    Open,
    /// Somebody with a higher fence was here.
    Old,
    /// The lock home has to be asked; then comes [`Fences::learned`] with this number.
    Ask(u64),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    home: NodeId,
    highest: Fence,
    /// The stretch of the lease with the lock home in which it was learned.
    term: u64,
}

/// What a page home knows of locks.
#[derive(Clone, Debug, Default)]
pub struct Fences {
    entries: BTreeMap<GlobalAddress, Entry>,
    /// Questions on their way; one that is told to forget meanwhile is asked again.
    asking: BTreeSet<(GlobalAddress, u64)>,
    asked: u64,
}

impl Fences {
    /// Judges an access under the lock on `address`. `term` is what the node's [`LockHolder`](super::LockHolder) says of the
    /// lock home.
    pub fn gate(
        &mut self,
        now_ms: u64,
        home: NodeId,
        address: GlobalAddress,
        fence: Fence,
        term: Option<(u64, u64)>,
    ) -> Gate {
        let known = self.entries.get_mut(&address).filter(|entry| {
            entry.home == home
                && term.is_some_and(|(term, until_ms)| term == entry.term && now_ms <= until_ms)
        });
        match known {
            Some(entry) if fence < entry.highest => Gate::Old,
            Some(entry) => {
                // Fences come from the lock home alone, and it would have had this one forgotten.
                entry.highest = fence;
                Gate::Open
            }
            None => {
                self.asked += 1;
                self.asking.insert((address, self.asked));
                Gate::Ask(self.asked)
            }
        }
    }

    /// The lock home said that a fence counts. False if it has taken that back meanwhile: judge again.
    pub fn learned(
        &mut self,
        number: u64,
        home: NodeId,
        address: GlobalAddress,
        fence: Fence,
        term: u64,
    ) -> bool {
        if !self.asking.remove(&(address, number)) {
            return false;
        }
        if self.entries.len() >= LOCKS_MAX {
            self.entries.pop_first();
        }
        let entry = self.entries.entry(address).or_insert(Entry { home, highest: fence, term });
        let is_same = entry.home == home && entry.term == term;
        let highest = if is_same { entry.highest.max(fence) } else { fence };
        *entry = Entry { home, highest, term };
        true
    }

    /// A question came to nothing.
    pub fn gave_up(&mut self, number: u64, address: GlobalAddress) {
        self.asking.remove(&(address, number));
    }

    /// Forgets a lock, because its home says so.
    pub fn forget(&mut self, address: GlobalAddress) {
        self.entries.remove(&address);
        let asked: Vec<_> = self.asking.range((address, 0)..=(address, u64::MAX)).copied().collect();
        for key in asked {
            self.asking.remove(&key);
        }
    }
}
