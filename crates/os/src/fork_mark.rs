//! A word that says whether this process is the one that set things up, or a child that `fork` made of it.
//!
//! What stands in memory of a child looks as if it were its own: slots that it shares with the parent, sessions, threads that
//! are not there. One load tells: the page of the mark is given to children zeroed (`MADV_WIPEONFORK`).

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::BASE_PAGE_BYTES;

/// The mark that was made last: of this process, or of one that it was forked from, and then it is zero.
static LATEST: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// A mark of this process: 1, and 0 in every child that `fork` makes. A child that asks gets one of its own, and keeps those of its parents
/// at zero. `None` if the kernel does not offer it (before 4.14).
pub fn mark() -> Option<&'static AtomicU32> {
    // Acquire: pairs with the exchange below, whose page is whole.
    let latest = LATEST.load(Ordering::Acquire);
    if let Some(mark) = live(latest) {
        return Some(mark);
    }
    let made = page()?;
    // SAFETY: the page that was just mapped: zeroed, aligned, and nobody else's.
    unsafe { &*made }.store(1, Ordering::Relaxed); // Relaxed: before anybody else knows it.
    // AcqRel: whoever loads the pointer sees the page as it was made.
    match LATEST.compare_exchange(latest, made, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: pages of marks that were shown to anybody are mapped for ever, and reached as atomics only.
        Ok(_) => Some(unsafe { &*made }),
        Err(first) => {
            unmap(made);
            // Another thread of this process was quicker.
            live(first)
        }
    }
}

/// The mark at a place, if it is one of this process.
fn live(place: *mut AtomicU32) -> Option<&'static AtomicU32> {
    // SAFETY: null, or a page that is mapped for ever, aligned, and reached as an atomic only.
    let mark = unsafe { place.as_ref() }?;
    // Relaxed: a process is a child from its first instruction on.
    (mark.load(Ordering::Relaxed) == 1).then_some(mark)
}

/// A page that children get zeroed.
fn page() -> Option<*mut AtomicU32> {
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
        unmap(page.cast());
        return None;
    }
    Some(page.cast())
}

/// Gives back a page that nobody was shown.
fn unmap(page: *mut AtomicU32) {
    // SAFETY: a mapping of this length that `page` made, and nobody has a reference into it.
    unsafe { libc::munmap(page.cast(), BASE_PAGE_BYTES) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_one_here_and_zero_in_a_child() {
        let mark = mark().unwrap();
        assert_eq!(mark.load(Ordering::Relaxed), 1);
        assert_eq!(in_child(|| mark.load(Ordering::Relaxed) == 0), 7);
        assert_eq!(mark.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_child_gets_a_mark_of_its_own_and_a_grandchild_too() {
        let theirs = mark().unwrap();
        assert!(ptr::eq(theirs, mark().unwrap()));
        let is_new = |older: &[&AtomicU32]| {
            let own = mark().unwrap();
            own.load(Ordering::Relaxed) == 1
                && ptr::eq(own, mark().unwrap())
                && older.iter().all(|mark| mark.load(Ordering::Relaxed) == 0 && !ptr::eq(*mark, own))
        };
        let status = in_child(|| {
            let is_right = is_new(&[theirs]);
            let own = mark().unwrap();
            is_right && in_child(|| is_new(&[theirs, own])) == 7
        });
        assert_eq!(status, 7);
        assert_eq!(theirs.load(Ordering::Relaxed), 1);
    }

    /// The exit status of a child: 7 if what it ran says so, else 8.
    fn in_child(is_right: impl FnOnce() -> bool) -> i32 {
        // SAFETY: the child maps a page, looks at words, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(if is_right() { 7 } else { 8 }) };
        }
        let mut status = 0;
        // SAFETY: waits for the child that was just made.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        libc::WEXITSTATUS(status)
    }
}
