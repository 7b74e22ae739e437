//! The frame: a 48-byte header and a body, the only thing that passes between two peers after the handshake.
//!
//! All integers are little-endian. The header, byte by byte:
//!
//! | bytes | field | meaning |
//! | --- | --- | --- |
//! | 0..4 | magic | `HNTL` |
//! | 4..6 | version | [`PROTOCOL_VERSION`] |
//! | 6 | kind | [`FrameKind`] |
//! | 7 | flags | bit 0: `body_crc` is set; bit 1: the sender wants `body_crc` in the answer; others zero |
//! | 8..16 | sequence | one more than in the frame before, by connection and direction |
//! | 16..24 | request | chosen by the caller, repeated in the answer |
//! | 24..28 | handle | index into the capability table of the session |
//! | 28..32 | body_bytes | length of the body that follows |
//! | 32..40 | argument | by kind, see below |
//! | 40..44 | body_crc | crc32c of the body, or zero without flag bit 0 |
//! | 44..48 | header_crc | crc32c of bytes 0..44 |
//!
//! | kind | argument | body |
//! | --- | --- | --- |
//! | Call, Reply | 0 | bytes of the application, at most 1 MiB |
//! | Read | number of runs | the runs, 16 bytes each |
//! | ReadReply | 0 | the bytes of all runs, in their order |
//! | Write | number of runs | the runs, then the bytes of all runs |
//! | WriteReply | 0 | none |
//! | CompareSwap | offset of the word | expected, desired: 8 bytes each |
//! | FetchAdd | offset of the word | addend: 8 bytes |
//! | AtomicReply | 0 | the word as it was before: 8 bytes |
//! | Error | 0 | code: 4 bytes, then text in UTF-8 |
//! | Close | 0 | none |
//! | Fetch | most bytes to send | a question to the service, at most 4 KiB |
//! | FetchReply | bytes that there are | as many of them as were asked for; `handle` reaches them all, if it is not 0 |
//! | Verbs, VerbsReply | 0 | a message of [`verbs`](crate::verbs), at most 4 KiB |
//!
//! A run is `offset: u64, bytes: u32, zero: u32`. Answers come in the order of their requests.

mod decoder;
mod remote;
mod runs;
#[cfg(test)]
mod tests;

pub use decoder::{Frame, FrameDecoder, FrameReceiver, FrameSender};
pub(crate) use remote::printable;
pub use remote::{ERROR_TEXT_BYTES_MAX, ErrorCode, RemoteError};
pub use runs::{RUN_BYTES, RUNS_MAX, RunTable, encode_runs};

use crate::checksum::crc32c;
use hinterland_types::Handle;
use hinterland_types::limits::{CONTROL_BYTES_MAX, FRAME_BODY_BYTES_MAX};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Longest question of a [`FrameKind::Fetch`].
pub const FETCH_BYTES_MAX: u32 = 4096;
/// Bytes of a frame header.
pub const HEADER_BYTES: usize = 48;
/// The version of the wire that this crate speaks.
pub const PROTOCOL_VERSION: u16 = 2;

pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"HNTL");
/// Longest message about RDMA: eight ports, or keys for as many.
const VERBS_BYTES_MAX: u32 = 4096;
const FLAG_BODY_CRC: u8 = 1;
const FLAG_WANT_CRC: u8 = 2;
/// Bytes of the header that `header_crc` covers.
const CHECKED_BYTES: usize = 44;

/// The header as it stands on the wire.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
struct WireHeader {
    magic: U32,
    version: U16,
    kind: u8,
    flags: u8,
    sequence: U64,
    request: U64,
    handle: U32,
    body_bytes: U32,
    argument: U64,
    body_crc: U32,
    header_crc: U32,
}

const _: () = {
    assert!(size_of::<WireHeader>() == HEADER_BYTES);
    assert!(std::mem::offset_of!(WireHeader, version) == 4);
    assert!(std::mem::offset_of!(WireHeader, kind) == 6);
    assert!(std::mem::offset_of!(WireHeader, flags) == 7);
    assert!(std::mem::offset_of!(WireHeader, sequence) == 8);
    assert!(std::mem::offset_of!(WireHeader, request) == 16);
    assert!(std::mem::offset_of!(WireHeader, handle) == 24);
    assert!(std::mem::offset_of!(WireHeader, body_bytes) == 28);
    assert!(std::mem::offset_of!(WireHeader, argument) == 32);
    assert!(std::mem::offset_of!(WireHeader, body_crc) == 40);
    assert!(std::mem::offset_of!(WireHeader, header_crc) == CHECKED_BYTES);
};

