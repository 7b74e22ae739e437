//! What CUDA keeps for each thread: the current device, the last error, a launch that is being put together, the thread's own stream.
//!
//! A program may call CUDA when its thread has taken leave of all that it kept, in destructors that run last. So nothing here is
//! taken for granted that has a destructor itself.

use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::capture_mode::CaptureMode;
use super::handle::Kind;
use super::session::{Session, present, session};
use super::stream::Stream;
use crate::code::{Code, INVALID_CONFIGURATION, SUCCESS};

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

/// The thread's own streams, one a device; they end with the thread.
#[derive(Default)]
struct Own(Vec<Option<Arc<Stream>>>);

impl Drop for Own {
    fn drop(&mut self) {
        if let Some(session) = present() {
            for stream in self.0.drain(..).flatten() {
                // The node may be gone, and nobody is there to be told.
                let _ = session.destroy_stream(&stream);
            }
        }
    }
}

thread_local! {
    static DEVICE: Cell<u32> = const { Cell::new(0) };
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
    DEVICE.get()
}

/// Makes a device current.
pub fn set_device(device: u32) {
    DEVICE.set(device);
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

/// Keeps an error for `cudaGetLastError` and returns it.
pub fn record(result: Result<(), Code>) -> Code {
    match result {
        Ok(()) => SUCCESS,
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
    let code = work();
    LAST.set(before);
    code
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
    /// The stream that a handle of the program names.
    ///
    /// # Errors
    /// It names none (any more).
    pub fn stream(&self, handle: *mut c_void) -> Result<Arc<Stream>, Code> {
        match handle.addr() {
            0 | LEGACY => self.default_stream(device()).cloned(),
            PER_THREAD => self.own_stream(),
            _ => self.streams.get(Kind::Stream.of(handle)?),
        }
    }

    fn own_stream(&self) -> Result<Arc<Stream>, Code> {
        let device = device();
        let found = OWN.try_with(|own| {
            let own = &mut own.borrow_mut().0;
            let place = device as usize;
            if own.len() <= place {
                own.resize(place + 1, None);
            }
            match &own[place] {
                Some(stream) if !stream.is_destroyed() => Ok(stream.clone()),
                _ => {
                    let stream = self.create_stream(device, 0, 0)?;
                    own[place] = Some(stream.clone());
                    Ok(stream)
                }
            }
        });
        // Behind the end of the thread's own stream there is the one that waits for all others.
        found.unwrap_or_else(|_| self.default_stream(device).cloned())
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
    session().and_then(work).err().unwrap_or(SUCCESS)
}
