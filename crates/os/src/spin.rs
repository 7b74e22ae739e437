//! How long to spin before sleeping, learned from how long the waits were.

/// Longest spin: about what it costs to sleep and be woken (50 us for who wakes a processor that rests, and as much until the
/// sleeper runs, in a virtual machine), so that spinning never costs more than twice of what the better choice would have.
pub const SPIN_NS_MAX: u64 = 150_000;
/// Shortest spin: a message that is on its way between two cores arrives within this.
pub const SPIN_NS_MIN: u64 = 1_000;

/// The learned limit of a spin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinBudget {
    limit_ns: u64,
    can_spin: bool,
}

impl SpinBudget {
    /// A budget at its maximum, or for ever zero where there is one processor only: there the peer cannot run while we
    /// spin. The processors of the machine count, not those of a pinned thread, whose peer runs on another one.
    pub fn new(processors: usize) -> Self {
        Self { limit_ns: SPIN_NS_MAX, can_spin: processors > 1 }
    }

    /// How long to spin in the next wait, in nanoseconds.
    pub fn limit_ns(&self) -> u64 {
        if self.can_spin { self.limit_ns } else { 0 }
    }

    /// Learns from a wait that took this long. One that a spin could have covered raises the limit to four times the
    /// wait (a wait is often followed by a longer one), but lowers it only slowly; a long one halves the limit.
    pub fn learn(&mut self, waited_ns: u64) {
        self.limit_ns = if waited_ns > SPIN_NS_MAX {
            self.limit_ns / 2
        } else {
            (self.limit_ns - self.limit_ns / 16).max(waited_ns.saturating_mul(4))
        }
        .clamp(SPIN_NS_MIN, SPIN_NS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_waits_teach_to_sleep_and_one_short_wait_teaches_to_spin() {
        let mut budget = SpinBudget::new(2);
        assert_eq!(budget.limit_ns(), SPIN_NS_MAX);
        for _ in 0..10 {
            budget.learn(10_000_000);
        }
        assert_eq!(budget.limit_ns(), SPIN_NS_MIN);
        budget.learn(40_000);
        assert_eq!(budget.limit_ns(), SPIN_NS_MAX);
        for _ in 0..200 {
            budget.learn(500);
        }
        assert!(budget.limit_ns() >= 4 * 500 && budget.limit_ns() < 3000);
        budget.learn(u64::MAX);
        assert!(budget.limit_ns() >= SPIN_NS_MIN);
    }

    #[test]
    fn on_one_processor_nobody_spins() {
        let mut budget = SpinBudget::new(1);
        budget.learn(100);
        assert_eq!(budget.limit_ns(), 0);
    }
}
