//! All files that are being written, by inode number and by name.
//!
//! Within the mount such a file is found by its name, as in any file system. The pool, and so every other mount and host, sees it when
//! the last descriptor for writing is closed, whole. When the program that made it closes its only descriptor and has no children that
//! could have another, `close` waits for that and hears of errors. Otherwise it happens when the kernel tells, by `release`, that nobody
//! has the file open any more. A program that is killed while it writes leaves what was there before: each of its descriptors is
//! closed with a `flush`, and what makes that request is ending by a signal.
//!
//! Who unmounts what nobody uses any more is not waited for by the kernel: it forgets the releases that nobody has read yet. What was
//! closed is published then as well.

use crate::draft::Draft;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Set in the inode numbers of files that were objects before they were written; neither object identifiers nor folders reach it.
pub(crate) const DRAFT_BIT: u64 = 1 << 62;

/// How long one file may take to be published before those that wait are given up, and the kernel to tell of the next release.
const PUBLISHES_WITHIN: Duration = Duration::from_secs(60);
const RELEASES_WITHIN: Duration = Duration::from_secs(1);
/// Pause between two looks at what is not published yet.
const SETTLE_PAUSE: Duration = Duration::from_millis(2);

#[derive(Default)]
struct Table {
    by_inode: HashMap<u64, Arc<Draft>>,
    by_name: BTreeMap<String, u64>,
    /// Names that puts have taken, also those whose file has another name since.
    taken: HashMap<u64, String>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Drafts {
    table: Mutex<Table>,
    count: AtomicU64,
}

impl Drafts {
    /// An inode number for a file that is no object yet.
    pub(crate) fn next_inode(&self) -> u64 {
        // Relaxed: only the uniqueness of the number matters.
        DRAFT_BIT | (self.count.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Adds a file under its name.
    pub(crate) fn insert(&self, path: &str, taken: Option<&str>, draft: Arc<Draft>) {
        let mut table = self.lock();
        table.by_name.insert(path.to_owned(), draft.inode);
        if let Some(taken) = taken {
            table.taken.insert(draft.inode, taken.to_owned());
        }
        table.by_inode.insert(draft.inode, draft);
    }

    /// A file by its number.
    pub(crate) fn find(&self, inode: u64) -> Option<Arc<Draft>> {
        self.lock().by_inode.get(&inode).cloned()
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<Draft>> {
        self.lock().by_inode.values().cloned().collect()
    }

    /// Waits until what was closed is published, for as long as it becomes less: a file of which somebody has another descriptor cannot be
    /// told from one that is closed.
    pub(crate) fn settle(&self) {
        let (mut least, mut since) = (usize::MAX, Instant::now());
        loop {
            let (mut closed, mut in_use) = (0, 0);
            for file in self.all() {
                match file.inner_if_free() {
                    None => in_use += 1,
                    Some(inner) => closed += usize::from(inner.is_closed()),
                }
            }
            if closed + in_use < least {
                (least, since) = (closed + in_use, Instant::now());
            }
            let within = if in_use > 0 { PUBLISHES_WITHIN } else { RELEASES_WITHIN };
            if least == 0 || since.elapsed() >= within {
                return;
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
    }

    /// A file by its name.
    pub(crate) fn at(&self, path: &str) -> Option<Arc<Draft>> {
        let draft = {
            let table = self.lock();
            table.by_name.get(path).and_then(|inode| table.by_inode.get(inode)).cloned()?
        };
        // Somebody who holds it is using it.
        let is_idle = draft.inner_if_free().is_some_and(|inner| inner.is_idle());
        if is_idle {
            self.remove(&draft);
            return None;
        }
        Some(draft)
    }

    /// Whether the put of some file has taken a name.
    pub(crate) fn has_taken(&self, name: &str) -> bool {
        self.lock().taken.values().any(|taken| taken == name)
    }

    /// Notes which name the put of a file has taken.
    pub(crate) fn take(&self, inode: u64, taken: Option<&str>) {
        let mut table = self.lock();
        match taken {
            Some(taken) => table.taken.insert(inode, taken.to_owned()),
            None => table.taken.remove(&inode),
        };
    }

    /// Forgets that the put of a file has taken a name.
    pub(crate) fn give_back(&self, inode: u64) {
        self.lock().taken.remove(&inode);
    }

    /// Gives a file another name.
    pub(crate) fn rename(&self, from: &str, to: &str) {
        let mut table = self.lock();
        if let Some(inode) = table.by_name.remove(from) {
            table.by_name.insert(to.to_owned(), inode);
        }
    }

    /// Gives a file that had none a name.
    pub(crate) fn name_again(&self, path: &str, inode: u64) {
        self.lock().by_name.insert(path.to_owned(), inode);
    }

    /// Forgets the name of a file; it is still found by its number.
    pub(crate) fn remove_name(&self, path: &str, inode: u64) {
        let mut table = self.lock();
        if table.by_name.get(path) == Some(&inode) {
            table.by_name.remove(path);
        }
    }

    /// Forgets a file.
    pub(crate) fn remove(&self, draft: &Draft) {
        let mut table = self.lock();
        table.by_name.retain(|_, inode| *inode != draft.inode);
        table.taken.remove(&draft.inode);
        table.by_inode.remove(&draft.inode);
    }

    /// Files below a folder, with the rest of their names behind it.
    pub(crate) fn below(&self, folder: &str) -> Vec<(String, Arc<Draft>)> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let table = self.lock();
        let named = table.by_name.range(prefix.clone()..);
        named
            .map_while(|(name, inode)| Some((name.strip_prefix(&prefix)?, inode)))
            .filter_map(|(rest, inode)| Some((rest.to_owned(), table.by_inode.get(inode)?.clone())))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
