//! To which pool a node's state belongs: what another pool's directory does not know, it would tell the node to delete.

use hinterland_proto::PoolId;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The file that says that the state belongs to a directory in etcd.
const MARK: &str = "directory.etcd";
/// The file that says to which pool a state belongs whose directory is this node's own or another's.
const NOTE: &str = "pool.note";
/// The directory of a node that has it itself.
pub const OWN_DIRECTORY: &str = "directory.redb";

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
    /// Another pool, whose directory is no etcd.
    #[error(
        "{state} holds objects of {own}, and {directory} {found}, which would have them deleted: nothing was changed (hint: start as before, with the same --join or without one; if the directory has lost its state, put that back, or start with --adopt, which puts the objects here into the new one; if they may go, start with an empty --state)"
    )]
    Elsewhere {
        /// The folder of the state.
        state: PathBuf,
        /// Its pool.
        own: PoolId,
        /// Where the directory is now.
        directory: String,
        /// What the directory has.
        found: PoolId,
    },
    /// The directory that was here has gone.
    #[error(
        "{state} has no directory.redb any more that knows the objects of {own}; an empty one would have all nodes delete theirs: nothing was changed (hint: put the file back from a copy; if there is none, start this node and then all others with --adopt, which puts their objects into a new directory)"
    )]
    DirectoryLost {
        /// The folder of the state.
        state: PathBuf,
        /// Its pool.
        own: PoolId,
    },
    /// The files that say so cannot be used.
    #[error("{path}: {source} (hint: {})", crate::state::hint(.source))]
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
    let mark = state.join(MARK);
    // Of earlier releases, when they were killed as they made it. There were no objects yet.
    if fs::metadata(&mark).is_ok_and(|file| file.len() == 0) {
        return Ok(None);
    }
    Ok(noted(mark)?.map(|(pool, _)| pool))
}

/// The pool that a file names, and its second line.
fn noted(path: PathBuf) -> Result<Option<(PoolId, String)>, BelongingError> {
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(BelongingError::File { path, source }),
    };
    // The first line is the pool, the second is for people.
    let number = text.lines().next().and_then(|line| u128::from_str_radix(line.trim(), 16).ok());
    let unreadable = || std::io::Error::new(ErrorKind::InvalidData, "its first line is no pool's number");
    match number {
        Some(number) => Ok(Some((PoolId(number), text.lines().nth(1).unwrap_or_default().to_owned()))),
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
    match noted_pool(state)? {
        Some(own) if own == found => Ok(()),
        Some(own) => {
            let (state, directory) = (state.to_path_buf(), directory.to_owned());
            Err(BelongingError::OtherPool { state, own, directory, found })
        }
        None if holds_objects || state.join(OWN_DIRECTORY).exists() => {
            Err(BelongingError::Unknown { state: state.to_path_buf(), directory: directory.to_owned() })
        }
        None => note(state.join(MARK), found, directory),
    }
}

/// Checks that a state belongs to the pool of a directory that is no etcd: of the node at an address, or its own.
///
/// # Errors
/// [`BelongingError`]; nothing was changed.
pub fn check_pool(
    state: &Path,
    join: Option<&str>,
    found: PoolId,
    holds_objects: bool,
) -> Result<(), BelongingError> {
    refuse_foreign_state(state)?;
    // Without a note: new, or of a release that made none.
    let Some((own, directory)) = noted(state.join(NOTE))? else { return Ok(()) };
    let state = state.to_path_buf();
    if own != found && holds_objects {
        let directory = join.map_or_else(|| "without --join it is".to_owned(), |at| format!("{at} is of"));
        return Err(BelongingError::Elsewhere { state, own, directory, found });
    }
    // One of no bytes would be filled as a new one is.
    let is_there = || fs::metadata(state.join(OWN_DIRECTORY)).is_ok_and(|file| file.len() > 0);
    if own == found && join.is_none() && directory == OWN_DIRECTORY && !is_there() {
        return Err(BelongingError::DirectoryLost { state, own });
    }
    Ok(())
}

