//! The server: listens, and gives each client a thread.

use crate::address::{Address, Stream};
use crate::blocks::{Blocks, BlocksReport};
use crate::connection::{Connection, End, Service, Tally};
use hinterland_os::poll::wait_readable;
use hinterland_os::socket::UnixListener;
use hinterland_os::{OsError, process};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time in which a client agrees with the server.
const GREETING_TIME: Duration = Duration::from_secs(30);
/// Time in which a client takes what it asked for.
const SENDING_TIME: Duration = Duration::from_secs(60);
/// How often the listener looks after clients that do not agree, and whether it shall end.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pause after the system refused a connection, such as for want of descriptors.
const REFUSAL_PAUSE: Duration = Duration::from_millis(50);
const EADDRINUSE: i32 = 98;

/// What a server shall be.
#[derive(Debug)]
pub struct ServerOptions {
    /// Where clients connect.
    pub listen: Vec<Address>,
    /// Whether other hosts may: nothing is encrypted and nobody is asked who he is.
    pub serves_other_hosts: bool,
    /// Clients at once; the kernel is one for each connection.
    pub clients_max: usize,
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Other hosts could read and write everybody's memory.
    #[error(
        "{0} can be reached from other hosts, and whoever connects reads and writes the memory of programs (hint: listen at a path or at 127.0.0.1, or say --serve-other-hosts on a network that you trust)"
    )]
    Open(Address),
    /// Not there.
    #[error("listening at {address} failed: {source} (hint: {hint})")]
    Listen {
        /// Where.
        address: Address,
        /// The kernel's answer.
        source: io::Error,
        /// What to try.
        hint: &'static str,
    },
    /// The system refused.
    #[error(transparent)]
    Os(#[from] OsError),
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

struct Client {
    stream: Stream,
    begun: Instant,
    is_using: bool,
}

struct Shared {
    device: Arc<Blocks>,
    description: String,
    tally: Tally,
    clients: Mutex<HashMap<u64, Client>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    next: AtomicU64,
    refused: AtomicU64,
    late: AtomicU64,
    ends: AtomicBool,
    clients_max: usize,
}

/// A device that is served.
pub struct Server {
    shared: Arc<Shared>,
    listeners: Vec<JoinHandle<()>>,
    addresses: Vec<Address>,
}

impl Server {
    /// Listens, and serves until it is finished.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn start(device: Arc<Blocks>, options: &ServerOptions) -> Result<Self, ServerError> {
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for address in &options.listen {
            if !address.is_local() && !options.serves_other_hosts {
                return Err(ServerError::Open(address.clone()));
            }
            let (listener, address) = listen(address)?;
            listeners.push(listener);
            addresses.push(address);
        }
        // Tells this server from one that is started in its place: what was written is in this one alone.
        let begun = hinterland_os::clock::monotonic_ns();
        let shared = Arc::new(Shared {
            device,
            description: format!("hinterland far memory, instance {}-{begun:x}", std::process::id()),
            tally: Tally::default(),
            clients: Mutex::default(),
            threads: Mutex::default(),
            next: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            late: AtomicU64::new(0),
            ends: AtomicBool::new(false),
            clients_max: options.clients_max,
        });
        let spawn = |listener| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("listener".into())
                .spawn(move || shared.listen(&listener))
                .map_err(|error| OsError::system("starting a thread", "a listener", error))
        };
        let listeners = listeners.into_iter().map(spawn).collect::<Result<_, _>>()?;
        Ok(Self { shared, listeners, addresses })
    }

    /// Where clients connect, with the ports that were chosen.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Clients that use the device.
    pub fn users(&self) -> usize {
        self.shared.lock().values().filter(|client| client.is_using).count()
    }

    /// Ends all connections, and says what was done.
    pub fn finish(self) -> ServerReport {
        // Release: pairs with the Acquire of the listeners.
        self.shared.ends.store(true, Ordering::Release);
        for listener in self.listeners {
            // A listener that panicked has nothing more to end.
            let _ = listener.join();
        }
        for client in self.shared.lock().values() {
            client.stream.end();
        }
        let threads =
            std::mem::take(&mut *self.shared.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // As above.
            let _ = thread.join();
        }
        self.shared.report()
    }

    /// What was done so far.
    pub fn report(&self) -> ServerReport {
        self.shared.report()
    }
}

fn listen(address: &Address) -> Result<(Listener, Address), ServerError> {
    match address {
        Address::Unix(path) => {
            let listener = UnixListener::bind(path).map_err(|error| match error.errno() {
                Some(EADDRINUSE) => {
                    error.with_hint("another server listens there: end it, or name another path")
                }
                _ => error,
            })?;
            Ok((Listener::Unix(listener), address.clone()))
        }
        Address::Tcp(tcp) => {
            let failed = |source| ServerError::Listen {
                address: address.clone(),
                source,
                hint: "another server listens there, or the address is not one of this host",
            };
            let listener = TcpListener::bind(tcp).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            let address = Address::Tcp(listener.local_addr().map_err(failed)?);
            Ok((Listener::Tcp(listener), address))
        }
    }
}

