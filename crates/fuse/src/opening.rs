//! Opening, writing, closing and publishing files.

use crate::draft::{Access, Draft, Fate, LastWriter, hidden_name};
use crate::family::OpenedFile;
use crate::filesystem::{Found, PoolFiles, logged};
use crate::mount::Trace;
use crate::open_files::OpenFile;
use crate::remembered::Marks;
use crate::source::SourceError;
use crate::writer::Closer;
use fuser::{Errno, INodeNo, Request};
use hinterland_proto::control::{ObjectInfo, ObjectState};
use hinterland_types::ObjectName;
use nix::libc;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The handle of a file that is being written, for writing.
pub(crate) const DRAFT_WRITING: u64 = 1;
/// The same for reading. Handles of objects are 0.
pub(crate) const DRAFT_READING: u64 = 2;

/// Pause until it is looked again whether somebody has opened a file that they were told of: the kernel needs two requests for that.
const COMING_PAUSE: Duration = Duration::from_micros(200);

/// Who makes or opens something, and how.
pub(crate) struct Opening<'request> {
    pub(crate) request: &'request Request,
    pub(crate) mode: u32,
    pub(crate) flags: i32,
}

impl Opening<'_> {
    /// What is remembered of what is made.
    pub(crate) fn marks(&self) -> Marks {
        let time = SystemTime::now();
        Marks {
            // Cut to the bits of permissions.
            mode: (self.mode & 0o7777) as u16,
            user: self.request.uid(),
            group: self.request.gid(),
            accessed: time,
            modified: time,
            changed: time,
        }
    }
}

impl PoolFiles {
    /// Begins a file, or opens the one that somebody has begun meanwhile.
    pub(crate) fn begin_file(
        &self,
        parent: INodeNo,
        name: &OsStr,
        opening: Opening<'_>,
    ) -> Result<Found, Errno> {
        let path = self.path(parent, name)?;
        let name = self.new_name(&path)?;
        let _names = self.names();
        let is_exclusive = opening.flags & libc::O_EXCL != 0;
        let draft = match self.drafts.at(&path) {
            Some(_) if is_exclusive => return Err(Errno::EEXIST),
            Some(draft) if !draft.lock().has_failed() => draft,
            Some(failed) => {
                self.drafts.remove_name(&path, failed.inode);
                self.make_draft(&path, &name, &opening)?
            }
            None => self.make_draft(&path, &name, &opening)?,
        };
        let found = self.enter_draft(&draft).ok_or(Errno::EIO)?;
        draft.lock().open(opening.request.pid(), true);
        Ok(found)
    }

    /// Makes an empty object.
    pub(crate) fn make_empty_file(
        &self,
        parent: INodeNo,
        name: &OsStr,
        opening: Opening<'_>,
    ) -> Result<Found, Errno> {
        let found = self.begin_file(parent, name, opening)?;
        self.release_draft(found.attributes.ino, true);
        Ok(found)
    }

    fn make_draft(&self, path: &str, name: &ObjectName, opening: &Opening<'_>) -> Result<Arc<Draft>, Errno> {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let placing = self.remembered.placing(folder);
        let (taken, put) = match self.source.create(name, &placing) {
            Ok(put) => (name.clone(), put),
            Err(error) if error.code == libc::EEXIST && self.drafts.has_taken(path) => {
                let hidden = hidden_name().map_err(|error| logged("making", path, &error))?;
                let put = self.source.create(&hidden, &placing);
                (hidden, put.map_err(|error| logged("making", path, &error))?)
            }
            // Another host has made it since the kernel asked: it looks again, but only once, and finds a file then that can be written.
            Err(error) if error.code == libc::EEXIST && opening.flags & libc::O_EXCL == 0 => {
                let known = self.source.stat(name).ok().flatten();
                let is_there = known.is_some_and(|info| info.state == ObjectState::Sealed);
                if is_there {
                    self.reopen_named(opening.request.pid(), name)?;
                    return Err(Errno::ESTALE);
                }
                return Err(logged("making", path, &SourceError { code: libc::EBUSY, ..error }));
            }
            Err(error) => return Err(logged("making", path, &error)),
        };
        let inode = put.object().0;
        self.remembered.set_file(inode, opening.marks());
        self.touch_folder(folder);
        let thread = opening.request.pid();
        let draft = Arc::new(Draft::new(inode, name, taken.clone(), put, placing, thread));
        self.drafts.insert(path, Some(taken.as_str()), draft.clone());
        Ok(draft)
    }

