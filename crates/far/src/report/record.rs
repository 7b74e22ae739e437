//! A recording of a run: what was where, and what moved, in moments of equal length.
//!
//! Its size does not depend on how long the run is or how much memory it has: when there are too many moments, two become one;
//! when there are too many parts of memory, two neighbours become one.

use crate::control::{About, BackEndStatus, Status};
use crate::engine::Engine;
use crate::report::Report;
use crate::session::Supervisor;
use hinterland_farplan::State;
use hinterland_os::poll::{EventCounter, wait_readable};
use hinterland_os::process::name_thread;
use hinterland_os::{OsError, clock};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Faults are counted by huge page: 2 MiB.
pub(crate) const BIN_SHIFT: u32 = 21;
/// Length of a moment at first.
const MOMENT: Duration = Duration::from_millis(100);
/// Most moments: more than a picture has columns.
const MOMENTS_MAX: usize = 480;
/// Most parts of memory: more than a picture has rows.
const PARTS_MAX: usize = 512;
/// A look takes at most this part of a moment; the engine waits meanwhile.
const LOOKS_PER_MOMENT: u32 = 50;

/// What happened in a moment, and how it was at its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Moment {
    /// Seconds since the start, at its end.
    pub at_s: f64,
    /// Its length in seconds.
    pub seconds: f64,
    pub budget_bytes: u64,
    pub resident_bytes: u64,
    pub far_bytes: u64,
    pub faults: u64,
    /// Seconds that threads waited, all together.
    pub stall_s: f64,
    pub in_bytes: u64,
    pub out_bytes: u64,
    /// Bytes that came and went, by number of the back end in [`Recording`].
    pub moved: BTreeMap<usize, (u64, u64)>,
    /// Faults and KiB that are here, by number of the part of memory.
    pub parts: BTreeMap<u64, (u32, u32)>,
}

/// A recording of a run.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    pub(super) about: About,
    pub(super) started_ms: u64,
    pub(super) unit_bytes: u64,
    pub(super) copies: usize,
    pub(super) moments: Vec<Moment>,
    /// Names of back ends.
    pub(super) back_ends: Vec<String>,
    /// Bits of an address within a part of memory.
    pub(super) part_shift: u32,
}

/// Records a run until it is finished.
pub struct Recorder {
    stop: Arc<EventCounter>,
    thread: JoinHandle<Recording>,
}

impl Recorder {
    /// Begins to record the run of a supervisor.
    ///
    /// # Errors
    /// The refusal of a descriptor or the thread.
    pub fn start(supervisor: &Supervisor, about: About) -> Result<Self, OsError> {
        let stop = Arc::new(EventCounter::new()?);
        let engine = supervisor.engine();
        engine.lock().touched = Some(BTreeMap::new());
        let ended = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("far-record".to_owned()).spawn(move || {
            name_thread("far-record");
            record(&engine, about, &ended)
        });
        let thread = thread.map_err(|error| OsError::system("starting a thread", "far-record", error))?;
        Ok(Self { stop, thread })
    }

    /// Ends the recording. Call it before the supervisor is finished.
    pub fn finish(self) -> Recording {
        self.stop.raise();
        // A thread that panicked has said so.
        self.thread.join().unwrap_or_default()
    }
}

fn record(engine: &Engine, about: About, stop: &EventCounter) -> Recording {
    let (began, started_ms) = (Instant::now(), clock::wall_ms());
    let mut recording = Recording {
        about: about.clone(),
        started_ms,
        unit_bytes: engine.unit_bytes,
        copies: engine.stores.copies(),
        part_shift: BIN_SHIFT,
        ..Recording::default()
    };
    let mut before = Status::of(engine, &about, started_ms, began);
    let (mut length, mut due) = (MOMENT, began + MOMENT);
    loop {
        let pause = due.saturating_duration_since(Instant::now());
        let is_over = wait_readable(stop, Some(pause)).unwrap_or(true);
        if !is_over && Instant::now() < due {
            continue;
        }
        let begun = Instant::now();
        let after = Status::of(engine, &about, started_ms, began);
        let parts = parts(engine, recording.part_shift);
        let taken = begun.elapsed();
        recording.add(&before, &after, parts);
        if recording.fold() {
            length *= 2;
        }
        before = after;
        if is_over {
            return recording;
        }
        due = Instant::now() + length.max(taken * LOOKS_PER_MOMENT);
    }
}

