//! The life of an object: reserve, grow, seal, abort, remove; and regions.

use crate::draft::Draft;
use crate::error::DirectoryError;
use crate::extent::pages_for;
use crate::record::{Home, ObjectRecord, Stage, charged_bytes};
use crate::regions::region_of;
use crate::reply::{ObjectState, Reply};
use crate::{ContentDigest, PageRun, Placement, WRITES_PER_NODE_MAX, Writer};
use hinterland_types::limits::{BASE_PAGE_BYTES, COPIES_MAX, OBJECT_BYTES_MAX, PAGE_BYTES};
use hinterland_types::{NodeId, ObjectId, ObjectName};

impl Draft<'_> {
    pub(crate) fn reserve(
        &mut self,
        name: &ObjectName,
        size: Option<u64>,
        copies: u8,
        placement: &Placement,
        writer: Writer,
    ) -> Result<Reply, DirectoryError> {
        self.serving(writer.node, writer.incarnation)?;
        if let Some(object) = self.name_owner(name)
            && self.known_object(object)?.stage == (Stage::Writing { writer })
        {
            return self.reserved(object);
        }
        if copies == 0 || copies > COPIES_MAX {
            return Err(DirectoryError::BadCopies { copies });
        }
        let bytes = size.unwrap_or(0);
        check_size(bytes)?;
        self.check_name_is_free(name)?;
        if self.state.writing.get(&writer.node).is_some_and(|puts| puts.len() >= WRITES_PER_NODE_MAX) {
            return Err(DirectoryError::TooManyWrites { node: writer.node });
        }
        // A stream takes no room yet, but a node without any could not take its first byte.
        let room_bytes = charged_bytes(size.unwrap_or(BASE_PAGE_BYTES));
        let nodes = self.choose_homes(room_bytes, copies, placement, writer.node)?;
        self.find_pages(bytes)?;
        let homes = nodes.into_iter().map(|node| Home {
            node,
            epoch: self.next_epoch(),
            complete: false,
            heat: false,
        });
        let homes = homes.collect();
        let object = self.next_object();
        let stage = Stage::Writing { writer };
        self.set_object(object, Some(ObjectRecord { name: name.clone(), copies, bytes, homes, stage }));
        self.reserved(object)
    }

    fn reserved(&self, object: ObjectId) -> Result<Reply, DirectoryError> {
        let homes = self.home_infos(self.known_object(object)?, |_| true);
        Ok(Reply::Reserved { object, homes })
    }

    pub(crate) fn grow(&mut self, id: ObjectId, bytes: u64) -> Result<Reply, DirectoryError> {
        let object = self.known_object(id)?;
        let Stage::Writing { .. } = object.stage else { return Err(wrong_state(id, object)) };
        if bytes <= object.bytes {
            return Ok(Reply::Grown { bytes: object.bytes });
        }
        check_size(bytes)?;
        let more = charged_bytes(bytes) - charged_bytes(object.bytes);
        if object.homes.iter().any(|home| self.free_bytes(home.node) < more) {
            return Err(DirectoryError::NotEnoughRoom { bytes, copies: object.copies, room: self.room() });
        }
        let object = ObjectRecord { bytes, ..object.clone() };
        self.set_object(id, Some(object));
        Ok(Reply::Grown { bytes })
    }

    pub(crate) fn seal(
        &mut self,
        id: ObjectId,
        size: u64,
        digest: ContentDigest,
        homes: &[NodeId],
    ) -> Result<Reply, DirectoryError> {
        let object = self.known_object(id)?;
        match object.stage {
            Stage::Sealed { digest: sealed, pages } if sealed == digest && object.bytes == size => {
                return Ok(Reply::Sealed { pages });
            }
            Stage::Writing { .. } => {}
            Stage::Sealed { .. } | Stage::Mutable { .. } | Stage::Removing { .. } | Stage::Making { .. } => {
                return Err(wrong_state(id, object));
            }
        }
        if size > object.bytes {
            return Err(DirectoryError::MoreThanReserved { object: id, size, reserved: object.bytes });
        }
        if let Some(node) = homes.iter().find(|node| object.home(**node).is_none()) {
            return Err(DirectoryError::HomeMissing { object: id, node: *node });
        }
        let absent = |home: &&Home| !homes.contains(&home.node) || !self.is_up(home.node);
        if let Some(home) = object.homes.iter().find(absent) {
            return Err(DirectoryError::HomeMissing { object: id, node: home.node });
        }
        if object.homes.len() != usize::from(object.copies) {
            let nodes = object.homes.len() as u64;
            return Err(DirectoryError::NotEnoughNodes { copies: object.copies, nodes });
        }
        let mut object = object.clone();
        let pages = self.find_pages(size)?;
        object.bytes = size;
        object.stage = Stage::Sealed { digest, pages };
        object.homes.iter_mut().for_each(|home| home.complete = true);
        self.set_object(id, Some(object));
        Ok(Reply::Sealed { pages })
    }

    pub(crate) fn abort(&mut self, id: ObjectId) -> Result<Reply, DirectoryError> {
        // An object that is not there any more was aborted before, and its homes have let go.
        let Some(object) = self.object(id) else { return Ok(Reply::Aborted { homes: Vec::new() }) };
        let homes = self.home_infos(object, |_| true);
        match object.stage {
            Stage::Writing { .. } | Stage::Making { .. } => {
                self.give_up(id);
                Ok(Reply::Aborted { homes })
            }
            Stage::Removing { .. } => Ok(Reply::Aborted { homes }),
            Stage::Sealed { pages, .. } => Ok(Reply::AlreadySealed { pages }),
            Stage::Mutable { .. } => Err(wrong_state(id, object)),
        }
    }

    pub(crate) fn create_region(
        &mut self,
        name: &ObjectName,
        size: u64,
        placement: &Placement,
        local: NodeId,
    ) -> Result<Reply, DirectoryError> {
        self.place_region(name, size, placement, local, |pages| Stage::Mutable { pages })
    }

    pub(crate) fn make_region(
        &mut self,
        name: &ObjectName,
        size: u64,
        placement: &Placement,
        writer: Writer,
    ) -> Result<Reply, DirectoryError> {
        self.serving(writer.node, writer.incarnation)?;
        if let Some(object) = self.name_owner(name)
            && matches!(self.known_object(object)?.stage, Stage::Making { writer: known, .. } if known == writer)
        {
            return self.reserved(object);
        }
        if self.state.writing.get(&writer.node).is_some_and(|puts| puts.len() >= WRITES_PER_NODE_MAX) {
            return Err(DirectoryError::TooManyWrites { node: writer.node });
        }
        self.place_region(name, size, placement, writer.node, |pages| Stage::Making { writer, pages })
    }

    /// The memory of all homes is there.
    pub(crate) fn show_region(&mut self, id: ObjectId) -> Result<Reply, DirectoryError> {
        let object = self.known_object(id)?;
        let pages = match object.stage {
            Stage::Making { pages, .. } => pages,
            Stage::Mutable { .. } => return self.lookup_object(id),
            _ => return Err(wrong_state(id, object)),
        };
        // A home that was started again in the meantime has let go of what it had.
        let base = self.region(id).map(|region| region.base.clone()).unwrap_or_default();
        if let Some((node, _)) = base.iter().find(|(node, _)| object.home(*node).is_none()) {
            return Err(DirectoryError::HomeMissing { object: id, node: *node });
        }
        if object.homes.is_empty() {
            return Err(wrong_state(id, object));
        }
        self.set_object(id, Some(ObjectRecord { stage: Stage::Mutable { pages }, ..object.clone() }));
        self.lookup_object(id)
    }

    fn place_region(
        &mut self,
        name: &ObjectName,
        size: u64,
        placement: &Placement,
        local: NodeId,
        stage: impl FnOnce(PageRun) -> Stage,
    ) -> Result<Reply, DirectoryError> {
        check_size(size)?;
        self.check_name_is_free(name)?;
        let pages = self.find_pages(size)?;
        let nodes = match placement {
            Placement::Spread if size >= PAGE_BYTES => self.choose_parts(pages)?,
            _ => self.choose_homes(charged_bytes(size), 1, placement, local)?,
        };
        let homes = nodes.into_iter().map(|node| Home {
            node,
            epoch: self.next_epoch(),
            complete: true,
            heat: false,
        });
        let homes: Vec<_> = homes.collect();
        let object = self.next_object();
        if homes.len() > 1 {
            self.set_region(object, Some(region_of(pages, &homes)));
        }
        let stage = stage(pages);
        self.set_object(
            object,
            Some(ObjectRecord { name: name.clone(), copies: 1, bytes: size, homes, stage }),
        );
        self.reserved(object)
    }

    pub(crate) fn remove(
        &mut self,
        name: &ObjectName,
        only: Option<ObjectId>,
    ) -> Result<Reply, DirectoryError> {
        let owner = self.name_owner(name);
        let id = match (only, owner) {
            (Some(only), _) => only,
            (None, Some(owner)) => owner,
            (None, None) => return Err(DirectoryError::UnknownName { name: name.clone() }),
        };
        let object = self.object(id).filter(|object| object.name == *name);
        let object = object.ok_or(DirectoryError::UnknownObject { object: id })?;
        let homes = self.home_infos(object, |_| true);
        match object.stage {
            Stage::Writing { .. } | Stage::Making { .. } => self.check_finished(name, object)?,
            Stage::Sealed { .. } | Stage::Mutable { .. } => {
                // Whoever knows names as of an earlier epoch does not know that this one is free.
                self.next_epoch();
                self.retire(id);
            }
            Stage::Removing { .. } => {}
        }
        Ok(Reply::Removed { object: id, homes })
    }

    pub(crate) fn check_name_is_free(&self, name: &ObjectName) -> Result<(), DirectoryError> {
        if let Some(id) = self.name_owner(name) {
            self.check_finished(name, self.known_object(id)?)?;
            return Err(DirectoryError::NameTaken { name: name.clone(), object: id });
        }
        let is_folder = |other: ObjectName| Err(DirectoryError::NameIsFolder { name: name.clone(), other });
        for (place, _) in name.as_str().match_indices('/') {
            if let Ok(parent) = ObjectName::parse(&name.as_str()[..place])
                && self.name_owner(&parent).is_some()
            {
                return is_folder(parent);
            }
        }
        // No character of a name sorts before the space. A name too long for that has no room for children.
        let folder = format!("{name}/");
        if let Ok(first) = ObjectName::parse(&format!("{folder} ")) {
            let below = self.state.names.range(first..).take_while(|(n, _)| n.as_str().starts_with(&folder));
            if let Some((child, _)) = below.into_iter().find(|(child, _)| self.name_owner(child).is_some()) {
                return is_folder(child.clone());
            }
        }
        Ok(())
    }

    /// Whether an object is one for others already.
    pub(crate) fn check_finished(
        &self,
        name: &ObjectName,
        object: &ObjectRecord,
    ) -> Result<(), DirectoryError> {
        let name = name.clone();
        match object.stage {
            Stage::Writing { writer } => Err(DirectoryError::NameBeingWritten { name, node: writer.node }),
            Stage::Making { writer, .. } => Err(DirectoryError::NameBeingMade { name, node: writer.node }),
            Stage::Sealed { .. } | Stage::Mutable { .. } | Stage::Removing { .. } => Ok(()),
        }
    }

    fn find_pages(&self, bytes: u64) -> Result<PageRun, DirectoryError> {
        let pages = pages_for(bytes);
        let longest = || DirectoryError::NoAddresses { pages, longest: self.state.free.longest() };
        self.state.free.first_fit(pages).ok_or_else(longest)
    }
}

/// The error that names the stage that an object is in.
pub(crate) fn wrong_state(object: ObjectId, record: &ObjectRecord) -> DirectoryError {
    DirectoryError::WrongState { object, state: state_of(record) }
}

/// The stage without what belongs to it.
pub(crate) fn state_of(record: &ObjectRecord) -> ObjectState {
    match record.stage {
        Stage::Writing { .. } => ObjectState::Writing,
        Stage::Making { .. } => ObjectState::Making,
        Stage::Sealed { .. } => ObjectState::Sealed,
        Stage::Mutable { .. } => ObjectState::Mutable,
        Stage::Removing { .. } => ObjectState::Removing,
    }
}

fn check_size(bytes: u64) -> Result<(), DirectoryError> {
    if bytes > OBJECT_BYTES_MAX { Err(DirectoryError::ObjectTooLarge { bytes }) } else { Ok(()) }
}
