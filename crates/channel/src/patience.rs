//! Waiting: first looking without a pause as long as was learned to pay, then asleep.

use crate::error::ChannelError;
use hinterland_os::SpinBudget;
use std::time::{Duration, Instant};

/// Yields between the spin and the sleep: they let a peer run that shares our processor, at less than a sleep.
const YIELDS: u32 = 2;
/// Looks before the clock is read at all: a message that is on its way comes within these.
const LOOKS_BEFORE_CLOCK: u32 = 64;
/// Looks between two looks at the clock.
const LOOKS_PER_CLOCK: u32 = 32;

/// Something that can be waited for.
pub(crate) trait Awaited {
    /// Whether it is there.
    fn look(&mut self) -> Result<bool, ChannelError>;
    /// Sleeps until it may be there, or for this long; may end early.
    fn nap(&mut self, rest: Option<Duration>) -> Result<(), ChannelError>;
}

/// Waits; `false` when the time is over first.
pub(crate) fn wait_until(
    awaited: &mut impl Awaited,
    budget: &mut SpinBudget,
    timeout: Option<Duration>,
) -> Result<bool, ChannelError> {
    let timeout_ns = timeout.map_or(u64::MAX, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let limit_ns = budget.limit_ns().min(timeout_ns);
    for _ in 0..if limit_ns > 0 { LOOKS_BEFORE_CLOCK } else { 1 } {
        if awaited.look()? {
            return Ok(true);
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    let waited_ns = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    while waited_ns() < limit_ns {
        for _ in 0..LOOKS_PER_CLOCK {
            if awaited.look()? {
                budget.learn(waited_ns());
                return Ok(true);
            }
            std::hint::spin_loop();
        }
    }
    for _ in 0..YIELDS {
        std::thread::yield_now();
        if awaited.look()? {
            budget.learn(waited_ns());
            return Ok(true);
        }
    }
    loop {
        let left_ns = timeout_ns.saturating_sub(waited_ns());
        if left_ns == 0 {
            budget.learn(waited_ns());
            return awaited.look();
        }
        awaited.nap(timeout.map(|_| Duration::from_nanos(left_ns)))?;
        if awaited.look()? {
            budget.learn(waited_ns());
            return Ok(true);
        }
    }
}
