//! How an object is divided into fault units, the pieces that are fetched and evicted whole.

use hinterland_types::ByteRange;
use hinterland_types::limits::{
    CHECKSUM_BLOCK_BYTES, FAULT_UNIT_BYTES_MAX, FAULT_UNIT_BYTES_MIN, OBJECT_BYTES_MAX, PAGE_BYTES,
};
use serde::{Deserialize, Serialize};
use std::fmt;

mod groups;
#[cfg(test)]
mod tests;

use groups::Groups;

/// The size of a uniform fault unit: a multiple of 64 KiB from 64 KiB to 64 MiB.
///
/// Paper 000, section 5, calls a fault unit a coarse-grained virtual memory region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct UnitBytes(u64);

/// Units of one object that are used together, such as the three matrices of one expert in one layer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId(pub u32);

/// The units of one group, as [`UnitMap::extents`] takes them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Group {
    /// Units that hold bytes of this group only; a fault on one predicts all the others.
    pub members: Vec<u32>,
    /// Units that the group needs a part of.
    pub edges: Vec<Edge>,
}

/// A unit of which a group needs a part, because a neighbour starts or ends within it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The unit.
    pub unit: u32,
    /// The group's bytes in it.
    pub part: ByteRange,
}

/// The division of one object into fault units: no hole, no overlap, every boundary on a checksum block.
///
/// Offsets and lengths are in bytes of the object. All questions have an answer: an offset behind the
/// end belongs to the last unit, a unit that does not exist has an empty range at the end.
///
/// ```
/// use hinterland_policy::{UnitBytes, UnitMap};
/// let map = UnitMap::uniform(5 << 20, UnitBytes::DEFAULT).unwrap();
/// assert_eq!(map.count(), 3);
/// assert_eq!(map.unit_of(4 << 20), 2);
/// assert_eq!(map.range(2).bytes(), 1 << 20);
/// assert!(map.wants_huge());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitMap {
    size: u64,
    cuts: Cuts,
    wants_huge: bool,
    groups: Groups,
}

/// Why a division is refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
pub enum UnitMapError {
    /// A uniform unit of this size is not allowed.
    #[error(
        "a fault unit of {0} bytes is not possible (hint: a multiple of 65536, from 65536 to 67108864, such as 2097152)"
    )]
    UnitBytes(u64),
    /// The object is larger than any object can be.
    #[error("an object of {0} bytes is larger than the largest object ({OBJECT_BYTES_MAX}) (hint: split it)")]
    ObjectTooLarge(u64),
    /// The boundaries do not run from 0 to the size of the object.
    #[error("boundaries run from {first} to {last}, the object from 0 to {size} (hint: name both ends)")]
    Ends {
        /// First boundary.
        first: u64,
        /// Last boundary.
        last: u64,
        /// Size of the object.
        size: u64,
    },
    /// Two neighbouring boundaries make no unit.
    #[error(
        "boundaries {start} and {end} make no fault unit (hint: multiples of 65536, ascending, at most 67108864 apart)"
    )]
    Boundary {
        /// Start of the refused unit.
        start: u64,
        /// End of the refused unit.
        end: u64,
    },
    /// A group names a unit that does not exist, or a member of two groups.
    #[error("group {group} has unit {unit}, which does not exist or is a member of another group")]
    Member {
        /// Index of the group.
        group: u32,
        /// The unit.
        unit: u32,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Cuts {
    /// Every unit has this size, but for the last.
    Uniform(UnitBytes),
    /// Start of each unit, and the size of the object at the end.
    Extents(Box<[u64]>),
}

impl UnitBytes {
    /// Smallest unit, 64 KiB.
    pub const MIN: Self = Self(FAULT_UNIT_BYTES_MIN);
    /// Largest unit, 64 MiB.
    pub const MAX: Self = Self(FAULT_UNIT_BYTES_MAX);
    /// The unit of objects about which nothing is known: one huge page.
    pub const DEFAULT: Self = Self(PAGE_BYTES);

    /// Checks a unit size in bytes.
    ///
    /// # Errors
    /// [`UnitMapError::UnitBytes`] unless it is a multiple of 64 KiB from 64 KiB to 64 MiB.
    pub const fn new(bytes: u64) -> Result<Self, UnitMapError> {
        let in_limits = bytes >= FAULT_UNIT_BYTES_MIN && bytes <= FAULT_UNIT_BYTES_MAX;
        if in_limits && bytes.is_multiple_of(CHECKSUM_BLOCK_BYTES) {
            Ok(Self(bytes))
        } else {
            Err(UnitMapError::UnitBytes(bytes))
        }
    }

    /// The smallest power of two that holds `bytes`, kept within the limits.
    pub const fn holding(bytes: u64) -> Self {
        if bytes >= FAULT_UNIT_BYTES_MAX {
            return Self::MAX;
        }
        let power = bytes.next_power_of_two();
        if power < FAULT_UNIT_BYTES_MIN { Self::MIN } else { Self(power) }
    }

    /// The size in bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl Default for UnitBytes {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl TryFrom<u64> for UnitBytes {
    type Error = UnitMapError;
    fn try_from(bytes: u64) -> Result<Self, UnitMapError> {
        Self::new(bytes)
    }
}

impl From<UnitBytes> for u64 {
    fn from(unit: UnitBytes) -> u64 {
        unit.0
    }
}

impl fmt::Display for UnitBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (size, suffix) = if self.0.is_multiple_of(1 << 20) { (20, "MiB") } else { (10, "KiB") };
        write!(f, "{} {suffix}", self.0 >> size)
    }
}

