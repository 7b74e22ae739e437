//! What all parts of a running node share.

use crate::cache::Cache;
use crate::capability::CapabilityTable;
use crate::directory_link::{DirectoryLink, describe_near};
use crate::heat_copies::HeatCopies;
use crate::holdings::{Holding, Holdings};
use crate::kv::{KvElsewhere, KvRacks, KvStores, UserStore};
use crate::locks::Locks;
use crate::membership::Membership;
use crate::peers::Peers;
use crate::put::Puts;
use crate::refused::{Refused, errno};
use crate::regions::{Region, Regions};
use crate::repair::Repairs;
use crate::roster;
use crate::segment::Segment;
use hinterland_directory::{Command, Reply};
use hinterland_fabric::Slice;
use hinterland_kv::Namespace;
use hinterland_os::clock;
use hinterland_os::probe::space;
use hinterland_proto::control::{Counters, NodeStatus, ObjectInfo, Problem};
use hinterland_proto::{Features, PeerLimits, PoolId, PoolKey, RUNS_MAX, ServerIdentity};
use hinterland_types::limits::{FRAME_BODY_BYTES_MAX, STREAMS_MAX};
use hinterland_types::size::human;
use hinterland_types::{ByteRange, Handle, NodeId, Rights, SessionId};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// The memory of a handle that a device may read without asking. `None` for everything else. It is
///
/// - all that the handle reaches of a sealed object, which neither moves nor changes;
/// - one page of a region that is here: it is taken back before the page is frozen to move;
/// - all KV blocks of a user, where caches see each other: who reads them compares checksums, since slots are written again.
///
/// # Errors
/// [`Refused`] if the handle does not allow it.
pub fn one_sided(
    table: &CapabilityTable<Resource>,
    handle: Handle,
    range: ByteRange,
    needed: Rights,
) -> Result<Option<(ByteRange, Slice)>, Refused> {
    let resource = table.check(handle, range.offset(), range.bytes(), needed)?.clone().still_there()?;
    if needed.allows(Rights::WRITE) {
        return Ok(None);
    }
    let holding = match resource {
        Resource::Held(holding) if holding.is_sealed() => holding,
        Resource::Region(region) => return region.one_sided(range),
        // A device reads what the caches of this host hold of memory that others write, too.
        Resource::KvBlocks(store) if store.is_moved_by_hand() => return Ok(None),
        Resource::KvBlocks(store) => {
            let whole = ByteRange::new(0, store.blocks_bytes()).ok();
            return whole.map(|whole| Ok((whole, store.block_bytes(whole)?))).transpose();
        }
        _ => return Ok(None),
    };
    let allowed = table.range(handle)?;
    let end = allowed.end().min(holding.bytes());
    let Ok(whole) = ByteRange::new(allowed.offset(), end.saturating_sub(allowed.offset())) else {
        return Ok(None);
    };
    Ok(Some((whole, Slice::from(holding.slice(whole.offset(), whole.bytes())?))))
}

/// A running node's parts.
pub struct Core {
    /// Itself, for threads that must not keep it alive.
    pub itself: Weak<Core>,
    /// This node.
    pub own: NodeId,
    /// Its name on the command line.
    pub name: String,
    /// Its pool.
    pub pool: PoolId,
    /// How the directory knows it.
    pub membership: Membership,
    /// The way to the directory.
    pub directory: Arc<DirectoryLink>,
    /// Connections to other nodes.
    pub peers: Arc<Peers>,
    /// Objects that it holds.
    pub holdings: Arc<Holdings>,
    /// Puts of its sessions.
    pub puts: Arc<Puts>,
    /// Copies that were lost.
    pub repairs: Arc<Repairs>,
    /// Copies of what this rack reads a lot.
    pub heat_copies: Arc<HeatCopies>,
    /// Objects of other racks.
    pub cache: Arc<Cache>,
    /// KV blocks of this host.
    pub kv: KvStores,
    /// The connections to those of other nodes.
    pub kv_racks: Arc<KvRacks>,
    /// What brings blocks here that are not in memory.
    pub kv_elsewhere: Arc<KvElsewhere>,
    /// Locks, of this rack and of others.
    pub locks: Locks,
    /// Regions and where their pages lie.
    pub regions: Regions,
    /// Small allocations.
    pub segment: Segment,
    /// The folder of its state.
    pub state: PathBuf,
    /// What its memory is made of.
    pub backing: String,
    /// When it started.
    pub started: Instant,
    /// Sessions that are open.
    pub sessions: AtomicU32,
    /// For the next session.
    pub next_session: AtomicU64,
    /// Bytes sent to other nodes.
    pub sent_bytes: AtomicU64,
    /// What is known of the rings of all sessions.
    pub rings: RingTally,
}

