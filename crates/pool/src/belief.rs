//! How long the node's word about a sealed object counts: by the clock that goes on while the machine is suspended, at the price of a
//! comparison with one that does not.

use hinterland_os::clock::boot_ns;
use std::cell::Cell;

/// How long an answer of the node is believed: about as long as a dead process holds on to what it had.
const BELIEF_NS: u64 = 1_000_000_000;

/// Until when a thread believes something, and when it looked.
///
/// The clock that is exact and counts suspension waits for all loads before it, a cache miss each time. So it is looked at once in each tick
/// of the kernel. No thread runs before and after a suspension in the same tick: all are stopped before the machine is suspended, and go on
/// when its devices are back.
pub(crate) struct Belief {
    until_ns: Cell<u64>,
    tick_ns: Cell<u64>,
}

impl Belief {
    /// Nothing is believed.
    pub(crate) const fn none() -> Self {
        Self { until_ns: Cell::new(0), tick_ns: Cell::new(0) }
    }

    /// What the node has said at a moment.
    pub(crate) const fn of(said_ns: u64) -> Self {
        Self { until_ns: Cell::new(said_ns + BELIEF_NS), tick_ns: Cell::new(0) }
    }

    /// As long as another one from here on.
    pub(crate) fn set(&self, other: &Self) {
        self.until_ns.set(other.until_ns.get());
        self.tick_ns.set(0);
    }

    /// Whether it counts.
    #[inline(always)]
    pub(crate) fn counts(&self) -> bool {
        let tick_ns = coarse_ns();
        tick_ns == self.tick_ns.get() || self.look(tick_ns)
    }

    #[cold]
    #[inline(never)]
    fn look(&self, tick_ns: u64) -> bool {
        let counts = boot_ns() < self.until_ns.get();
        if counts {
            self.tick_ns.set(tick_ns);
        }
        counts
    }
}

/// Whether what the node said at a moment counts.
pub(crate) fn still_counts(said_ns: u64) -> bool {
    boot_ns() < said_ns + BELIEF_NS
}

/// Nanoseconds since some moment of this boot, as of the last tick of the kernel: a few milliseconds behind. It costs 4 ns,
/// and loads before and after it overlap.
fn coarse_ns() -> u64 {
    #[repr(C)]
    struct Time {
        seconds: i64,
        nanoseconds: i64,
    }
    unsafe extern "C" {
        fn clock_gettime(clock: i32, time: *mut Time) -> i32;
    }
    const CLOCK_MONOTONIC_COARSE: i32 = 6;
    let mut time = Time { seconds: 0, nanoseconds: 0 };
    // SAFETY: on 64-bit Linux, the only system that this is built for, `timespec` is two words of 64 bits; the clock exists
    // since Linux 2.6.32, so the call cannot fail.
    unsafe { clock_gettime(CLOCK_MONOTONIC_COARSE, &mut time) };
    // Both fields of a monotonic time are never negative.
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Duration;

    /// Says, in the life of another machine, what the node said when.
    const SAID: &str = "SAID_NS";

    /// Whether a process believes what was just said whose clock is ahead of this one's by so many seconds, as after a suspension of that
    /// length. None where a namespace with such a clock cannot be made.
    fn counts_after(seconds: u64) -> Option<bool> {
        let ahead = ["--user", "--map-root-user", "--time", "--boottime", &seconds.to_string()];
        let mut command = Command::new("unshare");
        if !command.args(ahead).arg("true").status().is_ok_and(|status| status.success()) {
            return None;
        }
        let mut command = Command::new("unshare");
        command.args(ahead).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "--ignored", "belief::tests::what_was_said_to_another_process_counts"]);
        // A process takes its time to start.
        command.env(SAID, (boot_ns() + 60 * BELIEF_NS).to_string());
        Some(command.output().unwrap().status.success())
    }

    #[test]
    #[ignore = "a part of the next one"]
    fn what_was_said_to_another_process_counts() {
        let said_ns = std::env::var(SAID).unwrap().parse().unwrap();
        assert!(Belief::of(said_ns).counts() && still_counts(said_ns));
    }

    #[test]
    fn what_was_said_before_a_suspension_does_not_count_behind_it() {
        let Some(counts) = counts_after(0) else {
            eprintln!("skipped: this machine makes no namespaces with a time of their own");
            return;
        };
        assert!(counts, "or this shows nothing");
        assert_eq!(counts_after(7200), Some(false));
    }

    #[test]
    fn what_was_said_counts_for_a_while_and_no_longer() {
        let belief = Belief::of(boot_ns() - BELIEF_NS + 300_000_000);
        let latest = Belief::none();
        assert!(!latest.counts());
        latest.set(&belief);
        let began = boot_ns();
        // A machine that is held up says nothing else.
        assert!(latest.counts() || boot_ns() - began > 200_000_000);
        std::thread::sleep(Duration::from_millis(400));
        assert!(!latest.counts() && !belief.counts());
        latest.set(&Belief::of(boot_ns()));
        assert!(latest.counts());
    }
}
