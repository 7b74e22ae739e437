//! Places: what a question about a prefix found out, kept for the fetch that follows.

use super::links::Spot;
use crate::kv::claims::Claim;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a place is believed to be worth trying. If it is not true any more, the check after the read says so.
const KEPT_FOR: Duration = Duration::from_secs(10);
/// Blocks whose places are kept: some 10 MiB of memory.
const PLACES_MAX: usize = 64 << 10;

/// Places of blocks at other nodes.
#[derive(Default)]
pub(super) struct Places(Mutex<HashMap<Claim, (Instant, Vec<Spot>)>>);

impl Places {
    /// Remembers where a block was found.
    pub(super) fn put(&self, found: impl Iterator<Item = (Claim, Vec<Spot>)>) {
        let now = Instant::now();
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (claim, spots) in found {
            if places.len() >= PLACES_MAX {
                places.retain(|_, (since, _)| now.duration_since(*since) < KEPT_FOR);
            }
            if places.len() < PLACES_MAX {
                places.insert(claim, (now, spots));
            }
        }
    }

    /// Where a block was found not long ago; nowhere if that is not known. It is known once.
    pub(super) fn take(&self, claim: &Claim) -> Vec<Spot> {
        let taken = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(claim);
        taken.filter(|(since, _)| since.elapsed() < KEPT_FOR).map_or_else(Vec::new, |(_, spots)| spots)
    }
}
