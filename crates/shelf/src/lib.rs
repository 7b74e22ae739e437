//! Objects in memory that the hosts of a rack share, whose caches do not see each other (CXL 2.0).
//!
//! Each node stores sealed objects into its own part of the shelf and reads those of the others by loads. Everything is stored
//! past the cache, so a node that dies leaves no dirty line; a reader drops its copies before it loads. What is removed is
//! given to the next object only when no other node says that it holds it. See
//! `docs/decisions/2026-11-25-objects-on-a-shelf.md` for each point and what goes wrong without it.

mod error;
mod layout;
mod lines;
mod shelf;

pub use error::ShelfError;
pub use layout::Shape;
pub use lines::{Lines, Point};
pub use shelf::{Held, Shelf};
