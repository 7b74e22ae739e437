//! Why the directory refuses a command, and why it refuses to start.

use crate::{FORMER_POOLS_MAX, HOMES_MAX, ObjectState, RENAMES_MAX, Table};
use hinterland_types::limits::{COPIES_MAX, NODES_MAX, OBJECT_BYTES_MAX};
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName, PageNumber, RackName};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Nodes that an error about room names; the rest is counted.
const ROOM_LINES_MAX: usize = 8;

/// Free room of the nodes that are up, most room first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Room {
    /// Rack, node, free bytes, capacity in bytes.
    pub nodes: Vec<(RackName, NodeId, u64, u64)>,
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nodes.is_empty() {
            return write!(f, "no node is up");
        }
        for (place, (rack, node, free, capacity)) in self.nodes.iter().take(ROOM_LINES_MAX).enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{} of {} free on {node} in rack {rack}", Size(*free), Size(*capacity))?;
        }
        match self.nodes.len().saturating_sub(ROOM_LINES_MAX) {
            0 => Ok(()),
            more => write!(f, ", less on {more} more"),
        }
    }
}

/// Bytes for people: exact below 1 KiB, else with two decimals.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.iter().find(|(shift, _)| self.0 >> shift > 0) {
            // Two decimals for people: what the cast to floating point loses is not shown.
            Some((shift, unit)) => write!(f, "{:.2} {unit}", self.0 as f64 / (1u64 << shift) as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// Why a command is refused; nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum DirectoryError {
    /// The node never joined, or left for good.
    #[error("{node} is not a member (hint: it must join first)")]
    UnknownNode {
        /// The node.
        node: NodeId,
    },
    /// A message of an earlier life of the node, or a join that is not newer.
    #[error(
        "{node} speaks as incarnation {given} but is known as {known} (hint: it has joined again meanwhile: try again)"
    )]
    StaleIncarnation {
        /// The node.
        node: NodeId,
        /// What the message says.
        given: u64,
        /// What is recorded.
        known: u64,
    },
    /// The lease ran out.
    #[error(
        "the lease of {node} ran out (hint: it was cut off, stopped or very busy, and joins again by itself: try again in a moment)"
    )]
    LeaseExpired {
        /// The node.
        node: NodeId,
    },
    /// The node has joined but not yet said all that it holds.
    #[error("{node} has not yet said what it holds (hint: it is joining: try again in a moment)")]
    NotReady {
        /// The node.
        node: NodeId,
    },
    /// The pool has as many nodes as it may have.
    #[error(
        "the pool has {NODES_MAX} nodes, the most of an embedded directory (hint: `hinterland forget NODE` removes one that is gone for good)"
    )]
    TooManyNodes,
    /// The address is not `host:port`.
    #[error("{address:?} is not an address (hint: host:port, for example 10.0.0.7:7400)")]
    BadAddress {
        /// What was given, shortened.
        address: String,
    },
    /// More memory than there are addresses.
    #[error(
        "a capacity of {bytes} bytes is more than the address space has (hint: give less with --capacity)"
    )]
    BadCapacity {
        /// What was given.
        bytes: u64,
    },
    /// A part of a node's list that does not follow the part before, is too long, or is not ascending.
    #[error(
        "the list of {node} must go on behind {expected}, ascending (hint: send the parts in order, each once)"
    )]
    ListOutOfOrder {
        /// The node.
        node: NodeId,
        /// Where the next part starts.
        expected: ObjectId,
    },
    /// The node has the only live copies of some objects.
    #[error(
        "{node} has the only live {} (hint: wait until all is copied, or let it be lost with `hinterland forget NODE --lose-last-copies`)",
        copies_of(*objects, first)
    )]
    LastCopies {
        /// The node.
        node: NodeId,
        /// How many.
        objects: u64,
        /// One of them.
        first: ObjectName,
    },
    /// No copy or too many.
    #[error("{copies} copies cannot be made (hint: from 1 to {COPIES_MAX})")]
    BadCopies {
        /// What was given.
        copies: u8,
    },
    /// Larger than any object may be.
    #[error("{} is more than an object may have (hint: split it; the most is {})", Size(*bytes), Size(OBJECT_BYTES_MAX))]
    ObjectTooLarge {
        /// What was given.
        bytes: u64,
    },
    /// Nobody offers memory.
    #[error("no node that is up offers memory (hint: start one with `hinterland node --capacity SIZE`)")]
    NoNodes,
    /// No member is in that rack.
    #[error("no node of rack {rack} is up (hint: racks that are up: {})", list(known))]
    UnknownRack {
        /// What was given.
        rack: RackName,
        /// The racks that have a node up.
        known: Vec<RackName>,
    },
    /// More copies than nodes.
    #[error(
        "{copies} copies need as many nodes that are up, there are {nodes} (hint: ask for fewer copies or start a node)"
    )]
    NotEnoughNodes {
        /// Copies asked for.
        copies: u8,
        /// Nodes that are up and offer memory.
        nodes: u64,
    },
    /// Larger than every node, even empty.
    #[error("{} is larger than the pool's largest node (hint: start one with a larger --capacity; {room})", Size(*bytes))]
    LargerThanPool {
        /// What was asked for.
        bytes: u64,
        /// Free room.
        room: Room,
    },
    /// No room at present.
    #[error("no room for {copies} {} of {} (hint: remove something; {room})", if *copies == 1 { "copy" } else { "copies" }, Size(*bytes))]
    NotEnoughRoom {
        /// What was asked for.
        bytes: u64,
        /// Copies asked for.
        copies: u8,
        /// Free room.
        room: Room,
    },
    /// No run of free addresses is long enough.
    #[error(
        "no {pages} consecutive pages of addresses are free, the longest run has {longest} (hint: remove an object)"
    )]
    NoAddresses {
        /// Pages asked for.
        pages: u32,
        /// Pages of the longest free run.
        longest: u32,
    },
    /// The name has an object.
    #[error("{name} exists (hint: remove it first or choose another name)")]
    NameTaken {
        /// The name.
        name: ObjectName,
        /// The object that has it.
        object: ObjectId,
    },
    /// Somebody is writing that name.
    #[error("{name} is being written by a session of {node} (hint: wait until that put ends)")]
    NameBeingWritten {
        /// The name.
        name: ObjectName,
        /// The node of the writer.
        node: NodeId,
    },
    /// The name is a folder of others, or lies below an object.
    #[error(
        "{name} cannot exist beside {other}: one would be a folder and the other a file (hint: choose another name)"
    )]
    NameIsFolder {
        /// The name asked for.
        name: ObjectName,
        /// The name that is in the way.
        other: ObjectName,
    },
    /// The sessions of that node write as many objects as they may.
    #[error("sessions of {node} are writing as many objects as they may (hint: wait for one to end)")]
    TooManyWrites {
        /// The node.
        node: NodeId,
    },
    /// No such name.
    #[error("there is no object {name} (hint: `hinterland ls` shows what there is)")]
    UnknownName {
        /// The name.
        name: ObjectName,
    },
    /// No such object, or no longer.
    #[error("there is no {object} (hint: it was removed or its put was given up; look its name up again)")]
    UnknownObject {
        /// The object.
        object: ObjectId,
    },
    /// No object owns the page.
    #[error("no object owns page {} (hint: the pointer is stale or was never given out)", page.raw())]
    UnownedPage {
        /// The page.
        page: PageNumber,
    },
    /// The object is in another stage of its life than the command needs.
    #[error("{object} is {state:?}, which this command is not for (hint: look it up again)")]
    WrongState {
        /// The object.
        object: ObjectId,
        /// Its stage.
        state: ObjectState,
    },
    /// The sealed size is more than was reserved.
    #[error("{object} has {size} bytes but {reserved} were reserved (hint: grow it first)")]
    MoreThanReserved {
        /// The object.
        object: ObjectId,
        /// The size given.
        size: u64,
        /// The bytes reserved.
        reserved: u64,
    },
    /// Not every home holds the object.
    #[error("{object} cannot be sealed: {node} does not hold it or is not up (hint: put it again)")]
    HomeMissing {
        /// The object.
        object: ObjectId,
        /// The home.
        node: NodeId,
    },
    /// What is there differs from what the message says.
    #[error("the content of {object} is not what was sealed (hint: copy it again)")]
    WrongContent {
        /// The object.
        object: ObjectId,
    },
    /// A message about a copy that is not, or no longer, there.
    #[error("{node} has no copy of {object} of epoch {} (hint: the message is late and means nothing any more)", epoch.0)]
    StaleCopy {
        /// The object.
        object: ObjectId,
        /// The node.
        node: NodeId,
        /// The epoch of the message.
        epoch: Epoch,
    },
    /// The object has as many homes as it may have.
    #[error("{object} has {HOMES_MAX} homes, the most that an object may have (hint: read one of them)")]
    TooManyHomes {
        /// The object.
        object: ObjectId,
    },
    /// The node has a copy already.
    #[error("{node} has a copy of {object} or is making one (hint: choose another node)")]
    AlreadyHome {
        /// The object.
        object: ObjectId,
        /// The node.
        node: NodeId,
    },
    /// The page lies there already.
    #[error("page {} of the pool lies on {node} (hint: nothing has to be moved)", page.raw())]
    PageAtHome {
        /// The page.
        page: PageNumber,
        /// The node.
        node: NodeId,
    },
    /// Another node is taking the page.
    #[error("page {} of the pool is being moved to {node} (hint: ask again when that is over)", page.raw())]
    PageMoving {
        /// The page.
        page: PageNumber,
        /// Where to.
        node: NodeId,
    },
    /// The bytes of the page are gone, or their node is down.
    #[error("page {} of the pool cannot be had: its home is gone or down (hint: `hinterland status` shows the nodes)", page.raw())]
    PageLost {
        /// The page.
        page: PageNumber,
    },
    /// A region below the size of a page.
    #[error("page {} of {object} stays where it is (hint: regions of less than 2 MiB do not move)", page.raw())]
    PageFixed {
        /// The page.
        page: PageNumber,
        /// The region.
        object: ObjectId,
    },
    /// The move was given up, or there is another by now.
    #[error("the move of page {} under epoch {} is over (hint: look where the page lies, and begin again)", page.raw(), epoch.0)]
    MoveOver {
        /// The page.
        page: PageNumber,
        /// The epoch of the message.
        epoch: Epoch,
    },
    /// A folder with more objects than are renamed at once.
    #[error(
        "{name} holds more than {RENAMES_MAX} objects, the most that are renamed together (hint: rename its parts)"
    )]
    FolderTooLarge {
        /// The folder.
        name: ObjectName,
    },
    /// A request that came after a later one of the same slot.
    #[error(
        "{node} has asked something else since it asked this (hint: nothing was changed by this message; look what the later request did)"
    )]
    OvertakenRequest {
        /// The node.
        node: NodeId,
    },
    /// An object below a folder would have a name that is too long.
    #[error("{name} would be too long below the other folder (hint: choose a shorter name)")]
    NameTooLong {
        /// The object.
        name: ObjectName,
    },
    /// Somebody is making a region of that name.
    #[error("{name} is being made by {node} (hint: try again in a moment)")]
    NameBeingMade {
        /// The name.
        name: ObjectName,
        /// The node that makes it.
        node: NodeId,
    },
    /// A copy for a rack that has one, or is making one.
    #[error("{object} has a copy on {node} in the same rack (hint: read that one)")]
    CopyNear {
        /// The object.
        object: ObjectId,
        /// The node that has it.
        node: NodeId,
    },
    /// A heat copy that has become one of those that were asked for.
    #[error("the copy of {object} on {node} is one of those that were asked for (hint: keep it)")]
    CopyIsWanted {
        /// The object.
        object: ObjectId,
        /// The node that has it.
        node: NodeId,
    },
    /// A heat copy of an object of which no other copy is up.
    #[error(
        "none of the copies of {object} that were asked for is up (hint: {node} keeps its own until one is)"
    )]
    LastCopy {
        /// The object.
        object: ObjectId,
        /// The node that has it.
        node: NodeId,
    },
    /// A copy whose numbers would use up those that are left.
    #[error("{node} says that it holds {object} of epoch {}, numbers that no directory gives (hint: its memory is damaged, or it is no node of Hinterland: start it with an empty --state)", epoch.0)]
    BadNumber {
        /// The node.
        node: NodeId,
        /// The object.
        object: ObjectId,
        /// Its epoch there.
        epoch: Epoch,
    },
    /// Objects of more pools than are remembered.
    #[error(
        "these objects were in {pools} pools before, and {FORMER_POOLS_MAX} are remembered (hint: start with an empty --state and copy what is needed)"
    )]
    TooManyFormerPools {
        /// How many.
        pools: u64,
    },
    /// The number of a life that would leave none for later ones.
    #[error(
        "{node} speaks as incarnation {given}, a number that no clock gives (hint: set the clock of its host; if it is right, the peer is no node of Hinterland)"
    )]
    BadIncarnation {
        /// The node.
        node: NodeId,
        /// What the message says.
        given: u64,
    },
}

