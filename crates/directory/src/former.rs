//! Pools of before: what nodes held of a pool whose directory was lost lies in this one since they have put it there.
//!
//! An object keeps its number, and what was made with the number of its pool, such as the mark of a symbolic link in a mount, is told from
//! other bytes by that number. So it is remembered for as long as this directory.

use crate::FORMER_POOLS_MAX;
use crate::adopt::NUMBER_END;
use crate::draft::Draft;
use crate::error::DirectoryError;
use crate::reply::Reply;
use hinterland_types::{Epoch, NodeId, ObjectId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A pool that objects of this one were in before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FormerPool {
    /// Its number.
    pub pool: u128,
    /// The highest number of an object that came from there: what was made here later has nothing of that pool.
    pub last: ObjectId,
}

/// The last object that came from each.
pub(crate) type FormerPools = BTreeMap<u128, ObjectId>;

impl Draft<'_> {
    /// A node puts objects of other pools into this one.
    pub(crate) fn remember_pools(&mut self, node: NodeId, told: &[FormerPool]) -> Result<(), DirectoryError> {
        if let Some(bad) = told.iter().find(|former| former.last.0 >= NUMBER_END) {
            return Err(DirectoryError::BadNumber { node, object: bad.last, epoch: Epoch(0) });
        }
        let mut former = self.former().clone();
        for FormerPool { pool, last } in told {
            let known = former.entry(*pool).or_insert(*last);
            *known = (*known).max(*last);
        }
        if former.len() > FORMER_POOLS_MAX {
            return Err(DirectoryError::TooManyFormerPools { pools: former.len() as u64 });
        }
        self.set_former(former);
        Ok(())
    }

    /// All of them, ascending by number.
    pub(crate) fn former_pools(&self) -> Vec<FormerPool> {
        self.former().iter().map(|(pool, last)| FormerPool { pool: *pool, last: *last }).collect()
    }

    pub(crate) fn list_former_pools(&self) -> Reply {
        Reply::FormerPools(self.former_pools())
    }
}
