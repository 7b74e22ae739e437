//! The daemon of a GPU node: listeners, a process for each client, quotas of memory, and what the node does, for lists.

mod books;

use crate::cache::ImageCache;
use crate::control::{FromSession, ToSession, hear, say};
use crate::failure::Failure;
use crate::session::Progress;
use crate::spec::DeviceSpec;
use books::Books;
use hinterland_channel::{Address, Channel, ChannelError, ChannelOptions, Handover, Listener};
use hinterland_os::OsError;
use hinterland_proto::{Features, PeerLimits, PoolId, PoolKey, ServerIdentity};
use hinterland_types::NodeId;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often a listener looks whether the daemon ends.
const LOOK_TIME: Duration = Duration::from_millis(200);
/// Clients beside the sessions: those that arrive, and those that ask what the node does.
const GUESTS_MAX: usize = 32;
/// How long a listener rests after a failure, such as a lack of descriptors.
const REST_TIME: Duration = Duration::from_millis(100);

/// How a node serves.
#[derive(Debug, Clone)]
pub struct DaemonOptions {
    /// Where clients connect.
    pub listen: Vec<Address>,
    /// Key that clients of other hosts need.
    pub key: Option<PoolKey>,
    /// The devices.
    pub device: DeviceSpec,
    /// Most memory of each device that a session gets, which is then its own; nothing for all of it, shared by all.
    pub session_memory: Option<u64>,
    /// Most sessions.
    pub sessions_max: usize,
    /// The folder of fat binaries, if they are kept.
    pub cache: Option<PathBuf>,
    /// Bytes of that folder.
    pub cache_bytes: u64,
    /// The socket of a node of the pool whose objects sessions may copy from, if there is one.
    pub pool: Option<PathBuf>,
    /// What starts a session's process, but for what is added for each.
    pub program: Vec<String>,
}

/// Why a node cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// A listener, or a channel.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The system refused.
    #[error(transparent)]
    Os(#[from] OsError),
    /// There are no such devices.
    #[error("{0}")]
    Device(String),
    /// Something of the system's library failed.
    #[error("{doing}: {source} (hint: check the path and its rights)")]
    Io {
        /// What.
        doing: String,
        /// Why.
        source: io::Error,
    },
}

struct Common {
    options: DaemonOptions,
    books: Mutex<Books>,
    /// Clients, from the moment that they connect to the end of their process.
    clients: AtomicUsize,
    is_ending: AtomicBool,
}

/// A node that serves. Dropping it ends its listeners; sessions end with the process.
pub struct Daemon {
    common: Arc<Common>,
    addresses: Vec<Address>,
    listeners: Vec<JoinHandle<()>>,
}

impl Daemon {
    /// Begins to serve.
    ///
    /// # Errors
    /// [`DaemonError`].
    pub fn start(options: DaemonOptions) -> Result<Self, DaemonError> {
        if let Some(folder) = &options.cache {
            let failed = |source| DaemonError::Io { doing: format!("opening {}", folder.display()), source };
            ImageCache::open(folder, options.cache_bytes).map_err(failed)?;
        }
        let devices = options.device.memory().map_err(DaemonError::Device)?;
        let limits = PeerLimits { body_bytes_max: 0, runs_max: 1, streams_max: 1 };
        let identity = ServerIdentity {
            node: NodeId(0),
            pool: PoolId::ANY,
            key: options.key.clone(),
            features: Features(0),
            limits,
        };
        let mut bound = Vec::new();
        for address in &options.listen {
            bound.push(Listener::bind(address, identity.clone(), ChannelOptions::default())?);
        }
        let addresses = bound.iter().map(Listener::address).collect();
        let books = Books::new(devices, options.session_memory, options.sessions_max);
        let common = Arc::new(Common {
            options,
            books: Mutex::new(books),
            clients: AtomicUsize::new(0),
            is_ending: AtomicBool::new(false),
        });
        let mut listeners = Vec::new();
        for listener in bound {
            let common = Arc::clone(&common);
            let thread = std::thread::Builder::new().name("listener".to_owned());
            let started = thread.spawn(move || accept(&common, &listener));
            listeners.push(
                started.map_err(|source| DaemonError::Io { doing: "starting a thread".into(), source })?,
            );
        }
        Ok(Self { common, addresses, listeners })
    }

    /// Where clients connect, with the ports that were taken.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the listeners.
        self.common.is_ending.store(true, Ordering::Release);
        for listener in self.listeners.drain(..) {
            // A thread that panicked has said so.
            let _ = listener.join();
        }
    }
}

