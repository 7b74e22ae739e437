//! The handshake on a fresh connection, within a deadline, reading no byte that follows it.

use crate::error::ChannelError;
use hinterland_proto::{
    ClientHandshake, ClientIdentity, ClientStep, Established, Features, PeerHello, Refusal, RefusalCode,
    ServerHandshake, ServerIdentity, ServerStep,
};
use hinterland_types::SessionId;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

/// The feature that says: behind this handshake come the frames of a channel, version 1. A later version has another bit.
pub(crate) const SPEAKS_CHANNEL_1: Features = Features(1 << 32);
/// How long one read or write may take before the deadline is looked at.
pub(crate) const SLICE: Duration = Duration::from_millis(50);
/// Bytes of a message up to and with its length, and where the length stands in it.
const PREFIX_BYTES: usize = 16;
const LENGTH_AT: usize = 6;
/// How long a refused peer has to close, and how much of what it says is read meanwhile.
const REFUSED_MAX: Duration = Duration::from_millis(200);
const REFUSED_BYTES_MAX: usize = 64 << 10;

/// Says hello on a connection to `address`, whose reads and writes take at most [`SLICE`].
pub(crate) fn greet(
    connection: &mut (impl Read + Write),
    address: &str,
    identity: &ClientIdentity,
    deadline: Instant,
) -> Result<Established, ChannelError> {
    let failed = |error: io::Error| {
        let reason = match error.kind() {
            io::ErrorKind::TimedOut => "it does not answer the handshake".to_owned(),
            _ => format!("it broke off the handshake: {error}"),
        };
        ChannelError::Connect { address: address.to_owned(), reason }
    };
    let mut identity = identity.clone();
    identity.features.0 |= SPEAKS_CHANNEL_1.0;
    let (mut machine, hello) = ClientHandshake::new(identity, random_bytes().map_err(failed)?);
    // A peer that refuses at once may have closed already, and what it said is still there to read.
    let sent = send_all(connection, &hello, deadline);
    let mut message = Message::default();
    loop {
        let received = match message.receive(connection, deadline) {
            Ok([]) => return Err(failed(sent.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()))),
            Ok(received) => received,
            Err(error) => return Err(failed(sent.err().unwrap_or(error))),
        };
        let (_, step) = machine
            .receive(received)
            .map_err(|source| ChannelError::Handshake { address: address.to_owned(), source })?;
        match step {
            ClientStep::Wait => {}
            ClientStep::Send(bytes) => {
                send_all(connection, &bytes, deadline).map_err(failed)?;
                message = Message::default();
            }
            ClientStep::Done(established) if established.features.has(SPEAKS_CHANNEL_1) => {
                return Ok(established);
            }
            ClientStep::Done(_) => {
                let reason = "it is a memory node, or a GPU node of another version".to_owned();
                return Err(ChannelError::Connect { address: address.to_owned(), reason });
            }
        }
    }
}

/// Answers a hello; a peer that is not admitted is told why.
pub(crate) fn answer(
    connection: &mut (impl Read + Write),
    address: &str,
    mut identity: ServerIdentity,
    session: SessionId,
    deadline: Instant,
) -> Result<(PeerHello, Established), ChannelError> {
    let not_admitted = |reason: String| ChannelError::NotAdmitted { address: address.to_owned(), reason };
    let failed = |error: io::Error| not_admitted(format!("it broke off the handshake: {error}"));
    identity.features.0 |= SPEAKS_CHANNEL_1.0;
    let mut machine = ServerHandshake::new(identity, random_bytes().map_err(failed)?);
    let mut message = Message::default();
    let hello = loop {
        let received = match message.receive(connection, deadline) {
            Ok([]) => return Err(failed(io::ErrorKind::UnexpectedEof.into())),
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let text = "the handshake took too long (hint: is the client a Hinterland program?)";
                refuse(connection, &Refusal::new(RefusalCode::Slow, text).to_bytes());
                return Err(not_admitted(text.to_owned()));
            }
            Err(error) => return Err(failed(error)),
        };
        match machine.receive(received).1 {
            ServerStep::Wait => {}
            ServerStep::Send(bytes) => {
                send_all(connection, &bytes, deadline).map_err(failed)?;
                message = Message::default();
            }
            ServerStep::Refuse { bytes, refusal } => {
                refuse(connection, &bytes);
                return Err(not_admitted(refusal.text));
            }
            ServerStep::Authenticated(hello) => break hello,
        }
    };
    if !hello.features.has(SPEAKS_CHANNEL_1) {
        let text = "this is a GPU node, and the client speaks no channel of version 1 \
                    (hint: check the address, and run the same release on both sides)";
        refuse(connection, &Refusal::new(RefusalCode::Version, text).to_bytes());
        return Err(not_admitted(text.to_owned()));
    }
    let (ready, established) = machine.ready(session, random_bytes().map_err(failed)?);
    send_all(connection, &ready, deadline).map_err(failed)?;
    Ok((hello, established))
}

/// Says no, and gives the peer a moment to read it: closing with bytes unread would take the words away from it.
pub(crate) fn refuse(connection: &mut (impl Read + Write), bytes: &[u8]) {
    let deadline = Instant::now() + REFUSED_MAX;
    if send_all(connection, bytes, deadline).is_err() {
        return;
    }
    let mut buffer = [0; 1024];
    let mut drained = 0;
    while drained < REFUSED_BYTES_MAX {
        match receive_some(connection, &mut buffer, deadline) {
            Ok(0) | Err(_) => return,
            Ok(received) => drained += received,
        }
    }
}

/// 32 bytes that nobody can guess.
pub(crate) fn random_bytes() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A message of the handshake that is being received; no byte behind it is.
struct Message {
    bytes: [u8; 1024],
    filled: usize,
}

impl Default for Message {
    fn default() -> Self {
        Self { bytes: [0; 1024], filled: 0 }
    }
}

impl Message {
    /// The next bytes of the message; none at the end of the connection.
    fn receive(&mut self, connection: &mut impl Read, deadline: Instant) -> io::Result<&[u8]> {
        let length = u16::from_le_bytes([self.bytes[LENGTH_AT], self.bytes[LENGTH_AT + 1]]);
        let whole = if self.filled < PREFIX_BYTES { PREFIX_BYTES } else { usize::from(length) };
        // A length that no message has is refused by the machine, which has seen it by now.
        let end = whole.clamp(self.filled, self.bytes.len());
        let start = self.filled;
        self.filled += receive_some(connection, &mut self.bytes[start..end], deadline)?;
        Ok(&self.bytes[start..self.filled])
    }
}

fn send_all(connection: &mut impl Write, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        match connection.write(bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if is_idle(&error) => check(deadline)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn receive_some(connection: &mut impl Read, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
    loop {
        // Before every read: a peer that sends byte by byte gains no time.
        check(deadline)?;
        match connection.read(buffer) {
            Err(error) if is_idle(&error) => {}
            result => return result,
        }
    }
}

fn is_idle(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || error.kind() == io::ErrorKind::TimedOut && error.raw_os_error() != Some(libc::ETIMEDOUT)
}

fn check(deadline: Instant) -> io::Result<()> {
    if Instant::now() < deadline { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}
