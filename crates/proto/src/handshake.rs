//! The handshake: how two peers find out that they speak the same version, belong to one pool and hold its key.
//!
//! ```text
//! client                                   server
//!   Hello   versions, role, pool, nonce  ->
//!                                        <-  Welcome  version, limits, nonce, proof of the key
//!   Confirm proof of the key             ->
//!                                        <-  Ready    session and its ticket
//! ```
//!
//! In the place of Welcome or Ready the server may send Refuse (code and text) and close. A proof is a
//! keyed blake3 hash over the side's label and everything that was said so far, nonces included: it can be
//! neither replayed on another connection nor reflected to the side that made it. Without a key on both
//! sides the proofs are zero. The numbers of the first frames are derived from the same bytes, so that a
//! frame that was recorded on one connection is out of sequence on every other.

mod client;
mod message;
mod server;
#[cfg(test)]
mod tests;

pub use client::{ClientHandshake, ClientIdentity, ClientStep};
pub use message::{Refusal, RefusalCode};
pub use server::{PeerHello, ServerHandshake, ServerIdentity, ServerStep};

use crate::frame::PROTOCOL_VERSION;
use hinterland_types::{NodeId, SessionId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Oldest version that this release still speaks: its own alone, because the nodes of a pool are of one release.
pub(crate) const VERSION_MIN: u16 = PROTOCOL_VERSION;
/// Newest version that this release speaks.
pub(crate) const VERSION_MAX: u16 = PROTOCOL_VERSION;

/// What a peer is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Role {
    /// A process that uses the pool.
    Client = 1,
    /// A memory node.
    Node = 2,
}

/// The pool that a peer belongs to: drawn at random when the pool is made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default, Debug)]
pub struct PoolId(pub u128);

impl PoolId {
    /// What a client says that takes whatever pool the address leads to.
    pub const ANY: Self = Self(0);
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool-{:032x}", self.0)
    }
}

/// The secret that the peers of a pool share.
#[derive(Clone, PartialEq, Eq)]
pub struct PoolKey(pub [u8; 32]);

impl fmt::Debug for PoolKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PoolKey(..)")
    }
}

/// A text that is no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("it is not 64 hexadecimal digits")]
pub struct NotAKey;

impl std::str::FromStr for PoolKey {
    type Err = NotAKey;

    /// Reads a key as its file has it: 64 hexadecimal digits, with white space around them.
    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let digits = text.trim().as_bytes();
        let mut key = [0; 32];
        if digits.len() != 64 {
            return Err(NotAKey);
        }
        for (byte, pair) in key.iter_mut().zip(digits.as_chunks::<2>().0) {
            let value = |digit: u8| char::from(digit).to_digit(16).ok_or(NotAKey);
            // Two digits are below 256.
            *byte = (value(pair[0])? << 4 | value(pair[1])?) as u8;
        }
        Ok(Self(key))
    }
}

/// Optional abilities, one bit each; the connection has those that both sides have.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Features(pub u64);

impl Features {
    /// The client polls for answers: the server sizes its buffers for latency.
    pub const POLLING: Self = Self(1);
    /// The side has RDMA devices and speaks [`verbs`](crate::verbs).
    pub const RDMA: Self = Self(2);

    /// These and those.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every feature of `needed` is here.
    pub const fn has(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }
}

/// What a further stream shows in order to join a session.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The session.
    pub session: SessionId,
    /// 32 random bytes that the server drew for it.
    pub secret: [u8; 32],
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({}, ..)", self.session)
    }
}

/// What a server lets one peer do at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PeerLimits {
    /// Most payload bytes of one frame.
    pub body_bytes_max: u32,
    /// Most runs of one frame.
    pub runs_max: u32,
    /// Most streams of one session.
    pub streams_max: u32,
}

/// A finished handshake, as either side sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Established {
    /// The version that both will speak.
    pub version: u16,
    /// The other side.
    pub node: NodeId,
    /// The pool of the server.
    pub pool: PoolId,
    /// What both sides can do.
    pub features: Features,
    /// What the server allows.
    pub limits: PeerLimits,
    /// The session and what lets further streams join it.
    pub ticket: Ticket,
    /// Sequence number of the first frame that this side sends.
    pub send_sequence: u64,
    /// Sequence number of the first frame that the other side sends.
    pub receive_sequence: u64,
}

/// Why a handshake failed on the client's side.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
pub enum HandshakeError {
    /// The server said no.
    #[error("the node refused the connection: {0}")]
    Refused(Refusal),
    /// Whoever answered is no Hinterland node.
    #[error("the peer answered {answer:?}, which is no Hinterland node (hint: check address and port)")]
    Foreign {
        /// The first bytes of the answer, printable.
        answer: String,
    },
    /// The server does not hold the key that we hold.
    #[error(
        "{node} cannot prove that it has the pool key (hint: give both sides the same file, nodes by --key, programs by HINTERLAND_KEY_FILE)"
    )]
    WrongKey {
        /// What the server calls itself.
        node: NodeId,
    },
    /// We hear ourselves.
    #[error("{node} was connected to itself (hint: check the addresses of the other nodes)")]
    Reflected {
        /// Our own identifier.
        node: NodeId,
    },
    /// The server chose a version that we did not offer.
    #[error(
        "the node chose version {chosen}, this side speaks {VERSION_MIN} to {VERSION_MAX} (hint: run the same release on both sides)"
    )]
    Version {
        /// What it chose.
        chosen: u16,
    },
    /// The server belongs to another pool.
    #[error(
        "the node belongs to {found}, not to {expected} (hint: check the address, or leave the pool open)"
    )]
    Pool {
        /// The server's pool.
        found: PoolId,
        /// The pool that was asked for.
        expected: PoolId,
    },
    /// A message that makes no sense.
    #[error("handshake message is malformed: {what} (hint: run the same release on both sides)")]
    Malformed {
        /// What is wrong with it.
        what: &'static str,
    },
}

/// Which side speaks; part of every hash, so that one side's words never pass for the other's.
#[derive(Clone, Copy)]
pub(crate) enum Side {
    Client,
    Server,
}

/// What a side proves: that it holds the key and heard all of `transcript`. Zero without a key.
pub(crate) fn proof(key: Option<&PoolKey>, side: Side, transcript: &[u8]) -> [u8; 32] {
    let Some(key) = key else { return [0; 32] };
    let label: &[u8] = match side {
        Side::Client => b"hinterland proof of the client",
        Side::Server => b"hinterland proof of the server",
    };
    *blake3::Hasher::new_keyed(&key.0).update(label).update(transcript).finalize().as_bytes()
}

/// Compares two proofs in a time that does not depend on where they differ.
pub(crate) fn same_proof(a: &[u8; 32], b: &[u8; 32]) -> bool {
    blake3::Hash::from_bytes(*a) == blake3::Hash::from_bytes(*b)
}

/// Number of the first frame that `side` sends, drawn from the transcript (and the key, if there is one).
pub(crate) fn first_sequence(key: Option<&PoolKey>, side: Side, transcript: &[u8]) -> u64 {
    let mut hasher = match key {
        Some(key) => blake3::Hasher::new_keyed(&key.0),
        None => blake3::Hasher::new(),
    };
    let label: &[u8] = match side {
        Side::Client => b"hinterland sequence of the client",
        Side::Server => b"hinterland sequence of the server",
    };
    let hash = hasher.update(label).update(transcript).finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(first)
}
