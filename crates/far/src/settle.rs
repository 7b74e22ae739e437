//! What has left a program goes into the back ends by threads of their own, while the next batch leaves. Until then it is in this process.

use crate::store::Copy;
use hinterland_farplan::width::{UNWRITTEN_BYTES_MAX, WRITE_BYTES_MAX, WRITE_SHARE};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Most bytes that one thread takes at once: a disk takes many in the time of one.
const BATCH_BYTES: usize = WRITE_BYTES_MAX as usize;
/// Of what waits, the part that one thread takes: the others are to have some, too.
const BATCH_SHARE: usize = WRITE_SHARE as usize;
/// Most bytes that wait here: whoever brings more helps.
const BYTES_MAX: usize = UNWRITTEN_BYTES_MAX as usize;

/// Copies that no back end has yet.
#[derive(Default)]
pub(crate) struct Settling {
    known: Mutex<Known>,
    changed: Condvar,
    /// Whether there are threads that take copies; else whoever brings some does all.
    is_served: bool,
}

#[derive(Default)]
struct Known {
    queue: VecDeque<Copy>,
    bytes: usize,
    is_over: bool,
}

impl Settling {
    /// For so many threads that will [`serve`](Self::serve).
    pub(crate) fn new(threads: usize) -> Self {
        Self { is_served: threads > 0, ..Self::default() }
    }

    /// Brings copies; has `settle` do what is too much to wait here.
    pub(crate) fn add(&self, copies: impl Iterator<Item = Copy>, settle: impl Fn(&[Copy])) {
        let mut known = self.lock();
        for copy in copies {
            known.bytes += copy.bytes();
            known.queue.push_back(copy);
        }
        if self.is_served && !known.queue.is_empty() {
            self.changed.notify_all();
        }
        let most = if self.is_served { BYTES_MAX } else { 0 };
        while known.bytes > most {
            let copies = known.next();
            drop(known);
            settle(&copies);
            drop(copies);
            known = self.lock();
        }
    }

    /// Has `settle` take copies until [`end`](Self::end).
    pub(crate) fn serve(&self, settle: impl Fn(&[Copy])) {
        let mut known = self.lock();
        while !known.is_over {
            let copies = known.next();
            if copies.is_empty() {
                known = self.changed.wait(known).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            drop(known);
            settle(&copies);
            // The last holder frees the content, which takes other locks.
            drop(copies);
            known = self.lock();
        }
    }

    /// Has all threads return; what still waits stays in this process.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Some of what waits, those that came first; none only if nothing does.
    fn next(&mut self) -> Vec<Copy> {
        let most = (self.bytes / BATCH_SHARE).min(BATCH_BYTES);
        let (mut copies, mut bytes) = (Vec::new(), 0);
        while let Some(copy) = self.queue.front()
            && (copies.is_empty() || bytes + copy.bytes() <= most)
        {
            bytes += copy.bytes();
            copies.extend(self.queue.pop_front());
        }
        self.bytes -= bytes;
        copies
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::store::{Packed, Stores};
    use std::sync::Arc;

    fn copies(stores: &Arc<Stores>, count: u8) -> Vec<Copy> {
        let buffer = Arc::new((0..count).flat_map(|number| vec![number; 1 << 20]).collect::<Vec<u8>>());
        (0..usize::from(count))
            .map(|number| stores.begin(&buffer, number << 20..(number + 1) << 20))
            .collect()
    }

    fn settled(copies: &[Copy]) -> usize {
        copies.iter().filter(|copy| !copy.is_here()).count()
    }

    #[test]
    fn who_brings_too_much_settles_the_rest_and_without_threads_all() {
        let stores = Arc::new(Stores::new(vec![Box::new(Packed::new(1 << 30))], 1));
        let settle = |copies: &[Copy]| drop(stores.settle(copies));
        for (threads, expected) in [(1, 12 - (BYTES_MAX >> 20)), (0, 12)] {
            let copies = copies(&stores, 12);
            Settling::new(threads).add(copies.iter().cloned(), settle);
            assert_eq!(settled(&copies), expected);
        }
    }

    #[test]
    fn threads_settle_what_waits_until_the_end() {
        let stores = Arc::new(Stores::new(vec![Box::new(Packed::new(1 << 30))], 1));
        let settle = |copies: &[Copy]| drop(stores.settle(copies));
        let settling = Settling::new(2);
        let copies = copies(&stores, 6);
        std::thread::scope(|scope| {
            scope.spawn(|| settling.serve(settle));
            scope.spawn(|| settling.serve(settle));
            settling.add(copies.iter().cloned(), settle);
            while settled(&copies) < copies.len() {
                std::thread::yield_now();
            }
            settling.end();
        });
        for (number, copy) in copies.iter().enumerate() {
            let mut content = vec![0; copy.bytes()];
            copy.read(&mut content).unwrap();
            assert_eq!(content, vec![number as u8; 1 << 20]);
        }
    }
}
