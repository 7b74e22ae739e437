//! What a session asks of a node, and the answers.

use super::{
    FormerPool, Home, HotPage, KvReply, KvRequest, LockMode, LockTable, MemberInfo, Mending, NodeStatus,
    ObjectInfo, PagesOn, PagesOpened, Placement, RenameTarget,
};
use hinterland_types::{ByteRange, GlobalAddress, Handle, NodeId, ObjectId, ObjectName, RackName, Rights};
use serde::{Deserialize, Serialize};

/// How many whole copies of an object there should be, on distinct nodes (1 to 8).
pub type Copies = u8;

/// What a program expects of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Advice {
    /// It will be touched soon: fill it ahead, as far as the budget allows.
    WillNeed,
    /// It will be read in order.
    Sequential,
    /// It will be touched in no order: no sequential or stride prefetch.
    Random,
    /// The default again.
    Normal,
}

/// How long an allocation lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum AllocationKind {
    /// Freed when its session ends.
    Session,
    /// Lives until it is freed, or its node ends.
    Kept,
}

/// What a session asks of a node. The comment names the reply.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// → `Done`.
    Ping,
    /// → `Status`.
    Status,
    /// → `Members`.
    Members,
    /// Grants a capability to a sealed object or a region → `Opened`.
    Open {
        /// Name.
        name: ObjectName,
        /// Rights wanted; a sealed object grants at most `READ`.
        rights: Rights,
    },
    /// The same by identifier (a file's inode number in a mount) → `Opened`.
    OpenObject {
        /// Identifier.
        object: ObjectId,
        /// Rights wanted.
        rights: Rights,
    },
    /// A new capability with fewer rights or a smaller range → `Granted`.
    Diminish {
        /// From which.
        handle: Handle,
        /// Rights to keep.
        rights: Rights,
        /// Range to keep, relative to the object.
        range: ByteRange,
    },
    /// Revokes what was diminished from a handle, and all that came of that → `Done`.
    Revoke {
        /// Whose descendants.
        handle: Handle,
    },
    /// Gives a capability back, with its descendants → `Done`.
    Close {
        /// Which.
        handle: Handle,
    },
    /// Nobody uses this capability to a sealed object that the node holds, and somebody may again: the node keeps nothing for it, and takes
    /// it back when it lets go of the object → `Done`.
    Lend {
        /// Which.
        handle: Handle,
    },
    /// The file behind an object, for mapping → `Mapped`, with one descriptor (read-only for sealed
    /// objects and for handles without the right to write). The handle must be for all of the object. For a cache file the program must arm its mapping with `Register` before any touch.
    Map {
        /// Capability with `READ`.
        handle: Handle,
    },
    /// Hands over the userfaultfd (one descriptor) that guards a mapping of a cache file → `Registered`.
    Register {
        /// Capability that was mapped.
        handle: Handle,
        /// Pointer in the program.
        pointer: u64,
        /// Offset in the object at the pointer.
        offset: u64,
        /// Length.
        bytes: u64,
    },
    /// Forgets a mapping → `Done`.
    Unregister {
        /// From `Registered`.
        registration: u64,
    },
    /// The channel for `Notice`s (one descriptor, a stream socket) → `Done`.
    Watch,
    /// → `Done`.
    Advise {
        /// Capability.
        handle: Handle,
        /// Range of the object.
        range: ByteRange,
        /// What is expected.
        advice: Advice,
    },
    /// What this session's programs want of caches: at most so many bytes an object, and fault units
    /// of this size → `Done`.
    Prefer {
        /// Budget; `None` for the node's own.
        budget_bytes: Option<u64>,
        /// Fault unit; `None` to choose from the trace.
        unit_bytes: Option<u64>,
    },
    /// → `Object`.
    Stat {
        /// Name.
        name: ObjectName,
    },
    /// Sorted by name → `Objects`.
    List {
        /// Only names that start so.
        prefix: String,
        /// Only names behind this one.
        after: Option<ObjectName>,
        /// At most so many, 1000 at the most.
        limit: u32,
    },
    /// → `Done`; the bytes go when the last mapping goes.
    Remove {
        /// Name.
        name: ObjectName,
    },
    /// Reads every home's copy and compares checksums → `Verified`.
    Verify {
        /// Name.
        name: ObjectName,
        /// What becomes of wrong copies.
        mending: Mending,
    },
    /// Reserves room in every home → `PutStarted`.
    PutBegin {
        /// Name; must be free.
        name: ObjectName,
        /// Size if it is known: then lack of room is an error before a byte moves.
        bytes: Option<u64>,
        /// Copies.
        copies: Copies,
        /// Placement.
        placement: Placement,
    },
    /// A home's handle for a put that another node began → `Granted` with `READ` and `WRITE`.
    PutAttach {
        /// Object.
        object: ObjectId,
        /// From `PutTarget`.
        ticket: [u8; 16],
    },
    /// More room for a stream whose size was unknown → `Done`.
    PutGrow {
        /// From `PutStarted`.
        object: ObjectId,
        /// Size up to now.
        bytes: u64,
    },
    /// Checks every home's bytes against the digest and makes the name visible → `Object`.
    PutSeal {
        /// From `PutStarted`.
        object: ObjectId,
        /// Size in bytes.
        bytes: u64,
        /// blake3 over size (8 bytes, little-endian) and the crc32c of each 64 KiB block (4 bytes each).
        digest: [u8; 32],
    },
    /// Gives everything back → `Done`.
    PutAbort {
        /// From `PutStarted`.
        object: ObjectId,
    },
    /// A region that is read and written in place → `Object`.
    CreateRegion {
        /// Name.
        name: ObjectName,
        /// Size; rounded up to pages.
        bytes: u64,
        /// Rack; the local one by default.
        rack: Option<RackName>,
    },
    /// Bytes from the node's segment → `Allocated`.
    Allocate {
        /// Size, 1 byte to what the node's segment has: 64 MiB where nothing else says so.
        bytes: u64,
        /// Lifetime.
        kind: AllocationKind,
    },
    /// → `Done`.
    Free {
        /// From `Allocated`.
        address: GlobalAddress,
    },
    /// Takes a lock, waiting up to `wait_ms` → `Done` or `Error` → released when the session ends.
    Lock {
        /// Any address of an object or region; the lock is on the address itself, and kept by the base home of its page.
        address: GlobalAddress,
        /// Mode.
        mode: LockMode,
        /// Longest wait.
        wait_ms: u32,
    },
    /// → `Done`.
    Unlock {
        /// What was locked.
        address: GlobalAddress,
    },
    /// Where an address lies → `Resolved`.
    Resolve {
        /// Address.
        address: GlobalAddress,
    },
    /// The request ring of this session (one descriptor: a memory file) → `RingOpened`.
    OpenRing,
    /// For tests and benches: drops every filled unit of an object's cache → `Done`.
    DropCache {
        /// Name.
        name: ObjectName,
    },
    /// About KV blocks → `Kv`.
    Kv(KvRequest),
    /// What shows that this session may read a sealed object → `Right`.
    Right {
        /// Capability with `READ`.
        handle: Handle,
    },
    /// The ring of this session for requests that may leave the rack (one descriptor: a memory file) → `FarRingOpened`.
    OpenFarRing,
    /// A region whose pages are spread over all nodes with room → `Object`.
    CreateSpread {
        /// Name.
        name: ObjectName,
        /// Size; rounded up to pages.
        bytes: u64,
    },
    /// The words of a region's pages → `PagesOpened` with a descriptor of the words, to be mapped read-only, and if the node
    /// has a part of the region one of that, for accesses under a slot.
    OpenPages {
        /// Capability to a region.
        handle: Handle,
    },
    /// The slots of this session (one descriptor) → `Done`.
    OpenSlots,
    /// The word of a page was of no use: look where it lies, wait a moment if it moves → `Done`, and the word says it.
    AwaitPage {
        /// Capability to a region.
        handle: Handle,
        /// Which page of the region, from 0.
        index: u32,
    },
    /// Brings a page of a region to this node → `Done`.
    PullPage {
        /// An address in it.
        address: GlobalAddress,
    },
    /// A page is to be written of which nodes have copies: take them back, and look where it lies → `Done`.
    WritePage {
        /// Capability to a region.
        handle: Handle,
        /// Which page of the region, from 0.
        index: u32,
    },
    /// Brings a copy of a page of a region to this node, to be read → `Done`.
    CopyPage {
        /// An address in it.
        address: GlobalAddress,
    },
    /// Which pages of regions programs of this rack use most → `HotPages`.
    HotPages {
        /// Of how many to tell, 1000 at the most.
        limit: u32,
    },
    /// Where the pages of a region lie → `PagesAt`.
    PagesAt {
        /// Name.
        name: ObjectName,
    },
    /// For a [`Fetch`](crate::FrameKind::Fetch) at a home: bytes of a sealed object, and a handle to all of it if asked for →
    /// the bytes; in a call it is refused.
    FetchObject {
        /// Which.
        object: ObjectId,
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// Whether a capability is granted.
        keep: bool,
    },
    /// Takes a lock as `Lock` does, but keeps the place in the queue when `wait_ms` is over: ask again with the same words, or
    /// `Unlock` → `Locked` or `LockWaiting`.
    LockWait {
        /// The lock.
        address: GlobalAddress,
        /// Mode.
        mode: LockMode,
        /// Whether a read lock that is held becomes this one.
        upgrade: bool,
        /// Whether to stand in the queue at all.
        queue: bool,
        /// How long the node waits before it answers.
        wait_ms: u32,
    },
    /// Whether a lock is still held, and until when that counts → `Locked`.
    LockState {
        /// What was locked.
        address: GlobalAddress,
    },
    /// Gives a lock back → `Done`; unlike `Unlock` it says whether all that was written under it is known to have arrived.
    UnlockAs {
        /// What was locked.
        address: GlobalAddress,
        /// Whether all that was written has arrived.
        clean: bool,
    },
    /// Writes under a lock, to its page home → `Done`.
    WriteLocked {
        /// Capability with `WRITE`.
        handle: Handle,
        /// The lock.
        lock: GlobalAddress,
        /// From `Locked`.
        fence: u64,
        /// Where the bytes go, one range after the other.
        runs: Vec<ByteRange>,
        /// The bytes of all ranges.
        bytes: Vec<u8>,
    },
    /// Reads under a lock, from its page home → `Bytes`.
    ReadLocked {
        /// Capability with `READ`.
        handle: Handle,
        /// The lock.
        lock: GlobalAddress,
        /// From `Locked`.
        fence: u64,
        /// What to read.
        range: ByteRange,
    },
    /// Gives a sealed object or a region another name → `Done`.
    Rename {
        /// Its name.
        from: ObjectName,
        /// The name that it is to have.
        to: ObjectName,
        /// What becomes of an object that has it.
        target: RenameTarget,
    },
    /// Renames everything below a folder, at once → `Done`.
    RenameFolder {
        /// The folder, without a slash at the end.
        from: ObjectName,
        /// The name that it is to have; nothing may have it.
        to: ObjectName,
    },
    /// `PutSeal` under a name that may be another than the one of `PutBegin`. An object that has the name is removed in the same
    /// moment → `Object`.
    PutPublish {
        /// From `PutStarted`.
        object: ObjectId,
        /// Size in bytes.
        bytes: u64,
        /// As in `PutSeal`.
        digest: [u8; 32],
        /// The name.
        name: ObjectName,
    },
    /// A put gives back the name that it has taken and takes another one, which must be free → `Done`.
    PutRename {
        /// From `PutStarted`.
        object: ObjectId,
        /// The name that it has.
        from: ObjectName,
        /// The name that it is to have.
        to: ObjectName,
    },
    /// `LockWait` for a guard over a range, which starts at the lock's address. The lock is given back if no `KeepLocks` comes for a
    /// lease, and counts for a range of memory of this host until no store under it can come any more → `Locked` or `LockWaiting`.
    GuardLock {
        /// The lock, and the start of the range.
        address: GlobalAddress,
        /// Length of the range.
        bytes: u64,
        /// Mode.
        mode: LockMode,
        /// As in `LockWait`.
        upgrade: bool,
        /// As in `LockWait`.
        queue: bool,
        /// As in `LockWait`.
        wait_ms: u32,
    },
    /// The program lives: the locks of its guards count for one more lease → `LocksKept`.
    KeepLocks {
        /// At most [`LOCKS_KEPT_MAX`](super::LOCKS_KEPT_MAX).
        locks: Vec<GlobalAddress>,
    },
    /// All locks of the pool that somebody holds or waits for → `Locks`.
    ListLocks,
    /// The crc32c of each 64 KiB block of a sealed object that the node holds, from `first` on, as many as fit → `Checksums`.
    Checksums {
        /// Capability with `READ` to all of it.
        handle: Handle,
        /// Index of the first block.
        first: u64,
    },
    /// Takes a node that is down, and comes back no more, out of the pool → `Forgot`.
    Forget {
        /// Which.
        node: NodeId,
        /// Whether what only it has may be lost; else it is refused then.
        lose: bool,
    },
    /// The program has read bytes of a sealed object itself from a home, which the node cannot see → `Done`.
    Fetched {
        /// Capability with `READ`.
        handle: Handle,
        /// How many since it last said so.
        bytes: u64,
    },
    /// A home keeps the bytes of a sealed object of another rack until the handle is closed, also if it is removed → `Done`.
    Hold {
        /// Capability with `READ`.
        handle: Handle,
    },
    /// `Remove` of one object, and of no other that has its name by then: `ENOENT` → `Done`.
    RemoveObject {
        /// Its name.
        name: ObjectName,
        /// Which.
        object: ObjectId,
    },
    /// `Rename` of one object, and of no other that has its name by then: `ENOENT`. One that has the other name already was renamed by
    /// an earlier request → `Done`.
    RenameObject {
        /// Which.
        object: ObjectId,
        /// Its name.
        from: ObjectName,
        /// The name that it is to have.
        to: ObjectName,
        /// What becomes of an object that has it.
        target: RenameTarget,
    },
    /// The pools that objects of this one were in before → `FormerPools`.
    FormerPools,
    /// Two puts exchange the names that they have taken, in one step: neither is free at any moment → `Done`.
    PutExchange {
        /// From `PutStarted`.
        object: ObjectId,
        /// The name that it has.
        from: ObjectName,
        /// The other put, of any session of the same user at the node: else `EACCES`.
        other: ObjectId,
        /// The name that that one has.
        to: ObjectName,
    },
}

