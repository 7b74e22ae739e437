//! One client's session: what it holds, and the answers to its requests.

mod locking;
mod mapping;
mod questions;

use crate::cache::{CacheFile, CachePreference};
use crate::capability::CapabilityTable;
use crate::core::{Core, Resource};
use crate::holdings::OpenHeatCopy;
use crate::kv::{OpenedSpace, UserStore};
use crate::naming;
use crate::notices::NoticeChannel;
use crate::peer_service;
use crate::put::NewPut;
use crate::refused::{Refused, errno};
use crate::regions::{Region, create_near, create_region};
use crate::verify;
use hinterland_fabric::Slice;
use hinterland_kv::Namespace;
use hinterland_os::OsError;
use hinterland_os::poll::{Interest, Poller};
use hinterland_os::socket::UnixStream;
use hinterland_policy::UnitBytes;
use hinterland_proto::control::{
    KvReply, KvRequest, ObjectInfo, ObjectState, Opened, Placement, PutStarted, PutTarget, Reply, Request,
};
use hinterland_types::limits::OBJECT_BYTES_MAX;
use hinterland_types::{ByteRange, Handle, ObjectId, Rights, SessionId};
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Rings of one session: a program has one for each thread that is in a hurry, and each costs the node a thread.
const RINGS_MAX: usize = 16;
/// A reply and the descriptors that go with it.
pub type Answer = Result<(Reply, Vec<OwnedFd>), Refused>;

/// What a session holds. Everything is given back when it ends.
pub struct Session {
    /// Identifier.
    pub id: SessionId,
    /// User id of the program; 0 for one on another host, which cannot map.
    user: u32,
    /// The unix socket that it came over; none for a program on another host.
    socket: Option<Arc<UnixStream>>,
    held: Mutex<Held>,
    channel: Arc<Mutex<Option<Arc<NoticeChannel>>>>,
    /// Tells the threads of its rings that it has ended.
    ended: Arc<AtomicBool>,
}

#[derive(Default)]
struct Held {
    table: CapabilityTable<Resource>,
    preference: CachePreference,
    /// Puts that go on, and the handle of each if its bytes are written here.
    puts: HashMap<ObjectId, Option<Handle>>,
    caches: HashMap<Handle, Arc<CacheFile>>,
    heat_copies: HashMap<Handle, OpenHeatCopy>,
    registrations: HashSet<u64>,
    rings: usize,
    /// Whether it has opened KV blocks.
    has_kv: bool,
}

impl Session {
    /// A session of a program on this host that holds nothing.
    pub fn local(id: SessionId, user: u32, socket: Arc<UnixStream>) -> Self {
        Self { user, socket: Some(socket), ..Self::remote(id) }
    }

    /// A session of a program on another host that holds nothing.
    pub fn remote(id: SessionId) -> Self {
        Self {
            id,
            user: 0,
            socket: None,
            held: Mutex::default(),
            channel: Arc::default(),
            ended: Arc::default(),
        }
    }

    /// Answers a request.
    pub fn answer(self: &Arc<Self>, core: &Core, request: Request, mut descriptors: Vec<OwnedFd>) -> Answer {
        let reply = match request {
            Request::Map { handle } => return self.map(core, handle),
            Request::OpenPages { handle } => return self.open_pages(handle),
            Request::OpenSlots => return self.open_slots(core),
            Request::Watch => return self.watch(),
            Request::Kv(request) => return self.kv(core, request),
            Request::OpenRing => return crate::ring_server::open(core, self),
            Request::OpenFarRing => return crate::ring_server::open_far(core, self),
            Request::Register { handle, pointer, offset, bytes } => {
                self.register(core, handle, pointer, offset, bytes, descriptors.pop())?
            }
            Request::Unregister { registration } => {
                core.cache.unregister(registration, self.id)?;
                self.lock().registrations.remove(&registration);
                Reply::Done
            }
            Request::Prefer { budget_bytes, unit_bytes } => self.prefer(budget_bytes, unit_bytes)?,
            Request::Advise { handle, range, advice } => {
                self.check(handle, range.offset(), range.bytes(), Rights::READ)?;
                let file = self.lock().caches.get(&handle).cloned();
                if let Some(file) = file {
                    core.cache.advise(&file, range, advice);
                }
                Reply::Done
            }
            Request::PutBegin { .. }
            | Request::PutAttach { .. }
            | Request::PutGrow { .. }
            | Request::PutSeal { .. }
            | Request::PutPublish { .. }
            | Request::PutRename { .. }
            | Request::PutExchange { .. }
            | Request::PutAbort { .. } => self.answer_about_puts(core, request)?,
            Request::Allocate { bytes, kind } => {
                let (address, bytes) = core.segment.allocate(core, self.id, bytes, kind)?;
                Reply::Allocated { address, bytes }
            }
            Request::Free { address } => {
                core.segment.free(self.id, address)?;
                Reply::Done
            }
            Request::Lock { .. }
            | Request::LockWait { .. }
            | Request::LockState { .. }
            | Request::UnlockAs { .. }
            | Request::WriteLocked { .. }
            | Request::ReadLocked { .. }
            | Request::GuardLock { .. }
            | Request::KeepLocks { .. }
            | Request::ListLocks
            | Request::Unlock { .. } => self.answer_about_locks(core, request)?,
            other => self.answer_about_objects(core, other)?,
        };
        Ok((reply, Vec::new()))
    }

