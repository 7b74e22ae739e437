//! How often a node says again what it holds to a directory that has refused it for that.

use super::BEATS_PER_LEASE;
use crate::refused::Refused;

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
