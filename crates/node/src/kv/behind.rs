//! What the node does for a store while nobody waits: checksums that no writer gave, checks after a restart, room made ahead.
//!
//! One thread for each store, which gives way to others.

use super::UserStore;
use hinterland_kv::{BlockKey, Departing, Namespace, ToSum};
use hinterland_os::{clock, process};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that are summed up between two looks at what else is to be done.
const SUM_BYTES: u64 = 16 << 20;
/// Blocks that are chosen to leave at once.
const DEPARTING_MAX: usize = 16;
/// Between two looks while there is something to do, or was a moment ago: who publishes need not wake the thread then.
const PAUSE: Duration = Duration::from_millis(5);
/// How long it goes on looking when there is nothing to do; after that it is woken.
const AWAKE: Duration = Duration::from_secs(1);
/// Checksums wait until nobody has published for so long,
const QUIET: Duration = Duration::from_millis(10);
/// but no longer than this.
const QUIET_WAIT: Duration = Duration::from_millis(200);
/// How often it is looked whether writers of before have ended.
const ABANDONED_LOOK: Duration = Duration::from_secs(1);
/// How much the thread gives way: a third of the share of others. With less, blocks on a busy host would have no checksum when their node
/// is killed.
const NICE: i32 = 5;
/// How long a node that stops goes on with checksums.
const FAREWELL: Duration = Duration::from_secs(20);

/// When room is made ahead, in percent of the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvWatermarks {
    /// It begins when less than this is free.
    pub low: u8,
    /// It ends when this is.
    pub high: u8,
}

impl Default for KvWatermarks {
    fn default() -> Self {
        Self { low: 2, high: 5 }
    }
}

/// The thread's bell.
#[derive(Default)]
pub(super) struct Behind {
    state: Mutex<State>,
    changed: Condvar,
    /// It waits until it is woken, or is about to.
    is_idle: AtomicBool,
    /// When somebody last published, on the clock of intervals.
    published_ms: AtomicU64,
    /// It made no room when it last tried.
    is_stuck: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct State {
    is_rung: bool,
    is_stopping: bool,
}

impl Behind {
    /// There is something to do soon.
    pub(super) fn published(&self) {
        // Relaxed: a time that nothing is ordered by.
        self.published_ms.store(clock::monotonic_ns() / 1_000_000, Ordering::Relaxed);
        self.ring_if_asleep();
    }

    /// There is something to do at once.
    pub(super) fn ring(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_rung = true;
        self.changed.notify_all();
    }

    fn ring_if_asleep(&self) {
        // SeqCst: pairs with the store in `wait`. What is to be done was put down before, under the store's lock, and whoever is
        // seen busy here looks for it after that store.
        if self.is_idle.load(Ordering::SeqCst) {
            self.ring();
        }
    }

    /// Whether somebody has published a moment ago.
    fn is_busy(&self) -> bool {
        // Relaxed: as in `published`.
        let published_ms = self.published_ms.load(Ordering::Relaxed);
        u128::from((clock::monotonic_ns() / 1_000_000).saturating_sub(published_ms)) < QUIET.as_millis()
    }

    /// Waits a moment, or until it is rung.
    fn pause(&self, timeout: Duration) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = |state: &mut State| !state.is_rung && !state.is_stopping;
        let waited = self.changed.wait_timeout_while(state, timeout, goes_on);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_rung = false;
    }

    fn is_stopping(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_stopping
    }

    /// Waits until there may be something to do. `is_done` looks once more.
    fn wait(&self, timeout: Duration, is_done: impl Fn() -> bool) {
        // SeqCst: pairs with the load in `ring_if_asleep`.
        self.is_idle.store(true, Ordering::SeqCst);
        if is_done() {
            self.pause(timeout);
        }
        self.is_idle.store(false, Ordering::SeqCst);
    }

    /// Ends the thread, which finishes its checksums if that does not take long.
    pub(super) fn stop(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_stopping = true;
        self.changed.notify_all();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread behind the KV blocks has panicked");
        }
    }
}

impl UserStore {
    /// Starts the thread, if there will be anything to do.
    pub(super) fn start_behind(self: &Arc<Self>) {
        if !self.files.are_kept && !self.verifies && self.watermarks.is_none() {
            return;
        }
        let weak = Arc::downgrade(self);
        let run = move || {
            process::name_thread("kv-behind");
            process::lower_thread(NICE);
            live(&weak);
        };
        match std::thread::Builder::new().name("kv-behind".to_owned()).spawn(run) {
            Ok(thread) => {
                *self.behind.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
            }
            Err(error) => tracing::error!(%error, "KV blocks get no checksums and will not outlive the node"),
        }
    }

    /// Does a part of what is to be done; false if there was nothing. Checksums of what was just published can wait.
    fn work(&self, sums: bool) -> bool {
        let has_checked = self.check_some();
        let has_summed = sums && self.sum_some();
        let has_made_room = self.make_room_ahead();
        self.behind.is_stuck.store(!has_made_room, Ordering::Release);
        has_checked || has_summed || has_made_room
    }

    /// Checks blocks that the node of before has left.
    fn check_some(&self) -> bool {
        let blocks = self.lock().store.to_check(SUM_BYTES);
        drop(self.checked(&blocks));
        !blocks.is_empty()
    }

