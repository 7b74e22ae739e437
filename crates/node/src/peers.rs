//! Connections to other nodes: made when they are needed, shared by all threads, forgotten when they break.

use crate::credentials::Credentials;
use crate::refused::{Refused, errno};
use crate::roster::Roster;
use hinterland_directory::Command;
use hinterland_fabric::rdma::{RdmaEndpoint, RdmaOptions};
use hinterland_fabric::tcp::{ClientOptions, TcpEndpoint};
use hinterland_fabric::{Closer, Endpoint, Lease};
use hinterland_proto::control::{Home, PeerReply, PeerRequest, decode, encode};
use hinterland_proto::right::right_to_read;
use hinterland_proto::{PoolId, Role};
use hinterland_types::{Handle, NodeId, ObjectId};
use std::collections::HashMap;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest wait for an answer that needs a disk at the other side.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for the directory: shorter than people at a command line have, who are told then that it is the directory, and not
/// their node, that does not answer.
const DIRECTORY_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest wait for a home to drop an object that has no name any more: one that hangs must not hold up who removed it.
const DROP_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a home that did not answer to that is not asked again: about a lease, after which the directory has it for down.
const SILENT_REST: Duration = Duration::from_secs(10);
/// How long a home that the directory says is down is not waited for again, after that was in vain.
const DOWN_REST: Duration = Duration::from_secs(30);
/// A connection that could not be made in so long was waited for: who does not listen says so at once.
const SLOW: Duration = Duration::from_secs(1);
/// Bytes of memory that a node goes through in a second at the least, whatever else it does: one busy processor checks and
/// zeroes some ten times as many.
const SLOWEST_BYTES_PER_SECOND: u64 = 100_000_000;

/// How this node presents itself to others.
#[derive(Clone, Debug)]
pub struct PeerIdentity {
    /// This node.
    pub node: NodeId,
    /// Its pool.
    pub pool: PoolId,
    /// What it proves that by.
    pub credentials: Credentials,
    /// Streams to each peer.
    pub streams: usize,
    /// How long a read may take before another home is asked.
    pub timeout: Duration,
    /// Devices that read what peers hold; everything else goes over TCP.
    pub rdma: RdmaOptions,
}

/// Which of the connections to a node takes a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Way {
    /// The one for everything.
    Common,
    /// One for heartbeats alone. Clients that put and look up at the same moment fill all streams of the other with commands that
    /// are answered one after the other, each when it is on the disk: behind hundreds of them the lease would run out.
    Beats,
}

impl Way {
    /// The one for a command of the directory: joining makes the connection that heartbeats need.
    pub const fn of(command: &Command) -> Self {
        match command {
            Command::Join { .. } | Command::Heartbeat { .. } => Self::Beats,
            _ => Self::Common,
        }
    }
}

/// Connections that are looked through for those that have ended at the least: so few are no burden.
const LOOKED_THROUGH_MIN: usize = 16;

/// The connections that there are.
#[derive(Default)]
struct Endpoints {
    all: HashMap<(Way, String), Arc<RdmaEndpoint>>,
    /// How many there were when those that have ended were let go of.
    left: usize,
}

impl Endpoints {
    /// Adds a connection, unless another thread was quicker; the one that is used, and those that are to be dropped.
    ///
    /// Nobody calls at the address of a node that was started again elsewhere. Its sockets are let go of once there are twice as many
    /// connections as before, so that each costs one look.
    fn add(
        &mut self,
        place: (Way, String),
        endpoint: Arc<RdmaEndpoint>,
    ) -> (Arc<RdmaEndpoint>, Vec<Arc<RdmaEndpoint>>) {
        let mut ended = Vec::new();
        if self.all.len() >= LOOKED_THROUGH_MIN.max(2 * self.left) {
            ended.extend(self.all.extract_if(|_, known| known.tcp().has_ended()).map(|(_, known)| known));
            self.left = self.all.len();
        }
        (Arc::clone(self.all.entry(place).or_insert(endpoint)), ended)
    }
}

