//! The memory of a session: making it, checking it, and finding its parts.

use std::time::{Duration, Instant};

use hinterland_os::{Coherence, FlushedSlice, LineMover, SharedSlice};

use crate::doorbell::Doorbell;
use crate::lines::Flushed;
use crate::ring::{Inlet, Outlet};
use crate::slot::{Body, Slot};
use crate::{RingError, SLOTS_MAX};
use hinterland_os::SpinBudget;

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
/// First pause between two looks where nobody can be woken, and the longest.
const NAP_NS_MIN: u64 = 20_000;
const NAP_NS_MAX: u64 = 1_000_000;
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
    /// Of a session between hosts whose caches do not see each other.
    mover: Option<LineMover>,
}

impl Session {
    /// Makes an empty session in memory that nobody uses: writes the header and clears all else.
    ///
    /// # Errors
    /// [`RingError::BadSlots`], [`RingError::Memory`].
    pub fn format(memory: SharedSlice, slots: u32) -> Result<Self, RingError> {
        Self::format_with(memory, slots, Coherence::Hardware)
    }

    /// The same for ends that may be on two hosts. In [`Coherence::Software`] nobody is woken, as a futex is of one host: who
    /// waits looks, first without a pause and then at times.
    ///
    /// # Errors
    /// As [`format`](Self::format); [`RingError::Memory`] if this processor cannot move lines by hand.
    pub fn format_with(memory: SharedSlice, slots: u32, coherence: Coherence) -> Result<Self, RingError> {
        let session = Self::checked(memory, slots, coherence)?;
        session.memory.fill(0, session.memory.len(), 0)?;
        session.memory.store_u64(8, u64::from(slots) << 32 | u64::from(VERSION))?;
        session.memory.store_u64(0, MAGIC)?;
        if session.mover.is_some() {
            let flushed = FlushedSlice::new(session.memory.clone())?;
            flushed.write_back(0, session.memory.len());
            flushed.fence();
        }
        Ok(session)
    }

    /// Takes memory that the other side has formatted. The number of slots comes from the handshake and not from the
    /// memory, whose header is only compared with it.
    ///
    /// # Errors
    /// [`RingError::BadSlots`], [`RingError::Memory`], [`RingError::Foreign`].
    pub fn attach(memory: SharedSlice, slots: u32) -> Result<Self, RingError> {
        Self::attach_with(memory, slots, Coherence::Hardware)
    }

    /// The same for ends that may be on two hosts, see [`format_with`](Self::format_with).
    ///
    /// # Errors
    /// As [`attach`](Self::attach); [`RingError::Memory`] if this processor cannot move lines by hand.
    pub fn attach_with(memory: SharedSlice, slots: u32, coherence: Coherence) -> Result<Self, RingError> {
        let session = Self::checked(memory, slots, coherence)?;
        if session.mover.is_some() {
            // A copy from an earlier use of this memory could hold the very sequence that is waited for.
            FlushedSlice::new(session.memory.clone())?.refresh(0, session.memory.len());
        }
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

    fn checked(memory: SharedSlice, slots: u32, coherence: Coherence) -> Result<Self, RingError> {
        let memory = memory.sub(0, session_bytes(slots)?)?;
        // The slots are lines of 64 bytes; checking the first word for a stricter alignment than the atomics need.
        let address = memory.as_ptr().addr() as u64;
        if !address.is_multiple_of(SLOT_BYTES as u64) {
            let what = "address of a session";
            let alignment = SLOT_BYTES as u64;
            return Err(hinterland_os::OsError::Misaligned { what, value: address, alignment }.into());
        }
        memory.atomic_u64(0)?;
        let mover = match coherence {
            Coherence::Hardware => None,
            Coherence::Software => Some(LineMover::detect()?),
        };
        Ok(Self { memory, slots, mover })
    }

    #[inline]
    pub(crate) fn push_request(&self, outlet: &mut Outlet, tag: u32, body: &Body) {
        self.push(self.requests(), outlet, tag, body);
    }

    #[inline]
    pub(crate) fn push_response(&self, outlet: &mut Outlet, tag: u32, body: &Body) {
        self.push(self.responses(), outlet, tag, body);
    }

    #[inline]
    fn push(&self, slots: &[Slot], outlet: &mut Outlet, tag: u32, body: &Body) {
        match self.mover {
            None => outlet.push(slots, tag, body),
            Some(mover) => outlet.push(&Flushed { slots, mover }, tag, body),
        }
    }

    #[inline]
    pub(crate) fn take_request(&self, inlet: &mut Inlet) -> Option<(u32, Body)> {
        self.take(self.requests(), inlet)
    }

    #[inline]
    pub(crate) fn take_response(&self, inlet: &mut Inlet) -> Option<(u32, Body)> {
        self.take(self.responses(), inlet)
    }

    #[inline]
    fn take(&self, slots: &[Slot], inlet: &mut Inlet) -> Option<(u32, Body)> {
        match self.mover {
            None => inlet.take(slots),
            Some(mover) => inlet.take(&Flushed { slots, mover }),
        }
    }

    #[inline]
    pub(crate) fn has_request(&self, inlet: &Inlet) -> bool {
        self.has_next(self.requests(), inlet)
    }

    #[inline]
    pub(crate) fn has_response(&self, inlet: &Inlet) -> bool {
        self.has_next(self.responses(), inlet)
    }

    #[inline]
    fn has_next(&self, slots: &[Slot], inlet: &Inlet) -> bool {
        match self.mover {
            None => inlet.has_next(slots),
            Some(mover) => inlet.has_next(&Flushed { slots, mover }),
        }
    }

    /// Makes what was pushed arrive; whether the other side has to be woken by this bell, which is then the caller's duty.
    #[inline]
    pub(crate) fn must_wake(&self, bell: &Doorbell) -> bool {
        match self.mover {
            None => bell.must_wake(),
            Some(mover) => {
                mover.fence();
                false
            }
        }
    }

    /// The bell to sleep on, if the other side can ring it.
    #[inline]
    pub(crate) fn audible<'bell>(&self, bell: &'bell Doorbell) -> Option<&'bell Doorbell> {
        self.mover.is_none().then_some(bell)
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

/// Waits until `ready`, first spinning as long as was learned to pay, then yielding, then asleep on the doorbell, or for
/// short times where there is none; `false` when the time is over first.
pub(crate) fn wait_until(
    ready: impl Fn() -> bool,
    bell: Option<&Doorbell>,
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
    let mut nap_ns = NAP_NS_MIN;
    loop {
        bell.inspect(|bell| bell.announce());
        let found = ready();
        if found || waited_ns() >= timeout_ns {
            bell.inspect(|bell| bell.retract());
            budget.learn(waited_ns());
            return found;
        }
        let left_ns = timeout_ns.saturating_sub(waited_ns());
        match bell {
            Some(bell) => bell.sleep(Some(Duration::from_nanos(left_ns))),
            None => {
                std::thread::sleep(Duration::from_nanos(nap_ns.min(left_ns)));
                nap_ns = (2 * nap_ns).min(NAP_NS_MAX);
            }
        }
    }
}
