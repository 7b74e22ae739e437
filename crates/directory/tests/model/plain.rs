//! The model: maps and loops, no index, no sum; slow and plainly right.

use hinterland_directory::{
    Command, ContentDigest, Departure, Held, HomeInfo, PageRun, Placement, Reply, Settings, Writer,
    charged_bytes,
};
use hinterland_types::limits::{COPIES_MAX, OBJECT_BYTES_MAX, PAGE_BYTES};
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName, RackName};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Life {
    Joining,
    Up,
    Down,
}

#[derive(Clone, Debug)]
pub struct Member {
    pub rack: RackName,
    pub capacity: u64,
    /// Over all lives: what is reserved is never more.
    pub largest_capacity: u64,
    pub incarnation: u64,
    pub life: Life,
    pub until_ms: u64,
    pub through: ObjectId,
}

#[derive(Clone, Copy, Debug)]
pub struct Copy {
    pub epoch: Epoch,
    pub complete: bool,
    pub heat: bool,
}

#[derive(Clone, Debug)]
pub struct Object {
    pub name: ObjectName,
    pub bytes: u64,
    pub copies: u8,
    pub writer: Option<Writer>,
    pub mutable: bool,
    pub removing: bool,
    pub pages: Option<PageRun>,
    pub digest: Option<ContentDigest>,
    pub homes: BTreeMap<NodeId, Copy>,
}

#[derive(Default)]
pub struct Plain {
    pub members: BTreeMap<NodeId, Member>,
    pub objects: BTreeMap<ObjectId, Object>,
    /// Every id that was ever given: none may come again.
    given: BTreeSet<ObjectId>,
}

impl Plain {
    pub fn incarnation(&self, node: NodeId) -> u64 {
        self.members.get(&node).map_or(0, |member| member.incarnation)
    }

    pub fn some_object(&self, number: u8) -> ObjectId {
        let ids: Vec<_> = self.given.iter().rev().take(6).collect();
        ids.get(usize::from(number) % ids.len().max(1)).map_or(ObjectId(99), |id| **id)
    }

    /// An object that was there once.
    pub fn gone(&self) -> Option<ObjectId> {
        self.given.iter().rev().find(|id| !self.objects.contains_key(id)).copied()
    }

    pub fn visible(&self, name: &ObjectName) -> Option<(ObjectId, &Object)> {
        self.owner(name).filter(|(_, object)| object.writer.is_none())
    }

    pub fn reserved_bytes(&self, node: NodeId) -> u64 {
        let is_charged = |object: &&Object| object.homes.get(&node).is_some_and(|copy| !copy.heat);
        let there = self.objects.values().filter(is_charged);
        there.map(|object| charged_bytes(object.bytes)).sum()
    }

    pub fn live_homes(&self, object: &Object) -> Vec<(NodeId, Epoch)> {
        let live = object.homes.iter().filter(|(node, copy)| copy.complete && self.is_up(**node));
        live.map(|(node, copy)| (*node, copy.epoch)).collect()
    }

    /// Those of them that were asked for.
    fn live_wanted(&self, object: &Object) -> usize {
        self.live_homes(object).iter().filter(|(node, _)| !object.homes[node].heat).count()
    }

    /// Whether a node may make a heat copy: nobody in its rack has a copy, or is making one.
    fn may_add_heat(&self, object: &Object, node: NodeId) -> bool {
        match object.homes.get(&node) {
            Some(copy) => copy.heat && !copy.complete,
            None => {
                let rack = &self.members[&node].rack;
                !object.homes.keys().any(|home| self.is_up(*home) && self.members[home].rack == *rack)
            }
        }
    }

    pub fn check_pages(&self) {
        let mut owned = BTreeSet::new();
        for (id, object) in &self.objects {
            let Some(pages) = object.pages else { continue };
            assert_eq!(u64::from(pages.count()), object.bytes.div_ceil(PAGE_BYTES).max(1));
            for page in pages.first().raw()..pages.first().raw() + pages.count() {
                assert!(page > 0 && owned.insert(page), "page {page} of {id} has two owners");
            }
        }
    }

