//! A pool as a tree of files: finding names, telling attributes, listing folders, reading.

use crate::attributes::Owner;
use crate::coming::Coming;
use crate::draft::Draft;
use crate::drafts::Drafts;
use crate::folders::Folders;
use crate::links::{FormerPools, LINK_BYTES};
use crate::listing::{Child, children, is_folder};
use crate::mount::Trace;
use crate::open_files::{OpenFile, OpenFiles, may_pass_through};
use crate::remembered::Remembered;
use crate::replaced::Replaced;
use crate::source::{Contents, Source, SourceError};
use crate::tree::{Entry, ROOT, Tree, inode_of, join};
use fuser::{BackingId, Errno, FileAttr, FileHandle, FileType, INodeNo, ReplyOpen};
use hinterland_proto::control::{ObjectInfo, ObjectState};
use hinterland_types::ObjectName;
use hinterland_types::limits::NAME_COMPONENT_BYTES_MAX;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// How long the kernel keeps attributes of objects: they never change.
pub(crate) const ATTRIBUTE_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// How long the kernel keeps that a name leads to an object: names come and go.
pub(crate) const ENTRY_LIFETIME: Duration = Duration::from_secs(1);
/// How often a name is asked for again when its object has gone as it was to be opened: each time somebody has replaced it meanwhile.
pub(crate) const OPENS_MAX: usize = 100;
/// The inode number of a folder in a listing that the kernel was not told of yet.
const UNKNOWN_INODE: u64 = u32::MAX as u64;

pub(crate) type Listing = Arc<Vec<(String, Child)>>;

/// A folder that somebody reads.
struct OpenFolder {
    listing: Listing,
    /// Whether its beginning was read: who reads that again wants to see what has changed.
    has_begun: bool,
}

/// A pool as a file system.
pub(crate) struct PoolFiles {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) owner: Owner,
    pub(crate) passthrough: Arc<AtomicBool>,
    tree: Mutex<Tree>,
    pub(crate) open_files: OpenFiles,
    pub(crate) drafts: Arc<Drafts>,
    pub(crate) folders: Folders,
    pub(crate) remembered: Remembered,
    replaced: Replaced,
    pub(crate) coming: Coming,
    pub(crate) former_pools: FormerPools,
    /// Held while names change, so that each change sees all of the one before. Taken before any draft.
    names: Mutex<()>,
    open_folders: Mutex<HashMap<u64, OpenFolder>>,
    pub(crate) listing_count: AtomicU64,
    pub(crate) ended: Mutex<Sender<()>>,
    /// Whether the kernel has the mount still; nothing before it is mounted, or where that is not shown.
    pub(crate) kept: Arc<OnceLock<Trace>>,
}

/// What a name leads to, and how long the kernel may take that for true.
pub(crate) struct Found {
    pub(crate) attributes: FileAttr,
    pub(crate) attributes_for: Duration,
    pub(crate) name_for: Duration,
}

impl PoolFiles {
    /// A file system that offers passthrough while `passthrough` is true (it turns false when the kernel
    /// refuses), and sends on `ended` once it is unmounted.
    pub(crate) fn new(
        source: Arc<dyn Source>,
        owner: Owner,
        passthrough: Arc<AtomicBool>,
        drafts: Arc<Drafts>,
        (kept, ended): (Arc<OnceLock<Trace>>, Sender<()>),
    ) -> Self {
        Self {
            source,
            owner,
            passthrough,
            tree: Mutex::new(Tree::new()),
            open_files: OpenFiles::default(),
            drafts,
            folders: Folders::default(),
            remembered: Remembered::default(),
            replaced: Replaced::default(),
            coming: Coming::default(),
            former_pools: FormerPools::default(),
            names: Mutex::default(),
            open_folders: Mutex::default(),
            listing_count: AtomicU64::new(0),
            ended: Mutex::new(ended),
            kept,
        }
    }

    pub(crate) fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel takes back so many of the times that it was told of a file or a folder.
    pub(crate) fn take_back(&self, inode: u64, count: u64) {
        let is_unknown = self.tree().forget(inode, count);
        if is_unknown {
            self.remembered.forget_if_gone(inode);
        }
    }