    /// The memory behind a range of a handle.
    ///
    /// # Errors
    /// [`Refused`] if the session may not, or the bytes are not here.
    pub fn resolve(&self, handle: Handle, range: ByteRange, needed: Rights) -> Result<Slice, Refused> {
        match self.check(handle, range.offset(), range.bytes(), needed)? {
            Resource::Held(holding) => {
                holding.note_use();
                if needed.allows(Rights::WRITE) {
                    return Ok(holding.slice_for_writing(range.offset(), range.bytes())?);
                }
                Ok(Slice::from(holding.slice(range.offset(), range.bytes())?))
            }
            Resource::Region(region) => region.slice(range, needed.allows(Rights::WRITE)),
            Resource::Kv(..) | Resource::KvBlocks(_) | Resource::Lent(_) => Err(not_an_object()),
            Resource::Remote(info) => Err(Refused::new(
                errno::ENOTSUP,
                format!(
                    "{} is not held by this node (hint: read it over the node's socket, from one of its homes, or map it)",
                    info.name
                ),
            )),
        }
    }

    /// What a device may read of a handle without asking.
    ///
    /// # Errors
    /// [`Refused`] if the handle does not allow it.
    pub fn one_sided(
        &self,
        handle: Handle,
        range: ByteRange,
        needed: Rights,
    ) -> Result<Option<(ByteRange, Slice)>, Refused> {
        crate::core::one_sided(&self.lock().table, handle, range, needed)
    }

    /// Appends bytes of a handle to `into`; those of a sealed object of another rack come through the host's cache.
    ///
    /// # Errors
    /// [`Refused`] if the session may not, or no home has the bytes.
    pub fn read(
        &self,
        core: &Core,
        handle: Handle,
        range: ByteRange,
        into: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        let start = into.len();
        match self.check(handle, range.offset(), range.bytes(), Rights::READ)? {
            Resource::Remote(info) if info.state == ObjectState::Sealed => {
                let file = self.reading(core, handle, &info)?;
                // The frame was checked: a run is no longer than a body may be.
                into.resize(start + range.bytes() as usize, 0);
                core.cache.read(&file, range.offset(), &mut into[start..])
            }
            _ => {
                let slice = self.resolve(handle, range, Rights::READ)?;
                into.resize(start + slice.len(), 0);
                slice.copy_out(0, &mut into[start..]);
                kept(&slice)
            }
        }
    }

    /// What shows others that this session may read all of a sealed object.
    fn right(&self, core: &Core, handle: Handle) -> Result<[u8; 32], Refused> {
        let range = self.lock().table.get(handle)?.range;
        let object = match self.check(handle, range.offset(), range.bytes(), Rights::READ)? {
            Resource::Held(holding) => holding.object,
            Resource::Remote(info) => info.object,
            Resource::Region(region) => region.object,
            Resource::Kv(..) | Resource::KvBlocks(_) | Resource::Lent(_) => return Err(not_an_object()),
        };
        let info = core.describe(&core.directory.lookup_object(object)?);
        if info.state != ObjectState::Sealed || range.offset() != 0 || range.bytes() != info.bytes {
            let text = format!("{} is not sealed, or the handle is for a part of it", info.name);
            return Err(Refused::new(errno::EACCES, text));
        }
        Ok(core.peers.right_to_read(object, &info.digest))
    }

    /// Checksums of a sealed object that this node holds, from a block on.
    fn checksums(&self, handle: Handle, first: u64) -> Result<Vec<u32>, Refused> {
        let range = self.lock().table.get(handle)?.range;
        match self.check(handle, range.offset(), range.bytes(), Rights::READ)? {
            Resource::Held(holding) if !holding.is_sealed() => Err(Refused::new(
                errno::EINVAL,
                format!("{} is not sealed: it has no checksums", holding.name()),
            )),
            Resource::Held(holding) if range.offset() != 0 || range.bytes() != holding.bytes() => {
                let text = format!("the handle is for a part of {} (hint: open all of it)", holding.name());
                Err(Refused::new(errno::EACCES, text))
            }
            Resource::Held(holding) => Ok(peer_service::checksums_from(&holding, first)),
            Resource::Remote(info) => {
                let text = format!("{} is not held by this node (hint: ask one of its homes)", info.name);
                Err(Refused::new(errno::ENOTSUP, text))
            }
            Resource::Region(region) => {
                Err(Refused::new(errno::EINVAL, format!("{} is a region: it has no checksums", region.name)))
            }
            Resource::Kv(..) | Resource::KvBlocks(_) | Resource::Lent(_) => Err(not_an_object()),
        }
    }

