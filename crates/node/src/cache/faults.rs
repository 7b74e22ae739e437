//! The fault thread: reads events of all programs and turns them into answers or fills.

use super::Cache;
use super::file::CacheFile;
use super::registration::Registration;
use super::units::Waiter;
use hinterland_os::poll::{EventCounter, Interest, Poller};
use hinterland_os::userfault::Event;
use hinterland_os::{OsError, process};
use hinterland_types::limits::BASE_PAGE_BYTES;
use hinterland_types::{ByteRange, SessionId};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Token of the event that ends the thread.
const STOP: u64 = 0;

/// One mapping with its file, as the fault thread finds it.
#[derive(Clone)]
pub struct Watched {
    /// The file.
    pub file: Arc<CacheFile>,
    /// The mapping.
    pub registration: Arc<Registration>,
}

/// All mappings whose faults are served, and the wait for them.
pub struct FaultWatch {
    poll: Poller,
    stop: EventCounter,
    watched: RwLock<HashMap<u64, Watched>>,
    stopping: Mutex<bool>,
}

impl FaultWatch {
    /// Nothing is watched.
    ///
    /// # Errors
    /// [`OsError`] without descriptors left.
    pub fn new() -> Result<Self, OsError> {
        let poll = Poller::new()?;
        let stop = EventCounter::new()?;
        poll.add(&stop, STOP, Interest::READ)?;
        Ok(Self { poll, stop, watched: RwLock::default(), stopping: Mutex::new(false) })
    }

    /// Serves the faults of a mapping from here on.
    ///
    /// # Errors
    /// [`OsError`] if the descriptor cannot be waited for: it is no userfaultfd.
    pub fn add(&self, watched: Watched) -> Result<(), OsError> {
        let registration = Arc::clone(&watched.registration);
        let mut all = self.watched.write().unwrap_or_else(PoisonError::into_inner);
        let of_session = |other: &&Watched| other.registration.session == registration.session;
        all.values().filter(of_session).for_each(|older| older.registration.cover(&registration));
        all.insert(registration.id, watched);
        self.poll.add(registration.fault(), registration.id, Interest::READ).inspect_err(|_| {
            all.remove(&registration.id);
        })
    }

    /// Serves them no longer.
    pub fn remove(&self, id: u64) -> Option<Watched> {
        let removed = self.watched.write().unwrap_or_else(PoisonError::into_inner).remove(&id)?;
        if let Err(error) = self.poll.remove(removed.registration.fault()) {
            tracing::debug!(%error, "a fault descriptor had gone before");
        }
        Some(removed)
    }

    /// Whose a mapping is.
    pub fn session_of(&self, id: u64) -> Option<SessionId> {
        let all = self.watched.read().unwrap_or_else(PoisonError::into_inner);
        all.get(&id).map(|watched| watched.registration.session)
    }

    /// Ends the thread.
    pub fn stop(&self) {
        *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stop.raise();
    }

    /// Serves until [`stop`](Self::stop).
    pub fn serve(&self, cache: &Cache) {
        process::name_thread("faults");
        let mut ready = Vec::new();
        let mut events = Vec::new();
        loop {
            ready.clear();
            if let Err(error) = self.poll.wait(&mut ready, None) {
                tracing::error!(%error, "waiting for faults failed");
            }
            if *self.stopping.lock().unwrap_or_else(PoisonError::into_inner) {
                return;
            }
            for readiness in &ready {
                let serve = || self.serve_one(cache, readiness.token, &mut events);
                // A defect that one fault meets leaves one thread waiting, not those of every program of the host.
                if catch_unwind(AssertUnwindSafe(serve)).is_err() {
                    cache.problem(
                        "a fault was not answered because of a defect of the node, whose log has its place \
                         (hint: end the program that waits, and report the log)",
                    );
                }
            }
        }
    }

    fn serve_one(&self, cache: &Cache, id: u64, events: &mut Vec<Event>) {
        let Some(watched) = self.watched.read().unwrap_or_else(PoisonError::into_inner).get(&id).cloned()
        else {
            return;
        };
        events.clear();
        if let Err(error) = watched.registration.fault().read_events(events) {
            tracing::debug!(%error, "a program's fault descriptor failed; its session will end");
            return;
        }
        for event in events.drain(..) {
            match event {
                Event::Fault(fault) => self.fault(cache, &watched, fault.address),
                Event::Remap { from, to, .. } => self.moved(&watched, from, to),
                // Page tables were dropped or the range unmapped: the next touch, if any, faults again.
                Event::Remove { .. } | Event::Unmap { .. } | Event::Fork(_) => {}
            }
        }
    }

    /// Descriptors of one program may be copies of each other: the address decides which mapping faulted.
    fn fault(&self, cache: &Cache, read_from: &Watched, address: u64) {
        // Relaxed: a counter that nothing is ordered by.
        cache.tallies.faults.fetch_add(1, Ordering::Relaxed);
        let Some((watched, offset)) = self.find(read_from, address) else {
            tracing::warn!(address, "a fault outside every registered mapping; its thread is woken");
            // The mapping went away between fault and answer; a retry ends in its own fault.
            let page = page_of(address);
            let _ = read_from.registration.fault().wake(page.offset(), page.bytes());
            return;
        };
        let Some(outcome) = watched.file.fault(offset, Waiter::Fault(watched.registration.id)) else {
            watched.registration.poison(page_of(offset), "the object has no bytes there");
            return;
        };
        if outcome.present {
            watched.registration.resolve(watched.file.units.range(outcome.unit));
        }
        cache.queue.push(&watched.file, &outcome.fetch);
    }

    fn find(&self, read_from: &Watched, address: u64) -> Option<(Watched, u64)> {
        if let Some(offset) = read_from.registration.offset_of(address) {
            return Some((read_from.clone(), offset));
        }
        let all = self.watched.read().unwrap_or_else(PoisonError::into_inner);
        all.values()
            .filter(|watched| watched.registration.session == read_from.registration.session)
            .find_map(|watched| {
                watched.registration.offset_of(address).map(|offset| (watched.clone(), offset))
            })
    }

    fn moved(&self, read_from: &Watched, from: u64, to: u64) {
        let all = self.watched.read().unwrap_or_else(PoisonError::into_inner);
        for watched in all.values() {
            if watched.registration.session == read_from.registration.session {
                watched.registration.moved(from, to);
            }
        }
    }
}

/// The page that an address or an offset lies in.
fn page_of(at: u64) -> ByteRange {
    // No program has the last page of all: the default is never taken.
    ByteRange::new(at - at % BASE_PAGE_BYTES, BASE_PAGE_BYTES).unwrap_or_default()
}
