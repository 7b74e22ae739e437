//! The fabric over TCP: framed gather and scatter, several streams to one peer, blocking or polling.
//!
//! | file | subject |
//! | --- | --- |
//! | `socket` | every system call on a socket |
//! | `tls` | mutual TLS: what a side shows, and whom it believes |
//! | `secured` | bytes of a socket under TLS |
//! | `greeting` | drives the handshake over a socket |
//! | `cutter` | cuts one operation into frames |
//! | `channel` | the client's end of one stream: frames out, answers straight into the caller's memory |
//! | `client` | one peer over several streams |
//! | `turns` | waits for a stream that is free |
//! | `stripes` | one long read or write over all free streams |
//! | `queue` | many operations in flight from one thread |
//! | `server` | accepts connections and keeps sessions |
//! | `serve` | answers the requests of one stream |
//!
//! Streams use plain system calls, not io_uring. `cargo run --release -p hinterland-fabric --example uring_figures` on two
//! cores, both free (`chrt -f 1`) and shared with other work: a linked send and receive takes 59.6 us for a 64-byte round
//! trip (shared: 5.1) against 57.6 (4.4) with two calls; one thread receives four streams at 3.4 GB/s (0.5) against 2.8
//! (0.6) with `poll`. A thread for every stream of a long transfer, which needs neither, reaches 5.2 GB/s.

mod channel;
mod client;
mod cutter;
mod greeting;
mod queue;
mod secured;
mod serve;
mod server;
mod socket;
mod stripes;
mod tls;
mod turns;

pub use client::{ClientOptions, TcpEndpoint};
pub use server::{Server, ServerOptions};
pub use tls::{Tls, TlsError};

use std::time::Duration;

/// How a side waits for bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Sleep in the kernel: costs nothing while waiting, tens of microseconds to wake.
    #[default]
    Blocking,
    /// Spin on the socket: a core is busy while an operation waits, and the answer is seen at once.
    Polling,
}

/// Bodies up to this size carry a checksum always: it costs less than the system call.
const CHECKED_BODY_BYTES: usize = 4096;
/// Longest sleep in the kernel before a deadline is looked at.
const WAIT_SLICE: Duration = Duration::from_millis(100);
/// Bytes received ahead of what is known to come: a good number of small frames.
const STAGING_BYTES: usize = 64 << 10;
/// Most pieces of memory in one system call (`IOV_MAX`).
const PARTS_MAX: usize = 1024;
