//! What two fabrics say to each other about RDMA, over the session that they already have: addresses, keys, and no bytes of memory.
//!
//! The session was opened by the handshake, so who says these things has proved the pool's key. Messages are postcard, in
//! frames of the kind [`FrameKind::Verbs`](crate::FrameKind::Verbs).

use hinterland_types::{ByteRange, Handle};
use serde::{Deserialize, Serialize};

/// The version of these messages and of what travels over queue pairs. Both sides must have the same.
pub const VERBS_VERSION: u16 = 2;

/// What a port speaks.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum PortKind {
    /// InfiniBand.
    InfiniBand,
    /// RDMA in Ethernet frames.
    RoceV1,
    /// RDMA in UDP.
    RoceV2,
}

/// Where a port is on the network.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct PortAddress {
    /// What it speaks.
    pub kind: PortKind,
    /// Its global identifier.
    pub gid: [u8; 16],
    /// Its local identifier, on InfiniBand.
    pub lid: u16,
    /// Longest packet: 1 for 256 bytes, 5 for 4096.
    pub mtu: u8,
}

/// One end of a connection.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct PairAddress {
    /// Its port.
    pub port: PortAddress,
    /// Number of the queue pair, 24 bits.
    pub pair: u32,
    /// Number of the first packet that it sends, 24 random bits.
    pub sequence: u32,
    /// Number of the first frame that it sends as a message, 64 random bits.
    pub frames: u64,
}

/// Where registered memory is, for one device of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct RemoteKey {
    /// Address of the first byte.
    pub address: u64,
    /// What opens it, on queue pairs of this session only.
    pub key: u32,
}

impl RemoteKey {
    /// In the place of a port through which the memory cannot be reached.
    pub const NONE: Self = Self { address: 0, key: 0 };
}

/// What a client asks.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum VerbsRequest {
    /// Which ports are there?
    Ports {
        /// The client's version of these messages.
        version: u16,
    },
    /// Connect a queue pair to mine.
    Connect {
        /// Which of the server's ports, by its place in the list.
        port: u8,
        /// The client's end.
        from: PairAddress,
    },
    /// A queue pair failed and is not used any more.
    Disconnect {
        /// Number of the server's queue pair.
        pair: u32,
    },
    /// Let me reach memory without asking.
    Grant {
        /// What it belongs to.
        handle: Handle,
        /// The least that is wanted.
        range: ByteRange,
        /// To write it, too.
        write: bool,
    },
    /// Which ports are there now? Places in the list stay, and so do queue pairs and what is granted; ports that came are
    /// appended, and keys are to be asked for again.
    Refresh,
}

/// What the server answers.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum VerbsReply {
    /// The ports.
    Ports {
        /// The server's version of these messages.
        version: u16,
        /// One for each.
        ports: Vec<PortAddress>,
    },
    /// The server's end of a connection, ready to be talked to.
    Connected {
        /// It.
        to: PairAddress,
    },
    /// It is done.
    Done,
    /// Memory that may be reached.
    Granted {
        /// What part of the handle it is; it contains what was wanted.
        range: ByteRange,
        /// Whether it may be written.
        write: bool,
        /// One for each port of the list, in its order; [`RemoteKey::NONE`] where a port does not reach it.
        keys: Vec<RemoteKey>,
    },
    /// This memory is reached by messages only.
    ByMessage {
        /// Why, in words.
        reason: String,
    },
}
