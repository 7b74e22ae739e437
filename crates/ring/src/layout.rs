//! The memory of a session: making it, checking it, and finding its parts.

use std::time::{Duration, Instant};

use hinterland_os::SharedSlice;

use crate::doorbell::Doorbell;
use crate::slot::Slot;
use crate::spin::SpinBudget;
use crate::{RingError, SLOTS_MAX};

const MAGIC: u64 = u64::from_le_bytes(*b"HLRING01");
const VERSION: u32 = 1;
const REQUESTER_BELL: usize = 128;
const RESPONDER_BELL: usize = 256;
const SLOTS: usize = 512;
const SLOT_BYTES: usize = size_of::<Slot>();
/// Yields between the spin and the sleep: they let a peer run that shares our processor, at less than a sleep.
const YIELDS: u32 = 2;
/// Looks at the ring before the clock is read at all.
const LOOKS_BEFORE_CLOCK: u32 = 64;
/// Looks at the ring between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 32;

const _: () = assert!(SLOTS.is_multiple_of(SLOT_BYTES) && REQUESTER_BELL.is_multiple_of(64));
const _: () = assert!(RESPONDER_BELL - REQUESTER_BELL >= 128 && SLOTS - RESPONDER_BELL >= 128);

/// Bytes of memory that a session with this number of slots needs.
///
/// # Errors
/// [`RingError::BadSlots`].
pub fn session_bytes(slots: u32) -> Result<usize, RingError> {
    if slots == 0 || slots > SLOTS_MAX || !slots.is_power_of_two() {
        return Err(RingError::BadSlots { slots });
    }
    Ok(SLOTS + 2 * slots as usize * SLOT_BYTES)
}

/// The memory of one session, checked to be large enough and aligned. Both ends are made from it.
#[derive(Clone, Debug)]
pub struct Session {
    memory: SharedSlice,
    slots: u32,
}

impl Session {
    /// Makes an empty session in memory that nobody uses: writes the header and clears all else.
    ///
    /// # Errors
    /// [`RingError::BadSlots`], [`RingError::Memory`].
    pub fn format(memory: SharedSlice, slots: u32) -> Result<Self, RingError> {
        let session = Self::checked(memory, slots)?;
        session.memory.fill(0, session.memory.len(), 0)?;
        session.memory.store_u64(8, u64::from(slots) << 32 | u64::from(VERSION))?;
        session.memory.store_u64(0, MAGIC)?;
        Ok(session)
    }

    /// Takes memory that the other side has formatted. The number of slots comes from the handshake and not from the
    /// memory, whose header is only compared with it.
    ///
    /// # Errors
    /// [`RingError::BadSlots`], [`RingError::Memory`], [`RingError::Foreign`].
    pub fn attach(memory: SharedSlice, slots: u32) -> Result<Self, RingError> {
        let session = Self::checked(memory, slots)?;
        let magic = session.memory.load_u64(0)?;
        let word = session.memory.load_u64(8)?;
        let (version, found) = (word as u32, (word >> 32) as u32);
        if magic != MAGIC || version != VERSION || found != slots {
            return Err(RingError::Foreign { slots, magic, version, found });
        }
        Ok(session)
    }

    /// Number of slots of each ring.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    fn checked(memory: SharedSlice, slots: u32) -> Result<Self, RingError> {
        let memory = memory.sub(0, session_bytes(slots)?)?;
        // The slots are lines of 64 bytes; checking the first word for a stricter alignment than the atomics need.
        let address = memory.as_ptr().addr() as u64;
        if !address.is_multiple_of(SLOT_BYTES as u64) {
            let what = "address of a session";
            let alignment = SLOT_BYTES as u64;
            return Err(hinterland_os::OsError::Misaligned { what, value: address, alignment }.into());
        }
        memory.atomic_u64(0)?;
        Ok(Self { memory, slots })
    }

    #[inline]
    pub(crate) fn requests(&self) -> &[Slot] {
        self.ring(SLOTS)
    }

    #[inline]
    pub(crate) fn responses(&self) -> &[Slot] {
        self.ring(SLOTS + self.slots as usize * SLOT_BYTES)
    }

    #[inline]
    pub(crate) fn requester_bell(&self) -> &Doorbell {
        self.bell(REQUESTER_BELL)
    }

    #[inline]
    pub(crate) fn responder_bell(&self) -> &Doorbell {
        self.bell(RESPONDER_BELL)
    }

    #[inline]
    fn ring(&self, offset: usize) -> &[Slot] {
        // SAFETY: `checked` made sure that the memory holds both rings, is writable and aligned to a slot; the slice
        // borrows from self, which keeps the mapping. Slots are atomics only, for which any bytes are valid and which
        // the peer may change at any time.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr().add(offset).cast(), self.slots as usize) }
    }

    #[inline]
    fn bell(&self, offset: usize) -> &Doorbell {
        // SAFETY: as in `ring`: inside the checked memory, aligned to 128 bytes, one atomic.
        unsafe { &*self.memory.as_ptr().add(offset).cast() }
    }
}

/// Waits until `ready`, first spinning as long as was learned to pay, then yielding, then asleep on the doorbell; `false`
/// when the time is over first.
pub(crate) fn wait_until(
    ready: impl Fn() -> bool,
    bell: &Doorbell,
    budget: &mut SpinBudget,
    timeout: Duration,
) -> bool {
    let limit_ns = budget.limit_ns().min(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
    // A message that is on its way comes within these looks; a clock would cost as much as they do.
    for _ in 0..if limit_ns > 0 { LOOKS_BEFORE_CLOCK } else { 1 } {
        if ready() {
            return true;
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    let waited_ns = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    while waited_ns() < limit_ns {
        for _ in 0..LOOKS_PER_CLOCK {
            if ready() {
                budget.learn(waited_ns());
                return true;
            }
            std::hint::spin_loop();
        }
    }
    for _ in 0..YIELDS {
        std::thread::yield_now();
        if ready() {
            budget.learn(waited_ns());
            return true;
        }
    }
    loop {
        bell.announce();
        let found = ready();
        if found || waited_ns() >= timeout_ns {
            bell.retract();
            budget.learn(waited_ns());
            return found;
        }
        bell.sleep(Some(Duration::from_nanos(timeout_ns.saturating_sub(waited_ns()))));
    }
}