/// All connections of this node.
pub struct Peers {
    identity: PeerIdentity,
    endpoints: Mutex<Endpoints>,
    /// When nodes were last waited for in vain. Homes that are to drop an object are asked for nothing so soon again, nor those that are down for bytes.
    silent: Mutex<HashMap<String, Instant>>,
    closer: Arc<Closer>,
    roster: Roster,
}

impl Peers {
    /// No connections yet.
    pub fn new(identity: PeerIdentity) -> Self {
        // The message cannot be too long; without one the handle would stay until the connection ends.
        let closer = Closer::new(|handle| encode(&PeerRequest::Detach { handle }).unwrap_or_default());
        Self {
            identity,
            endpoints: Mutex::default(),
            silent: Mutex::default(),
            closer,
            roster: Roster::default(),
        }
    }

    /// What the other nodes are called.
    pub const fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Makes a handle that a node has given with `Attach` one that is given back when nobody needs it any more.
    pub fn lease(&self, endpoint: &Arc<dyn Endpoint>, handle: Handle) -> Arc<Lease> {
        self.closer.lease(Arc::clone(endpoint), handle)
    }

    /// What shows, in this pool, that somebody may read an object.
    pub fn right_to_read(&self, object: ObjectId, digest: &[u8; 32]) -> [u8; 32] {
        right_to_read(self.identity.credentials.key.as_ref(), self.identity.pool, object, digest)
    }

    /// The connection to `HOST:PORT`.
    ///
    /// # Errors
    /// [`Refused`] if it cannot be made.
    pub fn endpoint(&self, address: &str) -> Result<Arc<dyn Endpoint>, Refused> {
        self.connected(Way::Common, address).map(|endpoint| endpoint as Arc<dyn Endpoint>)
    }

    /// Asks a node; a connection that turns out to be dead is made anew once (every request may be sent twice).
    ///
    /// # Errors
    /// [`Refused`] with the node's words, or that it cannot be reached.
    pub fn call(&self, address: &str, request: &PeerRequest) -> Result<PeerReply, Refused> {
        let within = match request {
            PeerRequest::Directory(_) => DIRECTORY_TIMEOUT,
            _ => patience(bytes_gone_through(request)),
        };
        self.call_within(address, request, within)
    }

