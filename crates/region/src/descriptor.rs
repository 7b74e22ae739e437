//! Descriptors that libraries of ours keep in a process whose program may close any number it likes.
//!
//! Programs do close what they did not open: daemons at their start, libraries before they run others. So descriptors of
//! ours have high numbers, are known by the file behind them and not closed under a number that is somebody else's by
//! now; and the one that must never go, because memory would read as zeros without it, is kept by a thread with a
//! table of descriptors of its own.

use crate::thread;
use hinterland_os::OsError;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Descriptors of ours get numbers from here on, if the limit allows: far from those that programs give away
/// (`dup2` onto a small number) or expect (`select`).
const DESCRIPTOR_MIN: u64 = 960;

/// A duplicate of a descriptor with a high number, closed on exec.
///
/// # Errors
/// `EMFILE` without descriptors left.
pub(crate) fn raised(descriptor: BorrowedFd<'_>) -> Result<OwnedFd, OsError> {
    try_raised(descriptor)
        .ok_or_else(|| OsError::last("fcntl(F_DUPFD_CLOEXEC)", "a descriptor of the library"))
}

/// As `raised`; `None` without descriptors left. Allocates nothing.
pub fn try_raised(descriptor: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel writes to a live structure.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let lowest = DESCRIPTOR_MIN.min(limit.rlim_cur - limit.rlim_cur / 4);
    // SAFETY: plain values; the number is below the limit of descriptors, which is an int.
    let raw = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest as libc::c_int) };
    // SAFETY: the descriptor is fresh and owned by nobody else.
    (raw >= 0).then(|| unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Has the kernel make the table of descriptors of this process large enough for those numbers. To be called while there is
/// one thread: with more, the kernel waits until every processor has forgotten the smaller table, 15 ms where it was measured.
pub fn make_room() {
    // SAFETY: plain values.
    let raw = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if raw >= 0 {
        // SAFETY: the descriptor is fresh and owned by nobody else.
        let low = unsafe { OwnedFd::from_raw_fd(raw) };
        // Without descriptors left the program is told when it maps.
        drop(try_raised(low.as_fd()));
    }
}

/// A value that owns a descriptor, which is closed only if it is still the same file.
pub struct Own<T> {
    value: ManuallyDrop<T>,
    number: RawFd,
    identity: (u64, u64),
}

impl<T> Own<T> {
    /// Takes the value that owns `number`.
    pub fn new(value: T, number: RawFd) -> Self {
        Self { value: ManuallyDrop::new(value), number, identity: identity_of(number) }
    }

    /// The number of the descriptor.
    pub const fn number(&self) -> RawFd {
        self.number
    }

    /// Whether the number still leads to the file.
    pub fn is_ours(&self) -> bool {
        identity_of(self.number) == self.identity
    }
}

impl<T> Deref for Own<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: the value is dropped here only.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// Device and inode behind a descriptor; zeros if it is closed.
fn identity_of(descriptor: RawFd) -> (u64, u64) {
    // SAFETY: an all-zero stat is valid, and the kernel writes to a live structure.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        if libc::syscall(libc::SYS_fstat, descriptor, &raw mut status) != 0 {
            return (0, 0);
        }
        (status.st_dev, status.st_ino)
    }
}

/// Keeps the file behind a descriptor open, whatever the program closes, until it is dropped.
pub(crate) struct Keeper {
    word: Arc<(Mutex<Stage>, Condvar)>,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Stage {
    Starting,
    Keeping,
    Over,
}

impl Keeper {
    /// Starts a thread that shares no descriptors with the program and has only this one.
    ///
    /// # Errors
    /// `EAGAIN` beyond the limit of threads. Where a thread may not have descriptors of its own, nothing is kept.
    pub fn start(descriptor: BorrowedFd<'_>) -> std::io::Result<Self> {
        let word = Arc::new((Mutex::new(Stage::Starting), Condvar::new()));
        let (told, number) = (Arc::clone(&word), descriptor.as_raw_fd());
        thread::start(move || keep(number, &told))?;
        let keeper = Self { word };
        keeper.wait_until(|stage| stage != Stage::Starting);
        Ok(keeper)
    }

    fn wait_until(&self, reached: impl Fn(Stage) -> bool) {
        wait_until(&self.word, reached);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        set(&self.word, Stage::Over);
    }
}

fn keep(number: RawFd, word: &(Mutex<Stage>, Condvar)) {
    // SAFETY: the call gives this thread a copy of the table of descriptors; no other thread is concerned.
    let alone = unsafe { libc::unshare(libc::CLONE_FILES) } == 0;
    if alone {
        // The number is not negative: it is that of an open descriptor.
        let number = number as libc::c_uint;
        let close = |first: libc::c_uint, last: libc::c_uint| {
            // SAFETY: closes descriptors of this thread's own table only, which nothing on this thread uses.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        };
        if number > 0 {
            close(0, number - 1);
        }
        close(number + 1, libc::c_uint::MAX);
        set(word, Stage::Keeping);
        wait_until(word, |stage| stage == Stage::Over);
    } else {
        set(word, Stage::Keeping);
    }
}

/// Waits for a stage.
fn wait_until(word: &(Mutex<Stage>, Condvar), reached: impl Fn(Stage) -> bool) {
    let mut stage = word.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !reached(*stage) {
        stage = word.1.wait(stage).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Goes on to a stage, never back.
fn set(word: &(Mutex<Stage>, Condvar), stage: Stage) {
    let mut now = word.0.lock().unwrap_or_else(PoisonError::into_inner);
    if *now != Stage::Over {
        *now = stage;
    }
    word.1.notify_all();
}

impl<T: AsFd> AsFd for Own<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.value.as_fd()
    }
}
