//! The kernel's requests, and how each is answered.

use crate::attributes::attribute;
use crate::filesystem::{ENTRY_LIFETIME, Found, PoolFiles, logged};
use crate::open_files::OpenFile;
use crate::opening::{DRAFT_READING, DRAFT_WRITING, Opening};
use crate::settings::Changes;
use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use hinterland_types::limits::NAME_COMPONENT_BYTES_MAX;
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

/// Bytes of a request at most; the kernel's own limit unless an administrator raised it.
const REQUEST_BYTES: u32 = 1 << 20;
/// Read-ahead requests under way at once; each holds a request's bytes.
const BACKGROUND_REQUESTS: u16 = 64;
/// Block size of `statfs`.
const STATFS_BLOCK_BYTES: u64 = 4096;
/// Identifiers are never used twice, so every inode is of the first generation.
const GENERATION: Generation = Generation(0);

fn answer(reply: ReplyEmpty, outcome: Result<(), Errno>) {
    match outcome {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn enter(reply: ReplyEntry, found: &Found) {
    reply.entry_with_ttls(&found.attributes_for, &found.name_for, &found.attributes, GENERATION);
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
            InitFlags::FUSE_ATOMIC_O_TRUNC,
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
        self.publish_rest();
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Nobody listens once the mount's owner is gone; that is no failure.
        let _ = ended.send(());
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(parent, name, request.pid()) {
            Ok(found) => enter(reply, &found),
            Err(error) => reply.error(error),
        }
    }

    fn forget(&self, _request: &Request, inode: INodeNo, count: u64) {
        self.take_back(inode.0, count);
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Ok((found, lifetime)) => reply.attr(&lifetime, &found),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        bytes: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _made: Option<SystemTime>,
        _status: Option<SystemTime>,
        _backup: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes { mode, user, group, bytes, accessed, modified };
        let is_open = handle.is_some_and(|handle| handle.0 == DRAFT_WRITING);
        match self.change(request.pid(), inode, is_open, changes) {
            Ok((found, lifetime)) => reply.attr(&lifetime, &found),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.begin_file(parent, name, Opening { request, mode, flags }) {
            Ok(made) => {
                let handle = FileHandle(DRAFT_WRITING);
                let flags = FopenFlags::empty();
                reply.created(&Duration::ZERO, &made.attributes, GENERATION, handle, flags);
            }
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        if mode & nix::libc::S_IFMT != nix::libc::S_IFREG {
            // Pipes, sockets and devices are no objects.
            return reply.error(Errno::EPERM);
        }
        match self.make_empty_file(parent, name, Opening { request, mode, flags: nix::libc::O_EXCL }) {
            Ok(made) => enter(reply, &made),
            Err(error) => reply.error(error),
        }
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let opening = Opening { request, mode: 0o777, flags: nix::libc::O_EXCL };
        match self.make_link(parent, name, target, &opening) {
            Ok(made) => enter(reply, &made),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        match self.read_link(inode) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error),
        }
    }

    fn link(&self, _: &Request, _: INodeNo, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn write(
        &self,
        request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let thread = (!write_flags.contains(WriteFlags::FUSE_WRITE_CACHE)).then(|| request.pid());
        match self.write_file(thread, inode, offset, data) {
            // The kernel's requests have at most 1 MiB.
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.allocate(inode, offset, length, mode));
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.remove_file(parent, name));
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        match self.make_folder(parent, name, Opening { request, mode, flags: 0 }) {
            Ok(made) => enter(reply, &made),
            Err(error) => reply.error(error),
        }
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.remove_folder(parent, name));
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.rename_entry((parent, name), (new_parent, new_name), flags));
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let truncates = flags.0 & nix::libc::O_TRUNC != 0;
        // Who opens a file to read it may empty it with the same call, as on other file systems of Linux.
        let writes = truncates || flags.acc_mode() != OpenAccMode::O_RDONLY;
        if writes && !self.owner.writable {
            return reply.error(Errno::EROFS);
        }
        match self.open_draft(request.pid(), inode, writes, truncates) {
            Ok(true) => {
                let handle = if writes { DRAFT_WRITING } else { DRAFT_READING };
                return reply.opened(FileHandle(handle), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Ok(false) => {}
            Err(error) => {
                if !writes {
                    self.tell(request.pid(), inode, error);
                }
                return reply.error(error);
            }
        }
        let handle = FileHandle(0);
        match self.open_file(inode, request.pid(), &reply).as_deref() {
            Ok(OpenFile::Passthrough(backing, _)) => {
                reply.opened_passthrough(handle, FopenFlags::FOPEN_NOFLUSH, backing);
            }
            Ok(_) => reply.opened(handle, FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH),
            Err(error) => {
                self.tell(request.pid(), inode, *error);
                reply.error(*error);
            }
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

    fn flush(&self, request: &Request, inode: INodeNo, handle: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        let outcome = if handle.0 == DRAFT_WRITING { self.close(request.pid(), inode) } else { Ok(()) };
        answer(reply, outcome);
    }

    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        answer(reply, self.check_draft(inode));
    }

    fn fsyncdir(&self, _: &Request, _inode: INodeNo, _: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        match handle.0 {
            DRAFT_READING | DRAFT_WRITING => self.release_draft(inode, handle.0 == DRAFT_WRITING),
            _ => self.open_files.release(inode.0),
        }
        reply.ok();
    }

    fn opendir(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.open_folder(inode) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
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
        let (listing, from) = match self.listing_from(inode, handle, offset) {
            Ok(found) => found,
            Err(error) => return reply.error(error),
        };
        let folder = self.folder(inode).unwrap_or_default();
        for index in from..listing.len() + 2 {
            let next = index as u64 + 1;
            let full = match index.checked_sub(2).map(|at| &listing[at]) {
                None => {
                    let (name, shown) =
                        if index == 0 { (".", inode.0) } else { ("..", self.inode_above(&folder)) };
                    reply.add(INodeNo(shown), next, FileType::Directory, name)
                }
                Some((name, child)) => {
                    let kind = self.kind_in_listing(child);
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
        let (listing, from) = match self.listing_from(inode, handle, offset) {
            Ok(found) => found,
            Err(error) => return reply.error(error),
        };
        let folder = self.folder(inode).unwrap_or_default();
        for index in from..listing.len() + 2 {
            let next = index as u64 + 1;
            let Some(at) = index.checked_sub(2) else {
                let (name, shown) =
                    if index == 0 { (".", inode.0) } else { ("..", self.inode_above(&folder)) };
                let attributes = self.owner.folder(shown, None);
                if reply.add(INodeNo(shown), next, name, &ENTRY_LIFETIME, &attributes, GENERATION) {
                    break;
                }
                continue;
            };
            let (name, child) = &listing[at];
            let Some(found) = self.enter_listed(&folder, name, child) else { continue };
            let (entry, lifetime) = (&found.attributes, &found.name_for);
            if reply.add(entry.ino, next, name, lifetime, entry, GENERATION) {
                self.take_back(entry.ino.0, 1);
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
        self.close_folder(handle);
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

    fn setxattr(
        &self,
        _: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.set_attribute(inode, name, Some(value), flags));
    }

    fn removexattr(&self, _: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        answer(reply, self.set_attribute(inode, name, None, nix::libc::XATTR_REPLACE));
    }

    fn getxattr(&self, _: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = match (self.described(inode), name.to_str()) {
            (Ok((entry, placing)), Some(name)) => attribute(&entry, &placing, name),
            _ => None,
        };
        match value {
            Some(value) => reply_attribute(reply, value.as_bytes(), size),
            None => reply.error(Errno::NO_XATTR),
        }
    }

    fn listxattr(&self, _: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        // None is listed: who copies a file with all that is listed would copy where another one lies and what it is.
        match self.described(inode) {
            Ok(_) => reply_attribute(reply, &[], size),
            Err(error) => reply.error(error),
        }
    }
}
