//! Removing and renaming files, and making, removing and renaming folders.

use crate::draft::Draft;
use crate::filesystem::{Found, OPENS_MAX, PoolFiles, logged};
use crate::listing::is_folder;
use crate::opening::Opening;
use crate::source::SourceError;
use fuser::{Errno, INodeNo, RenameFlags};
use hinterland_proto::control::{ObjectInfo, ObjectState, RenameTarget};
use hinterland_types::{ObjectId, ObjectName};
use nix::libc;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::SystemTime;

/// What stands under a name.
enum Thing {
    Folder,
    /// A file that is being written, perhaps in the place of an object.
    Draft(Arc<Draft>),
    Object(ObjectInfo),
}

impl Thing {
    /// The inode number of a file.
    fn file(&self) -> Option<u64> {
        match self {
            Self::Folder => None,
            Self::Draft(draft) => Some(draft.inode),
            Self::Object(info) => Some(info.object.0),
        }
    }
}

/// Why nothing takes the name of a region: programs see no file there, and would not know what they remove.
fn is_region(name: &ObjectName) -> SourceError {
    let text = format!("{name} is a region (hint: `hinterland rm {name}` removes it)");
    SourceError { code: libc::EBUSY, text }
}

impl PoolFiles {
    pub(crate) fn new_name(&self, path: &str) -> Result<ObjectName, Errno> {
        if !self.owner.writable {
            return Err(Errno::EROFS);
        }
        ObjectName::parse(path).map_err(|error| {
            tracing::info!("{path:?} can be no file: {error}");
            let is_long = matches!(error, hinterland_types::NameError::TooLong { .. });
            if is_long { Errno::ENAMETOOLONG } else { Errno::EINVAL }
        })
    }

    pub(crate) fn remove_file(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let path = self.path(parent, name)?;
        let name = self.new_name(&path)?;
        let _names = self.names();
        let draft = self.drafts.at(&path).filter(|draft| !draft.lock().has_failed());
        let mut found = draft.is_some();
        if let Some(draft) = &draft {
            self.vacate(draft).map_err(|error| logged("removing", &path, &error))?;
        }
        found |= self.remove_object(&name).map_err(|error| logged("removing", &path, &error))?;
        if let Some(draft) = &draft {
            self.unname(draft, &path);
        }
        self.keep_folder_of(&path);
        if found { Ok(()) } else { Err(Errno::ENOENT) }
    }

