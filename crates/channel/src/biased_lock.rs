//! A lock for what one thread uses nearly always, and any other may use as well.
//!
//! Who has taken it many times in a row without anybody between gets the [bias](crate::bias), and needs no locked instruction from then on. Another
//! thread takes it back, which costs a system call of some microseconds; so the bias is given only to who has earned as much.

use crate::bias::{Bias, Seat};
use hinterland_os::barrier;
use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Turns in a row after which a thread is taken for the usual one. A turn without the bias costs some 100 ns more, and taking it back some 10 us:
/// so a bias that is taken back at once costs a tenth of the turns before it.
const TURNS_MIN: u32 = 1024;
/// Looks at a thread that is inside before the next one sleeps between looks, and how long at most.
const LOOKS_AWAKE: u32 = 200;
const NAP_MAX: Duration = Duration::from_millis(1);

/// Numbers of threads are counted from 1.
static THREADS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The number of this thread, 0 until it needs one.
    static ME: Cell<u64> = const { Cell::new(0) };
}

/// A lock whose usual thread takes it cheaply. It is not fair, and who takes it twice waits for ever.
pub struct BiasedLock<T> {
    bias: Bias,
    turn: Mutex<Turns>,
    value: UnsafeCell<T>,
}

/// Who took the ordinary lock of late.
#[derive(Debug)]
struct Turns {
    last: u64,
    in_a_row: u32,
    /// Whether threads may get the bias.
    may_give: bool,
    /// Times that the bias was given, and taken back.
    given: u64,
    taken_back: u64,
}

// SAFETY: the value is reached by one thread at a time (see the bias), which may be any.
unsafe impl<T: Send> Sync for BiasedLock<T> {}
// SAFETY: the value goes with it.
unsafe impl<T: Send> Send for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    /// A lock around a value. Without `may_bias`, and where the kernel has no barrier for threads of one process, it is an ordinary one.
    pub fn new(value: T, may_bias: bool) -> Self {
        let may_give = may_bias && barrier::register_own();
        let turns = Turns { last: 0, in_a_row: 0, may_give, given: 0, taken_back: 0 };
        Self { bias: Bias::default(), turn: Mutex::new(turns), value: UnsafeCell::new(value) }
    }

    /// Waits for its turn.
    #[inline]
    pub fn lock(&self) -> BiasedGuard<'_, T> {
        if let Some(seat) = self.bias.enter(ME.get()) {
            return BiasedGuard { lock: self, hold: Hold::Seat(seat), _value: PhantomData };
        }
        self.lock_in_turn()
    }

    /// How often a thread got the bias, and how often it was taken back.
    pub fn biases(&self) -> (u64, u64) {
        let turns = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        (turns.given, turns.taken_back)
    }

    #[cold]
    fn lock_in_turn(&self) -> BiasedGuard<'_, T> {
        let me = own_number();
        let mut turns = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut looks = 0;
        if self.bias.take_back(barrier::own_threads, || pause(&mut looks)) {
            turns.taken_back += 1;
            turns.in_a_row = 0;
        }
        turns.in_a_row = if turns.last == me { turns.in_a_row.saturating_add(1) } else { 0 };
        turns.last = me;
        if turns.may_give && turns.in_a_row >= TURNS_MIN {
            turns.may_give = self.bias.give(me);
            turns.given += u64::from(turns.may_give);
        }
        BiasedGuard { lock: self, hold: Hold::Turn(turns), _value: PhantomData }
    }
}

impl<T> fmt::Debug for BiasedLock<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("BiasedLock").field("bias", &self.bias).finish_non_exhaustive()
    }
}

/// The value, for as long as this lives.
pub struct BiasedGuard<'lock, T> {
    lock: &'lock BiasedLock<T>,
    hold: Hold<'lock>,
    /// Other threads see the value through this only if they may see it at all.
    _value: PhantomData<&'lock mut T>,
}

/// By what a thread is inside. A guard of a mutex stays in its thread, and so does this.
enum Hold<'lock> {
    Seat(&'lock Seat),
    #[allow(dead_code, reason = "it is held, and not looked at")]
    Turn(MutexGuard<'lock, Turns>),
}

impl<T> Deref for BiasedGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this thread is inside, and no other one as long as the guard lives.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for BiasedGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for BiasedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // A turn ends with its guard.
        if let Hold::Seat(seat) = &self.hold {
            seat.leave();
        }
    }
}

fn own_number() -> u64 {
    if ME.get() == 0 {
        // Relaxed: numbers only have to differ.
        ME.set(THREADS.fetch_add(1, Ordering::Relaxed));
    }
    ME.get()
}

/// Waits a little for a thread that is inside: it is mostly out again at once, but it may wait for room.
fn pause(looks: &mut u32) {
    *looks += 1;
    match looks.checked_sub(LOOKS_AWAKE) {
        None => std::hint::spin_loop(),
        Some(naps) => std::thread::sleep(NAP_MAX.min(Duration::from_micros(20) * (naps + 1))),
    }
}
