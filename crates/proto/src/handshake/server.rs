//! The side of the handshake that accepts connections.

use super::message::{
    CONFIRM, Collector, Confirm, HELLO, Hello, Message, NotAMessage, READY, Ready, Refusal, RefusalCode,
    WELCOME, Welcome, encode, seal,
};
use super::{
    Established, Features, PeerLimits, PoolId, PoolKey, Role, Side, Ticket, VERSION_MAX, VERSION_MIN,
    first_sequence, proof, same_proof,
};
use hinterland_types::{NodeId, SessionId};
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, IntoBytes};

/// Who accepts connections.
#[derive(Clone, Debug)]
pub struct ServerIdentity {
    /// This node.
    pub node: NodeId,
    /// Its pool.
    pub pool: PoolId,
    /// The key of the pool, if it has one: then nobody is admitted without it.
    pub key: Option<PoolKey>,
    /// What this side can do.
    pub features: Features,
    /// What one peer may do at once.
    pub limits: PeerLimits,
}

/// A peer that proved what it had to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerHello {
    /// What it is.
    pub role: Role,
    /// Which node it is; `NodeId(0)` for a client.
    pub node: NodeId,
    /// The pool that it asked for.
    pub pool: PoolId,
    /// Whether it proved that it has the pool's key.
    pub keyed: bool,
    /// What both sides can do.
    pub features: Features,
    /// The session that it wants to join; the caller checks the ticket.
    pub join: Option<Ticket>,
}

/// What to do after bytes were received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerStep {
    /// Receive more.
    Wait,
    /// Send these bytes, then receive more.
    Send(Vec<u8>),
    /// The peer is who it says: admit it with [`ServerHandshake::ready`] or send a [`Refusal`].
    Authenticated(PeerHello),
    /// Send these bytes and close.
    Refuse {
        /// What to send: a Refuse message, or text that a foreign peer can show.
        bytes: Vec<u8>,
        /// The same for our own log.
        refusal: Refusal,
    },
}

enum State {
    AwaitsHello,
    AwaitsConfirm(PeerHello),
    Over,
}

/// The server's side of one handshake.
pub struct ServerHandshake {
    identity: ServerIdentity,
    nonce: [u8; 32],
    collector: Collector,
    transcript: Vec<u8>,
    /// What was agreed on: the version, the peer, what both can do.
    agreed: Option<(u16, NodeId, Features)>,
    state: State,
}

impl ServerHandshake {
    /// Starts a handshake. The nonce must be 32 random bytes that were never used before.
    pub fn new(identity: ServerIdentity, nonce: [u8; 32]) -> Self {
        Self {
            identity,
            nonce,
            collector: Collector::default(),
            transcript: Vec::new(),
            agreed: None,
            state: State::AwaitsHello,
        }
    }