/// What a node knows of its rings.
#[derive(Default)]
pub struct RingTally {
    /// Requests answered over them.
    pub requests: AtomicU64,
    /// One for the node and each thread that serves a ring: these use the core until they see that their session has ended.
    pub threads: Arc<()>,
}

/// What a capability leads to.
#[derive(Clone)]
pub enum Resource {
    /// Bytes that this node holds.
    Held(Arc<Holding>),
    /// Bytes that this node holds, for as long as it does.
    Lent(Weak<Holding>),
    /// A region, wherever its pages lie.
    Region(Arc<Region>),
    /// An object that other nodes hold.
    Remote(Arc<ObjectInfo>),
    /// A namespace of KV blocks of this host, and what keeps it known.
    Kv(Arc<UserStore>, Namespace, #[expect(dead_code, reason = "it counts as long as it is there")] Arc<()>),
    /// The bytes of all KV blocks of a user of this host, for other nodes to read.
    KvBlocks(Arc<UserStore>),
}

impl Resource {
    /// Itself, unless it was lent and the node has let go of it, or its bytes turned out to be wrong.
    ///
    /// # Errors
    /// [`Refused`] then: it is to be opened again.
    pub fn still_there(self) -> Result<Self, Refused> {
        let held = match self {
            Self::Lent(lent) => lent.upgrade().filter(|holding| !holding.is_let_go()),
            Self::Held(holding) if holding.is_wrong() => None,
            other => return Ok(other),
        };
        held.map(Self::Held).ok_or_else(|| {
            Refused::new(errno::EBADF, "the object is not held here any more (hint: open it again)")
        })
    }
}

impl Core {
    /// What its memory is made of, and what came from that of other hosts.
    fn backing_now(&self) -> String {
        self.holdings.shelf().map_or_else(
            || self.backing.clone(),
            |shelf| format!("{}; {} bytes loaded from the shelf", self.backing, shelf.loaded_bytes()),
        )
    }

    /// Itself, for threads that must not keep it alive.
    pub fn shared(&self) -> Weak<Self> {
        Weak::clone(&self.itself)
    }

    /// The directory's description of an object as programs of this node see it: the homes that are near come first.
    pub fn describe(&self, info: &hinterland_directory::ObjectInfo) -> ObjectInfo {
        describe_near(info, self.own, &self.membership.rack)
    }

    /// A number that no other session has.
    pub fn new_session(&self) -> SessionId {
        SessionId(self.next_session.fetch_add(1, Ordering::AcqRel))
    }

    /// How the node presents itself in handshakes.
    pub fn identity(&self, key: Option<PoolKey>) -> ServerIdentity {
        // Small constants: the casts lose nothing.
        let limits = PeerLimits {
            body_bytes_max: FRAME_BODY_BYTES_MAX,
            runs_max: RUNS_MAX as u32,
            streams_max: STREAMS_MAX as u32,
        };
        ServerIdentity { node: self.own, pool: self.pool, key, features: Features(0), limits }
    }