/// Records that contradict each other: a broken store or a bug, never a consequence of a crash.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Contradiction {
    /// Two objects own a page.
    #[error("{pages} of {object} belong to another object too")]
    TwoOwners {
        /// The pages.
        pages: crate::PageRun,
        /// One of the owners.
        object: ObjectId,
    },
    /// A page record and its object do not agree.
    #[error("page {} is recorded for {object}, which does not own it", page.raw())]
    PageWithoutOwner {
        /// First page of the record.
        page: PageNumber,
        /// The object that it names.
        object: ObjectId,
    },
    /// An object owns pages that no page record names.
    #[error("{object} owns pages that are not recorded as its own")]
    OwnerWithoutPage {
        /// The object.
        object: ObjectId,
    },
    /// An object has another number of pages than its size needs.
    #[error("{object} of {bytes} bytes has {pages}")]
    WrongPageCount {
        /// The object.
        object: ObjectId,
        /// Its size.
        bytes: u64,
        /// Its pages.
        pages: crate::PageRun,
    },
    /// A name leads to no object, or to one of another name.
    #[error("the name {name} leads to {object}, which does not have it")]
    NameWithoutObject {
        /// The name.
        name: ObjectName,
        /// The object that it names.
        object: ObjectId,
    },
    /// An object's name does not lead to it.
    #[error("{object} has the name {name}, which does not lead to it")]
    ObjectWithoutName {
        /// The object.
        object: ObjectId,
        /// Its name.
        name: ObjectName,
    },
    /// Two homes of an object are the same node.
    #[error("{object} has two homes on {node}")]
    SameHomeTwice {
        /// The object.
        object: ObjectId,
        /// The node.
        node: NodeId,
    },
    /// A heat copy of what is not sealed.
    #[error("{object} has a heat copy on {node} and is not sealed")]
    HeatCopyOfUnsealed {
        /// The object.
        object: ObjectId,
        /// The node.
        node: NodeId,
    },
    /// A home is no member.
    #[error("{object} has a home on {node}, which is no member")]
    HomeWithoutMember {
        /// The object.
        object: ObjectId,
        /// The node.
        node: NodeId,
    },
    /// An object with nothing left to wait for.
    #[error("{object} is being removed but has no home left")]
    NothingToRemove {
        /// The object.
        object: ObjectId,
    },
    /// A claim to a name of an object that has none.
    #[error("{object} is said to be known by its name, and has none")]
    NothingToClaim {
        /// The object.
        object: ObjectId,
    },
    /// Records of the pages of a region that do not fit to it or to each other.
    #[error("the records of the pages of {object} do not fit together: {what}")]
    BadRegion {
        /// The object that they name.
        object: ObjectId,
        /// What is wrong.
        what: &'static str,
    },
    /// A counter would give an id a second time.
    #[error("{object} is not below the counters, which would give its id or epoch again")]
    CounterBehind {
        /// The object.
        object: ObjectId,
    },
    /// Sums and indexes differ from what the objects add up to.
    #[error("the index or the sum of {what} is not what the objects add up to")]
    WrongSum {
        /// Which.
        what: &'static str,
    },
}

