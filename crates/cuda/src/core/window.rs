//! The window of device addresses: reserved here too, so that no pointer of the host lies in it, and given out here.

use std::collections::BTreeMap;

use hinterland_os::Mapping;

use crate::code::{Code, INVALID_VALUE, NO_MEMORY};

/// Addresses of a session that are given out and taken back.
#[derive(Debug)]
pub struct Window {
    _reserved: Mapping,
    start: u64,
    end: u64,
    granularity: u64,
    /// From here on nothing was given out yet.
    fresh: u64,
    /// What came back, by its start.
    free: BTreeMap<u64, u64>,
}

impl Window {
    /// Reserves the window that the node gave.
    ///
    /// # Errors
    /// A sentence: it makes no sense, or something of the program lies there.
    pub fn reserve(start: u64, bytes: u64, granularity: u64) -> Result<Self, String> {
        let end = start.checked_add(bytes).filter(|end| *end < 1 << 47);
        let (Some(end), true) = (end, granularity.is_power_of_two() && granularity >= 4096) else {
            return Err("the node's window of addresses makes no sense".into());
        };
        if !start.is_multiple_of(granularity) || !end.is_multiple_of(granularity) || bytes == 0 {
            return Err("the node's window of addresses is not aligned".into());
        }
        let reserved = Mapping::reserve(Some(start), bytes as usize).map_err(|error| {
            format!("the window of device addresses at {start:#x} is not free in this program: {error}")
        })?;
        Ok(Self { _reserved: reserved, start, end, granularity, fresh: start, free: BTreeMap::new() })
    }

    /// Bytes that ranges are a multiple of.
    #[must_use]
    pub fn granularity(&self) -> u64 {
        self.granularity
    }

    /// Whether an address is one of a device.
    #[must_use]
    pub fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Gives out a range. Fresh addresses first: what was freed stays unused as long as possible, so that its late users fail.
    ///
    /// # Errors
    /// No range is long enough.
    pub fn take(&mut self, bytes: u64, alignment: u64) -> Result<u64, Code> {
        let alignment = alignment.max(self.granularity);
        if bytes == 0 || !alignment.is_power_of_two() {
            return Err(INVALID_VALUE);
        }
        let bytes = bytes.checked_next_multiple_of(self.granularity).ok_or(NO_MEMORY)?;
        let fresh = self.fresh.checked_next_multiple_of(alignment).ok_or(NO_MEMORY)?;
        if fresh.checked_add(bytes).is_some_and(|end| end <= self.end) {
            if fresh > self.fresh {
                self.give(self.fresh, fresh - self.fresh);
            }
            self.fresh = fresh + bytes;
            return Ok(fresh);
        }
        let place = self.free.iter().find_map(|(start, length)| {
            // What a program asks for may be longer than all addresses.
            let first = start.checked_next_multiple_of(alignment)?;
            (first.checked_add(bytes)? <= start + length).then_some((*start, *length, first))
        });
        let (start, length, first) = place.ok_or(NO_MEMORY)?;
        self.free.remove(&start);
        if first > start {
            self.free.insert(start, first - start);
        }
        if first + bytes < start + length {
            self.free.insert(first + bytes, start + length - first - bytes);
        }
        Ok(first)
    }

    /// Takes back a range that [`take`](Self::take) gave, whole or in parts of the granularity.
    pub fn give(&mut self, start: u64, bytes: u64) {
        let bytes = bytes.next_multiple_of(self.granularity);
        let (mut start, mut length) = (start, bytes);
        if let Some((before, before_bytes)) =
            self.free.range(..start).next_back().map(|(at, bytes)| (*at, *bytes))
            && before + before_bytes == start
        {
            self.free.remove(&before);
            start = before;
            length += before_bytes;
        }
        if let Some(after) = self.free.remove(&(start + length)) {
            length += after;
        }
        self.free.insert(start, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 1 << 21;

    fn window() -> Window {
        let place = Mapping::reserve(None, 16 * PAGE as usize).unwrap();
        let start = place.address().next_multiple_of(PAGE);
        drop(place);
        Window::reserve(start, 8 * PAGE, PAGE).unwrap()
    }

    #[test]
    fn ranges_are_apart_and_freed_ones_come_back_last() {
        let mut window = window();
        let first = window.take(PAGE, 0).unwrap();
        let second = window.take(1, 0).unwrap();
        assert_eq!(second, first + PAGE);
        window.give(first, PAGE);
        assert_eq!(window.take(6 * PAGE, 0), Ok(first + 2 * PAGE), "fresh addresses go first");
        assert_eq!(window.take(PAGE, 0), Ok(first));
        assert_eq!(window.take(PAGE, 0), Err(NO_MEMORY));
    }

    #[test]
    fn lengths_beyond_all_addresses_are_refused_and_take_nothing() {
        let mut window = window();
        let first = window.take(3 * PAGE, 0).unwrap();
        window.give(first + PAGE, PAGE);
        for bytes in [PAGE.wrapping_neg(), (2 * PAGE).wrapping_neg(), u64::MAX, 1 << 63, first.wrapping_neg()]
        {
            for alignment in [0, PAGE, 1 << 62, 1 << 63] {
                assert_eq!(window.take(bytes, alignment), Err(NO_MEMORY), "{bytes:#x} by {alignment:#x}");
            }
        }
        assert_eq!(window.take(PAGE, 1 << 63), Err(NO_MEMORY));
        assert_eq!(window.take(5 * PAGE, 0), Ok(first + 3 * PAGE));
        assert_eq!(window.take(PAGE, 0), Ok(first + PAGE), "what was free stays free");
        assert_eq!(window.take(PAGE, 0), Err(NO_MEMORY));
    }

    #[test]
    fn neighbours_that_come_back_are_one_range() {
        let mut window = window();
        let all: Vec<u64> = (0..8).map(|_| window.take(PAGE, 0).unwrap()).collect();
        for place in [1, 3, 2] {
            window.give(all[place], PAGE);
        }
        assert_eq!(window.take(3 * PAGE, 0), Ok(all[1]));
    }
}