    fn owner(&self, name: &ObjectName) -> Option<(ObjectId, &Object)> {
        let mut owners = self.objects.iter().filter(|(_, o)| !o.removing && o.name == *name);
        let first = owners.next();
        assert!(owners.next().is_none(), "{name} has two objects");
        first.map(|(id, object)| (*id, object))
    }

    fn is_up(&self, node: NodeId) -> bool {
        self.members.get(&node).is_some_and(|member| member.life == Life::Up)
    }

    fn present(&self, node: NodeId, incarnation: u64) -> bool {
        let member = self.members.get(&node);
        member.is_some_and(|m| m.incarnation == incarnation && m.life != Life::Down)
    }

    fn serving(&self, node: NodeId, incarnation: u64) -> bool {
        self.present(node, incarnation) && self.is_up(node)
    }

    fn free(&self, node: NodeId) -> u64 {
        self.members[&node].capacity.saturating_sub(self.reserved_bytes(node))
    }

    fn fits(&self, bytes: u64, copies: u8, placement: &Placement) -> bool {
        let with_room = |(node, member): &(&NodeId, &Member)| {
            self.is_up(**node) && member.capacity > 0 && self.free(**node) >= bytes
        };
        let fitting: Vec<_> = self.members.iter().filter(with_room).collect();
        let in_rack = match placement {
            Placement::Policy | Placement::Spread => true,
            Placement::Rack(rack) => fitting.iter().any(|(_, member)| member.rack == *rack),
        };
        in_rack && !fitting.is_empty() && fitting.len() >= usize::from(copies)
    }

    fn name_is_free(&self, name: &ObjectName) -> bool {
        let clash = |other: &ObjectName| {
            let (a, b) = (format!("{name}/"), format!("{other}/"));
            a.starts_with(&b) || b.starts_with(&a)
        };
        !self.objects.values().any(|object| !object.removing && clash(&object.name))
    }

    /// Whether the command must be accepted (else it must be refused).
    pub fn allows(&self, now_ms: u64, command: &Command) -> bool {
        match command {
            Command::Join { node, incarnation, .. } => match self.members.get(node) {
                Some(m) => {
                    *incarnation > m.incarnation || (*incarnation == m.incarnation && m.life != Life::Down)
                }
                None => true,
            },
            Command::Heartbeat { node, incarnation, .. } | Command::Forget { node, incarnation, .. } => {
                self.present(*node, *incarnation)
            }
            Command::NodeObjects { node, incarnation, .. } | Command::ShowHeld { node, incarnation, .. } => {
                self.present(*node, *incarnation)
            }
            Command::Leave { node, incarnation, departure } => {
                let known = self.members.get(node).is_some_and(|m| m.incarnation == *incarnation);
                known && (*departure != Departure::Gone || !self.has_last_copies(*node))
            }
            Command::Reserve { name, size, copies, placement, writer } => {
                let again = self.owner(name).is_some_and(|(_, o)| o.writer == Some(*writer));
                let bytes = charged_bytes(size.unwrap_or(1));
                let new = (1..=COPIES_MAX).contains(copies)
                    && self.name_is_free(name)
                    && self.fits(bytes, *copies, placement);
                self.serving(writer.node, writer.incarnation) && (again || new)
            }
            Command::Grow { object, bytes } => self.objects.get(object).is_some_and(|o| {
                let more = charged_bytes(*bytes).saturating_sub(charged_bytes(o.bytes));
                let room = o.homes.keys().all(|node| self.free(*node) >= more);
                o.writer.is_some() && (*bytes <= o.bytes || (room && *bytes <= OBJECT_BYTES_MAX))
            }),
            Command::Seal { object, size, digest, homes } => self.objects.get(object).is_some_and(|o| {
                let again = !o.removing && o.digest == Some(*digest) && o.bytes == *size;
                let given: BTreeSet<_> = homes.iter().copied().collect();
                let all = given == o.homes.keys().copied().collect() && given.len() == usize::from(o.copies);
                let up = o.homes.keys().all(|node| self.is_up(*node));
                again || (o.writer.is_some() && *size <= o.bytes && all && up)
            }),
            Command::Abort { object } => !self.objects.get(object).is_some_and(|o| o.mutable && !o.removing),
            Command::CreateRegion { name, size, placement, .. } => {
                self.name_is_free(name) && self.fits(charged_bytes(*size), 1, placement)
            }
            Command::Remove { name, object } => {
                let id = object.or(self.owner(name).map(|(id, _)| id));
                let known = id.and_then(|id| self.objects.get(&id));
                known.is_some_and(|o| o.name == *name && o.writer.is_none())
            }
            Command::Tick => now_ms < u64::MAX,
            other => self.allows_of_copies(other),
        }
    }

