//! The library with real nodes: its calls, reads and writes by address, and the example programs.

// A failure in a function that a test calls is a failed test.
#![allow(clippy::unwrap_used)]

mod address;
mod calls;
mod kv;
mod programs;
mod racks;
