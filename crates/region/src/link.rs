//! One connection of this process to a node, and what it takes to make it anew.

use crate::channel::Channel;
use crate::descriptor::{Keeper, Own, raised};
use crate::error::RegionError;
use crate::{fork, space, watcher};
use hinterland_os::Userfault;
use hinterland_os::socket::UnixStream;
use hinterland_os::userfault::{Features, Scope};
use hinterland_pool::{PoolError, ReadPreference};
use hinterland_proto::control::{Reply, Request};
use hinterland_types::limits::GRACE_DEFAULT;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

/// How often a thread that wants to map looks whether a lost connection is back.
const BACK_PAUSE: Duration = Duration::from_millis(10);
/// How much longer than the grace time it looks: a watcher may be in the middle of a call that a node does not answer.
const BACK_MARGIN: Duration = Duration::from_secs(35);
/// Without it, moving a mapping would leave it unserved.
const FEATURES_NEEDED: Features = Features::EVENT_REMAP.with(Features::MISSING_SHMEM);
/// Taken where the kernel has them.
const FEATURES_WANTED: [Features; 6] = [
    Features::MISSING_HUGETLBFS,
    Features::MINOR_HUGETLBFS,
    Features::MINOR_SHMEM,
    Features::WRITE_PROTECT,
    Features::WRITE_PROTECT_SHARED,
    Features::POISON,
];

/// How to connect, and what to ask of the node's caches.
#[derive(Clone, Debug)]
pub struct Options {
    /// The node's socket; the default one if absent.
    pub socket: Option<PathBuf>,
    /// How long to wait for a dead node to come back before its memory is given up.
    pub grace: Duration,
    /// Most bytes that an object's cache should take on this host.
    pub budget_bytes: Option<u64>,
    /// Fault unit; chosen by the node if absent.
    pub unit_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { socket: None, grace: GRACE_DEFAULT, budget_bytes: None, unit_bytes: None }
    }
}

impl Options {
    /// The options that the environment gives: `HINTERLAND_SOCKET`, `HINTERLAND_GRACE_S`, `HINTERLAND_BUDGET` and
    /// `HINTERLAND_UNIT` (bytes).
    pub fn from_environment() -> Self {
        let ReadPreference { budget_bytes, unit_bytes, grace } = ReadPreference::from_environment();
        Self { socket: None, grace, budget_bytes, unit_bytes }
    }
}

/// A connection that survives restarts of the node and forks of the program.
pub(crate) struct Link {
    /// Where the node listens.
    pub socket: PathBuf,
    /// How long to wait for it.
    pub grace: Duration,
    preference: Option<Request>,
    features: OnceLock<Features>,
    state: AtomicPtr<State>,
    closing: AtomicBool,
}

/// What a forked child makes anew as a whole, locks included.
pub(crate) struct State {
    gate: RwLock<Connection>,
    /// Numbers of the descriptors in use, for a child to close; -1 for none.
    pub descriptors: Descriptors,
}

/// The numbers of a connection's descriptors. A number is taken out before its descriptor is closed: a child that closed
/// a stale number would close a descriptor of somebody else.
pub(crate) struct Descriptors {
    /// Of the session.
    pub channel: AtomicI32,
    /// Of the notices.
    pub watch: AtomicI32,
    /// Of the page faults.
    pub guard: AtomicI32,
}

/// The session of this moment.
pub(crate) struct Connection {
    /// Never the same for two sessions of a process and its children.
    pub generation: u64,
    /// The session; none before the first call of a child and after a node was given up.
    pub channel: Option<Channel>,
    arming: Mutex<Arming>,
}

/// A descriptor for page faults.
pub(crate) struct Guard {
    fault: Userfault,
    keeper: Mutex<Option<Keeper>>,
}

