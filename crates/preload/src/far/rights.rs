//! Calls after which a process could not begin to have far memory any more: it begins before them.
//!
//! Beginning takes the socket of the supervisor, a userfaultfd that tells of forks, a few descriptors and a thread. Who gives up its user, its
//! root, its rights or its limits may have none of them afterwards. What a program asks of the kernel without the C library is not seen: it is
//! told that its memory is the kernel's when it asks for some.

use super::arming::{self, Otherwise};
use libc::{c_char, c_int, c_uint, c_ulong, c_void, rlimit, uid_t};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// A limit of open files below this may leave none for beginning.
const DESCRIPTORS_MIN: u64 = 64;
/// The same for the bytes of a file: there is a page that is shared with the supervisor.
const FILE_BYTES_MIN: u64 = 64 << 10;

/// Whether the process may not reach the supervisor as others do, and so may the programs that it becomes.
static HAS_CHANGED: AtomicBool = AtomicBool::new(false);

/// Whether this process, or one that it was forked from, has given something up.
pub(super) fn have_changed() -> bool {
    HAS_CHANGED.load(Ordering::Relaxed) // Relaxed: whoever changed something did so before it becomes another program.
}

/// The process is about to give something up.
fn give_up() {
    arming::begin(Otherwise::Ended);
    note_change();
}

fn note_change() {
    if arming::is_wanted() {
        HAS_CHANGED.store(true, Ordering::Relaxed); // Relaxed: as above.
    }
}

/// A function of the C library behind ours.
pub(super) struct Next {
    name: &'static CStr,
    place: AtomicPtr<c_void>,
}

impl Next {
    pub(super) const fn new(name: &'static CStr) -> Self {
        Self { name, place: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The function; null where there is none.
    pub(super) fn find(&self) -> *mut c_void {
        // Relaxed: whoever finds nothing looks again, and finds the same.
        let known = self.place.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name is NUL-terminated.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.place.store(found, Ordering::Relaxed); // Relaxed: as above.
        found
    }
}

/// Stands in for functions that give something up and whose work the C library does, in all threads.
macro_rules! before_the_c_library {
    ($($name:ident($($argument:ident: $kind:ty),*));* $(;)?) => {$(
        #[doc = concat!("`", stringify!($name), "(2)`.")]
        ///
        /// # Safety
        /// As the call itself.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            static NEXT: Next = Next::new(
                // A literal with one NUL, at its end.
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                },
            );
            give_up();
            let next = NEXT.find();
            if next.is_null() {
                return fail(libc::ENOSYS);
            }
            // SAFETY: the C library's function of this name, which has this shape.
            unsafe {
                let next: unsafe extern "C-unwind" fn($($kind),*) -> c_int = std::mem::transmute(next);
                next($($argument),*)
            }
        }
    )*};
}

before_the_c_library! {
    setuid(user: uid_t);
    seteuid(user: uid_t);
    setreuid(real: uid_t, effective: uid_t);
    setresuid(real: uid_t, effective: uid_t, saved: uid_t);
}

/// Stands in for functions that are a call of the kernel and nothing else.
macro_rules! before_the_kernel {
    ($($name:ident($($argument:ident: $kind:ty),*) = $number:ident);* $(;)?) => {$(
        #[doc = concat!("`", stringify!($name), "(2)`.")]
        ///
        /// # Safety
        /// As the call itself.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            give_up();
            // SAFETY: the program asked for exactly this.
            unsafe { libc::syscall(libc::$number, $($argument),*) as c_int }
        }
    )*};
}

before_the_kernel! {
    setfsuid(user: uid_t) = SYS_setfsuid;
    chroot(path: *const c_char) = SYS_chroot;
    pivot_root(new: *const c_char, old: *const c_char) = SYS_pivot_root;
    mount(source: *const c_char, target: *const c_char, kind: *const c_char, flags: c_ulong, data: *const c_void) = SYS_mount;
    capset(header: *const c_void, data: *const c_void) = SYS_capset;
}

/// `unshare(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn unshare(what: c_int) -> c_int {
    leave(what);
    // SAFETY: the program asked for exactly this.
    unsafe { libc::syscall(libc::SYS_unshare, what) as c_int }
}

/// `setns(2)`.
///
/// # Safety
/// As the call itself.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setns(descriptor: c_int, what: c_int) -> c_int {
    leave(what);
    // SAFETY: the program asked for exactly this.
    unsafe { libc::syscall(libc::SYS_setns, descriptor, what) as c_int }
}

/// The process is about to be in other namespaces. One of users is refused to a process with threads, such as ours: who asks for it before there is one
/// gets it, and is told that its memory is the kernel's.
fn leave(what: c_int) {
    if what & libc::CLONE_NEWUSER != 0 {
        note_change();
    } else {
        give_up();
    }
}

/// `prctl(2)`. Its arguments are optional in C; on the processors of Linux optional numbers are passed as others are.
///
/// # Safety
/// As `prctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prctl(what: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    // A filter may come without this library's knowledge behind PR_SET_NO_NEW_PRIVS.
    if matches!(what, libc::PR_SET_SECCOMP | libc::PR_SET_NO_NEW_PRIVS) {
        give_up();
    }
    // SAFETY: the program asked for exactly this.
    unsafe { libc::syscall(libc::SYS_prctl, what, a, b, c, d) as c_int }
}

/// `setrlimit(2)`.
///
/// # Safety
/// As `setrlimit`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setrlimit(what: c_uint, limit: *const rlimit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { prlimit(0, what, limit, std::ptr::null_mut()) }
}

/// `setrlimit64`: the same where limits have 64 bits.
///
/// # Safety
/// As `setrlimit`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setrlimit64(what: c_uint, limit: *const rlimit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { prlimit(0, what, limit, std::ptr::null_mut()) }
}

/// `prlimit(2)`.
///
/// # Safety
/// As `prlimit`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prlimit(
    process: libc::pid_t,
    what: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: the caller's promise: a limit or null.
    if let Some(limit) = unsafe { new.as_ref() }
        && (process == 0 || process as u32 == std::process::id())
        && is_narrow(what, limit.rlim_cur)
    {
        arming::begin(Otherwise::Ended);
    }
    // SAFETY: the program asked for exactly this.
    unsafe { libc::syscall(libc::SYS_prlimit64, process, what, new, old) as c_int }
}

/// `prlimit64`: the same where limits have 64 bits.
///
/// # Safety
/// As `prlimit`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prlimit64(
    process: libc::pid_t,
    what: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { prlimit(process, what, new, old) }
}

/// Whether a limit may be too low to begin below it.
const fn is_narrow(what: c_uint, limit: u64) -> bool {
    match what {
        libc::RLIMIT_NOFILE => limit < DESCRIPTORS_MIN,
        libc::RLIMIT_FSIZE => limit < FILE_BYTES_MIN,
        libc::RLIMIT_NPROC | libc::RLIMIT_AS => limit != libc::RLIM_INFINITY,
        _ => false,
    }
}

fn fail(code: c_int) -> c_int {
    // SAFETY: the C library gives every thread an errno.
    unsafe { *libc::__errno_location() = code };
    -1
}