impl Common {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The life of a listener.
fn accept(common: &Arc<Common>, listener: &Listener) {
    // Acquire: pairs with the Release of the daemon's end.
    while !common.is_ending.load(Ordering::Acquire) {
        let caller = match listener.accept(Some(LOOK_TIME)) {
            Ok(Some(caller)) => caller,
            Ok(None) => continue,
            Err(error) => {
                tracing::warn!("a client could not be taken: {error}");
                std::thread::sleep(REST_TIME);
                continue;
            }
        };
        // Relaxed: a count alone.
        let count = common.clients.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(common));
        if count >= common.options.sessions_max + GUESTS_MAX {
            tracing::warn!("a client is turned away: {count} are there already");
            continue;
        }
        let attend = move || match caller.admit() {
            Ok((channel, _)) => {
                if let Err(error) = host(&counted.0, channel) {
                    tracing::warn!("a session ended: {error}");
                }
            }
            Err(error) => tracing::info!("{error}"),
        };
        if let Err(error) = std::thread::Builder::new().name("session".to_owned()).spawn(attend) {
            tracing::warn!("a session could not be started: {error}");
        }
    }
}

/// A client, as long as it is counted.
struct Counted(Arc<Common>);

impl Drop for Counted {
    fn drop(&mut self) {
        // Relaxed: a count alone.
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Arguments of a session's process behind the program: what [`SessionOptions`](crate::process::SessionOptions) has.
fn session_arguments(options: &DaemonOptions, channel: &str) -> Vec<String> {
    let mut arguments = vec![
        "--channel".to_owned(),
        channel.to_owned(),
        "--device".to_owned(),
        options.device.to_string(),
        "--cache-size".to_owned(),
        options.cache_bytes.to_string(),
    ];
    if let Some(folder) = &options.cache {
        arguments.extend(["--cache".to_owned(), folder.display().to_string()]);
    }
    if let Some(socket) = &options.pool {
        arguments.extend(["--pool".to_owned(), socket.display().to_string()]);
    }
    arguments
}

/// Starts the process of a session, and stays with it until it ends.
fn host(common: &Arc<Common>, channel: Channel) -> io::Result<()> {
    let (own, other) = UnixStream::pair()?;
    let [program, first @ ..] = common.options.program.as_slice() else {
        return Err(io::Error::other("no program is named for sessions"));
    };
    let mut command = Command::new(program);
    let handover = Handover::new(channel).map_err(io::Error::other)?;
    let text = handover.pass_to(&mut command);
    command.arg0("hinterland").args(first).args(session_arguments(&common.options, &text));
    command.stdin(Stdio::from(OwnedFd::from(other))).stdout(Stdio::null());
    let child = command.spawn();
    // The command holds the other end of the socket, and the handover the client's.
    drop((command, handover));
    let mut child = Running(child?);
    let mut session = None;
    while let Some(message) = hear::<FromSession>(&own)? {
        if let Some(answer) = answer(common, &mut session, child.0.id(), message) {
            say(&own, &answer)?;
        }
    }
    // The process ends by itself: it has closed its end.
    child.0.wait().map(drop)
}

/// A session's process, which ends with this at the latest.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has mostly ended, and then neither does anything.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A session in the books, as long as it is.
struct Booked {
    common: Arc<Common>,
    number: u64,
}

impl Drop for Booked {
    fn drop(&mut self) {
        self.common.books().leave(self.number);
    }
}

fn answer(
    common: &Arc<Common>,
    session: &mut Option<Booked>,
    process: u32,
    message: FromSession,
) -> Option<ToSession> {
    match message {
        FromSession::Greeted { .. } if session.is_some() => None,
        FromSession::Greeted { program, host, process: of_program, memory, devices } => {
            let entered = common.books().enter((program, host, of_program), process, memory, &devices);
            Some(match entered {
                Ok((number, devices)) => {
                    *session = Some(Booked { common: Arc::clone(common), number });
                    ToSession::Admitted { session: number, devices }
                }
                Err(Failure { error, words, .. }) => ToSession::Refused { error, words },
            })
        }
        FromSession::Progress(progress) => {
            if let Some(Booked { number, .. }) = session {
                common.books().progress(*number, &progress);
            }
            None
        }
        FromSession::AskGrant { device, least, wanted } => {
            let number = session.as_ref()?.number;
            let (granted, left) = common.books().change(number, device, least, wanted);
            Some(ToSession::Granted(granted, left))
        }
        FromSession::List => {
            let cache = common.options.cache.as_ref();
            let cache = cache.and_then(|folder| ImageCache::open(folder, common.options.cache_bytes).ok());
            let images = cache.map_or((0, 0), |cache| cache.size());
            Some(ToSession::Status(common.books().status(images)))
        }
    }
}
