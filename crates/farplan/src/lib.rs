//! What far memory knows of a program's address space, as plain data: no I/O, no clock, no system call.
//!
//! | module | subject |
//! | --- | --- |
//! | [`table`] | units of memory, where the content of each is, and what map, unmap, fork and eviction do to it |
//! | [`stride`] | how much to fetch ahead of a program that reads in order |
//! | [`wire`] | the messages between the library in a program and its supervisor |

pub mod stride;
pub mod table;
pub mod wire;

pub use table::{Outcome, Piece, State, Table};

/// Bytes of the smallest page that the processor maps.
pub const PAGE: u64 = 4096;
