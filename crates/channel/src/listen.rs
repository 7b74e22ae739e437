//! Listening for clients, and admitting them.

use crate::address::Address;
use crate::channel::{Channel, Network};
use crate::connect::{is_known, own_credentials, set_slices};
use crate::error::ChannelError;
use crate::grant;
use crate::greeting::{self, SLICE};
use crate::options::ChannelOptions;
use hinterland_os::poll;
use hinterland_os::socket::{PeerCredentials, UnixListener, UnixStream};
use hinterland_os::{OsError, barrier};
use hinterland_proto::{PeerHello, Refusal, RefusalCode, ServerIdentity};
use hinterland_types::SessionId;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Listens for clients at one address; any number of threads may accept.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    identity: ServerIdentity,
    options: ChannelOptions,
    /// Numbers of the sessions.
    next_session: AtomicU64,
}

#[derive(Debug)]
enum Socket {
    Unix(UnixListener),
    Tcp(TcpListener, SocketAddr),
}

/// A client that has connected and said nothing yet.
#[derive(Debug)]
pub struct Caller {
    connection: Connection,
    identity: ServerIdentity,
    options: ChannelOptions,
    session: SessionId,
}

#[derive(Debug)]
enum Connection {
    Unix(UnixStream),
    Tcp(TcpStream, SocketAddr),
}

/// Who is at the other end of a channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// What it said of itself.
    pub hello: PeerHello,
    /// Within a host: who it is to the system.
    pub credentials: Option<PeerCredentials>,
    /// Over a network: where it is.
    pub address: Option<SocketAddr>,
    /// The number of the session, different for each client of a listener.
    pub session: SessionId,
}

impl Listener {
    /// Listens at `address`; port 0 takes a free one. With a key in the identity, clients of other hosts have to prove that
    /// they have it, and those of this host if they run as another user than this process and not as root.
    ///
    /// # Errors
    /// [`ChannelError::Os`] if the address is in use or not of this host, [`ChannelError::BadOption`].
    pub fn bind(
        address: &Address,
        mut identity: ServerIdentity,
        options: ChannelOptions,
    ) -> Result<Self, ChannelError> {
        // Takes milliseconds where there are many threads: no client is to wait for it.
        barrier::register();
        let rings = options.rings.check()?;
        // Checked to be at most BODY_BYTES_MAX.
        identity.limits.body_bytes_max = rings.body_bytes_max as u32;
        let system = |error| OsError::system("listening", address.to_string(), error);
        let socket = match address {
            Address::Unix(path) => Socket::Unix(UnixListener::bind(path)?),
            Address::Tcp(place) => {
                rings.over_network(rings.body_bytes_max)?;
                let listener = TcpListener::bind(place).map_err(system)?;
                listener.set_nonblocking(true).map_err(system)?;
                let actual = listener.local_addr().map_err(system)?;
                Socket::Tcp(listener, actual)
            }
        };
        Ok(Self { socket, identity, options, next_session: AtomicU64::new(1) })
    }

    /// The address, with the port that was taken.
    #[must_use]
    pub fn address(&self) -> Address {
        match &self.socket {
            Socket::Unix(listener) => Address::Unix(listener.path().to_path_buf()),
            Socket::Tcp(_, address) => Address::Tcp(address.to_string()),
        }
    }

    /// Takes the next client that connects; `None` when none does within the time. It has said nothing yet: call
    /// [`Caller::admit`] in a thread of its own, so that a slow one keeps nobody waiting.
    ///
    /// # Errors
    /// [`ChannelError::Os`], as without descriptors left; the client stays in the queue then.
    pub fn accept(&self, timeout: Option<Duration>) -> Result<Option<Caller>, ChannelError> {
        let connection = match &self.socket {
            Socket::Unix(listener) => listener.accept(timeout)?.map(Connection::Unix),
            Socket::Tcp(listener, address) => accept_tcp(listener, *address, timeout)?,
        };
        // Relaxed: a number that nobody has had.
        let session = SessionId(self.next_session.fetch_add(1, Ordering::Relaxed));
        let (identity, options) = (self.identity.clone(), self.options);
        Ok(connection.map(|connection| Caller { connection, identity, options, session }))
    }
}

