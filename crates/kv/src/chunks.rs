//! The blocks file, cut into chunks, and chunks into slots of one size.

use foldhash::HashMap;

/// Smallest chunk: two huge pages.
pub const CHUNK_BYTES_MIN: u64 = 4 << 20;
/// Largest chunk: slots of any size fill it but for a few hundredths.
const CHUNK_BYTES_MAX: u64 = 64 << 20;
/// Chunks that a store has at the least, if they are not too small: so many sizes find room side by side.
const CHUNKS_MIN: u64 = 64;
/// Largest block: the smallest chunk.
pub const BLOCK_BYTES_MAX: u64 = CHUNK_BYTES_MIN;
/// Smallest slot: below it a header would cost more than an eighth.
const CLASS_BYTES_MIN: u64 = 1 << 10;

/// Bytes of the chunks of a store of `bytes` bytes: a power of two.
pub(crate) const fn chunk_bytes(bytes: u64) -> u64 {
    let wanted = bytes / CHUNKS_MIN;
    if wanted <= CHUNK_BYTES_MIN {
        CHUNK_BYTES_MIN
    } else if wanted >= CHUNK_BYTES_MAX {
        CHUNK_BYTES_MAX
    } else {
        1 << wanted.ilog2()
    }
}

/// Numbers of slots that a store of `bytes` bytes has, used or not: a slot's place follows from its number.
pub(crate) const fn slot_numbers(bytes: u64) -> u64 {
    bytes / CLASS_BYTES_MIN
}

/// Bytes of the slot that a block of `bytes` bytes gets: a multiple of an eighth of a power of two, 1 KiB at least.
pub const fn class_bytes(bytes: u64) -> u64 {
    if bytes <= CLASS_BYTES_MIN {
        return CLASS_BYTES_MIN;
    }
    let step = (1 << (bytes - 1).ilog2()) / 8;
    bytes.next_multiple_of(step)
}

/// One chunk.
#[derive(Debug)]
struct Chunk<T> {
    /// Bytes of its slots; 0 if it serves no class.
    class: u64,
    /// What lies in its slots.
    slots: Vec<Option<T>>,
    /// Slots that are free, by their number in the chunk.
    free: Vec<u32>,
}

impl<T> Chunk<T> {
    const fn unused() -> Self {
        Self { class: 0, slots: Vec::new(), free: Vec::new() }
    }

    fn used_bytes(&self) -> u64 {
        (self.slots.len() - self.free.len()) as u64 * self.class
    }
}

/// All chunks of a store, with a `T` in each slot that is in use.
#[derive(Debug)]
pub(crate) struct Chunks<T> {
    chunk_bytes: u64,
    chunks: Vec<Chunk<T>>,
    /// Chunks without a class.
    unused: Vec<u32>,
    /// For each class, chunks that have a free slot.
    open: HashMap<u64, Vec<u32>>,
    /// Slots that content of a smaller class has, with that class.
    guests: HashMap<u32, u64>,
    /// For each class, bytes of the larger slots that its content has.
    guest_bytes: HashMap<u64, u64>,
}

