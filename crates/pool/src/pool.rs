//! The pool as programs use it: put, open, list, stat, remove, verify, and memory that is read in place.

use crate::address::Addresses;
use crate::guard::Guards;
use crate::object::Object;
use crate::remote::Remotes;
use crate::rings::{RingChoice, Rings, open_near};
use crate::session::unexpected;
use crate::slots::{Slots, SlotsOfPool};
use crate::{Patience, PoolError, Session};
use hinterland_fabric::adaptive::{Counts, Way};
use hinterland_fabric::shm::ShmEndpoint;
use hinterland_proto::control::{
    AllocationKind, Copies, FormerPool, HotPage, LockMode, LockTable, MemberInfo, Mending, NodeStatus,
    ObjectInfo, ObjectState, PagesOn, Placement, RenameTarget, Reply, Request,
};
use hinterland_types::{GlobalAddress, NodeId, ObjectId, ObjectName, RackName, Rights};
use std::path::Path;
use std::sync::Arc;

/// `errno` of a right that is not given.
const EACCES: i32 = 13;
/// Entries of a listing that are asked for at once.
const LIST_PAGE: u32 = 500;

/// A connection to the pool through the local node.
#[derive(Clone)]
pub struct Pool {
    session: Arc<Session>,
    remotes: Arc<Remotes>,
    addresses: Arc<Addresses>,
    slots: Arc<SlotsOfPool>,
    /// Whether every access to a region asks the node.
    asks: bool,
    guards: Arc<Guards>,
}

/// What `verify` found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// Blocks of 64 KiB that were compared, over all homes.
    pub blocks: u64,
    /// Homes whose copy is right.
    pub good: Vec<NodeId>,
    /// Homes whose copy is wrong or could not be read, and why.
    pub bad: Vec<(NodeId, String)>,
    /// Those of `bad` that did not answer, as while their node is down: nothing is known of their copies.
    pub unasked: Vec<NodeId>,
    /// Those of `bad` whose wrong blocks were written anew, so that the copy is right again.
    pub mended: Vec<NodeId>,
}

/// How to put an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PutOptions {
    /// Size in bytes if it is known: then lack of room is an error before a byte moves.
    pub bytes: Option<u64>,
    /// Whole copies, on distinct nodes.
    pub copies: Copies,
    /// Where the first copy goes.
    pub placement: Placement,
}

impl Default for PutOptions {
    fn default() -> Self {
        Self { bytes: None, copies: 1, placement: Placement::Policy }
    }
}

impl Pool {
    /// Connects to the node at `socket`, or at [`crate::default_socket`].
    ///
    /// # Errors
    /// [`PoolError::NoNode`] if nobody listens.
    pub fn connect(socket: Option<&Path>) -> Result<Self, PoolError> {
        Self::connect_over(socket, RingChoice::of_environment())
    }

