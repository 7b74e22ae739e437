//! A thread that looks for what the devices have done, and tells the client.
//!
//! What it is to look for is numbered, as commands come one after the other. When a mark is found to be done, so is all that it is behind, in whatever stream or device,
//! and has a lower number. So bytes are told before every mark behind them: of their stream, of another stream that waited for it, of an event, of a device.

use super::failed;
use super::staging::Staging;
use crate::failure::Failure;
use crate::outbox::Outbox;
use hinterland_gpu::lend::Lent;
use hinterland_gpu::lend::memory::{Backing, Pinned};
use hinterland_gpu::lend::order::Event;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The command of a failure that no command can be named for.
const NO_COMMAND: u64 = 0;
/// How long the thread sleeps at most when nothing is open.
const PATIENCE: Duration = Duration::from_millis(100);

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

/// A pending thing and its number.
struct Numbered {
    number: u64,
    pending: Pending,
}

#[derive(Default)]
struct State {
    /// By queue: a stream, so that its order is kept.
    queues: HashMap<u64, VecDeque<Numbered>>,
    free_events: Vec<Arc<Event>>,
}

/// What all devices of a session share.
struct Common {
    outbox: Arc<Outbox>,
    /// How many things were to be looked for so far.
    count: AtomicU64,
    bell: Mutex<()>,
    rung: Condvar,
    is_ending: AtomicBool,
    /// The last transfer that the client was told an error of, after which nothing more of it may come. Locked while any of it is told.
    refused: Mutex<Option<u32>>,
}

/// What the watcher and the machine share of a device.
pub(super) struct Shared {
    pub(super) device: Arc<Lent>,
    pub(super) staging: Staging,
    common: Arc<Common>,
    state: Mutex<State>,
    /// The error of a device that is of no more use, or 0.
    broken: AtomicI32,
    /// Ranges that are to be unmapped, and still have their memory.
    unmapping: Mutex<Vec<Range<u64>>>,
}

/// The watcher of all devices; its thread ends with this.
pub(super) struct Watcher {
    pub(super) shared: Vec<Arc<Shared>>,
    common: Arc<Common>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub(super) fn start(devices: impl Iterator<Item = Arc<Lent>>, outbox: Arc<Outbox>) -> Self {
        let common = Arc::new(Common {
            outbox,
            count: AtomicU64::new(0),
            bell: Mutex::default(),
            rung: Condvar::new(),
            is_ending: AtomicBool::new(false),
            refused: Mutex::default(),
        });
        let shared = |device| {
            Arc::new(Shared {
                device,
                staging: Staging::default(),
                common: Arc::clone(&common),
                state: Mutex::default(),
                broken: AtomicI32::new(0),
                unmapping: Mutex::default(),
            })
        };
        let shared: Vec<Arc<Shared>> = devices.map(shared).collect();
        let (all, own) = (shared.clone(), Arc::clone(&common));
        let thread = std::thread::Builder::new().name("watcher".to_owned());
        let thread = thread.spawn(move || watch(&own, &all)).ok();
        Self { shared, common, thread }
    }

    /// A transfer begins, whatever became of one of the same name.
    pub(super) fn begin(&self, transfer: u32) {
        self.common.refused().take_if(|refused| *refused == transfer);
    }

