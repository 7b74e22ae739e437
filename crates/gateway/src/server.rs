//! A server: its sockets and its threads.

use crate::connection::Stream;
use crate::listen::{Listen, ListenError};
use crate::shared::Shared;
use crate::worker::{Mailbox, Worker};
use hinterland_os::poll::{EventCounter, Interest, Poller};
use hinterland_os::socket::{SocketFile, make_way, probe_when_quiet};
use hinterland_os::{OsError, limits};
use hinterland_pool::{Pool, PoolError};
use std::io;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Pause after a connection that could not be accepted or waited for, such as without descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a client of another host may be quiet before it is asked whether it is there: as with Redis.
const QUIET_MAX: Duration = Duration::from_secs(300);
/// Number of the stop counter in the poller.
const STOP: u64 = u64::MAX;
/// Descriptors that are not for clients.
const OTHER_DESCRIPTORS: u64 = 64;

/// How a server is started.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where it listens.
    pub listen: Vec<Listen>,
    /// The node's socket.
    pub socket: PathBuf,
    /// The namespace; servers of one user with the same one share their keys.
    pub namespace: String,
    /// What clients must say first.
    pub password: Option<String>,
    /// Databases, 1 to 1024.
    pub databases: usize,
    /// Threads that serve clients.
    pub threads: usize,
    /// Clients at once.
    pub clients_max: usize,
    /// Bytes that the buffers of all clients may take.
    pub buffers_bytes: usize,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// It may not listen there.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// It cannot listen there.
    #[error("listening at {listen} failed: {source} (hint: {})", bind_hint(.listen, .source))]
    Bind {
        /// Where.
        listen: Listen,
        /// What the system said.
        source: io::Error,
    },
    /// The node does not answer, or has no memory for KV blocks.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The operating system said no.
    #[error(transparent)]
    Os(#[from] OsError),
    /// No thread.
    #[error("no thread can be started: {0} (hint: `ulimit -u` shows how many there may be)")]
    Thread(io::Error),
}

enum Listener {
    Tcp(TcpListener),
    Unix(
        #[expect(dead_code, reason = "its drop removes the file, before the socket is closed")] SocketFile,
        UnixListener,
        PathBuf,
    ),
}

/// A server that listens, and serves nobody yet: who connects waits.
pub struct Bound {
    listeners: Vec<Listener>,
    options: ServerOptions,
}

/// A server that runs until it is stopped.
pub struct Server {
    addresses: Vec<Listen>,
    mailboxes: Vec<Arc<Mailbox>>,
    stop: Arc<EventCounter>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens and serves.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start(options: ServerOptions) -> Result<Self, ServerError> {
        Self::bind(options)?.serve()
    }

    /// Listens, without a word to the node.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn bind(options: ServerOptions) -> Result<Bound, ServerError> {
        for listen in &options.listen {
            listen.check(options.password.is_some())?;
        }
        // Before the node makes its memory, which takes a while: who connects meanwhile waits, and an address that is taken is told at once.
        let listeners = options.listen.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        Ok(Bound { listeners, options })
    }

    /// Where it listens; ports that the system chose are filled in.
    pub fn addresses(&self) -> &[Listen] {
        &self.addresses
    }

    fn spawn(&mut self, name: String, run: impl FnOnce() + Send + 'static) -> Result<(), ServerError> {
        let thread = std::thread::Builder::new().name(name).spawn(run).map_err(ServerError::Thread)?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Bound {
    /// The files of its sockets, for who ends the process without a drop.
    pub fn files(&self) -> Vec<PathBuf> {
        let file = |listener: &Listener| match listener {
            Listener::Unix(.., path) => Some(path.clone()),
            Listener::Tcp(_) => None,
        };
        self.listeners.iter().filter_map(file).collect()
    }

    /// Serves, once the node has memory for values.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn serve(self) -> Result<Server, ServerError> {
        let Self { listeners, mut options } = self;
        // Whether there is memory for values is better said now than to the first client.
        let pool = Pool::connect(Some(&options.socket))?;
        drop(pool.kv_values(&crate::keyspace::Keyspace::fingerprint(&options.namespace, 0))?);
        let descriptors = limits::raise_open_files()?.soft;
        let most = usize::try_from(descriptors.saturating_sub(OTHER_DESCRIPTORS)).unwrap_or(usize::MAX);
        options.clients_max = options.clients_max.min(most);
        let addresses: Vec<Listen> = listeners.iter().map(Listener::address).collect();
        let port = addresses.iter().find_map(|listen| match listen {
            Listen::Tcp(address) => Some(address.port()),
            Listen::Unix(_) => None,
        });
        let threads = options.threads.max(1);
        let shared = Arc::new(Shared::new(options, port.unwrap_or(0)));
        let stop = Arc::new(EventCounter::new()?);
        let mut server = Server { addresses, mailboxes: Vec::new(), stop, threads: Vec::new() };
        for number in 0..threads {
            let mailbox = Arc::new(Mailbox::new()?);
            let worker = Worker::new(Arc::clone(&shared), Arc::clone(&mailbox))?;
            server.mailboxes.push(mailbox);
            let (shared, mailbox) = (Arc::clone(&shared), Arc::clone(&server.mailboxes[number]));
            server.spawn(format!("resp-{number}"), move || serve(worker, &shared, &mailbox))?;
        }
        let (mailboxes, stop) = (server.mailboxes.clone(), Arc::clone(&server.stop));
        server.spawn("resp-accept".to_owned(), move || {
            if let Err(error) = accept(&listeners, &mailboxes, &stop) {
                tracing::error!(%error, "no more clients are accepted");
            }
        })?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.raise();
        self.mailboxes.iter().for_each(|mailbox| mailbox.stop());
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Listener {
    fn address(&self) -> Listen {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(address) => Listen::Tcp(address),
                Err(_) => Listen::Tcp(([0, 0, 0, 0], 0).into()),
            },
            Self::Unix(.., path) => Listen::Unix(path.clone()),
        }
    }

    /// The next connection and where it comes from.
    fn accept(&self) -> io::Result<(Stream, String)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                probe_when_quiet(&stream, QUIET_MAX).map_err(io::Error::other)?;
                Ok((Stream::Tcp(stream), address.to_string()))
            }
            Self::Unix(_, listener, path) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true)?;
                Ok((Stream::Unix(stream), format!("{}:0", path.display())))
            }
        }
    }
}