impl Request {
    /// Whether the node may have to ask other nodes, or wait for somebody, before it can answer. Such requests go over a ring of
    /// their own, so that others do not wait behind them. A lock is one of them however short its wait: another rack may keep it.
    pub fn may_take_long(&self) -> bool {
        match self {
            Self::Ping
            | Self::Status
            | Self::Diminish { .. }
            | Self::Revoke { .. }
            | Self::Close { .. }
            | Self::Lend { .. }
            | Self::Advise { .. }
            | Self::Prefer { .. }
            | Self::Allocate { .. }
            | Self::Free { .. }
            | Self::Unlock { .. }
            | Self::UnlockAs { .. }
            | Self::LockState { .. }
            | Self::KeepLocks { .. } => false,
            Self::Kv(request) => {
                matches!(
                    request,
                    KvRequest::Match { .. }
                        | KvRequest::Fetch { .. }
                        | KvRequest::Lengths { .. }
                        | KvRequest::Clear { .. }
                        | KvRequest::ClearEverywhere { .. }
                        | KvRequest::RemoveEverywhere { .. }
                )
            }
            _ => true,
        }
    }
}

/// What a put may write to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PutTarget {
    /// The home.
    pub home: Home,
    /// If the home is the node asked: a capability with `READ` and `WRITE` in this session.
    pub handle: Option<Handle>,
    /// Proof for `PutAttach` at any other home.
    pub ticket: [u8; 16],
}