    /// The same, with a say over how many rings its threads ask the node once there are several.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_over(socket: Option<&Path>, rings: RingChoice) -> Result<Self, PoolError> {
        Self::over(Session::connect_shared(socket, rings)?)
    }

    /// Connects for one thread that wants to hear of it when the node is silent, from the first word on.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); [`PoolError::Silent`] when the patience ends.
    pub fn connect_patiently(socket: Option<&Path>, patience: Patience) -> Result<Self, PoolError> {
        Self::over(Session::connect_patiently(socket, patience)?)
    }

    fn over(session: Session) -> Result<Self, PoolError> {
        let session = Arc::new(session);
        let remotes = Arc::new(Remotes::new(session.pool())?);
        let guards = Arc::new(Guards::new(session.socket()));
        let (addresses, slots) = (Arc::default(), Arc::default());
        Ok(Self { session, remotes, addresses, slots, asks: false, guards })
    }

    /// The same connection, but every access to a region asks the node: for the bytes of pages that are here, and where the others
    /// are. It is what the words of pages and the memory at hand spare, and is there to measure them.
    #[must_use]
    pub fn asking_always(&self) -> Self {
        Self { asks: true, ..self.without_addresses() }
    }

    /// The same connection to the node, with connections to other nodes of its own, over which first reads of objects of other racks go in
    /// one way, or in the one that is chosen for each.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the file with the pool's key cannot be read.
    pub fn reading_by(&self, way: Option<Way>) -> Result<Self, PoolError> {
        let remotes = Arc::new(Remotes::by(self.session.pool(), way)?);
        Ok(Self { remotes, ..self.clone() })
    }

    /// How often sealed objects of other racks were asked for, read, and read without a question by [`Object::read_at`].
    pub fn read_counts(&self) -> Counts {
        self.remotes.counts()
    }

    /// Forgets the handles of objects of other racks that were read and are not open: the next read of each asks again.
    pub fn forget_learned(&self) {
        self.remotes.forget_learned();
    }

    /// Whether every access to a region asks the node.
    pub(crate) const fn asks(&self) -> bool {
        self.asks
    }

    /// The session, for requests that have no method here.
    pub const fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(crate) const fn remotes(&self) -> &Arc<Remotes> {
        &self.remotes
    }

    pub(crate) const fn addresses(&self) -> &Arc<Addresses> {
        &self.addresses
    }

    /// What guards of this pool share.
    pub(crate) const fn guards(&self) -> &Arc<Guards> {
        &self.guards
    }

    /// The slots of this process, if the node and the kernel give any.
    pub(crate) fn slots(&self) -> Result<Option<Arc<Slots>>, PoolError> {
        self.slots.get(&self.session)
    }

    /// The same connection with a table of addresses of its own, empty.
    pub(crate) fn without_addresses(&self) -> Self {
        Self { addresses: Arc::default(), ..self.clone() }
    }

    /// Opens a sealed object or a region.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is no such name or the rights are not given.
    pub fn open(&self, name: &ObjectName, rights: Rights) -> Result<Object, PoolError> {
        // Stores are made through files of memory, which the node gives to nobody who may not read them.
        let is_blind = rights == Rights::WRITE;
        let asked = if is_blind { Rights::READ | rights } else { rights };
        let object = match self.session.call(&Request::Open { name: name.clone(), rights: asked })? {
            Reply::Opened(opened) => Object::new(self.clone(), opened),
            other => return Err(unexpected("Opened", &other)),
        };
        if !is_blind {
            return Ok(object);
        }
        if object.info().state == ObjectState::Sealed {
            let text =
                format!("{name} is sealed: it can be read and nothing else (hint: open it for reading)");
            return Err(PoolError::Refused { code: EACCES, text });
        }
        object.diminish(rights, object.range())
    }

    /// Opens a sealed object for reading.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_object(&self, name: &ObjectName) -> Result<Object, PoolError> {
        self.open(name, Rights::READ)
    }

    /// Opens a sealed object for reading by its identifier, whatever its name is now.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_id(&self, object: ObjectId) -> Result<Object, PoolError> {
        match self.session.call(&Request::OpenObject { object, rights: Rights::READ })? {
            Reply::Opened(opened) => Ok(Object::new(self.clone(), opened)),
            other => Err(unexpected("Opened", &other)),
        }
    }

    /// What this host may cache for objects of other racks that this connection opens from here on: at most
    /// `budget_bytes` of each, in fault units of `unit_bytes`.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the unit is no power of two from 64 KiB to 64 MiB.
    pub fn prefer(&self, budget_bytes: Option<u64>, unit_bytes: Option<u64>) -> Result<(), PoolError> {
        self.done(&Request::Prefer { budget_bytes, unit_bytes })
    }

    /// What is known of an object.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is no such name.
    pub fn stat(&self, name: &ObjectName) -> Result<ObjectInfo, PoolError> {
        self.object(&Request::Stat { name: name.clone() })
    }

    /// All objects whose name starts with `prefix`, by name.
    ///
    /// # Errors
    /// [`PoolError`] if the directory cannot be asked.
    ///
    /// ```no_run
    /// # use hinterland_pool::Pool;
    /// # let pool = Pool::connect(None)?;
    /// for object in pool.list("models/")? {
    ///     println!("{}: {} bytes", object.name, object.bytes);
    /// }
    /// # Ok::<(), hinterland_pool::PoolError>(())
    /// ```
    pub fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>, PoolError> {
        let mut all: Vec<ObjectInfo> = Vec::new();
        loop {
            let after = all.last().map(|info| info.name.clone());
            let request = Request::List { prefix: prefix.to_owned(), after, limit: LIST_PAGE };
            match self.session.call(&request)? {
                Reply::Objects { objects, more } => {
                    let is_last = !more || objects.is_empty();
                    all.extend(objects);
                    if is_last {
                        return Ok(all);
                    }
                }
                other => return Err(unexpected("Objects", &other)),
            }
        }
    }

    /// Removes a name; programs that have the object mapped keep it until they unmap it.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is no such name.
    pub fn remove(&self, name: &ObjectName) -> Result<(), PoolError> {
        let removed = self.done(&Request::Remove { name: name.clone() });
        self.forget_addresses();
        removed
    }

    /// Gives an object another name, in one step for everybody.
    ///
    /// # Errors
    /// [`PoolError::Refused`]: `ENOENT` if there is no such name, `EEXIST` if something has the other one and is to stay.
    pub fn rename(&self, from: &ObjectName, to: &ObjectName, target: RenameTarget) -> Result<(), PoolError> {
        let renamed = self.done(&Request::Rename { from: from.clone(), to: to.clone(), target });
        self.forget_addresses();
        renamed
    }

    /// Removes one object, and no other that has its name by then.
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `ENOENT` if it has not that name.
    pub fn remove_object(&self, name: &ObjectName, object: ObjectId) -> Result<(), PoolError> {
        let removed = self.done(&Request::RemoveObject { name: name.clone(), object });
        self.forget_addresses();
        removed
    }

    /// Gives one object another name, and no other that has its name by then. One that has the other name already was renamed by an
    /// earlier request.
    ///
    /// # Errors
    /// As [`rename`](Self::rename); `ENOENT` also if the object has neither name.
    pub fn rename_object(
        &self,
        object: ObjectId,
        from: &ObjectName,
        to: &ObjectName,
        target: RenameTarget,
    ) -> Result<(), PoolError> {
        let (from, to) = (from.clone(), to.clone());
        let renamed = self.done(&Request::RenameObject { object, from, to, target });
        self.forget_addresses();
        renamed
    }

    /// Gives everything below a folder names below another one, in one step. Nothing may have the other name.
    ///
    /// # Errors
    /// As [`rename`](Self::rename); `EXDEV` if there are too many.
    pub fn rename_folder(&self, from: &ObjectName, to: &ObjectName) -> Result<(), PoolError> {
        let renamed = self.done(&Request::RenameFolder { from: from.clone(), to: to.clone() });
        self.forget_addresses();
        renamed
    }

    /// Lets every home read its copy and compare it with its checksums.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is no such name.
    pub fn verify(&self, name: &ObjectName) -> Result<Verified, PoolError> {
        self.verify_with(name, Mending::No)
    }

    /// As [`verify`](Self::verify), and has wrong blocks written anew from other copies, in place: programs that map them see the right
    /// bytes. A copy where that fails is let go of if there is a right one, and made again; programs that map such a one keep it
    /// until they unmap it.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub fn verify_and_mend(&self, name: &ObjectName) -> Result<Verified, PoolError> {
        self.verify_with(name, Mending::InPlace)
    }

    /// As [`verify`](Self::verify), and lets go of wrong copies if there is a right one, as where memory is not to be trusted; they are made
    /// again. Programs that map a wrong copy keep it until they unmap it.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub fn verify_and_drop(&self, name: &ObjectName) -> Result<Verified, PoolError> {
        self.verify_with(name, Mending::Drop)
    }

    fn verify_with(&self, name: &ObjectName, mending: Mending) -> Result<Verified, PoolError> {
        match self.session.call(&Request::Verify { name: name.clone(), mending })? {
            Reply::Verified { blocks, good, bad, unasked, mended } => {
                Ok(Verified { blocks, good, bad, unasked, mended })
            }
            other => Err(unexpected("Verified", &other)),
        }
    }

    /// What the local node says of itself.
    ///
    /// # Errors
    /// [`PoolError`] if it does not answer.
    pub fn status(&self) -> Result<NodeStatus, PoolError> {
        match self.session.call(&Request::Status)? {
            Reply::Status(status) => Ok(*status),
            other => Err(unexpected("Status", &other)),
        }
    }

    /// The local node over shared memory: calls of up to 4 KiB through a ring, without a system call each. Its
    /// messages are those of the session ([`Request`] and [`Reply`], encoded); what needs a descriptor is refused.
    ///
    /// # Errors
    /// [`PoolError`] if the node cannot make a ring.
    pub fn ring(&self) -> Result<ShmEndpoint, PoolError> {
        open_near(&self.session)
    }

    /// Both rings of this session, beside those that its own requests go over: requests that stay in the rack never wait behind
    /// those that leave it.
    ///
    /// # Errors
    /// [`PoolError`] if the node cannot make them.
    pub fn rings(&self) -> Result<Rings, PoolError> {
        let choice = match RingChoice::of_environment() {
            RingChoice::Single => RingChoice::Single,
            RingChoice::Two | RingChoice::Socket => RingChoice::Two,
        };
        Rings::open(&self.session, choice)
    }

    /// All members of the pool.
    ///
    /// # Errors
    /// [`PoolError`] if the directory cannot be asked.
    pub fn members(&self) -> Result<Vec<MemberInfo>, PoolError> {
        match self.session.call(&Request::Members)? {
            Reply::Members(members) => Ok(members),
            other => Err(unexpected("Members", &other)),
        }
    }

    /// The pools that objects of this one were in before: a directory was lost, and nodes have put what they held into this one.
    ///
    /// # Errors
    /// [`PoolError`] if the directory cannot be asked.
    pub fn former_pools(&self) -> Result<Vec<FormerPool>, PoolError> {
        match self.session.call(&Request::FormerPools)? {
            Reply::FormerPools(former) => Ok(former),
            other => Err(unexpected("FormerPools", &other)),
        }
    }

    /// Takes a node that is down, and comes back no more, out of the pool; returns how many objects and regions have no whole copy any more. Others
    /// copy what it had in fewer copies than it should have.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the node is up or unknown, or has the last copy of something and `lose` is not set.
    pub fn forget(&self, node: NodeId, lose: bool) -> Result<u64, PoolError> {
        match self.session.call(&Request::Forget { node, lose })? {
            Reply::Forgot { lost } => Ok(lost),
            other => Err(unexpected("Forgot", &other)),
        }
    }

    /// Makes a region of zeros that is read and written in place.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if the name is taken or there is no room.
    ///
    /// ```no_run
    /// # use hinterland_pool::Pool;
    /// # use hinterland_types::ObjectName;
    /// # let pool = Pool::connect(None)?;
    /// let region = pool.create_region(&ObjectName::parse("counters")?, 4 << 20, None)?;
    /// let first = region.address.ok_or("a region has an address")?;
    /// pool.write(first, b"here, and seen from every rack")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create_region(
        &self,
        name: &ObjectName,
        bytes: u64,
        rack: Option<RackName>,
    ) -> Result<ObjectInfo, PoolError> {
        self.object(&Request::CreateRegion { name: name.clone(), bytes, rack })
    }

    /// Makes a region of zeros whose pages are spread over all nodes with room, by a hash.
    ///
    /// # Errors
    /// As [`create_region`](Self::create_region).
    pub fn create_spread(&self, name: &ObjectName, bytes: u64) -> Result<ObjectInfo, PoolError> {
        self.object(&Request::CreateSpread { name: name.clone(), bytes })
    }

    /// Where the pages of a region lie.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is no such region.
    pub fn pages_at(&self, name: &ObjectName) -> Result<Vec<PagesOn>, PoolError> {
        match self.session.call(&Request::PagesAt { name: name.clone() })? {
            Reply::PagesAt(pages) => Ok(pages),
            other => Err(unexpected("PagesAt", &other)),
        }
    }

    /// The pages of regions that programs of this rack use most, hottest first: what the node sums up of the accesses of its programs.
    /// Without `--hot` it knows of none.
    ///
    /// # Errors
    /// [`PoolError`] if the node does not answer.
    pub fn hot_pages(&self, limit: u32) -> Result<Vec<HotPage>, PoolError> {
        match self.session.call(&Request::HotPages { limit })? {
            Reply::HotPages(pages) => Ok(pages),
            other => Err(unexpected("HotPages", &other)),
        }
    }

    /// Brings the page of an address to the local node, whatever its heat elsewhere.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is no room, a program has it mapped at its home, or it is being moved.
    pub fn pull_page(&self, address: GlobalAddress) -> Result<(), PoolError> {
        self.done(&Request::PullPage { address })
    }

    /// Brings a copy of the page of a region that has this address to the local node, to be read by its programs until somebody writes
    /// to the page.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if its home or this node gives none, or a program has it mapped at its home.
    pub fn copy_page(&self, address: GlobalAddress) -> Result<(), PoolError> {
        self.done(&Request::CopyPage { address })
    }

    /// Takes `bytes` bytes of the local node's segment; returns the address and the size of the piece.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if there is no room.
    pub fn allocate(&self, bytes: u64, kind: AllocationKind) -> Result<(GlobalAddress, u64), PoolError> {
        match self.session.call(&Request::Allocate { bytes, kind })? {
            Reply::Allocated { address, bytes } => Ok((address, bytes)),
            other => Err(unexpected("Allocated", &other)),
        }
    }

    /// Gives an allocation back.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if nothing was allocated there.
    pub fn free(&self, address: GlobalAddress) -> Result<(), PoolError> {
        self.done(&Request::Free { address })
    }

    /// Takes a lock on an address of any rack, waiting up to `wait_ms` milliseconds. It is released when the
    /// session ends. While one thread waits, others go on ([`RingChoice`]).
    ///
    /// # Errors
    /// [`PoolError::Refused`] with `ETIMEDOUT`.
    pub fn lock(&self, address: GlobalAddress, mode: LockMode, wait_ms: u32) -> Result<(), PoolError> {
        self.done(&Request::Lock { address, mode, wait_ms })
    }

    /// Gives a lock back.
    ///
    /// # Errors
    /// [`PoolError::Refused`] if it is not held.
    pub fn unlock(&self, address: GlobalAddress) -> Result<(), PoolError> {
        self.done(&Request::Unlock { address })
    }

    /// All locks of the pool that somebody holds or waits for, and the nodes that could not be asked.
    ///
    /// # Errors
    /// [`PoolError`] if the directory cannot be asked.
    pub fn locks(&self) -> Result<LockTable, PoolError> {
        match self.session.call(&Request::ListLocks)? {
            Reply::Locks(table) => Ok(table),
            other => Err(unexpected("Locks", &other)),
        }
    }

    pub(crate) fn done(&self, request: &Request) -> Result<(), PoolError> {
        match self.session.call(request)? {
            Reply::Done => Ok(()),
            other => Err(unexpected("Done", &other)),
        }
    }

    pub(crate) fn object(&self, request: &Request) -> Result<ObjectInfo, PoolError> {
        match self.session.call(request)? {
            Reply::Object(info) => Ok(info),
            other => Err(unexpected("Object", &other)),
        }
    }
}
