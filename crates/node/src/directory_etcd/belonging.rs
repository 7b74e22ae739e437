//! To which pool a node's state belongs: what another pool's directory does not know, it would tell the node to delete.

use hinterland_proto::PoolId;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file that says that the state belongs to a directory in etcd.
const MARK: &str = "directory.etcd";

/// A node's state belongs elsewhere; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum BelongingError {
    /// Another pool.
    #[error(
        "{state} belongs to {own}, but {directory} holds {found}: nothing was changed (hint: is it the right etcd and the right prefix? If etcd has lost its data, restore its snapshot; if the objects here may go, start with an empty --state)"
    )]
    OtherPool {
        /// The folder of the state.
        state: PathBuf,
        /// Its pool.
        own: PoolId,
        /// The directory.
        directory: String,
        /// The directory's pool.
        found: PoolId,
    },
    /// A pool that is not there any more.
    #[error(
        "{state} belongs to {own}, and {directory} holds no pool at all: nothing was changed (hint: is it the right etcd and the right prefix? If etcd has lost its data, restore its snapshot; if the objects here may go, start with an empty --state)"
    )]
    NoPool {
        /// The folder of the state.
        state: PathBuf,
        /// Its pool.
        own: PoolId,
        /// The directory.
        directory: String,
    },
    /// It holds objects, and nothing says of which pool.
    #[error(
        "{state} holds objects of a pool whose directory is elsewhere, and {directory} would have them deleted: nothing was changed (hint: start with an empty --state and copy what is needed)"
    )]
    Unknown {
        /// The folder of the state.
        state: PathBuf,
        /// The directory.
        directory: String,
    },
    /// The state belongs to a directory in etcd, and the node was started without one.
    #[error(
        "{state} belongs to the directory {directory}: nothing was changed (hint: start with --directory {directory}, or with an empty --state)"
    )]
    InEtcd {
        /// The folder of the state.
        state: PathBuf,
        /// The directory.
        directory: String,
    },
    /// The files that say so cannot be used.
    #[error("{path}: {source} (hint: name a folder that this user may write with --state)")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// The pool in etcd that a state says it belongs to.
///
/// # Errors
/// [`BelongingError::File`].
pub fn noted_pool(state: &Path) -> Result<Option<PoolId>, BelongingError> {
    let path = state.join(MARK);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(BelongingError::File { path, source }),
    };
    // The first line is the pool, the second is for people.
    let number = text.lines().next().and_then(|line| u128::from_str_radix(line.trim(), 16).ok());
    let unreadable = || std::io::Error::new(ErrorKind::InvalidData, "its first line is no pool's number");
    match number {
        Some(number) => Ok(Some(PoolId(number))),
        None => Err(BelongingError::File { path, source: unreadable() }),
    }
}

/// Checks that a state belongs to the pool in etcd, and notes it for the next start.
///
/// # Errors
/// [`BelongingError`]; nothing was changed.
pub fn check_belonging(
    state: &Path,
    directory: &str,
    found: PoolId,
    holds_objects: bool,
) -> Result<(), BelongingError> {
    let mark = state.join(MARK);
    match noted_pool(state)? {
        Some(own) if own == found => Ok(()),
        Some(own) => {
            let (state, directory) = (state.to_path_buf(), directory.to_owned());
            Err(BelongingError::OtherPool { state, own, directory, found })
        }
        None if holds_objects || state.join("directory.redb").exists() => {
            Err(BelongingError::Unknown { state: state.to_path_buf(), directory: directory.to_owned() })
        }
        None => fs::write(&mark, format!("{:032x}\n{directory}\n", found.0))
            .map_err(|source| BelongingError::File { path: mark, source }),
    }
}

/// Checks that a node that is started without etcd has no state that belongs to a directory there.
///
/// # Errors
/// [`BelongingError::InEtcd`].
pub fn refuse_foreign_state(state: &Path) -> Result<(), BelongingError> {
    match fs::read_to_string(state.join(MARK)) {
        Ok(text) => {
            let directory = text.lines().nth(1).unwrap_or("etcd://...").to_owned();
            Err(BelongingError::InEtcd { state: state.to_path_buf(), directory })
        }
        Err(_) => Ok(()),
    }
}