/// Notes for the next start to which pool a state belongs. The node's own directory is there by now, and knows what the node holds.
///
/// # Errors
/// [`BelongingError::File`].
pub fn note_pool(state: &Path, join: Option<&str>, pool: PoolId) -> Result<(), BelongingError> {
    note(state.join(NOTE), pool, join.unwrap_or(OWN_DIRECTORY))
}

/// Writes a pool and where its directory is into a file, unless that is what it says.
fn note(path: PathBuf, pool: PoolId, directory: &str) -> Result<(), BelongingError> {
    let text = format!("{:032x}\n{directory}\n", pool.0);
    if fs::read_to_string(&path).is_ok_and(|noted| noted == text) {
        return Ok(());
    }
    // Whole or not at all, whenever the node is killed.
    let partial = path.with_added_extension("partial");
    fs::write(&partial, text)
        .and_then(|()| fs::rename(&partial, &path))
        .map_err(|source| BelongingError::File { path, source })
}

/// Checks that a node that is started without etcd has no state that belongs to a directory there.
///
/// # Errors
/// [`BelongingError::InEtcd`].
fn refuse_foreign_state(state: &Path) -> Result<(), BelongingError> {
    match fs::read_to_string(state.join(MARK)) {
        Ok(text) if text.is_empty() => Ok(()),
        Ok(text) => {
            let directory = text.lines().nth(1).unwrap_or("etcd://...").to_owned();
            Err(BelongingError::InEtcd { state: state.to_path_buf(), directory })
        }
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_with_objects_starts_with_its_own_pool_only() {
        let state = std::env::temp_dir().join(format!("hl-belonging-{}", std::process::id()));
        fs::create_dir(&state).unwrap();
        let (own, other) = (PoolId(7), PoolId(8));
        let check = |join, found, holds| check_pool(&state, join, found, holds);
        check(Some("a:1"), own, true).expect("made before there were notes");
        note_pool(&state, Some("a:1"), own).unwrap();
        check(Some("a:2"), own, true).expect("the same pool at another address");
        check(Some("a:1"), other, false).expect("nothing to lose");
        let refused = check(Some("a:1"), other, true).unwrap_err().to_string();
        assert!(refused.contains("a:1 is of") && refused.contains("nothing was changed"), "{refused}");
        let refused = check(None, other, true).unwrap_err().to_string();
        assert!(refused.contains("without --join it is"), "{refused}");
        note_pool(&state, None, own).unwrap();
        assert!(matches!(check(None, own, false), Err(BelongingError::DirectoryLost { .. })));
        fs::write(state.join(OWN_DIRECTORY), "").unwrap();
        assert!(matches!(check(None, own, true), Err(BelongingError::DirectoryLost { .. })));
        fs::write(state.join(OWN_DIRECTORY), "what it knows").unwrap();
        check(None, own, true).expect("as it was");
        fs::remove_dir_all(state).unwrap();
    }

    #[test]
    fn a_note_of_which_nothing_was_written_is_none() {
        let state = std::env::temp_dir().join(format!("hl-belonging-empty-{}", std::process::id()));
        fs::create_dir(&state).unwrap();
        let check = |holds| check_belonging(&state, "etcd://one:2379/", PoolId(7), holds);
        fs::write(state.join(MARK), "").unwrap();
        check_pool(&state, None, PoolId(8), false).expect("it belongs to no directory in etcd yet");
        assert!(matches!(check(true), Err(BelongingError::Unknown { .. })));
        check(false).expect("it has nothing to lose");
        assert_eq!(noted_pool(&state).unwrap(), Some(PoolId(7)));
        check(true).expect("it is noted");
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1, "and nothing beside it");
        fs::remove_dir_all(state).unwrap();
    }
}
