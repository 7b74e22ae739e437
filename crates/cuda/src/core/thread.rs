//! What CUDA keeps for each thread: the current device, the last error, a launch that is being put together, the thread's own stream.
//!
//! A program may call CUDA when its thread has taken leave of all that it kept, in destructors that run last. So nothing here is
//! taken for granted that has a destructor itself.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::capture_mode::CaptureMode;
use super::context::{Context, Owner, ended};
use super::handle::Kind;
use super::session::{Session, present, session};
use super::stream::Stream;
use crate::code::{
    CONTEXT_IS_DESTROYED, Code, INVALID_CONFIGURATION, INVALID_CONTEXT, NOT_READY, SUCCESS, of_driver,
};

/// `cudaStreamLegacy`
const LEGACY: usize = 1;
/// `cudaStreamPerThread`
const PER_THREAD: usize = 2;

/// Groups and threads of a launch, by dimension.
pub type Extent = [u32; 3];

/// What `<<<...>>>` pushes before it calls the stub of a kernel.
#[derive(Debug, Clone, Copy)]
pub struct Configuration {
    /// Groups.
    pub grid: Extent,
    /// Threads of a group.
    pub block: Extent,
    /// Bytes of dynamic shared memory.
    pub shared: usize,
    /// Stream.
    pub stream: *mut c_void,
}

/// Launches that one thread puts together at most: an argument of one may be what a function returns that makes another.
const PUSHED_MAX: usize = 8;

/// Which context calls of a thread are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The program said nothing but, perhaps, a device: the one that the runtime uses.
    Runtime,
    /// The one that the program made current by the driver's functions.
    Program,
    /// The program said that none is current. The runtime's functions use its own.
    None,
}

/// What is current for a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Current {
    /// Who says so.
    pub choice: Choice,
    /// The context, with its device; the primary one of the thread's device if none is current.
    pub owner: Owner,
}

/// What most calls look at, in one place, as finding a place of the thread's takes as long as all that is done with it.
struct Here {
    device: Cell<u32>,
    context: Cell<u32>,
    choice: Cell<Choice>,
    /// Whether a function of the driver's is being called, and not one of the runtime's.
    is_driver: Cell<bool>,
    /// Contexts that had ended when the current one was last seen to be there, for the runtime's functions and for the driver's.
    seen: [Cell<u64>; 2],
}

impl Here {
    const fn new() -> Self {
        Self {
            device: Cell::new(0),
            context: Cell::new(0),
            choice: Cell::new(Choice::Runtime),
            is_driver: Cell::new(false),
            seen: [const { Cell::new(0) }; 2],
        }
    }

    fn current(&self) -> Current {
        let owner = Owner { device: self.device.get(), context: self.context.get() };
        Current { choice: self.choice.get(), owner }
    }

    fn set(&self, current: Current) {
        self.choice.set(current.choice);
        self.device.set(current.owner.device);
        self.context.set(current.owner.context);
        self.seen.iter().for_each(|one| one.set(0));
    }
}

/// The thread's own streams, one a context; they end with the thread.
#[derive(Default)]
struct Own(Vec<Arc<Stream>>);

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(session) = present() {
            for stream in self.0.drain(..) {
                // The node may be gone, and nobody is there to be told.
                let _ = session.destroy_stream(&stream);
            }
        }
    }
}

thread_local! {
    static HERE: Here = const { Here::new() };
    static LAST: Cell<Code> = const { Cell::new(SUCCESS) };
    static LAUNCHES: [Cell<Option<Configuration>>; PUSHED_MAX] = const { [const { Cell::new(None) }; PUSHED_MAX] };
    static PUSHED: Cell<usize> = const { Cell::new(0) };
    static CAPTURE_MODE: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
    static NUMBER: Cell<u64> = const { Cell::new(0) };
    static OWN: RefCell<Own> = const { RefCell::new(Own(Vec::new())) };
}

