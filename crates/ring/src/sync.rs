//! The atomics and the sleeping word, of the machine or of the model checker.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use std::time::Duration;

/// A word of memory on which one thread sleeps until another one wakes it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SleepWord {
    /// The word itself.
    pub(crate) value: AtomicU32,
    /// Stands for the lock under which the kernel compares the word and queues the sleeper.
    #[cfg(loom)]
    queue: loom::sync::Mutex<()>,
    /// Stands for the queue of sleepers.
    #[cfg(loom)]
    wake: loom::sync::Condvar,
}

#[cfg(not(loom))]
impl SleepWord {
    pub(crate) fn wait(&self, expected: u32, timeout: Option<Duration>) {
        hinterland_os::futex::wait(&self.value, expected, timeout);
    }

    pub(crate) fn wake(&self) {
        hinterland_os::futex::wake(&self.value, 1);
    }
}

#[cfg(loom)]
impl SleepWord {
    pub(crate) fn new() -> Self {
        Self { value: AtomicU32::new(0), queue: loom::sync::Mutex::new(()), wake: loom::sync::Condvar::new() }
    }

    /// Sleeps without a limit of time, so that a lost wake-up is a deadlock, which the checker reports.
    pub(crate) fn wait(&self, expected: u32, _timeout: Option<Duration>) {
        let guard = self.queue.lock().expect("no thread of a model panics while it holds the lock");
        // Relaxed: as in the kernel, the lock orders this load against the store of the waker.
        if self.value.load(Ordering::Relaxed) == expected {
            drop(self.wake.wait(guard).expect("no thread of a model panics while it holds the lock"));
        }
    }

    pub(crate) fn wake(&self) {
        drop(self.queue.lock().expect("no thread of a model panics while it holds the lock"));
        self.wake.notify_one();
    }
}
