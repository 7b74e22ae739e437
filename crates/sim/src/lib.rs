//! A seeded cluster in virtual time: directory, nodes and network with faults.
//!
//! The directory and the fetch and put machines are the real ones; the network, the store and the memory
//! of the nodes are models that lose, delay, repeat, crash and rot; hosts stop for up to 30 s and go on, and each clock runs at a
//! speed of its own. One seed is one run, always the same.
//! A run ends with an error if a promise was not kept:
//!
//! - an acknowledged object is readable while fewer nodes lost it than it had copies, and no copy of it is
//!   deleted on purpose if it is the last;
//! - no reader sees a byte that was not put under that name, and a name that was acknowledged is found;
//! - no page has two owners, and every other rule of the directory holds after every crash;
//! - when all is calm again, everything that was aborted or removed is free, on the nodes too, and every
//!   object has its copies back.
//!
//! Big clusters, where not promises but counts and loads are of interest, are another simulator: [`scale`].
#![forbid(unsafe_code)]

mod chaos;
mod directory_host;
mod failover;
pub mod history;
mod locks;
mod message;
mod moves;
mod network;
mod node;
mod random;
mod read_task;
pub mod scale;
mod settled;
mod truth;
mod world;

pub use failover::{BrokenLeaderRule, FailoverReport, run_failover};
pub use locks::{BrokenLockRule, LockReport, run_locks};
use message::{Address, Message};
pub use moves::{BrokenMoveRule, CrashAt, MoveReport, Victim, run_moves, run_moves_with_crash, trace_moves};
use truth::Fact;
use world::World;

/// A rule that a run breaks on purpose, to show that the simulator would notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BrokenRule {
    /// The user hears `Done` before the directory has committed.
    DoneBeforeCommit,
    /// The directory answers before what it answers is durable.
    AnswerBeforeDurable,
    /// Messages of an earlier life of a node count as those of its present one.
    NoIncarnations,
    /// A remove names no object, so that a repeated one may hit the successor.
    RemoveByName,
    /// A put that fails is undone at the homes before the directory has undone it.
    HomesLetGoFirst,
    /// Readers do not compare checksums.
    NoChecksums,
    /// The directory gives the pages of a removed object away without having written that they are free.
    FreesUnwritten,
}

/// What a run did: one that did nothing has shown nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Deliveries, wakes and faults.
    pub steps: u64,
    /// Puts whose users were told that they are done.
    pub puts_done: u64,
    /// Gets that found content.
    pub gets_found: u64,
    /// Removes that reached an object.
    pub removes: u64,
    /// Good copies that vanished with a node's memory or rotted.
    pub copies_lost: u64,
}

/// A promise that was not kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// The seed of the run.
    pub seed: u64,
    /// What was not kept.
    pub reason: String,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { seed, reason } = self;
        write!(
            f,
            "seed {seed}: {reason} (hint: HINTERLAND_SEED={seed}, for locks HINTERLAND_LOCK_SEED={seed}, for leaders HINTERLAND_FAILOVER_SEED={seed}, for moves HINTERLAND_MOVE_SEED={seed}, with cargo test -p hinterland-sim -- --nocapture)"
        )
    }
}

impl std::error::Error for Broken {}

/// Runs one seed.
///
/// # Errors
/// [`Broken`] says which promise was not kept.
pub fn run(seed: u64, broken: Option<BrokenRule>) -> Result<Report, Broken> {
    World::new(seed, broken, false).run().map_err(|reason| Broken { seed, reason })
}

/// Runs one seed and gives every message and fault on the way, one a line.
pub fn trace(seed: u64, broken: Option<BrokenRule>) -> (Vec<String>, Result<Report, Broken>) {
    let mut world = World::new(seed, broken, true);
    let outcome = world.run().map_err(|reason| Broken { seed, reason });
    (world.take_trace(), outcome)
}

/// What an actor wants done after it has handled one thing.
struct Outbox {
    from: Address,
    messages: Vec<(Address, Message)>,
    facts: Vec<Fact>,
    notes: Vec<String>,
    noting: bool,
}

impl Outbox {
    fn new(from: Address, noting: bool) -> Self {
        Self { from, messages: Vec::new(), facts: Vec::new(), notes: Vec::new(), noting }
    }

    fn send(&mut self, to: Address, message: Message) {
        self.messages.push((to, message));
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if self.noting {
            self.notes.push(text());
        }
    }
}
