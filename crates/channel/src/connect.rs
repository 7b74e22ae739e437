//! Connecting to a GPU node.

use crate::address::Address;
use crate::channel::{Channel, Network};
use crate::error::ChannelError;
use crate::grant;
use crate::greeting::{self, SLICE};
use crate::options::ChannelOptions;
use hinterland_os::OsError;
use hinterland_os::socket::{PeerCredentials, UnixStream};
use hinterland_proto::ClientIdentity;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::path::Path;
use std::time::Instant;

/// Connects to the GPU node at `address`. Within a host the key of the identity is used only if the node does not know
/// this user from the system: if it runs as another user, and this process not as root.
///
/// # Errors
/// [`ChannelError::Connect`] if nobody answers there, or somebody else; [`ChannelError::Handshake`] with what the node
/// said if it refused; never later than `greeting_max`, but for the resolution of a name.
pub fn connect(
    address: &Address,
    identity: &ClientIdentity,
    options: ChannelOptions,
) -> Result<Channel, ChannelError> {
    let deadline = Instant::now() + options.greeting_max;
    options.rings.check()?;
    match address {
        Address::Unix(path) => connect_unix(path, address, identity, options, deadline),
        Address::Tcp(place) => connect_tcp(place, address, identity, options, deadline),
    }
}

fn connect_unix(
    path: &Path,
    address: &Address,
    identity: &ClientIdentity,
    options: ChannelOptions,
    deadline: Instant,
) -> Result<Channel, ChannelError> {
    let address = address.to_string();
    let failed = |error: &dyn std::fmt::Display| ChannelError::Connect {
        address: address.clone(),
        reason: error.to_string(),
    };
    let connection = UnixStream::connect(path, options.greeting_max).map_err(|error| match error {
        // The address is told already, and one hint is enough.
        OsError::System { source, .. } => failed(&source),
        error => failed(&error),
    })?;
    let server = connection.peer_credentials()?;
    let mut identity = identity.clone();
    if is_known(own_credentials()?, server) {
        identity.key = None;
    }
    let mut stream = StdStream::from(OwnedFd::from(connection));
    set_slices(&stream).map_err(|error| failed(&error))?;
    greeting::greet(&mut stream, &address, &identity, deadline)?;
    grant::take(UnixStream::from_descriptor(stream.into()), &address, deadline)
}

fn connect_tcp(
    place: &str,
    address: &Address,
    identity: &ClientIdentity,
    options: ChannelOptions,
    deadline: Instant,
) -> Result<Channel, ChannelError> {
    let address = address.to_string();
    let failed = |reason: String| ChannelError::Connect { address: address.clone(), reason };
    let mut reason = "its name has no address".to_owned();
    let mut connected = None;
    for socket_address in place.to_socket_addrs().map_err(|error| failed(error.to_string()))? {
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&socket_address, rest) {
            Ok(stream) => {
                connected = Some(stream);
                break;
            }
            Err(error) => reason = error.to_string(),
        }
    }
    let mut stream = connected.ok_or_else(|| failed(reason))?;
    let set = stream.set_read_timeout(Some(SLICE)).and_then(|()| stream.set_write_timeout(Some(SLICE)));
    set.and_then(|()| stream.set_nodelay(true)).map_err(|error| failed(error.to_string()))?;
    let established = greeting::greet(&mut stream, &address, identity, deadline)?;
    let body_bytes_max = established.limits.body_bytes_max as usize;
    let network = Network {
        rings: options.rings.over_network(body_bytes_max)?,
        send_sequence: established.send_sequence,
        receive_sequence: established.receive_sequence,
        silence_max: options.silence_max,
        delay_out: options.delay_out,
        delay_in: options.delay_in,
    };
    Ok(Channel::network(stream, network))
}

/// Whether the system itself tells the node who the client is, so that no key is needed.
pub(crate) fn is_known(client: PeerCredentials, server: PeerCredentials) -> bool {
    client.user == server.user || client.user == 0
}

/// This process as the other side sees it.
pub(crate) fn own_credentials() -> Result<PeerCredentials, ChannelError> {
    Ok(UnixStream::pair()?.0.peer_credentials()?)
}

pub(crate) fn set_slices(stream: &StdStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(SLICE))?;
    stream.set_write_timeout(Some(SLICE))
}
