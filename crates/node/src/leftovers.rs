//! Folders of memory that outlive their node: marked with where its state lies, and taken back once that is gone.
//!
//! A node that is killed leaves its memory for the next start. If its state is removed instead, nothing would ever start on that
//! memory again, and it would be held until the machine restarts.

use hinterland_os::file_lock::{ByteLock, is_byte_locked, lock_byte};
use hinterland_os::huge_pages::{OvercommitClaim, set_overcommit};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file in such a folder that says where the state lies.
const MARK: &str = "state-folder";
/// The file that says by how many huge pages the node had the limit of the system raised.
const CLAIM: &str = "huge-pages";
/// What the names of such folders begin with; 16 digits follow.
const PREFIXES: [&str; 2] = ["hinterland-", "memory-"];
/// Where the folders lie.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// A marked folder of a node that lives: while this is held nobody takes it back.
pub struct Marked {
    folder: PathBuf,
    _lock: File,
}

impl Marked {
    /// Marks a folder as that of the node with this state.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn new(folder: &Path, state: &Path) -> io::Result<Self> {
        let mut file =
            File::options().create(true).read(true).write(true).truncate(false).open(folder.join(MARK))?;
        // If another node has it, that one uses the same state, and is heard of elsewhere.
        let _ = lock_byte(&file, 0, ByteLock::Alone);
        file.set_len(0)?;
        file.write_all(&mark_of(&fs::canonicalize(state)?))?;
        Ok(Self { folder: folder.to_path_buf(), _lock: file })
    }

    /// Says in the folder what the node has claimed, for who takes the folder back or starts on it again.
    ///
    /// # Errors
    /// Those of writing a file.
    pub fn note_claim(&self, claim: OvercommitClaim) -> io::Result<()> {
        fs::write(self.folder.join(CLAIM), claim.pages.to_string())
    }

    /// Gives back what the node has claimed, and removes the folder if nothing else is in it.
    pub fn leave_if_empty(self) {
        return_claim(&self.folder);
        let names = |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|entry| entry.file_name() == MARK);
        if fs::read_dir(&self.folder).is_ok_and(|mut entries| entries.all(names)) {
            // Somebody else's, or gone already: it stays as it is.
            let _ = fs::remove_file(self.folder.join(MARK));
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// Lowers the limit of huge pages by what a node had noted in its folder: that node lives no more, or is this one.
pub fn return_claim(folder: &Path) {
    let note = folder.join(CLAIM);
    let Some(pages) = fs::read_to_string(&note).ok().and_then(|text| text.trim().parse().ok()) else {
        return;
    };
    // Whoever removes the note gives back what it says; who may not lower the limit leaves it higher: harmless, and `doctor` shows it.
    if fs::remove_file(&note).is_ok() {
        let _ = set_overcommit(OvercommitClaim { pages });
    }
}

/// As [`return_claim`], unless a node lives on the folder.
pub fn return_claim_of_before(folder: &Path) {
    let lives = File::options().read(true).write(true).open(folder.join(MARK));
    if lives.is_ok_and(|mark| !is_byte_locked(&mark, 0).unwrap_or(true)) {
        return_claim(folder);
    }
}

/// Takes back folders below `parent` of nodes whose state is gone and that do not live; says which, in words.
pub fn take_back(parent: &Path) -> Vec<String> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    entries.filter_map(|entry| take_back_one(&entry.path())).collect()
}

fn take_back_one(folder: &Path) -> Option<String> {
    let name = folder.file_name()?.to_str()?;
    let number = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))?;
    if number.len() != 16 || u64::from_str_radix(number, 16).is_err() {
        return None;
    }
    let file = File::options().read(true).write(true).open(folder.join(MARK)).ok()?;
    let mark = fs::read(folder.join(MARK)).ok()?;
    let state = is_gone(&mark)?;
    if is_byte_locked(&file, 0).unwrap_or(true) {
        return None;
    }
    return_claim(folder);
    let files = fs::read_dir(folder).ok()?.flatten();
    let bytes: u64 = files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum();
    fs::remove_dir_all(folder).ok()?;
    Some(format!(
        "memory: took back {} MiB in {}, of a node whose state {} is gone",
        bytes >> 20,
        folder.display(),
        state.display()
    ))
}

/// What a mark says: the path of a state, and behind a zero byte which folders it lies in, from itself up to the root.
fn mark_of(state: &Path) -> Vec<u8> {
    let folders: Vec<String> = state.ancestors().map_while(identity).collect();
    [state.as_os_str().as_bytes(), b"\0", folders.join(" ").as_bytes()].concat()
}

/// Device and number of a folder.
fn identity(folder: &Path) -> Option<String> {
    fs::metadata(folder).ok().map(|found| format!("{}:{}", found.dev(), found.ino()))
}

