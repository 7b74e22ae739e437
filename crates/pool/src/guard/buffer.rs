//! The write buffer of a guard: one half fills while a thread sends the other.

use super::held::Held;
use super::pending::Pending;
use crate::PoolError;
use hinterland_os::fault_point;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Longest write that is kept: a longer one is worth a message of its own (paper 004, section 5.2).
pub(super) const WRITE_BYTES_MAX: usize = 256;
/// Bytes of one half: a message that fills some segments, and no more work than a round trip.
const HALF_BYTES: usize = 16 << 10;
/// Ranges of one half.
const HALF_RANGES: usize = 256;

/// Both halves, and the thread that sends. It is started when the first half is full.
pub(super) struct Buffer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    held: Arc<Held>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    filling: Pending,
    /// What is on its way.
    flying: Option<Arc<Pending>>,
    /// Whether the thread is to send it; if not, somebody else does.
    is_handed_over: bool,
    is_over: bool,
}

impl Buffer {
    pub fn new(held: Arc<Held>) -> Self {
        let shared = Shared { held, state: Mutex::default(), changed: Condvar::new() };
        Self { shared: Arc::new(shared), thread: Mutex::default() }
    }

    /// Keeps a write. Waits only if both halves are full.
    pub fn put(&self, offset: u64, from: &[u8]) -> Result<(), PoolError> {
        let shared = &self.shared;
        let mut state = shared.lock();
        state.filling.put(offset, from);
        fault_point::reach("lock-write-buffered");
        if state.filling.bytes() < HALF_BYTES && state.filling.count() < HALF_RANGES {
            return Ok(());
        }
        state = shared.landed(state);
        shared.held.check_broken()?;
        state.flying = Some(Arc::new(std::mem::take(&mut state.filling)));
        state.is_handed_over = self.has_thread();
        if state.is_handed_over {
            drop(state);
            shared.changed.notify_all();
            fault_point::reach("lock-buffers-swapped");
            return Ok(());
        }
        drop(state);
        shared.send_flying()
    }

    /// Waits until nothing of the range is pending.
    pub fn settle(&self, offset: u64, bytes: usize) -> Result<(), PoolError> {
        let state = self.shared.lock();
        let is_pending = state.filling.overlaps(offset, bytes)
            || state.flying.as_ref().is_some_and(|flying| flying.overlaps(offset, bytes));
        drop(state);
        if is_pending { self.flush() } else { Ok(()) }
    }

    /// Sends all, and waits until it has arrived.
    pub fn flush(&self) -> Result<(), PoolError> {
        let mut state = self.shared.landed(self.shared.lock());
        self.shared.held.check_broken()?;
        if state.filling.is_empty() {
            return Ok(());
        }
        state.flying = Some(Arc::new(std::mem::take(&mut state.filling)));
        state.is_handed_over = false;
        drop(state);
        self.shared.send_flying()
    }

    /// Reads own writes: all of the bytes if they are pending, else what `read` gives with what is pending over it.
    pub fn read(
        &self,
        offset: u64,
        into: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        let state = self.shared.lock();
        if state.filling.covers(offset, into.len()) {
            state.filling.overlay(offset, into);
            return Ok(());
        }
        // What is pending is looked at before the home is asked: if it arrives in between, it is in both.
        let flying = state.flying.clone().filter(|flying| flying.overlaps(offset, into.len()));
        let mut ours = Pending::default();
        if state.filling.overlaps(offset, into.len()) {
            state.filling.ranges().for_each(|(start, bytes)| ours.put(start, bytes));
        }
        drop(state);
        read(into)?;
        if let Some(flying) = flying {
            flying.overlay(offset, into);
        }
        ours.overlay(offset, into);
        Ok(())
    }

    /// Writes that are not known to have arrived.
    pub fn left(&self) -> (usize, usize) {
        let state = self.shared.lock();
        let flying = state.flying.as_ref().map_or((0, 0), |flying| (flying.writes(), flying.bytes()));
        (state.filling.writes() + flying.0, state.filling.bytes() + flying.1)
    }

    fn has_thread(&self) -> bool {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let spawned = std::thread::Builder::new()
                .name("lock-flush".to_owned())
                .stack_size(256 << 10)
                .spawn(move || shared.serve());
            // Without a thread the writer sends.
            *thread = spawned.ok();
        }
        thread.is_some()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn serve(&self) {
        hinterland_os::process::name_thread("lock-flush");
        loop {
            let idle = |state: &mut State| !state.is_handed_over && !state.is_over;
            let mut state =
                self.changed.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
            if !state.is_handed_over {
                return;
            }
            state.is_handed_over = false;
            drop(state);
            // The guard is broken by it, and says so.
            let _ = self.send_flying();
        }
    }

    /// Sends what is flying; only whoever has set it may.
    fn send_flying(&self) -> Result<(), PoolError> {
        let flying = self.lock().flying.clone();
        let Some(flying) = flying else { return Ok(()) };
        let ranges: Vec<(u64, &[u8])> = flying.ranges().collect();
        fault_point::reach("lock-flush-begun");
        let sent = self.held.write_home(&ranges, flying.writes());
        fault_point::reach("lock-flush-ended");
        self.lock().flying = None;
        self.changed.notify_all();
        sent
    }

    /// Waits until nothing flies.
    fn landed<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_while(state, |state| state.flying.is_some()).unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