    /// The cache file that a handle reads from; the first read opens it.
    fn reading(&self, core: &Core, handle: Handle, info: &ObjectInfo) -> Result<Arc<CacheFile>, Refused> {
        let (known, preference) = {
            let held = self.lock();
            (held.caches.get(&handle).cloned(), held.preference)
        };
        if let Some(file) = known {
            return Ok(file);
        }
        let file = core.cache.begin_reading(info, self.user, self.id, preference)?;
        self.lock().caches.insert(handle, Arc::clone(&file));
        Ok(file)
    }

    /// Opens an object of another rack in the cache, which has a handle to it at a home. Of one that lies here the session has the bytes.
    fn hold(&self, core: &Core, handle: Handle) -> Result<Reply, Refused> {
        if let Resource::Remote(info) = self.check(handle, 0, 0, Rights::READ)? {
            self.reading(core, handle, &info)?;
        }
        Ok(Reply::Done)
    }

    /// Counts one more ring; returns what tells its thread that the session has ended.
    ///
    /// # Errors
    /// [`Refused`] for a session of another host, or one with `RINGS_MAX` rings.
    pub fn ring_flag(&self) -> Result<Arc<AtomicBool>, Refused> {
        self.needs_host("share a ring")?;
        let mut held = self.lock();
        if held.rings == RINGS_MAX {
            let text = format!("this session has {RINGS_MAX} rings, the most it may have (hint: share them)");
            return Err(Refused::new(errno::ENOSPC, text));
        }
        held.rings += 1;
        Ok(Arc::clone(&self.ended))
    }

    /// Closes the socket that it came over, so that the session ends for both sides.
    pub fn hang_up(&self) {
        if let Some(socket) = &self.socket {
            socket.shutdown();
        }
    }

    /// The program has ended, and its socket is open: a child that was forked has it. What the program has mapped the child can still read, so
    /// the session goes on; but nobody ends its puts or unlocks what it had locked, for a child may not use the session, and of KV blocks, which a
    /// child opens anew, it would hold slots and pins for ever.
    /// Whether the session goes on.
    pub fn outlives_program(&self, core: &Core) -> bool {
        let puts: Vec<ObjectId> = self.lock().puts.keys().copied().collect();
        for object in puts {
            core.puts.abandon(object);
            self.end_put(object);
        }
        core.locks.release_all(core, self.id);
        !self.lock().has_kv
    }

    /// Gives everything back.
    pub fn end(&self, core: &Core) {
        self.ended.store(true, Ordering::Release);
        let held = std::mem::take(&mut *self.lock());
        for registration in held.registrations {
            if let Err(refused) = core.cache.unregister(registration, self.id) {
                tracing::debug!(%refused, "a mapping had gone before its session");
            }
        }
        held.caches.values().for_each(|file| core.cache.end_reading(file, self.id));
        // By the user and not by what is held: a ring may have reserved while this was going on, and ends it again.
        core.kv.release(self.user, self.id);
        held.puts.into_keys().for_each(|object| core.puts.abandon(object));
        core.regions.end_session(self.id);
        core.locks.release_all(core, self.id);
        core.segment.release_all(self.id);
    }

    fn answer_about_puts(&self, core: &Core, request: Request) -> Result<Reply, Refused> {
        Ok(match request {
            Request::PutBegin { name, bytes, copies, placement } => {
                self.put_begin(core, NewPut { user: self.user, name, bytes, copies, placement })?
            }
            Request::PutAttach { object, ticket } => self.put_attach(core, object, ticket)?,
            Request::PutGrow { object, bytes } => {
                self.owns_put(object)?;
                core.puts.grow(object, bytes)?;
                Reply::Done
            }
            Request::PutSeal { object, bytes, digest } => {
                self.owns_put(object)?;
                let sealed = core.puts.seal(object, bytes, digest);
                self.end_put(object);
                Reply::Object(sealed?)
            }
            Request::PutPublish { object, bytes, digest, name } => {
                self.owns_put(object)?;
                let published = core.puts.publish(object, bytes, digest, name);
                self.end_put(object);
                let (info, removed) = published?;
                if let Some(removed) = removed {
                    naming::let_go(core, &removed);
                }
                Reply::Object(info)
            }
            Request::PutRename { object, from, to } => {
                self.owns_put(object)?;
                core.puts.rename(object, from, to)?;
                Reply::Done
            }
            Request::PutExchange { object, from, other, to } => {
                self.owns_put(object)?;
                core.puts.exchange(self.user, (object, from), (other, to))?;
                Reply::Done
            }
            Request::PutAbort { object } => {
                self.owns_put(object)?;
                core.puts.abandon(object);
                self.end_put(object);
                Reply::Done
            }
            other => return Err(Refused::new(errno::EINVAL, format!("{other:?} cannot be answered here"))),
        })
    }

