//! Locks across four nodes in virtual time: the real lock home, holder and page home over a network with faults.
//!
//! Every node keeps some locks, holds some pages and runs programs that lock, read, write and unlock. The network loses,
//! delays, repeats and falls apart in every pattern of four; nodes stop for up to 30 seconds and go on as if nothing had
//! been, or die at any step and come back; each clock runs at a speed of its own. Programs write at once or keep writes and flush them
//! together; they do it without looking at the clock in half of the runs, so that nothing but the fence stops them. Readers ask to become
//! writers, and give that up. What they saw must be linearizable, a write that failed must have happened before somebody else had the
//! lock, or never, and whoever is told that a lock is held as before has it.

mod node;
mod program;
mod upgrade;
mod world;

use crate::Broken;

/// A rule that a run breaks on purpose, to show that the simulator would notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BrokenLockRule {
    /// Page homes let every access pass.
    NoFences,
    /// A lock home that is started again neither waits nor goes on above the fences of before.
    ForgetfulHome,
    /// Programs believe what they have cached for as long as they like.
    CachesForEver,
    /// Programs take what they have sent to have arrived, and give the lock back.
    UnlocksBeforeFlushed,
    /// The lock home takes page homes to have forgotten what they were told to forget.
    NobodyIsTold,
    /// Whoever gives an upgrade up gives it back, also if it was granted meanwhile.
    ReleasesUpgrades,
}

/// What a run did: one that did nothing has shown nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockReport {
    /// Locks that programs had.
    pub locked: u64,
    /// Reads that were answered, also from caches.
    pub reads: u64,
    /// Of those, from caches.
    pub cached: u64,
    /// Writes that were answered.
    pub writes: u64,
    /// Of those, buffered ones, which were flushed together.
    pub flushed: u64,
    /// Accesses that a page home refused.
    pub refused: u64,
    /// Locks that were lost while a program had them.
    pub lost: u64,
    /// Read locks that became write locks.
    pub upgraded: u64,
    /// Read locks that did not, and were held as before.
    pub kept: u64,
    /// Times that a node died or stopped.
    pub faults: u64,
}

impl LockReport {
    /// Adds what another run did.
    pub const fn add(&mut self, other: &Self) {
        self.locked += other.locked;
        self.reads += other.reads;
        self.cached += other.cached;
        self.writes += other.writes;
        self.flushed += other.flushed;
        self.refused += other.refused;
        self.lost += other.lost;
        self.upgraded += other.upgraded;
        self.kept += other.kept;
        self.faults += other.faults;
    }
}

/// Runs one seed.
///
/// # Errors
/// [`Broken`] says which promise was not kept.
pub fn run_locks(seed: u64, broken: Option<BrokenLockRule>) -> Result<LockReport, Broken> {
    world::World::new(seed, broken).run().map_err(|reason| Broken { seed, reason })
}
