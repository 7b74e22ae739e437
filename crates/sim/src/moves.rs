//! Moves of pages between four nodes in virtual time: the real directory, locks and heat over a network with faults.
//!
//! Every node holds pages of one region, keeps some locks and runs programs. Programs read and write words of pages, one under a lock
//! and one without, as loads and stores where the page is and as requests elsewhere; they keep writes under a lock and flush them together.
//! A node that finds a page hot takes it from its home, or has a copy of it for reads, by the steps of `node`'s `regions`, which this follows step by step, each under the
//! name that it has there. Nodes, their hosts and the directory die at any step, hosts stop for up to 30 seconds and go on as if nothing had
//! been, the network loses, delays, repeats and falls apart in every pattern of four in both directions or in one, and each clock runs at a
//! speed of its own.
//!
//! A run ends with an error if what programs saw of a word is not linearizable, so also if a write that was acknowledged is lost; if two
//! nodes serve a page, or a page is given to another while its home serves it; if the memory of a page goes before the
//! directory names another home and the word of the home points there; if a page home lets an access under a lock pass after its lease with the directory; or if anybody
//! waits for ever when all is calm.

mod access;
mod book;
mod copies;
mod directory;
mod faults;
mod home;
mod locking;
mod member;
mod node;
mod program;
mod settled;
mod taker;
mod world;

use crate::Broken;
use std::collections::BTreeMap;

/// A rule that a run breaks on purpose, to show that the simulator would notice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BrokenMoveRule {
    /// The taker serves the page when it has the bytes, before the directory has committed.
    ServesBeforeCommit,
    /// The taker takes a commit that was refused or not answered for one that was done.
    BelievesItsCommit,
    /// A taker that cannot ask the directory gives the page up.
    ForgetsInDoubt,
    /// A taker that was not told whether the directory has begun its move takes it for not begun.
    ForgetsIntents,
    /// A home that hears nothing thaws the page and asks nobody.
    ThawsOnSilence,
    /// The home gives the bytes of a page that it goes on serving.
    CopiesUnfrozen,
    /// The home does not wait for threads that are in the page.
    WaitsForNobody,
    /// The home lets go of the page when it was copied.
    DropsWhenCopied,
    /// A node that is started again serves what its memory has, before the directory knows that life.
    ServesBeforeJoin,
    /// Pages move away under programs that believe the words of an earlier life.
    ForgetsEarlierLives,
    /// Homes let every access under a lock pass.
    NoFences,
    /// A node that is cut off from the directory takes its lease to count for ever.
    BelievesItsLease,
    /// A home writes a page of which others have copies.
    WritesShared,
    /// A home that is started again serves while copies may count that its life before has given.
    ForgetsReaders,
    /// Programs believe what they read of a copy whose time is over.
    BelievesOldCopies,
    /// A copy counts from the answer of its home, not from the question.
    CountsFromTheAnswer,
}

impl BrokenMoveRule {
    /// Whether it is one of copies of pages.
    fn is_of_copies(self) -> bool {
        matches!(
            self,
            Self::WritesShared | Self::ForgetsReaders | Self::BelievesOldCopies | Self::CountsFromTheAnswer
        )
    }
}

/// Whom a crash hits that comes at a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Victim {
    /// The process whose step it is.
    Itself,
    /// The process on the other side: the home of a page that is taken, the taker of one that leaves.
    Other,
    /// The directory.
    Directory,
}

/// A crash at one step of an otherwise calm run, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CrashAt {
    /// The step.
    pub step: u64,
    /// Who dies.
    pub victim: Victim,
}

/// What a run did: one that did nothing has shown nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MoveReport {
    /// Pages that came to a node that took them.
    pub moved: u64,
    /// Moves that ended otherwise after the directory had begun them.
    pub ended: u64,
    /// Pages that a node thawed, because the directory said that they are its own.
    pub thawed: u64,
    /// Answers of the directory to commands of a life, or a move, that is over.
    pub fenced: u64,
    /// Reads and writes that were answered.
    pub done: u64,
    /// Of those, the ones under a lock.
    pub locked: u64,
    /// Of those, writes that were kept and flushed together.
    pub flushed: u64,
    /// Copies of pages that came to a node that reads them.
    pub copied: u64,
    /// Pages whose copies were taken back, or ran out, for a write or a move.
    pub recalled: u64,
    /// Reads that were answered by a copy.
    pub from_copies: u64,
    /// Reads of a copy that came too late to count.
    pub too_late: u64,
    /// Requests that met a page which had moved or was moving.
    pub missed: u64,
    /// Accesses under a lock that a fence stopped.
    pub refused: u64,
    /// Accesses under a lock that a node refused because it is cut off, and said so.
    pub cut_off: u64,
    /// Accesses that were answered on the side of the directory while the network was in pieces.
    pub went_on: u64,
    /// Crashes, pauses and cuts.
    pub faults: u64,
    /// Hosts that stopped for 30 seconds.
    pub long_pauses: u64,
    /// Which of the 14 sets of nodes were cut off: bit n for the set with the bits of n, from 1 to 14.
    pub cuts: u64,
    /// The same for cuts in one direction.
    pub one_way_cuts: u64,
    /// How often each step was reached.
    pub steps: BTreeMap<&'static str, u64>,
    /// The steps of a run without faults, in order, as long as there is time to recover from a crash.
    pub order: Vec<&'static str>,
    /// The step at which the crash of [`CrashAt`] came.
    pub crashed_at: Option<&'static str>,
}

impl MoveReport {
    /// Adds what another run did.
    pub fn add(&mut self, other: &Self) {
        self.moved += other.moved;
        self.ended += other.ended;
        self.thawed += other.thawed;
        self.fenced += other.fenced;
        self.done += other.done;
        self.locked += other.locked;
        self.flushed += other.flushed;
        self.missed += other.missed;
        self.copied += other.copied;
        self.recalled += other.recalled;
        self.from_copies += other.from_copies;
        self.too_late += other.too_late;
        self.refused += other.refused;
        self.cut_off += other.cut_off;
        self.went_on += other.went_on;
        self.faults += other.faults;
        self.long_pauses += other.long_pauses;
        self.cuts |= other.cuts;
        self.one_way_cuts |= other.one_way_cuts;
        for (step, times) in &other.steps {
            *self.steps.entry(step).or_default() += times;
        }
    }
}

/// Runs one seed with all faults.
///
/// # Errors
/// [`Broken`] says which promise was not kept.
pub fn run_moves(seed: u64, broken: Option<BrokenMoveRule>) -> Result<MoveReport, Broken> {
    world::World::new(seed, broken, false).run().map_err(|reason| Broken { seed, reason })
}

/// Runs one seed and gives what happened on the way, one a line.
pub fn trace_moves(seed: u64, broken: Option<BrokenMoveRule>) -> (Vec<String>, Result<MoveReport, Broken>) {
    let mut world = world::World::new(seed, broken, true);
    let outcome = world.run().map_err(|reason| Broken { seed, reason });
    (world.take_trace(), outcome)
}

/// Runs one seed without any fault but one crash, or without that.
///
/// # Errors
/// [`Broken`] says which promise was not kept.
pub fn run_moves_with_crash(
    seed: u64,
    broken: Option<BrokenMoveRule>,
    crash: Option<CrashAt>,
) -> Result<MoveReport, Broken> {
    world::World::calm(seed, broken, crash).run().map_err(|reason| Broken { seed, reason })
}
