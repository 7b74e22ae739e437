//! How a node is started.

use crate::cache::CacheSwitches;
use crate::heat_copies::HeatCopyOptions;
use crate::kv::{KvDisk, KvRemote, KvWatermarks};
use crate::repair::RepairOptions;
use crate::shelf::ShelfChoice;
use hinterland_etcd::Target as EtcdTarget;
use hinterland_os::probe::memory_total_bytes;
use hinterland_os::{Coherence, HUGE_PAGE_BYTES, NumaNodes, PageKind, control_groups};
use hinterland_policy::EvictionKind;
use hinterland_policy::heat::HeatSettings;
use hinterland_types::{NodeName, RackName};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What a node's memory is made of.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum BackingChoice {
    /// The best that can be had: huge pages, else a tmpfs with huge pages, else 4 KiB pages.
    #[default]
    Auto,
    /// These pages or none.
    Pages(PageKind),
    /// Files in this folder.
    Folder(PathBuf),
}

/// Which RDMA devices a node uses.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum RdmaChoice {
    /// All that there are.
    #[default]
    Auto,
    /// None.
    Off,
    /// Those with these names.
    Devices(Vec<String>),
}

impl RdmaChoice {
    /// Names of the devices, none of them for all; `None` if RDMA is not used.
    pub fn devices(&self) -> Option<Vec<String>> {
        match self {
            Self::Auto => Some(Vec::new()),
            Self::Off => None,
            Self::Devices(names) => Some(names.clone()),
        }
    }
}

/// How a node is started. Sizes are bytes.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Name for people.
    pub name: NodeName,
    /// Rack that it serves.
    pub rack: RackName,
    /// Unix socket for sessions of its host.
    pub socket: PathBuf,
    /// The group whose members may use that socket; else the node's own user may, and root.
    pub socket_group: Option<u32>,
    /// Folder of its state; survives restarts.
    pub state: PathBuf,
    /// Where other nodes reach it.
    pub listen: SocketAddr,
    /// `HOST:PORT` to tell others, if it is not the listening address.
    pub advertise: Option<String>,
    /// `HOST:PORT` of the node that hosts the directory; `None` to host it here.
    pub join: Option<String>,
    /// etcd, where the hosts of the directory keep it and choose who leads; `None` if one node hosts it.
    pub etcd: Option<EtcdTarget>,
    /// Whether this node may lead a directory in etcd.
    pub hosts_directory: bool,
    /// Whether objects that the directory's store is too old to know are put into it again, in place of refusing to start.
    pub adopt: bool,
    /// Whether commands of its own directory that come at the same time are written in one transaction.
    pub group_commit: bool,
    /// Memory that it lends.
    pub capacity_bytes: u64,
    /// Memory for caches of other racks' objects.
    pub cache_budget_bytes: u64,
    /// Cached objects that are kept although nobody maps or reads them; those that were not used for longest go first.
    pub idle_caches_max: usize,
    /// Memory for the KV blocks of each user of this host, taken when the first one is opened.
    pub kv_capacity_bytes: u64,
    /// How it deals with KV blocks of other nodes.
    pub kv_remote: KvRemote,
    /// Where KV blocks go that do not fit into memory.
    pub kv_disk: Option<KvDisk>,
    /// Whether KV blocks outlive the node, in files of memory.
    pub kv_keep: bool,
    /// Whether readers of KV blocks check all that they copy, and not only the node what has arrived.
    pub kv_verify: bool,
    /// Whether who writes a KV block takes its checksum while it copies; if not, the node does it behind.
    pub kv_writers_sum: bool,
    /// When room for KV blocks is made ahead, if there is a disk for those that leave.
    pub kv_watermarks: Option<KvWatermarks>,
    /// Who keeps KV blocks coherent among the processes that share them.
    pub coherence: Coherence,
    /// Memory that the hosts of the rack share, for sealed objects.
    pub shelf: Option<ShelfChoice>,
    /// Memory for small allocations, part of the capacity.
    pub segment_bytes: u64,
    /// What the memory is made of.
    pub backing: BackingChoice,
    /// The NUMA nodes that it comes from, on several in turn; any if absent.
    pub numa: Option<NumaNodes>,
    /// File with the pool's key (64 hexadecimal digits).
    pub key_file: Option<PathBuf>,
    /// Folder with the pool's certificates: everything between nodes goes under TLS.
    pub tls: Option<PathBuf>,
    /// Streams to each peer.
    pub streams: usize,
    /// Whether RDMA devices are used, and which.
    pub rdma: RdmaChoice,
    /// Threads that fill caches.
    pub fill_workers: usize,
    /// How long a read from a home may take before another is asked.
    pub fetch_timeout: Duration,
    /// How long a connection spins for the next request before it sleeps.
    pub spin: Duration,
    /// Order in which cached units leave.
    pub eviction: EvictionKind,
    /// Optimisations of the cache.
    pub switches: CacheSwitches,
    /// How long a member's lease lasts.
    pub lease: Duration,
    /// When pages of regions move to the racks that use them; `None`: they do not by themselves.
    pub heat: Option<HeatSettings>,
    /// Whether pages that are read much and hardly ever written are copied to the racks that read them.
    pub share_pages: bool,
    /// When and how fast lost copies are made again.
    pub repair: RepairOptions,
    /// Whether sealed objects of other racks that are read a lot get a copy here, and when.
    pub heat_copies: HeatCopyOptions,
}

