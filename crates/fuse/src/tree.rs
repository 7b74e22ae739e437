//! Inode numbers: a file's is its object's identifier, a folder's has the high bit set.
//!
//! A file that was an object before it was written has a number of its own, which the kernel may go on using for the object that it
//! becomes; whoever looks the name up again gets that one's identifier.

use hinterland_proto::control::ObjectInfo;
use hinterland_types::{ObjectId, ObjectName};
use std::collections::HashMap;
use std::sync::Arc;

/// The root folder's inode number, which FUSE prescribes.
pub(crate) const ROOT: u64 = 1;
/// Set in the inode number of every folder but the root; object identifiers never reach it.
pub(crate) const FOLDER_BIT: u64 = 1 << 63;

/// What an inode number stands for.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// A folder, by its path without slashes at the ends; empty for the root.
    Folder(Arc<str>),
    /// A sealed object.
    File(Arc<ObjectInfo>),
    /// A symbolic link, by where it leads.
    Link(Arc<[u8]>),
}

struct Node {
    entry: Entry,
    lookups: u64,
}

/// Every inode that the kernel knows, with how often it was told of it.
pub(crate) struct Tree {
    nodes: HashMap<u64, Node>,
    folders: HashMap<Arc<str>, u64>,
    folder_count: u64,
}

impl Tree {
    /// A tree with only the root.
    pub(crate) fn new() -> Self {
        let root: Arc<str> = Arc::from("");
        let node = Node { entry: Entry::Folder(root.clone()), lookups: 1 };
        Self { nodes: HashMap::from([(ROOT, node)]), folders: HashMap::from([(root, ROOT)]), folder_count: 0 }
    }

    /// What an inode number stands for.
    pub(crate) fn entry(&self, inode: u64) -> Option<Entry> {
        self.nodes.get(&inode).map(|node| node.entry.clone())
    }

    /// Remembers that the kernel was told of a folder, and gives its inode number.
    pub(crate) fn enter_folder(&mut self, path: &str) -> u64 {
        if let Some(inode) = self.folders.get(path).copied() {
            if let Some(node) = self.nodes.get_mut(&inode) {
                node.lookups += 1;
            }
            return inode;
        }
        self.folder_count += 1;
        let inode = FOLDER_BIT | self.folder_count;
        let path: Arc<str> = Arc::from(path);
        self.folders.insert(path.clone(), inode);
        self.nodes.insert(inode, Node { entry: Entry::Folder(path), lookups: 1 });
        inode
    }

    /// Remembers that the kernel was told of an object, and gives its inode number; nothing for an
    /// identifier that is no inode number.
    pub(crate) fn enter_file(&mut self, info: Arc<ObjectInfo>) -> Option<u64> {
        let inode = inode_of(&info)?;
        let node = self.nodes.entry(inode).or_insert(Node { entry: Entry::File(info.clone()), lookups: 0 });
        node.entry = Entry::File(info);
        node.lookups += 1;
        Some(inode)
    }

    /// Remembers that the kernel was told of a symbolic link, and gives its inode number; nothing as above.
    pub(crate) fn enter_link(&mut self, info: &ObjectInfo, target: Arc<[u8]>) -> Option<u64> {
        let inode = inode_of(info)?;
        let node = self.nodes.entry(inode).or_insert(Node { entry: Entry::Link(target.clone()), lookups: 0 });
        node.entry = Entry::Link(target);
        node.lookups += 1;
        Some(inode)
    }

