//! What a bench prints: one object with the machine and its rows. Nothing in it says whether a figure is good.

use crate::size::human;
use crate::table::{Align, Table};
use hinterland_os::probe::Machine as Probe;
use serde::Serialize;
use serde_json::{Value, json};

/// The machine that figures were taken on.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Machine {
    /// Processors.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Huge pages of 2 MiB that can be had.
    pub huge_pages: u64,
    /// Load average of one minute before the bench.
    pub load: f64,
}

impl Machine {
    /// This machine at this moment.
    pub fn look() -> Self {
        let probe = Probe::probe();
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            cpus: probe.cpus,
            memory_bytes: probe.memory_total_bytes,
            kernel: probe.kernel,
            huge_pages: probe.huge_pages.map_or(0, |counts| counts.obtainable()),
            load: load.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0),
        }
    }
}

/// Which way a figure should go.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Times.
    Lower,
    /// Rates.
    Higher,
}

/// One case of a bench.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Row {
    /// Its name, such as `tcp-first`.
    pub case: String,
    /// The unit of its figures, such as `GB/s` or `us`.
    pub unit: &'static str,
    /// Which way they should go.
    pub better: Better,
    /// Median of ours; absent if it could not be taken.
    pub ours: Option<f64>,
    /// Smallest and largest of ours.
    pub spread: Option<[f64; 2]>,
    /// How often it was taken.
    pub runs: usize,
    /// Median of what the machine can do at best.
    pub limit: Option<f64>,
    /// What that was measured with.
    pub limit_name: Option<String>,
    /// Median of another program that does the same.
    pub peer: Option<f64>,
    /// Which.
    pub peer_name: Option<String>,
    /// Why a figure is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Row {
    /// A case without figures yet.
    pub fn new(case: impl Into<String>, unit: &'static str, better: Better) -> Self {
        Self {
            case: case.into(),
            unit,
            better,
            ours: None,
            spread: None,
            runs: 0,
            limit: None,
            limit_name: None,
            peer: None,
            peer_name: None,
            why: None,
        }
    }

    /// A case that could not be measured.
    pub fn absent(
        case: impl Into<String>,
        unit: &'static str,
        better: Better,
        why: impl Into<String>,
    ) -> Self {
        Self { why: Some(why.into()), ..Self::new(case, unit, better) }
    }

    /// Ours over the limit, where both are known.
    pub fn ratio_to_limit(&self) -> Option<f64> {
        Some(self.ours? / self.limit.filter(|limit| *limit != 0.0)?)
    }

    /// Ours over the peer, where both are known.
    pub fn ratio_to_peer(&self) -> Option<f64> {
        Some(self.ours? / self.peer.filter(|peer| *peer != 0.0)?)
    }
}

/// What a bench found.
#[derive(Serialize, Clone, Debug, PartialEq)]
pub struct Report {
    /// Its name.
    pub bench: String,
    /// Where.
    pub machine: Machine,
    /// Its cases.
    pub rows: Vec<Row>,
}

impl Report {
    /// As JSON: the fields of all parts, and in each row `ours_over_limit` and `ours_over_peer`, null where one of both is not known.
    pub fn json(&self) -> Value {
        // Names, numbers and texts only: nothing in it can fail to become JSON.
        let mut value = serde_json::to_value(self).unwrap_or_default();
        let rows = value["rows"].as_array_mut().into_iter().flatten();
        for (shown, row) in rows.zip(&self.rows) {
            shown["ours_over_limit"] = json!(row.ratio_to_limit());
            shown["ours_over_peer"] = json!(row.ratio_to_peer());
        }
        value
    }

