//! Memory node and rack daemon; hosts an embedded directory by default.
//!
//! A node lends memory to the pool, holds sealed objects and regions, gives sessions of its host
//! capabilities and descriptors, serves other nodes over the fabric, and caches objects of other racks.
#![forbid(unsafe_code)]

mod adopted;
mod advertised;
mod belonging;
pub mod cache;
pub mod capability;
mod core;
mod credentials;
mod directory_etcd;
mod directory_host;
mod directory_link;
mod heat_copies;
mod holdings;
mod known_names;
mod kv;
mod leftovers;
mod local_server;
mod locks;
mod membership;
mod mend;
mod naming;
mod node;
mod notices;
mod options;
mod own_folder;
mod peer_service;
mod peers;
mod places;
mod put;
mod refused;
mod regions;
mod remote_service;
mod repair;
mod rescue;
mod ring_server;
mod roster;
mod segment;
mod session;
mod shelf;
mod state;
mod verify;

use hinterland_os::fault_point;

pub use advertised::trouble as trouble_of_address;
pub use cache::CacheSwitches;
pub use credentials::{Credentials, read_key};
pub use directory_host::{DirectoryHost, DirectoryHostError};
pub use heat_copies::HeatCopyOptions;
pub use hinterland_etcd::{EtcdError, Target as EtcdTarget, TargetError as EtcdTargetError};
pub use hinterland_policy::copies::CopySettings;
pub use hinterland_policy::heat::HeatSettings;
pub use kv::{KvDisk, KvRemote, KvWatermarks};
pub use leftovers::{SHARED_MEMORY, take_back};
pub use node::{Node, NodeError};
pub use options::{BackingChoice, NodeOptions, RdmaChoice};
pub use repair::RepairOptions;
pub use shelf::ShelfChoice;
