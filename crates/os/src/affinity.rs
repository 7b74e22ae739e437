//! The processors that this process may run on, and pinning a thread to one of them.

use crate::error::{OsError, check};

/// Processors that this thread may run on.
pub fn allowed_cores() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes a set of the size given.
    let result = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) };
    if result < 0 {
        return vec![0];
    }
    // SAFETY: every index is below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize).filter(|&core| unsafe { libc::CPU_ISSET(core, &set) }).collect()
}

/// Number of processors that this thread may run on; at least one.
pub fn core_count() -> usize {
    allowed_cores().len().max(1)
}

/// Number of processors of the machine that are switched on, whichever of them this thread may use; at least one.
pub fn online_core_count() -> usize {
    // SAFETY: takes a plain value.
    let result = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(result).unwrap_or(1).max(1)
}

/// The processor that this thread runs on at this moment.
pub fn current_core() -> usize {
    // SAFETY: takes no arguments; fails only on kernels without the call.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Lets the calling thread run only on the given processors.
///
/// # Errors
/// `EINVAL` if none of them exists or is allowed.
pub fn pin_thread_to(cores: &[usize]) -> Result<(), OsError> {
    // SAFETY: an all-zero cpu_set_t is an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for &core in cores.iter().filter(|&&core| core < libc::CPU_SETSIZE as usize) {
        // SAFETY: the index is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(core, &mut set) };
    }
    // SAFETY: the set lives through the call.
    let result = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
    check(result, "pinning the thread", || format!("processors {cores:?}")).map(drop)
}

/// Lets the calling thread run only on one processor.
///
/// # Errors
/// `EINVAL` if it does not exist or is not allowed.
pub fn pin_thread(core: usize) -> Result<(), OsError> {
    pin_thread_to(&[core])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_runs_on_its_core() {
        std::thread::spawn(|| {
            let core = *allowed_cores().last().unwrap();
            pin_thread(core).unwrap();
            assert_eq!(current_core(), core);
            assert_eq!(core_count(), 1);
            assert!(online_core_count() >= 1);
            assert!(pin_thread(libc::CPU_SETSIZE as usize - 1).is_err());
        })
        .join()
        .unwrap();
    }
}
