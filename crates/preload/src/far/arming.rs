//! When far memory begins in a process: with the first memory that is worth it, or before the process can no longer have it.
//!
//! Most processes are small and short: a shell's children, what a build starts. For them nothing is made but what the loader does. A
//! process begins with the first [`REGION_BYTES_MIN`](super::calls::REGION_BYTES_MIN) that it asks for at once, or when all that it has asked for in
//! smaller parts is more than [`UNTOLD_BYTES_MAX`]. This may be in any thread, in a handler of a signal, and within `malloc`, whose locks are
//! held: nothing here allocates ([`quiet`]) or waits for the program.

use super::layout::{self, Signals, acquire, release};
use super::link::{self, Begin};
use super::{activate, calls, heap, is_active, mover, quiet};
use crate::cancel::uncancelled;
use hinterland_os::OsError;
use hinterland_region::system::say;
use libc::c_int;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// What a process may ask for without being known, its writable data included: a shell has half of it.
const UNTOLD_BYTES_MAX: u64 = 1 << 20;
/// What a process ends with that must not go on, as one that was not started.
const CODE: c_int = 125;

/// The process that may begin; 0 where there is no far memory. A child of `vfork` has its parent's number here, and must not begin in its name.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Held while a process begins.
static LOCK: AtomicU32 = AtomicU32::new(0);
/// The thread that holds it; 0 if none does.
static HOLDER: AtomicUsize = AtomicUsize::new(0);
/// Bytes that were asked for and are not told of.
static UNTOLD: AtomicU64 = AtomicU64::new(0);
/// The first process of the run, which the kernel ends with it until its reclaim thread does; 0 in all programs that others have become.
static FIRST: AtomicU32 = AtomicU32::new(0);

/// What becomes of a process that must not go on without far memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Otherwise {
    /// Nothing of it has run: whatever is in the way ends it.
    NotStarted,
    /// It has run. What may pass, such as that it has no descriptor left, does not end it.
    Ended,
}

unsafe extern "C" {
    /// Whether this process has one thread that the C library made: the C library's own, which it writes.
    safe static __libc_single_threaded: AtomicU8;
}

/// This process may begin from here on. `data_bytes` is what it was loaded with.
pub(super) fn allow(data_bytes: u64, is_first: bool, is_eager: bool) {
    OWNER.store(std::process::id(), Ordering::Relaxed); // Relaxed: there is one thread.
    // Relaxed: as above.
    FIRST.store(if is_first { std::process::id() } else { 0 }, Ordering::Relaxed);
    UNTOLD.store(data_bytes, Ordering::Relaxed); // Relaxed: as above.
    if is_eager || data_bytes > UNTOLD_BYTES_MAX {
        begin(Otherwise::NotStarted);
    } else if is_first {
        end_with_the_run();
        link::tell_presence();
    }
}

/// The kernel has ended this process with its run from the start; it does so again in a program that one with far memory has become.
fn end_with_the_run() {
    if end_signal() == Some(0) {
        // SAFETY: plain values.
        unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    }
}

/// The signal that this thread gets when its parent ends.
fn end_signal() -> Option<c_int> {
    let mut signal: c_int = 0;
    // SAFETY: the kernel writes a number.
    let known = unsafe { libc::syscall(libc::SYS_prctl, libc::PR_GET_PDEATHSIG, &raw mut signal) } == 0;
    known.then_some(signal)
}

/// Whether the library waits for what this process does to its memory: it has not begun, and may.
pub(super) fn is_waiting() -> bool {
    // Relaxed: a process that has begun meanwhile is asked again where it matters.
    OWNER.load(Ordering::Relaxed) != 0 && !super::has_begun()
}

/// Whether there is far memory for this process: it has begun, or may.
pub(super) fn is_wanted() -> bool {
    OWNER.load(Ordering::Relaxed) != 0 // Relaxed: as above.
}

fn may_begin() -> bool {
    // Relaxed: written by this process before it had threads, or under the lock.
    is_waiting() && OWNER.load(Ordering::Relaxed) == std::process::id()
}

/// Memory is asked for: far memory begins if it is so much `at_once`, or with what was asked for before. Returns whether it is on.
pub(super) fn asks(bytes: u64, at_once: bool) -> bool {
    if !is_waiting() {
        return is_active();
    }
    // Relaxed: a count of its own.
    let all = UNTOLD.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
    if at_once && bytes >= calls::REGION_BYTES_MIN || all > UNTOLD_BYTES_MAX {
        return begin(Otherwise::Ended);
    }
    false
}

