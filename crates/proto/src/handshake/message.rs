//! The five messages of the handshake, byte by byte.
//!
//! All integers are little-endian; bytes that a table leaves out are zero. Every message starts with the
//! same 16 bytes, which no version may change:
//!
//! | bytes | field | meaning |
//! | --- | --- | --- |
//! | 0..4 | magic | `HNTL` |
//! | 4 | kind | 0x81 Hello, 0x82 Welcome, 0x83 Confirm, 0x84 Ready, 0x85 Refuse |
//! | 6..8 | bytes | length of the whole message, at most 1024; a later version may append fields |
//! | 8..10 | version_min | oldest version that the sender speaks |
//! | 10..12 | version_max | newest |
//! | 12..16 | crc | crc32c of bytes 0..12 and 16.. |
//!
//! Hello (128): role 16, keyed 17, features 24..32, node 32..40, pool 40..56, nonce 56..88, session
//! 88..96, ticket 96..128 (both zero for a new session).
//! Welcome (136): node 16..24, pool 24..40, features 40..48, version 48..50, keyed 50, body_bytes_max
//! 56..60, runs_max 60..64, streams_max 64..68, nonce 72..104, proof 104..136.
//! Confirm (48): proof 16..48. Ready (56): session 16..24, ticket 24..56.
//! Refuse (24 + text): code 16..18, text 24.. in UTF-8, at most 512 bytes.

use super::{VERSION_MAX, VERSION_MIN};
use crate::checksum::{crc32c, crc32c_append};
use crate::frame::MAGIC;
use std::fmt;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Longest message of the handshake: bounds what a stranger can make the other side hold.
pub(super) const MESSAGE_BYTES_MAX: usize = 1024;
/// Bytes that every message starts with.
pub(super) const PREFIX_BYTES: usize = 16;
/// Longest text of a refusal.
const REFUSAL_TEXT_BYTES_MAX: usize = 512;

pub(super) const HELLO: u8 = 0x81;
pub(super) const WELCOME: u8 = 0x82;
pub(super) const CONFIRM: u8 = 0x83;
pub(super) const READY: u8 = 0x84;
pub(super) const REFUSE: u8 = 0x85;

/// The start of every message.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
pub(super) struct Prefix {
    pub magic: U32,
    pub kind: u8,
    pub zero: u8,
    pub bytes: U16,
    pub version_min: U16,
    pub version_max: U16,
    pub crc: U32,
}

/// What follows the prefix of a Hello.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
pub(super) struct Hello {
    pub role: u8,
    pub keyed: u8,
    pub zero: [u8; 6],
    pub features: U64,
    pub node: U64,
    pub pool: U128,
    pub nonce: [u8; 32],
    pub session: U64,
    pub ticket: [u8; 32],
}

/// What follows the prefix of a Welcome; the proof covers the Hello and everything before itself.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
pub(super) struct Welcome {
    pub node: U64,
    pub pool: U128,
    pub features: U64,
    pub version: U16,
    pub keyed: u8,
    pub zero: [u8; 5],
    pub body_bytes_max: U32,
    pub runs_max: U32,
    pub streams_max: U32,
    pub zero_too: U32,
    pub nonce: [u8; 32],
    pub proof: [u8; 32],
}

/// What follows the prefix of a Confirm.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
pub(super) struct Confirm {
    pub proof: [u8; 32],
}

/// What follows the prefix of a Ready.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
pub(super) struct Ready {
    pub session: U64,
    pub ticket: [u8; 32],
}

/// What follows the prefix of a Refuse, before the text.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
struct RefuseStart {
    code: U16,
    zero: [u8; 6],
}

const _: () = {
    assert!(size_of::<Prefix>() == PREFIX_BYTES);
    assert!(PREFIX_BYTES + size_of::<Hello>() == 128);
    assert!(PREFIX_BYTES + std::mem::offset_of!(Hello, pool) == 40);
    assert!(PREFIX_BYTES + std::mem::offset_of!(Hello, nonce) == 56);
    assert!(PREFIX_BYTES + std::mem::offset_of!(Hello, ticket) == 96);
    assert!(PREFIX_BYTES + size_of::<Welcome>() == 136);
    assert!(PREFIX_BYTES + std::mem::offset_of!(Welcome, version) == 48);
    assert!(PREFIX_BYTES + std::mem::offset_of!(Welcome, nonce) == 72);
    assert!(PREFIX_BYTES + std::mem::offset_of!(Welcome, proof) == 104);
    assert!(PREFIX_BYTES + size_of::<Confirm>() == 48);
    assert!(PREFIX_BYTES + size_of::<Ready>() == 56);
    assert!(PREFIX_BYTES + size_of::<RefuseStart>() + REFUSAL_TEXT_BYTES_MAX <= MESSAGE_BYTES_MAX);
};

/// Why a server does not want a peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum RefusalCode {
    /// The peer speaks another protocol.
    Foreign = 1,
    /// No version in common.
    Version = 2,
    /// The peer looks for another pool.
    Pool = 3,
    /// The pool has a key and the peer has none.
    KeyNeeded = 4,
    /// The peer has a key and the pool has none.
    KeyUnknown = 5,
    /// The peer's proof is wrong.
    KeyWrong = 6,
    /// Too many connections or streams.
    Full = 7,
    /// The service does not admit this peer.
    Denied = 8,
    /// A message that makes no sense.
    Malformed = 9,
    /// The ticket opens no session.
    Ticket = 10,
    /// The node is going down.
    Stopping = 11,
    /// The peer took too long.
    Slow = 12,
}

