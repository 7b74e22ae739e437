//! Connections of a client to nodes of other racks, and the handles of sealed objects that it has learned there.

use crate::PoolError;
use crate::session::unexpected;
use hinterland_fabric::adaptive::{Calibration, Counts, LEARNED_MAX, Learned, Tallies, Way, choose};
use hinterland_fabric::rdma::{RdmaEndpoint, RdmaOptions};
use hinterland_fabric::tcp::{ClientOptions, Mode, Tls};
use hinterland_fabric::{Closer, Endpoint, FabricError, Lease};
use hinterland_proto::control::{Reply, Request, decode, encode};
use hinterland_proto::{NotAKey, PoolId, PoolKey, Role};
use hinterland_types::limits::FRAME_BODY_BYTES_MAX;
use hinterland_types::{Handle, ObjectId};
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How long an operation on another node may take before the next home is asked.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Streams to each node.
const STREAMS: usize = 4;

/// Handles that are learned over devices: a home registers memory for each, and does so for at most 256 of a session.
const LEARNED_BY_DEVICES_MAX: usize = 128;

/// Connections that are looked through for those that have ended at the least: so few are no burden.
const LOOKED_THROUGH_MIN: usize = 16;

/// The connections that there are, by address.
#[derive(Default)]
struct Endpoints {
    all: HashMap<String, Connected>,
    /// How many there were when those that have ended were let go of.
    left: usize,
}

impl Endpoints {
    /// Adds a connection, unless another thread was quicker; the one that is used, and those that are to be dropped.
    ///
    /// Nobody asks at the address of a node that was started again elsewhere. Its sockets are let go of once there are twice as many
    /// connections as before, so that each costs one look.
    fn add(&mut self, address: &str, connected: Connected) -> (Connected, Vec<Connected>) {
        let mut ended = Vec::new();
        if self.all.len() >= LOOKED_THROUGH_MIN.max(2 * self.left) {
            let has_ended = |known: &Connected| known.endpoint.tcp().has_ended();
            ended.extend(self.all.extract_if(|_, known| has_ended(known)).map(|(_, known)| known));
            self.left = self.all.len();
        }
        (self.all.entry(address.to_owned()).or_insert(connected).clone(), ended)
    }
}

/// All connections of one client.
pub struct Remotes {
    pool: PoolId,
    key: Option<PoolKey>,
    tls: Option<Tls>,
    polling: bool,
    rdma: bool,
    /// The way in which first reads go, if it is not chosen for each.
    forced: Option<Way>,
    endpoints: Mutex<Endpoints>,
    closer: Arc<Closer>,
    learned: Mutex<Learned<ObjectId, Known>>,
    pub tallies: Tallies,
}

#[derive(Clone)]
struct Connected {
    endpoint: Arc<RdmaEndpoint>,
    /// Bytes for which a question and a read pay, once it was measured.
    guess_bytes: Arc<OnceLock<usize>>,
}

/// The handle of a sealed object, for all who have it open here and for those who open it later.
struct Known {
    attached: Attached,
    /// Whether the home was told that nobody uses it, and may take it back.
    is_lent: bool,
}

/// A handle at a node, and the connection that it is good for. The node is told when the last one who has it lets go.
#[derive(Clone)]
pub struct Attached {
    pub endpoint: Arc<RdmaEndpoint>,
    pub handle: Handle,
    pub address: String,
    lease: Arc<Lease>,
}

impl Remotes {
    /// No connections yet. The key of the pool is read from the file that `HINTERLAND_KEY_FILE` names, and certificates from the folder
    /// that `HINTERLAND_TLS` names;
    /// `HINTERLAND_POLLING=1` spins for answers; `HINTERLAND_NO_RDMA=1` leaves RDMA devices alone; `HINTERLAND_RPC` names the way in
    /// which first reads go.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the file holds no key, or there is no such way.
    pub fn new(pool: PoolId) -> Result<Self, PoolError> {
        let forced = match std::env::var_os("HINTERLAND_RPC") {
            Some(name) => parse_way(&name.to_string_lossy())?,
            None => None,
        };
        Self::by(pool, forced)
    }

