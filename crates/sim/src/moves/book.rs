//! What was seen of each word, and what really happened to writes of which programs know nothing.

use crate::history::{Act, Operation, linearizable};
use hinterland_directory::locks::Fence;
use std::collections::BTreeMap;

/// What was seen of one word.
#[derive(Clone, Debug, Default)]
pub(super) struct Book {
    operations: Vec<(Fence, Operation)>,
    /// When each value was stored somewhere.
    landed: BTreeMap<u64, u64>,
}

impl Book {
    /// An access that was answered.
    pub fn done(&mut self, fence: Fence, begin: u64, end: u64, act: Act) {
        self.operations.push((fence, Operation { begin, end, act, may_be_lost: false }));
    }

    /// A write of which the program does not know what became.
    pub fn unknown(&mut self, fence: Fence, begin: u64, value: u64) {
        let act = Act::Write(value);
        self.operations.push((fence, Operation { begin, end: u64::MAX, act, may_be_lost: true }));
    }

    /// A value is stored.
    pub fn landed(&mut self, value: u64, stamp: u64) {
        self.landed.insert(value, stamp);
    }

    /// Whether one order explains all that was seen.
    pub fn check(&self) -> Result<(), String> {
        linearizable(&self.history())
    }

    /// A write of unknown fate that never arrived has no effect. One that did has it at that moment or, if what it was stored to did not count
    /// any more, never; and in any case before the first access under a later fence.
    fn history(&self) -> Vec<Operation> {
        let later = |fence: Fence| {
            let after = self.operations.iter().filter(move |(other, _)| *other > fence);
            after.map(|(_, operation)| operation.begin).min().unwrap_or(u64::MAX)
        };
        let settled = |(fence, operation): &(Fence, Operation)| match operation {
            Operation { may_be_lost: true, act: Act::Write(value), .. } => {
                let moment = (*self.landed.get(value)?).min(later(*fence));
                Some(Operation { begin: moment, end: moment, ..*operation })
            }
            _ => Some(*operation),
        };
        self.operations.iter().filter_map(settled).collect()
    }
}
