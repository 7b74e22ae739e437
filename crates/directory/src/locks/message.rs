//! What is asked of a lock home, and what it answers.

use hinterland_types::{GlobalAddress, NodeId, ObjectId, SessionId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum LockMode {
    /// With other readers.
    Read,
    /// Alone.
    Write,
}

/// One wish for a lock: a number that its node never uses again in this life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Serialize, Deserialize)]
pub struct LockRequest(pub u64);

/// A number that only grows, over all lives of a lock home: who has a higher one came later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default, Serialize, Deserialize)]
pub struct Fence(pub u64);

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fence {}", self.0)
    }
}

/// What a node asks of a lock home. Everything may be asked twice.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockAsk {
    /// Takes a lock → [`LockAnswer::Granted`], [`LockAnswer::Waiting`] or [`LockAnswer::Refused`].
    Acquire {
        /// The wish.
        request: LockRequest,
        /// For which program.
        session: SessionId,
        /// That program's process, for people.
        pid: u32,
        /// On what.
        address: GlobalAddress,
        /// What lies there as far as the node knows: addresses are given again, and another node may keep their locks by then.
        object: ObjectId,
        /// How many bytes from there on its program means to use, for people.
        bytes: u64,
        /// How.
        mode: LockMode,
        /// The read lock that becomes this one.
        replaces: Option<LockRequest>,
        /// Whether to stand in the queue if it is not free.
        wait: bool,
    },
    /// Gives a lock back, or leaves the queue → [`LockAnswer::Released`].
    Release {
        /// The wish.
        request: LockRequest,
        /// Whether all that was written under it is known to have arrived.
        clean: bool,
    },
    /// Says that the node lives → [`LockAnswer::Claims`].
    Renew,
    /// A page home has an access under a lock that it does not know → [`LockAnswer::Current`] or a refusal.
    Check {
        /// The lock.
        address: GlobalAddress,
        /// The access's fence.
        fence: Fence,
    },
    /// Who holds what → [`LockAnswer::Rows`].
    List,
    /// Leaves the queue, but gives back nothing that was granted → [`LockAnswer::Granted`] if it was, else [`LockAnswer::Released`].
    Withdraw {
        /// The wish.
        request: LockRequest,
    },
    /// Leaves the queue, or undoes the grant of an upgrade that nobody has heard of: its read lock is held as before → [`LockAnswer::Released`].
    TakeBack {
        /// The upgrade.
        request: LockRequest,
    },
}

/// What a lock home answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockAnswer {
    /// The lock is held.
    Granted {
        /// Its fence.
        fence: Fence,
    },
    /// The wish stands in the queue.
    Waiting,
    /// No.
    Refused(LockRefusal),
    /// The wish is forgotten.
    Released,
    /// All wishes of the node that the lock home knows.
    Claims(Vec<LockClaim>),
    /// The fence counts.
    Current,
    /// Locks, ascending by address.
    Rows(Vec<LockRow>),
}

/// One wish as the lock home knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockClaim {
    /// The wish.
    pub request: LockRequest,
    /// Its fence if it is granted; none while it waits.
    pub fence: Option<Fence>,
}

/// A lock that somebody holds or waits for, for people.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockRow {
    /// The lock.
    pub address: GlobalAddress,
    /// Of the last grant.
    pub fence: Fence,
    /// Those who hold it, in the order in which they got it.
    pub holders: Vec<LockWaiter>,
    /// Those who wait, first come first.
    pub waiters: Vec<LockWaiter>,
    /// Page homes that have yet to forget the fence of a writer that is gone.
    pub telling: u32,
}

/// One who holds a lock or waits for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockWaiter {
    /// Its node.
    pub node: NodeId,
    /// Its session there.
    pub session: SessionId,
    /// Its process.
    pub pid: u32,
    /// How.
    pub mode: LockMode,
    /// How many bytes from the lock's address on it means to use.
    pub bytes: u64,
    /// For how long, in milliseconds.
    pub for_ms: u64,
    /// What is left of its node's lease, in milliseconds.
    pub left_ms: u64,
}

/// Why a lock was not taken, or an access under it not let through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum LockRefusal {
    /// Somebody else has it, and nobody wanted to wait.
    #[error("others hold it (hint: wait longer; it is free at the latest when they end)")]
    Busy,
    /// The session holds or wants it already.
    #[error(
        "this session already holds a lock on it or waits for one (hint: unlock it first; locks are not re-entrant)"
    )]
    Held,
    /// The session has no such lock.
    #[error("this session holds no lock on it (hint: unlock once, through the pool that took the lock)")]
    NotHeld,
    /// Another reader waits for the same upgrade.
    #[error(
        "another reader already waits to become the writer: both would wait for ever (hint: unlock, then lock for writing and read again)"
    )]
    UpgradeConflict,
    /// The node asks for more than it may.
    #[error("its node holds or wants {0} locks there, the most it may (hint: give some back)")]
    Full(u32),
    /// The lock home cannot renew its own lease.
    #[error(
        "the node that keeps this lock cannot renew its lease at the directory, so it gives and honours no lock until it can (hint: it is cut off or the directory is down; see `hinterland status` there)"
    )]
    CutOff,
    /// The lock went to somebody else, or was forgotten by a lock home that was started again.
    #[error(
        "the lock is no longer held: its node was silent for longer than its lease, or the lock's node was started again; nothing was written (hint: lock again and read what others wrote)"
    )]
    Lost,
    /// A message from a life of a node that is over.
    #[error("the node that asks was started again since")]
    Stranger,
    /// The node has let go of what lay there, and keeps its locks no more.
    #[error("what lay there was removed (hint: look whether something else lies there, and lock again)")]
    Elsewhere,
}