    /// The node's status.
    pub fn status(&self) -> NodeStatus {
        let cache = self.cache.status();
        // Relaxed: counters that nothing is ordered by.
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tallies = &self.cache.tallies;
        let [pages_taken, pages_given, pages_refused] = self.regions.tallies();
        let (copies_made, copied_bytes) = self.repairs.counts();
        let (heat_copies_made, heat_copies_dropped) = self.heat_copies.counts();
        NodeStatus {
            node: self.own,
            name: self.name.clone(),
            rack: self.membership.rack.clone(),
            address: self.membership.address.clone(),
            directory: self.directory.answers_here(),
            shared: self.directory.shared().map(|shared| shared.status()),
            pid: std::process::id(),
            uptime_s: self.started.elapsed().as_secs(),
            capacity_bytes: self.holdings.capacity_bytes(),
            used_bytes: self.holdings.used_bytes(),
            cache_budget_bytes: self.cache.budget_bytes(),
            cache_bytes: self.cache.resident_bytes(),
            backing: self.backing_now(),
            // Relaxed: a counter that nothing is ordered by.
            sessions: self.sessions.load(Ordering::Relaxed),
            counters: Counters {
                pages_taken,
                pages_given,
                pages_refused,
                pages_copied: self.regions.copied(),
                pages_recalled: self.regions.recalled(),
                network_received_bytes: cache.received_bytes,
                network_sent_bytes: read(&self.sent_bytes),
                faults: read(&tallies.faults),
                demand_fills: read(&tallies.demand_fills),
                prefetch_fills: read(&tallies.prefetch_fills),
                filled_bytes: read(&tallies.filled_bytes),
                evictions: read(&tallies.evictions),
                evicted_bytes: read(&tallies.evicted_bytes),
                checksum_failures: cache.checksum_failures,
                failovers: cache.failovers,
                poisoned_faults: read(&tallies.poisoned_faults),
                ring_requests: read(&self.rings.requests),
                demand_fill_us: read(&tallies.demand_fill_us),
                copies_made,
                copied_bytes,
                heat_copies_made,
                heat_copies_dropped,
            },
            caches: cache.caches,
            caches_left_out: cache.left_out,
            problems: self.problems(),
        }
    }

    /// A refusal for people, who know other nodes by their names.
    pub fn told(&self, refused: Refused) -> Refused {
        Refused { text: self.peers.roster().named(&refused.text), ..refused }
    }

    /// Asks what the members are called, where that is due: seldom, unless it costs little or a name was missed. `heard` is when they were heard last.
    pub fn hear_members(&self, heard: &mut Option<Instant>) {
        let is_old = heard.is_none_or(|heard| heard.elapsed() >= roster::PAUSE);
        if !(self.peers.roster().was_missed() || is_old || self.directory.answers_here()) {
            return;
        }
        // Without an answer it is asked again soon.
        if let Ok(Reply::Members(members)) = self.directory.apply_soon(&Command::Members) {
            self.peers.roster().heard(&members);
            *heard = Some(Instant::now());
        }
    }

    /// What went wrong, and what is wrong at this moment.
    fn problems(&self) -> Vec<Problem> {
        let mut problems = self.cache.problems();
        let low = space(&self.state).and_then(|space| low_space(&self.state, space.free_bytes));
        problems.extend(low.map(|text| Problem { at_ms: clock::wall_ms(), text }));
        problems
    }
}

/// Where the file system of a state has less room than this, it is as good as full: the directory's database grows by some MiB at once.
const STATE_FREE_BYTES_MIN: u64 = 64 << 20;

/// What is said of a state whose file system has hardly any room.
fn low_space(state: &Path, free_bytes: u64) -> Option<String> {
    (free_bytes < STATE_FREE_BYTES_MIN).then(|| {
        format!(
            "the file system of the state in {} has {} left, and without room nothing can be put, made or removed (hint: make room \
             there; `df -h {}` shows what it has)",
            state.display(),
            human(free_bytes),
            state.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_whose_file_system_is_nearly_full_is_a_problem() {
        let told = low_space(Path::new("/srv/state"), 3 << 20).unwrap();
        assert!(told.contains("/srv/state has 3.00 MiB left") && told.contains("(hint: "), "{told}");
        assert_eq!(low_space(Path::new("/srv/state"), STATE_FREE_BYTES_MIN), None);
    }
}