    /// Removes the object that has a name; whether there was one. What another host puts there meanwhile stays: it comes after the removal.
    fn remove_object(&self, name: &ObjectName) -> Result<bool, SourceError> {
        // A region that another host has made under the name since it was looked up is no file, and stays.
        let Some(object) = self.file_at(name)? else { return Ok(false) };
        match self.source.remove(name, object) {
            Ok(()) => {}
            // It has just gone or been replaced, or another mount is writing another one.
            Err(error) if matches!(error.code, libc::ENOENT | libc::EEXIST) => {
                if self.file_at(name)?.is_none() {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
        self.let_go(object.0);
        Ok(true)
    }

    /// The object that has a name at this moment; nothing if none has it or it is no file.
    fn file_at(&self, name: &ObjectName) -> Result<Option<ObjectId>, SourceError> {
        let known = self.source.stat(name)?;
        Ok(known.filter(|info| info.state == ObjectState::Sealed).map(|info| info.object))
    }

    pub(crate) fn make_folder(
        &self,
        parent: INodeNo,
        name: &OsStr,
        opening: Opening<'_>,
    ) -> Result<Found, Errno> {
        let path = self.path(parent, name)?;
        let object = self.new_name(&path)?;
        let _names = self.names();
        if self.thing(&path, &object)?.is_some() {
            return Err(Errno::EEXIST);
        }
        if !self.folders.make(&path) {
            return Err(Errno::ENOSPC);
        }
        self.remembered.set_folder(&path, opening.marks());
        self.keep_folder_of(&path);
        Ok(self.enter_folder(&path))
    }

    pub(crate) fn remove_folder(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let path = self.path(parent, name)?;
        self.new_name(&path)?;
        let _names = self.names();
        if !self.is_empty_folder(&path)? {
            return Err(Errno::ENOTEMPTY);
        }
        // One whose last object has gone is gone already.
        self.folders.remove(&path);
        self.remembered.forget_folder(&path);
        self.tree().remove_folder(&path);
        self.keep_folder_of(&path);
        Ok(())
    }

    /// Gives a file or a folder another name.
    pub(crate) fn rename_entry(
        &self,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let (from, to) = (self.path(from.0, from.1)?, self.path(to.0, to.1)?);
        let names = (self.new_name(&from)?, self.new_name(&to)?);
        if flags.contains(RenameFlags::RENAME_WHITEOUT) {
            return Err(Errno::EINVAL);
        }
        let exchanges = flags.contains(RenameFlags::RENAME_EXCHANGE);
        let _names = self.names();
        let here = self.thing(&from, &names.0)?.ok_or(Errno::ENOENT)?;
        let there = self.thing(&to, &names.1)?;
        let renamed = [here.file(), there.as_ref().filter(|_| exchanges).and_then(Thing::file)];
        let keeps = flags.contains(RenameFlags::RENAME_NOREPLACE);
        if there.is_some() && keeps {
            return Err(Errno::EEXIST);
        }
        if let Some(Thing::Object(info)) = &there
            && info.state == ObjectState::Mutable
        {
            return Err(logged("renaming", &from, &is_region(&info.name)));
        }
        let outcome = match (here, there) {
            (Thing::Object(one), Some(Thing::Object(other))) if exchanges => self.exchange(&one, &other),
            // Folders and files that are being written are not exchanged.
            _ if exchanges => Err(Errno::EINVAL),
            (Thing::Folder, Some(Thing::Object(_) | Thing::Draft(_))) => Err(Errno::ENOTDIR),
            (Thing::Folder, there) => self.move_folder((&from, &names.0), (&to, &names.1), there.is_some()),
            (_, Some(Thing::Folder)) => Err(Errno::EISDIR),
            (here, there) => self.move_file((&from, &names.0), here, (&to, &names.1), there, keeps),
        };
        outcome?;
        renamed.into_iter().flatten().for_each(|inode| self.remembered.renamed(inode));
        self.keep_folder_of(&from);
        self.keep_folder_of(&to);
        Ok(())
    }

    fn exchange(&self, one: &ObjectInfo, other: &ObjectInfo) -> Result<(), Errno> {
        let exchanged = self.source.rename(one.object, &one.name, &other.name, RenameTarget::Exchange);
        exchanged.map_err(|error| logged("exchanging", one.name.as_str(), &error))?;
        let mut tree = self.tree();
        tree.rename_file(one.object, &other.name);
        tree.rename_file(other.object, &one.name);
        Ok(())
    }

    fn move_file(
        &self,
        from: (&str, &ObjectName),
        here: Thing,
        to: (&str, &ObjectName),
        there: Option<Thing>,
        keeps: bool,
    ) -> Result<(), Errno> {
        let said = |error: SourceError| logged("renaming", from.0, &error);
        // What is being written was found without asking what has its name in the pool by now.
        for (thing, name) in [(Some(&here), from.1), (there.as_ref(), to.1)] {
            if matches!(thing, Some(Thing::Draft(_)))
                && self
                    .source
                    .stat(name)
                    .map_err(said)?
                    .is_some_and(|info| info.state == ObjectState::Mutable)
            {
                return Err(said(is_region(name)));
            }
        }
        let mut covered = None;
        match &there {
            Some(Thing::Draft(draft)) => {
                covered = draft.lock().covered();
                self.vacate(draft).map_err(said)?;
            }
            Some(Thing::Object(info)) => covered = Some(info.object),
            _ => {}
        }
        let moved = match here {
            Thing::Draft(draft) => self.move_draft(&draft, from, to, covered, keeps),
            Thing::Object(info) => self.move_what_is_there(info.object, (from.1, to.1), covered, keeps),
            Thing::Folder => return Err(Errno::EISDIR),
        };
        moved.map_err(|error| match error.code {
            // Another host was first.
            libc::EEXIST if keeps => Errno::EEXIST,
            _ => said(error),
        })?;
        if let Some(Thing::Draft(draft)) = there {
            self.unname(&draft, to.0);
        }
        Ok(())
    }

    /// As [`move_object`](Self::move_object), however often other hosts replace the object: what has its name goes, unless that is no file.
    fn move_what_is_there(
        &self,
        mut object: ObjectId,
        (from, to): (&ObjectName, &ObjectName),
        covered: Option<ObjectId>,
        keeps: bool,
    ) -> Result<(), SourceError> {
        let mut tries = 0;
        loop {
            let moved = self.move_object(object, (from, to), covered, keeps);
            let Err(error) = &moved else { return Ok(()) };
            tries += 1;
            if error.code != libc::ENOENT || tries == OPENS_MAX {
                return moved;
            }
            match self.source.stat(from)? {
                Some(info) if info.state == ObjectState::Mutable => return Err(is_region(from)),
                Some(info) if info.object != object => object = info.object,
                _ => return moved,
            }
        }
    }

    /// Gives an object another name, in the place of what has it unless that is to keep it.
    fn move_object(
        &self,
        object: ObjectId,
        (from, to): (&ObjectName, &ObjectName),
        covered: Option<ObjectId>,
        keeps: bool,
    ) -> Result<(), SourceError> {
        let target = if keeps { RenameTarget::Refuse } else { RenameTarget::Replace };
        match self.source.rename(object, from, to, target) {
            Ok(()) => {
                self.tree().rename_file(object, to);
                covered.into_iter().for_each(|covered| self.let_go(covered.0));
                Ok(())
            }
            // Another mount is writing it.
            Err(error) if error.code == libc::EEXIST && !keeps => {
                Err(SourceError { code: libc::EBUSY, ..error })
            }
            Err(error) => Err(error),
        }
    }

    /// The same of a file that is being written.
    fn move_draft(
        &self,
        draft: &Draft,
        from: (&str, &ObjectName),
        to: (&str, &ObjectName),
        covered: Option<ObjectId>,
        keeps: bool,
    ) -> Result<(), SourceError> {
        let mut inner = draft.lock();
        // What was nothing before has no name in the pool; what has the other name there goes when this is closed.
        let before = inner.before.as_ref().map(|before| before.object);
        let moved = before.map(|object| self.move_object(object, (from.1, to.1), covered, keeps));
        let is_moved = match moved {
            Some(Err(error)) if error.code != libc::ENOENT => return Err(error),
            moved => moved.is_some_and(|moved| moved.is_ok()),
        };
        if keeps && !is_moved {
            // From here on no other host gets the name, which this one has seen free.
            inner.claim(to.1)?;
        }
        // What had its name here before it is not seen again.
        if let Some(object) = inner.covers {
            self.remove_covered(from.1, object)?;
        }
        inner.covers = covered.filter(|_| !is_moved);
        inner.rename(to.1)?;
        self.drafts.rename(from.0, to.0);
        self.drafts.take(draft.inode, inner.taken.as_ref().map(|taken| taken.as_str()));
        Ok(())
    }

    /// Has a file that is being written yield its name in the pool to what is to have it. It has the name here still: what follows may fail.
    fn vacate(&self, draft: &Draft) -> Result<(), SourceError> {
        let mut inner = draft.lock();
        match inner.yield_name() {
            // The name of a put that is lost was given back with it.
            Err(error) if inner.check().is_ok() => return Err(error),
            _ => {}
        }
        self.drafts.take(draft.inode, inner.taken.as_ref().map(|taken| taken.as_str()));
        Ok(())
    }

    /// Takes the name here from a file that is being written. It is open somewhere perhaps, and goes on without.
    fn unname(&self, draft: &Draft, path: &str) {
        draft.lock().remove_name();
        self.drafts.remove_name(path, draft.inode);
        self.drafts.give_back(draft.inode);
    }

    /// Removes an object that was replaced, unless its name has gone to another one.
    fn remove_covered(&self, name: &ObjectName, object: ObjectId) -> Result<(), SourceError> {
        match self.source.remove(name, object) {
            Ok(()) => self.let_go(object.0),
            Err(error) if error.code == libc::ENOENT => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn move_folder(
        &self,
        from: (&str, &ObjectName),
        to: (&str, &ObjectName),
        replaces: bool,
    ) -> Result<(), Errno> {
        if replaces && !self.is_empty_folder(to.0)? {
            return Err(Errno::ENOTEMPTY);
        }
        // Whatever may be refused comes before anything moves in the pool: a folder moves whole or not at all.
        let renamed = |rest: &str| self.new_name(&format!("{}/{rest}", to.0));
        for rest in self.folders.below(from.0) {
            renamed(&rest)?;
        }
        let mut drafts = Vec::new();
        for (rest, draft) in self.drafts.below(from.0) {
            drafts.push((format!("{}/{rest}", from.0), renamed(&rest)?, draft));
        }
        for (path, _, draft) in &drafts {
            self.vacate(draft).map_err(|error| logged("renaming", path, &error))?;
        }
        match self.source.rename_folder(from.1, to.1) {
            Ok(()) => {}
            // Nothing of it is in the pool.
            Err(error) if error.code == libc::ENOENT => {}
            Err(error) => return Err(logged("renaming", from.0, &error)),
        }
        self.folders.remove(to.0);
        self.remembered.forget_folder(to.0);
        for (path, name, draft) in drafts {
            self.drafts.rename(&path, name.as_str());
            draft.lock().name = Some(name);
        }
        self.folders.rename(from.0, to.0);
        self.folders.make(to.0);
        self.remembered.rename_folder(from.0, to.0);
        self.tree().rename_folder(from.0, to.0);
        Ok(())
    }

    fn thing(&self, path: &str, name: &ObjectName) -> Result<Option<Thing>, Errno> {
        if let Some(draft) = self.drafts.at(path).filter(|draft| !draft.lock().has_failed()) {
            return Ok(Some(Thing::Draft(draft)));
        }
        let known = self.source.stat(name).map_err(|error| logged("lookup", path, &error))?;
        if let Some(info) = known {
            // A region is no file, but its name is taken.
            return Ok(Some(Thing::Object(info)));
        }
        Ok(self.has_folder(path)?.then_some(Thing::Folder))
    }

    fn is_empty_folder(&self, path: &str) -> Result<bool, Errno> {
        let filled = is_folder(&*self.source, path).map_err(|error| logged("lookup", path, &error))?;
        Ok(!filled && self.folders.within(path).is_empty() && self.drafts.below(path).is_empty())
    }

    /// Notes that a folder has changed; it stays if its last file has gone.
    fn keep_folder_of(&self, path: &str) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        if !folder.is_empty() {
            self.folders.make(folder);
        }
        self.touch_folder(folder);
    }

    /// Notes when a folder has changed.
    pub(crate) fn touch_folder(&self, folder: &str) {
        let mut marks = self.remembered.folder(folder).unwrap_or_else(|| self.owner.folder_marks());
        marks.modified = SystemTime::now();
        marks.changed = marks.modified;
        self.remembered.set_folder(folder, marks);
    }
}
