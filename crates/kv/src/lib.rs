//! KV blocks in shared memory: found and copied by readers without a message to anybody.
//!
//! See `docs/decisions/2026-11-22-kv-blocks.md` for what must hold and why. All numbers are little-endian.
//!
//! # The books
//!
//! `S` is the number of slots, `B` the number of buckets, a power of two.
//!
//! | offset | bytes | contents |
//! | --- | --- | --- |
//! | 0 | 8 | magic `HLKVBK02` |
//! | 8 | 8 | S |
//! | 16 | 8 | B |
//! | 24 | 8 | length of the blocks file |
//! | 32 | 8 | 0 if the machine keeps the memory coherent, 1 if lines must be moved by hand |
//! | 40 | 8 | 1 if readers check what they copy, else 0 |
//! | 48 | 8 | nodes that have written these books, one after the other |
//! | 56 | 8 | 1 if writers give checksums with what they publish, else 0 |
//! | 64 | 4032 | zero |
//! | 4096 | 64 x B | buckets: an overflow count of 8 bytes, then seven entries of 8 bytes |
//! | 4096 + 64 x B | 128 x S | headers |
//! | behind that | 8 for each 4 MiB of blocks | for each chunk the bytes of its slots; 0 if it serves no size |
//!
//! An entry is zero, or bits 32 to 63 of the key's hash in its high half and the slot plus one in its low half. A header:
//!
//! | offset | bytes | contents |
//! | --- | --- | --- |
//! | 0 | 8 | generation: odd while the block is published |
//! | 8 | 8 | namespace |
//! | 16 | 8 | offset of the bytes in the blocks file |
//! | 24 | 4 | length in bytes |
//! | 28 | 4 | length of the key in bytes |
//! | 32 | 8 | while the slot is written, by whom: number of the node, of those above, times 2^32, and the session; all bits set for the node itself |
//! | 40 | 4 | crc32c of the bytes; both zero until it is computed |
//! | 44 | 4 | low half of XXH3 over generation, crc32c (as 8 bytes), bytes 8 to 31, 48 to 63 and the key; 1 for 0 |
//! | 48 | 4 | slot of the block before it in its prefix, plus one; 0 without |
//! | 52 | 4 | low half of that slot's generation |
//! | 56 | 8 | a number that grows with each slot that is reserved |
//! | 64 | 64 | the key, filled up with zeros |
//!
//! Generations that the node of number n gives start at n x 2^40.
//!
//! # The touches
//!
//! One byte for each slot, 1 if its block was read since the node looked; from the next multiple of 4096 on, 64 times 64 bytes: keys that
//! readers of a namespace asked for, those that were there; keys that were to be read, those that were, and their bytes; zeros.
#![forbid(unsafe_code)]

#[cfg(not(loom))]
mod books;
#[cfg(not(loom))]
mod chunks;
#[cfg(not(loom))]
mod client;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
pub mod disk;
#[cfg(not(loom))]
mod events;
#[cfg(not(loom))]
mod family;
pub mod header;
pub mod index;
mod key;
mod layout;
mod lookup;
#[cfg(not(loom))]
mod order;
#[cfg(not(loom))]
mod room;
#[cfg(not(loom))]
mod store;
#[cfg(not(loom))]
mod sum;
mod sync;
#[cfg(not(loom))]
mod view;
#[cfg(not(loom))]
mod waiting;
mod words;

#[cfg(not(loom))]
pub use books::{Owned, Plain, settle, take_touch, touch};
#[cfg(not(loom))]
pub use chunks::{BLOCK_BYTES_MAX, CHUNK_BYTES_MIN, class_bytes};
#[cfg(not(loom))]
pub use client::Client;
#[cfg(not(loom))]
pub use counters::{COUNTED_MAX, Counts};
#[cfg(not(loom))]
pub use events::{Event, Events};
pub use key::{BlockKey, KEY_BYTES_MAX, KeyError, Namespace};
pub use layout::{Geometry, Unfit};
pub use lookup::{LOOKUPS_AT_ONCE, lookup, lookup_many};
#[cfg(not(loom))]
pub use store::{
    Departing, Expects, Inspected, Keeper, Leaving, Limits, NODE_WRITER_FIRST, Reserved, Restored, Restoring,
    Seen, SpaceStatus, Store, StoreError, StoreStatus, Summer, Swapped, ToSum, Wish,
};
#[cfg(not(loom))]
pub use sum::{read_summed, sum_over};
#[cfg(not(loom))]
pub use view::{Found, Reading, View, ViewError};
#[cfg(not(loom))]
pub use words::Memory;
pub use words::{Point, Words};
