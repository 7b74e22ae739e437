//! A thread that looks for what a device has done, and tells the client.

use super::failed;
use super::staging::Staging;
use crate::failure::Failure;
use crate::outbox::Outbox;
use hinterland_gpu::lend::Lent;
use hinterland_gpu::lend::memory::{Backing, Pinned};
use hinterland_gpu::lend::order::Event;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The command of a failure that no command can be named for.
const NO_COMMAND: u64 = 0;

/// What is to be done when an event is.
pub(super) enum What {
    /// A piece of staging is free.
    Free(Pinned),
    /// Bytes of a transfer are there.
    Bytes { transfer: u32, offset: u64, piece: Pinned, bytes: usize },
    /// A mark is reached.
    Mark(u64),
    /// Memory is used no more.
    Unmap { address: u64, bytes: u64, backing: Backing },
    /// The time between two events can be told.
    Elapsed { question: u32, start: Arc<Event>, end: Arc<Event> },
}

/// Something that waits for an event.
pub(super) struct Pending {
    pub(super) event: Arc<Event>,
    /// Whether the event is the watcher's, to be used again.
    pub(super) is_own: bool,
    pub(super) what: What,
}

#[derive(Default)]
struct State {
    /// By queue: a stream, so that its order is kept.
    queues: HashMap<u64, VecDeque<Pending>>,
    free_events: Vec<Arc<Event>>,
}

/// What the watcher and the machine share of a device.
pub(super) struct Shared {
    pub(super) device: Arc<Lent>,
    pub(super) staging: Staging,
    outbox: Arc<Outbox>,
    state: Mutex<State>,
    filled: Condvar,
    /// The error of a device that is of no more use, or 0.
    broken: AtomicI32,
    /// Ranges that are to be unmapped.
    unmapping: AtomicUsize,
    is_ending: AtomicBool,
}

/// The watcher of a device; ends with this.
pub(super) struct Watcher {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub(super) fn start(device: Arc<Lent>, outbox: Arc<Outbox>) -> Self {
        let shared = Arc::new(Shared {
            device,
            staging: Staging::default(),
            outbox,
            state: Mutex::default(),
            filled: Condvar::new(),
            broken: AtomicI32::new(0),
            unmapping: AtomicUsize::new(0),
            is_ending: AtomicBool::new(false),
        });
        let watched = Arc::clone(&shared);
        let thread =
            std::thread::Builder::new().name("watcher".to_owned()).spawn(move || watched.watch()).ok();
        Self { shared, thread }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the thread.
        self.shared.is_ending.store(true, Ordering::Release);
        self.shared.filled.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The error of a device that is of no more use, or 0.
    pub(super) fn broken(&self) -> i32 {
        // Acquire: pairs with the Release in `break_for`.
        self.broken.load(Ordering::Acquire)
    }

    /// Notes a failure after which the device is of no more use; whether it is the first.
    pub(super) fn break_for(&self, failure: &Failure) -> bool {
        // AcqRel: pairs with the Acquire in `broken`.
        failure.is_sticky
            && self.broken.compare_exchange(0, failure.error, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// An event to wait for, that was used before or is new.
    pub(super) fn event(&self) -> Result<Arc<Event>, Failure> {
        let free = self.lock().free_events.pop();
        match free {
            Some(event) => Ok(event),
            None => self.device.event(false).map(Arc::new).map_err(failed),
        }
    }

    /// Takes an event of ours back.
    pub(super) fn free(&self, event: Arc<Event>) {
        self.lock().free_events.push(event);
    }

    /// Has something done when an event is; what is in one queue is done in order.
    pub(super) fn watch_for(&self, queue: u64, pending: Pending) {
        if let What::Unmap { .. } = pending.what {
            // Relaxed: a count that is looked at under the lock of whoever waits.
            self.unmapping.fetch_add(1, Ordering::Relaxed);
        }
        self.lock().queues.entry(queue).or_default().push_back(pending);
        self.filled.notify_one();
    }

    /// Waits until no range is to be unmapped.
    pub(super) fn wait_for_unmapping(&self) {
        // Relaxed: see `watch_for`.
        while self.unmapping.load(Ordering::Relaxed) > 0 && self.broken() == 0 {
            std::thread::yield_now();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of the thread: it looks without a pause as long as something is open, because whoever waits for a mark waits for nothing else.
    fn watch(&self) {
        // Acquire: pairs with the Release of the end.
        while !self.is_ending.load(Ordering::Acquire) {
            let mut done = Vec::new();
            {
                let mut state = self.lock();
                if state.queues.is_empty() {
                    let waited = self.filled.wait_timeout(state, std::time::Duration::from_millis(100));
                    drop(waited);
                    continue;
                }
                for queue in state.queues.values_mut() {
                    while let Some(front) = queue.front() {
                        match self.look(front) {
                            Some(error) => done.extend(queue.pop_front().map(|pending| (pending, error))),
                            None => break,
                        }
                    }
                }
                state.queues.retain(|_, queue| !queue.is_empty());
            }
            if done.is_empty() {
                std::thread::yield_now();
            }
            for (pending, error) in done {
                self.finish(pending, error);
            }
        }
    }

    /// The error with which something is done, 0 if it went well; nothing if it is not done.
    fn look(&self, pending: &Pending) -> Option<i32> {
        if self.broken() != 0 {
            return Some(self.broken());
        }
        match self.device.is_done(&pending.event) {
            Ok(true) => Some(0),
            Ok(false) => None,
            Err(error) => {
                // What a device says of an event is what went wrong on it.
                let failure = failed(error).sticky();
                if self.break_for(&failure) {
                    self.outbox.fault(NO_COMMAND, &failure);
                }
                Some(failure.error)
            }
        }
    }

    fn finish(&self, pending: Pending, error: i32) {
        let Pending { event, is_own, what } = pending;
        match what {
            What::Free(piece) => self.staging.put(piece),
            What::Bytes { transfer, offset, mut piece, bytes } => {
                if error == 0 {
                    let copied = piece.bytes()[..bytes].to_vec();
                    self.outbox.bytes(transfer, offset, copied);
                } else {
                    self.outbox.no_bytes(transfer, error);
                }
                self.staging.put(piece);
            }
            What::Mark(mark) => self.outbox.reached(mark, error),
            What::Unmap { address, bytes, backing } => {
                if error == 0
                    && let Err(error) = self.device.unmap(address, bytes, backing)
                {
                    self.outbox.fault(NO_COMMAND, &failed(error));
                }
                // Relaxed: see `watch_for`.
                self.unmapping.fetch_sub(1, Ordering::Relaxed);
            }
            What::Elapsed { question, start, end } => {
                let answer = if error == 0 {
                    self.device.elapsed(&start, &end).map_err(|error| error.code)
                } else {
                    Err(error)
                };
                self.outbox.answer(question, answer.map(|time| time.to_bits().to_le_bytes().to_vec()));
            }
        }
        if is_own {
            self.lock().free_events.push(event);
        }
    }
}