/// What is here of each part of memory, and the faults that were there since the last look.
fn parts(engine: &Engine, shift: u32) -> BTreeMap<u64, (u32, u32)> {
    let mut parts: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
    let mut known = engine.lock();
    for space in known.spaces.values() {
        for (start, end, state) in space.table.units() {
            if matches!(state, State::Untouched) {
                continue;
            }
            let part = parts.entry(start >> shift).or_default();
            if matches!(state, State::Resident { .. } | State::Leaving { .. }) {
                // At most 2 MiB.
                part.1 = part.1.saturating_add(((end - start) >> 10) as u32);
            }
        }
    }
    if let Some(touched) = &mut known.touched {
        for (bin, faults) in std::mem::take(touched) {
            let part = parts.entry(bin >> (shift - BIN_SHIFT)).or_default();
            part.0 = part.0.saturating_add(faults);
        }
    }
    parts
}

impl Recording {
    fn add(&mut self, before: &Status, after: &Status, parts: BTreeMap<u64, (u32, u32)>) {
        let mut moved = BTreeMap::new();
        for (index, one) in after.back_ends.iter().enumerate() {
            let is_same = |(other, earlier): &(usize, &BackEndStatus)| {
                earlier.name == one.name && *other == index.min(before.back_ends.len().saturating_sub(1))
            };
            let by_place = before.back_ends.iter().enumerate().find(is_same).map(|(_, earlier)| earlier);
            let earlier = by_place.or_else(|| before.back_ends.iter().find(|other| other.name == one.name));
            let (come, gone) = earlier.map_or((0, 0), |earlier| (earlier.in_bytes, earlier.out_bytes));
            let both = (one.in_bytes.saturating_sub(come), one.out_bytes.saturating_sub(gone));
            if both != (0, 0) {
                let sum: &mut (u64, u64) = moved.entry(self.number(&one.name)).or_default();
                *sum = (sum.0 + both.0, sum.1 + both.1);
            }
        }
        for one in &after.back_ends {
            self.number(&one.name);
        }
        self.moments.push(Moment {
            at_s: after.uptime_s,
            seconds: after.uptime_s - before.uptime_s,
            budget_bytes: after.budget_bytes,
            resident_bytes: after.resident_bytes,
            far_bytes: after.far_bytes,
            faults: after.faults.saturating_sub(before.faults),
            stall_s: (after.stall_s - before.stall_s).max(0.0),
            in_bytes: after.fetched_bytes.saturating_sub(before.fetched_bytes),
            out_bytes: after.evicted_bytes.saturating_sub(before.evicted_bytes),
            moved,
            parts,
        });
    }

    fn number(&mut self, name: &str) -> usize {
        self.back_ends.iter().position(|other| other == name).unwrap_or_else(|| {
            self.back_ends.push(name.to_owned());
            self.back_ends.len() - 1
        })
    }

    /// Makes neighbours one where there are too many of them; returns whether moments have become longer.
    fn fold(&mut self) -> bool {
        while self.numbers().len() > PARTS_MAX {
            self.part_shift += 1;
            for moment in &mut self.moments {
                let mut folded: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
                for (part, (faults, here)) in std::mem::take(&mut moment.parts) {
                    let sum = folded.entry(part >> 1).or_default();
                    *sum = (sum.0.saturating_add(faults), sum.1.saturating_add(here));
                }
                moment.parts = folded;
            }
        }
        if self.moments.len() <= MOMENTS_MAX {
            return false;
        }
        let mut folded = Vec::with_capacity(MOMENTS_MAX);
        let mut moments = std::mem::take(&mut self.moments).into_iter();
        while let Some(first) = moments.next() {
            folded.push(match moments.next() {
                Some(second) => first.followed_by(second),
                None => first,
            });
        }
        self.moments = folded;
        true
    }

