//! Copies of sealed objects: counting, adding, letting go.

use crate::draft::Draft;
use crate::error::DirectoryError;
use crate::lifecycle::wrong_state;
use crate::placement::{Candidate, choose_another, most_room};
use crate::record::{Home, ObjectRecord, Stage, charged_bytes};
use crate::reply::{Repair, Reply};
use crate::{ContentDigest, HOMES_MAX, REPAIR_SCAN_MAX, REPAIRS_MAX};
use hinterland_types::{Epoch, NodeId, ObjectId};
use std::collections::BTreeSet;
use std::ops::Bound;

impl Draft<'_> {
    /// Whole copies on nodes that are up, without heat copies.
    pub(crate) fn live_copies(&self, object: &ObjectRecord) -> usize {
        let is_live = |home: &&Home| home.complete && !home.heat && self.is_up(home.node);
        object.homes.iter().filter(is_live).count()
    }

    /// Whether an object has as many copies as were asked for, and one at least, that other nodes are sure to hold: its copy on this node
    /// can go.
    pub(crate) fn has_enough_beside(&self, object: &ObjectRecord, node: NodeId) -> bool {
        let is_sure =
            |home: &&Home| home.node != node && home.complete && !home.heat && self.is_sure_of(home.node);
        object.homes.iter().filter(is_sure).count() >= usize::from(object.copies.max(1))
    }

    pub(crate) fn complete_home(&mut self, id: ObjectId, node: NodeId) {
        let Some(mut object) = self.object(id).cloned() else { return };
        object.homes.iter_mut().filter(|home| home.node == node).for_each(|home| home.complete = true);
        self.set_object(id, Some(object));
    }

    pub(crate) fn forget(
        &mut self,
        id: ObjectId,
        node: NodeId,
        incarnation: u64,
        epoch: Epoch,
    ) -> Result<Reply, DirectoryError> {
        self.present(node, incarnation)?;
        let recorded = self.object(id).and_then(|object| object.home(node));
        if recorded.is_some_and(|home| home.epoch == epoch) {
            self.drop_home(id, node);
        }
        Ok(Reply::Forgotten)
    }

    pub(crate) fn repair_list(&self, after: ObjectId, limit: u32) -> Reply {
        let limit = limit.clamp(1, REPAIRS_MAX) as usize;
        // Whoever lacks a copy has too few that are whole, or has one on a node that is not up.
        let away = self.member_nodes().into_iter().filter(|node| !self.is_up(*node));
        let mut lists: Vec<&BTreeSet<ObjectId>> =
            away.filter_map(|node| self.state.held.get(&node)).collect();
        lists.push(&self.state.short);
        let mut repairs = Vec::new();
        let mut through = after;
        // Found once: there may be a thousand of them.
        let mut candidates = None;
        for place in 0.. {
            let behind = (Bound::Excluded(through), Bound::Unbounded);
            let next = lists.iter().filter_map(|list| list.range(behind).next()).min();
            let Some(id) = next else { break };
            if repairs.len() == limit || place == REPAIR_SCAN_MAX {
                return Reply::Repairs { repairs, through, more: true };
            }
            if self.lacks_copies(*id) {
                let (candidates, most) = candidates.get_or_insert_with(|| {
                    let candidates = self.candidates();
                    let most = most_room(&candidates);
                    (candidates, most)
                });
                repairs.extend(self.repair(*id, candidates, *most));
            }
            through = *id;
        }
        Reply::Repairs { repairs, through, more: false }
    }

    /// Whether the object is sealed, readable, and has too few copies even with those being made.
    fn lacks_copies(&self, id: ObjectId) -> bool {
        let Some(object) = self.object(id) else { return false };
        let live = self.live_copies(object);
        let is_coming = |home: &&Home| !home.complete && !home.heat && self.is_up(home.node);
        let coming = object.homes.iter().filter(is_coming).count();
        // From a heat copy, too, others are made.
        let is_readable = object.homes.iter().any(|home| home.complete && self.is_up(home.node));
        matches!(object.stage, Stage::Sealed { .. })
            && is_readable
            && live + coming < usize::from(object.copies)
    }

    /// What an object that lacks copies needs.
    fn repair(&self, id: ObjectId, candidates: &[Candidate<'_>], most: u64) -> Option<Repair> {
        let object = self.object(id)?;
        let homes: Vec<_> = object.homes.iter().map(|home| home.node).collect();
        let another = || choose_another(candidates, most, (id, charged_bytes(object.bytes)), &homes);
        let target = self.heat_copy_to_keep(object).or_else(another);
        // Fewer than `copies`, which is a byte.
        let live = self.live_copies(object) as u8;
        Some(Repair { object: id, size: object.bytes, live, copies: object.copies, target })
    }

    pub(crate) fn add_replica(
        &mut self,
        id: ObjectId,
        node: NodeId,
        incarnation: u64,
    ) -> Result<Reply, DirectoryError> {
        self.serving(node, incarnation)?;
        let object = self.known_object(id)?;
        let Stage::Sealed { .. } = object.stage else { return Err(wrong_state(id, object)) };
        match object.home(node) {
            Some(home) if home.heat && home.complete => return self.keep_heat_copy(id, node),
            Some(home) if home.complete || home.heat => {
                return Err(DirectoryError::AlreadyHome { object: id, node });
            }
            Some(home) => return Ok(Reply::Copying { epoch: home.epoch, object: self.info(id, object) }),
            None if object.homes.len() >= HOMES_MAX => {
                return Err(DirectoryError::TooManyHomes { object: id });
            }
            None => {}
        }
        if self.free_bytes(node) < charged_bytes(object.bytes) {
            let room = self.room();
            return Err(DirectoryError::NotEnoughRoom { bytes: object.bytes, copies: 1, room });
        }
        let mut object = object.clone();
        let epoch = self.next_epoch();
        object.homes.push(Home { node, epoch, complete: false, heat: false });
        let info = self.info(id, &object);
        self.set_object(id, Some(object));
        Ok(Reply::Copying { epoch, object: info })
    }

    pub(crate) fn replica_added(
        &mut self,
        id: ObjectId,
        node: NodeId,
        incarnation: u64,
        epoch: Epoch,
        digest: ContentDigest,
    ) -> Result<Reply, DirectoryError> {
        self.serving(node, incarnation)?;
        let object = self.known_object(id)?;
        let Stage::Sealed { digest: sealed, .. } = object.stage else { return Err(wrong_state(id, object)) };
        if object.home(node).is_none_or(|home| home.epoch != epoch) {
            return Err(DirectoryError::StaleCopy { object: id, node, epoch });
        }
        if sealed != digest {
            return Err(DirectoryError::WrongContent { object: id });
        }
        self.complete_home(id, node);
        Ok(Reply::ReplicaAdded)
    }
}
