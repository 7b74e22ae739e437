//! Headers: which block lies in a slot, and the generation by which a reader knows that it still does.

use crate::key::{BlockKey, Namespace};
use crate::layout::Geometry;
use crate::sync::{Ordering, fence};
use crate::words::{Point, Words};

const GENERATION: usize = 0;
const NAMESPACE: usize = 1;
const OFFSET: usize = 2;
const LENGTHS: usize = 3;
/// Who writes the slot, while somebody does.
const WRITER: usize = 4;
/// The checksum of the bytes in the low half, the check of the header in the high one; 0 while they are not computed.
const SUMS: usize = 5;
/// Slot of the parent plus one in the low half, the low half of its generation in the high one; 0 without a parent.
const PARENT: usize = 6;
/// When the slot was reserved, as a number.
const SERIAL: usize = 7;
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
    /// crc32c of the bytes, if it is known already.
    pub sum: Option<u32>,
    /// Slot and generation of the block before it in its prefix.
    pub parent: Option<(u32, u64)>,
    /// When the slot was reserved, as a number that grows.
    pub serial: u64,
    /// An even number below which no generation is given.
    pub floor: u64,
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
/// follows. A node that is killed in here leaves a slot that is free, or a block that is whole.
pub fn publish(words: &impl Words, geometry: &Geometry, slot: u32, content: &Content) {
    let header = geometry.header(slot);
    let generation = words.load(header + GENERATION);
    debug_assert!(generation & 1 == 0, "a published slot is retired before it is published again");
    let generation = generation.max(content.floor).wrapping_add(1);
    words.store(header + NAMESPACE, content.namespace.0);
    words.store(header + OFFSET, content.offset);
    words.store(header + LENGTHS, (content.key.len() as u64) << 32 | u64::from(content.bytes));
    words.store(header + WRITER, 0);
    words.store(header + PARENT, content.parent.map_or(0, link));
    words.store(header + SERIAL, content.serial);
    content.key.store(words, header + KEY);
    let sums = content.sum.map_or(0, |sum| sums_of(words, header, generation, sum));
    words.store(header + SUMS, sums);
    // The key lies in a line of its own: it is there before anybody can see the generation.
    words.write_back(header + KEY, LINE_WORDS, Point::PublishedKey);
    words.fence(Point::PublishedKey);
    words.store(header + GENERATION, generation);
    words.write_back(header, LINE_WORDS, Point::PublishedHeader);
}

/// Says who is about to write a slot, for a node that comes after this one; before that writer knows. What a damaged
/// header says of a block is over then.
pub fn reserve(words: &impl Words, geometry: &Geometry, slot: u32, writer: u64, floor: u64) {
    let header = geometry.header(slot);
    if words.load(header + GENERATION) & 1 == 1 {
        renew(words, geometry, slot, floor);
    }
    words.store(header + WRITER, writer);
}

/// Nobody writes the slot any more.
pub fn release(words: &impl Words, geometry: &Geometry, slot: u32) {
    let word = geometry.header(slot) + WRITER;
    if words.load(word) != 0 {
        words.store(word, 0);
    }
}

/// The checksum of a block's bytes, if it is known. To be asked before [`is_still`], which tells whether it is this block's.
#[inline]
pub fn sum(words: &impl Words, geometry: &Geometry, slot: u32) -> Option<u32> {
    let sums = words.load(geometry.header(slot) + SUMS);
    // The low half.
    (sums != 0).then_some(sums as u32)
}

/// Sets the checksum of a published block's bytes.
pub fn set_sum(words: &impl Words, geometry: &Geometry, slot: u32, sum: u32) {
    let header = geometry.header(slot);
    let sums = sums_of(words, header, words.load(header + GENERATION), sum);
    words.store(header + SUMS, sums);
    words.write_back(header + SUMS, 1, Point::PublishedHeader);
}

