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

/// Processors that a thread may run on.
#[derive(Clone, Copy)]
pub struct CoreSet(libc::cpu_set_t);

impl CoreSet {
    /// Those of a thread, also of another process; 0 is the calling thread.
    ///
    /// # Errors
    /// `ESRCH` if there is no such thread.
    pub fn of_thread(thread: i32) -> Result<Self, OsError> {
        // SAFETY: an all-zero cpu_set_t is an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes a set of the size given.
        let result = unsafe { libc::sched_getaffinity(thread, size_of::<libc::cpu_set_t>(), &mut set) };
        check(result, "sched_getaffinity", || format!("thread {thread}")).map(|_| Self(set))
    }

    /// One processor; `None` if there is none with this number.
    pub fn one(core: usize) -> Option<Self> {
        // SAFETY: an all-zero cpu_set_t is an empty set.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        if core >= libc::CPU_SETSIZE as usize {
            return None;
        }
        // SAFETY: the index is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(core, &mut set) };
        Some(Self(set))
    }

    /// Whether a processor is among them.
    pub fn contains(&self, core: usize) -> bool {
        // SAFETY: the index is below CPU_SETSIZE.
        core < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(core, &self.0) }
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        // SAFETY: it reads a live set.
        usize::try_from(unsafe { libc::CPU_COUNT(&self.0) }).unwrap_or(0)
    }

    /// Lets a thread run on these only; 0 is the calling thread.
    ///
    /// # Errors
    /// `EINVAL` if none of them exists or is allowed, `ESRCH` if there is no such thread, `EPERM` for another user's.
    pub fn apply(&self, thread: i32) -> Result<(), OsError> {
        // SAFETY: the set lives through the call.
        let result = unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &self.0) };
        check(result, "sched_setaffinity", || format!("thread {thread}")).map(drop)
    }
}

/// The processor that a thread, also one of another process, ran on last; `None` if there is no such thread.
pub fn core_of_thread(thread: i32) -> Option<usize> {
    let text = crate::process::text_of(format!("/proc/{thread}/stat")).ok()?;
    // The name in brackets may hold anything; the processor is the 37th word behind it.
    let (_, rest) = text.rsplit_once(") ")?;
    rest.split(' ').nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_thread_is_found_where_it_runs_and_kept_there() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: takes no arguments.
            tell.send(unsafe { libc::gettid() }).unwrap();
            ended.recv().unwrap();
            current_core()
        });
        let number = told.recv().unwrap();
        let before = CoreSet::of_thread(number).unwrap();
        assert_eq!(before.count(), core_count());
        assert!(before.contains(core_of_thread(number).unwrap()));
        let last = *allowed_cores().last().unwrap();
        CoreSet::one(last).unwrap().apply(number).unwrap();
        assert_eq!(CoreSet::of_thread(number).unwrap().count(), 1);
        end.send(()).unwrap();
        assert_eq!(thread.join().unwrap(), last);
        assert!(CoreSet::of_thread(i32::MAX).is_err() && core_of_thread(i32::MAX).is_none());
        assert!(CoreSet::one(libc::CPU_SETSIZE as usize).is_none());
    }

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
