//! Memory for this library while it begins from within `malloc`.
//!
//! Far memory begins with the first large memory, and it is often `malloc` that asks for it: with its locks held. What begins then must
//! not come back to it. So the thread that does it has its allocations from a small area here meanwhile; all others, and this one at
//! other times, have them from the C library.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Beginning takes some 2 KiB, a message that it failed another one.
const AREA_BYTES: usize = 64 << 10;

struct Area(UnsafeCell<[u8; AREA_BYTES]>);

// SAFETY: parts of it are given away once, to whoever asked.
unsafe impl Sync for Area {}

static AREA: Area = Area(UnsafeCell::new([0; AREA_BYTES]));
/// How much of it is given away.
static GIVEN: AtomicUsize = AtomicUsize::new(0);
/// The thread that has its allocations from there; 0 if there is none.
static THREAD: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Quiet = Quiet;

struct Quiet;

/// The number of the calling thread: where its `errno` is, which takes no call of the kernel.
pub(super) fn thread() -> usize {
    // SAFETY: the C library gives every thread an errno.
    unsafe { libc::__errno_location() }.addr()
}

/// Does something without `malloc`. One thread at a time may; nothing that an earlier call allocated may be in use, unless it was the last.
pub(super) fn quietly<T>(work: impl FnOnce() -> T) -> T {
    GIVEN.store(0, Ordering::Relaxed); // Relaxed: nobody else looks at it.
    THREAD.store(thread(), Ordering::Relaxed); // Relaxed: only this thread finds itself there.
    let result = work();
    THREAD.store(0, Ordering::Relaxed); // Relaxed: as above.
    result
}

fn is_quiet() -> bool {
    // Relaxed: as above.
    let quiet = THREAD.load(Ordering::Relaxed);
    quiet != 0 && quiet == thread()
}

fn is_ours(place: *mut u8) -> bool {
    let start = AREA.0.get().addr();
    (start..start + AREA_BYTES).contains(&place.addr())
}

fn take(layout: Layout) -> *mut u8 {
    let start = AREA.0.get();
    // Relaxed: one thread is here.
    let free = (start.addr() + GIVEN.load(Ordering::Relaxed)).next_multiple_of(layout.align()) - start.addr();
    let Some(end) = free.checked_add(layout.size()).filter(|end| *end <= AREA_BYTES) else {
        return std::ptr::null_mut();
    };
    GIVEN.store(end, Ordering::Relaxed); // Relaxed: as above.
    start.cast::<u8>().wrapping_add(free)
}

// SAFETY: what the area gives is aligned, large enough and given once until all of it is done with; the rest is the system's.
unsafe impl GlobalAlloc for Quiet {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        if is_quiet() { take(layout) } else { unsafe { System.alloc(layout) } }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // What was allocated before is kept for good: to give it back takes the lock.
        if !is_ours(place) && !is_quiet() {
            // SAFETY: the caller's promise; the area gave no such place.
            unsafe { System.dealloc(place, layout) };
        }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if !is_ours(place) && !is_quiet() {
            // SAFETY: as above.
            return unsafe { System.realloc(place, layout, bytes) };
        }
        let Ok(wanted) = Layout::from_size_align(bytes, layout.align()) else { return std::ptr::null_mut() };
        // SAFETY: a layout of the caller's size, which is not zero.
        let fresh = unsafe { self.alloc(wanted) };
        if !fresh.is_null() {
            // SAFETY: both places have that many bytes, and the fresh one is nobody else's.
            unsafe {
                std::ptr::copy_nonoverlapping(place, fresh, layout.size().min(bytes));
                self.dealloc(place, layout);
            }
        }
        fresh
    }
}