impl Listener {
    /// The next client, if one comes soon; of unix sockets only this user and root.
    fn accept(&self) -> io::Result<Option<Stream>> {
        match self {
            Self::Unix(listener) => {
                let accepted = listener.accept(Some(LOOK_EVERY)).map_err(io::Error::other)?;
                let Some(stream) = accepted else { return Ok(None) };
                let user = stream.peer_credentials().map_err(io::Error::other)?.user;
                if user != 0 && user != process::effective_user() {
                    return Ok(None);
                }
                let descriptor = stream.as_fd().try_clone_to_owned()?;
                Ok(Some(Stream::Unix(UnixStream::from(descriptor))))
            }
            Self::Tcp(listener) => {
                if !wait_readable(listener, Some(LOOK_EVERY)).map_err(io::Error::other)? {
                    return Ok(None);
                }
                match listener.accept() {
                    Ok((stream, _)) => {
                        stream.set_nonblocking(false)?;
                        stream.set_nodelay(true)?;
                        Ok(Some(Stream::Tcp(stream)))
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen(self: &Arc<Self>, listener: &Listener) {
        // Acquire: pairs with the Release of `finish`.
        while !self.ends.load(Ordering::Acquire) {
            match listener.accept() {
                Ok(Some(stream)) => self.admit(stream),
                Ok(None) => {}
                Err(_) => std::thread::sleep(REFUSAL_PAUSE),
            }
            self.end_the_late();
        }
    }

    /// Ends clients that have not agreed in time: they would keep others out.
    fn end_the_late(&self) {
        for client in self.lock().values().filter(|client| !client.is_using) {
            if client.begun.elapsed() > GREETING_TIME {
                client.stream.end();
                // Relaxed: a counter for people.
                self.late.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn admit(self: &Arc<Self>, stream: Stream) {
        let handle = stream.set_timeouts(None, Some(SENDING_TIME)).and_then(|()| stream.again());
        let Ok(handle) = handle else { return };
        // Relaxed: only has to differ.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut clients = self.lock();
            if clients.len() >= self.clients_max {
                // Relaxed: a counter for people.
                self.refused.fetch_add(1, Ordering::Relaxed);
                return;
            }
            clients.insert(number, Client { stream: handle, begun: Instant::now(), is_using: false });
        }
        let shared = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("client".into()).spawn(move || {
            shared.serve(number, stream);
            if let Some(client) = shared.lock().remove(&number) {
                client.stream.end();
            }
        });
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|thread| !thread.is_finished());
        match spawned {
            Ok(thread) => threads.push(thread),
            Err(_) => drop(self.lock().remove(&number)),
        }
    }

    fn serve(&self, number: u64, stream: Stream) {
        let service = Service { device: &self.device, description: &self.description, tally: &self.tally };
        let mut connection = Connection::new(stream, service);
        let end = match connection.greet() {
            Ok(true) => {
                if let Some(client) = self.lock().get_mut(&number) {
                    client.is_using = true;
                }
                connection.serve().err()
            }
            Ok(false) => None,
            Err(end) => Some(end),
        };
        if let Some(End::Broken(reason)) = end {
            self.tally.count_broken(reason);
        }
    }

    fn report(&self) -> ServerReport {
        // Relaxed: numbers for people.
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ServerReport {
            blocks: self.device.report(),
            clients: get(&self.next),
            requests: get(&self.tally.requests),
            refusals: get(&self.tally.refusals),
            broken: get(&self.tally.broken) + get(&self.late),
            broken_last: *self.tally.last.lock().unwrap_or_else(PoisonError::into_inner),
            turned_away: get(&self.refused),
        }
    }
}

/// What a server did. Counts.
#[derive(Clone, Debug, Default)]
pub struct ServerReport {
    /// What the device did.
    pub blocks: BlocksReport,
    /// Clients that connected.
    pub clients: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Those that were refused.
    pub refusals: u64,
    /// Clients whose connections were ended because of what they said, or did not say.
    pub broken: u64,
    /// What the last of them said.
    pub broken_last: &'static str,
    /// Clients that were turned away because there were too many.
    pub turned_away: u64,
}

impl fmt::Display for ServerReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {} requests of {} clients", self.blocks, self.requests, self.clients)?;
        for (count, words) in [
            (self.refusals, "requests were refused"),
            (self.turned_away, "clients were turned away"),
            (self.broken, "clients did not keep to the protocol"),
        ] {
            if count > 0 {
                write!(f, "; {count} {words}")?;
            }
        }
        if !self.broken_last.is_empty() {
            write!(f, " (the last one sent {})", self.broken_last)?;
        }
        Ok(())
    }
}
