//! Remote memory and messages behind one trait: [`Endpoint`], over shared memory, TCP and a simulated peer.
//!
//! A node offers memory and calls by implementing [`Service`]; whoever holds an [`Endpoint`] to it reads, writes,
//! swaps and calls. Every request names a handle; the service checks rights and range of every one.

pub mod adaptive;
mod endpoint;
mod error;
mod intake;
mod lease;
mod memory_service;
mod part;
pub mod rdma;
mod service;
pub mod shm;
pub mod sim;
mod slice;
pub mod tcp;

pub use endpoint::{Capabilities, Completion, Endpoint, Found, Outcome, Queue};
pub use error::FabricError;
pub use intake::Intake;
pub use lease::{Closer, Lease};
pub use memory_service::MemoryService;
pub use part::{Destination, Part, Source};
pub use service::Service;
pub use slice::Slice;
