//! Drives the handshake over a socket, within a deadline.

use super::secured::{begins_with_tls, refuse_tls};
use super::socket::{Socket, Wait, is_idle, random_bytes};
use super::tls::Tls;
use crate::error::FabricError;
use hinterland_proto::{
    ClientHandshake, ClientIdentity, ClientStep, Established, HandshakeError, PeerHello, Refusal,
    RefusalCode, ServerHandshake, ServerIdentity, ServerStep,
};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Enough for any message of the handshake.
const BUFFER_BYTES: usize = 1024;
/// Largest leftover of a refused peer that is read before closing, so that it sees the refusal and no reset.
const DRAIN_BYTES_MAX: usize = 64 << 10;
/// How long a refused peer has to close.
const DRAIN_MAX: Duration = Duration::from_millis(200);

/// Says hello on a connected socket.
pub(super) fn greet(
    socket: &Socket,
    address: SocketAddr,
    identity: &ClientIdentity,
    within: Duration,
) -> Result<Established, FabricError> {
    let deadline = Instant::now() + within;
    let failed = |reason: String| FabricError::Connect { address: address.to_string(), reason };
    let broken = |error: io::Error| not_connected(address, &error);
    let nonce = random_bytes().map_err(broken)?;
    let (mut machine, hello) = ClientHandshake::new(identity.clone(), nonce);
    send_all(socket, &hello, deadline).map_err(broken)?;
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        let received = receive_some(socket, &mut buffer, deadline).map_err(broken)?;
        let mut input = &buffer[..received];
        if input.is_empty() {
            return Err(failed("the peer closed the connection during the handshake".to_owned()));
        }
        while !input.is_empty() {
            let (taken, step) = machine
                .receive(input)
                .map_err(|source| FabricError::Handshake { address: address.to_string(), source })?;
            input = &input[taken..];
            match step {
                ClientStep::Wait => {}
                ClientStep::Send(bytes) => {
                    send_all(socket, &bytes, deadline).map_err(broken)?;
                }
                ClientStep::Done(established) if input.is_empty() => return Ok(established),
                ClientStep::Done(_) => {
                    return Err(failed("the peer spoke before it was asked".to_owned()));
                }
            }
        }
    }
}

/// Why there is no connection. What TLS has to say of that says what to do, too.
pub(super) fn not_connected(address: SocketAddr, error: &io::Error) -> FabricError {
    let (address, reason) = (address.to_string(), error.to_string());
    if let Some(source) = error.get_ref().and_then(|inner| inner.downcast_ref::<HandshakeError>()) {
        return FabricError::Handshake { address, source: source.clone() };
    }
    match error.kind() {
        io::ErrorKind::InvalidData => FabricError::Tls { address, reason },
        _ => FabricError::Connect { address, reason },
    }
}

/// Lets TLS begin on an accepted socket where there is any; false if one side has it and the other has not, or they do not believe each other,
/// which the peer was told.
pub(super) fn agree_on_tls(socket: &Socket, tls: Option<&Tls>, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    let Some(begins) = begins_with_tls(socket.descriptor(), deadline) else {
        refuse_slow(socket);
        return false;
    };
    match (begins, tls) {
        (false, None) => return true,
        (true, Some(tls)) => match socket.accept_tls(tls, deadline) {
            Ok(()) => return true,
            // It was told by an alert.
            Err(_) => refuse(socket, &[]),
        },
        (true, None) => {
            refuse_tls(socket.descriptor());
            refuse(socket, &[]);
        }
        (false, Some(_)) => {
            let text = "the node speaks TLS alone (hint: give --tls, or HINTERLAND_TLS to a program, with files of its authority)";
            refuse(socket, &Refusal::new(RefusalCode::Denied, text).to_bytes());
        }
    }
    false
}

/// Answers a hello on an accepted socket: the peer, and the machine that admits it. `None` if it was refused (it was
/// told so) or went away.
pub(super) fn answer(
    socket: &Socket,
    identity: ServerIdentity,
    within: Duration,
) -> Option<(PeerHello, ServerHandshake)> {
    let deadline = Instant::now() + within;
    let mut machine = ServerHandshake::new(identity, random_bytes().ok()?);
    let mut buffer = [0; BUFFER_BYTES];
    loop {
        let received = match receive_some(socket, &mut buffer, deadline) {
            Ok(0) => return None,
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                refuse_slow(socket);
                return None;
            }
            Err(_) => return None,
        };
        let mut input = &buffer[..received];
        while !input.is_empty() {
            let (taken, step) = machine.receive(input);
            input = &input[taken..];
            match step {
                ServerStep::Wait => {}
                ServerStep::Send(bytes) => send_all(socket, &bytes, deadline).ok()?,
                ServerStep::Refuse { bytes, .. } => {
                    refuse(socket, &bytes);
                    return None;
                }
                // A client that sends frames before it is admitted breaks the protocol.
                ServerStep::Authenticated(peer) => return input.is_empty().then_some((peer, machine)),
            }
        }
    }
}

/// Tells a peer that it has said too little for too long.
fn refuse_slow(socket: &Socket) {
    let text = "the handshake took too long (hint: is the client a Hinterland program?)";
    refuse(socket, &Refusal::new(RefusalCode::Slow, text).to_bytes());
}

/// Sends a refusal and gives the peer a moment to read it: closing with unread bytes would send a reset instead.
pub(super) fn refuse(socket: &Socket, bytes: &[u8]) {
    let deadline = Instant::now() + DRAIN_MAX;
    if send_all(socket, bytes, deadline).is_err() || socket.end_sending().is_err() {
        return;
    }
    let mut buffer = [0; BUFFER_BYTES];
    let mut drained = 0;
    while drained < DRAIN_BYTES_MAX {
        match receive_some(socket, &mut buffer, deadline) {
            Ok(0) | Err(_) => return,
            Ok(received) => drained += received,
        }
    }
}

/// Sends everything or fails at the deadline.
pub(super) fn send_all(socket: &Socket, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.send_bytes(bytes, Wait::Sleep) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if is_idle(&error) => check(deadline)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Receives what there is, waiting for the first byte until the deadline.
fn receive_some(socket: &Socket, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        // Looked at before every wait: a peer that sends byte by byte gains no time.
        check(deadline)?;
        match socket.receive_bytes(buffer, Wait::Sleep) {
            Err(error) if is_idle(&error) => {}
            result => return result,
        }
    }
}

fn check(deadline: Instant) -> io::Result<()> {
    if Instant::now() < deadline {
        Ok(())
    } else {
        Err(io::Error::new(io::ErrorKind::TimedOut, "no answer to the handshake in time"))
    }
}