    /// The same for a heartbeat, which waits behind nothing else that this node asks.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn beat(&self, address: &str, request: &PeerRequest) -> Result<PeerReply, Refused> {
        self.call_by(Way::Beats, address, request, CALL_TIMEOUT)
    }

    /// Has a home drop an object that has no name any more, without waiting long: it hears of it with its next heartbeat otherwise.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn drop_at_home(&self, address: &str, object: ObjectId) -> Result<(), Refused> {
        self.drop_within(address, object, DROP_TIMEOUT)
    }

    /// Who removes many objects waits for a silent home once, not for each of them, and who has waited for it with a put not at all.
    fn drop_within(&self, address: &str, object: ObjectId, within: Duration) -> Result<(), Refused> {
        if self.lock_silent().get(address).is_some_and(|since| since.elapsed() < SILENT_REST) {
            let text = format!("{address} has not answered a moment ago");
            return Err(Refused::new(errno::EHOSTUNREACH, text));
        }
        self.call_within(address, &PeerRequest::HomeDrop { object }, within).map(drop)
    }

    /// Refuses to wait for a home that the directory says is down, where somebody has waited for it a moment ago. One that is up for the
    /// directory is always asked: whoever comes back is asked as soon as that has heard of it.
    ///
    /// # Errors
    /// [`Refused`] with `EHOSTUNREACH`.
    pub fn expect(&self, home: &Home) -> Result<(), Refused> {
        if home.up || self.lock_silent().get(&home.address).is_none_or(|since| since.elapsed() >= DOWN_REST) {
            return Ok(());
        }
        let text = format!("it did not answer a moment ago at {}, and is down", home.address);
        Err(Refused::new(errno::EHOSTUNREACH, text))
    }

    /// Nobody answered at an address for as long as was waited.
    pub fn note_silent(&self, address: &str) {
        let mut silent = self.lock_silent();
        silent.retain(|_, since| since.elapsed() < DOWN_REST);
        silent.insert(address.to_owned(), Instant::now());
    }

    /// Somebody answered at an address: it is asked again by all.
    pub fn note_answer(&self, address: &str) {
        self.lock_silent().remove(address);
    }

    fn lock_silent(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`call`](Self::call), waiting no longer than this for an answer.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_within(
        &self,
        address: &str,
        request: &PeerRequest,
        within: Duration,
    ) -> Result<PeerReply, Refused> {
        self.call_by(Way::Common, address, request, within)
    }

    /// As [`call`](Self::call), for what a home does for a put, while `goes_on` says that it is worth to wait for it.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_home(
        &self,
        address: &str,
        request: &PeerRequest,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<PeerReply, Refused> {
        self.call_while(Way::Common, address, request, (patience(bytes_gone_through(request)), goes_on))
    }

    fn call_by(
        &self,
        way: Way,
        address: &str,
        request: &PeerRequest,
        within: Duration,
    ) -> Result<PeerReply, Refused> {
        self.call_while(way, address, request, (within, &|| true))
    }

    fn call_while(
        &self,
        way: Way,
        address: &str,
        request: &PeerRequest,
        (within, goes_on): (Duration, &dyn Fn() -> bool),
    ) -> Result<PeerReply, Refused> {
        let begun = Instant::now();
        let answer = self.exchange(way, address, request, (within, goes_on));
        // Whoever is not let in has waited for so long, too.
        let is_over = || begun.elapsed() >= within.min(self.identity.timeout) || !goes_on();
        if answer.is_err() && is_over() {
            self.note_silent(address);
        }
        // Heartbeats and what is urgent are answered, too, by one that hangs in everything else.
        if answer.is_ok() && way == Way::Common && !is_urgent(request) {
            self.note_answer(address);
        }
        match decode(&answer?)? {
            PeerReply::Error { code, text } => Err(Refused::new(code, text)),
            reply => Ok(reply),
        }
    }

    fn exchange(
        &self,
        way: Way,
        address: &str,
        request: &PeerRequest,
        (within, goes_on): (Duration, &dyn Fn() -> bool),
    ) -> Result<Vec<u8>, Refused> {
        let body = encode(request)?;
        // Over TCP always: some take seconds, and a queue pair has one at a time.
        let ask = |endpoint: &RdmaEndpoint, within| match is_urgent(request) {
            true => endpoint.tcp().call_urgent_within(&body, within),
            false => endpoint.tcp().call_while(&body, within, goes_on),
        };
        let endpoint = self.connected(way, address)?;
        let begun = Instant::now();
        let mut answer = ask(&endpoint, within);
        // A connection that has ended is no answer; a node that was silent for all of the time has had it.
        let left = within.saturating_sub(begun.elapsed());
        if answer.as_ref().is_err_and(|error| error.is_connection_lost()) && !left.is_zero() && goes_on() {
            self.forget_on(way, address);
            answer = ask(&*self.connected(way, address)?, left);
        }
        Ok(answer.inspect_err(|error| {
            if error.is_connection_lost() {
                self.forget_on(way, address);
            }
        })?)
    }

    /// Asks a node once, over a connection that is there or that can be made; the caller asks again, perhaps somebody else.
    ///
    /// A node that nobody has talked to, or that did not answer last, is first looked for with a wait of `look` only.
    ///
    /// # Errors
    /// As [`call`](Self::call).
    pub fn call_once(
        &self,
        way: Way,
        address: &str,
        request: &PeerRequest,
        (look, within): (Duration, Duration),
    ) -> Result<PeerReply, Refused> {
        let is_known = self.lock().all.contains_key(&(way, address.to_owned()));
        if !is_known {
            listens(address, look)?;
        }
        let body = encode(request)?;
        let answer = self.connected(way, address)?.tcp().call_urgent_within(&body, within);
        let answer = answer.inspect_err(|error| {
            if error.is_connection_lost() {
                self.forget_on(way, address);
            }
        })?;
        match decode(&answer)? {
            PeerReply::Error { code, text } => Err(Refused::new(code, text)),
            reply => Ok(reply),
        }
    }

    /// Drops a connection that failed; the next use makes a new one.
    pub fn forget(&self, address: &str) {
        self.forget_on(Way::Common, address);
    }

    fn forget_on(&self, way: Way, address: &str) {
        let known = (way, address.to_owned());
        self.lock().all.remove(&known);
    }

    /// How this node presents itself.
    pub const fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    /// Why there are no queue pairs to peers that have devices as we do.
    pub fn why_no_rdma(&self) -> Vec<String> {
        let endpoints = self.lock();
        let why = |((_, address), endpoint): (&(Way, String), &Arc<RdmaEndpoint>)| {
            endpoint.why_not().map(|why| format!("{address}: {why}"))
        };
        endpoints.all.iter().filter_map(why).collect()
    }

    fn connected(&self, way: Way, address: &str) -> Result<Arc<RdmaEndpoint>, Refused> {
        let place = (way, address.to_owned());
        let known = self.lock().all.get(&place).cloned();
        if let Some(endpoint) = known {
            return Ok(endpoint);
        }
        // Connecting may take seconds; others must not wait for it under the lock.
        let options = ClientOptions {
            streams: if way == Way::Beats { 1 } else { self.identity.streams },
            timeout: self.identity.timeout,
            role: Role::Node,
            node: self.identity.node,
            pool: self.identity.pool,
            key: self.identity.credentials.key.clone(),
            tls: self.identity.credentials.tls.clone(),
            urgent: way == Way::Common
                && std::env::var_os("HINTERLAND_NO_URGENT").is_none_or(|value| value != "1"),
            ..ClientOptions::default()
        };
        let mut rdma = self.identity.rdma.clone();
        rdma.enabled &= way == Way::Common;
        let begun = Instant::now();
        let connected = RdmaEndpoint::connect(address, options, rdma);
        if connected.is_err() && begun.elapsed() >= SLOW {
            self.note_silent(address);
        }
        let endpoint = Arc::new(connected?);
        let (endpoint, ended) = self.lock().add(place, endpoint);
        // The end of a connection may take its time: not under the lock.
        drop(ended);
        Ok(endpoint)
    }

    fn lock(&self) -> MutexGuard<'_, Endpoints> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long an answer may take for which the other node goes through so many bytes of memory.
