//! The kernel's requests, answered from a pool.

use crate::attributes::{Owner, attribute, attribute_names};
use crate::drafts::Drafts;
use crate::folders::Folders;
use crate::listing::{Child, children, is_folder};
use crate::open_files::{OpenFile, OpenFiles, may_pass_through};
use crate::source::{Contents, Source, SourceError};
use crate::tree::{Entry, ROOT, Tree, inode_of, join};
use fuser::{
    BackingId, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use hinterland_proto::control::{ObjectInfo, ObjectState};
use hinterland_types::ObjectName;
use hinterland_types::limits::NAME_COMPONENT_BYTES_MAX;
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// How long the kernel keeps attributes of objects: they never change.
const ATTRIBUTE_LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// How long the kernel keeps that a name leads to an object: names come and go.
const ENTRY_LIFETIME: Duration = Duration::from_secs(1);
/// Bytes of a request at most; the kernel's own limit unless an administrator raised it.
const REQUEST_BYTES: u32 = 1 << 20;
/// Read-ahead requests under way at once; each holds a request's bytes.
const BACKGROUND_REQUESTS: u16 = 64;
/// Block size of `statfs`.
const STATFS_BLOCK_BYTES: u64 = 4096;
/// The inode number of a folder in a listing that the kernel was not told of yet.
const UNKNOWN_INODE: u64 = u32::MAX as u64;
/// Identifiers are never used twice, so every inode is of the first generation.
const GENERATION: Generation = Generation(0);

type Listing = Arc<Vec<(String, Child)>>;

/// A pool as a file system.
pub(crate) struct PoolFiles {
    source: Arc<dyn Source>,
    owner: Owner,
    passthrough: Arc<AtomicBool>,
    tree: Mutex<Tree>,
    open_files: OpenFiles,
    drafts: Drafts,
    folders: Folders,
    listings: Mutex<HashMap<u64, Listing>>,
    listing_count: AtomicU64,
    ended: Mutex<Sender<()>>,
}

impl PoolFiles {
    /// A file system that offers passthrough while `passthrough` is true (it turns false when the kernel
    /// refuses), and sends on `ended` once it is unmounted.
    pub(crate) fn new(
        source: Arc<dyn Source>,
        owner: Owner,
        passthrough: Arc<AtomicBool>,
        ended: Sender<()>,
    ) -> Self {
        Self {
            source,
            owner,
            passthrough,
            tree: Mutex::new(Tree::new()),
            open_files: OpenFiles::default(),
            drafts: Drafts::default(),
            folders: Folders::default(),
            listings: Mutex::default(),
            listing_count: AtomicU64::new(0),
            ended: Mutex::new(ended),
        }
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listings(&self) -> MutexGuard<'_, HashMap<u64, Listing>> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, inode: INodeNo) -> Result<Entry, Errno> {
        self.tree().entry(inode.0).ok_or(Errno::ENOENT)
    }

    fn file(&self, inode: INodeNo) -> Result<Arc<ObjectInfo>, Errno> {
        match self.entry(inode)? {
            Entry::File(info) => Ok(info),
            Entry::Folder(_) => Err(Errno::EISDIR),
        }
    }

    fn folder(&self, inode: INodeNo) -> Result<Arc<str>, Errno> {
        match self.entry(inode)? {
            Entry::Folder(path) => Ok(path),
            Entry::File(_) => Err(Errno::ENOTDIR),
        }
    }

    /// What `stat` says, and for how long.
    fn attributes(&self, inode: u64, entry: &Entry) -> (FileAttr, Duration) {
        match (entry, self.drafts.find(inode)) {
            (Entry::Folder(_), _) => (self.owner.folder(inode), ATTRIBUTE_LIFETIME),
            (Entry::File(_), Some(draft)) => (self.owner.draft(inode, draft.bytes()), Duration::ZERO),
            (Entry::File(info), None) => (self.owner.file(inode, info), ATTRIBUTE_LIFETIME),
        }
    }

    /// The path of an entry of a folder.
    fn path(&self, parent: INodeNo, name: &OsStr) -> Result<String, Errno> {
        let folder = self.folder(parent)?;
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        if name.len() > NAME_COMPONENT_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        Ok(join(&folder, name))
    }

    fn find(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let path = self.path(parent, name)?;
        let object = ObjectName::parse(&path).map_err(|_| Errno::ENOENT)?;
        self.drafts.wait_for(&path);
        let found = self.source.stat(&object).map_err(|error| logged("lookup", &path, &error))?;
        if let Some(info) = found.filter(|info| info.state == ObjectState::Sealed) {
            return self.enter_file(Arc::new(info)).ok_or(Errno::EIO);
        }
        if self.has_folder(&path)? {
            return Ok(self.enter_folder(&path));
        }
        Err(Errno::ENOENT)
    }

    fn has_folder(&self, path: &str) -> Result<bool, Errno> {
        Ok(self.folders.has(path)
            || is_folder(&*self.source, path).map_err(|error| logged("lookup", path, &error))?)
    }

    fn begin_file(&self, parent: INodeNo, name: &OsStr, thread: u32) -> Result<FileAttr, Errno> {
        let path = self.path(parent, name)?;
        let name = self.new_name(&path)?;
        self.drafts.wait_for(&path);
        let begun = self.drafts.begin(&*self.source, &name, thread);
        let info = begun.map_err(|error| logged("making", &path, &error))?;
        let attributes = self.enter_file(Arc::new(info.clone()));
        attributes.ok_or_else(|| {
            drop(self.drafts.publish(info.object.0));
            Errno::EIO
        })
    }

    fn new_name(&self, path: &str) -> Result<ObjectName, Errno> {
        if !self.owner.writable {
            return Err(Errno::EROFS);
        }
        ObjectName::parse(path).map_err(|error| {
            tracing::info!("{path:?} can be no file: {error}");
            Errno::EINVAL
        })
    }

    fn publish(&self, inode: INodeNo) -> Result<(), Errno> {
        if let Some(published) = self.drafts.publish(inode.0) {
            let info = published.map_err(|error| logged("closing", "a new file", &error))?;
            self.tree().renew(Arc::new(info));
        }
        Ok(())
    }

    fn close(&self, thread: u32, inode: INodeNo) -> Result<(), Errno> {
        let Some(draft) = self.drafts.find(inode.0) else { return Ok(()) };
        let is_last = draft.flush(thread, inode.0);
        if is_last.map_err(|error| logged("closing", "a new file", &error))? {
            self.publish(inode)?;
        }
        Ok(())
    }

    fn change(&self, thread: u32, inode: INodeNo, size: Option<u64>) -> Result<(FileAttr, Duration), Errno> {
        if !self.owner.writable {
            return Err(Errno::EROFS);
        }
        let entry = self.entry(inode)?;
        match (self.drafts.find(inode.0), &entry, size) {
            (Some(draft), _, Some(size)) => {
                draft.resize(thread, size).map_err(|error| logged("resizing", "a new file", &error))?;
            }
            (None, Entry::File(info), Some(size)) if size != info.bytes => return Err(Errno::EPERM),
            // Times, owners and modes are everybody's: tools set them on what they have made, and nothing is lost.
            _ => {}
        }
        Ok(self.attributes(inode.0, &entry))
    }

    fn remove_file(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let path = self.path(parent, name)?;
        let name = self.new_name(&path)?;
        self.drafts.wait_for(&path);
        self.source.remove(&name).map_err(|error| logged("removing", &path, &error))
    }

    fn make_folder(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let path = self.path(parent, name)?;
        let object = self.new_name(&path)?;
        let found = self.source.stat(&object).map_err(|error| logged("lookup", &path, &error))?;
        if found.is_some() || self.has_folder(&path)? {
            return Err(Errno::EEXIST);
        }
        if self.folders.make(&path) { Ok(self.enter_folder(&path)) } else { Err(Errno::ENOSPC) }
    }

    fn remove_folder(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let path = self.path(parent, name)?;
        self.new_name(&path)?;
        let filled = is_folder(&*self.source, &path).map_err(|error| logged("lookup", &path, &error))?;
        if filled || !self.folders.within(&path).is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        // One whose last object has gone is gone already.
        self.folders.remove(&path);
        Ok(())
    }

    fn enter_file(&self, info: Arc<ObjectInfo>) -> Option<FileAttr> {
        let Some(inode) = self.tree().enter_file(info.clone()) else {
            tracing::error!("{} has the identifier {}, which no file can have", info.name, info.object);
            return None;
        };
        Some(self.owner.file(inode, &info))
    }

    fn enter_folder(&self, path: &str) -> FileAttr {
        let inode = self.tree().enter_folder(path);
        self.owner.folder(inode)
    }

    fn open_file(&self, inode: INodeNo, reply: &ReplyOpen) -> Result<Arc<OpenFile>, Errno> {
        let info = self.file(inode)?;
        if self.drafts.find(inode.0).is_some() {
            return Err(Errno::EBUSY);
        }
        if let Some(file) = self.open_files.open_again(inode.0) {
            return Ok(file);
        }
        let contents = self.source.open(&info).map_err(|error| logged("open", info.name.as_str(), &error))?;
        let file = match contents {
            Contents::OwnFile(file) => match self.pass_through(&file, info.bytes, reply) {
                Some(backing) => OpenFile::Passthrough(backing, file),
                None => OpenFile::OwnFile(file),
            },
            remote => OpenFile::plain(remote),
        };
        Ok(self.open_files.open_first(inode.0, file))
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

    fn read_file(
        &self,
        inode: INodeNo,
        offset: u64,
        size: u32,
        buffer: &mut Vec<u8>,
    ) -> Result<usize, Errno> {
        let info = self.file(inode)?;
        if self.drafts.find(inode.0).is_some() {
            return Err(Errno::EOPNOTSUPP);
        }
        let file = self.open_files.file(inode.0).ok_or(Errno::EBADF)?;
        let bytes = info.bytes.saturating_sub(offset).min(u64::from(size)) as usize;
        if buffer.len() < bytes {
            buffer.resize(bytes, 0);
        }
        file.read_exact_at(offset, &mut buffer[..bytes])
            .map_err(|error| logged("read", info.name.as_str(), &error))?;
        Ok(bytes)
    }

    fn list(&self, inode: INodeNo) -> Result<Listing, Errno> {
        let path = self.folder(inode)?;
        self.drafts.wait_for(&path);
        let mut found = children(&*self.source, &path).map_err(|error| logged("list", &path, &error))?;
        for name in self.folders.within(&path) {
            found.entry(name).or_insert(Child::Folder);
        }
        Ok(Arc::new(found.into_iter().collect()))
    }

    /// The entries of an open folder from `offset` on, `.` and `..` being the first two.
    fn listing_from(&self, handle: FileHandle, offset: u64) -> Result<(Listing, usize), Errno> {
        let listing = self.listings().get(&handle.0).cloned().ok_or(Errno::EBADF)?;
        Ok((listing, usize::try_from(offset).unwrap_or(usize::MAX)))
    }

    fn inode_in_listing(&self, folder: &str, name: &str, child: &Child) -> u64 {
        match child {
            Child::File(info) => inode_of(info).unwrap_or(UNKNOWN_INODE),
            Child::Folder => self.tree().folder_inode(&join(folder, name)).unwrap_or(UNKNOWN_INODE),
        }
    }
}

/// Says in the log why a request failed, and with which error the program is told.
fn logged(what: &str, name: &str, error: &SourceError) -> Errno {
    tracing::error!("{what} of {name:?} failed: {error}");
    Errno::from_i32(error.code)
}

fn answer(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// Answers with an extended attribute, its size, or that the buffer is too small.
fn reply_attribute(reply: ReplyXattr, value: &[u8], size: u32) {
    match size {
        0 => reply.size(u32::try_from(value.len()).unwrap_or(u32::MAX)),
        size if value.len() > size as usize => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}

impl Filesystem for PoolFiles {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
        ] {
            if config.add_capabilities(wanted).is_err() {
                tracing::debug!("this kernel lacks {wanted:?}");
            }
        }
        // A value that the kernel does not take leaves its own, which is as good.
        let _ = config.set_max_write(REQUEST_BYTES);
        let _ = config.set_max_background(BACKGROUND_REQUESTS);
        // Relaxed: no other thread serves requests yet.
        let wanted = self.passthrough.load(Ordering::Relaxed);
        let offered = wanted
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok();
        self.passthrough.store(offered, Ordering::Relaxed);
        Ok(())
    }

    fn destroy(&mut self) {
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Nobody listens once the mount's owner is gone; that is no failure.
        let _ = ended.send(());
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent, name) {
            Ok(found) => reply.entry_with_ttls(&ATTRIBUTE_LIFETIME, &ENTRY_LIFETIME, &found, GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _request: &Request, inode: INodeNo, count: u64) {
        self.tree().forget(inode.0, count);
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.entry(inode) {
            Ok(entry) => {
                let (found, lifetime) = self.attributes(inode.0, &entry);
                reply.attr(&lifetime, &found);
            }
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        _mode: Option<u32>,
        _user: Option<u32>,
        _group: Option<u32>,
        size: Option<u64>,
        _read: Option<TimeOrNow>,
        _written: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _made: Option<SystemTime>,
        _status: Option<SystemTime>,
        _backup: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.change(request.pid(), inode, size) {
            Ok((found, lifetime)) => reply.attr(&lifetime, &found),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        match self.begin_file(parent, name, request.pid()) {
            // Not through the page cache, and the name is not to be found by others yet.
            Ok(made) => {
                let handle = FileHandle(made.ino.0);
                reply.created(&Duration::ZERO, &made, GENERATION, handle, FopenFlags::FOPEN_DIRECT_IO);
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(draft) = self.drafts.find(inode.0) else { return reply.error(Errno::EBADF) };
        match draft.write(request.pid(), offset, data) {
            // The kernel's requests have at most 1 MiB.
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(logged("writing", "a new file", &error)),
        }
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.remove_file(parent, name));
    }

    fn mkdir(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        match self.make_folder(parent, name) {
            Ok(made) => reply.entry_with_ttls(&ATTRIBUTE_LIFETIME, &ENTRY_LIFETIME, &made, GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.remove_folder(parent, name));
    }

    fn rename(
        &self,
        _request: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _new_parent: INodeNo,
        _new_name: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        // An object keeps its name. As between two file systems, `mv` copies and removes.
        reply.error(if self.owner.writable { Errno::EXDEV } else { Errno::EROFS });
    }

    fn open(&self, _request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            // An object never changes: remove it and write another.
            return reply.error(if self.owner.writable { Errno::EEXIST } else { Errno::EROFS });
        }
        let handle = FileHandle(inode.0);
        match self.open_file(inode, &reply).as_deref() {
            Ok(OpenFile::Passthrough(backing, _)) => {
                reply.opened_passthrough(handle, FopenFlags::FOPEN_NOFLUSH, backing);
            }
            Ok(_) => reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH),
            Err(error) => reply.error(*error),
        }
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        thread_local!(static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
        BUFFER.with_borrow_mut(|buffer| match self.read_file(inode, offset, size, buffer) {
            Ok(bytes) => reply.data(&buffer[..bytes]),
            Err(error) => reply.error(error),
        });
    }

    fn flush(&self, request: &Request, inode: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        answer(reply, self.close(request.pid(), inode));
    }

    fn fsync(&self, _: &Request, _inode: INodeNo, _: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if self.drafts.find(inode.0).is_some() {
            // Nobody hears of it but the log.
            let _ = self.publish(inode);
        } else {
            self.open_files.release(inode.0);
        }
        reply.ok();
    }

    fn opendir(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.list(inode) {
            Ok(listing) => {
                // Relaxed: only the uniqueness of the number matters.
                let handle = self.listing_count.fetch_add(1, Ordering::Relaxed);
                self.listings().insert(handle, listing);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let (listing, from) = match self.listing_from(handle, offset) {
            Ok(found) => found,
            Err(error) => return reply.error(error),
        };
        let folder = self.folder(inode).unwrap_or_default();
        for index in from..listing.len() + 2 {
            let next = index as u64 + 1;
            let full = match index.checked_sub(2).map(|at| &listing[at]) {
                None => {
                    let name = if index == 0 { "." } else { ".." };
                    reply.add(if index == 0 { inode } else { INodeNo(ROOT) }, next, FileType::Directory, name)
                }
                Some((name, child)) => {
                    let kind = match child {
                        Child::Folder => FileType::Directory,
                        Child::File(_) => FileType::RegularFile,
                    };
                    reply.add(INodeNo(self.inode_in_listing(&folder, name, child)), next, kind, name)
                }
            };
            if full {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let (listing, from) = match self.listing_from(handle, offset) {
            Ok(found) => found,
            Err(error) => return reply.error(error),
        };
        let folder = self.folder(inode).unwrap_or_default();
        for index in from..listing.len() + 2 {
            let next = index as u64 + 1;
            let Some(at) = index.checked_sub(2) else {
                let (name, shown) = if index == 0 { (".", inode.0) } else { ("..", ROOT) };
                if reply.add(
                    INodeNo(shown),
                    next,
                    name,
                    &ENTRY_LIFETIME,
                    &self.owner.folder(shown),
                    GENERATION,
                ) {
                    break;
                }
                continue;
            };
            let (name, child) = &listing[at];
            let found = match child {
                Child::Folder => Some(self.enter_folder(&join(&folder, name))),
                Child::File(info) => self.enter_file(info.clone()),
            };
            let Some(found) = found else { continue };
            if reply.add(found.ino, next, name, &ENTRY_LIFETIME, &found, GENERATION) {
                self.tree().forget(found.ino.0, 1);
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings().remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        match self.source.space() {
            Ok(space) => {
                let blocks = space.capacity_bytes / STATFS_BLOCK_BYTES;
                let free = space.capacity_bytes.saturating_sub(space.used_bytes) / STATFS_BLOCK_BYTES;
                let (block, name) = (STATFS_BLOCK_BYTES as u32, NAME_COMPONENT_BYTES_MAX as u32);
                reply.statfs(blocks, free, free, 0, 0, block, name, block);
            }
            Err(error) => reply.error(logged("statfs", "", &error)),
        }
    }

    fn getxattr(&self, _: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = match (self.entry(inode), name.to_str()) {
            (Ok(Entry::File(info)), Some(name)) => attribute(&info, name),
            _ => None,
        };
        match value {
            Some(value) => reply_attribute(reply, value.as_bytes(), size),
            None => reply.error(Errno::NO_XATTR),
        }
    }

    fn listxattr(&self, _: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        match self.entry(inode) {
            Ok(Entry::File(_)) => reply_attribute(reply, &attribute_names(), size),
            Ok(Entry::Folder(_)) => reply_attribute(reply, &[], size),
            Err(error) => reply.error(error),
        }
    }
}
