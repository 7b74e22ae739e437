//! Requests and responses between two processes through rings in shared memory, one cache line a message.
//!
//! A session is one area of memory with a request ring and a response ring. The [`Requester`] owns one end, the
//! [`Responder`] the other; each is used by one thread. Every request gets exactly one response, in any order.
//!
//! # Memory of a session
//!
//! All numbers are little-endian, offsets and lengths are bytes, `N` is the number of slots (a power of two up to
//! [`SLOTS_MAX`]). Reserved bytes are zero.
//!
//! | offset | bytes | written by | contents |
//! | --- | --- | --- | --- |
//! | 0 | 8 | maker | magic `HLRING01` |
//! | 8 | 4 | maker | version of this layout, 1 |
//! | 12 | 4 | maker | N |
//! | 16 | 112 | - | reserved |
//! | 128 | 4 | both | 1 while the requester sleeps, else 0: its doorbell, a futex word |
//! | 132 | 124 | - | reserved |
//! | 256 | 4 | both | 1 while the responder sleeps, else 0: its doorbell, a futex word |
//! | 260 | 252 | - | reserved |
//! | 512 | 64 x N | requester | request slots |
//! | 512 + 64 x N | 64 x N | responder | response slots |
//!
//! A slot is one cache line:
//!
//! | offset | bytes | contents |
//! | --- | --- | --- |
//! | 0 | 4 | sequence: position of the message in its ring, counted from 1, modulo 2^32; stored last |
//! | 4 | 4 | tag: names the request; the response carries the tag of its request |
//! | 8 | 56 | body |
//!
//! Requests that take long go over a ring of their own, see [`two_layer`].
//!
//! # Why no head or tail is shared
//!
//! Message `p` lies in slot `p mod N` and is there when the slot's sequence is `p + 1`. A requester has at most `N`
//! requests without a response. When it writes request `p`, it has seen at least `p - N + 1` responses, so the responder
//! took at least that many requests, in order, and request `p - N`, whose slot is used again, is among them. When the
//! responder writes response `r`, it has taken more than `r` requests, of which the requester wrote all but `N` after
//! seeing a response, so response `r - N` has been seen. So neither ring overruns, and a message costs one line in each
//! direction and no other.
//!
//! # A hostile peer
//!
//! The other process may write anything anywhere at any time. Positions are kept in private memory; a slot is copied
//! once and then looked at; indexes are masked; each call looks at no more than `N` messages. A slot whose sequence is
//! not the expected one is no message. The responder holds no more than `N` requests that it has not answered, and the
//! requester takes a response only for a request that is out; anything else ends the session
//! ([`RingError::Broken`]). A peer that fakes or clears a doorbell can make the other side look in vain, or sleep until
//! its time is over; no more.

pub mod doorbell;
pub mod extents;
pub mod lines;
pub mod ring;
pub mod slot;
mod sync;

#[cfg(not(loom))]
mod layout;
#[cfg(not(loom))]
mod requester;
#[cfg(not(loom))]
mod responder;
#[cfg(not(loom))]
pub mod two_layer;

#[cfg(not(loom))]
pub use layout::{Session, session_bytes};
#[cfg(not(loom))]
pub use requester::{Listener, Requester, Response, Ticket};
#[cfg(not(loom))]
pub use responder::{Request, Responder, WakeBy};
pub use slot::{BODY_BYTES, Body};

/// Most slots of a ring: 512 KiB of memory for a session, and deeper than any queue that pays.
pub const SLOTS_MAX: u32 = 4096;

/// Why a ring refuses.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The number of slots is zero, no power of two, or above [`SLOTS_MAX`].
    #[error("a ring of {slots} slots (hint: a power of two up to 4096)")]
    BadSlots {
        /// The number asked for.
        slots: u32,
    },
    /// A data buffer has no bytes, more than 64 MiB, or no whole number of lines.
    #[error("a data buffer of {bytes} bytes (hint: a multiple of 64, up to 64 MiB)")]
    BadData {
        /// The size asked for.
        bytes: usize,
    },
    /// A message, or the room for its answer, is too long.
    #[error("a message of {bytes} bytes, at most {limit} fit (hint: ask over the socket)")]
    TooLong {
        /// Bytes asked for.
        bytes: usize,
        /// Bytes that fit.
        limit: usize,
    },
    /// The memory is too small, misaligned or mapped read-only.
    #[error("memory for a ring: {source}")]
    Memory {
        /// What is wrong with it.
        #[from]
        source: hinterland_os::OsError,
    },
    /// The memory was not made by [`Session::format`] with this number of slots.
    #[error(
        "memory at the ring is not a session of {slots} slots: magic {magic:#x}, version {version}, {found} slots \
         (hint: both sides must be of one version)"
    )]
    Foreign {
        /// Slots expected.
        slots: u32,
        /// Magic found.
        magic: u64,
        /// Version found.
        version: u32,
        /// Slots found.
        found: u32,
    },
    /// All slots are out; take responses first.
    #[error("{slots} requests are out already (hint: poll for responses, then submit again)")]
    Full {
        /// Slots of the ring.
        slots: u32,
    },
    /// The peer broke the protocol; the session is over.
    #[error("the peer broke the ring: {reason} (hint: close the session and connect again)")]
    Broken {
        /// How.
        reason: &'static str,
    },
    /// A response to no request.
    #[error(
        "a response with tag {tag:#x} while no request is unanswered (hint: respond once to each request)"
    )]
    NothingToAnswer {
        /// The tag of the response.
        tag: u32,
    },
    /// No response within the time.
    #[error("no response within {waited_ms} ms (hint: is the node alive? ask `hinterland doctor`)")]
    TimedOut {
        /// The time given.
        waited_ms: u64,
    },
}
