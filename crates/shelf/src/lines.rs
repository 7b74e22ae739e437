//! Shared memory whose lines are moved by hand, and the places where that is done.

use hinterland_os::{FlushedSlice, OsError};

/// Where lines are moved. See `docs/decisions/2026-11-25-objects-on-a-shelf.md` for who does it when, and what goes wrong without it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Point {
    /// An owner is about to look at what its part holds.
    PartToOpen,
    /// An owner has emptied a new part.
    NewPart,
    /// An owner has written the head of a new part.
    NewHead,
    /// An owner has stored the bytes of an object.
    WrittenBytes,
    /// An owner has written an entry that is not published yet.
    WrittenEntry,
    /// An owner has made the generation of an entry odd.
    Published,
    /// An owner has made the generation of an entry even.
    Retired,
    /// An owner is about to look who holds what was retired.
    HoldsToRead,
    /// A reader is about to look at the head of a part.
    HeadToRead,
    /// A reader is about to look for an entry.
    EntryToRead,
    /// A reader has said that it holds an entry.
    Held,
    /// A reader looks at the entry again that it holds.
    EntryHeld,
    /// A reader is about to read bytes.
    BytesToRead,
    /// A reader has let go of an entry.
    Released,
}

impl Point {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::PartToOpen,
        Self::NewPart,
        Self::NewHead,
        Self::WrittenBytes,
        Self::WrittenEntry,
        Self::Published,
        Self::Retired,
        Self::HoldsToRead,
        Self::HeadToRead,
        Self::EntryToRead,
        Self::Held,
        Self::EntryHeld,
        Self::BytesToRead,
        Self::Released,
    ];

    /// Whether lines are stored here, past the cache; at the others they are dropped.
    pub const fn is_of_storing(self) -> bool {
        matches!(
            self,
            Self::NewPart
                | Self::NewHead
                | Self::WrittenBytes
                | Self::WrittenEntry
                | Self::Published
                | Self::Retired
                | Self::Held
                | Self::Released
        )
    }
}

/// Memory that several hosts map. The points are for tests, which leave one out.
pub trait Lines {
    /// Length in bytes.
    fn bytes(&self) -> u64;
    /// Loads a word of 8 bytes; 0 outside.
    fn load(&self, offset: u64) -> u64;
    /// Copies bytes out.
    ///
    /// # Errors
    /// [`OsError`] outside.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OsError>;
    /// Stores bytes past the cache from the start of a line on, the last line filled up with zeros. They arrive with
    /// [`fence`](Self::fence) or [`refresh`](Self::refresh), or earlier.
    ///
    /// # Errors
    /// [`OsError`] outside, and where memory is read-only.
    fn stream(&self, offset: u64, bytes: &[u8], point: Point) -> Result<(), OsError>;
    /// Makes what was streamed arrive before anything that is stored or said later.
    fn fence(&self, point: Point);
    /// Makes what was streamed arrive, then drops this host's copies of lines: what is loaded later comes from memory.
    fn refresh(&self, offset: u64, bytes: u64, point: Point);
}

impl Lines for FlushedSlice {
    fn bytes(&self) -> u64 {
        self.slice().len() as u64
    }

    fn load(&self, offset: u64) -> u64 {
        self.slice().load_u64(offset as usize).unwrap_or(0)
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), OsError> {
        self.slice().read_at(offset as usize, into)
    }

    fn stream(&self, offset: u64, bytes: &[u8], _point: Point) -> Result<(), OsError> {
        Self::stream(self, offset as usize, bytes.len(), [bytes]).map(drop)
    }

    fn fence(&self, _point: Point) {
        Self::fence(self);
    }

    fn refresh(&self, offset: u64, bytes: u64, _point: Point) {
        Self::refresh(self, offset as usize, bytes as usize);
    }
}
