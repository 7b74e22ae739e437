//! A program's mapping of a cache file, and how its faults are answered.

use crate::notices::NoticeChannel;
use hinterland_os::Userfault;
use hinterland_proto::control::ProbeRange;
use hinterland_types::{ByteRange, SessionId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Smallest piece of a mapping that is woken or probed.
const PAGE_BYTES: u64 = 4096;

/// One mapping in one program.
pub struct Registration {
    /// Identifier, never used twice.
    pub id: u64,
    /// Whose.
    pub session: SessionId,
    pointer: AtomicU64,
    /// Offset in the object at the pointer.
    offset: u64,
    bytes: u64,
    /// Pages of the mapping.
    page_bytes: u64,
    fault: Userfault,
    channel: Arc<Mutex<Option<Arc<NoticeChannel>>>>,
}

/// What a program hands over when it maps a cache file.
pub struct NewRegistration {
    /// Identifier, never used twice.
    pub id: u64,
    /// Whose.
    pub session: SessionId,
    /// Where the mapping starts.
    pub pointer: u64,
    /// The part of the object that it shows.
    pub range: ByteRange,
    /// Pages of the mapping.
    pub page_bytes: u64,
    /// Guards the mapping.
    pub fault: Userfault,
    /// Where the program can be told something, once it asked for that.
    pub channel: Arc<Mutex<Option<Arc<NoticeChannel>>>>,
}

impl Registration {
    /// Takes what a program handed over.
    pub fn new(new: NewRegistration) -> Self {
        Self {
            id: new.id,
            session: new.session,
            pointer: AtomicU64::new(new.pointer),
            offset: new.range.offset(),
            bytes: new.range.bytes(),
            page_bytes: new.page_bytes,
            fault: new.fault,
            channel: new.channel,
        }
    }

    /// The descriptor to read events from.
    pub const fn fault(&self) -> &Userfault {
        &self.fault
    }

    /// Offset in the object of an address of the program, if the mapping covers it.
    pub fn offset_of(&self, address: u64) -> Option<u64> {
        let pointer = self.pointer.load(Ordering::Acquire);
        let distance = address.checked_sub(pointer)?;
        (distance < self.bytes).then(|| self.offset + distance)
    }

    /// The program moved its mapping.
    pub fn moved(&self, from: u64, to: u64) {
        // AcqRel: pairs with the load in `offset_of`; only the fault thread moves a registration.
        let _ = self.pointer.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Where the program sees a range of the object, if it sees any of it.
    pub fn shown(&self, range: ByteRange) -> Option<ProbeRange> {
        let start = range.offset().max(self.offset);
        let end = range.end().min(self.offset + self.bytes);
        if start >= end {
            return None;
        }
        let pointer = self.pointer.load(Ordering::Acquire) + (start - self.offset);
        let first = pointer / PAGE_BYTES * PAGE_BYTES;
        let last = (pointer + (end - start)).next_multiple_of(self.page_bytes.max(PAGE_BYTES));
        Some(ProbeRange { pointer: first, bytes: last - first })
    }

    /// Lets threads go on that wait for a range whose bytes are in the file: they touch it again, and the kernel
    /// maps it.
    pub fn resolve(&self, range: ByteRange) {
        let Some(shown) = self.shown(range) else { return };
        if let Err(error) = self.fault.wake(shown.pointer, shown.bytes) {
            // The program unmapped it or ended: nobody waits any more.
            tracing::debug!(%error, "a mapping went away while its fault was answered");
        }
    }

    /// Lets the program know that a range is lost: words first, then SIGBUS to whoever touches it.
    pub fn poison(&self, range: ByteRange, reason: &str) {
        if let Some(channel) = self.channel() {
            channel.lost(reason);
        }
        let Some(shown) = self.shown(range) else { return };
        if let Err(error) = self.fault.poison(shown.pointer, shown.bytes, self.page_bytes) {
            tracing::warn!(%error, "a range could not be poisoned; its threads are woken to fault again");
            // Waking is better than a hang: the touch faults again and is answered again.
            let _ = self.fault.wake(shown.pointer, shown.bytes);
        }
    }

    /// The channel to the program, if it has opened one.
    pub fn channel(&self) -> Option<Arc<NoticeChannel>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