/// What a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FrameKind {
    /// A message to the service of the peer.
    Call = 1,
    /// The answer to a [`FrameKind::Call`].
    Reply = 2,
    /// Asks for the bytes of one or more runs of a resource.
    Read = 3,
    /// The bytes that a [`FrameKind::Read`] asked for.
    ReadReply = 4,
    /// Carries bytes to one or more runs of a resource.
    Write = 5,
    /// Says that the bytes of a [`FrameKind::Write`] are in memory.
    WriteReply = 6,
    /// Replaces an 8-byte word if it has the expected value.
    CompareSwap = 7,
    /// Adds to an 8-byte word, wrapping.
    FetchAdd = 8,
    /// The word before a [`FrameKind::CompareSwap`] or [`FrameKind::FetchAdd`].
    AtomicReply = 9,
    /// Stands in the place of any answer: the request failed.
    Error = 10,
    /// The sender will send nothing more.
    Close = 11,
    /// Sets up or ends what is reached by RDMA; sent only where both sides have [`Features::RDMA`](crate::Features::RDMA).
    Verbs = 12,
    /// The answer to a [`FrameKind::Verbs`].
    VerbsReply = 13,
    /// Asks the service for bytes that it finds by itself, a first part of them with the answer.
    Fetch = 14,
    /// The answer to a [`FrameKind::Fetch`].
    FetchReply = 15,
}

impl FrameKind {
    /// The kind with this number on the wire, or `None`.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Call,
            2 => Self::Reply,
            3 => Self::Read,
            4 => Self::ReadReply,
            5 => Self::Write,
            6 => Self::WriteReply,
            7 => Self::CompareSwap,
            8 => Self::FetchAdd,
            9 => Self::AtomicReply,
            10 => Self::Error,
            11 => Self::Close,
            12 => Self::Verbs,
            13 => Self::VerbsReply,
            14 => Self::Fetch,
            15 => Self::FetchReply,
            _ => return None,
        })
    }
}

/// A checked frame header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// What the frame is.
    pub kind: FrameKind,
    /// Place of the frame in its direction of the connection; [`FrameSender`] sets it.
    pub sequence: u64,
    /// The caller's number for request and answer.
    pub request: u64,
    /// The resource that the request names.
    pub handle: Handle,
    /// Bytes of the body.
    pub body_bytes: u32,
    /// Number of runs or offset of a word, by kind.
    pub argument: u64,
    /// crc32c of the body, if the sender computed it.
    pub body_crc: Option<u32>,
    /// Whether the answer should carry a checksum of its body.
    pub wants_body_crc: bool,
}

