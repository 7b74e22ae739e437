//! What the directory answers.

use crate::{ContentDigest, FormerPool, MemberState, PageRun};
use hinterland_types::{Epoch, NodeId, NodeName, ObjectId, ObjectName, PageNumber, RackName};
use serde::{Deserialize, Serialize};

/// A home of an object, with what is needed to reach it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HomeInfo {
    /// The node.
    pub node: NodeId,
    /// Its rack: readers ask homes in their own rack first.
    pub rack: RackName,
    /// `host:port`.
    pub address: String,
    /// The epoch under which the copy was placed there.
    pub epoch: Epoch,
}

/// Where an object is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ObjectState {
    /// A put is going on; nobody can read it.
    Writing,
    /// Complete, and the same for ever.
    Sealed,
    /// A region that is written in place.
    Mutable,
    /// Removed or aborted; some homes have not yet let go.
    Removing,
    /// A region whose memory is being made.
    Making,
}

/// All that the directory knows of an object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectInfo {
    /// The object.
    pub object: ObjectId,
    /// Its name.
    pub name: ObjectName,
    /// Where it is in its life.
    pub state: ObjectState,
    /// Size in bytes (bytes reserved so far while it is being written).
    pub size: u64,
    /// Its pages: the first one gives the address.
    pub pages: Option<PageRun>,
    /// Digest of a sealed object.
    pub digest: Option<ContentDigest>,
    /// Copies that were asked for.
    pub copies: u8,
    /// Homes that hold it and are up, in the order in which to try them.
    pub homes: Vec<HomeInfo>,
    /// Homes that hold it and are down or not yet back.
    pub homes_down: Vec<HomeInfo>,
}

/// Where a page of a region lies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PageHome {
    /// The region.
    pub object: ObjectId,
    /// The node that has it; `None` if the bytes are lost.
    pub home: Option<HomeInfo>,
    /// Whether that node is up.
    pub is_up: bool,
    /// The epoch under which the page came there.
    pub epoch: Epoch,
}

/// A page that is not where its region's rule says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MovedPage {
    /// The page.
    pub page: PageNumber,
    /// The node that has it.
    pub node: NodeId,
    /// The epoch under which it came there.
    pub epoch: Epoch,
}

/// A member as people see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberInfo {
    /// The node.
    pub node: NodeId,
    /// Its rack.
    pub rack: RackName,
    /// What people call it; `None` of a member that has not joined since nodes say it.
    pub name: Option<NodeName>,
    /// `host:port`.
    pub address: String,
    /// Its incarnation.
    pub incarnation: u64,
    /// Whether it serves.
    pub state: MemberState,
    /// Bytes that it offers.
    pub capacity_bytes: u64,
    /// Bytes that objects have reserved there.
    pub reserved_bytes: u64,
    /// Bytes that the node itself says are in use (0 until its first heartbeat).
    pub used_bytes: u64,
    /// Objects with a home there.
    pub object_count: u64,
    /// Milliseconds until its lease runs out; `None` while it is down.
    pub lease_left_ms: Option<u64>,
}

impl MemberInfo {
    /// Its name, if it has one, and its number, which no other has.
    pub fn called(&self) -> String {
        self.name.as_ref().map_or_else(|| self.node.to_string(), |name| format!("{name} ({})", self.node))
    }
}

/// An object that needs another copy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Repair {
    /// The object.
    pub object: ObjectId,
    /// Its size in bytes.
    pub size: u64,
    /// Live copies.
    pub live: u8,
    /// Copies that were asked for.
    pub copies: u8,
    /// Where another copy would go, if a node has room.
    pub target: Option<NodeId>,
}

/// Why a copy that a node holds is not taken into the directory again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum NotAdopted {
    /// A region: where its parts were is not known any more.
    #[error("it is a region, and where its other parts were is not known any more")]
    Region,
    /// The number stands for other bytes now.
    #[error("another object has its number now")]
    NumberTaken,
    /// There are homes enough.
    #[error("there are enough copies of it")]
    TooManyCopies,
    /// No run of addresses is long enough.
    #[error("no addresses are left for it")]
    NoAddresses,
    /// Its name is taken, and so is the one that it would have had in place of it.
    #[error("its name is taken")]
    NoName,
}

