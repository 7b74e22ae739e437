//! From a layout to fault units: an expert's matrix is a unit, dense parts are cut evenly.
//!
//! Experts rarely start on a boundary that a unit may have. The block in which one expert ends and the
//! next begins becomes a unit of its own, an *edge*: had it been given to either of the two, a touch of
//! the other would fetch both. An edge is listed with both groups.

use super::{ExpertPiece, Layout};
use crate::unit::{Edge, Group, UnitBytes, UnitMap, UnitMapError};
use hinterland_types::ByteRange;
use hinterland_types::limits::{CHECKSUM_BLOCK_BYTES, PAGE_BYTES};
use std::collections::BTreeMap;

/// Experts whose every matrix is at least this long are cut at 2 MiB, so that huge pages serve them: the
/// two edges then cost at most a quarter of the bytes; below, edges of 64 KiB cost less than the faults save.
pub const HUGE_EXPERT_BYTES_MIN: u64 = 16 << 20;
/// Longest unit within an expert: a longer matrix is several units, so that the thread that waits for its
/// first bytes can start while the rest of the group comes in.
pub const EXPERT_UNIT_BYTES_MAX: u64 = 16 << 20;

/// What is asked for by configuration or by the tuner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Preference {
    /// Units of exactly this size, whatever the layout says.
    pub unit: Option<UnitBytes>,
    /// The unit of dense parts and of objects without a layout; 2 MiB unless the tuner knows better.
    pub default_unit: UnitBytes,
}

/// Divides an object of `size` bytes.
///
/// An explicit unit wins over the layout, a layout with experts over the default unit.
///
/// # Errors
/// [`UnitMapError::ObjectTooLarge`], and [`UnitMapError::Boundary`] for a layout of another, larger object.
pub fn plan(layout: Option<&Layout>, size: u64, preference: &Preference) -> Result<UnitMap, UnitMapError> {
    let pieces = layout.map_or(&[][..], |layout| &layout.pieces);
    if let Some(unit) = preference.unit {
        return UnitMap::uniform(size, unit);
    }
    if pieces.is_empty() {
        return UnitMap::uniform(size, preference.default_unit);
    }
    let mut builder = Builder::new(pieces, size, preference.default_unit);
    for piece in pieces {
        builder.piece(piece)?;
    }
    builder.finish()
}

struct Builder {
    size: u64,
    /// Boundaries around experts are multiples of this.
    granule: u64,
    dense_unit: u64,
    boundaries: Vec<u64>,
    /// Where the next unit starts.
    at: u64,
    group_of: BTreeMap<super::Expert, usize>,
    groups: Vec<Group>,
}

impl Builder {
    fn new(pieces: &[ExpertPiece], size: u64, default_unit: UnitBytes) -> Self {
        let are_huge = pieces.iter().all(|piece| piece.range.bytes() >= HUGE_EXPERT_BYTES_MIN);
        let granule = if are_huge { PAGE_BYTES } else { CHECKSUM_BLOCK_BYTES };
        let mut group_of: BTreeMap<_, _> = pieces.iter().map(|piece| (piece.expert, 0)).collect();
        for (index, group) in group_of.values_mut().enumerate() {
            *group = index;
        }
        let groups = vec![Group::default(); group_of.len()];
        // A multiple of the granule up to the largest unit, which itself is a multiple of both granules.
        let dense_unit = default_unit.get().next_multiple_of(granule);
        Self { size, granule, dense_unit, boundaries: vec![0], at: 0, group_of, groups }
    }

    fn piece(&mut self, piece: &ExpertPiece) -> Result<(), UnitMapError> {
        let (start, end) = (piece.range.offset(), piece.range.end());
        let body_start = start.next_multiple_of(self.granule);
        let body_end = if end == self.size { end } else { end - end % self.granule };
        if end > self.size || start < self.at.saturating_sub(self.granule) {
            return Err(UnitMapError::Boundary { start, end });
        }
        if body_start >= body_end {
            return Ok(());
        }
        let group = self.group_of.get(&piece.expert).copied().unwrap_or_default();
        if start < body_start {
            // The block may be the edge behind the expert before.
            if self.at < body_start {
                self.dense_to(body_start - self.granule);
                self.unit_to(body_start);
            }
            self.edge_of(group, piece.range);
        } else {
            self.dense_to(body_start);
        }
        let body = body_end - body_start;
        let unit = body.div_ceil(body.div_ceil(EXPERT_UNIT_BYTES_MAX)).next_multiple_of(self.granule);
        while self.at < body_end {
            self.unit_to((self.at + unit).min(body_end));
            self.member_of(group);
        }
        if body_end < end {
            self.unit_to((body_end + self.granule).min(self.size));
            self.edge_of(group, piece.range);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<UnitMap, UnitMapError> {
        self.dense_to(self.size);
        for group in &mut self.groups {
            group.edges.dedup_by_key(|edge| edge.unit);
        }
        UnitMap::extents(self.size, self.boundaries, &self.groups)
    }

    /// Cuts the bytes up to `end` at multiples of the dense unit.
    fn dense_to(&mut self, end: u64) {
        while self.at < end {
            let next = (self.at / self.dense_unit + 1) * self.dense_unit;
            self.unit_to(next.min(end));
        }
    }

    fn unit_to(&mut self, end: u64) {
        self.boundaries.push(end);
        self.at = end;
    }

    fn member_of(&mut self, group: usize) {
        let unit = self.last_unit();
        self.groups[group].members.push(unit);
    }

    /// The last unit is an edge that holds a part of the piece.
    fn edge_of(&mut self, group: usize, piece: ByteRange) {
        let unit = self.last_unit();
        let unit_start = self.boundaries[unit as usize];
        let (start, end) = (piece.offset().max(unit_start), piece.end().min(self.at));
        let part = ByteRange::new(start, end.saturating_sub(start)).unwrap_or_default();
        self.groups[group].edges.push(Edge { unit, part });
    }

    fn last_unit(&self) -> u32 {
        // An object of 8 TiB has 2^27 units of 64 KiB: the cast loses nothing.
        (self.boundaries.len().saturating_sub(2)) as u32
    }
}