/// Why a peer's bytes are refused. Every one ends the connection: nothing behind it can be trusted.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
pub enum FrameError {
    /// The bytes are no frame.
    #[error(
        "frame starts with {found:#010x}, not with HNTL (hint: the peer lost its place or is no Hinterland node)"
    )]
    Magic {
        /// The first four bytes, little-endian.
        found: u32,
    },
    /// A frame of a version that was not agreed on.
    #[error(
        "frame of version {found}, agreed was {PROTOCOL_VERSION} (hint: run the same release on both sides)"
    )]
    Version {
        /// The frame's version.
        found: u16,
    },
    /// A bit of the header changed on its way.
    #[error(
        "frame header has checksum {found:#010x}, its bytes give {computed:#010x} (hint: suspect the network card or a proxy)"
    )]
    HeaderChecksum {
        /// What the header says.
        found: u32,
        /// What its bytes give.
        computed: u32,
    },
    /// A bit of the body changed on its way.
    #[error(
        "frame body has checksum {found:#010x}, its bytes give {computed:#010x} (hint: suspect the network card or a proxy)"
    )]
    BodyChecksum {
        /// What the header says.
        found: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// The kind has no meaning in this version.
    #[error(
        "frame of kind {found}, which version {PROTOCOL_VERSION} does not have (hint: run the same release on both sides)"
    )]
    Kind {
        /// The number on the wire.
        found: u8,
    },
    /// A flag has no meaning in this version.
    #[error(
        "frame with flags {found:#04x}, which version {PROTOCOL_VERSION} does not have (hint: run the same release on both sides)"
    )]
    Flags {
        /// The flags on the wire.
        found: u8,
    },
    /// The body is longer than its kind allows.
    #[error("frame body of {body_bytes} bytes, at most {limit} are allowed (hint: split the request)")]
    Length {
        /// What the header says.
        body_bytes: u32,
        /// The most that the kind allows.
        limit: u32,
    },
    /// Fields contradict each other or the kind.
    #[error("frame of kind {kind:?} with {body_bytes} bytes and argument {argument} is malformed")]
    Shape {
        /// What the frame is.
        kind: FrameKind,
        /// What the header says.
        body_bytes: u32,
        /// What the header says.
        argument: u64,
    },
    /// A frame is repeated, missing or out of its place.
    #[error(
        "frame {found} came where {expected} was due (hint: frames were replayed, dropped or reordered on the way)"
    )]
    Sequence {
        /// The sequence number that is due.
        expected: u64,
        /// The one that came.
        found: u64,
    },
    /// A table of runs that cannot be served.
    #[error(
        "run {index} is malformed: {bytes} bytes at {offset} (hint: at most {RUNS_MAX} runs, together at most {FRAME_BODY_BYTES_MAX} bytes)"
    )]
    Run {
        /// Which run.
        index: usize,
        /// Its offset.
        offset: u64,
        /// Its length.
        bytes: u32,
    },
    /// The connection ended inside a frame.
    #[error(
        "connection ended {missing} bytes before the end of a frame (hint: the peer died or was cut off)"
    )]
    Truncated {
        /// Bytes that did not come.
        missing: usize,
    },
}

impl FrameHeader {
    /// A header with a body, no handle and no checksum; set the fields that differ.
    pub const fn new(kind: FrameKind, request: u64, body_bytes: u32) -> Self {
        Self {
            kind,
            sequence: 0,
            request,
            handle: Handle(0),
            body_bytes,
            argument: 0,
            body_crc: None,
            wants_body_crc: false,
        }
    }

    /// The header as it stands on the wire.
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let mut flags = if self.body_crc.is_some() { FLAG_BODY_CRC } else { 0 };
        if self.wants_body_crc {
            flags |= FLAG_WANT_CRC;
        }
        let wire = WireHeader {
            magic: U32::new(MAGIC),
            version: U16::new(PROTOCOL_VERSION),
            kind: self.kind as u8,
            flags,
            sequence: U64::new(self.sequence),
            request: U64::new(self.request),
            handle: U32::new(self.handle.0),
            body_bytes: U32::new(self.body_bytes),
            argument: U64::new(self.argument),
            body_crc: U32::new(self.body_crc.unwrap_or(0)),
            header_crc: U32::new(0),
        };
        let mut bytes: [u8; HEADER_BYTES] = zerocopy::transmute!(wire);
        let crc = crc32c(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Checks everything about a header but its sequence number.
    ///
    /// # Errors
    /// [`FrameError`] for the first thing that is wrong: magic, version, checksum, then the fields.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let wire: WireHeader = zerocopy::transmute!(*bytes);
        if wire.magic.get() != MAGIC {
            return Err(FrameError::Magic { found: wire.magic.get() });
        }
        if wire.version.get() != PROTOCOL_VERSION {
            return Err(FrameError::Version { found: wire.version.get() });
        }
        let computed = crc32c(&bytes[..CHECKED_BYTES]);
        if wire.header_crc.get() != computed {
            return Err(FrameError::HeaderChecksum { found: wire.header_crc.get(), computed });
        }
        let kind = FrameKind::from_number(wire.kind).ok_or(FrameError::Kind { found: wire.kind })?;
        if wire.flags & !(FLAG_BODY_CRC | FLAG_WANT_CRC) != 0 {
            return Err(FrameError::Flags { found: wire.flags });
        }
        let header = Self {
            kind,
            sequence: wire.sequence.get(),
            request: wire.request.get(),
            handle: Handle(wire.handle.get()),
            body_bytes: wire.body_bytes.get(),
            argument: wire.argument.get(),
            body_crc: (wire.flags & FLAG_BODY_CRC != 0).then_some(wire.body_crc.get()),
            wants_body_crc: wire.flags & FLAG_WANT_CRC != 0,
        };
        header.check_length()?;
        if header.body_crc.is_none() && wire.body_crc.get() != 0 {
            return Err(header.shape_error());
        }
        header.check_shape()?;
        Ok(header)
    }

