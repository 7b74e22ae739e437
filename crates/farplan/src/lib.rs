//! What far memory knows of a program's address space, as plain data: no I/O, no clock, no system call.
//!
//! | module | subject |
//! | --- | --- |
//! | [`table`] | units of memory, where the content of each is, and what map, unmap, fork and eviction do to it |
//! | [`loose`] | memory that was told of and is not under service yet |
//! | [`grain`] | how much leaves and comes back together, by place |
//! | [`guess`] | whether memory that comes back will be written |
//! | [`refault`] | what comes back soon after it left, and stays longer then |
//! | [`enough`] | how much more room a program would have needed |
//! | [`huge`] | which memory is worth a huge page again |
//! | [`hand`] | which units leave next |
//! | [`room`] | how a budget is divided |
//! | [`stride`] | how much to fetch ahead of a program that reads or writes in order |
//! | [`trend`] | the steps in which a program goes through memory, and what it touches next |
//! | [`trace`] | page traces: which pages a program touched when, as a file |
//! | [`reuse`], [`features`] | what a trace says of a program |
//! | [`replay`] | a trace played against a model of the engine: the run time of a setting |
//! | [`advise`], [`live`] | the setting that suits a program, before it runs and while it does |
//! | [`balance`] | what lending memory between machines would even out |
//! | [`share`] | which of several runs goes first at a device |
//! | [`dispatch`] | which set of back ends a job of a batch runs with |
//! | [`width`] | threads that read and write back ends beside the one that serves faults |
//! | [`wire`] | the messages between the library in a program and its supervisor |

pub mod advise;
pub mod balance;
pub mod dispatch;
pub mod enough;
pub mod features;
pub mod grain;
pub mod guess;
pub mod hand;
pub mod huge;
pub mod live;
pub mod loose;
pub mod plain;
pub mod refault;
pub mod replay;
pub mod reuse;
pub mod room;
pub mod share;
pub mod stride;
pub mod table;
pub mod trace;
pub mod trend;
pub mod width;
pub mod wire;

pub use table::{Outcome, Piece, REFUSED, Shared, State, Table};

/// Bytes of the smallest page that the processor maps.
pub const PAGE: u64 = 4096;
