//! How quick a back end is of late: bytes moved over the time in which something was under way.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What happened this long ago counts for a third: a back end that slows is found out within a second.
const MEMORY_S: f64 = 0.2;
/// Before anything is known: 1 GB/s, with the weight of a millisecond.
const START_BYTES: f64 = 1e6;
const START_S: f64 = 1e-3;

/// Bandwidth and latency of one back end, puts and gets together: content goes in about as often as it comes back.
pub(super) struct Meter {
    state: Mutex<State>,
}

struct State {
    in_flight: u32,
    in_flight_bytes: u64,
    /// When something last began with nothing else under way, or ended.
    since: Instant,
    /// Bytes of late, and the seconds in which they moved.
    bytes: f64,
    busy_s: f64,
    put_s: f64,
    get_s: f64,
}

/// What is done with content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Put,
    Get,
}

impl Meter {
    pub(super) fn new(now: Instant) -> Self {
        let state = State {
            in_flight: 0,
            in_flight_bytes: 0,
            since: now,
            bytes: START_BYTES,
            busy_s: START_S,
            put_s: 0.0,
            get_s: 0.0,
        };
        Self { state: Mutex::new(state) }
    }

    /// Something begins.
    pub(super) fn begin(&self, bytes: usize, now: Instant) {
        let mut state = self.lock();
        if state.in_flight == 0 {
            state.since = now;
        }
        state.in_flight += 1;
        state.in_flight_bytes += bytes as u64;
    }

    /// Something that began at `begun` has ended; what failed has moved nothing.
    pub(super) fn end(&self, kind: Kind, bytes: usize, begun: Instant, now: Instant, moved: bool) {
        let mut state = self.lock();
        state.in_flight = state.in_flight.saturating_sub(1);
        state.in_flight_bytes = state.in_flight_bytes.saturating_sub(bytes as u64);
        let busy = now.saturating_duration_since(state.since).as_secs_f64();
        let kept = (-busy / MEMORY_S).exp();
        state.since = now;
        state.busy_s = state.busy_s * kept + busy;
        state.bytes = state.bytes * kept + if moved { bytes as f64 } else { 0.0 };
        let taken = now.saturating_duration_since(begun).as_secs_f64();
        let latency = match kind {
            Kind::Put => &mut state.put_s,
            Kind::Get => &mut state.get_s,
        };
        *latency = if *latency == 0.0 { taken } else { *latency * 0.875 + taken * 0.125 };
    }

    /// Bytes a second of late. What is under way and does not end counts against it.
    pub(super) fn speed(&self, now: Instant) -> f64 {
        let state = self.lock();
        let stall =
            if state.in_flight == 0 { Duration::ZERO } else { now.saturating_duration_since(state.since) };
        let stall = stall.as_secs_f64();
        let kept = (-stall / MEMORY_S).exp();
        (state.bytes * kept).max(1.0) / (state.busy_s * kept + stall).max(1e-9)
    }

    /// Bytes under way.
    pub(super) fn in_flight_bytes(&self) -> u64 {
        self.lock().in_flight_bytes
    }

    /// Seconds that a put and a get take of late; 0 before the first.
    pub(super) fn latencies_s(&self) -> (f64, f64) {
        let state = self.lock();
        (state.put_s, state.get_s)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 1 << 16;

    /// Does `count` units one after the other, each in `each`; returns when that was over.
    fn run(meter: &Meter, mut now: Instant, count: usize, each: Duration) -> Instant {
        for _ in 0..count {
            meter.begin(UNIT, now);
            meter.end(Kind::Put, UNIT, now, now + each, true);
            now += each;
        }
        now
    }

    #[test]
    fn the_speed_is_that_of_late() {
        let start = Instant::now();
        let meter = Meter::new(start);
        let now = run(&meter, start, 5000, Duration::from_micros(100));
        let quick = meter.speed(now);
        assert!((quick / (UNIT as f64 / 1e-4) - 1.0).abs() < 0.01, "{quick}");
        // A second at a tenth of it.
        let now = run(&meter, now, 1000, Duration::from_millis(1));
        let slow = meter.speed(now);
        assert!((slow / (UNIT as f64 / 1e-3) - 1.0).abs() < 0.1, "{slow}");
    }

    #[test]
    fn what_does_not_end_counts_as_slow_and_idle_time_does_not() {
        let start = Instant::now();
        let meter = Meter::new(start);
        let now = run(&meter, start, 5000, Duration::from_micros(100));
        let later = now + Duration::from_secs(60);
        assert!((meter.speed(later) / meter.speed(now) - 1.0).abs() < 1e-6);
        meter.begin(UNIT, later);
        let stalled = meter.speed(later + Duration::from_secs(1));
        assert!(stalled * 100.0 < meter.speed(later), "{stalled}");
    }

    #[test]
    fn what_goes_on_at_once_adds_up() {
        let start = Instant::now();
        let meter = Meter::new(start);
        let mut now = start;
        for _ in 0..2000 {
            meter.begin(UNIT, now);
            meter.begin(UNIT, now);
            let end = now + Duration::from_millis(1);
            meter.end(Kind::Get, UNIT, now, end, true);
            meter.end(Kind::Get, UNIT, now, end, true);
            now = end;
        }
        let speed = meter.speed(now);
        assert!((speed / (2.0 * UNIT as f64 / 1e-3) - 1.0).abs() < 0.05, "{speed}");
        assert_eq!(meter.in_flight_bytes(), 0);
        assert!((meter.latencies_s().1 - 1e-3).abs() < 1e-5);
    }
}
