//! How often a node says again what it holds to a directory that has refused it for that, or offers again what was not adopted.

use super::BEATS_PER_LEASE;
use crate::refused::Refused;
use hinterland_types::{Epoch, ObjectId};

/// Heartbeats between two lists at the most: each list is all that the node holds, and only people change why it is refused.
const BEATS_MAX: u64 = 64;

/// Heartbeats that pass without a list: those of one lease at first, and then twice as many each time.
#[derive(Debug, Default)]
pub struct Rest {
    why: Option<Refused>,
    left: u64,
    next: u64,
}

impl Rest {
    /// A list was refused.
    pub fn begin(&mut self, why: &Refused) {
        self.next = (2 * self.next).clamp(BEATS_PER_LEASE, BEATS_MAX);
        (self.left, self.why) = (self.next, Some(why.clone()));
    }

    /// Why the list was refused, for a heartbeat that says nothing again; `None` for one that does.
    pub fn pass(&mut self) -> Option<Refused> {
        self.left = self.left.checked_sub(1)?;
        self.why.clone()
    }

    /// A list was heard to its end, or it is another directory that would hear it.
    pub fn end(&mut self) {
        *self = Self::default();
    }
}

/// What was not put into the directory again because something went wrong half way, and when that is tried again.
#[derive(Debug, Default)]
pub struct Left {
    copies: Vec<(ObjectId, Epoch)>,
    rest: Rest,
}

impl Left {
    /// These copies may be left: those that are in the directory by now are taken as they are.
    pub fn keep(&mut self, copies: Vec<(ObjectId, Epoch)>) {
        self.copies = copies;
    }

    /// Whether nothing is.
    pub const fn is_none(&self) -> bool {
        self.copies.is_empty()
    }

    /// It went wrong, for this reason, which it gives back.
    pub fn rest(&mut self, why: Refused) -> Refused {
        self.rest.begin(&why);
        why
    }

    /// What is to be tried with this heartbeat, if anything is left.
    ///
    /// # Errors
    /// Why it went wrong, for a heartbeat that tries nothing.
    pub fn next(&mut self) -> Result<Option<Vec<(ObjectId, Epoch)>>, Refused> {
        if self.is_none() {
            return Ok(None);
        }
        self.rest.pass().map_or_else(|| Ok(Some(self.copies.clone())), Err)
    }
}