impl UnitMap {
    /// Units of one size; the last may be shorter.
    ///
    /// # Errors
    /// [`UnitMapError::ObjectTooLarge`].
    pub fn uniform(size: u64, unit: UnitBytes) -> Result<Self, UnitMapError> {
        if size > OBJECT_BYTES_MAX {
            return Err(UnitMapError::ObjectTooLarge(size));
        }
        let wants_huge = unit.0.is_multiple_of(PAGE_BYTES);
        Ok(Self { size, cuts: Cuts::Uniform(unit), wants_huge, groups: Groups::default() })
    }

    /// Units between given boundaries.
    ///
    /// `boundaries` ascend from 0 to `size`, both included; all but the last are multiples of 64 KiB, and
    /// neighbours are at most 64 MiB apart. A unit may be a member of one group and an edge of many.
    ///
    /// # Errors
    /// [`UnitMapError`] names the boundary or the unit that breaks a rule.
    pub fn extents(size: u64, boundaries: Vec<u64>, groups: &[Group]) -> Result<Self, UnitMapError> {
        if size > OBJECT_BYTES_MAX {
            return Err(UnitMapError::ObjectTooLarge(size));
        }
        let first = boundaries.first().copied().unwrap_or(u64::MAX);
        let last = boundaries.last().copied().unwrap_or(0);
        if first != 0 || last != size {
            return Err(UnitMapError::Ends { first, last, size });
        }
        for pair in boundaries.windows(2) {
            let (start, end) = (pair[0], pair[1]);
            let aligned = start.is_multiple_of(CHECKSUM_BLOCK_BYTES)
                && (end.is_multiple_of(CHECKSUM_BLOCK_BYTES) || end == size);
            if !aligned || end <= start || end - start > FAULT_UNIT_BYTES_MAX {
                return Err(UnitMapError::Boundary { start, end });
            }
        }
        // An object of 8 TiB has 2^27 units of 64 KiB: the cast loses nothing.
        let count = (boundaries.len() - 1) as u32;
        let groups = Groups::new(count, groups)?;
        let wants_huge = boundaries.iter().all(|&cut| cut.is_multiple_of(PAGE_BYTES) || cut == size);
        Ok(Self { size, cuts: Cuts::Extents(boundaries.into_boxed_slice()), wants_huge, groups })
    }