    /// The same for copies beside those that were written.
    fn allows_of_copies(&self, command: &Command) -> bool {
        match command {
            Command::AddReplica { object, node, incarnation } => {
                let known = self.objects.get(object).filter(|o| o.digest.is_some() && !o.removing);
                self.serving(*node, *incarnation)
                    && known.is_some_and(|o| match o.homes.get(node) {
                        Some(copy) if copy.heat => {
                            copy.complete && self.free(*node) >= charged_bytes(o.bytes)
                        }
                        Some(copy) => !copy.complete,
                        None => self.free(*node) >= charged_bytes(o.bytes),
                    })
            }
            Command::ReplicaAdded { object, node, incarnation, epoch, digest } => {
                let known = self.objects.get(object).filter(|o| o.digest == Some(*digest) && !o.removing);
                let there = known.is_some_and(|o| o.homes.get(node).is_some_and(|copy| copy.epoch == *epoch));
                self.serving(*node, *incarnation) && there
            }
            Command::AddHeatCopy { object, node, incarnation } => {
                let known = self.objects.get(object).filter(|o| o.digest.is_some() && !o.removing);
                self.serving(*node, *incarnation) && known.is_some_and(|o| self.may_add_heat(o, *node))
            }
            Command::DropHeatCopy { object, node, incarnation, epoch } => {
                let object = self.objects.get(object);
                let copy = object.and_then(|o| o.homes.get(node)).filter(|copy| copy.epoch == *epoch);
                let is_last = object.is_some_and(|o| !o.removing && self.live_wanted(o) == 0);
                let stays = copy.is_some_and(|copy| !copy.heat || (copy.complete && is_last));
                self.present(*node, *incarnation) && !stays
            }
            other => panic!("the model does not know {other:?}"),
        }
    }

    fn has_last_copies(&self, node: NodeId) -> bool {
        let named = self.objects.values().filter(|o| !o.removing && o.writer.is_none());
        let mut here = named.filter(|o| o.homes.get(&node).is_some_and(|copy| copy.complete));
        here.any(|o| {
            !o.homes.iter().any(|(other, copy)| *other != node && copy.complete && self.is_up(*other))
        })
    }

    /// Takes over what an accepted command and its answer say.
    pub fn learn(&mut self, now_ms: u64, command: &Command, reply: &Reply) {
        let until_ms = now_ms + Settings::default().lease_ms;
        match (command, reply) {
            (Command::Tick, Reply::Ticked { down }) => {
                let late = |(node, m): (&NodeId, &Member)| {
                    (m.life != Life::Down && m.until_ms <= now_ms).then_some(*node)
                };
                let expected: Vec<_> = self.members.iter().filter_map(late).collect();
                assert_eq!(*down, expected);
                down.iter().for_each(|node| self.take_down(*node));
            }
            (Command::Join { node, rack, capacity_bytes, incarnation, .. }, Reply::Joined { .. }) => {
                if self.incarnation(*node) < *incarnation || !self.members.contains_key(node) {
                    self.end_writes(*node);
                    let before = self.members.get(node).map_or(0, |member| member.largest_capacity);
                    let member = Member {
                        rack: rack.clone(),
                        capacity: *capacity_bytes,
                        largest_capacity: before.max(*capacity_bytes),
                        incarnation: *incarnation,
                        life: Life::Joining,
                        until_ms,
                        through: ObjectId(0),
                    };
                    self.members.insert(*node, member);
                }
            }
            (Command::Heartbeat { node, .. }, Reply::Beat { forget, copying, writing, .. }) => {
                self.members.get_mut(node).unwrap().until_ms = until_ms;
                let gone = |o: &&Object| o.removing && o.homes.contains_key(node);
                assert_eq!(forget.len(), self.objects.values().filter(gone).count());
                let made = |o: &&Object| {
                    let sealed = o.digest.is_some() && !o.removing;
                    sealed && o.homes.get(node).is_some_and(|copy| !copy.complete)
                };
                assert_eq!(copying.len(), self.objects.values().filter(made).count());
                let written = |o: &&Object| o.writer.is_some_and(|writer| writer.node == *node);
                assert_eq!(writing.len(), self.objects.values().filter(written).count());
            }
            (Command::NodeObjects { node, objects, more, after, .. }, Reply::Reconciled { delete, up }) => {
                self.reconcile(*node, *after, objects, *more, delete);
                assert_eq!(*up, self.is_up(*node));
            }
            // It is no list: no copy goes for it, and the member does not come up.
            (Command::ShowHeld { node, .. }, Reply::Shown { up }) => assert_eq!(*up, self.is_up(*node)),
            (Command::Leave { node, departure, .. }, Reply::Left { .. }) => {
                self.take_down(*node);
                if *departure != Departure::ComesBack {
                    self.objects.values_mut().for_each(|object| object.homes.retain(|home, _| home != node));
                    self.members.remove(node);
                }
            }
            _ => self.learn_object(command, reply),
        }
        self.objects.retain(|_, object| !object.removing || !object.homes.is_empty());
    }