impl NodeOptions {
    /// A node that hosts the directory, with sizes that suit the machine: 1 GiB for objects and for its cache, a quarter of the memory that it may
    /// use if that is less, and 256 MiB or an eighth for KV blocks.
    pub fn new(name: NodeName, rack: RackName, socket: PathBuf, state: PathBuf, listen: SocketAddr) -> Self {
        let usable = usable_bytes();
        Self {
            name,
            rack,
            socket,
            socket_group: None,
            state,
            listen,
            advertise: None,
            join: None,
            etcd: None,
            hosts_directory: true,
            adopt: false,
            group_commit: true,
            capacity_bytes: at_most(1 << 30, usable / 4),
            cache_budget_bytes: at_most(1 << 30, usable / 4),
            idle_caches_max: crate::cache::idle_files_max(),
            kv_capacity_bytes: at_most(256 << 20, usable / 8),
            kv_remote: KvRemote::default(),
            kv_disk: None,
            kv_keep: false,
            kv_verify: false,
            kv_writers_sum: true,
            kv_watermarks: Some(KvWatermarks::default()),
            coherence: Coherence::Hardware,
            shelf: None,
            segment_bytes: 64 << 20,
            backing: BackingChoice::Auto,
            numa: None,
            key_file: None,
            tls: None,
            streams: 4,
            rdma: RdmaChoice::default(),
            fill_workers: 3,
            fetch_timeout: Duration::from_secs(5),
            spin: Duration::ZERO,
            eviction: EvictionKind::default(),
            switches: CacheSwitches::default(),
            lease: Duration::from_secs(3),
            heat: Some(HeatSettings::default()),
            share_pages: true,
            repair: RepairOptions::default(),
            heat_copies: HeatCopyOptions::default(),
        }
    }
}

/// Memory of the machine; nothing where the system does not say.
pub fn machine_bytes() -> Option<u64> {
    Some(memory_total_bytes()).filter(|bytes| *bytes > 0)
}

/// Memory that this process may use: of the machine, or of its control groups if that is less; as much as one likes where neither can be seen.
fn usable_bytes() -> u64 {
    let group = control_groups::memory_limit().map(|limit| limit.bytes);
    machine_bytes().into_iter().chain(group).min().unwrap_or(u64::MAX)
}

/// The usual size, or the whole pages of another one that is smaller; a page at the least.
fn at_most(usual: u64, other: u64) -> u64 {
    let page = HUGE_PAGE_BYTES as u64;
    usual.min(other / page * page).max(page)
}

#[cfg(test)]
mod tests {
    use super::at_most;

    #[test]
    fn a_small_machine_is_asked_for_a_part_in_whole_pages() {
        assert_eq!(at_most(1 << 30, u64::MAX / 4), 1 << 30);
        assert_eq!(at_most(1 << 30, 331 << 18), 82 << 20);
        assert_eq!(at_most(256 << 20, 1 << 20), 2 << 20);
    }
}