    /// Numbers of all parts of memory that the program used.
    pub(super) fn numbers(&self) -> BTreeSet<u64> {
        self.moments.iter().flat_map(|moment| moment.parts.keys().copied()).collect()
    }

    /// A page of HTML that needs nothing else: pictures of the run, settings, and what it moved and cost.
    pub fn html(&self, report: &Report) -> String {
        super::page::html(self, report)
    }
}

impl Moment {
    fn followed_by(self, mut after: Self) -> Self {
        after.seconds += self.seconds;
        after.faults += self.faults;
        after.stall_s += self.stall_s;
        after.in_bytes += self.in_bytes;
        after.out_bytes += self.out_bytes;
        for (number, (come, gone)) in self.moved {
            let sum = after.moved.entry(number).or_default();
            *sum = (sum.0 + come, sum.1 + gone);
        }
        for (part, (faults, _)) in self.parts {
            let sum = after.parts.entry(part).or_default();
            sum.0 = sum.0.saturating_add(faults);
        }
        after
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn status(at: u64) -> Status {
        let one = BackEndStatus {
            name: "lz4".to_owned(),
            in_bytes: at * 10,
            out_bytes: at * 20,
            ..BackEndStatus::default()
        };
        Status {
            uptime_s: at as f64,
            faults: at * 3,
            stall_s: at as f64 / 2.0,
            fetched_bytes: at * 10,
            back_ends: vec![one],
            ..Status::default()
        }
    }

    #[test]
    fn a_recording_stays_small_and_loses_no_fault_and_no_byte() {
        let mut recording = Recording { part_shift: BIN_SHIFT, ..Recording::default() };
        let count = 5 * MOMENTS_MAX as u64;
        for at in 0..count {
            let shift = recording.part_shift - BIN_SHIFT;
            let parts = (0..40).map(|part| ((at + part * 100) >> shift, (1, 4))).collect();
            recording.add(&status(at), &status(at + 1), parts);
            recording.fold();
            assert!(recording.moments.len() <= MOMENTS_MAX);
            assert!(recording.numbers().len() <= PARTS_MAX);
        }
        let sum = |of: fn(&Moment) -> u64| recording.moments.iter().map(of).sum::<u64>();
        assert_eq!(sum(|moment| moment.faults), count * 3);
        assert_eq!(sum(|moment| moment.in_bytes), count * 10);
        assert_eq!(sum(|moment| moment.moved[&0].1), count * 20);
        let seconds: f64 = recording.moments.iter().map(|moment| moment.seconds).sum();
        assert_eq!(seconds, count as f64);
    }

    #[test]
    fn a_page_has_its_data_and_names_cannot_break_out_of_it() {
        let mut recording = Recording { part_shift: BIN_SHIFT, ..Recording::default() };
        recording.about.name = "</script><b>&\"".to_owned();
        recording.about.command = vec!["<i>".to_owned()];
        recording.add(&status(0), &status(1), BTreeMap::from([(7, (1, 64))]));
        let moved = crate::report::Moved {
            name: "lz4".to_owned(),
            memory_bytes_max: 2 << 20,
            packed_bytes: 3 << 20,
            ..crate::report::Moved::default()
        };
        let page = recording.html(&Report { moved: vec![moved], ..Report::default() });
        assert!(page.contains("2.0 MiB, 1.5 to 1"));
        assert!(page.starts_with("<!doctype html>") && !page.contains("{{"));
        assert!(!page.contains("<b>") && !page.contains("<i>"));
        assert!(!page.contains("http://") && !page.contains("https://"));
        let data = page.split("id=\"data\">").nth(1).and_then(|rest| rest.split("</script>").next()).unwrap();
        let data: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["moments"].as_array().unwrap().len(), 1);
        assert_eq!(data["name"], "</script><b>&\"");
    }
}
