//! The folder of a node's state: who has it, the numbers that are kept in it, and what to do when it cannot be used.

use crate::leftovers::SHARED_MEMORY;
use crate::node::NodeError;
use crate::refused::Refused;
use hinterland_os::file_lock::{ByteLock, lock_byte};
use hinterland_pool::local::random;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The file whose lock says that a node has the state. It lasts as long as the node's process, however that ends.
const LOCK: &str = "node.lock";

/// No descriptor is left to the process.
const EMFILE: i32 = 24;
/// None is left to the machine.
const ENFILE: i32 = 23;

/// What a number is written in: fewer are one that was cut off.
const NUMBER_DIGITS: usize = 16;

/// A state that no other node can have meanwhile.
pub struct HeldState {
    folder: PathBuf,
    /// Its lock ends when the file is closed.
    _file: File,
}

impl HeldState {
    /// Takes the folder back, of a node that has put nothing there.
    pub fn leave(&self) {
        // Whoever has put something there meanwhile keeps it.
        let _ = fs::remove_file(self.folder.join(LOCK)).and_then(|()| fs::remove_dir(&self.folder));
    }
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
        true => Ok(HeldState { folder: state.to_path_buf(), _file: file }),
        false => Err(NodeError::StateInUse { state: state.to_path_buf() }),
    }
}

/// The number of the node whose state this is, drawn at its first start.
///
/// # Errors
/// As [`kept_number`]; [`NodeError::NumberLost`] if objects are here and the file names no node, or one that has not their memory:
/// a node of another number would drop them.
pub fn own_number(state: &Path) -> Result<u64, NodeError> {
    let path = state.join("node.id");
    if !has_files(&state.join("objects"), "object") {
        return kept_number(&path);
    }
    let owners = owners_of_memory(state);
    let lost = |path: PathBuf| NodeError::NumberLost {
        path,
        owner: owners.first().copied().filter(|_| owners.len() == 1),
    };
    if fs::read_to_string(&path)
        .map_or_else(|error| error.kind() == ErrorKind::NotFound, |text| text.is_empty())
    {
        return Err(lost(path));
    }
    let own = kept_number(&path)?;
    let is_shared = || Path::new(SHARED_MEMORY).join(memory_name(own)).exists();
    if owners.is_empty() || owners.contains(&own) || is_shared() { Ok(own) } else { Err(lost(path)) }
}

/// What the folder of a node's memory is called. The name is the node's own, because 4 KiB pages lie in a folder of this name that
/// all nodes of a host share.
pub fn memory_name(own: u64) -> String {
    format!("memory-{own:016x}")
}

/// The nodes that have left bytes of objects in this state.
fn owners_of_memory(state: &Path) -> Vec<u64> {
    let entries = fs::read_dir(state).into_iter().flatten().flatten();
    let owner = |entry: fs::DirEntry| {
        let name = entry.file_name();
        let number = u64::from_str_radix(name.to_str()?.strip_prefix("memory-")?, 16).ok()?;
        let below = fs::read_dir(entry.path()).ok()?.flatten().map(|entry| entry.path());
        let mut folders = below.chain([entry.path()]);
        folders.any(|folder| has_files(&folder, "bytes")).then_some(number)
    };
    entries.filter_map(owner).collect()
}

fn has_files(folder: &Path, extension: &str) -> bool {
    let mut paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.any(|path| path.extension().is_some_and(|found| found == extension))
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
            let whole = Some(text.trim()).filter(|digits| digits.len() == NUMBER_DIGITS);
            let number = whole.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            let words = format!("it does not hold {NUMBER_DIGITS} hexadecimal digits");
            return number.ok_or_else(|| failed(io::Error::new(ErrorKind::InvalidData, words)));
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

/// What to do about a state whose own number is lost, as far as its memory says which it was.
pub fn hint_for_number(path: &Path, owner: Option<u64>) -> String {
    let back = match owner {
        Some(owner) => format!("`echo {owner:016x} > {}` puts it back", path.display()),
        None => "put the file back from a copy".to_owned(),
    };
    format!("{back}; if the objects may go, start with an empty --state")
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
    fn a_node_whose_number_is_lost_does_not_take_another_while_objects_are_there() {
        let state = std::env::temp_dir().join(format!("hl-number-{}", std::process::id()));
        let path = state.join("node.id");
        fs::create_dir_all(state.join("objects")).unwrap();
        let own = own_number(&state).unwrap();
        let memory = state.join(memory_name(own)).join("hugetlb");
        fs::create_dir_all(&memory).unwrap();
        fs::write(memory.join("0000000000000010.bytes"), "x").unwrap();
        fs::write(state.join("objects/0000000000000010.object"), "x").unwrap();
        assert_eq!(own_number(&state).unwrap(), own);
        for wrong in [None, Some(""), Some("00000000"), Some("0123456789abcdef\n")] {
            fs::remove_file(&path).unwrap();
            if let Some(wrong) = wrong {
                fs::write(&path, wrong).unwrap();
            }
            let refused = own_number(&state).unwrap_err().to_string();
            assert!(refused.contains("hint: "), "{wrong:?}: {refused}");
            let puts_back = refused.contains(&format!("`echo {own:016x} > {}`", path.display()));
            assert!(puts_back || wrong == Some("00000000"), "{wrong:?}: {refused}");
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), wrong, "nothing was changed");
            fs::write(&path, "").unwrap();
        }
        fs::write(&path, format!("{own:016x}\n")).unwrap();
        assert_eq!(own_number(&state).unwrap(), own);
        fs::remove_dir_all(state).unwrap();
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
