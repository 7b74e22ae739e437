//! Which nodes get the copies of an object.

use crate::draft::Draft;
use crate::error::{DirectoryError, Room};
use crate::record::MemberState;
use crate::{PageRun, Placement, spread};
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{NodeId, RackName};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// A node that is up and offers memory.
struct Candidate<'a> {
    node: NodeId,
    rack: &'a RackName,
    free_bytes: u64,
    capacity_bytes: u64,
}

impl Draft<'_> {
    /// Distinct nodes with room for `bytes` each: the first is local or in the named rack; the others lie
    /// in racks that have no copy yet as long as there are such, in the rack with most room, on the node
    /// with most room.
    pub(crate) fn choose_homes(
        &self,
        bytes: u64,
        copies: u8,
        placement: &Placement,
        local: NodeId,
    ) -> Result<Vec<NodeId>, DirectoryError> {
        let candidates = self.candidates();
        check_possible(&candidates, bytes, copies, placement)?;
        let mut chosen: Vec<&Candidate> = Vec::new();
        for _ in 0..copies {
            let first = chosen.is_empty();
            let allowed = |c: &&Candidate| {
                c.free_bytes >= bytes
                    && !chosen.iter().any(|other| other.node == c.node)
                    && match placement {
                        Placement::Rack(rack) if first => c.rack == rack,
                        Placement::Rack(_) | Placement::Policy | Placement::Spread => true,
                    }
            };
            let used: BTreeSet<_> = chosen.iter().map(|c| c.rack).collect();
            let best = candidates.iter().filter(allowed).max_by_key(|c| {
                let local = first && c.node == local;
                (local, !used.contains(c.rack), rack_room(&candidates, c.rack), c.free_bytes, Reverse(c.node))
            });
            let Some(best) = best else {
                return Err(DirectoryError::NotEnoughRoom { bytes, copies, room: room(&candidates) });
            };
            chosen.push(best);
        }
        Ok(chosen.iter().map(|c| c.node).collect())
    }

    /// Nodes over which the pages of a region are spread, ascending: all that have room for their share.
    pub(crate) fn choose_parts(&self, pages: PageRun) -> Result<Vec<NodeId>, DirectoryError> {
        let candidates = self.candidates();
        let bytes = u64::from(pages.count()) * PAGE_BYTES;
        if candidates.is_empty() {
            return Err(DirectoryError::NoNodes);
        }
        let mut chosen: Vec<&Candidate> = candidates.iter().collect();
        while !chosen.is_empty() {
            let shares = shares(pages, chosen.len());
            let fits: Vec<_> = chosen.iter().zip(shares).map(|(c, pages)| c.free_bytes >= pages).collect();
            if fits.iter().all(|fits| *fits) {
                return Ok(chosen.iter().map(|c| c.node).collect());
            }
            chosen = chosen.into_iter().zip(fits).filter(|(_, fits)| *fits).map(|(c, _)| c).collect();
        }
        Err(DirectoryError::NotEnoughRoom { bytes, copies: 1, room: room(&candidates) })
    }

    /// A node for one more copy beside those on `homes`, if one has room.
    pub(crate) fn choose_another(&self, bytes: u64, homes: &[NodeId]) -> Option<NodeId> {
        let candidates = self.candidates();
        let used: BTreeSet<_> =
            candidates.iter().filter(|c| homes.contains(&c.node)).map(|c| c.rack).collect();
        let free = candidates.iter().filter(|c| !homes.contains(&c.node) && c.free_bytes >= bytes);
        let best = free.max_by_key(|c| {
            (!used.contains(c.rack), rack_room(&candidates, c.rack), c.free_bytes, Reverse(c.node))
        });
        best.map(|c| c.node)
    }

    /// Bytes that are free on a node that is up.
    pub(crate) fn free_bytes(&self, node: NodeId) -> u64 {
        let capacity_bytes = self.member(node).map_or(0, |member| member.capacity_bytes);
        capacity_bytes.saturating_sub(self.state.reserved_bytes(node))
    }

    /// Free room of all nodes that are up, most first.
    pub(crate) fn room(&self) -> Room {
        room(&self.candidates())
    }

    fn candidates(&self) -> Vec<Candidate<'_>> {
        let nodes = self.member_nodes().into_iter();
        let up = nodes.filter_map(|node| {
            let member = self.member(node)?;
            let offers = member.state == MemberState::Up && member.capacity_bytes > 0;
            offers.then(|| Candidate {
                node,
                rack: &member.rack,
                free_bytes: self.free_bytes(node),
                capacity_bytes: member.capacity_bytes,
            })
        });
        up.collect()
    }
}

/// Bytes of a region that fall on each of so many nodes.
fn shares(pages: PageRun, nodes: usize) -> Vec<u64> {
    let mut shares = vec![0; nodes];
    for page in pages.iter() {
        if let Some(share) = spread(page, nodes).and_then(|place| shares.get_mut(place)) {
            *share += PAGE_BYTES;
        }
    }
    shares
}

/// What no removal of objects could help against.
fn check_possible(
    candidates: &[Candidate<'_>],
    bytes: u64,
    copies: u8,
    placement: &Placement,
) -> Result<(), DirectoryError> {
    if candidates.is_empty() {
        return Err(DirectoryError::NoNodes);
    }
    if let Placement::Rack(rack) = placement
        && !candidates.iter().any(|c| c.rack == rack)
    {
        let known: BTreeSet<_> = candidates.iter().map(|c| c.rack.clone()).collect();
        return Err(DirectoryError::UnknownRack { rack: rack.clone(), known: known.into_iter().collect() });
    }
    if candidates.len() < usize::from(copies) {
        return Err(DirectoryError::NotEnoughNodes { copies, nodes: candidates.len() as u64 });
    }
    if candidates.iter().all(|c| c.capacity_bytes < bytes) {
        return Err(DirectoryError::LargerThanPool { bytes, room: room(candidates) });
    }
    Ok(())
}

fn rack_room(candidates: &[Candidate<'_>], rack: &RackName) -> u64 {
    candidates.iter().filter(|c| c.rack == rack).map(|c| c.free_bytes).sum()
}

fn room(candidates: &[Candidate<'_>]) -> Room {
    let mut nodes: Vec<_> =
        candidates.iter().map(|c| (c.rack.clone(), c.node, c.free_bytes, c.capacity_bytes)).collect();
    nodes.sort_by_key(|(_, node, free, _)| (Reverse(*free), *node));
    Room { nodes }
}
