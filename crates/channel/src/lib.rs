//! Ordered frames between a CUDA client and its session on a GPU node, in shared memory or over TCP.
//!
//! A channel has two ends, and each end a [`Sender`] and a [`Receiver`]. A frame is a word, opaque here, and a body of up
//! to [`Sender::body_max`] bytes. The sender writes it in place, [`Room::commit`] publishes it, and a receiver that is awake
//! sees it without a system call of anybody. Frames arrive whole, once, and in order, or the channel ends with an error.
//!
//! ```
//! # fn main() -> Result<(), hinterland_channel::ChannelError> {
//! let (one, other) = hinterland_channel::pair(hinterland_channel::Rings::default())?;
//! let ((mut sender, _hear), (_answer, mut receiver)) = (one.split()?, other.split()?);
//! let mut room = sender.room(7, 5)?.ok_or("a fresh ring has room").unwrap();
//! room.append(b"hello")?;
//! room.commit();
//! assert!(receiver.wait(None)?);
//! let frame = receiver.next()?.ok_or("one was sent").unwrap();
//! assert_eq!((frame.word(), frame.head()), (7, &b"hello"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! # A frame
//!
//! | offset | bytes | contents |
//! | --- | --- | --- |
//! | 0 | 4 | length of the body in bytes |
//! | 4 | 4 | word |
//! | 8 | length | body |
//! | 8 + length | 0 to 7 | padding up to a multiple of 8, of any value |
//!
//! # One direction
//!
//! A *lane* is a ring of bytes and two positions that only grow: bytes published and bytes released. Position `p` lies at
//! `p` modulo the length of the ring, which is mapped twice in a row, so that a frame is in one piece wherever it begins.
//! The file that both sides map, byte by byte, is in `docs/internals/channel.md`.
//!
//! # Sleeping and dying
//!
//! Who waits spins for a while, then announces itself at its doorbell, looks once more, and sleeps in `poll` on a socket of
//! this direction. Whoever finds the announcement sends one byte. The same socket tells that the other process is gone: it
//! closes, however that process ended. So one descriptor serves both, nothing that a peer does makes the ringer block, and
//! no thread watches.
//!
//! # A hostile peer
//!
//! The other side may write anything anywhere in the shared file at any time. Positions of ours are kept in private
//! memory; those of the peer are copied, and looked at once; a header of a frame likewise. What makes no sense ends the
//! channel ([`ChannelError::Broken`]). Bodies are copied before anybody looks at them. A peer that fakes doorbells can make
//! us look in vain, or sleep until our time is over or its socket closes.

pub mod bias;
pub mod lane;
pub mod sync;

#[cfg(not(loom))]
mod address;
#[cfg(not(loom))]
mod biased_lock;
#[cfg(not(loom))]
mod channel;
#[cfg(not(loom))]
mod connect;
#[cfg(not(loom))]
mod error;
#[cfg(not(loom))]
mod fate;
#[cfg(not(loom))]
mod frame;
#[cfg(not(loom))]
mod grant;
#[cfg(not(loom))]
mod greeting;
#[cfg(not(loom))]
mod handover;
#[cfg(not(loom))]
mod line;
#[cfg(not(loom))]
mod listen;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod meter;
#[cfg(not(loom))]
mod network;
#[cfg(not(loom))]
mod options;
#[cfg(not(loom))]
mod patience;
#[cfg(not(loom))]
mod receiver;
#[cfg(not(loom))]
mod room;
#[cfg(not(loom))]
mod sender;

#[cfg(not(loom))]
pub use address::Address;
#[cfg(not(loom))]
pub use biased_lock::{BiasedGuard, BiasedLock};
#[cfg(not(loom))]
pub use channel::{Channel, pair};
#[cfg(not(loom))]
pub use connect::connect;
#[cfg(not(loom))]
pub use error::ChannelError;
#[cfg(not(loom))]
pub use frame::{Frame, HEAD_BYTES_MAX};
#[cfg(not(loom))]
pub use handover::{Handover, inherit};
#[cfg(not(loom))]
pub use listen::{Caller, Listener, Peer};
#[cfg(not(loom))]
pub use memory::{BODY_BYTES_MAX, RING_BYTES_MAX, RING_BYTES_MIN, Rings};
#[cfg(not(loom))]
pub use meter::{Counters, Meter};
#[cfg(not(loom))]
pub use options::ChannelOptions;
#[cfg(not(loom))]
pub use receiver::Receiver;
#[cfg(not(loom))]
pub use room::{Part, Room};
#[cfg(not(loom))]
pub use sender::Sender;

/// Bytes before the body of a frame: its length and its word, 4 bytes each.
pub const FRAME_HEADER_BYTES: usize = 8;

/// Bytes that a frame takes in a ring: header, body and padding to a multiple of 8.
#[must_use]
pub const fn frame_bytes(body_bytes: usize) -> usize {
    FRAME_HEADER_BYTES + body_bytes.next_multiple_of(8)
}
