//! Modes, owners and times of files and folders, and where new files of a folder are to lie: the pool keeps none of these, so the mount
//! remembers them as long as it lasts.

use crate::source::Placing;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

/// Most files and folders of each kind that are remembered, about 100 MB; those beyond look as if nothing had been set.
const REMEMBERED_MAX: usize = 1_000_000;

/// What was set of a file or a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Marks {
    /// Permissions.
    pub(crate) mode: u16,
    /// User.
    pub(crate) user: u32,
    /// Group.
    pub(crate) group: u32,
    /// When it was read.
    pub(crate) accessed: SystemTime,
    /// When it was written.
    pub(crate) modified: SystemTime,
    /// When one of these was set.
    pub(crate) changed: SystemTime,
}

#[derive(Default)]
struct Kept {
    files: HashMap<u64, Marks>,
    /// Files that nobody finds any more, and that somebody may have open still.
    gone: HashSet<u64>,
    folders: BTreeMap<String, Marks>,
    placings: BTreeMap<String, Placing>,
}

/// Everything that was set through the mount.
#[derive(Default)]
pub(crate) struct Remembered {
    kept: Mutex<Kept>,
}

impl Remembered {
    /// What was set of a file.
    pub(crate) fn file(&self, inode: u64) -> Option<Marks> {
        self.lock().files.get(&inode).copied()
    }

    /// What was set of a folder.
    pub(crate) fn folder(&self, path: &str) -> Option<Marks> {
        self.lock().folders.get(path).copied()
    }

    /// Remembers what is set of a file.
    pub(crate) fn set_file(&self, inode: u64, marks: Marks) {
        let mut kept = self.lock();
        if kept.files.len() < REMEMBERED_MAX || kept.files.contains_key(&inode) {
            kept.files.insert(inode, marks);
        }
    }

    /// Remembers what is set of a folder.
    pub(crate) fn set_folder(&self, path: &str, marks: Marks) {
        let mut kept = self.lock();
        if kept.folders.len() < REMEMBERED_MAX || kept.folders.contains_key(path) {
            kept.folders.insert(path.to_owned(), marks);
        }
    }

    /// Notes that a file was written at this moment.
    pub(crate) fn written(&self, inode: u64) {
        if let Some(marks) = self.lock().files.get_mut(&inode) {
            marks.modified = SystemTime::now();
            marks.changed = marks.modified;
        }
    }

    /// Notes that a file was given another name at this moment.
    pub(crate) fn renamed(&self, inode: u64) {
        if let Some(marks) = self.lock().files.get_mut(&inode) {
            marks.changed = SystemTime::now();
        }
    }

    /// A file goes on under another inode number.
    pub(crate) fn goes_on(&self, from: u64, to: u64) {
        if from == to {
            return;
        }
        let mut kept = self.lock();
        if let Some(marks) = kept.files.get(&from).copied()
            && (kept.files.len() < REMEMBERED_MAX || kept.files.contains_key(&to))
        {
            kept.files.insert(to, marks);
        }
    }

    /// Nobody finds a file any more: what was set of it is for those who have it open.
    pub(crate) fn is_gone(&self, inode: u64) {
        self.lock().gone.insert(inode);
    }

    /// The kernel does not know a file any more. One that is gone is forgotten.
    pub(crate) fn forget_if_gone(&self, inode: u64) {
        let mut kept = self.lock();
        if kept.gone.remove(&inode) {
            kept.files.remove(&inode);
        }
    }

    /// A folder is gone.
    pub(crate) fn forget_folder(&self, path: &str) {
        let mut kept = self.lock();
        kept.folders.remove(path);
        kept.placings.remove(path);
    }

    /// A folder and all below it have another name.
    pub(crate) fn rename_folder(&self, from: &str, to: &str) {
        let mut kept = self.lock();
        move_below(&mut kept.folders, from, to);
        move_below(&mut kept.placings, from, to);
        if let Some(marks) = kept.folders.get_mut(to) {
            marks.changed = SystemTime::now();
        }
    }