impl<T> Chunks<T> {
    /// Chunks over `bytes` bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        let chunk_bytes = chunk_bytes(bytes);
        // Slots have numbers of 32 bits.
        let count = (bytes / chunk_bytes).min(u64::from(u32::MAX) / slot_numbers(chunk_bytes)) as u32;
        Self {
            chunk_bytes,
            chunks: (0..count).map(|_| Chunk::unused()).collect(),
            unused: (0..count).rev().collect(),
            open: HashMap::default(),
            guests: HashMap::default(),
            guest_bytes: HashMap::default(),
        }
    }

    /// Puts `content` into a free slot of a class, of a chunk of the class or one without a class; the slot. `None` if
    /// there is none.
    pub(crate) fn take(&mut self, class: u64, content: T) -> Option<u32> {
        if self.open.get(&class).is_none_or(|open| open.is_empty()) {
            let chunk = self.unused.pop()?;
            // At most 65,536: the cast loses nothing.
            let count = (self.chunk_bytes / class) as u32;
            let slots = (0..count).map(|_| None).collect();
            self.chunks[chunk as usize] = Chunk { class, slots, free: (0..count).rev().collect() };
            self.open.entry(class).or_default().push(chunk);
        }
        self.take_open(class, content)
    }

    /// Puts `content` of a class into a free slot of the smallest larger class that has one, of `slot_bytes_max` bytes at the most; the slot. `None` if
    /// there is none, or if as much of the class as a chunk is in larger slots: it is worth one of its own.
    pub(crate) fn take_larger(&mut self, class: u64, slot_bytes_max: u64, content: T) -> Option<u32> {
        let guest_bytes = self.guest_bytes.get(&class).copied().unwrap_or(0);
        let is_larger = |other: &u64| *other > class && *other <= slot_bytes_max;
        let open = self.open.iter().filter(|(_, chunks)| !chunks.is_empty()).map(|(&other, _)| other);
        let other = open.filter(is_larger).min()?;
        if guest_bytes + other > self.chunk_bytes {
            return None;
        }
        let slot = self.take_open(other, content)?;
        self.guests.insert(slot, class);
        *self.guest_bytes.entry(class).or_default() += other;
        Some(slot)
    }

    /// Puts `content` into a free slot of a chunk that has this class.
    fn take_open(&mut self, class: u64, content: T) -> Option<u32> {
        let open = self.open.get_mut(&class)?;
        let number = *open.last()?;
        let chunk = &mut self.chunks[number as usize];
        let own = chunk.free.pop()?;
        chunk.slots[own as usize] = Some(content);
        if chunk.free.is_empty() {
            open.pop();
        }
        Some(number * self.numbers() + own)
    }

    /// What lies in a slot.
    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        let chunk = self.chunks.get((slot / self.numbers()) as usize)?;
        chunk.slots.get((slot % self.numbers()) as usize)?.as_ref()
    }

    /// The same, to change it.
    pub(crate) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        let numbers = self.numbers();
        let chunk = self.chunks.get_mut((slot / numbers) as usize)?;
        chunk.slots.get_mut((slot % numbers) as usize)?.as_mut()
    }

    /// Frees a slot; what lay in it. A chunk whose slots are all free loses its class.
    pub(crate) fn give(&mut self, slot: u32) -> Option<T> {
        let (number, own) = (slot / self.numbers(), slot % self.numbers());
        let chunk = self.chunks.get_mut(number as usize)?;
        let content = chunk.slots.get_mut(own as usize)?.take()?;
        if let Some(class) = self.guests.remove(&slot)
            && let Some(bytes) = self.guest_bytes.get_mut(&class)
        {
            *bytes -= chunk.class;
        }
        let was_full = chunk.free.is_empty();
        chunk.free.push(own);
        let open = self.open.entry(chunk.class).or_default();
        if chunk.free.len() == chunk.slots.len() {
            open.retain(|&other| other != number);
            *chunk = Chunk::unused();
            self.unused.push(number);
        } else if was_full {
            open.push(number);
        }
        Some(content)
    }

    /// Chunks.
    pub(crate) const fn count(&self) -> u32 {
        // Their numbers are of 32 bits.
        self.chunks.len() as u32
    }

    /// Gives a chunk its class as a node of before left it, with all slots free; its slots, or `None` if no chunk has that
    /// class, or it has one already.
    pub(crate) fn restore(&mut self, number: u32, class: u64) -> Option<std::ops::Range<u32>> {
        let is_class = (1..=BLOCK_BYTES_MAX).contains(&class) && class_bytes(class) == class;
        let at = self.unused.iter().rposition(|&unused| unused == number).filter(|_| is_class)?;
        self.unused.remove(at);
        // At most 65,536: the cast loses nothing.
        let count = (self.chunk_bytes / class) as u32;
        let slots = (0..count).map(|_| None).collect();
        self.chunks[number as usize] = Chunk { class, slots, free: (0..count).rev().collect() };
        self.open.entry(class).or_default().push(number);
        let first = number * self.numbers();
        Some(first..first + count)
    }

    /// Puts `content` into a slot of a chunk that was restored.
    pub(crate) fn restore_slot(&mut self, slot: u32, content: T) {
        let (number, own) = (slot / self.numbers(), slot % self.numbers());
        let chunk = &mut self.chunks[number as usize];
        chunk.slots[own as usize] = Some(content);
    }

    /// Knows again which slots of a restored chunk are free; false if all are, and it has no class any more.
    pub(crate) fn restored(&mut self, number: u32) -> bool {
        let chunk = &mut self.chunks[number as usize];
        let free = |own: &u32| chunk.slots[*own as usize].is_none();
        // As many as there are slots.
        chunk.free = (0..chunk.slots.len() as u32).rev().filter(free).collect();
        let (free, all) = (chunk.free.len(), chunk.slots.len());
        if free > 0 && free < all {
            return true;
        }
        let open = self.open.entry(chunk.class).or_default();
        open.retain(|&other| other != number);
        if free == all {
            *chunk = Chunk::unused();
            self.unused.push(number);
        }
        free < all
    }

    /// The chunk of a slot.
    pub(crate) const fn chunk_of(&self, slot: u32) -> u32 {
        slot / self.numbers()
    }

    /// Bytes of the slots of a chunk; 0 if it serves no class.
    pub(crate) fn class_of_chunk(&self, number: u32) -> u64 {
        self.chunks[number as usize].class
    }

    /// Slots that are in use, and what lies in them.
    pub(crate) fn used(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..self.chunks.len() as u32).flat_map(|number| self.used_of(number))
    }

    /// The same of one chunk.
    pub(crate) fn used_of(&self, number: u32) -> impl Iterator<Item = (u32, &T)> {
        let first = number * self.numbers();
        let slots = self.chunks.get(number as usize).map_or(&[][..], |chunk| &chunk.slots);
        (first..).zip(slots).filter_map(|(slot, content)| Some((slot, content.as_ref()?)))
    }

    /// Where a slot's bytes start in the blocks file.
    pub(crate) fn offset(&self, slot: u32) -> u64 {
        let (number, own) = (slot / self.numbers(), slot % self.numbers());
        u64::from(number) * self.chunk_bytes + u64::from(own) * self.chunks[number as usize].class
    }

    /// Bytes of a slot's class.
    pub(crate) fn class(&self, slot: u32) -> u64 {
        self.chunks[(slot / self.numbers()) as usize].class
    }

    /// Chunks that serve a class other than `class`, the one with the fewest used bytes first.
    pub(crate) fn others_by_use(&self, class: u64) -> Vec<u32> {
        let others = (0..).zip(&self.chunks).filter(|(_, chunk)| chunk.class != 0 && chunk.class != class);
        let mut numbers: Vec<(u64, u32)> =
            others.map(|(number, chunk)| (chunk.used_bytes(), number)).collect();
        numbers.sort_unstable();
        numbers.into_iter().map(|(_, number)| number).collect()
    }

    /// Numbers of slots of one chunk.
    const fn numbers(&self) -> u32 {
        // At most 65,536: the cast loses nothing.
        slot_numbers(self.chunk_bytes) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_an_eighth_at_most() {
        for bytes in (1..70_000).chain([1 << 20, (1 << 20) + 1, BLOCK_BYTES_MAX - 1, BLOCK_BYTES_MAX]) {
            let class = class_bytes(bytes);
            assert!(class >= bytes && class.is_multiple_of(128) && class <= BLOCK_BYTES_MAX, "{bytes}");
            assert!(bytes <= CLASS_BYTES_MIN || class - bytes <= bytes / 8, "{bytes}: {class}");
        }
    }

    #[test]
    fn chunks_grow_with_the_store() {
        assert_eq!(chunk_bytes(8 << 20), 4 << 20);
        assert_eq!(chunk_bytes(1 << 30), 16 << 20);
        assert_eq!(chunk_bytes(1 << 40), 64 << 20);
        let mut chunks = Chunks::new(1 << 30);
        assert_eq!((0..1000).filter_map(|_| chunks.take(5 << 19, ())).count(), 6 * 64);
    }

    #[test]
    fn larger_slots_serve_until_they_are_a_chunk() {
        let mut chunks = Chunks::new(2 * CHUNK_BYTES_MIN);
        let all: Vec<u32> = std::iter::from_fn(|| chunks.take(64 << 10, 0)).collect();
        all.iter()
            .skip(1)
            .step_by(2)
            .chain(all[..16].iter().step_by(2))
            .for_each(|&slot| assert!(chunks.give(slot).is_some()));
        assert_eq!((all.len(), chunks.take(48 << 10, 1)), (128, None));
        assert_eq!(chunks.take_larger(48 << 10, 56 << 10, 1), None);
        assert_eq!(chunks.take_larger(80 << 10, u64::MAX, 1), None);
        let guests: Vec<u32> = std::iter::from_fn(|| chunks.take_larger(48 << 10, u64::MAX, 1)).collect();
        assert_eq!(guests.len(), 64);
        assert!(chunks.take_larger(40 << 10, u64::MAX, 3).is_some());
        chunks.give(guests[0]);
        assert!(chunks.take_larger(48 << 10, u64::MAX, 2).is_some());
    }

    #[test]
    fn slots_do_not_overlap_and_come_back() {
        let mut chunks = Chunks::new(3 * CHUNK_BYTES_MIN + 5);
        let mut taken = Vec::new();
        for class in [64 << 10, 3 << 20, 1 << 10] {
            taken.extend(chunks.take(class, class));
            taken.extend(chunks.take(class, class));
        }
        let mut ranges: Vec<(u64, u64)> = taken
            .iter()
            .map(|&slot| (chunks.offset(slot), chunks.offset(slot) + chunks.class(slot)))
            .collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
        // Slots of 3 MiB take a chunk each, and there is no fourth for those of 1 KiB.
        assert_eq!(taken.len(), 4);
        assert_eq!(chunks.used().map(|(slot, _)| slot).collect::<Vec<_>>(), {
            taken.sort_unstable();
            taken.clone()
        });
        for slot in taken {
            assert_eq!(chunks.get(slot).copied(), Some(chunks.class(slot)));
            assert!(chunks.give(slot).is_some() && chunks.give(slot).is_none());
        }
        assert_eq!(chunks.unused.len(), 3);
        assert_eq!((0..3).filter_map(|_| chunks.take(BLOCK_BYTES_MAX, 0)).count(), 3);
    }
}