    fn learn_object(&mut self, command: &Command, reply: &Reply) {
        match (command, reply) {
            (Command::Reserve { name, size, copies, writer, .. }, Reply::Reserved { object, homes }) => {
                if self.given.insert(*object) {
                    assert_eq!(homes.len(), usize::from(*copies));
                    let new = writing(name, size.unwrap_or(0), *copies, *writer, homes);
                    self.objects.insert(*object, new);
                }
                assert_eq!(self.objects[object].writer, Some(*writer));
            }
            (Command::CreateRegion { name, size, .. }, Reply::Reserved { object, homes }) => {
                assert!(self.given.insert(*object));
                let homes = homes
                    .iter()
                    .map(|h| (h.node, Copy { epoch: h.epoch, complete: true, heat: false }))
                    .collect();
                let pages = u32::try_from(size.div_ceil(PAGE_BYTES).max(1)).unwrap();
                self.objects.insert(
                    *object,
                    Object {
                        name: name.clone(),
                        bytes: *size,
                        copies: 1,
                        writer: None,
                        mutable: true,
                        removing: false,
                        pages: Some(self.first_fit(pages)),
                        digest: None,
                        homes,
                    },
                );
            }
            (Command::Grow { object, bytes }, Reply::Grown { bytes: granted }) => {
                let object = self.objects.get_mut(object).unwrap();
                object.bytes = object.bytes.max(*bytes);
                assert_eq!(*granted, object.bytes);
            }
            (Command::Seal { object, size, digest, .. }, Reply::Sealed { pages }) => {
                if self.objects[object].writer.is_some() {
                    assert_eq!(*pages, self.first_fit(pages.count()));
                    let object = self.objects.get_mut(object).unwrap();
                    (object.bytes, object.writer, object.digest) = (*size, None, Some(*digest));
                    object.pages = Some(*pages);
                    object.homes.values_mut().for_each(|copy| copy.complete = true);
                }
                assert_eq!(self.objects[object].pages, Some(*pages));
            }
            (Command::Abort { object }, Reply::Aborted { .. })
            | (Command::Remove { .. }, Reply::Removed { object, .. }) => {
                if let Some(object) = self.objects.get_mut(object) {
                    (object.removing, object.writer) = (true, None);
                }
            }
            (Command::Abort { object }, Reply::AlreadySealed { .. }) => {
                assert!(self.objects[object].digest.is_some())
            }
            (command, reply) => self.learn_copies(command, reply),
        }
    }

