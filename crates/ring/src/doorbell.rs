//! Sleeping until the peer has something, without a wake-up that gets lost and without a system call while awake.
//!
//! The sleeper announces itself, then looks once more, then sleeps; the ringer writes its message, then looks whether
//! somebody is announced. Between its store and its load each side has a sequentially consistent fence, so at least one
//! of them sees the other's store: either the sleeper finds the message, or the ringer finds the sleeper.

use std::time::Duration;

use crate::sync::{Ordering, SleepWord, fence};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// The doorbell of one side, a word in a cache line of its own in shared memory.
#[repr(C)]
#[derive(Debug)]
pub struct Doorbell {
    word: SleepWord,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Doorbell>() == 4);

impl Doorbell {
    /// The doorbell of somebody who is awake, for models; in shared memory zeroed bytes are one.
    #[cfg(loom)]
    pub fn silent() -> Self {
        Self { word: SleepWord::new() }
    }

    /// Called by the ringer after it has written messages; `true` if the other side has to be woken, which is then the
    /// duty of the caller ([`wake`](Self::wake), or the descriptor that it waits on).
    #[inline]
    pub fn must_wake(&self) -> bool {
        // SeqCst: pairs with the fence in announce(); orders our messages before our look at the word.
        fence(Ordering::SeqCst);
        // Relaxed: the fence above orders it; whoever reads ASLEEP here takes the duty by the swap below.
        if self.word.value.load(Ordering::Relaxed) == AWAKE {
            return false;
        }
        // AcqRel: pairs with the swaps in announce() and retract(); of several ringers one gets the duty.
        self.word.value.swap(AWAKE, Ordering::AcqRel) != AWAKE
    }

    /// The same without the fence, for ringers that ring after each message. Right only if the sleeper has every processor
    /// pass a barrier between [`announce`](Self::announce) and its last look
    /// ([`all_processors`](hinterland_os::barrier::all_processors)) and the ringer's process takes part in it
    /// ([`register`](hinterland_os::barrier::register)).
    #[inline]
    pub fn must_wake_unfenced(&self) -> bool {
        // The model checker knows no barrier that one thread makes for another.
        #[cfg(loom)]
        fence(Ordering::SeqCst);
        // The compiler may not move the load over the stores of the message; the sleeper's barrier keeps the processor to it.
        #[cfg(not(loom))]
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        // Relaxed: as in must_wake(), with the sleeper's barrier in the place of our fence.
        if self.word.value.load(Ordering::Relaxed) == AWAKE {
            return false;
        }
        // AcqRel: pairs with the swaps in announce() and retract(); of several ringers one gets the duty.
        self.word.value.swap(AWAKE, Ordering::AcqRel) != AWAKE
    }

    /// Wakes the thread that sleeps on the word.
    pub fn wake(&self) {
        self.word.wake();
    }

    /// Called by the sleeper before its last look for messages.
    pub fn announce(&self) {
        // AcqRel: pairs with the swap in must_wake(). A swap, not a store, so that the changes of the word have one order
        // in which a ringer's swap cannot fall behind an announcement that it has not seen.
        self.word.value.swap(ASLEEP, Ordering::AcqRel);
        // SeqCst: pairs with the fence in must_wake(); orders our word before our last look.
        fence(Ordering::SeqCst);
    }

    /// Called by the sleeper when its last look found nothing: sleeps until woken or until the time is over. It may
    /// return early; the caller looks for messages again.
    pub fn sleep(&self, timeout: Option<Duration>) {
        self.word.wait(ASLEEP, timeout);
    }

    /// Called by the sleeper when it is up, for whatever reason.
    pub fn retract(&self) {
        // AcqRel: pairs with the swap in must_wake(). A ringer that still reads ASLEEP wakes somebody who is awake, which
        // does no harm.
        self.word.value.swap(AWAKE, Ordering::AcqRel);
    }
}