    /// Size of the object in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The size of the units if they all have one, but for the last.
    pub const fn uniform_unit(&self) -> Option<UnitBytes> {
        match self.cuts {
            Cuts::Uniform(unit) => Some(unit),
            Cuts::Extents(_) => None,
        }
    }

    /// Number of units; 0 for an empty object only.
    pub fn count(&self) -> u32 {
        // At most 8 TiB / 64 KiB = 2^27 units: the casts lose nothing.
        match &self.cuts {
            Cuts::Uniform(unit) => self.size.div_ceil(unit.0) as u32,
            Cuts::Extents(starts) => starts.len().saturating_sub(1) as u32,
        }
    }

    /// The unit that holds the byte at `offset`; the last one for an offset behind the end.
    pub fn unit_of(&self, offset: u64) -> u32 {
        let offset = offset.min(self.size.saturating_sub(1));
        match &self.cuts {
            Cuts::Uniform(unit) => (offset / unit.0) as u32,
            // The first start is 0, so at least one start is not behind any offset; the last is the size.
            Cuts::Extents(starts) => {
                (starts.partition_point(|&start| start <= offset) as u32).saturating_sub(1)
            }
        }
    }

    /// The bytes of a unit, without what a page holds behind the end of the object.
    pub fn range(&self, unit: u32) -> ByteRange {
        let (start, end) = match &self.cuts {
            Cuts::Uniform(bytes) => {
                let start = u64::from(unit).saturating_mul(bytes.0);
                (start, start.saturating_add(bytes.0))
            }
            Cuts::Extents(starts) => {
                let at = |index: usize| starts.get(index).copied().unwrap_or(self.size);
                (at(unit as usize), at(unit as usize + 1))
            }
        };
        let (start, end) = (start.min(self.size), end.min(self.size));
        // start <= end <= OBJECT_BYTES_MAX: the range cannot overflow, so the default is never taken.
        ByteRange::new(start, end - start).unwrap_or_default()
    }

    /// The bytes of a unit with the last one extended to a whole number of pages of `page_bytes`: what is
    /// mapped and what a punched hole frees.
    pub fn mapped_range(&self, unit: u32, page_bytes: u64) -> ByteRange {
        let range = self.range(unit);
        if range.end() < self.size || page_bytes == 0 {
            return range;
        }
        let end = self.size.checked_next_multiple_of(page_bytes).unwrap_or(self.size);
        ByteRange::new(range.offset(), end - range.offset()).unwrap_or(range)
    }

    /// First and last unit that share a byte with `range`, or `None` for an empty range or one behind the end.
    pub fn units_in(&self, range: ByteRange) -> Option<(u32, u32)> {
        if range.bytes() == 0 || range.offset() >= self.size {
            return None;
        }
        Some((self.unit_of(range.offset()), self.unit_of(range.end() - 1)))
    }

    /// The group that a unit is a member of; `None` for an edge.
    pub fn group_of(&self, unit: u32) -> Option<GroupId> {
        self.groups.of_unit(unit)
    }

    /// The group that a fault at `offset` is most likely about, if any.
    ///
    /// A fault tells its page only. In an edge that page may hold the end of one group and the start of the
    /// next: whoever reads the first of them came through the pages before, so it is the second, unless
    /// there is no page before. If huge pages serve the object a fault tells too little, and edges have no group.
    pub fn group_at(&self, offset: u64) -> Option<GroupId> {
        let unit = self.unit_of(offset);
        let member = self.group_of(unit);
        if member.is_some() || self.wants_huge() {
            return member;
        }
        self.groups.of_edge(unit, self.range(unit), offset)
    }

    /// All units of a group, members and edges, ascending; empty for a group that does not exist.
    pub fn group(&self, group: GroupId) -> &[u32] {
        self.groups.units(group)
    }

    /// Number of groups.
    pub fn group_count(&self) -> u32 {
        self.groups.count()
    }

    /// Whether huge pages can serve every unit: all boundaries but the end are multiples of 2 MiB.
    pub const fn wants_huge(&self) -> bool {
        self.wants_huge
    }
}