    /// Opens a file that is being written; false if it is an object that is to be read. An object that is to be written becomes a file
    /// of another number, which the kernel finds when it looks the name up again.
    pub(crate) fn open_draft(
        &self,
        thread: u32,
        inode: INodeNo,
        writes: bool,
        truncates: bool,
    ) -> Result<bool, Errno> {
        if let Some(draft) = self.drafts.find(inode.0) {
            let mut inner = draft.lock();
            match inner.fate {
                // What has its name becomes a file at once: the kernel looks it up again, but only once.
                _ if writes && (inner.is_over() || inner.has_ended) => {}
                Fate::Published(_) if inner.has_ended => {}
                // It failed, has no name any more, or is the object that it was: the kernel looks.
                Fate::Failed(_) => return Err(Errno::ESTALE),
                _ if inner.has_ended => return Err(Errno::ESTALE),
                _ => {
                    inner.open(thread, writes);
                    let cut = if truncates { inner.resize(&*self.source, 0) } else { Ok(()) };
                    if cut.is_err() {
                        inner.handles -= 1;
                        inner.writers -= 1;
                    } else if truncates {
                        self.remembered.written(inode.0);
                    }
                    return cut.map(|()| true).map_err(|error| logged("opening", inner.shown(), &error));
                }
            }
        }
        if !writes {
            return Ok(false);
        }
        self.reopen(thread, inode)?;
        Err(Errno::ESTALE)
    }

    /// Makes an object a file that can be written, under its name.
    pub(crate) fn reopen(&self, thread: u32, inode: INodeNo) -> Result<(), Errno> {
        let info = self.file(inode)?;
        let _names = self.names();
        self.reopen_named(thread, &info.name)
    }

    /// The same by its name, while names stay as they are.
    fn reopen_named(&self, thread: u32, name: &ObjectName) -> Result<(), Errno> {
        let path = name.as_str();
        if let Some(draft) = self.drafts.at(path) {
            let mut inner = draft.lock();
            if !inner.is_over() && !inner.has_ended {
                inner.expect(thread);
                return Ok(());
            }
        }
        let known = self.open_named(name).map_err(|error| logged("opening", path, &error))?;
        let Some((info, contents)) = known else { return Ok(()) };
        let file = OpenFile::plain(contents);
        // Another host has made a link of it: the kernel looks the name up again, and goes where that leads.
        if self.target_in(&info, &file).map_err(|error| logged("opening", path, &error))?.is_some() {
            self.coming.follow(thread);
            return Ok(());
        }
        let number = self.drafts.next_inode();
        let info = Arc::new(info);
        self.remembered.goes_on(info.object.0, number);
        let draft = Draft::reopened(number, info.clone(), file, thread);
        draft.lock().expect(thread);
        self.drafts.insert(path, None, Arc::new(draft));
        Ok(())
    }

    /// Makes an object a file that can be written as it is looked up, for a thread that does not look again.
    pub(crate) fn enter_followed(&self, thread: u32, name: &ObjectName) -> Option<Found> {
        let _names = self.names();
        // If that cannot be, the thread hears of it when it opens the object.
        self.reopen_named(thread, name).ok()?;
        self.drafts.at(name.as_str()).and_then(|draft| self.enter_draft(&draft))
    }

    /// Writes to a file; `thread` is who asks, if that is a program.
    pub(crate) fn write_file(
        &self,
        thread: Option<u32>,
        inode: INodeNo,
        offset: u64,
        data: &[u8],
    ) -> Result<(), Errno> {
        let draft = self.drafts.find(inode.0).ok_or(Errno::EBADF)?;
        self.go_on(&draft)?;
        let mut inner = draft.lock();
        if let Some(thread) = thread {
            inner.written_by(thread);
        }
        let written = inner.write(&*self.source, offset, data);
        written.map_err(|error| logged("writing", inner.shown(), &error))?;
        self.remembered.written(inode.0);
        Ok(())
    }

