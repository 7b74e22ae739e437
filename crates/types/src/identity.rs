//! Identifiers: one newtype a concept, so that none is taken for another.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default, Debug,
        )]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

identifier!(
    /// A memory node: drawn at random when the node first starts, kept in its state folder.
    NodeId, u64, "node-");
identifier!(
    /// An object: given by the directory, never used twice.
    ObjectId, u64, "object-");
identifier!(
    /// A client's session with one node; it ends when its socket closes.
    SessionId, u64, "session-");
identifier!(
    /// What a request names instead of a resource: an index into the session's capability table.
    Handle, u32, "handle-");
identifier!(
    /// A generation: what was granted in an older one is refused.
    Epoch, u64, "epoch-");
