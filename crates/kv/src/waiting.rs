//! Blocks that were published before the one that they follow on, while that is being written.

use crate::family::Kin;
use crate::key::{BlockKey, Namespace};
use foldhash::HashMap;

/// Blocks that wait for one parent: more than follow on one block anywhere.
const ONE_PARENT_MAX: usize = 1024;
/// Blocks that wait in all: 1 MiB. Those that were removed meanwhile count until their parent comes or is given up.
pub(crate) const ALL_MAX: usize = 1 << 16;

/// The blocks, by the key of their parent.
#[derive(Default)]
pub(crate) struct Waiting {
    by_parent: HashMap<(Namespace, BlockKey), Vec<Kin>>,
    count: usize,
}

impl Waiting {
    /// One more waits, unless too many do: that one begins a prefix of its own.
    pub(crate) fn add(&mut self, namespace: Namespace, parent: BlockKey, child: Kin) {
        if self.count >= ALL_MAX {
            return;
        }
        let children = self.by_parent.entry((namespace, parent)).or_default();
        if children.len() < ONE_PARENT_MAX {
            children.push(child);
            self.count += 1;
        }
    }

    /// Those that have waited for this parent; they wait no longer.
    pub(crate) fn take(&mut self, namespace: Namespace, parent: BlockKey) -> Vec<Kin> {
        if self.by_parent.is_empty() {
            return Vec::new();
        }
        let children = self.by_parent.remove(&(namespace, parent)).unwrap_or_default();
        self.count -= children.len();
        children
    }

    #[cfg(test)]
    pub(crate) const fn count(&self) -> usize {
        self.count
    }
}