    /// A descriptor of a file changes it that was published: nobody could know of it, as it was on its way through a socket, or of a process
    /// whose parent had ended. It is written on from what was published, under the name that this has now, and published again.
    pub(crate) fn go_on(&self, draft: &Draft) -> Result<(), Errno> {
        if !matches!(draft.lock().fate, Fate::Published(_)) {
            return Ok(());
        }
        let _names = self.names();
        let mut inner = draft.lock();
        let Fate::Published(published) = &inner.fate else { return Ok(()) };
        // By its identifier: it may have another name since.
        let info = self.file(INodeNo(draft.inode)).ok().filter(|info| info.object == published.object);
        let info = info.unwrap_or_else(|| Arc::clone(published));
        let path = info.name.as_str();
        let said = |error: SourceError| logged("writing", path, &error);
        let found = self.source.stat(&info.name).map_err(said)?;
        let is_other = found.as_ref().is_some_and(|found| found.object != info.object);
        if is_other || self.drafts.at(path).is_some() {
            let text = "others have written it since it was published (hint: close it last)".to_owned();
            return Err(said(SourceError { code: libc::EIO, text }));
        }
        // Of a file that was removed since, nothing is to come, and only this has its bytes.
        let file = if found.is_some() || inner.contents.needs_pool() {
            let gone = |error| match error {
                SourceError { code: libc::ENOENT, text } => SourceError { code: libc::EIO, text },
                other => other,
            };
            Some(OpenFile::plain(self.source.open(&info).map_err(gone).map_err(said)?))
        } else {
            None
        };
        inner.go_on(&info, file, found.is_some());
        if found.is_some() {
            self.drafts.name_again(path, draft.inode);
        }
        Ok(())
    }

    /// Makes a file longer, or a part of it zeros.
    pub(crate) fn allocate(&self, inode: INodeNo, offset: u64, length: u64, mode: i32) -> Result<(), Errno> {
        let draft = self.drafts.find(inode.0).ok_or(Errno::EBADF)?;
        self.go_on(&draft)?;
        let mut inner = draft.lock();
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        let keeps = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let blanks = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
        if mode & !(libc::FALLOC_FL_KEEP_SIZE | blanks) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut outcome = inner.check();
        if outcome.is_ok() && !keeps && end > inner.bytes() {
            outcome = inner.resize(&*self.source, end);
        }
        if outcome.is_ok() && mode & blanks != 0 {
            outcome = inner.blank(&*self.source, offset, length);
        }
        self.remembered.written(inode.0);
        outcome.map_err(|error| logged("allocating", inner.shown(), &error))
    }

    /// Whether a file that is being written can still become an object.
    pub(crate) fn check_draft(&self, inode: INodeNo) -> Result<(), Errno> {
        let Some(draft) = self.drafts.find(inode.0) else { return Ok(()) };
        let inner = draft.lock();
        inner.check().map_err(|error| logged("fsync", inner.shown(), &error))
    }

    /// A descriptor for writing is closed.
    pub(crate) fn close(&self, thread: u32, inode: INodeNo) -> Result<(), Errno> {
        let Some(draft) = self.drafts.find(inode.0) else { return Ok(()) };
        let closer = Closer::of(thread);
        let flushed = draft.lock().flush(&closer);
        let may_be_last = flushed.map_err(|error| {
            self.forget_failed(&draft);
            logged("closing", draft.lock().shown(), &error)
        })?;
        self.forget_failed(&draft);
        // Without the lock of the file: who closes it may wait for that in another thread.
        let file = OpenedFile { device: self.kept.get().map(Trace::device), inode: inode.0 };
        match may_be_last.filter(|_| closer.is_alone_without(file)) {
            Some(access) => self.publish(&draft, access),
            None => Ok(()),
        }
    }

    /// A handle is not used any more.
    pub(crate) fn release_draft(&self, inode: INodeNo, writes: bool) {
        let Some(draft) = self.drafts.find(inode.0) else { return };
        let writers = {
            let mut inner = draft.lock();
            inner.writers -= u64::from(writes);
            inner.writers
        };
        if writes && writers == 0 {
            self.end_writing(&draft);
        }
        self.forget_failed(&draft);
        let is_over = {
            let mut inner = draft.lock();
            inner.handles -= 1;
            let is_over = inner.is_to_end();
            inner.has_ended |= is_over;
            is_over
        };
        if is_over {
            self.end_draft(&draft);
        }
    }

    /// Nobody writes a file any more: it is published, unless a signal has ended the process that wrote last.
    fn end_writing(&self, draft: &Draft) {
        let last = draft.lock().last_writer();
        if last.is_some_and(LastWriter::was_killed) {
            draft.lock().writer_was_killed();
            self.forget_failed(draft);
        }
        // Nobody hears of it but the log.
        let _ = self.publish(draft, Access::None);
    }

