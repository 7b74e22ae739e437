//! A node of the simulation: the real state machines of locks, and memory that outlives the node.

use super::program::Program;
use hinterland_directory::locks::{
    Fence, Fences, LockAnswer, LockAsk, LockHolder, LockHome, LockRequest, LockSettings,
};
use hinterland_types::{GlobalAddress, NodeId};
use std::collections::BTreeMap;

/// What nodes send each other.
#[derive(Clone, Debug)]
pub(super) enum Letter {
    /// Of the node's life, to a lock home; the rest comes back with the answer.
    Ask { life: u64, ask: LockAsk, echo: Echo },
    /// Of the lock home's life.
    Answer { life: u64, answer: LockAnswer, echo: Echo },
    /// Forget a lock.
    Tell { address: GlobalAddress, number: u64, life: u64 },
    /// It is forgotten.
    Told { address: GlobalAddress, number: u64, life: u64 },
    /// An access under a lock; writes if there is a value.
    Access { access: u64, register: usize, fence: Fence, write: Option<u64> },
    /// What came of it: the value, or that it was refused.
    Done { access: u64, value: Option<u64> },
}

/// What the asker wants to know of its question when the answer comes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Echo {
    Wish { request: LockRequest, sent_ms: u64 },
    Renewal { number: u64, sent_ms: u64 },
    Check { number: u64, sent_ms: u64 },
}

/// An access that waits for the lock home's word.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub from: NodeId,
    pub access: u64,
    pub register: usize,
    pub fence: Fence,
    pub write: Option<u64>,
}

/// What a life of a node knows.
pub(super) struct Running {
    pub home: LockHome,
    pub holder: LockHolder,
    pub fences: Fences,
    pub pending: BTreeMap<u64, Pending>,
    pub programs: Vec<Program>,
    pub renewed_ms: u64,
    /// It dies when so many more things have happened.
    pub fuse: Option<u64>,
}

/// A node, also while it is down.
pub(super) struct Node {
    pub id: NodeId,
    pub running: Option<Running>,
    /// Thousandths of the speed of time at which its clock runs.
    pub speed: u64,
    pub offset_ms: u64,
    pub stopped_until_ms: u64,
    /// On its disk.
    pub durable: Option<Fence>,
    pub lives: u64,
    /// In memory files, which outlive it.
    pub registers: BTreeMap<usize, u64>,
}

impl Node {
    pub fn clock_ms(&self, now_ms: u64) -> u64 {
        self.offset_ms + now_ms * self.speed / 1000
    }

    pub fn start(&mut self, now_ms: u64, settings: LockSettings, programs: usize, forgetful: bool) {
        self.lives += 1;
        let clock_ms = self.clock_ms(now_ms);
        let given = self.durable.filter(|_| !forgetful);
        self.running = Some(Running {
            home: LockHome::new(self.id, settings, given, clock_ms),
            holder: LockHolder::new(settings.lease_ms),
            fences: Fences::default(),
            pending: BTreeMap::new(),
            programs: vec![Program::new(clock_ms); programs],
            renewed_ms: 0,
            fuse: None,
        });
    }
}