impl Guard {
    /// Ends the thread that keeps it, now that no memory depends on it.
    pub fn let_go(&self) {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Deref for Guard {
    type Target = Userfault;
    fn deref(&self) -> &Userfault {
        &self.fault
    }
}

/// The channel of notices; the watcher reads it, and the end of the connection ends it.
pub(crate) type Notices = Own<UnixStream>;

/// What the first armed mapping brings with it.
#[derive(Default)]
struct Arming {
    guard: Option<Arc<Guard>>,
    notices: Option<Arc<Notices>>,
    watched: bool,
    /// Descriptors of earlier sessions on which touches of memory wait that has not come back.
    retired: Vec<Arc<Guard>>,
}

static GENERATIONS: AtomicU64 = AtomicU64::new(1);

impl Link {
    /// Connects, and has forks of this process look after it.
    ///
    /// # Errors
    /// [`RegionError::Pool`] without a node.
    pub fn connect(options: &Options) -> Result<Arc<Self>, RegionError> {
        let preference = (options.budget_bytes.is_some() || options.unit_bytes.is_some()).then_some({
            Request::Prefer { budget_bytes: options.budget_bytes, unit_bytes: options.unit_bytes }
        });
        let link = Arc::new(Self {
            socket: options.socket.clone().unwrap_or_else(hinterland_pool::default_socket),
            grace: options.grace,
            preference,
            features: OnceLock::new(),
            state: AtomicPtr::new(Box::into_raw(Box::new(State::disconnected()))),
            closing: AtomicBool::new(false),
        });
        let channel = link.new_channel()?;
        link.connection_mut().renew(channel, link.descriptors());
        fork::look_after_forks();
        space::lock().links.push(Arc::clone(&link));
        Ok(link)
    }

    /// Ends the connection. What is mapped without faults stays; what is armed must have been unmapped.
    pub fn close(self: &Arc<Self>) {
        // Release: pairs with the Acquire in `is_closing`.
        self.closing.store(true, Ordering::Release);
        let mut space = space::lock();
        space.links.retain(|link| !Arc::ptr_eq(link, self));
        drop(space);
        // The watcher sees the end of its channel, and then that nobody needs it.
        let notices = self.connection().arming().notices.clone();
        if let Some(notices) = notices.filter(|notices| notices.is_ours()) {
            notices.shutdown();
        }
    }

    /// Whether nobody needs the connection any more.
    pub fn is_closing(&self) -> bool {
        // Acquire: pairs with the Release in `close`.
        self.closing.load(Ordering::Acquire)
    }

    /// The connection, alive as far as is known. Waits while the watcher makes it anew.
    ///
    /// # Errors
    /// [`RegionError::Pool`] if there is no node.
    pub fn connected(&self) -> Result<RwLockReadGuard<'_, Connection>, RegionError> {
        let deadline = Instant::now() + self.grace + BACK_MARGIN;
        loop {
            let connection = self.connection();
            if connection.usable().is_some() {
                return Ok(connection);
            }
            let watched = connection.arming().watched;
            drop(connection);
            if watched && Instant::now() < deadline {
                // The watcher sees the end of the node too, and brings back or gives up what is armed.
                std::thread::sleep(BACK_PAUSE);
                continue;
            }
            let mut connection = self.connection_mut();
            if watched && connection.usable().is_none() {
                return Err(PoolError::Closed.into());
            }
            if connection.usable().is_none() && !connection.arming().watched {
                connection.renew(self.new_channel()?, self.descriptors());
            }
        }
    }

    /// The connection as it is.
    pub fn connection(&self) -> RwLockReadGuard<'_, Connection> {
        self.state().gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection as it is, unless it is being made anew.
    pub fn connection_now(&self) -> Option<RwLockReadGuard<'_, Connection>> {
        self.state().gate.try_read().ok()
    }

