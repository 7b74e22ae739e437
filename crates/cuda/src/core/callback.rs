//! Functions of the program that are called in the order of a stream, by one thread, in the order in which they were given.
//!
//! The node knows nothing of them. A function is called when a mark behind the work before it is reached, and whoever puts work of the
//! program behind it waits until it has returned. What ends objects of the program, which nothing
//! is behind, is called by a thread of its own: functions do not wait for the work of all devices, as those do.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use super::context::Owner;
use super::inbox::Pending;
use super::list::HostCall;
use super::session::Session;
use super::stream::{APART, Stream};
use crate::code::{CAPTURE_UNSUPPORTED, Code, NO_MEMORY, NOT_PERMITTED};

/// How long one function runs while a call waits, before the program is told: it may be one that waits for that call.
const PATIENCE: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });

/// Says that a call waits while a function does not return.
fn say_wait() {
    eprintln!(
        "hinterland: a function of the program that a stream calls has not returned for {} s, and a call waits for it, or for a launch of a graph that calls functions (hint: a function must not wait for a call that puts work behind it, nor for what that call's thread does then: with a GPU elsewhere such a call returns when the function has)",
        PATIENCE.as_secs()
    );
}

/// What is called, with the error of the work before it or 0.
pub type Call = Box<dyn FnOnce(Code) + Send>;

impl HostCall {
    /// Calls the function, and not if the work before it failed.
    pub(super) fn call(self) -> Call {
        Box::new(move |code| {
            if code == 0 {
                // SAFETY: the program's own function with its own data, which it keeps until then.
                unsafe { (self.function)(std::ptr::with_exposed_provenance_mut(self.data)) };
            }
        })
    }
}

thread_local! {
    /// Whether this is a thread that calls.
    static IS_CALLER: Cell<bool> = const { Cell::new(false) };
}

/// Whether a function of the program that a stream calls is what calls this.
pub(super) fn is_caller() -> bool {
    IS_CALLER.get()
}

/// The stream that a function was given to.
#[derive(Debug, Clone, Copy)]
struct Place {
    stream: u32,
    owner: Owner,
    is_default: bool,
    is_apart: bool,
}

impl Place {
    fn of(stream: &Stream) -> Self {
        Self {
            stream: stream.number,
            owner: stream.owner,
            is_default: stream.is_default(),
            is_apart: stream.flags & APART != 0,
        }
    }

    /// Whether work of the one stream waits for that of the other.
    fn meets(&self, other: &Self) -> bool {
        self.owner == other.owner
            && (self.stream == other.stream
                || self.is_default && !other.is_apart
                || other.is_default && !self.is_apart)
    }
}

/// A function whose turn has not come.
struct Waiting {
    marks: Vec<Arc<Pending>>,
    call: Call,
}

#[derive(Default)]
struct State {
    /// Functions that have not returned, by their stream, if they have one: those that wait, and before them the one that is being called.
    open: VecDeque<Option<Place>>,
    waiting: VecDeque<Waiting>,
    /// Launches of graphs that functions are called in, by the threads that make them, from their first command to their last.
    launches: Vec<(ThreadId, Place)>,
    has_thread: bool,
    /// The function that is being called, by how many were before it. While this is none, the work in front of the next one is what is waited for.
    called: Option<u64>,
    calls: u64,
    /// Whether the program was told that a function does not return.
    has_said: bool,
}

impl State {
    /// Whether a launch that is meant is made by another thread than this one.
    fn is_launched(&self, is_meant: impl Fn(&Place) -> bool) -> bool {
        self.launches.iter().any(|(thread, place)| is_meant(place) && *thread != std::thread::current().id())
    }

    /// Whether anything that is meant is in front of what this thread does.
    fn is_in_front(&self, is_meant: impl Fn(&Place) -> bool) -> bool {
        self.open.iter().flatten().any(&is_meant) || self.is_launched(is_meant)
    }
}

/// The functions of a session.
#[derive(Default)]
pub struct Callbacks {
    state: Mutex<State>,
    changed: Condvar,
    /// As many as are open, and launches, for who asks without the lock.
    open: AtomicUsize,
}

/// A launch that functions are called in: for other threads its stream is not done until it is over, also while none of the functions is open.
pub(super) struct Launching<'session> {
    callbacks: &'session Callbacks,
    thread: ThreadId,
}

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        let mut state = self.callbacks.state();
        // A thread makes one launch at a time.
        state.launches.retain(|(thread, _)| *thread != self.thread);
        self.callbacks.count(&state);
    }
}