/// The state that a mark names, if it was removed. A container that shares no state with this one, or a disk that is not mounted now, has no
/// state at that path either: the nearest folder of the path that is there must be the one in which the state lay.
fn is_gone(mark: &[u8]) -> Option<PathBuf> {
    let mut parts = mark.splitn(2, |byte| *byte == 0);
    let state = PathBuf::from(OsStr::from_bytes(parts.next()?));
    // An empty mark is of a node that starts at this moment.
    if !state.is_absolute() || fs::exists(state.join("node.id")).unwrap_or(true) {
        return None;
    }
    // Earlier releases noted the path alone.
    let Some(folders) = parts.next() else { return Some(state) };
    let mut known = std::str::from_utf8(folders).ok()?.split(' ');
    let lay_there = state.ancestors().find_map(|folder| {
        let was = known.next();
        fs::exists(folder).unwrap_or(true).then(|| was.is_some() && identity(folder).as_deref() == was)
    });
    (lay_there == Some(true)).then_some(state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_os::huge_pages::{HugePageCounts, claim_overcommit};

    #[test]
    fn what_a_killed_node_claimed_is_given_back_once_and_not_while_it_lives() {
        let folder = std::env::temp_dir().join(format!("hl-claim-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let Ok(claim) = claim_overcommit(3) else {
            eprintln!("skipped: the limit of huge pages cannot be changed here");
            return;
        };
        // Other tests claim at the same time, so it is the note that is looked at, and the limit only where it must have moved.
        let marked = Marked::new(&folder, &folder).unwrap();
        marked.note_claim(claim).unwrap();
        return_claim_of_before(&folder);
        assert!(folder.join(CLAIM).exists(), "the node lives");
        drop(marked);
        let limit = HugePageCounts::read().unwrap().overcommit;
        return_claim_of_before(&folder);
        assert!(!folder.join(CLAIM).exists());
        return_claim_of_before(&folder);
        assert!(claim.pages == 0 || limit >= claim.pages);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn memory_stays_of_a_node_whose_state_cannot_be_seen_from_here() {
        let parent = std::env::temp_dir().join(format!("hl-elsewhere-{}", std::process::id()));
        let state = parent.join("disk/state");
        fs::create_dir_all(&state).unwrap();
        fs::write(state.join("node.id"), "1").unwrap();
        let memory = parent.join("memory-0000000000000001");
        fs::create_dir_all(&memory).unwrap();
        drop(Marked::new(&memory, &state).unwrap());
        // As where the disk is not mounted, or where a container has another folder of the name.
        let away = parent.join("away");
        fs::rename(parent.join("disk"), &away).unwrap();
        fs::create_dir(parent.join("disk")).unwrap();
        assert_eq!(take_back(&parent), [""; 0]);
        fs::remove_dir(parent.join("disk")).unwrap();
        fs::rename(&away, parent.join("disk")).unwrap();
        fs::remove_dir_all(&state).unwrap();
        assert_eq!(take_back(&parent).len(), 1);
        // A mark of an earlier release has the path alone.
        fs::create_dir_all(&memory).unwrap();
        fs::write(memory.join(MARK), state.as_os_str().as_bytes()).unwrap();
        assert_eq!(take_back(&parent).len(), 1);
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn memory_is_taken_back_only_of_nodes_that_are_gone_with_their_state() {
        let parent = std::env::temp_dir().join(format!("hl-leftovers-{}", std::process::id()));
        let state = |name: &str| {
            let state = parent.join(format!("state-{name}"));
            fs::create_dir_all(&state).unwrap();
            fs::write(state.join("node.id"), "1").unwrap();
            state
        };
        let folder = |name: &str| {
            let folder = parent.join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("1.bytes"), [1; 100]).unwrap();
            folder
        };
        let gone = state("gone");
        let (stays, lives, leaves) =
            ("hinterland-0000000000000001", "memory-0000000000000002", "memory-0000000000000003");
        let other = "hinterland-of-somebody";
        drop(Marked::new(&folder(stays), &state("stays")).unwrap());
        let living = Marked::new(&folder(lives), &gone).unwrap();
        drop(Marked::new(&folder(leaves), &gone).unwrap());
        drop(Marked::new(&folder(other), &gone).unwrap());
        folder("memory-0000000000000004");
        assert_eq!(take_back(&parent), [""; 0]);
        fs::remove_dir_all(&gone).unwrap();
        let words = take_back(&parent);
        assert!(
            words.len() == 1 && words[0].contains(leaves) && words[0].contains("state-gone"),
            "{words:?}"
        );
        assert!(!parent.join(leaves).exists());
        for name in [stays, lives, other, "memory-0000000000000004"] {
            assert!(parent.join(name).join("1.bytes").exists(), "{name}");
        }
        living.leave_if_empty();
        assert!(parent.join(lives).exists(), "something is in it");
        assert_eq!(take_back(&parent).len(), 1, "nobody lives there any more");
        let empty = parent.join("memory-0000000000000005");
        fs::create_dir_all(&empty).unwrap();
        Marked::new(&empty, &state("stays")).unwrap().leave_if_empty();
        assert!(!empty.exists());
        fs::remove_dir_all(&parent).unwrap();
    }
}
