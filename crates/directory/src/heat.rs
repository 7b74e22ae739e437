//! Heat copies: one more copy of a sealed object in a rack that reads it a lot, for as long as nobody needs the room.
//!
//! They are found and read like any other copy, and repaired from. But they count as none of the copies that were asked for, are
//! charged to no node, and go when their node says so, unless no other copy is up.

use crate::draft::Draft;
use crate::error::DirectoryError;
use crate::lifecycle::wrong_state;
use crate::record::{Home, ObjectRecord, Stage, charged_bytes};
use crate::reply::Reply;
use crate::{HEAT_HOMES_MAX, HEAT_LIST_MAX, HOMES_MAX};
use hinterland_types::{Epoch, NodeId, ObjectId};
use std::ops::Bound;

impl Draft<'_> {
    pub(crate) fn add_heat_copy(
        &mut self,
        id: ObjectId,
        node: NodeId,
        incarnation: u64,
    ) -> Result<Reply, DirectoryError> {
        self.serving(node, incarnation)?;
        let object = self.known_object(id)?;
        let Stage::Sealed { .. } = object.stage else { return Err(wrong_state(id, object)) };
        match object.home(node) {
            Some(home) if home.heat && !home.complete => {
                return Ok(Reply::Copying { epoch: home.epoch, object: self.info(id, object) });
            }
            Some(_) => return Err(DirectoryError::AlreadyHome { object: id, node }),
            None => {}
        }
        if let Some(near) = self.home_near(object, node) {
            return Err(DirectoryError::CopyNear { object: id, node: near });
        }
        let heat_homes = object.homes.iter().filter(|home| home.heat).count();
        if heat_homes >= HEAT_HOMES_MAX || object.homes.len() >= HOMES_MAX {
            return Err(DirectoryError::TooManyHomes { object: id });
        }
        let mut object = object.clone();
        let epoch = self.next_epoch();
        object.homes.push(Home { node, epoch, complete: false, heat: true });
        let info = self.info(id, &object);
        self.set_object(id, Some(object));
        Ok(Reply::Copying { epoch, object: info })
    }

    /// A home that is up in the rack of a node: a copy there, or one that is being made.
    fn home_near(&self, object: &ObjectRecord, node: NodeId) -> Option<NodeId> {
        let rack = &self.member(node)?.rack;
        let is_near =
            |home: &&Home| self.is_up(home.node) && self.member(home.node).is_some_and(|m| m.rack == *rack);
        object.homes.iter().find(is_near).map(|home| home.node)
    }

    pub(crate) fn drop_heat_copy(
        &mut self,
        id: ObjectId,
        node: NodeId,
        incarnation: u64,
        epoch: Epoch,
    ) -> Result<Reply, DirectoryError> {
        self.present(node, incarnation)?;
        let Some(object) = self.object(id) else { return Ok(Reply::Forgotten) };
        let Some(home) = object.home(node).filter(|home| home.epoch == epoch) else {
            return Ok(Reply::Forgotten);
        };
        if !home.heat {
            return Err(DirectoryError::CopyIsWanted { object: id, node });
        }
        let is_sealed = matches!(object.stage, Stage::Sealed { .. });
        if is_sealed && home.complete && self.live_copies(object) == 0 {
            return Err(DirectoryError::LastCopy { object: id, node });
        }
        self.drop_home(id, node);
        Ok(Reply::Forgotten)
    }

    /// Makes one of the copies that were asked for out of a heat copy: nothing has to be fetched for that.
    pub(crate) fn keep_heat_copy(&mut self, id: ObjectId, node: NodeId) -> Result<Reply, DirectoryError> {
        let Some(mut object) = self.object(id).cloned() else {
            return Err(DirectoryError::UnknownObject { object: id });
        };
        if self.free_bytes(node) < charged_bytes(object.bytes) {
            let room = self.room();
            return Err(DirectoryError::NotEnoughRoom { bytes: object.bytes, copies: 1, room });
        }
        object.homes.iter_mut().filter(|home| home.node == node).for_each(|home| home.heat = false);
        self.set_object(id, Some(object));
        Ok(Reply::ReplicaAdded)
    }

    /// A node whose heat copy can become one of the copies that an object lacks.
    pub(crate) fn heat_copy_to_keep(&self, object: &ObjectRecord) -> Option<NodeId> {
        let is_fit = |home: &&Home| {
            home.heat
                && home.complete
                && self.is_up(home.node)
                && self.free_bytes(home.node) >= charged_bytes(object.bytes)
        };
        object.homes.iter().find(is_fit).map(|home| home.node)
    }

    pub(crate) fn list_heat_copies(&self, node: NodeId, after: ObjectId) -> Reply {
        let there = self.state.heat.get(&node);
        let behind = there.into_iter().flat_map(|ids| ids.range((Bound::Excluded(after), Bound::Unbounded)));
        let mut copies: Vec<(ObjectId, Epoch)> = behind
            .filter_map(|id| Some((*id, self.object(*id)?.home(node)?.epoch)))
            .take(HEAT_LIST_MAX + 1)
            .collect();
        let more = copies.len() > HEAT_LIST_MAX;
        copies.truncate(HEAT_LIST_MAX);
        Reply::HeatCopies { copies, more }
    }

    pub(crate) fn heat_homes(&self, objects: &[ObjectId]) -> Reply {
        let known = objects.iter().take(HEAT_LIST_MAX).filter_map(|id| Some((*id, self.object(*id)?)));
        let homes = known.flat_map(|(id, object)| {
            object.homes.iter().filter(|home| home.heat).map(move |home| (id, home.node))
        });
        Reply::HeatHomes(homes.collect())
    }
}
