//! What can be asked of the directory.

use crate::FormerPool;
use hinterland_types::{Epoch, NodeId, NodeName, ObjectId, ObjectName, PageNumber, RackName};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A digest of an object's checksum table: two homes with the same digest hold the same bytes.
///
/// The directory compares digests and never computes one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
pub struct ContentDigest(pub [u8; 32]);

impl fmt::Debug for ContentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContentDigest(")?;
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "..)")
    }
}

/// Who writes an object: one put of one session of one life of one node.
///
/// The same writer may repeat its `Reserve`; anybody else is refused the name until the put ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Writer {
    /// The node whose session writes; the object vanishes with that node's lease.
    pub node: NodeId,
    /// The node's incarnation; the object vanishes when the node joins with a higher one.
    pub incarnation: u64,
    /// Drawn by the node, different for every put of this incarnation.
    pub token: u64,
}

/// Where the bytes of an object shall live.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Placement {
    /// The writer's own node first, then the rack with most room; further copies in other racks if possible.
    Policy,
    /// The first copy in this rack, further copies by policy.
    Rack(RackName),
    /// For a region: over all nodes that are up and have room, page by page, by a hash. For an object as [`Placement::Policy`].
    Spread,
}

/// How a member leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Departure {
    /// It keeps its bytes and comes back: as if its lease had run out at this moment.
    ComesBack,
    /// It is gone for good; refused while it has the only live copy of a sealed object.
    Gone,
    /// It is gone for good, and what only it held is lost.
    GoneWithLastCopies,
}

/// What becomes of an object whose name another one is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum OnTarget {
    /// It is removed.
    Replace,
    /// It stays, and the request is refused.
    Refuse,
    /// It gets the name that the other one had. Nothing happens if it is not this one.
    Exchange(ObjectId),
}

/// A copy that a node holds, as its object header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Held {
    /// The object.
    pub object: ObjectId,
    /// The epoch under which the copy was placed on this node.
    pub epoch: Epoch,
    /// Digest of the copy if it is complete and sealed on the node, else `None`.
    pub digest: Option<ContentDigest>,
}

/// A copy that a node offers because the directory may not know it, as its object header says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Found {
    /// The object.
    pub object: ObjectId,
    /// The epoch under which the copy was placed on this node.
    pub epoch: Epoch,
    /// The name that it had as of an epoch; it may have been renamed since.
    pub name: ObjectName,
    /// That epoch, as [`Command::HeldNames`] told it; else the one of the copy.
    pub as_of: Epoch,
    /// Its size in bytes.
    pub bytes: u64,
    /// Digest of the copy if it is sealed, `None` for a region.
    pub digest: Option<ContentDigest>,
}