/// The current device of the calling thread.
#[must_use]
pub fn device() -> u32 {
    HERE.with(|here| here.device.get())
}

/// The number of the current context of the calling thread.
#[must_use]
pub(super) fn context() -> u32 {
    HERE.with(|here| here.context.get())
}

/// What is current for the calling thread.
#[must_use]
pub fn current() -> Current {
    HERE.with(Here::current)
}

/// Makes it so.
pub fn set_current(current: Current) {
    HERE.with(|here| here.set(current));
}

/// Makes a device current, with the context that the runtime uses.
pub fn set_device(device: u32) {
    let new = Current { choice: Choice::Runtime, owner: Owner::primary(device) };
    HERE.with(|here| {
        if here.current() != new {
            here.set(new);
        }
    });
}

/// Runs a part of a function of the driver's or of the runtime's as such.
pub fn as_driver<T>(is_driver: bool, work: impl FnOnce() -> T) -> T {
    let before = HERE.with(|here| here.is_driver.replace(is_driver));
    let outcome = work();
    HERE.with(|here| here.is_driver.set(before));
    outcome
}

/// What the calling thread said that it may do while something is being captured.
pub(super) fn capture_mode() -> CaptureMode {
    CAPTURE_MODE.get()
}

/// Says it anew; returns what it was before.
pub fn exchange_capture_mode(mode: CaptureMode) -> CaptureMode {
    CAPTURE_MODE.replace(mode)
}

/// A number that no other thread has, from 1.
pub(super) fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    if NUMBER.get() == 0 {
        // Relaxed: numbers need only differ.
        NUMBER.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
    }
    NUMBER.get()
}

/// Keeps an error for `cudaGetLastError` and returns it. That something is not done yet is none.
pub fn record(result: Result<(), Code>) -> Code {
    match result {
        Ok(()) => SUCCESS,
        Err(NOT_READY) => NOT_READY,
        Err(code) => {
            LAST.set(code);
            code
        }
    }
}

/// The error that was kept; `clear` forgets it.
#[must_use]
pub fn last_error(clear: bool) -> Code {
    let code = LAST.get();
    if clear {
        LAST.set(SUCCESS);
    }
    code
}

/// Runs a function of the runtime for one of the driver, which keeps no error.
pub fn without_record(work: impl FnOnce() -> Code) -> Code {
    let before = LAST.get();
    let code = as_driver(true, work);
    LAST.set(before);
    of_driver(code)
}

/// Keeps a launch until its stub asks for it.
///
/// # Errors
/// Too many are kept.
pub fn push_launch(configuration: Configuration) -> Result<(), Code> {
    let count = PUSHED.get();
    LAUNCHES
        .with(|all| all.get(count).map(|place| place.set(Some(configuration))))
        .ok_or(INVALID_CONFIGURATION)?;
    PUSHED.set(count + 1);
    Ok(())
}

/// The launch that was pushed last.
///
/// # Errors
/// None was.
pub fn pop_launch() -> Result<Configuration, Code> {
    let last = PUSHED.get().checked_sub(1).ok_or(INVALID_CONFIGURATION)?;
    PUSHED.set(last);
    LAUNCHES.with(|all| all[last].get()).ok_or(INVALID_CONFIGURATION)
}

impl Session {
    /// Looks that the current context of the calling thread is there. A function of the runtime's has the primary one begin if it must.
    ///
    /// # Errors
    /// It has ended; none is current, and this is a function of the driver's.
    #[inline(always)]
    pub fn check_current(&self) -> Result<(), Code> {
        let seen = HERE.with(|here| here.seen[usize::from(here.is_driver.get())].get());
        if seen == ended() { Ok(()) } else { self.look_at_current() }
    }

