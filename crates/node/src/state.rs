//! The folder of a node's state: who has it, the numbers that are kept in it, and what to do when it cannot be used.

use crate::node::NodeError;
use crate::refused::Refused;
use hinterland_os::file_lock::{ByteLock, lock_byte};
use hinterland_pool::local::random;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

/// The file whose lock says that a node has the state. It lasts as long as the node's process, however that ends.
const LOCK: &str = "node.lock";

/// No descriptor is left to the process.
const EMFILE: i32 = 24;
/// None is left to the machine.
const ENFILE: i32 = 23;

/// A state that no other node can have meanwhile.
pub struct HeldState {
    /// Its lock ends when the file is closed.
    _file: File,
}

/// Takes the state for this node.
///
/// # Errors
/// [`NodeError::StateInUse`] if another node has it, [`NodeError::State`] if it cannot be written.
pub fn hold(state: &Path) -> Result<HeldState, NodeError> {
    let path = state.join(LOCK);
    let opened = File::options().write(true).create(true).truncate(false).open(&path);
    let file = opened.map_err(|source| NodeError::State { path, source })?;
    match lock_byte(&file, 0, ByteLock::Alone)? {
        true => Ok(HeldState { _file: file }),
        false => Err(NodeError::StateInUse { state: state.to_path_buf() }),
    }
}

/// A number that is drawn once and kept in a file.
///
/// # Errors
/// [`NodeError::State`]; no part of the file is left then.
pub fn kept_number(path: &Path) -> Result<u64, NodeError> {
    let failed = |source| NodeError::State { path: path.to_path_buf(), source };
    match fs::read_to_string(path) {
        // A full disk or a crash left the name alone: nothing has the number yet.
        Ok(text) if text.is_empty() => {}
        Ok(text) => {
            let number = u64::from_str_radix(text.trim(), 16);
            return number.map_err(|error| failed(io::Error::new(ErrorKind::InvalidData, error.to_string())));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let number = u64::from_le_bytes(random().map_err(Refused::from)?).max(1);
    // Whole or not at all, whenever the node is killed.
    let partial = path.with_extension("partial");
    let written = fs::write(&partial, format!("{number:016x}\n")).and_then(|()| fs::rename(&partial, path));
    written.inspect_err(|_| drop(fs::remove_file(&partial))).map_err(failed)?;
    Ok(number)
}

/// What to do about a file or folder of the state.
pub fn hint(error: &io::Error) -> &'static str {
    if matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) {
        return "raise the limit of open files: `ulimit -n 65536`";
    }
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "make room on that disk, or name a folder on another one with --state"
        }
        ErrorKind::InvalidData => {
            "something else wrote there: put it back from a copy, or start with an empty --state"
        }
        _ => "name a folder that this user may write with --state",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_drawn_again_where_a_full_disk_left_an_empty_file() {
        let folder = std::env::temp_dir().join(format!("hl-state-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("node.id");
        fs::write(&path, "").unwrap();
        let number = kept_number(&path).unwrap();
        assert_eq!(kept_number(&path).unwrap(), number);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else stays");
        fs::write(&path, "no number").unwrap();
        let refused = kept_number(&path).unwrap_err().to_string();
        assert!(refused.contains("start with an empty --state"), "{refused}");
        assert!(hint(&io::Error::from_raw_os_error(EMFILE)).contains("ulimit -n"));
        assert!(hint(&io::Error::from_raw_os_error(28)).contains("make room"));
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_state_is_held_by_one_node_at_a_time() {
        let folder = std::env::temp_dir().join(format!("hl-held-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let held = hold(&folder).unwrap();
        assert!(matches!(hold(&folder), Err(NodeError::StateInUse { .. })));
        drop(held);
        hold(&folder).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}
