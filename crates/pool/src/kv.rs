//! KV blocks that engines of this host share: found and read in place, written by reservation.

use crate::session::unexpected;
use crate::{Pool, PoolError, Session};
use hinterland_kv::{BlockKey, Namespace, View, ViewError};
use hinterland_os::{MemoryFile, fork_mark};
use hinterland_proto::control::{
    KV_KEYS_MAX, KV_SPACES_AT_ONCE, KvReply, KvRequest, KvStatus, Reply, Request,
};
use hinterland_types::Handle;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

mod gpu;
mod keeping;
mod owned;
mod put;
mod queue;
mod racks;
mod read;
mod replace;
mod runs;
mod settle;
mod values;

pub use gpu::{GpuOptions, KvGpu, KvTransfer};
pub use keeping::KvEvents;
pub use owned::Owned;
pub use put::{Gathered, GatheredRuns, Stored};
pub use queue::{Batch, Completion, KeyOperation, KvQueue, QueueOptions, Refusal, WhenFull};
pub use read::{Scattered, ScatteredRuns};
pub use replace::{TOGETHER_BYTES_MAX, TOGETHER_MAX};
pub use runs::{Gather, Run, Scatter};
pub use values::{Expects, KvValues, Listed, Replaced, Replacement};

const EINVAL: i32 = 22;
/// How long who must not be kept waiting waits while the node makes its memory: a second and more for each of hundreds of GiB.
const OPENING_MAX: Duration = Duration::from_secs(600);
/// How often who waits looks whether to leave.
const LEAVING_LOOK: Duration = Duration::from_millis(500);
/// How long who leaves waits for a node that is not stopped and does not answer.
const LEAVING_MAX: Duration = Duration::from_secs(30);
/// Most keys of a message of 1 MiB.
const KEYS_MAX: usize = KV_KEYS_MAX;

/// A namespace of KV blocks. Blocks that are put here are found by every process of the user that opens the same one.
pub struct KvCache {
    session: Session,
    view: View,
    handle: Handle,
    namespace: Namespace,
    /// Its number among the counters of the touches file.
    counters: u32,
    /// Whether lookups of many keys ask memory for several at once.
    looks_ahead: bool,
    /// How the namespace is opened again.
    request: Request,
    /// How long an answer of the node is waited for.
    waits: Waits,
    /// For requests that wait for other nodes.
    racks: OnceLock<racks::Waiting>,
    /// The session for them could not be opened, since the node said nothing for too long.
    is_silent: AtomicBool,
    /// 1 in this process, 0 in a child of it.
    mark: Option<&'static AtomicU32>,
}

impl Pool {
    /// Opens the KV blocks of an engine. `fingerprint` is everything that engines must agree on to understand each other's
    /// blocks: model, revision, type, layout, tokens of a block, rank.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the node has no memory for KV blocks.
    ///
    /// ```no_run
    /// # use hinterland_pool::Pool;
    /// # let pool = Pool::connect(None)?;
    /// let cache = pool.kv("llama-3 bf16 block=16 rank=0")?;
    /// cache.put(&[(b"hash of the tokens", &[b"keys", b"values"])])?;
    /// let (mut keys, mut values) = ([0; 4], [0; 6]);
    /// let found = cache.get(b"hash of the tokens", &mut [&mut keys, &mut values])?;
    /// // It may have been evicted meanwhile.
    /// assert!(found.is_none() || (&keys, &values) == (b"keys", b"values"));
    /// # Ok::<(), hinterland_pool::PoolError>(())
    /// ```
    pub fn kv(&self, fingerprint: &str) -> Result<KvCache, PoolError> {
        KvCache::open(self.session().socket(), opening(fingerprint), Waits::Forever)
    }

    /// The same for those who must not be kept waiting: what the node does not answer within so long ends with [`PoolError::Silent`],
    /// and the namespace is lost, to be opened again; what was asked last may still be done then. Opening it, when the node may make its
    /// memory for blocks, is waited for longer.
    ///
    /// # Errors
    /// As [`kv`](Self::kv), and of a node that is stopped.
    pub fn kv_within(&self, fingerprint: &str, within: Duration) -> Result<KvCache, PoolError> {
        KvCache::open(self.session().socket(), opening(fingerprint), Waits::Within(within))
    }

