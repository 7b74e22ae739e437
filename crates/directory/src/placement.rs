//! Which nodes get the copies of an object.

use crate::draft::Draft;
use crate::error::{DirectoryError, Room};
use crate::record::{MemberState, mix};
use crate::{PageRun, Placement, spread};
use hinterland_types::limits::PAGE_BYTES;
use hinterland_types::{NodeId, ObjectId, RackName};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes that a hash tries for a copy, before the one with most room is taken: enough that only a pool with hardly any room comes to that.
const TRIES: u64 = 16;

/// A node that is up and offers memory.
pub(crate) struct Candidate<'a> {
    node: NodeId,
    rack: &'a RackName,
    /// The same number for nodes of the same rack: comparing names of a thousand nodes takes time.
    rack_number: usize,
    free_bytes: u64,
    capacity_bytes: u64,
    /// Free bytes of all nodes of its rack that are up.
    rack_bytes: u64,
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
            let used: Vec<usize> = chosen.iter().map(|c| c.rack_number).collect();
            let best = candidates.iter().filter(allowed).max_by_key(|c| {
                let local = first && c.node == local;
                (local, !used.contains(&c.rack_number), c.rack_bytes, c.free_bytes, Reverse(c.node))
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

    /// Bytes that are free on a node that is up.
    pub(crate) fn free_bytes(&self, node: NodeId) -> u64 {
        let capacity_bytes = self.member(node).map_or(0, |member| member.capacity_bytes);
        capacity_bytes.saturating_sub(self.state.reserved_bytes(node))
    }

    /// Free room of all nodes that are up, most first.
    pub(crate) fn room(&self) -> Room {
        room(&self.candidates())
    }

    /// All nodes that are up and offer memory, ascending.
    pub(crate) fn candidates(&self) -> Vec<Candidate<'_>> {
        let nodes = self.member_nodes().into_iter();
        let up = nodes.filter_map(|node| {
            let member = self.member(node)?;
            let offers = member.state == MemberState::Up && member.capacity_bytes > 0;
            offers.then(|| Candidate {
                node,
                rack: &member.rack,
                rack_number: 0,
                free_bytes: self.free_bytes(node),
                capacity_bytes: member.capacity_bytes,
                rack_bytes: 0,
            })
        });
        let mut candidates: Vec<Candidate> = up.collect();
        let mut racks: BTreeMap<&RackName, (usize, u64)> = BTreeMap::new();
        for candidate in &candidates {
            let number = racks.len();
            racks.entry(candidate.rack).or_insert((number, 0)).1 += candidate.free_bytes;
        }
        for candidate in &mut candidates {
            (candidate.rack_number, candidate.rack_bytes) = racks[candidate.rack];
        }
        candidates
    }
}

/// A node for one more copy of `object` beside those on `homes`, if one has room: in a rack without a copy if there is such.
///
/// A hash of the object tries nodes, and takes the first with at least half as much room as the one with `most`. So whoever asks hears the same node, and
/// the copies that died with a rack are made by all others at once; the node with most room would be told to make all of them.
pub(crate) fn choose_another(
    candidates: &[Candidate<'_>],
    most: u64,
    (object, bytes): (ObjectId, u64),
    homes: &[NodeId],
) -> Option<NodeId> {
    let has_room = |c: &&Candidate<'_>| c.free_bytes >= bytes && !homes.contains(&c.node);
    // Candidates ascend by node.
    let used = homes.iter().filter_map(|home| {
        candidates.binary_search_by_key(home, |c| c.node).ok().map(|place| candidates[place].rack_number)
    });
    let used: Vec<usize> = used.collect();
    let is_elsewhere = |c: &&Candidate<'_>| !used.contains(&c.rack_number);
    let tried = (0..TRIES).filter_map(|number| {
        let place = mix(object.0 ^ mix(number)) % 1.max(candidates.len() as u64);
        // A remainder of a length.
        candidates.get(place as usize)
    });
    let good = tried.filter(has_room).filter(is_elsewhere).find(|c| c.free_bytes >= most / 2);
    let best = || {
        let free = candidates.iter().filter(has_room);
        free.max_by_key(|c| (is_elsewhere(c), c.rack_bytes, c.free_bytes, Reverse(c.node)))
    };
    good.or_else(best).map(|c| c.node)
}

/// The room of the node that has most.
pub(crate) fn most_room(candidates: &[Candidate<'_>]) -> u64 {
    candidates.iter().map(|c| c.free_bytes).max().unwrap_or(0)
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

fn room(candidates: &[Candidate<'_>]) -> Room {
    let mut nodes: Vec<_> =
        candidates.iter().map(|c| (c.rack.clone(), c.node, c.free_bytes, c.capacity_bytes)).collect();
    nodes.sort_by_key(|(_, node, free, _)| (Reverse(*free), *node));
    Room { nodes }
}
