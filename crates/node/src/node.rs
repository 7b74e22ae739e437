//! Starting and stopping a node.

use crate::advertised;
use crate::belonging::{BelongingError, OWN_DIRECTORY, check_belonging, check_pool, note_pool, noted_pool};
use crate::cache::{Cache, CacheOptions, CacheThreads, Near};
use crate::core::{Core, RingTally};
use crate::credentials::Credentials;
use crate::directory_etcd::{self, EtcdDirectory, Following, OwnIdentity};
use crate::directory_host::{DirectoryHost, DirectoryHostError};
use crate::directory_link::DirectoryLink;
use crate::heat_copies::{Fetches, HeatCopies};
use crate::holdings::{HoldingError, Holdings};
use crate::known_names;
use crate::kv::{KvDisk, KvElsewhere, KvRacks, KvStores};
use crate::leftovers::{Marked, SHARED_MEMORY, take_back};
use crate::local_server::LocalServer;
use crate::locks::{KeptFences, Locks};
use crate::membership::{Adoption, BEATS_PER_LEASE, Incarnation, Membership};
use crate::options::{BackingChoice, NodeOptions, machine_bytes};
use crate::peers::{PeerIdentity, Peers, pool_of};
use crate::places::{kv_folders, make_folder, mark_folders, open_backing, small_folder};
use crate::put::Puts;
use crate::refused::{Refused, errno};
use crate::regions::{IDLE_PACE, PACE, Regions};
use crate::remote_service::RemoteService;
use crate::repair::Repairs;
use crate::ring_server;
use crate::segment::Segment;
use crate::shelf::NodeShelf;
use crate::state::{self, HeldState, kept_number, own_number};
use hinterland_directory::{Command, Settings};
use hinterland_fabric::FabricError;
use hinterland_fabric::rdma::{self, Host, HostOptions, RdmaOptions};
use hinterland_fabric::tcp::{Server, ServerOptions, Tls, TlsError};
use hinterland_os::huge_pages::HugePageCounts;
use hinterland_os::socket::UnixListener;
use hinterland_os::{
    Backing, Coherence, HUGE_PAGE_BYTES, LineMover, OsError, PageKind, control_groups, huge_pages, limits,
    process,
};
use hinterland_policy::heat::{HeatRules, HeatSettingsError};
use hinterland_pool::local::random;
use hinterland_proto::PoolId;
use hinterland_types::NodeId;
use hinterland_types::size::human;
use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Moves that fell silent are looked for at this pace.
const PAGES_PAUSE: Duration = Duration::from_millis(100);

/// Reasons for bytes to go by TCP that are remembered as said.
const REASONS_MAX: usize = 16;

