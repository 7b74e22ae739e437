//! A memory barrier on every processor at once, so that the busy side of a hand-off needs none (`membarrier`).
//!
//! Two sides that each store one word and then load the other's need a full barrier between the two, or both may read what
//! was there before. Where one side does this for each message and the other only before it sleeps, the sleeper can have the
//! kernel run the barrier for both: see the manual of `membarrier(2)`, "GLOBAL_EXPEDITED" between processes and "PRIVATE_EXPEDITED"
//! between the threads of one.

use std::sync::OnceLock;

/// Whether this process has told the kernel that it wants to be part of such barriers, once.
static REGISTERED: OnceLock<bool> = OnceLock::new();
/// The same for barriers of its own threads.
static REGISTERED_OWN: OnceLock<bool> = OnceLock::new();

/// Makes this process part of the barriers that others ask for, and says whether it is; the first call asks the kernel.
/// Only a process for which this is `true` may leave its own barriers out.
pub fn register() -> bool {
    *REGISTERED.get_or_init(|| {
        has(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
            && membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0
    })
}

/// Lets this process ask for barriers of [its own threads](own_threads), and says whether it may; the first call asks the kernel.
pub fn register_own() -> bool {
    *REGISTERED_OWN.get_or_init(|| {
        has(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
            && membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0
    })
}

/// Returns after every thread of this process that runs has passed a full barrier. Some microseconds.
///
/// # Panics
/// If [`register_own`] has not returned `true`, or the kernel has taken back what it promised there: a program that goes on
/// without the barrier may read what was there before.
pub fn own_threads() {
    let done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0
        // A filter of system calls that came later may still let the slow kind through.
        || membarrier(libc::MEMBARRIER_CMD_GLOBAL) == 0;
    assert!(done, "membarrier is refused (hint: HINTERLAND_NO_BIAS=1 does without it)");
}

/// Returns after every thread that runs, of all processes that have [registered](register), has passed a full barrier.
/// A few microseconds. `false` if the kernel refused, which it does not once [`register`] has returned `true`.
pub fn all_processors() -> bool {
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0
}

fn has(command: libc::c_int) -> bool {
    let commands = membarrier(libc::MEMBARRIER_CMD_QUERY);
    commands > 0 && commands & i64::from(command) != 0
}

fn membarrier(command: libc::c_int) -> i64 {
    // SAFETY: plain values.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn who_is_registered_can_ask_for_a_barrier() {
        assert_eq!(super::register(), super::register());
        assert!(!super::register() || super::all_processors());
        assert_eq!(super::register_own(), super::register_own());
        if super::register_own() {
            super::own_threads();
        }
    }
}
