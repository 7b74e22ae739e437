//! What a child of `fork` does not have of its parent's memory: what the program hides from children (`MADV_DONTFORK`), as engines of JavaScript do with all of
//! their heap.
//!
//! The kernel makes no event of it, and the table of a child is a copy of its parent's. So a child whose program has ever hidden something says so as it
//! greets, when it has done nothing else yet, and what it does not have leaves its table before anything else can lie there.

use crate::engine::Space;
use hinterland_os::OsError;
use hinterland_os::mappings::{flags_of_process, has_flag};
use std::ops::Range;

/// The flag of a mapping whose missing pages somebody serves.
const SERVED: &str = "um";

/// What a process has.
pub(crate) struct There {
    mappings: Vec<(Range<u64>, bool)>,
}

impl There {
    /// Looks at a process that waits for its greeting to be answered.
    pub(crate) fn of(process: i32) -> Result<Self, OsError> {
        let look = |range: Range<u64>, flags: &str| Some((range, has_flag(flags, SERVED)));
        Ok(Self { mappings: flags_of_process(process, look)? })
    }

    /// Takes what is not there out of what is known of its memory.
    pub(crate) fn cut(&self, space: &mut Space, address_max: u64) {
        for (from, to) in gaps(self.mappings.iter().map(|(range, _)| range), address_max) {
            space.loose.release(from, to);
        }
        let served = self.mappings.iter().filter(|(_, is_served)| *is_served);
        for (from, to) in gaps(served.map(|(range, _)| range), address_max) {
            space.table.unmap(from, to);
        }
    }
}

/// What lies between ranges that are in order, and around them.
fn gaps<'a>(ranges: impl Iterator<Item = &'a Range<u64>>, address_max: u64) -> Vec<(u64, u64)> {
    let mut gaps = Vec::new();
    let mut at = 0;
    for range in ranges.filter(|range| range.end <= address_max) {
        if at < range.start {
            gaps.push((at, range.start));
        }
        at = range.end;
    }
    gaps.push((at, address_max));
    gaps
}

#[cfg(test)]
mod tests {
    use super::gaps;

    #[test]
    fn what_lies_between_mappings_and_around_them_is_not_there() {
        let ranges = [0x1000..0x2000, 0x2000..0x3000, 0x8000..0x9000, 0xFFFF_0000..0xFFFF_1000];
        assert_eq!(gaps(ranges.iter(), 0x10000), [(0, 0x1000), (0x3000, 0x8000), (0x9000, 0x10000)]);
        assert_eq!(gaps([].iter(), 0x10000), [(0, 0x10000)]);
    }
}