    /// The connection, to be made anew.
    pub fn connection_mut(&self) -> RwLockWriteGuard<'_, Connection> {
        self.state().gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new session, told what this program wants of caches.
    ///
    /// # Errors
    /// [`RegionError::Pool`].
    pub fn new_channel(&self) -> Result<Channel, RegionError> {
        let channel = Channel::connect(&self.socket)?;
        if let Some(preference) = &self.preference {
            match channel.call(preference) {
                // A preference that the node cannot grant is no reason to do without the node.
                Ok(_) | Err(PoolError::Refused { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(channel)
    }

    /// A new descriptor for page faults, kept whatever the program closes.
    ///
    /// # Errors
    /// [`RegionError::Os`] or [`RegionError::UserModeOnly`] without the permission, [`RegionError::Thread`].
    pub fn new_guard(&self) -> Result<Arc<Guard>, RegionError> {
        let guard = self.new_loose_guard()?;
        let keeper = Keeper::start(guard.as_fd()).map_err(|source| RegionError::Thread { source })?;
        *guard.keeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(keeper);
        Ok(guard)
    }

    /// A new descriptor for page faults that lasts until the program closes it.
    ///
    /// # Errors
    /// [`RegionError::Os`] or [`RegionError::UserModeOnly`] without the permission.
    pub fn new_loose_guard(&self) -> Result<Arc<Guard>, RegionError> {
        let features = match self.features.get() {
            Some(features) => *features,
            None => {
                let (available, _) = Userfault::available()?;
                let chosen = FEATURES_WANTED.into_iter().filter(|feature| available.contains(*feature));
                *self.features.get_or_init(|| chosen.fold(FEATURES_NEEDED, Features::with))
            }
        };
        let low = Userfault::open(features)?;
        if low.scope() == Scope::UserModeOnly {
            return Err(RegionError::UserModeOnly);
        }
        let fault = Userfault::from_descriptor(raised(low.as_fd())?, Scope::Full);
        Ok(Arc::new(Guard { fault, keeper: Mutex::new(None) }))
    }

    /// The descriptor that serves faults, and a watcher beside it; made at the first call.
    ///
    /// # Errors
    /// Without the permission, without a thread, or if the node does not answer.
    pub fn arm(self: &Arc<Self>, connection: &Connection) -> Result<Arc<Guard>, RegionError> {
        let channel = connection.usable().ok_or(PoolError::Closed)?;
        let mut arming = connection.arming();
        let guard = match &arming.guard {
            Some(guard) => Arc::clone(guard),
            None => {
                let guard = self.new_guard()?;
                // Relaxed: read by a forked child only, in which no other thread runs.
                self.descriptors().guard.store(guard.as_fd().as_raw_fd(), Ordering::Relaxed);
                Arc::clone(arming.guard.insert(guard))
            }
        };
        if !arming.watched {
            let notices = self.watch(channel)?;
            watcher::start(Arc::clone(self), Some(Arc::clone(&notices)))?;
            arming.notices = Some(notices);
            arming.watched = true;
        }
        Ok(guard)
    }

    /// Asks for the channel of notices.
    ///
    /// # Errors
    /// [`RegionError::Pool`].
    pub fn watch(&self, channel: &Channel) -> Result<Arc<Notices>, RegionError> {
        let (_, mut descriptors) = channel.call_with(&Request::Watch, &[])?;
        let low = descriptors.pop().ok_or_else(|| nonsense("Watch", "no descriptor came"))?;
        let stream = UnixStream::from_descriptor(raised(low.as_fd())?);
        let number = stream.as_fd().as_raw_fd();
        // Relaxed: see `arm`.
        self.descriptors().watch.store(number, Ordering::Relaxed);
        Ok(Arc::new(Own::new(stream, number)))
    }

    /// Gives back what a source held at the node. A node that does not answer has forgotten it, or will.
    pub fn release(&self, source: &space::Source) {
        let Some(connection) = self.connection_now() else { return };
        let Some(channel) = connection.usable().filter(|_| connection.generation == source.generation) else {
            return;
        };
        let mut requests: Vec<Request> = source
            .registrations
            .iter()
            .map(|registration| Request::Unregister { registration: *registration })
            .collect();
        requests.push(Request::Close { handle: source.handle });
        for request in requests {
            // Whatever the answer is, there is nothing left to be done about it.
            let _ = channel.call(&request);
        }
    }

    /// The numbers of the descriptors in use.
    pub fn descriptors(&self) -> &Descriptors {
        &self.state().descriptors
    }

    /// Puts a fresh state in place in a forked child. What was there is never touched again: its locks may be held by
    /// threads that the child does not have.
    ///
    /// # Safety
    /// Only in a child that has just been forked, before any other thread of it runs.
    pub unsafe fn replace_state(&self, fresh: Box<State>) {
        // Relaxed: there is no other thread.
        self.state.store(Box::into_raw(fresh), Ordering::Relaxed);
    }

    fn state(&self) -> &State {
        // Acquire: pairs with nothing but the construction; the pointer changes only in a fresh child.
        // SAFETY: the pointer came from a box, which only `drop` frees, and a child leaks the one before.
        unsafe { &*self.state.load(Ordering::Acquire) }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: nobody holds a reference to the link any more, so nobody holds one to its state.
        drop(unsafe { Box::from_raw(*self.state.get_mut()) });
    }
}

impl State {
    /// A connection that is yet to be made.
    pub fn disconnected() -> Self {
        let none = || AtomicI32::new(-1);
        Self {
            gate: RwLock::new(Connection { generation: 0, channel: None, arming: Mutex::default() }),
            descriptors: Descriptors { channel: none(), watch: none(), guard: none() },
        }
    }

    /// The connection of a state that no other thread has seen.
    pub fn connection_mut(&mut self) -> &mut Connection {
        self.gate.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    /// The session, if no call on it has failed.
    pub fn usable(&self) -> Option<&Channel> {
        self.channel.as_ref().filter(|channel| !channel.is_broken())
    }

    /// Ends the session.
    pub fn disconnect(&mut self, descriptors: &Descriptors) {
        // Relaxed: see `Link::arm`.
        descriptors.channel.store(-1, Ordering::Relaxed);
        self.channel = None;
    }

    /// Puts a new session in place.
    pub fn renew(&mut self, channel: Channel, descriptors: &Descriptors) {
        self.disconnect(descriptors);
        // Relaxed: a counter; see `Link::arm` for the number of the descriptor.
        self.generation = GENERATIONS.fetch_add(1, Ordering::Relaxed);
        descriptors.channel.store(channel.descriptor(), Ordering::Relaxed);
        self.channel = Some(channel);
    }

    /// Puts another descriptor for page faults in place and returns the one before.
    pub fn exchange_guard(&mut self, guard: Option<Arc<Guard>>) -> Option<Arc<Guard>> {
        std::mem::replace(&mut self.arming().guard, guard)
    }

    /// The descriptor for page faults, if memory is armed.
    pub fn guard(&self) -> Option<Arc<Guard>> {
        self.arming().guard.clone()
    }

    /// Keeps the descriptors of earlier sessions on which touches wait.
    pub fn keep_retired(&self, retired: Vec<Arc<Guard>>) {
        self.arming().retired = retired;
    }

    /// The descriptors of earlier sessions on which touches wait.
    pub fn retired(&self) -> Vec<Arc<Guard>> {
        self.arming().retired.clone()
    }

    /// Hands over the descriptors of earlier sessions on which touches wait.
    pub fn take_retired(&self) -> Vec<Arc<Guard>> {
        std::mem::take(&mut self.arming().retired)
    }

    /// Says that a watcher looks after the connection, or that none does.
    pub fn set_watched(&mut self, watched: bool) {
        self.arming().watched = watched;
    }

    /// Puts the channel of notices of a new session in place, or none.
    pub fn set_notices(&mut self, notices: Option<Arc<Notices>>) {
        self.arming().notices = notices;
    }

    fn arming(&self) -> std::sync::MutexGuard<'_, Arming> {
        self.arming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An answer that cannot be.
pub(crate) fn nonsense(name: &str, reason: impl Into<String>) -> RegionError {
    RegionError::Nonsense { name: name.to_owned(), reason: reason.into() }
}

/// An answer of another kind than was due.
pub(crate) fn unexpected(expected: &'static str, reply: &Reply) -> RegionError {
    let mut answer = format!("{reply:?}");
    answer.truncate(answer.char_indices().nth(80).map_or(answer.len(), |(index, _)| index));
    PoolError::Unexpected { expected, answer }.into()
}
