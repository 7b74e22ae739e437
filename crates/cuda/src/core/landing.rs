//! Bytes on their way into memory of the program that a call did not wait for: who reads that memory for a device waits for them.
//!
//! A program may copy out of a device into pinned memory and from there to a device, in one stream, without waiting between the two. Bytes for a device
//! are taken when the call is made, so it waits there for those that are to land.
//!
//! Relaxed throughout: who reads the memory in another thread was told by the program, which orders the count, too.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::inbox::{Destination, Pending};
use super::session::Session;
use crate::code::Code;

/// The first byte of a range, and the one behind its last.
type Span = (usize, usize);

/// What is to land, and where.
#[derive(Debug, Default)]
pub struct Landing {
    count: AtomicUsize,
    all: Mutex<Vec<(Arc<Pending>, Span)>>,
}

impl Landing {
    /// Bytes will land there.
    pub(super) fn add(&self, pending: Arc<Pending>, place: &Destination) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(one, _)| one.state().is_none());
        all.push((pending, place.range()));
        self.count.store(all.len(), Ordering::Relaxed);
    }

    fn overlapping(&self, (start, end): Span) -> Vec<Arc<Pending>> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(one, _)| one.state().is_none());
        self.count.store(all.len(), Ordering::Relaxed);
        let overlaps = |(_, place): &&(Arc<Pending>, Span)| place.0 < end && start < place.1;
        all.iter().filter(overlaps).map(|(one, _)| one.clone()).collect()
    }
}

impl Session {
    /// Waits for bytes that are to land in a range of the program's memory.
    ///
    /// # Errors
    /// They do not come.
    pub(crate) fn wait_landing(&self, range: Span) -> Result<(), Code> {
        self.landing.overlapping(range).iter().try_for_each(|pending| self.wait_mark(pending))
    }
}
