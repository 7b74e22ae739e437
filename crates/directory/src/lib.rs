//! The directory: pages to objects, objects to home nodes, names to objects, and the members of the pool; and [`locks`].
//!
//! It is a pure state machine: no I/O, no clock, no randomness. A command is *planned* on the state as it
//! is, the plan's mutations are made durable in one transaction, and only then is the plan *committed*, so
//! that nothing is ever visible that a crash could take back:
//!
//! ```
//! use hinterland_directory::{Command, Directory, Reply, Settings};
//! use hinterland_types::{NodeId, RackName};
//!
//! let mut directory = Directory::recover(Settings::default(), 0, std::iter::empty()).unwrap();
//! let join = Command::Join {
//!     name: None,
//!     node: NodeId(7),
//!     rack: RackName::parse("a").unwrap(),
//!     address: "127.0.0.1:7001".to_owned(),
//!     capacity_bytes: 1 << 30,
//!     incarnation: 1,
//! };
//! let plan = directory.plan(0, &join).unwrap();
//! for mutation in plan.mutations() {
//!     // write `mutation` to the store; all of them in one transaction
//!     assert!(mutation.value.is_some());
//! }
//! let reply = directory.commit(plan);
//! assert!(matches!(reply, Reply::Joined { .. }));
//! ```
//!
//! Life of a member: `Joining` (it has said that it is there, but not what it holds) -> `Up` (its last
//! [`Command::NodeObjects`] has been answered) -> `Down` (its lease ran out or it left) -> `Joining` with a
//! higher incarnation. Life of an object: `Writing` -> `Sealed` -> `Removing` -> gone; a region starts as
//! `Mutable`. Bytes and pages of an object in `Removing` are given to nobody else until every home has
//! said with [`Command::Forget`] that it has let go.
#![forbid(unsafe_code)]

mod adopt;
mod command;
mod directory;
mod draft;
mod error;
mod extent;
mod former;
mod heat;
mod lifecycle;
pub mod locks;
mod members;
mod names;
mod placement;
mod queries;
mod record;
mod recover;
mod regions;
mod reign;
mod rename;
mod replicas;
mod reply;
mod request;
mod state;

pub use command::{Command, ContentDigest, Departure, Found, Held, OnTarget, Placement, Writer};
pub use directory::{Directory, Heard, Lease, Plan, Settings};
pub use error::{Contradiction, DirectoryError, RecoverError, Room};
pub use extent::PageRun;
pub use former::FormerPool;
pub use record::{Home, MemberState, Mutation, Record, Stage, Table, charged_bytes, spread};
pub use reign::{Batch, Ended, Judged, Reign, Standing, believed_until};
pub use rename::RENAMES_MAX;
pub use reply::{
    HomeInfo, MemberInfo, MovedPage, NotAdopted, ObjectInfo, ObjectState, PageHome, Repair, Reply,
};
pub use request::{RequestId, SLOTS};

/// Most entries of one [`Command::List`] answer: a screen is smaller, and the caller can go on.
pub const LIST_MAX: u32 = 1000;
/// Most bytes of one [`Command::List`] answer: three quarters of a control message, for names can be long.
pub const LIST_BYTES_MAX: usize = 768 << 10;
/// Most homes of one object: what was asked for, and as many again for what is read a lot.
pub const HOMES_MAX: usize = 2 * hinterland_types::limits::COPIES_MAX as usize;
/// Most heat copies of one object: one in each of so many racks, which leaves as many homes for the copies that were asked for.
pub const HEAT_HOMES_MAX: usize = HOMES_MAX - hinterland_types::limits::COPIES_MAX as usize;
/// Most entries of one [`Command::HeatCopies`] answer, and objects of one [`Command::HeatHomes`]: as many as a list has.
pub const HEAT_LIST_MAX: usize = LIST_MAX as usize;
/// Most objects in one part of a [`Command::NodeObjects`]: 16384 entries of 52 bytes fit in a control message.
pub const HELD_MAX: usize = 16 << 10;
/// Most objects in one [`Command::Adopt`]: that many names of the greatest length fit in a control message.
pub const FOUND_MAX: usize = 512;
/// Most pools of before that are remembered: each is a directory that was lost with all its copies.
pub const FORMER_POOLS_MAX: usize = 64;
/// Most pages of one [`Command::PageHomes`] answer: three numbers of at most ten bytes each fit in a control message.
pub const PAGES_MAX: usize = 16 << 10;
/// Most entries of one [`Command::RepairList`] answer: copying that many objects takes longer than asking again.
pub const REPAIRS_MAX: u32 = 64;
/// Most objects that one [`Command::RepairList`] looks at: a few milliseconds, for others wait meanwhile.
pub const REPAIR_SCAN_MAX: usize = 16 << 10;
/// Objects that the sessions of one node may be writing at once; all of them fit in a heartbeat's answer.
pub const WRITES_PER_NODE_MAX: usize = 1024;
/// Copies to forget, and copies in the making, that one heartbeat's answer names; later ones name the rest.
pub const FORGET_MAX: usize = 1024;
/// Longest network address of a node in bytes: a host name (253) and a port.
pub const ADDRESS_TEXT_BYTES_MAX: usize = 260;
