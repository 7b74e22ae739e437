//! A store that is older than the objects of its nodes: how that is noticed, and how the objects come back.
//!
//! Numbers of objects and epochs of copies are given from counters that are stored with what they count, so a node that holds one that was
//! not given has it from a store that knew more. Nothing of such a node is deleted before somebody has decided.

use crate::draft::Draft;
use crate::error::DirectoryError;
use crate::extent::{FreePages, pages_for};
use crate::record::{Home, OBJECT_FIRST, ObjectRecord, Stage};
use crate::reply::{NotAdopted, Reply};
use crate::{ContentDigest, FOUND_MAX, Found, HOMES_MAX, Held};
use hinterland_types::limits::{COPIES_MAX, OBJECT_BYTES_MAX};
use hinterland_types::{DRAFTS_FOLDER, Epoch, NodeId, ObjectId, ObjectName};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Numbers from here on are not believed of what was not given: no directory comes so far, half of those that inodes leave to objects
/// are still to be given, and a peer that names the last one would have the next put find none.
const NUMBER_END: u64 = 1 << 61;

impl Draft<'_> {
    /// Refuses numbers that no store can have given.
    pub(crate) fn check_numbers(
        &self,
        node: NodeId,
        mut numbers: impl Iterator<Item = (ObjectId, Epoch)>,
    ) -> Result<(), DirectoryError> {
        let is_bad = |(object, epoch): &(ObjectId, Epoch)| {
            let is_beyond = object.0.max(epoch.0) >= NUMBER_END && self.is_ungiven(*object, *epoch);
            object.0 < OBJECT_FIRST || is_beyond
        };
        match numbers.find(is_bad) {
            Some((object, epoch)) => Err(DirectoryError::BadNumber { node, object, epoch }),
            None => Ok(()),
        }
    }

    /// Copies in the list that an earlier store must have placed there.
    pub(crate) fn of_a_newer_store(&self, node: NodeId, objects: &[Held]) -> Vec<ObjectId> {
        let newer = objects.iter().filter(|held| self.is_of_a_newer_store(node, held));
        newer.map(|held| held.object).collect()
    }

    fn is_of_a_newer_store(&self, node: NodeId, held: &Held) -> bool {
        if self.is_ungiven(held.object, held.epoch) {
            return true;
        }
        let is_doubted = self.doubted().is_some_and(|doubted| doubted.contains(held.object));
        match self.object(held.object) {
            None => is_doubted,
            Some(object) if object.home(node).is_some() || !object.claims_name() => false,
            // Nobody else gives a number to other bytes.
            Some(ObjectRecord { stage: Stage::Sealed { digest, .. }, .. }) => {
                is_doubted || held.digest.is_some_and(|held| held != *digest)
            }
            Some(_) => is_doubted,
        }
    }

    /// Notes that these were placed by a store that knew more, for every later list as well.
    pub(crate) fn know_less(&mut self, newer: Vec<ObjectId>, objects: &[Held]) -> Reply {
        for held in objects.iter().filter(|held| newer.binary_search(&held.object).is_ok()) {
            self.doubt(held.object, held.epoch);
        }
        Reply::KnowsLess { objects: newer }
    }

    pub(crate) fn adopt(
        &mut self,
        node: NodeId,
        incarnation: u64,
        found: &[Found],
    ) -> Result<Reply, DirectoryError> {
        self.serving(node, incarnation)?;
        if found.len() > FOUND_MAX {
            return Err(DirectoryError::ListOutOfOrder { node, expected: ObjectId(0) });
        }
        self.check_numbers(node, found.iter().map(|found| (found.object, found.epoch)))?;
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        let mut room = Room { free: self.state.free.clone(), names: BTreeSet::new() };
        for found in found {
            if self.is_ungiven(found.object, found.epoch) {
                self.doubt(found.object, found.epoch);
            }
        }
        // Of two that had one name, the one that was put last has it.
        let mut newest: Vec<&Found> = found.iter().collect();
        newest.sort_by_key(|found| Reverse(found.object));
        for found in newest {
            match self.adopt_one(node, found, &mut room) {
                Ok(name) => taken.push((found.object, name)),
                Err(why) => refused.push((found.object, why)),
            }
        }
        taken.reverse();
        refused.reverse();
        Ok(Reply::Adopted { taken, refused })
    }

    fn adopt_one(&mut self, node: NodeId, found: &Found, room: &mut Room) -> Result<ObjectName, NotAdopted> {
        let digest = found.digest.ok_or(NotAdopted::Region)?;
        if found.bytes > OBJECT_BYTES_MAX {
            return Err(NotAdopted::NoAddresses);
        }
        let home = Home { node, epoch: found.epoch, complete: true, heat: false };
        match self.object(found.object).cloned() {
            Some(object) => self.adopt_copy(found, object, home, digest),
            None => self.adopt_object(found, home, digest, room),
        }
    }

    /// Another copy of what another node, or the store, has told of.
    fn adopt_copy(
        &mut self,
        found: &Found,
        mut object: ObjectRecord,
        home: Home,
        digest: ContentDigest,
    ) -> Result<ObjectName, NotAdopted> {
        let is_same = matches!(object.stage, Stage::Sealed { digest: sealed, .. } if sealed == digest);
        if !is_same || object.bytes != found.bytes {
            return Err(NotAdopted::NumberTaken);
        }
        object.homes.retain(|other| other.node != home.node);
        if object.homes.len() >= HOMES_MAX {
            return Err(NotAdopted::TooManyCopies);
        }
        object.homes.push(home);
        // How many were asked for is not known any more: at least as many as there are.
        let whole = object.homes.iter().filter(|home| home.complete && !home.heat).count();
        object.copies = object.copies.max(u8::try_from(whole).unwrap_or(COPIES_MAX).min(COPIES_MAX));
        let name = object.name.clone();
        self.set_object(found.object, Some(object));
        Ok(name)
    }

    fn adopt_object(
        &mut self,
        found: &Found,
        home: Home,
        digest: ContentDigest,
        room: &mut Room,
    ) -> Result<ObjectName, NotAdopted> {
        // A number that was given and is gone may be remembered elsewhere.
        if !self.doubted().is_some_and(|doubted| doubted.contains(found.object)) {
            return Err(NotAdopted::NumberTaken);
        }
        let pages = room.free.first_fit(pages_for(found.bytes)).ok_or(NotAdopted::NoAddresses)?;
        let name = self.name_for(found, room).ok_or(NotAdopted::NoName)?;
        room.free.claim(pages);
        room.names.insert(name.clone());
        let stage = Stage::Sealed { digest, pages };
        let object =
            ObjectRecord { name: name.clone(), copies: 1, bytes: found.bytes, homes: vec![home], stage };
        self.set_object(found.object, Some(object));
        Ok(name)
    }

    /// The name it had, unless something has it of which there are bytes.
    fn name_for(&mut self, found: &Found, room: &Room) -> Option<ObjectName> {
        if let Some(owner) = self.name_owner(&found.name)
            && self.object(owner).is_some_and(|object| !object.homes.iter().any(|home| home.complete))
            && self.object(owner).is_some_and(|object| object.stage.writer().is_none())
        {
            self.retire(owner);
        }
        let number = found.object.0;
        let is_draft = found.name.as_str().starts_with(DRAFTS_FOLDER);
        let own = (!is_draft).then(|| found.name.clone());
        let others = [format!("recovered/{number}"), format!("recovered-{number}")];
        let others = others.iter().filter_map(|name| ObjectName::parse(name).ok());
        own.into_iter()
            .chain(others)
            .find(|name| self.check_name_is_free(name).is_ok() && !room.clashes(name))
    }
}

/// What the objects of one request take, which the state does not show before they are all stored.
struct Room {
    free: FreePages,
    names: BTreeSet<ObjectName>,
}

impl Room {
    /// Whether a name is taken, or is a folder of one, or lies below one.
    fn clashes(&self, name: &ObjectName) -> bool {
        let (text, folder) = (name.as_str(), format!("{name}/"));
        self.names.iter().any(|other| {
            let other = other.as_str();
            other == text
                || other.starts_with(&folder)
                || text.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'))
        })
    }
}
