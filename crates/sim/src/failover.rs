//! A directory that several hosts may lead, in virtual time: the real directory and reign over a store with leases and comparisons.
//!
//! Three hosts stand for election in a model of etcd and answer clients; the network loses, delays and repeats, also requests to
//! the store; hosts stop for up to 30 s and go on with what they were about to do, die and come back, and are cut from the store in both
//! directions or in one; the store can be away as a whole; each clock runs at a speed of its own. Clients make, remove and look up names under numbers of requests and
//! ask again until somebody answers. A run ends with an error if a command was lost or done twice, if an answer came from a
//! host that did not lead any more, or if the records contradict each other.

mod client;
mod host;
mod store;
mod world;

use crate::Broken;

/// A rule that a run breaks on purpose, to show that the simulator would notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BrokenLeaderRule {
    /// The store does not look who leads.
    NoFence,
    /// The store does not look whether it has the transaction before.
    NoMark,
    /// Requests have no numbers.
    NoNumbers,
    /// A host believes that it leads until it is told otherwise.
    BelievesForEver,
    /// A host answers before what it answers is durable.
    AnswerBeforeDurable,
}

/// What a run did: one that did nothing has shown nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FailoverReport {
    /// Commands that were answered.
    pub answered: u64,
    /// Commands that were asked more than once.
    pub repeated: u64,
    /// Commands of which nobody knows whether they were carried out.
    pub unknown: u64,
    /// Elections.
    pub reigns: u64,
    /// Transactions that the store refused, because somebody else led or they came late.
    pub fenced: u64,
    /// Times that a host or the store died, stopped or was cut off.
    pub faults: u64,
}

impl FailoverReport {
    /// Adds what another run did.
    pub const fn add(&mut self, other: &Self) {
        self.answered += other.answered;
        self.repeated += other.repeated;
        self.unknown += other.unknown;
        self.reigns += other.reigns;
        self.fenced += other.fenced;
        self.faults += other.faults;
    }
}

/// Runs one seed.
///
/// # Errors
/// [`Broken`] says which promise was not kept.
pub fn run_failover(seed: u64, broken: Option<BrokenLeaderRule>) -> Result<FailoverReport, Broken> {
    world::World::new(seed, broken).run().map_err(|reason| Broken { seed, reason })
}
