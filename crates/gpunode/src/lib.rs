//! The node side of a GPU that is elsewhere: commands of a program come in, devices do them, answers go back.
//!
//! A service. Each session is a process of its own, so that the kernel takes everything back when it ends. See
//! `docs/decisions/2026-11-22-remote-gpu.md`; the commands are those of `hinterland_proto::gpu`.
//!
//! | module | subject |
//! | --- | --- |
//! | [`session`] | one session: the greeting, and then commands until the client is gone |
//! | [`executor`] | reads commands, checks everything about them, has a device do them |
//! | [`device`] | what the executor needs of devices |
//! | [`software`] | the device in software |
//! | [`cuda`] | the driver's devices |
//! | [`work`], [`graph`] | work of a stream, and captured lists of it |
//! | [`outbox`] | what goes back to the client |
//! | [`daemon`], [`process`], [`control`] | the listeners, a process a session, what both say to each other |
//! | [`spec`], [`cache`] | which devices a node serves, fat binaries in a folder |
//! | [`inquiry`] | asking a node what it does |
//! | [`pooled`] | objects of a pool that the node reads by itself |
//! | [`body`], [`failure`], [`store`] | bytes of a command, why it was not done, fat binaries that outlive a session |
#![forbid(unsafe_code)]

pub mod body;
pub mod cache;
pub mod control;
pub mod cuda;
pub mod daemon;
pub mod device;
pub mod executor;
pub mod failure;
pub mod graph;
pub mod inquiry;
mod line;
pub mod outbox;
pub mod pooled;
pub mod process;
pub mod session;
pub mod software;
pub mod spec;
pub mod store;
pub mod work;
