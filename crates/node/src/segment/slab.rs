//! Slabs: pieces of size classes inside pages, and runs of whole pages.

use hinterland_types::limits::PAGE_BYTES;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Smallest piece: one cache line, so that two pieces never share one.
const PIECE_BYTES_MIN: u64 = 64;
/// Largest piece that comes from a slab; larger ones take whole pages.
const PIECE_BYTES_MAX: u64 = PAGE_BYTES / 4;

/// The books of one region.
#[derive(Debug)]
pub struct Slabs {
    /// Free pages: first page to count, neighbours joined.
    free_pages: BTreeMap<u64, u64>,
    /// Pages that are cut into pieces.
    slabs: HashMap<u64, Slab>,
    /// Pages of each class that have a free piece.
    open: HashMap<u64, BTreeSet<u64>>,
    /// Runs of whole pages that are in use.
    runs: HashMap<u64, u64>,
}

#[derive(Debug)]
struct Slab {
    piece_bytes: u64,
    free: Vec<u32>,
    pieces: u32,
}

impl Slabs {
    /// All of `bytes` bytes (whole pages of them) is free.
    pub fn new(bytes: u64) -> Self {
        let pages = bytes / PAGE_BYTES;
        let free_pages = if pages > 0 { BTreeMap::from([(0, pages)]) } else { BTreeMap::new() };
        Self { free_pages, slabs: HashMap::new(), open: HashMap::new(), runs: HashMap::new() }
    }

    /// Takes a piece; returns its offset and size.
    pub fn allocate(&mut self, bytes: u64) -> Option<(u64, u64)> {
        if bytes == 0 {
            return None;
        }
        if bytes > PIECE_BYTES_MAX {
            let pages = bytes.div_ceil(PAGE_BYTES);
            let first = self.take_pages(pages)?;
            self.runs.insert(first, pages);
            return Some((first * PAGE_BYTES, pages * PAGE_BYTES));
        }
        let piece_bytes = class_of(bytes);
        let open = self.open.get(&piece_bytes).and_then(|pages| pages.first().copied());
        let page = match open {
            Some(page) => page,
            None => self.open_slab(piece_bytes)?,
        };
        let slab = self.slabs.get_mut(&page)?;
        let index = slab.free.pop()?;
        if slab.free.is_empty() {
            self.open.entry(piece_bytes).or_default().remove(&page);
        }
        Some((page * PAGE_BYTES + u64::from(index) * piece_bytes, piece_bytes))
    }

    /// Gives back what was allocated at `offset`; anything else is ignored.
    pub fn free(&mut self, offset: u64) {
        let page = offset / PAGE_BYTES;
        if let Some(pages) = self.runs.remove(&page) {
            return self.give_pages(page, pages);
        }
        let Some(slab) = self.slabs.get_mut(&page) else { return };
        let piece_bytes = slab.piece_bytes;
        // A page has at most 2^15 pieces: the cast loses nothing.
        slab.free.push((offset % PAGE_BYTES / piece_bytes) as u32);
        self.open.entry(piece_bytes).or_default().insert(page);
        if slab.free.len() == slab.pieces as usize {
            self.slabs.remove(&page);
            self.open.entry(piece_bytes).or_default().remove(&page);
            self.give_pages(page, 1);
        }
    }

    fn open_slab(&mut self, piece_bytes: u64) -> Option<u64> {
        let page = self.take_pages(1)?;
        let pieces = (PAGE_BYTES / piece_bytes) as u32;
        self.slabs.insert(page, Slab { piece_bytes, free: (0..pieces).rev().collect(), pieces });
        self.open.entry(piece_bytes).or_default().insert(page);
        Some(page)
    }

    fn take_pages(&mut self, pages: u64) -> Option<u64> {
        let (&first, &count) = self.free_pages.iter().find(|&(_, &count)| count >= pages)?;
        self.free_pages.remove(&first);
        if count > pages {
            self.free_pages.insert(first + pages, count - pages);
        }
        Some(first)
    }

    fn give_pages(&mut self, first: u64, pages: u64) {
        let (mut first, mut pages) = (first, pages);
        if let Some((&before, &count)) = self.free_pages.range(..first).next_back()
            && before + count == first
        {
            self.free_pages.remove(&before);
            (first, pages) = (before, count + pages);
        }
        if let Some(count) = self.free_pages.remove(&(first + pages)) {
            pages += count;
        }
        self.free_pages.insert(first, pages);
    }
}

/// The size class of a piece: steps of a quarter of the power of two below, multiples of 64 bytes.
fn class_of(bytes: u64) -> u64 {
    let bytes = bytes.max(PIECE_BYTES_MIN);
    let step = (bytes.next_power_of_two() / 8).max(PIECE_BYTES_MIN);
    bytes.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_never_overlap_and_everything_comes_back() {
        let mut slabs = Slabs::new(16 * PAGE_BYTES);
        let mut held: Vec<(u64, u64)> = Vec::new();
        let mut random = 12345u64;
        for _ in 0..20_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let choice = random >> 33;
            if choice.is_multiple_of(3) && !held.is_empty() {
                let (offset, _) = held.swap_remove(choice as usize % held.len());
                slabs.free(offset);
            } else if let Some(piece) = slabs.allocate(1 + choice % 700_000) {
                held.push(piece);
            }
        }
        held.sort_unstable();
        for pair in held.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        held.into_iter().for_each(|(offset, _)| slabs.free(offset));
        assert_eq!(slabs.free_pages, BTreeMap::from([(0, 16)]));
    }

    #[test]
    fn waste_is_bounded() {
        for bytes in 1..PIECE_BYTES_MAX {
            let class = class_of(bytes);
            assert!(class >= bytes && class.is_multiple_of(64));
            assert!(class - bytes < 64.max(bytes / 4 + 1), "{bytes} -> {class}");
        }
    }

    #[test]
    fn a_full_region_says_so_and_recovers() {
        let mut slabs = Slabs::new(2 * PAGE_BYTES);
        assert_eq!(slabs.allocate(3 * PAGE_BYTES), None);
        let (one, _) = slabs.allocate(2 * PAGE_BYTES).unwrap();
        assert_eq!(slabs.allocate(64), None);
        slabs.free(one);
        assert!(slabs.allocate(64).is_some());
        assert_eq!(slabs.allocate(0), None);
    }
}
