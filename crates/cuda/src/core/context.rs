//! Contexts: what a program makes belongs to the one that was current, and ends with it. Each device has a primary one, which the runtime uses and which
//! begins anew when all have let go of it; a program makes others, as many as it likes.
//!
//! To the node all contexts of a device are one. Which of them a thing belongs to is a number in the tables here, so ending one is ending what has its number.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hinterland_proto::gpu::DEFAULT_STREAMS;

use super::handle::Table;
use super::session::Session;
use super::stream::Stream;
use crate::code::{Code, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE};

/// Flags that a context can have (`CU_CTX_FLAGS_MASK`). What they ask for is taken and has no effect: how a thread waits is ours to choose.
const FLAGS: u32 = 0xff;
/// Numbers below are primary contexts, each with the number of its device.
const PRIMARIES: u32 = DEFAULT_STREAMS;
/// The context of what belongs to a device and to none of its contexts: memory of pools, and what a program maps by itself.
const OF_NONE: u32 = u32::MAX;

/// Counts contexts that ended, so that a thread which has looked at its own need not look again. Never 0.
static ENDED: AtomicU64 = AtomicU64::new(1);

/// How many contexts have ended, and one more.
#[inline(always)]
pub(super) fn ended() -> u64 {
    // Acquire: pairs with the release in `note_end`; whoever sees the count finds the context gone.
    ENDED.load(Ordering::Acquire)
}

/// A context has ended: what threads remember of theirs, and of launches, holds no more.
fn note_end() {
    // Release: pairs with the load in `ended`.
    ENDED.fetch_add(1, Ordering::Release);
    super::recent::forget_all();
}

/// What a thing belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The device.
    pub device: u32,
    /// The number of the context.
    pub context: u32,
}

impl Owner {
    /// The primary context of a device.
    #[must_use]
    pub const fn primary(device: u32) -> Self {
        Self { device, context: device }
    }

    /// A device, and none of its contexts.
    #[must_use]
    pub const fn device_alone(device: u32) -> Self {
        Self { device, context: OF_NONE }
    }

    /// Whether this is the primary context of its device.
    #[must_use]
    pub const fn is_primary(self) -> bool {
        self.context < PRIMARIES
    }

    /// The number of the context that a program is told of.
    #[must_use]
    pub const fn told(self) -> u32 {
        if self.context == OF_NONE { self.device } else { self.context }
    }
}

/// Who holds a primary context.
#[derive(Debug, Default)]
struct Held {
    /// As often as the program has retained it and not released it.
    retained: u32,
    /// Whether the runtime uses it, which never lets go by itself.
    by_runtime: bool,
}

/// A context.
#[derive(Debug)]
pub struct Context {
    /// Its device and number.
    pub owner: Owner,
    /// The stream that calls without one use. To the node the default streams of all contexts of a device are the same.
    pub default_stream: Arc<Stream>,
    flags: AtomicU32,
    /// Contexts whose memory the program has let this one reach.
    reached: Mutex<BTreeSet<u32>>,
    /// How often it was emptied, of which only the primary ones survive.
    emptied: AtomicU32,
    held: Mutex<Held>,
    /// Whether it is held, and whether by the runtime, for who asks without the lock. Contexts that the program made always are, and never by the runtime.
    is_active: AtomicBool,
    is_of_runtime: AtomicBool,
}

