//! A word that says whether this process is the one that set things up, or a child that `fork` made of it.
//!
//! What stands in memory of a child looks as if it were its own: slots that it shares with the parent, sessions, threads that
//! are not there. One load tells: the page of the mark is given to children zeroed (`MADV_WIPEONFORK`).

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::BASE_PAGE_BYTES;

struct Mark(*const AtomicU32);

// SAFETY: the pointer leads to memory that is never unmapped and holds an atomic.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

/// The mark of this process: 1, and 0 in every child that `fork` makes. `None` if the kernel does not offer it (before 4.14).
pub fn mark() -> Option<&'static AtomicU32> {
    static MARK: OnceLock<Option<Mark>> = OnceLock::new();
    let mark = MARK.get_or_init(|| {
        // SAFETY: a new private mapping anywhere; nothing else uses it.
        let page = unsafe {
            libc::mmap(
                ptr::null_mut(),
                BASE_PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if page == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the mapping that was just made.
        if unsafe { libc::madvise(page, BASE_PAGE_BYTES, libc::MADV_WIPEONFORK) } != 0 {
            return None;
        }
        let mark = Mark(page.cast());
        // SAFETY: zeroed, aligned and never unmapped.
        unsafe { &*mark.0 }.store(1, Ordering::Relaxed); // Relaxed: before anybody else knows it.
        Some(mark)
    });
    // SAFETY: the page is mapped for ever, aligned, and reached as an atomic only.
    mark.as_ref().map(|mark| unsafe { &*mark.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_one_here_and_zero_in_a_child() {
        let mark = mark().unwrap();
        assert_eq!(mark.load(Ordering::Relaxed), 1);
        // SAFETY: the child calls nothing but `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if mark.load(Ordering::Relaxed) == 0 { 7 } else { 8 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(libc::WEXITSTATUS(status), 7);
        assert_eq!(mark.load(Ordering::Relaxed), 1);
    }
}
