//! What a node tells of itself: counters, members, cache, problems.

use hinterland_types::{NodeId, NodeName, RackName};
use serde::{Deserialize, Serialize};

/// Counters since the node started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Bytes that fills received from other nodes.
    pub network_received_bytes: u64,
    /// Bytes that this node sent to others.
    pub network_sent_bytes: u64,
    /// Fault events that programs raised.
    pub faults: u64,
    /// Fault units filled because a program touched them.
    pub demand_fills: u64,
    /// Fault units filled ahead of a touch.
    pub prefetch_fills: u64,
    /// Bytes written into cache files.
    pub filled_bytes: u64,
    /// Fault units evicted.
    pub evictions: u64,
    /// Bytes freed by eviction.
    pub evicted_bytes: u64,
    /// Blocks whose checksum was wrong on arrival.
    pub checksum_failures: u64,
    /// Fetches that went to another replica after a failure.
    pub failovers: u64,
    /// Faults that ended in SIGBUS because no replica answered.
    pub poisoned_faults: u64,
    /// Requests answered over rings.
    pub ring_requests: u64,
    /// Microseconds that demand fills took, summed.
    pub demand_fill_us: u64,
    /// Lost copies that this node made again.
    pub copies_made: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Pages of regions that came here because this rack uses them.
    pub pages_taken: u64,
    /// Pages of regions that other nodes took from this one.
    pub pages_given: u64,
    /// Pages of regions that this rack asked for and their homes kept.
    pub pages_refused: u64,
    /// Copies of pages of regions that were brought here to be read.
    pub pages_copied: u64,
    /// Copies that other nodes had of pages of this one, and that were taken back before a write.
    pub pages_recalled: u64,
    /// Copies that this node made because its rack reads an object of another one a lot.
    pub heat_copies_made: u64,
    /// Such copies that it dropped, because nobody read them any more or their room was needed.
    pub heat_copies_dropped: u64,
}

/// One member of the pool as the directory knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberInfo {
    /// The node.
    pub node: NodeId,
    /// What people call it; `None` of one that has not joined since nodes say it.
    pub name: Option<NodeName>,
    /// Its rack.
    pub rack: RackName,
    /// `HOST:PORT` of its fabric.
    pub address: String,
    /// Whether its lease is alive.
    pub up: bool,
    /// Bytes that it lends.
    pub capacity_bytes: u64,
    /// Bytes that objects hold or have reserved.
    pub used_bytes: u64,
}

impl MemberInfo {
    /// Its name, and its number, which no other has.
    pub fn called(&self) -> String {
        match &self.name {
            Some(name) => format!("{name} ({})", self.node),
            None => self.node.to_string(),
        }
    }
}

/// One cached object of another rack.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CacheStatus {
    /// Object name.
    pub name: String,
    /// Object size.
    pub bytes: u64,
    /// Bytes on this host.
    pub resident_bytes: u64,
    /// Budget of this object's cache, if one is set.
    pub budget_bytes: Option<u64>,
    /// Fault units of the object.
    pub units: u32,
    /// Fault units filled.
    pub resident_units: u32,
    /// Programs that have it mapped.
    pub mappings: u32,
    /// `huge`, `transparent` or `base`.
    pub pages: String,
}

/// Something that went wrong and that `doctor` shows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Problem {
    /// Milliseconds since the epoch.
    pub at_ms: u64,
    /// What happened and what to do.
    pub text: String,
}

/// Who leads a directory that several nodes may host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DirectoryLeader {
    /// The node.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// `HOST:PORT` of its fabric.
    pub address: String,
    /// Milliseconds since the epoch at which it began to lead, by its clock.
    pub since_ms: u64,
    /// How many times a leader has been elected, this one included.
    pub term: u64,
}

/// A directory that several nodes may host, as this node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SharedDirectory {
    /// Where it is kept: `etcd://...`.
    pub place: String,
    /// Who leads, as far as this node knows.
    pub leader: Option<DirectoryLeader>,
    /// What keeps this node from it, in words.
    pub trouble: Option<String>,
}

/// A node's whole status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The node.
    pub node: NodeId,
    /// Its name, as given on the command line.
    pub name: String,
    /// Its rack.
    pub rack: RackName,
    /// `HOST:PORT` of its fabric.
    pub address: String,
    /// Whether it hosts the directory, or leads it where several may host it.
    pub directory: bool,
    /// The directory, if several nodes may host it.
    pub shared: Option<SharedDirectory>,
    /// Process id.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// Bytes that it lends.
    pub capacity_bytes: u64,
    /// Bytes that its objects hold.
    pub used_bytes: u64,
    /// Budget of the host's cache.
    pub cache_budget_bytes: u64,
    /// Bytes in cache files.
    pub cache_bytes: u64,
    /// What its memory is made of, in words.
    pub backing: String,
    /// Sessions.
    pub sessions: u32,
    /// Counters.
    pub counters: Counters,
    /// Cached objects of other racks: those that are mapped, and then those with the most bytes here, as many as an answer
    /// has room for.
    pub caches: Vec<CacheStatus>,
    /// Cached objects of other racks that are not in `caches`.
    pub caches_left_out: u32,
    /// The last problems, oldest first.
    pub problems: Vec<Problem>,
}
