//! What a CUDA program and the node that has its GPU say to each other: commands one way, answers the other.
//!
//! Both ride on an ordered channel of frames; a frame has a *word*, which is the number of the command or answer, and a
//! body: the fields in the order below, little-endian, without gaps, and for some a tail of further bytes. All
//! names (streams, events, modules, functions, graphs, addresses, transfers, marks, questions) are chosen by the
//! client and mean nothing outside its session. Commands take effect in the order in which they were sent;
//! the node never answers a command that does not ask for something, but with a [`Fault`](answer::Fault).
//!
//! Streams below [`DEFAULT_STREAMS`] are the default streams of the devices of that number.

pub mod answer;
pub mod command;
mod edits;
mod facts;
mod fields;

pub use edits::{EditError, apply_edits, write_edits};
pub use facts::{
    DeviceFacts, DeviceStatus, FunctionFacts, GpuStatus, Hello, LtMatrix, LtProduct, SessionStatus, Welcome,
};
pub use fields::{BadBody, Field, Layout, Message};

/// The version of commands and answers; peers of different versions refuse each other.
pub const GPU_VERSION: u32 = 6;
/// Names of streams below this are the default streams of devices.
pub const DEFAULT_STREAMS: u32 = 16;
/// The word of the first frame of a client, whose body is a [`Hello`] in postcard's form.
pub const HELLO: u32 = 0;
/// The word of the first frame of a node, whose body is a [`Welcome`] in postcard's form.
pub const WELCOME: u32 = 0;
/// The word of frames that ask, in place of a greeting, what the node does: each is answered with a frame of this word whose body is a
/// [`GpuStatus`] in postcard's form.
pub const LIST: u32 = u32::MAX;
/// Longest name of a kernel or variable, in bytes.
pub const NAME_BYTES_MAX: usize = 16 << 10;
/// Most bytes of parameters that a kernel has.
pub const PARAMETER_BYTES_MAX: usize = 32_764;
/// Most bytes of a fat binary.
pub const MODULE_BYTES_MAX: u64 = 1 << 30;
/// Most bytes of a captured list of commands.
pub const GRAPH_BYTES_MAX: u64 = 256 << 20;
