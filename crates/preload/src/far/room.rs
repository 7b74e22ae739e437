//! Room for what this library opens in a process that has as many files open as it may, or may make none.

use hinterland_farplan::PAGE;
use libc::{c_int, c_uint, rlimit};

/// What a child of `fork` opens as it greets: four that stay, and what goes over to the reclaim thread.
const DESCRIPTORS: u64 = 16;

/// A limit is higher until this is dropped. What was opened or made stays.
pub(super) struct Room {
    what: c_uint,
    before: Option<rlimit>,
}

/// Makes room for descriptors, as far as the process may. For one that has a single thread: all of its threads would have it.
pub(super) fn of_descriptors() -> Room {
    make(libc::RLIMIT_NOFILE, |limit| limit.saturating_add(DESCRIPTORS))
}

/// Makes room for a file of a page, as far as the process may. `None` where it may not: the kernel would end it (`SIGXFSZ`).
pub(super) fn of_a_page() -> Option<Room> {
    let room = make(libc::RLIMIT_FSIZE, |limit| limit.max(PAGE));
    let mut now = rlimit { rlim_cur: 0, rlim_max: 0 };
    (limit(room.what, None, Some(&mut now)) != 0 || now.rlim_cur >= PAGE).then_some(room)
}

fn make(what: c_uint, wanted: impl Fn(u64) -> u64) -> Room {
    let none = Room { what, before: None };
    let mut before = rlimit { rlim_cur: 0, rlim_max: 0 };
    if limit(what, None, Some(&mut before)) != 0 {
        return none;
    }
    let wanted = wanted(before.rlim_cur);
    if wanted == before.rlim_cur {
        return none;
    }
    // The second one takes a right that the process need not have.
    for hard in [before.rlim_max, before.rlim_max.max(wanted)] {
        if wanted <= hard && limit(what, Some(&rlimit { rlim_cur: wanted, rlim_max: hard }), None) == 0 {
            return Room { what, before: Some(before) };
        }
    }
    none
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            limit(self.what, Some(before), None);
        }
    }
}

fn limit(what: c_uint, new: Option<&rlimit>, old: Option<&mut rlimit>) -> c_int {
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    let old = old.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: limits or null; the number is this process.
    unsafe { libc::syscall(libc::SYS_prlimit64, 0, what, new, old) as c_int }
}
