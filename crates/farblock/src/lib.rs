//! Far memory as a block device, for what no preloaded library reaches: static programs, set-id ones, whole machines.
//!
//! [`Blocks`] keeps blocks of 4 KiB in the back ends of far memory, in units of many. [`Server`] shows them to clients of the NBD
//! protocol ([`wire`]): the kernel's `nbd` module, which makes a device of the connections that [`Client`] begins, and any other.
//! Why it is done this way is in the decision on the swap device (docs/decisions).

mod address;
mod blocks;
mod client;
mod connection;
mod server;
pub mod wire;

pub use address::{Address, AddressError, Stream};
pub use blocks::{BLOCK_BYTES, BlockError, Blocks, BlocksReport, DEVICE_BYTES_MAX, Shape, UNIT_BYTES_MAX};
pub use client::{Client, ClientError};
pub use server::{Server, ServerError, ServerOptions, ServerReport};
