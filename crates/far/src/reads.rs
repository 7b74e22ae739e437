//! Content on its way from back ends to programs, read by threads of their own and without the engine's lock.
//!
//! What is here is no state of the program's memory, only bytes of copies, which never change: whoever fills a unit decides under
//! the engine's lock what it holds, and finds the bytes of that copy here or not.

use crate::store::Copy;
use hinterland_farplan::Shared;
use hinterland_farplan::width::READ_BYTES_MAX;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes that are here at once, on their way or waiting to be used; what faults wait for comes on top.
const BYTES_MAX: usize = READ_BYTES_MAX as usize;
/// Buffers that are kept for the next reads: new memory costs more than what is read into it.
const SPARE_MAX: usize = 10;
/// After so long, nobody comes any more for what was read ahead, and for what a fault waited for.
const AGES_MAX: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// What a read came to: the content, or why there is none.
pub(crate) type Content = Result<Arc<Vec<u8>>, String>;

/// Reads that are wanted, under way and done.
#[derive(Default)]
pub(crate) struct Reads {
    known: Mutex<Known>,
    wanted: Condvar,
}

#[derive(Default)]
struct Known {
    /// What faults wait for.
    urgent: VecDeque<Copy>,
    ahead: VecDeque<Copy>,
    /// By the copy's key, which stays its own while its entry does; without content while it is on its way.
    entries: HashMap<usize, Entry>,
    /// Finished ones, oldest first.
    done: VecDeque<usize>,
    bytes: usize,
    spare: Vec<Vec<u8>>,
    is_over: bool,
}

struct Entry {
    copy: Copy,
    content: Option<Content>,
    /// Somebody waits for it.
    is_urgent: bool,
    since: Instant,
}

fn key(copy: &Copy) -> usize {
    copy.key()
}

impl Reads {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The content of a copy, if it has been read.
    pub(crate) fn get(&self, copy: &Copy) -> Option<Content> {
        self.lock().entries.get(&key(copy))?.content.clone()
    }

    /// Whether a copy is being read, or has been.
    pub(crate) fn has(&self, copy: &Copy) -> bool {
        self.lock().entries.contains_key(&key(copy))
    }

    /// Has a copy read: before all others if a fault waits for it, else behind them and if there is room. Returns whether it is
    /// on its way.
    pub(crate) fn want(&self, copy: &Copy, is_urgent: bool) -> bool {
        let mut known = self.lock();
        if let Some(entry) = known.entries.get_mut(&key(copy)) {
            if is_urgent && !entry.is_urgent {
                entry.is_urgent = true;
                known.hurry(copy);
            }
            return true;
        }
        while known.bytes + copy.bytes() > BYTES_MAX && known.drop_oldest(is_urgent) {}
        if known.bytes + copy.bytes() > BYTES_MAX && !is_urgent {
            return false;
        }
        known.bytes += copy.bytes();
        let entry = Entry { copy: copy.clone(), content: None, is_urgent, since: Instant::now() };
        known.entries.insert(key(copy), entry);
        let queue = if is_urgent { &mut known.urgent } else { &mut known.ahead };
        queue.push_back(copy.clone());
        drop(known);
        self.wanted.notify_one();
        true
    }

    /// The content that was got for a copy has been used: it is not needed any more.
    pub(crate) fn used(&self, copy: &Copy, content: Arc<Vec<u8>>) {
        let mut known = self.lock();
        if known.entries.get(&key(copy)).is_some_and(|entry| entry.content.is_some()) {
            drop(content);
            known.remove(key(copy));
        } else if let Ok(buffer) = Arc::try_unwrap(content) {
            known.keep_spare(buffer);
        }
    }

    /// A read that failed was told of.
    pub(crate) fn forget(&self, copy: &Copy) {
        let mut known = self.lock();
        if known.entries.get(&key(copy)).is_some_and(|entry| entry.content.is_some()) {
            known.remove(key(copy));
        }
    }

    /// A buffer that is not new, if there is one.
    pub(crate) fn buffer(&self, bytes: usize) -> Vec<u8> {
        let mut buffer = self.lock().spare.pop().unwrap_or_default();
        buffer.resize(bytes, 0);
        buffer
    }

    /// A buffer that is not needed any more.
    pub(crate) fn keep(&self, buffer: Vec<u8>) {
        self.lock().keep_spare(buffer);
    }

    /// Reads what is wanted until [`end`](Self::end); `tell` is called after each read that somebody waits for.
    pub(crate) fn serve(&self, tell: impl Fn()) {
        let mut known = self.lock();
        loop {
            if known.is_over {
                return;
            }
            let Some(copy) = known.next() else {
                known = self.wanted.wait(known).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let mut buffer = known.spare.pop().unwrap_or_default();
            drop(known);
            buffer.resize(copy.bytes(), 0);
            let content =
                copy.read(&mut buffer).map(|()| Arc::new(buffer)).map_err(|error| error.to_string());
            known = self.lock();
            let Some(entry) = known.entries.get_mut(&key(&copy)) else { continue };
            entry.content = Some(content);
            entry.since = Instant::now();
            let is_urgent = entry.is_urgent;
            known.done.push_back(key(&copy));
            if is_urgent {
                drop(known);
                tell();
                known = self.lock();
            }
        }
    }

    /// Has all readers return.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
        self.wanted.notify_all();
    }
}

impl Known {
    fn next(&mut self) -> Option<Copy> {
        self.urgent.pop_front().or_else(|| self.ahead.pop_front())
    }

    fn hurry(&mut self, copy: &Copy) {
        if let Some(index) = self.ahead.iter().position(|other| other.is_same(copy))
            && let Some(copy) = self.ahead.remove(index)
        {
            self.urgent.push_back(copy);
        }
    }

    /// Forgets the finished read that has waited longest and that nobody comes for; `false` if there is none. For a fault that
    /// is anything that was read ahead.
    fn drop_oldest(&mut self, for_fault: bool) -> bool {
        let is_left = |key: &usize| {
            self.entries.get(key).is_some_and(|entry| {
                let is_old = entry.since.elapsed() > AGES_MAX[usize::from(entry.is_urgent)];
                is_old || (for_fault && !entry.is_urgent)
            })
        };
        let Some(oldest) = self.done.iter().copied().find(is_left) else { return false };
        self.remove(oldest);
        true
    }

    fn remove(&mut self, key: usize) {
        let Some(entry) = self.entries.remove(&key) else { return };
        self.done.retain(|other| *other != key);
        self.bytes -= entry.copy.bytes();
        if let Some(Ok(content)) = entry.content
            && let Ok(buffer) = Arc::try_unwrap(content)
        {
            self.keep_spare(buffer);
        }
    }

    fn keep_spare(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests;
