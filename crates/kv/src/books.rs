//! What the node writes, in the kind of memory that it was told: the books, and the touches that it takes.

use crate::layout::Geometry;
use crate::words::{Memory, Point, Words};
use hinterland_os::{Coherence, FlushedSlice, OsError, SharedSlice};
use std::cell::RefCell;
use std::rc::Rc;

/// Books that one thread has to itself: for simulations, and tests of what no memory changes.
#[derive(Clone, Debug)]
pub struct Plain(Rc<RefCell<Vec<u64>>>);

impl Plain {
    /// Books of zeros.
    pub fn new(geometry: &Geometry) -> Self {
        // Such books are far below the address space.
        Self(Rc::new(RefCell::new(vec![0; geometry.books_bytes() as usize / 8])))
    }
}

impl Words for Plain {
    fn load(&self, word: usize) -> u64 {
        self.0.borrow()[word]
    }

    fn store(&self, word: usize, value: u64) {
        self.0.borrow_mut()[word] = value;
    }
}

/// Memory as the node that made it sees it.
#[derive(Clone, Debug)]
pub enum Owned {
    /// Coherent.
    Hardware(SharedSlice),
    /// To be flushed.
    Software(FlushedSlice),
}

impl Owned {
    /// Takes a mapping.
    ///
    /// # Errors
    /// [`OsError::Unsupported`] if this processor cannot flush.
    pub fn new(slice: SharedSlice, coherence: Coherence) -> Result<Self, OsError> {
        Ok(match coherence {
            Coherence::Hardware => Self::Hardware(slice),
            Coherence::Software => Self::Software(FlushedSlice::new(slice)?),
        })
    }

    fn slice(&self) -> &SharedSlice {
        match self {
            Self::Hardware(slice) => slice,
            Self::Software(memory) => memory.slice(),
        }
    }
}

impl Words for Owned {
    fn load(&self, word: usize) -> u64 {
        self.slice().load(word)
    }

    fn store(&self, word: usize, value: u64) {
        self.slice().store(word, value);
    }

    fn write_back(&self, word: usize, words: usize, point: Point) {
        if let Self::Software(memory) = self {
            Words::write_back(memory, word, words, point);
        }
    }

    fn fence(&self, point: Point) {
        if let Self::Software(memory) = self {
            Words::fence(memory, point);
        }
    }

    fn refresh(&self, word: usize, words: usize, point: Point) {
        // The node alone writes the books: what its cache has is right. Touches and counters are the clients'.
        if let Self::Software(memory) = self
            && point.is_of_node_reading()
        {
            Words::refresh(memory, word, words, point);
        }
    }
}

impl Memory for Owned {
    const BY_HAND: bool = true;

    fn is_lost(&self) -> bool {
        self.slice().mapping().is_lost()
    }

    fn bytes(&self) -> usize {
        self.slice().len()
    }

    fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), OsError> {
        self.slice().read_at(offset, into)
    }

    fn write(&self, offset: usize, from: &[u8]) -> Result<(), OsError> {
        self.slice().write_at(offset, from)
    }

    fn add(&self, word: usize, addend: u64) -> Result<(), OsError> {
        self.slice().fetch_add_u64(word * 8, addend).map(drop)
    }
}

/// Makes sure that nothing of how memory was made is left in this host's cache, where it would go over what other hosts write;
/// to be called before anybody else has it.
pub fn settle(memory: &impl Memory, point: Point) {
    memory.write_back(0, memory.bytes() / 8, point);
    memory.fence(point);
}

/// Takes a slot for touched: somebody has asked for its block, and is going to read it.
pub fn touch(touches: &impl Memory, slot: u32) {
    let at = slot as usize;
    touches.refresh(at / 8, 1, Point::TouchToTake);
    // Only a hint.
    let _ = touches.write(at, &[1]);
    touches.write_back(at / 8, 1, Point::TouchTaken);
    touches.fence(Point::TouchTaken);
}

/// Whether a slot was touched since this was asked last.
pub fn take_touch(touches: &impl Memory, slot: u32) -> bool {
    let (at, mut byte) = (slot as usize, [0]);
    touches.refresh(at / 8, 1, Point::TouchToTake);
    let was_touched = touches.read(at, &mut byte).is_ok() && byte[0] != 0 && touches.write(at, &[0]).is_ok();
    if was_touched {
        touches.write_back(at / 8, 1, Point::TouchTaken);
        touches.fence(Point::TouchTaken);
    }
    was_touched
}