    fn answer_about_objects(&self, core: &Core, request: Request) -> Result<Reply, Refused> {
        Ok(match request {
            Request::Ping => Reply::Done,
            Request::Status => Reply::Status(Box::new(core.status())),
            Request::Members => Reply::Members(questions::members(core)?),
            Request::FormerPools => Reply::FormerPools(questions::former_pools(core)?),
            Request::Forget { node, lose } => questions::forget(core, node, lose)?,
            Request::Open { name, rights } => {
                let info = core.describe(&core.directory.lookup(&name)?);
                self.open(core, info, rights)?
            }
            Request::OpenObject { object, rights } => {
                let info = core.describe(&core.directory.lookup_object(object)?);
                self.open(core, info, rights)?
            }
            Request::Diminish { handle, rights, range } => {
                Reply::Granted { handle: self.lock().table.diminish(handle, rights, range)? }
            }
            Request::Revoke { handle } => {
                let mut held = self.lock();
                let taken = held.table.revoke(handle)?;
                self.let_go(core, &mut held, taken)
            }
            Request::Close { handle } => {
                let mut held = self.lock();
                let taken = held.table.close(handle)?;
                self.let_go(core, &mut held, taken)
            }
            Request::Lend { handle } => self.lend(handle)?,
            Request::Hold { handle } => self.hold(core, handle)?,
            Request::Stat { name } => Reply::Object(questions::stat(core, &name)?),
            Request::List { prefix, after, limit } => questions::list(core, prefix, after, limit)?,
            Request::Remove { .. }
            | Request::Rename { .. }
            | Request::RemoveObject { .. }
            | Request::RenameObject { .. }
            | Request::RenameFolder { .. } => {
                change_name(core, request)?;
                Reply::Done
            }
            Request::Verify { name, mending } => verify::verify(core, &name, mending)?,
            Request::Right { handle } => Reply::Right(self.right(core, handle)?),
            Request::Checksums { handle, first } => {
                Reply::Checksums { blocks: self.checksums(handle, first)? }
            }
            Request::Resolve { address } => {
                let info = core.describe(&core.directory.lookup_page(address.page())?);
                let first = info.address.map_or(0, hinterland_types::GlobalAddress::raw);
                Reply::Resolved { info, offset: address.raw() - first }
            }
            Request::Fetched { handle, bytes } => {
                self.note_fetched(core, handle, bytes)?;
                Reply::Done
            }
            Request::DropCache { name } => {
                let info = core.describe(&core.directory.lookup(&name)?);
                core.cache.drop_filled(&info);
                Reply::Done
            }
            other => self.answer_about_regions(core, other)?,
        })
    }

    fn answer_about_regions(&self, core: &Core, request: Request) -> Result<Reply, Refused> {
        Ok(match request {
            Request::CreateRegion { name, bytes, rack } => Reply::Object(match rack {
                Some(rack) => create_region(core, name, bytes, Placement::Rack(rack))?,
                None => create_near(core, &name, bytes)?,
            }),
            Request::CreateSpread { name, bytes } => {
                Reply::Object(create_region(core, name, bytes, Placement::Spread)?)
            }
            Request::AwaitPage { handle, index } => {
                let Resource::Region(region) = self.check(handle, 0, 0, Rights::NONE)? else {
                    return Err(not_a_region());
                };
                core.regions.find(core, &region, index)?;
                Reply::Done
            }
            Request::WritePage { handle, index } => {
                let Resource::Region(region) = self.check(handle, 0, 0, Rights::WRITE)? else {
                    return Err(not_a_region());
                };
                core.regions.before_write(core, &region, index)?;
                core.regions.find(core, &region, index)?;
                Reply::Done
            }
            Request::PullPage { address } => {
                let (region, index) = page_at(core, address)?;
                core.regions.pull(core, &region, index, None)?;
                Reply::Done
            }
            Request::CopyPage { address } => {
                let (region, index) = page_at(core, address)?;
                core.regions.find(core, &region, index)?;
                core.regions.copy_page(core, &region, index)?;
                Reply::Done
            }
            // At most 1000.
            Request::HotPages { limit } => Reply::HotPages(core.regions.hottest(limit.min(1000) as usize)),
            Request::PagesAt { name } => {
                let info = core.directory.lookup(&name)?;
                Reply::PagesAt(core.regions.pages_at(core, info.object)?)
            }
            other => return Err(Refused::new(errno::EINVAL, format!("{other:?} cannot be answered here"))),
        })
    }