/// An answer; which one belongs to which command stands at [`Command`](crate::Command).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The node is known; it must now say what it holds.
    Joined {
        /// Milliseconds that the lease lasts; send a heartbeat at a third of it.
        lease_ms: u64,
    },
    /// The lease is renewed.
    Beat {
        /// Milliseconds that the lease lasts.
        lease_ms: u64,
        /// Copies to delete, each to be answered with a `Forget`.
        forget: Vec<(ObjectId, Epoch)>,
        /// Copies that the directory waits for from this node. The list can be older than what the node
        /// has done since: for a copy that it holds complete it sends `ReplicaAdded` (again); only for one
        /// that it neither makes nor holds, because the answer to `AddReplica` was lost, a `Forget`.
        copying: Vec<(ObjectId, Epoch)>,
        /// Puts of this node's sessions that the directory waits for: object and the writer's token.
        /// A token that the node does not know is a put that nobody goes on with: send an `Abort`.
        writing: Vec<(ObjectId, u64)>,
    },
    /// One part of a node's list is dealt with.
    Reconciled {
        /// Copies of the list to delete: nobody knows them, or they are surplus or outdated.
        /// A `Forget` for one that the directory does not record is answered and changes nothing.
        delete: Vec<(ObjectId, Epoch)>,
        /// Whether the member is up.
        up: bool,
    },
    /// The member is gone.
    Left {
        /// Sealed objects and regions that have no copy any more.
        lost: Vec<ObjectId>,
    },
    /// Room is reserved; the writer may send bytes to the homes.
    Reserved {
        /// The object.
        object: ObjectId,
        /// Its homes, each on a node of its own.
        homes: Vec<HomeInfo>,
    },
    /// The stream has room up to here.
    Grown {
        /// Bytes reserved in all.
        bytes: u64,
    },
    /// The object is visible.
    Sealed {
        /// Its pages; the first gives the address.
        pages: PageRun,
    },
    /// The put is undone.
    Aborted {
        /// Homes to tell (they also hear it with their next heartbeat).
        homes: Vec<HomeInfo>,
    },
    /// The put had already succeeded.
    AlreadySealed {
        /// The object's pages.
        pages: PageRun,
    },
    /// The name is free.
    Removed {
        /// The object that had it.
        object: ObjectId,
        /// Homes to tell (they also hear it with their next heartbeat).
        homes: Vec<HomeInfo>,
    },
    /// The copy is no longer counted.
    Forgotten,
    /// Objects that need copies.
    Repairs {
        /// Ascending by object.
        repairs: Vec<Repair>,
        /// The last object that was looked at: go on behind it.
        through: ObjectId,
        /// Whether there are objects behind that one.
        more: bool,
    },
    /// Room for a copy is reserved; fetch the object now.
    Copying {
        /// The epoch of the copy.
        epoch: Epoch,
        /// What to fetch and from where.
        object: ObjectInfo,
    },
    /// The copy is read from now on.
    ReplicaAdded,
    /// One object.
    Object(ObjectInfo),
    /// Objects, ascending by name.
    List {
        /// The objects.
        objects: Vec<ObjectInfo>,
        /// Whether there are more behind the last.
        more: bool,
    },
    /// All members, ascending by node.
    Members(Vec<MemberInfo>),
    /// Time has passed.
    Ticked {
        /// Members whose lease ran out just now.
        down: Vec<NodeId>,
    },
    /// The page may be taken from its home.
    Move {
        /// The epoch that it will have.
        epoch: Epoch,
        /// The epoch of the part of the region on the node that asked.
        part: Epoch,
        /// Where it lies, and since which epoch.
        from: PageHome,
    },
    /// One page.
    PageHome(PageHome),
    /// All pages of a region.
    Pages {
        /// Nodes over which pages that never moved are spread, see [`spread`](crate::spread), with the epochs of their parts.
        base: Vec<(NodeId, Epoch)>,
        /// Every node that has a part, and whether it is up. A page whose epoch is below that of the part is lost.
        parts: Vec<(HomeInfo, bool)>,
        /// Pages that have moved, ascending.
        moved: Vec<MovedPage>,
        /// Whether there are more behind the last.
        more: bool,
    },
    /// The object has its name.
    Renamed {
        /// The object that had it before.
        removed: Option<ObjectId>,
        /// Homes of that one to tell (they also hear it with their next heartbeat).
        homes: Vec<HomeInfo>,
    },
    /// Heat copies of one node, whole or in the making.
    HeatCopies {
        /// Ascending by object.
        copies: Vec<(ObjectId, Epoch)>,
        /// Whether there are more behind the last.
        more: bool,
    },
    /// Objects with the nodes that have heat copies of them.
    HeatHomes(Vec<(ObjectId, NodeId)>),
    /// Nothing of a node's list is dealt with: an earlier store of this directory, which knew more, must have placed these copies.
    KnowsLess {
        /// The objects, ascending.
        objects: Vec<ObjectId>,
    },
    /// What was found is dealt with.
    Adopted {
        /// Objects that are in the pool again, or have another copy, with their names; and those that gave one of these names up, with the
        /// names that they have instead.
        taken: Vec<(ObjectId, ObjectName)>,
        /// Those that are not, and why.
        refused: Vec<(ObjectId, NotAdopted)>,
    },
    /// Names of what a node holds.
    HeldNames {
        /// The names are known as of this epoch, once all of them were asked for.
        as_of: Epoch,
        /// Ascending by object.
        names: Vec<(ObjectId, ObjectName)>,
        /// Objects that are being put or removed: their names are not known as of that epoch.
        unsettled: Vec<ObjectId>,
        /// Whether there are more behind the last.
        more: bool,
        /// Whether all names are told, and not only those since the epoch of the question.
        all: bool,
        /// Whether that epoch is of a store that was newer than this one: the node may know later names than these.
        older: bool,
        /// With all names, the earliest and the latest epoch as of which names were known of objects that were found.
        claimed: Option<(Epoch, Epoch)>,
        /// The pools that objects were in before, so that they outlive the directory, too.
        former: Vec<FormerPool>,
    },
    /// The pools that objects were in before, ascending by number.
    FormerPools(Vec<FormerPool>),
    /// Nothing that was shown tells of an earlier store that knew more.
    Shown {
        /// Whether the member is up.
        up: bool,
    },
}