    /// The state, once those blocks of before are checked that these keys have: until then nobody knows whether they are there.
    pub(super) fn lock_checked(
        &self,
        namespace: Namespace,
        keys: &[BlockKey],
    ) -> MutexGuard<'_, super::State> {
        let state = self.lock();
        if state.store.status().unchecked == 0 {
            return state;
        }
        let unchecked = keys.iter().filter_map(|key| state.store.unchecked_block(namespace, key));
        let mut blocks: Vec<ToSum> = unchecked.collect();
        drop(state);
        // A key that is named often is looked at once.
        blocks.sort_unstable_by_key(|block| block.slot);
        blocks.dedup_by_key(|block| block.slot);
        self.checked(&blocks)
    }

    /// Checks the blocks of before that these keys have, so that they are found, or known to be none.
    pub(super) fn check_those_of_before(&self, namespace: Namespace, keys: &[BlockKey]) {
        drop(self.lock_checked(namespace, keys));
    }

    /// The state, with these blocks of before checked.
    fn checked(&self, blocks: &[ToSum]) -> MutexGuard<'_, super::State> {
        let sums = self.sums_of(blocks);
        let mut state = self.lock();
        for (block, sum) in blocks.iter().zip(sums) {
            state.store.checked(block, sum);
        }
        state
    }

    /// Takes checksums of blocks that were published.
    fn sum_some(&self) -> bool {
        let blocks = self.lock().store.to_sum(SUM_BYTES);
        let sums = self.sums_of(&blocks);
        let mut state = self.lock();
        for (block, sum) in blocks.iter().zip(sums) {
            state.store.summed(block, sum);
        }
        !blocks.is_empty()
    }

    /// Nobody is kept waiting meanwhile; whether it is still the block is looked at afterwards.
    fn sums_of(&self, blocks: &[ToSum]) -> Vec<Option<u32>> {
        blocks.iter().map(|block| self.sum(block.offset, block.bytes)).collect()
    }

    /// The checksum of bytes of the blocks file; `None` if the file was cut off.
    pub(super) fn sum(&self, offset: u64, bytes: u32) -> Option<u32> {
        let sum = self.view.sum(offset, bytes);
        sum.filter(|_| !self.is_lost())
    }

    /// Whether less is free than there should be, so that the thread is to make room.
    pub(super) fn is_below_low(&self, free_bytes: u64) -> bool {
        self.watermarks.is_some_and(|marks| free_bytes < self.part(marks.low))
    }

    /// Makes room up to the high mark, if less than the low one is free. Blocks are copied for the disk before anybody is locked out,
    /// and the disk is waited for.
    fn make_room_ahead(&self) -> bool {
        let Some(marks) = self.watermarks else { return false };
        if !self.is_below_low(self.lock().store.free_bytes()) {
            return false;
        }
        let mut has_left = false;
        while !self.behind.is_stopping() {
            let chosen = self.choose(self.part(marks.high));
            if chosen.is_empty() {
                break;
            }
            for (departing, is_sound) in chosen {
                if is_sound && let Some(disk) = &self.disk {
                    disk.stage_patiently(&self.view, &departing);
                }
                has_left |= self.depart(&departing);
            }
        }
        has_left
    }

    /// Lets a block leave that was copied for the disk. One that was removed or replaced meanwhile is not to come back from there.
    pub(super) fn depart(&self, departing: &Departing) -> bool {
        let mut state = self.lock();
        if state.store.depart(departing, &mut |slot| self.was_touched(slot)) {
            return true;
        }
        let Departing { leaving, slot, generation } = departing;
        let there = state.store.inspect(leaving.namespace, &leaving.key);
        let is_there = there.is_some_and(|there| (there.slot, there.generation) == (*slot, *generation));
        if !is_there && let Some(disk) = &self.disk {
            disk.removed(leaving.namespace.0, &leaving.key);
        }
        false
    }

    /// The next blocks to leave until so much is free; for each whether its bytes are known to be right.
    fn choose(&self, high_bytes: u64) -> Vec<(Departing, bool)> {
        let mut state = self.lock();
        let mut missing = high_bytes.saturating_sub(state.store.free_bytes());
        let mut chosen = Vec::new();
        while missing > 0
            && chosen.len() < DEPARTING_MAX
            && let Some(departing) = state.store.next_to_leave(&mut |slot| self.was_touched(slot))
        {
            missing = missing.saturating_sub(u64::from(departing.leaving.bytes));
            let is_sound = state.store.is_sound(&departing);
            chosen.push((departing, is_sound));
        }
        chosen
    }

    fn part(&self, percent: u8) -> u64 {
        self.view.geometry().blocks_bytes() / 100 * u64::from(percent)
    }

    fn is_done(&self) -> bool {
        let state = self.lock();
        state.store.unsummed() == 0
            && state.store.status().unchecked == 0
            && (!self.is_below_low(state.store.free_bytes()) || self.behind.is_stuck.load(Ordering::Acquire))
    }
}

/// The thread's life; it ends with the store.
fn live(store: &Weak<UserStore>) {
    let (mut looked, mut worked, mut summed) = (Instant::now(), Instant::now(), Instant::now());
    let mut has_abandoned = true;
    loop {
        let Some(store) = store.upgrade() else { return };
        if store.behind.is_stopping() {
            return finish(&store);
        }
        if has_abandoned && looked.elapsed() >= ABANDONED_LOOK {
            has_abandoned = store.lock().store.free_abandoned(&mut |mark| store.files.is_held(mark)) > 0;
            looked = Instant::now();
        }
        let sums = !store.behind.is_busy() || summed.elapsed() >= QUIET_WAIT;
        if store.work(sums) {
            worked = Instant::now();
        } else if worked.elapsed() < AWAKE || !store.is_done() {
            store.behind.pause(PAUSE);
        } else {
            store.behind.wait(ABANDONED_LOOK, || store.is_done());
        }
        if store.lock().store.unsummed() == 0 {
            summed = Instant::now();
        }
    }
}

fn finish(store: &UserStore) {
    let until = Instant::now() + FAREWELL;
    while (store.check_some() || store.sum_some()) && Instant::now() < until {}
}

#[cfg(test)]
mod tests;