/// What a node of before has left in a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Left {
    /// Nothing that counts.
    Nothing,
    /// Somebody was writing the slot.
    Writing(u64),
    /// A block, if its bytes still have this checksum.
    Block {
        /// The slot's generation.
        generation: u64,
        /// What was published.
        content: Content,
        /// Slot of the parent, and the low half of its generation then.
        parent: Option<(u32, u32)>,
    },
    /// A block without a checksum, or what no node has written.
    Damaged,
}

/// Looks what was left.
pub fn left(words: &impl Words, geometry: &Geometry, slot: u32) -> Left {
    let header = geometry.header(slot);
    let generation = words.load(header + GENERATION);
    if generation & 1 == 0 {
        return match words.load(header + WRITER) {
            0 => Left::Nothing,
            writer => Left::Writing(writer),
        };
    }
    let (sums, lengths) = (words.load(header + SUMS), words.load(header + LENGTHS));
    // The low half is the checksum of the bytes.
    let sum = sums as u32;
    let is_right = sums != 0 && sums == sums_of(words, header, generation, sum);
    let Some(key) = BlockKey::load(words, header + KEY, lengths >> 32).filter(|_| is_right) else {
        return Left::Damaged;
    };
    let parent = words.load(header + PARENT);
    let content = Content {
        namespace: Namespace(words.load(header + NAMESPACE)),
        key,
        offset: words.load(header + OFFSET),
        bytes: lengths as u32,
        sum: Some(sum),
        parent: None,
        serial: words.load(header + SERIAL),
        floor: 0,
    };
    // Both halves.
    let parent = (parent as u32).checked_sub(1).map(|slot| (slot, (parent >> 32) as u32));
    Left::Block { generation, content, parent }
}

/// Makes a slot free whatever its header says, under a generation that is not below `floor`.
pub fn renew(words: &impl Words, geometry: &Geometry, slot: u32, floor: u64) {
    let header = geometry.header(slot);
    let generation = words.load(header + GENERATION);
    words.store(header + GENERATION, generation.max(floor).wrapping_add(1) & !1);
    words.store(header + WRITER, 0);
    words.write_back(header, LINE_WORDS, Point::RetiredHeader);
    words.fence(Point::RetiredHeader);
}

/// Both checksums: of the bytes, and of all else that is published.
fn sums_of(words: &impl Words, header: usize, generation: u64, sum: u32) -> u64 {
    let fields = [NAMESPACE, OFFSET, LENGTHS, PARENT, SERIAL];
    let mut bytes = [0; 8 * (7 + LINE_WORDS)];
    let (pieces, _) = bytes.as_chunks_mut::<8>();
    let values = [generation, u64::from(sum)]
        .into_iter()
        .chain(fields.into_iter().map(|field| words.load(header + field)))
        .chain((0..LINE_WORDS).map(|word| words.load(header + KEY + word)));
    for (piece, value) in pieces.iter_mut().zip(values) {
        *piece = value.to_le_bytes();
    }
    // The low half, never 0: that would say that nothing was computed.
    let check = (xxhash_rust::xxh3::xxh3_64(&bytes) as u32).max(1);
    u64::from(check) << 32 | u64::from(sum)
}

/// A parent in one word.
fn link((slot, generation): (u32, u64)) -> u64 {
    // The low half of the generation.
    u64::from(generation as u32) << 32 | (u64::from(slot) + 1)
}

/// Takes a published block away from readers; its slot may be written again after that.
pub fn retire(words: &impl Words, geometry: &Geometry, slot: u32) {
    let word = geometry.header(slot) + GENERATION;
    let generation = words.load(word);
    debug_assert!(generation & 1 == 1, "a slot is retired once");
    // What is stored into the header after this is stored with Release, and who writes the bytes fences before: whoever
    // sees any of it sees the new generation.
    words.store(word, generation.wrapping_add(1));
    words.write_back(word, 1, Point::RetiredHeader);
    words.fence(Point::RetiredHeader);
}

/// To be called by a writer between being given a slot and its first store into it.
pub fn before_writing() {
    // Release: the node's `retire` happened before; whoever sees a byte that is stored from here on sees that too.
    fence(Ordering::Release);
}
