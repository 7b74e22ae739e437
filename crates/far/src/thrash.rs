//! Whether the program waits for far memory instead of running, and how much more would be enough: whoever runs it is told while there is something to be done.

use crate::engine::{Budget, Engine, Known};
use std::time::{Duration, Instant};

/// Over what time it is looked: what begins, or goes on to something else, may wait for a while.
const WINDOW: Duration = Duration::from_secs(10);
/// Part of that time which faults have to wait, all threads together: what waking takes on top is not known here.
const WAITED_SHARE: u32 = 3;
/// What is kept free of more room, about.
const SPARE_SHARE: u64 = 32;
const MIB: u64 = 1 << 20;

/// How it was when the window began.
pub(crate) struct Thrashing {
    since: Instant,
    stall_ns: u64,
    faults: u64,
}

impl Thrashing {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), stall_ns: 0, faults: 0 }
    }

    /// What is to be said, at the end of a window in which the program hardly ran.
    pub(crate) fn look(&mut self, engine: &Engine, known: &Known) -> Option<String> {
        let time = self.since.elapsed();
        if time < WINDOW {
            return None;
        }
        let counters = &known.counters;
        let waited = Duration::from_nanos(counters.stall_ns - self.stall_ns);
        let faults = counters.faults - self.faults;
        *self = Self { since: Instant::now(), stall_ns: counters.stall_ns, faults: counters.faults };
        if waited < time / WAITED_SHARE {
            return None;
        }
        let more = known.enough.more_bytes(known.far_bytes())?;
        let now = match known.budget {
            Budget::Bytes(bytes) => bytes,
            Budget::Percent(_) => {
                engine.room_bytes(known) + known.spaces.values().map(|space| space.other_bytes).sum::<u64>()
            }
        };
        let process = known.processes().first().copied()?;
        Some(sentence((waited, time), faults, (now, now + more + more / SPARE_SHARE), process))
    }
}

fn sentence(
    (waited, time): (Duration, Duration),
    faults: u64,
    (now, enough): (u64, u64),
    process: i32,
) -> String {
    let [now, enough] = [now, enough].map(|bytes| bytes.div_ceil(MIB));
    format!(
        "of the last {:.0} s the program has waited {:.0} s for far memory, {:.0} times a second: with {enough} MiB here instead of {now} MiB, nine of ten of \
         these waits would be spared (hint: if this host has that: hinterland switch {process} --local {enough}M)",
        time.as_secs_f64(),
        waited.as_secs_f64(),
        faults as f64 / time.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_can_be_used_as_it_is() {
        let times = (Duration::from_millis(6400), Duration::from_secs(10));
        let text = sentence(times, 301_000, (64 << 20, (103 << 20) + 1), 4711);
        assert!(
            text.contains("last 10 s the program has waited 6 s for far memory, 30100 times a second"),
            "{text}"
        );
        assert!(text.contains("with 104 MiB here instead of 64 MiB"), "{text}");
        assert!(text.ends_with("hinterland switch 4711 --local 104M)"), "{text}");
    }
}
