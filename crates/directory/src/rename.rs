//! Names that change hands: renaming objects and folders, and sealing under another name than the one that was taken.

use crate::draft::Draft;
use crate::error::DirectoryError;
use crate::lifecycle::wrong_state;
use crate::record::{ObjectRecord, Stage};
use crate::reply::{HomeInfo, Reply};
use crate::{ContentDigest, OnTarget};
use hinterland_types::{NodeId, ObjectId, ObjectName};

/// Most objects that are renamed with their folder: one transaction of some megabytes, for others wait meanwhile.
pub const RENAMES_MAX: usize = 10_000;

impl Draft<'_> {
    /// Gives the object another name. What has that name is removed, exchanged, or a reason to refuse.
    pub(crate) fn rename(
        &mut self,
        from: &ObjectName,
        to: &ObjectName,
        id: ObjectId,
        target: OnTarget,
    ) -> Result<Reply, DirectoryError> {
        let object = self.known_object(id)?.clone();
        if !object.claims_name() {
            return Err(DirectoryError::UnknownObject { object: id });
        }
        if object.name == *to {
            // The first of two requests was served.
            return Ok(Reply::Renamed { removed: None, homes: Vec::new() });
        }
        if object.name != *from {
            return Err(DirectoryError::UnknownName { name: from.clone() });
        }
        // Whoever knows names as of an earlier epoch knows an earlier name.
        self.next_epoch();
        let other = self.name_owner(to).map(|other| Ok((other, self.known_object(other)?.clone())));
        let Some((other_id, other)) = other.transpose()? else {
            if matches!(target, OnTarget::Exchange(_)) {
                return Err(DirectoryError::UnknownName { name: to.clone() });
            }
            // The object's own name is about to go, but nothing can lie below it as long as it is there.
            self.check_name_is_free(to)?;
            self.set_object(id, Some(ObjectRecord { name: to.clone(), ..object }));
            return Ok(Reply::Renamed { removed: None, homes: Vec::new() });
        };
        match target {
            OnTarget::Refuse => Err(DirectoryError::NameTaken { name: to.clone(), object: other_id }),
            OnTarget::Exchange(expected) if expected == other_id => {
                self.set_object(other_id, Some(ObjectRecord { name: from.clone(), ..other }));
                self.set_object(id, Some(ObjectRecord { name: to.clone(), ..object }));
                Ok(Reply::Renamed { removed: None, homes: Vec::new() })
            }
            OnTarget::Exchange(expected) => Err(DirectoryError::UnknownObject { object: expected }),
            OnTarget::Replace => {
                let homes = self.replace(to, other_id, &other)?;
                self.set_object(id, Some(ObjectRecord { name: to.clone(), ..object }));
                Ok(Reply::Renamed { removed: Some(other_id), homes })
            }
        }
    }

    /// Renames every sealed object and region below a folder; what is being written there keeps its name.
    pub(crate) fn rename_folder(
        &mut self,
        from: &ObjectName,
        to: &ObjectName,
        witness: Option<ObjectId>,
    ) -> Result<Reply, DirectoryError> {
        let prefix = format!("{from}/");
        if format!("{to}/").starts_with(&prefix) {
            return Err(DirectoryError::NameIsFolder { name: to.clone(), other: from.clone() });
        }
        let found = self.named_below(from)?;
        if found.is_empty() && witness.is_some_and(|id| self.lies_below(id, to)) {
            // The first of two requests was served.
            return Ok(Reply::Renamed { removed: None, homes: Vec::new() });
        }
        if let Some(object) = self.name_owner(to) {
            return Err(DirectoryError::NameTaken { name: to.clone(), object });
        }
        self.check_name_is_free(to)?;
        if found.is_empty() {
            return Err(DirectoryError::UnknownName { name: from.clone() });
        }
        self.next_epoch();
        for id in found {
            let Some(object) = self.object(id).cloned() else { continue };
            let name = object.name.as_str().replacen(from.as_str(), to.as_str(), 1);
            let name = ObjectName::parse(&name)
                .map_err(|_| DirectoryError::NameTooLong { name: object.name.clone() })?;
            self.set_object(id, Some(ObjectRecord { name, ..object }));
        }
        Ok(Reply::Renamed { removed: None, homes: Vec::new() })
    }

    /// The sealed objects and regions below a folder.
    fn named_below(&self, folder: &ObjectName) -> Result<Vec<ObjectId>, DirectoryError> {
        let prefix = format!("{folder}/");
        // No character of a name sorts before the space.
        let first = ObjectName::parse(&format!("{prefix} "))
            .map_err(|_| DirectoryError::UnknownName { name: folder.clone() })?;
        let below =
            self.state.names.range(first..).take_while(|(name, _)| name.as_str().starts_with(&prefix));
        let found: Vec<ObjectId> = below.map(|(_, id)| *id).take(RENAMES_MAX + 1).collect();
        if found.len() > RENAMES_MAX {
            return Err(DirectoryError::FolderTooLarge { name: folder.clone() });
        }
        let is_finished = |id: &ObjectId| {
            let stage = self.object(*id).map(|object| &object.stage);
            matches!(stage, Some(Stage::Sealed { .. } | Stage::Mutable { .. }))
        };
        Ok(found.into_iter().filter(is_finished).collect())
    }

    /// Whether an object has a name below a folder.
    fn lies_below(&self, id: ObjectId, folder: &ObjectName) -> bool {
        let is_below = |object: &ObjectRecord| {
            object.claims_name() && object.name.as_str().starts_with(&format!("{folder}/"))
        };
        self.object(id).is_some_and(is_below)
    }

    /// Ends a put under a name that may be another than the one that it took, and may be a sealed object's.
    pub(crate) fn publish(
        &mut self,
        id: ObjectId,
        size: u64,
        digest: ContentDigest,
        homes: &[NodeId],
        name: &ObjectName,
    ) -> Result<Reply, DirectoryError> {
        let object = self.known_object(id)?;
        if let Stage::Writing { .. } = object.stage {
            let sealed = self.seal(id, size, digest, homes)?;
            let Reply::Sealed { .. } = sealed else { return Ok(sealed) };
        }
        let object = self.known_object(id)?;
        match object.stage {
            Stage::Sealed { digest: sealed, .. } if sealed == digest && object.bytes == size => {}
            _ => return Err(wrong_state(id, object)),
        }
        let from = object.name.clone();
        self.rename(&from, name, id, OnTarget::Replace)
    }

    /// Takes its name from an object that another one is to have it; the homes that held it. A region keeps its name: whoever writes or moves a file
    /// sees none under that name, and would not know what it removes.
    fn replace(
        &mut self,
        name: &ObjectName,
        id: ObjectId,
        object: &ObjectRecord,
    ) -> Result<Vec<HomeInfo>, DirectoryError> {
        self.check_finished(name, object)?;
        if let Stage::Mutable { .. } = object.stage {
            return Err(DirectoryError::NameTaken { name: name.clone(), object: id });
        }
        let homes = self.home_infos(object, |_| true);
        self.retire(id);
        Ok(homes)
    }
}