impl fmt::Debug for Callbacks {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Callbacks").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Callbacks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline(always)]
    fn is_any_open(&self) -> bool {
        // Acquire: pairs with the release in `count`; what a function wrote is seen by who does not wait for it any more.
        self.open.load(Ordering::Acquire) != 0
    }

    fn is_open(&self, is_meant: impl Fn(&Place) -> bool) -> bool {
        self.is_any_open() && self.state().is_in_front(is_meant)
    }

    /// Says how many there are, and that they are others than before.
    fn count(&self, state: &State) {
        // Release: pairs with the load in `is_any_open`.
        self.open.store(state.open.len() + state.launches.len(), Ordering::Release);
        self.changed.notify_all();
    }

    /// Returns when nothing of what is meant is so.
    #[cold]
    fn wait(&self, is_so: impl Fn(&State) -> bool) -> Result<MutexGuard<'_, State>, Code> {
        if IS_CALLER.get() {
            return Err(NOT_PERMITTED);
        }
        let mut state = self.state();
        while is_so(&state) {
            let called = state.called;
            let waited = self.changed.wait_timeout(state, PATIENCE);
            let (after, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
            state = after;
            if outcome.timed_out() && !state.has_said && called.is_some() && state.called == called {
                state.has_said = true;
                // Whoever reads standard error may be slow, and the function may return meanwhile.
                drop(state);
                say_wait();
                state = self.state();
            }
        }
        Ok(state)
    }

    /// The next function is being called.
    fn begin(&self) {
        let mut state = self.state();
        state.calls += 1;
        state.called = Some(state.calls);
    }