/// Descriptors without which a node serves nobody: its own, and those of a few sessions.
const DESCRIPTORS_MIN: u64 = 64;

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A file or folder of the state cannot be used.
    #[error("{path}: {source} (hint: {})", state::hint(.source))]
    State {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another node has the state.
    #[error(
        "{state} is the state of a node that runs (hint: stop that one, or name another folder with --state)"
    )]
    StateInUse {
        /// The folder.
        state: PathBuf,
    },
    /// The node of this state runs already, with the state that this one was copied from.
    #[error(
        "{state} is a copy of the state of {node}, which runs at {address}: two would have each other's objects dropped (hint: start this one with an empty --state, or stop the other first and start it no more)"
    )]
    Twin {
        /// The folder.
        state: PathBuf,
        /// The node of both.
        node: NodeId,
        /// Where the other is.
        address: String,
    },
    /// The state does not say whose it is.
    #[error(
        "{path} does not hold the number of the node whose objects are here: nothing was changed (hint: {})",
        state::hint_for_number(path, *.owner)
    )]
    NumberLost {
        /// The file.
        path: PathBuf,
        /// The node that has left memory here, if it is one.
        owner: Option<u64>,
    },
    /// The state does not say which fences were given.
    #[error(
        "{path}: {source} (hint: put it back from a copy; once no program of the pool uses a lock of this node any more, remove it)"
    )]
    LocksLost {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: std::io::Error,
    },
    /// Others could reach the node without a key.
    #[error(
        "{address} can be reached from other hosts and the pool has no key (hint: `head -c32 /dev/urandom | od -An -tx1 | tr -d ' \\n' > pool.key && chmod 600 pool.key`, copy it to every node and client, and start with --key pool.key; or give certificates with --tls; or listen on 127.0.0.1)"
    )]
    Open {
        /// Where it would listen.
        address: std::net::SocketAddr,
    },
    /// The same for a node that joins: the pool may have a key already.
    #[error(
        "{address} can be reached from other hosts and no key was given (hint: copy the file with the pool's key from {join}, and start with --key FILE; or with --tls DIR, if the pool has certificates; or listen on 127.0.0.1)"
    )]
    OpenJoining {
        /// Where it would listen.
        address: std::net::SocketAddr,
        /// The node that it would join.
        join: String,
    },
    /// Others would be told an address that leads each of them to itself.
    #[error(
        "other nodes cannot reach this one at {address} (hint: say with --advertise HOST:PORT where they do, with the name of this host)"
    )]
    Advertised {
        /// What they would be told.
        address: String,
    },
    /// It was told to join the pool through itself.
    #[error(
        "--join {address} is this node itself (hint: name another node that is up, or mend --advertise; the first node of a pool starts without --join)"
    )]
    JoinsItself {
        /// Where.
        address: String,
    },
    /// RDMA devices were named and cannot be used.
    #[error("{0} (hint: `hinterland doctor` lists devices; --rdma auto uses what there is, --rdma off none)")]
    Rdma(String),
    /// The memory that hosts share cannot be used.
    #[error("--shelf: {0}")]
    Shelf(#[from] hinterland_shelf::ShelfError),
    /// Nobody would move lines.
    #[error(
        "--shelf is for hosts whose caches do not see each other (hint: start with --coherence software too)"
    )]
    ShelfCoherence,
    /// The files for TLS cannot be used.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// The key file cannot be read.
    #[error("{path}: {source} (hint: --key names the file with the pool's key; copy it from another node)")]
    KeyFile {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The key file holds no key.
    #[error(
        "{path} holds no pool key (hint: 64 hexadecimal digits: `head -c32 /dev/urandom | od -An -tx1 | tr -d ' \\n' > pool.key && chmod 600 pool.key` makes a file of them)"
    )]
    Key {
        /// Which.
        path: PathBuf,
    },
    /// It may open too few files.
    #[error(
        "this process may open {limit} files, a node needs {DESCRIPTORS_MIN} and more for its sessions (hint: raise the limit: `ulimit -n 65536`)"
    )]
    Descriptors {
        /// The limit of the process.
        limit: u64,
    },
    /// It is to lend what there is not.
    #[error(
        "{whose} {}, and {} are asked for: {} for objects, {} for those of other racks and {} for KV blocks (hint: ask for less with --capacity, --cache-budget and --kv-capacity; with --backing FOLDER objects lie on its disk)",
        human(*.total), human(*.sum), human(.asked[0]), human(.asked[1]), human(.asked[2])
    )]
    Memory {
        /// What has no more.
        whose: String,
        /// Bytes that it has.
        total: u64,
        /// Bytes that the node would lend and use.
        sum: u64,
        /// Of them for objects, the cache and KV blocks.
        asked: [u64; 3],
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source} (hint: {})", advertised::hint(.source))]
    Listen {
        /// Which.
        address: std::net::SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
    /// The directory cannot start.
    #[error(transparent)]
    Directory(#[from] DirectoryHostError),
    /// etcd cannot be used.
    #[error(transparent)]
    Etcd(#[from] hinterland_etcd::EtcdError),
    /// The state belongs to another directory.
    #[error(transparent)]
    Belonging(#[from] BelongingError),
    /// Page heat has parameters that make no sense.
    #[error(transparent)]
    Heat(#[from] HeatSettingsError),
    /// The objects cannot be opened.
    #[error(transparent)]
    Holdings(#[from] HoldingError),
    /// The operating system said no.
    #[error(transparent)]
    Os(#[from] OsError),
    /// The fabric cannot start.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Something else was refused.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// A running node. Call [`stop`](Self::stop) to end it in order.
pub struct Node {
    core: Arc<Core>,
    server: Server,
    local: Arc<LocalServer>,
    threads: Vec<JoinHandle<()>>,
    cache_threads: Option<CacheThreads>,
    bell: Arc<Bell>,
    backing: Backing,
    /// Its folders of memory that others can see.
    folders: Vec<Marked>,
    /// Nobody else has it while this lives.
    _state: HeldState,
    /// What a restart dropped, and what memory was chosen, in words.
    pub messages: Vec<String>,
}

/// Where others reach it, and what it proves itself by.
struct Faces {
    credentials: Credentials,
    unix: UnixListener,
    listener: TcpListener,
    advertised: String,
}

impl Faces {
    fn open(options: &NodeOptions) -> Result<Self, NodeError> {
        let limit = limits::raise_open_files()?.soft;
        if limit < DESCRIPTORS_MIN {
            return Err(NodeError::Descriptors { limit });
        }
        let credentials = Credentials::read(options)?;
        advertised::check(options, credentials.are_there())?;
        let unix = UnixListener::bind(&options.socket).map_err(|error| match error.errno() {
            Some(errno::EACCES | errno::EPERM | errno::EROFS) => error.with_hint(
                "name a socket in a folder that this user may write, with --socket or HINTERLAND_SOCKET, here and for all other commands",
            ),
            _ => error,
        })?;
        unix.let_in(options.socket_group)?;
        let (listener, advertised) = advertised::listen(options)?;
        Ok(Self { credentials, unix, listener, advertised })
    }
}

/// Wakes the heartbeat thread when the node stops.
#[derive(Default)]
struct Bell {
    stopping: Mutex<bool>,
    changed: Condvar,
}

impl Node {
    /// Starts a node: opens its state, joins the directory, listens.
    ///
    /// # Errors
    /// [`NodeError`] says what to do.
    pub fn start(options: NodeOptions) -> Result<Self, NodeError> {
        check_memory(&options)?;
        let mover = find_mover(&options)?;
        let is_new = !options.state.exists();
        make_folder(&options.state)?;
        let state = state::hold(&options.state)?;
        let faces = Faces::open(&options).inspect_err(|_| {
            if is_new {
                state.leave()
            }
        })?;
        let Faces { credentials, unix, listener, advertised } = faces;
        let (chosen, mut messages) = choose_memory(&options)?;
        if let Some((write_back, drop)) = mover.map(LineMover::names) {
            messages.push(format!(
                "software coherence: lines of KV blocks are moved with {write_back} and {drop}, which was not tried on CXL memory yet"
            ));
        }
        messages.extend(options.kv_disk.as_ref().and_then(KvDisk::trouble));
        messages.extend(take_back(Path::new(SHARED_MEMORY)));
        let (core, cache_threads) =
            build(&options, credentials.clone(), advertised, &chosen.backing, &mut messages)?;
        open_shelf(&options, &core, &mut messages)?;
        let following = follow_directory(&options, &core)?;
        let server = serve(&options, &core, listener, credentials, &mut messages)?;
        // Others may ask as soon as the directory knows the address, so joining comes last.
        // Another directory is noted only when it has said what it takes in.
        let joined = core.membership.join(&core.directory, &core.holdings)?;
        let lease_ms = joined.lease_ms;
        messages.extend(joined.words);
        if options.etcd.is_none() {
            note_pool(&options.state, options.join.as_deref(), core.pool)?;
        }
        // What follows may take longer than a lease.
        let bell = Arc::new(Bell::default());
        let beating = spawn_heartbeat(Arc::clone(&core), Arc::clone(&bell), lease_ms)?;
        core.regions.joined(&core);
        let (local, accepting) = LocalServer::start(Arc::clone(&core), unix)?;
        let threads = vec![
            accepting,
            beating,
            Locks::start(&core)?,
            core.kv_racks.start()?,
            spawn_repairs(&core)?,
            spawn_heat_copies(&core)?,
            spawn_pages(Arc::clone(&core), Arc::clone(&bell))?,
            spawn_names(Arc::clone(&core), Arc::clone(&bell))?,
            spawn_deciding(Arc::clone(&core), Arc::clone(&bell))?,
        ];
        let cache_threads = Some(cache_threads);
        let (backing, folders) = chosen.kept();
        following.into_iter().for_each(Following::kept);
        Ok(Self {
            core,
            server,
            local,
            threads,
            cache_threads,
            bell,
            backing,
            folders,
            _state: state,
            messages,
        })
    }

    /// `HOST:PORT` at which other nodes reach it.
    pub fn core_address(&self) -> String {
        self.core.membership.address.clone()
    }

    /// One line that says that the node is ready, and where.
    pub fn ready_line(&self) -> String {
        let role = match &*self.core.directory {
            DirectoryLink::Embedded(_) => ", hosts the directory".to_owned(),
            DirectoryLink::Remote { .. } => String::new(),
            DirectoryLink::Etcd(shared) => match shared.sight().leader {
                Some(leader) => format!(", directory in {} led by {}", shared.target(), leader.name),
                None => format!(", directory in {}", shared.target()),
            },
        };
        format!(
            "node {} ready: rack {}, fabric {}{role}",
            self.core.name, self.core.membership.rack, self.core.membership.address
        )
    }

    /// Ends the node in order: sessions, membership, fabric, cache. Objects stay for the next start.
    pub fn stop(mut self) {
        if let Some(shared) = self.core.directory.shared() {
            shared.hurry();
        }
        self.core.kv.end_sessions();
        self.local.stop();
        *self.bell.stopping.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.bell.changed.notify_all();
        self.core.kv_racks.stop();
        self.core.locks.stop();
        self.core.heat_copies.stop();
        self.core.repairs.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the node had panicked");
            }
        }
        ring_server::wait_for_threads(&self.core);
        self.core.membership.leave(&self.core.directory);
        if let Some(shared) = self.core.directory.shared() {
            shared.stop();
        }
        self.server.stop();
        self.core.regions.stop();
        self.core.kv.stop();
        if let Some(threads) = self.cache_threads.take() {
            self.core.cache.stop(threads);
        }
        if self.core.holdings.used_bytes() == 0 && !self.core.kv.keeps_blocks() {
            self.leave_nothing();
        }
    }

    /// Takes back what the node set up in the system, because it holds nothing that a restart could find.
    fn leave_nothing(self) {
        if self.backing.kind != PageKind::Base4K
            && let Err(error) = huge_pages::unmount(&self.backing.folder)
        {
            tracing::warn!(%error, "the memory folder stays mounted");
        }
        // Its own in a folder that somebody named, and empty.
        if self.folders.is_empty() {
            let _ = fs::remove_dir(&self.backing.folder);
        }
        self.folders.into_iter().for_each(Marked::leave_if_empty);
    }
}

/// Follows who leads a directory that several nodes may host, and stands for election, unless this node would take the place of one that
/// runs.
fn follow_directory(options: &NodeOptions, core: &Core) -> Result<Option<Following>, NodeError> {
    let mut following = None;
    if let Some(shared) = core.directory.shared() {
        advertised::refuse_leading_twin(options, core, shared)?;
        following = Some(Following::begin(shared)?);
    }
    advertised::refuse_twin(options, core)?;
    Ok(following)
}

/// Serves other nodes.
fn serve(
    options: &NodeOptions,
    core: &Arc<Core>,
    listener: TcpListener,
    credentials: Credentials,
    messages: &mut Vec<String>,
) -> Result<Server, NodeError> {
    let rdma = open_rdma(options, messages)?;
    if let Some(host) = &rdma {
        core.regions.read_by(host);
        core.holdings.read_by(host);
    }
    let server_options = ServerOptions {
        node: core.own,
        pool: core.pool,
        key: credentials.key,
        tls: credentials.tls,
        spin: options.spin,
        rdma,
        ..ServerOptions::default()
    };
    Ok(Server::start(listener, Arc::new(RemoteService::new(Arc::clone(core))), server_options)?)
}

/// What moves lines, if that is to be done by hand.
fn find_mover(options: &NodeOptions) -> Result<Option<LineMover>, NodeError> {
    match options.coherence {
        Coherence::Hardware if options.shelf.is_some() => Err(NodeError::ShelfCoherence),
        Coherence::Hardware => Ok(None),
        Coherence::Software => Ok(Some(LineMover::detect()?)),
    }
}

/// The memory that other hosts of the rack load objects from, if there is some.
fn open_shelf(options: &NodeOptions, core: &Core, messages: &mut Vec<String>) -> Result<(), NodeError> {
    let Some(choice) = &options.shelf else { return Ok(()) };
    let shelf = Arc::new(NodeShelf::open(choice, core.own)?);
    core.holdings.show_on(&shelf);
    messages.push(format!(
        "shelf: part {} of {} of {}; sealed objects of other hosts are loaded from it, regions and KV blocks are not on it",
        choice.part,
        choice.parts,
        choice.path.display()
    ));
    Ok(())
}

/// Refuses more memory than the machine has: with pages that are made on demand nobody would notice before programs are killed for it.
fn check_memory(options: &NodeOptions) -> Result<(), NodeError> {
    machine_bytes().map_or(Ok(()), |total| refuse_above(total, options, || "this machine has".to_owned()))
}

/// Refuses more memory than the control groups of this process allow. Huge pages are not counted by them.
fn check_groups(options: &NodeOptions, kind: PageKind) -> Result<(), NodeError> {
    match control_groups::memory_limit() {
        Some(limit) if kind != PageKind::Huge2M => refuse_above(limit.bytes, options, || {
            format!("the control group of this process may use, as {} says,", limit.file.display())
        }),
        _ => Ok(()),
    }
}

fn refuse_above(total: u64, options: &NodeOptions, whose: impl Fn() -> String) -> Result<(), NodeError> {
    let is_on_disk = matches!(options.backing, BackingChoice::Folder(_));
    let objects = if is_on_disk { 0 } else { options.capacity_bytes };
    let asked = [objects, options.cache_budget_bytes, options.kv_capacity_bytes];
    let sum = asked.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    if sum > total { Err(NodeError::Memory { whose: whose(), total, sum, asked }) } else { Ok(()) }
}

/// The memory of a node that is about to start: what was set up for it is taken back if it does not.
struct Chosen {
    backing: Backing,
    folders: Vec<Marked>,
    starts: bool,
}

impl Chosen {
    /// For a node that starts.
    fn kept(mut self) -> (Backing, Vec<Marked>) {
        self.starts = true;
        (self.backing.clone(), std::mem::take(&mut self.folders))
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        if self.starts {
            return;
        }
        // What fails here stays for the next start. Why this one failed is what matters.
        if self.backing.mounted {
            let _ = huge_pages::unmount(&self.backing.folder);
        }
        if let (true, Some(claim)) = (self.folders.is_empty(), self.backing.overcommit_before) {
            let _ = huge_pages::set_overcommit(claim);
        }
        self.folders.drain(..).for_each(Marked::leave_if_empty);
    }
}

fn choose_memory(options: &NodeOptions) -> Result<(Chosen, Vec<String>), NodeError> {
    let (backing, messages) = open_backing(options)?;
    let mut chosen = Chosen { backing, folders: Vec::new(), starts: false };
    chosen.folders = mark_folders(options, &chosen.backing)?;
    check_groups(options, chosen.backing.kind)?;
    Ok((chosen, messages))
}

/// The devices that peers read from, if there are any; says what becomes of those that there are.
fn open_rdma(options: &NodeOptions, messages: &mut Vec<String>) -> Result<Option<Arc<Host>>, NodeError> {
    let Some(devices) = options.rdma.devices() else { return Ok(None) };
    let (are_named, there) = (!devices.is_empty(), rdma::devices());
    if !are_named && there.is_empty() {
        return Ok(None);
    }
    if options.tls.is_some() {
        let why = "TLS does not reach what devices move, which would go unencrypted";
        if are_named {
            return Err(NodeError::Rdma(format!("{why} (hint: leave out --rdma, or --tls)")));
        }
        messages.push(format!("rdma: {why}, so other racks use TCP"));
        return Ok(None);
    }
    if let Some(missing) = devices.iter().find(|name| there.iter().all(|device| device.name != **name)) {
        let names: Vec<&str> = there.iter().map(|device| device.name.as_str()).collect();
        let names =
            if names.is_empty() { "has none".to_owned() } else { format!("has {}", names.join(", ")) };
        return Err(NodeError::Rdma(format!("there is no RDMA device {missing:?}; this host {names}")));
    }
    // What is lent and as much again: an object may be registered for two readers, or on two ports.
    let registered_bytes_max =
        options.capacity_bytes.saturating_add(options.kv_capacity_bytes).saturating_mul(2);
    match Host::open(HostOptions { devices, registered_bytes_max, ..HostOptions::default() }) {
        Ok(host) => {
            messages.push("rdma: sealed objects, regions and KV blocks are read by devices".to_owned());
            Ok(Some(Arc::new(host)))
        }
        Err(why) if are_named => Err(NodeError::Rdma(why)),
        Err(why) => {
            messages.push(format!("rdma: {why}, so other racks use TCP (hint: `hinterland doctor`)"));
            Ok(None)
        }
    }
}

/// How this node reads others: devices read, calls and writes go over TCP.
fn reading_by_rdma(options: &NodeOptions) -> RdmaOptions {
    let devices = options.rdma.devices();
    RdmaOptions {
        enabled: devices.is_some() && options.tls.is_none(),
        devices: devices.unwrap_or_default(),
        writes: false,
        calls: false,
        ..RdmaOptions::default()
    }
}

fn build(
    options: &NodeOptions,
    credentials: Credentials,
    address: String,
    backing: &Backing,
    messages: &mut Vec<String>,
) -> Result<(Arc<Core>, CacheThreads), NodeError> {
    let own = NodeId(own_number(&options.state)?);
    let (etcd, pool) = find_pool(options, &credentials)?;
    let identity = PeerIdentity {
        node: own,
        pool,
        credentials: credentials.clone(),
        streams: options.streams,
        timeout: options.fetch_timeout,
        rdma: reading_by_rdma(options),
    };
    let peers = Arc::new(Peers::new(identity.clone()));
    let small = small_folder(options, backing, own)?;
    let holdings = open_holdings(options, backing, &small, messages)?;
    let adoption = check_state(options, pool, &holdings)?;
    let (holdings, incarnation) = (Arc::new(holdings), Incarnation::fresh());
    let itself = OwnIdentity {
        node: own,
        name: options.name.to_string(),
        address: address.clone(),
        incarnation: incarnation.clone(),
    };
    let directory = Arc::new(directory_link(options, etcd, itself, &peers)?);
    let membership = Membership::new(options, own, address, incarnation.clone(), adoption);
    let (repairs, heat_copies, near) = copiers(options, own, &incarnation, (&directory, &peers, &holdings));
    let puts = Puts::new(own, incarnation, Arc::clone(&directory), Arc::clone(&peers), Arc::clone(&holdings));
    let cache = cache_options(options, backing);
    let (cache, threads) = Cache::start(cache, Arc::clone(&peers), Arc::clone(&directory), own, near)?;
    let kv_racks = Arc::new(KvRacks::new(options.kv_remote, identity, Arc::clone(&directory)));
    let (kv, kept) = KvStores::start(options, kv_folders(backing, own));
    messages.extend(kept);
    let (heat, locks) = (options.heat.map(HeatRules::new).transpose()?, open_locks(options, own)?);
    let core = Arc::new_cyclic(|itself| Core {
        itself: itself.clone(),
        own,
        name: options.name.to_string(),
        pool,
        membership,
        directory,
        peers,
        holdings,
        puts: Arc::new(puts),
        repairs,
        heat_copies,
        cache,
        kv_elsewhere: Arc::new(KvElsewhere::new(Arc::clone(&kv_racks))),
        kv_racks: Arc::clone(&kv_racks),
        kv,
        locks,
        regions: Regions::new(&small, heat, options.share_pages),
        segment: Segment::new(options.segment_bytes),
        state: options.state.clone(),
        backing: backing.explanation.clone(),
        started: Instant::now(),
        sessions: AtomicU32::new(0),
        next_session: AtomicU64::new(1),
        sent_bytes: AtomicU64::new(0),
        rings: RingTally::default(),
    });
    tell_regions(&core);
    Ok((core, threads))
}

/// Takes in what a node of this state folder had before.
fn open_holdings(
    options: &NodeOptions,
    backing: &Backing,
    small: &Path,
    messages: &mut Vec<String>,
) -> Result<Holdings, NodeError> {
    let (holdings, dropped) =
        Holdings::open(&backing.folder, Some(small), &options.state, options.capacity_bytes)?;
    messages.extend(dropped.into_iter().map(|text| format!("dropped {text}")));
    messages.extend(holdings.above_capacity());
    Ok(holdings)
}

/// Has what is kept of regions forgotten with their parts, however those go.
fn tell_regions(core: &Core) {
    // Weak: the holdings must not keep alive what keeps them.
    let itself = Weak::clone(&core.itself);
    core.holdings.when_region_goes(Box::new(move || {
        if let Some(core) = itself.upgrade() {
            core.regions.forget_gone();
        }
    }));
}

/// What makes copies here that were lost, and copies of what is read a lot, and what counts for the latter.
fn copiers(
    options: &NodeOptions,
    own: NodeId,
    incarnation: &Incarnation,
    (directory, peers, holdings): (&Arc<DirectoryLink>, &Arc<Peers>, &Arc<Holdings>),
) -> (Arc<Repairs>, Arc<HeatCopies>, Near) {
    let links = (Arc::clone(directory), Arc::clone(peers), Arc::clone(holdings));
    let repairs = Arc::new(Repairs::new(options.repair, own, incarnation.clone(), links));
    let fetches = Arc::new(Fetches::new(options.rack.clone(), options.heat_copies));
    let near = Near { holdings: Arc::clone(holdings), fetches: Arc::clone(&fetches) };
    let links = (Arc::clone(directory), Arc::clone(holdings), Arc::clone(&repairs));
    let heat = HeatCopies::new(options.heat_copies, own, incarnation.clone(), links, fetches);
    (repairs, heat, near)
}

/// The pool that the node belongs to, and its directory if that is in etcd.
fn find_pool(
    options: &NodeOptions,
    credentials: &Credentials,
) -> Result<(Option<directory_etcd::Opened>, PoolId), NodeError> {
    if let Some(target) = &options.etcd {
        let noted = noted_pool(&options.state)?;
        let drawn = PoolId(u128::from_le_bytes(random().map_err(Refused::from)?).max(1));
        // A pool that this state belongs to is not made again where it is missing.
        let opened = directory_etcd::open(target.clone(), options.lease, noted.is_none().then_some(drawn))?;
        let pool = opened.pool.ok_or_else(|| BelongingError::NoPool {
            state: options.state.clone(),
            own: noted.unwrap_or(drawn),
            directory: target.to_string(),
        })?;
        return Ok((Some(opened), pool));
    }
    let pool = match &options.join {
        Some(directory) => pool_of(directory, credentials)?,
        None => PoolId(u128::from(kept_number(&options.state.join("pool.id"))?)),
    };
    Ok((None, pool))
}

/// Refuses a state that belongs to another directory, before anything in it is touched, unless its objects shall go there.
fn check_state(options: &NodeOptions, pool: PoolId, holdings: &Holdings) -> Result<Adoption, BelongingError> {
    let usual = if options.adopt { Adoption::Newer } else { Adoption::Refused };
    if let Some(target) = &options.etcd {
        let checked = check_belonging(&options.state, &target.to_string(), pool, !holdings.all().is_empty());
        return checked.map(|()| usual);
    }
    let holds_objects = holdings.all().iter().any(|holding| !holding.is_writing());
    match check_pool(&options.state, options.join.as_deref(), pool, holds_objects) {
        Err(BelongingError::DirectoryLost { .. }) if options.adopt => Ok(usual),
        Err(BelongingError::Elsewhere { own, .. }) if options.adopt => Ok(Adoption::All(own)),
        checked => checked.map(|()| usual),
    }
}

/// How the cache is to be. Where the node's own memory is not of huge pages, none were claimed for the cache either: it has them
/// only if there are as many as it may need.
fn cache_options(options: &NodeOptions, backing: &Backing) -> CacheOptions {
    let pages = options.cache_budget_bytes.div_ceil(HUGE_PAGE_BYTES as u64);
    let are_there = || HugePageCounts::read().is_ok_and(|counts| counts.obtainable() >= pages);
    let mut switches = options.switches;
    switches.huge &= backing.kind == PageKind::Huge2M || are_there();
    CacheOptions {
        budget_bytes: options.cache_budget_bytes,
        workers: options.fill_workers,
        idle_files_max: options.idle_caches_max,
        eviction: options.eviction,
        switches,
    }
}

/// Locks of this node, whose fences go on above those of the life before.
fn open_locks(options: &NodeOptions, own: NodeId) -> Result<Locks, NodeError> {
    KeptFences::open(&options.state).and_then(|kept| Locks::new(own, options.lease, kept)).map_err(|source| {
        match (options.state.join("locks"), source.kind()) {
            (path, ErrorKind::InvalidData) => NodeError::LocksLost { path, source },
            (path, _) => NodeError::State { path, source },
        }
    })
}

/// The way to the directory: to etcd and who leads, to another node, or to this one.
fn directory_link(
    options: &NodeOptions,
    etcd: Option<directory_etcd::Opened>,
    itself: OwnIdentity,
    peers: &Arc<Peers>,
) -> Result<DirectoryLink, NodeError> {
    // A lease of days is the longest that anybody sets: the cast loses nothing.
    let settings = Settings { lease_ms: options.lease.as_millis() as u64 };
    if let Some(etcd) = etcd {
        let hosts = options.hosts_directory;
        let shared = EtcdDirectory::new(etcd, itself, settings, hosts, Arc::clone(peers));
        return Ok(DirectoryLink::Etcd(Arc::new(shared)));
    }
    Ok(match &options.join {
        Some(address) => DirectoryLink::Remote { peers: Arc::clone(peers), address: address.clone() },
        None => {
            let path = options.state.join(OWN_DIRECTORY);
            let host = DirectoryHost::open(&path, settings)?;
            DirectoryLink::Embedded(Arc::new(if options.group_commit { host } else { host.one_by_one() }))
        }
    })
}

fn spawn_heartbeat(core: Arc<Core>, bell: Arc<Bell>, lease_ms: u64) -> Result<JoinHandle<()>, NodeError> {
    let thread = std::thread::Builder::new()
        .name("heartbeat".to_owned())
        .spawn(move || keep_alive(&core, &bell, lease_ms))
        .map_err(|error| Refused::new(crate::refused::errno::EIO, error.to_string()))?;
    Ok(thread)
}

fn spawn_repairs(core: &Arc<Core>) -> Result<JoinHandle<()>, NodeError> {
    let repairs = Arc::clone(&core.repairs);
    let thread = std::thread::Builder::new()
        .name("repair".to_owned())
        .spawn(move || repairs.run())
        .map_err(|error| Refused::new(crate::refused::errno::EIO, error.to_string()))?;
    Ok(thread)
}

fn spawn_heat_copies(core: &Arc<Core>) -> Result<JoinHandle<()>, NodeError> {
    let (copies, cache) = (Arc::clone(&core.heat_copies), Arc::clone(&core.cache));
    let thread = std::thread::Builder::new()
        .name("heat-copies".to_owned())
        .spawn(move || copies.run(&cache))
        .map_err(|error| Refused::new(crate::refused::errno::EIO, error.to_string()))?;
    Ok(thread)
}

/// Watches over pages that move.
fn spawn_pages(core: Arc<Core>, bell: Arc<Bell>) -> Result<JoinHandle<()>, NodeError> {
    let watch = move || {
        process::name_thread("pages");
        let mut said = Vec::new();
        loop {
            let stopping = bell.stopping.lock().unwrap_or_else(PoisonError::into_inner);
            let (stopping, _) = bell
                .changed
                .wait_timeout_while(stopping, PAGES_PAUSE, |stopping| !*stopping)
                .unwrap_or_else(PoisonError::into_inner);
            if *stopping {
                return;
            }
            drop(stopping);
            core.regions.end_silent_moves(&core);
            core.regions.recall_wanted(&core);
            core.regions.tend_copies(&core);
            say_what_is_not_used(&core, &mut said);
        }
    };
    let thread = std::thread::Builder::new().name("pages".to_owned()).spawn(watch);
    Ok(thread.map_err(|error| Refused::new(crate::refused::errno::EIO, error.to_string()))?)
}

/// Hears how objects are called that are held here, until the node stops and once more then: who renames and stops loses nothing.
fn spawn_names(core: Arc<Core>, bell: Arc<Bell>) -> Result<JoinHandle<()>, NodeError> {
    let hear = move || {
        process::name_thread("names");
        let (mut said, mut heard_members) = (None, None);
        loop {
            core.hear_members(&mut heard_members);
            let stopping = bell.stopping.lock().unwrap_or_else(PoisonError::into_inner);
            let (stopping, _) = bell
                .changed
                .wait_timeout_while(stopping, known_names::PAUSE, |stopping| !*stopping)
                .unwrap_or_else(PoisonError::into_inner);
            let is_last = *stopping;
            drop(stopping);
            let heard = core.membership.hear_names(&core.directory, &core.holdings);
            let heard = heard.inspect_err(|refused| tracing::debug!(%refused, "names are asked for again"));
            heard.iter().flatten().for_each(|words| core.cache.problem(words));
            // That the directory does not answer, or is older than objects, is said elsewhere.
            let trouble =
                heard.err().filter(|refused| refused.code == errno::EIO).map(|refused| refused.text);
            if let Some(text) = trouble.as_ref().filter(|_| said != trouble) {
                core.cache.problem(&format!(
                    "names of objects are not kept here, for which the directory is needed then: {text}"
                ));
            }
            said = trouble;
            if is_last {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("names".to_owned()).spawn(hear);
    Ok(thread.map_err(|error| Refused::new(crate::refused::errno::EIO, error.to_string()))?)
}

/// Says each reason once for which bytes that devices could move go by TCP, and certificates of before are shown.
fn say_what_is_not_used(core: &Core, said: &mut Vec<String>) {
    let no_rdma = core.regions.refusal().into_iter().chain(core.peers.why_no_rdma());
    let tls = core.peers.identity().credentials.tls.as_ref().and_then(Tls::problem);
    let old = tls.map(|why| format!("the certificates of before are used on: {why}"));
    for why in no_rdma.map(|why| format!("rdma: {why}")).chain(old) {
        if !said.contains(&why) {
            core.cache.problem(&why);
            // Words with numbers in them may differ each time: the first few say enough.
            if said.len() == REASONS_MAX {
                said.remove(0);
            }
            said.push(why);
        }
    }
}

/// Brings pages that this rack uses.
fn spawn_deciding(core: Arc<Core>, bell: Arc<Bell>) -> Result<JoinHandle<()>, NodeError> {
    let decide = move || {
        process::name_thread("heat");
        let mut pace = IDLE_PACE;
        loop {
            let stopping = bell.stopping.lock().unwrap_or_else(PoisonError::into_inner);
            let (stopping, _) = bell
                .changed
                .wait_timeout_while(stopping, pace, |stopping| !*stopping)
                .unwrap_or_else(PoisonError::into_inner);
            if *stopping {
                return;
            }
            drop(stopping);
            pace = if core.regions.decide(&core) { PACE } else { IDLE_PACE };
        }
    };
    let thread = std::thread::Builder::new().name("heat".to_owned()).spawn(decide);
    Ok(thread.map_err(|error| Refused::new(crate::refused::errno::EIO, error.to_string()))?)
}

/// Renews the lease, and tells the directory that time passes. Nothing else may wait here: the lease would run out.
fn keep_alive(core: &Core, bell: &Bell, mut lease_ms: u64) {
    process::name_thread("heartbeat");
    // Of what goes wrong with heartbeats in one go each kind is said once: a directory that did not answer may come back with an older store.
    let mut said = Vec::new();
    let (mut was_older, mut stuck) = (false, None);
    for beat in 1_u64.. {
        let stopping = bell.stopping.lock().unwrap_or_else(PoisonError::into_inner);
        let pause = Duration::from_millis((lease_ms / BEATS_PER_LEASE).max(10));
        let (stopping, _) = bell
            .changed
            .wait_timeout_while(stopping, pause, |stopping| !*stopping)
            .unwrap_or_else(PoisonError::into_inner);
        if *stopping {
            return;
        }
        drop(stopping);
        match core.membership.heartbeat(&core.directory, &core.holdings, &core.puts, &core.repairs) {
            Ok(lease) => {
                lease_ms = lease;
                said.clear();
            }
            Err(refused) if said.contains(&refused.code) => {}
            Err(refused) => {
                core.cache.problem(&unanswered(&refused));
                said.push(refused.code);
            }
        }
        if core.directory.answers_here() {
            let why = core.directory.apply(&Command::Tick).err().map(|refused| refused.to_string());
            if let Some(why) = why.as_ref().filter(|_| stuck != why) {
                core.cache.problem(&format!("the directory cannot go on: {why}"));
            }
            stuck = why;
        }
        if beat.is_multiple_of(BEATS_PER_LEASE) {
            let older = core.membership.show_newest(&core.directory, &core.holdings);
            if let Some(refused) = older.as_ref().filter(|_| !was_older) {
                core.cache.problem(&refused.to_string());
            }
            was_older = older.is_some();
        }
    }
}

/// What is said of a heartbeat that failed; a directory in etcd says the half of it itself.
fn unanswered(refused: &Refused) -> String {
    const WORDS: &str = "the directory does not answer";
    // One that is too old for this node's objects does answer.
    let says_it = refused.text.starts_with("the directory");
    if says_it { refused.to_string() } else { format!("{WORDS}: {refused}") }
}

#[cfg(test)]
mod tests;
