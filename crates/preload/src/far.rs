//! Far memory: the program's side. Large anonymous memory is told to the supervisor, a thread moves pages out on its order.
//!
//! Nothing happens unless `hinterland run --local` set `HINTERLAND_FAR_SOCKET`. Then the library, as it is loaded,
//!
//! 1. makes a userfaultfd and hands it to the supervisor ([`link`]);
//! 2. starts the reclaim thread ([`mover`]), which ends the process if the supervisor is gone, and keeps a descriptor of the userfaultfd where
//!    no `close` of the program reaches it: if the supervisor dies, faults wait and never see zeros;
//! 3. turns the C library's own `mmap`, `munmap`, `mremap`, `madvise` and `brk` to the functions here ([`patch`]), so that `malloc`'s
//!    memory is seen, too ([`calls`]);
//! 4. hands each program that one becomes over as it begins, so that one without this library is told of ([`programs`]).
//!
//! A child of `fork` greets anew before `fork` returns in it.

mod calls;
mod claims;
mod layout;
mod link;
mod mover;
mod patch;
mod programs;
mod reserved;
mod thread;

pub(crate) use calls::{advise, map, protect, remap, unmap};
pub(crate) use claims::{control, lock_all};

use hinterland_region::system::say;
use link::Begin;
use std::sync::atomic::{AtomicU32, Ordering};

/// The process in which far memory is on; 0 at first. A child has its parent's number here until it has greeted: what it
/// allocates before is the kernel's alone, because connection and locks are still those of the parent.
static PROCESS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn is_active() -> bool {
    // Acquire: pairs with the Release in `activate`, behind which everything is set up.
    let process = PROCESS.load(Ordering::Acquire);
    process != 0 && process == std::process::id()
}

fn activate() {
    // Release: pairs with the Acquire in `is_active`.
    PROCESS.store(std::process::id(), Ordering::Release);
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

/// Runs as the library is loaded, before the program.
extern "C" fn begin() {
    let Some(socket) = crate::mounts::variable(c"HINTERLAND_FAR_SOCKET") else { return };
    let result = match link::connect(socket, layout::prepare) {
        Ok(()) => set_up(),
        Err(Begin::Failed(error)) => Err(error.to_string()),
        Err(Begin::Outside(why)) => {
            if let Some(why) = why {
                say(&format!("the memory of this program is the kernel's, and none of the budget's: {why}"));
            }
            return;
        }
    };
    if let Err(why) = result {
        say(&format!("far memory cannot be had, and the program is not started: {why}"));
        // SAFETY: ends the process at once; nothing of the program has run.
        unsafe { libc::_exit(125) };
    }
    activate();
}

fn set_up() -> Result<(), String> {
    programs::learn_own_name();
    patch::turn_to_us()?;
    mover::start().map_err(|error| error.to_string())?;
    // SAFETY: the function lives as long as this library.
    if unsafe { libc::pthread_atfork(None, None, Some(child)) } != 0 {
        return Err("no memory for a handler of fork (hint: free some)".to_owned());
    }
    calls::grow_heap_in_steps();
    Ok(())
}

/// In a child that `fork` has just made: it has no reclaim thread, and its memory has a descriptor that only the supervisor has. What its
/// parent's reclaim thread has is not in its table of descriptors.
unsafe extern "C" fn child() {
    let result = layout::prepare().and_then(link::reconnect).and_then(|()| {
        activate();
        mover::start()
    });
    if let Err(error) = result {
        say(&format!("a child of fork cannot have far memory, and is ended: {error}"));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(125) };
    }
}