    /// Replaces what is known of a file, if the kernel was told of it.
    pub(crate) fn renew(&mut self, inode: u64, info: Arc<ObjectInfo>) {
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.entry = Entry::File(info);
        }
    }

    /// Gives every file of an object another name.
    pub(crate) fn rename_file(&mut self, object: ObjectId, name: &ObjectName) {
        for node in self.nodes.values_mut() {
            if let Entry::File(info) = &mut node.entry
                && info.object == object
            {
                Arc::make_mut(info).name = name.clone();
            }
        }
    }

    /// Gives a folder and all that lies below it names below another path.
    pub(crate) fn rename_folder(&mut self, from: &str, to: &str) {
        let prefix = format!("{from}/");
        let moved = |path: &str| {
            let is_below = path == from || path.starts_with(&prefix);
            is_below.then(|| format!("{to}{}", &path[from.len()..]))
        };
        for node in self.nodes.values_mut() {
            match &mut node.entry {
                Entry::File(info) => {
                    if let Some(Ok(name)) = moved(info.name.as_str()).map(|name| ObjectName::parse(&name)) {
                        Arc::make_mut(info).name = name;
                    }
                }
                Entry::Folder(path) => {
                    if let Some(name) = moved(path) {
                        *path = Arc::from(name);
                    }
                }
                // It is found by its name and asked for by its number.
                Entry::Link(_) => {}
            }
        }
        let known = std::mem::take(&mut self.folders);
        let renamed = |(path, inode): (Arc<str>, u64)| (moved(&path).map_or(path, Arc::from), inode);
        self.folders = known.into_iter().filter(|(path, _)| **path != *to).map(renamed).collect();
    }

    /// A folder was removed: one that is made in its place gets another number. The kernel makes nothing in the old one any more, as long as
    /// somebody has it.
    pub(crate) fn remove_folder(&mut self, path: &str) {
        self.folders.remove(path);
    }

    /// The inode number of a folder that the kernel was told of.
    pub(crate) fn folder_inode(&self, path: &str) -> Option<u64> {
        self.folders.get(path).copied()
    }

    /// Takes back `count` of what was entered; the root stays. Returns whether the kernel knows it no longer.
    pub(crate) fn forget(&mut self, inode: u64, count: u64) -> bool {
        if inode == ROOT {
            return false;
        }
        let Some(node) = self.nodes.get_mut(&inode) else { return true };
        node.lookups = node.lookups.saturating_sub(count);
        if node.lookups > 0 {
            return false;
        }
        if let Some(Node { entry: Entry::Folder(path), .. }) = self.nodes.remove(&inode)
            && self.folders.get(&path) == Some(&inode)
        {
            self.folders.remove(&path);
        }
        true
    }
}

/// The inode number of an object: its identifier, unless FUSE or folders use that number.
pub(crate) fn inode_of(info: &ObjectInfo) -> Option<u64> {
    let inode = info.object.0;
    (inode > ROOT && inode & FOLDER_BIT == 0).then_some(inode)
}

/// The name of a child: the folder's path and the component, joined.
pub(crate) fn join(folder: &str, component: &str) -> String {
    if folder.is_empty() { component.to_owned() } else { format!("{folder}/{component}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::tests::object;
    use proptest::prelude::*;

    #[test]
    fn an_object_keeps_its_identifier_as_inode_number() {
        let mut tree = Tree::new();
        assert_eq!(tree.enter_file(Arc::new(object(77, "a", 5))), Some(77));
        assert!(matches!(tree.entry(77), Some(Entry::File(info)) if info.bytes == 5));
    }

    #[test]
    fn an_identifier_that_is_no_inode_number_is_refused() {
        let mut tree = Tree::new();
        for bad in [0, ROOT, FOLDER_BIT, FOLDER_BIT | 9] {
            assert_eq!(tree.enter_file(Arc::new(object(bad, "a", 5))), None);
        }
        assert!(matches!(tree.entry(ROOT), Some(Entry::Folder(_))));
    }

    #[test]
    fn the_root_is_never_forgotten() {
        let mut tree = Tree::new();
        tree.forget(ROOT, 1000);
        assert!(tree.entry(ROOT).is_some());
    }

    proptest! {
        /// Model: a count for each path; an entry is there exactly while its count is above zero.
        #[test]
        fn an_entry_lives_while_the_kernel_remembers_it(
            steps in proptest::collection::vec((0usize..6, any::<bool>(), 1u64..4), 0..200),
        ) {
            let mut tree = Tree::new();
            let mut model: HashMap<usize, (u64, u64)> = HashMap::new();
            for (which, enter, count) in steps {
                let known = model.get(&which).copied();
                if enter {
                    let inode = if which < 3 {
                        tree.enter_folder(&format!("folder{which}"))
                    } else {
                        tree.enter_file(Arc::new(object(which as u64 + 10, "x", 1))).unwrap()
                    };
                    let (old, lookups) = known.unwrap_or((inode, 0));
                    if lookups > 0 {
                        prop_assert_eq!(old, inode);
                    }
                    model.insert(which, (inode, lookups + 1));
                } else if let Some((inode, lookups)) = known {
                    tree.forget(inode, count);
                    model.insert(which, (inode, lookups.saturating_sub(count)));
                }
                for (inode, lookups) in model.values() {
                    prop_assert_eq!(tree.entry(*inode).is_some(), *lookups > 0);
                }
            }
        }
    }
}
