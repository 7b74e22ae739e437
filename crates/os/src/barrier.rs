//! A memory barrier on every processor at once, so that the busy side of a hand-off needs none (`membarrier`).
//!
//! Two sides that each store one word and then load the other's need a full barrier between the two, or both may read what
//! was there before. Where one side does this for each message and the other only before it sleeps, the sleeper can have the
//! kernel run the barrier for both: see the manual of `membarrier(2)`, "GLOBAL_EXPEDITED".

use std::sync::OnceLock;

/// Whether this process has told the kernel that it wants to be part of such barriers, once.
static REGISTERED: OnceLock<bool> = OnceLock::new();

/// Makes this process part of the barriers that others ask for, and says whether it is; the first call asks the kernel.
/// Only a process for which this is `true` may leave its own barriers out.
pub fn register() -> bool {
    *REGISTERED.get_or_init(|| {
        let commands = membarrier(libc::MEMBARRIER_CMD_QUERY);
        let wanted = i64::from(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED);
        commands > 0
            && commands & wanted != 0
            && membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0
    })
}

/// Returns after every thread that runs, of all processes that have [registered](register), has passed a full barrier.
/// A few microseconds. `false` if the kernel refused, which it does not once [`register`] has returned `true`.
pub fn all_processors() -> bool {
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0
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
    }
}
