//! What the pool tells, as dictionaries; `python/hinterland/records.py` gives them their types, field for field.

use hinterland_pool::Verified;
use hinterland_proto::control;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// `hinterland.Home`.
#[derive(IntoPyObject)]
pub(crate) struct Home {
    node: u64,
    rack: String,
    address: String,
    up: bool,
    heat: bool,
}

/// `hinterland.ObjectInfo`.
#[derive(IntoPyObject)]
pub(crate) struct ObjectInfo {
    name: String,
    bytes: u64,
    state: &'static str,
    address: Option<u64>,
    object: u64,
    copies: u8,
    digest: Py<PyBytes>,
    homes: Vec<Home>,
}

/// `hinterland.Verified`.
#[derive(IntoPyObject)]
pub(crate) struct VerifiedRecord {
    blocks: u64,
    good: Vec<u64>,
    bad: Vec<(u64, String)>,
}

/// `hinterland.Member`.
#[derive(IntoPyObject)]
pub(crate) struct Member {
    node: u64,
    name: Option<String>,
    rack: String,
    address: String,
    up: bool,
    capacity_bytes: u64,
    used_bytes: u64,
}

/// `hinterland.Counters`.
#[derive(IntoPyObject)]
pub(crate) struct Counters {
    network_received_bytes: u64,
    network_sent_bytes: u64,
    faults: u64,
    demand_fills: u64,
    prefetch_fills: u64,
    filled_bytes: u64,
    evictions: u64,
    evicted_bytes: u64,
    checksum_failures: u64,
    failovers: u64,
    poisoned_faults: u64,
    ring_requests: u64,
    demand_fill_us: u64,
    copies_made: u64,
    copied_bytes: u64,
    heat_copies_made: u64,
    heat_copies_dropped: u64,
}

/// `hinterland.CacheStatus`.
#[derive(IntoPyObject)]
pub(crate) struct CacheStatus {
    name: String,
    bytes: u64,
    resident_bytes: u64,
    budget_bytes: Option<u64>,
    units: u32,
    resident_units: u32,
    mappings: u32,
    pages: String,
}

/// `hinterland.Problem`.
#[derive(IntoPyObject)]
pub(crate) struct Problem {
    at_ms: u64,
    text: String,
}

/// `hinterland.NodeStatus`.
#[derive(IntoPyObject)]
pub(crate) struct NodeStatus {
    node: u64,
    name: String,
    rack: String,
    address: String,
    directory: bool,
    pid: u32,
    uptime_s: u64,
    capacity_bytes: u64,
    used_bytes: u64,
    cache_budget_bytes: u64,
    cache_bytes: u64,
    backing: String,
    sessions: u32,
    counters: Counters,
    caches: Vec<CacheStatus>,
    caches_left_out: u32,
    problems: Vec<Problem>,
}

impl ObjectInfo {
    /// What `stat` says.
    pub(crate) fn new(py: Python<'_>, info: control::ObjectInfo) -> Self {
        Self {
            name: info.name.into(),
            bytes: info.bytes,
            state: match info.state {
                control::ObjectState::Writing => "writing",
                control::ObjectState::Sealed => "sealed",
                control::ObjectState::Mutable => "region",
            },
            address: info.address.map(hinterland_types::GlobalAddress::raw),
            object: info.object.0,
            copies: info.copies,
            digest: PyBytes::new(py, &info.digest).unbind(),
            homes: info.homes.into_iter().map(Home::from).collect(),
        }
    }
}

impl From<control::Home> for Home {
    fn from(home: control::Home) -> Self {
        Self {
            node: home.node.0,
            rack: home.rack.into(),
            address: home.address,
            up: home.up,
            heat: home.heat,
        }
    }
}

impl From<Verified> for VerifiedRecord {
    fn from(verified: Verified) -> Self {
        Self {
            blocks: verified.blocks,
            good: verified.good.into_iter().map(|node| node.0).collect(),
            bad: verified.bad.into_iter().map(|(node, reason)| (node.0, reason)).collect(),
        }
    }
}

impl From<control::MemberInfo> for Member {
    fn from(member: control::MemberInfo) -> Self {
        Self {
            node: member.node.0,
            name: member.name.map(Into::into),
            rack: member.rack.into(),
            address: member.address,
            up: member.up,
            capacity_bytes: member.capacity_bytes,
            used_bytes: member.used_bytes,
        }
    }
}

impl From<control::Counters> for Counters {
    fn from(counters: control::Counters) -> Self {
        Self {
            network_received_bytes: counters.network_received_bytes,
            network_sent_bytes: counters.network_sent_bytes,
            faults: counters.faults,
            demand_fills: counters.demand_fills,
            prefetch_fills: counters.prefetch_fills,
            filled_bytes: counters.filled_bytes,
            evictions: counters.evictions,
            evicted_bytes: counters.evicted_bytes,
            checksum_failures: counters.checksum_failures,
            failovers: counters.failovers,
            poisoned_faults: counters.poisoned_faults,
            ring_requests: counters.ring_requests,
            demand_fill_us: counters.demand_fill_us,
            copies_made: counters.copies_made,
            copied_bytes: counters.copied_bytes,
            heat_copies_made: counters.heat_copies_made,
            heat_copies_dropped: counters.heat_copies_dropped,
        }
    }
}

impl From<control::CacheStatus> for CacheStatus {
    fn from(cache: control::CacheStatus) -> Self {
        Self {
            name: cache.name,
            bytes: cache.bytes,
            resident_bytes: cache.resident_bytes,
            budget_bytes: cache.budget_bytes,
            units: cache.units,
            resident_units: cache.resident_units,
            mappings: cache.mappings,
            pages: cache.pages,
        }
    }
}

impl From<control::NodeStatus> for NodeStatus {
    fn from(status: control::NodeStatus) -> Self {
        let problem = |problem: control::Problem| Problem { at_ms: problem.at_ms, text: problem.text };
        Self {
            node: status.node.0,
            name: status.name,
            rack: status.rack.into(),
            address: status.address,
            directory: status.directory,
            pid: status.pid,
            uptime_s: status.uptime_s,
            capacity_bytes: status.capacity_bytes,
            used_bytes: status.used_bytes,
            cache_budget_bytes: status.cache_budget_bytes,
            cache_bytes: status.cache_bytes,
            backing: status.backing,
            sessions: status.sessions,
            counters: status.counters.into(),
            caches: status.caches.into_iter().map(CacheStatus::from).collect(),
            caches_left_out: status.caches_left_out,
            problems: status.problems.into_iter().map(problem).collect(),
        }
    }
}