    /// The next function; waits for one.
    fn next(&self) -> Waiting {
        let mut state = self.state();
        loop {
            if let Some(next) = state.waiting.pop_front() {
                return next;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self) {
        let mut state = self.state();
        state.open.pop_front();
        state.called = None;
        self.count(&state);
    }
}

impl Session {
    /// Has a function called when the work of a stream so far is done; work that is put there later waits for it.
    ///
    /// # Errors
    /// The stream is being captured, this is such a function itself, there can be no thread, or the node is gone.
    pub fn call_in_order(&'static self, stream: &Arc<Stream>, call: Call) -> Result<(), Code> {
        if IS_CALLER.get() {
            return Err(NOT_PERMITTED);
        }
        if stream.is_captured() {
            self.invalidate_capture(stream);
            return Err(CAPTURE_UNSUPPORTED);
        }
        self.check_default(stream)?;
        self.call_begun(stream, call)
    }

    /// The same for a function of work that has begun, whatever else begins meanwhile.
    ///
    /// # Errors
    /// There can be no thread, or the node is gone.
    pub(super) fn call_begun(&'static self, stream: &Arc<Stream>, call: Call) -> Result<(), Code> {
        let place = Place::of(stream);
        if self.callbacks.is_any_open() {
            // Not between the commands of a launch that another thread makes.
            drop(self.callbacks.wait(|state| state.is_launched(|other| place.meets(other)))?);
        }
        let marks = self.end_of_work(stream)?.into_iter().collect();
        self.call_behind(&self.callbacks, marks, call, Some(place))
    }

    /// Begins a launch that functions are called in, when nothing is in front of it any more; it lasts as long as what is returned.
    ///
    /// # Errors
    /// This is such a function itself.
    pub(super) fn begin_launch(&self, stream: &Stream) -> Result<Launching<'_>, Code> {
        let (callbacks, place, thread) = (&self.callbacks, Place::of(stream), std::thread::current().id());
        // All at once: two launches that wait for each other's streams would else wait forever.
        let mut state = callbacks.wait(|state| state.is_in_front(|other| place.meets(other)))?;
        state.launches.push((thread, place));
        callbacks.count(&state);
        drop(state);
        Ok(Launching { callbacks, thread })
    }

    fn call_behind(
        &'static self,
        callbacks: &'static Callbacks,
        marks: Vec<Arc<Pending>>,
        call: Call,
        place: Option<Place>,
    ) -> Result<(), Code> {
        let mut state = callbacks.state();
        if !state.has_thread {
            start(self, callbacks)?;
            state.has_thread = true;
        }
        state.waiting.push_back(Waiting { marks, call });
        state.open.push_back(place);
        callbacks.count(&state);
        Ok(())
    }

    /// Has a function called when all work is done that was sent so far, or cannot be any more; nothing waits for it.
    pub(super) fn call_behind_all(&'static self, call: Call) {
        let marks = self.end_of_all_work().unwrap_or_default();
        if self.call_behind(&self.endings, marks, call, None).is_err() {
            eprintln!("hinterland: there can be no thread that ends an object of a graph, which stays");
        }
    }

    /// Has a function of the program called in the order of a stream: by each launch of the graph that it is being captured into, if it is.
    ///
    /// # Errors
    /// As [`call_in_order`](Self::call_in_order), or the capture has failed.
    pub fn call_host(&'static self, stream: &Arc<Stream>, call: HostCall) -> Result<(), Code> {
        if stream.is_captured() && !IS_CALLER.get() {
            return self.capture_call(stream, call);
        }
        self.call_in_order(stream, call.call())
    }

    /// Whether there may be a function to be waited for, or this may be one, which waits for none.
    #[inline(always)]
    fn is_any_open(&self) -> bool {
        self.callbacks.is_any_open() || self.endings.is_any_open()
    }

    /// Waits for the functions that work of a stream has before it, and for launches of other threads that call some.
    ///
    /// # Errors
    /// This is such a function itself.
    #[inline(always)]
    pub(super) fn wait_callbacks(&self, stream: &Stream) -> Result<(), Code> {
        if self.is_any_open() {
            let place = Place::of(stream);
            drop(self.callbacks.wait(|state| state.is_in_front(|other| place.meets(other)))?);
        }
        Ok(())
    }

    /// Waits for the functions of all streams of a context.
    ///
    /// # Errors
    /// This is such a function itself.
    pub(super) fn wait_callbacks_of(&self, owner: Owner) -> Result<(), Code> {
        if self.is_any_open() {
            drop(self.callbacks.wait(|state| state.is_in_front(|other| other.owner == owner))?);
        }
        Ok(())
    }

    /// Whether a function that work of a stream has before it has not returned, or a launch that calls some is not over.
    pub(super) fn has_callback(&self, stream: &Stream) -> bool {
        let place = Place::of(stream);
        self.callbacks.is_open(|other| place.meets(other))
    }

    fn call_all(&self, callbacks: &Callbacks) {
        IS_CALLER.set(true);
        loop {
            let next = callbacks.next();
            // All of them, also behind one that says that its device failed.
            let mut outcome = Ok(());
            for mark in &next.marks {
                outcome = outcome.and(self.wait_mark(mark));
            }
            callbacks.begin();
            (next.call)(outcome.err().unwrap_or_else(|| self.sticky()));
            callbacks.finish();
        }
    }
}

/// Starts the thread that calls. It gets none of the program's signals, and ends with the program.
fn start(session: &'static Session, callbacks: &'static Callbacks) -> Result<(), Code> {
    // SAFETY: sets of signals are plain, and the call writes the one that was in force.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let started =
        std::thread::Builder::new().name("cuda-callbacks".into()).spawn(|| session.call_all(callbacks));
    // SAFETY: as above; this is the set from before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    started.map(drop).map_err(|_| NO_MEMORY)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::core::hostile::{HERE, with_lasting_session};

    #[test]
    fn a_call_that_waits_long_for_a_function_is_told() {
        with_lasting_session(|session| {
            let stream = session.create_stream(HERE, APART, 0).unwrap();
            let until_said = |_| {
                while !session.callbacks.state().has_said {
                    std::thread::yield_now();
                }
            };
            session.call_in_order(&stream, Box::new(until_said)).unwrap();
            session.wait_callbacks(&stream).unwrap();
            assert!(session.callbacks.state().has_said);
        });
    }

    #[test]
    fn no_function_is_blamed_for_the_work_in_front_of_it() {
        let callbacks = Callbacks::default();
        callbacks.state().open.push_back(None);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| callbacks.wait(|state| !state.open.is_empty()).map(drop));
            std::thread::sleep(PATIENCE * 3 / 2);
            callbacks.begin();
            callbacks.finish();
            waits.join().unwrap().unwrap();
        });
        assert!(!callbacks.state().has_said);
    }
}