impl Context {
    fn new(owner: Owner, flags: u32) -> Self {
        Self {
            owner,
            default_stream: Arc::new(Stream::new(owner.device, owner, 0, 0)),
            flags: AtomicU32::new(flags),
            reached: Mutex::default(),
            emptied: AtomicU32::new(0),
            held: Mutex::default(),
            is_active: AtomicBool::new(!owner.is_primary()),
            is_of_runtime: AtomicBool::new(false),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes who holds it; whether anybody does then.
    fn hold<T>(&self, change: impl FnOnce(&mut Held) -> T) -> (T, bool) {
        let mut held = self.held();
        let outcome = change(&mut held);
        let is_active = held.retained > 0 || held.by_runtime;
        // Relaxed: what a program does with a context in two threads at once has no order.
        self.is_active.store(is_active, Ordering::Relaxed);
        self.is_of_runtime.store(held.by_runtime, Ordering::Relaxed);
        (outcome, is_active)
    }

    /// Whether it can be used: a primary context that nobody holds has nothing and takes nothing.
    #[must_use]
    pub fn is_active(&self) -> bool {
        // Relaxed: as above.
        self.is_active.load(Ordering::Relaxed)
    }

    /// Whether the runtime uses it.
    #[must_use]
    pub fn is_of_runtime(&self) -> bool {
        // Relaxed: as above.
        self.is_of_runtime.load(Ordering::Relaxed)
    }

    /// Whether it ends when the program lets go of it once.
    fn is_held_once(&self) -> bool {
        let held = self.held();
        held.retained == 1 && !held.by_runtime
    }

    /// The runtime uses it from here on.
    pub(super) fn begin(&self) {
        if !self.is_of_runtime() {
            self.hold(|held| held.by_runtime = true);
        }
    }

    /// Its flags.
    #[must_use]
    pub fn flags(&self) -> u32 {
        // Relaxed: a number for questions.
        self.flags.load(Ordering::Relaxed)
    }

    /// Gives it other flags.
    ///
    /// # Errors
    /// There are no such flags.
    pub fn set_flags(&self, flags: u32) -> Result<(), Code> {
        check_flags(flags)?;
        // Relaxed: as above.
        self.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    /// Lets it reach memory of another one; whether it did not before.
    #[must_use]
    pub fn reach(&self, other: Owner) -> bool {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner).insert(other.context)
    }

    /// Undoes [`reach`](Self::reach); whether it did reach it.
    #[must_use]
    pub fn leave(&self, other: Owner) -> bool {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner).remove(&other.context)
    }

    /// Another one has gone.
    fn forget(&self, other: Owner) {
        let _ = self.leave(other);
    }
}

/// # Errors
/// No context has such flags: one that there is none of, or more than one way of waiting.
fn check_flags(flags: u32) -> Result<(), Code> {
    /// How a thread waits: by itself, turning round, giving way, or asleep.
    const WAYS: u32 = 7;
    if flags & !FLAGS == 0 && [0, 1, 2, 4].contains(&(flags & WAYS)) { Ok(()) } else { Err(INVALID_VALUE) }
}

/// The contexts of a session.
#[derive(Debug)]
pub(super) struct Contexts {
    primaries: Vec<Arc<Context>>,
    made: Table<Context>,
}

impl Contexts {
    pub(super) fn new(devices: u32) -> Self {
        Self {
            primaries: (0..devices).map(|device| Arc::new(Context::new(Owner::primary(device), 0))).collect(),
            made: Table::new(PRIMARIES),
        }
    }
}

impl Session {
    /// The context with a number.
    ///
    /// # Errors
    /// There is none (any more).
    pub fn context(&self, number: u32) -> Result<Arc<Context>, Code> {
        self.with_context(number, Arc::clone).ok_or(INVALID_CONTEXT)
    }

    /// Calls `work` with the context with a number, if there is one: with a primary one without a lock or a shared count.
    #[inline]
    pub(super) fn with_context<T>(&self, number: u32, work: impl FnOnce(&Arc<Context>) -> T) -> Option<T> {
        if number < PRIMARIES {
            self.contexts.primaries.get(number as usize).map(work)
        } else {
            self.contexts.made.get(number).ok().as_ref().map(work)
        }
    }

    /// The primary context of a device.
    ///
    /// # Errors
    /// No such device.
    pub fn primary(&self, device: u32) -> Result<&Arc<Context>, Code> {
        self.contexts.primaries.get(device as usize).ok_or(INVALID_DEVICE)
    }

