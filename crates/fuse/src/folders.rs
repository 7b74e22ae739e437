//! Folders that were made through the mount: a pool has none without an object in it, so the mount remembers them.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Most folders that are remembered; who makes more has lost its way.
const FOLDERS_MAX: usize = 100_000;

/// Paths of folders, without slashes at the ends.
#[derive(Default)]
pub(crate) struct Folders {
    paths: Mutex<BTreeSet<String>>,
}

impl Folders {
    /// Remembers a folder; false if there are too many.
    pub(crate) fn make(&self, path: &str) -> bool {
        let mut paths = self.lock();
        if paths.len() >= FOLDERS_MAX && !paths.contains(path) {
            return false;
        }
        paths.insert(path.to_owned());
        true
    }

    /// Whether it was made.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.lock().contains(path)
    }

    /// Forgets a folder; whether it was known.
    pub(crate) fn remove(&self, path: &str) -> bool {
        self.lock().remove(path)
    }

    /// A folder and all below it have another name.
    pub(crate) fn rename(&self, from: &str, to: &str) {
        let prefix = format!("{from}/");
        let mut paths = self.lock();
        let is_below = |path: &String| path == from || path.starts_with(&prefix);
        let moved: Vec<String> = paths.iter().filter(|path| is_below(path)).cloned().collect();
        for path in moved {
            paths.remove(&path);
            paths.insert(format!("{to}{}", &path[from.len()..]));
        }
    }

    /// The names of those right in a folder.
    pub(crate) fn within(&self, path: &str) -> Vec<String> {
        let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
        let paths = self.lock();
        let below = paths.range(prefix.clone()..).map_while(|made| made.strip_prefix(&prefix));
        below.filter(|rest| !rest.contains('/')).map(str::to_owned).collect()
    }

    /// Those anywhere below a folder, by the rest of their paths behind it.
    pub(crate) fn below(&self, path: &str) -> Vec<String> {
        let prefix = format!("{path}/");
        let paths = self.lock();
        let below = paths.range(prefix.clone()..).map_while(|made| made.strip_prefix(&prefix));
        below.map(str::to_owned).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_shows_only_what_lies_right_in_it() {
        let folders = Folders::default();
        for path in ["a", "a/b", "a/b/c", "ab", "a/d"] {
            assert!(folders.make(path));
        }
        assert_eq!(folders.within(""), ["a", "ab"]);
        assert_eq!(folders.within("a"), ["b", "d"]);
        assert_eq!(folders.below("a"), ["b", "b/c", "d"]);
        folders.rename("a/b", "x/y");
        assert!(folders.has("x/y/c") && !folders.has("a/b"));
        assert!(folders.remove("a/d") && !folders.remove("a/d") && !folders.has("a/d"));
    }
}
