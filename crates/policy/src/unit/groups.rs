//! The groups of a unit map, kept flat: four allocations for any number of them.

use super::{Edge, Group, GroupId, UnitMapError};
use hinterland_types::ByteRange;
use hinterland_types::limits::BASE_PAGE_BYTES;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Groups {
    /// For each unit the group that it is a member of, or [`NO_GROUP`]; empty if there are no groups.
    of_unit: Box<[u32]>,
    /// Units of all groups, one group after the other, ascending within a group.
    units: Box<[u32]>,
    /// Where each group ends in `units`.
    ends: Box<[u32]>,
    /// Edges with their groups, ascending by unit and place.
    edges: Box<[(Edge, GroupId)]>,
}

const NO_GROUP: u32 = u32::MAX;

impl Groups {
    /// Checks the groups of an object of `count` units.
    pub(super) fn new(count: u32, groups: &[Group]) -> Result<Self, UnitMapError> {
        if groups.is_empty() {
            return Ok(Self::default());
        }
        let mut of_unit = vec![NO_GROUP; count as usize].into_boxed_slice();
        let mut units = Vec::new();
        let mut ends = Vec::with_capacity(groups.len());
        let mut edges = Vec::new();
        // Indices and ends would pass 32 bits only after 16 GiB of them: the casts lose nothing.
        for (index, group) in groups.iter().enumerate() {
            let index = index as u32;
            let start = units.len();
            for &unit in &group.members {
                let refused = UnitMapError::Member { group: index, unit };
                let owner = of_unit.get_mut(unit as usize).ok_or(refused)?;
                if *owner != NO_GROUP {
                    return Err(refused);
                }
                *owner = index;
                units.push(unit);
            }
            for &edge in &group.edges {
                if edge.unit >= count {
                    return Err(UnitMapError::Member { group: index, unit: edge.unit });
                }
                edges.push((edge, GroupId(index)));
                units.push(edge.unit);
            }
            units[start..].sort_unstable();
            ends.push(units.len() as u32);
        }
        edges.sort_by_key(|(edge, _)| (edge.unit, edge.part.offset()));
        let (units, ends, edges) =
            (units.into_boxed_slice(), ends.into_boxed_slice(), edges.into_boxed_slice());
        Ok(Self { of_unit, units, ends, edges })
    }

    /// Number of groups.
    pub(super) fn count(&self) -> u32 {
        // Checked to fit when the groups were made.
        self.ends.len() as u32
    }

    /// The group that a unit is a member of.
    pub(super) fn of_unit(&self, unit: u32) -> Option<GroupId> {
        let group = *self.of_unit.get(unit as usize)?;
        (group != NO_GROUP).then_some(GroupId(group))
    }

    /// The group that a fault at `offset` in an edge of this range is about.
    pub(super) fn of_edge(&self, unit: u32, range: ByteRange, offset: u64) -> Option<GroupId> {
        let first = self.edges.partition_point(|(edge, _)| edge.unit < unit);
        let here = || self.edges[first..].iter().take_while(|(edge, _)| edge.unit == unit);
        let page_start = offset - offset % BASE_PAGE_BYTES;
        let page_end = (page_start + BASE_PAGE_BYTES).min(range.end());
        let is_whole = |part: ByteRange| part.offset() <= page_start && part.end() >= page_end;
        let starts_here = |part: ByteRange| part.offset() > page_start && part.offset() < page_end;
        let whole = here().find(|(edge, _)| is_whole(edge.part));
        let started = here().find(|(edge, _)| page_start > range.offset() && starts_here(edge.part));
        whole.or(started).map(|&(_, group)| group)
    }

    /// All units of a group, ascending.
    pub(super) fn units(&self, group: GroupId) -> &[u32] {
        let index = group.0 as usize;
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.units[start as usize..end as usize]
    }
}
