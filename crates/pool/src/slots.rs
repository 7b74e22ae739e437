//! The slots of this process: a thread says in one which page it is in, so that its node does not move the page meanwhile.

use crate::PoolError;
use crate::session::{Session, unexpected};
use hinterland_os::{MapOptions, MemoryFile, SharedSlice, barrier, fork_mark};
use hinterland_proto::control::{Reply, Request};
use hinterland_proto::pages::{
    AccessSample, SAMPLE_COUNT_AT, SAMPLES, SAMPLES_AT, SLOT_BYTES, SLOTS, SLOTS_BYTES,
};
use hinterland_types::PageNumber;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence, fence};
use std::sync::{Arc, Mutex, PoisonError};

/// Slots of one session, not asked for before they are needed.
#[derive(Default)]
pub(crate) struct SlotsOfPool(Mutex<Option<Arc<Slots>>>);

/// Memory that the session shares with its node.
pub(crate) struct Slots {
    memory: SharedSlice,
    free: Mutex<Vec<u16>>,
    /// Whether a thread must run a barrier itself between its slot and a word, because the kernel would not do it.
    fences: bool,
    /// 1 in this process, 0 in a child of it.
    mark: &'static AtomicU32,
}

/// A slot of the calling thread, given back when the thread ends.
struct Claim {
    slots: Arc<Slots>,
    place: u16,
}

/// A slot, for as long as the thread is in nothing else.
pub(crate) struct Slot<'a> {
    slots: &'a Slots,
    start: usize,
}

thread_local! {
    static CLAIMS: RefCell<Vec<Claim>> = const { RefCell::new(Vec::new()) };
}

impl SlotsOfPool {
    /// The slots, if the node gives any; then every access asks the node.
    pub(crate) fn get(&self, session: &Session) -> Result<Option<Arc<Slots>>, PoolError> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slots) = &*known {
            return Ok(Some(Arc::clone(slots)));
        }
        let Some(mark) = fork_mark::mark() else { return Ok(None) };
        let descriptor = match session.call_with(&Request::OpenSlots, &[])? {
            (Reply::Done, mut descriptors) if descriptors.len() == 1 => descriptors.remove(0), // the length was just checked
            (other, _) => return Err(unexpected("Done with a descriptor", &other)),
        };
        let file = MemoryFile::from_descriptor(descriptor)?;
        let mapping = file.map(0, SLOTS_BYTES, MapOptions { write: true, ..MapOptions::default() })?;
        // At most 128: the cast loses nothing.
        let free = Mutex::new((0..SLOTS as u16).rev().collect());
        let slots = Slots { memory: Arc::new(mapping).slice(), free, fences: !barrier::register(), mark };
        let slots = Arc::new(slots);
        *known = Some(Arc::clone(&slots));
        Ok(Some(slots))
    }
}

impl Slots {
    /// Whether this process is a child that was forked: the slots are its parent's.
    pub(crate) fn is_forked(&self) -> bool {
        // Relaxed: nothing is ordered by it, a process is a child from its first instruction on.
        self.mark.load(Ordering::Relaxed) == 0
    }

    /// Where the fork mark of the process is.
    pub(crate) const fn mark(&self) -> &'static AtomicU32 {
        self.mark
    }

    /// Whether threads fence themselves.
    pub(crate) const fn fences(&self) -> bool {
        self.fences
    }

    /// The calling thread's slot; `None` if there are more threads than slots, or the thread is ending.
    pub(crate) fn with<T>(self: &Arc<Self>, then: impl FnOnce(Slot<'_>) -> T) -> Option<T> {
        let place = CLAIMS.try_with(|claims| {
            let mut claims = claims.try_borrow_mut().ok()?;
            if let Some(claim) = claims.iter().find(|claim| Arc::ptr_eq(&claim.slots, self)) {
                return Some(claim.place);
            }
            // Pools that nobody uses any more.
            claims.retain(|claim| Arc::strong_count(&claim.slots) > 1);
            let place = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            claims.push(Claim { slots: Arc::clone(self), place });
            Some(place)
        });
        let place = place.ok().flatten()?;
        Some(then(Slot { slots: self, start: usize::from(place) * SLOT_BYTES }))
    }
}

impl Slot<'_> {
    /// The word in which the thread says where it is. It lives as long as the slots do.
    pub(crate) fn word(&self) -> Option<&AtomicU64> {
        self.slots.memory.atomic_u64(self.start).ok()
    }

    /// Says that the thread is in the page; a word of the page that is read from here on is believed until [`leave`](Self::leave).
    pub(crate) fn enter(&self, page: PageNumber) {
        if let Some(word) = self.word() {
            // Relaxed: the barrier that orders it with the load of the page's word is the one below, or the mover's.
            word.store(u64::from(page.raw()) + 1, Ordering::Relaxed);
        }
        if self.slots.fences {
            fence(Ordering::SeqCst);
        } else {
            // The node runs the processors' barrier when it moves a page.
            compiler_fence(Ordering::SeqCst);
        }
    }

    /// Fences, for pages whose word asks for it.
    pub(crate) fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    /// Says that the thread is in no page.
    pub(crate) fn leave(&self) {
        if let Some(word) = self.word() {
            // Release: what was copied comes before, for the mover, who loads with Acquire.
            word.store(0, Ordering::Release);
        }
    }

    /// Tells the node of accesses to a page.
    pub(crate) fn sample(&self, page: PageNumber, is_write: bool, weight: u16) {
        let sample = AccessSample { page, is_write, weight };
        let Ok(count) = self.slots.memory.atomic_u64(self.start + SAMPLE_COUNT_AT) else { return };
        // Relaxed: only this thread writes it.
        let number = count.load(Ordering::Relaxed);
        let place = self.start + SAMPLES_AT + (number % SAMPLES) as usize * 8;
        if let Ok(word) = self.slots.memory.atomic_u64(place) {
            // Relaxed: published by the store below.
            word.store(sample.to_word(), Ordering::Relaxed);
        }
        // Release: pairs with the node's Acquire of the count.
        count.store(number.wrapping_add(1), Ordering::Release);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        crate::address::let_go_of_latest();
        if !self.slots.is_forked() {
            self.slots.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.place);
        }
    }
}
