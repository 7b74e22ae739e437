//! Processes and threads: names, the fate of children, and being told when another process ends.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::{OsError, check};

/// A file of the kernel, such as those of `/proc`, as text. Names of programs, files and mount points stand there as bytes, which need not be
/// text: the kernel cuts the names of programs at 15 of them, also within a character. What is none is replaced.
///
/// # Errors
/// As of [`std::fs::read`].
pub fn text_of(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = std::fs::read(path)?;
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Names the calling thread, as `ps -L` and `top -H` show it; the kernel keeps the first 15 bytes.
pub fn name_thread(name: &str) {
    let mut bytes = [0u8; 16];
    for (to, from) in bytes[..15].iter_mut().zip(name.bytes().filter(|&byte| byte != 0)) {
        *to = from;
    }
    // SAFETY: the name is 16 bytes with a final zero and lives through the call, which cannot fail for such.
    unsafe { libc::prctl(libc::PR_SET_NAME, bytes.as_ptr()) };
}

/// Makes the calling thread give way to others, more so the larger `nice` is (0 to 19); it stays as it is where that is forbidden.
pub fn lower_thread(nice: i32) {
    // SAFETY: plain values; 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

/// `IOPRIO_WHO_PROCESS` of `linux/ioprio.h`.
const IOPRIO_WHO_PROCESS: libc::c_int = 1;
/// `IOPRIO_CLASS_BE`, the first of its eight levels.
const IOPRIO_USUAL: libc::c_int = 2 << 13;

/// Lets the calling thread run before all that have no such right (`SCHED_FIFO`), or not any more. Threads that it makes do not inherit it.
///
/// Its transfers to and from disks are like those of others from then on. Without that, the kernel derives their priority from that of the
/// thread, and then some of its schedulers (`mq-deadline`) keep all other transfers waiting as long as one of these is under way.
///
/// # Errors
/// `EPERM` without the right to: `CAP_SYS_NICE`, or a limit of real-time priority above 0.
pub fn run_first(is_first: bool) -> Result<(), OsError> {
    let policy = if is_first { libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK } else { libc::SCHED_OTHER };
    let parameters = libc::sched_param { sched_priority: libc::c_int::from(is_first) };
    // SAFETY: the parameters live through the call; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
    check(result, "sched_setscheduler", || format!("policy {policy}"))?;
    if is_first {
        // SAFETY: plain values; 0 is the calling thread. A kernel without priorities of transfers has no such trouble.
        unsafe { libc::syscall(libc::SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_USUAL) };
    }
    Ok(())
}

/// Has the kernel send `signal` to the calling process when the thread that made it ends. Call it in the child, and then
/// compare the parent with the one expected, since it may have gone before.
///
/// # Errors
/// `EINVAL` for a number that is no signal.
pub fn signal_when_parent_dies(signal: i32) -> Result<(), OsError> {
    // SAFETY: plain values.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) };
    check(result, "prctl(PR_SET_PDEATHSIG)", || format!("signal {signal}")).map(drop)
}

/// Has a file that grows over the limit of file sizes (`ulimit -f`) be an error, `EFBIG`, and not the end of this process without a word. Programs that this one
/// becomes or starts have it as before.
pub fn survive_file_size_limit() {
    extern "C" fn do_nothing(_signal: libc::c_int) {}
    // SAFETY: an all-zero sigaction is valid, and the default.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only.
    let asked = unsafe { libc::sigaction(libc::SIGXFSZ, std::ptr::null(), &mut action) };
    if asked == 0 && action.sa_sigaction == libc::SIG_DFL {
        action.sa_sigaction = do_nothing as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: the handler does nothing.
        unsafe { libc::sigaction(libc::SIGXFSZ, &action, std::ptr::null_mut()) };
    }
}

/// Set when the process begins, before anything stands in the place of a closed descriptor.
static WAS_OUTPUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Called by the loader before `main`: Rust's runtime opens `/dev/null` where standard output is closed, and then nothing tells it from what was asked for.
#[used]
// SAFETY: the section is a list of functions that are called once at the start; this one asks the kernel and stores a flag.
#[unsafe(link_section = ".init_array")]
static LOOK_AT_OUTPUT: extern "C" fn() = look_at_output;

extern "C" fn look_at_output() {
    // SAFETY: asks only.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    // Relaxed: no other thread exists.
    WAS_OUTPUT_CLOSED.store(flags < 0, Ordering::Relaxed);
}

/// Whether standard output was closed when the process began: what is written to it goes nowhere, without an error.
pub fn was_output_closed() -> bool {
    // Relaxed: it was written before any thread was made.
    WAS_OUTPUT_CLOSED.load(Ordering::Relaxed)
}

/// The user that this process acts as.
pub fn effective_user() -> u32 {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { libc::geteuid() }
}

/// The group that this process acts as.
pub fn effective_group() -> u32 {
    // SAFETY: as above.
    unsafe { libc::getegid() }
}

/// Most descriptors that this process may have open; `u64::MAX` if the kernel does not say.
pub fn descriptors_max() -> u64 {
    limit(libc::RLIMIT_NOFILE)
}

/// Most bytes that a file of this process may have; `u64::MAX` if there is no limit, or the kernel does not say.
pub fn file_bytes_max() -> u64 {
    limit(libc::RLIMIT_FSIZE)
}

fn limit(of: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes to a live structure.
    let result = unsafe { libc::getrlimit(of, &raw mut limit) };
    if result == 0 { limit.rlim_cur } else { u64::MAX }
}

/// Most bytes that a child of this process, or a child of one, had resident; those that have been waited for.
pub fn children_resident_bytes_max() -> u64 {
    // SAFETY: an all-zero structure is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes to a live structure.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024
}

/// Nanoseconds of user and of system time that children of this process took, and theirs; those that have been waited for.
pub fn children_times_ns() -> (u64, u64) {
    // SAFETY: an all-zero structure is valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes to a live structure.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let ns = |time: libc::timeval| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        seconds * 1_000_000_000 + u64::try_from(time.tv_usec).unwrap_or(0) * 1000
    };
    (ns(usage.ru_utime), ns(usage.ru_stime))
}

/// Page faults that the calling thread has had, those for which something had to be read among them.
pub fn thread_faults() -> u64 {
    // SAFETY: a record of numbers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the record outlives the call, which cannot fail with these arguments.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    (usage.ru_minflt as u64).wrapping_add(usage.ru_majflt as u64)
}

/// A process that can be waited for and signalled without its number being taken by another one (`pidfd`).
#[derive(Debug)]
pub struct ProcessHandle {
    descriptor: OwnedFd,
    process: i32,
}

impl ProcessHandle {
    /// Opens the process with this number.
    ///
    /// # Errors
    /// `ESRCH` if there is none.
    pub fn open(process: i32) -> Result<Self, OsError> {
        // SAFETY: plain values.
        let result = unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) };
        let raw = check(result as libc::c_int, "pidfd_open", || format!("process {process}"))?;
        // SAFETY: the descriptor is fresh and owned by nobody else.
        Ok(Self { descriptor: unsafe { OwnedFd::from_raw_fd(raw) }, process })
    }

    /// Its number.
    pub fn number(&self) -> i32 {
        self.process
    }

    /// Whether it has ended within `timeout`. The descriptor may also be given to a [`crate::poll::Poller`]: it is
    /// readable from the end of the process on.
    ///
    /// # Errors
    /// The refusal of `poll`.
    pub fn has_ended(&self, timeout: Duration) -> Result<bool, OsError> {
        crate::poll::wait_readable(&self.descriptor, Some(timeout))
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// `ESRCH` if it has ended, `EPERM` for the process of another user.
    pub fn signal(&self, signal: i32) -> Result<(), OsError> {
        let raw = self.descriptor.as_raw_fd();
        // SAFETY: plain values and a null siginfo, which asks for the usual one.
        let result = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, raw, signal, std::ptr::null::<libc::siginfo_t>(), 0)
        };
        check(result as libc::c_int, "signal", || format!("process {}", self.process)).map(drop)
    }
}