/// A put has begun.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PutStarted {
    /// Object.
    pub object: ObjectId,
    /// Every home; all bytes go to each.
    pub targets: Vec<PutTarget>,
}

/// A capability was granted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Opened {
    /// Index into the session's table.
    pub handle: Handle,
    /// Rights granted.
    pub rights: Rights,
    /// What it leads to.
    pub info: ObjectInfo,
    /// Whether the asking node holds the bytes.
    pub local: bool,
}

/// A file to map.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Mapped {
    /// Object size; the file is as long, rounded up to its pages.
    pub bytes: u64,
    /// Length of the file.
    pub file_bytes: u64,
    /// Where to map it so that pointers agree everywhere.
    pub address: GlobalAddress,
    /// A cache file must be armed before it is touched; an object's own file need not.
    pub armed: bool,
    /// Arm for minor faults too (cache files of huge pages).
    pub minor: bool,
    /// Bytes of the file's pages.
    pub page_bytes: u64,
    /// Whether bytes may be written in place (regions).
    pub writable: bool,
}

/// What a node answers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant)]
pub enum Reply {
    /// It is so.
    Done,
    /// It is not so: what failed, with what, and what to do.
    Error {
        /// For programs: an `errno` value that fits.
        code: i32,
        /// For people.
        text: String,
    },
    /// See [`Request::Status`].
    Status(Box<NodeStatus>),
    /// See [`Request::Members`].
    Members(Vec<MemberInfo>),
    /// See [`Request::Open`].
    Opened(Opened),
    /// A new handle.
    Granted {
        /// Index into the session's table.
        handle: Handle,
    },
    /// See [`Request::Map`].
    Mapped(Mapped),
    /// See [`Request::Register`].
    Registered {
        /// For `Unregister`.
        registration: u64,
    },
    /// See [`Request::Stat`].
    Object(ObjectInfo),
    /// See [`Request::List`].
    Objects {
        /// Sorted by name.
        objects: Vec<ObjectInfo>,
        /// Whether there are more behind the last.
        more: bool,
    },
    /// See [`Request::Verify`].
    Verified {
        /// Blocks compared, over all homes.
        blocks: u64,
        /// Homes whose copy is right.
        good: Vec<NodeId>,
        /// Homes whose copy is wrong or that did not answer, and why.
        bad: Vec<(NodeId, String)>,
        /// Those of `bad` that did not answer: nothing is known of their copies.
        unasked: Vec<NodeId>,
        /// Those of `bad` whose copy is right again.
        mended: Vec<NodeId>,
    },
    /// See [`Request::PutBegin`].
    PutStarted(PutStarted),
    /// See [`Request::Allocate`].
    Allocated {
        /// Address of the first byte.
        address: GlobalAddress,
        /// Size class that was given.
        bytes: u64,
    },
    /// See [`Request::Resolve`].
    Resolved {
        /// The object that covers the address.
        info: ObjectInfo,
        /// Offset of the address in it.
        offset: u64,
    },
    /// See [`Request::OpenRing`].
    RingOpened {
        /// Slots of each direction.
        slots: u32,
    },
    /// See [`Request::Kv`].
    Kv(KvReply),
    /// See [`Request::Right`]; as [`right_to_read`](crate::right::right_to_read) has it.
    Right([u8; 32]),
    /// See [`Request::OpenFarRing`].
    FarRingOpened {
        /// Slots of each direction.
        slots: u32,
        /// Bytes of the data buffer.
        data_bytes: u32,
    },
    /// See [`Request::OpenPages`].
    PagesOpened(PagesOpened),
    /// See [`Request::HotPages`]; the hottest first.
    HotPages(Vec<HotPage>),
    /// See [`Request::PagesAt`].
    PagesAt(Vec<PagesOn>),
    /// See [`Request::LockWait`].
    Locked {
        /// Goes with every access under the lock.
        fence: u64,
        /// It counts until this moment of `CLOCK_BOOTTIME`, in milliseconds; `LockState` says when that moves on.
        until_ms: u64,
    },
    /// It stands in the queue.
    LockWaiting,
    /// See [`Request::ReadLocked`].
    Bytes(Vec<u8>),
    /// See [`Request::KeepLocks`].
    LocksKept {
        /// Until when each counts, in milliseconds of `CLOCK_BOOTTIME`; none if it is lost, `LockState` says why.
        until_ms: Vec<Option<u64>>,
        /// How long a lease is, in milliseconds.
        lease_ms: u64,
    },
    /// See [`Request::ListLocks`].
    Locks(LockTable),
    /// See [`Request::Checksums`].
    Checksums {
        /// In order.
        blocks: Vec<u32>,
    },
    /// See [`Request::Forget`].
    Forgot {
        /// Objects and regions that have no whole copy any more.
        lost: u64,
    },
    /// See [`Request::FormerPools`].
    FormerPools(Vec<FormerPool>),
}
