//! Addresses, identifiers, rights, limits and words for sizes that every Hinterland crate shares.
//!
//! The crate is logic only: no I/O, no clock, no `unsafe`.
#![forbid(unsafe_code)]

mod address;
mod identity;
pub mod limits;
mod name;
mod range;
mod rights;
pub mod size;

pub use address::{AddressError, GlobalAddress, PageNumber, WINDOW_BASE, WINDOW_BYTES};
pub use identity::{Epoch, Handle, NodeId, ObjectId, SessionId};
pub use name::{DRAFTS_FOLDER, NameError, NodeName, ObjectName, RackName};
pub use range::{ByteRange, RangeError, whole_words};
pub use rights::Rights;
