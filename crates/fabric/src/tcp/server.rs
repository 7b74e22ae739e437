//! Accepts connections, keeps sessions and their streams, and ends them all.

use super::greeting::{agree_on_tls, answer, refuse, send_all};
use super::serve::Stream;
use super::socket::{Interest, Socket, random_bytes, wait_for};
use super::tls::Tls;
use crate::error::FabricError;
use crate::rdma::{Host, SessionHost};
use crate::service::Service;
use hinterland_proto::{
    Established, Features, PeerHello, PeerLimits, PoolId, PoolKey, RUNS_MAX, Refusal, RefusalCode,
    ServerHandshake, ServerIdentity, Ticket,
};
use hinterland_types::limits::{FRAME_BODY_BYTES_MAX, SESSIONS_MAX, STREAMS_MAX};
use hinterland_types::{NodeId, SessionId};
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Stack of a stream's thread: the service runs on it.
const STACK_BYTES: usize = 512 << 10;
/// How often the listener looks whether it shall stop.
const ACCEPT_SLICE: Duration = Duration::from_millis(50);
/// Pause after a failure to accept, usually too few descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// How often the listener looks whether there is a place for one more handshake.
const PLACE_PAUSE: Duration = Duration::from_millis(1);
/// The part of the time for a handshake after which the listener does not wait for a place any more: of peers that say something, some have
/// been let in by then.
const PLACE_WAIT_PART: u32 = 3;
/// Streams of one session: those of the endpoint, and of queues beside it.
const SESSION_STREAMS_MAX: usize = 4 * STREAMS_MAX;

/// What a server is and what it allows.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// This node.
    pub node: NodeId,
    /// Its pool.
    pub pool: PoolId,
    /// The key of the pool, if it has one.
    pub key: Option<PoolKey>,
    /// How long a stream's thread spins after a request before it sleeps; zero for not at all.
    pub spin: Duration,
    /// Threads that may spin at once: more than half of the cores would starve the others.
    pub spinners_max: usize,
    /// Connections at once, each with a thread.
    pub connections_max: usize,
    /// Connections at once that are not yet admitted; more wait for a third of a handshake's time as long as none of these gets on, and are
    /// refused then.
    pub handshakes_max: usize,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How long a peer may leave a frame unfinished, or take nothing of an answer, before it is cut off.
    pub stall_timeout: Duration,
    /// Socket buffers in bytes, each direction; without it 1 MiB within a machine, else what the kernel chooses.
    pub buffer_bytes: Option<usize>,
    /// The RDMA devices that peers may use, if there are any.
    pub rdma: Option<Arc<Host>>,
    /// Where given, peers have to speak TLS and show a certificate.
    pub tls: Option<Tls>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            node: NodeId(1),
            pool: PoolId::ANY,
            key: None,
            spin: Duration::ZERO,
            spinners_max: (cores / 2).max(1),
            connections_max: SESSIONS_MAX,
            handshakes_max: 64,
            handshake_timeout: Duration::from_secs(3),
            stall_timeout: Duration::from_secs(10),
            buffer_bytes: None,
            rdma: None,
            tls: None,
        }
    }
}

/// A running server; it stops when this is dropped.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    listener: Option<JoinHandle<()>>,
}

/// What all threads of a server share.
pub(super) struct Shared {
    pub service: Arc<dyn Service>,
    pub options: ServerOptions,
    stopping: AtomicBool,
    handshakes: AtomicUsize,
    /// Threads that spin right now.
    pub spinners: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    connection_next: u64,
    connections: HashMap<u64, Connection>,
    sessions: HashMap<SessionId, Session>,
    /// Threads that ended and can be joined without waiting.
    ended: Vec<JoinHandle<()>>,
}

struct Connection {
    socket: Arc<Socket>,
    session: Option<SessionId>,
    thread: Option<JoinHandle<()>>,
}

struct Session {
    secret: [u8; 32],
    streams: usize,
    rdma: Option<Arc<SessionHost>>,
}

