//! The client library that every access path uses: sessions, objects, regions, puts.

mod error;
pub mod local;
mod session;

pub use error::PoolError;
pub use session::{Session, default_socket};