    fn learn_copies(&mut self, command: &Command, reply: &Reply) {
        match (command, reply) {
            (
                Command::Forget { object, node, epoch, .. }
                | Command::DropHeatCopy { object, node, epoch, .. },
                Reply::Forgotten,
            ) => {
                if let Some(object) = self.objects.get_mut(object) {
                    object.homes.retain(|home, copy| home != node || copy.epoch != *epoch);
                }
            }
            (Command::AddReplica { object, node, .. }, Reply::ReplicaAdded) => {
                self.objects.get_mut(object).unwrap().homes.get_mut(node).unwrap().heat = false;
            }
            (
                Command::AddReplica { object, node, .. } | Command::AddHeatCopy { object, node, .. },
                Reply::Copying { epoch, .. },
            ) => {
                let heat = matches!(command, Command::AddHeatCopy { .. });
                let copy = Copy { epoch: *epoch, complete: false, heat };
                self.objects.get_mut(object).unwrap().homes.insert(*node, copy);
            }
            (Command::ReplicaAdded { object, node, .. }, Reply::ReplicaAdded) => {
                self.objects.get_mut(object).unwrap().homes.get_mut(node).unwrap().complete = true;
            }
            other => panic!("an answer to another question: {other:?}"),
        }
    }

    fn take_down(&mut self, node: NodeId) {
        self.members.get_mut(&node).unwrap().life = Life::Down;
        self.end_writes(node);
    }

    fn end_writes(&mut self, node: NodeId) {
        let written =
            self.objects.values_mut().filter(|o| o.writer.is_some_and(|writer| writer.node == node));
        written.for_each(|object| (object.removing, object.writer) = (true, None));
    }

    fn reconcile(
        &mut self,
        node: NodeId,
        after: ObjectId,
        list: &[Held],
        more: bool,
        delete: &[(ObjectId, Epoch)],
    ) {
        let told: BTreeSet<_> = delete.iter().map(|(object, _)| *object).collect();
        if self.is_up(node) {
            for held in list {
                let object = self.objects.get(&held.object).filter(|o| !o.removing);
                let wanted =
                    object.is_some_and(|o| o.homes.get(&node).is_some_and(|c| c.epoch == held.epoch));
                assert_eq!(told.contains(&held.object), !wanted);
            }
            return;
        }
        let last = if more { list.last().unwrap().object } else { ObjectId(u64::MAX) };
        for id in self.objects.keys().copied().filter(|id| *id > after && *id <= last).collect::<Vec<_>>() {
            let live = self.live_wanted(&self.objects[&id]);
            let object = self.objects.get_mut(&id).unwrap();
            let Some(copy) = object.homes.get_mut(&node) else { continue };
            let held = list.iter().find(|held| held.object == id && held.epoch == copy.epoch);
            let keep = held.is_some_and(|held| match (object.removing, object.writer, object.digest) {
                (true, ..) | (false, None, None) => true,
                (false, Some(_), _) => held.digest.is_some(),
                (false, None, digest) => {
                    held.digest == digest && (copy.heat || live < usize::from(object.copies))
                }
            });
            if keep && object.digest.is_some() && !object.removing {
                copy.complete = true;
            }
            if !keep {
                object.homes.remove(&node);
            }
            assert_eq!(told.contains(&id), held.is_some() && (!keep || object.removing), "{id} in {list:?}");
        }
        let member = self.members.get_mut(&node).unwrap();
        (member.through, member.life) = if more { (last, Life::Joining) } else { (ObjectId(0), Life::Up) };
    }

    fn first_fit(&self, count: u32) -> PageRun {
        let owned: Vec<_> = self.objects.values().filter_map(|object| object.pages).collect();
        let clear = |first: u32| {
            owned.iter().all(|o| first + count <= o.first().raw() || o.first().raw() + o.count() <= first)
        };
        let first = (1..).find(|first| clear(*first)).unwrap();
        PageRun::new(hinterland_types::PageNumber::new(first).unwrap(), count).unwrap()
    }
}

/// An object whose put has just begun.
fn writing(name: &ObjectName, bytes: u64, copies: u8, writer: Writer, homes: &[HomeInfo]) -> Object {
    Object {
        name: name.clone(),
        bytes,
        copies,
        writer: Some(writer),
        mutable: false,
        removing: false,
        pages: None,
        digest: None,
        homes: homes
            .iter()
            .map(|h| (h.node, Copy { epoch: h.epoch, complete: false, heat: false }))
            .collect(),
    }
}