    /// Bytes of the run table at the start of the body; zero for a kind without runs.
    pub const fn run_table_bytes(&self) -> usize {
        match self.kind {
            // `check_shape` keeps the argument at or below RUNS_MAX: the cast loses nothing.
            FrameKind::Read | FrameKind::Write => self.argument as usize * RUN_BYTES,
            _ => 0,
        }
    }

    /// Compares a whole body with the checksum of the header, if it has one.
    ///
    /// # Errors
    /// [`FrameError::BodyChecksum`] if they differ.
    pub fn check_body(&self, computed: impl FnOnce() -> u32) -> Result<(), FrameError> {
        let Some(found) = self.body_crc else { return Ok(()) };
        let computed = computed();
        if found == computed { Ok(()) } else { Err(FrameError::BodyChecksum { found, computed }) }
    }

    fn check_length(&self) -> Result<(), FrameError> {
        let table_bytes_max = (RUNS_MAX * RUN_BYTES) as u32;
        let limit = match self.kind {
            FrameKind::Call | FrameKind::Reply => CONTROL_BYTES_MAX,
            FrameKind::Read => table_bytes_max,
            FrameKind::ReadReply => FRAME_BODY_BYTES_MAX,
            FrameKind::Write => FRAME_BODY_BYTES_MAX + table_bytes_max,
            FrameKind::CompareSwap => 16,
            FrameKind::FetchAdd | FrameKind::AtomicReply => 8,
            FrameKind::Error => 4 + ERROR_TEXT_BYTES_MAX as u32,
            FrameKind::WriteReply | FrameKind::Close => 0,
            FrameKind::Verbs | FrameKind::VerbsReply => VERBS_BYTES_MAX,
            FrameKind::Fetch => FETCH_BYTES_MAX,
            FrameKind::FetchReply => FRAME_BODY_BYTES_MAX,
        };
        if self.body_bytes <= limit {
            Ok(())
        } else {
            Err(FrameError::Length { body_bytes: self.body_bytes, limit })
        }
    }

    fn check_shape(&self) -> Result<(), FrameError> {
        let body_bytes = u64::from(self.body_bytes);
        let fits = match self.kind {
            FrameKind::Read | FrameKind::Write => {
                let runs = self.argument;
                let counted = runs >= 1 && runs <= RUNS_MAX as u64;
                let table_bytes = if counted { runs * RUN_BYTES as u64 } else { 0 };
                counted
                    && if self.kind == FrameKind::Read {
                        body_bytes == table_bytes
                    } else {
                        body_bytes >= table_bytes
                            && body_bytes - table_bytes <= u64::from(FRAME_BODY_BYTES_MAX)
                    }
            }
            FrameKind::CompareSwap => body_bytes == 16 && self.argument.is_multiple_of(8),
            FrameKind::FetchAdd => body_bytes == 8 && self.argument.is_multiple_of(8),
            FrameKind::AtomicReply => body_bytes == 8 && self.argument == 0,
            FrameKind::Fetch => self.argument <= u64::from(FRAME_BODY_BYTES_MAX),
            FrameKind::FetchReply => body_bytes <= self.argument,
            FrameKind::Error => body_bytes >= 4 && self.argument == 0,
            _ => self.argument == 0,
        };
        if fits { Ok(()) } else { Err(self.shape_error()) }
    }

    const fn shape_error(&self) -> FrameError {
        FrameError::Shape { kind: self.kind, body_bytes: self.body_bytes, argument: self.argument }
    }
}