    /// Makes a file an object, if it is to be one and has changed, unless somebody has more access to write it.
    pub(crate) fn publish(&self, draft: &Draft, access: Access) -> Result<(), Errno> {
        let said = |error: &SourceError| logged("publishing", draft.lock().shown(), error);
        loop {
            {
                let mut inner = draft.lock();
                if inner.is_over() || !inner.changed || !inner.is_to_publish(access) {
                    return Ok(());
                }
                if inner.is_awaited() {
                    drop(inner);
                    std::thread::sleep(COMING_PAUSE);
                    continue;
                }
                let pushed = inner.push(&*self.source);
                if let Err(error) = pushed {
                    drop(inner);
                    self.forget_failed(draft);
                    return Err(said(&error));
                }
            }
            let _names = self.names();
            let mut inner = draft.lock();
            if !inner.is_pushed() || !inner.is_to_publish(access) || inner.is_awaited() {
                // Somebody has written or opened it meanwhile, or removed it, or is to open it.
                continue;
            }
            let name = inner.name.clone();
            let published = inner.publish();
            if let (Ok(Some(info)), true) = (&published, inner.handles > 1) {
                self.read_published(&mut inner, info);
            }
            if let Ok(Some(info)) = &published {
                self.remembered.goes_on(draft.inode, info.object.0);
                self.tree().renew(draft.inode, info.clone());
                if let Some(replaced) = inner.covered().filter(|replaced| *replaced != info.object) {
                    self.let_go(replaced.0);
                }
            }
            drop(inner);
            if let Some(name) = name {
                self.drafts.remove_name(name.as_str(), draft.inode);
            }
            self.drafts.give_back(draft.inode);
            return published.map(drop).map_err(|error| said(&error));
        }
    }

    /// The mount has ended, and nobody asks any more. The kernel ends one in which no file is open without waiting for the releases that
    /// it has not handed out: what they would have published is published here. Of a mount that ended although files were open, as when the
    /// connection was aborted, nobody knows what its programs had still to write.
    pub(crate) fn publish_rest(&self) {
        let rest = self.drafts.all();
        if rest.is_empty() || !self.kept.get().is_some_and(Trace::goes) {
            return;
        }
        for draft in rest {
            {
                let mut inner = draft.lock();
                (inner.handles, inner.writers) = (0, 0);
            }
            self.end_writing(&draft);
        }
    }

    /// Those who still read what was published read the object, so that the memory of the file is free.
    fn read_published(&self, inner: &mut crate::draft::Inner, info: &ObjectInfo) {
        match self.source.open(info) {
            Ok(contents) => inner.contents.replace_by(OpenFile::plain(contents)),
            // They go on with what is here.
            Err(error) => tracing::warn!("{} cannot be read where it lies: {error}", info.name),
        }
    }

    /// The last who has a file open that was published reads it once more: a part of its bytes may lie in the pool only.
    pub(crate) fn reach_published(&self, inner: &mut crate::draft::Inner) {
        if let Fate::Published(info) = &inner.fate
            && inner.contents.needs_pool()
        {
            let info = Arc::clone(info);
            self.read_published(inner, &info);
        }
    }

    /// Takes the name from a file that failed: what has it in the pool is found again.
    fn forget_failed(&self, draft: &Draft) {
        let name = {
            let inner = draft.lock();
            inner.has_failed().then(|| inner.name.clone()).flatten()
        };
        if let Some(name) = name {
            self.drafts.remove_name(name.as_str(), draft.inode);
            self.drafts.give_back(draft.inode);
        }
    }

    /// Nobody has the file open any more. If the kernel still knows its number, that is the object's, or one that it was.
    pub(crate) fn end_draft(&self, draft: &Draft) {
        let (before, lives) = {
            let inner = draft.lock();
            match &inner.fate {
                Fate::Open if !inner.changed => (inner.before.clone(), false),
                Fate::Published(info) => (None, info.object.0 == draft.inode),
                _ => (None, false),
            }
        };
        if let Some(before) = before {
            // What was set of the file while it was open holds of the object that it still is.
            self.remembered.goes_on(draft.inode, before.object.0);
            self.tree().renew(draft.inode, before);
        }
        self.drafts.remove(draft);
        // An object of that number is there from here on; else only the kernel may know it still.
        if !lives {
            self.let_go(draft.inode);
        }
    }
}
