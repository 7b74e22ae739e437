//! Objects of the pool as memory of this process.
//!
//! [`Regions::map`] shows an object at an address. An object of this rack is mapped straight from its file. Of an object
//! of another rack the cache file of this host is mapped, and *armed*: a touch of a page that is not there waits until
//! the node has filled it. DESIGN section 6 and `docs/decisions/2026-11-21-cache-files.md` say why.
//!
//! What this crate promises of armed memory:
//!
//! - No thread ever reads a byte that is not the object's: memory is armed before it can be touched (`placing`).
//! - The node may die: touches wait, and the memory comes back from a restarted node, or is SIGBUS after a grace time,
//!   with the reason on stderr (`recovery`); what does not come back costs no other memory (`stragglers`).
//! - The program may fork: the child gets the memory anew (`fork`).
//! - The program may unmap, protect and advise any part of it ([`process`]).

mod channel;
pub mod descriptor;
mod error;
mod fork;
mod link;
mod placing;
mod private_pages;
pub mod process;
mod recovery;
mod regions;
mod space;
mod stragglers;
pub mod system;
mod table;
mod thread;
mod watcher;

pub use error::RegionError;
pub use link::Options;
pub use regions::{Access, Address, MapOptions, Region, Regions, Target};
