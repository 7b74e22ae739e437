//! Addresses for the nodes of one test program.
//!
//! A port of 127.0.0.1 that was free a moment ago, or that a node gave up when it was killed, may be gone: any
//! connection of any other program can be given it. Each test program has an address of the loopback to itself
//! instead, from which nobody connects.
#![allow(dead_code, reason = "not every test program needs both")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

/// The address that this process has to itself: 127.64.0.0 and its number.
pub fn own() -> IpAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, 64 | high, middle, low))
}

/// An address that nobody listens on, nor will before the caller does.
pub fn address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    SocketAddr::new(own(), NEXT.fetch_add(1, Ordering::Relaxed))
}
