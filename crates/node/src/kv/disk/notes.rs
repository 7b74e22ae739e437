//! Removals that the disk is still to be told of. They are kept until it has them, whatever fails meanwhile: a block that was removed must
//! not come back after a restart.

use hinterland_kv::BlockKey;
use hinterland_kv::disk::{Record, RecordKind, TierLog};
use std::collections::{BTreeSet, HashMap};

/// Blocks that wait to be noted as removed: 256 MiB of records, and some 10 MiB of memory.
const KEYS_MAX: usize = 1 << 16;

/// What is not to come back, by the fingerprint of its namespace. All of it is older than any block that is staged.
#[derive(Default)]
pub(super) struct Notes {
    by_space: HashMap<[u8; 32], Gone>,
    keys: usize,
}

enum Gone {
    Some(BTreeSet<BlockKey>),
    All,
}

impl Notes {
    /// A block is gone; false if too many are noted: then all blocks of its namespace are to go.
    #[must_use]
    pub(super) fn remove(&mut self, fingerprint: [u8; 32], key: BlockKey) -> bool {
        if let Gone::Some(keys) = self.by_space.entry(fingerprint).or_insert(Gone::Some(BTreeSet::new())) {
            self.keys += usize::from(keys.insert(key));
        }
        self.keys <= KEYS_MAX
    }

    /// All blocks of a namespace are gone.
    pub(super) fn clear(&mut self, fingerprint: [u8; 32]) {
        if let Some(Gone::Some(keys)) = self.by_space.insert(fingerprint, Gone::All) {
            self.keys -= keys.len();
        }
    }

    /// Whether the disk knows of all.
    pub(super) fn is_empty(&self) -> bool {
        self.by_space.is_empty()
    }

    /// Takes records of `most` of them.
    pub(super) fn take(&mut self, most: usize) -> Vec<Record> {
        let mut records = Vec::new();
        self.by_space.retain(|&fingerprint, gone| {
            while records.len() < most {
                let Gone::Some(keys) = gone else {
                    records.push(note(RecordKind::Cleared, fingerprint));
                    return false;
                };
                let Some(key) = keys.pop_first() else { return false };
                self.keys -= 1;
                records.push(Record { key: Some(key), ..note(RecordKind::Removed, fingerprint) });
            }
            !matches!(gone, Gone::Some(keys) if keys.is_empty())
        });
        records
    }

    /// Forgets what is noted.
    pub(super) fn apply(&self, log: &mut TierLog) {
        for (fingerprint, gone) in &self.by_space {
            match gone {
                Gone::All => log.clear(fingerprint),
                Gone::Some(keys) => keys.iter().for_each(|key| {
                    log.forget(fingerprint, key);
                }),
            }
        }
    }
}

/// A record without bytes.
const fn note(kind: RecordKind, fingerprint: [u8; 32]) -> Record {
    Record {
        kind,
        sequence: 0,
        region: 0,
        fingerprint,
        key: None,
        parent: None,
        bytes: 0,
        checksum: 0,
        is_fetched: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> BlockKey {
        BlockKey::new(&number.to_le_bytes()).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn each_is_taken_once_and_a_namespace_that_is_cleared_takes_one() {
        let mut notes = Notes::default();
        for number in [1, 2, 2, 3] {
            assert!(notes.remove([1; 32], key(number)) && notes.remove([2; 32], key(number)));
        }
        notes.clear([2; 32]);
        assert!(notes.remove([2; 32], key(9)));
        assert_eq!(notes.take(2).len(), 2);
        let left = notes.take(100);
        assert_eq!(left.len(), 2);
        assert!(notes.is_empty() && notes.keys == 0 && notes.take(100).is_empty());
    }

    #[test]
    fn of_too_many_the_namespace_goes_as_a_whole() {
        let mut notes = Notes::default();
        assert!((0..KEYS_MAX).all(|number| notes.remove([1; 32], key(number))));
        assert!(!notes.remove([1; 32], key(KEYS_MAX)));
        notes.clear([1; 32]);
        assert!(notes.remove([2; 32], key(0)));
        assert_eq!(notes.take(100).len(), 2);
    }
}
