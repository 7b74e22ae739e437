//! Lengths, modes, owners, times and extended attributes that programs set.

use crate::attributes::{attribute, placed};
use crate::draft::Access;
use crate::filesystem::{PoolFiles, logged};
use crate::remembered::Marks;
use crate::source::{Placing, SourceError};
use crate::tree::Entry;
use fuser::{Errno, FileAttr, INodeNo, TimeOrNow};
use nix::libc;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is to be set of a file or a folder.
#[derive(Clone, Copy)]
pub(crate) struct Changes {
    pub(crate) mode: Option<u32>,
    pub(crate) user: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) bytes: Option<u64>,
    pub(crate) accessed: Option<TimeOrNow>,
    pub(crate) modified: Option<TimeOrNow>,
}

impl PoolFiles {
    /// Sets the length, or what the mount remembers; `is_open` if by a descriptor for writing.
    pub(crate) fn change(
        &self,
        thread: u32,
        inode: INodeNo,
        is_open: bool,
        changes: Changes,
    ) -> Result<(FileAttr, Duration), Errno> {
        if !self.owner.writable {
            return Err(Errno::EROFS);
        }
        if let Some(bytes) = changes.bytes {
            if is_open {
                self.drafts.find(inode.0).map_or(Ok(()), |draft| self.go_on(&draft))?;
            }
            self.set_length(thread, inode, bytes)?;
        }
        match self.entry(inode)? {
            Entry::Folder(path) => {
                let marks = self.remembered.folder(&path).unwrap_or_else(|| self.owner.folder_marks());
                self.remembered.set_folder(&path, changes.applied(marks));
            }
            Entry::File(_) => {
                let marks = self.remembered.file(inode.0).unwrap_or_else(|| self.owner.file_marks());
                self.remembered.set_file(inode.0, changes.applied(marks));
            }
            Entry::Link(_) => {
                let marks = self.remembered.file(inode.0).unwrap_or_else(|| self.owner.link_marks());
                self.remembered.set_file(inode.0, changes.applied(marks));
            }
        }
        self.attributes(inode)
    }

    fn set_length(&self, thread: u32, inode: INodeNo, bytes: u64) -> Result<(), Errno> {
        let Some(draft) = self.drafts.find(inode.0).filter(|draft| !draft.lock().is_over()) else {
            // As when it is opened to be written: the kernel looks its name up again.
            self.reopen(thread, inode)?;
            return Err(Errno::ESTALE);
        };
        let is_open = {
            let mut inner = draft.lock();
            let resized = inner.resize(&*self.source, bytes);
            resized.map_err(|error| logged("resizing", inner.shown(), &error))?;
            // `truncate` opens nothing.
            inner.has_come(thread);
            inner.writers > 0
        };
        self.remembered.written(inode.0);
        if !is_open {
            // Nobody is going to close it.
            self.publish(&draft, Access::None)?;
            let is_over = {
                let mut inner = draft.lock();
                let is_over = inner.is_to_end();
                inner.has_ended |= is_over;
                is_over
            };
            if is_over {
                self.end_draft(&draft);
            }
        }
        Ok(())
    }

    /// What is known of a file or folder, and where it or what is made in it is to lie.
    pub(crate) fn described(&self, inode: INodeNo) -> Result<(Entry, Placing), Errno> {
        if let Some(draft) = self.drafts.find(inode.0) {
            let inner = draft.lock();
            if let Some(info) = inner.describe_unless_failed(inode.0) {
                return Ok((Entry::File(Arc::new(info)), inner.placing.clone()));
            }
        }
        let entry = self.entry(inode)?;
        let placing = match &entry {
            Entry::Folder(path) => self.remembered.own_placing(path),
            Entry::File(_) | Entry::Link(_) => Placing::default(),
        };
        Ok((entry, placing))
    }

    /// Sets an extended attribute, or takes it away. The flags, as of `setxattr`, say whether there must be one or none.
    pub(crate) fn set_attribute(
        &self,
        inode: INodeNo,
        name: &OsStr,
        value: Option<&[u8]>,
        flags: i32,
    ) -> Result<(), Errno> {
        if !self.owner.writable {
            return Err(Errno::EROFS);
        }
        let name = name.to_str().ok_or(Errno::EOPNOTSUPP)?;
        let (entry, placing) = self.described(inode)?;
        let (known, placing) = (attribute(&entry, &placing, name), placed(&placing, name, value)?);
        match flags {
            libc::XATTR_CREATE if known.is_some() => return Err(Errno::EEXIST),
            libc::XATTR_REPLACE if known.is_none() => return Err(Errno::NO_XATTR),
            _ => {}
        }
        match entry {
            Entry::Folder(path) => {
                self.remembered.place(&path, placing);
                Ok(())
            }
            Entry::Link(_) => Err(Errno::EPERM),
            Entry::File(info) => {
                let Some(draft) = self.drafts.find(inode.0) else {
                    let text = format!(
                        "{} is sealed: where it lies is decided before its first byte (hint: set the attribute on the folder and copy the file)",
                        info.name
                    );
                    return Err(logged(
                        "placing",
                        info.name.as_str(),
                        &SourceError { code: libc::EBUSY, text },
                    ));
                };
                let mut inner = draft.lock();
                let placed = inner.place(&*self.source, placing);
                self.drafts.take(inode.0, inner.taken.as_ref().map(|taken| taken.as_str()));
                placed.map_err(|error| logged("placing", info.name.as_str(), &error))
            }
        }
    }
}

impl Changes {
    fn applied(self, marks: Marks) -> Marks {
        let now = SystemTime::now();
        let time = |new: Option<TimeOrNow>, old| match new {
            Some(TimeOrNow::SpecificTime(time)) => as_given(time),
            Some(TimeOrNow::Now) => now,
            None => old,
        };
        Marks {
            // Cut to the bits of permissions.
            mode: self.mode.map_or(marks.mode, |mode| (mode & 0o7777) as u16),
            user: self.user.unwrap_or(marks.user),
            group: self.group.unwrap_or(marks.group),
            accessed: time(self.accessed, marks.accessed),
            modified: time(self.modified, marks.modified),
            changed: now,
        }
    }
}

/// A time as the program gave it: before 1970 `fuser` takes the fraction of a second away, which the kernel has to be added.
fn as_given(time: SystemTime) -> SystemTime {
    let Err(before) = time.duration_since(UNIX_EPOCH) else { return time };
    let fraction = Duration::from_nanos(before.duration().subsec_nanos().into());
    time + 2 * fraction
}
