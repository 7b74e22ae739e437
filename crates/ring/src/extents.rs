//! Which parts of a data buffer are in use: runs of whole lines, handed out first fit and given back in any order.

use std::collections::BTreeMap;

/// Bytes of a line: what an extent begins at a multiple of, so that no two messages share a cache line.
pub const LINE_BYTES: usize = 64;

/// A part of a buffer that belongs to whoever took it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Bytes from the start of the buffer.
    pub offset: usize,
    /// Bytes that are set aside, a multiple of [`LINE_BYTES`], at least one.
    pub bytes: usize,
}

/// The parts that nobody has, by offset; no two of them touch.
#[derive(Debug)]
pub struct Extents {
    free: BTreeMap<usize, usize>,
}

impl Extents {
    /// All of a buffer is free; what is behind its last whole line is never used.
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes / LINE_BYTES * LINE_BYTES;
        Self { free: (bytes > 0).then_some((0, bytes)).into_iter().collect() }
    }

    /// Takes the first part that is long enough, at least one line; `None` if there is none.
    pub fn take(&mut self, bytes: usize) -> Option<Extent> {
        let bytes = bytes.max(1).checked_next_multiple_of(LINE_BYTES)?;
        let (&offset, &found) = self.free.iter().find(|&(_, &found)| found >= bytes)?;
        self.free.remove(&offset);
        if found > bytes {
            self.free.insert(offset + bytes, found - bytes);
        }
        Some(Extent { offset, bytes })
    }

    /// Gives back what [`take`](Self::take) gave, once.
    pub fn give(&mut self, extent: Extent) {
        let Extent { mut offset, mut bytes } = extent;
        if let Some(behind) = self.free.remove(&(offset + bytes)) {
            bytes += behind;
        }
        if let Some((&before, &before_bytes)) = self.free.range(..offset).next_back()
            && before + before_bytes == offset
        {
            offset = before;
            bytes += before_bytes;
        }
        self.free.insert(offset, bytes);
    }

    /// Bytes that nobody has.
    pub fn free_bytes(&self) -> usize {
        self.free.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_becomes_one_again_in_any_order() {
        let mut extents = Extents::new(64 * 10 + 63);
        let taken: Vec<Extent> = (0..5).map(|_| extents.take(65).unwrap()).collect();
        assert_eq!(taken[1], Extent { offset: 128, bytes: 128 });
        assert_eq!((extents.take(1), extents.free_bytes()), (None, 0));
        for place in [3, 0, 2, 4, 1] {
            extents.give(taken[place]);
        }
        assert_eq!(extents.take(640), Some(Extent { offset: 0, bytes: 640 }));
    }

    #[test]
    fn one_long_message_holds_up_nobody_who_finds_room() {
        let mut extents = Extents::new(64 * 4);
        let (first, slow, last) =
            (extents.take(64).unwrap(), extents.take(0).unwrap(), extents.take(100).unwrap());
        extents.give(first);
        extents.give(last);
        for _ in 0..100 {
            let again = extents.take(128).unwrap();
            assert_ne!(again.offset, slow.offset);
            extents.give(again);
        }
        assert_eq!(extents.take(usize::MAX), None);
    }
}