    /// The runtime uses the primary context of a device from here on.
    ///
    /// # Errors
    /// No such device.
    pub fn begin_runtime(&self, device: u32) -> Result<(), Code> {
        self.primary(device).map(|primary| primary.begin())
    }

    /// All contexts at this moment.
    pub(super) fn all_contexts(&self) -> Vec<Arc<Context>> {
        let mut all = self.contexts.primaries.clone();
        all.extend(self.contexts.made.all());
        all
    }

    /// Makes a context of a device.
    ///
    /// # Errors
    /// There is no such device, there are no such flags, or all numbers were given.
    pub fn create_context(&self, device: u32, flags: u32) -> Result<Arc<Context>, Code> {
        self.device(device)?;
        check_flags(flags)?;
        self.contexts.made.add(|context| Ok(Context::new(Owner { device, context }, flags)))
    }

    /// Ends a context that the program made, and frees all that belongs to it once the work that was sent before is done.
    ///
    /// # Errors
    /// There is none (any more), it is a primary one, the calling thread is one that streams call functions by, a fault of work that was sent before (the context
    /// has ended then, too), or the node is gone.
    pub fn destroy_context(&self, number: u32) -> Result<(), Code> {
        let context = self.contexts.made.get(number).map_err(|_| INVALID_CONTEXT)?;
        self.wait_callbacks_of(context.owner)?;
        // Of two threads that end it at once, one does.
        self.contexts.made.remove(number).map_err(|_| INVALID_CONTEXT)?;
        note_end();
        let outcome = self.empty_context(&context);
        self.all_contexts().iter().for_each(|other| other.forget(context.owner));
        outcome
    }

    /// The program holds the primary context of a device once more.
    ///
    /// # Errors
    /// No such device, or it is held too often.
    pub fn retain_primary(&self, device: u32) -> Result<(), Code> {
        let add = |held: &mut Held| held.retained.checked_add(1).map(|more| held.retained = more);
        self.primary(device)?.hold(add).0.ok_or(INVALID_VALUE)
    }

    /// The program holds the primary context of a device once less. When neither it nor the runtime holds it any more, all that belongs to it is freed.
    ///
    /// # Errors
    /// No such device, or the program does not hold it; as [`destroy_context`](Self::destroy_context).
    pub fn release_primary(&self, device: u32) -> Result<(), Code> {
        let primary = self.primary(device)?;
        if primary.is_held_once() {
            self.wait_callbacks_of(primary.owner)?;
        }
        let remove = |held: &mut Held| held.retained.checked_sub(1).map(|left| held.retained = left);
        let (released, is_active) = primary.hold(remove);
        released.ok_or(INVALID_CONTEXT)?;
        if is_active {
            return Ok(());
        }
        note_end();
        self.empty_context(primary)
    }

    /// The runtime lets go of the primary context of a device, with all that the program has of the device.
    ///
    /// # Errors
    /// As [`reset_device`](Self::reset_device).
    pub fn end_runtime(&self, device: u32) -> Result<(), Code> {
        let primary = self.primary(device)?;
        self.wait_callbacks_of(primary.owner)?;
        let outcome = self.reset_device(device);
        primary.hold(|held| held.by_runtime = false);
        note_end();
        outcome
    }

    /// How often a context was emptied; none if it has ended. Whoever keeps something of it that is no name knows by that whether it is still there.
    #[must_use]
    pub fn emptied(&self, context: u32) -> Option<u32> {
        // Relaxed: what a program does with a context in one thread while it empties it in another has no order.
        self.with_context(context, |context| context.emptied.load(Ordering::Relaxed))
    }

    /// A context is about to lose all that belongs to it.
    pub(super) fn note_emptied(&self, context: &Context) {
        // Relaxed: as above.
        context.emptied.fetch_add(1, Ordering::Relaxed);
        context.reached.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.all_contexts().iter().for_each(|other| other.forget(context.owner));
    }
}

#[cfg(test)]
mod tests;
