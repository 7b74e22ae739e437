//! The heap of the C library: what of it is told of, and how it grows.
//!
//! The C library asks for 132 KiB at a time. Once far memory is on, the kernel is asked for more at once, which is told of as a whole; the
//! C library hears only of what it asked for, and finds the rest the next time without a call of the kernel.

use super::{arming, calls, is_active, layout, link};
use crate::cancel::uncancelled;
use hinterland_farplan::PAGE;
use libc::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// From here on `malloc` asks for memory of its own for one allocation: where its own adapting to large allocations ends, so that
/// programs that free and allocate them in turn do not take a fault for each page.
const OWN_MAPPING_BYTES: c_int = 32 << 20;
/// How much the heap grows by at once, so that growing it is told rarely.
const STEP_BYTES: u64 = 4 << 20;

/// Where the heap ended as the library was loaded.
static START: AtomicU64 = AtomicU64::new(0);
/// The end of the heap, as the program knows it.
static END: AtomicU64 = AtomicU64::new(0);
/// The end of the heap, as the kernel knows it.
static TOP: AtomicU64 = AtomicU64::new(0);
/// Whether all between `START` and `TOP` is what the kernel made of it, and may be told of at once.
static IS_PLAIN: AtomicBool = AtomicBool::new(true);

/// Learns where the heap is, and has `malloc` use it also for what is large.
pub(super) fn begin() {
    let end = kernel(0);
    for place in [&START, &END, &TOP] {
        place.store(end, Ordering::Relaxed); // Relaxed: there is one thread.
    }
    // SAFETY: plain values.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * OWN_MAPPING_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING_BYTES);
    }
}

/// The heap as far as it was not told of: to be told of as far memory begins.
pub(super) fn untold() -> Option<(u64, u64)> {
    // Relaxed: the C library changes the heap under a lock of its own, and what another thread adds meanwhile is the kernel's.
    let (start, top) = (START.load(Ordering::Relaxed), TOP.load(Ordering::Relaxed));
    let (from, to) = (start.next_multiple_of(PAGE), top & !(PAGE - 1));
    (IS_PLAIN.load(Ordering::Relaxed) && from < to).then_some((from, to)) // Relaxed: as above.
}

/// The program does something with memory that is not told of yet: if it is in the heap, the heap so far stays the kernel's.
pub(super) fn note(address: u64, bytes: u64) {
    // Relaxed: as above.
    let (start, top) = (START.load(Ordering::Relaxed), TOP.load(Ordering::Relaxed));
    if address < top && address.saturating_add(bytes) > start {
        IS_PLAIN.store(false, Ordering::Relaxed); // Relaxed: as above.
    }
}

/// What the C library's `brk` becomes. Its callers in there read the end of the heap from a variable, which is kept.
pub(super) unsafe extern "C-unwind" fn c_brk(end: *mut c_void) -> c_int {
    let wanted = end.expose_provenance() as u64;
    uncancelled(|| {
        let now = change(wanted);
        super::patch::set_current_break(now);
        if now < wanted {
            // SAFETY: the C library gives every thread an errno.
            unsafe { *libc::__errno_location() = libc::ENOMEM };
            return -1;
        }
        0
    })
}

/// `brk`, as the kernel has it: returns the end of the heap as the program is to know it.
fn change(end: u64) -> u64 {
    // Relaxed: the C library changes the heap under a lock of its own.
    let (before, top) = (END.load(Ordering::Relaxed), TOP.load(Ordering::Relaxed));
    if end == 0 || end == before {
        return before;
    }
    if end < before {
        return shrink(end, before, top);
    }
    if end <= top {
        END.store(end, Ordering::Relaxed); // Relaxed: as above.
        return end;
    }
    if !is_active() && !arming::asks(end - top, false) {
        let now = kernel(end);
        return if now < end { before } else { settle(end, now) };
    }
    let stepped = calls::whole_pages(end.saturating_add(STEP_BYTES));
    let mut now = kernel(stepped);
    if now < stepped {
        // There may be room for what is needed.
        now = kernel(end);
    }
    if now < end {
        return before;
    }
    settle(end, now);
    let (from, to) = (top.next_multiple_of(PAGE), now & !(PAGE - 1));
    if to > from {
        link::register(from, to - from);
    }
    end
}

/// What is behind the end goes at once: the program expects zeros there the next time.
fn shrink(end: u64, before: u64, top: u64) -> u64 {
    let shrink = || {
        let from = end.next_multiple_of(PAGE);
        link::lift(from, top.next_multiple_of(PAGE).saturating_sub(from));
        kernel(end)
    };
    let now = if is_active() { layout::change(shrink) } else { kernel(end) };
    if now == end { settle(end, now) } else { before }
}

fn settle(end: u64, top: u64) -> u64 {
    END.store(end, Ordering::Relaxed); // Relaxed: the C library's lock.
    TOP.store(top, Ordering::Relaxed); // Relaxed: as above.
    end
}

fn kernel(end: u64) -> u64 {
    // SAFETY: the program asked for this, or for less; what is more has nothing in it.
    unsafe { libc::syscall(libc::SYS_brk, end) as u64 }
}
