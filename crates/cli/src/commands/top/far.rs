//! The part of `hinterland top` on programs with far memory.

use crate::commands::far::{budget, number, value};
use crate::size::{human, rate};
use crate::table::{Align, Table};
use hinterland_far::control::{BackEndStatus, Status};
use serde_json::{Value, json};

/// Programs at one moment, and what happened in a second since the moment before.
#[derive(Debug, Default)]
pub struct Programs {
    before: Vec<Status>,
    after: Vec<Status>,
}

/// What happened in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rates {
    faults: f64,
    in_bytes: f64,
    out_bytes: f64,
    /// Threads that waited, on average.
    stalled: f64,
}

impl Programs {
    /// Programs as they are, after those that were there before.
    pub fn followed_by(self, after: Vec<Status>) -> Self {
        Self { before: self.after, after }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.after.is_empty()
    }

    fn earlier(&self, status: &Status) -> Option<&Status> {
        let is_same =
            |one: &&Status| one.supervisor == status.supervisor && one.started_ms == status.started_ms;
        self.before.iter().find(is_same)
    }

    fn rates(&self, status: &Status) -> Rates {
        let Some(before) = self.earlier(status) else { return Rates::default() };
        let seconds = (status.uptime_s - before.uptime_s).max(0.001);
        let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        Rates {
            faults: each(before.faults, status.faults),
            in_bytes: each(before.fetched_bytes, status.fetched_bytes),
            out_bytes: each(before.evicted_bytes, status.evicted_bytes),
            stalled: (status.stall_s - before.stall_s).max(0.0) / seconds,
        }
    }

    fn back_end_rates(&self, status: &Status, one: &BackEndStatus) -> (f64, f64) {
        let Some(before) = self.earlier(status) else { return (0.0, 0.0) };
        let Some(earlier) = before.back_ends.iter().find(|earlier| earlier.name == one.name) else {
            return (0.0, 0.0);
        };
        let seconds = (status.uptime_s - before.uptime_s).max(0.001);
        let each = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        (each(earlier.in_bytes, one.in_bytes), each(earlier.out_bytes, one.out_bytes))
    }

    /// As JSON.
    pub fn value(&self) -> Value {
        let one = |status: &Status| {
            let rates = self.rates(status);
            let mut value = value(status);
            value["rates"] = json!({
                "faults_per_s": rates.faults,
                "in_bytes_per_s": rates.in_bytes,
                "out_bytes_per_s": rates.out_bytes,
                "threads_stalled": rates.stalled,
            });
            value
        };
        Value::Array(self.after.iter().map(one).collect())
    }

    /// As lines of text.
    pub fn lines(&self) -> Vec<String> {
        let mut table = Table::new(&[
            ("PID", Align::Right),
            ("FAR MEMORY OF", Align::Left),
            ("BUDGET", Align::Right),
            ("RESIDENT", Align::Right),
            ("FAR", Align::Right),
            ("FAULTS/S", Align::Right),
            ("IN", Align::Right),
            ("OUT", Align::Right),
            ("STALLED", Align::Right),
            ("SHORT OF", Align::Right),
        ]);
        for status in &self.after {
            let rates = self.rates(status);
            table.row([
                number(status).to_string(),
                status.about.name.clone(),
                budget(status),
                human(status.resident_bytes),
                human(status.far_bytes),
                format!("{:.0}", rates.faults),
                rate(rates.in_bytes),
                rate(rates.out_bytes),
                format!("{:.2}", rates.stalled),
                status.short_bytes.map(human).unwrap_or_default(),
            ]);
            for one in status.back_ends.iter().filter(|one| one.life != "gone") {
                let (come, gone) = self.back_end_rates(status, one);
                table.row([
                    String::new(),
                    format!("  {}", one.name),
                    String::new(),
                    if one.memory_bytes > 0 { human(one.memory_bytes) } else { String::new() },
                    human(one.held_bytes),
                    String::new(),
                    rate(come),
                    rate(gone),
                ]);
            }
        }
        table.text().lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(seconds: f64, faults: u64, in_bytes: u64) -> Status {
        let (name, memory_bytes) = ("lz4".to_owned(), 7 << 20);
        let one = BackEndStatus { name, in_bytes, memory_bytes, ..BackEndStatus::default() };
        let mut status = Status { uptime_s: seconds, faults, fetched_bytes: in_bytes, ..Status::default() };
        status.about.name = "train".to_owned();
        status.processes = vec![4711];
        status.back_ends = vec![one];
        status
    }

    #[test]
    fn rates_are_differences_over_the_run_s_own_time() {
        let programs = Programs::default().followed_by(vec![status(1.0, 10, 1 << 20)]);
        assert_eq!(programs.rates(&programs.after[0]), Rates::default());
        let programs = programs.followed_by(vec![status(3.0, 30, 5 << 20)]);
        let rates = programs.rates(&programs.after[0]);
        assert_eq!((rates.faults, rates.in_bytes), (10.0, 2_097_152.0));
        let text = programs.lines().join("\n");
        for part in ["4711", "train", "2.00 MiB/s", "  lz4", "7.00 MiB"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn another_run_under_the_same_number_has_no_negative_rates() {
        let mut other = status(0.5, 1, 1);
        other.started_ms = 7;
        let programs = Programs::default().followed_by(vec![status(9.0, 100, 100)]).followed_by(vec![other]);
        assert_eq!(programs.rates(&programs.after[0]), Rates::default());
    }
}
