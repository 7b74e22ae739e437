//! A hash table in the memory of a pool: an example of what the pool API is for.
//!
//! Any number of programs in any number of racks read and write the same table, without a server for it and without a
//! lock. What they do to memory is four things: read bytes (of many places at once), write bytes, swap a word, add to a word.
//!
//! | module | subject |
//! | --- | --- |
//! | [`memory`] | those four things, on a region of a pool or in one process |
//! | [`layout`] | where what lies: header, buckets, entries |
//! | [`heap`] | room for entries |
//! | [`table`] | get (one key or many), set, remove |
//! | [`server`] | the table for Redis clients |
//! | [`workload`], [`values`], [`drive`] | YCSB's workloads, on a table or on Redis servers; every value that is read is checked |
//! | [`faults`] | memory that is shared by page faults, to compare with |
//!
//! How it works, and why no reader ever sees half of a value, is told in [`table`].
#![forbid(unsafe_code)]

pub mod drive;
pub mod faults;
pub mod heap;
pub mod layout;
pub mod memory;
pub mod server;
pub mod table;
pub mod values;
pub mod workload;

pub use faults::FaultedMemory;
pub use memory::{Memory, PoolMemory, ProcessMemory};
pub use table::{Table, TableError};
