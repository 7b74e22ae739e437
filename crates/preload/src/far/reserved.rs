//! Addresses that a program reserves by the gibibyte and uses little of, as engines of languages do: no memory until it may be written.
//!
//! Such a reservation is not told of as a whole: what of it `mprotect` makes writable is, when it does. What the program maps over it
//! is told of as any other mapping, and is no part of the reservation any more.

use hinterland_farplan::PAGE;
use hinterland_region::system::MapCall;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Smaller ones are told of at once, so that the steps in which `malloc` makes its own writable need not be.
const RESERVATION_BYTES_MIN: u64 = 1 << 30;
/// More reservations than any program has; what finds no place stays the kernel's.
const RESERVATIONS_MAX: usize = 256;

/// First byte and one past the last; a start of 0 is a free place, a start of 1 one that is being written.
static RESERVED: [(AtomicU64, AtomicU64); RESERVATIONS_MAX] =
    [const { (AtomicU64::new(0), AtomicU64::new(0)) }; RESERVATIONS_MAX];

/// Whether there ever was one: most programs have none, and need not look.
static ANY: AtomicBool = AtomicBool::new(false);

/// Whether a call reserves addresses only.
pub(super) const fn is_reservation(call: &MapCall) -> bool {
    call.protection == libc::PROT_NONE && call.bytes >= RESERVATION_BYTES_MIN
}

/// Keeps a reservation in mind.
pub(super) fn add(start: u64, end: u64) {
    if start >= end {
        return;
    }
    ANY.store(true, Ordering::Relaxed); // Relaxed: who does not see it yet does not know of the reservation either.
    for (from, to) in &RESERVED {
        // Acquire and Release: pair with those of whoever freed the place. Relaxed on failure: the next place is tried.
        if from.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            to.store(end, Ordering::Relaxed); // Relaxed: published by the store behind it.
            from.store(start, Ordering::Release);
            return;
        }
    }
}

/// Something else is there from here on.
pub(super) fn cut(start: u64, end: u64) {
    // Relaxed: as in `add`.
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    // The kernel refuses what is longer than all numbers.
    let Some(end) = end.checked_next_multiple_of(PAGE) else { return };
    for (from, to) in &RESERVED {
        // Acquire: pairs with the Release in `add`. Relaxed: published by it.
        let (first, last) = (from.load(Ordering::Acquire), to.load(Ordering::Relaxed));
        if first <= 1 || first >= end || start >= last {
            continue;
        }
        // Release: pairs with the Acquire in `add`.
        from.store(0, Ordering::Release);
        add(first, start);
        add(end, last);
    }
}

/// The parts of a range that are reserved.
pub(super) fn parts(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = end.next_multiple_of(PAGE);
    RESERVED.iter().filter_map(move |(from, to)| {
        // Acquire: pairs with the Release in `add`. Relaxed: published by it.
        let (first, last) = (from.load(Ordering::Acquire), to.load(Ordering::Relaxed));
        let (first, last) = (if first <= 1 { u64::MAX } else { first.max(start) }, last.min(end));
        (first < last).then_some((first, last))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_over_a_reservation_is_no_part_of_it() {
        const START: u64 = 1 << 40;
        add(START, START + 100 * PAGE);
        cut(START + 10 * PAGE, START + 20 * PAGE);
        cut(START + 90 * PAGE, START + 200 * PAGE);
        let mut found: Vec<_> = parts(0, u64::MAX - PAGE).collect();
        found.sort_unstable();
        let page = |number: u64| START + number * PAGE;
        assert_eq!(found, [(page(0), page(10)), (page(20), page(90))]);
        assert_eq!(parts(page(5), page(30)).count(), 2);
        assert_eq!(parts(page(10), page(20)).count(), 0);
        cut(0, START + 100 * PAGE);
        assert_eq!(parts(0, u64::MAX - PAGE).count(), 0);
    }
}
