//! The memory of a store in which lines move only when they are told to, and in which each telling can be left out.
#![allow(dead_code, reason = "each test uses a part of it")]

use hinterland_kv::{Memory, Point, Words};
use hinterland_os::checking::Participant;
use hinterland_os::coherence::LINE_BYTES;
use hinterland_os::{Coherence, OsError};

/// What of a point is left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    Whole,
    FirstLine,
    LastLine,
    Fence,
}

/// A point that is left out.
pub type Skip = Option<(Point, Part)>;

/// One participant's side of one file.
#[derive(Clone)]
pub struct Checked {
    pub memory: Participant,
    /// Whether this is the only writer, whose own copies are right.
    pub owner: bool,
    pub skip: Skip,
}

impl Checked {
    /// The lines of a range that are moved, as offset and length in bytes.
    fn kept(&self, word: usize, words: usize, point: Point) -> (usize, usize) {
        let (offset, bytes) = (word * 8, words * 8);
        match self.skip {
            Some((left_out, part)) if left_out == point => match part {
                Part::Whole => (offset, 0),
                Part::FirstLine => (offset + LINE_BYTES, bytes.saturating_sub(LINE_BYTES)),
                Part::LastLine => (offset, bytes.saturating_sub(1) / LINE_BYTES * LINE_BYTES),
                Part::Fence => (offset, bytes),
            },
            _ => (offset, bytes),
        }
    }
}

impl Words for Checked {
    fn load(&self, word: usize) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read(word * 8, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn store(&self, word: usize, value: u64) {
        assert!(self.memory.write(word * 8, &value.to_le_bytes()));
    }

    fn write_back(&self, word: usize, words: usize, point: Point) {
        let (offset, bytes) = self.kept(word, words, point);
        self.memory.write_back(offset, bytes);
    }

    fn fence(&self, point: Point) {
        if self.skip != Some((point, Part::Fence)) {
            self.memory.fence();
        }
    }

    fn refresh(&self, word: usize, words: usize, point: Point) {
        if !self.owner || point.is_of_node_reading() {
            let (offset, bytes) = self.kept(word, words, point);
            self.memory.refresh(offset, bytes);
        }
    }
}

impl Memory for Checked {
    const BY_HAND: bool = true;

    fn bytes(&self) -> usize {
        self.memory.len()
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OsError> {
        assert!(self.memory.read(offset, into));
        Ok(())
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), OsError> {
        assert!(self.memory.write(offset, from));
        Ok(())
    }

    fn add(&self, word: usize, addend: u64) -> Result<(), OsError> {
        self.store(word, self.load(word).wrapping_add(addend));
        Ok(())
    }

    fn write_whole<'piece>(
        &self,
        offset: usize,
        bytes: usize,
        pieces: impl IntoIterator<Item = &'piece [u8]>,
        point: Point,
    ) -> Result<usize, OsError> {
        assert!(offset.is_multiple_of(LINE_BYTES));
        let mut whole = pieces.into_iter().collect::<Vec<_>>().concat();
        let given = whole.len();
        whole.truncate(bytes);
        let lines: Vec<&[u8]> = whole.chunks(LINE_BYTES).collect();
        for (index, piece) in lines.iter().enumerate() {
            let mut line = [0; LINE_BYTES];
            line[..piece.len()].copy_from_slice(piece);
            // What is left out is stored as usual, and stays in the cache.
            let is_cached = match self.skip {
                Some((left_out, part)) if left_out == point => match part {
                    Part::Whole => true,
                    Part::FirstLine => index == 0,
                    Part::LastLine => index + 1 == lines.len(),
                    Part::Fence => false,
                },
                _ => false,
            };
            assert!(if is_cached {
                self.memory.write(offset + index * LINE_BYTES, &line)
            } else {
                self.memory.stream(offset / LINE_BYTES + index, line)
            });
        }
        self.fence(point);
        Ok(given)
    }
}

/// Says that the books are of memory that is not coherent.
pub const SOFTWARE: Coherence = Coherence::Software;