    /// The same, with this way, or a choice for each read.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the file holds no key.
    pub fn by(pool: PoolId, forced: Option<Way>) -> Result<Self, PoolError> {
        // A variable that is empty is as good as none, as a shell leaves one that is not to count.
        let named = std::env::var_os("HINTERLAND_KEY_FILE").filter(|path| !path.is_empty());
        let key = named.map(|path| read_key(Path::new(&path))).transpose()?;
        let polling = std::env::var_os("HINTERLAND_POLLING").is_some_and(|value| value == "1");
        let named = std::env::var_os("HINTERLAND_TLS").filter(|path| !path.is_empty());
        let tls = named.map(|folder| read_tls(Path::new(&folder))).transpose()?;
        // TLS does not reach what devices move.
        let rdma = tls.is_none() && std::env::var_os("HINTERLAND_NO_RDMA").is_none_or(|value| value != "1");
        // The message cannot be too long; without one the handle would stay until the connection ends.
        let closer = Closer::new(|handle| encode(&Request::Close { handle }).unwrap_or_default());
        let (endpoints, learned, tallies) = (Mutex::default(), Mutex::default(), Tallies::default());
        Ok(Self { pool, key, tls, polling, rdma, forced, endpoints, closer, learned, tallies })
    }

    /// The connection to `HOST:PORT`, made if there is none.
    ///
    /// # Errors
    /// [`PoolError::Fabric`].
    pub fn endpoint(&self, address: &str) -> Result<Arc<RdmaEndpoint>, PoolError> {
        self.connected(address).map(|connected| connected.endpoint)
    }

    fn connected(&self, address: &str) -> Result<Connected, PoolError> {
        let known = self.endpoints().all.get(address).cloned();
        if let Some(connected) = known {
            return Ok(connected);
        }
        let options = ClientOptions {
            streams: STREAMS,
            mode: if self.polling { Mode::Polling } else { Mode::Blocking },
            timeout: TIMEOUT,
            role: Role::Client,
            pool: self.pool,
            key: self.key.clone(),
            tls: self.tls.clone(),
            ..ClientOptions::default()
        };
        // Writes go by message: what is put must not change after it was sealed, and a region's page may move.
        let rdma = RdmaOptions { enabled: self.rdma, writes: false, ..RdmaOptions::default() };
        let endpoint = Arc::new(RdmaEndpoint::connect(address, options, rdma)?);
        let connected = Connected { endpoint, guess_bytes: Arc::default() };
        let (connected, ended) = self.endpoints().add(address, connected);
        if !ended.is_empty() {
            // What was learned over one of them would keep its sockets.
            self.learned().retain(|known| !known.attached.endpoint.tcp().has_ended());
        }
        // The end of a connection may take its time: not under the lock.
        drop(ended);
        Ok(connected)
    }

    /// What a node has given over a connection.
    pub fn attached(&self, endpoint: Arc<RdmaEndpoint>, handle: Handle, address: &str) -> Attached {
        let of = Arc::clone(&endpoint) as Arc<dyn Endpoint>;
        Attached { endpoint, handle, address: address.to_owned(), lease: self.closer.lease(of, handle) }
    }

    /// Drops a connection that failed, and the handles that were learned over it.
    pub fn forget(&self, address: &str) {
        // As in `connected`: the lock is not held when what is removed ends.
        let ended = self.endpoints().all.remove(address);
        drop(ended);
        self.learned().retain(|known| known.attached.address != address);
    }

    /// Asks the node at an address for a handle to a sealed object, and for bytes of it where they come best with the answer; then it is
    /// true that `into` is filled. `question` is for so many bytes.
    ///
    /// # Errors
    /// [`PoolError::Fabric`].
    pub fn ask(
        &self,
        address: &str,
        question: impl Fn(u64) -> Request,
        into: &mut [u8],
    ) -> Result<(Attached, bool), PoolError> {
        let Connected { endpoint, guess_bytes } = self.connected(address)?;
        let guess = || match guess_bytes.get() {
            Some(guess_bytes) => Ok(*guess_bytes),
            None => {
                let found = Calibration::of(&*endpoint, &encode(&Request::Ping)?)?;
                Ok::<_, PoolError>(*guess_bytes.get_or_init(|| found.guess_bytes))
            }
        };
        let chosen = choose(&*endpoint, into.len(), guess)?;
        let is_carried = into.len() <= FRAME_BODY_BYTES_MAX as usize;
        let way = self.forced.filter(|_| is_carried).unwrap_or(chosen);
        self.tallies.asked();
        let bytes = into.len();
        let found = match way {
            Way::Direct => endpoint.fetch(&encode(&question(bytes as u64))?, into)?,
            Way::Read => endpoint.fetch(&encode(&question(0))?, &mut [])?,
            Way::Message => {
                let mut message = vec![0; bytes];
                let found = endpoint.fetch(&encode(&question(bytes as u64))?, &mut message)?;
                into.copy_from_slice(&message);
                found
            }
        };
        let handle = found.handle.ok_or(FabricError::Unsupported { what: "a home that gives no handle" })?;
        let is_filled = way != Way::Read && found.placed == bytes;
        Ok((self.attached(endpoint, handle, address), is_filled))
    }

