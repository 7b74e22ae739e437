//! Room for descriptors of this library in a process that has as many files open as it may.

use libc::{c_int, rlimit};

/// What a child of `fork` opens as it greets: three that stay, and what goes over to the reclaim thread.
const DESCRIPTORS: u64 = 16;

/// The limit of open files is higher until this is dropped. What was opened stays open.
pub(super) struct Room {
    before: Option<rlimit>,
}

/// Makes room, as far as the process may. For one that has a single thread: all of its threads would have it.
pub(super) fn make() -> Room {
    let mut before = rlimit { rlim_cur: 0, rlim_max: 0 };
    if limit(None, Some(&mut before)) != 0 {
        return Room { before: None };
    }
    let wanted = before.rlim_cur.saturating_add(DESCRIPTORS);
    // The second one takes a right that the process need not have.
    for hard in [before.rlim_max, before.rlim_max.max(wanted)] {
        if wanted <= hard && limit(Some(&rlimit { rlim_cur: wanted, rlim_max: hard }), None) == 0 {
            return Room { before: Some(before) };
        }
    }
    Room { before: None }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            limit(Some(before), None);
        }
    }
}

fn limit(new: Option<&rlimit>, old: Option<&mut rlimit>) -> c_int {
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    let old = old.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: limits or null; the number is this process.
    unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, new, old) as c_int }
}