    /// Gives back what goes with handles that the table has no more.
    fn let_go(&self, core: &Core, held: &mut Held, taken: Vec<(Handle, Resource)>) -> Reply {
        for (handle, _) in taken {
            held.heat_copies.remove(&handle);
            if let Some(file) = held.caches.remove(&handle)
                && !held.caches.values().any(|other| Arc::ptr_eq(other, &file))
            {
                core.cache.end_reading(&file, self.id);
            }
        }
        Reply::Done
    }

    /// Bytes of a sealed object that this node holds, without a look at the directory; and a handle to all of it, or 0.
    ///
    /// # Errors
    /// [`Refused`] if the node does not hold it sealed, or it has not so many bytes.
    pub fn fetch(&self, core: &Core, question: Request) -> Result<(Handle, Slice), Refused> {
        let Request::FetchObject { object, offset, bytes, keep } = question else {
            return Err(Refused::new(errno::EINVAL, "only bytes of objects can be fetched (hint: call)"));
        };
        let holding = core.holdings.find(object)?;
        if !holding.is_sealed() {
            return Err(Refused::new(
                errno::EACCES,
                format!("{object} is not sealed here, so it is not fetched"),
            ));
        }
        let whole = ByteRange::within(0, holding.bytes(), OBJECT_BYTES_MAX)
            .and_then(|whole| ByteRange::within(offset, bytes, whole.bytes()).map(|_| whole))
            .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
        let slice = Slice::from(holding.slice(offset, bytes)?);
        holding.note_use();
        let handle = if keep {
            self.lock().table.grant(Resource::Held(holding), Rights::READ, whole)?
        } else {
            Handle(0)
        };
        Ok((handle, slice))
    }

    fn open(&self, core: &Core, info: ObjectInfo, rights: Rights) -> Result<Reply, Refused> {
        let most = match info.state {
            ObjectState::Sealed => Rights::READ,
            ObjectState::Mutable => Rights::READ | Rights::WRITE | Rights::LOCK,
            ObjectState::Writing => {
                let text =
                    format!("{} is being written or removed (hint: try again when it is sealed)", info.name);
                return Err(Refused::new(errno::ENOENT, text));
            }
        };
        let rights = rights.intersect(most);
        if rights == Rights::NONE {
            let text = format!(
                "{} is sealed: it can be read and nothing else (hint: open it for reading)",
                info.name
            );
            return Err(Refused::new(errno::EACCES, text));
        }
        let range = ByteRange::within(0, info.bytes, OBJECT_BYTES_MAX)
            .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
        if info.state == ObjectState::Mutable {
            let region = core.regions.get(core, info.object)?;
            if self.socket.is_none() && region.part().is_none() {
                return Err(Refused::new(errno::ENOENT, format!("{} is not held by this node", info.name)));
            }
            let local = region.is_whole();
            let handle = self.lock().table.grant(Resource::Region(region), rights, range)?;
            return Ok(Reply::Opened(Opened { handle, rights, info, local }));
        }
        let holding = core.holdings.find(info.object).ok().filter(|holding| !holding.is_writing());
        let local = holding.is_some();
        let open = holding.as_ref().and_then(|holding| holding.open_heat_copy());
        let resource = match holding {
            Some(holding) => Resource::Held(holding),
            None if self.socket.is_some() => Resource::Remote(Arc::new(info.clone())),
            None => {
                return Err(Refused::new(errno::ENOENT, format!("{} is not held by this node", info.name)));
            }
        };
        let mut held = self.lock();
        let handle = held.table.grant(resource, rights, range)?;
        held.heat_copies.extend(open.map(|open| (handle, open)));
        Ok(Reply::Opened(Opened { handle, rights, info, local }))
    }

    /// A program has read bytes of an object from a home itself; what it says beyond the object's size is not believed.
    fn note_fetched(&self, core: &Core, handle: Handle, bytes: u64) -> Result<(), Refused> {
        if let Resource::Remote(info) = self.check(handle, 0, 0, Rights::READ)? {
            core.heat_copies.note_fetched(&info, bytes.min(info.bytes));
        }
        Ok(())
    }

