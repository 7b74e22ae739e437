//! A lock that one thread, the usual one, takes with plain stores and loads; others take that from it first.
//!
//! An ordinary lock begins with a locked instruction, which waits until all earlier stores of its processor have reached memory. Where these are
//! bytes that another process reads at the same moment, that wait is longer than all the rest of a command. This one avoids it for the
//! thread that has the *bias*. It goes beside an ordinary lock, under which the bias is given and taken back, and which everybody without it
//! takes ([`BiasedLock`](crate::BiasedLock) has both).
//!
//! # The protocol
//!
//! A *seat* has an owner, which never changes once it is set, and two flags: `busy`, which the owner alone writes, and `revoked`. `current` names the
//! seat that has the bias.
//!
//! | the owner | whoever holds the ordinary lock and finds a bias |
//! | --- | --- |
//! | busy = 1 | revoked = 1 |
//! | *light fence* | *heavy fence* |
//! | revoked? If not, it is inside; else busy = 0, and the ordinary lock | waits until busy = 0; then nobody has the bias |
//! | at the end busy = 0 (release) | (acquire) |
//!
//! # Why never two are inside
//!
//! Each side stores its own flag and then loads the other's, so it suffices that not both loads come too early. With two full
//! fences that is plain. Here the light fence binds the compiler only, and the heavy one is `membarrier(PRIVATE_EXPEDITED)`: between its call and its return, every
//! thread of the process that runs has passed a full barrier at some point P of its program (one that does not run has passed it when it was taken off).
//! The owner's P lies before its load of `revoked`, which then finds the 1 that was stored before the call, so that it stays outside; or
//! behind that load, thus behind its store of `busy`, and the other side, which loads `busy` after the call, finds it 1 and waits.
//!
//! What the owner did inside is seen by who takes the bias back: `busy` = 0 is stored with Release and loaded with Acquire. What others did is seen by
//! the owner: it gets the bias only while it holds the ordinary lock itself.
//!
//! # Why flags of earlier owners do no harm
//!
//! A thread may read `current`, be taken off for a second, and go on when the bias was taken back and given to another. It then stores and loads flags of
//! its *own* seat, whose `revoked` is 1 from the moment that the bias was taken back until the thread itself gets it again: it
//! stays outside. Seats are never handed on, so there are few, and a process whose usual thread changes more often keeps to the ordinary lock.

use crate::sync::{AtomicU32, AtomicU64, Ordering, light_fence};

/// Threads that may ever have the bias.
const SEATS: usize = if cfg!(loom) { 2 } else { 8 };
/// No seat has the bias.
const NOBODY: u32 = u32::MAX;

/// Who may enter without the ordinary lock.
#[derive(Debug)]
pub struct Bias {
    current: AtomicU32,
    seats: [Seat; SEATS],
}

/// What belongs to one thread for ever.
#[repr(align(128))]
#[derive(Debug)]
pub struct Seat {
    /// The thread, 0 until there is one.
    owner: AtomicU64,
    /// 1 while the owner is inside.
    busy: AtomicU32,
    /// 1 while the owner has to take the ordinary lock.
    revoked: AtomicU32,
}

impl Default for Bias {
    fn default() -> Self {
        let seat = |_| Seat { owner: AtomicU64::new(0), busy: AtomicU32::new(0), revoked: AtomicU32::new(1) };
        Self { current: AtomicU32::new(NOBODY), seats: std::array::from_fn(seat) }
    }
}

impl Bias {
    /// Enters if the thread `me` has the bias; then it owes a [`Seat::leave`]. Numbers of threads are above 0 and never used again.
    #[inline]
    pub fn enter(&self, me: u64) -> Option<&Seat> {
        // Relaxed: a hint. Only the owner of a seat finds its own number there, which it has stored itself.
        let seat = self.seats.get(self.current.load(Ordering::Relaxed) as usize)?;
        if seat.owner.load(Ordering::Relaxed) != me {
            return None;
        }
        // Relaxed: written by this thread only. Who is inside already, in a signal handler say, has no second way in.
        if seat.busy.load(Ordering::Relaxed) != 0 {
            return None;
        }
        // Relaxed: ordered by the heavy fence of take_back(), see above.
        seat.busy.store(1, Ordering::Relaxed);
        light_fence();
        // Relaxed: as above; a 0 was stored by this thread.
        if seat.revoked.load(Ordering::Relaxed) == 0 {
            return Some(seat);
        }
        seat.leave();
        None
    }

    /// Takes the bias back if somebody has it, and returns when that thread is not inside; whether somebody had it. Call it
    /// with the ordinary lock held. `heavy_fence` is the barrier of all threads; `pause` is called while the owner is inside.
    pub fn take_back(&self, heavy_fence: impl FnOnce(), mut pause: impl FnMut()) -> bool {
        // Relaxed: written under the ordinary lock.
        let Some(seat) = self.seats.get(self.current.load(Ordering::Relaxed) as usize) else { return false };
        // Relaxed: ordered by the heavy fence.
        seat.revoked.store(1, Ordering::Relaxed);
        heavy_fence();
        // Acquire: pairs with the Release in leave(); what the owner did inside is seen.
        while seat.busy.load(Ordering::Acquire) != 0 {
            pause();
        }
        // Relaxed: a hint, see enter().
        self.current.store(NOBODY, Ordering::Relaxed);
        true
    }

    /// Gives the bias to the calling thread, which holds the ordinary lock; nobody has it. `false` if there is no seat left.
    pub fn give(&self, me: u64) -> bool {
        for (number, seat) in self.seats.iter().enumerate() {
            // Relaxed: owners are written under the ordinary lock.
            let owner = seat.owner.load(Ordering::Relaxed);
            if owner != 0 && owner != me {
                continue;
            }
            seat.owner.store(me, Ordering::Relaxed);
            // Relaxed: read as 0 by this thread alone, and set again under the ordinary lock.
            seat.revoked.store(0, Ordering::Relaxed);
            // Relaxed: a hint, see enter(). There are few seats.
            self.current.store(number as u32, Ordering::Relaxed);
            return true;
        }
        false
    }
}

impl Seat {
    /// The owner is outside again.
    #[inline]
    pub fn leave(&self) {
        // Release: pairs with the Acquire in take_back().
        self.busy.store(0, Ordering::Release);
    }
}