impl AsFd for Listener {
    /// Readable when a client waits, for a poller.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Unix(listener) => listener.as_fd(),
            Socket::Tcp(listener, _) => listener.as_fd(),
        }
    }
}

impl Caller {
    /// Hears the client out, and makes the channel. A client that is not admitted is told why.
    ///
    /// # Errors
    /// [`ChannelError::NotAdmitted`]: it speaks something else or another version, lacks the key, or took longer than
    /// `greeting_max`. [`ChannelError::Os`].
    pub fn admit(self) -> Result<(Channel, Peer), ChannelError> {
        let deadline = Instant::now() + self.options.greeting_max;
        let (identity, options, session) = (self.identity, self.options, self.session);
        match self.connection {
            Connection::Unix(stream) => admit_unix(stream, identity, options, session, deadline),
            Connection::Tcp(stream, address) => {
                admit_tcp(stream, address, identity, options, session, deadline)
            }
        }
    }
}

fn admit_unix(
    connection: UnixStream,
    mut identity: ServerIdentity,
    options: ChannelOptions,
    session: SessionId,
    deadline: Instant,
) -> Result<(Channel, Peer), ChannelError> {
    let credentials = connection.peer_credentials()?;
    let PeerCredentials { process, user, .. } = credentials;
    let address = format!("process {process} of user {user}");
    let system = |error| OsError::system("handshake", address.clone(), error);
    let known = is_known(credentials, own_credentials()?);
    let mut stream = StdStream::from(OwnedFd::from(connection));
    set_slices(&stream).map_err(system)?;
    if known {
        identity.key = None;
    } else if identity.key.is_none() {
        let text = "this node serves its own user and root (hint: give both sides the same key, the node by --key FILE, the program by HINTERLAND_KEY_FILE)";
        greeting::refuse(&mut stream, &Refusal::new(RefusalCode::Denied, text).to_bytes());
        return Err(ChannelError::NotAdmitted { address, reason: text.to_owned() });
    }
    let (hello, _) = greeting::answer(&mut stream, &address, identity, session, deadline)?;
    let channel = grant::give(UnixStream::from_descriptor(stream.into()), options.rings)?;
    Ok((channel, Peer { hello, credentials: Some(credentials), address: None, session }))
}

fn admit_tcp(
    mut stream: TcpStream,
    address: SocketAddr,
    identity: ServerIdentity,
    options: ChannelOptions,
    session: SessionId,
    deadline: Instant,
) -> Result<(Channel, Peer), ChannelError> {
    let place = address.to_string();
    let system = |error| OsError::system("handshake", place.clone(), error);
    stream.set_read_timeout(Some(SLICE)).map_err(system)?;
    stream.set_write_timeout(Some(SLICE)).map_err(system)?;
    stream.set_nodelay(true).map_err(system)?;
    let (hello, established) = greeting::answer(&mut stream, &place, identity, session, deadline)?;
    let network = Network {
        rings: options.rings.over_network(options.rings.body_bytes_max)?,
        send_sequence: established.send_sequence,
        receive_sequence: established.receive_sequence,
        silence_max: options.silence_max,
        delay_out: options.delay_out,
        delay_in: options.delay_in,
    };
    let peer = Peer { hello, credentials: None, address: Some(address), session };
    Ok((Channel::network(stream, network), peer))
}

fn accept_tcp(
    listener: &TcpListener,
    address: SocketAddr,
    timeout: Option<Duration>,
) -> Result<Option<Connection>, ChannelError> {
    use std::io::ErrorKind;
    if !poll::wait_readable(listener, timeout)? {
        return Ok(None);
    }
    match listener.accept() {
        Ok((stream, peer)) => {
            let blocking = stream.set_nonblocking(false);
            blocking.map_err(|error| OsError::system("accept", peer.to_string(), error))?;
            Ok(Some(Connection::Tcp(stream, peer)))
        }
        // Another thread was told of it, too, or the client gave up before it was taken.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::WouldBlock | ErrorKind::ConnectionAborted | ErrorKind::Interrupted
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(OsError::system("accept", address.to_string(), error).into()),
    }
}