pub const fn patience(bytes: u64) -> Duration {
    CALL_TIMEOUT.saturating_add(Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND))
}

/// Whether others count on an answer within a lease, or all wait for it: it does not queue behind seals and checks of whole objects,
/// which take seconds.
const fn is_urgent(request: &PeerRequest) -> bool {
    matches!(
        request,
        PeerRequest::Directory(_)
            | PeerRequest::DirectoryOnce(_)
            | PeerRequest::Locks(_)
            | PeerRequest::LockForget { .. }
            | PeerRequest::LockNews
            | PeerRequest::PageKeep { .. }
            | PeerRequest::PageUnshare { .. }
    )
}

/// Bytes that the other node checks or zeroes before it answers, at the most.
const fn bytes_gone_through(request: &PeerRequest) -> u64 {
    match request {
        PeerRequest::HomeCreate { bytes: Some(bytes), .. }
        | PeerRequest::HomeGrow { bytes, .. }
        | PeerRequest::HomeRegion { bytes, .. }
        | PeerRequest::HomeSeal { bytes, .. }
        | PeerRequest::HomeSealAs { bytes, .. } => *bytes,
        _ => 0,
    }
}

/// Whether somebody listens at an address, without waiting long for a host that is gone.
fn listens(address: &str, within: Duration) -> Result<(), Refused> {
    let gone = |error: std::io::Error| {
        Refused::new(errno::EHOSTUNREACH, format!("cannot connect to {address}: {error}"))
    };
    let mut failure = std::io::Error::from(std::io::ErrorKind::AddrNotAvailable);
    for found in address.to_socket_addrs().map_err(gone)? {
        match TcpStream::connect_timeout(&found, within) {
            Ok(_) => return Ok(()),
            Err(error) => failure = error,
        }
    }
    Err(gone(failure))
}

