//! What all of the libraries share: the session with the node, and what is known here of streams, memory and code.

pub mod attribute;
pub mod blas_handles;
pub mod callback;
pub mod capture;
pub mod capture_mode;
pub mod context;
pub mod device;
pub mod ending;
pub mod event;
mod exec_node;
mod fork;
pub mod graph;
pub mod graph_memory;
pub mod handle;
#[cfg(test)]
pub(crate) mod hostile;
pub mod inbox;
pub mod instance;
pub mod landing;
pub mod launch;
pub mod limits;
pub mod list;
pub mod memory;
pub mod module;
pub mod node;
pub mod outbox;
pub mod pooled;
pub mod pools;
pub mod recent;
pub mod reset;
pub mod session;
pub mod stream;
pub mod thread;
pub mod user_object;
pub mod window;