impl AsFd for ProcessHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_process_is_noticed() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        let handle = ProcessHandle::open(child.id() as i32).unwrap();
        assert!(!handle.has_ended(Duration::ZERO).unwrap());
        handle.signal(libc::SIGKILL).unwrap();
        assert!(handle.has_ended(Duration::from_secs(5)).unwrap());
        child.wait().unwrap();
        assert!(handle.signal(0).is_err());
    }

    #[test]
    fn transfers_of_a_thread_that_runs_first_wait_for_their_turn() {
        std::thread::spawn(|| {
            if run_first(true).is_err() {
                return eprintln!("not run: needs CAP_SYS_NICE");
            }
            // SAFETY: plain values.
            let level = unsafe { libc::syscall(libc::SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0) };
            assert_eq!(level, libc::c_long::from(IOPRIO_USUAL), "not the class of real-time threads");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn the_limit_of_descriptors_is_the_one_that_the_kernel_shows() {
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let shown = line.split_whitespace().nth(3).unwrap();
        assert_eq!(shown.parse().unwrap_or(u64::MAX), descriptors_max());
    }

    #[test]
    fn a_long_name_of_a_thread_is_cut() {
        std::thread::spawn(|| {
            name_thread("hinterland-fault-service-3");
            let name = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
            assert_eq!(name.trim(), "hinterland-faul");
        })
        .join()
        .unwrap();
    }
}