    /// Takes received bytes; returns how many belong to the handshake and what to do.
    pub fn receive(&mut self, input: &[u8]) -> (usize, ServerStep) {
        let (taken, message) = self.collector.take(input);
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return (taken, ServerStep::Wait),
            Err(NotAMessage::Foreign(start)) => return (taken, self.refuse_foreign(&start)),
            Err(NotAMessage::Malformed(what)) => return (taken, self.refuse_malformed(what)),
        };
        let step = match std::mem::replace(&mut self.state, State::Over) {
            State::AwaitsHello => self.hello(&message),
            State::AwaitsConfirm(peer) => self.confirm(&message, peer),
            State::Over => Err(malformed("the handshake is over")),
        };
        (taken, step.unwrap_or_else(|refusal| ServerStep::Refuse { bytes: refusal.to_bytes(), refusal }))
    }

    /// Admits the peer: the bytes to send, and the connection as this side sees it.
    pub fn ready(self, session: SessionId, secret: [u8; 32]) -> (Vec<u8>, Established) {
        let key = self.identity.key.as_ref();
        let (version, node, features) = self.agreed.unwrap_or((VERSION_MAX, NodeId(0), Features(0)));
        let established = Established {
            version,
            node,
            pool: self.identity.pool,
            features,
            limits: self.identity.limits,
            ticket: Ticket { session, secret },
            send_sequence: first_sequence(key, Side::Server, &self.transcript),
            receive_sequence: first_sequence(key, Side::Client, &self.transcript),
        };
        let ready = Ready { session: U64::new(session.0), ticket: secret };
        (encode(READY, ready.as_bytes()), established)
    }

    /// Checks a Hello and answers with a Welcome.
    fn hello(&mut self, message: &Message) -> Result<ServerStep, Refusal> {
        let (low, high) = (message.prefix.version_min.get(), message.prefix.version_max.get());
        if message.prefix.kind != HELLO {
            return Err(malformed("a Hello was due"));
        }
        if low > VERSION_MAX || high < VERSION_MIN || low > high {
            let older = if high < VERSION_MIN { "the client" } else { "this node" };
            let text = format!(
                "the client speaks versions {low} to {high}, this node {VERSION_MIN} to {VERSION_MAX} \
                 (hint: upgrade {older})"
            );
            return Err(Refusal::new(RefusalCode::Version, text));
        }
        let Ok((hello, _)) = Hello::read_from_prefix(message.body()) else {
            return Err(malformed("the Hello is too short"));
        };
        let peer = self.check_hello(&hello)?;
        self.transcript.extend_from_slice(&message.bytes);
        let version = high.min(VERSION_MAX);
        let welcome = self.welcome(version, peer.features);
        self.transcript.extend_from_slice(&welcome);
        self.agreed = Some((version, peer.node, peer.features));
        self.state = State::AwaitsConfirm(peer);
        Ok(ServerStep::Send(welcome))
    }

    fn check_hello(&self, hello: &Hello) -> Result<PeerHello, Refusal> {
        let role = match hello.role {
            1 => Role::Client,
            2 => Role::Node,
            _ => return Err(malformed("the role is unknown")),
        };
        let pool = PoolId(hello.pool.get());
        let own = self.identity.pool;
        if pool != own && !(pool == PoolId::ANY && role == Role::Client) {
            let text = format!("this node belongs to {own}, not to {pool} (hint: check the address)");
            return Err(Refusal::new(RefusalCode::Pool, text));
        }
        match (self.identity.key.is_some(), hello.keyed) {
            (true, 1) | (false, 0) => {}
            (true, _) => {
                let text = "this pool has a key and the client gave none (hint: a node gets it by --key FILE, a program by HINTERLAND_KEY_FILE)";
                return Err(Refusal::new(RefusalCode::KeyNeeded, text));
            }
            (false, _) => {
                let text =
                    "the client has a pool key and this node has none (hint: start the node with --key FILE)";
                return Err(Refusal::new(RefusalCode::KeyUnknown, text));
            }
        }
        let join = (hello.session.get() != 0)
            .then(|| Ticket { session: SessionId(hello.session.get()), secret: hello.ticket });
        Ok(PeerHello {
            role,
            node: NodeId(hello.node.get()),
            pool,
            keyed: self.identity.key.is_some(),
            features: Features(hello.features.get() & self.identity.features.0),
            join,
        })
    }

    fn welcome(&self, version: u16, features: Features) -> Vec<u8> {
        let limits = self.identity.limits;
        let welcome = Welcome {
            node: U64::new(self.identity.node.0),
            pool: U128::new(self.identity.pool.0),
            features: U64::new(features.0),
            version: U16::new(version),
            keyed: u8::from(self.identity.key.is_some()),
            zero: [0; 5],
            body_bytes_max: U32::new(limits.body_bytes_max),
            runs_max: U32::new(limits.runs_max),
            streams_max: U32::new(limits.streams_max),
            zero_too: U32::new(0),
            nonce: self.nonce,
            proof: [0; 32],
        };
        let mut message = encode(WELCOME, welcome.as_bytes());
        let unproved = message.len() - size_of_val(&welcome.proof);
        let said = [&self.transcript, &message[..12], &message[16..unproved]].concat();
        let proved = proof(self.identity.key.as_ref(), Side::Server, &said);
        message[unproved..].copy_from_slice(&proved);
        seal(&mut message);
        message
    }

    fn confirm(&mut self, message: &Message, peer: PeerHello) -> Result<ServerStep, Refusal> {
        let confirm = match Confirm::read_from_prefix(message.body()) {
            Ok((confirm, _)) if message.prefix.kind == CONFIRM => confirm,
            _ => return Err(malformed("a Confirm was due")),
        };
        let expected = proof(self.identity.key.as_ref(), Side::Client, &self.transcript);
        if !same_proof(&expected, &confirm.proof) {
            let text = "the client's pool key is another one (hint: give both sides the same file, nodes by --key, programs by HINTERLAND_KEY_FILE)";
            return Err(Refusal::new(RefusalCode::KeyWrong, text));
        }
        self.transcript.extend_from_slice(&message.bytes);
        Ok(ServerStep::Authenticated(peer))
    }

    fn refuse_malformed(&mut self, what: &str) -> ServerStep {
        self.state = State::Over;
        let refusal = malformed(what);
        ServerStep::Refuse { bytes: refusal.to_bytes(), refusal }
    }

    /// A foreign peer gets text: as an HTTP answer if its first byte could be that of an HTTP method.
    fn refuse_foreign(&mut self, start: &[u8]) -> ServerStep {
        self.state = State::Over;
        let text = format!(
            "this port speaks the Hinterland protocol, versions {VERSION_MIN} to {VERSION_MAX} \
             (hint: use the `hinterland` program or one of its libraries)\n"
        );
        let bytes = if start.first().is_some_and(u8::is_ascii_uppercase) {
            format!(
                "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{text}",
                text.len()
            )
        } else {
            text.clone()
        };
        let refusal = Refusal::new(RefusalCode::Foreign, text.trim_end());
        ServerStep::Refuse { bytes: bytes.into_bytes(), refusal }
    }
}

fn malformed(what: &str) -> Refusal {
    let text = format!("handshake message is malformed: {what} (hint: run the same release on both sides)");
    Refusal::new(RefusalCode::Malformed, text)
}