/// Learns which pool a node belongs to, before joining it.
///
/// # Errors
/// [`Refused`] if it cannot be reached or does not let us in.
pub fn pool_of(address: &str, credentials: &Credentials) -> Result<PoolId, Refused> {
    let Credentials { key, tls } = credentials.clone();
    let (role, pool) = (Role::Client, PoolId::ANY);
    let options = ClientOptions { streams: 1, role, key, tls, pool, ..ClientOptions::default() };
    TcpEndpoint::connect(address, options)
        .map(|endpoint| endpoint.pool())
        .map_err(|error| Refused::new(errno::EHOSTUNREACH, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_fabric::tcp::{Server, ServerOptions};
    use hinterland_fabric::{Service, Slice};
    use hinterland_proto::{PeerHello, Refusal, RemoteError};
    use hinterland_types::{ByteRange, Epoch, ObjectName, Rights, SessionId};
    use std::net::TcpListener;
    use std::sync::Condvar;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    /// A directory that answers commands when it is let go, as one with a slow disk, and heartbeats at once; as a home it drops objects then.
    #[derive(Default)]
    struct Slow {
        sessions: AtomicU64,
        waiting: AtomicUsize,
        is_let_go: Mutex<bool>,
        changed: Condvar,
    }

    impl Service for Slow {
        fn opened(&self, _: &PeerHello) -> Result<SessionId, Refusal> {
            Ok(SessionId(self.sessions.fetch_add(1, Ordering::SeqCst)))
        }

        fn closed(&self, _: SessionId) {}

        fn resolve(&self, _: SessionId, _: Handle, _: ByteRange, _: Rights) -> Result<Slice, RemoteError> {
            Ok(Slice::copied(&[]))
        }

        fn call(&self, _: SessionId, body: &[u8]) -> Result<Vec<u8>, RemoteError> {
            let request = decode(body);
            let is_slow = matches!(&request, Ok(PeerRequest::Directory(command)) if command == b"slow");
            if is_slow || matches!(request, Ok(PeerRequest::HomeDrop { .. })) {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                let is_let_go = self.is_let_go.lock().unwrap();
                drop(self.changed.wait_while(is_let_go, |is_let_go| !*is_let_go).unwrap());
            }
            Ok(encode(&PeerReply::Directory(Vec::new())).unwrap())
        }
    }

    /// A server that answers when it is let go, and who asks it over so many streams.
    fn slow_peer(streams: usize) -> (Arc<Slow>, Server, Peers) {
        let (service, pool) = (Arc::new(Slow::default()), PoolId(7));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = ServerOptions { node: NodeId(1), pool, ..ServerOptions::default() };
        let server = Server::start(listener, service.clone(), options).unwrap();
        let peers = Peers::new(PeerIdentity {
            node: NodeId(2),
            pool,
            credentials: Credentials::default(),
            streams,
            timeout: Duration::from_secs(60),
            rdma: RdmaOptions { enabled: false, ..RdmaOptions::default() },
        });
        (service, server, peers)
    }

    #[test]
    fn a_heartbeat_does_not_wait_behind_commands_that_take_all_streams() {
        const STREAMS: usize = 2;
        let (service, server, peers) = slow_peer(STREAMS);
        let address = server.address().to_string();
        let slow = PeerRequest::Directory(b"slow".to_vec());
        std::thread::scope(|scope| {
            // One for each stream, and one for that which is kept for what is urgent.
            let commands: Vec<_> =
                (0..=STREAMS).map(|_| scope.spawn(|| peers.call(&address, &slow).unwrap())).collect();
            while service.waiting.load(Ordering::SeqCst) <= STREAMS {
                std::thread::sleep(Duration::from_millis(1));
            }
            let beat =
                scope.spawn(|| peers.beat(&address, &PeerRequest::Directory(b"beat".to_vec())).unwrap());
            // Less than after which the commands give up, and leave their streams to others.
            for _ in 0..20_000 {
                if beat.is_finished() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            let is_answered = beat.is_finished();
            assert!(commands.iter().all(|command| !command.is_finished()), "or this shows nothing");
            *service.is_let_go.lock().unwrap() = true;
            service.changed.notify_all();
            assert!(is_answered);
        });
    }

    #[test]
    fn a_home_that_is_silent_is_waited_for_once_when_many_objects_are_removed() {
        let (service, server, peers) = slow_peer(1);
        let address = server.address().to_string();
        let within = Duration::from_millis(50);
        assert!(peers.drop_within(&address, ObjectId(1), within).is_err());
        let asked = service.waiting.load(Ordering::SeqCst);
        assert!(asked > 0, "or this shows nothing");
        for object in 2..10 {
            assert!(peers.drop_within(&address, ObjectId(object), within).is_err());
        }
        assert_eq!(service.waiting.load(Ordering::SeqCst), asked);
        *service.is_let_go.lock().unwrap() = true;
        service.changed.notify_all();
    }

    #[test]
    fn a_node_that_was_silent_for_all_of_the_time_is_not_asked_again_at_once() {
        let (service, server, peers) = slow_peer(1);
        let address = server.address().to_string();
        let slow = PeerRequest::Directory(b"slow".to_vec());
        let answer = peers.call_within(&address, &slow, Duration::from_millis(200));
        let dropped = peers.drop_at_home(&address, ObjectId(1));
        let sessions = service.sessions.load(Ordering::SeqCst);
        let asked = (service.waiting.load(Ordering::SeqCst), sessions);
        *service.is_let_go.lock().unwrap() = true;
        service.changed.notify_all();
        assert_eq!(answer.unwrap_err().code, errno::EHOSTUNREACH);
        assert!(dropped.is_err());
        assert_eq!(asked, (1, 1), "one question over one connection");
    }

    #[test]
    fn a_home_that_answers_again_is_not_taken_for_silent_any_more() {
        let (service, server, peers) = slow_peer(1);
        let address = server.address().to_string();
        assert!(peers.drop_within(&address, ObjectId(1), Duration::from_millis(50)).is_err());
        assert!(!peers.lock_silent().is_empty(), "or this shows nothing");
        *service.is_let_go.lock().unwrap() = true;
        service.changed.notify_all();
        peers.beat(&address, &PeerRequest::Directory(b"beat".to_vec())).unwrap();
        assert!(!peers.lock_silent().is_empty(), "a heartbeat is answered by one that hangs, too");
        peers.call(&address, &PeerRequest::HomeDrop { object: ObjectId(2) }).unwrap();
        assert!(peers.lock_silent().is_empty());
    }

    #[test]
    fn connections_to_addresses_at_which_nobody_is_any_more_are_let_go_of() {
        let (_service, stays, peers) = slow_peer(1);
        let beat = PeerRequest::Directory(b"beat".to_vec());
        let address = stays.address().to_string();
        let known = peers.endpoint(&address).unwrap();
        for _ in 0..3 * LOOKED_THROUGH_MIN {
            // As a node that is started again and again, each time at another port.
            let service = Arc::new(Slow::default());
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let options = ServerOptions { node: NodeId(3), pool: PoolId(7), ..ServerOptions::default() };
            let server = Server::start(listener, service, options).unwrap();
            peers.call(&server.address().to_string(), &beat).unwrap();
        }
        let count = peers.lock().all.len();
        assert!(count <= LOOKED_THROUGH_MIN, "{count} connections, of which one goes on");
        assert!(Arc::ptr_eq(&peers.endpoint(&address).unwrap(), &known), "that one stays");
    }

    #[test]
    fn a_home_that_goes_through_much_memory_is_waited_for_longer() {
        const MANY: u64 = 1_000_000_000_000;
        let object = ObjectId(1);
        let name = ObjectName::parse("large").unwrap();
        let create =
            PeerRequest::HomeCreate { object, epoch: Epoch(1), name, bytes: Some(MANY), ticket: [0; 16] };
        let seal = |bytes| PeerRequest::HomeSeal { object, bytes };
        for request in [create, seal(MANY), PeerRequest::HomeGrow { object, bytes: MANY }] {
            assert_eq!(patience(bytes_gone_through(&request)), Duration::from_secs(10_030), "{request:?}");
        }
        assert_eq!(patience(bytes_gone_through(&seal(1 << 20))), CALL_TIMEOUT);
        assert!(patience(u64::MAX) > CALL_TIMEOUT);
    }
}