    /// Nobody finds a file any more: what is remembered of it is forgotten, as soon as nobody has it open.
    pub(crate) fn let_go(&self, inode: u64) {
        self.remembered.is_gone(inode);
        let is_unknown = self.tree().entry(inode).is_none();
        if is_unknown {
            self.remembered.forget_if_gone(inode);
        }
    }

    pub(crate) fn names(&self) -> MutexGuard<'_, ()> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_folders(&self) -> MutexGuard<'_, HashMap<u64, OpenFolder>> {
        self.open_folders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an inode number stands for. One that nothing is known of is stale, which has the kernel look its name up again.
    pub(crate) fn entry(&self, inode: INodeNo) -> Result<Entry, Errno> {
        self.tree().entry(inode.0).ok_or(Errno::ESTALE)
    }

    pub(crate) fn file(&self, inode: INodeNo) -> Result<Arc<ObjectInfo>, Errno> {
        match self.entry(inode)? {
            Entry::File(info) => Ok(info),
            Entry::Folder(_) => Err(Errno::EISDIR),
            Entry::Link(_) => Err(Errno::ELOOP),
        }
    }

    pub(crate) fn folder(&self, inode: INodeNo) -> Result<Arc<str>, Errno> {
        match self.entry(inode)? {
            Entry::Folder(path) => Ok(path),
            Entry::File(_) | Entry::Link(_) => Err(Errno::ENOTDIR),
        }
    }

    /// What `stat` says, and for how long.
    pub(crate) fn attributes(&self, inode: INodeNo) -> Result<(FileAttr, Duration), Errno> {
        if let Some(draft) = self.drafts.find(inode.0) {
            return Ok((self.draft_attributes(&draft), Duration::ZERO));
        }
        match self.entry(inode)? {
            Entry::Folder(path) => {
                Ok((self.owner.folder(inode.0, self.remembered.folder(&path)), ATTRIBUTE_LIFETIME))
            }
            // One that never became an object. The kernel asks between looking a name up and opening what it has found, and looks again only
            // once: that is for the opening, which finds what has the name now.
            Entry::File(info) if info.state == ObjectState::Writing => {
                let found = FileAttr { nlink: 0, ..self.file_attributes(inode.0, &info) };
                Ok((found, Duration::ZERO))
            }
            Entry::File(info) => Ok((self.file_attributes(inode.0, &info), ATTRIBUTE_LIFETIME)),
            Entry::Link(target) => Ok((self.link_attributes(inode.0, &target), ATTRIBUTE_LIFETIME)),
        }
    }

    /// Of one that failed as of one that was removed: it is still told of, for the reason above.
    fn draft_attributes(&self, draft: &Draft) -> FileAttr {
        let (bytes, is_named) = {
            let inner = draft.lock();
            (inner.bytes(), inner.name.is_some() && !inner.has_failed())
        };
        let found = self.owner.file(draft.inode, bytes, self.remembered.file(draft.inode));
        FileAttr { nlink: u32::from(is_named), ..found }
    }

    pub(crate) fn file_attributes(&self, inode: u64, info: &ObjectInfo) -> FileAttr {
        self.owner.file(inode, info.bytes, self.remembered.file(inode))
    }

    fn link_attributes(&self, inode: u64, target: &[u8]) -> FileAttr {
        self.owner.link(inode, target, self.remembered.file(inode))
    }

    /// The path of an entry of a folder.
    pub(crate) fn path(&self, parent: INodeNo, name: &OsStr) -> Result<String, Errno> {
        let folder = self.folder(parent)?;
        if name.len() > NAME_COMPONENT_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        let name = name.to_str().ok_or(Errno::EILSEQ)?;
        Ok(join(&folder, name))
    }

    pub(crate) fn find(&self, parent: INodeNo, name: &OsStr, thread: u32) -> Result<Found, Errno> {
        if name.to_str().is_none() {
            // Nothing can have that name; that is an error only for who wants to give it.
            return Err(Errno::ENOENT);
        }
        self.find_path(&self.path(parent, name)?, Some(thread))
    }

    /// What has a name; `thread` is who asks, if it may be about to open it.
    fn find_path(&self, path: &str, thread: Option<u32>) -> Result<Found, Errno> {
        let object = ObjectName::parse(path).map_err(|_| Errno::ENOENT)?;
        if let Some(draft) = self.drafts.at(path)
            && let Some(found) = self.enter_draft(&draft)
        {
            return Ok(found);
        }
        if let Some(found) = self.find_object(&object, thread)? {
            return Ok(found);
        }
        if self.has_folder(path)? {
            return Ok(self.enter_folder(path));
        }
        Err(Errno::ENOENT)
    }

    /// What the object of a name is to the kernel; nothing if there is none.
    fn find_object(&self, name: &ObjectName, thread: Option<u32>) -> Result<Option<Found>, Errno> {
        let said = |error: &SourceError| logged("lookup", name.as_str(), error);
        let mut tries = 0;
        loop {
            let found = self.source.stat(name).map_err(|error| said(&error))?;
            let Some(mut info) = found.filter(|info| info.state == ObjectState::Sealed) else {
                return Ok(None);
            };
            tries += 1;
            match self.target(&info) {
                Ok(Some(target)) => return self.enter_link(&info, target).ok_or(Errno::EIO).map(Some),
                Ok(None) => {}
                Err(error) if error.code == nix::libc::ENOENT && tries < OPENS_MAX => continue,
                // Whoever opens it as a file hears why nothing can be read; it can be removed and renamed all the same.
                Err(error) => drop(said(&error)),
            }
            if let Some(thread) = thread.filter(|thread| self.coming.is_told(*thread, name.as_str()))
                && let Ok(Some((opened, contents))) = self.open_named(name)
            {
                if opened.object != info.object && opened.bytes == LINK_BYTES && tries < OPENS_MAX {
                    continue;
                }
                self.coming.opened(thread, opened.object, contents);
                info = opened;
            }
            if let Some(thread) = thread.filter(|thread| self.coming.follows(*thread))
                && let Some(found) = self.enter_followed(thread, name)
            {
                return Ok(Some(found));
            }
            return self.enter_file(Arc::new(info)).ok_or(Errno::EIO).map(Some);
        }
    }

    /// Opens what has a name at this moment, however often others replace it; nothing if no object has it.
    pub(crate) fn open_named(
        &self,
        name: &ObjectName,
    ) -> Result<Option<(ObjectInfo, Contents)>, SourceError> {
        let mut tries = 0;
        loop {
            let known = self.source.stat(name)?;
            let Some(info) = known.filter(|info| info.state == ObjectState::Sealed) else { return Ok(None) };
            tries += 1;
            match self.source.open(&info) {
                Err(error) if error.code == nix::libc::ENOENT && tries < OPENS_MAX => {}
                opened => return Ok(Some((info, opened?))),
            }
        }
    }

    /// A thread that opens a file to read it is told to look its name up again, unless that is another error: what it finds then is opened
    /// for it at once.
    pub(crate) fn tell(&self, thread: u32, inode: INodeNo, error: Errno) {
        let is_told = i32::from(error) == nix::libc::ESTALE;
        if let Some(info) = self.file(inode).ok().filter(|_| is_told) {
            self.coming.tell(thread, info.name.as_str());
        }
    }

    pub(crate) fn has_folder(&self, path: &str) -> Result<bool, Errno> {
        Ok(self.folders.has(path)
            || !self.drafts.below(path).is_empty()
            || is_folder(&*self.source, path).map_err(|error| logged("lookup", path, &error))?)
    }

    pub(crate) fn enter_file(&self, info: Arc<ObjectInfo>) -> Option<Found> {
        let Some(inode) = self.tree().enter_file(info.clone()) else {
            tracing::error!("{} has the identifier {}, which no file can have", info.name, info.object);
            return None;
        };
        let attributes = self.file_attributes(inode, &info);
        let name_for = if self.replaced.has(info.name.as_str()) { Duration::ZERO } else { ENTRY_LIFETIME };
        Some(Found { attributes, attributes_for: ATTRIBUTE_LIFETIME, name_for })
    }

    pub(crate) fn enter_link(&self, info: &ObjectInfo, target: Arc<[u8]>) -> Option<Found> {
        let inode = self.tree().enter_link(info, target.clone())?;
        let attributes = self.link_attributes(inode, &target);
        let name_for = if self.replaced.has(info.name.as_str()) { Duration::ZERO } else { ENTRY_LIFETIME };
        Some(Found { attributes, attributes_for: ATTRIBUTE_LIFETIME, name_for })
    }

    /// A file that is being written; nothing if it is not any more.
    pub(crate) fn enter_draft(&self, draft: &Draft) -> Option<Found> {
        let attributes = self.draft_attributes(draft);
        // Under its lock, because what it is published as is noted under it too. One that was closed unchanged is the object that it was: entered
        // here it would be stale, the kernel would look once more, and whoever is to write the object had no look left.
        let inner = draft.lock();
        let is_open = !inner.is_over() && !inner.has_ended;
        let info = if is_open { inner.describe(draft.inode) } else { None };
        self.tree().enter_file(Arc::new(info?))?;
        Some(Found { attributes, attributes_for: Duration::ZERO, name_for: Duration::ZERO })
    }

    pub(crate) fn enter_folder(&self, path: &str) -> Found {
        let inode = self.tree().enter_folder(path);
        let attributes = self.owner.folder(inode, self.remembered.folder(path));
        Found { attributes, attributes_for: ATTRIBUTE_LIFETIME, name_for: ENTRY_LIFETIME }
    }

    /// Opens an object for a thread. The kernel looks a name up again only when a second is over; whoever opens a file gets what has its
    /// name now.
    pub(crate) fn open_file(
        &self,
        inode: INodeNo,
        thread: u32,
        reply: &ReplyOpen,
    ) -> Result<Arc<OpenFile>, Errno> {
        let info = self.file(inode)?;
        let opened = self.coming.take(thread, info.object);
        if opened.is_none()
            && self.open_files.file(inode.0).is_some()
            && self.is_replaced(&info)
            && self.open_files.refuse(inode.0, thread)
        {
            self.replaced.note(info.name.as_str());
            return Err(Errno::ESTALE);
        }
        if let Some(file) = self.open_files.open_again(inode.0) {
            return Ok(file);
        }
        if info.state == ObjectState::Writing {
            return Err(Errno::ESTALE);
        }
        let opened = opened.map_or_else(|| self.source.open(&info), Ok);
        let contents = opened.map_err(|error| match error.code {
            // Its name is another one's: the kernel looks it up again.
            nix::libc::ENOENT => {
                self.replaced.note(info.name.as_str());
                Errno::ESTALE
            }
            _ => logged("open", info.name.as_str(), &error),
        })?;
        let file = match contents {
            Contents::OwnFile(file) => match self.pass_through(&file, info.bytes, reply) {
                Some(backing) => OpenFile::Passthrough(backing, file),
                None => OpenFile::OwnFile(file),
            },
            remote => OpenFile::plain(remote),
        };
        Ok(self.open_files.open_first(inode.0, file))
    }

    /// Whether another host has given the name of an object to another one, or to none, since the kernel asked. Where nobody answers, what
    /// is open can be read all the same.
    fn is_replaced(&self, info: &ObjectInfo) -> bool {
        let found = self.source.stat(&info.name);
        found.is_ok_and(|found| found.is_none_or(|found| found.object != info.object))
    }

    fn pass_through(&self, file: &File, bytes: u64, reply: &ReplyOpen) -> Option<BackingId> {
        // Relaxed: a hint only; whoever reads an old value asks the kernel once more.
        if !self.passthrough.load(Ordering::Relaxed) || !may_pass_through(file, bytes) {
            return None;
        }
        match reply.open_backing(file) {
            Ok(backing) => Some(backing),
            Err(error) => {
                // Relaxed: see above.
                self.passthrough.store(false, Ordering::Relaxed);
                tracing::info!(
                    "reads are not passed through: {error} (hint: passthrough needs root and Linux 6.9)"
                );
                None
            }
        }
    }

    pub(crate) fn read_file(
        &self,
        inode: INodeNo,
        offset: u64,
        size: u32,
        buffer: &mut Vec<u8>,
    ) -> Result<usize, Errno> {
        if let Some(draft) = self.drafts.find(inode.0) {
            buffer.resize(buffer.len().max(size as usize), 0);
            let mut inner = draft.lock();
            self.reach_published(&mut inner);
            let read = inner.read(offset, &mut buffer[..size as usize]);
            return read.map_err(|error| logged("read", inner.shown(), &error));
        }
        let info = self.file(inode)?;
        let file = self.open_files.file(inode.0).ok_or(Errno::EBADF)?;
        let bytes = info.bytes.saturating_sub(offset).min(u64::from(size)) as usize;
        if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        file.read_exact_at(offset, &mut buffer[..bytes]).map_err(|error| match error.code {
            nix::libc::ENOENT => {
                logged("read", info.name.as_str(), &error);
                Errno::ESTALE
            }
            _ => logged("read", info.name.as_str(), &error),
        })?;
        Ok(bytes)
    }

    pub(crate) fn list(&self, inode: INodeNo) -> Result<Listing, Errno> {
        let path = self.folder(inode)?;
        let mut found = children(&*self.source, &path).map_err(|error| logged("list", &path, &error))?;
        for name in self.folders.within(&path) {
            found.entry(name).or_insert(Child::Folder);
        }
        for (rest, draft) in self.drafts.below(&path) {
            if let Some((folder, _)) = rest.split_once('/') {
                found.entry(folder.to_owned()).or_insert(Child::Folder);
            } else if let Some(info) = draft.lock().describe_unless_failed(draft.inode) {
                found.insert(rest, Child::File(Arc::new(info)));
            }
        }
        Ok(Arc::new(found.into_iter().collect()))
    }

    /// What the kernel is told of an entry of a listing; nothing if it has gone meanwhile.
    pub(crate) fn enter_listed(&self, folder: &str, name: &str, child: &Child) -> Option<Found> {
        match child {
            Child::Folder => Some(self.enter_folder(&join(folder, name))),
            Child::File(info) if info.state == ObjectState::Writing || info.bytes == LINK_BYTES => {
                self.find_path(&join(folder, name), None).ok()
            }
            Child::File(info) => self.enter_file(info.clone()),
        }
    }

    /// Takes the entries of a folder for somebody who is going to read them.
    pub(crate) fn open_folder(&self, inode: INodeNo) -> Result<FileHandle, Errno> {
        let listing = self.list(inode)?;
        // Relaxed: only the uniqueness of the number matters.
        let handle = self.listing_count.fetch_add(1, Ordering::Relaxed);
        self.open_folders().insert(handle, OpenFolder { listing, has_begun: false });
        Ok(FileHandle(handle))
    }

    /// Nobody reads the folder by this handle any more.
    pub(crate) fn close_folder(&self, handle: FileHandle) {
        self.open_folders().remove(&handle.0);
    }

    /// The entries as they were taken, or are now if the reader begins once more, and where to go on.
    pub(crate) fn listing_from(
        &self,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
    ) -> Result<(Listing, usize), Errno> {
        let begins_again = {
            let mut open = self.open_folders();
            let folder = open.get_mut(&handle.0).ok_or(Errno::EBADF)?;
            offset == 0 && std::mem::replace(&mut folder.has_begun, true)
        };
        let fresh = if begins_again { Some(self.list(inode)?) } else { None };
        let mut open = self.open_folders();
        let folder = open.get_mut(&handle.0).ok_or(Errno::EBADF)?;
        if let Some(fresh) = fresh {
            folder.listing = fresh;
        }
        Ok((folder.listing.clone(), usize::try_from(offset).unwrap_or(usize::MAX)))
    }

    /// The inode number of the folder that a folder lies in.
    pub(crate) fn inode_above(&self, folder: &str) -> u64 {
        let above = folder.rsplit_once('/').map(|(above, _)| above);
        above.map_or(ROOT, |above| self.tree().folder_inode(above).unwrap_or(UNKNOWN_INODE))
    }

    pub(crate) fn kind_in_listing(&self, child: &Child) -> FileType {
        match child {
            Child::Folder => FileType::Directory,
            Child::File(info) if info.state == ObjectState::Writing => FileType::RegularFile,
            Child::File(info) => match self.target(info) {
                Ok(Some(_)) => FileType::Symlink,
                // One that has gone meanwhile, or cannot be read, is a file for who looks at it, too.
                Ok(None) | Err(_) => FileType::RegularFile,
            },
        }
    }

    pub(crate) fn inode_in_listing(&self, folder: &str, name: &str, child: &Child) -> u64 {
        match child {
            Child::File(info) => inode_of(info).unwrap_or(UNKNOWN_INODE),
            Child::Folder => self.tree().folder_inode(&join(folder, name)).unwrap_or(UNKNOWN_INODE),
        }
    }
}

/// Says in the log why a request failed, and with which error the program is told.
pub(crate) fn logged(what: &str, name: &str, error: &SourceError) -> Errno {
    tracing::error!("{what} of {name:?} failed: {error}");
    Errno::from_i32(error.code)
}