    /// As a table with a line about the machine above it.
    pub fn text(&self) -> String {
        let Machine { cpus, memory_bytes, kernel, huge_pages, load } = &self.machine;
        let mut text = format!(
            "{}: {cpus} CPUs, {}, Linux {kernel}, {huge_pages} huge pages, load {load:.2}\n\n",
            self.bench,
            human(*memory_bytes)
        );
        text.push_str(&self.table().text());
        for row in &self.rows {
            if let Some(why) = &row.why {
                text.push_str(&format!("\n{}: {why}", row.case));
            }
        }
        text
    }

    fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("CASE", Align::Left),
            ("OURS", Align::Right),
            ("MIN", Align::Right),
            ("MAX", Align::Right),
            ("LIMIT", Align::Right),
            ("OURS/LIMIT", Align::Right),
            ("PEER", Align::Right),
            ("OURS/PEER", Align::Right),
            ("UNIT", Align::Left),
            ("BETTER", Align::Left),
            ("RUNS", Align::Right),
            ("LIMIT IS", Align::Left),
            ("PEER IS", Align::Left),
        ]);
        for row in &self.rows {
            let ratio =
                |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
            table.row([
                row.case.clone(),
                figure(row.ours),
                figure(row.spread.map(|spread| spread[0])),
                figure(row.spread.map(|spread| spread[1])),
                figure(row.limit),
                ratio(row.ratio_to_limit()),
                figure(row.peer),
                ratio(row.ratio_to_peer()),
                row.unit.to_owned(),
                if row.better == Better::Lower { "lower" } else { "higher" }.to_owned(),
                row.runs.to_string(),
                row.limit_name.clone().unwrap_or_else(|| "-".to_owned()),
                row.peer_name.clone().unwrap_or_else(|| "-".to_owned()),
            ]);
        }
        table
    }
}

/// A figure with three digits that say something, or a dash.
pub fn figure(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    match value.abs() {
        size if size >= 1e6 => format!("{value:.3e}"),
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.0995 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A report with a whole row and one without figures.
    pub fn sample() -> Report {
        let machine =
            Machine { cpus: 2, memory_bytes: 24 << 30, kernel: "6.18".to_owned(), huge_pages: 9, load: 0.5 };
        let whole = Row {
            ours: Some(3.4),
            spread: Some([3.1, 3.5]),
            runs: 5,
            limit: Some(4.0),
            limit_name: Some("raw TCP".to_owned()),
            ..Row::new("tcp-first", "GB/s", Better::Higher)
        };
        let absent = Row::absent("rack-first", "GB/s", Better::Higher, "no huge pages");
        Report { bench: "scan".to_owned(), machine, rows: vec![whole, absent] }
    }

    #[test]
    fn a_report_has_the_shape_that_readers_expect() {
        let value = serde_json::to_value(sample()).unwrap();
        assert_eq!(value["bench"], "scan");
        assert_eq!(value["machine"]["huge_pages"], 9);
        assert_eq!(value["rows"][0]["spread"][1], 3.5);
        assert_eq!(value["rows"][0]["better"], "higher");
        assert!(value["rows"][0]["peer"].is_null() && value["rows"][0].get("why").is_none());
        assert!(value["rows"][1]["ours"].is_null());
        assert_eq!(value["rows"][1]["why"], "no huge pages");
    }

    #[test]
    fn a_table_shows_ratios_and_why_a_figure_is_absent() {
        let text = sample().text();
        assert!(
            text.starts_with("scan: 2 CPUs, 24.0 GiB, Linux 6.18, 9 huge pages, load 0.50\n\nCASE"),
            "{text}"
        );
        assert!(text.contains("tcp-first   3.40  3.10  3.50   4.00        0.85     -"), "{text}");
        assert!(text.ends_with("\nrack-first: no huge pages"), "{text}");
    }

    #[test]
    fn figures_have_three_digits() {
        let shown = [1_234_567.0, 1234.0, 12.34, 1.234, 0.01234, 0.0].map(|value| figure(Some(value)));
        assert_eq!(shown, ["1.235e6", "1234", "12.3", "1.23", "0.0123", "0.00"]);
    }
}
