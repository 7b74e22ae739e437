//! What is told of locks.

use hinterland_types::{GlobalAddress, NodeId, ObjectName, SessionId};
use serde::{Deserialize, Serialize};

/// How a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LockMode {
    /// With other readers.
    Read,
    /// Alone.
    Write,
}

/// Locks that one request keeps.
pub const LOCKS_KEPT_MAX: usize = 4096;

/// A lock that somebody holds or waits for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockInfo {
    /// The lock.
    pub address: GlobalAddress,
    /// The object that has the address, and the lock's offset in it; none if nobody could say.
    pub object: Option<(ObjectName, u64)>,
    /// The node that keeps the lock.
    pub home: NodeId,
    /// The fence of the last grant.
    pub fence: u64,
    /// Homes of pages that have yet to forget a writer that ended without saying that all had arrived.
    pub telling: u32,
    /// Those who hold it.
    pub holders: Vec<LockPerson>,
    /// Those who wait, first come first.
    pub waiters: Vec<LockPerson>,
}

/// One who holds a lock or waits for it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LockPerson {
    /// Its node.
    pub node: NodeId,
    /// Its session there.
    pub session: SessionId,
    /// Its process on that node's host; 0 if that is not known.
    pub pid: u32,
    /// How.
    pub mode: LockMode,
    /// Length of the range that a guard covers from the lock on; 0 without a guard.
    pub bytes: u64,
    /// For how long, in milliseconds.
    pub for_ms: u64,
    /// What is left of its node's lease at the lock's home, in milliseconds.
    pub left_ms: u64,
}

/// All locks of the pool that could be asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LockTable {
    /// Ascending by address.
    pub locks: Vec<LockInfo>,
    /// Nodes whose locks are not among them, and why.
    pub silent: Vec<(NodeId, String)>,
}