    /// Opens a namespace that an engine has opened before, by its number as [`kv_status`](Self::kv_status) tells it.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is none.
    pub fn kv_known(&self, namespace: u64) -> Result<KvCache, PoolError> {
        KvCache::open(
            self.session().socket(),
            Request::Kv(KvRequest::OpenKnown { namespace }),
            Waits::Forever,
        )
    }

    /// What the stores of the local node hold.
    ///
    /// # Errors
    /// [`PoolError`] if it does not answer.
    pub fn kv_status(&self) -> Result<Vec<KvStatus>, PoolError> {
        status(|request| match self.session().call(&Request::Kv(request))? {
            Reply::Kv(reply) => Ok(reply),
            other => Err(unexpected("Kv", &other)),
        })
    }
}

/// What stores hold, with all of their namespaces, for which one message may have no room.
fn status(ask: impl Fn(KvRequest) -> Result<KvReply, PoolError>) -> Result<Vec<KvStatus>, PoolError> {
    let mut stores = match ask(KvRequest::Status)? {
        KvReply::Status(stores) => stores,
        other => return Err(unexpected("Status", &other)),
    };
    let told: usize = stores.iter().map(|store| store.namespaces.len()).sum();
    let mut has_all = told < KV_SPACES_AT_ONCE;
    for store in &mut stores {
        while !has_all {
            let after = store.namespaces.last().map(|space| space.namespace);
            match ask(KvRequest::Spaces { user: store.user, after })? {
                KvReply::Spaces(spaces) => {
                    has_all = spaces.len() < KV_SPACES_AT_ONCE;
                    store.namespaces.extend(spaces);
                }
                other => return Err(unexpected("Spaces", &other)),
            }
        }
        has_all = told < KV_SPACES_AT_ONCE;
    }
    Ok(stores)
}

/// How long an answer of the node is waited for.
#[derive(Clone, Debug)]
enum Waits {
    /// As long as it takes.
    Forever,
    /// So long.
    Within(Duration),
    /// As long as it takes until the flag is set. From then on a node that is stopped is not waited for, and another one not for
    /// [`LEAVING_MAX`].
    Until(Arc<AtomicBool>),
}

impl Waits {
    fn apply(&self, session: &Session) -> Result<(), PoolError> {
        match self {
            Self::Forever => Ok(()),
            Self::Within(within) => session.on_silence(*within, |_| false),
            Self::Until(is_leaving) => {
                let is_leaving = Arc::clone(is_leaving);
                session.on_silence(LEAVING_LOOK, move |silence| {
                    // Acquire: pairs with the Release of who leaves.
                    let leaves = is_leaving.load(Ordering::Acquire);
                    !(leaves && (silence.is_stopped || silence.waited >= LEAVING_MAX))
                })
            }
        }
    }
}

impl KvCache {
    fn open(socket: &Path, request: Request, waits: Waits) -> Result<Self, PoolError> {
        // One of its own: a put has it to itself while it copies.
        let session = Session::connect(Some(socket))?;
        if let Waits::Within(within) = waits {
            session.on_silence(within, |silence| !silence.is_stopped && silence.waited < OPENING_MAX)?;
        }
        let cache = Self::over(session, request)?;
        waits.apply(&cache.session)?;
        Ok(Self { waits, ..cache })
    }

    fn over(session: Session, request: Request) -> Result<Self, PoolError> {
        let (reply, descriptors) = session.call_with(&request, &[])?;
        let files =
            descriptors.into_iter().map(MemoryFile::from_descriptor).collect::<Result<Vec<_>, _>>()?;
        match (reply, files.as_slice()) {
            (Reply::Kv(KvReply::Opened { handle, namespace, counters }), [books, blocks, touches]) => {
                Ok(Self {
                    session,
                    view: View::map(books, blocks, touches).map_err(broken)?,
                    handle,
                    namespace: Namespace(namespace),
                    counters,
                    looks_ahead: std::env::var_os("HINTERLAND_NO_LOOKAHEAD").is_none_or(|value| value != "1"),
                    request,
                    waits: Waits::Forever,
                    racks: OnceLock::new(),
                    is_silent: AtomicBool::new(false),
                    mark: fork_mark::mark(),
                })
            }
            (other, _) => Err(unexpected("Opened with three descriptors", &other)),
        }
    }