    /// The handle of a sealed object, if one was learned.
    pub fn known(&self, object: ObjectId) -> Option<Attached> {
        self.learned().get(&object).map(|known| known.attached.clone())
    }

    /// Remembers the handle of a sealed object.
    pub fn learn(&self, object: ObjectId, attached: &Attached) {
        let is_by_device = attached.endpoint.capabilities().one_sided;
        let room = if is_by_device { LEARNED_BY_DEVICES_MAX } else { LEARNED_MAX };
        self.learned().learn(object, Known { attached: attached.clone(), is_lent: false }, room);
    }

    /// The peer does not know this handle any more.
    pub fn forget_handle(&self, object: ObjectId, attached: &Attached) {
        let mut learned = self.learned();
        if learned.get(&object).is_some_and(|known| known.is(attached)) {
            learned.forget(&object);
        }
    }

    /// Somebody who had the object open does not use its handle any more. When nobody does, the home is told that it may take
    /// it back: so it keeps no memory of what is removed.
    pub fn leave(&self, object: ObjectId, attached: Attached) {
        let mut learned = self.learned();
        let Some(known) = learned.get_mut(&object).filter(|known| known.is(&attached)) else { return };
        // Under the lock nobody else takes one: what is left is the one that is known, and ours.
        if !known.is_lent && Arc::strong_count(&known.attached.lease) == 2 {
            known.is_lent = true;
            // The message cannot be too long.
            attached.lease.say(|handle| encode(&Request::Lend { handle }).unwrap_or_default());
        }
    }

    /// Forgets all handles that nobody uses.
    pub fn forget_learned(&self) {
        self.learned().retain(|known| !known.is_lent);
    }

    /// How often each way was gone for reads of sealed objects.
    pub fn counts(&self) -> Counts {
        self.tallies.counts()
    }

    fn endpoints(&self) -> MutexGuard<'_, Endpoints> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learned(&self) -> MutexGuard<'_, Learned<ObjectId, Known>> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn is(&self, attached: &Attached) -> bool {
        Arc::ptr_eq(&self.attached.lease, &attached.lease)
    }
}

/// The way of a name; none for the choice.
fn parse_way(name: &str) -> Result<Option<Way>, PoolError> {
    const EINVAL: i32 = 22;
    // A variable that a shell has set to nothing is as good as none.
    if matches!(name, "adaptive" | "") {
        return Ok(None);
    }
    Way::parse(name).map(Some).ok_or_else(|| {
        let text = format!("HINTERLAND_RPC is `{name}` (hint: message, read, direct or adaptive)");
        PoolError::Refused { code: EINVAL, text }
    })
}

/// Asks a node over a connection.
///
/// # Errors
/// [`PoolError::Refused`] with the node's words; [`PoolError::Fabric`].
pub fn call(endpoint: &RdmaEndpoint, request: &Request) -> Result<Reply, PoolError> {
    match decode(&endpoint.call(&encode(request)?)?)? {
        Reply::Error { code, text } => Err(PoolError::Refused { code, text }),
        reply => Ok(reply),
    }
}

/// Asks for a handle.
///
/// # Errors
/// As [`call`].
pub fn call_for_handle(endpoint: &RdmaEndpoint, request: &Request) -> Result<Handle, PoolError> {
    match call(endpoint, request)? {
        Reply::Granted { handle } => Ok(handle),
        Reply::Opened(opened) => Ok(opened.handle),
        other => Err(unexpected("a handle", &other)),
    }
}

fn read_tls(folder: &Path) -> Result<Tls, PoolError> {
    const EINVAL: i32 = 22;
    Tls::open(folder).map_err(|error| PoolError::Refused {
        code: EINVAL,
        text: format!("HINTERLAND_TLS names what cannot be used: {error}"),
    })
}