    fn watch(&self) -> Answer {
        self.needs_host("be told of lost memory")?;
        let (channel, theirs) = NoticeChannel::open()?;
        *self.channel.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(channel));
        Ok((Reply::Done, vec![theirs]))
    }

    fn prefer(&self, budget_bytes: Option<u64>, unit_bytes: Option<u64>) -> Result<Reply, Refused> {
        let unit_bytes = unit_bytes
            .map(UnitBytes::new)
            .transpose()
            .map_err(|error| Refused::new(errno::EINVAL, error.to_string()))?;
        self.lock().preference = CachePreference { budget_bytes, unit_bytes };
        Ok(Reply::Done)
    }

    fn put_begin(&self, core: &Core, new: NewPut) -> Result<Reply, Refused> {
        self.needs_host("begin a put")?;
        let begun = core.puts.begin(new)?;
        self.lock().puts.insert(begun.object, None);
        let mut targets = Vec::new();
        for home in begun.homes {
            let handle = if home.node == core.own {
                let holding = core.holdings.find(begun.object)?;
                let range = ByteRange::within(0, OBJECT_BYTES_MAX, OBJECT_BYTES_MAX).unwrap_or_default();
                let mut held = self.lock();
                let handle =
                    held.table.grant(Resource::Held(holding), Rights::READ | Rights::WRITE, range)?;
                held.puts.insert(begun.object, Some(handle));
                Some(handle)
            } else {
                None
            };
            targets.push(PutTarget { home, handle, ticket: begun.ticket });
        }
        Ok(Reply::PutStarted(PutStarted { object: begun.object, targets }))
    }

    fn put_attach(&self, core: &Core, object: ObjectId, ticket: [u8; 16]) -> Result<Reply, Refused> {
        let holding = core.holdings.find(object)?;
        if !holding.is_writing() || holding.ticket != ticket {
            let text = format!(
                "{object} is not being written with this ticket (hint: the put was given up or sealed)"
            );
            return Err(Refused::new(errno::EACCES, text));
        }
        let range = ByteRange::within(0, OBJECT_BYTES_MAX, OBJECT_BYTES_MAX).unwrap_or_default();
        let handle = self.lock().table.grant(Resource::Held(holding), Rights::READ | Rights::WRITE, range)?;
        Ok(Reply::Granted { handle })
    }

    fn kv(&self, core: &Core, request: KvRequest) -> Answer {
        self.needs_host("share KV blocks")?;
        let reply = match request {
            KvRequest::Open { fingerprint, label } => {
                let store = core.kv.of_user(self.user)?;
                let known = store.namespace(fingerprint, &label)?;
                return self.kv_open(core, store, known);
            }
            KvRequest::OpenKnown { namespace } => {
                let (store, known) = core.kv.known(self.user, namespace)?;
                return self.kv_open(core, store, known);
            }
            KvRequest::Reserve { handle, blocks } => {
                let (store, namespace) = self.kv_at(handle, Rights::WRITE)?;
                KvReply::Slots(store.reserve(self.id, namespace, &blocks)?)
            }
            KvRequest::Publish { handle, slots, sums } => {
                KvReply::Published(self.kv_at(handle, Rights::WRITE)?.0.publish(self.id, &slots, &sums)?)
            }
            KvRequest::Abort { handle, slots } => {
                KvReply::Count(self.kv_at(handle, Rights::WRITE)?.0.abort(self.id, &slots)?)
            }
            KvRequest::Remove { handle, keys } => {
                let (store, namespace) = self.kv_at(handle, Rights::WRITE)?;
                KvReply::Count(store.remove(namespace, &keys)?)
            }
            KvRequest::Clear { handle } => {
                let (store, namespace) = self.kv_at(handle, Rights::WRITE)?;
                KvReply::Count(store.clear(namespace))
            }
            KvRequest::ClearEverywhere { handle } => {
                let (store, namespace) = self.kv_at(handle, Rights::WRITE)?;
                KvReply::Count(core.clear_kv_everywhere(&store, namespace)?)
            }
            KvRequest::Pin { handle, keys } => {
                let (store, namespace) = self.kv_at(handle, Rights::READ)?;
                KvReply::Answers(store.pin(self.id, namespace, &keys)?)
            }
            KvRequest::Unpin { handle, keys } => {
                let (store, namespace) = self.kv_at(handle, Rights::READ)?;
                KvReply::Answers(store.unpin(self.id, namespace, &keys)?)
            }
            KvRequest::Limit { handle, quota_bytes, priority } => {
                let (store, namespace) = self.kv_at(handle, Rights::WRITE)?;
                KvReply::Count(store.limit(namespace, quota_bytes, priority))
            }
            KvRequest::Inspect { handle, key } => {
                let (store, namespace) = self.kv_at(handle, Rights::READ)?;
                KvReply::Inspected(store.inspect(namespace, &key)?)
            }
            KvRequest::Events { handle, after, limit } => {
                let (store, namespace) = self.kv_at(handle, Rights::READ)?;
                store.events(namespace, after, limit)
            }
            KvRequest::Status => {
                let mut stores = core.kv.status();
                core.kv_racks.describe(&mut stores);
                KvReply::Status(stores)
            }
            KvRequest::Spaces { user, after } => KvReply::Spaces(core.kv.spaces(user, after)),
            other => self.kv_of_others(core, other)?,
        };
        Ok((Reply::Kv(reply), Vec::new()))
    }

    /// Requests that reach KV blocks of other nodes.
    fn kv_of_others(&self, core: &Core, request: KvRequest) -> Result<KvReply, Refused> {
        Ok(match request {
            KvRequest::Match { handle, keys } => {
                let (store, namespace) = self.kv_at(handle, Rights::READ)?;
                KvReply::Count(core.kv_elsewhere.match_prefix(&store, namespace, &keys)?)
            }
            KvRequest::RemoveEverywhere { handle, keys, is_here_too } => {
                let (store, namespace) = self.kv_at(handle, Rights::WRITE)?;
                KvReply::Count(core.remove_kv_everywhere(&store, namespace, keys, is_here_too)?)
            }
            KvRequest::Lengths { handle, keys } => {
                let (store, namespace) = self.kv_at(handle, Rights::READ)?;
                KvReply::Lengths(core.kv_elsewhere.lengths(&store, namespace, &keys)?)
            }
            KvRequest::Fetch { handle, keys } => {
                let (store, namespace) = self.kv_at(handle, Rights::WRITE)?;
                KvReply::Fetched(core.kv_elsewhere.fetch(&store, namespace, &keys)?)
            }
            KvRequest::Prefetch { handle, keys } => {
                let (store, namespace) = self.kv_at(handle, Rights::WRITE)?;
                let count = keys.len() as u64;
                let is_begun = core.kv_elsewhere.prefetch(&store, namespace, keys)?;
                KvReply::Count(if is_begun { count } else { 0 })
            }
            other => self.kv_values(other)?,
        })
    }

    /// Requests about blocks that are replaced.
    fn kv_values(&self, request: KvRequest) -> Result<KvReply, Refused> {
        Ok(match request {
            KvRequest::Swap { handle, blocks, give, take, on_disk } => {
                let (store, namespace) = self.kv_at(handle, Rights::WRITE)?;
                let (outcomes, slots) = store.swap(self.id, namespace, &blocks, (&give, &take), on_disk)?;
                KvReply::Swapped { outcomes, slots }
            }
            KvRequest::SwapAll { handle, blocks, seen, removes } => {
                let (store, namespace) = self.kv_at(handle, Rights::WRITE)?;
                let outcomes = store.swap_all(self.id, namespace, &blocks, (&seen, removes))?;
                KvReply::Swapped { outcomes, slots: Vec::new() }
            }
            KvRequest::RemoveSeen { handle, blocks } => {
                let (store, namespace) = self.kv_at(handle, Rights::WRITE)?;
                KvReply::Count(store.remove_seen(namespace, &blocks)?)
            }
            KvRequest::List { handle, cursor, limit } => {
                let (store, namespace) = self.kv_at(handle, Rights::READ)?;
                let (keys, next) = store.list(namespace, cursor, limit);
                KvReply::Listed { keys, next }
            }
            KvRequest::Blocks { handle } => {
                let (store, namespace) = self.kv_at(handle, Rights::READ)?;
                KvReply::Count(store.blocks_of(namespace))
            }
            KvRequest::Doubt { handle, blocks } => {
                let (store, namespace) = self.kv_at(handle, Rights::READ)?;
                KvReply::Count(store.doubt(namespace, &blocks))
            }
            other => return Err(Refused::new(errno::EINVAL, format!("{other:?} cannot be answered here"))),
        })
    }

    fn kv_open(&self, core: &Core, store: Arc<UserStore>, opened: OpenedSpace) -> Answer {
        let OpenedSpace { namespace, counters, uses } = opened;
        let descriptors = store.descriptors(self.id)?;
        core.kv_racks.want();
        let resource = Resource::Kv(store, namespace, uses);
        let mut held = self.lock();
        let handle = held.table.grant(resource, Rights::READ | Rights::WRITE, ByteRange::default())?;
        held.has_kv = true;
        Ok((Reply::Kv(KvReply::Opened { handle, namespace: namespace.0, counters }), descriptors))
    }

    fn kv_at(&self, handle: Handle, needed: Rights) -> Result<(Arc<UserStore>, Namespace), Refused> {
        match self.check(handle, 0, 0, needed)? {
            Resource::Kv(store, namespace, _) => Ok((store, namespace)),
            _ => Err(Refused::new(
                errno::EINVAL,
                format!("{handle} leads to no KV blocks (hint: open them first)"),
            )),
        }
    }

    /// A put goes on no more. Its handle would keep the memory after the object was removed.
    fn end_put(&self, object: ObjectId) {
        let mut held = self.lock();
        if let Some(handle) = held.puts.remove(&object).flatten() {
            // The program may have closed it.
            let _ = held.table.close(handle);
        }
    }

    fn owns_put(&self, object: ObjectId) -> Result<(), Refused> {
        if self.lock().puts.contains_key(&object) {
            return Ok(());
        }
        Err(Refused::new(errno::EACCES, format!("this session has no put of {object} going on")))
    }

    /// The session does not use a handle, and may again: what it stands for is not kept for it.
    fn lend(&self, handle: Handle) -> Result<Reply, Refused> {
        let mut held = self.lock();
        match &held.table.get(handle)?.resource {
            Resource::Held(holding) if holding.is_sealed() => {
                let lent = Resource::Lent(Arc::downgrade(holding));
                held.table.replace(handle, lent)?;
                held.heat_copies.remove(&handle);
                Ok(Reply::Done)
            }
            Resource::Lent(_) => Ok(Reply::Done),
            _ => Err(Refused::new(errno::EINVAL, "only a sealed object that is held here can be lent")),
        }
    }

    /// Checks a request; bytes of a sealed object cannot be written whatever the handle says.
    fn check(&self, handle: Handle, offset: u64, bytes: u64, needed: Rights) -> Result<Resource, Refused> {
        let resource = self.lock().table.check(handle, offset, bytes, needed)?.clone().still_there()?;
        if let Resource::Held(holding) = &resource
            && needed.allows(Rights::WRITE)
            && holding.is_sealed()
        {
            return Err(Refused::new(errno::EACCES, format!("{} is sealed", holding.name())));
        }
        Ok(resource)
    }

    fn needs_host(&self, what: &str) -> Result<(), Refused> {
        if self.socket.is_some() {
            return Ok(());
        }
        let text =
            format!("a session from another host cannot {what} (hint: connect to the node of your own host)");
        Err(Refused::new(errno::ENOTSUP, text))
    }

    /// Whether the client is still at the other end of the socket.
    fn is_connected(&self) -> bool {
        let Some(socket) = &self.socket else { return false };
        let is_closed = || {
            let poller = Poller::new()?;
            poller.add(&**socket, 0, Interest::default())?;
            let mut ready = Vec::new();
            poller.wait(&mut ready, Some(Duration::ZERO))?;
            Ok::<bool, OsError>(ready.iter().any(|readiness| readiness.closed))
        };
        // Without descriptors for the question the client is believed to be there.
        !is_closed().unwrap_or(false)
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// To be asked after a copy from or into memory that programs may write: whether it was there all the time.
///
/// # Errors
/// [`Refused`] if a program has cut its file off.
pub fn kept(slice: &Slice) -> Result<(), Refused> {
    if slice.is_lost() {
        let error = OsError::Lost { offset: 0, bytes: slice.len() as u64 };
        return Err(Refused::new(errno::EIO, error.to_string()));
    }
    Ok(())
}

/// Removes or renames what a name leads to.
fn change_name(core: &Core, request: Request) -> Result<(), Refused> {
    match request {
        Request::Remove { name } => naming::remove(core, &name),
        Request::Rename { from, to, target } => naming::rename(core, from, to, target),
        Request::RemoveObject { name, object } => naming::remove_object(core, &name, object),
        Request::RenameObject { object, from, to, target } => {
            naming::rename_object(core, object, from, to, target)
        }
        Request::RenameFolder { from, to } => naming::rename_folder(core, from, to),
        other => Err(Refused::new(errno::EINVAL, format!("{other:?} changes no name"))),
    }
}

/// The region that has an address, and which of its pages does.
fn page_at(core: &Core, address: hinterland_types::GlobalAddress) -> Result<(Arc<Region>, u32), Refused> {
    let info = core.directory.lookup_page(address.page())?;
    let region = core.regions.get(core, info.object)?;
    let index = address.page().raw().wrapping_sub(region.pages.first().raw());
    Ok((region, index))
}

fn not_a_region() -> Refused {
    Refused::new(errno::EINVAL, "that is no region (hint: only regions have pages that move)")
}

fn not_an_object() -> Refused {
    Refused::new(errno::ENOTSUP, "KV blocks are no object (hint: read them through the files that Open gave)")
}