impl Server {
    /// Starts to serve; returns at once.
    ///
    /// # Errors
    /// [`FabricError::System`] if the listener or a thread cannot be had.
    pub fn start(
        listener: TcpListener,
        service: Arc<dyn Service>,
        options: ServerOptions,
    ) -> Result<Self, FabricError> {
        let failed =
            |error: std::io::Error| FabricError::System { what: "listening", reason: error.to_string() };
        let address = listener.local_addr().map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let shared = Arc::new(Shared {
            service,
            options,
            stopping: AtomicBool::new(false),
            handshakes: AtomicUsize::new(0),
            spinners: AtomicUsize::new(0),
            state: Mutex::new(State::default()),
        });
        let accepting = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("fabric-accept".to_owned())
            .spawn(move || accepting.accept_all(&listener))
            .map_err(failed)?;
        Ok(Self { shared, address, listener: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections that are open, admitted or not.
    pub fn connections(&self) -> usize {
        self.shared.state().connections.len()
    }

    /// Sessions that are open.
    pub fn sessions(&self) -> usize {
        self.shared.state().sessions.len()
    }

    /// Closes every stream of a session, as if its peer had died.
    pub fn disconnect(&self, session: SessionId) {
        self.shared.disconnect(session);
    }

    /// Stops listening, closes all connections and waits for their threads; the service sees all sessions closed.
    pub fn stop(&mut self) {
        // Release: pairs with the Acquire in `is_stopping`.
        self.shared.stopping.store(true, Ordering::Release);
        if let Some(listener) = self.listener.take() {
            // A panic of the thread was reported when it happened.
            let _ = listener.join();
        }
        let threads: Vec<_> = {
            let mut state = self.shared.state();
            let open = state.connections.values_mut().filter_map(|connection| {
                connection.socket.shutdown();
                connection.thread.take()
            });
            let mut threads: Vec<_> = open.collect();
            threads.append(&mut state.ended);
            threads
        };
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that change it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_stopping(&self) -> bool {
        // Acquire: pairs with the Release in `Server::stop`.
        self.stopping.load(Ordering::Acquire)
    }

    fn accept_all(self: &Arc<Self>, listener: &TcpListener) {
        let mut interest = [Interest::new(listener.as_raw_fd(), false)];
        let mut full_for = Duration::ZERO;
        while !self.is_stopping() {
            let ended = std::mem::take(&mut self.state().ended);
            for thread in ended {
                let _ = thread.join();
            }
            match listener.accept() {
                Ok((stream, _)) => {
                    let nonblocking = stream.set_nonblocking(false);
                    let prepared = nonblocking.and_then(|()| Socket::prepare(stream));
                    if let Ok(socket) = prepared {
                        self.accept(socket, &mut full_for);
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if wait_for(&mut interest, ACCEPT_SLICE).is_err() {
                        std::thread::sleep(ACCEPT_PAUSE);
                    }
                }
                Err(_) => std::thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    /// Waits for a place among those that are being let in. Programs of a job come all at once, and each needs a moment; only where none
    /// gets on for long are the places taken by peers that say nothing, and then nobody is waited for before one is free again.
    fn wait_for_place(&self, full_for: &mut Duration) -> bool {
        let patience = self.options.handshake_timeout / PLACE_WAIT_PART;
        // Relaxed: a count; the threads that change it publish nothing through it.
        while self.handshakes.load(Ordering::Relaxed) >= self.options.handshakes_max {
            if *full_for >= patience || self.is_stopping() {
                return false;
            }
            std::thread::sleep(PLACE_PAUSE);
            // Pauses are counted and not the clock: a node that was stopped or starved has let nobody in meanwhile.
            *full_for += PLACE_PAUSE;
        }
        *full_for = Duration::ZERO;
        true
    }

    /// Why one more connection is too many, if it is.
    fn too_many(&self, full_for: &mut Duration) -> Option<String> {
        let open = self.state().connections.len();
        if open >= self.options.connections_max {
            return Some(format!(
                "the node has {open} connections open (hint: close some, or ask another node)"
            ));
        }
        let most = self.options.handshakes_max;
        (!self.wait_for_place(full_for)).then(|| {
            format!(
                "the node waits for {most} others that have connected to say who they are (hint: connect again in some seconds, when those that say nothing are cut off)"
            )
        })
    }

    /// Gives a connection its thread, or refuses it if there are too many.
    fn accept(self: &Arc<Self>, socket: Socket, full_for: &mut Duration) {
        if let Some(text) = self.too_many(full_for) {
            let refusal = Refusal::new(RefusalCode::Full, text).to_bytes();
            // The socket's buffer is empty, so this does not wait.
            let _ = send_all(&socket, &refusal, Instant::now());
            return;
        }
        let socket = Arc::new(socket);
        // Relaxed: as in `wait_for_place`.
        self.handshakes.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        let number = state.connection_next;
        state.connection_next += 1;
        let (shared, served) = (Arc::clone(self), Arc::clone(&socket));
        let thread = std::thread::Builder::new()
            .name(format!("fabric-{number}"))
            .stack_size(STACK_BYTES)
            .spawn(move || shared.serve(number, &served));
        match thread {
            Ok(thread) => {
                state.connections.insert(number, Connection { socket, session: None, thread: Some(thread) });
            }
            // Relaxed: as above; dropping the socket closes the connection.
            Err(_) => drop(self.handshakes.fetch_sub(1, Ordering::Relaxed)),
        }
    }

    /// The life of one connection.
    fn serve(self: &Arc<Self>, number: u64, socket: &Arc<Socket>) {
        let ending = Ending { shared: self, number, socket };
        let greeting = Greeting(self);
        let within = self.options.handshake_timeout;
        let is_agreed = agree_on_tls(socket, self.options.tls.as_ref(), within);
        let answered = if is_agreed { answer(socket, self.identity(), within) } else { None };
        let admitted = answered.and_then(|(peer, machine)| self.admit(number, socket, &peer, machine));
        drop(greeting);
        if let Some(established) = admitted {
            let session = established.ticket.session;
            let polling = established.features.has(Features::POLLING);
            // Without them the stream is slower, not wrong.
            let _ = socket.set_buffers(self.options.buffer_bytes, polling);
            let leaving = Leaving { shared: self, session };
            Stream::new(socket, self, &established).run();
            drop(leaving);
        }
        drop(ending);
    }

    fn identity(&self) -> ServerIdentity {
        ServerIdentity {
            node: self.options.node,
            pool: self.options.pool,
            key: self.options.key.clone(),
            features: match self.options.rdma {
                Some(_) => Features::POLLING.with(Features::RDMA),
                None => Features::POLLING,
            },
            limits: PeerLimits {
                body_bytes_max: FRAME_BODY_BYTES_MAX,
                runs_max: RUNS_MAX as u32,
                streams_max: STREAMS_MAX as u32,
            },
        }
    }

    /// Opens or joins a session and tells the peer.
    fn admit(
        &self,
        number: u64,
        socket: &Arc<Socket>,
        peer: &PeerHello,
        machine: ServerHandshake,
    ) -> Option<Established> {
        let admitted = if self.is_stopping() {
            Err(Refusal::new(RefusalCode::Stopping, "the node is going down (hint: ask another node)"))
        } else {
            match &peer.join {
                Some(ticket) => self.join(ticket),
                None => self.open(peer),
            }
        };
        let ticket = match admitted {
            Ok(ticket) => ticket,
            Err(refusal) => {
                refuse(socket, &refusal.to_bytes());
                return None;
            }
        };
        let session = ticket.session;
        if let Some(connection) = self.state().connections.get_mut(&number) {
            connection.session = Some(session);
        }
        let (bytes, established) = machine.ready(session, ticket.secret);
        let deadline = Instant::now() + self.options.handshake_timeout;
        if send_all(socket, &bytes, deadline).is_ok() {
            return Some(established);
        }
        self.leave(session);
        None
    }

    fn open(&self, peer: &PeerHello) -> Result<Ticket, Refusal> {
        let broken = |_| {
            let text = "the node cannot draw a ticket (hint: see its log)";
            Refusal::new(RefusalCode::Denied, text)
        };
        let secret = random_bytes().map_err(broken)?;
        let session = self.service.opened(peer)?;
        let rdma = self.options.rdma.as_ref().map(|host| SessionHost::new(host, session));
        self.state().sessions.insert(session, Session { secret, streams: 1, rdma });
        Ok(Ticket { session, secret })
    }

    fn join(&self, ticket: &Ticket) -> Result<Ticket, Refusal> {
        let mut state = self.state();
        match state.sessions.get_mut(&ticket.session) {
            Some(session) if session.secret != ticket.secret => {}
            Some(session) if session.streams >= SESSION_STREAMS_MAX => {
                let text = format!(
                    "the session has {} streams open, which is the most (hint: close a queue)",
                    session.streams
                );
                return Err(Refusal::new(RefusalCode::Full, text));
            }
            Some(session) => {
                session.streams += 1;
                return Ok(ticket.clone());
            }
            None => {}
        }
        let text = format!("{} is over or never was (hint: connect without a ticket)", ticket.session);
        Err(Refusal::new(RefusalCode::Ticket, text))
    }

    /// One stream of the session is gone.
    fn leave(&self, session: SessionId) {
        let mut state = self.state();
        let Some(entry) = state.sessions.get_mut(&session) else { return };
        entry.streams -= 1;
        if entry.streams == 0 {
            let ended = state.sessions.remove(&session);
            drop(state);
            // Before the service lets go of the memory: no device may reach it any more.
            if let Some(rdma) = ended.and_then(|ended| ended.rdma) {
                rdma.end();
            }
            self.service.closed(session);
        }
    }

    /// What a session reaches by RDMA.
    pub fn rdma_of(&self, session: SessionId) -> Option<Arc<SessionHost>> {
        self.state().sessions.get(&session).and_then(|session| session.rdma.clone())
    }

    fn disconnect(&self, session: SessionId) {
        for connection in self.state().connections.values() {
            if connection.session == Some(session) {
                connection.socket.shutdown();
            }
        }
    }
}

/// Counts a connection that is not yet admitted down, even if the service panics.
struct Greeting<'a>(&'a Shared);

impl Drop for Greeting<'_> {
    fn drop(&mut self) {
        // Relaxed: a count; nothing is published through it.
        self.0.handshakes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends a connection, even if the service panics: the peer would wait for an answer that nobody gives, and the connection would count
/// for good.
struct Ending<'a> {
    shared: &'a Shared,
    number: u64,
    socket: &'a Socket,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.socket.shutdown();
        let mut state = self.shared.state();
        if let Some(thread) = state.connections.remove(&self.number).and_then(|connection| connection.thread)
        {
            state.ended.push(thread);
        }
    }
}

/// Leaves the session at the end of a stream, even if the service panics.
struct Leaving<'a> {
    shared: &'a Shared,
    session: SessionId,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.shared.leave(self.session);
    }
}
