//! The side of the handshake that connects.

use super::message::{
    CONFIRM, Collector, Confirm, HELLO, Hello, Message, NotAMessage, READY, REFUSE, Ready, Refusal, WELCOME,
    Welcome, encode,
};
use super::{
    Established, Features, HandshakeError, PeerLimits, PoolId, PoolKey, RefusalCode, Role, Side, Ticket,
    VERSION_MAX, VERSION_MIN, first_sequence, proof, same_proof,
};
use crate::frame::{RUNS_MAX, printable};
use hinterland_types::limits::{FRAME_BODY_BYTES_MAX, STREAMS_MAX};
use hinterland_types::{NodeId, SessionId};
use zerocopy::little_endian::{U64, U128};
use zerocopy::{FromBytes, IntoBytes};

/// Longest piece of a foreign answer that an error repeats.
const ANSWER_BYTES_MAX: usize = 32;

/// Who connects, and to what.
#[derive(Clone, Debug)]
pub struct ClientIdentity {
    /// What this side is.
    pub role: Role,
    /// This side, if it is a node; else `NodeId(0)`.
    pub node: NodeId,
    /// The pool that the server must belong to, or [`PoolId::ANY`].
    pub pool: PoolId,
    /// The key of the pool, if it has one.
    pub key: Option<PoolKey>,
    /// What this side can do.
    pub features: Features,
    /// The session to join; `None` opens one.
    pub join: Option<Ticket>,
}

/// What to do after bytes were received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientStep {
    /// Receive more.
    Wait,
    /// Send these bytes, then receive more.
    Send(Vec<u8>),
    /// The handshake is done: what follows are frames.
    Done(Established),
}

/// The client's side of one handshake.
pub struct ClientHandshake {
    identity: ClientIdentity,
    nonce: [u8; 32],
    collector: Collector,
    /// Every byte that both sides said so far.
    transcript: Vec<u8>,
    welcome: Option<Welcome>,
}

impl ClientHandshake {
    /// Starts a handshake; returns it and the bytes to send first. The nonce must be 32 random bytes that
    /// were never used before.
    pub fn new(identity: ClientIdentity, nonce: [u8; 32]) -> (Self, Vec<u8>) {
        let (session, ticket) = match &identity.join {
            Some(ticket) => (ticket.session.0, ticket.secret),
            None => (0, [0; 32]),
        };
        let hello = Hello {
            role: identity.role as u8,
            keyed: u8::from(identity.key.is_some()),
            zero: [0; 6],
            features: U64::new(identity.features.0),
            node: U64::new(identity.node.0),
            pool: U128::new(identity.pool.0),
            nonce,
            session: U64::new(session),
            ticket,
        };
        let message = encode(HELLO, hello.as_bytes());
        let machine = Self {
            identity,
            nonce,
            collector: Collector::default(),
            transcript: message.clone(),
            welcome: None,
        };
        (machine, message)
    }