    /// Nothing more of a transfer is told, as whoever asks tells its error; false if that was told already.
    pub(super) fn refuse(&self, transfer: u32) -> bool {
        self.common.refused().replace(transfer) != Some(transfer)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the thread.
        self.common.is_ending.store(true, Ordering::Release);
        self.common.ring();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

impl Common {
    fn bell(&self) -> MutexGuard<'_, ()> {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread if it sleeps.
    fn ring(&self) {
        let bell = self.bell();
        self.rung.notify_one();
        drop(bell);
    }

    fn refused(&self) -> MutexGuard<'_, Option<u32>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The life of the thread: it looks without a pause as long as something is open, because whoever waits for a mark waits for nothing else.
fn watch(common: &Common, all: &[Arc<Shared>]) {
    // Acquire: pairs with the Release of the end.
    while !common.is_ending.load(Ordering::Acquire) {
        let bell = common.bell();
        if all.iter().all(|shared| shared.lock().queues.is_empty()) {
            // Whoever adds something rings behind it.
            drop(common.rung.wait_timeout(bell, PATIENCE));
            continue;
        }
        drop(bell);
        let done = collect(all);
        if done.is_empty() {
            std::thread::yield_now();
        }
        for Done { shared, pending, error, .. } in done {
            shared.finish(pending, error);
        }
    }
}

/// Something that is done.
struct Done<'all> {
    number: u64,
    shared: &'all Shared,
    pending: Pending,
    error: i32,
}

/// What is done, in the order in which it is told: all that a mark is behind before the mark.
fn collect(all: &[Arc<Shared>]) -> Vec<Done<'_>> {
    let mut done: Vec<Done<'_>> = Vec::new();
    let (mut end, mut looked_at) = (u64::MAX, 0);
    loop {
        all.iter().for_each(|shared| shared.take_done(end, &mut done));
        let marks = done[looked_at..].iter().filter(|one| matches!(one.pending.what, What::Mark(_)));
        let Some(last) = marks.map(|one| one.number).max() else { break };
        // What was looked at before such a mark was done may be done only now. Later things wait for the next round, so that this one ends.
        end = end.min(last);
        looked_at = done.len();
    }
    done.sort_by_key(|one| one.number);
    done
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
        if let What::Unmap { address, bytes, .. } = pending.what {
            self.unmapping().push(address..address + bytes);
        }
        // Relaxed: one thread reads commands.
        let number = self.common.count.fetch_add(1, Ordering::Relaxed);
        self.lock().queues.entry(queue).or_default().push_back(Numbered { number, pending });
        self.common.ring();
    }

    fn unmapping(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        self.unmapping.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything in a range is to be unmapped.
    pub(super) fn is_unmapping(&self, range: &Range<u64>) -> bool {
        self.unmapping().iter().any(|one| one.start < range.end && range.start < one.end)
    }

    /// Waits until nothing in a range is to be unmapped.
    pub(super) fn wait_for_unmapping(&self, range: &Range<u64>) {
        while self.is_unmapping(range) && self.broken() == 0 {
            std::thread::yield_now();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what is done out of the queues, of those numbers that are below `end`.
    fn take_done<'all>(&'all self, end: u64, done: &mut Vec<Done<'all>>) {
        let mut state = self.lock();
        for queue in state.queues.values_mut() {
            while let Some(front) = queue.front().filter(|front| front.number < end) {
                let Some(error) = self.look(&front.pending) else { break };
                done.extend(queue.pop_front().map(|Numbered { number, pending }| Done {
                    number,
                    shared: self,
                    pending,
                    error,
                }));
            }
        }
        state.queues.retain(|_, queue| !queue.is_empty());
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
                    self.common.outbox.fault(NO_COMMAND, &failure);
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
                self.tell_bytes(transfer, offset, &piece.bytes()[..bytes], error);
                self.staging.put(piece);
            }
            What::Mark(mark) => self.common.outbox.reached(mark, error),
            What::Unmap { address, bytes, backing } => {
                if error == 0
                    && let Err(error) = self.device.unmap(address, bytes, backing)
                {
                    self.common.outbox.fault(NO_COMMAND, &failed(error));
                }
                self.unmapping().retain(|one| one.start != address);
            }
            What::Elapsed { question, start, end } => {
                let answer = if error == 0 {
                    self.device.elapsed(&start, &end).map_err(|error| error.code)
                } else {
                    Err(error)
                };
                self.common.outbox.answer(question, answer.map(|time| time.to_bits().to_le_bytes().to_vec()));
                self.let_go(start);
                self.let_go(end);
            }
        }
        if is_own {
            self.lock().free_events.push(event);
        } else {
            self.let_go(event);
        }
    }

    /// Ends an event of the program if it is nobody's any more: it has ended, or been recorded again.
    fn let_go(&self, event: Arc<Event>) {
        if let Some(event) = Arc::into_inner(event) {
            self.device.end_event(event);
        }
    }

    /// Tells bytes of a transfer, or once that no more come.
    fn tell_bytes(&self, transfer: u32, offset: u64, bytes: &[u8], error: i32) {
        let mut refused = self.common.refused();
        if *refused == Some(transfer) {
            return;
        }
        if error == 0 {
            self.common.outbox.bytes(transfer, offset, bytes.to_vec());
        } else {
            *refused = Some(transfer);
            self.common.outbox.no_bytes(transfer, error);
        }
    }
}
