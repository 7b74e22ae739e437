//! What can be wrong with a shelf.

use hinterland_os::OsError;

/// Why a shelf cannot be used, or an object not be stored.
#[derive(Debug, thiserror::Error)]
pub enum ShelfError {
    /// The switch makes no sense.
    #[error("part {part} of {parts} is no part of a shelf (hint: parts are counted from 1)")]
    NoPart {
        /// Which, from 1.
        part: u32,
        /// How many there are.
        parts: u32,
    },
    /// There is no room for one object.
    #[error(
        "a shelf of {bytes} bytes is too small for {parts} parts (hint: each needs more than {needed} bytes)"
    )]
    Small {
        /// Bytes of the shelf.
        bytes: u64,
        /// Its parts.
        parts: u32,
        /// Bytes of a part that are not for objects.
        needed: u64,
    },
    /// The part was made for other numbers, or for another node.
    #[error(
        "part {part} of this shelf was made by another node or for another number or size of parts (hint: give each node a part of its own and all of them the same number; \
         if no node uses the shelf, overwrite it with zeros)"
    )]
    Foreign {
        /// Which, from 1.
        part: u32,
    },
    /// What lies there is no shelf.
    #[error(
        "part {part} holds something that is no shelf (hint: is it the right file or device? what is to become a shelf must be zeros; if nobody needs what is there, overwrite it with them)"
    )]
    Occupied {
        /// Which, from 1.
        part: u32,
    },
    /// The object does not fit.
    #[error("{needed} bytes do not fit into this node's part of the shelf (hint: remove objects)")]
    Full {
        /// Bytes asked for.
        needed: u64,
    },
    /// An object of this number is there.
    #[error("the object is in the shelf already")]
    Exists,
    /// The range is not inside the object.
    #[error("{bytes} bytes at {offset} are not inside an object of {length}")]
    Outside {
        /// Start of the range.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// Length of the object.
        length: u64,
    },
    /// The operating system said no.
    #[error(transparent)]
    Os(#[from] OsError),
}
