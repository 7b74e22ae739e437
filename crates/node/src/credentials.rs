//! By what a node proves to others that it belongs to the pool.

use crate::node::NodeError;
use crate::options::NodeOptions;
use hinterland_fabric::tcp::Tls;
use hinterland_proto::PoolKey;
use std::fs;
use std::path::Path;

/// How a node proves to others that it belongs to the pool, and keeps what it says from everybody else.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The key of the pool.
    pub key: Option<PoolKey>,
    /// Certificates of the pool's authority.
    pub tls: Option<Tls>,
}

impl Credentials {
    /// Reads the files that the options name.
    ///
    /// # Errors
    /// [`NodeError::KeyFile`], [`NodeError::Key`] or [`NodeError::Tls`].
    pub fn read(options: &NodeOptions) -> Result<Self, NodeError> {
        let key = options.key_file.as_deref().map(read_key).transpose()?;
        let tls = options.tls.as_deref().map(Tls::open).transpose()?;
        Ok(Self { key, tls })
    }

    /// Whether there are any, so that not everybody who reaches the node is let in.
    pub fn are_there(&self) -> bool {
        self.key.is_some() || self.tls.is_some()
    }
}

/// Reads a pool key: 64 hexadecimal digits.
///
/// # Errors
/// [`NodeError::KeyFile`] or [`NodeError::Key`].
pub fn read_key(path: &Path) -> Result<PoolKey, NodeError> {
    let bytes = fs::read(path).map_err(|source| NodeError::KeyFile { path: path.to_path_buf(), source })?;
    let text = String::from_utf8_lossy(&bytes);
    text.parse().map_err(|_: hinterland_proto::NotAKey| NodeError::Key { path: path.to_path_buf() })
}
