//! Headers: which block lies in a slot, and the generation by which a reader knows that it still does.

use crate::key::{BlockKey, Namespace};
use crate::layout::Geometry;
use crate::sync::{Ordering, fence};
use crate::words::{Point, Words};

const GENERATION: usize = 0;
const NAMESPACE: usize = 1;
const OFFSET: usize = 2;
const LENGTHS: usize = 3;
const KEY: usize = 8;
/// Words of the first line, and of that with the key.
const LINE_WORDS: usize = 8;

/// Where a block lay when its header was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Its slot.
    pub slot: u32,
    /// The slot's generation.
    pub generation: u64,
    /// Where its bytes start in the blocks file.
    pub offset: u64,
    /// How many there are.
    pub bytes: u32,
}

/// What the node writes into a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Content {
    /// Namespace.
    pub namespace: Namespace,
    /// Key.
    pub key: BlockKey,
    /// Where the bytes start in the blocks file.
    pub offset: u64,
    /// How many there are.
    pub bytes: u32,
}

/// The block of a slot, if it is published under this key now.
#[inline]
pub fn read(
    words: &impl Words,
    geometry: &Geometry,
    slot: u32,
    namespace: Namespace,
    key: &BlockKey,
) -> Option<Block> {
    let header = geometry.header(slot);
    words.refresh(header, 2 * LINE_WORDS, Point::HeaderToRead);
    let generation = words.load(header + GENERATION);
    if generation & 1 == 0 || words.load(header + NAMESPACE) != namespace.0 {
        return None;
    }
    let lengths = words.load(header + LENGTHS);
    if lengths >> 32 != key.len() as u64 || !key.is_at(words, header + KEY) {
        return None;
    }
    // The low half is the length.
    let block = Block { slot, generation, offset: words.load(header + OFFSET), bytes: lengths as u32 };
    is_still(words, geometry, &block, Point::HeaderFound).then_some(block)
}

/// Hints that the header of a slot will be read.
#[inline]
pub fn prefetch(words: &impl Words, geometry: &Geometry, slot: u32) {
    let header = geometry.header(slot);
    words.prefetch(header);
    words.prefetch(header + KEY);
}

/// The key of what a slot holds, if it is a block of the namespace now.
pub fn key(words: &impl Words, geometry: &Geometry, slot: u32, namespace: Namespace) -> Option<BlockKey> {
    let header = geometry.header(slot);
    words.refresh(header, 2 * LINE_WORDS, Point::HeaderToRead);
    let generation = words.load(header + GENERATION);
    if generation & 1 == 0 || words.load(header + NAMESPACE) != namespace.0 {
        return None;
    }
    let key = BlockKey::load(words, header + KEY, words.load(header + LENGTHS) >> 32)?;
    let block = Block { slot, generation, offset: 0, bytes: 0 };
    is_still(words, geometry, &block, Point::HeaderFound).then_some(key)
}

/// Whether a slot still holds the block: to be asked after its bytes were copied ([`Point::HeaderCopied`]), and only then
/// they count.
#[inline]
pub fn is_still(words: &impl Words, geometry: &Geometry, block: &Block, point: Point) -> bool {
    // Acquire: what was copied before is not copied later than the generation is looked at; pairs with the Release fence
    // of `before_writing`.
    fence(Ordering::Acquire);
    words.refresh(geometry.header(block.slot), LINE_WORDS, point);
    words.load(geometry.header(block.slot) + GENERATION) == block.generation
}

/// The generation of a slot.
pub fn generation(words: &impl Words, geometry: &Geometry, slot: u32) -> u64 {
    words.load(geometry.header(slot) + GENERATION)
}

/// Publishes what was written into a retired slot. It has arrived in memory when its entry is in the index, where a fence
/// follows.
pub fn publish(words: &impl Words, geometry: &Geometry, slot: u32, content: &Content) {
    let header = geometry.header(slot);
    words.store(header + NAMESPACE, content.namespace.0);
    words.store(header + OFFSET, content.offset);
    words.store(header + LENGTHS, (content.key.len() as u64) << 32 | u64::from(content.bytes));
    content.key.store(words, header + KEY);
    // The key lies in a line of its own: it is there before anybody can see the generation.
    words.write_back(header + KEY, LINE_WORDS, Point::PublishedKey);
    words.fence(Point::PublishedKey);
    let generation = words.load(header + GENERATION);
    debug_assert!(generation & 1 == 0, "a published slot is retired before it is published again");
    words.store(header + GENERATION, generation + 1);
    words.write_back(header, LINE_WORDS, Point::PublishedHeader);
}

/// Takes a published block away from readers; its slot may be written again after that.
pub fn retire(words: &impl Words, geometry: &Geometry, slot: u32) {
    let word = geometry.header(slot) + GENERATION;
    let generation = words.load(word);
    debug_assert!(generation & 1 == 1, "a slot is retired once");
    // What is stored into the header after this is stored with Release, and who writes the bytes fences before: whoever
    // sees any of it sees the new generation.
    words.store(word, generation + 1);
    words.write_back(word, 1, Point::RetiredHeader);
    words.fence(Point::RetiredHeader);
}

/// To be called by a writer between being given a slot and its first store into it.
pub fn before_writing() {
    // Release: the node's `retire` happened before; whoever sees a byte that is stored from here on sees that too.
    fence(Ordering::Release);
}
