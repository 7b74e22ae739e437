//! A program of the simulation: it locks, reads and writes a register, unlocks, and notes what it saw.

use crate::history::{Act, Operation};
use hinterland_directory::locks::{Fence, LockMode, LockRequest};

/// What a program is doing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Doing {
    /// Nothing, until this moment of its node's clock.
    Resting { until_ms: u64 },
    /// It waits for a lock, until this moment.
    Locking { request: LockRequest, until_ms: u64 },
    /// It has a lock for reading and waits for one for writing, until this moment.
    Upgrading { request: LockRequest, until_ms: u64 },
    /// It has given that up and waits for the lock home's word, until this moment.
    Withdrawing { request: LockRequest, until_ms: u64 },
    /// It has the lock and asks for an access, until this moment.
    Asking { access: u64, begin: u64, act: Act, until_ms: u64 },
    /// It has the lock and thinks.
    Holding,
}

/// One program.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub doing: Doing,
    pub register: usize,
    pub mode: LockMode,
    pub request: LockRequest,
    pub fence: Fence,
    /// Accesses that are left to do under the lock.
    pub left: u64,
    /// Whether all that was written is known to have arrived.
    pub is_clean: bool,
    pub cached: Option<u64>,
    /// It was told in this term of the lease that it has its read lock as before.
    pub kept: Option<u64>,
    /// Values that are to be written, each with its begin.
    pub pending: Vec<(u64, u64)>,
    /// The same that are on their way, but for the last, which is what is asked.
    pub flying: Vec<(u64, u64)>,
}

impl Program {
    pub fn new(until_ms: u64) -> Self {
        Self {
            doing: Doing::Resting { until_ms },
            register: 0,
            mode: LockMode::Read,
            request: LockRequest(0),
            fence: Fence(0),
            left: 0,
            is_clean: true,
            cached: None,
            kept: None,
            pending: Vec::new(),
            flying: Vec::new(),
        }
    }
}

/// What was seen of one register.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    operations: Vec<(Fence, Operation)>,
}

impl Seen {
    /// An access that was answered.
    pub fn done(&mut self, fence: Fence, begin: u64, end: u64, act: Act) {
        self.operations.push((fence, Operation { begin, end, act, may_be_lost: false }));
    }

    /// A write of which nobody knows what became.
    pub fn unknown(&mut self, fence: Fence, begin: u64, value: u64) {
        let act = Act::Write(value);
        self.operations.push((fence, Operation { begin, end: u64::MAX, act, may_be_lost: true }));
    }

    /// The history: a write of unknown fate has its effect before the first access under a later fence, or never.
    pub fn history(&self) -> Vec<Operation> {
        let later = |fence: Fence| {
            let after = self.operations.iter().filter(move |(other, _)| *other > fence);
            after.map(|(_, operation)| operation.begin).min()
        };
        let settled = |(fence, operation): &(Fence, Operation)| match operation.may_be_lost {
            true => Operation { end: later(*fence).unwrap_or(u64::MAX), ..*operation },
            false => *operation,
        };
        self.operations.iter().map(settled).collect()
    }
}
