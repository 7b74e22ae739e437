//! Sleeping on a word of shared memory until another process wakes us.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Woken, or interrupted by a signal: look again.
    Woken,
    /// The word was not what was expected; there was no sleep.
    Changed,
    /// The time is over.
    TimedOut,
}

/// Sleeps while `word` is `expected`, until [`wake`] on the same word in any process that maps it, or for `timeout`. The
/// kernel compares and goes to sleep in one step with respect to wakes, so a store followed by a wake is never missed.
///
/// A word that cannot be waited on (its page vanished) counts as `Changed`: the caller looks again and finds out.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Wait {
    let limit = timeout.map(|time| libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    let limit_pointer = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word is a live, aligned atomic; the timespec is null or lives through the call.
    let result =
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, limit_pointer) };
    if result == 0 {
        return Wait::Woken;
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EINTR) => Wait::Woken,
        Some(libc::ETIMEDOUT) => Wait::TimedOut,
        _ => Wait::Changed,
    }
}

/// Wakes up to `count` threads that sleep on `word`; returns how many.
pub fn wake(word: &AtomicU32, count: u32) -> u32 {
    // SAFETY: the word is a live, aligned atomic.
    let result = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, count) };
    u32::try_from(result).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_sleeper_is_woken_through_another_mapping_of_the_same_page() {
        let file = crate::MemoryFile::anonymous("word", 4096, crate::PageKind::Base4K).unwrap();
        let options = crate::MapOptions { write: true, ..crate::MapOptions::default() };
        let one = Arc::new(file.map(0, 4096, options).unwrap()).slice();
        let other = Arc::new(file.map(0, 4096, options).unwrap()).slice();
        let sleeper = std::thread::spawn(move || {
            let word = one.atomic_u32(64).unwrap();
            // Acquire: pairs with the Release of the waker below.
            while word.load(Ordering::Acquire) == 0 {
                wait(word, 0, Some(Duration::from_secs(5)));
            }
        });
        let word = other.atomic_u32(64).unwrap();
        // Release: pairs with the Acquire of the sleeper above.
        word.store(1, Ordering::Release);
        wake(word, 1);
        sleeper.join().unwrap();
    }

    #[test]
    fn a_wait_ends_by_itself_when_the_word_differs_or_the_time_is_over() {
        let word = AtomicU32::new(3);
        assert_eq!(wait(&word, 4, None), Wait::Changed);
        assert_eq!(wait(&word, 3, Some(Duration::from_millis(1))), Wait::TimedOut);
    }
}
