//! Which address ranges of this process belong to the pool: an interval map, without system calls.
//!
//! Pieces never overlap and are never empty. Cutting a range out splits what lies across its edges.

use std::collections::BTreeMap;

/// A range of addresses that shows a range of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address of the first byte.
    pub address: u64,
    /// Length; at least 1.
    pub bytes: u64,
    /// Offset in the object of the first byte.
    pub offset: u64,
    /// What is mapped, by number.
    pub source: u64,
    /// `PROT_` bits.
    pub protection: i32,
    /// Whether the program may have written private copies of pages.
    pub copies: bool,
}

impl Piece {
    /// One past the last byte.
    pub const fn end(&self) -> u64 {
        self.address + self.bytes
    }

    /// The part of this piece that lies in a range, if any.
    pub fn within(&self, address: u64, end: u64) -> Option<Self> {
        let start = self.address.max(address);
        let stop = self.end().min(end);
        (start < stop).then(|| Self {
            address: start,
            bytes: stop - start,
            offset: self.offset + (start - self.address),
            ..*self
        })
    }
}

/// The map of all pieces.
#[derive(Debug, Default)]
pub struct Table {
    pieces: BTreeMap<u64, Piece>,
}

impl Table {
    /// An empty map.
    pub const fn new() -> Self {
        Self { pieces: BTreeMap::new() }
    }

    /// Puts a piece in, in place of whatever the map has there; returns what it replaces.
    pub fn insert(&mut self, piece: Piece) -> Vec<Piece> {
        let replaced = self.cut(piece.address, piece.end());
        if piece.bytes > 0 {
            self.pieces.insert(piece.address, piece);
        }
        replaced
    }

    /// Takes a range out and returns the parts that lay in it, in order of address.
    pub fn cut(&mut self, address: u64, end: u64) -> Vec<Piece> {
        let parts = self.parts(address, end);
        for part in &parts {
            let Some((_, whole)) = self.pieces.range(..=part.address).next_back() else { continue };
            let whole = *whole;
            self.pieces.remove(&whole.address);
            for rest in [whole.within(0, address), whole.within(end, u64::MAX)].into_iter().flatten() {
                self.pieces.insert(rest.address, rest);
            }
        }
        parts
    }

    /// The parts that lie in a range, in order of address.
    pub fn parts(&self, address: u64, end: u64) -> Vec<Piece> {
        if address >= end {
            return Vec::new();
        }
        let before = self.pieces.range(..address).next_back();
        before
            .into_iter()
            .chain(self.pieces.range(address..end))
            .filter_map(|(_, piece)| piece.within(address, end))
            .collect()
    }

    /// Every piece of a source, in order of address.
    pub fn of_source(&self, source: u64) -> Vec<Piece> {
        self.pieces.values().filter(|piece| piece.source == source).copied().collect()
    }

    /// Every piece, in order of address.
    #[cfg(test)]
    pub fn all(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.values()
    }

    /// Whether a source has any piece left.
    pub fn has_source(&self, source: u64) -> bool {
        self.pieces.values().any(|piece| piece.source == source)
    }
}

#[cfg(test)]
mod tests;
