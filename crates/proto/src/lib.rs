//! Wire frames, handshake, control messages and protocol state machines, without I/O.
#![forbid(unsafe_code)]

pub mod control;