fn read_key(path: &Path) -> Result<PoolKey, PoolError> {
    const EINVAL: i32 = 22;
    const EIO: i32 = 5;
    let bytes = std::fs::read(path).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::PermissionDenied => "be a user who may read it",
            _ => "name the file that the nodes have with --key, or unset the variable where they have none",
        };
        let text = format!(
            "the pool's key, which HINTERLAND_KEY_FILE names, is not in {}: {error} (hint: {hint})",
            path.display()
        );
        PoolError::Refused { code: error.raw_os_error().unwrap_or(EIO), text }
    })?;
    String::from_utf8_lossy(&bytes).parse().map_err(|_: NotAKey| {
        let text = format!(
            "{}, which HINTERLAND_KEY_FILE names, holds no pool key (hint: name the file that the nodes have with --key: 64 hexadecimal digits)",
            path.display()
        );
        PoolError::Refused { code: EINVAL, text }
    })
}

impl From<FabricError> for PoolError {
    fn from(error: FabricError) -> Self {
        Self::Fabric(Box::new(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_fabric::tcp::{Server, ServerOptions};
    use hinterland_fabric::{Service, Slice};
    use hinterland_proto::{PeerHello, Refusal, RemoteError};
    use hinterland_types::{ByteRange, NodeId, Rights, SessionId};
    use std::net::TcpListener;

    /// A node that lets everybody in, and has nothing.
    struct Empty;

    impl Service for Empty {
        fn opened(&self, _: &PeerHello) -> Result<SessionId, Refusal> {
            Ok(SessionId(1))
        }

        fn closed(&self, _: SessionId) {}

        fn resolve(&self, _: SessionId, _: Handle, _: ByteRange, _: Rights) -> Result<Slice, RemoteError> {
            Ok(Slice::copied(&[]))
        }

        fn call(&self, _: SessionId, _: &[u8]) -> Result<Vec<u8>, RemoteError> {
            Ok(Vec::new())
        }
    }

    fn node(number: u64) -> (Server, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = ServerOptions { node: NodeId(number), pool: PoolId(7), ..ServerOptions::default() };
        let server = Server::start(listener, Arc::new(Empty), options).unwrap();
        let address = server.address().to_string();
        (server, address)
    }

    #[test]
    fn connections_to_addresses_at_which_nobody_is_any_more_are_let_go_of() {
        let remotes = Remotes::by(PoolId(7), None).unwrap();
        let (_stays, address) = node(1);
        let known = remotes.endpoint(&address).unwrap();
        for object in 1..=3 * LOOKED_THROUGH_MIN as u64 {
            // As a node that is started again and again, each time at another port.
            let (_goes, address) = node(2);
            let endpoint = remotes.endpoint(&address).unwrap();
            let attached = remotes.attached(endpoint, Handle::default(), &address);
            remotes.learn(ObjectId(object), &attached);
        }
        let count = remotes.endpoints().all.len();
        assert!(count <= LOOKED_THROUGH_MIN, "{count} connections, of which one goes on");
        let objects = 1..=3 * LOOKED_THROUGH_MIN as u64;
        let learned = objects.filter(|object| remotes.known(ObjectId(*object)).is_some()).count();
        assert!(learned <= LOOKED_THROUGH_MIN, "{learned} handles, each with its connection");
        assert!(Arc::ptr_eq(&remotes.endpoint(&address).unwrap(), &known), "that one stays");
    }

    #[test]
    fn a_key_that_is_not_there_is_told_with_the_variable_that_named_it() {
        for path in ["/no/such/key", "/dev/null", "/"] {
            let said = read_key(Path::new(path)).unwrap_err().to_string();
            assert!(
                said.contains(path) && said.contains("HINTERLAND_KEY_FILE") && said.contains("--key"),
                "{said}"
            );
        }
    }

    #[test]
    fn a_way_has_one_of_four_names_or_none_and_no_other() {
        for (name, way) in [
            ("message", Some(Way::Message)),
            ("read", Some(Way::Read)),
            ("direct", Some(Way::Direct)),
            ("adaptive", None),
            ("", None),
        ] {
            assert_eq!(parse_way(name).unwrap(), way);
        }
        for name in ["Read", "fast"] {
            let said = parse_way(name).unwrap_err().to_string();
            assert!(said.contains("HINTERLAND_RPC") && said.contains("adaptive"), "{said}");
        }
    }
}