    /// Takes received bytes; returns how many belong to the handshake and what to do. Call again with the
    /// rest as long as some is left and the handshake is not done.
    ///
    /// # Errors
    /// [`HandshakeError`]: close the connection.
    pub fn receive(&mut self, input: &[u8]) -> Result<(usize, ClientStep), HandshakeError> {
        let (taken, message) = self.collector.take(input);
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return Ok((taken, ClientStep::Wait)),
            Err(NotAMessage::Malformed(what)) => return Err(HandshakeError::Malformed { what }),
            Err(NotAMessage::Foreign(start)) => {
                let mut start = start;
                start.extend_from_slice(&input[taken..]);
                start.truncate(ANSWER_BYTES_MAX);
                return Err(HandshakeError::Foreign { answer: printable(&start) });
            }
        };
        let step = match (message.prefix.kind, self.welcome) {
            (REFUSE, _) => return Err(HandshakeError::Refused(refusal(&message))),
            (WELCOME, None) => ClientStep::Send(self.welcomed(&message)?),
            (READY, Some(welcome)) => ClientStep::Done(self.ready(&message, welcome)?),
            _ => return Err(HandshakeError::Malformed { what: "it is not the message that is due" }),
        };
        Ok((taken, step))
    }

    /// Checks the Welcome and returns the Confirm.
    fn welcomed(&mut self, message: &Message) -> Result<Vec<u8>, HandshakeError> {
        let Ok((welcome, _)) = Welcome::read_from_prefix(message.body()) else {
            return Err(HandshakeError::Malformed { what: "the welcome is too short" });
        };
        let node = NodeId(welcome.node.get());
        let version = welcome.version.get();
        if !(VERSION_MIN..=VERSION_MAX).contains(&version) {
            return Err(HandshakeError::Version { chosen: version });
        }
        if welcome.nonce == self.nonce || (self.identity.role == Role::Node && node == self.identity.node) {
            return Err(HandshakeError::Reflected { node });
        }
        let (found, expected) = (PoolId(welcome.pool.get()), self.identity.pool);
        if expected != PoolId::ANY && found != expected {
            return Err(HandshakeError::Pool { found, expected });
        }
        // The proof stands at the end of the message; what is before it is proved.
        let unproved = message.bytes.len() - size_of_val(&welcome.proof);
        let key = self.identity.key.as_ref();
        // The checksum in the prefix covers the proof, so it cannot be covered by it.
        let heard = [&self.transcript, &message.bytes[..12], &message.bytes[16..unproved]].concat();
        if !same_proof(&proof(key, Side::Server, &heard), &welcome.proof) {
            return Err(HandshakeError::WrongKey { node });
        }
        self.transcript.extend_from_slice(&message.bytes);
        let confirm = Confirm { proof: proof(key, Side::Client, &self.transcript) };
        let confirm = encode(CONFIRM, confirm.as_bytes());
        self.transcript.extend_from_slice(&confirm);
        self.welcome = Some(welcome);
        Ok(confirm)
    }

    fn ready(&self, message: &Message, welcome: Welcome) -> Result<Established, HandshakeError> {
        let Ok((ready, _)) = Ready::read_from_prefix(message.body()) else {
            return Err(HandshakeError::Malformed { what: "the last message is too short" });
        };
        let key = self.identity.key.as_ref();
        let limits = PeerLimits {
            body_bytes_max: welcome.body_bytes_max.get().clamp(1, FRAME_BODY_BYTES_MAX),
            runs_max: welcome.runs_max.get().clamp(1, RUNS_MAX as u32),
            streams_max: welcome.streams_max.get().clamp(1, STREAMS_MAX as u32),
        };
        Ok(Established {
            version: welcome.version.get(),
            node: NodeId(welcome.node.get()),
            pool: PoolId(welcome.pool.get()),
            features: Features(welcome.features.get() & self.identity.features.0),
            limits,
            ticket: Ticket { session: SessionId(ready.session.get()), secret: ready.ticket },
            send_sequence: first_sequence(key, Side::Client, &self.transcript),
            receive_sequence: first_sequence(key, Side::Server, &self.transcript),
        })
    }
}

/// Why the server refuses. Which versions it speaks stands in front of every message, so that its words, of its side, need not be read.
fn refusal(message: &Message) -> Refusal {
    let refusal = Refusal::from_body(message.body());
    let (low, high) = (message.prefix.version_min.get(), message.prefix.version_max.get());
    if refusal.code != RefusalCode::Version || (low <= VERSION_MAX && high >= VERSION_MIN) {
        return refusal;
    }
    let older = if high < VERSION_MIN { "that node" } else { "this side" };
    let text = format!(
        "it speaks versions {low} to {high}, this side {VERSION_MIN} to {VERSION_MAX} (hint: upgrade {older})"
    );
    Refusal::new(RefusalCode::Version, text)
}