    /// The same namespace by a session of its own, for another thread: puts of one session wait for each other.
    ///
    /// # Errors
    /// [`PoolError`] if the node does not answer.
    pub fn again(&self) -> Result<Self, PoolError> {
        Self::open(self.session.socket(), self.request.clone(), self.waits.clone())
    }

    /// The same, but the node may take as long as it likes until the flag is set.
    fn again_until(&self, is_leaving: &Arc<AtomicBool>) -> Result<Self, PoolError> {
        let waits = Waits::Until(Arc::clone(is_leaving));
        Self::open(self.session.socket(), self.request.clone(), waits)
    }

    /// Whether the node, or a silence of it that was too long, has ended the session: what is found then is what there was, and others see
    /// none of it.
    pub fn is_lost(&self) -> bool {
        // Relaxed: it says nothing of other memory.
        self.is_silent.load(Ordering::Relaxed)
            || self.session.is_lost()
            || self.racks.get().is_some_and(racks::Waiting::is_lost)
    }

    /// Removes blocks; returns how many were there.
    ///
    /// # Errors
    /// As [`length`](Self::length).
    pub fn remove(&self, keys: &[&[u8]]) -> Result<u64, PoolError> {
        let mut removed = 0;
        for keys in keys.chunks(KEYS_MAX) {
            let keys = keys.iter().map(|key| key.to_vec()).collect();
            removed += self.count(KvRequest::Remove { handle: self.handle, keys })?;
        }
        Ok(removed)
    }

    /// Removes all blocks of the namespace; returns how many there were.
    ///
    /// # Errors
    /// [`PoolError`] if the node does not answer.
    pub fn clear(&self) -> Result<u64, PoolError> {
        self.count(KvRequest::Clear { handle: self.handle })
    }

    /// Removes all blocks of the namespace at every node of the pool, also on their disks; returns how many there were in memory. What is
    /// on its way between nodes meanwhile does not count, and none is fetched from another node for ten seconds.
    ///
    /// # Errors
    /// [`PoolError`] with the nodes at which blocks may be left: those that do not answer, or have pinned ones. At the others they are
    /// removed.
    pub fn clear_everywhere(&self) -> Result<u64, PoolError> {
        self.count(KvRequest::ClearEverywhere { handle: self.handle })
    }

    fn count(&self, request: KvRequest) -> Result<u64, PoolError> {
        match self.ask(request)? {
            KvReply::Count(count) => Ok(count),
            other => Err(unexpected("Count", &other)),
        }
    }

    /// Refuses all but reading to a child that was forked: the session is its parent's and ends with it, and what is reserved in it is
    /// another program's then.
    fn check_own(&self) -> Result<(), PoolError> {
        // Relaxed: a process is a child from its first instruction on.
        if self.mark.is_none_or(|mark| mark.load(Ordering::Relaxed) == 1) {
            return Ok(());
        }
        let text =
            "this process was forked from one that has the KV blocks open (hint: connect to the pool anew)";
        Err(PoolError::Refused { code: EINVAL, text: text.to_owned() })
    }

    fn ask(&self, request: KvRequest) -> Result<KvReply, PoolError> {
        self.check_own()?;
        match self.session.call(&Request::Kv(request))? {
            Reply::Kv(reply) => Ok(reply),
            other => Err(unexpected("Kv", &other)),
        }
    }
}

/// The number by which [`Pool::kv_status`] tells the namespace of a fingerprint: a label may be only the beginning of one.
pub fn kv_namespace(fingerprint: &str) -> u64 {
    Namespace::of(&hash_of(fingerprint)).0
}

/// What stands for a fingerprint in messages.
fn hash_of(fingerprint: &str) -> [u8; 32] {
    *blake3::hash(fingerprint.as_bytes()).as_bytes()
}

/// How the namespace of a fingerprint is opened.
fn opening(fingerprint: &str) -> Request {
    let label = fingerprint.chars().take(200).collect();
    let fingerprint = hash_of(fingerprint);
    Request::Kv(KvRequest::Open { fingerprint, label })
}

fn block_key(bytes: &[u8]) -> Result<BlockKey, PoolError> {
    BlockKey::new(bytes).map_err(|error| PoolError::Refused { code: EINVAL, text: error.to_string() })
}

fn broken(error: ViewError) -> PoolError {
    match error {
        ViewError::Os(error) => error.into(),
        other => PoolError::Refused { code: EINVAL, text: other.to_string() },
    }
}