/// Has far memory begin here, if it may. Returns whether it is on.
pub(super) fn begin(otherwise: Otherwise) -> bool {
    if is_active() || !may_begin() {
        return is_active();
    }
    let own = quiet::thread();
    // Relaxed: only this thread finds itself there: a handler of `fork` asks for memory.
    if HOLDER.load(Ordering::Relaxed) == own {
        return false;
    }
    // SAFETY: the C library gives every thread an errno.
    let errno = unsafe { *libc::__errno_location() };
    // A thread that is cancelled would leave the lock.
    uncancelled(|| {
        // A handler of a signal that asks for memory would wait for the thread that it interrupts.
        let held = Signals::hold();
        acquire(&LOCK);
        HOLDER.store(own, Ordering::Relaxed); // Relaxed: as above.
        let is_on = is_active() || may_begin() && try_to_begin(otherwise);
        HOLDER.store(0, Ordering::Relaxed); // Relaxed: as above.
        release(&LOCK);
        drop(held);
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        is_on
    })
}

fn try_to_begin(otherwise: Otherwise) -> bool {
    let is_on = quiet::quietly(|| {
        let result = link::connect(layout::prepare).and_then(|()| mover::start().map_err(Begin::Failed));
        match result {
            Ok(()) => true,
            Err(Begin::Outside(why)) => {
                OWNER.store(0, Ordering::Relaxed); // Relaxed: under the lock; who comes later asks once more.
                if let Some(why) = why {
                    say(&format!(
                        "the memory of this program is the kernel's, and none of the budget's: {why}"
                    ));
                }
                false
            }
            Err(Begin::Short(error)) if otherwise == Otherwise::Ended => {
                UNTOLD.store(0, Ordering::Relaxed); // Relaxed: a count of its own.
                say_short(&error);
                false
            }
            Err(Begin::Short(error) | Begin::Failed(error)) => {
                let what = match otherwise {
                    Otherwise::NotStarted => "the program is not started",
                    Otherwise::Ended => "the program is ended",
                };
                say(&format!("far memory cannot be had, and {what}: {error}"));
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(CODE) }
            }
        }
    });
    if is_on {
        stay_when_the_run_ends();
        activate();
        if let Some((from, to)) = heap::untold() {
            link::register(from, to - from);
        }
    }
    is_on
}

fn say_short(error: &OsError) {
    static SAID: AtomicBool = AtomicBool::new(false);
    // Relaxed: guards nothing but a sentence.
    if !SAID.swap(true, Ordering::Relaxed) {
        say(&format!(
            "far memory cannot begin, and what this program asks for is not far until it can: {error}"
        ));
    }
}

/// The kernel ends the first process with its run as long as nobody else does. From here on the reclaim thread does, and says why.
fn stay_when_the_run_ends() {
    // Relaxed: written before there were threads.
    if FIRST.load(Ordering::Relaxed) != std::process::id() {
        return;
    }
    if end_signal() == Some(libc::SIGKILL) {
        // SAFETY: plain values.
        unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, 0) };
    }
}

/// Before `fork`: a process with several threads begins, so that a child is one of a process that has begun or of one that nobody else begins meanwhile. To
/// hold the lock over the fork would be no way: who asks for memory may hold the locks of `malloc`, which the fork waits for next.
pub(super) unsafe extern "C" fn before_fork() {
    // Alone, this thread cannot be at it.
    // Relaxed: what another thread writes is not there without one.
    if __libc_single_threaded.load(Ordering::Relaxed) == 0 && may_begin() {
        begin(Otherwise::Ended);
    }
    if is_active() {
        link::before_fork();
        layout::before_fork();
    }
}

/// In the parent, whether there is a child or not.
pub(super) unsafe extern "C" fn after_fork() {
    if is_active() {
        layout::after_fork();
        mover::after_fork();
    }
}

/// In the child, which has one thread.
pub(super) fn in_child() {
    // Relaxed, here and below: there is one thread. It writes only what is another: each page that it writes to is copied.
    if LOCK.load(Ordering::Relaxed) != 0 {
        LOCK.store(0, Ordering::Relaxed);
        HOLDER.store(0, Ordering::Relaxed);
    }
    if OWNER.load(Ordering::Relaxed) != 0 {
        OWNER.store(std::process::id(), Ordering::Relaxed);
    }
}
