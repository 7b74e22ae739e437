//! What the homes of objects are told of their names, so that these outlive the directory.
//!
//! A node knows the names of what it holds *as of* an epoch: all that were given and taken away before that one. It asks for what was
//! renamed since. Of two nodes that say another object of one name, the one that knows it as of the later epoch is right.

use crate::adopt::NUMBER_END;
use crate::draft::Draft;
use crate::error::DirectoryError;
use crate::record::{ObjectRecord, Stage};
use crate::reply::Reply;
use crate::{FORGET_MAX, LIST_BYTES_MAX, LIST_MAX};
use hinterland_types::{Epoch, NodeId, ObjectId, ObjectName};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;

/// Renames that are remembered: a node asks every few seconds, and one that has missed more asks for all its names.
const RENAMED_MAX: usize = 1 << 16;
/// Bytes of an entry of an answer beside those of its name: an object id and the length of the name.
const ENTRY_BYTES: usize = 13;

/// The last objects that were renamed, or of which another copy became whole, with the epoch as of which their names are known. Kept in memory only: whoever asks a directory
/// that was started anew asks for all names.
#[derive(Clone, Debug)]
pub(crate) struct Renamed {
    /// What was renamed before this epoch is not in the list.
    since: Epoch,
    objects: VecDeque<(Epoch, ObjectId)>,
}

impl Renamed {
    /// Nothing is remembered of before.
    pub(crate) const fn since(since: Epoch) -> Self {
        Self { since, objects: VecDeque::new() }
    }

    /// An object was renamed, or has another copy: whoever knows names as of this epoch knows it.
    pub(crate) fn add(&mut self, as_of: Epoch, object: ObjectId) {
        if self.objects.len() == RENAMED_MAX
            && let Some((oldest, _)) = self.objects.pop_front()
        {
            self.since = Epoch(oldest.0 + 1);
        }
        self.objects.push_back((as_of, object));
    }

    /// What was renamed from an epoch on; nothing if that is not remembered.
    fn from(&self, as_of: Epoch) -> Option<BTreeSet<ObjectId>> {
        // Those of the very epoch, too: a copy that is whole from then on has its name from before.
        let later = self.objects.iter().rev().take_while(|(renamed, _)| *renamed >= as_of);
        (as_of >= self.since).then(|| later.map(|(_, object)| *object).collect())
    }
}

impl Draft<'_> {
    /// Names of a node's objects. Of an epoch that was never reached here an earlier store has told, which knew more: it is passed over, so
    /// that names which are given from now on are later ones.
    pub(crate) fn held_names(
        &mut self,
        node: NodeId,
        as_of: Epoch,
        after: Option<ObjectId>,
    ) -> Result<Reply, DirectoryError> {
        if !self.is_up(node) {
            return Err(DirectoryError::NotReady { node });
        }
        self.check_as_of(node, ObjectId(0), as_of)?;
        let is_known = as_of <= self.as_of();
        self.pass_epoch(as_of);
        let renamed = (is_known && after.is_none()).then(|| self.renamed.from(as_of)).flatten();
        let (names, more) = match &renamed {
            Some(renamed) => self.names_of(node, renamed.iter()),
            None => {
                let held = self.state.held.get(&node).into_iter();
                let first = Bound::Excluded(after.unwrap_or(ObjectId(0)));
                self.names_of(node, held.flat_map(|held| held.range((first, Bound::Unbounded))))
            }
        };
        let older = self.is_doubted_as_of(as_of);
        let unsettled = self.unsettled(node);
        // As many as nobody writes at once: the node knows no more than before until they are fewer.
        let as_of = if unsettled.len() > FORGET_MAX { as_of } else { self.as_of() };
        let all = renamed.is_none();
        let claims = || self.state.claims.values().copied();
        let claimed = all.then(|| claims().min().zip(claims().max())).flatten();
        let former = self.former_pools();
        Ok(Reply::HeldNames { as_of, names, unsettled, more, all, older, claimed, former })
    }

    /// Refuses an epoch that no store can have come to.
    pub(crate) fn check_as_of(
        &self,
        node: NodeId,
        object: ObjectId,
        as_of: Epoch,
    ) -> Result<(), DirectoryError> {
        if as_of.0 < NUMBER_END || as_of <= self.as_of() {
            return Ok(());
        }
        Err(DirectoryError::BadNumber { node, object, epoch: as_of })
    }

    /// Whether who knows names as of an epoch may know one that an earlier store gave, and this one has not: one before that epoch.
    fn is_doubted_as_of(&self, as_of: Epoch) -> bool {
        self.is_doubted_epoch(as_of) && self.is_doubted_epoch(Epoch(as_of.0.saturating_sub(1)))
    }

    /// As many names of objects that a node holds as an answer has room for, and whether there are more behind them.
    fn names_of<'a>(
        &self,
        node: NodeId,
        objects: impl Iterator<Item = &'a ObjectId>,
    ) -> (Vec<(ObjectId, ObjectName)>, bool) {
        let (mut names, mut bytes) = (Vec::new(), 0);
        for id in objects {
            let is_there = |object: &&ObjectRecord| {
                is_sealed(object) && object.home(node).is_some_and(|home| home.complete)
            };
            let Some(object) = self.object(*id).filter(is_there) else { continue };
            bytes += ENTRY_BYTES + object.name.as_str().len();
            if names.len() == LIST_MAX as usize || bytes > LIST_BYTES_MAX {
                return (names, true);
            }
            names.push((*id, object.name.clone()));
        }
        (names, false)
    }

    /// Objects of a node whose names are not settled: they are being put or copied there, or are going.
    fn unsettled(&self, node: NodeId) -> Vec<ObjectId> {
        let written = self.state.writing.values().flatten();
        let is_here = |id: &&ObjectId| {
            self.object(**id).is_some_and(|object| !is_sealed(object) && object.home(node).is_some())
        };
        let going = [&self.state.removing, &self.state.copying];
        let going = going.into_iter().filter_map(|objects| objects.get(&node)).flatten();
        written.filter(is_here).chain(going).copied().take(FORGET_MAX + 1).collect()
    }
}

const fn is_sealed(object: &ObjectRecord) -> bool {
    matches!(object.stage, Stage::Sealed { .. })
}