/// What to do where it cannot be listened.
fn bind_hint(listen: &Listen, error: &io::Error) -> &'static str {
    match (listen, error.kind()) {
        (Listen::Tcp(_), io::ErrorKind::AddrNotAvailable) => {
            "no card of this host has this address: `ip address` lists those there are, 0.0.0.0 stands for all"
        }
        (Listen::Tcp(_), io::ErrorKind::PermissionDenied) => {
            "ports below 1024 are for root: choose another --listen"
        }
        (Listen::Tcp(_), _) => "choose another --listen; `ss -lptn` shows who has it",
        (Listen::Unix(_), io::ErrorKind::AddrInUse) => "choose another --listen; `ss -lpx` shows who has it",
        (Listen::Unix(_), _) => "name a path in a folder that this user may write",
    }
}

fn bind(listen: &Listen) -> Result<Listener, ServerError> {
    let failed = |source| ServerError::Bind { listen: listen.clone(), source };
    match listen {
        Listen::Tcp(address) => {
            let listener = TcpListener::bind(address).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            Ok(Listener::Tcp(listener))
        }
        Listen::Unix(path) => {
            let _alone = make_way(path).map_err(|error| match error.errno() {
                Some(number) => failed(io::Error::from_raw_os_error(number)),
                None => error.into(),
            })?;
            let listener = UnixListener::bind(path).map_err(failed)?;
            let file = SocketFile::of(path);
            listener.set_nonblocking(true).map_err(failed)?;
            Ok(Listener::Unix(file, listener, path.clone()))
        }
    }
}

/// The life of a thread that serves clients. One that fails loses its connections, and whoever is handed over later gets a worker of the next life.
fn serve(first: Worker, shared: &Arc<Shared>, mailbox: &Arc<Mailbox>) {
    let mut worker = Ok(first);
    loop {
        match worker.map(|worker| catch_unwind(AssertUnwindSafe(|| worker.run()))) {
            Ok(Ok(Ok(()))) => return,
            Ok(Ok(Err(error))) | Err(error) => {
                tracing::error!(%error, "a thread that serves clients has lost them");
                std::thread::sleep(ACCEPT_PAUSE);
            }
            // What it was has been said.
            Ok(Err(_)) => tracing::error!(
                "a thread that serves clients has failed and lost them (hint: report the lines above)"
            ),
        }
        if mailbox.is_stopping() {
            return;
        }
        worker = Worker::new(Arc::clone(shared), Arc::clone(mailbox));
    }
}

/// Accepts clients and hands them to the workers in turn, until it is asked to stop.
fn accept(listeners: &[Listener], mailboxes: &[Arc<Mailbox>], stop: &EventCounter) -> Result<(), OsError> {
    let poller = Poller::new()?;
    poller.add(stop, STOP, Interest::READ)?;
    for (number, listener) in listeners.iter().enumerate() {
        match listener {
            Listener::Tcp(listener) => poller.add(listener, number as u64, Interest::READ)?,
            Listener::Unix(_, listener, _) => poller.add(listener, number as u64, Interest::READ)?,
        }
    }
    let (mut ready, mut turn) = (Vec::new(), 0);
    loop {
        poller.wait(&mut ready, None)?;
        for event in &ready {
            if event.token == STOP {
                return Ok(());
            }
            let Some(listener) = listeners.get(event.token as usize) else { continue };
            match listener.accept() {
                Ok((stream, address)) => {
                    mailboxes[turn % mailboxes.len()].give(stream, address);
                    turn += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::warn!(%error, "a client could not be accepted");
                    std::thread::sleep(ACCEPT_PAUSE);
                }
            }
        }
    }
}
