//! A lock that is held by a guard: its fence, until when it is believed, what broke it, and accesses under it.

use super::lane::Lane;
use crate::address::Entry;
use crate::region::{RegionPages, Under};
use crate::{Pool, PoolError};
use hinterland_os::clock::boot_ms;
use hinterland_types::{ByteRange, GlobalAddress};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const EINVAL: i32 = 22;
const EOWNERDEAD: i32 = 130;

/// What a guard and its threads share.
pub(super) struct Held {
    pub pool: Pool,
    pub lane: Arc<Lane>,
    pub entry: Arc<Entry>,
    pub lock: GlobalAddress,
    pub bytes: u64,
    pub fence: u64,
    /// Milliseconds of the host's monotonic clock.
    until_ms: AtomicU64,
    broken: Mutex<Option<Broken>>,
}

/// Why nothing is done under the guard any more.
#[derive(Clone)]
struct Broken {
    code: i32,
    text: String,
}

impl Held {
    pub fn new(
        (pool, lane, entry): (Pool, Arc<Lane>, Arc<Entry>),
        (lock, bytes): (GlobalAddress, u64),
        (fence, until_ms): (u64, u64),
    ) -> Self {
        let until_ms = AtomicU64::new(until_ms);
        Self { pool, lane, entry, lock, bytes, fence, until_ms, broken: Mutex::default() }
    }

    /// The pages of the region.
    pub fn pages(&self) -> Result<&Arc<RegionPages>, PoolError> {
        let no_region = || {
            let text = format!(
                "{} is sealed: nobody writes it, so it needs no lock (hint: read it)",
                self.entry.object.info().name
            );
            PoolError::Refused { code: EINVAL, text }
        };
        self.entry.object.pages()?.ok_or_else(no_region)
    }

    /// Where a range of the guard lies in the region.
    ///
    /// # Errors
    /// `EINVAL` if it reaches out of the guard.
    pub fn place(&self, offset: u64, bytes: usize) -> Result<u64, PoolError> {
        let range = ByteRange::within(offset, bytes as u64, self.bytes).map_err(|_| {
            let text = format!(
                "{bytes} bytes at {offset} are outside the range of the {} bytes of the guard (hint: take a longer one)",
                self.bytes
            );
            PoolError::Refused { code: EINVAL, text }
        })?;
        Ok(self.start() + range.offset())
    }

    /// Where the guard's range begins in the region.
    pub fn start(&self) -> u64 {
        self.lock.raw() - self.entry.first
    }

    /// Whether the guard is believed at this moment.
    pub fn is_believed(&self) -> bool {
        // Relaxed: a moment, which nothing is ordered by; an old one is earlier.
        boot_ms() < self.until_ms.load(Ordering::Relaxed)
    }

    /// The node says that it counts for longer.
    pub fn believe(&self, until_ms: u64) {
        // Relaxed: as above.
        self.until_ms.fetch_max(until_ms, Ordering::Relaxed);
    }

    /// Why it is lost, or that it is not.
    pub fn check_broken(&self) -> Result<(), PoolError> {
        match &*self.broken.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(broken) => Err(PoolError::Refused { code: broken.code, text: broken.text.clone() }),
            None => Ok(()),
        }
    }

    pub fn is_broken(&self) -> bool {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Nothing is done under it any more; the first reason stays.
    pub fn break_with(&self, error: &PoolError) {
        let mut broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        broken.get_or_insert_with(|| Broken { code: error.code(), text: error.to_string() });
    }

    /// Writes ranges of the region, wherever they lie. After an error the guard is broken, because nobody knows what was written.
    pub fn write_home(&self, ranges: &[(u64, &[u8])], writes: usize) -> Result<(), PoolError> {
        self.check_broken()?;
        let opened = self.entry.object.opened();
        let done = self
            .pages()
            .and_then(|pages| self.under(|under| pages.write_locked(&self.pool, opened, under, ranges)));
        done.map_err(|error| {
            let bytes: usize = ranges.iter().map(|(_, bytes)| bytes.len()).sum();
            let told = PoolError::Refused {
                code: error.code(),
                text: format!(
                    "{writes} writes of {bytes} bytes under the lock on {} are not known to have arrived: {error}",
                    self.lock
                ),
            };
            self.end_of_entry(&error);
            self.break_with(&told);
            told
        })
    }

    /// Reads a range of the region, wherever it lies.
    pub fn read_home(&self, at: u64, into: &mut [u8]) -> Result<(), PoolError> {
        let opened = self.entry.object.opened();
        let done = self
            .pages()
            .and_then(|pages| self.under(|under| pages.read_locked(&self.pool, opened, under, at, into)));
        done.inspect_err(|error| {
            self.end_of_entry(error);
            if error.code() == EOWNERDEAD {
                self.break_with(error);
            }
        })
    }

    /// Asks the node whether the guard still counts.
    ///
    /// # Errors
    /// `EOWNERDEAD` with the node's reason; the guard is broken.
    pub fn confirm(&self) -> Result<(), PoolError> {
        self.check_broken()?;
        match self.lane.keep(&[self.lock]) {
            Ok((until_ms, _)) => {
                if let Some(until_ms) = until_ms.first().copied().flatten() {
                    self.believe(until_ms);
                }
            }
            Err(error) => {
                let text =
                    format!("the lock on {} is no longer held: its node cannot be asked: {error}", self.lock);
                let lost = PoolError::Refused { code: EOWNERDEAD, text };
                self.break_with(&lost);
                return Err(lost);
            }
        }
        if self.is_believed() {
            return Ok(());
        }
        let lost = self.lane.why_lost(self.lock);
        self.break_with(&lost);
        Err(lost)
    }

    fn under<T>(&self, access: impl FnOnce(&Under<'_>) -> Result<T, PoolError>) -> Result<T, PoolError> {
        access(&Under {
            lock: self.lock,
            fence: self.fence,
            is_believed: &|| self.is_believed(),
            confirm: &|| self.confirm(),
        })
    }

    /// What is remembered of a region that is gone is forgotten, so that the next guard finds out anew.
    fn end_of_entry(&self, error: &PoolError) {
        const ENOENT: i32 = 2;
        if error.code() == ENOENT {
            self.pool.forget_entry(&self.entry);
        }
    }
}
