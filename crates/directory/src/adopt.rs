//! A store that is older than the objects of its nodes: how that is noticed, and how the objects come back.
//!
//! Numbers of objects and epochs of copies are given from counters that are stored with what they count, so a node that holds one that was
//! not given has it from a store that knew more. Nothing of such a node is deleted before somebody has decided.

use crate::directory::Heard;
use crate::draft::Draft;
use crate::error::DirectoryError;
use crate::extent::{FreePages, pages_for};
use crate::record::{Home, OBJECT_FIRST, ObjectRecord, Stage};
use crate::reply::{NotAdopted, Reply};
use crate::{ContentDigest, FOUND_MAX, FormerPool, Found, HOMES_MAX, Held};
use hinterland_types::limits::{COPIES_MAX, OBJECT_BYTES_MAX};
use hinterland_types::{DRAFTS_FOLDER, Epoch, NodeId, ObjectId, ObjectName};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Numbers from here on are not believed of what was not given: no directory comes so far, half of those that inodes leave to objects
/// are still to be given, and a peer that names the last one would have the next put find none.
pub(crate) const NUMBER_END: u64 = 1 << 61;

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

    /// The answer to a member that holds copies which an earlier store must have placed there, which knew more; they are noted for every later
    /// list as well. What they tell of that store tells more of the list, which is therefore looked through until nothing is added.
    pub(crate) fn know_less(&mut self, node: NodeId, objects: &[Held]) -> Option<Reply> {
        let mut newer = BTreeSet::new();
        loop {
            let is_told =
                |held: &&Held| !newer.contains(&held.object) && self.is_of_a_newer_store(node, held);
            let told: Vec<Held> = objects.iter().filter(is_told).copied().collect();
            if told.is_empty() {
                break;
            }
            for held in told {
                self.note(&held);
                newer.insert(held.object);
            }
        }
        (!newer.is_empty()).then(|| Reply::KnowsLess { objects: newer.into_iter().collect() })
    }

    fn is_of_a_newer_store(&self, node: NodeId, held: &Held) -> bool {
        if self.is_ungiven(held.object, held.epoch) {
            return true;
        }
        let is_doubted = self.is_doubted(held.object);
        let Some(object) = self.object(held.object) else {
            return is_doubted || self.is_doubted_epoch(held.epoch);
        };
        let home = object.home(node);
        let is_recorded = home.is_some_and(|home| home.epoch == held.epoch);
        // A copy that is not recorded is one that the newer store had made of it when it had ended well.
        let is_of_its_time = is_recorded || self.is_doubted_epoch(held.epoch);
        if is_of_its_time && self.may_have_ended_well(held, object) {
            return true;
        }
        if is_recorded || !object.claims_name() || self.is_spare(node, held, object) {
            return false;
        }
        if self.is_doubted_epoch(held.epoch) {
            return true;
        }
        match object.stage {
            _ if home.is_some() => false,
            // Nobody else gives a number to other bytes.
            Stage::Sealed { digest, .. } => is_doubted || held.digest.is_some_and(|held| held != digest),
            _ => is_doubted,
        }
    }

    /// Whether a put that was given up here before anything was heard of a newer store, or goes on here alone, may have ended well there: a node
    /// has it whole. A writer that is there gives up by itself, with its next heartbeat, what it does not know.
    fn may_have_ended_well(&self, held: &Held, object: &ObjectRecord) -> bool {
        let is_unheard = |node| self.lease(node).is_none_or(|lease| lease.heard == Heard::Nothing);
        let is_left = matches!(object.stage, Stage::Writing { writer } if is_unheard(writer.node));
        held.digest.is_some() && (self.is_in_question(object) || (is_left && self.is_of_before(object)))
    }

    /// Whether a put was given up here of which a home may have a whole copy. No home lets go of it before that has been said.
    pub(crate) fn is_in_question(&self, object: &ObjectRecord) -> bool {
        matches!(object.stage, Stage::Removing { pages: None }) && self.is_of_before(object)
    }

    /// Whether a copy that is not recorded can go without a question, as one that was dropped while its node was away, or whose node was
    /// killed before it had let go of it.
    ///
    /// It is never the last one. The bytes are those that were sealed under this number, by their digest; and as many copies as were asked for are
    /// recorded on other nodes, each of which has said that it holds what is recorded, in this life of this directory and in its own. What is not
    /// recorded counts for none of this, so two nodes that come at once cannot each go by the copy of the other. How many were
    /// asked for is known of an object that stood in this store all the time: not of one that nodes brought back, of which the next one that comes
    /// may have a copy that counts.
    fn is_spare(&self, node: NodeId, held: &Held, object: &ObjectRecord) -> bool {
        let is_same = matches!(object.stage, Stage::Sealed { digest, .. } if held.digest == Some(digest));
        is_same && !self.is_doubted(held.object) && self.has_enough_beside(object, node)
    }

    /// Notes that a copy was placed by a store that knew more.
    fn note(&mut self, held: &Held) {
        let is_ungiven = self.is_ungiven(held.object, held.epoch);
        self.doubt(held.object, held.epoch);
        self.doubt_epochs(is_ungiven);
        // By now it may be known that there was a newer store.
        if self.object(held.object).is_some_and(|object| self.may_have_ended_well(held, object)) {
            self.forget_in_doubt(held.object);
        }
    }

    pub(crate) fn adopt(
        &mut self,
        node: NodeId,
        incarnation: u64,
        found: &[Found],
        former: &[FormerPool],
    ) -> Result<Reply, DirectoryError> {
        self.serving(node, incarnation)?;
        if found.len() > FOUND_MAX {
            return Err(DirectoryError::ListOutOfOrder { node, expected: ObjectId(0) });
        }
        self.check_numbers(node, found.iter().map(|found| (found.object, found.epoch)))?;
        found.iter().try_for_each(|found| self.check_as_of(node, found.object, found.as_of))?;
        self.remember_pools(node, former)?;
        let (mut taken, mut refused) = (Vec::new(), Vec::new());
        let mut room = Room { free: self.state.free.clone(), names: BTreeMap::new(), moved: BTreeMap::new() };
        for found in found {
            if self.is_ungiven(found.object, found.epoch) {
                self.doubt(found.object, found.epoch);
            }
            self.pass_epoch(found.as_of);
        }
        // Of two that had one name, the one that has it later comes first, so that no name is given twice.
        let mut newest: Vec<&Found> = found.iter().collect();
        newest.sort_by_key(|found| Reverse((found.as_of, found.object)));
        for found in newest {
            match self.adopt_one(node, found, &mut room) {
                Ok(name) => taken.push((found.object, name)),
                Err(why) => refused.push((found.object, why)),
            }
        }
        // What was moved by one that came behind it has its last name in that list.
        taken.retain(|(object, _)| !room.moved.contains_key(object));
        taken.extend(room.moved);
        taken.sort_unstable_by_key(|(object, _)| *object);
        refused.sort_unstable_by_key(|(object, _)| *object);
        Ok(Reply::Adopted { taken, refused })
    }

    fn adopt_one(&mut self, node: NodeId, found: &Found, room: &mut Room) -> Result<ObjectName, NotAdopted> {
        let digest = found.digest.ok_or(NotAdopted::Region)?;
        if found.bytes > OBJECT_BYTES_MAX {
            return Err(NotAdopted::NoAddresses);
        }
        let home = Home { node, epoch: found.epoch, complete: true, heat: false };
        match self.object(found.object).cloned() {
            Some(object) => self.adopt_copy(found, object, home, digest, room),
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
        room: &mut Room,
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
        if self.is_doubted(found.object) {
            // Of one that nodes brought back nobody knows how many were asked for: at least as many as there are.
            let whole = object.homes.iter().filter(|home| home.complete && !home.heat).count();
            object.copies = object.copies.max(u8::try_from(whole).unwrap_or(COPIES_MAX).min(COPIES_MAX));
        }
        self.set_object(found.object, Some(object));
        Ok(self.named_later(found, room))
    }

    /// The name of an object of which another copy was found. Where that one's node knew the names of a later epoch than those before, it
    /// is the one that it says; where it knew those of an earlier one, nobody else who knew less has had that name since.
    fn named_later(&mut self, found: &Found, room: &mut Room) -> ObjectName {
        let known = self.claim(found.object);
        let is_later = known.is_some_and(|known| found.as_of > known);
        if is_later {
            self.set_claim(found.object, found.as_of);
        }
        let name = self.object(found.object).map_or_else(|| found.name.clone(), |object| object.name.clone());
        if known.is_none() || name == found.name {
            return name;
        }
        let is_its = self.is_had_by(found, room);
        if !is_later {
            return name;
        }
        let own = is_its.then(|| found.name.clone()).filter(|name| self.is_free(name, room));
        // It may be beside already.
        let is_beside = own.is_none() && names_beside(found.object).any(|beside| beside == name);
        let beside = || self.name_beside(found.object, room).filter(|_| !is_beside);
        let Some(name) = own.or_else(beside) else { return name };
        self.call(found.object, &name, room);
        name
    }

    fn adopt_object(
        &mut self,
        found: &Found,
        home: Home,
        digest: ContentDigest,
        room: &mut Room,
    ) -> Result<ObjectName, NotAdopted> {
        // A number that was given and is gone may be remembered elsewhere.
        if !self.is_doubted(found.object) {
            return Err(NotAdopted::NumberTaken);
        }
        let pages = room.free.first_fit(pages_for(found.bytes)).ok_or(NotAdopted::NoAddresses)?;
        let name = self.name_for(found, room).ok_or(NotAdopted::NoName)?;
        room.free.claim(pages);
        room.names.insert(name.clone(), found.object);
        let stage = Stage::Sealed { digest, pages };
        let object =
            ObjectRecord { name: name.clone(), copies: 1, bytes: found.bytes, homes: vec![home], stage };
        self.set_object(found.object, Some(object));
        self.set_claim(found.object, found.as_of);
        Ok(name)
    }

    /// The name it had, unless something has it of which there are bytes, and which is not known to have had it earlier.
    fn name_for(&mut self, found: &Found, room: &mut Room) -> Option<ObjectName> {
        if let Some(owner) = self.owner_of(&found.name, room)
            && self.object(owner).is_some_and(|object| !object.homes.iter().any(|home| home.complete))
            && self.object(owner).is_some_and(|object| object.stage.writer().is_none())
        {
            self.retire(owner);
        }
        let own = self.is_had_by(found, room).then(|| found.name.clone());
        own.filter(|name| self.is_free(name, room)).or_else(|| self.name_beside(found.object, room))
    }

    /// Whether an object may have the name of which it was found. Who has it and was found, too, by a node that knew the names of an
    /// earlier epoch, gives it up for one beside it. Who has it for another reason keeps it: it was put since, or the store knows it.
    fn is_had_by(&mut self, found: &Found, room: &mut Room) -> bool {
        if found.name.as_str().starts_with(DRAFTS_FOLDER) {
            return false;
        }
        let Some(owner) = self.owner_of(&found.name, room).filter(|owner| *owner != found.object) else {
            return true;
        };
        let is_earlier = self.claim(owner).is_some_and(|known| (known, owner) < (found.as_of, found.object));
        let beside = is_earlier.then(|| self.name_beside(owner, room)).flatten();
        if let Some(beside) = &beside {
            self.call(owner, beside, room);
            room.moved.insert(owner, beside.clone());
        }
        beside.is_some()
    }

    /// Gives an object that was found another name; as of when its name was known stays.
    fn call(&mut self, id: ObjectId, name: &ObjectName, room: &mut Room) {
        let Some(object) = self.object(id).cloned() else { return };
        let as_of = self.claim(id);
        self.set_object(id, Some(ObjectRecord { name: name.clone(), ..object }));
        as_of.into_iter().for_each(|as_of| self.set_claim(id, as_of));
        room.names.insert(name.clone(), id);
    }

    /// A free name for an object whose own is another's, or is none.
    fn name_beside(&self, object: ObjectId, room: &Room) -> Option<ObjectName> {
        names_beside(object).find(|name| self.is_free(name, room))
    }

    fn is_free(&self, name: &ObjectName, room: &Room) -> bool {
        self.check_name_is_free(name).is_ok() && !self.clashes(name, room)
    }

    /// Which object has a name, as far as the request has come.
    fn owner_of(&self, name: &ObjectName, room: &Room) -> Option<ObjectId> {
        let given = room.names.get(name).copied().filter(|id| self.has(*id, name));
        given.or_else(|| self.name_owner(name))
    }

    /// Whether a name that was given in this request is this one, or is a folder of it, or lies below it.
    fn clashes(&self, name: &ObjectName, room: &Room) -> bool {
        let (text, folder) = (name.as_str(), format!("{name}/"));
        room.names.iter().filter(|(other, id)| self.has(**id, other)).any(|(other, _)| {
            let other = other.as_str();
            other == text
                || other.starts_with(&folder)
                || text.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'))
        })
    }

    fn has(&self, id: ObjectId, name: &ObjectName) -> bool {
        self.object(id).is_some_and(|object| object.claims_name() && object.name == *name)
    }
}

/// What an object may be called whose own name is another's, or is none.
fn names_beside(object: ObjectId) -> impl Iterator<Item = ObjectName> {
    let names = [format!("recovered/{}", object.0), format!("recovered-{}", object.0)];
    names.into_iter().filter_map(|name| ObjectName::parse(&name).ok())
}

/// What the objects of one request take, which the state does not show before they are all stored.
struct Room {
    free: FreePages,
    names: BTreeMap<ObjectName, ObjectId>,
    /// Objects that gave up their names for those that were found, with the names that they have instead.
    moved: BTreeMap<ObjectId, ObjectName>,
}
