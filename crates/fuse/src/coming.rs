//! Threads that were told to look a name up again, and what was opened for them when they did.
//!
//! The kernel looks a name up once more if its object has gone when it is opened, and only once. Where a name is given to other objects all
//! the time, the next one may have gone by then, too. So what such a thread finds is opened as it is found, and kept until the thread opens it.

use crate::source::Contents;
use hinterland_types::ObjectId;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread is waited for: far longer than the kernel takes. One that is killed meanwhile never comes.
const COMES_WITHIN: Duration = Duration::from_secs(1);

struct Told {
    name: Box<str>,
    at: Instant,
    opened: Option<(ObjectId, Contents)>,
}

/// Threads by their number.
#[derive(Default)]
pub(crate) struct Coming {
    threads: Mutex<HashMap<u32, Told>>,
    /// Those that were to write a file and find a link in its place.
    following: Mutex<HashMap<u32, Instant>>,
}

impl Coming {
    /// A thread is told to look a name up again.
    pub(crate) fn tell(&self, thread: u32, name: &str) {
        let told = Told { name: name.into(), at: Instant::now(), opened: None };
        drop(self.with(|threads| threads.insert(thread, told)));
    }

    /// Whether a thread that looks a name up was told to.
    pub(crate) fn is_told(&self, thread: u32, name: &str) -> bool {
        self.with(|threads| threads.get(&thread).is_some_and(|told| *told.name == *name))
    }

    /// What a thread has found was opened for it. It may look twice, and opens what it has found last.
    pub(crate) fn opened(&self, thread: u32, object: ObjectId, contents: Contents) {
        drop(self.with(|threads| threads.get_mut(&thread)?.opened.replace((object, contents))));
    }

    /// A thread opens an object: what was opened for it, if it is that.
    pub(crate) fn take(&self, thread: u32, object: ObjectId) -> Option<Contents> {
        let (opened, contents) = self.with(|threads| threads.remove(&thread))?.opened?;
        (opened == object).then_some(contents)
    }

    /// A thread that is told to look a name up again, to write what it finds, finds a link: it has no look left for what lies behind that.
    pub(crate) fn follow(&self, thread: u32) {
        let mut following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        following.retain(|_, since| since.elapsed() < COMES_WITHIN);
        following.insert(thread, Instant::now());
    }

    /// Whether the object that a thread looks up is the one behind the link, which it is to write.
    pub(crate) fn follows(&self, thread: u32) -> bool {
        let mut following = self.following.lock().unwrap_or_else(PoisonError::into_inner);
        following.remove(&thread).is_some_and(|since| since.elapsed() < COMES_WITHIN)
    }

    /// Forgets who has not come. What was opened for them, and what `work` gives back, is closed without the lock: that asks the node.
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<u32, Told>) -> T) -> T {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let late: Vec<_> = threads.extract_if(|_, told| told.at.elapsed() >= COMES_WITHIN).collect();
        let result = work(&mut threads);
        drop(threads);
        drop(late);
        result
    }
}