/// Why the directory does not start.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecoverError {
    /// A record that cannot be read.
    #[error("a record of table {} with key {key:02x?} cannot be read (hint: the store is damaged; restore it from a copy)", table.name())]
    Unreadable {
        /// The table.
        table: Table,
        /// The key.
        key: Vec<u8>,
    },
    /// Records, but not which format they have.
    #[error(
        "the store has records but no meta record (hint: it is not a directory's store, or it is damaged)"
    )]
    NoMeta,
    /// Another version wrote the store.
    #[error(
        "the store has format {found}, this release reads {} to {} (hint: run the release that wrote it, or a later one; nothing was changed)",
        crate::record::FORMAT_OLDEST,
        crate::record::FORMAT
    )]
    OtherFormat {
        /// What the store says.
        found: u32,
    },
    /// The records contradict each other.
    #[error("the store contradicts itself: {0} (hint: restore it from a copy)")]
    Contradiction(#[from] Contradiction),
}

fn list(racks: &[RackName]) -> String {
    match racks {
        [] => "none".to_owned(),
        _ => racks.iter().map(RackName::as_str).collect::<Vec<_>>().join(", "),
    }
}

/// Of what something is the only copy.
fn copies_of(objects: u64, first: &ObjectName) -> String {
    match objects {
        1 => format!("copy of {first}"),
        _ => format!("copies of {objects} objects, {first} is one"),
    }
}
