//! Of one object, files are made and removed by one thread at a time.
//!
//! A file is made and becomes known in several steps, and it has the path of the object's number: of two threads that
//! made the same object at once, the second would remove the file that the first one has just made, and what is written
//! to that would be gone with the process.

use hinterland_types::ObjectId;
use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The objects whose files are being made or removed.
#[derive(Default)]
pub(super) struct Making {
    objects: Mutex<HashSet<ObjectId>>,
    ended: Condvar,
}

/// Nobody else makes or removes the files of an object until this is dropped.
pub(super) struct Alone<'a> {
    making: &'a Making,
    object: ObjectId,
}

impl Making {
    /// Waits until nobody makes or removes the files of this object.
    pub(super) fn alone(&self, object: ObjectId) -> Alone<'_> {
        let mut objects = self.lock();
        while !objects.insert(object) {
            objects = self.ended.wait(objects).unwrap_or_else(PoisonError::into_inner);
        }
        Alone { making: self, object }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<ObjectId>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.making.lock().remove(&self.object);
        self.making.ended.notify_all();
    }
}
