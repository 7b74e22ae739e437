//! A program of the simulation: what it is doing, and the access that it is in.

use crate::history::Act;
use hinterland_directory::locks::{Fence, LockMode, LockRequest};

/// What a program is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doing {
    /// Nothing, until this moment of its host's clock.
    Resting { until_ms: u64 },
    /// It waits for a lock, until this moment.
    Locking { until_ms: u64 },
    /// It has the lock of its page.
    Holding,
    /// It accesses a word without a lock.
    Plain,
}

/// How far an access is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// It looks at the page's word, not before this moment.
    Looking { at_ms: u64 },
    /// Its thread is in the page, between the look at the word and the load or store.
    Inside,
    /// A home was asked, and is waited for until this moment.
    Asking { until_ms: u64 },
}

/// One access to one word of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Going {
    pub number: u64,
    pub word: usize,
    pub act: Act,
    pub begin: u64,
    pub phase: Phase,
    /// The page was not where its word said.
    pub is_missed: bool,
    /// Its thread is in a copy of the page.
    pub is_in_copy: bool,
    /// When the program gives up.
    pub patience_ms: u64,
}

/// One program.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub doing: Doing,
    pub going: Option<Going>,
    pub page: usize,
    pub mode: LockMode,
    pub request: LockRequest,
    pub fence: Fence,
    /// Accesses that are left to do under the lock.
    pub left: u64,
    /// Whether all that was written is known to have arrived.
    pub is_clean: bool,
    /// Writes that are kept, each with its begin.
    pub pending: Vec<(u64, u64)>,
    /// The same that are on their way, but for the last, which is what is asked.
    pub flying: Vec<(u64, u64)>,
    /// The life of the node whose words it has.
    pub life: u64,
    /// Words that it reads at the end.
    pub last_reads: Vec<(usize, usize)>,
}

impl Program {
    pub fn new(until_ms: u64) -> Self {
        Self {
            doing: Doing::Resting { until_ms },
            going: None,
            page: 0,
            mode: LockMode::Read,
            request: LockRequest(0),
            fence: Fence(0),
            left: 0,
            is_clean: true,
            pending: Vec::new(),
            flying: Vec::new(),
            life: 0,
            last_reads: Vec::new(),
        }
    }

    /// Whether its thread is in the page.
    pub fn is_inside(&self, page: usize) -> bool {
        self.page == page && self.going.is_some_and(|going| going.phase == Phase::Inside)
    }

    /// Whether what it does is under a lock.
    pub fn is_guarded(&self) -> bool {
        self.doing == Doing::Holding
    }
}
