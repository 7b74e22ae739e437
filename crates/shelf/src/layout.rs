//! Where things lie on a shelf.
//!
//! A shelf has equal parts, one for each node that shares it; a node stores into its own part only. A part begins with a head
//! of one line, a line for each hold that its node may have on objects of other parts, and a line for each entry; bytes follow
//! in units of 4 KiB. Words are little-endian.

use hinterland_os::coherence::LINE_BYTES;

/// Bytes of a line.
pub(crate) const LINE: u64 = LINE_BYTES as u64;
/// What objects take whole numbers of.
pub(crate) const UNIT_BYTES: u64 = 4096;
/// Entries that are looked at for an object, from the one of its number on.
pub(crate) const PROBES: u64 = 16;
/// The first word of a head: "HLSHELF1".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"HLSHELF1");
/// In a word of a hold: it holds something.
const HELD: u64 = 1 << 63;

/// What all nodes of a shelf agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Nodes that share it.
    pub parts: u32,
    /// Objects of others that a node reads at once.
    pub holds: u32,
    /// Objects of a node.
    pub entries: u32,
}

impl Shape {
    /// The usual shape for so many nodes.
    pub const fn of(parts: u32) -> Self {
        Self { parts, holds: 64, entries: 1024 }
    }

    /// Bytes of a part of a shelf of so many bytes.
    pub(crate) fn part_bytes(self, bytes: u64) -> u64 {
        bytes / u64::from(self.parts.max(1)) / UNIT_BYTES * UNIT_BYTES
    }

    /// Bytes in front of the objects of a part.
    pub(crate) fn control_bytes(self) -> u64 {
        (LINE * (1 + u64::from(self.holds) + u64::from(self.entries))).next_multiple_of(UNIT_BYTES)
    }

    pub(crate) fn hold(self, number: u32) -> u64 {
        LINE * (1 + u64::from(number))
    }

    pub(crate) fn entry(self, index: u32) -> u64 {
        LINE * (1 + u64::from(self.holds) + u64::from(index))
    }

    /// The entries in which an object may be.
    pub(crate) fn probes(self, object: u64) -> impl Iterator<Item = u32> {
        let entries = u64::from(self.entries.max(1));
        (0..PROBES.min(entries)).map(move |probe| ((object % entries + probe) % entries) as u32)
    }
}

/// The word of a hold.
pub(crate) const fn hold_word(part: u32, index: u32) -> u64 {
    HELD | (part as u64) << 32 | index as u64
}

/// The line of a head.
pub(crate) fn head_line(shape: Shape, part: u32, part_bytes: u64, owner: u64) -> [u64; 8] {
    let counts = u64::from(shape.holds) << 32 | u64::from(shape.entries);
    [MAGIC, u64::from(shape.parts) << 32 | u64::from(part), part_bytes, counts, owner, 0, 0, 0]
}

/// What an entry says: its place is in bytes from the start of the part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Entry {
    /// Odd while the object may be read. It only grows.
    pub generation: u64,
    pub object: u64,
    pub bytes: u64,
    pub place: u64,
    /// Bytes that it takes; 0 if it never had any.
    pub room: u64,
}

impl Entry {
    pub(crate) fn line(self) -> [u64; 8] {
        [self.generation, self.object, self.bytes, self.place, self.room, 0, 0, 0]
    }
}

pub(crate) fn bytes_of(line: [u64; 8]) -> [u8; LINE_BYTES] {
    let mut bytes = [0; LINE_BYTES];
    for (into, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(line) {
        *into = word.to_le_bytes();
    }
    bytes
}