impl RefusalCode {
    fn from_number(number: u16) -> Self {
        match number {
            1 => Self::Foreign,
            2 => Self::Version,
            3 => Self::Pool,
            4 => Self::KeyNeeded,
            5 => Self::KeyUnknown,
            6 => Self::KeyWrong,
            7 => Self::Full,
            9 => Self::Malformed,
            10 => Self::Ticket,
            11 => Self::Stopping,
            12 => Self::Slow,
            // What a later version adds still means: not admitted.
            _ => Self::Denied,
        }
    }
}

/// A clear no: what is wrong and what to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What kind of no.
    pub code: RefusalCode,
    /// What is wrong, with a hint; at most 512 bytes on the wire.
    pub text: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Refusal {
    /// Makes a refusal.
    pub fn new(code: RefusalCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// The Refuse message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut end = self.text.len().min(REFUSAL_TEXT_BYTES_MAX);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let start = RefuseStart { code: U16::new(self.code as u16), zero: [0; 6] };
        let mut body = start.as_bytes().to_vec();
        body.extend_from_slice(&self.text.as_bytes()[..end]);
        encode(REFUSE, &body)
    }

    /// The refusal that bytes of a peer begin with, if they do and all of it is there.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let message = Collector::default().take(bytes).1.ok()??;
        (message.prefix.kind == REFUSE).then(|| Self::from_body(message.body()))
    }

    pub(super) fn from_body(body: &[u8]) -> Self {
        match RefuseStart::read_from_prefix(body) {
            Ok((start, text)) => {
                let text = &text[..text.len().min(REFUSAL_TEXT_BYTES_MAX)];
                Self::new(RefusalCode::from_number(start.code.get()), crate::frame::printable(text))
            }
            Err(_) => Self::new(RefusalCode::Denied, "no reason given (hint: see the log of the node)"),
        }
    }
}

/// Puts the prefix before a body. The body fits: every caller's is a fixed struct or a short text.
pub(super) fn encode(kind: u8, body: &[u8]) -> Vec<u8> {
    let bytes = (PREFIX_BYTES + body.len()).min(MESSAGE_BYTES_MAX) as u16;
    let prefix = Prefix {
        magic: U32::new(MAGIC),
        kind,
        zero: 0,
        bytes: U16::new(bytes),
        version_min: U16::new(VERSION_MIN),
        version_max: U16::new(VERSION_MAX),
        crc: U32::new(0),
    };
    let mut message = prefix.as_bytes().to_vec();
    message.extend_from_slice(body);
    seal(&mut message);
    message
}

/// Writes the checksum of a message into it.
pub(super) fn seal(message: &mut [u8]) {
    let crc = checksum(message);
    message[12..PREFIX_BYTES].copy_from_slice(&crc.to_le_bytes());
}

fn checksum(message: &[u8]) -> u32 {
    crc32c_append(crc32c(&message[..12]), &message[PREFIX_BYTES..])
}

/// One message as it came.
pub(super) struct Message {
    pub prefix: Prefix,
    /// The whole message, prefix included.
    pub bytes: Vec<u8>,
}

impl Message {
    /// The bytes behind the prefix.
    pub fn body(&self) -> &[u8] {
        &self.bytes[PREFIX_BYTES..]
    }
}

/// Bytes that are no message of a handshake.
pub(super) enum NotAMessage {
    /// Not our magic: the first bytes of whatever it is.
    Foreign(Vec<u8>),
    /// Our magic, but what follows is wrong.
    Malformed(&'static str),
}

/// Collects the bytes of one message at a time.
#[derive(Default)]
pub(super) struct Collector {
    bytes: Vec<u8>,
}

impl Collector {
    /// Takes what belongs to the current message from `input`; returns how much, and the message if it is whole.
    pub fn take(&mut self, input: &[u8]) -> (usize, Result<Option<Message>, NotAMessage>) {
        let mut taken = 0;
        loop {
            let wanted = match self.wanted() {
                Ok(0) => return (taken, self.whole().map(Some)),
                Ok(wanted) => wanted,
                Err(error) => return (taken, Err(error)),
            };
            let some = &input[taken..(taken + wanted).min(input.len())];
            if some.is_empty() {
                return (taken, Ok(None));
            }
            self.bytes.extend_from_slice(some);
            taken += some.len();
        }
    }

    /// Bytes still missing from what can be judged next: the prefix, then the whole message.
    fn wanted(&self) -> Result<usize, NotAMessage> {
        let magic = MAGIC.to_le_bytes();
        let seen = self.bytes.len().min(magic.len());
        if self.bytes[..seen] != magic[..seen] {
            return Err(NotAMessage::Foreign(self.bytes.clone()));
        }
        let Ok((prefix, _)) = Prefix::read_from_prefix(&self.bytes) else {
            return Ok(PREFIX_BYTES - self.bytes.len());
        };
        let bytes = usize::from(prefix.bytes.get());
        if !(PREFIX_BYTES..=MESSAGE_BYTES_MAX).contains(&bytes) {
            return Err(NotAMessage::Malformed("its length is outside 16 to 1024 bytes"));
        }
        Ok(bytes - self.bytes.len())
    }

    fn whole(&mut self) -> Result<Message, NotAMessage> {
        let bytes = std::mem::take(&mut self.bytes);
        match Prefix::read_from_prefix(&bytes) {
            Ok((prefix, _)) if prefix.crc.get() == checksum(&bytes) => Ok(Message { prefix, bytes }),
            _ => Err(NotAMessage::Malformed("its checksum is wrong")),
        }
    }
}