    /// Where files that are made in a folder are to lie: as was set of it, or else of the nearest folder above.
    pub(crate) fn placing(&self, folder: &str) -> Placing {
        let kept = self.lock();
        let mut found = Placing::default();
        let mut path = Some(folder);
        while let Some(at) = path {
            if let Some(placing) = kept.placings.get(at) {
                found.copies = found.copies.or(placing.copies);
                found.rack = found.rack.or_else(|| placing.rack.clone());
            }
            path = match at.rsplit_once('/') {
                Some((above, _)) => Some(above),
                None if at.is_empty() => None,
                None => Some(""),
            };
        }
        found
    }

    /// What was set of this very folder.
    pub(crate) fn own_placing(&self, folder: &str) -> Placing {
        self.lock().placings.get(folder).cloned().unwrap_or_default()
    }

    /// Sets where files that are made in a folder are to lie.
    pub(crate) fn place(&self, folder: &str, placing: Placing) {
        let mut kept = self.lock();
        if placing == Placing::default() {
            kept.placings.remove(folder);
        } else if kept.placings.len() < REMEMBERED_MAX {
            kept.placings.insert(folder.to_owned(), placing);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Moves a path and all below it.
pub(crate) fn move_below<T>(paths: &mut BTreeMap<String, T>, from: &str, to: &str) {
    let prefix = format!("{from}/");
    let below = |path: &String| path == from || path.starts_with(&prefix);
    let moved: Vec<String> =
        paths.range(from.to_owned()..).map(|(path, _)| path).filter(|p| below(p)).cloned().collect();
    for path in moved {
        if let Some(value) = paths.remove(&path) {
            paths.insert(format!("{to}{}", &path[from.len()..]), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hinterland_types::RackName;

    #[test]
    fn the_nearest_folder_decides_where_files_lie() {
        let remembered = Remembered::default();
        let rack = RackName::parse("b").ok();
        remembered.place("", Placing { copies: Some(2), rack: None });
        remembered.place("a/b", Placing { copies: None, rack: rack.clone() });
        assert_eq!(remembered.placing("a"), Placing { copies: Some(2), rack: None });
        assert_eq!(remembered.placing("a/b/c"), Placing { copies: Some(2), rack: rack.clone() });
        remembered.rename_folder("a", "x");
        assert_eq!(remembered.placing("a/b"), Placing { copies: Some(2), rack: None });
        assert_eq!(remembered.placing("x/b").rack, rack);
        remembered.forget_folder("x/b");
        assert_eq!(remembered.placing("x/b").rack, None);
    }

    #[test]
    fn what_is_gone_is_remembered_as_long_as_the_kernel_knows_it() {
        let remembered = Remembered::default();
        let time = SystemTime::now();
        let marks = Marks { mode: 0o640, user: 1, group: 2, accessed: time, modified: time, changed: time };
        remembered.set_file(7, marks);
        remembered.goes_on(7, 8);
        // The kernel may forget what is there, and ask for it again.
        remembered.forget_if_gone(7);
        remembered.is_gone(7);
        assert_eq!([7, 8].map(|inode| remembered.file(inode)), [Some(marks); 2]);
        remembered.forget_if_gone(7);
        remembered.forget_if_gone(8);
        assert_eq!([7, 8].map(|inode| remembered.file(inode)), [None, Some(marks)]);
        assert!(remembered.lock().gone.is_empty());
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let remembered = Remembered::default();
        let time = SystemTime::now();
        let marks = Marks { mode: 0o640, user: 1, group: 2, accessed: time, modified: time, changed: time };
        let last = REMEMBERED_MAX as u64;
        (0..last).for_each(|inode| remembered.set_file(inode, marks));
        remembered.set_file(last, marks);
        remembered.goes_on(0, last + 1);
        assert_eq!([0, last, last + 1].map(|inode| remembered.file(inode)), [Some(marks), None, None]);
    }

    #[test]
    fn a_folder_moves_with_all_below_it_and_nothing_beside_it() {
        let mut paths: BTreeMap<String, u8> = [("a", 1), ("a/b", 2), ("a.b", 3), ("ab", 4)]
            .map(|(path, value)| (path.to_owned(), value))
            .into();
        move_below(&mut paths, "a", "c/d");
        let left: Vec<(&str, u8)> = paths.iter().map(|(path, value)| (path.as_str(), *value)).collect();
        assert_eq!(left, [("a.b", 3), ("ab", 4), ("c/d", 1), ("c/d/b", 2)]);
    }
}
