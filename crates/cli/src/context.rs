//! What a command has besides its own arguments: where to write, and which node to ask.

use crate::failure::Failure;
use crate::output::Output;
use hinterland_pool::Pool;
use std::path::PathBuf;

/// What all commands share.
#[derive(Clone, Debug)]
pub struct Context {
    /// Where it writes.
    pub output: Output,
    /// The node's socket, if one was named.
    pub socket: Option<PathBuf>,
}

impl Context {
    /// The socket that is meant.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(hinterland_pool::default_socket)
    }

    /// A connection to the pool through the node.
    ///
    /// # Errors
    /// [`Failure`] with exit status 3 if no node answers.
    pub fn pool(&self) -> Result<Pool, Failure> {
        Ok(Pool::connect(Some(&self.socket()))?)
    }
}
