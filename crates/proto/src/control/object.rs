//! How an object is described to those who ask for it.

use crate::PoolId;
use hinterland_types::{GlobalAddress, NodeId, ObjectId, ObjectName, RackName};
use serde::{Deserialize, Serialize};

/// Where an object stands in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ObjectState {
    /// Being written by one writer; nobody can open it.
    Writing,
    /// Written once; it never changes again.
    Sealed,
    /// A region that is read and written in place.
    Mutable,
}

/// One node that holds a whole copy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Home {
    /// The node.
    pub node: NodeId,
    /// The rack that the node serves.
    pub rack: RackName,
    /// `HOST:PORT` of its fabric.
    pub address: String,
    /// Whether its lease is alive.
    pub up: bool,
    /// Whether its copy is none of those that were asked for, but there because its rack reads the object a lot. Only `stat` and lists
    /// tell; elsewhere it is `false`.
    pub heat: bool,
}

/// What `stat` says of an object.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ObjectInfo {
    /// Identifier, never used twice.
    pub object: ObjectId,
    /// Its name.
    pub name: ObjectName,
    /// State.
    pub state: ObjectState,
    /// Size in bytes.
    pub bytes: u64,
    /// Where it lies in the global address space; `None` until it is sealed.
    pub address: Option<GlobalAddress>,
    /// How many copies were asked for.
    pub copies: u8,
    /// The nodes that hold it, the asking node first if it is one of them.
    pub homes: Vec<Home>,
    /// blake3 over the size and the crc32c of each 64 KiB block; zero until it is sealed.
    pub digest: [u8; 32],
}

/// Where a new object should go.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, Default)]
pub enum Placement {
    /// The local node first, then the rack with the most room.
    #[default]
    Policy,
    /// The first copy into this rack.
    Rack(RackName),
    /// For a region: its pages over all nodes with room.
    Spread,
}

/// A pool that is no more, and of which objects are in this one: nodes held them, and have put them here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FormerPool {
    /// Its number.
    pub pool: PoolId,
    /// The highest number of an object that came from there.
    pub last: ObjectId,
}

/// What becomes of an object whose name another one is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RenameTarget {
    /// It is removed.
    Replace,
    /// It stays, and the request is refused with `EEXIST`.
    Refuse,
    /// It gets the name that the other one had.
    Exchange,
}

/// What becomes of copies that are wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Mending {
    /// They stay as they are.
    No,
    /// Their wrong blocks are written anew from other copies; one where that fails is dropped if there is a right one.
    InPlace,
    /// They are dropped if there is a right one, and made again from it.
    Drop,
}
