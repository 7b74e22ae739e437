//! Memory of this host that compressed content leaves alone, so that the kernel ends nobody for want of it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is left alone: so much of the host's memory, and at most so many bytes.
const RESERVE_PART: u64 = 64;
const RESERVE_BYTES_MAX: u64 = 512 << 20;
/// Between two looks at the host: reading its state takes some 20 us.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Memory of a host at a moment, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostMemory {
    /// All of it; 0 where that cannot be told.
    pub total_bytes: u64,
    /// What can be had without swapping.
    pub available_bytes: u64,
}

impl HostMemory {
    fn now() -> Self {
        Self {
            total_bytes: hinterland_os::probe::memory_total_bytes(),
            available_bytes: hinterland_os::probe::memory_available_bytes(),
        }
    }

    /// What may be taken of it.
    fn spare_bytes(self) -> u64 {
        let reserve = (self.total_bytes / RESERVE_PART).min(RESERVE_BYTES_MAX);
        if self.total_bytes == 0 { u64::MAX } else { self.available_bytes.saturating_sub(reserve) }
    }
}

/// Knows how much memory may be taken of a host until the next look.
pub(super) struct Reserve {
    look: Box<dyn Fn() -> HostMemory + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    looked: Option<Instant>,
    /// What may be taken before the next look.
    spare_bytes: u64,
}

impl Reserve {
    /// That of this host.
    pub(super) fn host() -> Self {
        Self::of(HostMemory::now)
    }

    /// That of a host that is seen so.
    pub(super) fn of(look: impl Fn() -> HostMemory + Send + Sync + 'static) -> Self {
        Self { look: Box::new(look), state: Mutex::default() }
    }

    /// Whether so many bytes may be taken; they count from here on.
    pub(super) fn take(&self, bytes: u64, now: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK_INTERVAL) {
            *state = State { looked: Some(now), spare_bytes: (self.look)().spare_bytes() };
        }
        match state.spare_bytes.checked_sub(bytes) {
            Some(left) => {
                state.spare_bytes = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn what_is_taken_between_two_looks_counts_and_the_reserve_is_never_touched() {
        let (available, looks) = (Arc::new(AtomicU64::new(200 << 20)), Arc::new(AtomicU64::new(0)));
        let (seen, counted) = (available.clone(), looks.clone());
        let reserve = Reserve::of(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            HostMemory { total_bytes: 8 << 30, available_bytes: seen.load(Ordering::SeqCst) }
        });
        let begun = Instant::now();
        // A 64th of 8 GiB is 128 MiB: 72 of the 200 may be taken, however long nobody looks.
        assert!(reserve.take(70 << 20, begun));
        assert!(!reserve.take(3 << 20, begun) && reserve.take(2 << 20, begun) && !reserve.take(1, begun));
        available.store(500 << 20, Ordering::SeqCst);
        assert!(!reserve.take(1, begun + LOOK_INTERVAL / 2));
        assert_eq!(looks.load(Ordering::SeqCst), 1);
        assert!(reserve.take(1, begun + LOOK_INTERVAL));
        available.store(100 << 20, Ordering::SeqCst);
        assert!(!reserve.take(1, begun + 2 * LOOK_INTERVAL));
        assert_eq!(looks.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn the_reserve_of_a_large_host_is_bounded_and_a_host_that_cannot_be_seen_has_none() {
        let spare = |total_bytes, available_bytes| HostMemory { total_bytes, available_bytes }.spare_bytes();
        assert_eq!(spare(1 << 40, 1 << 30), 512 << 20);
        assert_eq!(spare(0, 0), u64::MAX);
        assert!(HostMemory::now().total_bytes > 0);
    }
}
