//! Wire frames, handshake, control messages and protocol state machines, without I/O.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod control;
mod frame;
pub mod gpu;
mod handshake;
pub mod machine;
pub mod object_header;
pub mod pages;
pub mod right;
pub mod ring_message;
pub mod verbs;

pub use frame::{
    ERROR_TEXT_BYTES_MAX, ErrorCode, FETCH_BYTES_MAX, Frame, FrameDecoder, FrameError, FrameHeader,
    FrameKind, FrameReceiver, FrameSender, HEADER_BYTES, PROTOCOL_VERSION, RUN_BYTES, RUNS_MAX, RemoteError,
    RunTable, encode_runs,
};
pub use handshake::{
    ClientHandshake, ClientIdentity, ClientStep, Established, Features, HandshakeError, NotAKey, PeerHello,
    PeerLimits, PoolId, PoolKey, Refusal, RefusalCode, Role, ServerHandshake, ServerIdentity, ServerStep,
    Ticket,
};