    #[cold]
    fn look_at_current(&self) -> Result<(), Code> {
        let (ended, is_driver) = (ended(), HERE.with(|here| here.is_driver.get()));
        let Current { choice, owner } = current();
        if is_driver && choice == Choice::None {
            return Err(INVALID_CONTEXT);
        }
        let is_there = self.with_context(owner.context, |context| {
            // With a program that calls the driver and has said nothing we are as patient as with one that calls the runtime.
            if owner.is_primary() && (!is_driver || choice == Choice::Runtime && !context.is_active()) {
                context.begin();
            }
            context.is_active()
        });
        if is_there != Some(true) {
            return Err(CONTEXT_IS_DESTROYED);
        }
        if choice == Choice::None {
            set_device(owner.device);
        }
        HERE.with(|here| here.seen[usize::from(is_driver)].set(ended));
        Ok(())
    }

    /// What things belong to that the calling thread makes now.
    ///
    /// # Errors
    /// As [`check_current`](Self::check_current).
    pub fn owner(&self) -> Result<Owner, Code> {
        self.check_current()?;
        Ok(current().owner)
    }

    /// The same on a device: the current context if it is one of that device, or its primary one.
    ///
    /// # Errors
    /// As [`check_current`](Self::check_current).
    pub fn owner_on(&self, device: u32) -> Result<Owner, Code> {
        let owner = self.owner()?;
        Ok(if owner.device == device { owner } else { Owner::primary(device) })
    }

    /// The current context of the calling thread.
    ///
    /// # Errors
    /// As [`check_current`](Self::check_current).
    pub fn current_context(&self) -> Result<Arc<Context>, Code> {
        self.check_current()?;
        self.context(context()).map_err(|_| CONTEXT_IS_DESTROYED)
    }

    /// The stream that calls without one use.
    ///
    /// # Errors
    /// As [`check_current`](Self::check_current).
    pub fn default_stream(&self) -> Result<Arc<Stream>, Code> {
        self.check_current()?;
        self.default_of(context())
    }

    fn default_of(&self, context: u32) -> Result<Arc<Stream>, Code> {
        self.with_context(context, |context| context.default_stream.clone()).ok_or(CONTEXT_IS_DESTROYED)
    }

    /// The stream that a handle of the program names.
    ///
    /// # Errors
    /// It names none (any more); as [`check_current`](Self::check_current).
    pub fn stream(&self, handle: *mut c_void) -> Result<Arc<Stream>, Code> {
        self.check_current()?;
        match handle.addr() {
            0 | LEGACY => self.default_of(context()),
            PER_THREAD => self.own_stream(),
            _ => self.streams.get(Kind::Stream.of(handle)?),
        }
    }

    fn own_stream(&self) -> Result<Arc<Stream>, Code> {
        let owner = current().owner;
        let found = OWN.try_with(|own| {
            let own = &mut own.borrow_mut().0;
            if let Some(stream) = own.iter().find(|one| one.owner == owner && !one.is_destroyed()) {
                return Ok(stream.clone());
            }
            own.retain(|one| !one.is_destroyed());
            let stream = self.create_stream(owner, 0, 0)?;
            own.push(stream.clone());
            Ok(stream)
        });
        // Behind the end of the thread's own stream there is the one that waits for all others.
        found.unwrap_or_else(|_| self.default_of(owner.context))
    }
}

/// Runs what a function of the runtime does: its error is kept for the thread.
pub fn runtime(work: impl FnOnce() -> Result<(), Code>) -> Code {
    record(work())
}

/// The same with the session.
pub fn with_session(work: impl FnOnce(&'static Session) -> Result<(), Code>) -> Code {
    record(session().and_then(work))
}

/// The same for a function of the driver, which keeps no error.
pub fn driver(work: impl FnOnce(&'static Session) -> Result<(), Code>) -> Code {
    as_driver(true, || quick_driver(work))
}

/// The same for a launch, which says where it counts whose function it is.
#[inline(always)]
pub fn quick_driver(work: impl FnOnce(&'static Session) -> Result<(), Code>) -> Code {
    session().and_then(work).err().map_or(SUCCESS, of_driver)
}