/// A request to the directory. Everything that changes state may be sent twice: the second gets the same
/// answer as the first, or an error, and changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// A node offers memory. Answer: [`Reply::Joined`](crate::Reply::Joined); then [`Command::NodeObjects`] must follow.
    Join {
        /// The node.
        node: NodeId,
        /// Its rack: the processes that share memory with it.
        rack: RackName,
        /// `host:port` at which other nodes reach it.
        address: String,
        /// Bytes for objects; 0 for a node that only reads and writes those of others.
        capacity_bytes: u64,
        /// Larger than in any earlier life of the node.
        incarnation: u64,
        /// What people call it.
        name: Option<NodeName>,
    },
    /// A member renews its lease. Answer: [`Reply::Beat`](crate::Reply::Beat).
    Heartbeat {
        /// The member.
        node: NodeId,
        /// Its incarnation.
        incarnation: u64,
        /// Bytes in use there, as the node itself counts them (shown to people, not used to place).
        used_bytes: u64,
    },
    /// What a node holds, in parts of ascending object ids. Answer: [`Reply::Reconciled`](crate::Reply::Reconciled), or
    /// [`Reply::KnowsLess`](crate::Reply::KnowsLess), where nothing of the list is dealt with and nothing may be deleted.
    ///
    /// While the member is `Joining` the parts must follow one another, and a recorded copy that is
    /// missing in its part is lost. While it is `Up`, the command only asks which of these to delete.
    NodeObjects {
        /// The member.
        node: NodeId,
        /// Its incarnation.
        incarnation: u64,
        /// The part starts behind this object; `ObjectId(0)` in the first.
        after: ObjectId,
        /// At most [`HELD_MAX`](crate::HELD_MAX) copies, ascending.
        objects: Vec<Held>,
        /// Whether another part follows.
        more: bool,
    },
    /// A member goes. Answer: [`Reply::Left`](crate::Reply::Left).
    Leave {
        /// The member.
        node: NodeId,
        /// Its incarnation.
        incarnation: u64,
        /// For a while, or for good.
        departure: Departure,
    },
    /// Takes a name and room for it. Answer: [`Reply::Reserved`](crate::Reply::Reserved).
    Reserve {
        /// The name; nobody else may use it from here on.
        name: ObjectName,
        /// Bytes, or `None` for a stream that will [`Command::Grow`].
        size: Option<u64>,
        /// Copies, each on a node of its own.
        copies: u8,
        /// Where.
        placement: Placement,
        /// Who writes; its node is the local node of the placement policy.
        writer: Writer,
    },
    /// Makes room for a stream. Answer: [`Reply::Grown`](crate::Reply::Grown).
    Grow {
        /// The object that is being written.
        object: ObjectId,
        /// Bytes in all, not in addition; never less than before.
        bytes: u64,
    },
    /// Ends a put: gives addresses and makes the name visible. Answer: [`Reply::Sealed`](crate::Reply::Sealed).
    Seal {
        /// The object that is being written.
        object: ObjectId,
        /// Its final size in bytes.
        size: u64,
        /// Digest on which the writer and every home agree.
        digest: ContentDigest,
        /// The homes that have said that they hold it; must be all of those reserved.
        homes: Vec<NodeId>,
    },
    /// Gives up a put. Answer: [`Reply::Aborted`](crate::Reply::Aborted), or
    /// [`Reply::AlreadySealed`](crate::Reply::AlreadySealed) if the put had succeeded.
    Abort {
        /// The object.
        object: ObjectId,
    },
    /// Makes a mutable region that is seen at once. Answer: [`Reply::Reserved`](crate::Reply::Reserved) with one home, or with one for each part.
    CreateRegion {
        /// The name.
        name: ObjectName,
        /// Bytes.
        size: u64,
        /// Where.
        placement: Placement,
        /// The local node of the placement policy.
        local: NodeId,
    },
    /// Removes an object or region. Answer: [`Reply::Removed`](crate::Reply::Removed).
    Remove {
        /// The name.
        name: ObjectName,
        /// Only this object: without it, a repeated request could remove a successor of the same name.
        object: Option<ObjectId>,
    },
    /// A home says that it has let go of its copy: because it was told to, or because the copy is damaged.
    /// Answer: [`Reply::Forgotten`](crate::Reply::Forgotten).
    Forget {
        /// The object.
        object: ObjectId,
        /// The home.
        node: NodeId,
        /// Its incarnation.
        incarnation: u64,
        /// The epoch of the copy.
        epoch: Epoch,
    },
    /// Objects with fewer live copies than wanted. Answer: [`Reply::Repairs`](crate::Reply::Repairs).
    RepairList {
        /// Start behind this object.
        after: ObjectId,
        /// At most so many; [`REPAIRS_MAX`](crate::REPAIRS_MAX) if it is larger.
        limit: u32,
    },
    /// Takes room for one more copy. Answer: [`Reply::Copying`](crate::Reply::Copying).
    AddReplica {
        /// A sealed object.
        object: ObjectId,
        /// Where the copy shall live.
        node: NodeId,
        /// That node's incarnation.
        incarnation: u64,
    },
    /// The copy is complete. Answer: [`Reply::ReplicaAdded`](crate::Reply::ReplicaAdded).
    ReplicaAdded {
        /// The object.
        object: ObjectId,
        /// The new home.
        node: NodeId,
        /// Its incarnation.
        incarnation: u64,
        /// The epoch from [`Reply::Copying`](crate::Reply::Copying).
        epoch: Epoch,
        /// Digest of what the new home holds.
        digest: ContentDigest,
    },
    /// The object of a name. Answer: [`Reply::Object`](crate::Reply::Object).
    Lookup {
        /// The name.
        name: ObjectName,
    },
    /// The object of an id. Answer: [`Reply::Object`](crate::Reply::Object).
    LookupObject {
        /// The id.
        object: ObjectId,
    },
    /// The object that owns a page. Answer: [`Reply::Object`](crate::Reply::Object).
    LookupPage {
        /// The page.
        page: PageNumber,
    },
    /// Sealed objects and regions by name. Answer: [`Reply::List`](crate::Reply::List).
    List {
        /// Only names that start so.
        prefix: String,
        /// Only names behind this one.
        after: Option<ObjectName>,
        /// At most so many; [`LIST_MAX`](crate::LIST_MAX) if it is larger.
        limit: u32,
    },
    /// All members. Answer: [`Reply::Members`](crate::Reply::Members).
    Members,
    /// A node wants a page of a region. Answer: [`Reply::Move`](crate::Reply::Move).
    ///
    /// The page stays where it is until [`Command::CommitMove`]; until then one other node may not ask for it.
    BeginMove {
        /// The page.
        page: PageNumber,
        /// The node that wants it.
        to: NodeId,
        /// Its incarnation.
        incarnation: u64,
    },
    /// The node holds all bytes of the page, and the home before serves none: from here on the page lies there.
    /// Answer: [`Reply::PageHome`](crate::Reply::PageHome).
    CommitMove {
        /// The page.
        page: PageNumber,
        /// The new home.
        to: NodeId,
        /// Its incarnation.
        incarnation: u64,
        /// The epoch from [`Reply::Move`](crate::Reply::Move).
        epoch: Epoch,
    },
    /// Gives a move up, whoever asks; one that was committed stays so. Answer: [`Reply::PageHome`](crate::Reply::PageHome).
    CancelMove {
        /// The page.
        page: PageNumber,
        /// The epoch of the move; another move of the page is left alone.
        epoch: Epoch,
    },
    /// Where a page of a region lies. Answer: [`Reply::PageHome`](crate::Reply::PageHome).
    LookupHome {
        /// The page.
        page: PageNumber,
    },
    /// Where all pages of a region lie. Answer: [`Reply::Pages`](crate::Reply::Pages).
    PageHomes {
        /// The region.
        object: ObjectId,
        /// Pages that have moved are listed behind this one; `None` from the first on.
        after: Option<PageNumber>,
    },
    /// Nothing but the passing of time: leases run out. Answer: [`Reply::Ticked`](crate::Reply::Ticked).
    Tick,
    /// Gives an object another name. Answer: [`Reply::Renamed`](crate::Reply::Renamed).
    Rename {
        /// Its name.
        from: ObjectName,
        /// The name that it is to have.
        to: ObjectName,
        /// The object: without it, a repeated request could rename a successor of the same name.
        object: ObjectId,
        /// What becomes of an object of that name.
        target: OnTarget,
    },
    /// Renames all sealed objects and regions below a folder, at most [`RENAMES_MAX`](crate::RENAMES_MAX); nothing may have
    /// the other name or lie below it. Answer: [`Reply::Renamed`](crate::Reply::Renamed).
    RenameFolder {
        /// The folder, without a slash at the end.
        from: ObjectName,
        /// The name that it is to have.
        to: ObjectName,
        /// Any object below the folder, if there is one: without it, a repeated request could not be told from one for a folder that
        /// never was.
        object: Option<ObjectId>,
    },
    /// [`Command::Seal`] under a name that may be another than the one that was reserved; an object that has it is removed
    /// in the same moment. Answer: [`Reply::Renamed`](crate::Reply::Renamed).
    Publish {
        /// The object that is being written.
        object: ObjectId,
        /// Its final size in bytes.
        size: u64,
        /// Digest on which the writer and every home agree.
        digest: ContentDigest,
        /// The homes that have said that they hold it; must be all of those reserved.
        homes: Vec<NodeId>,
        /// The name.
        name: ObjectName,
    },
    /// Takes a name, addresses and room for a mutable region that nobody sees before [`Command::ShowRegion`]. Answer:
    /// [`Reply::Reserved`](crate::Reply::Reserved) with one home, or with one for each part. [`Command::Abort`] gives it up.
    MakeRegion {
        /// The name.
        name: ObjectName,
        /// Bytes.
        size: u64,
        /// Where.
        placement: Placement,
        /// Who makes the memory of its homes; its node is the local node of the placement policy.
        writer: Writer,
    },
    /// The memory of all homes of a region is there. Answer: [`Reply::Object`](crate::Reply::Object).
    ShowRegion {
        /// The region.
        object: ObjectId,
    },
    /// A node is about to make a copy because its rack reads the object a lot. Answer: [`Reply::Copying`](crate::Reply::Copying);
    /// [`Command::ReplicaAdded`] follows. Nobody is charged for it.
    AddHeatCopy {
        /// A sealed object without a home that is up in the node's rack.
        object: ObjectId,
        /// Where the copy shall live.
        node: NodeId,
        /// That node's incarnation.
        incarnation: u64,
    },
    /// A node wants to drop such a copy. Answer: [`Reply::Forgotten`](crate::Reply::Forgotten), after which nobody is sent to it; refused as
    /// long as no copy that was asked for is up.
    DropHeatCopy {
        /// The object.
        object: ObjectId,
        /// The node.
        node: NodeId,
        /// Its incarnation.
        incarnation: u64,
        /// The epoch of the copy; one that the directory does not know may be dropped.
        epoch: Epoch,
    },
    /// Which of a node's copies are heat copies. Answer: [`Reply::HeatCopies`](crate::Reply::HeatCopies).
    HeatCopies {
        /// The node.
        node: NodeId,
        /// Start behind this object.
        after: ObjectId,
    },
    /// Which homes of objects, at most [`HEAT_LIST_MAX`](crate::HEAT_LIST_MAX), have heat copies. Answer:
    /// [`Reply::HeatHomes`](crate::Reply::HeatHomes).
    HeatHomes {
        /// The objects.
        objects: Vec<ObjectId>,
    },
    /// A member offers what it holds, before [`Command::NodeObjects`], because the directory's store may be older than that: at most
    /// [`FOUND_MAX`](crate::FOUND_MAX) copies. Answer: [`Reply::Adopted`](crate::Reply::Adopted).
    Adopt {
        /// The member.
        node: NodeId,
        /// Its incarnation.
        incarnation: u64,
        /// The copies; those that are recorded already are passed over.
        found: Vec<Found>,
        /// The pools that they were in before, if that was not this one alone.
        former: Vec<FormerPool>,
    },
    /// Names of sealed objects that a member holds. Answer: [`Reply::HeldNames`](crate::Reply::HeldNames).
    HeldNames {
        /// The member.
        node: NodeId,
        /// It knows them as of this epoch: what was renamed since is enough, if that is remembered.
        as_of: Epoch,
        /// All names, behind this object; `None` in the first question.
        after: Option<ObjectId>,
    },
    /// The pools that objects of this one were in before. Answer: [`Reply::FormerPools`](crate::Reply::FormerPools).
    FormerPools,
    /// Some of what a member holds, by which it is seen whether an earlier store knew more. Answer: [`Reply::Shown`](crate::Reply::Shown), or
    /// [`Reply::KnowsLess`](crate::Reply::KnowsLess). Whatever the member's state is, nothing is taken for lost that is not among it, and the member
    /// does not come up.
    ShowHeld {
        /// The member.
        node: NodeId,
        /// Its incarnation.
        incarnation: u64,
        /// At most [`HELD_MAX`](crate::HELD_MAX) copies, ascending.
        objects: Vec<Held>,
    },
}
